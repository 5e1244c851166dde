//! Server-sent events (WHATWG HTML §9.2), with the tolerances that streams in the field need: LF, CRLF and CR; `data:` with or
//! without a space; comments anywhere; a last event without its blank line; bare JSON between events (Vertex); the field
//! `error:` (old llama.cpp, others). Unknown lines are counted, never fatal.
//!
//! An event that lies within one piece, on one `data:` line, is handed on as a slice of that piece: nothing is copied.
//! After a hole the framer skips to the next blank line, unless what follows begins with a field's name.

use crate::anomaly::Anomaly;
use crate::framing::{Frame, MAX_EVENT, Unit, clear};

/// Bytes of an event's name that are kept.
const MAX_NAME: usize = 64;

/// The one event that `bytes` are, if they are one line of data, before it at most its name, and a blank line. That no line end stands in
/// the data is for the caller to make sure; then [`Framer::push`] would hand on just this, if [`Framer::is_idle`].
#[inline]
pub fn one_event(bytes: &[u8]) -> Option<Frame<'_>> {
    let rest = bytes.strip_suffix(b"\n\n");
    if let Some(data) = rest.and_then(|rest| rest.strip_prefix(b"data: ")).filter(|data| !data.is_empty()) {
        return Some(Frame { name: &[], data, error: false });
    }
    one_event_of_other_form(bytes)
}

/// Carriage returns, a name, no space behind the colon.
fn one_event_of_other_form(bytes: &[u8]) -> Option<Frame<'_>> {
    let crlf = bytes.strip_suffix(b"\r\n\r\n");
    let mut rest = crlf.or_else(|| bytes.strip_suffix(b"\n\n"))?;
    let mut name = &rest[..0];
    if let Some(named) = rest.strip_prefix(b"event: ") {
        let end = memchr::memchr(b'\n', named)?;
        rest = &named[end + 1..];
        name = if crlf.is_some() { named[..end].strip_suffix(b"\r")? } else { &named[..end] };
        if name.len() > MAX_NAME || name.contains(&b'\r') {
            return None;
        }
    }
    let data = rest.strip_prefix(b"data:")?;
    let data = data.strip_prefix(b" ").unwrap_or(data);
    (!data.is_empty()).then_some(Frame { name, data, error: false })
}

/// Cuts a body into events. What [`Framer::is_idle`] looks at stands first.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Framer {
    /// An unfinished line.
    line: Vec<u8>,
    name: Vec<u8>,
    /// Whether `data` holds a line (it may be an empty one).
    has_data: bool,
    /// Whether the unfinished event consists of lines outside the framing (bare JSON).
    raw: bool,
    commented: bool,
    /// The last piece ended with CR: an LF at the beginning of the next belongs to it.
    after_cr: bool,
    skip: Skip,
    /// Data lines of the unfinished event, joined by line feeds.
    data: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Skip {
    #[default]
    No,
    /// A hole lies before the next byte.
    Hole,
    /// The rest of the event is not wanted.
    Event,
}

