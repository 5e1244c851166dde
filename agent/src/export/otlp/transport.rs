//! The OTLP clients, and the count of what they deliver.
//!
//! `opentelemetry-otlp` reads most variables itself. Here is what it leaves: the transport that fits a port, the certificates
//! (`OTEL_EXPORTER_OTLP_CERTIFICATE` and its kin), and trusted roots for gRPC.

use std::collections::HashMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{MetricExporter, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::SpanData;

pub use super::carrier::Signal;
use super::{Compression, Config, Env, Protocol};
use crate::export::ExportError;

impl Protocol {
    /// As `OTEL_EXPORTER_OTLP_PROTOCOL` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::HttpProtobuf => "http/protobuf",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Grpc => 4317,
            Self::HttpProtobuf => 4318,
        }
    }
}

/// A variable of the signal, else the common one.
fn variable(signal: Signal, what: &str, env: Env<'_>) -> Option<String> {
    env(&signal.variable(what)).or_else(|| env(&format!("OTEL_EXPORTER_OTLP_{what}")))
}

/// Where a signal goes, and whether that is the whole address (a signal's own variable) or a base to which HTTP adds its path.
pub fn endpoint(config: &Config, signal: Signal, env: Env<'_>) -> (String, bool) {
    let flag = config.endpoint.clone().filter(|_| config.endpoint_wins).map(|e| (e, false));
    flag.or_else(|| env(&signal.variable("ENDPOINT")).map(|e| (e, true)))
        .or_else(|| env("OTEL_EXPORTER_OTLP_ENDPOINT").map(|e| (e, false)))
        .or_else(|| config.endpoint.clone().map(|e| (e, false)))
        .unwrap_or_else(|| {
            (format!("http://localhost:{}", protocol_said(config, signal, env).unwrap_or(Protocol::HttpProtobuf).port()), false)
        })
}

fn protocol_said(config: &Config, signal: Signal, env: Env<'_>) -> Option<Protocol> {
    match variable(signal, "PROTOCOL", env).as_deref() {
        Some("grpc") => Some(Protocol::Grpc),
        // http/json differs in nothing but the encoding, and every receiver of one takes the other.
        Some("http/protobuf" | "http/json") => Some(Protocol::HttpProtobuf),
        Some(_) | None => config.protocol,
    }
}

/// How a signal travels. Without a word from anyone the port decides: 4317 is gRPC by convention, and to speak HTTP to it (the
/// specification's default) only fails.
pub fn protocol(config: &Config, signal: Signal, env: Env<'_>) -> Protocol {
    protocol_said(config, signal, env).unwrap_or_else(|| {
        let (endpoint, _) = endpoint(config, signal, env);
        let authority = endpoint.split_once("://").map_or(endpoint.as_str(), |(_, rest)| rest);
        let authority = authority.split('/').next().unwrap_or_default();
        if authority.ends_with(":4317") { Protocol::Grpc } else { Protocol::HttpProtobuf }
    })
}

/// Values of the environment that nobody understands and that are therefore ignored, as the specification wants.
pub fn ignored(env: Env<'_>) -> Vec<String> {
    let known: [(&str, &[&str]); 2] = [("PROTOCOL", &["grpc", "http/protobuf", "http/json"]), ("COMPRESSION", &["gzip", "none"])];
    let names = |what: &str| [format!("OTEL_EXPORTER_OTLP_{what}"), Signal::Metrics.variable(what), Signal::Traces.variable(what)];
    let of = |(what, values): (&str, &'static [&'static str])| {
        let bad = |name: String| Some((env(&name).filter(|v| !values.contains(&v.as_str()))?, name));
        names(what)
            .into_iter()
            .filter_map(bad)
            .map(|(v, name)| format!("{name}: `{v}` is none of {}", values.join(", ")))
            .collect::<Vec<_>>()
    };
    known.into_iter().flat_map(of).collect()
}

