//! One direction of a WebSocket connection, cut into frames (RFC 6455 §5).
//!
//! Nothing but an unfinished header is buffered: payload is handed on as it comes, masked as it came, with the key turned to its
//! first byte. After a hole the parser goes on where the length of the hole allows it, else it looks for a frame
//! ([`super::find`]); what it skips meanwhile is lost.

use crate::anomaly::Anomaly;

use super::find::Finder;

/// Who sends: clients mask, servers do not (RFC 6455 §5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The client's frames.
    Client,
    /// The server's frames.
    Server,
}

/// What a frame is (RFC 6455 §11.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as in the RFC")]
pub enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte & 0x0f {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    /// Whether it may stand between the fragments of a message.
    pub const fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Whether it ends its message.
    pub fin: bool,
    /// RSV1: its message is compressed.
    pub rsv1: bool,
    /// What it is.
    pub opcode: Opcode,
    /// Whether it has a masking key.
    pub masked: bool,
    /// The masking key; zero without one, which changes nothing.
    pub key: [u8; 4],
    /// Bytes of its payload.
    pub len: u64,
    /// Bytes of the header itself.
    pub size: usize,
    /// Whether the length is written in as few bytes as it can be.
    pub minimal: bool,
}

/// What stands at the front of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// A frame's header.
    Header(Header),
    /// Too few bytes to tell.
    NotYet,
    /// No frame.
    Bad,
}

/// Longest header.
pub const MAX_HEADER: usize = 14;

/// Reads the header at the front of `bytes`. `deflate`: whether RSV1 has a meaning.
pub fn header(bytes: &[u8], deflate: bool) -> Front {
    let Some(&first) = bytes.first() else { return Front::NotYet };
    let Some(opcode) = Opcode::of(first) else { return Front::Bad };
    let (fin, rsv1) = (first & 0x80 != 0, first & 0x40 != 0);
    if first & 0x30 != 0 || rsv1 && !(deflate && matches!(opcode, Opcode::Text | Opcode::Binary)) || opcode.is_control() && !fin {
        return Front::Bad;
    }
    let Some(&second) = bytes.get(1) else { return Front::NotYet };
    let (masked, short) = (second & 0x80 != 0, second & 0x7f);
    if opcode.is_control() && short > 125 {
        return Front::Bad;
    }
    let (len, at, least) = match short {
        126 => match bytes.get(2..4).and_then(|b| b.try_into().ok()) {
            Some(b) => (u64::from(u16::from_be_bytes(b)), 4, 126),
            None => return Front::NotYet,
        },
        127 => match bytes.get(2..10).and_then(|b| b.try_into().ok()) {
            Some(b) => (u64::from_be_bytes(b), 10, 1 << 16),
            None => return Front::NotYet,
        },
        n => (u64::from(n), 2, 0),
    };
    if len >> 63 != 0 {
        return Front::Bad;
    }
    let mut key = [0; 4];
    if masked {
        match bytes.get(at..at + 4).and_then(|b| b.try_into().ok()) {
            Some(k) => key = k,
            None => return Front::NotYet,
        }
    }
    let size = at + 4 * usize::from(masked);
    Front::Header(Header { fin, rsv1, opcode, masked, key, len, size, minimal: len >= least })
}

/// Undoes the masking of `bytes` into `out` (RFC 6455 §5.3). `key` is turned to the first byte.
pub fn unmask(bytes: &[u8], key: [u8; 4], out: &mut [u8]) {
    for (out, (byte, key)) in out.iter_mut().zip(bytes.iter().zip(key.iter().cycle())) {
        *out = byte ^ key;
    }
}

/// A part of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part<'a> {
    /// The first byte of a frame.
    Begin,
    /// Its header.
    Header(Header),
    /// Bytes of its payload, as they came, with the masking key turned to the first of them.
    Payload(&'a [u8], [u8; 4]),
    /// The end of the frame.
    End,
    /// Frames were skipped until the one that follows.
    Skipped,
    /// A surprise.
    Odd(Anomaly),
}

/// What a hole did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hole {
    /// It lies in the payload of a control frame: nothing is missing that matters.
    InControl,
    /// It lies in the payload of a message; the framing goes on.
    InMessage,
    /// The framing must be found again.
    FramingLost,
}

#[derive(Debug)]
enum State {
    /// In a header; bytes of it that came before.
    Header { kept: [u8; MAX_HEADER], have: usize },
    /// In a payload: bytes of it that are to come.
    Payload { header: Header, left: u64 },
    /// Looking for a frame.
    Find(Box<Finder>),
}

