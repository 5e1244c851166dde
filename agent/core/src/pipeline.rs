//! `StreamEvent` in, `Inference` out: the stages in order.

use crate::anomaly::Anomalies;
use crate::inference::Inference;
use crate::stream::{StreamEvent, Timestamp, Verdict};

/// What the pipeline counted since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PipelineStats {
    /// Connections seen.
    pub connections: u64,
    /// Connections that are open and watched.
    pub open_connections: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// HTTP exchanges, LLM traffic or not.
    pub exchanges: u64,
    /// Exchanges that are no LLM traffic.
    pub non_llm: u64,
    /// Finished inferences.
    pub inferences: u64,
    /// Inferences that are running.
    pub in_flight: u64,
    /// Events of streamed answers.
    pub events: u64,
    /// Capture gaps, in the order of `GapReason::ALL`.
    pub gaps: [u64; 6],
    /// Surprises of the wire.
    pub anomalies: Anomalies,
}

/// Bounds and seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Makes trace and span ids: with the same seed the same input gives the same ids. `run` takes a random one.
    pub seed: u64,
    /// Bytes that may be buffered in all connections together.
    pub buffer_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, buffer_limit: 64 << 20 }
    }
}

/// The pipeline of one tap.
#[derive(Debug, Default)]
pub struct Pipeline {
    stats: PipelineStats,
}

impl Pipeline {
    /// A pipeline with the given bounds.
    pub fn new(_options: Options) -> Self {
        Self::default()
    }

    /// Takes one event; finished inferences go to `out`.
    pub fn push(&mut self, _event: StreamEvent<'_>, _out: &mut Vec<Inference>) -> Verdict {
        Verdict::Watch
    }

    /// Notices what ended by the passing of time.
    pub fn tick(&mut self, _now: Timestamp, _out: &mut Vec<Inference>) {}

    /// What was counted so far.
    pub fn stats(&self) -> &PipelineStats {
        &self.stats
    }
}
