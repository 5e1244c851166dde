//! What a connection speaks, by its first bytes and never by its port. Every prefix of a valid beginning is `NotYet`.

use crate::http::h2::wire::{HEADER, PREFACE};

/// What the bytes at the beginning of a direction are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speaks {
    /// The beginning of an HTTP/1 request.
    Request,
    /// The beginning of an HTTP/1 response.
    Response,
    /// The HTTP/2 connection preface, with which a client begins (RFC 9113 §3.4).
    Http2,
    /// A SETTINGS frame of HTTP/2, with which a server begins.
    Http2Settings,
    /// Too few bytes to tell.
    NotYet,
    /// Something else.
    Other,
}

const METHODS: [&[u8]; 9] = [b"GET ", b"POST ", b"PUT ", b"DELETE ", b"HEAD ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE "];

/// Tells what begins with `bytes`. Empty lines before a message are skipped (RFC 9112 §2.2).
pub fn speaks(bytes: &[u8]) -> Speaks {
    let start = bytes.iter().position(|b| *b != b'\r' && *b != b'\n').unwrap_or(bytes.len());
    if start > 4 {
        return Speaks::Other;
    }
    let bytes = &bytes[start..];
    let begins = |what: &[u8]| bytes.starts_with(what);
    let may = |what: &[u8]| bytes.len() < what.len() && what.starts_with(bytes);
    if begins(PREFACE) {
        Speaks::Http2
    } else if is_settings(bytes) {
        if bytes.len() < HEADER { Speaks::NotYet } else { Speaks::Http2Settings }
    } else if begins(b"HTTP/1.") {
        Speaks::Response
    } else if METHODS.iter().any(|m| begins(m)) {
        Speaks::Request
    } else if may(PREFACE) || may(b"HTTP/1.") || METHODS.iter().any(|m| may(m)) {
        Speaks::NotYet
    } else {
        Speaks::Other
    }
}

/// Whether `bytes` may be the beginning of a SETTINGS frame (RFC 9113 §6.5) of at most 16 settings.
fn is_settings(bytes: &[u8]) -> bool {
    let fits = |(n, byte): (usize, &u8)| match n {
        2 => byte.is_multiple_of(6) && *byte <= 6 * 16,
        3 => *byte == 4,
        _ => *byte == 0,
    };
    !bytes.is_empty() && bytes.iter().take(HEADER).enumerate().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_is_undecided_until_it_is_decided() {
        for (whole, want) in [
            (&b"POST /v1/chat"[..], Speaks::Request),
            (b"HTTP/1.1 200", Speaks::Response),
            (PREFACE, Speaks::Http2),
            (b"\0\0\x12\x04\0\0\0\0\0\0\x03", Speaks::Http2Settings),
            (b"\r\nGET / HTTP/1.1", Speaks::Request),
        ] {
            let decided = (0..=whole.len()).find(|n| speaks(&whole[..*n]) != Speaks::NotYet).unwrap();
            for n in decided..=whole.len() {
                assert_eq!(speaks(&whole[..n]), want, "{:?}", &whole[..n]);
            }
        }
        for other in [
            &b"\x16\x03\x01"[..],
            b"SSH-2.0",
            b"\0\x01",
            b"post / HTTP/1.1",
            b"PRI * HTTP/2.1",
            b"\0\0\x12\x04\x01\0\0\0\0",
            b"\0\0\x11\x04",
            b"\r\n\r\n\r\nGET /",
        ] {
            assert_eq!(speaks(other), Speaks::Other, "{other:?}");
        }
    }
}
