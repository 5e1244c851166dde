//! OTLP: metrics and one span per inference, by gRPC or HTTP, configured as every OpenTelemetry SDK is.
//!
//! Who makes requests hands them to the [`carrier`]: [`spans`] writes a span with the wire's times, [`batch`] puts spans together,
//! [`push`] collects metrics, which [`points`] encodes. [`sender`] runs a [`lane`] per signal on a thread of its own, which keeps what waits in memory and on
//! [`disk`] and sends it by a [`client`]; [`delivery`] counts what became of it. [`settings`] and [`variables`] say what the environment means.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::inference::Inference;
use tokengauge_core::stats::Snapshot;
use tokio::runtime::Runtime;

use super::metrics::{Metrics, Recording};
use super::wire::Wire;
use super::{ExportError, Exporter};
use crate::clock::now;
use crate::join::Found;

pub mod batch;
pub mod carrier;
pub mod client;
pub mod delivery;
pub mod disk;
pub mod inbox;
pub mod lane;
pub mod own;
pub mod parcel;
pub mod points;
pub mod push;
pub mod sampling;
mod segment;
pub mod sender;
pub mod settings;
pub mod spans;
pub mod variables;
pub mod wire;

use batch::Batch;
use carrier::Signal;
use delivery::{Loss, Observed};
use points::Style;
use push::Push;
use sampling::{Decision, Keep};
use sender::{QueueConfig, Sender};
use spans::{Maker, Phase, SpansConfig};

/// `otlp` in the configuration file. Whatever is not set follows the `OTEL_*` variables, then the defaults of the specification.
#[derive(Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Base URL of the receiver; setting it switches OTLP on.
    pub endpoint: Option<String>,
    /// The transport; by the port when not said: 4317 is gRPC, everything else HTTP.
    pub protocol: Option<Protocol>,
    /// Headers of each request.
    pub headers: BTreeMap<String, String>,
    /// Compression of each request.
    pub compression: Option<Compression>,
    /// Time for one request, seconds.
    pub timeout_s: Option<f64>,
    /// Time between two exports of metrics, seconds.
    pub interval_s: Option<f64>,
    /// Whether to export metrics.
    pub metrics: Option<bool>,
    /// Whether to export spans.
    pub traces: Option<bool>,
    /// Certificates of the receiver's authority (PEM).
    pub certificate: Option<PathBuf>,
    /// What waits while the receiver takes nothing, and for how long.
    pub queue: QueueConfig,
    /// Which inferences become spans, and what stands in them.
    pub spans: SpansConfig,
    /// Our own certificate (PEM).
    pub client_certificate: Option<PathBuf>,
    /// Its key (PEM).
    pub client_key: Option<PathBuf>,
    /// Whether `endpoint` is a flag's and wins over the environment.
    #[serde(skip)]
    pub endpoint_wins: bool,
}

/// `otlp.protocol`.
#[derive(Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP/gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP/HTTP with Protobuf bodies.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
    /// OTLP/HTTP with JSON bodies.
    #[serde(rename = "http/json")]
    HttpJson,
}

/// `otlp.compression`.
#[derive(Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// None.
    None,
    /// gzip.
    Gzip,
    /// zstd. The Collector takes it by HTTP; a receiver that refuses it gets the same without compression.
    Zstd,
}

impl Signal {
    /// What the configuration file says of it.
    pub fn configured(self, config: &Config) -> Option<bool> {
        match self {
            Self::Metrics => config.metrics,
            Self::Traces => config.traces,
        }
    }
}

/// Reads one variable of the environment; tests put a table in its place.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's environment. Empty counts as unset, as the specification says.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

impl Config {
    /// Whether the values make sense; the message names the key below `otlp`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        if let Some(endpoint) = &self.endpoint
            && !(endpoint.starts_with("http://") || endpoint.starts_with("https://"))
        {
            return Err(format!("endpoint: `{endpoint}` does not begin with http:// or https://"));
        }
        for (key, seconds) in [("timeout_s", self.timeout_s), ("interval_s", self.interval_s)] {
            if seconds.is_some_and(|s| !(0.01..=86_400.0).contains(&s)) {
                return Err(format!("{key}: must be between 0.01 and 86400"));
            }
        }
        if self.client_certificate.is_some() != self.client_key.is_some() {
            return Err("client_certificate and client_key go together".into());
        }
        self.queue.check().map_err(|what| format!("queue.{what}"))?;
        self.spans.check().map_err(|what| format!("spans.{what}"))
    }

    /// Whether a signal is to be exported: when something says where to, and nothing says no.
    pub fn wants(&self, signal: Signal, env: Env<'_>) -> bool {
        if env("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
            return false;
        }
        let chosen = env(signal.exporter_variable());
        let off = chosen.as_deref() == Some("none");
        let named = self.endpoint.is_some()
            || chosen.as_deref() == Some("otlp")
            || env("OTEL_EXPORTER_OTLP_ENDPOINT").is_some()
            || env(&signal.variable("ENDPOINT")).is_some();
        named && !off && signal.configured(self).unwrap_or(true)
    }
}

