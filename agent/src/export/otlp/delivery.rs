//! What became of what was handed over for delivery: counters and gauges that anyone may read at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokengauge_core::semconv::{LATENCY, attr, metric};

use super::carrier::Signal;
use crate::export::ExportError;
use crate::export::observe::{Observe, Tell, TellHistogram};

/// Why something was never delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The memory, or the disk, that it may wait in was full: the oldest went.
    QueueFull,
    /// It waited longer than `otlp.queue.max_age_s`.
    Expired,
    /// The receiver refused the whole request for good (a code that is not to be tried again).
    Refused,
    /// The receiver took the request and rejected these of it (partial success).
    Rejected,
    /// The agent ended before it could be delivered, and there was no disk to keep it.
    Shutdown,
    /// The disk gave back something else than was written.
    Damaged,
    /// Sampling left it out, as it was asked to. No loss, but nobody will find it.
    Unsampled,
    /// A newer reading of the same cumulative series made it expendable during an outage: graphs are coarser there, no total is wrong.
    Superseded,
}

impl Loss {
    /// Every reason.
    pub const ALL: [Self; 8] =
        [Self::QueueFull, Self::Expired, Self::Refused, Self::Rejected, Self::Shutdown, Self::Damaged, Self::Unsampled, Self::Superseded];

    /// The value of `tokengauge.reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
            Self::Shutdown => "shutdown",
            Self::Damaged => "damaged",
            Self::Unsampled => "unsampled",
            Self::Superseded => "superseded",
        }
    }

    /// Whether something is missing at the receiver that should be there.
    const fn is_loss(self) -> bool {
        !matches!(self, Self::Unsampled | Self::Superseded)
    }
}

/// The figures of one signal. Counters only go up; all of them begin at 0 with the process.
#[derive(Default, Debug)]
struct Signals {
    lost: [AtomicU64; Loss::ALL.len()],
    delivered: AtomicU64,
    requests: AtomicU64,
    retries: AtomicU64,
    disk_errors: AtomicU64,
    took_nanos: AtomicU64,
    /// Answers by their times: as many as [`LATENCY`] has bounds, and one more.
    took: [AtomicU64; LATENCY.len() + 1],
    memory_items: AtomicU64,
    memory_bytes: AtomicU64,
    disk_items: AtomicU64,
    disk_bytes: AtomicU64,
    trouble: Mutex<Option<String>>,
    disk_trouble: Mutex<Option<String>>,
}

/// One signal's figures at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Spans or data points that a receiver took.
    pub delivered: u64,
    /// Requests that got an answer which settled them.
    pub requests: u64,
    /// Requests that will be (or were) sent again.
    pub retries: u64,
    /// Failures to write or read the queue on disk.
    pub disk_errors: u64,
    /// Time that all requests took together, from sending to the answer, whatever it was.
    pub took: Duration,
    /// Spans or data points that wait in memory.
    pub memory_items: u64,
    /// Bytes of them.
    pub memory_bytes: u64,
    /// Spans or data points that wait on disk.
    pub disk_items: u64,
    /// Bytes of the files.
    pub disk_bytes: u64,
    /// Why nothing is delivered at the moment; `None` while all is well.
    pub trouble: Option<String>,
    /// Why nothing can be written to disk at the moment; `None` while all is well.
    pub disk_trouble: Option<String>,
}

/// What became of what was exported.
#[derive(Default, Debug)]
pub struct Delivery {
    signals: [Signals; Signal::ALL.len()],
}

/// Where a change of state is to be said in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The receiver.
    Receiver,
    /// The queue on disk.
    Disk,
}

impl Delivery {
    fn of(&self, signal: Signal) -> &Signals {
        let [metrics, traces] = &self.signals;
        match signal {
            Signal::Metrics => metrics,
            Signal::Traces => traces,
        }
    }

    /// Counts what will never be delivered.
    pub fn lose(&self, signal: Signal, why: Loss, items: u64) {
        if let Some(count) = self.of(signal).lost.get(why as usize) {
            count.fetch_add(items, Relaxed);
        }
    }

    /// How much was never delivered for this reason.
    pub fn lost(&self, signal: Signal, why: Loss) -> u64 {
        self.of(signal).lost.get(why as usize).map_or(0, |n| n.load(Relaxed))
    }

    /// Everything that should be at the receiver and never will be.
    pub fn all_lost(&self, signal: Signal) -> u64 {
        Loss::ALL.into_iter().filter(|why| why.is_loss()).map(|why| self.lost(signal, why)).sum()
    }

