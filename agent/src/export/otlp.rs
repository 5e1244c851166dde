//! OTLP: metrics and one span per inference, by gRPC or HTTP, configured as every OpenTelemetry SDK is.
//!
//! [`transport`] builds the two clients and honours `OTEL_EXPORTER_OTLP_*`; [`metrics`] owns the instruments; [`spans`] lays out a
//! span with the wire's times. Sending happens on the SDK's own threads: an [`Exporter`] call only records. What cannot be
//! delivered is counted in `tokengauge.export.drops` and said once a minute in the log.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider, SpanProcessor as _};
use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::inference::Inference;
use tokengauge_core::stats::Snapshot;
use tokio::runtime::Runtime;

use super::{ExportError, Exporter};

pub mod carrier;
pub mod metrics;
mod objectives;
pub mod points;
pub mod push;
pub mod spans;
pub mod transport;

use metrics::Instruments;
use spans::Sampling;
use transport::{Counted, Delivery, Signal};

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
}

/// `otlp.compression`.
#[derive(Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// None.
    None,
    /// gzip.
    Gzip,
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
        Ok(())
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
    metrics: Option<(SdkMeterProvider, Instruments)>,
    spans: Option<Spans>,
    /// Spans of the agent itself.
    own: Option<SdkTracerProvider>,
    delivery: Arc<Delivery>,
    state: Arc<Mutex<metrics::Shared>>,
    // Dropped last, and without waiting: gRPC connections live on it.
    runtime: Option<Runtime>,
}

struct Spans {
    processor: BatchSpanProcessor,
    sampling: Sampling,
}

