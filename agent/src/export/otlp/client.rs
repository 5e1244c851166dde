//! One request to a receiver and what it answered: OTLP over gRPC, over HTTP with Protobuf, over HTTP with JSON.
//!
//! Bytes in, a [`Reply`] or a [`Failure`] out. It knows neither queue nor repetition; what a failure means for the next attempt is decided
//! here, by the lists of the specification (`docs/specification.md` of opentelemetry-proto).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use prost::Message as _;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::carrier::Signal;
use super::settings::{Pem, Target};
use super::{Compression, Protocol};
use crate::chain::chain;
use crate::export::ExportError;

/// A receiver took the request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reply {
    /// Spans or data points that it rejected all the same (partial success).
    pub rejected: u64,
    /// Why, or a warning where nothing was rejected.
    pub message: String,
}

/// A receiver did not take the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// To be tried again, not before this time has passed where the receiver said one.
    Again {
        /// `Retry-After` or `RetryInfo`.
        after: Option<Duration>,
        /// What happened.
        what: String,
        /// No answer came in time.
        timed_out: bool,
    },
    /// Never to be tried again.
    Refused {
        /// What the receiver said.
        what: String,
    },
}

impl Failure {
    /// What happened, in words.
    pub fn what(&self) -> &str {
        match self {
            Self::Again { what, .. } | Self::Refused { what } => what,
        }
    }

    fn again(what: String) -> Self {
        Self::Again { after: None, what, timed_out: false }
    }
}

/// Bytes of an answer that are read.
const ANSWER: usize = 64 << 10;
/// Letters of what a receiver says that are shown.
const SHOWN: usize = 300;

/// A connection, or several, to one receiver for one signal. They are made when they are needed.
pub struct Client {
    target: Target,
    wire: Wire,
    /// The receiver has said that it does not know the compression that was asked for.
    plain: AtomicBool,
}

enum Wire {
    Grpc { endpoint: Box<Endpoint>, channel: Mutex<Channel>, path: PathAndQuery, metadata: MetadataMap },
    Http { client: reqwest::Client, json: bool },
}

impl Client {
    /// A client for `target`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When an address or a certificate is none. Whether the receiver is there shows only later.
    pub fn new(target: Target) -> Result<Self, ExportError> {
        let wrong =
            |e: &dyn std::error::Error| ExportError::Config { what: format!("{} to {}: {}", target.signal.name(), target.url, chain(e)) };
        let wire = match target.protocol {
            Protocol::Grpc => {
                let mut endpoint = Endpoint::from_shared(target.url.clone())
                    .map_err(|e| wrong(&e))?
                    .connect_timeout(target.timeout)
                    .user_agent(AGENT)
                    .map_err(|e| wrong(&e))?;
                if target.url.starts_with("https://") {
                    endpoint = endpoint.tls_config(tonic_tls(&target.pem)).map_err(|e| wrong(&e))?;
                }
                let service = match target.signal {
                    Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
                    Signal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
                };
                Wire::Grpc {
                    channel: Mutex::new(endpoint.connect_lazy()),
                    endpoint: Box::new(endpoint),
                    path: PathAndQuery::from_static(service),
                    metadata: MetadataMap::from_headers(target.headers.clone()),
                }
            }
            Protocol::HttpProtobuf | Protocol::HttpJson => {
                // Credentials go where they were sent to, and nowhere else: no redirect is followed.
                let client = reqwest::Client::builder()
                    .redirect(reqwest::redirect::Policy::none())
                    .timeout(target.timeout)
                    .user_agent(AGENT)
                    .default_headers(target.headers.clone());
                let client = http_tls(client, &target.pem).and_then(reqwest::ClientBuilder::build).map_err(|e| wrong(&e))?;
                Wire::Http { client, json: target.protocol == Protocol::HttpJson }
            }
        };
        Ok(Self { target, wire, plain: AtomicBool::new(false) })
    }

    /// Sends one encoded request.
    ///
    /// # Errors
    /// When the receiver did not take it.
    pub async fn send(&self, request: Bytes) -> Result<Reply, Failure> {
        match &self.wire {
            Wire::Grpc { channel, path, metadata, .. } => {
                let channel = channel.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let call = self.call(channel, path.clone(), metadata.clone(), request);
                tokio::time::timeout(self.target.timeout, call).await.unwrap_or_else(|_| Err(self.late()))
            }
            Wire::Http { client, json } => self.post(client, *json, request).await,
        }
    }

    /// Forgets the connection. One whose other end has vanished without a word would be used until the kernel gives it up, a quarter
    /// of an hour later.
    pub fn reconnect(&self) {
        if let Wire::Grpc { endpoint, channel, .. } = &self.wire {
            *channel.lock().unwrap_or_else(PoisonError::into_inner) = endpoint.connect_lazy();
        }
    }

