//! The agent's own HTTP listener: `/healthz`, `/readyz`, `/metrics` and `/debug/pprof/profile`. Off unless it is configured.
//!
//! It has one thread of its own with a low-key runtime on it, and a second one for what takes long (rendering). It never touches a tap: what it
//! shows it reads from atomics and from what the export thread publishes. Everything is bounded: connections, heads, time for each.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::watch;

use crate::health::Health;

mod listen;
mod pages;
#[cfg(test)]
mod tests;
mod tls;
mod token;

/// `http` of the configuration.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address and port, such as `127.0.0.1:9464`, `localhost:9464` or `[::]:9464`; a port alone is on loopback.
    #[serde(default = "default_listen")]
    pub listen: String,
    /// Whether `/metrics` is served, for Prometheus; `/healthz` and `/readyz` always are.
    #[serde(default = "yes")]
    pub metrics: bool,
    /// Whether `/debug/pprof/profile?seconds=N` is served: where the agent itself spends its processor time.
    #[serde(default)]
    pub profile: bool,
    /// Serves HTTPS only.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// A file with one bearer token a line; without one of them `/metrics` and `/debug` are refused. It is read anew for each request. Health needs none.
    #[serde(default)]
    pub bearer_token_file: Option<PathBuf>,
}

/// `http.tls`.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Certificate with its chain (PEM). It is read again when the file changes.
    pub certificate: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
}

/// The usual place: loopback, with the port that OpenTelemetry's Prometheus exporters have.
pub fn default_listen() -> String {
    "127.0.0.1:9464".to_owned()
}

const fn yes() -> bool {
    true
}

impl Default for Config {
    fn default() -> Self {
        Self { listen: default_listen(), metrics: true, profile: false, tls: None, bearer_token_file: None }
    }
}

impl Config {
    /// Whether the values make sense; the message names the key below `http`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        self.address().map(drop)
    }

    /// Where to listen.
    ///
    /// # Errors
    /// When that is no address.
    pub fn address(&self) -> Result<SocketAddr, String> {
        let text = match self.listen.split_once(':') {
            None if self.listen.parse::<u16>().is_ok() => format!("127.0.0.1:{}", self.listen),
            Some(("localhost", port)) => format!("127.0.0.1:{port}"),
            _ => self.listen.clone(),
        };
        text.parse().map_err(|_| format!("listen: `{}` is no address and port such as 127.0.0.1:9464", self.listen))
    }

    /// In one line, for people.
    pub fn describe(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut pages = vec!["health"];
        pages.extend(self.metrics.then_some("metrics"));
        pages.extend(self.profile.then_some("profiles"));
        format!("{} at {scheme}://{}", pages.join(", "), self.address().map_or_else(|_| self.listen.clone(), |a| a.to_string()))
    }
}

/// Writes the page of metrics in the form that the `Accept` header of the request wants, in pieces, and says its `Content-Type`. Called on a
/// thread that may take its time.
pub type Metrics = Arc<dyn Fn(Option<&str>, &mut dyn io::Write) -> io::Result<&'static str> + Send + Sync>;

/// What there is to show.
#[derive(Clone)]
pub struct Shown {
    /// Whether the agent lives and works.
    pub health: Arc<Health>,
    /// The page for Prometheus.
    pub metrics: Option<Metrics>,
}

/// What the listener counted.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were closed at once because there were too many.
    pub refused: AtomicU64,
    /// Connections that ended before a request: no TLS handshake, no head in time, nothing that is HTTP.
    pub broken: AtomicU64,
    /// Requests without a right token.
    pub unauthorized: AtomicU64,
    /// Requests that were answered.
    pub answered: AtomicU64,
}

impl Counters {
    fn count(which: &AtomicU64) {
        which.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why the listener could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration is wrong, or a file that it names.
    #[error("http.{0}")]
    Config(String),
    /// The address cannot be had.
    #[error("http.listen: {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No thread or no runtime.
    #[error("http: cannot start: {0}")]
    System(io::Error),
}

/// A listener at work; dropping it closes it.
pub struct Server {
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds, reads the certificate and the tokens, and begins to answer.
    ///
    /// # Errors
    /// When the address cannot be had, or a file that is named cannot be used.
    pub fn start(config: &Config, shown: Shown) -> Result<Self, ServeError> {
        let address = config.address().map_err(ServeError::Config)?;
        let token = config.bearer_token_file.clone().map(token::Tokens::open).transpose().map_err(ServeError::Config)?;
        let tls = config.tls.as_ref().map(tls::Acceptor::new).transpose().map_err(ServeError::Config)?;
        let bind = |source| ServeError::Bind { address, source };
        let socket = std::net::TcpListener::bind(address).map_err(bind)?;
        socket.set_nonblocking(true).map_err(bind)?;
        let address = socket.local_addr().map_err(bind)?;
        let counters = Arc::new(Counters::default());
        let pages = pages::Pages {
            health: shown.health,
            metrics: shown.metrics.filter(|_| config.metrics),
            profile: config.profile,
            profiling: tokio::sync::Semaphore::new(1),
            tokens: token,
            counters: Arc::clone(&counters),
        };
        let (stop, stopped) = watch::channel(false);
        let thread = listen::spawn(socket, tls, pages, stopped).map_err(ServeError::System)?;
        Ok(Self { address, counters, stop, thread: Some(thread) })
    }

    /// Where it listens; the port is the one that the system gave when 0 was asked for.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counted.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
