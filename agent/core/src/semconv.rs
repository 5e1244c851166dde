//! Every name of the OpenTelemetry GenAI conventions, and every name of our own, spelled here and nowhere else.
//!
//! Source: `open-telemetry/semantic-conventions` v1.41.1, `docs/gen-ai/` (metrics: gen-ai-metrics.md; spans: gen-ai-spans.md). All of it is of
//! level *Development*. What the conventions lack stands under `tokengauge.*`; we never invent a `gen_ai.*` name.

/// `gen_ai.provider.name` of a server whose host says nothing: someone speaks a known API.
pub const PROVIDER_OTHER: &str = "_OTHER";

/// Host suffix → provider. Only the two Google hosts stand in the conventions; the rest is our mapping of their list of values.
const PROVIDERS: &[(&str, &str)] = &[
    ("api.openai.com", "openai"),
    (".openai.azure.com", "azure.ai.openai"),
    (".cognitiveservices.azure.com", "azure.ai.openai"),
    (".services.ai.azure.com", "azure.ai.inference"),
    (".models.ai.azure.com", "azure.ai.inference"),
    ("api.anthropic.com", "anthropic"),
    ("generativelanguage.googleapis.com", "gcp.gemini"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    ("api.mistral.ai", "mistral_ai"),
    ("api.cohere.com", "cohere"),
    ("api.cohere.ai", "cohere"),
    ("api.deepseek.com", "deepseek"),
    ("api.groq.com", "groq"),
    ("api.x.ai", "x_ai"),
    ("api.perplexity.ai", "perplexity"),
    ("api.moonshot.cn", "moonshot_ai"),
    ("api.moonshot.ai", "moonshot_ai"),
    ("openrouter.ai", "openrouter"),
    ("api.together.xyz", "together_ai"),
    ("api.together.ai", "together_ai"),
    ("router.huggingface.co", "hugging_face"),
    ("api-inference.huggingface.co", "hugging_face"),
    (".endpoints.huggingface.cloud", "hugging_face"),
    ("api.fireworks.ai", "fireworks_ai"),
    ("api.cerebras.ai", "cerebras"),
    ("dashscope.aliyuncs.com", "alibaba"),
    ("dashscope-intl.aliyuncs.com", "alibaba"),
    ("dashscope-us.aliyuncs.com", "alibaba"),
    ("api.z.ai", "z_ai"),
    ("open.bigmodel.cn", "z_ai"),
    ("api.jina.ai", "jina_ai"),
    ("api.voyageai.com", "voyage_ai"),
    ("ollama.com", "ollama"),
    ("integrate.api.nvidia.com", "nvidia"),
    ("api.novita.ai", "novita_ai"),
];

/// The provider that serves at `host` (without port), as far as the host says.
pub fn provider_of_host(host: &str) -> Option<&'static str> {
    if host.starts_with("bedrock-runtime") && host.ends_with(".amazonaws.com") {
        return Some("aws.bedrock");
    }
    let named = |suffix: &str| {
        host.strip_suffix(suffix)
            .is_some_and(|rest| rest.is_empty() || suffix.starts_with('.') || rest.ends_with('.') || rest.ends_with('-'))
    };
    PROVIDERS.iter().find(|(suffix, _)| named(suffix)).map(|(_, provider)| *provider)
}

/// The provider that a `server` response header names, for servers that people run themselves.
pub fn provider_of_server_header(server: &str) -> Option<&'static str> {
    let server = server.trim();
    if server.starts_with("llama.cpp") {
        return Some("llama_cpp");
    }
    None
}

/// The schema that the `gen_ai.*` names belong to.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.41.0";

