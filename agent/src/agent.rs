//! A running agent: taps on threads of their own, one export thread, bounded queues between them.
//!
//! ```text
//! tap thread   Tap ─► Driver{Pipeline} ─┐ try_send: a full queue costs a counted record, never the tap's time
//! tap thread   Tap ─► Driver{Pipeline} ─┴─► export thread ─► Aggregator ─► Exporters
//!                        └─ publishes ─► Vitals ─────────────────┘ once a second, with the Snapshot
//! ```
//!
//! `run` and `demo` are built on it. It knows neither signals nor the terminal.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokengauge_core::inference::Inference;
use tokengauge_core::join::Limits;
use tokengauge_core::pipeline::{Options, PipelineStats};
use tokengauge_core::stats::{Aggregator, Snapshot};
use tokengauge_core::stream::Timestamp;
use tokengauge_core::tenant::Tenants;

use crate::clock::{now, wall};
use crate::driver::{Driver, Progress, Source};
use crate::enrich::Enricher;
use crate::export::Exporter;
use crate::health::{Health, Part, Watched};
use crate::join::Joining;
use crate::tap::{StopFlag, TapError};
use crate::vitals::{Report, Slot, TapClock, Vitals};

mod exporting;

use exporting::Exporting;

/// From the stop to the end, all in all: within the 5 seconds that are promised, with a margin for the process itself.
pub const STOP_WITHIN: Duration = Duration::from_millis(4_500);

/// What taps may take of it; then the exporters go on without them.
const TAPS_WITHIN: Duration = Duration::from_millis(1_500);

/// Inferences that may wait for the export thread. One is about 1 KiB.
const QUEUE: usize = 16_384;

/// What reaches the export thread.
enum Event {
    /// A finished inference.
    Inference(Box<Inference>),
    /// A tap returned.
    TapEnded { name: String, result: Result<(), TapError> },
}

/// What an agent is made of.
pub struct Builder {
    sources: Vec<Source>,
    exporters: Vec<Box<dyn Exporter>>,
    options: Options,
    stop: StopFlag,
    snapshot_every: Duration,
    health: Arc<Health>,
    vitals: Arc<Vitals>,
    enricher: Option<Enricher>,
    joining: Joining,
    tenants: Option<Arc<Tenants>>,
}

