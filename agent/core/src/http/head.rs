//! Heads of requests and responses: the few fields that are needed. No other is kept, least of all credentials or a target's query.

mod coding;
mod deflate;

use coding::coding;
use deflate::deflate;

pub use crate::http::target::{Query, percent_decoded};
use crate::http::target::{host_name, path_of, query_of};
use crate::inference::{ServerTiming, TraceParent};
use crate::name::Name;
use crate::semconv;
use crate::tenant::{Tenant, Tenants};
pub use coding::Coding;
pub use deflate::Deflate;

/// How long a message's body is (RFC 9112 §6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyLength {
    /// No body.
    Empty,
    /// `Content-Length`.
    Bytes(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Until the sender closes.
    UntilClose,
}

/// What a body says it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediaType {
    /// `text/event-stream`.
    EventStream,
    /// `application/json`, `…+json`.
    Json,
    /// `application/x-ndjson`, `application/jsonl`, `application/stream+json`: a JSON value per line.
    Ndjson,
    /// `application/vnd.amazon.eventstream`.
    AwsEventStream,
    /// `application/grpc`, with any suffix.
    Grpc,
    /// Something else.
    Other,
    /// No `Content-Type`.
    #[default]
    Missing,
}

/// The head of a request.
#[derive(Clone, PartialEq, Debug)]
pub struct RequestHead {
    /// The method, where it changes how messages are read.
    pub method: Method,
    /// The path of the target, at most 512 bytes, without query.
    pub path: Box<str>,
    /// `Host`, without port.
    pub host: Option<Name>,
    /// `Content-Type`.
    pub media: MediaType,
    /// `Content-Encoding`.
    pub coding: Option<Coding>,
    /// The body.
    pub body: BodyLength,
    /// `traceparent`. This and what few answers have is boxed: an exchange keeps its heads to its end.
    pub traceparent: Option<Box<TraceParent>>,
    /// `x-request-id`.
    pub id: Option<Name>,
    /// Who asks, where that is to be known.
    pub tenant: Option<Tenant>,
    /// Whether an `anthropic-version` header is there.
    pub anthropic: bool,
    /// To which protocol the client asks to change.
    pub upgrade: Option<Upgrade>,
    /// What the query says of those few parameters that change how a request is read.
    pub query: Query,
    /// `grpc-encoding`.
    pub message_coding: Option<Coding>,
    /// Whether there are fields that cannot be known: they refer to what was not seen (HTTP/2).
    pub partial: bool,
}

/// A protocol that a request asks to change to (RFC 9110 §7.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upgrade {
    /// RFC 6455.
    WebSocket,
    /// HTTP/2 in plaintext (RFC 7540 §3.2).
    H2c,
    /// Any other.
    Other,
}

/// What a response says about the caller's limits.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Limits {
    /// `Retry-After`, in seconds.
    pub retry_after: Option<f64>,
    /// `x-ratelimit-remaining-requests`.
    pub remaining_requests: Option<u64>,
    /// `x-ratelimit-remaining-tokens`.
    pub remaining_tokens: Option<u64>,
}

/// Tokens as a head counts them: of the request, of the answer.
pub type Tokens = (Option<u64>, Option<u64>);

/// The methods that matter here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// `POST`: the method of every inference API.
    Post,
    /// `HEAD`: its response has no body.
    Head,
    /// `CONNECT`: what follows a 2xx is another protocol.
    Connect,
    /// Any other.
    Other,
}

/// The head of a response.
#[derive(Clone, PartialEq, Debug)]
pub struct ResponseHead {
    /// The status.
    pub status: u16,
    /// `Content-Type`.
    pub media: MediaType,
    /// `Content-Encoding`.
    pub coding: Option<Coding>,
    /// The body, as far as the head decides it.
    pub body: BodyLength,
    /// The provider that a `Server` header names.
    pub provider: Option<&'static str>,
    /// `openai-processing-ms`, `x-amzn-bedrock-invocation-latency`: the server's own time for the request.
    pub processing_ms: Option<f64>,
    /// `x-request-id` of the response.
    pub id: Option<Name>,
    /// Rate limits and when to come back.
    pub limits: Option<Box<Limits>>,
    /// `x-amzn-errortype`: the class of an error whose body does not name it.
    pub error_type: Option<Name>,
    /// `x-amzn-bedrock-{input,output}-token-count`; `x-prompt-tokens` and `x-generated-tokens` (TGI), `x-compute-tokens` (TEI).
    pub tokens: Option<Box<Tokens>>,
    /// To which protocol the server changes, with status 101.
    pub upgrade: Option<Upgrade>,
    /// What TGI and TEI say of their own time: `x-queue-time`, `x-total-time`, `x-time-per-token`. Only with answers that are no
    /// stream.
    pub timing: Option<Box<ServerTiming>>,
    /// Whether `Sec-WebSocket-Extensions` agrees on `permessage-deflate`, and how.
    pub deflate: Option<Deflate>,
    /// `grpc-encoding`.
    pub message_coding: Option<Coding>,
    /// Whether there are fields that cannot be known: they refer to what was not seen (HTTP/2).
    pub partial: bool,
}

