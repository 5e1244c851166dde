//! Where a signal goes and how: the configuration file, the environment and the flags put together.
//!
//! A flag wins over the environment, and that over the file, because a pod's environment is how OpenTelemetry is configured everywhere;
//! a signal's own variable wins over the common one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::carrier::Signal;
use super::{Compression, Config, Env, Protocol};
use crate::export::ExportError;

impl Protocol {
    /// As `OTEL_EXPORTER_OTLP_PROTOCOL` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::HttpProtobuf => "http/protobuf",
            Self::HttpJson => "http/json",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Grpc, Self::HttpProtobuf, Self::HttpJson].into_iter().find(|p| p.name() == name)
    }

    const fn port(self) -> u16 {
        match self {
            Self::Grpc => 4317,
            Self::HttpProtobuf | Self::HttpJson => 4318,
        }
    }
}

impl Compression {
    /// As `content-encoding` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::None, Self::Gzip, Self::Zstd].into_iter().find(|c| c.name() == name)
    }
}

/// Everything that a client needs to know about its receiver.
#[derive(Clone, Debug)]
pub struct Target {
    /// What is sent there.
    pub signal: Signal,
    /// The whole address with HTTP; with gRPC scheme, host and port.
    pub url: String,
    /// The address without credentials, for messages.
    pub shown: String,
    /// The transport.
    pub protocol: Protocol,
    /// Headers of each request. They are credentials: never shown.
    pub headers: HeaderMap,
    /// Compression of each request.
    pub compression: Compression,
    /// Time for one attempt.
    pub timeout: Duration,
    /// Certificates.
    pub pem: Pem,
}

/// The certificates of a connection, as they were read.
#[derive(Clone, Default)]
pub struct Pem {
    /// Whom to trust, beside the usual authorities.
    pub authority: Option<Vec<u8>>,
    /// Our own certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A key is no text for a log.
        write!(f, "Pem {{ authority: {}, identity: {} }}", self.authority.is_some(), self.identity.is_some())
    }
}

/// A timeout of 0 means no limit to the specification. A request that never ends would hold everything behind it, so this is what it means here.
const NO_LIMIT: Duration = Duration::from_secs(3_600);
/// What may be one attempt's time by `OTEL_BSP_EXPORT_TIMEOUT` and `OTEL_METRIC_EXPORT_TIMEOUT` when they are not set.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(30);

impl Target {
    /// What configuration and environment say for `signal`.
    ///
    /// # Errors
    /// When a certificate cannot be read or a header of the configuration is none.
    pub fn new(config: &Config, signal: Signal, env: Env<'_>) -> Result<Self, ExportError> {
        let (protocol, (address, whole)) = (protocol(config, signal, env), endpoint(config, signal, env));
        let url = match protocol {
            Protocol::Grpc => address,
            Protocol::HttpProtobuf | Protocol::HttpJson if whole => address,
            Protocol::HttpProtobuf | Protocol::HttpJson => format!("{}{}", address.trim_end_matches('/'), signal.path()),
        };
        http::Uri::try_from(&url)
            .ok()
            .filter(|u| u.host().is_some())
            .ok_or_else(|| ExportError::Config { what: format!("{}: `{}` is no address of a receiver", signal.name(), shown(&url)) })?;
        let said = variable(signal, "COMPRESSION", env).and_then(|c| Compression::named(&c));
        Ok(Self {
            signal,
            shown: shown(&url),
            url,
            protocol,
            headers: headers(config, signal, env)?,
            compression: said.or(config.compression).unwrap_or(Compression::None),
            timeout: timeout(config, signal, env),
            pem: Pem::load(config, signal, env)?,
        })
    }
}

/// An address without the user and password that may stand in it.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{}{path}", authority.rsplit('@').next().unwrap_or(authority))
}

/// A variable of the signal, else the common one.
fn variable(signal: Signal, what: &str, env: Env<'_>) -> Option<String> {
    env(&signal.variable(what)).or_else(|| env(&format!("OTEL_EXPORTER_OTLP_{what}")))
}

/// Where a signal goes, and whether that is the whole address (a signal's own variable) or a base to which HTTP adds its path.
pub fn endpoint(config: &Config, signal: Signal, env: Env<'_>) -> (String, bool) {
    let flag = config.endpoint.clone().filter(|_| config.endpoint_wins).map(|e| (e, false));
    let (address, whole) = flag
        .or_else(|| env(&signal.variable("ENDPOINT")).map(|e| (e, true)))
        .or_else(|| env("OTEL_EXPORTER_OTLP_ENDPOINT").map(|e| (e, false)))
        .or_else(|| config.endpoint.clone().map(|e| (e, false)))
        .unwrap_or_else(|| {
            (format!("http://localhost:{}", protocol_said(config, signal, env).unwrap_or(Protocol::HttpProtobuf).port()), false)
        });
    if address.contains("://") {
        return (address, whole);
    }
    // Only gRPC knows addresses without a scheme; they mean TLS unless the variable says otherwise.
    let insecure = variable(signal, "INSECURE", env).is_some_and(|v| v.eq_ignore_ascii_case("true"));
    (format!("{}://{address}", if insecure { "http" } else { "https" }), whole)
}

