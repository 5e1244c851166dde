//! What a request is sent to: path, query, authority. Keys travel in queries, so that of them only what is looked at is kept.

use std::borrow::Cow;

use crate::name::Name;

/// Bytes of a path that are kept.
const MAX_PATH: usize = 512;

/// Parameters of a target's query. Keys and tokens travel there as well: nothing else of it is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Query {
    /// `model` (OpenAI Realtime) or `deployment` (Azure).
    pub model: Option<Name>,
    /// `stream=true` (an OpenAI response that is sent again).
    pub stream: bool,
    /// `alt=sse` (Gemini, Vertex).
    pub alt_sse: bool,
}

/// The path of a target in origin form or absolute form, and the authority of the latter.
pub(super) fn path_of(target: &[u8]) -> (String, Option<&[u8]>) {
    let (rest, authority) = match memchr::memmem::find(target, b"://") {
        Some(i) if !target.starts_with(b"/") => {
            let rest = &target[i + 3..];
            let slash = memchr::memchr(b'/', rest).unwrap_or(rest.len());
            (&rest[slash..], Some(&rest[..slash]))
        }
        _ => (target, None),
    };
    let path = rest.split(|b| *b == b'?' || *b == b'#').next().unwrap_or(rest);
    (String::from_utf8_lossy(&path[..path.len().min(MAX_PATH)]).into_owned(), authority)
}

/// A target without those parameters that are not looked at, since keys travel there, and cut like a path.
pub(super) fn without_secrets(target: &[u8]) -> Cow<'_, [u8]> {
    let start = memchr::memchr2(b'?', b'#', target).unwrap_or(target.len());
    let path = &target[..start.min(MAX_PATH)];
    let looked_at =
        |part: &&[u8]| ["model=", "deployment=", "stream=", "alt=", "$alt=", "%24alt="].iter().any(|key| part.starts_with(key.as_bytes()));
    let parts = target[start..].split(|b| matches!(b, b'?' | b'&' | b'#')).filter(looked_at);
    let mut query = Vec::new();
    for (n, part) in parts.enumerate() {
        query.push(if n == 0 { b'?' } else { b'&' });
        query.extend_from_slice(&part[..part.len().min(MAX_PATH)]);
    }
    if query.is_empty() { Cow::Borrowed(path) } else { Cow::Owned([path, &query].concat()) }
}

/// The parameters of a target that are looked at.
pub(super) fn query_of(target: &[u8]) -> Query {
    let mut query = Query::default();
    let Some(start) = memchr::memchr(b'?', target) else { return query };
    for part in target[start + 1..].split(|b| *b == b'&' || *b == b'#') {
        let (key, value) = part.split_at(memchr::memchr(b'=', part).unwrap_or(part.len()));
        let value = value.strip_prefix(b"=").unwrap_or(value);
        match key {
            b"model" | b"deployment" => query.model = query.model.or_else(|| Name::new(&percent_decoded(text(value)?))),
            b"stream" => query.stream = value == b"true",
            b"alt" | b"$alt" | b"%24alt" => query.alt_sse = value.starts_with(b"sse"),
            _ => {}
        }
    }
    query
}

/// A part of a target without its percent encoding (RFC 3986 §2.1); what is no valid encoding stays as it is.
pub fn percent_decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..2).filter(|_| byte == b'%').and_then(|h| u8::from_str_radix(std::str::from_utf8(h).ok()?, 16).ok());
        out.push(code.unwrap_or(byte));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The name in `name:port`, `[v6]:port`, `user@name`.
pub(super) fn host_name(value: &[u8]) -> Option<Name> {
    let value = text(value)?;
    let value = value.rsplit('@').next().unwrap_or(value);
    let name = match value.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(v6),
        None => value.split(':').next().unwrap_or(value),
    };
    Name::new(&name.to_ascii_lowercase())
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_behind() {
        for (target, kept) in [
            ("/v1/chat", "/v1/chat"),
            ("/v1/x?key=SECRET", "/v1/x"),
            ("/v1/x?key=SECRET&alt=sse&model=m#frag", "/v1/x?alt=sse&model=m"),
            ("?deployment=d&modelkey=SECRET", "?deployment=d"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(target.as_bytes()), kept.as_bytes());
            assert_eq!(query_of(target.as_bytes()), query_of(kept.as_bytes()));
        }
        let long = format!("/{}?model={}", "a".repeat(9000), "b".repeat(9000));
        assert!(without_secrets(long.as_bytes()).len() <= 2 * MAX_PATH + 1);
    }
}
