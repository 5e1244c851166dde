//! A JSON array that is streamed element by element (Gemini and Vertex without `alt=sse`: elements parted by a line `,` and CRLF).
//! Elements are cut by their brackets, with strings and escapes in mind. A bare object instead of the array is one element, and
//! so is what follows the array, such as an error.
//!
//! After a hole depth and strings are unknown. No string holds a raw line feed, and what is pretty-printed within an element is
//! indented, so a line that begins with the parting comma, and the bracket that follows, are the next element's beginning for
//! sure; a line that begins with `]` ends the array. A body that is not written so cannot be joined again, which is counted.

use crate::anomaly::Anomaly;
use crate::framing::{Frame, MAX_EVENT, Unit, clear};

/// Cuts a body into elements.
#[derive(Debug, Default)]
pub struct Framer {
    /// The beginning of an unfinished element.
    element: Vec<u8>,
    state: State,
    /// Brackets that are open within the element.
    depth: u32,
    /// Within a string; and whether the last byte was its backslash.
    string: bool,
    escaped: bool,
    /// Whether the array's own bracket is open.
    open: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Between elements.
    #[default]
    Between,
    /// Between elements, in bytes that belong to none.
    Stray,
    Element,
    /// In an element that is too long to be kept.
    Skip,
    /// Behind a hole.
    Lost(Seen),
}

/// What was seen of the mark by which elements are parted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// The hole.
    Hole,
    /// Nothing.
    Nothing,
    /// A line feed.
    Line,
    /// A comma at the beginning of a line.
    Comma,
    /// A comma right behind the hole: only with CRLF does it part elements for sure.
    FirstComma,
    /// That and CR.
    FirstReturn,
}

