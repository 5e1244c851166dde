//! The agent's own figures: what the taps and pipelines counted, what was lost between them and the exporters, what it cost.
//!
//! Taps publish, everyone else reads. A tap's thread holds a lock for the copy of a hundred numbers, ten times a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokengauge_core::anomaly::Anomaly;
use tokengauge_core::pipeline::PipelineStats;
use tokengauge_core::stats::Snapshot;
use tokengauge_core::stats::snapshot::{Area, Counter};
use tokengauge_core::stream::{GapReason, TapKind, Timestamp};

use crate::clock::{now, wall};
use crate::driver::Probe;

pub mod own;
pub mod process;

use process::Process;

/// The vitals of a running agent.
#[derive(Default)]
pub struct Vitals {
    taps: Mutex<Vec<TapVitals>>,
    /// Finished inferences that the exporters were too slow for.
    export_queue_full: AtomicU64,
    /// Finished inferences that were put into the queue to the exporters, and taken out of it.
    queued: AtomicU64,
    taken: AtomicU64,
}

struct TapVitals {
    name: String,
    lag: Lag,
    stats: PipelineStats,
    probe: Probe,
    ready: bool,
}

/// The largest of what was said lately: in this half minute, and in the one before.
#[derive(Default)]
struct Lag {
    since: Option<Instant>,
    most: [Duration; 2],
}

impl Lag {
    fn take(&mut self, behind: Duration, at: Instant) {
        if at.saturating_duration_since(*self.since.get_or_insert(at)) >= LAG_WINDOW {
            self.since = Some(at);
            self.most = [Duration::ZERO, self.most[0]];
        }
        self.most[0] = self.most[0].max(behind);
    }

    fn most(&self) -> Duration {
        self.most[0].max(self.most[1])
    }
}

const LAG_WINDOW: Duration = Duration::from_secs(30);

/// A tap's place in the [`Vitals`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(usize);

impl Vitals {
    /// A place for one more tap, or for something that counts like one.
    pub fn register(&self, probe: Probe) -> Slot {
        self.register_as("", probe)
    }

    /// A place for a tap of this name.
    pub fn register_as(&self, name: &str, probe: Probe) -> Slot {
        let mut taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        taps.push(TapVitals { name: name.to_owned(), lag: Lag::default(), stats: PipelineStats::default(), probe, ready: false });
        Slot(taps.len() - 1)
    }

    /// What the tap's pipeline counted. The first call says that the tap is at work.
    pub fn publish(&self, slot: Slot, stats: &PipelineStats) {
        let mut taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tap) = taps.get_mut(slot.0) {
            tap.stats.clone_from(stats);
            tap.ready = true;
        }
    }

    /// How far a tap's parser was behind the wire just now.
    pub fn lag(&self, slot: Slot, behind: Duration) {
        let mut taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tap) = taps.get_mut(slot.0) {
            tap.lag.take(behind, now());
        }
    }

    /// How far each tap's parser was behind the wire at most, in the last half minute to minute.
    pub fn lags(&self) -> Vec<(String, Duration)> {
        let taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        taps.iter().map(|tap| (tap.name.clone(), tap.lag.most())).collect()
    }

    /// Counts an inference that was handed to the exporters' queue.
    pub fn count_queued(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an inference that was taken out of it.
    pub fn count_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Inferences that wait for the exporters.
    pub fn queued(&self) -> u64 {
        let taken = self.taken.load(Ordering::Relaxed);
        self.queued.load(Ordering::Relaxed).saturating_sub(taken)
    }

    /// What each tap lost, by its name and the reason.
    pub fn drops(&self) -> Vec<(String, &'static str, u64)> {
        let taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |tap: &TapVitals| {
            let name = tap.name.clone();
            (tap.probe)().into_iter().filter(|c| c.area == Area::Drop).map(move |c| (name.clone(), c.name, c.count))
        };
        taps.iter().flat_map(of).collect()
    }

    /// The taps' names.
    pub fn names(&self) -> Vec<String> {
        let taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        taps.iter().map(|tap| tap.name.clone()).collect()
    }

    /// Whether every tap is at work.
    pub fn ready(&self) -> bool {
        self.taps.lock().unwrap_or_else(PoisonError::into_inner).iter().all(|t| t.ready)
    }

    /// Counts an inference that could not be handed to the exporters.
    pub fn count_export_drop(&self) {
        self.export_queue_full.fetch_add(1, Ordering::Relaxed);
    }

    /// All pipelines together.
    pub fn stats(&self) -> PipelineStats {
        let taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        taps.iter().fold(PipelineStats::default(), |mut sum, tap| {
            add(&mut sum, &tap.stats);
            sum
        })
    }

    /// The taps' own counters, those of the same name added.
    pub fn counters(&self) -> Vec<Counter> {
        let taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = BTreeMap::from([((Area::Drop, EXPORT_QUEUE_FULL), self.export_queue_full.load(Ordering::Relaxed))]);
        for counter in taps.iter().flat_map(|tap| (tap.probe)()) {
            *sum.entry((counter.area, counter.name)).or_default() += counter.count;
        }
        sum.into_iter().map(|((area, name), count)| Counter { area, name, count }).collect()
    }

    /// Fills in what a snapshot says of the agent itself.
    pub fn fill(&self, snapshot: &mut Snapshot) {
        let stats = self.stats();
        snapshot.in_flight = stats.in_flight;
        snapshot.connections = stats.open_connections;
        snapshot.counters = self.counters();
        let exchange = |name, count| Counter { area: Area::Exchange, name, count };
        snapshot.counters.extend([
            exchange("connections", stats.connections),
            exchange("bytes", stats.bytes),
            exchange("exchanges", stats.exchanges),
            exchange("non_llm", stats.non_llm),
            exchange("inferences", stats.inferences),
            exchange("events", stats.events),
        ]);
        snapshot.counters.extend(GapReason::ALL.iter().zip(stats.gaps).map(|(r, count)| Counter {
            area: Area::Gap,
            name: r.as_str(),
            count,
        }));
        snapshot.counters.extend(Anomaly::ALL.map(|a| Counter { area: Area::Anomaly, name: a.as_str(), count: stats.anomalies.of(a) }));
    }
}

