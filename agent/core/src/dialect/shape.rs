//! The fast path of a stream: its chunks differ in one string only. Once a chunk was parsed and found to be nothing but one piece
//! of output, its name and what stood around that string are remembered; a later chunk with the same bytes there is the same event,
//! and needs no parsing. Values that change from chunk to chunk and that no dialect reads ([`NOISE`]) become holes as well, once shapes without
//! them did not last.
//!
//! The output's own text is not remembered. That the shortcut never changes a result is held by a property test
//! (`tests/tests/recordings.rs`: every event of every recording and flow, and mutations of them, with and without it).
//!
//! # What it gave
//! On the bench's capture a chunk costs 1,900 instructions with `serde_json` and 90 with the shape. One block for all remembered bytes
//! instead of three vectors took two waits for memory away; one loop over the text instead of `memchr2`, a second pass for
//! controls and `from_utf8` a third of the remaining instructions, because texts are a few bytes long.

use std::sync::Arc;

use crate::framing::Frame;

use super::{LlmEvent, Output};

/// Longest frame that is remembered.
const MAX_SHAPE: usize = 4096;

/// Keys whose values no dialect reads, and which some servers change with every chunk: the running number and the padding of OpenAI's
/// events, the ids of Realtime's and of Gemini's interactions, the padding of Bedrock and Mistral, the clock of servers that stamp
/// chunks. In valid JSON these bytes are a field's name wherever they stand: within a string their quotes would be escaped.
const NOISE: [&[u8]; 6] = [b"\"obfuscation\"", b"\"created\"", b"\"created_at\"", b"\"sequence_number\"", b"\"event_id\"", b"\"p\""];

/// After so many shapes that did not fit, noise may be the reason: to look for it in every chunk has its price.
const STEADY: u8 = 2;

/// Holes of a shape: the text, and the noise.
const MAX_HOLES: usize = 1 + NOISE.len();

/// What may stand in a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Hole {
    /// The inside of a string that is not empty.
    #[default]
    Text,
    /// The inside of a string.
    String,
    /// A whole number.
    Digits,
}

/// The shape of the last chunk that was one piece of output. A copy shares what is remembered.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// For each hole how many bytes stand before it since the last one (two bytes) and what it takes; the frame's name; its data without the holes.
    bytes: Option<Arc<[u8]>>,
    name: u16,
    choice: u32,
    kind: Option<Output>,
    /// How many holes there are.
    used: u8,
    /// How often something was learnt: each time means that the shape before it did not fit.
    learnt: u8,
}

/// Bytes that describe a hole.
const HOLE: usize = 3;

impl Shape {
    /// What `frame` is, if its shape is the remembered one.
    pub fn event(&self, frame: Frame<'_>) -> Option<LlmEvent> {
        let (choice, kind) = self.delta(frame)?;
        Some(LlmEvent::Delta { choice, kind })
    }

    /// The choice and kind of output that `frame` is a piece of, if its shape is the remembered one. Such a frame has no line end in it.
    #[inline]
    pub fn delta(&self, frame: Frame<'_>) -> Option<(u32, Output)> {
        let kind = self.kind.filter(|_| !frame.error)?;
        let (holes, shape) = self.bytes.as_deref()?.split_at_checked(usize::from(self.used) * HOLE)?;
        let (name, mut shape) = shape.split_at_checked(self.name.into())?;
        // Names are mostly absent. To compare nothing with nothing costs 100 cycles where `memcmp` is done with masks: the processor
        // looks for the memory at the empty slice's address, which is none.
        if frame.name.len() != name.len() || !name.is_empty() && frame.name != name {
            return None;
        }
        let mut rest = frame.data;
        for hole in holes.chunks_exact(HOLE) {
            let (fixed, behind) = shape.split_at_checked(usize::from(u16::from_le_bytes([hole[0], hole[1]])))?;
            let (same, inside) = rest.split_at_checked(fixed.len())?;
            // What changes from stream to stream stands in front, and is the same in one.
            if same != fixed {
                return None;
            }
            rest = inside.get(Hole::of(hole[2]).length(inside)?..)?;
            shape = behind;
        }
        (rest == shape).then_some((self.choice, kind))
    }

