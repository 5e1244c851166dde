//! A JSON body reduced as it streams: its structure, its numbers and its short strings are kept; texts are cut, what lies deeper
//! than wanted becomes empty, and of an array of numbers only the beginning stays (embeddings). So a request with a prompt of
//! megabytes, or an answer with a book in it, costs a few kilobytes and is read by an ordinary JSON parser afterwards.
//!
//! It does not validate: what was malformed before is malformed after.

use crate::anomaly::Anomaly;

/// Bytes kept of one string.
const MAX_STRING: usize = 192;
/// Numbers kept of one array.
const MAX_NUMBERS: u32 = 4;
/// Elements kept of one array, whatever they are: answers have few choices, but a thousand vectors or ranked documents.
const MAX_ELEMENTS: u32 = 128;
/// Bytes kept of one body.
pub const MAX_BODY: usize = 64 << 10;
/// Nesting that is followed; beyond it, the body is not one of ours.
const MAX_DEPTH: usize = 64;

/// Reduces one JSON body.
#[derive(Debug)]
pub struct Skeleton {
    out: Vec<u8>,
    /// Containers deeper than this are emptied.
    keep_depth: usize,
    /// The open containers: whether each is an array, and how many elements it has kept.
    stack: Vec<Level>,
    /// Open containers beyond `keep_depth`.
    deeper: usize,
    state: State,
    overflow: bool,
    hole: bool,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    array: bool,
    kept: u32,
    numbers: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Between tokens.
    Plain,
    /// In a string: bytes kept so far, whether it is kept at all, whether the next byte is escaped.
    String { kept: usize, keep: bool, escaped: bool, cut: bool },
    /// In a number or a literal.
    Scalar { keep: bool },
}

impl Skeleton {
    /// Keeps containers down to `keep_depth` (the root is 1).
    pub fn new(keep_depth: usize) -> Self {
        Self { out: Vec::new(), keep_depth, stack: Vec::new(), deeper: 0, state: State::Plain, overflow: false, hole: false }
    }

    /// Begins anew with another body, in the same memory.
    pub fn clear(&mut self) {
        self.out.clear();
        self.stack.clear();
        (self.deeper, self.state, self.overflow, self.hole) = (0, State::Plain, false, false);
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.out.capacity()
    }

    /// Bytes are missing here: the body cannot be read any more.
    pub fn hole(&mut self) {
        self.hole = true;
        self.out = Vec::new();
    }

    /// The reduced body.
    ///
    /// # Errors
    /// [`Anomaly::BodyTooLong`] when even the reduced body exceeded its bound; [`Anomaly::BadJson`] after a hole.
    pub fn finish(&self) -> Result<&[u8], Anomaly> {
        match (self.hole, self.overflow) {
            (true, _) => Err(Anomaly::BadJson),
            (_, true) => Err(Anomaly::BodyTooLong),
            _ => Ok(&self.out),
        }
    }

