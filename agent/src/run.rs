//! `tokengauge run`: configuration to taps and exporters, signals to the end, and what it says meanwhile.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokengauge_core::inference::Inference;
use tokengauge_core::pipeline::Options;

use crate::agent::{Builder, Ended, Running, STOP_WITHIN};
use crate::cli::RunArgs;
use crate::clock::now;
use crate::config::{Config, ConfigError, Jsonl, Semconv};
use crate::driver::Source;
use crate::engine::{OnWire, Scraping};
use crate::enrich::Enricher;
use crate::export::jsonl::JsonLines;
use crate::export::jsonl::file::JsonFile;
use crate::export::jsonl::lines::Lines;
use crate::export::metrics::names::Models;
use crate::export::metrics::objectives::Objectives;
use crate::export::metrics::{Metrics, Recording};
use crate::export::observe::Tell;
use crate::export::otlp::carrier::{Carrier, Signal};
use crate::export::otlp::{Otlp, environment, resource, settings};
use crate::export::prometheus::Endpoint;
use crate::export::{ExportError, Exporter};
use crate::health::Health;
use crate::hook::figures::Figures;
use crate::hook::{self, Hook, HookError, HookSink};
use crate::join::Joining;
use crate::otlp_in::{ReceiveError, Receiving, Taking};
use crate::replay::write_stats;
use crate::serve::{self, ServeError, Server, Shown};
use crate::slo::live::Live;
use crate::tap::{StopFlag, TapError};
use crate::tenant::{self, KeyError, KeyFile};
use crate::view::table::seconds;
use crate::vitals::own::Own;
use crate::{conditions, log, sources};

mod signals;
mod told;

use signals::Hangups;
pub(crate) use signals::signals;
use told::{engines, hook, receiving};

