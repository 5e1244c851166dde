//! Names in the spans that inference servers emit of themselves (servers.md §5). They are the servers' own: old names, nobody's convention.

/// vLLM, SGLang: seconds from the request's arrival to its first token.
pub const LATENCY_TTFT: &str = "gen_ai.latency.time_to_first_token";
/// vLLM: seconds from queued to scheduled.
pub const LATENCY_QUEUE: &str = "gen_ai.latency.time_in_queue";
/// vLLM: seconds from scheduled to the first token. SGLang, which has no queue beside it: from its dispatch, the queue included.
pub const LATENCY_PREFILL: &str = "gen_ai.latency.time_in_model_prefill";
/// vLLM, SGLang: seconds from the first to the last token.
pub const LATENCY_DECODE: &str = "gen_ai.latency.time_in_model_decode";
/// vLLM, SGLang: the engine's id of the request.
pub const REQUEST_ID: &str = "gen_ai.request.id";
/// vLLM, SGLang: generated tokens.
pub const COMPLETION_TOKENS: &str = "gen_ai.usage.completion_tokens";
/// SGLang's span of a request that waits (python/sglang/srt/observability/req_time_stats.py).
pub const SGLANG_QUEUE: &str = "prefill_waiting";
/// SGLang's span of a prompt that is read.
pub const SGLANG_PREFILL: &str = "prefill_forward";
/// TGI: how long it waited, as Rust shows durations (`12.5ms`).
pub const TGI_QUEUE: &str = "queue_time";
/// TGI: how long the model worked on it.
pub const TGI_INFERENCE: &str = "inference_time";
/// Triton: the model of a request's span.
pub const TRITON_MODEL: &str = "triton.model_name";
/// Triton: the request's id, where its client gave one.
pub const TRITON_REQUEST: &str = "triton.request_id";
/// Triton's event: the request was put into a queue.
pub const TRITON_QUEUED: &str = "QUEUE_START";
/// Triton's event, of a span below: the model began.
pub const TRITON_STARTED: &str = "COMPUTE_START";
