//! The servers that are known and what each said: figures since it was first read, how the last scrape went, and the wire beside it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use reqwest::Url;
use rustc_hash::FxHashMap;
use tokengauge_core::engine::beside::{Beside, Seen};
use tokengauge_core::engine::book::Book;
use tokengauge_core::engine::gather::{Key, Reading, Value};
use tokengauge_core::engine::{Kind, figures};
use tokengauge_core::inference::Vantage;
use tokengauge_core::name::Name;
use tokengauge_core::semconv::{attr, metric};

use super::discover::{Found, netns_of};
use super::scrape::{Read, ScrapeError};
use super::{Each, Figure};
use crate::export::metrics::names::Models;

/// Most servers of one agent.
pub const MAX_SERVERS: usize = 256;

/// Rounds after which a server that was found and is gone is forgotten: it may be starting anew.
const GONE_AFTER: u32 = 4;

/// Network namespaces of processes that are remembered between two scans.
const MAX_KNOWN: usize = 1_024;

/// Names of models of one server that are remembered.
const MAX_MODELS: usize = 1_024;

/// A server's place; never given twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Id(u64);

/// One scrape to be done.
#[derive(Debug)]
pub struct Job {
    /// Whose.
    pub id: Id,
    /// Where.
    pub url: Url,
    /// The file of the token to send.
    pub token: Option<PathBuf>,
}

/// All servers.
pub struct Servers {
    models: Models,
    all: BTreeMap<Id, Server>,
    next: u64,
    /// Which server an address is; those that would be of two are of none.
    by_address: FxHashMap<SocketAddr, Option<Id>>,
    /// Network namespaces of processes whose traffic was seen.
    netns: FxHashMap<u32, Option<String>>,
    /// The agent's own.
    here: Option<String>,
}

/// One server.
struct Server {
    kind: Option<Kind>,
    url: Option<Url>,
    token: Option<PathBuf>,
    /// Where it runs, when it was found here.
    found: Option<Found>,
    /// Rounds since it was last found.
    missing: u32,
    /// Whether another process has come since the last reading.
    anew: bool,
    address: String,
    port: String,
    /// The address that answered.
    remote: Option<SocketAddr>,
    up: Option<bool>,
    results: BTreeMap<&'static str, u64>,
    bad_lines: u64,
    said: String,
    /// What each model is called in series.
    models: BTreeMap<Name, Arc<str>>,
    book: Book,
    beside: Beside,
}

impl Servers {
    /// None yet.
    pub fn new(models: Models) -> Self {
        Self { models, all: BTreeMap::new(), next: 0, by_address: FxHashMap::default(), netns: FxHashMap::default(), here: None }
    }

    /// Takes the configured servers.
    pub fn configure(&mut self, endpoints: impl Iterator<Item = (Option<Kind>, Url, Option<PathBuf>)>) {
        self.here = netns_of("self");
        for (kind, url, token) in endpoints {
            let address = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let port = url.port_or_known_default().unwrap_or_default();
            let mut server = Server::new(kind, Some(url), address, port);
            server.token = token;
            self.add(server);
        }
        self.index();
    }

    /// Takes what a scan found. A server that is configured is not taken twice.
    pub fn found(&mut self, found: Vec<Found>) {
        self.netns.clear();
        for server in self.all.values_mut() {
            server.missing = server.missing.saturating_add(1);
        }
        for one in found {
            let at = one.ask.unwrap_or(one.listens);
            let same = |s: &&mut Server| match &s.found {
                Some(before) => before.listens == one.listens && before.netns == one.netns,
                None => s.remote == Some(at) || s.url.as_ref().is_some_and(|u| socket_of(u) == Some(at)),
            };
            match self.all.values_mut().find(same) {
                Some(server) => {
                    server.missing = 0;
                    if let Some(before) = &mut server.found {
                        server.anew |= before.process != one.process;
                        *before = one;
                    }
                }
                None => {
                    let scheme = if one.tls { "https" } else { "http" };
                    let path = figures::server(one.kind).map_or("/metrics", |s| s.path);
                    let url = one.ask.and_then(|at| Url::parse(&format!("{scheme}://{at}{path}")).ok());
                    tracing::info!(engine = one.kind.as_str(), pid = one.process.0, "found an inference server at {}", one.listens);
                    let mut server = Server::new(Some(one.kind), url, at.ip().to_string(), at.port());
                    server.found = Some(one);
                    self.add(server);
                }
            }
        }
        self.all.retain(|_, s| s.found.is_none() || s.missing < GONE_AFTER);
        self.index();
    }