/// Names of attributes of spans and data points.
pub mod attr {
    /// `chat`, `text_completion`, `embeddings`.
    pub const OPERATION_NAME: &str = "gen_ai.operation.name";
    /// Who serves.
    pub const PROVIDER_NAME: &str = "gen_ai.provider.name";
    /// The model as asked for.
    pub const REQUEST_MODEL: &str = "gen_ai.request.model";
    /// `true` when streaming, otherwise left out.
    pub const REQUEST_STREAM: &str = "gen_ai.request.stream";
    /// Upper bound of output tokens.
    pub const REQUEST_MAX_TOKENS: &str = "gen_ai.request.max_tokens";
    /// Sampling temperature.
    pub const REQUEST_TEMPERATURE: &str = "gen_ai.request.temperature";
    /// Nucleus sampling bound.
    pub const REQUEST_TOP_P: &str = "gen_ai.request.top_p";
    /// Number of choices, when it is not 1.
    pub const REQUEST_CHOICE_COUNT: &str = "gen_ai.request.choice.count";
    /// The model as answered.
    pub const RESPONSE_MODEL: &str = "gen_ai.response.model";
    /// The API's id of the response.
    pub const RESPONSE_ID: &str = "gen_ai.response.id";
    /// One per choice.
    pub const RESPONSE_FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
    /// Seconds until the first event of the stream.
    pub const RESPONSE_TIME_TO_FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
    /// `input` or `output`, on `gen_ai.client.token.usage`.
    pub const TOKEN_TYPE: &str = "gen_ai.token.type";
    /// All input tokens.
    pub const USAGE_INPUT: &str = "gen_ai.usage.input_tokens";
    /// All output tokens.
    pub const USAGE_OUTPUT: &str = "gen_ai.usage.output_tokens";
    /// Input tokens from a cache.
    pub const USAGE_CACHE_READ: &str = "gen_ai.usage.cache_read.input_tokens";
    /// Input tokens into a cache (`cache_write` on the conventions' main branch).
    pub const USAGE_CACHE_CREATION: &str = "gen_ai.usage.cache_creation.input_tokens";
    /// Output tokens spent on reasoning.
    pub const USAGE_REASONING: &str = "gen_ai.usage.reasoning.output_tokens";
    /// `chat_completions` or `responses`.
    pub const OPENAI_API_TYPE: &str = "openai.api.type";
    /// The provider's error type or code, the status, or how the connection ended.
    pub const ERROR_TYPE: &str = "error.type";
    /// The host that was asked for, else its address.
    pub const SERVER_ADDRESS: &str = "server.address";
    /// The server's port.
    pub const SERVER_PORT: &str = "server.port";
    /// The HTTP status.
    pub const HTTP_STATUS: &str = "http.response.status_code";
    /// `http`.
    pub const NETWORK_PROTOCOL_NAME: &str = "network.protocol.name";
    /// `1.1`, `2`.
    pub const NETWORK_PROTOCOL_VERSION: &str = "network.protocol.version";
    /// The tapped process.
    pub const PROCESS_PID: &str = "process.pid";
    /// The tapped process's command name.
    pub const PROCESS_COMMAND: &str = "tokengauge.process.command";
    /// `client`, `server`, `unknown`: from whose side it was seen.
    pub const VANTAGE: &str = "tokengauge.vantage";
    /// `tls`, `pcap`, …
    pub const TAP: &str = "tokengauge.tap";
    /// The wire format.
    pub const API: &str = "tokengauge.api";
    /// `completed`, `failed`, `cancelled`, `truncated`, `lost`.
    pub const OUTCOME: &str = "tokengauge.outcome";
    /// Why it did not end well, or why there is no first token; why something was lost.
    pub const REASON: &str = "tokengauge.reason";
    /// Which surprise of the wire.
    pub const ANOMALY: &str = "tokengauge.anomaly";
    /// How an attach attempt went.
    pub const RESULT: &str = "tokengauge.result";
    /// Which of a tap's further counters.
    pub const COUNTER: &str = "tokengauge.counter";
    /// `spans` or `metrics`.
    pub const SIGNAL: &str = "tokengauge.signal";
    /// Events with generated output.
    pub const CHUNKS_GENERATED: &str = "tokengauge.chunks.generated";
    /// Distinct instants among them.
    pub const CHUNKS_ARRIVALS: &str = "tokengauge.chunks.arrivals";
    /// Capture gaps inside the exchange.
    pub const GAPS: &str = "tokengauge.gaps";
    /// Name of an SLO: its `metadata.name`.
    pub const SLO_NAME: &str = "tokengauge.slo.name";
    /// The service that an SLO belongs to.
    pub const SLO_SERVICE: &str = "tokengauge.slo.service";
    /// Name of one of its objectives. Not `tokengauge.slo.objective`, which is the metric of the target.
    pub const SLO_OBJECTIVE_NAME: &str = "tokengauge.slo.objective.name";
    /// The window of a burn rate, as Prometheus writes durations: `5m`, `1h`, `3d`.
    pub const SLO_WINDOW: &str = "tokengauge.slo.window";
    /// `page` or `ticket`.
    pub const SLO_SEVERITY: &str = "tokengauge.slo.severity";
    /// The kind of an inference server that was scraped: `vllm`, `llama.cpp`, …
    pub const ENGINE: &str = "tokengauge.engine";
    /// Which of a server's engines: its data-parallel rank, where it names one.
    pub const ENGINE_RANK: &str = "tokengauge.engine.rank";
    /// Before the name of a dimension: the value of a grouped SLO's group, e.g. `tokengauge.slo.group.model`.
    pub const SLO_GROUP_PREFIX: &str = "tokengauge.slo.group.";
}