impl Framer {
    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.element.capacity()
    }

    /// Bytes are missing here.
    pub fn hole(&mut self) {
        clear(&mut self.element);
        self.state = State::Lost(Seen::Hole);
    }

    /// The body ended. An element that was not closed is none.
    pub fn finish(&mut self, out: &mut impl FnMut(Unit<'_>)) {
        if matches!(self.state, State::Lost(seen) if seen != Seen::Hole) {
            out(Unit::Odd(Anomaly::FramingLost));
        }
        *self = Self::default();
    }

    /// Takes the next piece of the body.
    pub fn push(&mut self, bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                State::Between | State::Stray => {
                    self.between(bytes[at], out);
                    // The bracket that opens an element belongs to it.
                    at += usize::from(self.state != State::Element);
                }
                State::Lost(seen) => {
                    self.lost(seen, bytes[at], out);
                    at += usize::from(self.state != State::Element);
                }
                State::Element | State::Skip => {
                    let end = self.scan(&bytes[at..]);
                    let part = &bytes[at..at + end.unwrap_or(bytes.len() - at)];
                    at += part.len();
                    self.take(part, end.is_some(), out);
                }
            }
        }
    }

    fn between(&mut self, byte: u8, out: &mut impl FnMut(Unit<'_>)) {
        match byte {
            b'[' if !self.open => self.open = true,
            b'{' | b'[' => self.begin(),
            b']' if self.open => {
                self.open = false;
                self.state = State::Between;
                out(Unit::End);
            }
            b',' | b' ' | b'\t' | b'\r' | b'\n' => self.state = State::Between,
            _ => {
                if self.state != State::Stray {
                    out(Unit::Odd(Anomaly::StrayLine));
                }
                self.state = State::Stray;
            }
        }
    }

    fn begin(&mut self) {
        (self.state, self.depth, self.string, self.escaped) = (State::Element, 0, false, false);
    }

    /// Looks for the mark that parts elements.
    fn lost(&mut self, seen: Seen, byte: u8, out: &mut impl FnMut(Unit<'_>)) {
        let next = match (seen, byte) {
            (Seen::Hole, b',') => Seen::FirstComma,
            (Seen::FirstComma, b'\r') => Seen::FirstReturn,
            (Seen::FirstReturn, b'\n') => Seen::Comma,
            (Seen::Line, b',') => Seen::Comma,
            (Seen::Line, b'\r') => Seen::Line,
            (Seen::Comma, b'\r' | b'\n') => Seen::Comma,
            (Seen::Comma, b'{') => {
                self.open = true;
                return self.begin();
            }
            (Seen::Line, b']') => {
                (self.state, self.open) = (State::Between, false);
                return out(Unit::End);
            }
            (_, b'\n') => Seen::Line,
            _ => Seen::Nothing,
        };
        self.state = State::Lost(next);
    }

    /// Where the element ends: behind the bracket that closes it.
    fn scan(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.string {
                if self.escaped {
                    self.escaped = false;
                    at += 1;
                    continue;
                }
                at += memchr::memchr2(b'"', b'\\', &bytes[at..])?;
                self.string = bytes[at] == b'\\';
                self.escaped = self.string;
            } else {
                match bytes[at] {
                    b'"' => self.string = true,
                    b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                    b'}' | b']' => {
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
            }
            at += 1;
        }
        None
    }

    fn take(&mut self, part: &[u8], ended: bool, out: &mut impl FnMut(Unit<'_>)) {
        if self.state == State::Element && self.element.len() + part.len() > MAX_EVENT {
            out(Unit::Odd(Anomaly::EventTooLong));
            clear(&mut self.element);
            self.state = State::Skip;
        }
        if self.state == State::Element {
            if ended && self.element.is_empty() {
                out(Unit::Event(Frame { data: part, ..Frame::default() }));
            } else {
                self.element.extend_from_slice(part);
                if ended {
                    out(Unit::Event(Frame { data: &self.element, ..Frame::default() }));
                    clear(&mut self.element);
                }
            }
        }
        if ended {
            self.state = State::Between;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::testing::{check, show};
    use expect_test::expect;

    #[test]
    fn elements_are_cut_by_their_brackets() {
        let body = b"[{\n  \"a\": [1, {\"b\": \"}]\\\"{\\\\\"}]\n}\n,\r\n{\"c\":{}},{\"d\":\"\\u005d\"}\n]";
        check!(
            Framer::default(),
            &[body],
            expect![[r#"
                [] {⏎  "a": [1, {"b": "}]\"{\\"}]⏎}
                [] {"c":{}}
                [] {"d":"\u005d"}
                end
            "#]]
        );
    }

    #[test]
    fn what_stands_outside_the_array() {
        check!(
            Framer::default(),
            &[b" {\"bare\":1}\n[{\"a\":1},\n7, \"x y\", [2]]\n{\"error\":{\"code\":499}}\n]{\"cut\":"],
            expect![[r#"
                [] {"bare":1}
                [] {"a":1}
                odd stray_line
                odd stray_line
                odd stray_line
                [] [2]
                end
                [] {"error":{"code":499}}
                odd stray_line
            "#]]
        );
        check!(Framer::default(), &[b"[]"], expect!["end\n"]);
        check!(Framer::default(), &[b""], expect![""]);
    }

    #[test]
    fn after_a_hole_it_finds_the_next_element() {
        let first = b"[{\n  \"a\": 1\n}\n,\r\n{\n  \"lost\": \"";
        // Within a string, within a structure, right behind an element, at the parting line, after its line feed was lost.
        let behind: [&[u8]; 6] = [
            b" \\n,\\n{ {\"\n}\n,\r\n{\"b\":2}\n]",
            b"\": [\n    {\n    },\n    {}\n  ]\n}\n,\r\n{\"b\":2}\n]",
            b"}\n,\r\n{\"b\":2}\n]",
            b"\n,\r\n{\"b\":2}\n]",
            b",\r\n{\"b\":2}\n]",
            b"1}\n,{\"b\":2}\n]",
        ];
        for behind in behind {
            check!(
                Framer::default(),
                &[first, behind],
                expect![[r#"
                    [] {⏎  "a": 1⏎}
                    [] {"b":2}
                    end
                "#]]
            );
        }
        check!(
            Framer::default(),
            &[first, b"1\n}\n]"],
            expect![[r#"
            [] {⏎  "a": 1⏎}
            end
        "#]]
        );
    }

    #[test]
    fn a_body_without_parting_lines_cannot_be_joined_again() {
        check!(
            Framer::default(),
            &[b"[{\"a\":1},{\"lo", b"st\"},{\"b\":2}]"],
            expect![[r#"
            [] {"a":1}
            odd framing_lost
        "#]]
        );
        // A comma right behind a hole may stand anywhere in an element.
        check!(Framer::default(), &[b"[{\"a\":[{}", b",\n{\"b\":1}]}]"], expect!["odd framing_lost\n"]);
    }

    #[test]
    fn an_endless_element_is_skipped() {
        let mut out = String::new();
        let mut framer = Framer::default();
        framer.push(b"[{\"a\":\"", &mut |u| show(u, &mut out));
        for _ in 0..100 {
            framer.push(&[b'a'; 100_000], &mut |u| show(u, &mut out));
            assert!(framer.buffered() <= 3 * MAX_EVENT);
        }
        framer.push(b"\"}\n,\r\n{}]", &mut |u| show(u, &mut out));
        assert_eq!(out, "odd event_too_long\n[] {}\nend\n");
    }
}