/// Reads a request's head, without its final empty line; `None` when it is none.
pub fn request(head: &[u8]) -> Option<RequestHead> {
    request_of(head, None)
}

/// As [`request`], and says whose request it is.
pub fn request_of(head: &[u8], tenants: Option<&Tenants>) -> Option<RequestHead> {
    let mut lines = lines(head);
    let first = lines.next()?;
    let mut words = first.split(|b| *b == b' ').filter(|w| !w.is_empty());
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if !version.starts_with(b"HTTP/1.") || words.next().is_some() {
        return None;
    }
    let fields = Fields::read(lines, tenants);
    let body = match (fields.chunked, fields.length) {
        (true, _) => BodyLength::Chunked,
        (false, Some(0) | None) => BodyLength::Empty,
        (false, Some(n)) => BodyLength::Bytes(n),
    };
    Some(fields.request(Method::read(method), target, body))
}

/// Reads a response's head, without its final empty line; `None` when it is none.
pub fn response(head: &[u8]) -> Option<ResponseHead> {
    let mut lines = lines(head);
    let first = lines.next()?;
    let rest = first.strip_prefix(b"HTTP/1.")?;
    let status = rest.get(2..5).filter(|_| rest.get(1) == Some(&b' '))?;
    let status: u16 = std::str::from_utf8(status).ok()?.parse().ok().filter(|s| (100..1000).contains(s))?;
    let fields = Fields::read(lines, None);
    let body = match (fields.chunked, fields.length) {
        _ if status < 200 || status == 204 || status == 304 => BodyLength::Empty,
        (true, _) => BodyLength::Chunked,
        (false, Some(0)) => BodyLength::Empty,
        (false, Some(n)) => BodyLength::Bytes(n),
        (false, None) => BodyLength::UntilClose,
    };
    Some(fields.response(status, body))
}

/// The fields of a head, as far as they are looked at.
#[derive(Debug, Default)]
pub struct Fields {
    chunked: bool,
    length: Option<u64>,
    coding: Option<Coding>,
    media: MediaType,
    host: Option<Name>,
    traceparent: Option<TraceParent>,
    request_id: Option<Name>,
    anthropic: bool,
    upgrade: Option<Upgrade>,
    deflate: Option<Deflate>,
    message_coding: Option<Coding>,
    grpc_status: Option<u32>,
    provider: Option<&'static str>,
    processing_ms: Option<f64>,
    limits: Limits,
    error_type: Option<Name>,
    tokens: Tokens,
    timing: ServerTiming,
    /// With the rank of the field that named it.
    tenant: Option<(u8, Tenant)>,
}

fn milliseconds(value: &[u8]) -> Option<f64> {
    text(value).and_then(|v| v.parse().ok()).filter(|v: &f64| v.is_finite() && *v >= 0.0)
}

fn upgrade(value: &[u8]) -> Option<Upgrade> {
    let names = |n: &[u8]| value.split(|b| *b == b',').any(|v| v.trim_ascii().eq_ignore_ascii_case(n));
    if names(b"websocket") {
        Some(Upgrade::WebSocket)
    } else if names(b"h2c") {
        Some(Upgrade::H2c)
    } else {
        Some(Upgrade::Other)
    }
}

