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

/// The data of the whole chunk that `bytes` begin with, and what follows it; see [`super::Parser::is_before_chunk`]. Most senders write one chunk at
/// a time, so most packets are one.
#[inline]
pub fn first_chunk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut size, mut digits) = (0, 0);
    loop {
        let digit = HEX[usize::from(*bytes.get(digits)?)];
        if digit > 15 {
            break;
        }
        (size, digits) = (size << 4 | usize::from(digit), digits + 1);
        if digits > 7 {
            return None;
        }
    }
    let (data, rest) = bytes.get(digits..)?.strip_prefix(b"\r\n")?.split_at_checked(size)?;
    let rest = rest.strip_prefix(b"\r\n")?;
    (size > 0).then_some((data, rest))
}

/// The values of hexadecimal digits; 255 for all other bytes.
const HEX: [u8; 256] = {
    let mut hex = [255; 256];
    let mut n = 0;
    while n < 16 {
        hex[b"0123456789abcdef"[n] as usize] = n as u8;
        hex[b"0123456789ABCDEF"[n] as usize] = n as u8;
        n += 1;
    }
    hex
};
