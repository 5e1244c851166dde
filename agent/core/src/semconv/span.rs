//! Names of spans of an engine's phases, below the span of their request.

/// Waiting.
pub const QUEUE: &str = "tokengauge.queue";
/// Loading the model.
pub const LOAD: &str = "tokengauge.load";
/// Reading the prompt.
pub const PREFILL: &str = "tokengauge.prefill";
/// Generating.
pub const DECODE: &str = "tokengauge.decode";