    fn add(&mut self, server: Server) {
        if self.all.len() < MAX_SERVERS {
            self.all.insert(Id(self.next), server);
            self.next += 1;
        }
    }

    fn index(&mut self) {
        self.by_address.clear();
        for (id, server) in &self.all {
            let found = server.found.iter().flat_map(|f| f.addresses.iter().copied());
            let literal = server.url.as_ref().filter(|_| server.found.is_none()).and_then(socket_of);
            let mut own: Vec<_> = found.chain(server.remote).chain(literal).collect();
            own.sort();
            own.dedup();
            for address in own {
                self.by_address.entry(address).and_modify(|of| *of = None).or_insert(Some(*id));
            }
        }
    }

    /// What is to be scraped now. What cannot be reached at all is marked as such.
    pub fn jobs(&mut self) -> Vec<Job> {
        let unreachable: Vec<Id> = self.all.iter().filter(|(_, s)| s.url.is_none()).map(|(id, _)| *id).collect();
        for id in unreachable {
            self.scraped(id, Err(ScrapeError::Elsewhere));
        }
        let job = |(id, s): (&Id, &Server)| Some(Job { id: *id, url: s.url.clone()?, token: s.token.clone() });
        self.all.iter().filter_map(job).collect()
    }

    /// Takes what a scrape gave.
    pub fn scraped(&mut self, id: Id, result: Result<Read, ScrapeError>) {
        let Some(server) = self.all.get_mut(&id) else { return };
        let before = server.remote;
        server.take(result, &mut self.models);
        if server.remote != before {
            self.index();
        }
    }

    /// Counts an inference at the server of that address. A loopback address is one in each network namespace: the process where the
    /// traffic was seen must be in the server's; of captured packets, which have none, the server must be in the agent's.
    pub fn saw(&mut self, address: SocketAddr, pid: Option<u32>, seen: Seen) {
        let Some(Some(id)) = self.by_address.get(&address).copied() else { return };
        let Self { all, netns, here, .. } = self;
        let Some(server) = all.get_mut(&id) else { return };
        if address.ip().is_loopback() {
            let theirs = server.found.as_ref().map_or(here.as_ref(), |f| f.netns.as_ref());
            let seen_in = match pid {
                None => here.clone(),
                Some(pid) if server.found.as_ref().is_some_and(|f| f.process.0 == pid) => theirs.cloned(),
                Some(pid) => {
                    if netns.len() >= MAX_KNOWN {
                        netns.clear();
                    }
                    netns.entry(pid).or_insert_with(|| netns_of(&pid.to_string())).clone()
                }
            };
            if seen_in.as_ref() != theirs {
                return;
            }
        }
        server.beside.saw(seen);
    }

    /// The first of these processes that is a server which was found here.
    pub(super) fn place_of(&self, processes: &[u32]) -> Option<super::Place> {
        let of = |pid: &u32| self.all.values().find(|s| s.found.as_ref().is_some_and(|f| f.process.0 == *pid));
        let server = processes.iter().find_map(of)?;
        let histograms = server.book.figures().filter(|(_, value)| matches!(value, Value::Histogram(_)));
        let mut tells: Vec<_> = histograms.map(|(key, _)| key.is).collect();
        tells.sort();
        tells.dedup();
        Some(super::Place { kind: server.kind.map_or("", Kind::as_str), address: server.address.clone(), port: server.port.clone(), tells })
    }

    /// Says every series.
    pub fn each(&self, each: &mut Each<'_>) {
        self.all.values().for_each(|s| s.each(each));
    }
}

/// Host and port of a URL whose host is an address.
fn socket_of(url: &Url) -> Option<SocketAddr> {
    let ip = url.host_str()?.trim_matches(['[', ']']).parse().ok()?;
    Some(SocketAddr::new(ip, url.port_or_known_default()?))
}

impl Server {
    fn new(kind: Option<Kind>, url: Option<Url>, address: String, port: u16) -> Self {
        Self {
            kind,
            url,
            token: None,
            found: None,
            missing: 0,
            anew: false,
            address,
            port: port.to_string(),
            remote: None,
            up: None,
            results: BTreeMap::new(),
            bad_lines: 0,
            said: String::new(),
            models: BTreeMap::new(),
            book: Book::default(),
            beside: Beside::default(),
        }
    }

