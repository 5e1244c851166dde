//! Takes the spans that inference servers emit of themselves, by OTLP: queue, prefill, decode and time to first token of single requests, which
//! are joined with what the wire shows of them ([`crate::join`]). Off unless it is configured.
//!
//! [`listen`] answers gRPC and HTTP on one place, on loopback or on a Unix socket; [`grpc`] is what of gRPC it needs; [`read`] knows what the
//! servers' spans say. On request all spans go on, byte for byte, to where the agent exports its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::semconv::{attr, metric};
use tokio::sync::watch;

use crate::export::observe::{Observe, Tell};
use crate::export::otlp::carrier::{Carrier, Signal};
use crate::join::Engines;

pub mod grpc;
pub mod listen;
pub mod read;

use read::Reading;

/// `otlp_in` in the configuration file.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where to listen for gRPC and HTTP: a loopback address and port, such as `127.0.0.1:4317`, or `unix:` and the path of a socket.
    #[serde(default = "default_listen")]
    pub listen: String,
    /// Whether all spans go on, untouched, to where `otlp` exports to.
    #[serde(default)]
    pub forward: bool,
}

fn default_listen() -> String {
    "127.0.0.1:4317".to_owned()
}

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A port on loopback.
    Port(SocketAddr),
    /// A Unix socket.
    Socket(PathBuf),
}

impl Config {
    /// Whether the values make sense; the message names the key below `otlp_in`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        self.place().map(drop)
    }

    /// Where to listen.
    ///
    /// # Errors
    /// When that is no place, or one that others reach.
    pub fn place(&self) -> Result<Place, String> {
        if let Some(path) = self.listen.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Place::Socket(path.into())),
                false => Err(format!("listen: `{path}` is no absolute path")),
            };
        }
        let text = self.listen.replacen("localhost:", "127.0.0.1:", 1);
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Place::Port(address)),
            Ok(_) => Err(format!("listen: `{}` is not on loopback: whoever reaches it could say anything of any request", self.listen)),
            Err(_) => Err(format!("listen: `{}` is neither an address and port nor unix:/path", self.listen)),
        }
    }
}

/// Why it could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The configuration is wrong.
    #[error("otlp_in.{0}")]
    Config(String),
    /// The place cannot be had.
    #[error("otlp_in.listen: {place}: {source}")]
    Bind {
        /// The place.
        place: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// No thread or no runtime.
    #[error("otlp_in: cannot start: {0}")]
    System(std::io::Error),
}

/// How requests ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Read.
    Taken,
    /// Not what it says it is.
    Bad,
    /// More bytes than are taken.
    TooLarge,
    /// Nothing that is taken here: metrics, logs, other media.
    Unknown,
    /// Too many at once.
    Busy,
}

impl Answer {
    const ALL: [Self; 5] = [Self::Taken, Self::Bad, Self::TooLarge, Self::Unknown, Self::Busy];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Bad => "bad",
            Self::TooLarge => "too_large",
            Self::Unknown => "unknown",
            Self::Busy => "busy",
        }
    }
}

/// What it counted.
#[derive(Debug, Default)]
pub struct Counters {
    answers: [AtomicU64; 5],
    read: AtomicU64,
    other: AtomicU64,
    refused: AtomicU64,
}

impl Counters {
    fn answered(&self, answer: Answer) {
        if let Some(n) = self.answers.get(answer as usize) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Observe for Arc<Counters> {
    fn observe(&self, tell: &mut Tell<'_>) {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        for (answer, n) in Answer::ALL.iter().zip(&self.answers) {
            tell(&metric::OTLP_IN_REQUESTS, &[(attr::RESULT, answer.as_str())], get(n));
        }
        tell(&metric::OTLP_IN_REQUESTS, &[(attr::RESULT, "refused")], get(&self.refused));
        for (result, n) in [("read", &self.read), ("other", &self.other)] {
            tell(&metric::OTLP_IN_SPANS, &[(attr::RESULT, result)], get(n));
        }
    }
}

/// What becomes of a request.
pub struct Taking {
    reading: Mutex<Reading>,
    engines: Engines,
    forward: Option<Mutex<Box<dyn Carrier>>>,
    counters: Arc<Counters>,
}

impl Taking {
    /// Tells `engines`, and hands every request on to `forward` where there is one.
    pub fn new(engines: Engines, forward: Option<Box<dyn Carrier>>) -> Self {
        Self { reading: Mutex::default(), engines, forward: forward.map(Mutex::new), counters: Arc::default() }
    }

    /// What it counted.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Takes one request, which came as `bytes`.
    fn take(&self, request: &ExportTraceServiceRequest, bytes: Vec<u8>) {
        let counted = self.reading.lock().unwrap_or_else(PoisonError::into_inner).read(request, &mut |engine| self.engines.tell(engine));
        self.counters.read.fetch_add(counted.read, Ordering::Relaxed);
        self.counters.other.fetch_add(counted.other, Ordering::Relaxed);
        if let Some(forward) = &self.forward {
            let spans = u32::try_from(counted.read + counted.other).unwrap_or(u32::MAX);
            forward.lock().unwrap_or_else(PoisonError::into_inner).carry(Signal::Traces, bytes, spans);
        }
    }
}

/// A receiver at work; dropping it closes it.
pub struct Receiving {
    address: Option<SocketAddr>,
    counters: Arc<Counters>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Receiving {
    /// Binds, and begins to answer.
    ///
    /// # Errors
    /// When the place cannot be had.
    pub fn start(config: &Config, taking: Taking) -> Result<Self, ReceiveError> {
        let place = config.place().map_err(ReceiveError::Config)?;
        let bound = listen::bind(&place).map_err(|source| ReceiveError::Bind { place: config.listen.clone(), source })?;
        let (address, counters) = (bound.address(), taking.counters());
        let (stop, stopped) = watch::channel(false);
        let thread = listen::spawn(bound, taking, stopped).map_err(ReceiveError::System)?;
        Ok(Self { address, counters, stop, thread: Some(thread) })
    }

    /// Where it listens, where that is a port: the one that the system gave when 0 was asked for.
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What it counted.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[path = "in_tests.rs"]
mod tests;