impl Builder {
    /// Adds a tap.
    pub fn source(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Adds an exporter. They are fed and shut down in the order given: local files before remote ones.
    pub fn exporter(mut self, exporter: Box<dyn Exporter>) -> Self {
        self.exporters.push(exporter);
        self
    }

    /// Names both ends of each inference before anyone gets it.
    pub fn enricher(mut self, enricher: Enricher) -> Self {
        self.enricher = Some(enricher);
        self
    }

    /// Where the views of one request wait for each other; for a second unless said otherwise.
    pub fn joining(mut self, joining: Joining) -> Self {
        self.joining = joining;
        self
    }

    /// Says whose requests are.
    pub fn tenants(mut self, tenants: Arc<Tenants>) -> Self {
        self.tenants = Some(tenants);
        self
    }

    /// Calls `f` for each finished inference, on the export thread.
    pub fn on_inference(self, f: impl FnMut(&Inference) + Send + 'static) -> Self {
        self.exporter(Box::new(Hook(f)))
    }

    /// Bounds and seed of the pipelines; each tap gets a seed of its own made of this one.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// A flag that others may set to stop the agent.
    pub fn stop_flag(mut self, stop: StopFlag) -> Self {
        self.stop = stop;
        self
    }

    /// Where the agent's threads give signs of life.
    pub fn health(mut self, health: Arc<Health>) -> Self {
        self.health = health;
        self
    }

    /// Where the agent's own figures are kept.
    pub fn vitals(mut self, vitals: Arc<Vitals>) -> Self {
        self.vitals = vitals;
        self
    }

    /// How often exporters get a snapshot; 1 s unless said otherwise.
    pub fn snapshot_every(mut self, every: Duration) -> Self {
        self.snapshot_every = every;
        self
    }

    /// Starts every thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(self) -> std::io::Result<Running> {
        let began = now();
        let (stop, vitals) = (self.stop, self.vitals);
        let (events, inbox) = sync_channel(QUEUE);
        let (failed, count) = (Arc::new(Failures::default()), self.sources.len());
        let mut taps = Vec::new();
        for (number, Source { name, tap, counters, .. }) in self.sources.into_iter().enumerate() {
            let (part, clock) = (self.health.part(&name, Vec::new()), TapClock::of(tap.kind()));
            let slot = vitals.register_as(&name, counters);
            let seed = self.options.seed.wrapping_add((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let sender =
                OnTap { events: events.clone(), vitals: Arc::clone(&vitals), slot, stop: stop.clone(), part: Arc::clone(&part), clock };
            let mut driver = Driver::new(Options { seed, ..self.options }, sender).naming(self.tenants.clone());
            let stop = stop.clone();
            let thread = thread::Builder::new().name(format!("tap-{number}")).spawn(move || {
                let _watched = Watched::over(&part);
                let result = tap.run(&mut driver, &stop);
                part.end(result.as_ref().err().map(ToString::to_string));
                let (_, OnTap { events, .. }) = driver.finish();
                // The export thread may be gone already, past the deadline.
                let _ = events.send(Event::TapEnded { name, result });
            })?;
            taps.push(thread);
        }
        drop(events);
        let all = Arc::new(Mutex::new(Aggregator::default()));
        let (done_sender, done) = sync_channel(1);
        let part = self.health.part("export", self.exporters.iter().map(|e| e.name()).collect());
        let exporting = Exporting {
            part: Arc::clone(&part),
            inbox,
            enricher: self.enricher,
            joining: self.joining,
            ready: Vec::new(),
            taps,
            exporters: self.exporters,
            all: Arc::clone(&all),
            vitals: Arc::clone(&vitals),
            failed: Arc::clone(&failed),
            stop: stop.clone(),
            every: self.snapshot_every,
        };
        thread::Builder::new().name("export".into()).spawn(move || {
            let _watched = Watched::over(&part);
            let undelivered = exporting.run();
            let _ = done_sender.send(undelivered);
        })?;
        Ok(Running { stop, vitals, all, failed, taps: count, done, began })
    }
}

/// A running agent. Dropping it lets it run on; stop it by [`Running::stop`].
pub struct Running {
    stop: StopFlag,
    vitals: Arc<Vitals>,
    all: Arc<Mutex<Aggregator>>,
    failed: Arc<Failures>,
    taps: usize,
    done: Receiver<Vec<String>>,
    began: Instant,
}

/// How an agent ended.
#[derive(Debug)]
pub struct Ended {
    /// What it counted.
    pub report: Report,
    /// What could not be delivered at the end.
    pub undelivered: Vec<String>,
    /// What the taps that failed said.
    pub errors: Vec<String>,
}

impl Running {
    /// An agent to be built.
    pub fn builder() -> Builder {
        Builder {
            sources: Vec::new(),
            exporters: Vec::new(),
            options: Options::default(),
            stop: StopFlag::default(),
            snapshot_every: Duration::from_secs(1),
            health: Arc::default(),
            vitals: Arc::default(),
            enricher: None,
            joining: Joining::new(Limits::default().wait, now()),
            tenants: None,
        }
    }

    /// The flag that stops the taps; [`Running::wait`] does the rest.
    pub fn stop_flag(&self) -> StopFlag {
        self.stop.clone()
    }

    /// Whether every tap is at work (or has ended).
    pub fn ready(&self) -> bool {
        self.vitals.ready()
    }

    /// Taps that failed so far, and all taps.
    pub fn failed_taps(&self) -> (usize, usize) {
        (self.failed.count(), self.taps)
    }

    /// All series and the agent's own counters as they stand.
    pub fn snapshot(&self) -> Snapshot {
        snapshot(&self.all, &self.vitals)
    }

    /// Waits for the end: of all taps, or after a stop. `None` when it did not come within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Ended> {
        let undelivered = match self.done.recv_timeout(timeout) {
            Ok(undelivered) => undelivered,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => vec!["the export thread ended early".to_owned()],
        };
        Some(self.ended(undelivered))
    }

    /// Stops the taps, flushes the exporters and waits for that, but not beyond [`STOP_WITHIN`].
    pub fn stop(&self) -> Ended {
        self.stop.stop();
        self.wait(STOP_WITHIN).unwrap_or_else(|| self.ended(vec!["the deadline passed".to_owned()]))
    }

    /// The report as it stands.
    pub fn ended(&self, undelivered: Vec<String>) -> Ended {
        let report = Report {
            inputs: self.taps as u64,
            failed_inputs: self.failed.count() as u64,
            wall_s: now().duration_since(self.began).as_secs_f64(),
            ..Report::new(&self.vitals.stats(), &self.vitals.counters())
        };
        Ended { report, undelivered, errors: self.failed.texts() }
    }
}

/// What the taps that failed said.
#[derive(Default)]
struct Failures(Mutex<Vec<String>>);

impl Failures {
    fn add(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The tap's side of the queue.
struct OnTap {
    events: SyncSender<Event>,
    vitals: Arc<Vitals>,
    slot: Slot,
    stop: StopFlag,
    part: Arc<Part>,
    clock: TapClock,
}

impl Progress for OnTap {
    fn inference(&mut self, inference: Inference) {
        let mut event = Event::Inference(Box::new(inference));
        // While the tap lives it never waits. Once it is told to stop it has nothing else to do than to hand over what is open.
        for _ in 0..1_000 {
            event = match self.events.try_send(event) {
                Err(TrySendError::Full(event)) => event,
                Ok(()) => return self.vitals.count_queued(),
                Err(TrySendError::Disconnected(_)) => return,
            };
            if !self.stop.is_set() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.vitals.count_export_drop();
    }

    fn tick(&mut self, stats: &dyn Fn() -> PipelineStats) {
        self.vitals.publish(self.slot, &stats());
        self.part.beat();
    }

    fn reached(&mut self, at: Timestamp) {
        self.vitals.lag(self.slot, self.clock.now().since(at));
    }
}

fn snapshot(all: &Mutex<Aggregator>, vitals: &Vitals) -> Snapshot {
    let mut snapshot = lock(all).snapshot();
    snapshot.at = wall();
    vitals.fill(&mut snapshot);
    snapshot
}

fn lock(all: &Mutex<Aggregator>) -> MutexGuard<'_, Aggregator> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An exporter that is a function.
struct Hook<F>(F);

impl<F: FnMut(&Inference) + Send> Exporter for Hook<F> {
    fn name(&self) -> &'static str {
        "hook"
    }

    fn inference(&mut self, inference: &Inference) {
        (self.0)(inference);
    }

    fn snapshot(&mut self, _: &Snapshot) {}

    fn flush(&mut self, _: Duration) -> Result<(), crate::export::ExportError> {
        Ok(())
    }

    fn shutdown(&mut self, _: Duration) -> Result<(), crate::export::ExportError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::{ExportError, jsonl::file::JsonFile};
    use crate::tap::{Sink, Tap};
    use crate::testing;
    use tokengauge_core::stream::TapKind;

    struct Idle;
    impl Tap for Idle {
        fn kind(&self) -> TapKind {
            TapKind::Pcap
        }
        fn run(self: Box<Self>, sink: &mut dyn Sink, stop: &StopFlag) -> Result<(), TapError> {
            while !stop.is_set() {
                sink.tick(wall());
                thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        }
    }

    struct Deaf;
    impl Tap for Deaf {
        fn kind(&self) -> TapKind {
            TapKind::Pcap
        }
        fn run(self: Box<Self>, _: &mut dyn Sink, _: &StopFlag) -> Result<(), TapError> {
            thread::sleep(Duration::from_secs(60));
            Ok(())
        }
    }

    struct Refused;
    impl Tap for Refused {
        fn kind(&self) -> TapKind {
            TapKind::Tls
        }
        fn run(self: Box<Self>, _: &mut dyn Sink, _: &StopFlag) -> Result<(), TapError> {
            Err(TapError::Bpf { what: "no".into() })
        }
    }

    struct Slow;
    impl Exporter for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }
        fn inference(&mut self, _: &Inference) {}
        fn snapshot(&mut self, _: &Snapshot) {}
        fn flush(&mut self, _: Duration) -> Result<(), ExportError> {
            Ok(())
        }
        fn shutdown(&mut self, within: Duration) -> Result<(), ExportError> {
            assert!(within <= STOP_WITHIN);
            thread::sleep(Duration::from_secs(60));
            Ok(())
        }
    }

    #[test]
    fn it_starts_stops_and_flushes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        let running = Running::builder()
            .source(Source::new("idle", Box::new(Idle)))
            .exporter(Box::new(JsonFile::open(&path, None, Arc::default()).unwrap()))
            .on_inference(|_| {})
            .start()
            .unwrap();
        while !running.ready() {
            thread::sleep(Duration::from_millis(1));
        }
        let began = now();
        let ended = running.stop();
        assert!(began.elapsed() < Duration::from_secs(1));
        assert!(ended.undelivered.is_empty(), "{:?}", ended.undelivered);
        assert_eq!((ended.report.inputs, ended.report.failed_inputs), (1, 0));
        assert!(path.exists());
    }