/// The exporter.
pub struct Otlp {
    sender: Sender,
    recording: Recording,
    push: Option<Push>,
    spans: Option<Spans>,
    /// Spans of the agent itself.
    own: Option<SdkTracerProvider>,
    // Dropped last, and without waiting: the connection of the agent's own spans lives on it.
    runtime: Option<Runtime>,
}

struct Spans {
    maker: Maker,
    batch: Batch,
    /// The span of the last inference that broke an objective.
    broke: Arc<AtomicU64>,
    /// Spans that are to be made when it is known what was found with them, by their ids, and why those that the sampler leaves out are.
    chosen: FxHashMap<u64, Option<Keep>>,
}

impl Otlp {
    /// The exporter that configuration and environment ask for; `None` when neither asks for one.
    ///
    /// # Errors
    /// When an endpoint, a certificate or another setting is wrong. Whether the receiver is there shows only later.
    pub fn new(config: &Config, metrics: &Metrics, env: Env<'_>) -> Result<Option<Self>, ExportError> {
        let signals: Vec<Signal> = Signal::ALL.into_iter().filter(|s| config.wants(*s, env)).collect();
        if signals.is_empty() {
            return Ok(None);
        }
        let sender = Sender::start(config, &signals, env)?;
        let resource = resource(env);
        metrics.watch(Observed { delivery: Arc::clone(sender.delivery()), signals: signals.clone() });
        let push = signals.contains(&Signal::Metrics).then(|| {
            let every = push::interval(config.interval_s, env);
            Push::start(metrics, Style::from_env(env), every, encoded(&resource), Box::new(sender.clone()))
                .map_err(|e| ExportError::Config { what: format!("no thread: {e}") })
        });
        let (profile, push) = (metrics.profile(), push.transpose()?);
        let (mut spans, mut own, mut runtime) = (None, None, None);
        if signals.contains(&Signal::Traces) {
            let batch = Batch::new(&resource, profile, env);
            spans =
                Some(Spans { maker: Maker::new(&config.spans, profile, env), batch, broke: Arc::default(), chosen: FxHashMap::default() });
            let made = runtime.insert(
                tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .thread_name("otlp-own")
                    .enable_all()
                    .build()
                    .map_err(|e| ExportError::Config { what: format!("no runtime: {e}") })?,
            );
            let _entered = made.enter();
            own = Some(own::provider(config, env, resource)?);
        }
        Ok(Some(Self { sender, recording: Recording::new(metrics), push, spans, own, runtime }))
    }

    /// Keeps the spans of what broke an objective.
    pub fn watch_objectives(&mut self, live: &crate::slo::live::Live) {
        if let Some(spans) = &mut self.spans {
            spans.broke = live.broke();
        }
    }

    /// Makes spans of the agent itself, for `tracing-opentelemetry`.
    pub fn own_spans(&self) -> Option<SdkTracerProvider> {
        self.own.clone()
    }

    /// What takes encoded requests to the receiver, and what became of them.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Where it exports to, for the start message.
    pub fn describe(config: &Config, env: Env<'_>) -> String {
        Signal::ALL
            .into_iter()
            .filter(|s| config.wants(*s, env))
            .map(|s| {
                format!(
                    "{} to {} ({})",
                    s.name(),
                    settings::shown(&settings::endpoint(config, s, env).0),
                    settings::protocol(config, s, env).name()
                )
            })
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// Who exports. Each agent has an instance id of its own: series of several writers under one id would interleave.
pub fn resource(env: Env<'_>) -> Resource {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default().trim().to_owned();
    let mut resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", "tokengauge"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", if id.is_empty() { format!("{host}-{}", std::process::id()) } else { id }),
        ])
        .with_detectors(&[Box::new(TelemetryResourceDetector)]);
    if !host.is_empty() {
        resource = resource.with_attribute(KeyValue::new("host.name", host));
    }
    // OTEL_RESOURCE_ATTRIBUTES goes over our defaults, OTEL_SERVICE_NAME over both.
    let said = env("OTEL_RESOURCE_ATTRIBUTES").and_then(|list| settings::resource_attributes(&list)).unwrap_or_default();
    resource = resource.with_attributes(said.into_iter().map(|(name, value)| KeyValue::new(name, value)));
    if let Some(name) = env("OTEL_SERVICE_NAME") {
        resource = resource.with_attribute(KeyValue::new("service.name", name));
    }
    resource.build()
}