    fn take(&mut self, result: Result<Read, ScrapeError>, names: &mut Models) {
        let (name, said) = match &result {
            Ok(read) => ("ok", read.counts.first_bad.map(|(line, bad)| format!("line {line}: {}", bad.as_str())).unwrap_or_default()),
            Err(error) => (error.result(), error.to_string()),
        };
        *self.results.entry(name).or_default() += 1;
        let up = result.is_ok();
        // Said when it changes, not at every scrape.
        if self.up != Some(up) || self.said != said {
            let engine = self.kind.map_or("?", Kind::as_str);
            match (up, said.as_str()) {
                (true, "") => tracing::info!(engine, "figures of {}:{} are read", self.address, self.port),
                (true, said) => tracing::warn!(engine, "figures of {}:{} are read, but for bad lines: {said}", self.address, self.port),
                (false, said) => tracing::warn!(engine, "no figures of {}:{}: {said}", self.address, self.port),
            }
        }
        (self.up, self.said) = (Some(up), said);
        match result {
            Ok(read) => {
                self.remote = read.remote.or(self.remote);
                self.bad_lines = self.bad_lines.saturating_add(read.counts.bad).saturating_add(u64::from(read.counts.too_many));
                if self.kind.is_none() {
                    self.kind = read.reading.series.keys().next().map(|key| key.kind);
                }
                self.name(&read.reading, names);
                self.book.read(read.reading, std::mem::take(&mut self.anew));
                self.beside.scraped(&self.book);
            }
            Err(_) => self.book.missed(),
        }
    }

    /// Names models as they are named in what the wire shows; two that would have one name keep their own.
    fn name(&mut self, reading: &Reading, names: &mut Models) {
        for model in reading.series.keys().filter_map(|key| key.model.as_ref()) {
            // A text names few, but a server may name others each day.
            if self.models.contains_key(model) || self.models.len() >= MAX_MODELS {
                continue;
            }
            let name = names.of(model);
            let taken = self.models.values().any(|n| *n == name);
            self.models.insert(model.clone(), if taken { model.as_str().into() } else { name });
        }
    }

    fn each(&self, each: &mut Each<'_>) {
        // Nothing is known before the first scrape is over.
        let Some(up) = self.up else { return };
        let place = [(attr::SERVER_ADDRESS, self.address.as_str()), (attr::SERVER_PORT, self.port.as_str())];
        let mut own: Vec<(&str, &str)> = place.to_vec();
        own.extend(self.kind.map(|k| (attr::ENGINE, k.as_str())));
        let number = Figure::Number;
        each(&metric::ENGINE_UP, &own, number(f64::from(u8::from(up))));
        each(&metric::ENGINE_BAD_LINES, &own, number(self.bad_lines.saturating_add(self.book.left_out()) as f64));
        let mut with = own.clone();
        for (result, n) in &self.results {
            with.truncate(own.len());
            with.push((attr::RESULT, result));
            each(&metric::ENGINE_SCRAPES, &with, number(*n as f64));
        }
        for ((vantage, tap), view) in self.beside.views() {
            with.truncate(own.len());
            with.extend([(attr::VANTAGE, vantage.as_str()), (attr::TAP, tap.as_str())]);
            each(&metric::ENGINE_WIRE_OUTPUT_TOKENS, &with, number(view.output_tokens as f64));
        }
        if up && let Some(compared) = self.beside.compared() {
            with.truncate(own.len());
            with.push((attr::VANTAGE, Vantage::as_str(compared.vantage)));
            if let Some(coverage) = compared.token_coverage {
                each(&metric::ENGINE_TOKEN_COVERAGE, &with, number(coverage));
            }
            if let Some(excess) = compared.ttft_excess_s {
                each(&metric::ENGINE_TTFT_EXCESS, &with, number(excess));
            }
        }
        for (Key { is, kind, model, rank, reason }, value) in self.book.figures() {
            with.clear();
            with.extend(place);
            with.push((attr::ENGINE, kind.as_str()));
            let model = model.as_ref().map(|m| self.models.get(m).map_or(m.as_str(), |name| name));
            let (rank, reason) = (rank.as_ref().map(Name::as_str), reason.as_ref().map(Name::as_str));
            for (name, value) in [(attr::RESPONSE_MODEL, model), (attr::ENGINE_RANK, rank), (attr::REASON, reason)] {
                with.extend(value.map(|v| (name, v)));
            }
            match value {
                Value::Level(v) | Value::Total(v) => each(is.metric(), &with, number(*v)),
                Value::Histogram(histogram) => each(is.metric(), &with, Figure::Histogram(histogram)),
            }
        }
    }
}