/// The event of a span at the instant of the first token.
pub const EVENT_FIRST_TOKEN: &str = "tokengauge.first_token";

/// Names of spans of the agent itself stand under this scope.
pub const AGENT_SCOPE: &str = "tokengauge.agent";

/// Scope of everything that is measured.
pub const SCOPE: &str = "tokengauge";

/// How a metric is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A histogram.
    Histogram,
    /// A monotonic sum.
    Counter,
    /// A sum that goes up and down.
    UpDownCounter,
    /// A value as it is now; never added up.
    Gauge,
}

/// A metric: its name, how it is recorded, and what it means.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Metric {
    /// The OTLP name.
    pub name: &'static str,
    /// How it is recorded.
    pub kind: Kind,
    /// The UCUM unit.
    pub unit: &'static str,
    /// Bounds of a histogram's buckets; none where they are those of the server that made it.
    pub buckets: &'static [f64],
    /// What it means.
    pub doc: &'static str,
}

/// Bucket bounds of durations, prescribed by the conventions.
pub const D14: [f64; 14] = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// Bucket bounds of token counts, prescribed by the conventions.
pub const T14: [f64; 14] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];
/// Bucket bounds of `gen_ai.server.time_to_first_token`, prescribed by the conventions.
pub const SERVER_TTFT: [f64; 16] = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Bucket bounds of `gen_ai.server.time_per_output_token`, prescribed by the conventions.
pub const SERVER_TPOT: [f64; 13] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
/// Our bounds of latencies. A limit of an SLO is exact only where it is a bound, so the round figures that people choose are
/// bounds (200 ms, 300 ms, 500 ms, 1 s, 1.5 s, 2 s, 3 s, 5 s, 10 s …); D14 has none of them. From 1 ms (a cache) to 2 min.
pub const LATENCY: [f64; 27] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0,
    30.0, 60.0, 120.0,
];
/// Our bounds of gaps and times per token: dense from 5 to 100 ms, where models decode; from 0.1 ms (pieces of one burst) to 30 s.
pub const GAP: [f64; 25] = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0,
    2.0, 5.0, 10.0, 30.0,
];
/// Our bounds of tokens per second.
pub const SPEED: [f64; 19] =
    [1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 750.0, 1000.0, 2000.0, 5000.0];

