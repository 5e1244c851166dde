//! One JSON value per line (Ollama; Cohere v1): LF or CRLF, blank lines are signs of life, the last line may lack its end.
//!
//! After a hole the rest of a line is skipped. Where the next byte may begin a line, the line counts if it is JSON from there on:
//! what remains of a line that was cut open closes a bracket too many, or a string that it never opened.

use crate::anomaly::Anomaly;
use crate::framing::{Frame, MAX_EVENT, Unit, clear};

/// Cuts a body into lines.
#[derive(Debug, Default)]
pub struct Framer {
    /// An unfinished line.
    line: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Line,
    /// A hole lies before the next byte.
    Hole,
    /// What may be a whole line behind a hole.
    Perhaps,
    /// The rest of the line is not wanted.
    Skip,
}

impl Framer {
    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.line.capacity()
    }

    /// Bytes are missing here.
    pub fn hole(&mut self) {
        clear(&mut self.line);
        self.state = State::Hole;
    }

    /// The body ended: a line without its end is complete.
    pub fn finish(&mut self, out: &mut impl FnMut(Unit<'_>)) {
        let line = std::mem::take(&mut self.line);
        if !line.trim_ascii().is_empty() {
            self.complete(&line, out);
        }
        self.state = State::Line;
    }

    /// Takes the next piece of the body.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        if let (State::Hole, Some(first)) = (self.state, bytes.first()) {
            self.state = if matches!(first, b'{' | b'[') { State::Perhaps } else { State::Skip };
        }
        while !bytes.is_empty() {
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                self.keep(bytes, out);
                return;
            };
            let line = &bytes[..end];
            bytes = &bytes[end + 1..];
            if self.line.is_empty() {
                self.complete(line, out);
            } else {
                self.keep(line, out);
                let whole = std::mem::take(&mut self.line);
                self.complete(&whole, out);
                self.line = whole;
                clear(&mut self.line);
            }
        }
    }

    fn keep(&mut self, bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        if self.state == State::Skip {
            return;
        }
        if self.line.len() + bytes.len() > MAX_EVENT {
            out(Unit::Odd(Anomaly::EventTooLong));
            clear(&mut self.line);
            self.state = State::Skip;
            return;
        }
        self.line.extend_from_slice(bytes);
    }

    fn complete(&mut self, line: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        let line = line.trim_ascii();
        let wanted = match std::mem::take(&mut self.state) {
            State::Line => true,
            State::Perhaps => serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok(),
            State::Hole | State::Skip => false,
        };
        match wanted {
            true if line.is_empty() => out(Unit::KeepAlive),
            true if line.len() > MAX_EVENT => out(Unit::Odd(Anomaly::EventTooLong)),
            true => out(Unit::Event(Frame { data: line, ..Frame::default() })),
            false => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::testing::{check, run, show};
    use expect_test::expect;

    #[test]
    fn line_ends_blank_lines_and_a_last_line_without_end() {
        let body = b"{\"a\":1}\n{\"b\":2}\r\n\n\r\n  {\"c\":\"\\n\"} \nnot json\n{\"d\":4}";
        check!(
            Framer::default(),
            &[body],
            expect![[r#"
                [] {"a":1}
                [] {"b":2}
                keep-alive
                keep-alive
                [] {"c":"\n"}
                [] not json
                [] {"d":4}
            "#]]
        );
        check!(Framer::default(), &[b"{}\n   "], expect!["[] {}\n"]);
    }

    #[test]
    fn after_a_hole_it_finds_the_next_line() {
        // In the middle of a line, at its beginning, at its end, behind its end; and what looks like a beginning and is none.
        let behind: [&[u8]; 6] = [
            b"st\"}\n{\"b\":2}\n",
            b"{\"b\":2}\n",
            b"}\n{\"b\":2}\n",
            b"\n{\"b\":2}\n",
            b"{\"inner\":1}}\n{\"b\":2}\n",
            b"{\"x\"}\n{\"b\":2}",
        ];
        for behind in behind {
            check!(
                Framer::default(),
                &[b"{\"a\":1}\n{\"lo", behind],
                expect![[r#"
                [] {"a":1}
                [] {"b":2}
            "#]]
            );
        }
        check!(Framer::default(), &[b"{\"lo", b"{\"cut\":"], expect![""]);
    }

    #[test]
    fn an_endless_line_is_skipped() {
        let mut out = String::new();
        let mut framer = Framer::default();
        for _ in 0..100 {
            framer.push(&[b'a'; 100_000], &mut |u| show(u, &mut out));
            assert!(framer.buffered() <= 3 * MAX_EVENT);
        }
        framer.push(b"still\n{}\n", &mut |u| show(u, &mut out));
        assert_eq!(out, "odd event_too_long\n[] {}\n");
        let long = [vec![b'a'; MAX_EVENT + 1], b"\n{}\n".to_vec()].concat();
        assert_eq!(run!(Framer::default(), [long.as_slice()]), "odd event_too_long\n[] {}\n");
    }
}
