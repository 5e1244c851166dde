//! AWS event-stream messages (Bedrock; `application/vnd.amazon.eventstream`, the Smithy "Amazon Event Stream" specification), big-endian:
//!
//! ```text
//! u32 total length · u32 length of the headers · u32 CRC-32 of those 8 bytes · headers · payload · u32 CRC-32 of all before
//! header: u8 length of the name, name, u8 type, value
//! ```
//!
//! Both checksums are checked. After a hole, or a prelude whose checksum is wrong, the framer looks for the next 12
//! bytes whose checksum holds; a message whose own checksum is wrong is skipped by its length.

use crate::anomaly::Anomaly;
use crate::framing::{Frame, MAX_EVENT, Unit, clear};

/// The two lengths and their checksum.
const PRELUDE: usize = 12;
/// A message without headers and payload.
const SHORTEST: usize = PRELUDE + 4;

/// Cuts a body into messages.
#[derive(Debug, Default)]
pub struct Framer {
    /// The beginning of an unfinished message.
    message: Vec<u8>,
    /// Bytes of a message too long to be kept that are still to come.
    skip: usize,
    /// Whether a prelude is looked for.
    lost: bool,
}

/// What a prelude says.
struct Prelude {
    total: usize,
    headers: usize,
}

impl Prelude {
    /// Reads the first [`PRELUDE`] bytes.
    fn read(bytes: &[u8]) -> Result<Self, Anomaly> {
        let (Some(total), Some(headers), Some(crc)) = (word(bytes, 0), word(bytes, 4), word(bytes, 8)) else {
            return Err(Anomaly::BadMessage);
        };
        let whole = (total as usize).checked_sub(SHORTEST);
        if crc32fast::hash(&bytes[..8]) != crc {
            Err(Anomaly::BadChecksum)
        } else if whole.is_none_or(|most| headers as usize > most) {
            Err(Anomaly::BadMessage)
        } else {
            Ok(Self { total: total as usize, headers: headers as usize })
        }
    }
}

impl Framer {
    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.message.capacity()
    }

    /// Bytes are missing here.
    pub fn hole(&mut self) {
        clear(&mut self.message);
        (self.skip, self.lost) = (0, true);
    }

    /// The body ended. A message that was not complete is none.
    pub fn finish(&mut self, _: &mut impl FnMut(Unit<'_>)) {
        *self = Self::default();
    }

    /// Takes the next piece of the body.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            if self.message.is_empty() {
                match self.front(bytes, out) {
                    Some(used) => bytes = &bytes[used..],
                    None => {
                        self.message.extend_from_slice(bytes);
                        return;
                    }
                }
                continue;
            }
            // A message that began in an earlier piece: first its prelude, then the rest of it, and no byte more.
            let wanted = match self.message.len().checked_sub(PRELUDE) {
                None => PRELUDE,
                Some(_) => Prelude::read(&self.message).map_or(PRELUDE, |p| p.total),
            };
            let (part, rest) = bytes.split_at(bytes.len().min(wanted.saturating_sub(self.message.len())));
            self.message.extend_from_slice(part);
            bytes = rest;
            let message = std::mem::take(&mut self.message);
            let mut left = message.as_slice();
            while let Some(used) = self.front(left, out) {
                left = &left[used..];
            }
            let kept = left.len();
            self.message = message;
            if kept == 0 {
                clear(&mut self.message);
            } else {
                self.message.drain(..self.message.len() - kept);
            }
        }
    }

    /// Takes what can be taken off the front of `bytes`: a message, or what is none. `None` when more bytes must come first.
    fn front(&mut self, bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) -> Option<usize> {
        if self.lost && bytes.first().is_some_and(|b| *b != 0) {
            // Lengths beyond 16 MiB do not occur: a prelude begins with 0.
            return Some(memchr::memchr(0, bytes).unwrap_or(bytes.len()));
        }
        if bytes.len() < PRELUDE {
            return None;
        }
        let prelude = match Prelude::read(bytes) {
            Ok(prelude) => prelude,
            Err(what) => {
                if !self.lost {
                    out(Unit::Odd(what));
                    self.lost = true;
                }
                return Some(1);
            }
        };
        if prelude.total > MAX_EVENT {
            out(Unit::Odd(Anomaly::EventTooLong));
            self.lost = false;
            let here = prelude.total.min(bytes.len());
            self.skip = prelude.total - here;
            return Some(here);
        }
        let message = bytes.get(..prelude.total)?;
        self.lost = false;
        let (body, crc) = message.split_at(message.len() - 4);
        if word(crc, 0) != Some(crc32fast::hash(body)) {
            // The prelude's own checksum holds, and so does the length it gives.
            out(Unit::Odd(Anomaly::BadChecksum));
            return Some(prelude.total);
        }
        let (headers, data) = body[PRELUDE..].split_at(prelude.headers);
        match Headers::read(headers) {
            None => out(Unit::Odd(Anomaly::BadMessage)),
            Some(h) if data.is_empty() && !h.error => out(Unit::KeepAlive),
            Some(h) => out(Unit::Event(Frame { name: h.name, data, error: h.error })),
        }
        Some(prelude.total)
    }
}

/// What a message's headers say.
struct Headers<'a> {
    /// The type of the event, exception or error.
    name: &'a [u8],
    error: bool,
}