/// The certificates of a connection.
#[derive(Default)]
struct Pem {
    authority: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Pem {
    fn load(config: &Config, signal: Signal, env: Env<'_>) -> Result<Self, ExportError> {
        let read = |what: &str, configured: &Option<std::path::PathBuf>| {
            let path = variable(signal, what, env).map(Into::into).or_else(|| configured.clone());
            path.map(|path| read(&path)).transpose()
        };
        let certificate = read("CLIENT_CERTIFICATE", &config.client_certificate)?;
        let key = read("CLIENT_KEY", &config.client_key)?;
        Ok(Self { authority: read("CERTIFICATE", &config.certificate)?, identity: certificate.zip(key) })
    }

    fn tonic(self) -> ClientTlsConfig {
        let mut tls = ClientTlsConfig::new().with_enabled_roots();
        if let Some(pem) = self.authority {
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        match self.identity {
            Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
            None => tls,
        }
    }

    fn reqwest(self, timeout: Duration) -> Result<reqwest::blocking::Client, ExportError> {
        // The blocking client must be built outside of a runtime: it has one of its own.
        let build = move || {
            let mut client = reqwest::blocking::Client::builder().timeout(timeout);
            if let Some(pem) = self.authority {
                client = client.tls_certs_merge(reqwest::Certificate::from_pem_bundle(&pem)?);
            }
            if let Some((mut certificate, key)) = self.identity {
                certificate.push(b'\n');
                certificate.extend(key);
                client = client.identity(reqwest::Identity::from_pem(&certificate)?);
            }
            client.build()
        };
        let built = std::thread::spawn(build).join().map_err(|_| wrong("the HTTP client cannot be built"))?;
        built.map_err(|e| wrong(&format!("the HTTP client cannot be built: {}", chain(&e))))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ExportError> {
    std::fs::read(path).map_err(|source| ExportError::Io { path: path.display().to_string(), source })
}

fn wrong(what: &str) -> ExportError {
    ExportError::Config { what: what.to_owned() }
}

/// An error with its causes: "builder error" alone helps nobody.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

fn timeout(config: &Config, signal: Signal, env: Env<'_>) -> Duration {
    let millis = variable(signal, "TIMEOUT", env).and_then(|v| v.parse().ok()).map(Duration::from_millis);
    millis.or_else(|| config.timeout_s.map(Duration::from_secs_f64)).unwrap_or(Duration::from_secs(10))
}

/// What is the same for both signals and for both transports.
macro_rules! build {
    ($exporter:ty, $signal:expr, $config:expr, $env:expr, $delivery:expr) => {{
        let (config, signal, env) = ($config, $signal, $env);
        let (address, whole) = endpoint(config, signal, env);
        let (pem, timeout) = (Pem::load(config, signal, env)?, timeout(config, signal, env));
        let gzip = config.compression == Some(Compression::Gzip) && variable(signal, "COMPRESSION", env).is_none();
        let built = match protocol(config, signal, env) {
            Protocol::Grpc => {
                let mut builder =
                    <$exporter>::builder().with_tonic().with_endpoint(&address).with_timeout(timeout).with_metadata(metadata(config)?);
                builder = builder.with_retry_policy(retries(signal));
                if address.starts_with("https://") {
                    builder = builder.with_tls_config(pem.tonic());
                }
                if gzip {
                    builder = builder.with_compression(opentelemetry_otlp::Compression::Gzip);
                }
                builder.build()
            }
            Protocol::HttpProtobuf => {
                let address = if whole { address.clone() } else { format!("{}{}", address.trim_end_matches('/'), signal.path()) };
                let mut builder = <$exporter>::builder()
                    .with_http()
                    .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                    .with_endpoint(&address)
                    .with_timeout(timeout)
                    .with_http_client(Explaining { client: pem.reqwest(timeout)?, delivery: Arc::clone($delivery) })
                    .with_retry_policy(retries(signal))
                    .with_headers(config.headers.clone().into_iter().collect::<HashMap<_, _>>());
                if gzip {
                    builder = builder.with_compression(opentelemetry_otlp::Compression::Gzip);
                }
                builder.build()
            }
        };
        built.map_err(|e| wrong(&format!("{} to {address}: {}", signal.name(), chain(&e))))
    }};
}

/// The client for metrics.
///
/// # Errors
/// When a setting is wrong.
pub fn metric_exporter(config: &Config, env: Env<'_>, delivery: &Arc<Delivery>) -> Result<MetricExporter, ExportError> {
    build!(MetricExporter, Signal::Metrics, config, env, delivery)
}

/// The client for spans.
///
/// # Errors
/// When a setting is wrong.
pub fn span_exporter(config: &Config, env: Env<'_>, delivery: &Arc<Delivery>) -> Result<SpanExporter, ExportError> {
    build!(SpanExporter, Signal::Traces, config, env, delivery)
}

fn metadata(config: &Config) -> Result<MetadataMap, ExportError> {
    let mut headers = http::HeaderMap::new();
    for (name, value) in &config.headers {
        let bad = || wrong(&format!("headers: `{name}` is no header, or its value is none"));
        let name = http::HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
        headers.insert(name, http::HeaderValue::try_from(value.as_str()).map_err(|_| bad())?);
    }
    Ok(MetadataMap::from_headers(headers))
}

/// A batch of spans is lost when its retries are: they last over the restart of a collector, about 15 s. Metrics are cumulative
/// and come again with the next interval.
fn retries(signal: Signal) -> RetryPolicy {
    let policy = RetryPolicy::recommended();
    match signal {
        Signal::Metrics => policy,
        Signal::Traces => policy.with_max_retries(5).with_initial_delay(Duration::from_millis(500)).with_max_delay(Duration::from_secs(8)),
    }
}

/// The HTTP client. `opentelemetry-otlp` says of whatever goes wrong that it is a network error; this keeps the cause.
#[derive(Debug)]
struct Explaining {
    client: reqwest::blocking::Client,
    delivery: Arc<Delivery>,
}

type Answer = Result<http::Response<Bytes>, HttpError>;

impl HttpClient for Explaining {
    fn send_bytes<'a, 'b>(&'a self, request: http::Request<Bytes>) -> Pin<Box<dyn Future<Output = Answer> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let answer = self.client.send_bytes(request).await;
            let cause = answer.as_ref().err().map(|error| chain(error.as_ref()));
            *self.delivery.cause.lock().unwrap_or_else(PoisonError::into_inner) = cause;
            answer
        })
    }
}

/// What became of what was exported.
#[derive(Default, Debug)]
pub struct Delivery {
    waiting: AtomicI64,
    queue_full: AtomicU64,
    unsampled: AtomicU64,
    failed_spans: AtomicU64,
    failed_metrics: AtomicU64,
    last_metrics_failed: AtomicU64,
    error: Mutex<Option<String>>,
    /// Why the last HTTP request failed.
    cause: Mutex<Option<String>>,
}

/// Spans that may wait for delivery; the SDK's own queue is as long and drops without saying so.
const WAITING_SPANS: i64 = 2_048;

impl Delivery {
    /// Submits one span, unless too many wait already.
    pub fn submit(&self, submit: impl FnOnce()) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_SPANS {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.queue_full.fetch_add(1, Ordering::Relaxed);
        } else {
            submit();
        }
    }

    /// Counts a span that was not sampled.
    pub fn count_unsampled(&self) {
        self.unsampled.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether nothing waits and the last export of metrics went well.
    pub fn all_delivered(&self) -> bool {
        self.waiting.load(Ordering::Acquire) <= 0 && self.last_metrics_failed.load(Ordering::Acquire) == 0
    }

    /// (signal, reason, count) of what was not delivered.
    pub fn drops(&self) -> [(&'static str, &'static str, u64); 4] {
        [
            ("spans", "queue_full", self.queue_full.load(Ordering::Relaxed)),
            ("spans", "unsampled", self.unsampled.load(Ordering::Relaxed)),
            ("spans", "failed", self.failed_spans.load(Ordering::Relaxed)),
            ("metrics", "failed", self.failed_metrics.load(Ordering::Relaxed)),
        ]
    }

    /// The error of a flush or shutdown that did not deliver everything.
    pub fn error(&self, when: &str) -> ExportError {
        let last = self.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let waiting = self.waiting.load(Ordering::Acquire).max(0);
        let why = last.unwrap_or_else(|| "the receiver did not answer in time".to_owned());
        let failed = self.failed_spans.load(Ordering::Relaxed);
        ExportError::Undelivered { what: format!("at {when} {waiting} spans were waiting and {failed} had failed: {why}") }
    }

    fn failed(&self, signal: &str, error: &dyn std::fmt::Display) {
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = cause.unwrap_or_else(|| error.to_string());
        let mut last = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        // The same trouble is said once, until it changes.
        if last.as_deref() != Some(text.as_str()) {
            tracing::warn!(signal, "otlp export failed: {text}");
            *last = Some(text);
        }
    }
}

/// A client that counts what it delivers.
#[derive(Debug)]
pub struct Counted<E> {
    client: E,
    delivery: Arc<Delivery>,
}

impl<E> Counted<E> {
    /// Wraps a client.
    pub fn new(client: E, delivery: Arc<Delivery>) -> Self {
        Self { client, delivery }
    }
}

impl<E: opentelemetry_sdk::trace::SpanExporter> opentelemetry_sdk::trace::SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let result = self.client.export(batch).await;
        self.delivery.waiting.fetch_sub(i64::try_from(count).unwrap_or_default(), Ordering::AcqRel);
        if let Err(error) = &result {
            self.delivery.failed_spans.fetch_add(count as u64, Ordering::Relaxed);
            self.delivery.failed("traces", error);
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.client.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.client.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Counted<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.client.export(metrics).await;
        self.delivery.last_metrics_failed.store(u64::from(result.is_err()), Ordering::Release);
        if let Err(error) = &result {
            self.delivery.failed_metrics.fetch_add(1, Ordering::Relaxed);
            self.delivery.failed("metrics", error);
        }
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.client.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.client.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.client.temporality()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: &Config, table: &[(&str, &str)], want: (&str, &str)) {
        let env = |name: &str| table.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let got = (endpoint(config, Signal::Traces, &env).0, protocol(config, Signal::Traces, &env).name());
        assert_eq!((got.0.as_str(), got.1), want, "{table:?}");
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let base = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let none = Config::default();
        check(&none, &[], ("http://localhost:4318", "http/protobuf"));
        check(&none, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], ("http://localhost:4317", "grpc"));
        check(&none, &[(base, "http://c:4317")], ("http://c:4317", "grpc"));
        check(&none, &[(base, "http://c:4317/x")], ("http://c:4317/x", "grpc"));
        check(
            &none,
            &[(base, "http://c:4317"), ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")],
            ("http://c:4317", "http/protobuf"),
        );
        check(&none, &[(base, "http://c"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/v9")], ("http://t/v9", "http/protobuf"));
        let file = Config { endpoint: Some("http://f:4317".into()), ..Config::default() };
        check(&file, &[], ("http://f:4317", "grpc"));
        check(&file, &[(base, "http://c")], ("http://c", "http/protobuf"));
        let flag = Config { endpoint_wins: true, ..file };
        check(&flag, &[(base, "http://c")], ("http://f:4317", "grpc"));
    }

    #[test]
    fn values_that_nobody_understands_are_named() {
        let table = [("OTEL_EXPORTER_OTLP_PROTOCOL", "thrift"), ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")];
        let env = |name: &str| table.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        assert_eq!(ignored(&env), ["OTEL_EXPORTER_OTLP_PROTOCOL: `thrift` is none of grpc, http/protobuf, http/json"]);
    }

    #[test]
    fn a_full_queue_is_counted() {
        let delivery = Delivery::default();
        let mut submitted = 0;
        (0..WAITING_SPANS + 5).for_each(|_| delivery.submit(|| submitted += 1));
        assert_eq!((submitted, delivery.drops()[0]), (WAITING_SPANS, ("spans", "queue_full", 5)));
        assert!(!delivery.all_delivered());
    }

    #[test]
    fn a_missing_certificate_is_named() {
        let config = Config { certificate: Some("/nonexistent/ca.pem".into()), ..Config::default() };
        let error = span_exporter(&config, &|_| None, &Arc::default()).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/ca.pem: "), "{error}");
    }
}