    /// Counts a request that was settled, and what of it was taken.
    pub fn deliver(&self, signal: Signal, items: u64) {
        self.of(signal).delivered.fetch_add(items, Relaxed);
    }

    /// Counts an answer, or its absence.
    pub fn answered(&self, signal: Signal, took: Duration, settled: bool) {
        let of = self.of(signal);
        of.took_nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        let seconds = took.as_secs_f64();
        if let Some(count) = of.took.get(LATENCY.partition_point(|bound| *bound < seconds)) {
            count.fetch_add(1, Relaxed);
        }
        (if settled { &of.requests } else { &of.retries }).fetch_add(1, Relaxed);
    }

    /// Counts a failure of the disk.
    pub fn disk_failed(&self, signal: Signal) {
        self.of(signal).disk_errors.fetch_add(1, Relaxed);
    }

    /// Something more waits in memory.
    pub fn hold(&self, signal: Signal, items: u64, bytes: usize) {
        self.of(signal).memory_items.fetch_add(items, Relaxed);
        self.of(signal).memory_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// It does no longer.
    pub fn release(&self, signal: Signal, items: u64, bytes: usize) {
        self.of(signal).memory_items.fetch_sub(items, Relaxed);
        self.of(signal).memory_bytes.fetch_sub(bytes as u64, Relaxed);
    }

    /// What waits on disk.
    pub fn on_disk(&self, signal: Signal, items: u64, bytes: u64) {
        self.of(signal).disk_items.store(items, Relaxed);
        self.of(signal).disk_bytes.store(bytes, Relaxed);
    }

    /// Says what is wrong, once until it changes; `None`: all is well again. Whether it was news.
    pub fn say(&self, signal: Signal, part: Part, trouble: Option<String>) -> bool {
        let place = match part {
            Part::Receiver => &self.of(signal).trouble,
            Part::Disk => &self.of(signal).disk_trouble,
        };
        let mut said = place.lock().unwrap_or_else(PoisonError::into_inner);
        if *said == trouble {
            return false;
        }
        let signal = signal.name();
        match (&trouble, part) {
            (Some(what), Part::Receiver) => tracing::warn!(signal, "otlp export failed: {what}"),
            (Some(what), Part::Disk) => tracing::error!(signal, "the queue on disk cannot be used: {what}"),
            (None, Part::Receiver) => tracing::info!(signal, "otlp export works again"),
            (None, Part::Disk) => tracing::info!(signal, "the queue on disk is written again"),
        }
        *said = trouble;
        true
    }

    /// One signal's figures as they stand.
    pub fn figures(&self, signal: Signal) -> Figures {
        let of = self.of(signal);
        let text = |said: &Mutex<Option<String>>| said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Figures {
            delivered: of.delivered.load(Relaxed),
            requests: of.requests.load(Relaxed),
            retries: of.retries.load(Relaxed),
            disk_errors: of.disk_errors.load(Relaxed),
            took: Duration::from_nanos(of.took_nanos.load(Relaxed)),
            memory_items: of.memory_items.load(Relaxed),
            memory_bytes: of.memory_bytes.load(Relaxed),
            disk_items: of.disk_items.load(Relaxed),
            disk_bytes: of.disk_bytes.load(Relaxed),
            trouble: text(&of.trouble),
            disk_trouble: text(&of.disk_trouble),
        }
    }

    /// The error of a flush or shutdown that did not deliver everything.
    pub fn error(&self, when: &str) -> ExportError {
        let mut parts = Vec::new();
        for (signal, item) in [(Signal::Traces, "spans"), (Signal::Metrics, "data points of metrics")] {
            let figures = self.figures(signal);
            let lost = self.all_lost(signal);
            if lost > 0 {
                parts.push(format!("{lost} {item} were lost"));
            }
            if figures.memory_items > 0 {
                parts.push(format!("{} {item} were waiting", figures.memory_items));
            }
            parts.extend(figures.trouble);
        }
        if parts.is_empty() {
            parts.push("the receiver did not answer in time".to_owned());
        }
        ExportError::Undelivered { what: format!("at {when} {}", parts.join("; ")) }
    }
}

/// The delivery of these signals as the agent's own metrics.
#[derive(Debug)]
pub struct Observed {
    /// What is told.
    pub delivery: std::sync::Arc<Delivery>,
    /// Signals that are delivered.
    pub signals: Vec<Signal>,
}

/// `tokengauge.signal`: what is delivered is spans, not traces.
const fn item(signal: Signal) -> &'static str {
    match signal {
        Signal::Metrics => "metrics",
        Signal::Traces => "spans",
    }
}