impl Fields {
    fn read<'a>(lines: impl Iterator<Item = &'a [u8]>, tenants: Option<&Tenants>) -> Self {
        let mut f = Self::default();
        for line in lines {
            if let Some(colon) = memchr::memchr(b':', line) {
                let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
                f.field(name, value);
                if let Some((tenants, rank)) = tenants.and_then(|t| Some((t, t.rank(name)?))) {
                    f.tenant(rank, tenants.tenant(name, value));
                }
            }
        }
        f
    }

    /// Takes one field and says whether it is one that is looked at. Names are matched without regard to case.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> bool {
        let is = |n: &str| name.eq_ignore_ascii_case(n.as_bytes());
        if is("content-length") {
            // Of several values the first counts; a request smuggler's trick is none of our business.
            let number = value.split(|b| *b == b',').next().unwrap_or(value).trim_ascii();
            self.length = self.length.or_else(|| text(number).and_then(|v| v.parse().ok()));
        } else if is("transfer-encoding") {
            self.chunked |= value.to_ascii_lowercase().windows(7).any(|w| w == b"chunked");
        } else if is("content-encoding") {
            self.coding = match (self.coding, coding(value)) {
                (Some(_), Some(_)) => Some(Coding::SEVERAL),
                (before, this) => this.or(before),
            };
        } else if is("content-type") {
            self.media = media(value);
        } else if is("host") {
            self.host = host_name(value);
        } else if is("traceparent") {
            self.traceparent = text(value).and_then(TraceParent::parse);
        } else if is("x-request-id") {
            self.request_id = text(value).and_then(Name::new);
        } else if is("anthropic-version") {
            self.anthropic = true;
        } else if is("upgrade") {
            self.upgrade = upgrade(value);
        } else if is("sec-websocket-extensions") {
            self.deflate = deflate(value);
        } else if is("grpc-encoding") {
            self.message_coding = coding(value);
        } else if is("grpc-status") {
            self.grpc_status = text(value).and_then(|v| v.parse().ok());
        } else if is("retry-after") {
            self.limits.retry_after = text(value).and_then(|v| v.parse().ok()).filter(|v: &f64| v.is_finite() && *v >= 0.0);
        } else if is("x-ratelimit-remaining-requests") || is("anthropic-ratelimit-requests-remaining") {
            self.limits.remaining_requests = text(value).and_then(|v| v.parse().ok());
        } else if is("x-ratelimit-remaining-tokens") || is("anthropic-ratelimit-tokens-remaining") {
            self.limits.remaining_tokens = text(value).and_then(|v| v.parse().ok());
        } else if is("x-amzn-errortype") {
            // `ThrottlingException:http://internal…`: the class stands before the colon.
            self.error_type = text(value).and_then(|v| Name::class(v.split(':').next().unwrap_or(v)));
        } else if is("x-amzn-bedrock-input-token-count") {
            self.tokens.0 = text(value).and_then(|v| v.parse().ok());
        } else if is("x-amzn-bedrock-output-token-count") {
            self.tokens.1 = text(value).and_then(|v| v.parse().ok());
        } else if is("x-prompt-tokens") || is("x-compute-tokens") {
            self.tokens.0 = text(value).and_then(|v| v.parse().ok());
        } else if is("x-generated-tokens") {
            self.tokens.1 = text(value).and_then(|v| v.parse().ok());
        } else if is("x-queue-time") {
            self.timing.queue = milliseconds(value).map(|ms| ms / 1000.0);
        } else if is("x-total-time") {
            self.timing.total = milliseconds(value).map(|ms| ms / 1000.0);
        } else if is("x-time-per-token") {
            self.timing.tpot = milliseconds(value).map(|ms| ms / 1000.0);
        } else if is("x-amzn-bedrock-invocation-latency") {
            self.processing_ms = self.processing_ms.or_else(|| milliseconds(value));
        } else if is("server") {
            self.provider = text(value).and_then(semconv::provider_of_server_header);
        } else if is("openai-processing-ms") {
            self.processing_ms = milliseconds(value);
        } else {
            return false;
        }
        true
    }

    /// Whether fields of this name are looked at.
    pub fn looks_at(name: &[u8]) -> bool {
        Self::default().field(name, &[])
    }

    /// Takes whom a field of this rank names. The first of the lowest rank counts.
    pub fn tenant(&mut self, rank: u8, tenant: Option<Tenant>) {
        if let Some(tenant) = tenant
            && self.tenant.is_none_or(|(known, _)| rank < known)
        {
            self.tenant = Some((rank, tenant));
        }
    }

    /// Takes `:authority` (RFC 9113 §8.3.1), which stands for `Host`.
    pub fn authority(&mut self, value: &[u8]) {
        self.host = host_name(value).or(self.host.take());
    }

    /// Takes `:protocol` (RFC 8441 §4), which stands for `Upgrade`.
    pub fn protocol(&mut self, value: &[u8]) {
        self.upgrade = upgrade(value);
    }

    /// `grpc-status`, where it stands among them.
    pub fn grpc_status(&self) -> Option<u32> {
        self.grpc_status
    }

    /// The head of a request.
    pub fn request(self, method: Method, target: &[u8], body: BodyLength) -> RequestHead {
        let (path, authority) = path_of(target);
        RequestHead {
            method,
            path: path.into(),
            host: self.host.or_else(|| authority.and_then(host_name)),
            media: self.media,
            coding: self.coding,
            body,
            traceparent: self.traceparent.map(Box::new),
            id: self.request_id,
            tenant: self.tenant.map(|(_, tenant)| tenant),
            anthropic: self.anthropic,
            upgrade: self.upgrade,
            query: query_of(target),
            message_coding: self.message_coding,
            partial: false,
        }
    }

    /// The head of a response.
    pub fn response(self, status: u16, body: BodyLength) -> ResponseHead {
        ResponseHead {
            status,
            media: self.media,
            coding: self.coding,
            body,
            provider: self.provider,
            processing_ms: self.processing_ms,
            id: self.request_id,
            limits: (self.limits != Limits::default()).then(|| Box::new(self.limits)),
            error_type: self.error_type,
            tokens: (self.tokens != Tokens::default()).then(|| Box::new(self.tokens)),
            timing: (self.timing != ServerTiming::default()).then(|| Box::new(self.timing)),
            upgrade: self.upgrade,
            deflate: self.deflate,
            message_coding: self.message_coding,
            partial: false,
        }
    }
}