impl<'a> Headers<'a> {
    /// Reads the headers; `None` when they are malformed.
    fn read(mut bytes: &'a [u8]) -> Option<Self> {
        let mut found = Self { name: b"", error: false };
        let mut take = |n: usize| {
            let (part, rest) = bytes.split_at_checked(n)?;
            bytes = rest;
            Some(part)
        };
        while let Some(length) = take(1) {
            let name = take(usize::from(length[0]))?;
            let kind = take(1)?[0];
            let fixed = match kind {
                // True, false, byte, short, integer, long, timestamp, UUID.
                0 | 1 => 0,
                2 => 1,
                3 => 2,
                4 => 4,
                5 | 8 => 8,
                9 => 16,
                6 | 7 => {
                    let length = take(2)?;
                    usize::from(u16::from_be_bytes([length[0], length[1]]))
                }
                _ => return None,
            };
            let value = take(fixed)?;
            match (name, kind) {
                (b":message-type", 7) => found.error = value != b"event",
                (b":event-type" | b":exception-type" | b":error-code", 7) => found.name = value,
                _ => {}
            }
        }
        Some(found)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::testing::{check, show};
    use expect_test::expect;

    /// A message with these headers (name, type, value as on the wire).
    fn message(headers: &[(&str, u8, &[u8])], payload: &[u8]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, kind, value) in headers {
            block.push(name.len() as u8);
            block.extend_from_slice(name.as_bytes());
            block.push(*kind);
            if matches!(kind, 6 | 7) {
                block.extend((value.len() as u16).to_be_bytes());
            }
            block.extend_from_slice(value);
        }
        let mut out = Vec::new();
        out.extend(((SHORTEST + block.len() + payload.len()) as u32).to_be_bytes());
        out.extend((block.len() as u32).to_be_bytes());
        out.extend(crc32fast::hash(&out).to_be_bytes());
        out.extend(block);
        out.extend_from_slice(payload);
        out.extend(crc32fast::hash(&out).to_be_bytes());
        out
    }

    fn event(name: &str, payload: &str) -> Vec<u8> {
        message(&[(":event-type", 7, name.as_bytes()), (":message-type", 7, b"event")], payload.as_bytes())
    }

    #[test]
    fn headers_of_every_type() {
        let all: &[(&str, u8, &[u8])] = &[
            ("t", 0, b""),
            ("f", 1, b""),
            ("b", 2, b"1"),
            ("s", 3, b"12"),
            ("i", 4, b"1234"),
            ("l", 5, b"12345678"),
            ("y", 6, b":event-type"),
            ("d", 8, b"12345678"),
            ("u", 9, b"1234567890123456"),
            (":message-type", 7, b"event"),
            (":event-type", 7, b"chunk"),
            (":content-type", 7, b"application/json"),
        ];
        let exception = message(&[(":message-type", 7, b"exception"), (":exception-type", 7, b"throttlingException")], b"{}");
        let error = message(&[(":message-type", 7, b"error"), (":error-code", 7, b"InternalFailure")], b"");
        let unknown = message(&[("x", 10, b"")], b"{}");
        let cut = message(&[("x", 5, b"short")], b"{}");
        let body = [message(all, b"{\"a\":1}"), message(all, b""), exception, error, unknown, cut, event("e", "last")].concat();
        check!(
            Framer::default(),
            &[&body],
            expect![[r#"
                [chunk] {"a":1}
                keep-alive
                [throttlingException!] {}
                [InternalFailure!] 
                odd bad_message
                odd bad_message
                [e] last
            "#]]
        );
    }

    #[test]
    fn after_a_hole_or_a_wrong_checksum_it_finds_the_next_message() {
        let (a, b, c) = (event("a", "{\"n\":1}"), event("b", "{\"n\":2}"), event("c", "{\"n\":3}"));
        for cut in 0..b.len() {
            for lost in [1, 5, 40] {
                let behind = [&b[(cut + lost).min(b.len())..], &c].concat();
                check!(
                    Framer::default(),
                    &[&[a.as_slice(), &b[..cut]].concat(), &behind],
                    expect![[r#"
                        [a] {"n":1}
                        [c] {"n":3}
                    "#]]
                );
            }
            // Any byte of a message that is wrong is noticed, and the next message is not lost.
            let mut wrong = b.clone();
            wrong[cut] ^= 0x40;
            check!(
                Framer::default(),
                &[&[a.as_slice(), &wrong, &c].concat()],
                expect![[r#"
                    [a] {"n":1}
                    odd bad_checksum
                    [c] {"n":3}
                "#]]
            );
        }
        // Right behind a hole.
        check!(
            Framer::default(),
            &[&a, &c],
            expect![[r#"
                [a] {"n":1}
                [c] {"n":3}
            "#]]
        );
    }

    #[test]
    fn impossible_lengths() {
        let mut short = Vec::from([0, 0, 0, 15, 0, 0, 0, 0]);
        short.extend(crc32fast::hash(&short).to_be_bytes());
        let mut headers = Vec::from([0, 0, 0, 16, 0, 0, 0, 1]);
        headers.extend(crc32fast::hash(&headers).to_be_bytes());
        check!(
            Framer::default(),
            &[&[short, event("a", "{}"), headers, event("b", "{}"), vec![0; 11]].concat()],
            expect![[r#"
                odd bad_message
                [a] {}
                odd bad_message
                [b] {}
            "#]]
        );
    }

    #[test]
    fn a_message_that_is_too_long_is_skipped_by_its_length() {
        let long = event("long", &"x".repeat(2 * MAX_EVENT));
        let next = event("next", "{}");
        let mut out = String::new();
        let mut framer = Framer::default();
        for piece in [long, next].concat().chunks(100_000) {
            framer.push(piece, &mut |u| show(u, &mut out));
            assert!(framer.buffered() <= 3 * MAX_EVENT);
        }
        assert_eq!(out, "odd event_too_long\n[next] {}\n");
    }
}
