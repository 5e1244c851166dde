//! Every name of the OpenTelemetry GenAI conventions, and every name of our own, spelled here and nowhere else.
//!
//! Sources: `open-telemetry/semantic-conventions` v1.41.1, `docs/gen-ai/` (the profile `v1_41`), and `open-telemetry/semantic-conventions-genai`
//! of October 2026 (the profile `main`). All of it is of level *Development*. What the conventions lack stands under `tokengauge.*`; we never
//! invent a `gen_ai.*` name.

pub mod attr;
pub mod engines;
mod profile;
mod provider;
pub mod span;
pub mod workload;

pub use profile::{In, Profile};
pub use provider::{provider_of_host, provider_of_server_header};

/// `gen_ai.provider.name` of a server whose host says nothing: someone speaks a known API.
pub const PROVIDER_OTHER: &str = OTHER;

/// A value that has no name of its own: one of many, or none that is known.
pub const OTHER: &str = "_OTHER";

/// The event of a span at the instant of the first token.
pub const EVENT_FIRST_TOKEN: &str = "tokengauge.first_token";

/// The event of a span at the instant at which a stall began: the last chunk before it.
pub const EVENT_STALL: &str = "tokengauge.stall";

/// The event of a span at the instant of a chunk with generated output.
pub const EVENT_CHUNK: &str = "tokengauge.chunk";

/// The event of a span at the instant at which bytes of the answer were found to be missing.
pub const EVENT_GAP: &str = "tokengauge.gap";

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
    /// Under which profiles it is exported.
    pub under: In,
    /// What it means.
    pub doc: &'static str,
    /// Its place in [`metric::ALL`].
    pub index: usize,
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

impl Metric {
    /// Whether it is one of ours, and no convention's.
    pub fn is_own(&self) -> bool {
        self.name.starts_with("tokengauge.")
    }

    /// Whether its values are real numbers: gauges, and sums of seconds. Other sums count things.
    pub fn is_real(&self) -> bool {
        self.kind == Kind::Gauge || self.unit == "s"
    }
}

macro_rules! metrics {
    ($($id:ident = $name:literal, $kind:ident, $unit:literal, $buckets:expr, $under:ident, $doc:literal;)*) => {
        /// Places in the list.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "named like the constants")]
        enum Index { $($id),* }
        /// Every metric that is exported.
        pub mod metric {
            use super::*;
            $(#[doc = $doc] pub const $id: Metric = Metric {
                name: $name, kind: Kind::$kind, unit: $unit, buckets: $buckets, under: In::$under, doc: $doc, index: Index::$id as usize,
            };)*
            /// All of them, for tables and tests.
            pub const ALL: &[Metric] = &[$($id),*];
        }
    };
}