    fn late(&self) -> Failure {
        let what = format!("no answer from {} within {:?}", self.target.shown, self.target.timeout);
        Failure::Again { after: None, what, timed_out: true }
    }

    async fn call(&self, channel: Channel, path: PathAndQuery, metadata: MetadataMap, body: Bytes) -> Result<Reply, Failure> {
        let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER);
        let compression = self.compression();
        grpc = match compression {
            Compression::None => grpc,
            Compression::Gzip => grpc.send_compressed(CompressionEncoding::Gzip),
            Compression::Zstd => grpc.send_compressed(CompressionEncoding::Zstd),
        };
        grpc.ready().await.map_err(|e| Failure::again(format!("{}: {}", self.target.shown, chain(&e))))?;
        let mut request = tonic::Request::new(body);
        *request.metadata_mut() = metadata;
        request.set_timeout(self.target.timeout);
        let answer = grpc.unary(request, path, Raw).await.map_err(|status| {
            // gRPC's compression.md: UNIMPLEMENTED is the answer to an encoding that a server does not know.
            let unknown = status.code() == Code::Unimplemented && status.message().contains("compress");
            self.not_compressed(unknown, compression, of_status(&self.target.shown, &status))
        })?;
        Ok(reply(self.target.signal, answer.get_ref()))
    }

    async fn post(&self, client: &reqwest::Client, json: bool, body: Bytes) -> Result<Reply, Failure> {
        let (body, kind) = if json {
            let body = to_json(self.target.signal, &body).map_err(|what| Failure::Refused { what })?;
            (Bytes::from(body), "application/json")
        } else {
            (body, "application/x-protobuf")
        };
        let mut request = client.post(&self.target.url).header(http::header::CONTENT_TYPE, kind);
        let compression = self.compression();
        let body = match compressed(compression, body) {
            Ok((body, None)) => body,
            Ok((body, Some(coding))) => {
                request = request.header(http::header::CONTENT_ENCODING, coding);
                body
            }
            Err(what) => return Err(Failure::Refused { what }),
        };
        let failed = |e: reqwest::Error| {
            if e.is_timeout() { self.late() } else { Failure::again(format!("{}: {}", self.target.shown, chain(&e.without_url()))) }
        };
        let mut answer = request.body(body).send().await.map_err(failed)?;
        let (status, after) = (answer.status().as_u16(), retry_after(answer.headers(), wall()));
        let says_json = answer.headers().get(http::header::CONTENT_TYPE).is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
        let mut text = Vec::new();
        // A body that breaks off says nothing; the status has said it.
        while let Ok(Some(chunk)) = answer.chunk().await {
            text.extend_from_slice(chunk.get(..chunk.len().min(ANSWER - text.len())).unwrap_or_default());
            if text.len() == ANSWER {
                break;
            }
        }
        let said = || {
            let message = if says_json { json_message(&text) } else { status_message(&text) };
            let text = if message.is_empty() { String::new() } else { format!(": {message}") };
            format!("{} answered {status}{text}", self.target.shown)
        };
        match status {
            200..=299 if says_json => Ok(json_reply(self.target.signal, &text)),
            200..=299 => Ok(reply(self.target.signal, &text)),
            429 | 502 | 503 | 504 => Err(Failure::Again { after, what: said(), timed_out: false }),
            _ => Err(self.not_compressed(status == 415, compression, Failure::Refused { what: said() })),
        }
    }

    fn compression(&self) -> Compression {
        if self.plain.load(Ordering::Relaxed) { Compression::None } else { self.target.compression }
    }

    /// A receiver that does not know a compression (the Collector's gRPC knows no zstd) gets the same again without.
    fn not_compressed(&self, unknown: bool, compression: Compression, failure: Failure) -> Failure {
        if !unknown || compression == Compression::None {
            return failure;
        }
        self.plain.store(true, Ordering::Relaxed);
        Failure::again(format!("{}: it is sent without compression from now on", failure.what()))
    }
}

/// How we call ourselves, as the specification recommends.
const AGENT: &str = concat!("OTel-OTLP-Exporter-tokengauge/", env!("CARGO_PKG_VERSION"));

#[expect(clippy::disallowed_methods, reason = "Retry-After may be a date")]
fn wall() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

pub(super) fn tonic_tls(pem: &Pem) -> ClientTlsConfig {
    let mut tls = ClientTlsConfig::new().with_enabled_roots();
    if let Some(pem) = &pem.authority {
        tls = tls.ca_certificate(Certificate::from_pem(pem));
    }
    match &pem.identity {
        Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
        None => tls,
    }
}

fn http_tls(mut client: reqwest::ClientBuilder, pem: &Pem) -> Result<reqwest::ClientBuilder, reqwest::Error> {
    if let Some(pem) = &pem.authority {
        client = client.tls_certs_merge(reqwest::Certificate::from_pem_bundle(pem)?);
    }
    if let Some((certificate, key)) = &pem.identity {
        client = client.identity(reqwest::Identity::from_pem(&[certificate, b"\n".as_slice(), key].concat())?);
    }
    Ok(client)
}

