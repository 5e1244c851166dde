//! What a header block says: pseudo-header fields (RFC 9113 §8.3) and those fields that [`crate::http::head`] looks at.

use std::borrow::Cow;
use std::sync::Arc;

use super::hpack::{Field, Keep};
use crate::http::head::{BodyLength, Fields, Method, RequestHead, ResponseHead};
use crate::http::target;
use crate::tenant::{Tenant, Tenants};

/// Bytes of a value that a table may hold.
const MAX_VALUE: usize = 1024;

/// Which fields are looked at, and what of their values is told and tables may hold: of a target's query only what is looked at, of a
/// field that is looked at for its tenant alone just the tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct Looked(pub Option<Arc<Tenants>>);

impl Keep for Looked {
    fn keep<'a>(&self, name: &[u8], value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let cut = |value: &'a [u8]| Cow::Borrowed(&value[..value.len().min(MAX_VALUE)]);
        match name {
            b":path" => Some(target::without_secrets(value)),
            b":method" | b":scheme" | b":authority" | b":protocol" | b":status" | b"content-length" => Some(cut(value)),
            _ if name.starts_with(b":") => None,
            _ if Fields::looks_at(name) => Some(cut(value)),
            _ => {
                let tenants = self.0.as_deref().filter(|t| t.rank(name).is_some())?;
                // An empty value asks whether the field is looked at at all.
                Some(tenants.tenant(name, value).map_or(Cow::Borrowed(&[]), |t| Cow::Owned(t.as_str().into())))
            }
        }
    }
}

/// Whose message a header block begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Request,
    Response,
    /// Trailers: no pseudo-header fields (RFC 9113 §8.1).
    Trailers,
    /// Fields are missing that may have said it.
    Unclear,
}

/// What a header block says.
#[derive(Debug, Default)]
pub(super) struct Head {
    fields: Fields,
    asks: bool,
    method: Option<Method>,
    target: Option<Box<[u8]>>,
    status: Option<u16>,
    answers: bool,
    /// `content-length`: of how many bytes of DATA the message is (RFC 9113 §8.1.1).
    pub length: Option<u64>,
    /// Whether a field refers to one that was not seen.
    pub unknown: bool,
    /// Whether the block, or its end, cannot be read.
    pub unread: bool,
}

impl Head {
    /// Takes one field. `tenants` are those of [`Looked`].
    pub fn take(&mut self, field: Field<'_>, tenants: Option<&Tenants>) {
        let Field::Known(name, value) = field else {
            self.unknown = true;
            return;
        };
        match name {
            b":method" => self.method = Some(Method::read(value)),
            b":path" => self.target = Some(value.into()),
            b":authority" => self.fields.authority(value),
            b":protocol" => self.fields.protocol(value),
            b":status" => {
                self.answers = true;
                let number = std::str::from_utf8(value).ok().filter(|v| v.len() == 3).and_then(|v| v.parse().ok());
                self.status = number.filter(|s| (100..1000).contains(s));
            }
            b"content-length" => self.length = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok()),
            _ => {
                let read = self.fields.field(name, value);
                if let Some((tenants, rank)) = tenants.and_then(|t| Some((t, t.rank(name)?))) {
                    // What is looked at for other reasons as well is told as it is.
                    self.fields.tenant(rank, if read { tenants.tenant(name, value) } else { Tenant::parse(value) });
                }
            }
        }
        self.asks |= matches!(name, b":method" | b":path" | b":authority" | b":scheme");
    }

    /// Whose message it begins.
    pub fn kind(&self) -> Kind {
        match (self.asks, self.answers) {
            (true, _) => Kind::Request,
            (_, true) => Kind::Response,
            _ if self.unknown || self.unread => Kind::Unclear,
            _ => Kind::Trailers,
        }
    }

    /// Whether there are fields that cannot be known.
    pub fn is_partial(&self) -> bool {
        self.unknown || self.unread
    }

    /// The status of a response, where it is known.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// `grpc-status`.
    pub fn grpc_status(&self) -> Option<u32> {
        self.fields.grpc_status()
    }

    /// The head of a request. A method that is lost is taken to be the one of every inference API: what is asked and answered must
    /// confirm it. A target that is lost is empty.
    pub fn request(self, end: bool) -> RequestHead {
        let partial = self.is_partial();
        let method = self.method.unwrap_or(if partial { Method::Post } else { Method::Other });
        RequestHead { partial, ..self.fields.request(method, self.target.as_deref().unwrap_or_default(), body(end, self.length)) }
    }

    /// The head of a response.
    pub fn response(self, status: u16, end: bool) -> ResponseHead {
        let partial = self.is_partial();
        ResponseHead { partial, ..self.fields.response(status, body(end, self.length)) }
    }
}

/// A body is as long as its stream says; what its length was told to be (RFC 9113 §8.1.1) is known beforehand.
fn body(end: bool, length: Option<u64>) -> BodyLength {
    match length {
        _ if end => BodyLength::Empty,
        Some(length) => BodyLength::Bytes(length),
        None => BodyLength::UntilClose,
    }
}