/// The name of the counter of inferences that found the exporters' queue full.
pub const EXPORT_QUEUE_FULL: &str = "export_queue_full";

/// Adds the counts of one pipeline to those of another.
pub fn add(sum: &mut PipelineStats, other: &PipelineStats) {
    sum.connections += other.connections;
    sum.open_connections += other.open_connections;
    sum.bytes += other.bytes;
    sum.exchanges += other.exchanges;
    sum.non_llm += other.non_llm;
    sum.inferences += other.inferences;
    sum.in_flight += other.in_flight;
    sum.events += other.events;
    sum.gaps.iter_mut().zip(other.gaps).for_each(|(mine, theirs)| *mine += theirs);
    sum.anomalies.add(&other.anomalies);
}

/// The closing statistics of `replay` and `run`: one JSON object.
#[derive(Serialize, Debug, Default)]
pub struct Report {
    /// Files read, or taps run.
    pub inputs: u64,
    /// Those of them that could not be read to their end.
    pub failed_inputs: u64,
    /// Captured packets; `null` when the tap counts none.
    pub packets: Option<u64>,
    /// Records of the kernel side; `null` when the tap counts none.
    pub records: Option<u64>,
    /// Payload bytes that reached the parsers.
    pub bytes: u64,
    /// Connections.
    pub connections: u64,
    /// HTTP exchanges, LLM traffic or not.
    pub exchanges: u64,
    /// Exchanges that are no LLM traffic.
    pub non_llm_exchanges: u64,
    /// Inferences.
    pub inferences: u64,
    /// Events of streamed answers.
    pub events: u64,
    /// Surprises of the wire that were met, by name.
    pub anomalies: BTreeMap<&'static str, u64>,
    /// Capture gaps by reason.
    pub gaps: BTreeMap<&'static str, u64>,
    /// Records and inferences that were lost inside the agent, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Bytes in lost records, where their number is known, by reason.
    pub drop_bytes: BTreeMap<&'static str, u64>,
    /// Whatever else the taps count.
    pub capture: BTreeMap<&'static str, u64>,
    /// Attach attempts by result.
    pub attach: BTreeMap<&'static str, u64>,
    /// Seconds of wall time.
    pub wall_s: f64,
    /// Seconds of processor time, user and system.
    pub cpu_s: f64,
    /// Largest resident set in bytes.
    pub peak_rss_bytes: u64,
}