/// Requests are bytes already, and answers stay bytes.
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// The receiver's words: no control characters, no more than a line.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect()
}

/// What a gRPC status means (specification: OTLP/gRPC response, failures).
fn of_status(url: &str, status: &Status) -> Failure {
    if let Some(cause) = std::error::Error::source(status) {
        // Not the receiver's word: the connection failed.
        return Failure::again(format!("{url}: {}", chain(cause)));
    }
    let after = status.get_details_retry_info().and_then(|info| info.retry_delay);
    let what = format!("{url} answered {:?}: {}", status.code(), shown(status.message()));
    match status.code() {
        Code::Cancelled | Code::DeadlineExceeded | Code::Aborted | Code::OutOfRange | Code::Unavailable | Code::DataLoss => {
            Failure::Again { after, what, timed_out: status.code() == Code::DeadlineExceeded }
        }
        // Only where the receiver says when it will have room again.
        Code::ResourceExhausted if after.is_some() => Failure::Again { after, what, timed_out: false },
        _ => Failure::Refused { what },
    }
}

/// `Retry-After`: seconds, or a date.
fn retry_after(headers: &http::HeaderMap, now: std::time::SystemTime) -> Option<Duration> {
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default()),
    }
}

fn reply(signal: Signal, bytes: &[u8]) -> Reply {
    let (rejected, message) = match signal {
        Signal::Traces => ExportTraceServiceResponse::decode(bytes)
            .ok()
            .and_then(|r| r.partial_success)
            .map_or((0, String::new()), |p| (p.rejected_spans, p.error_message)),
        Signal::Metrics => ExportMetricsServiceResponse::decode(bytes)
            .ok()
            .and_then(|r| r.partial_success)
            .map_or((0, String::new()), |p| (p.rejected_data_points, p.error_message)),
    };
    Reply { rejected: u64::try_from(rejected).unwrap_or(0), message: shown(&message) }
}

fn json_reply(signal: Signal, text: &[u8]) -> Reply {
    let answer: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let key = match signal {
        Signal::Traces => "rejectedSpans",
        Signal::Metrics => "rejectedDataPoints",
    };
    let partial = answer.get("partialSuccess");
    // A 64-bit integer is a string in Protobuf's JSON; receivers write either.
    let number = |v: &serde_json::Value| v.as_u64().or_else(|| v.as_str()?.parse().ok());
    Reply {
        rejected: partial.and_then(|p| p.get(key)).and_then(number).unwrap_or(0),
        message: shown(partial.and_then(|p| p.get("errorMessage")).and_then(|m| m.as_str()).unwrap_or_default()),
    }
}

/// `google.rpc.Status` in the body of an HTTP error.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(string, tag = "2")]
    message: String,
}

fn status_message(text: &[u8]) -> String {
    match RpcStatus::decode(text) {
        Ok(status) if !status.message.is_empty() => shown(&status.message),
        // Proxies answer in plain text.
        _ => shown(std::str::from_utf8(text).unwrap_or_default().trim()),
    }
}

fn json_message(text: &[u8]) -> String {
    let answer: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    match answer.get("message").and_then(|m| m.as_str()) {
        Some(message) => shown(message),
        None => shown(String::from_utf8_lossy(text).trim()),
    }
}

/// The same request in OTLP's JSON: ids in hexadecimal, lowerCamelCase names. What is absent is left out: the Collector refuses a `null`
/// for an optional number (a histogram's `min`), and with it the request.
fn to_json(signal: Signal, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let bad = |e: prost::DecodeError| format!("a request is no Protobuf: {e}");
    let tree = match signal {
        Signal::Traces => serde_json::to_value(ExportTraceServiceRequest::decode(bytes).map_err(bad)?),
        Signal::Metrics => serde_json::to_value(ExportMetricsServiceRequest::decode(bytes).map_err(bad)?),
    };
    let text = tree.and_then(|mut tree| {
        without_nulls(&mut tree);
        serde_json::to_vec(&tree)
    });
    text.map_err(|e| format!("a request has no JSON: {e}"))
}

fn without_nulls(tree: &mut serde_json::Value) {
    match tree {
        serde_json::Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

fn compressed(how: Compression, body: Bytes) -> Result<(Bytes, Option<&'static str>), String> {
    use std::io::Write as _;
    match how {
        Compression::None => Ok((body, None)),
        Compression::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::with_capacity(body.len() / 4), flate2::Compression::fast());
            let packed = gzip.write_all(&body).and_then(|()| gzip.finish()).map_err(|e| format!("gzip: {e}"))?;
            Ok((packed.into(), Some("gzip")))
        }
        Compression::Zstd => Ok((super::parcel::pack(&body).map_err(|e| format!("zstd: {e}"))?.into(), Some("zstd"))),
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
