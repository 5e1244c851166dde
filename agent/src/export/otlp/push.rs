//! Collects metrics at an interval and hands them over, on a thread of its own.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Env;
use super::carrier::{Carrier, Signal};
use super::points::{Style, Temporality, encode, encode_end};
use crate::clock::now;
use crate::export::metrics::Metrics;

/// The time between two exports when nobody says otherwise (specification, `OTEL_METRIC_EXPORT_INTERVAL`).
const INTERVAL: Duration = Duration::from_secs(60);

/// Between the last values and the end of the gauges, so that backends which order by time see the one before the other.
const A_MOMENT: u64 = 1_000_000;

/// Most that waits for the thread.
const ASKED: usize = 4;

/// The interval: `OTEL_METRIC_EXPORT_INTERVAL` in milliseconds, else the configured one, else a minute.
pub fn interval(configured_s: Option<f64>, env: Env<'_>) -> Duration {
    let said = env("OTEL_METRIC_EXPORT_INTERVAL").and_then(|v| v.trim().parse().ok()).filter(|ms| *ms > 0).map(Duration::from_millis);
    said.or_else(|| configured_s.map(Duration::from_secs_f64)).unwrap_or(INTERVAL)
}

/// The running collection.
pub struct Push {
    asks: SyncSender<Ask>,
    thread: Option<JoinHandle<()>>,
}

enum Ask {
    /// Collect now, and say when it is handed over.
    Flush(SyncSender<()>),
    /// Collect for the last time.
    End,
}

impl Push {
    /// Begins to collect. `resource` is an encoded `Resource`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(metrics: &Metrics, style: Style, every: Duration, resource: Vec<u8>, carrier: Box<dyn Carrier>) -> std::io::Result<Self> {
        let (asks, asked) = sync_channel(ASKED);
        let mut collecting = Collecting { metrics: metrics.clone(), style, resource, carrier };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || {
            let mut next = now() + every;
            loop {
                match asked.recv_timeout(next.saturating_duration_since(now())) {
                    Err(RecvTimeoutError::Timeout) => {
                        collecting.collect();
                        // What was missed is not made up for.
                        next = (next + every).max(now());
                    }
                    Ok(Ask::Flush(done)) => {
                        collecting.collect();
                        let _ = done.try_send(());
                    }
                    Ok(Ask::End) => return collecting.end(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Self { asks, thread: Some(thread) })
    }

    /// Collects and hands over; whether that was done in time.
    pub fn flush(&self, within: Duration) -> bool {
        let (done, finished) = sync_channel(1);
        self.asks.try_send(Ask::Flush(done)).is_ok() && finished.recv_timeout(within).is_ok()
    }

    /// Collects for the last time and hands over. It waits for no receiver, so it is short.
    pub fn end(&mut self) -> bool {
        let asked = self.asks.send(Ask::End).is_ok();
        asked & self.thread.take().is_some_and(|thread| thread.join().is_ok())
    }
}

struct Collecting {
    metrics: Metrics,
    style: Style,
    resource: Vec<u8>,
    carrier: Box<dyn Carrier>,
}

impl Collecting {
    fn collect(&mut self) {
        let Self { metrics, style, resource, carrier } = self;
        if style.temporality == Temporality::Cumulative {
            carrier.reading(Signal::Metrics);
        }
        let profile = metrics.profile();
        metrics.collect(|store, now| {
            encode(store, profile, *style, resource, now, &mut |request, items| carrier.carry(Signal::Metrics, request, items));
        });
    }

    fn end(mut self) {
        self.collect();
        let Self { metrics, resource, mut carrier, .. } = self;
        let profile = metrics.profile();
        metrics.collect(|store, now| {
            let after = tokengauge_core::stream::Timestamp::from_unix_nanos(now.unix_nanos() + A_MOMENT);
            encode_end(store, profile, &resource, after, &mut |request, items| carrier.carry(Signal::Metrics, request, items));
        });
    }
}