fn protocol_said(config: &Config, signal: Signal, env: Env<'_>) -> Option<Protocol> {
    variable(signal, "PROTOCOL", env).and_then(|p| Protocol::named(&p)).or(config.protocol)
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

/// The specification's timeout of a request, within that of the batch or the reading.
fn timeout(config: &Config, signal: Signal, env: Env<'_>) -> Duration {
    let millis = |text: String| text.trim().parse().ok().map(|n| if n == 0 { NO_LIMIT } else { Duration::from_millis(n).min(NO_LIMIT) });
    let request = variable(signal, "TIMEOUT", env).and_then(millis);
    let request = request.or_else(|| config.timeout_s.map(Duration::from_secs_f64)).unwrap_or(Duration::from_secs(10));
    let whole = match signal {
        Signal::Traces => "OTEL_BSP_EXPORT_TIMEOUT",
        Signal::Metrics => "OTEL_METRIC_EXPORT_TIMEOUT",
    };
    request.min(env(whole).and_then(millis).unwrap_or(EXPORT_TIMEOUT.max(request)))
}

fn headers(config: &Config, signal: Signal, env: Env<'_>) -> Result<HeaderMap, ExportError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &config.headers {
        let bad = || ExportError::Config { what: format!("headers: `{name}` is no header, or its value is none") };
        headers.insert(HeaderName::try_from(name.as_str()).map_err(|_| bad())?, secret(value).ok_or_else(bad)?);
    }
    for (name, value) in variable(signal, "HEADERS", env).iter().flat_map(|list| list.split(',')).filter_map(header) {
        headers.insert(name, value);
    }
    Ok(headers)
}

/// `name=value` of `OTEL_EXPORTER_OTLP_HEADERS`: the value may be percent-encoded, as in W3C Baggage.
fn header(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once('=')?;
    Some((HeaderName::try_from(name.trim()).ok()?, secret(&percent_decoded(value.trim()))?))
}

/// `OTEL_RESOURCE_ATTRIBUTES`: `name=value,…`, values percent-encoded. `None` when one item is none: then nothing of it counts (specification,
/// resource/sdk.md).
pub fn resource_attributes(text: &str) -> Option<Vec<(String, String)>> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let read = |item: &str| {
        let (name, value) = item.split_once('=')?;
        Some((name.trim().to_owned(), percent_decoded(value.trim()))).filter(|(name, _)| !name.is_empty())
    };
    items.map(read).collect()
}

fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// `%41` → `A`. What is no such triple stays as it is.
fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let hex = |b: &u8| char::from(*b).to_digit(16);
        match (first, after) {
            (b'%', [a, b, ..]) if hex(a).is_some() && hex(b).is_some() => {
                bytes.push((hex(a).unwrap_or_default() * 16 + hex(b).unwrap_or_default()) as u8);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Pem {
    fn load(config: &Config, signal: Signal, env: Env<'_>) -> Result<Self, ExportError> {
        let load = |what: &str, configured: &Option<PathBuf>| {
            let path = variable(signal, what, env).map(Into::into).or_else(|| configured.clone());
            path.map(|path| read(&path)).transpose()
        };
        let certificate = load("CLIENT_CERTIFICATE", &config.client_certificate)?;
        let key = load("CLIENT_KEY", &config.client_key)?;
        Ok(Self { authority: load("CERTIFICATE", &config.certificate)?, identity: certificate.zip(key) })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ExportError> {
    std::fs::read(path).map_err(|source| ExportError::Io { path: path.display().to_string(), source })
}

/// Values of the environment that nobody understands and that are therefore ignored, as the specification wants.
pub fn ignored(env: Env<'_>) -> Vec<String> {
    let mut all = Vec::new();
    let mut complain = |name: String, expected: &str, good: &dyn Fn(&str) -> bool| {
        if let Some(value) = env(&name).filter(|v| !good(v)) {
            // A header's value is a credential.
            let shown = if name.ends_with("HEADERS") { String::new() } else { format!("`{value}` is ") };
            all.push(format!("{name}: {shown}none of {expected}"));
        }
    };
    for base in ["OTEL_EXPORTER_OTLP", "OTEL_EXPORTER_OTLP_METRICS", "OTEL_EXPORTER_OTLP_TRACES"] {
        let name = |what: &str| format!("{base}_{what}");
        complain(name("PROTOCOL"), "grpc, http/protobuf, http/json", &|v| Protocol::named(v).is_some());
        complain(name("COMPRESSION"), "gzip, zstd, none", &|v| Compression::named(v).is_some());
        complain(name("TIMEOUT"), "the numbers of milliseconds", &|v| v.trim().parse::<u64>().is_ok());
        complain(name("INSECURE"), "true, false", &|v| v.eq_ignore_ascii_case("true") || v.eq_ignore_ascii_case("false"));
        complain(name("HEADERS"), "the lists of name=value (one item at least is wrong)", &|v| {
            v.split(',').all(|item| item.trim().is_empty() || header(item).is_some())
        });
    }
    complain("OTEL_RESOURCE_ATTRIBUTES".to_owned(), "the lists of name=value", &|v| resource_attributes(v).is_some());
    for name in super::variables::NUMBERS {
        complain((*name).to_owned(), "the whole numbers", &|v| v.trim().parse::<u64>().is_ok());
    }
    all
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
