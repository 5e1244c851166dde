//! What inference servers say of themselves, beside what the wire shows: known servers are found, scraped and compared.
//!
//! A thread of its own with a small runtime does it all; taps and exporters never wait for it, nor for a server. What is read stands in
//! [`Engines`], which metrics observe ([`Engines::each`]); finished inferences come by [`OnWire`], an exporter.
//!
//! [`discover`] finds servers, [`scrape`] asks one once, [`servers`] keeps what they said.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Url;
use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::engine::beside::Seen;
use tokengauge_core::engine::figures::Quantity;
use tokengauge_core::engine::gather::Histogram;
use tokengauge_core::engine::{Kind, figures};
use tokengauge_core::inference::Inference;
use tokengauge_core::semconv::Metric;
use tokengauge_core::stats::Snapshot;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::export::metrics::names::Models;
use crate::export::observe::{Observe, Tell, TellHistogram};
use crate::export::{ExportError, Exporter};

pub mod discover;
pub mod scrape;
pub mod servers;

use servers::{Job, Servers};

/// Scrapes at one time.
const AT_ONCE: usize = 8;

/// `engines` in the configuration file.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether servers on this machine are looked for.
    pub discover: bool,
    /// Time between two scrapes of a server, seconds.
    pub interval_s: f64,
    /// Time for one scrape, seconds.
    pub timeout_s: f64,
    /// Servers that are known, wherever they are.
    pub endpoints: Vec<Endpoint>,
}

/// `engines.endpoints[]`.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Where its metrics are; without a path, where its kind has them. One server, not a balancer before several.
    pub url: String,
    /// What it is: `vllm`, `sglang`, `tensorrt-llm`, `tgi`, `llama.cpp` or `triton`; by its metrics' names when not said.
    #[serde(default)]
    pub kind: Option<String>,
    /// A file with the bearer token to send, read at each scrape.
    #[serde(default)]
    pub bearer_token_file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self { discover: true, interval_s: 15.0, timeout_s: 5.0, endpoints: Vec::new() }
    }
}

impl Config {
    /// Whether the values make sense; the message names the key below `engines`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        for (key, seconds) in [("interval_s", self.interval_s), ("timeout_s", self.timeout_s)] {
            if !(0.1..=3_600.0).contains(&seconds) {
                return Err(format!("{key}: {seconds} is not between 0.1 and 3600"));
            }
        }
        for (i, endpoint) in self.endpoints.iter().enumerate() {
            endpoint.target().map_err(|what| format!("endpoints[{i}].{what}"))?;
        }
        if self.endpoints.len() > servers::MAX_SERVERS {
            return Err(format!("endpoints: {} are more than {}", self.endpoints.len(), servers::MAX_SERVERS));
        }
        Ok(())
    }

    /// Whether there is anything to do.
    pub fn any(&self) -> bool {
        self.discover || !self.endpoints.is_empty()
    }
}

impl Endpoint {
    /// Its kind, as far as said, and where to ask.
    fn target(&self) -> Result<(Option<Kind>, Url), String> {
        let kind = match self.kind.as_deref() {
            None => None,
            Some(name) => {
                let kind = Kind::named(name).ok_or_else(|| {
                    let all: Vec<_> = Kind::ALL.iter().filter(|k| figures::server(**k).is_some()).map(|k| k.as_str()).collect();
                    format!("kind: `{name}` is none of {}", all.join(", "))
                })?;
                if figures::server(kind).is_none() {
                    return Err(format!("kind: {name} has no metrics"));
                }
                Some(kind)
            }
        };
        let mut url = Url::parse(&self.url).map_err(|e| format!("url: `{}`: {e}", self.url))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(format!("url: `{}` does not begin with http:// or https://", self.url));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("url: has credentials; put them into bearer_token_file".into());
        }
        if url.path() == "/" {
            url.set_path(kind.and_then(figures::server).map_or("/metrics", |s| s.path));
        }
        Ok((kind, url))
    }
}

/// A value of one series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure<'a> {
    /// A gauge's value, or a counter's since the server was first read.
    Number(f64),
    /// A histogram since the server was first read, with the server's own bounds.
    Histogram(&'a Histogram),
}

/// Takes one series: of which metric, with which attributes, its value.
pub type Each<'a> = dyn FnMut(&'static Metric, &[(&str, &str)], Figure<'_>) + 'a;

/// All servers. Clones are the same ones.
#[derive(Clone)]
pub struct Engines(Arc<Mutex<Servers>>);

impl Engines {
    /// Says every series.
    pub fn each(&self, each: &mut Each<'_>) {
        self.lock().each(each);
    }