/// How often a running agent says how it is.
const SUMMARY: Duration = Duration::from_secs(60);

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An exporter cannot be made from its configuration, or the statistics cannot be written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The agent's own pages cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The hook cannot begin as it is configured.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// Spans cannot be received.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// Tenants cannot be named.
    #[error("tenants")]
    Tenant(#[from] KeyError),
    /// No tap could start.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The log filter is wrong.
    #[error("{0}")]
    Log(String),
    /// The system gives no thread or no signals.
    #[error("cannot start")]
    System(#[from] std::io::Error),
}

impl RunError {
    /// The process's exit code: 2 for what the user wrote, 1 for what the system refused.
    pub const fn exit_code(&self) -> u8 {
        match self {
            // A configuration file that is not there is a wrong path on the command line.
            Self::Config(_)
            | Self::Log(_)
            | Self::Tenant(_)
            | Self::Export(ExportError::Config { .. })
            | Self::Serve(ServeError::Config(_))
            | Self::Receive(ReceiveError::Config(_)) => 2,
            _ => 1,
        }
    }
}

/// Runs until a signal, or until every tap has ended; the result is whether no tap failed.
///
/// # Errors
/// When it could not begin.
pub fn run(args: &RunArgs) -> Result<bool, RunError> {
    let config = Config::load(args)?;
    if args.check {
        println!("{}", describe(&config));
        return Ok(true);
    }
    let profile = Semconv::profile(config.semconv, &environment);
    let metrics =
        Metrics::new(&config.metrics, profile, &environment).map_err(|what| ExportError::Config { what: format!("metrics: {what}") })?;
    let mut otlp = Otlp::new(&config.otlp, &metrics, &environment)?;
    log::start(config.log.as_deref(), otlp.as_ref().and_then(Otlp::own_spans).as_ref()).map_err(RunError::Log)?;
    if otlp.is_some() {
        settings::ignored(&environment).iter().for_each(|what| tracing::warn!("ignored: {what}"));
    }
    let stop = StopFlag::default();
    signals(&stop)?;
    let (health, hangups) = (Arc::new(Health::default()), Hangups::default());
    // Before anything that may take its time, so that it can be asked.
    let page = page(&metrics);
    let server =
        config.http.as_ref().map(|http| Server::start(http, Shown { health: Arc::clone(&health), metrics: Some(page) })).transpose()?;
    let mut own = Own::new(Arc::default(), Arc::clone(&health));
    own.pages = server.as_ref().map(Server::counters);
    let builder = Running::builder().health(Arc::clone(&health)).vitals(Arc::clone(&own.vitals));
    let (mut agent, mut names) = (builder.options(options()).stop_flag(stop.clone()), Vec::new());
    let enricher = Enricher::start(&config.kubernetes, &environment);
    if let Some(shared) = enricher.shared() {
        metrics.group_by(config.kubernetes.dimensions());
        conditions::names_of_pods(&health, &shared);
        metrics.watch(move |tell: &mut Tell<'_>| shared.observe(tell));
    }
    agent = agent.enricher(enricher);
    let mut key_file = None;
    if let Some(config) = &config.tenant {
        let (tenants, file) = tenant::open(&config.headers, &config.key_file)?;
        agent = agent.tenants(tenants);
        conditions::tenants(&health, file.trouble());
        key_file = Some(file);
        if config.metrics {
            metrics.by_tenant();
        }
    }
    if config.taps.tls.enabled {
        conditions::libraries(&health, &own.vitals);
    }
    for source in open(&config, &health)? {
        names.push(source.name.clone());
        agent = agent.source(source);
    }
    let mut live = config.slo.as_ref().map(|slo| Live::start(slo, hangups.flag()));
    if let Some(live) = &mut live {
        live.seeing(conditions::sight(&health, &own.vitals, names.clone()));
        conditions::objectives(&health, live.shared());
        metrics.watch(Objectives(live.shared()));
    }
    if let Some(otlp) = &otlp {
        conditions::delivery(&health, Arc::clone(otlp.sender().delivery()));
    }
    if let (Some(otlp), Some(live)) = (&mut otlp, &live) {
        otlp.watch_objectives(live);
    }
    let scraping = engines(&config, &metrics, otlp.is_some())?;
    if let Some(scraping) = &scraping {
        agent = agent.exporter(Box::new(OnWire::new(&scraping.engines())));
    }
    let joining = Joining::new(config.join.wait(config.otlp_in.is_some()), now());
    metrics.watch(joining.shared());
    let _hook = hook(&config, &metrics, scraping.as_ref(), &joining, &stop)?;
    let _receiving = receiving(&config, &metrics, otlp.as_ref(), &joining)?;
    agent = agent.joining(joining);
    let records = config.jsonl.as_ref().map(|jsonl| records(jsonl, &hangups, &mut own)).transpose()?;
    metrics.watch(own);
    hangups.listen()?;
    // Who decides about spans records metrics, too: exemplars point to spans that are exported.
    if otlp.is_none() && config.http.is_some() {
        agent = agent.exporter(Box::new(Recording::new(&metrics)));
    }
    let running = exporters(agent, records, otlp, live, args.verbose).start()?;
    eprintln!("tokengauge: {}", describe(&config));
    let ended = narrate(&running, &stop, &names, &health, key_file);
    if let Some(path) = &args.stats {
        write_stats(path, &ended.report)?;
    }
    eprintln!("tokengauge: {}", ended.report.sentence());
    for what in &ended.undelivered {
        eprintln!("tokengauge: {what}");
    }
    Ok(ended.report.failed_inputs == 0)
}

/// The page for Prometheus.
fn page(metrics: &Metrics) -> serve::Metrics {
    let resource = resource(&environment);
    let endpoint = Endpoint::new(metrics, resource.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect());
    Arc::new(move |accept, to| {
        let format = Endpoint::negotiate(accept.unwrap_or_default());
        endpoint.render(format, to).map(|()| format.content_type())
    })
}

/// The taps that the configuration asks for and the system allows: a tap that is refused ends the run only when none is left, and keeps the agent
/// from being ready.
fn open(config: &Config, health: &Health) -> Result<Vec<Source>, TapError> {
    let span = tracing::info_span!("open_taps");
    let _entered = span.enter();
    let tls = config.taps.tls.enabled.then(|| (sources::TLS.to_owned(), sources::tls(&config.taps.tls)));
    let (mut open, mut refused) = (Vec::new(), None);
    for (name, source) in tls.into_iter().chain(config.taps.pcap.iter().map(|p| (sources::live_name(p), sources::live(p)))) {
        match source {
            Ok(source) => open.push(source),
            Err(error) => {
                health.part(name, Vec::new()).end(Some(error.to_string()));
                if let Some(earlier) = refused.replace(error) {
                    tracing::error!("{earlier}");
                }
            }
        }
    }
    match refused {
        Some(error) if open.is_empty() => Err(error),
        Some(error) => {
            tracing::error!("{error}");
            Ok(open)
        }
        None => Ok(open),
    }
}

/// Where records go: a file that can be rotated and mended, or whatever else stands at the path.
fn records(jsonl: &Jsonl, hangups: &Hangups, own: &mut Own) -> Result<Box<dyn Exporter>, ExportError> {
    if jsonl.path == Path::new("-") || !Lines::suits(&jsonl.path) {
        return Ok(Box::new(JsonLines::open(&jsonl.path)?));
    }
    let file = JsonFile::open(&jsonl.path, jsonl.rotate.clone(), hangups.flag())?;
    let counters = file.counters();
    (own.records, own.rotation) = (Some(Arc::clone(&counters)), file.rotation());
    conditions::records(&own.health, counters);
    Ok(Box::new(file))
}

/// Local files first: they are done at once when the end comes.
fn exporters(mut agent: Builder, records: Option<Box<dyn Exporter>>, otlp: Option<Otlp>, live: Option<Live>, verbose: bool) -> Builder {
    if let Some(records) = records {
        agent = agent.exporter(records);
    }
    if let Some(live) = live {
        agent = agent.exporter(Box::new(live));
    }
    if verbose || std::io::stderr().is_terminal() {
        agent = agent.on_inference(|i| eprintln!("{}", line(i)));
    }
    match otlp {
        Some(otlp) => agent.exporter(Box::new(otlp)),
        None => agent,
    }
}

/// A random seed, so that no two agents make the same trace ids.
fn options() -> Options {
    Options { seed: RandomState::new().build_hasher().finish(), ..Options::default() }
}

/// What it will do, in one line. Headers are credentials and are not shown.
pub fn describe(config: &Config) -> String {
    let mut parts = Vec::new();
    if config.taps.tls.enabled {
        parts.push(match config.taps.tls.pids.as_slice() {
            [] => "TLS libraries by eBPF".to_owned(),
            pids => format!("TLS libraries by eBPF in {pids:?}"),
        });
    }
    parts.extend(config.taps.pcap.iter().map(|p| format!("packets on {}", p.interface)));
    let mut text = format!("watches {}", parts.join(", "));
    if let Some(jsonl) = &config.jsonl {
        text += &format!("; writes records to {}", jsonl.path.display());
        if let Some(rotate) = &jsonl.rotate {
            text += &format!(" and keeps {} old files", rotate.keep);
        }
    }
    if let Some(slo) = &config.slo {
        text += &format!("; objectives of {}", slo.files.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", "));
    }
    if let Some(socket) = &config.hook.socket {
        text += &format!("; listens to servers on {}", socket.display());
    }
    if let Some(otlp_in) = &config.otlp_in {
        text += &format!("; takes engines' spans at {}", otlp_in.listen);
    }
    if let Some(tenant) = &config.tenant {
        text += &format!("; names tenants by hashes of {}", tenant.headers.join(", "));
    }
    match config.engines.endpoints.len() {
        0 => {}
        1 => text += "; asks 1 inference server",
        n => text += &format!("; asks {n} inference servers"),
    }
    if let Some(http) = &config.http {
        text += &format!("; serves {}", http.describe());
    }
    match Otlp::describe(&config.otlp, &environment).as_str() {
        "" => text += "; no OTLP export (set OTEL_EXPORTER_OTLP_ENDPOINT)",
        otlp => text += &format!("; exports {otlp}"),
    }
    text
}

/// One inference in one line, for people.
pub fn line(i: &Inference) -> String {
    let t = &i.timing;
    let model = i.response.model.as_ref().or(i.request.model.as_ref()).map_or("(unknown model)", |m| m.as_str());
    let mut text = format!("{} {model} {}", i.provider_or_other(), i.outcome.as_str());
    if let Some(error) = &i.error {
        text += &format!(" ({})", error.kind);
    }
    match t.ttft {
        Ok(ttft) => text += &format!(", first token {}", seconds(Some(ttft.as_secs_f64()))),
        Err(reason) if i.is_stream() => text += &format!(", no first token: {}", reason.as_str()),
        Err(_) => {}
    }
    if let Some(speed) = t.output_tokens_per_s() {
        text += &format!(", {speed:.1} tokens/s");
    }
    if let Ok(stall) = t.max_stall {
        text += &format!(", longest stall {}", seconds(Some(stall.as_secs_f64())));
    }
    if let Ok(duration) = t.duration {
        text += &format!(", {} in all", seconds(Some(duration.as_secs_f64())));
    }
    if let Some(tokens) = i.usage.and_then(|u| u.output) {
        text += &format!(", {tokens} tokens");
    }
    text += &format!(" [{} {}", i.tap.as_str(), i.vantage.as_str());
    if let Some(process) = &i.process {
        text += &format!(" {} {}", process.command, process.pid);
    }
    text + "]"
}

/// Says when every tap is at work and how things are, until the end.
fn narrate(running: &Running, stop: &StopFlag, names: &[String], health: &Health, mut key_file: Option<KeyFile>) -> Ended {
    let (mut tapping, mut said, mut stopped) = (false, now(), None);
    loop {
        if let Some(ended) = running.wait(Duration::from_millis(50)) {
            return ended;
        }
        if let Some(file) = &mut key_file {
            file.tick();
        }
        let (failed, all) = running.failed_taps();
        if !tapping && running.ready() && failed < all {
            tapping = true;
            eprintln!("tokengauge: tapping {}", names.join(", "));
        }
        let time = now();
        if time.duration_since(said) >= SUMMARY {
            said = time;
            eprintln!("tokengauge: {}", running.ended(Vec::new()).report.sentence());
        }
        if stop.is_set() {
            health.stop();
        }
        if stop.is_set() && time.duration_since(*stopped.get_or_insert(time)) > STOP_WITHIN {
            return running.ended(vec!["the deadline passed before everything was delivered".to_owned()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn an_inference_in_one_line() {
        assert_eq!(
            line(&testing::inference()),
            "openai gpt-4o-mini-2024-07-18 completed, first token 410ms, 100.0 tokens/s, longest stall 30.0ms, 480ms in all, 6 tokens [pcap client]"
        );
        assert_eq!(
            line(&testing::refused()),
            "openai gpt-4o-mini failed (rate_limit_exceeded), no first token: http_error, 330ms in all [pcap client]"
        );
    }

    #[test]
    fn what_the_user_wrote_is_2() {
        assert_eq!(RunError::Log(String::new()).exit_code(), 2);
        assert_eq!(RunError::Tap(TapError::Bpf { what: String::new() }).exit_code(), 1);
    }
}
