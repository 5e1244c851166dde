//! The [`Carrier`] of the agent: a lane on a thread of its own for each signal.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::carrier::{Carrier, Signal};
use super::client::Client;
use super::delivery::Delivery;
use super::disk::Bounds;
use super::inbox::{Policy, Shared};
use super::lane::{Lane, wall};
use super::settings::Target;
use super::{Config, Env};
use crate::export::ExportError;

/// `otlp.queue`: what happens to what cannot be delivered at once. Bounds are those of each signal.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Folder in which requests wait while the receiver takes none; without one they wait in memory only.
    pub directory: Option<PathBuf>,
    /// Bytes on disk; the oldest go first.
    pub max_bytes: u64,
    /// Seconds that a request may wait on disk.
    #[serde(alias = "max_age")]
    pub max_age_s: f64,
    /// Bytes in memory; the oldest go first.
    pub memory_bytes: u64,
    /// Of cumulative metrics, one reading in so many seconds is kept while they cannot be delivered; 0 keeps all. Totals lose nothing
    /// by it, graphs are as fine as this. Delta metrics are all kept.
    pub metrics_every_s: f64,
    /// Requests per second from what has waited, once the receiver is back.
    pub recovery_per_s: f64,
    /// Longest time between two attempts to reach the receiver, seconds.
    pub retry_max_s: f64,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            directory: None,
            max_bytes: 256 << 20,
            max_age_s: 86_400.0,
            memory_bytes: 8 << 20,
            metrics_every_s: 60.0,
            recovery_per_s: 20.0,
            retry_max_s: 30.0,
        }
    }
}

/// Before the second attempt.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Requests with spans that may be under way at once.
const CONCURRENT: usize = 4;

impl QueueConfig {
    /// Whether the values make sense; the message names the key below `otlp.queue`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        for (key, bytes, least) in [("max_bytes", self.max_bytes, 1 << 20), ("memory_bytes", self.memory_bytes, 64 << 10)] {
            if !(least..=1 << 40).contains(&bytes) {
                return Err(format!("{key}: must be between {least} and {}", 1_u64 << 40));
            }
        }
        for (key, value, least, most) in [
            ("max_age_s", self.max_age_s, 1.0, 3.2e7),
            ("metrics_every_s", self.metrics_every_s, 0.0, 86_400.0),
            ("recovery_per_s", self.recovery_per_s, 0.01, 10_000.0),
            ("retry_max_s", self.retry_max_s, 0.01, 3_600.0),
        ] {
            if !(least..=most).contains(&value) {
                return Err(format!("{key}: must be between {least} and {most}"));
            }
        }
        Ok(())
    }

    fn policy(&self, signal: Signal, env: Env<'_>) -> Policy {
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
        let longest = seconds(self.retry_max_s);
        let bounds = Bounds { max_bytes: self.max_bytes, max_age: seconds(self.max_age_s) };
        Policy {
            concurrent: if signal == Signal::Metrics { 1 } else { CONCURRENT },
            ordered: signal == Signal::Metrics,
            memory_bytes: usize::try_from(self.memory_bytes).unwrap_or(usize::MAX),
            max_items: Some("OTEL_BSP_MAX_QUEUE_SIZE")
                .filter(|_| signal == Signal::Traces)
                .and_then(env)
                .and_then(|n| n.trim().parse().ok())
                .filter(|n| *n > 0),
            readings: seconds(self.metrics_every_s),
            pace: seconds(1.0 / self.recovery_per_s),
            retry: (RETRY_FIRST.min(longest), longest),
            disk: self.directory.as_ref().map(|d| (d.join(signal.name()), bounds)),
        }
    }
}

/// Hands requests to the lanes. Clones hand to the same ones.
#[derive(Clone)]
pub struct Sender(Arc<Lanes>);

struct Lanes {
    all: Vec<Arc<Shared>>,
    /// Each lane's end.
    ended: Mutex<Vec<Receiver<()>>>,
    delivery: Arc<Delivery>,
}

