//! The fast path of a stream: its chunks differ in one text, and in what says nothing (a running number, padding). Once a chunk was
//! parsed and found to be nothing but one piece of output, its name and what stood around those places are remembered; a later
//! chunk with the same bytes there is the same event, and needs no parsing.
//!
//! The output's own text is not remembered. That the shortcut never changes a result is held by a property test
//! (`tests/tests/recordings.rs`: every event of every recording and flow, and mutations of them, with and without it).

use memchr::memmem;

use crate::framing::Frame;

use super::{LlmEvent, Output};

/// Longest frame that is remembered.
const MAX_SHAPE: usize = 4096;

/// Fields that change from chunk to chunk and that no dialect reads: the running number and the padding of OpenAI's events, the
/// ids of Realtime's and of Gemini's interactions, the padding of Bedrock and Mistral. In valid JSON these bytes are a field's
/// name wherever they stand: within a string their quotes would be escaped.
const NOISE: [&[u8]; 4] = [b"\"sequence_number\":", b"\"obfuscation\":", b"\"event_id\":", b"\"p\":"];

/// A place where chunks of one shape differ.
#[derive(Clone, Copy, Default, Debug)]
enum Hole {
    /// The output: a string that is not empty.
    #[default]
    Text,
    /// Any string.
    Noise,
    /// A whole number.
    Number,
}

impl Hole {
    /// How many of these bytes fill the hole; `None` when what stands here is something else, or would need a parser.
    fn length(self, bytes: &[u8]) -> Option<usize> {
        if let Self::Number = self {
            let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
            return ((1..=15).contains(&digits) && (digits == 1 || bytes[0] != b'0')).then_some(digits);
        }
        // A whole string: no escape in it, no raw control, and UTF-8.
        let end = memchr::memchr2(b'"', b'\\', bytes).filter(|end| bytes[*end] == b'"')?;
        let text = &bytes[..end];
        let whole = text.iter().all(|b| *b >= 0x20) && std::str::from_utf8(text).is_ok();
        (whole && (end > 0 || matches!(self, Self::Noise))).then_some(end)
    }
}

/// The shape of the last chunk that was one piece of output.
#[derive(Debug, Default)]
pub struct Shape {
    name: Vec<u8>,
    /// What stands around the holes, one part behind the other.
    fixed: Vec<u8>,
    /// Where the part before each hole ends in `fixed`, and what the hole is.
    holes: [(usize, Hole); NOISE.len() + 1],
    count: usize,
    choice: u32,
    kind: Option<Output>,
}

impl Shape {
    /// What `frame` is, if its shape is the remembered one.
    pub fn event(&self, frame: Frame<'_>) -> Option<LlmEvent> {
        let kind = self.kind.filter(|_| frame.name == self.name && !frame.error)?;
        let (mut rest, mut from) = (frame.data, 0);
        for (end, hole) in self.holes.iter().take(self.count) {
            rest = rest.strip_prefix(&self.fixed[from..*end])?;
            rest = &rest[hole.length(rest)?..];
            from = *end;
        }
        (*rest == self.fixed[from..]).then_some(LlmEvent::Delta { choice: self.choice, kind })
    }

    /// Remembers `frame`, which was parsed and found to be nothing but `text` of this kind.
    pub fn learn(&mut self, frame: Frame<'_>, text: &str, choice: u32, kind: Output) {
        self.kind = None;
        let data = frame.data;
        let Some(start) = (text.as_ptr() as usize).checked_sub(data.as_ptr() as usize) else { return };
        let end = start + text.len();
        if data.len() > MAX_SHAPE || frame.error || data.get(start.wrapping_sub(1)) != Some(&b'"') || data.get(end) != Some(&b'"') {
            return;
        }
        let mut found = [(start, end, Hole::Text); NOISE.len() + 1];
        let mut count = 1;
        for (at, end, hole) in NOISE.iter().filter_map(|field| noise(data, field)) {
            found[count] = (at, end, hole);
            count += 1;
        }
        found[..count].sort_unstable_by_key(|(at, ..)| *at);
        self.name.clear();
        self.name.extend_from_slice(frame.name);
        self.fixed.clear();
        let mut from = 0;
        for (n, (at, end, hole)) in found.into_iter().take(count).enumerate() {
            self.fixed.extend_from_slice(&data[from..at]);
            self.holes[n] = (self.fixed.len(), hole);
            from = end;
        }
        self.fixed.extend_from_slice(&data[from..]);
        (self.count, self.choice, self.kind) = (count, choice, Some(kind));
    }
}