/// A resource as a message.
fn encoded(resource: &Resource) -> Vec<u8> {
    let mut out = Wire::default();
    let mut all: Vec<_> = resource.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    all.sort();
    for (key, value) in all {
        out.nested(1, |w| {
            w.text(1, key);
            w.nested(2, |w| w.text(1, &value));
        });
    }
    out.0
}

impl Exporter for Otlp {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn inference(&mut self, inference: &Inference) {
        // Without spans of ours the caller may export one.
        let mut sampled = inference.request.traceparent.is_some_and(|t| t.flags & 1 == 1);
        if let Some(Spans { maker, broke, chosen, .. }) = &mut self.spans {
            let broke = broke.load(Ordering::Relaxed) == inference.trace.span_id;
            let decision = maker.decide(inference, broke);
            sampled = decision != Decision::Dropped;
            let kept = match decision {
                Decision::Dropped => None,
                Decision::Kept(why) => Some(Some(why)),
                Decision::Sampled => Some(None),
            };
            match kept {
                Some(kept) => drop(chosen.insert(inference.trace.span_id, kept)),
                None => self.sender.delivery().lose(Signal::Traces, Loss::Unsampled, 1),
            }
        }
        self.recording.record(inference, sampled);
    }

    fn settled(&mut self, inference: &Inference, found: &Found<'_>) {
        let mut sampled = inference.request.traceparent.is_some_and(|t| t.flags & 1 == 1);
        if let Some(Spans { maker, batch, chosen, .. }) = &mut self.spans {
            let kept = chosen.remove(&inference.trace.span_id);
            sampled = kept.is_some();
            if let Some(kept) = kept {
                batch.add(maker.span(inference, kept, found), now(), &mut self.sender);
                for phase in Phase::ALL {
                    if let Some(span) = maker.phase(inference, phase, found) {
                        batch.add(span, now(), &mut self.sender);
                    }
                }
            }
        }
        self.recording.found(inference, found, sampled);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.recording.snapshot(snapshot);
        if let Some(Spans { batch, .. }) = &mut self.spans {
            batch.tick(now(), &mut self.sender);
        }
    }

    fn flush(&mut self, within: Duration) -> Result<(), ExportError> {
        let deadline = now() + within;
        if let Some(Spans { batch, .. }) = &mut self.spans {
            batch.close(&mut self.sender);
        }
        // Collecting hands over and waits for nothing.
        let collected = self.push.as_ref().is_none_or(|push| push.flush(within));
        let delivered = self.sender.flush(deadline.saturating_duration_since(now()));
        if collected && delivered { Ok(()) } else { Err(self.sender.delivery().error("flush")) }
    }

    fn shutdown(&mut self, within: Duration) -> Result<(), ExportError> {
        let deadline = now() + within;
        if let Some(own) = self.own.take() {
            // Their loss is no loss of what was measured. The SDK does not bound its shutdown below 5 s: it is left behind.
            std::thread::spawn(move || own.shutdown_with_timeout(within));
        }
        if let Some(Spans { batch, .. }) = &mut self.spans {
            batch.close(&mut self.sender);
        }
        let collected = self.push.take().is_none_or(|mut push| push.end());
        let ended = self.sender.shutdown(deadline.saturating_duration_since(now()));
        if collected && ended { Ok(()) } else { Err(self.sender.delivery().error("shutdown")) }
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(table: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| table.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
    }

    #[test]
    fn otlp_is_on_when_something_says_where_to() {
        let config = Config::default();
        let wants = |config: &Config, table: &[(&str, &str)]| {
            (config.wants(Signal::Metrics, &env(table)), config.wants(Signal::Traces, &env(table)))
        };
        assert_eq!(wants(&config, &[]), (false, false));
        assert_eq!(wants(&config, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x")]), (true, true));
        assert_eq!(wants(&config, &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://x")]), (false, true));
        assert_eq!(wants(&config, &[("OTEL_METRICS_EXPORTER", "otlp")]), (true, false));
        assert_eq!(wants(&config, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x"), ("OTEL_TRACES_EXPORTER", "none")]), (true, false));
        assert_eq!(wants(&config, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x"), ("OTEL_SDK_DISABLED", "true")]), (false, false));
        let config = Config { endpoint: Some("http://y".into()), traces: Some(false), ..Config::default() };
        assert_eq!(wants(&config, &[]), (true, false));
    }

    #[test]
    fn values_are_checked() {
        let of = |config: Config| config.check().unwrap_err();
        assert_eq!(
            of(Config { endpoint: Some("collector:4317".into()), ..Config::default() }),
            "endpoint: `collector:4317` does not begin with http:// or https://"
        );
        assert!(of(Config { timeout_s: Some(f64::NAN), ..Config::default() }).starts_with("timeout_s"));
        assert!(of(Config { client_key: Some("x".into()), ..Config::default() }).starts_with("client_certificate"));
    }
}
