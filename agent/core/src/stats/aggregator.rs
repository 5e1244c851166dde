//! Folds finished inferences into series. Bounded: beyond the limit, new keys share one overflow series per vantage, so that totals
//! stay right while a flood of model names costs no memory.

use std::collections::BTreeMap;

use crate::inference::{Inference, Outcome, Reason};
use crate::stats::snapshot::{Series, SeriesKey, Snapshot};

/// The default bound on series.
pub const MAX_SERIES: usize = 2_000;

/// All series since the start.
#[derive(Clone, Debug)]
pub struct Aggregator {
    series: BTreeMap<SeriesKey, Series>,
    limit: usize,
}

impl Default for Aggregator {
    fn default() -> Self {
        Self::new(MAX_SERIES)
    }
}

impl Aggregator {
    /// An aggregator of at most `limit` series, not counting the overflow ones.
    pub fn new(limit: usize) -> Self {
        Self { series: BTreeMap::new(), limit }
    }

    /// Adds a finished inference; a response that was only sent again is none.
    pub fn add(&mut self, inference: &Inference) {
        if !inference.operation.is_inference() {
            return;
        }
        let mut key = SeriesKey {
            vantage: inference.vantage,
            provider: inference.provider_or_other(),
            model: inference.response.model.clone().or_else(|| inference.request.model.clone()),
            operation: inference.operation,
            overflow: false,
        };
        if self.series.len() >= self.limit && !self.series.contains_key(&key) {
            key = SeriesKey { model: None, provider: crate::semconv::PROVIDER_OTHER, overflow: true, ..key };
        }
        let series = self.series.entry(key).or_insert_with_key(|key| Series::new(key.clone()));
        let timing = &inference.timing;
        if let Some(i) = Outcome::ALL.iter().position(|o| *o == inference.outcome) {
            series.outcomes[i] += 1;
        }
        match timing.ttft {
            Ok(t) => series.ttft.record(t.as_secs_f64()),
            Err(reason) if inference.is_stream() => {
                if let Some(i) = Reason::ALL.iter().position(|r| *r == reason) {
                    series.no_first_token[i] += 1;
                }
            }
            Err(_) => {}
        }
        // Events that share one instant are one arrival: a gap of zero is no gap here (formulas.md §3.2).
        timing.gaps.iter().filter(|g| *g > 0).for_each(|g| series.inter_chunk.record(g as f64 / 1e9));
        if let Ok(t) = timing.tpot {
            series.tpot.record(t);
        }
        if let Ok(t) = timing.max_stall {
            series.max_stall.record(t.as_secs_f64());
        }
        if let Ok(t) = timing.duration {
            series.duration.record(t.as_secs_f64());
        }
        series.output_tokens += inference.usage.and_then(|u| u.output).unwrap_or(0);
        series.generated += u64::from(inference.chunks.generated);
    }

    /// The series as they stand; the rest of the snapshot is the caller's to fill in.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { series: self.series.values().cloned().collect(), ..Snapshot::default() }
    }
}
