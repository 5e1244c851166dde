//! What readiness depends on besides threads, put into words for `/readyz`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokengauge_core::stats::snapshot::Area;

use crate::export::jsonl::file;
use crate::export::otlp::carrier::Signal;
use crate::export::otlp::delivery::Delivery;
use crate::health::{Health, Level};
use crate::slo::live::Shared;
use crate::tap::tls::Outcome;
use crate::vitals::Vitals;

/// Tells readiness whether probes could be attached: a tap that works and was refused every library sees nothing.
pub fn libraries(health: &Health, vitals: &Arc<Vitals>) {
    let vitals = Arc::clone(vitals);
    health.condition("libraries", move || {
        let counters = vitals.counters();
        let of = |name| counters.iter().filter(|c| c.area == Area::Attach && c.name == name).map(|c| c.count).sum::<u64>();
        attached(of(Outcome::Attached.as_str()), of(Outcome::Refused.as_str()), of(Outcome::NoSymbols.as_str()))
    });
}

fn attached(attached: u64, refused: u64, stripped: u64) -> (Level, String) {
    match (attached, refused, stripped) {
        (0, 0, 0) => (Level::Good, "none is in use yet".to_owned()),
        (0, 0, _) => (Level::Degraded, format!("none attached; {stripped} have no symbols")),
        (0, ..) => (Level::Bad, format!("none attached; the kernel refused {refused}")),
        (_, 0, _) => (Level::Good, format!("{attached} attached")),
        _ => (Level::Degraded, format!("{attached} attached, {refused} refused")),
    }
}

/// Tells readiness how the SLO files and the journal are. What was read last stays in force, so neither makes the agent unready.
pub fn objectives(health: &Health, shared: Shared) {
    health.condition("objectives", move || {
        let standing = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match (standing.broken.first(), &standing.journal_trouble) {
            (Some(broken), _) => (Level::Degraded, format!("{broken}; what was read before stays in force")),
            (None, Some(trouble)) => (Level::Degraded, trouble.clone()),
            (None, None) => (Level::Good, format!("{} in force", standing.objectives.len())),
        }
    });
}

/// Tells readiness whether the receiver takes what it is sent. What waits is kept, so that does not make the agent unready.
pub fn delivery(health: &Health, delivery: Arc<Delivery>) {
    health.condition("otlp", move || {
        let all = Signal::ALL.map(|signal| delivery.figures(signal));
        let waiting: u64 = all.iter().map(|f| f.memory_items + f.disk_items).sum();
        match all.into_iter().flat_map(|f| [f.trouble, f.disk_trouble]).flatten().next() {
            Some(trouble) => (Level::Degraded, format!("{trouble}; {waiting} items wait")),
            None => (Level::Good, format!("{waiting} items wait")),
        }
    });
}

/// Tells readiness whether records can be written.
pub fn records(health: &Health, counters: Arc<file::Counters>) {
    health.condition("records", move || match counters.trouble() {
        None => (Level::Good, "written".to_owned()),
        Some(trouble) => (Level::Degraded, format!("{trouble}; {} were given up", counters.dropped.load(Ordering::Relaxed))),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_that_was_refused_everything_is_not_ready() {
        for (counts, level) in [
            ((0, 0, 0), Level::Good),
            ((3, 0, 1), Level::Good),
            ((3, 1, 0), Level::Degraded),
            ((0, 0, 2), Level::Degraded),
            ((0, 1, 0), Level::Bad),
        ] {
            assert_eq!(attached(counts.0, counts.1, counts.2).0, level, "{counts:?}");
        }
    }
}