impl Framer {
    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.line.capacity() + self.data.capacity()
    }

    /// Whether what comes next begins an event.
    #[inline]
    pub fn is_idle(&self) -> bool {
        let pending = self.has_data | self.raw | self.commented | self.after_cr;
        self.line.is_empty() && self.name.is_empty() && !pending && self.skip == Skip::No
    }

    /// Bytes are missing here.
    pub fn hole(&mut self) {
        self.forget();
        self.after_cr = false;
        self.skip = Skip::Hole;
    }

    /// The body ended: an event without its blank line is complete.
    pub fn finish(&mut self, out: &mut impl FnMut(Unit<'_>)) {
        if self.skip == Skip::No {
            let line = std::mem::take(&mut self.line);
            if !line.is_empty() {
                self.field(&line, out);
            }
            self.dispatch(out);
        }
        self.forget();
    }

    /// Takes the next piece of the body.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        if self.after_cr && bytes.first() == Some(&b'\n') {
            bytes = &bytes[1..];
            self.after_cr = false;
        }
        if !bytes.is_empty() {
            self.after_cr = false;
            if self.skip == Skip::Hole && !self.decide(bytes) {
                return;
            }
        }
        while !bytes.is_empty() {
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else {
                self.keep(bytes, out);
                return;
            };
            let line = &bytes[..end];
            let mut next = end + 1;
            if bytes[end] == b'\r' {
                match bytes.get(next) {
                    Some(b'\n') => next += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            bytes = &bytes[next..];
            if self.line.is_empty() {
                // The common case: `data: …` on one line, its blank line right behind it, nothing pending.
                if let Some(value) = line.strip_prefix(b"data:").map(|v| v.strip_prefix(b" ").unwrap_or(v))
                    && bytes.first() == Some(&b'\n')
                    && !self.has_data
                    && !value.is_empty()
                    && self.skip == Skip::No
                    && !self.after_cr
                {
                    bytes = &bytes[1..];
                    out(Unit::Event(Frame { name: &self.name, data: value, error: false }));
                    self.forget();
                    continue;
                }
                self.take_line(line, out);
            } else {
                self.keep(line, out);
                let whole = std::mem::take(&mut self.line);
                self.take_line(&whole, out);
                if self.line.is_empty() {
                    self.line = whole;
                    self.line.clear();
                }
            }
        }
    }

    /// Behind a hole: does a line begin here? False when that takes more bytes than there are; they are held.
    fn decide(&mut self, bytes: &[u8]) -> bool {
        const FIELDS: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];
        let held = self.line.len();
        self.line.extend_from_slice(&bytes[..bytes.len().min(6)]);
        if FIELDS.iter().any(|f| self.line.starts_with(f)) {
            self.skip = Skip::No;
        } else if FIELDS.iter().any(|f| f.starts_with(&self.line)) {
            return false;
        } else {
            self.skip = Skip::Event;
        }
        self.line.truncate(held);
        true
    }

    fn keep(&mut self, bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        if self.skip != Skip::No {
            // A blank line is recognised by its being empty: one byte stands for a line that is not.
            if self.line.is_empty() && !bytes.is_empty() {
                self.line.push(b'x');
            }
            return;
        }
        if self.line.len() + self.data.len() + bytes.len() > MAX_EVENT {
            out(Unit::Odd(Anomaly::EventTooLong));
            self.forget();
            self.line = vec![b'x'];
            self.skip = Skip::Event;
            return;
        }
        self.line.extend_from_slice(bytes);
    }

    fn take_line(&mut self, line: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        if self.skip != Skip::No {
            if line.is_empty() {
                self.skip = Skip::No;
            }
        } else if line.is_empty() {
            self.dispatch(out);
        } else {
            self.field(line, out);
        }
    }

    fn field(&mut self, line: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        let (field, value) = match memchr::memchr(b':', line) {
            Some(i) => (&line[..i], line[i + 1..].strip_prefix(b" ").unwrap_or(&line[i + 1..])),
            None => (line, &line[..0]),
        };
        match field {
            b"data" => self.add(value, out),
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(&value[..value.len().min(MAX_NAME)]);
            }
            b"id" | b"retry" => {}
            b"" => self.commented = true,
            b"error" => {
                self.name.clear();
                self.name.extend_from_slice(b"error");
                self.add(value, out);
            }
            _ if self.raw || !self.has_data && matches!(line.first(), Some(b'{' | b'[')) => {
                self.raw = true;
                self.add(line, out);
            }
            _ => out(Unit::Odd(Anomaly::StrayLine)),
        }
    }

    fn add(&mut self, value: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        if self.data.len() + value.len() > MAX_EVENT {
            out(Unit::Odd(Anomaly::EventTooLong));
            self.forget();
            self.skip = Skip::Event;
            return;
        }
        if self.has_data {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
        self.has_data = true;
    }

    fn dispatch(&mut self, out: &mut impl FnMut(Unit<'_>)) {
        if self.has_data && !self.data.is_empty() {
            out(Unit::Event(Frame { name: &self.name, data: &self.data, error: false }));
        } else if self.commented || self.has_data || !self.name.is_empty() {
            out(Unit::KeepAlive);
        }
        self.forget();
    }

    /// Forgets the unfinished event; keeps its buffers, unless a large event made them large.
    fn forget(&mut self) {
        for buffer in [&mut self.line, &mut self.data] {
            clear(buffer);
        }
        self.name.clear();
        (self.has_data, self.raw, self.commented) = (false, false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::testing::show;
    use expect_test::{Expect, expect};

    fn run(body: &[u8], size: usize) -> String {
        let (mut framer, mut out) = (Framer::default(), String::new());
        for piece in body.chunks(size) {
            framer.push(piece, &mut |u| show(u, &mut out));
        }
        framer.finish(&mut |u| show(u, &mut out));
        out
    }

    fn check(body: &str, want: Expect) {
        let whole = run(body.as_bytes(), usize::MAX);
        want.assert_eq(&whole);
        for size in 1..=64 {
            assert_eq!(run(body.as_bytes(), size), whole, "in pieces of {size}");
        }
    }

    proptest::proptest! {
        /// What is called one whole event is just that to the framer, if no line end stands in its data.
        #[test]
        fn a_whole_event_is_one_event(first in "(event: ?[a-z]{0,3}(\r\n|\n|\r))?", field in "data: ?| data:|id:", data in "[a-z\r\n ]{0,6}", end in "(\r\n|\n|\r){0,3}", before in "(data: x\n\n|x|: c\n|event: y\n|\r)?") {
            let mut framer = Framer::default();
            framer.push(before.as_bytes(), &mut |_| ());
            let bytes = [first, field, data, end].concat();
            let whole = one_event(bytes.as_bytes()).filter(|_| framer.is_idle()).filter(|f| !f.data.contains(&b'\n') && !f.data.contains(&b'\r'));
            if let Some(frame) = whole {
                let want = format!("[{}] {}\n", String::from_utf8_lossy(frame.name), String::from_utf8_lossy(frame.data));
                let mut got = String::new();
                framer.push(bytes.as_bytes(), &mut |u| show(u, &mut got));
                proptest::prop_assert_eq!(got, want);
                proptest::prop_assert!(framer.is_idle());
            }
        }
    }

    #[test]
    fn line_ends_spaces_comments_and_names() {
        check(
            ": hello\n\ndata: a\r\n\ndata:b\r\n\r\nevent: x\ndata: c\r\rid: 7\nretry: 5\ndata: d\ndata: e\n\n:\n:\ndata:  f\n\nevent: ping\n\ndata:\n\ndata: \n\ndata: [DONE]",
            expect![[r#"
                keep-alive
                [] a
                [] b
                [x] c
                [] d⏎e
                []  f
                keep-alive
                keep-alive
                keep-alive
                [] [DONE]
            "#]],
        );
    }

    #[test]
    fn what_stands_outside_the_framing() {
        check(
            "data: a\n\n{\n  \"error\": {\"code\": 499}\n}\n\nerror: {\"m\":1}\n\nnonsense\n\nevent: error\ndata: {}\n\n{\"bare\":1}",
            expect![[r#"
                [] a
                [] {⏎  "error": {"code": 499}⏎}
                [error] {"m":1}
                odd stray_line
                [error] {}
                [] {"bare":1}
            "#]],
        );
    }

    #[test]
    fn after_a_hole_it_finds_the_next_event() {
        let run = |pieces: [&str; 2]| {
            let (mut framer, mut out) = (Framer::default(), String::new());
            framer.push(pieces[0].as_bytes(), &mut |u| show(u, &mut out));
            framer.hole();
            framer.push(pieces[1].as_bytes(), &mut |u| show(u, &mut out));
            framer.finish(&mut |u| show(u, &mut out));
            out
        };
        assert_eq!(run(["data: a\n\ndata: lo", "st\ndata: more\n\ndata: b\n\n"]), "[] a\n[] b\n");
        assert_eq!(run(["data: a\n\ndata: lo", "data: b\n\n"]), "[] a\n[] b\n");
        assert_eq!(run(["data: a\n\n", "\n\ndata: b\n\n"]), "[] a\n[] b\n");
        assert_eq!(run(["data: lost", " and cut"]), "");
        // Whatever the size of the pieces that follow.
        for behind in
            ["data: b\n\ndata: c\n\n", "dat\n\ndata: c\n\n", "event: e\ndata: b\n\n", "evening\n\nid: 1\ndata: b\n\n", "\n\ndata: b\n\n"]
        {
            let whole = run(["data: a\n\ndata: lo", behind]);
            let (mut framer, mut out) = (Framer::default(), String::new());
            framer.push(b"data: a\n\ndata: lo", &mut |u| show(u, &mut out));
            framer.hole();
            behind.bytes().for_each(|b| framer.push(&[b], &mut |u| show(u, &mut out)));
            framer.finish(&mut |u| show(u, &mut out));
            assert_eq!(out, whole, "{behind:?}");
        }
    }

    #[test]
    fn an_endless_event_is_skipped() {
        let (mut framer, mut out) = (Framer::default(), String::new());
        let piece = vec![b'a'; 100_000];
        framer.push(b"data: ", &mut |u| show(u, &mut out));
        for _ in 0..100 {
            framer.push(&piece, &mut |u| show(u, &mut out));
            assert!(framer.buffered() <= 3 * MAX_EVENT);
        }
        framer.push(b"\nstill the same event\n\ndata: next\n\n", &mut |u| show(u, &mut out));
        assert_eq!(out, "odd event_too_long\n[] next\n");
    }
}
