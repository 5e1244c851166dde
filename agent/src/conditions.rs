//! What readiness depends on besides threads, put into words for `/readyz`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokengauge_core::stats::snapshot::Area;

use crate::enrich::kubernetes::{self, Mode};
use crate::export::jsonl::file;
use crate::export::otlp::carrier::Signal;
use crate::export::otlp::delivery::Delivery;
use crate::health::{Health, Level, Line};
use crate::slo::live::Shared;
use crate::sources;
use crate::tap::tls::Outcome;
use crate::tenant;
use crate::vitals::Vitals;

/// Tells readiness whether probes could be attached: a tap that works and was refused every library sees nothing.
pub fn libraries(health: &Health, vitals: &Arc<Vitals>) {
    let vitals = Arc::clone(vitals);
    health.condition("libraries", move || of_libraries(&vitals));
}

fn of_libraries(vitals: &Vitals) -> (Level, String) {
    let counters = vitals.counters();
    let of = |name| counters.iter().filter(|c| c.area == Area::Attach && c.name == name).map(|c| c.count).sum::<u64>();
    attached(of(Outcome::Attached.as_str()), of(Outcome::Refused.as_str()), of(Outcome::NoSymbols.as_str()))
}

/// Says whether any of these taps sees anything: is at work and, where it is the one of TLS libraries, was not refused all of them.
pub fn sight(health: &Arc<Health>, vitals: &Arc<Vitals>, taps: Vec<String>) -> impl Fn() -> bool + Send + 'static {
    let (health, vitals) = (Arc::clone(health), Arc::clone(vitals));
    move || {
        let at_work = |line: &Line| line.level == Level::Good && taps.contains(&line.name);
        let refused = || of_libraries(&vitals).0 == Level::Bad;
        health.parts().iter().any(|line| at_work(line) && (line.name != sources::TLS || !refused()))
    }
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

/// Where names come from is among what is shown of the agent's health.
pub fn names_of_pods(health: &Health, shared: &Arc<kubernetes::Shared>) {
    let shared = Arc::clone(shared);
    health.condition("names of pods", move || match shared.mode() {
        Mode::Api => (Level::Good, format!("from the Kubernetes API, {} pods", shared.book().pods())),
        Mode::Starting => (Level::Good, "none yet".to_owned()),
        Mode::Kubelet => (Level::Degraded, "from the kubelet: far ends in other nodes have none".to_owned()),
        Mode::Cgroup => (Level::Degraded, "none, only ids: neither the API nor the kubelet answers, or lets us ask".to_owned()),
    });
}

/// Tells readiness whether the file with the key of tenants can be used. The one that was read last stays in force.
pub fn tenants(health: &Health, trouble: tenant::Trouble) {
    health.condition("tenants", move || match &*trouble.lock().unwrap_or_else(PoisonError::into_inner) {
        None => (Level::Good, "hashed".to_owned()),
        Some(trouble) => (Level::Degraded, format!("{trouble}; the key that was read before stays in force")),
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
    fn one_tap_at_work_is_sight_and_none_is_blindness() {
        use tokengauge_core::stats::snapshot::Counter;
        let (health, vitals) = (Arc::new(Health::default()), Arc::new(Vitals::default()));
        let names = [sources::TLS, "packets on eth0"].map(str::to_owned);
        let sees = sight(&health, &vitals, names.to_vec());
        assert!(!sees(), "none has begun");
        let (tls, packets, other) =
            (health.part(sources::TLS, vec![]), health.part("packets on eth0", vec![]), health.part("export", vec![]));
        other.beat();
        assert!(!sees(), "the export thread is no tap");
        tls.beat();
        assert!(sees());
        let refused = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = Arc::clone(&refused);
        let counter = move || Counter { area: Area::Attach, name: Outcome::Refused.as_str(), count: count.load(Ordering::Relaxed) };
        vitals.register(Box::new(move || vec![counter()]));
        assert!(sees(), "no library was refused yet");
        refused.store(2, Ordering::Relaxed);
        assert!(!sees(), "the kernel refused every library");
        packets.beat();
        assert!(sees());
        packets.end(Some("eth0 is gone".into()));
        assert!(!sees());
    }

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
