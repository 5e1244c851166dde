//! What became of what was handed over for delivery: counters and gauges that anyone may read at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::carrier::Signal;
use crate::export::ExportError;

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

    /// (signal, reason, count) of what was not delivered.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let of = move |signal: Signal| {
            let item = if signal == Signal::Traces { "spans" } else { "metrics" };
            Loss::ALL.into_iter().map(move |why| (item, why.as_str(), self.lost(signal, why)))
        };
        Signal::ALL.into_iter().flat_map(of).filter(|(item, reason, _)| !(*item == "metrics" && *reason == "unsampled"))
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
            assert!(delivery.drops().any(|d| d == ("spans", why.as_str(), n as u64 + 1)));
        }
        assert_eq!(delivery.all_lost(Signal::Traces), 1 + 2 + 3 + 4 + 5 + 6);
        assert!(delivery.error("shutdown").to_string().contains("21 spans were lost"));
    }

    #[test]
    fn the_same_trouble_is_news_once() {
        let delivery = Delivery::default();
        let say = |what: Option<&str>| delivery.say(Signal::Metrics, Part::Receiver, what.map(str::to_owned));
        assert_eq!([say(None), say(Some("a")), say(Some("a")), say(Some("b")), say(None)], [false, true, false, true, true]);
    }
}