    /// What is remembered, if it is anything: the choice and the kind of output.
    pub fn known(&self) -> Option<(u32, Output)> {
        self.kind.map(|kind| (self.choice, kind))
    }

    /// Whether both have learnt the same thing at the same time.
    pub fn is(&self, other: &Self) -> bool {
        match (&self.bytes, &other.bytes) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) && self.kind == other.kind,
            _ => false,
        }
    }

    /// Asks for the memory that [`Shape::delta`] will need. The result says nothing.
    #[inline]
    pub fn touch(&self) -> u8 {
        self.bytes.as_deref().unwrap_or_default().iter().step_by(64).fold(0, |all, byte| all ^ byte)
    }

    /// Remembers `frame`, which was parsed and found to be nothing but `text` of this kind.
    pub fn learn(&mut self, frame: Frame<'_>, text: &str, choice: u32, kind: Output) {
        self.kind = None;
        let data = frame.data;
        let Some(start) = (text.as_ptr() as usize).checked_sub(data.as_ptr() as usize) else { return };
        let end = start + text.len();
        if data.len() + frame.name.len() > MAX_SHAPE
            || end > data.len()
            || data.get(start.wrapping_sub(1)) != Some(&b'"')
            || data.get(end) != Some(&b'"')
            || frame.error
            || memchr::memchr2(b'\n', b'\r', data).is_some()
        {
            return;
        }
        let mut holes = [const { (0..0, Hole::Text) }; MAX_HOLES];
        holes[0].0 = start..end;
        let mut used = 1;
        self.learnt = self.learnt.saturating_add(1);
        for key in NOISE.into_iter().filter(|_| self.learnt > STEADY) {
            if let Some((place, hole)) = noise(data, key).filter(|(place, _)| place.end <= start || end <= place.start) {
                holes[used] = (place, hole);
                used += 1;
            }
        }
        let holes = &mut holes[..used];
        holes.sort_by_key(|(place, _)| place.start);
        let mut bytes = Vec::with_capacity(used * HOLE + frame.name.len() + data.len());
        let mut from = 0;
        for (place, hole) in holes.iter() {
            // at most MAX_SHAPE
            bytes.extend_from_slice(&((place.start - from) as u16).to_le_bytes());
            bytes.push(*hole as u8);
            from = place.end;
        }
        bytes.extend_from_slice(frame.name);
        let mut from = 0;
        for (place, _) in holes.iter() {
            bytes.extend_from_slice(&data[from..place.start]);
            from = place.end;
        }
        bytes.extend_from_slice(&data[from..]);
        (self.bytes, self.name, self.used) = (Some(bytes.into()), frame.name.len() as u16, used as u8);
        (self.choice, self.kind) = (choice, Some(kind));
    }
}

impl Hole {
    const fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Text,
            1 => Self::String,
            _ => Self::Digits,
        }
    }

    /// How many bytes at the front of `rest` belong to the hole; `None` when they cannot be what they should be, or only a parser can
    /// tell.
    #[inline]
    fn length(self, rest: &[u8]) -> Option<usize> {
        if self == Self::Digits {
            let n = rest.iter().take(19).take_while(|b| b.is_ascii_digit()).count();
            return (n == 1 || (2..=18).contains(&n) && rest.first() != Some(&b'0')).then_some(n);
        }
        if let Some(n) = simple(rest) {
            return (n > 0 || self == Self::String).then_some(n);
        }
        let (mut n, mut all) = (0, 0);
        loop {
            let byte = *rest.get(n)?;
            all |= byte;
            n += 1;
            if PLAIN[usize::from(byte)] {
                continue;
            }
            match byte {
                b'"' => break,
                b'\\' if matches!(rest.get(n)?, b'n' | b'"' | b'\\' | b't' | b'r' | b'/' | b'b' | b'f') => n += 1,
                _ => return None,
            }
        }
        n -= 1;
        let fits = n > 0 || self == Self::String;
        (fits && (all < 0x80 || std::str::from_utf8(&rest[..n]).is_ok())).then_some(n)
    }
}

