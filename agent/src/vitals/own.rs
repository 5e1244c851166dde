//! The agent's own figures as metrics: what it costs, what waits, what is behind, what each tap lost. OpenTelemetry's names where there are some.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokengauge_core::semconv::{attr, metric};

use super::Vitals;
use super::process::{Process, threads};
use crate::clock::now;
use crate::export::jsonl::{file, rotation};
use crate::export::observe::{Observe, Tell};
use crate::health::{Health, Level};
use crate::serve;

/// Whatever the agent can say of itself. What is not there is not told.
#[derive(Clone)]
pub struct Own {
    /// Taps and queues.
    pub vitals: Arc<Vitals>,
    /// Threads.
    pub health: Arc<Health>,
    /// The file of records.
    pub records: Option<Arc<file::Counters>>,
    /// What becomes of old files.
    pub rotation: Option<Arc<rotation::Counters>>,
    /// The listener.
    pub pages: Option<Arc<serve::Counters>>,
    /// When the process began.
    pub began: Instant,
}

impl Own {
    /// Of an agent that begins now and has nothing yet.
    pub fn new(vitals: Arc<Vitals>, health: Arc<Health>) -> Self {
        Self { vitals, health, records: None, rotation: None, pages: None, began: now() }
    }
}

impl Observe for Own {
    fn observe(&self, tell: &mut Tell<'_>) {
        process(&Process::now(), tell);
        tell(&metric::PROCESS_UPTIME, &[], now().saturating_duration_since(self.began).as_secs_f64());
        for thread in threads() {
            tell(&metric::AGENT_THREAD_CPU_TIME, &[(attr::THREAD_NAME, &thread.name)], thread.cpu_s);
        }
        tell(&metric::AGENT_QUEUE, &[], self.vitals.queued() as f64);
        for (name, lag) in self.vitals.lags() {
            tell(&metric::CAPTURE_LAG, &[(attr::TAP_NAME, &name)], lag.as_secs_f64());
        }
        for (name, reason, count) in self.vitals.drops() {
            tell(&metric::TAP_DROPS, &[(attr::TAP_NAME, &name), (attr::REASON, reason)], count as f64);
        }
        let taps = self.vitals.names();
        for line in self.health.parts().iter().filter(|l| taps.contains(&l.name)) {
            tell(&metric::TAP_WORKING, &[(attr::TAP_NAME, &line.name)], f64::from(u8::from(line.level == Level::Good)));
        }
        if let Some(records) = &self.records {
            results(tell, &metric::JSONL_RECORDS, &[("written", &records.written), ("dropped", &records.dropped)]);
            let files = [("rotated", &records.rotated), ("write_failed", &records.failures), ("torn", &records.torn)];
            results(tell, &metric::JSONL_FILES, &files);
        }
        if let Some(rotation) = &self.rotation {
            let files = [("compressed", &rotation.compressed), ("deleted", &rotation.deleted), ("keep_failed", &rotation.failed)];
            results(tell, &metric::JSONL_FILES, &files);
        }
        if let Some(pages) = &self.pages {
            results(tell, &metric::HTTP_REQUESTS, &[("answered", &pages.answered), ("unauthorized", &pages.unauthorized)]);
            results(tell, &metric::HTTP_CONNECTIONS, &[("refused", &pages.refused), ("broken", &pages.broken)]);
        }
    }
}

fn results(tell: &mut Tell<'_>, metric: &'static tokengauge_core::semconv::Metric, all: &[(&str, &AtomicU64)]) {
    for (result, count) in all {
        tell(metric, &[(attr::RESULT, result)], count.load(Ordering::Relaxed) as f64);
    }
}

fn process(now: &Process, tell: &mut Tell<'_>) {
    let mut say = |metric, attributes: &[(&str, &str)], value: Option<f64>| {
        if let Some(value) = value {
            tell(metric, attributes, value);
        }
    };
    let whole = |n: Option<u64>| n.map(|n| n as f64);
    say(&metric::PROCESS_CPU_TIME, &[(attr::CPU_MODE, "user")], now.cpu_user_s);
    say(&metric::PROCESS_CPU_TIME, &[(attr::CPU_MODE, "system")], now.cpu_system_s);
    say(&metric::PROCESS_MEMORY_USAGE, &[], whole(now.resident_bytes));
    say(&metric::PROCESS_MEMORY_VIRTUAL, &[], whole(now.virtual_bytes));
    say(&metric::PROCESS_THREAD_COUNT, &[], whole(now.threads));
    say(&metric::PROCESS_FD_COUNT, &[], whole(now.open_fds));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;
    use tokengauge_core::stats::snapshot::{Area, Counter};

    #[test]
    fn what_there_is_is_told_once() {
        let vitals = Arc::new(Vitals::default());
        let slot = vitals.register_as("packets on lo", Box::new(|| vec![Counter { area: Area::Drop, name: "kernel_buffer", count: 7 }]));
        vitals.lag(slot, Duration::from_millis(250));
        vitals.count_queued();
        let health = Arc::new(Health::default());
        let (tap, _export) = (health.part("packets on lo", vec![]), health.part("export", vec![]));
        let mut own = Own::new(vitals, health);
        let records = Arc::new(file::Counters::default());
        records.dropped.store(2, Ordering::Relaxed);
        own.records = Some(records);
        own.pages = Some(Arc::default());
        let told = |own: &Own| {
            let mut all = BTreeMap::new();
            own.observe(&mut |metric, attributes, value| {
                let key = format!("{} {}", metric.name, attributes.iter().map(|(_, v)| *v).collect::<Vec<_>>().join(" "));
                assert!(all.insert(key.trim().to_owned(), value).is_none(), "{} is told twice", metric.name);
            });
            all
        };
        let first = told(&own);
        for (key, want) in [
            ("tokengauge.capture.lag packets on lo", 0.25),
            ("tokengauge.tap.drops packets on lo kernel_buffer", 7.0),
            ("tokengauge.tap.working packets on lo", 0.0),
            ("tokengauge.agent.queue", 1.0),
            ("tokengauge.jsonl.records dropped", 2.0),
            ("tokengauge.jsonl.records written", 0.0),
            ("tokengauge.http.connections refused", 0.0),
        ] {
            assert_eq!(first.get(key), Some(&want), "{key}");
        }
        assert!(!first.contains_key("tokengauge.tap.working export"));
        assert!(first["process.memory.usage"] > 1e6 && first.contains_key("process.cpu.time user"), "{first:?}");
        tap.beat();
        assert_eq!(told(&own)["tokengauge.tap.working packets on lo"], 1.0);
    }
}
