//! The agreement to compress a WebSocket's messages (RFC 7692).

/// What was agreed for `permessage-deflate` (RFC 7692 §7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deflate {
    /// The server compresses each message on its own.
    pub server_no_context_takeover: bool,
    /// The client compresses each message on its own.
    pub client_no_context_takeover: bool,
}

/// Reads `Sec-WebSocket-Extensions`; `None` when it does not agree on `permessage-deflate`.
pub(super) fn deflate(value: &[u8]) -> Option<Deflate> {
    let agreed = value.split(|b| *b == b',').find(|e| e.trim_ascii().to_ascii_lowercase().starts_with(b"permessage-deflate"))?;
    let mut found = Deflate::default();
    for parameter in agreed.split(|b| *b == b';').map(<[u8]>::trim_ascii) {
        found.server_no_context_takeover |= parameter.eq_ignore_ascii_case(b"server_no_context_takeover");
        found.client_no_context_takeover |= parameter.eq_ignore_ascii_case(b"client_no_context_takeover");
    }
    Some(found)
}