/// Where the value of `field` stands, if it is a plain string or a whole number.
fn noise(data: &[u8], field: &[u8]) -> Option<(usize, usize, Hole)> {
    let behind = memmem::find(data, field)? + field.len();
    let blanks = data[behind..].iter().take_while(|b| **b == b' ').count();
    let at = behind + blanks;
    let (at, hole) = if data.get(at) == Some(&b'"') { (at + 1, Hole::Noise) } else { (at, Hole::Number) };
    let length = hole.length(data.get(at..)?)?;
    Some((at, at + length, hole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_nothing_may_differ_and_nothing_else() {
        let frame = |data: &'static str| Frame { name: b"n", data: data.as_bytes(), error: false };
        let learned = |data: &'static str, text: &str| {
            let mut shape = Shape::default();
            let at = data.find(text).unwrap();
            shape.learn(frame(data), &data[at..at + text.len()], 3, Output::Text);
            shape
        };
        let want = Some(LlmEvent::Delta { choice: 3, kind: Output::Text });
        let shape = learned(r#"{"sequence_number":9,"delta":"abc","obfuscation": "xy","q":1}"#, "abc");
        for same in [
            r#"{"sequence_number":9,"delta":"abc","obfuscation": "xy","q":1}"#,
            r#"{"sequence_number":10,"delta":"z","obfuscation": "","q":1}"#,
            r#"{"sequence_number":0,"delta":"ä","obfuscation": "ö","q":1}"#,
        ] {
            assert_eq!(shape.event(frame(same)), want, "{same}");
        }
        for other in [
            r#"{"sequence_number":09,"delta":"abc","obfuscation": "xy","q":1}"#,
            r#"{"sequence_number":,"delta":"abc","obfuscation": "xy","q":1}"#,
            r#"{"sequence_number":-1,"delta":"abc","obfuscation": "xy","q":1}"#,
            r#"{"sequence_number":1,"delta":"","obfuscation": "xy","q":1}"#,
            r#"{"sequence_number":1,"delta":"a\"","obfuscation": "xy","q":1}"#,
            r#"{"sequence_number":1,"delta":"a","obfuscation": "\n","q":1}"#,
            r#"{"sequence_number":1,"delta":"a","obfuscation": "xy","q":2}"#,
            r#"{"sequence_number":1,"delta":"a","obfuscation": "xy","q":1"#,
            "{\"sequence_number\":1,\"delta\":\"a\",\"obfuscation\": \"\u{1}\",\"q\":1}",
        ] {
            assert_eq!(shape.event(frame(other)), None, "{other}");
        }
        assert_eq!(shape.event(Frame { name: b"m", ..frame(r#"{"sequence_number":9,"delta":"abc","obfuscation": "xy","q":1}"#) }), None);
        // A text too odd for a hole is part of what must be the same, and so is what follows a whole number.
        let odd = learned(r#"{"p":"a\"b","sequence_number":1.5,"delta":"abc"}"#, "abc");
        assert_eq!(odd.event(frame(r#"{"p":"a\"b","sequence_number":1.5,"delta":"d"}"#)), want);
        assert_eq!(odd.event(frame(r#"{"p":"a\"c","sequence_number":1.5,"delta":"d"}"#)), None);
        assert_eq!(odd.event(frame(r#"{"p":"a\"b","sequence_number":1,"delta":"d"}"#)), None);
    }
}