impl Otlp {
    /// The exporter that configuration and environment ask for; `None` when neither asks for one.
    ///
    /// # Errors
    /// When an endpoint, a certificate or another setting is wrong. Whether the receiver is there shows only later.
    pub fn new(config: &Config, env: Env<'_>) -> Result<Option<Self>, ExportError> {
        let (wants_metrics, wants_spans) = (config.wants(Signal::Metrics, env), config.wants(Signal::Traces, env));
        if !wants_metrics && !wants_spans {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("otlp")
            .enable_all()
            .build()
            .map_err(|e| ExportError::Config { what: format!("no runtime: {e}") })?;
        let guard = runtime.enter();
        let resource = resource(env);
        let (delivery, state) = (Arc::new(Delivery::default()), Arc::new(Mutex::default()));
        let metrics = wants_metrics.then(|| {
            let exporter = Counted::new(transport::metric_exporter(config, env, &delivery)?, Arc::clone(&delivery));
            let mut reader = PeriodicReader::builder(exporter);
            if let Some(seconds) = config.interval_s.filter(|_| env("OTEL_METRIC_EXPORT_INTERVAL").is_none()) {
                reader = reader.with_interval(Duration::from_secs_f64(seconds));
            }
            let provider = SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(reader.build()).build();
            let instruments = Instruments::new(&provider, &state, &delivery);
            Ok::<_, ExportError>((provider, instruments))
        });
        let metrics = metrics.transpose()?;
        let (mut spans, mut own) = (None, None);
        if wants_spans {
            let mut processor =
                BatchSpanProcessor::builder(Counted::new(transport::span_exporter(config, env, &delivery)?, Arc::clone(&delivery))).build();
            processor.set_resource(&resource);
            spans = Some(Spans { processor, sampling: Sampling::from_env(env) });
            // Counted apart: the agent's own spans are no measurements.
            let apart = Arc::new(Delivery::default());
            let exporter = Counted::new(transport::span_exporter(config, env, &apart)?, Arc::clone(&apart));
            own = Some(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build());
        }
        drop(guard);
        Ok(Some(Self { metrics, spans, own, delivery, state, runtime: Some(runtime) }))
    }

    /// Exports how objectives stand, too.
    pub fn watch_objectives(&self, shared: &crate::slo::live::Shared) {
        if let Some((provider, _)) = &self.metrics {
            objectives::observe(&metrics::meter(provider), shared);
        }
    }

    /// Makes spans of the agent itself, for `tracing-opentelemetry`.
    pub fn own_spans(&self) -> Option<SdkTracerProvider> {
        self.own.clone()
    }

    /// Where each signal that is exported goes, for those who want to know whether somebody is there.
    pub fn targets(config: &Config, env: Env<'_>) -> Vec<(&'static str, String)> {
        let signals = [Signal::Metrics, Signal::Traces].into_iter().filter(|s| config.wants(*s, env));
        signals.map(|s| (s.name(), transport::endpoint(config, s, env).0)).collect()
    }

    /// Where it exports to, for the start message.
    pub fn describe(config: &Config, env: Env<'_>) -> String {
        [Signal::Metrics, Signal::Traces]
            .into_iter()
            .filter(|s| config.wants(*s, env))
            .map(|s| format!("{} to {} ({})", s.name(), transport::endpoint(config, s, env).0, transport::protocol(config, s, env).name()))
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
    resource = resource.with_detectors(&[Box::new(EnvResourceDetector::new())]);
    if let Some(name) = env("OTEL_SERVICE_NAME") {
        resource = resource.with_attribute(KeyValue::new("service.name", name));
    }
    resource.build()
}

impl Exporter for Otlp {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn inference(&mut self, inference: &Inference) {
        if let Some((_, instruments)) = &mut self.metrics {
            instruments.record(inference);
        }
        if let Some(Spans { processor, sampling }) = &self.spans {
            match spans::span(inference, sampling) {
                Some(span) => self.delivery.submit(|| processor.on_end(span)),
                None => self.delivery.count_unsampled(),
            }
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        metrics::publish(&self.state, snapshot);
    }

    fn flush(&mut self, within: Duration) -> Result<(), ExportError> {
        let (meter, processor) = (self.metrics.as_ref().map(|(m, _)| m.clone()), self.spans.as_ref());
        // The processor bounds its own flush to 5 s; the reader's is bounded by the request's timeout only.
        let (done, finished) = sync_channel(1);
        std::thread::spawn(move || done.send(meter.is_none_or(|m| m.force_flush().is_ok())));
        let spans = processor.is_none_or(|s| s.processor.force_flush().is_ok());
        if finished.recv_timeout(within) == Ok(true) && spans { Ok(()) } else { Err(self.delivery.error("flush")) }
    }

    /// The SDK bounds its shutdowns one by one and not below 5 s. All of them run at once here, each on a thread that is left
    /// behind when the time is over: the process ends then.
    fn shutdown(&mut self, within: Duration) -> Result<(), ExportError> {
        let (done, finished) = sync_channel(3);
        let mut waiting = 0;
        let mut start = |work: Box<dyn FnOnce() -> bool + Send>| {
            let done = done.clone();
            waiting += 1;
            std::thread::spawn(move || done.send(work()));
        };
        if let Some((meter, _)) = self.metrics.take() {
            start(Box::new(move || meter.shutdown().is_ok()));
        }
        if let Some(Spans { processor, .. }) = self.spans.take() {
            start(Box::new(move || processor.shutdown_with_timeout(within).is_ok()));
        }
        if let Some(own) = self.own.take() {
            // Their loss is no loss of what was measured.
            start(Box::new(move || {
                let _ = own.shutdown_with_timeout(within);
                true
            }));
        }
        let deadline = deadline(within);
        let mut all = true;
        for _ in 0..waiting {
            match finished.recv_timeout(deadline()) {
                Ok(ok) => all &= ok,
                Err(_) => {
                    all = false;
                    break;
                }
            }
        }
        if all && self.delivery.all_delivered() { Ok(()) } else { Err(self.delivery.error("shutdown")) }
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What is left of `within` whenever it is asked.
#[expect(clippy::disallowed_methods, reason = "a deadline of the agent itself")]
fn deadline(within: Duration) -> impl Fn() -> Duration {
    let end = std::time::Instant::now() + within;
    move || end.saturating_duration_since(std::time::Instant::now())
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