impl State {
    const fn next() -> Self {
        Self::Header { kept: [0; MAX_HEADER], have: 0 }
    }
}

/// The parser of one direction.
#[derive(Debug)]
pub struct Parser {
    role: Role,
    deflate: bool,
    state: State,
}

impl Parser {
    /// A parser of what `role` sends. `deflate`: whether compression was agreed.
    pub fn new(role: Role, deflate: bool) -> Self {
        Self { role, deflate, state: State::next() }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        match &self.state {
            State::Find(finder) => finder.buffered(),
            State::Header { .. } | State::Payload { .. } => 0,
        }
    }

    /// Whether a frame is being looked for.
    pub fn is_looking(&self) -> bool {
        matches!(self.state, State::Find(_))
    }

    /// Bytes skipped while a frame is being looked for.
    pub fn skipped(&self) -> u64 {
        match &self.state {
            State::Find(finder) => finder.passed(),
            State::Header { .. } | State::Payload { .. } => 0,
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, mut input: &[u8], out: &mut impl FnMut(Part<'_>)) {
        while !input.is_empty() {
            input = match &mut self.state {
                State::Header { .. } => self.head(input, out),
                State::Payload { header, left } => {
                    let n = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    out(Part::Payload(&input[..n], turned(header.key, header.len - *left)));
                    *left -= n as u64;
                    if *left == 0 {
                        self.state = State::next();
                        out(Part::End);
                    }
                    &input[n..]
                }
                State::Find(finder) => {
                    let found = finder.push(input);
                    let used = found.as_ref().map_or(input.len(), |f| f.used);
                    if let Some(found) = found {
                        if finder.passed() > 0 {
                            out(Part::Skipped);
                        }
                        self.state = State::next();
                        // A few bytes of the frame may have come with earlier pieces.
                        self.push(&found.kept, out);
                    }
                    &input[used..]
                }
            };
        }
    }

    fn head<'i>(&mut self, input: &'i [u8], out: &mut impl FnMut(Part<'_>)) -> &'i [u8] {
        let State::Header { kept, have } = &mut self.state else { return input };
        let before = *have;
        if before == 0 {
            out(Part::Begin);
        }
        let n = input.len().min(MAX_HEADER - before);
        kept[before..before + n].copy_from_slice(&input[..n]);
        *have += n;
        match header(&kept[..*have], self.deflate) {
            Front::Header(header) => {
                self.state = State::Payload { header, left: header.len };
                out(Part::Header(header));
                if header.len == 0 {
                    self.state = State::next();
                    out(Part::End);
                }
                // What was kept before is part of the header: it was not complete then.
                &input[header.size - before..]
            }
            Front::NotYet => &input[n..],
            Front::Bad => {
                // A frame may begin anywhere behind the first byte.
                let kept = *kept;
                out(Part::Odd(Anomaly::BadMessage));
                self.look();
                self.push(&kept[1..before.max(1)], out);
                if before == 0 { &input[1..] } else { input }
            }
        }
    }

    fn look(&mut self) {
        self.state = State::Find(Box::new(Finder::new(self.role, self.deflate)));
    }

    /// Bytes are missing here.
    pub fn hole(&mut self, len: Option<u64>) -> Hole {
        if let (State::Payload { header, left }, Some(len)) = (&mut self.state, len)
            && len <= *left
        {
            let control = header.opcode.is_control();
            *left -= len;
            // Exactly to its end: the frame is over, and who is told of the hole knows that its end does not come.
            if *left == 0 {
                self.state = State::next();
            }
            return if control { Hole::InControl } else { Hole::InMessage };
        }
        self.look();
        Hole::FramingLost
    }

    /// Whether the frame at hand goes on.
    pub fn in_payload(&self) -> bool {
        matches!(self.state, State::Payload { .. })
    }
}

/// A key, turned to the byte at `offset` of its payload.
fn turned(key: [u8; 4], offset: u64) -> [u8; 4] {
    let mut key = key;
    key.rotate_left((offset % 4) as usize);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ws::build::frame;
    use expect_test::{Expect, expect};

    fn run(role: Role, input: &[u8], size: usize) -> String {
        let mut parser = Parser::new(role, false);
        let (mut out, mut body) = (String::new(), Vec::new());
        for piece in input.chunks(size) {
            parser.push(piece, &mut |part| {
                if let Part::Payload(bytes, key) = part {
                    let from = body.len();
                    body.resize(from + bytes.len(), 0);
                    unmask(bytes, key, &mut body[from..]);
                    return;
                }
                if !body.is_empty() {
                    out.push_str(&format!("  {}\n", String::from_utf8_lossy(&body).escape_debug()));
                    body.clear();
                }
                out.push_str(&match part {
                    Part::Begin => String::new(),
                    Part::Header(h) => format!("{:?}{} {}\n", h.opcode, if h.fin { "" } else { " …" }, h.len),
                    Part::End => "end\n".to_owned(),
                    Part::Skipped => "skipped\n".to_owned(),
                    Part::Odd(what) => format!("odd {}\n", what.as_str()),
                    Part::Payload(..) => String::new(),
                });
            });
        }
        out
    }

    fn check(role: Role, input: &[u8], want: Expect) {
        let whole = run(role, input, usize::MAX);
        want.assert_eq(&whole);
        for size in 1..=64 {
            assert_eq!(run(role, input, size), whole, "in pieces of {size}");
        }
    }

    /// RFC 6455 §5.7.
    #[test]
    fn the_examples_of_the_rfc() {
        check(
            Role::Server,
            b"\x81\x05\x48\x65\x6c\x6c\x6f\x01\x03\x48\x65\x6c\x80\x02\x6c\x6f\x89\x05\x48\x65\x6c\x6c\x6f",
            expect![[r#"
                Text 5
                  Hello
                end
                Text … 3
                  Hel
                end
                Continuation 2
                  lo
                end
                Ping 5
                  Hello
                end
            "#]],
        );
        check(
            Role::Client,
            b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58",
            expect![[r#"
                Text 5
                  Hello
                end
                Pong 5
                  Hello
                end
            "#]],
        );
        let long = [&b"\x82\x7e\x01\x00"[..], &[b'x'; 256], b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00", &[b'y'; 65536]].concat();
        let text = run(Role::Server, &long, usize::MAX);
        assert!(text.starts_with("Binary 256\n  xxx") && text.contains("Binary 65536\n  yyy"), "{text}");
    }

    #[test]
    fn lengths_at_their_bounds() {
        for len in [0usize, 1, 125, 126, 127, 65535, 65536, 70000] {
            for key in [None, Some([9, 8, 7, 6])] {
                let bytes = frame(0x81, &vec![b'a'; len], key);
                let Front::Header(h) = header(&bytes, false) else { panic!("{len}") };
                assert_eq!((h.len, h.size + len, h.masked, h.minimal), (len as u64, bytes.len(), key.is_some(), true));
                for short in 0..h.size {
                    assert_eq!(header(&bytes[..short], false), Front::NotYet);
                }
            }
        }
    }

    #[test]
    fn what_is_no_frame_is_counted_and_the_next_one_found() {
        for bad in
            [&b"\x83\x01"[..], b"\xf1\x01", b"\xc1\x01", b"\x09\x00", b"\x89\x7e\x00\x01", b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            let input = [bad, b"garbage", &frame(0x81, br#"{"type":"x"}"#, None)].concat();
            for size in 1..=64 {
                let text = run(Role::Server, &input, size);
                assert!(
                    text.starts_with("odd bad_message\n") && text.ends_with("skipped\nText 12\n  {\\\"type\\\":\\\"x\\\"}\nend\n"),
                    "{bad:?} {size}: {text}"
                );
            }
        }
    }

    #[test]
    fn holes() {
        let mut parser = Parser::new(Role::Client, false);
        let mut bytes = 0;
        let mut count = |part: Part<'_>| bytes += usize::from(matches!(part, Part::End));
        let ping = frame(0x89, b"0123456789", Some([1, 2, 3, 4]));
        let text = frame(0x81, b"0123456789", Some([1, 2, 3, 4]));
        parser.push(&ping[..8], &mut count);
        assert_eq!(parser.hole(Some(3)), Hole::InControl);
        parser.push(&ping[11..], &mut count);
        parser.push(&text[..8], &mut count);
        assert_eq!(parser.hole(Some(8)), Hole::InMessage);
        assert!(!parser.in_payload());
        parser.push(&text, &mut count);
        parser.push(&text[..8], &mut count);
        assert_eq!(parser.hole(Some(9)), Hole::FramingLost);
        assert_eq!(bytes, 2);
        for cut in [0, 1, 5] {
            let mut parser = Parser::new(Role::Client, false);
            parser.push(&text[..cut], &mut |_| {});
            assert_eq!(parser.hole(Some(1)), Hole::FramingLost);
        }
        let mut parser = Parser::new(Role::Client, false);
        parser.push(&text[..9], &mut |_| {});
        assert_eq!(parser.hole(None), Hole::FramingLost);
    }
}