    /// Counts an inference at the server that it was sent to, if that is one of these.
    pub fn saw(&self, inference: &Inference) {
        if let (Some(address), Some(seen)) = (inference.server, Seen::of(inference)) {
            self.lock().saw(address, inference.process.as_ref().map(|p| p.pid), seen);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Servers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server that a process belongs to, and what it tells of each request itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its kind.
    pub kind: &'static str,
    /// Its address, as in its series.
    pub address: String,
    /// Its port.
    pub port: String,
    /// The histograms that it has.
    pub tells: Vec<Quantity>,
}

impl Engines {
    /// The server that a process is, or is a descendant of; of those that were found on this machine.
    pub fn place_of(&self, pid: u32) -> Option<Place> {
        let line = discover::ancestry(pid);
        self.lock().place_of(&line)
    }

    /// Of no server.
    #[cfg(test)]
    pub(crate) fn empty(models: Models) -> Self {
        Self(Arc::new(Mutex::new(Servers::new(models))))
    }
}

impl Observe for Engines {
    fn observe(&self, tell: &mut Tell<'_>) {
        self.each(&mut |metric, attributes, figure| {
            if let Figure::Number(value) = figure {
                tell(metric, attributes, value);
            }
        });
    }

    fn histograms(&self, tell: &mut TellHistogram<'_>) {
        self.each(&mut |metric, attributes, figure| {
            if let Figure::Histogram(h) = figure {
                tell(metric, attributes, &h.bounds, &h.counts, h.sum);
            }
        });
    }
}

/// The running thread; it ends when this is dropped.
pub struct Scraping {
    engines: Engines,
    _stop: oneshot::Sender<()>,
}

impl Scraping {
    /// Begins to look for servers and to scrape them. `models` makes names for series of models' names, as for what the wire shows.
    ///
    /// # Errors
    /// When the system gives no thread, no runtime or no certificates.
    pub fn start(config: &Config, models: Models) -> std::io::Result<Self> {
        let engines = Engines(Arc::new(Mutex::new(Servers::new(models))));
        let timeout = Duration::from_secs_f64(config.timeout_s);
        let client = scrape::client(timeout).map_err(std::io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let rounds = Rounds { engines: engines.clone(), config: config.clone(), client, timeout };
        std::thread::Builder::new().name("engines".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = rounds.run() => {}
                    _ = stopped => {}
                }
            });
            // A name that is being looked up is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { engines, _stop: stop })
    }

    /// What the servers say.
    pub fn engines(&self) -> Engines {
        self.engines.clone()
    }
}

struct Rounds {
    engines: Engines,
    config: Config,
    client: reqwest::Client,
    timeout: Duration,
}

impl Rounds {
    async fn run(self) {
        let configured: Vec<_> = self.config.endpoints.iter().filter_map(|e| Some((e, e.target().ok()?))).collect();
        self.engines.lock().configure(configured.into_iter().map(|(e, (kind, url))| (kind, url, e.bearer_token_file.clone())));
        let mut processes = discover::Processes::new(std::path::Path::new("/proc"));
        let mut ticks = tokio::time::interval(Duration::from_secs_f64(self.config.interval_s));
        // A round that took longer than the interval is followed by a whole interval, not by those that were missed.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.config.discover {
                let found = processes.scan();
                self.engines.lock().found(found);
            }
            let jobs = self.engines.lock().jobs();
            self.round(jobs).await;
        }
    }

    /// Asks each server once, a few at a time.
    async fn round(&self, jobs: Vec<Job>) {
        let mut running = JoinSet::new();
        for Job { id, url, token } in jobs {
            if running.len() >= AT_ONCE {
                self.done(running.join_next().await);
            }
            let token = match token.as_deref().map(scrape::token).transpose() {
                Ok(token) => token,
                Err(error) => {
                    self.engines.lock().scraped(id, Err(error));
                    continue;
                }
            };
            let (client, timeout) = (self.client.clone(), self.timeout);
            running.spawn(async move { (id, scrape::scrape(&client, url, token, timeout).await) });
        }
        while let Some(done) = running.join_next().await {
            self.done(Some(done));
        }
    }

    fn done(&self, done: Option<Result<Scraped, tokio::task::JoinError>>) {
        if let Some(Ok((id, result))) = done {
            self.engines.lock().scraped(id, result);
        }
    }
}

type Scraped = (servers::Id, Result<scrape::Read, scrape::ScrapeError>);

/// Hands finished inferences to [`Engines`], on the export thread.
pub struct OnWire(Engines);

impl OnWire {
    /// Feeds these.
    pub fn new(engines: &Engines) -> Self {
        Self(engines.clone())
    }
}

impl Exporter for OnWire {
    fn name(&self) -> &'static str {
        "engines"
    }

    fn inference(&mut self, inference: &Inference) {
        self.0.saw(inference);
    }

    fn snapshot(&mut self, _: &Snapshot) {}

    fn flush(&mut self, _: Duration) -> Result<(), ExportError> {
        Ok(())
    }

    fn shutdown(&mut self, _: Duration) -> Result<(), ExportError> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
