//! Where heads end and chunks begin.

/// The end of a head and the beginning of what follows, looked for from `from` on. Bare line feeds are tolerated (RFC 9112 §2.2).
pub(super) fn head_end(bytes: &[u8], from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    while let Some(i) = memchr::memchr(b'\n', &bytes[at..]) {
        let end = at + i;
        match &bytes[end + 1..] {
            [b'\n', ..] => return Some((end, end + 2)),
            [b'\r', b'\n', ..] => return Some((end, end + 3)),
            _ => at = end + 1,
        }
    }
    None
}

/// A chunk's size and where its data begins, when a whole size line stands here.
pub(super) fn chunk_size(bytes: &[u8]) -> Option<(u64, usize)> {
    let digits = bytes.iter().take(9).take_while(|b| b.is_ascii_hexdigit()).count();
    if digits == 0 || digits > 8 || !bytes[digits..].starts_with(b"\r\n") {
        return None;
    }
    let size = u64::from_str_radix(std::str::from_utf8(&bytes[..digits]).ok()?, 16).ok()?;
    Some((size, digits + 2))
}