impl Observe for Observed {
    fn observe(&self, tell: &mut Tell<'_>) {
        for signal in &self.signals {
            let (f, of) = (self.delivery.figures(*signal), (attr::SIGNAL, item(*signal)));
            for why in Loss::ALL.into_iter().filter(|why| *signal == Signal::Traces || *why != Loss::Unsampled) {
                tell(&metric::EXPORT_DROPS, &[of, (attr::REASON, why.as_str())], self.delivery.lost(*signal, why) as f64);
            }
            tell(&metric::EXPORT_DELIVERED, &[of], f.delivered as f64);
            tell(&metric::EXPORT_RETRIES, &[of], f.retries as f64);
            tell(&metric::EXPORT_QUEUE_ERRORS, &[of], f.disk_errors as f64);
            for (place, items, bytes) in [("memory", f.memory_items, f.memory_bytes), ("disk", f.disk_items, f.disk_bytes)] {
                tell(&metric::EXPORT_QUEUE_ITEMS, &[of, (attr::PLACE, place)], items as f64);
                tell(&metric::EXPORT_QUEUE_SIZE, &[of, (attr::PLACE, place)], bytes as f64);
            }
        }
    }

    fn histograms(&self, tell: &mut TellHistogram<'_>) {
        for signal in &self.signals {
            let of = self.delivery.of(*signal);
            let counts: Vec<u64> = of.took.iter().map(|n| n.load(Relaxed)).collect();
            let sum = of.took_nanos.load(Relaxed) as f64 / 1e9;
            tell(&metric::EXPORT_DURATION, &[(attr::SIGNAL, item(*signal))], &LATENCY, &counts, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_counter_and_its_name() {
        let delivery = Delivery::default();
        for (n, why) in Loss::ALL.into_iter().enumerate() {
            delivery.lose(Signal::Traces, why, n as u64 + 1);
        }
        for (n, why) in Loss::ALL.into_iter().enumerate() {
            assert_eq!((delivery.lost(Signal::Traces, why), delivery.lost(Signal::Metrics, why)), (n as u64 + 1, 0));
        }
        assert_eq!(delivery.all_lost(Signal::Traces), 1 + 2 + 3 + 4 + 5 + 6);
        assert!(delivery.error("shutdown").to_string().contains("21 spans were lost"));
    }

    #[test]
    fn everything_that_is_counted_is_told() {
        let delivery = std::sync::Arc::new(Delivery::default());
        delivery.lose(Signal::Traces, Loss::Expired, 3);
        delivery.hold(Signal::Traces, 7, 70);
        delivery.on_disk(Signal::Traces, 8, 80);
        delivery.answered(Signal::Traces, Duration::from_millis(1), true);
        delivery.answered(Signal::Traces, Duration::from_secs(500), false);
        let observed = Observed { delivery, signals: vec![Signal::Traces] };
        let mut told = Vec::new();
        observed.observe(&mut |m, attributes, value| {
            assert_eq!(attributes[0], ("tokengauge.signal", "spans"));
            told.push((m.name, attributes.get(1).map_or("", |a| a.1).to_owned(), value));
        });
        for (name, second, value) in [
            ("tokengauge.export.drops", "expired", 3.0),
            ("tokengauge.export.drops", "unsampled", 0.0),
            ("tokengauge.export.queue.items", "memory", 7.0),
            ("tokengauge.export.queue.size", "disk", 80.0),
            ("tokengauge.export.retries", "", 1.0),
        ] {
            assert!(told.contains(&(name, second.to_owned(), value)), "{name} {second}: {told:?}");
        }
        let mut histograms = 0;
        observed.histograms(&mut |_, _, bounds, counts, sum| {
            assert_eq!((counts.len(), counts.first(), counts.last()), (bounds.len() + 1, Some(&1), Some(&1)));
            assert!((sum - 500.001).abs() < 1e-6);
            histograms += 1;
        });
        assert_eq!(histograms, 1);
    }

    #[test]
    fn the_same_trouble_is_news_once() {
        let delivery = Delivery::default();
        let say = |what: Option<&str>| delivery.say(Signal::Metrics, Part::Receiver, what.map(str::to_owned));
        assert_eq!([say(None), say(Some("a")), say(Some("a")), say(Some("b")), say(None)], [false, true, false, true, true]);
    }
}