impl Sender {
    /// Starts a lane for each of `signals`.
    ///
    /// # Errors
    /// When an endpoint, a certificate or another setting is wrong. Whether the receiver is there shows only later.
    pub fn start(config: &Config, signals: &[Signal], env: Env<'_>) -> Result<Self, ExportError> {
        let delivery = Arc::new(Delivery::default());
        let mut lanes = Lanes { all: Vec::new(), ended: Mutex::default(), delivery };
        for signal in signals {
            let target = Target::new(config, *signal, env)?;
            let shared = Arc::new(Shared::new(*signal, config.queue.policy(*signal, env), Arc::clone(&lanes.delivery)));
            let (made_sender, made) = sync_channel(1);
            let (ended_sender, ended) = sync_channel(1);
            let feeding = Arc::clone(&shared);
            let work = move || {
                let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
                runtime.block_on(async {
                    match Client::new(target) {
                        Ok(client) => {
                            let _ = made_sender.send(Ok(()));
                            Lane::new(feeding, client).run().await;
                        }
                        Err(error) => _ = made_sender.send(Err(error)),
                    }
                });
                let _ = ended_sender.send(());
                // A name that is being looked up, a connection that is being made: nothing that is worth waiting for.
                runtime.shutdown_background();
            };
            let no_thread = |e: std::io::Error| ExportError::Config { what: format!("no thread: {e}") };
            std::thread::Builder::new().name(format!("otlp-{}", signal.name())).spawn(work).map_err(no_thread)?;
            made.recv().unwrap_or_else(|_| Err(ExportError::Config { what: "no runtime".to_owned() }))?;
            lanes.all.push(shared);
            lanes.ended.get_mut().unwrap_or_else(PoisonError::into_inner).push(ended);
        }
        Ok(Self(Arc::new(lanes)))
    }

    /// What became of what was handed over.
    pub fn delivery(&self) -> &Arc<Delivery> {
        &self.0.delivery
    }

    fn of(&self, signal: Signal) -> Option<&Arc<Shared>> {
        self.0.all.iter().find(|s| s.signal == signal)
    }

    /// Waits until nothing waits in memory any more: it is delivered, or on disk. Whether that was so in time.
    pub fn flush(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        loop {
            if Signal::ALL.iter().all(|s| self.0.delivery.figures(*s).memory_items == 0) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Delivers what is in memory, or puts it on disk, and ends. Whether nothing was lost and it was done in time.
    pub fn shutdown(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        self.0.all.iter().for_each(|shared| shared.stop(deadline));
        let mut ended = self.0.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = true;
        for ended in ended.drain(..) {
            all &= ended.recv_timeout(deadline.saturating_duration_since(Instant::now())) != Err(RecvTimeoutError::Timeout);
        }
        all && Signal::ALL.iter().all(|s| self.0.delivery.lost(*s, super::delivery::Loss::Shutdown) == 0)
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.all.iter().for_each(|shared| shared.stop(Instant::now()));
    }
}

impl Carrier for Sender {
    fn carry(&mut self, signal: Signal, request: Vec<u8>, items: u32) {
        if let Some(shared) = self.of(signal) {
            shared.put(request, items, wall());
        }
    }

    fn reading(&mut self, signal: Signal) {
        if let Some(shared) = self.of(signal) {
            shared.reading();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_checked_and_named() {
        assert_eq!(QueueConfig::default().check(), Ok(()));
        for (wrong, key) in [
            (QueueConfig { max_bytes: 5, ..QueueConfig::default() }, "max_bytes"),
            (QueueConfig { memory_bytes: 5, ..QueueConfig::default() }, "memory_bytes"),
            (QueueConfig { max_age_s: 0.0, ..QueueConfig::default() }, "max_age_s"),
            (QueueConfig { metrics_every_s: -1.0, ..QueueConfig::default() }, "metrics_every_s"),
            (QueueConfig { recovery_per_s: f64::NAN, ..QueueConfig::default() }, "recovery_per_s"),
            (QueueConfig { retry_max_s: 0.0, ..QueueConfig::default() }, "retry_max_s"),
        ] {
            assert!(wrong.check().unwrap_err().starts_with(key), "{key}");
        }
    }

    #[test]
    fn spans_may_overtake_each_other_and_metrics_may_not() {
        let of = |signal| QueueConfig::default().policy(signal, &|name| (name == "OTEL_BSP_MAX_QUEUE_SIZE").then(|| "77".to_owned()));
        let (metrics, traces) = (of(Signal::Metrics), of(Signal::Traces));
        assert_eq!((metrics.ordered, metrics.concurrent, metrics.max_items), (true, 1, None));
        assert_eq!((traces.ordered, traces.concurrent, traces.max_items), (false, CONCURRENT, Some(77)));
    }
}