impl Report {
    /// The report of what was counted.
    pub fn new(stats: &PipelineStats, counters: &[Counter]) -> Self {
        let of = |area: Area| counters.iter().filter(|c| c.area == area).map(|c| (c.name, c.count)).collect::<BTreeMap<_, _>>();
        let capture = of(Area::Capture);
        let process = Process::now();
        Self {
            packets: capture.get("packets").copied(),
            records: capture.get("records").copied(),
            bytes: stats.bytes,
            connections: stats.connections,
            exchanges: stats.exchanges,
            non_llm_exchanges: stats.non_llm,
            inferences: stats.inferences,
            events: stats.events,
            anomalies: stats.anomalies.iter().map(|(a, n)| (a.as_str(), n)).collect(),
            gaps: GapReason::ALL.iter().zip(stats.gaps).map(|(r, n)| (r.as_str(), n)).collect(),
            drops: of(Area::Drop),
            drop_bytes: of(Area::DropBytes),
            attach: of(Area::Attach),
            capture,
            cpu_s: process.cpu_s(),
            peak_rss_bytes: process.peak_resident_bytes.unwrap_or_default(),
            ..Self::default()
        }
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// One line for people.
    pub fn sentence(&self) -> String {
        let sum = |of: &BTreeMap<&str, u64>| of.values().sum::<u64>();
        let mut text = format!(
            "{} inference{} of {} exchanges on {} connections; {:.1} MB in {:.2} s",
            self.inferences,
            if self.inferences == 1 { "" } else { "s" },
            self.exchanges,
            self.connections,
            self.bytes as f64 / 1e6,
            self.wall_s,
        );
        for (what, counts) in [("gaps", &self.gaps), ("drops", &self.drops), ("anomalies", &self.anomalies)] {
            if sum(counts) > 0 {
                let parts: Vec<_> = counts.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")).collect();
                text += &format!("; {what}: {}", parts.join(", "));
            }
        }
        text
    }
}

/// The clock that a tap stamps with: that of the kernel's packets is set with the machine's, that of the probes only goes on.
pub struct TapClock {
    began: (Instant, Timestamp),
    steady: bool,
}

impl TapClock {
    /// The clock of a tap that begins now.
    pub fn of(kind: TapKind) -> Self {
        Self { began: (now(), wall()), steady: kind == TapKind::Tls }
    }

    /// The tap's clock now.
    pub fn now(&self) -> Timestamp {
        let (instant, time) = self.began;
        if self.steady { time.plus(now().saturating_duration_since(instant)) } else { wall() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_are_added_up() {
        let vitals = Vitals::default();
        let probe = || vec![Counter { area: Area::Capture, name: "packets", count: 3 }];
        let (a, b) = (vitals.register(Box::new(probe)), vitals.register(Box::new(probe)));
        let mut stats = PipelineStats { inferences: 2, in_flight: 1, ..PipelineStats::default() };
        stats.anomalies.count(Anomaly::BadJson);
        stats.gaps[2] = 4;
        vitals.publish(a, &stats);
        assert!(!vitals.ready());
        vitals.publish(b, &stats);
        assert!(vitals.ready());
        vitals.count_export_drop();
        let mut snapshot = Snapshot::default();
        vitals.fill(&mut snapshot);
        let of = |area, name| snapshot.counters.iter().find(|c| c.area == area && c.name == name).map(|c| c.count);
        assert_eq!(snapshot.in_flight, 2);
        assert_eq!(of(Area::Capture, "packets"), Some(6));
        assert_eq!(of(Area::Anomaly, "bad_json"), Some(2));
        assert_eq!(of(Area::Anomaly, "bad_head"), Some(0));
        assert_eq!(of(Area::Gap, "ring_full"), Some(8));
        assert_eq!(of(Area::Drop, EXPORT_QUEUE_FULL), Some(1));
        let report = Report::new(&vitals.stats(), &vitals.counters());
        assert_eq!((report.packets, report.records, report.inferences), (Some(6), None, 4));
        assert!(report.sentence().contains("ring_full 8"), "{}", report.sentence());
    }

    #[test]
    fn lags_are_the_largest_of_late() {
        let vitals = Vitals::default();
        let slot = vitals.register_as("a", Box::new(Vec::new));
        for millis in [3, 9, 1] {
            vitals.lag(slot, Duration::from_millis(millis));
        }
        assert_eq!(vitals.lags(), [("a".to_owned(), Duration::from_millis(9))]);
        let (mut lag, start) = (Lag::default(), now());
        lag.take(Duration::from_millis(9), start);
        lag.take(Duration::from_millis(2), start + LAG_WINDOW);
        assert_eq!(lag.most(), Duration::from_millis(9));
        lag.take(Duration::from_millis(1), start + LAG_WINDOW * 2);
        assert_eq!(lag.most(), Duration::from_millis(2));
    }
}
