//! The agent's own counters as metrics: what taps and pipelines counted, from the latest snapshot.

use tokengauge_core::semconv::{Metric, attr, metric};
use tokengauge_core::stats::Snapshot;
use tokengauge_core::stats::snapshot::{Area, Counter};

use crate::export::observe::{Observe, Tell};

/// The latest of them. Nothing is told before the first snapshot.
#[derive(Default, Debug)]
pub struct Vitals {
    known: bool,
    in_flight: u64,
    connections: u64,
    counters: Vec<Counter>,
}

/// Counters that are metrics of their own.
const SINGLE: [(&Metric, Area, &str); 7] = [
    (&metric::CAPTURE_PACKETS, Area::Capture, "packets"),
    (&metric::CAPTURE_RECORDS, Area::Capture, "records"),
    (&metric::CAPTURE_BYTES, Area::Exchange, "bytes"),
    (&metric::CAPTURE_CONNECTIONS, Area::Exchange, "connections"),
    (&metric::CAPTURE_EXCHANGES, Area::Exchange, "exchanges"),
    (&metric::CAPTURE_NON_LLM, Area::Exchange, "non_llm"),
    (&metric::CAPTURE_EVENTS, Area::Exchange, "events"),
];

/// Counters whose names are an attribute.
const NAMED: [(&Metric, Area, &str); 6] = [
    (&metric::CAPTURE_GAPS, Area::Gap, attr::REASON),
    (&metric::CAPTURE_DROPS, Area::Drop, attr::REASON),
    (&metric::CAPTURE_DROPPED_BYTES, Area::DropBytes, attr::REASON),
    (&metric::CAPTURE_ATTACHES, Area::Attach, attr::RESULT),
    (&metric::CAPTURE_OTHER, Area::Capture, attr::COUNTER),
    (&metric::ANOMALIES, Area::Anomaly, attr::ANOMALY),
];

impl Vitals {
    /// Takes what a snapshot says of the agent itself.
    pub fn publish(&mut self, snapshot: &Snapshot) {
        self.known = true;
        (self.in_flight, self.connections) = (snapshot.in_flight, snapshot.connections);
        self.counters.clone_from(&snapshot.counters);
    }
}

impl Observe for Vitals {
    fn observe(&self, tell: &mut Tell<'_>) {
        if !self.known {
            return;
        }
        tell(&metric::IN_FLIGHT, &[], self.in_flight as f64);
        tell(&metric::CAPTURE_OPEN_CONNECTIONS, &[], self.connections as f64);
        for c in &self.counters {
            if let Some((m, ..)) = SINGLE.iter().find(|(_, area, name)| (*area, *name) == (c.area, c.name)) {
                tell(m, &[], c.count as f64);
            } else if let Some((m, _, key)) = NAMED.iter().find(|(_, area, _)| *area == c.area) {
                tell(m, &[(key, c.name)], c.count as f64);
            }
        }
    }
}