    #[test]
    fn a_tap_that_cannot_start_ends_the_agent_when_it_was_the_only_one() {
        let running = Running::builder().source(Source::new("tls", Box::new(Refused))).start().unwrap();
        let ended = running.wait(Duration::from_secs(5)).unwrap();
        assert_eq!(ended.report.failed_inputs, 1);
    }

    #[test]
    fn neither_a_deaf_tap_nor_a_hanging_exporter_delays_the_stop() {
        let running = Running::builder().source(Source::new("deaf", Box::new(Deaf))).exporter(Box::new(Slow)).start().unwrap();
        let began = now();
        let ended = running.stop();
        assert!(began.elapsed() < Duration::from_secs(5));
        assert_eq!(ended.undelivered, ["the deadline passed"]);
    }

    #[test]
    fn a_full_queue_costs_a_counted_record_and_no_time() {
        let (events, _inbox) = sync_channel(1);
        let vitals = Arc::new(Vitals::default());
        let slot = vitals.register(Box::new(Vec::new));
        let (part, clock) = (Health::default().part("x", Vec::new()), TapClock::of(TapKind::Pcap));
        let mut tap = OnTap { events, vitals: Arc::clone(&vitals), slot, stop: StopFlag::default(), part, clock };
        for _ in 0..3 {
            tap.inference(testing::inference());
        }
        let dropped = vitals.counters().iter().find(|c| c.name == crate::vitals::EXPORT_QUEUE_FULL).map(|c| c.count);
        assert_eq!(dropped, Some(2));
        assert_eq!(vitals.queued(), 1);
    }