impl Method {
    /// Reads a method.
    pub fn read(method: &[u8]) -> Self {
        match method {
            b"POST" => Self::Post,
            b"HEAD" => Self::Head,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok()
}

fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|b| *b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l))
}

fn media(value: &[u8]) -> MediaType {
    let kind = value.split(|b| *b == b';').next().unwrap_or(value).trim_ascii().to_ascii_lowercase();
    match kind.as_slice() {
        b"text/event-stream" => MediaType::EventStream,
        b"application/x-ndjson"
        | b"application/ndjson"
        | b"application/jsonl"
        | b"application/x-jsonlines"
        | b"application/stream+json" => MediaType::Ndjson,
        b"application/vnd.amazon.eventstream" => MediaType::AwsEventStream,
        k if k == b"application/grpc" || k.starts_with(b"application/grpc+") => MediaType::Grpc,
        k if k == b"application/json" || k.ends_with(b"+json") => MediaType::Json,
        _ => MediaType::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let h = request(
            b"POST /v1/chat/completions?key=secret HTTP/1.1\r\nHost: API.OpenAI.com:443\r\nAuthorization: Bearer s\r\nContent-Length: 12\r\n\
              Content-Type: application/json; charset=utf-8\r\nx-request-id: r-1",
        )
        .unwrap();
        assert_eq!(
            (&*h.path, h.host.as_ref().unwrap().as_str(), h.body),
            ("/v1/chat/completions", "api.openai.com", BodyLength::Bytes(12))
        );
        assert_eq!((h.method, h.media, h.id.unwrap().as_str()), (Method::Post, MediaType::Json, "r-1"));
        let proxied = request(b"GET http://u:p@vllm:8000/v1/models HTTP/1.1").unwrap();
        assert_eq!((&*proxied.path, proxied.host.unwrap().as_str()), ("/v1/models", "vllm"));
        assert_eq!(request(b"POST /x HTTP/1.1\nhost: [::1]:8").unwrap().host.unwrap().as_str(), "::1");
        for bad in [&b""[..], b"POST", b"POST /", b"POST / HTTP/2.0", b"a b c d HTTP/1.1", b"\xff\xfe"] {
            assert_eq!(request(bad), None);
        }
    }

    #[test]
    fn responses() {
        let body = |head: &str| response(head.as_bytes()).unwrap().body;
        assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 0"), BodyLength::Empty);
        assert_eq!(body("HTTP/1.1 200 OK"), BodyLength::UntilClose);
        assert_eq!(body("HTTP/1.1 204"), BodyLength::Empty);
        assert_eq!(body("HTTP/1.1 304 x\r\nContent-Length: 5"), BodyLength::Empty);
        assert_eq!(body("HTTP/1.0 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 5"), BodyLength::Chunked);
        assert_eq!(response(b"HTTP/1.1 20 OK"), None);
        assert_eq!(response(b"HTTP/1.1 abc"), None);
        assert_eq!(response(b"ICY 200 OK"), None);
        let h = response(b"HTTP/1.1 200 OK\r\nserver: llama.cpp\r\ncontent-encoding: br\r\nopenai-processing-ms: 1207").unwrap();
        let coding = |fields: &str| response(format!("HTTP/1.1 200 OK\r\n{fields}").as_bytes()).unwrap().coding;
        assert_eq!(coding("content-encoding: Zstd"), Some(Coding::Zstd));
        assert_eq!(coding("content-encoding: identity, gzip ,"), Some(Coding::Gzip));
        assert_eq!(coding("content-encoding: gzip, br"), Some(Coding::SEVERAL));
        assert_eq!(coding("content-encoding: gzip\r\ncontent-encoding: br"), Some(Coding::SEVERAL));
        assert_eq!(coding("content-encoding: gzip\r\ncontent-encoding: identity"), Some(Coding::Gzip));
        assert_eq!(coding("content-encoding: dcb"), Some(Coding::Unsupported("other")));
        assert_eq!((h.provider, h.coding, h.processing_ms), (Some("llama_cpp"), Some(Coding::Brotli), Some(1207.0)));
    }
}
