//! Names of attributes of spans and data points.

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
/// `text`, `image`, `audio`, `unknown`: on the counters of tokens.
pub const TOKEN_MODALITY: &str = "gen_ai.token.modality";
/// `input` or `output`, on `gen_ai.client.token.usage`.
pub const TOKEN_TYPE: &str = "gen_ai.token.type";
/// All input tokens.
pub const USAGE_INPUT: &str = "gen_ai.usage.input_tokens";
/// All output tokens.
pub const USAGE_OUTPUT: &str = "gen_ai.usage.output_tokens";
/// Input tokens from a cache.
pub const USAGE_CACHE_READ: &str = "gen_ai.usage.cache_read.input_tokens";
/// Input tokens into a cache, under `main`.
pub const USAGE_CACHE_WRITE: &str = "gen_ai.usage.cache_write.input_tokens";
/// Input tokens into a cache, up to v1.41.
pub const USAGE_CACHE_CREATION: &str = "gen_ai.usage.cache_creation.input_tokens";
/// Output tokens spent on reasoning.
pub const USAGE_REASONING: &str = "gen_ai.usage.reasoning.output_tokens";
/// `chat_completions` or `responses`.
pub const OPENAI_API_TYPE: &str = "openai.api.type";
/// The provider's error type or code, the status, or how the connection ended.
pub const ERROR_TYPE: &str = "error.type";
/// Where points beyond a bound are put together (specification of the metrics SDK, cardinality limits).
pub const OVERFLOW: &str = "otel.metric.overflow";
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
/// Which tap: what it watches.
pub const TAP_NAME: &str = "tokengauge.tap.name";
/// `user` or `system`.
pub const CPU_MODE: &str = "cpu.mode";
/// Name of a thread.
pub const THREAD_NAME: &str = "thread.name";
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
/// Where names of pods come from: `starting`, `api`, `kubelet`, `cgroup`.
pub const MODE: &str = "tokengauge.mode";
/// Which of a tap's further counters.
pub const COUNTER: &str = "tokengauge.counter";
/// The attribute that ran out of room.
pub const ATTRIBUTE: &str = "tokengauge.attribute";
/// `spans` or `metrics`.
pub const SIGNAL: &str = "tokengauge.signal";
/// `memory` or `disk`: where something waits.
pub const PLACE: &str = "tokengauge.place";
/// Events with generated output.
pub const CHUNKS_GENERATED: &str = "tokengauge.chunks.generated";
/// Distinct instants among them.
pub const CHUNKS_ARRIVALS: &str = "tokengauge.chunks.arrivals";
/// Capture gaps inside the exchange.
pub const GAPS: &str = "tokengauge.gaps";
/// `failed`, `slow`, `cancelled`: why a span is exported that the sampler left out. Whoever counts spans counts those without it.
pub const SAMPLING_KEPT: &str = "tokengauge.sampling.kept";
/// Seconds that a stall lasted.
pub const STALL_DURATION: &str = "tokengauge.stall.duration";
/// Which chunk with generated output behind the first.
pub const CHUNK_NUMBER: &str = "tokengauge.chunk.number";
/// Seconds since the chunk before.
pub const CHUNK_GAP: &str = "tokengauge.chunk.gap";
/// Bytes of the connection that were not captured.
pub const GAP_BYTES: &str = "tokengauge.gap.bytes";
/// Keyed hash of the tenant.
pub const TENANT: &str = "tokengauge.tenant";
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
/// By which way an event of the hook came: `tap` or `socket`.
pub const HOOK_VIA: &str = "tokengauge.hook.via";
/// Before the name of a dimension: the value of a grouped SLO's group, e.g. `tokengauge.slo.group.model`.
pub const SLO_GROUP_PREFIX: &str = "tokengauge.slo.group.";
/// Of what a split is: `time_to_first_token` or `duration`.
pub const SPLIT_WHOLE: &str = "tokengauge.split.whole";
/// Who told an engine's part: `hook`, `otlp`, `answer`; `derived`: nobody did.
pub const SPLIT_SOURCE: &str = "tokengauge.split.source";
/// `true` where nobody told the queue, so that it was derived.
pub const SPLIT_QUEUE_DERIVED: &str = "tokengauge.split.queue_derived";
/// How many wires a request was seen on: one more than proxies.
pub const SPLIT_HOPS: &str = "tokengauge.split.hops";