    #[test]
    fn a_tap_that_hangs_or_panics_and_an_exporter_that_hangs_show() {
        struct Panics;
        impl Tap for Panics {
            fn kind(&self) -> TapKind {
                TapKind::Pcap
            }
            fn run(self: Box<Self>, sink: &mut dyn Sink, _: &StopFlag) -> Result<(), TapError> {
                sink.tick(wall());
                panic!("as it must");
            }
        }
        struct Hangs(Receiver<()>);
        impl Exporter for Hangs {
            fn name(&self) -> &'static str {
                "hangs"
            }
            fn inference(&mut self, _: &Inference) {}
            fn snapshot(&mut self, _: &Snapshot) {
                let _ = self.0.recv();
            }
            fn flush(&mut self, _: Duration) -> Result<(), ExportError> {
                Ok(())
            }
            fn shutdown(&mut self, _: Duration) -> Result<(), ExportError> {
                Ok(())
            }
        }
        let (release, held) = sync_channel(1);
        let health = Arc::new(Health::default());
        let running = Running::builder()
            .health(Arc::clone(&health))
            .source(Source::new("idle", Box::new(Idle)))
            .source(Source::new("deaf", Box::new(Deaf)))
            .source(Source::new("panics", Box::new(Panics)))
            .exporter(Box::new(Hangs(held)))
            .snapshot_every(Duration::from_millis(1))
            .start()
            .unwrap();
        let text = |verdict: crate::health::Verdict| verdict.text("yes", "no");
        let (mut soon, mut later) = (String::new(), String::new());
        for _ in 0..1_000 {
            (soon, later) = (text(health.ready()), text(health.ready_in(Duration::from_secs(6))));
            if soon.contains("idle: at work") && soon.contains("panicked") && later.contains("in hangs") {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert!(soon.contains("[+] idle: at work") && soon.contains("[-] deaf: starting"), "{soon}");
        assert!(soon.contains("[-] panics: failed: panicked") && soon.ends_with("no\n"), "{soon}");
        assert!(text(health.alive()).ends_with("yes\n"));
        assert!(later.contains("[-] export: no sign of life for 6 s, in hangs"), "{later}");
        assert!(text(health.alive_in(Duration::from_secs(31))).ends_with("no\n"));
        drop(release);
        running.stop_flag().stop();
    }
}