macro_rules! metrics {
    ($($id:ident = $name:literal, $kind:ident, $unit:literal, $buckets:expr, $doc:literal;)*) => {
        /// Every metric that is exported.
        pub mod metric {
            use super::*;
            $(#[doc = $doc] pub const $id: Metric = Metric { name: $name, kind: Kind::$kind, unit: $unit, buckets: $buckets, doc: $doc };)*
            /// All of them, for tables and tests.
            pub const ALL: &[Metric] = &[$($id),*];
        }
    };
}

metrics! {
    CLIENT_OPERATION_DURATION = "gen_ai.client.operation.duration", Histogram, "s", &D14,
        "GenAI operation duration.";
    CLIENT_TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk", Histogram, "s", &D14,
        "Time to receive the first chunk of a streamed response, whatever it holds.";
    CLIENT_TIME_PER_OUTPUT_CHUNK = "gen_ai.client.operation.time_per_output_chunk", Histogram, "s", &D14,
        "Time per output chunk: one observation per chunk after the first.";
    CLIENT_TOKEN_USAGE = "gen_ai.client.token.usage", Histogram, "{token}", &T14,
        "Number of input and output tokens used, by the provider's count.";
    SERVER_REQUEST_DURATION = "gen_ai.server.request.duration", Histogram, "s", &D14,
        "Server request duration, seen at the server.";
    SERVER_TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token", Histogram, "s", &SERVER_TTFT,
        "Time to generate the first token of successful responses, seen at the server.";
    SERVER_TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token", Histogram, "s", &SERVER_TPOT,
        "(duration - time to first token) / (output tokens - 1) of successful responses, seen at the server.";
    TIME_TO_FIRST_TOKEN = "tokengauge.time_to_first_token", Histogram, "s", &LATENCY,
        "From the request's first byte to the first generated output: text, reasoning or tool call.";
    TIME_TO_FIRST_ANSWER = "tokengauge.time_to_first_answer", Histogram, "s", &LATENCY,
        "From the request's first byte to the first output that is not reasoning.";
    TIME_PER_OUTPUT_TOKEN = "tokengauge.time_per_output_token", Histogram, "s", &GAP,
        "(last - first generated output) / (output tokens - 1), by the provider's count of tokens; one value per stream.";
    INTER_CHUNK_GAP = "tokengauge.inter_chunk_gap", Histogram, "s", &GAP,
        "Silence between consecutive arrivals of generated output; chunks that share an instant are one arrival.";
    MAX_STALL = "tokengauge.max_stall", Histogram, "s", &LATENCY,
        "Longest silence of a stream from the first to the last generated output.";
    OUTPUT_SPEED = "tokengauge.output_speed", Histogram, "{token}/s", &SPEED,
        "Output tokens per second as one user sees them: 1 / time per output token.";
    REQUESTS = "tokengauge.requests", Counter, "{request}", &[],
        "Finished inferences by outcome and reason.";
    INPUT_TOKENS = "tokengauge.input_tokens", Counter, "{token}", &[],
        "Input tokens by the provider's count.";
    OUTPUT_TOKENS = "tokengauge.output_tokens", Counter, "{token}", &[],
        "Output tokens by the provider's count.";
    IN_FLIGHT = "tokengauge.in_flight", UpDownCounter, "{request}", &[],
        "Inferences that are running.";
    ANOMALIES = "tokengauge.anomalies", Counter, "{anomaly}", &[],
        "Surprises of the wire, by name.";
    CAPTURE_PACKETS = "tokengauge.capture.packets", Counter, "{packet}", &[],
        "Packets captured.";
    CAPTURE_RECORDS = "tokengauge.capture.records", Counter, "{record}", &[],
        "Records received from the kernel programs.";
    CAPTURE_BYTES = "tokengauge.capture.bytes", Counter, "By", &[],
        "Payload bytes that reached the parsers.";
    CAPTURE_CONNECTIONS = "tokengauge.capture.connections", Counter, "{connection}", &[],
        "Connections seen.";
    CAPTURE_OPEN_CONNECTIONS = "tokengauge.capture.open_connections", UpDownCounter, "{connection}", &[],
        "Connections that are open and watched.";
    CAPTURE_EXCHANGES = "tokengauge.capture.exchanges", Counter, "{exchange}", &[],
        "HTTP exchanges, LLM traffic or not.";
    CAPTURE_NON_LLM = "tokengauge.capture.non_llm_exchanges", Counter, "{exchange}", &[],
        "HTTP exchanges that are no LLM traffic.";
    CAPTURE_EVENTS = "tokengauge.capture.events", Counter, "{event}", &[],
        "Events of streamed answers.";
    CAPTURE_GAPS = "tokengauge.capture.gaps", Counter, "{gap}", &[],
        "Capture gaps by reason. Nothing is measured across one.";
    CAPTURE_DROPS = "tokengauge.capture.drops", Counter, "{record}", &[],
        "Records and inferences lost inside the agent, by reason.";
    CAPTURE_DROPPED_BYTES = "tokengauge.capture.dropped", Counter, "By", &[],
        "Bytes in lost records, where their number is known, by reason.";
    CAPTURE_ATTACHES = "tokengauge.capture.attaches", Counter, "{attach}", &[],
        "Attempts to attach to a library, by result.";
    CAPTURE_OTHER = "tokengauge.capture.other", Counter, "{event}", &[],
        "Further counters of the taps, by name.";
    EXPORT_DROPS = "tokengauge.export.drops", Counter, "{item}", &[],
        "Spans and metric batches that could not be delivered, by signal and reason.";
    SLO_VALID = "tokengauge.slo.events.valid", Counter, "{request}", &[],
        "Requests that count for an objective, good or bad. With .good it adds up over nodes, which ratios do not.";
    SLO_GOOD = "tokengauge.slo.events.good", Counter, "{request}", &[],
        "Requests that count for an objective and were good.";
    SLO_EXCLUDED = "tokengauge.slo.events.excluded", Counter, "{request}", &[],
        "Requests that capture could not see well enough to judge. They lower the coverage.";
    SLO_NOT_APPLICABLE = "tokengauge.slo.events.not_applicable", Counter, "{request}", &[],
        "Requests that the selector takes and the indicator cannot judge, such as a TTFT of an answer that is no stream.";
    SLO_OBJECTIVE = "tokengauge.slo.objective", Gauge, "1", &[],
        "The target: the share of valid requests that must be good. Its presence is the sign that an agent watches this objective.";
    SLO_BUDGET_REMAINING = "tokengauge.slo.error_budget.remaining", Gauge, "1", &[],
        "The share of the error budget that is left over the SLO's window, on this node; negative when it is overspent.";
    SLO_BURN_RATE = "tokengauge.slo.burn_rate", Gauge, "1", &[],
        "Error ratio over the window divided by the budget, on this node: 1 spends exactly the budget.";
    SLO_TIME_TO_EXHAUSTION = "tokengauge.slo.time_to_exhaustion", Gauge, "s", &[],
        "Until the budget of this node is spent at the present rate; absent while nothing burns.";
    SLO_COVERAGE = "tokengauge.slo.coverage", Gauge, "1", &[],
        "The share of what should have been judged that could be, on this node.";
    SLO_ALERT_STATE = "tokengauge.slo.alert.state", Gauge, "{state}", &[],
        "By severity, on this node: 0 quiet, 1 pending, 2 firing, 3 frozen because too little is seen.";
    SLO_FILES_PROBLEMS = "tokengauge.slo.files.problems", Gauge, "{problem}", &[],
        "What is wrong with the SLO files as they are now. Unless it is 0, what was read before stays in force.";
    SLO_JOURNAL_FAILING = "tokengauge.slo.journal.failing", Gauge, "{state}", &[],
        "1 while the journal cannot be written, so that budgets would not survive a restart; else 0.";

    // What inference servers say of themselves (`engine`). Counters and histograms since the agent first read the server.
    ENGINE_UP = "tokengauge.engine.up", Gauge, "{state}", &[],
        "1 when the last scrape of the server gave figures; else 0.";
    ENGINE_SCRAPES = "tokengauge.engine.scrapes", Counter, "{scrape}", &[],
        "Scrapes of the server by result.";
    ENGINE_BAD_LINES = "tokengauge.engine.bad_lines", Counter, "{line}", &[],
        "What could not be read of the server's text: bad lines, histograms that contradict themselves, series beyond the bound.";
    ENGINE_RUNNING = "tokengauge.engine.requests.running", Gauge, "{request}", &[],
        "Requests that the engine works on.";
    ENGINE_WAITING = "tokengauge.engine.requests.waiting", Gauge, "{request}", &[],
        "Requests that wait for the engine.";
    ENGINE_FINISHED = "tokengauge.engine.requests.finished", Counter, "{request}", &[],
        "Requests that the engine finished, by its own reason where it gives one.";
    ENGINE_FAILED = "tokengauge.engine.requests.failed", Counter, "{request}", &[],
        "Requests that failed or were aborted by the engine's count, by its own reason where it gives one.";
    ENGINE_PREEMPTIONS = "tokengauge.engine.preemptions", Counter, "{preemption}", &[],
        "Requests that had to give up their KV cache for others (vLLM: preempted; SGLang: retracted).";
    ENGINE_KV_CACHE_USAGE = "tokengauge.engine.kv_cache.usage", Gauge, "1", &[],
        "The share of the KV cache that is in use.";
    ENGINE_PREFIX_QUERIES = "tokengauge.engine.prefix_cache.queries", Counter, "{token}", &[],
        "Prompt tokens that were looked for in the prefix cache.";
    ENGINE_PREFIX_HITS = "tokengauge.engine.prefix_cache.hits", Counter, "{token}", &[],
        "Prompt tokens that were found in the prefix cache.";
    ENGINE_PREFIX_HIT_SHARE = "tokengauge.engine.prefix_cache.hit_share", Gauge, "1", &[],
        "The share of hits in the prefix cache as the engine itself works it out, over a time of its own choice.";
    ENGINE_PROMPT_TOKENS = "tokengauge.engine.prompt_tokens", Counter, "{token}", &[],
        "Prompt tokens by the engine's count; llama.cpp leaves cached ones out, the others do not.";
    ENGINE_GENERATION_TOKENS = "tokengauge.engine.generation_tokens", Counter, "{token}", &[],
        "Generated tokens by the engine's count.";
    ENGINE_TTFT = "tokengauge.engine.time_to_first_token", Histogram, "s", &[],
        "From the request's arrival in the engine's own process to its first token; Triton: to the first response. The server's own bounds.";
    ENGINE_ITL = "tokengauge.engine.inter_token_latency", Histogram, "s", &[],
        "vLLM: between two steps that gave a request tokens; SGLang: per token. The server's own bounds.";
    ENGINE_TPOT = "tokengauge.engine.time_per_output_token", Histogram, "s", &[],
        "(last - first token) / (tokens - 1) of requests with two tokens or more. The server's own bounds.";
    ENGINE_QUEUE = "tokengauge.engine.queue_time", Histogram, "s", &[],
        "From queued to scheduled. The server's own bounds.";
    ENGINE_PREFILL = "tokengauge.engine.prefill_time", Histogram, "s", &[],
        "From scheduled to the first token. The server's own bounds.";
    ENGINE_DECODE = "tokengauge.engine.decode_time", Histogram, "s", &[],
        "From the first to the last token. The server's own bounds.";
    ENGINE_INFERENCE = "tokengauge.engine.inference_time", Histogram, "s", &[],
        "From scheduled to the last token. The server's own bounds.";
    ENGINE_E2E = "tokengauge.engine.request_time", Histogram, "s", &[],
        "From the request's arrival in the engine's own process to its end. The server's own bounds.";
    ENGINE_SPENT_QUEUE = "tokengauge.engine.spent.queue", Counter, "s", &[],
        "Time that requests waited, added up, of servers that tell only the sum.";
    ENGINE_SPENT_PREFILL = "tokengauge.engine.spent.prefill", Counter, "s", &[],
        "Time spent on prompts, added up, of servers that tell only the sum.";
    ENGINE_SPENT_DECODE = "tokengauge.engine.spent.decode", Counter, "s", &[],
        "Time spent on generation, added up, of servers that tell only the sum.";
    ENGINE_SPENT_INFERENCE = "tokengauge.engine.spent.inference", Counter, "s", &[],
        "Time that requests were worked on, added up, of servers that tell only the sum.";
    ENGINE_SPENT_REQUEST = "tokengauge.engine.spent.request", Counter, "s", &[],
        "Time that requests took, added up, of servers that tell only the sum.";
    ENGINE_WIRE_OUTPUT_TOKENS = "tokengauge.engine.wire.output_tokens", Counter, "{token}", &[],
        "Output tokens of the inferences that were seen on the wire at this server's address, since it was first read.";
    ENGINE_TOKEN_COVERAGE = "tokengauge.engine.wire.token_coverage", Gauge, "1", &[],
        "Output tokens on the wire / generated tokens by the engine's count, over the last 20 scrapes; less than 1 is capture loss. \
        Absent where the engine counts none or an answer told no usage.";
    ENGINE_TTFT_EXCESS = "tokengauge.engine.wire.time_to_first_token_excess", Gauge, "s", &[],
        "Mean TTFT on the wire - mean TTFT of the engine, over the last 20 scrapes: HTTP, network, tokeniser. Absent unless both counted as \
        many requests, within a twentieth.";
}

/// The name that a metric has in Prometheus under the translator's default strategy (`UnderscoreEscapingWithSuffixes`).
pub fn prometheus_name(metric: &Metric) -> String {
    let mut name = metric.name.replace('.', "_");
    let (unit, per) = metric.unit.split_once('/').map_or((metric.unit, None), |(unit, per)| (unit, Some(per)));
    let word = |unit: &str| match unit {
        "s" => Some("seconds"),
        "By" => Some("bytes"),
        _ => None,
    };
    if let Some(word) = word(unit)
        && !name.ends_with(word)
    {
        name = format!("{name}_{word}");
    }
    if per == Some("s") {
        name += "_per_second";
    }
    match metric.kind {
        Kind::Counter => name += "_total",
        Kind::Gauge if metric.unit == "1" => name += "_ratio",
        _ => {}
    }
    name
}

/// The exported metrics as a Markdown table, as it stands in the README.
pub fn metrics_markdown() -> String {
    let mut out = String::from("| Metric | Instrument | Unit | In Prometheus | Meaning |\n|---|---|---|---|---|\n");
    for m in metric::ALL {
        out += &format!("| `{}` | {:?} | `{}` | `{}` | {} |\n", m.name, m.kind, m.unit, prometheus_name(m), m.doc);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (host, want) in [
            ("api.openai.com", Some("openai")),
            ("eu.api.openai.com", Some("openai")),
            ("notapi.openai.com.evil.test", None),
            ("evilapi.openai.com", None),
            ("my-res.openai.azure.com", Some("azure.ai.openai")),
            ("us-central1-aiplatform.googleapis.com", Some("gcp.vertex_ai")),
            ("bedrock-runtime.us-east-1.amazonaws.com", Some("aws.bedrock")),
            ("10.0.0.1", None),
            ("vllm.default.svc", None),
        ] {
            assert_eq!(provider_of_host(host), want, "{host}");
        }
    }

    #[test]
    fn metric_names_obey_the_translators_rules() {
        let mut names = std::collections::BTreeSet::new();
        for m in metric::ALL {
            let dotted = m.name.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(dotted && !m.name.ends_with("total") && !m.name.contains("second"), "{}", m.name);
            assert!(m.name.starts_with("gen_ai.") || m.name.starts_with("tokengauge."), "{}", m.name);
            let rate = ["rate", "per_s", "throughput"].iter().any(|w| m.name.contains(w));
            assert!(!(rate && m.unit.contains('/')), "{}: a rate word and a rate unit", m.name);
            let unit = m.unit == "s" || m.unit == "By" || m.unit.starts_with('{') || m.unit == "1" && m.kind == Kind::Gauge;
            assert!(unit, "{}: {}", m.name, m.unit);
            // Histograms of inference servers have the servers' own bounds.
            let foreign = m.name.starts_with("tokengauge.engine.");
            assert_eq!(m.kind == Kind::Histogram && !foreign, !m.buckets.is_empty(), "{}", m.name);
            assert!(m.buckets.is_sorted_by(|a, b| a < b), "{}: bounds", m.name);
            let name = prometheus_name(m);
            let words: Vec<_> = name.split('_').collect();
            assert!(words.windows(2).all(|w| w[0] != w[1]), "{name} doubles a word");
            assert!(names.insert(name), "{} collides", m.name);
        }
        // Suffixes of a histogram's series must not be another metric's name either.
        for m in metric::ALL.iter().filter(|m| m.kind == Kind::Histogram) {
            for suffix in ["_bucket", "_count", "_sum"] {
                assert!(!names.contains(&(prometheus_name(m) + suffix)));
            }
        }
    }

    #[test]
    fn names_as_measured_with_the_translator() {
        let of = |m: &Metric| prometheus_name(m);
        assert_eq!(of(&metric::SERVER_TIME_TO_FIRST_TOKEN), "gen_ai_server_time_to_first_token_seconds");
        assert_eq!(of(&metric::CLIENT_TOKEN_USAGE), "gen_ai_client_token_usage");
        assert_eq!(of(&metric::REQUESTS), "tokengauge_requests_total");
        assert_eq!(of(&metric::OUTPUT_SPEED), "tokengauge_output_speed_per_second");
        assert_eq!(of(&metric::CAPTURE_BYTES), "tokengauge_capture_bytes_total");
    }
}