metrics! {
    CLIENT_OPERATION_DURATION = "gen_ai.client.operation.duration", Histogram, "s", &D14, Always,
        "GenAI operation duration; under `main` of embeddings and rerankings only.";
    CLIENT_TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk", Histogram, "s", &D14, Old,
        "Time to receive the first chunk of a streamed response, whatever it holds.";
    CLIENT_TIME_PER_OUTPUT_CHUNK = "gen_ai.client.operation.time_per_output_chunk", Histogram, "s", &D14, Old,
        "Time per output chunk: one observation per chunk after the first.";
    CLIENT_TOKEN_USAGE = "gen_ai.client.token.usage", Histogram, "{token}", &T14, Old,
        "Number of input and output tokens used, by the provider's count.";
    CLIENT_INFERENCE_DURATION = "gen_ai.client.inference.duration", Histogram, "s", &D14, New,
        "GenAI inference duration.";
    CLIENT_INFERENCE_TIME_TO_FIRST_CHUNK = "gen_ai.client.inference.time_to_first_chunk", Histogram, "s", &D14, New,
        "Time to receive the first chunk of a streamed response, whatever it holds.";
    CLIENT_INFERENCE_TIME_PER_OUTPUT_CHUNK = "gen_ai.client.inference.time_per_output_chunk", Histogram, "s", &D14, New,
        "Time per output chunk: one observation per chunk after the first.";
    CLIENT_INPUT_TOKENS = "gen_ai.client.inference.usage.input_tokens", Counter, "{token}", &[], Always,
        "Input tokens, cached ones included, by the provider's count; 0 where it gave none.";
    CLIENT_OUTPUT_TOKENS = "gen_ai.client.inference.usage.output_tokens", Counter, "{token}", &[], Always,
        "Output tokens, reasoning included, by the provider's count; 0 where it gave none.";
    CLIENT_CACHE_READ_TOKENS = "gen_ai.client.inference.usage.cache_read.input_tokens", Counter, "{token}", &[], Always,
        "Input tokens read from a cache. Part of the input tokens: never to be added to them.";
    CLIENT_CACHE_WRITE_TOKENS = "gen_ai.client.inference.usage.cache_write.input_tokens", Counter, "{token}", &[], Always,
        "Input tokens written to a cache. Part of the input tokens: never to be added to them.";
    CLIENT_REASONING_TOKENS = "gen_ai.client.inference.usage.reasoning.output_tokens", Counter, "{token}", &[], Always,
        "Output tokens spent on reasoning. Part of the output tokens: never to be added to them.";
    CLIENT_OPERATION_INPUT_TOKENS = "gen_ai.client.inference.operation.input_tokens", Histogram, "{token}", &T14, New,
        "Input tokens of one inference: for percentiles, never for sums.";
    CLIENT_OPERATION_OUTPUT_TOKENS = "gen_ai.client.inference.operation.output_tokens", Histogram, "{token}", &T14, New,
        "Output tokens of one inference: for percentiles, never for sums.";
    SERVER_REQUEST_DURATION = "gen_ai.server.request.duration", Histogram, "s", &D14, Always,
        "Server request duration, seen at the server.";
    SERVER_TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token", Histogram, "s", &SERVER_TTFT, Always,
        "Time to generate the first token of successful responses, seen at the server.";
    SERVER_TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token", Histogram, "s", &SERVER_TPOT, Always,
        "(duration - time to first token) / (output tokens - 1) of successful responses, seen at the server.";
    TIME_TO_FIRST_TOKEN = "tokengauge.time_to_first_token", Histogram, "s", &LATENCY, Always,
        "From the request's first byte to the first generated output: text, reasoning or tool call.";
    TIME_TO_FIRST_ANSWER = "tokengauge.time_to_first_answer", Histogram, "s", &LATENCY, Always,
        "From the request's first byte to the first output that is not reasoning.";
    TIME_PER_OUTPUT_TOKEN = "tokengauge.time_per_output_token", Histogram, "s", &GAP, Always,
        "(last - first generated output) / (output tokens - 1), by the provider's count of tokens; one value per stream.";
    INTER_CHUNK_GAP = "tokengauge.inter_chunk_gap", Histogram, "s", &GAP, Always,
        "Silence between consecutive arrivals of generated output; chunks that share an instant are one arrival.";
    MAX_STALL = "tokengauge.max_stall", Histogram, "s", &LATENCY, Always,
        "Longest silence of a stream from the first to the last generated output.";
    OUTPUT_SPEED = "tokengauge.output_speed", Histogram, "{token}/s", &SPEED, Always,
        "Output tokens per second as one user sees them: 1 / time per output token.";
    REQUESTS = "tokengauge.requests", Counter, "{request}", &[], Always,
        "Finished inferences by outcome and reason.";
    INPUT_TOKENS = "tokengauge.input_tokens", Counter, "{token}", &[], Always,
        "Input tokens by the provider's count.";
    OUTPUT_TOKENS = "tokengauge.output_tokens", Counter, "{token}", &[], Always,
        "Output tokens by the provider's count.";
    SPLIT_NETWORK = "tokengauge.split.network", Histogram, "s", &LATENCY, Always,
        "Of the time to first token (of the duration, where the answer is no stream): what lies between two views of one wire, at its client and at its server.";
    SPLIT_PROXY = "tokengauge.split.proxy", Histogram, "s", &LATENCY, Always,
        "Of the same: what lies between the two sides of a proxy.";
    SPLIT_QUEUE = "tokengauge.split.queue", Histogram, "s", &LATENCY, Always,
        "Of the same: waiting in the engine. With the source `derived`: what the server's view has beyond the prefill that its engine told, \
        parsing and tokenising included (llama.cpp, which tells no queue).";
    SPLIT_LOAD = "tokengauge.split.load", Histogram, "s", &LATENCY, Always,
        "Of the same: loading the model, as the engine tells it.";
    SPLIT_PREFILL = "tokengauge.split.prefill", Histogram, "s", &LATENCY, Always,
        "Of the same: reading the prompt, as the engine tells it.";
    SPLIT_UNATTRIBUTED = "tokengauge.split.unattributed", Histogram, "s", &LATENCY, Always,
        "Of the same: the rest, which nobody accounts for. All parts that are there sum to the whole.";
    SPLIT_DECODE = "tokengauge.split.decode", Histogram, "s", &LATENCY, Always,
        "Generating, as the engine tells it: of a stream what fell behind its first token, else a part of the duration.";
    SPLIT_ENGINE_TTFT = "tokengauge.split.engine_time_to_first_token", Histogram, "s", &LATENCY, Always,
        "The engine's own time to first token, of requests whose time to first token on the wire is known.";
    JOIN_VIEWS = "tokengauge.join.views", Counter, "{view}", &[], Always,
        "Views of requests: joined with another view of the same request, alone, or let go before their time for lack of room.";
    JOIN_ENGINE_VIEWS = "tokengauge.join.engine_views", Counter, "{view}", &[], Always,
        "What engines told of single requests, by the hook or by spans: joined with a view on the wire, alone, dropped for lack of room or of a name.";
    JOIN_AMBIGUOUS = "tokengauge.join.ambiguous", Counter, "{view}", &[], Always,
        "Views that several others fitted, so that none of them was taken.";
    JOIN_CONTRADICTIONS = "tokengauge.join.contradictions", Counter, "{request}", &[], Always,
        "Requests of which a part was longer than what it is a part of, by more than clocks and taps may differ. The part was cut.";
    JOIN_WAITING = "tokengauge.join.waiting", UpDownCounter, "{view}", &[], Always,
        "Views that wait for others.";
    JOIN_WIRE_TOKENS = "tokengauge.join.wire_tokens", Counter, "{token}", &[], Always,
        "Output tokens by the usage on the wire, of requests whose engine counted its tokens one by one.";
    JOIN_ENGINE_TOKENS = "tokengauge.join.engine_tokens", Counter, "{token}", &[], Always,
        "Generated tokens of the same requests by the engine's count.";
    JOIN_DRAFTED = "tokengauge.join.draft_tokens", Counter, "{token}", &[], Always,
        "Speculative decoding: tokens that were drafted for joined requests, where the engine told it.";
    JOIN_ACCEPTED = "tokengauge.join.accepted_tokens", Counter, "{token}", &[], Always,
        "Speculative decoding: those of them that were accepted.";
    OTLP_IN_REQUESTS = "tokengauge.otlp_in.requests", Counter, "{request}", &[], Always,
        "Requests of inference servers' own exporters by what became of them; `refused`: connections beyond the bound.";
    OTLP_IN_SPANS = "tokengauge.otlp_in.spans", Counter, "{span}", &[], Always,
        "Spans that they brought: `read` told something of a request's time, `other` did not.";
    IN_FLIGHT = "tokengauge.in_flight", UpDownCounter, "{request}", &[], Always,
        "Inferences that are running.";
    ANOMALIES = "tokengauge.anomalies", Counter, "{anomaly}", &[], Always,
        "Surprises of the wire, by name.";
    CAPTURE_PACKETS = "tokengauge.capture.packets", Counter, "{packet}", &[], Always,
        "Packets captured.";
    CAPTURE_RECORDS = "tokengauge.capture.records", Counter, "{record}", &[], Always,
        "Records received from the kernel programs.";
    CAPTURE_BYTES = "tokengauge.capture.bytes", Counter, "By", &[], Always,
        "Payload bytes that reached the parsers.";
    CAPTURE_CONNECTIONS = "tokengauge.capture.connections", Counter, "{connection}", &[], Always,
        "Connections seen.";
    CAPTURE_OPEN_CONNECTIONS = "tokengauge.capture.open_connections", UpDownCounter, "{connection}", &[], Always,
        "Connections that are open and watched.";
    CAPTURE_EXCHANGES = "tokengauge.capture.exchanges", Counter, "{exchange}", &[], Always,
        "HTTP exchanges, LLM traffic or not.";
    CAPTURE_NON_LLM = "tokengauge.capture.non_llm_exchanges", Counter, "{exchange}", &[], Always,
        "HTTP exchanges that are no LLM traffic.";
    CAPTURE_EVENTS = "tokengauge.capture.events", Counter, "{event}", &[], Always,
        "Events of streamed answers.";
    CAPTURE_GAPS = "tokengauge.capture.gaps", Counter, "{gap}", &[], Always,
        "Capture gaps by reason. Nothing is measured across one.";
    CAPTURE_DROPS = "tokengauge.capture.drops", Counter, "{record}", &[], Always,
        "Records and inferences lost inside the agent, by reason.";
    CAPTURE_DROPPED_BYTES = "tokengauge.capture.dropped", Counter, "By", &[], Always,
        "Bytes in lost records, where their number is known, by reason.";
    CAPTURE_ATTACHES = "tokengauge.capture.attaches", Counter, "{attach}", &[], Always,
        "Attempts to attach to a library, by result.";
    CAPTURE_OTHER = "tokengauge.capture.other", Counter, "{event}", &[], Always,
        "Further counters of the taps, by name.";
    KUBERNETES_MODE = "tokengauge.kubernetes.mode", Gauge, "{state}", &[], Always,
        "Where names of pods come from: 1 for the source in force, 0 for the others. Degraded unless it is `api`.";
    KUBERNETES_PODS = "tokengauge.kubernetes.pods", UpDownCounter, "{pod}", &[], Always,
        "Pods that are known.";
    KUBERNETES_RECORDS = "tokengauge.kubernetes.records", Counter, "{record}", &[], Always,
        "Records with a name for at least one end, without any, and those that waited for one.";
    KUBERNETES_EVENTS = "tokengauge.kubernetes.events", Counter, "{event}", &[], Always,
        "What was asked of the Kubernetes API and what came of it, by name.";
    EXPORT_DROPS = "tokengauge.export.drops", Counter, "{item}", &[], Always,
        "Spans and metric batches that could not be delivered, by signal and reason.";
    EXPORT_DELIVERED = "tokengauge.export.delivered", Counter, "{item}", &[], Always,
        "Spans and data points that a receiver took, by signal.";
    EXPORT_RETRIES = "tokengauge.export.retries", Counter, "{request}", &[], Always,
        "Requests that got no answer, or one that asks for another attempt, by signal.";
    EXPORT_QUEUE_ITEMS = "tokengauge.export.queue.items", UpDownCounter, "{item}", &[], Always,
        "Spans and data points that wait for the receiver, by signal and place: in memory, on disk.";
    EXPORT_QUEUE_SIZE = "tokengauge.export.queue.size", UpDownCounter, "By", &[], Always,
        "Bytes of what waits for the receiver, by signal and place: in memory, on disk.";
    EXPORT_QUEUE_ERRORS = "tokengauge.export.queue.errors", Counter, "{error}", &[], Always,
        "Failures to use the queue on disk, by signal.";
    EXPORT_DURATION = "tokengauge.export.duration", Histogram, "s", &[], Always,
        "Time from sending a request to its answer, whatever that was, by signal.";
    EXPORT_SERIES = "tokengauge.export.series", UpDownCounter, "{series}", &[], Always,
        "Series of all metrics that the agent holds.";
    EXPORT_OVERFLOWS = "tokengauge.export.overflows", Counter, "{measurement}", &[], Always,
        "Measurements that had to share a series: by the attribute whose value became `_OTHER`, or `series` where a metric had too many.";
    SLO_VALID = "tokengauge.slo.events.valid", Counter, "{request}", &[], Always,
        "Requests that count for an objective, good or bad. With .good it adds up over nodes, which ratios do not.";
    SLO_GOOD = "tokengauge.slo.events.good", Counter, "{request}", &[], Always,
        "Requests that count for an objective and were good.";
    SLO_EXCLUDED = "tokengauge.slo.events.excluded", Counter, "{request}", &[], Always,
        "Requests that capture could not see well enough to judge. They lower the coverage.";
    SLO_NOT_APPLICABLE = "tokengauge.slo.events.not_applicable", Counter, "{request}", &[], Always,
        "Requests that the selector takes and the indicator cannot judge, such as a TTFT of an answer that is no stream.";
    SLO_OBJECTIVE = "tokengauge.slo.objective", Gauge, "1", &[], Always,
        "The target: the share of valid requests that must be good. Its presence is the sign that an agent watches this objective.";
    SLO_BUDGET_REMAINING = "tokengauge.slo.error_budget.remaining", Gauge, "1", &[], Always,
        "The share of the error budget that is left over the SLO's window, on this node; negative when it is overspent.";
    SLO_BURN_RATE = "tokengauge.slo.burn_rate", Gauge, "1", &[], Always,
        "Error ratio over the window divided by the budget, on this node: 1 spends exactly the budget.";
    SLO_TIME_TO_EXHAUSTION = "tokengauge.slo.time_to_exhaustion", Gauge, "s", &[], Always,
        "Until the budget of this node is spent at the present rate; absent while nothing burns.";
    SLO_COVERAGE = "tokengauge.slo.coverage", Gauge, "1", &[], Always,
        "The share of what should have been judged that could be, on this node.";
    SLO_ALERT_STATE = "tokengauge.slo.alert.state", Gauge, "{state}", &[], Always,
        "By severity, on this node: 0 quiet, 1 pending, 2 firing, 3 frozen because too little is seen.";
    SLO_FILES_PROBLEMS = "tokengauge.slo.files.problems", Gauge, "{problem}", &[], Always,
        "What is wrong with the SLO files as they are now. Unless it is 0, what was read before stays in force.";
    SLO_JOURNAL_FAILING = "tokengauge.slo.journal.failing", Gauge, "{state}", &[], Always,
        "1 while the journal cannot be written, so that budgets would not survive a restart; else 0.";
    CAPTURE_LAG = "tokengauge.capture.lag", Gauge, "s", &[], Always,
        "How far the parser of a tap was behind the wire at most, in the last half minute or so.";
    TAP_WORKING = "tokengauge.tap.working", Gauge, "{state}", &[], Always,
        "By tap: 1 while it is at work; 0 while it starts, is silent, has failed or ended.";
    TAP_DROPS = "tokengauge.tap.drops", Counter, "{record}", &[], Always,
        "What each tap lost, by reason: the part of tokengauge.capture.drops that is lost before the exporters' queue.";
    AGENT_QUEUE = "tokengauge.agent.queue", UpDownCounter, "{inference}", &[], Always,
        "Finished inferences that wait for the exporters.";
    AGENT_THREAD_CPU_TIME = "tokengauge.agent.thread.cpu_time", Counter, "s", &[], Always,
        "Processor time of the agent by the name of the thread.";
    JSONL_RECORDS = "tokengauge.jsonl.records", Counter, "{record}", &[], Always,
        "Records for the file of JSON lines: written, or dropped because nothing could be written for too long.";
    JSONL_FILES = "tokengauge.jsonl.files", Counter, "{file}", &[], Always,
        "Files of JSON lines: rotated, compressed, deleted as the oldest, torn ends mended; attempts to write or to keep old ones that failed.";
    HTTP_REQUESTS = "tokengauge.http.requests", Counter, "{request}", &[], Always,
        "Requests to the agent's own pages: answered; unauthorized among them.";
    HTTP_CONNECTIONS = "tokengauge.http.connections", Counter, "{connection}", &[], Always,
        "Connections to the agent's own pages that came to nothing: refused because there were too many, broken before a request.";
    PROCESS_CPU_TIME = "process.cpu.time", Counter, "s", &[], Always,
        "Processor time of the agent, by mode.";
    PROCESS_MEMORY_USAGE = "process.memory.usage", UpDownCounter, "By", &[], Always,
        "Resident memory of the agent.";
    PROCESS_MEMORY_VIRTUAL = "process.memory.virtual", UpDownCounter, "By", &[], Always,
        "Address space of the agent.";
    PROCESS_THREAD_COUNT = "process.thread.count", UpDownCounter, "{thread}", &[], Always,
        "Threads of the agent.";
    PROCESS_FD_COUNT = "process.unix.file_descriptor.count", UpDownCounter, "{file_descriptor}", &[], Always,
        "Open file descriptors of the agent.";
    PROCESS_UPTIME = "process.uptime", Gauge, "s", &[], Always,
        "How long the agent has been running.";

    // What inference servers tell of their own requests (`hook`).
    HOOK_EVENTS = "tokengauge.hook.events", Counter, "{event}", &[], Always,
        "Events of the hook by the way that they came, and by what became of them: taken; lost in the ring (ring_full, unreadable); dropped by \
        the server because nobody took them in time; not readable, with the reason.";
    HOOK_SOURCES = "tokengauge.hook.sources", UpDownCounter, "{source}", &[], Always,
        "Who uses the hook now: processes that called the tap symbol, connections of the socket.";
    HOOK_CONNECTIONS = "tokengauge.hook.connections", Counter, "{connection}", &[], Always,
        "Connections to the hook's socket: accepted; refused because of the peer's user or because there were too many; broken in the middle of \
        a message.";
    HOOK_ATTACHES = "tokengauge.hook.attaches", Counter, "{file}", &[], Always,
        "Files with the tap symbol by what came of the attempt to attach.";
    HOOK_OPEN = "tokengauge.hook.requests.open", UpDownCounter, "{request}", &[], Always,
        "Requests that the hook told of and that have not ended.";
    HOOK_REQUESTS = "tokengauge.hook.requests", Counter, "{request}", &[], Always,
        "Requests that the hook told of, by how they ended; those of a server that is gone and those that were let go have no timings.";
    HOOK_UNUSED = "tokengauge.hook.unused_events", Counter, "{event}", &[], Always,
        "Events that were taken and say nothing: of a request that came by the other way as well, or that was not seen from its beginning.";

    // What inference servers say of themselves (`engine`). Counters and histograms since the agent first read the server.
    ENGINE_UP = "tokengauge.engine.up", Gauge, "{state}", &[], Always,
        "1 when the last scrape of the server gave figures; else 0.";
    ENGINE_SCRAPES = "tokengauge.engine.scrapes", Counter, "{scrape}", &[], Always,
        "Scrapes of the server by result.";
    ENGINE_BAD_LINES = "tokengauge.engine.bad_lines", Counter, "{line}", &[], Always,
        "What could not be read of the server's text: bad lines, histograms that contradict themselves, series beyond the bound.";
    ENGINE_RUNNING = "tokengauge.engine.requests.running", Gauge, "{request}", &[], Always,
        "Requests that the engine works on.";
    ENGINE_WAITING = "tokengauge.engine.requests.waiting", Gauge, "{request}", &[], Always,
        "Requests that wait for the engine.";
    ENGINE_FINISHED = "tokengauge.engine.requests.finished", Counter, "{request}", &[], Always,
        "Requests that the engine finished, by its own reason where it gives one.";
    ENGINE_FAILED = "tokengauge.engine.requests.failed", Counter, "{request}", &[], Always,
        "Requests that failed or were aborted by the engine's count, by its own reason where it gives one.";
    ENGINE_PREEMPTIONS = "tokengauge.engine.preemptions", Counter, "{preemption}", &[], Always,
        "Requests that had to give up their KV cache for others (vLLM: preempted; SGLang: retracted).";
    ENGINE_KV_CACHE_USAGE = "tokengauge.engine.kv_cache.usage", Gauge, "1", &[], Always,
        "The share of the KV cache that is in use.";
    ENGINE_PREFIX_QUERIES = "tokengauge.engine.prefix_cache.queries", Counter, "{token}", &[], Always,
        "Prompt tokens that were looked for in the prefix cache.";
    ENGINE_PREFIX_HITS = "tokengauge.engine.prefix_cache.hits", Counter, "{token}", &[], Always,
        "Prompt tokens that were found in the prefix cache.";
    ENGINE_PREFIX_HIT_SHARE = "tokengauge.engine.prefix_cache.hit_share", Gauge, "1", &[], Always,
        "The share of hits in the prefix cache as the engine itself works it out, over a time of its own choice.";
    ENGINE_PROMPT_TOKENS = "tokengauge.engine.prompt_tokens", Counter, "{token}", &[], Always,
        "Prompt tokens by the engine's count; llama.cpp leaves cached ones out, the others do not.";
    ENGINE_GENERATION_TOKENS = "tokengauge.engine.generation_tokens", Counter, "{token}", &[], Always,
        "Generated tokens by the engine's count.";
    ENGINE_TTFT = "tokengauge.engine.time_to_first_token", Histogram, "s", &[], Always,
        "From the request's arrival in the engine's own process to its first token; Triton: to the first response. The server's own bounds.";
    ENGINE_ITL = "tokengauge.engine.inter_token_latency", Histogram, "s", &[], Always,
        "vLLM: between two steps that gave a request tokens; SGLang: per token. The server's own bounds.";
    ENGINE_TPOT = "tokengauge.engine.time_per_output_token", Histogram, "s", &[], Always,
        "(last - first token) / (tokens - 1) of requests with two tokens or more. The server's own bounds.";
    ENGINE_QUEUE = "tokengauge.engine.queue_time", Histogram, "s", &[], Always,
        "From queued to scheduled. The server's own bounds.";
    ENGINE_PREFILL = "tokengauge.engine.prefill_time", Histogram, "s", &[], Always,
        "From scheduled to the first token. The server's own bounds.";
    ENGINE_DECODE = "tokengauge.engine.decode_time", Histogram, "s", &[], Always,
        "From the first to the last token. The server's own bounds.";
    ENGINE_INFERENCE = "tokengauge.engine.inference_time", Histogram, "s", &[], Always,
        "From scheduled to the last token. The server's own bounds.";
    ENGINE_E2E = "tokengauge.engine.request_time", Histogram, "s", &[], Always,
        "From the request's arrival in the engine's own process to its end. The server's own bounds.";
    ENGINE_SPENT_QUEUE = "tokengauge.engine.spent.queue", Counter, "s", &[], Always,
        "Time that requests waited, added up, of servers that tell only the sum.";
    ENGINE_SPENT_PREFILL = "tokengauge.engine.spent.prefill", Counter, "s", &[], Always,
        "Time spent on prompts, added up, of servers that tell only the sum.";
    ENGINE_SPENT_DECODE = "tokengauge.engine.spent.decode", Counter, "s", &[], Always,
        "Time spent on generation, added up, of servers that tell only the sum.";
    ENGINE_SPENT_INFERENCE = "tokengauge.engine.spent.inference", Counter, "s", &[], Always,
        "Time that requests were worked on, added up, of servers that tell only the sum.";
    ENGINE_SPENT_REQUEST = "tokengauge.engine.spent.request", Counter, "s", &[], Always,
        "Time that requests took, added up, of servers that tell only the sum.";
    ENGINE_WIRE_OUTPUT_TOKENS = "tokengauge.engine.wire.output_tokens", Counter, "{token}", &[], Always,
        "Output tokens of the inferences that were seen on the wire at this server's address, since it was first read.";
    ENGINE_TOKEN_COVERAGE = "tokengauge.engine.wire.token_coverage", Gauge, "1", &[], Always,
        "Output tokens on the wire / generated tokens by the engine's count, over the last 20 scrapes; less than 1 is capture loss. \
        Absent where the engine counts none or an answer told no usage.";
    ENGINE_TTFT_EXCESS = "tokengauge.engine.wire.time_to_first_token_excess", Gauge, "s", &[], Always,
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
    let mut out = String::from("| Metric | Instrument | Unit | In Prometheus | Profiles | Meaning |\n|---|---|---|---|---|---|\n");
    for m in metric::ALL {
        let profiles: Vec<_> = Profile::ALL.iter().filter(|p| p.has(m.under)).map(|p| p.as_str()).collect();
        let profiles = if m.under == In::Always { "all".to_owned() } else { profiles.join(", ") };
        out += &format!("| `{}` | {:?} | `{}` | `{}` | {profiles} | {} |\n", m.name, m.kind, m.unit, prometheus_name(m), m.doc);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_obey_the_translators_rules() {
        let mut names = std::collections::BTreeSet::new();
        for m in metric::ALL {
            let dotted = m.name.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(dotted && !m.name.ends_with("total") && !m.name.contains("second"), "{}", m.name);
            assert!(["gen_ai.", "tokengauge.", "process."].iter().any(|p| m.name.starts_with(p)), "{}", m.name);
            let rate = ["rate", "per_s", "throughput"].iter().any(|w| m.name.contains(w));
            assert!(!(rate && m.unit.contains('/')), "{}: a rate word and a rate unit", m.name);
            let unit = m.unit == "s" || m.unit == "By" || m.unit.starts_with('{') || m.unit == "1" && m.kind == Kind::Gauge;
            assert!(unit, "{}: {}", m.name, m.unit);
            // Histograms that others count, inference servers and the sender, have the others' own bounds and are never exponential.
            let foreign = m.name.starts_with("tokengauge.engine.") || *m == metric::EXPORT_DURATION;
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