/// How many bytes stand before the quote that ends a string of plain ASCII, as nearly all are; `None` when it is another one. Eight bytes
/// at a time: in the lowest byte that one of the three tests marks, it is right (Hacker's Delight, 6-1).
#[inline]
fn simple(rest: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut n = 0;
    loop {
        let eight = u64::from_le_bytes(*rest.get(n..)?.first_chunk()?);
        let below = |bound: u64, value: u64| value.wrapping_sub(ONES * bound) & !value;
        let quote = below(1, eight ^ (ONES * 0x22));
        let odd = below(1, eight ^ (ONES * 0x5c)) | below(0x20, eight) | eight;
        let stop = (quote | odd) & HIGH;
        if stop != 0 {
            let at = stop.trailing_zeros() / 8;
            n += at as usize;
            return (rest.get(n) == Some(&b'"')).then_some(n);
        }
        n += 8;
    }
}

/// Bytes that stand for themselves inside a JSON string (RFC 8259 section 7), be they part of a character or one.
const PLAIN: [bool; 256] = {
    let mut plain = [true; 256];
    let mut byte = 0;
    while byte < 0x20 {
        plain[byte] = false;
        byte += 1;
    }
    plain[b'"' as usize] = false;
    plain[b'\\' as usize] = false;
    plain
};

/// Where the value of `key` stands, if it is a string or a whole number.
fn noise(data: &[u8], key: &[u8]) -> Option<(std::ops::Range<usize>, Hole)> {
    let blank = |at: usize| at + data[at..].iter().take_while(|b| **b == b' ').count();
    let colon = blank(memchr::memmem::find(data, key)? + key.len());
    if data.get(colon) != Some(&b':') {
        return None;
    }
    let value = blank(colon + 1);
    let (start, hole) = if data.get(value) == Some(&b'"') { (value + 1, Hole::String) } else { (value, Hole::Digits) };
    Some((start..start + hole.length(&data[start..])?, hole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(data: &str) -> Frame<'_> {
        Frame { data: data.as_bytes(), ..Frame::default() }
    }

    fn learnt(data: &str, text: &str) -> Shape {
        let mut shape = Shape::default();
        let at = data.find(text).unwrap();
        for _ in 0..=STEADY {
            shape.learn(frame(data), &data[at..at + text.len()], 3, Output::Text);
        }
        shape
    }

    #[test]
    fn text_and_noise_may_change_and_nothing_else() {
        let chunk = |created: &str, text: &str, padding: &str, more: &str| {
            format!(r#"{{"id":"x", "created": {created},"c":[{{"d":"{text}"}}]{more},"obfuscation":"{padding}"}}"#)
        };
        let shape = learnt(&chunk("170", "hello", "abc", ""), "hello");
        let same = |data: String| shape.delta(frame(&data)) == Some((3, Output::Text));
        for (created, text, padding) in [("170", "b", "abc"), ("0", "é\\n\\\"", ""), ("171", " ", "zzzzzzzzzzz"), ("9", "\\\\", "ä")] {
            assert!(same(chunk(created, text, padding, "")), "{created} {text} {padding}");
        }
        for (created, text, padding, more) in [
            ("01", "a", "", ""),
            ("", "a", "", ""),
            ("1.5", "a", "", ""),
            ("1", "", "", ""),
            ("1", "\\u0041", "", ""),
            ("1", "a\u{1}", "", ""),
            ("1", "a", "\n", ""),
            ("1", "a", "", r#","error":{}"#),
            ("1", r#"a","x":"b"#, "", ""),
            ("1", "a", r#"","usage":{},"x":""#, ""),
        ] {
            assert!(!same(chunk(created, text, padding, more)), "{created} {text} {padding} {more}");
        }
        let whole = chunk("1", "a", "b", "");
        for n in 0..whole.len() {
            assert!(!same(whole[..n].to_owned()));
        }
        assert_eq!(shape.delta(Frame { name: b"other", ..frame(&whole) }), None);
        assert_eq!(shape.delta(Frame { error: true, ..frame(&whole) }), None);
    }

    #[test]
    fn what_cannot_be_one_line_of_a_stream_is_not_remembered() {
        assert_eq!(learnt("{\"a\":\n\"text\"}", "text").delta(frame("{\"a\":\n\"text\"}")), None);
    }
}