    /// Takes the next piece of the body.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if self.overflow || self.hole {
            return;
        }
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Plain => self.plain(bytes),
                State::Scalar { keep } => {
                    let end =
                        bytes.iter().position(|b| matches!(b, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t')).unwrap_or(bytes.len());
                    if keep {
                        self.out.extend_from_slice(&bytes[..end]);
                    }
                    if end < bytes.len() {
                        self.state = State::Plain;
                    }
                    &bytes[end..]
                }
                State::String { kept, keep, escaped, cut } => self.string(bytes, kept, keep, escaped, cut),
            };
            if self.out.len() > MAX_BODY {
                self.overflow = true;
                self.out = Vec::new();
                return;
            }
        }
    }

    fn plain<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (byte, rest) = (bytes[0], &bytes[1..]);
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | b',' => {}
            b':' => {
                if self.deeper == 0 {
                    self.out.push(b':');
                }
            }
            b'{' | b'[' => self.open(byte),
            b'}' | b']' => self.close(byte),
            b'"' => {
                let keep = self.element(false);
                if keep {
                    self.out.push(b'"');
                }
                self.state = State::String { kept: 0, keep, escaped: false, cut: false };
            }
            _ => {
                let keep = self.element(true);
                self.state = State::Scalar { keep };
                return bytes;
            }
        }
        rest
    }

    /// An element begins: writes the comma before it. Whether it is kept.
    fn element(&mut self, scalar: bool) -> bool {
        if self.deeper > 0 {
            return false;
        }
        let value = self.out.last() == Some(&b':');
        let Some(level) = self.stack.last_mut() else { return true };
        if level.array && scalar {
            level.numbers += 1;
            if level.numbers > MAX_NUMBERS {
                return false;
            }
        }
        if level.array && level.kept >= MAX_ELEMENTS {
            return false;
        }
        if level.array || !value {
            if level.kept > 0 {
                self.out.push(b',');
            }
            level.kept += 1;
        }
        true
    }

    fn open(&mut self, byte: u8) {
        if self.stack.len() + self.deeper >= MAX_DEPTH {
            self.overflow = true;
            return;
        }
        if self.deeper > 0 || self.stack.len() >= self.keep_depth {
            if self.deeper == 0 && self.element(false) {
                self.out.extend_from_slice(if byte == b'{' { b"{}" } else { b"[]" });
            }
            self.deeper += 1;
            return;
        }
        if !self.element(false) {
            self.deeper += 1;
            return;
        }
        self.out.push(byte);
        self.stack.push(Level { array: byte == b'[', kept: 0, numbers: 0 });
    }

    fn close(&mut self, byte: u8) {
        if self.deeper > 0 {
            self.deeper -= 1;
        } else {
            self.stack.pop();
            self.out.push(byte);
        }
    }

    fn string<'a>(&mut self, bytes: &'a [u8], mut kept: usize, keep: bool, mut escaped: bool, mut cut: bool) -> &'a [u8] {
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            if !escaped && (cut || !keep) {
                // Nothing more is kept: on to the next quote or escape.
                match memchr::memchr2(b'"', b'\\', &bytes[at..]) {
                    Some(i) => at += i,
                    None => break,
                }
                if bytes[at] == b'"' {
                    return self.end_string(keep, &bytes[at + 1..]);
                }
                escaped = true;
                at += 1;
                continue;
            }
            if byte == b'"' && !escaped {
                return self.end_string(keep, &bytes[at + 1..]);
            }
            // A cut must not fall into an escape or a character: beyond the bound only continuations are taken.
            if keep && !cut {
                let continuation = escaped || byte & 0xc0 == 0x80;
                if kept >= MAX_STRING && (!continuation || kept >= MAX_STRING + 8) {
                    cut = true;
                    continue;
                }
                // `\uXXXX` must not be cut either, so an escape near the bound ends the kept part.
                if byte == b'\\' && !escaped && kept + 12 > MAX_STRING {
                    cut = true;
                    continue;
                }
                self.out.push(byte);
                kept += 1;
            }
            escaped = byte == b'\\' && !escaped;
            at += 1;
        }
        self.state = State::String { kept, keep, escaped, cut };
        &[]
    }

    fn end_string<'a>(&mut self, keep: bool, rest: &'a [u8]) -> &'a [u8] {
        if keep {
            self.out.push(b'"');
        }
        self.state = State::Plain;
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;
    use serde_json::Value;

    fn reduce(body: &[u8], depth: usize, size: usize) -> Result<String, Anomaly> {
        let mut s = Skeleton::new(depth);
        body.chunks(size).for_each(|p| s.push(p));
        s.finish().map(|b| String::from_utf8(b.to_vec()).unwrap())
    }

    fn check(body: &str, depth: usize, want: Expect) {
        let whole = reduce(body.as_bytes(), depth, usize::MAX).unwrap();
        want.assert_eq(&whole);
        for size in 1..=64 {
            assert_eq!(reduce(body.as_bytes(), depth, size).unwrap(), whole);
        }
    }

    #[test]
    fn depth_numbers_and_strings() {
        check(
            r#"{ "model" : "m", "messages":[{"role":"user","content":[{"a":1}]},{"b":{}}], "n": 2, "x":{"y":{"z":1},"w":true}, "stop":null }"#,
            2,
            expect![[r#"{"model":"m","messages":[{},{}],"n":2,"x":{"y":{},"w":true},"stop":null}"#]],
        );
        check(
            r#"{"data":[{"embedding":[0.1,0.2,-3e5,4,5,6,7,8]}],"usage":{"n":9}}"#,
            8,
            expect![[r#"{"data":[{"embedding":[0.1,0.2,-3e5,4]}],"usage":{"n":9}}"#]],
        );
        let long = format!(r#"{{"t":"{}","u":"{}","v":1}}"#, "ä\\n\\\"".repeat(400), "\\u00e4".repeat(400));
        for size in 1..300 {
            let out = reduce(long.as_bytes(), 2, size).unwrap();
            let v: Value = serde_json::from_str(&out).unwrap();
            assert!(v["t"].as_str().unwrap().starts_with("ä\n\"ä") && out.len() < 500, "{out}");
            assert_eq!(v["v"], 1);
        }
    }

    #[test]
    fn long_arrays_are_cut() {
        let list = |element: &str| format!(r#"{{"data":[{}],"n":1}}"#, vec![element; 50_000].join(","));
        for element in [r#"{"score":1,"text":"abcdefghijklmnopqrstuvwxyz"}"#, r#""abcdefghijklmnopqrstuvwxyz""#, "[1,[2,3]]", "1", "null"] {
            for size in [7, 4096] {
                let out: Value = serde_json::from_str(&reduce(list(element).as_bytes(), 4, size).unwrap()).unwrap();
                let scalar = matches!(element, "1" | "null");
                assert_eq!(out["data"].as_array().unwrap().len(), if scalar { MAX_NUMBERS } else { MAX_ELEMENTS } as usize, "{element}");
                assert_eq!(out["data"][0], serde_json::from_str::<Value>(element).unwrap());
                assert_eq!(out["n"], 1);
            }
        }
    }

    #[test]
    fn bounds() {
        assert_eq!(reduce("[".repeat(100_000).as_bytes(), 100, 7), Err(Anomaly::BodyTooLong));
        assert_eq!(reduce("{\"a\":1},".repeat(100_000).as_bytes(), 8, 999), Err(Anomaly::BodyTooLong));
        let mut s = Skeleton::new(3);
        s.push(b"{\"a\":");
        s.hole();
        s.push(b"1}");
        assert_eq!(s.finish(), Err(Anomaly::BadJson));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            ".{0,40}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 40, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map(".{0,5}", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect()))
            ]
        })
    }

    proptest! {
        /// A small document that is kept whole stays what it is, however it is cut.
        #[test]
        fn small_documents_stay(v in value(), size in 1usize..50, pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&v) } else { serde_json::to_string(&v) }.unwrap();
            let out = reduce(text.as_bytes(), 60, size).unwrap();
            prop_assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), v, "{}", out);
        }

        #[test]
        fn garbage_does_not_panic(bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\\x00a1 \xc3\xa4".to_vec()), 0..400), size in 1usize..50, depth in 0usize..4) {
            let mut s = Skeleton::new(depth);
            bytes.chunks(size).for_each(|p| s.push(p));
            let _ = s.finish();
        }
    }
}
