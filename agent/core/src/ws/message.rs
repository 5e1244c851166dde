//! The messages of one direction: fragments put together, masks and compression undone (RFC 6455 §5.4, RFC 7692).
//!
//! A message that is one unmasked, uncompressed frame in one piece is handed on where it stands. Any other is reduced while it comes
//! ([`Skeleton`]): audio of megabytes in base64 costs kilobytes. So messages are taken to be JSON, in text and binary frames alike.

use crate::anomaly::Anomaly;
use crate::framing::json::Skeleton;
use crate::stream::Timestamp;

use super::frame::{Header, Hole, Opcode, Parser, Part, Role, unmask};
use super::inflate::Inflater;

/// Containers of a message that are looked into: `serverContent.modelTurn.parts[0].inlineData`.
const DEPTH: usize = 6;

/// What comes of one direction.
#[derive(Debug)]
pub enum Event<'a> {
    /// A message is complete.
    Message {
        /// The instant of its first byte.
        begun: Timestamp,
        /// It, or what was kept of it.
        data: &'a [u8],
        /// Bytes of its payload on the wire.
        bytes: u64,
    },
    /// Here one or more messages are missing.
    Lost,
    /// The sender says that it ends the connection, and why: a code of RFC 6455 §7.4.
    Close(Option<u16>),
    /// A surprise.
    Odd(Anomaly),
}

/// A message that is not complete.
#[derive(Debug)]
struct Open {
    begun: Timestamp,
    bytes: u64,
    compressed: bool,
    /// Whether it can still be read.
    whole: bool,
    /// Whether any of it went into the skeleton.
    begun_body: bool,
}

/// Puts together the messages of one direction.
#[derive(Debug)]
pub struct Messages {
    parser: Parser,
    assembly: Assembly,
}

#[derive(Debug)]
struct Assembly {
    inflater: Inflater,
    body: Skeleton,
    open: Option<Open>,
    /// The frame at hand.
    frame: Option<Header>,
    begun: Timestamp,
    /// A close frame's code, as far as it came.
    code: ([u8; 2], usize),
    closed: bool,
}

impl Messages {
    /// The messages of `role`. `deflate`: whether compression was agreed and, if so, whether the window goes on from message to message.
    pub fn new(role: Role, deflate: Option<bool>) -> Self {
        let assembly = Assembly {
            inflater: Inflater::new(deflate.unwrap_or_default()),
            body: Skeleton::new(DEPTH),
            open: None,
            frame: None,
            begun: Timestamp::default(),
            code: ([0; 2], 0),
            closed: false,
        };
        Self { parser: Parser::new(role, deflate.is_some()), assembly }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.parser.buffered() + self.assembly.body.buffered() + self.assembly.inflater.buffered()
    }

    /// Bytes skipped while a frame is being looked for.
    pub fn skipped(&self) -> u64 {
        self.parser.skipped()
    }

    /// Whether a frame is being looked for.
    pub fn is_looking(&self) -> bool {
        self.parser.is_looking()
    }

    /// Whether messages pass unseen.
    pub fn is_blind(&self) -> bool {
        self.parser.skipped() > 0 || self.assembly.inflater.is_broken()
    }

    /// Takes the next bytes.
    pub fn push(&mut self, at: Timestamp, bytes: &[u8], out: &mut dyn FnMut(Event<'_>)) {
        let Self { parser, assembly } = self;
        if !assembly.closed {
            parser.push(bytes, &mut |part| assembly.part(at, part, out));
        }
    }

    /// Bytes are missing.
    pub fn hole(&mut self, len: Option<u64>, out: &mut dyn FnMut(Event<'_>)) {
        let Self { parser, assembly } = self;
        if assembly.closed {
            return;
        }
        match parser.hole(len) {
            Hole::InControl => {
                if assembly.frame.is_some_and(|f| f.opcode == Opcode::Close) {
                    // Why the sender ends the connection is missing.
                    out(Event::Lost);
                }
                if !parser.in_payload() {
                    assembly.end(out);
                }
            }
            Hole::InMessage => {
                assembly.spoil();
                out(Event::Lost);
                if !parser.in_payload() {
                    assembly.end(out);
                }
            }
            Hole::FramingLost => {
                assembly.spoil();
                // Whether the missing bytes were compressed cannot be told.
                assembly.inflater.break_off();
                assembly.open = None;
                assembly.frame = None;
                out(Event::Lost);
            }
        }
    }
}

impl Assembly {
    fn part(&mut self, at: Timestamp, part: Part<'_>, out: &mut dyn FnMut(Event<'_>)) {
        match part {
            _ if self.closed => {}
            Part::Begin => self.begun = at,
            Part::Header(header) => self.header(header, out),
            Part::Payload(bytes, key) => self.payload(bytes, key, out),
            Part::End => self.end(out),
            Part::Skipped => out(Event::Lost),
            Part::Odd(what) => {
                // What is no frame hides those that follow.
                self.spoil();
                self.inflater.break_off();
                self.open = None;
                self.frame = None;
                out(Event::Odd(what));
                out(Event::Lost);
            }
        }
    }

    fn header(&mut self, header: Header, out: &mut dyn FnMut(Event<'_>)) {
        self.frame = Some(header);
        match header.opcode {
            Opcode::Close => self.code = ([0; 2], 0),
            Opcode::Ping | Opcode::Pong | Opcode::Continuation => {}
            Opcode::Text | Opcode::Binary => {
                if self.open.is_some() {
                    // The message before never ended.
                    self.spoil();
                    out(Event::Odd(Anomaly::BadMessage));
                    out(Event::Lost);
                }
                let whole = !header.rsv1 || self.inflater.begin();
                self.open = Some(Open { begun: self.begun, bytes: 0, compressed: header.rsv1, whole, begun_body: false });
            }
        }
    }

    fn payload(&mut self, bytes: &[u8], key: [u8; 4], out: &mut dyn FnMut(Event<'_>)) {
        let Some(header) = self.frame else { return };
        if header.opcode == Opcode::Close {
            let (code, have) = &mut self.code;
            for (byte, key) in bytes.iter().zip(key).take(2 - (*have).min(2)) {
                code[*have] = byte ^ key;
                *have += 1;
            }
        }
        if header.opcode.is_control() {
            return;
        }
        // A continuation of nothing: its beginning was lost.
        let Some(open) = &mut self.open else { return };
        open.bytes += bytes.len() as u64;
        if !open.whole {
            return;
        }
        let plain = key == [0; 4];
        if !open.compressed && plain && header.fin && !open.begun_body && bytes.len() as u64 == header.len {
            out(Event::Message { begun: open.begun, data: bytes, bytes: open.bytes });
            self.open = None;
            return;
        }
        if !open.begun_body {
            open.begun_body = true;
            self.body.clear();
        }
        let done = if plain { self.take(bytes) } else { self.masked(bytes, key) };
        self.failed(done, out);
    }

    /// Takes masked bytes of the message, a few at a time.
    fn masked(&mut self, bytes: &[u8], key: [u8; 4]) -> Result<(), Anomaly> {
        let mut plain = [0; 4096];
        bytes.chunks(plain.len()).try_for_each(|chunk| {
            unmask(chunk, key, &mut plain);
            self.take(&plain[..chunk.len()])
        })
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Anomaly> {
        let Self { inflater, body, open, .. } = self;
        if open.as_ref().is_some_and(|o| o.compressed) {
            inflater.push(bytes, &mut |b| body.push(b))
        } else {
            body.push(bytes);
            Ok(())
        }
    }

    fn failed(&mut self, done: Result<(), Anomaly>, out: &mut dyn FnMut(Event<'_>)) {
        if let (Err(what), Some(open)) = (done, &mut self.open) {
            open.whole = false;
            out(Event::Odd(what));
        }
    }

    /// A frame ended.
    fn end(&mut self, out: &mut dyn FnMut(Event<'_>)) {
        let Some(header) = self.frame.take() else { return };
        if header.opcode == Opcode::Close {
            self.closed = true;
            let (code, have) = self.code;
            out(Event::Close((have == 2).then(|| u16::from_be_bytes(code))));
        }
        if header.opcode.is_control() || !header.fin {
            return;
        }
        let compressed = self.open.as_ref().is_some_and(|o| o.compressed && o.whole);
        if compressed {
            if self.open.as_ref().is_some_and(|o| !o.begun_body) {
                self.body.clear();
            }
            let Self { inflater, body, .. } = self;
            let done = inflater.end(&mut |b| body.push(b));
            self.failed(done, out);
        }
        let Some(open) = self.open.take() else { return };
        if !open.whole {
            out(Event::Lost);
            return;
        }
        let data = match (open.begun_body || compressed).then(|| self.body.finish()) {
            None => &[][..],
            Some(Ok(data)) => data,
            Some(Err(_)) => {
                out(Event::Odd(Anomaly::EventTooLong));
                out(Event::Lost);
                return;
            }
        };
        out(Event::Message { begun: open.begun, data, bytes: open.bytes });
    }

    /// Bytes of the message at hand are missing.
    fn spoil(&mut self) {
        if let Some(open) = &mut self.open {
            open.whole = false;
            if open.compressed {
                self.inflater.break_off();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ws::build::{Deflater, frame};
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    const KEY: Option<[u8; 4]> = Some([0x37, 0xfa, 0x21, 0x3d]);

    /// Reads `bytes` in pieces; `holes` are positions and lengths that are missing.
    fn run(role: Role, deflate: Option<bool>, bytes: &[u8], size: usize, hole: Option<(usize, usize, bool)>) -> String {
        let mut messages = Messages::new(role, deflate);
        let mut text = String::new();
        let mut see = |event: Event<'_>| {
            text.push_str(&match event {
                Event::Message { data, bytes, .. } => format!("{bytes}: {}\n", String::from_utf8_lossy(data)),
                Event::Lost => "lost\n".to_owned(),
                Event::Close(code) => format!("close {code:?}\n"),
                Event::Odd(what) => format!("odd {}\n", what.as_str()),
            });
        };
        let at = Timestamp::default();
        let (from, len, told) = hole.unwrap_or((bytes.len(), 0, false));
        bytes[..from].chunks(size).for_each(|p| messages.push(at, p, &mut see));
        if len > 0 {
            messages.hole(told.then_some(len as u64), &mut see);
            bytes[from + len..].chunks(size).for_each(|p| messages.push(at, p, &mut see));
        }
        text
    }

    fn check(role: Role, deflate: Option<bool>, bytes: &[u8], want: Expect) {
        let whole = run(role, deflate, bytes, usize::MAX, None);
        want.assert_eq(&whole);
        for size in 1..=64 {
            assert_eq!(run(role, deflate, bytes, size, None), whole, "in pieces of {size}");
        }
    }

    #[test]
    fn fragments_with_control_frames_between() {
        let server = [
            frame(0x01, b"{\"a\":", None),
            frame(0x89, b"ping", None),
            frame(0x00, b"[1,", None),
            frame(0x8a, b"", None),
            frame(0x80, b"2]}", None),
            frame(0x82, b"{\"b\":1}", None),
            frame(0x81, b"", None),
            frame(0x88, b"\x03\xe8bye", None),
            frame(0x81, b"{\"after\":1}", None),
        ]
        .concat();
        check(
            Role::Server,
            None,
            &server,
            expect![[r#"
                11: {"a":[1,2]}
                7: {"b":1}
                0: 
                close Some(1000)
            "#]],
        );
        let client =
            [frame(0x01, b"{\"a\"", KEY), frame(0x8a, b"ping", KEY), frame(0x80, b":true}", Some([0; 4])), frame(0x88, b"", KEY)].concat();
        check(
            Role::Client,
            None,
            &client,
            expect![[r#"
                10: {"a":true}
                close None
            "#]],
        );
    }

    #[test]
    fn what_does_not_fit_together_is_counted() {
        let bytes = [
            frame(0x80, b"the end of something", None),
            frame(0x01, b"{\"never\":", None),
            frame(0x81, b"{\"ends\":1}", None),
            frame(0x88, b"\x03", None),
        ]
        .concat();
        check(
            Role::Server,
            None,
            &bytes,
            expect![[r#"
                odd bad_message
                lost
                10: {"ends":1}
                close None
            "#]],
        );
    }

    #[test]
    fn compressed_with_and_without_takeover() {
        for takeover in [true, false] {
            let mut z = Deflater::new(takeover);
            let mut bytes = Vec::new();
            for n in 0..3 {
                let payload = z.message(format!("{{\"type\":\"response.delta\",\"n\":{n}}}").as_bytes());
                let (a, b) = payload.split_at(payload.len() / 2);
                bytes.extend(frame(0x41, a, KEY));
                bytes.extend(frame(0x89, b"", KEY));
                bytes.extend(frame(0x80, b, KEY));
            }
            // One that is not compressed, and an empty one.
            bytes.extend(frame(0x81, b"{\"plain\":1}", KEY));
            bytes.extend(frame(0xc1, b"\0", KEY));
            let whole = run(Role::Client, Some(takeover), &bytes, usize::MAX, None);
            let said: Vec<&str> = whole.lines().map(|l| l.split_once(": ").unwrap().1).collect();
            let n = |n| format!("{{\"type\":\"response.delta\",\"n\":{n}}}");
            assert_eq!(said, [&n(0), &n(1), &n(2), "{\"plain\":1}", ""]);
            for size in 1..=64 {
                assert_eq!(run(Role::Client, Some(takeover), &bytes, size, None), whole, "in pieces of {size}");
            }
        }
        // RSV1 without an agreement is no frame.
        assert!(run(Role::Server, None, &frame(0xc1, b"x", None), 9, None).starts_with("odd bad_message\nlost\n"));
    }

    #[test]
    fn a_hole_in_compressed_messages() {
        for (takeover, want) in [(true, "lost\nlost\nlost\n"), (false, "lost\nlost\n")] {
            let mut z = Deflater::new(takeover);
            let frames: Vec<Vec<u8>> =
                (0..4).map(|n| frame(0xc1, &z.message(format!("{{\"type\":\"delta\",\"n\":{n}}}").as_bytes()), None)).collect();
            let bytes = frames.concat();
            // In the payload of the second: the framing goes on.
            let got = run(Role::Server, Some(takeover), &bytes, usize::MAX, Some((frames[0].len() + 4, 3, true)));
            let after = got.split_once('\n').unwrap().1;
            assert!(after.starts_with("lost\nlost\n"), "{got}");
            assert_eq!(after.matches("delta").count(), if takeover { 0 } else { 2 }, "{got}");
            assert!(after.starts_with(want), "{got}");
        }
    }

    #[test]
    fn long_messages_are_reduced_or_skipped() {
        let audio = "A".repeat(3 << 20);
        let message = frame(0x81, format!("{{\"type\":\"input_audio_buffer.append\",\"audio\":\"{audio}\"}}").as_bytes(), KEY);
        let mut messages = Messages::new(Role::Client, None);
        let mut seen = 0;
        for piece in message.chunks(16 << 10) {
            messages.push(Timestamp::default(), piece, &mut |event| {
                let Event::Message { data, .. } = event else { panic!("{event:?}") };
                assert!(data.len() < 400 && data.starts_with(b"{\"type\":\"input_audio_buffer.append\",\"audio\":\"AAA"));
                seen += 1;
            });
            assert!(messages.buffered() < 4096);
        }
        assert_eq!(seen, 1);
        let many = format!("{{{}\"z\":1}}", "\"a\":1,".repeat(20_000));
        let bytes = [frame(0x01, many.as_bytes(), None), frame(0x80, b"", None), frame(0x81, b"{}", None)].concat();
        assert_eq!(run(Role::Server, None, &bytes, 999, None), "odd event_too_long\nlost\n2: {}\n");
    }

    /// A message's text, where it is cut into fragments, whether it is compressed.
    type Plan = (String, Vec<usize>, bool);

    fn plan() -> impl Strategy<Value = (bool, Option<bool>, Vec<Plan>)> {
        let message = ("[ -~äö]{0,300}", prop::collection::vec(0usize..400, 0..4), any::<bool>());
        (any::<bool>(), any::<Option<bool>>(), prop::collection::vec(message, 1..6))
    }

    proptest! {
        /// What a small writer wrote is read, however it was fragmented, masked, compressed, mixed with pings and cut.
        #[test]
        fn what_was_written_is_read((client, deflate, plan) in plan(), size in 1usize..65) {
            let (mut z, mut bytes, mut want) = (Deflater::new(deflate.unwrap_or_default()), Vec::new(), String::new());
            let key = client.then_some([0xa5, 0x01, 0x80, 0xff]);
            for (text, cuts, compress) in &plan {
                let json = serde_json::json!({ "t": text }).to_string();
                let compress = *compress && deflate.is_some();
                let payload = if compress { z.message(json.as_bytes()) } else { json.clone().into_bytes() };
                let mut cuts: Vec<usize> = cuts.iter().map(|c| *c % (payload.len() + 1)).collect();
                cuts.sort_unstable();
                cuts.insert(0, 0);
                cuts.push(payload.len());
                let last = cuts.len() - 2;
                for (n, pair) in cuts.windows(2).enumerate() {
                    let first = if n == 0 { 1 | if compress { 0x40 } else { 0 } } else { 0 };
                    bytes.extend(frame(first | if n == last { 0x80 } else { 0 }, &payload[pair[0]..pair[1]], key));
                    if n < last {
                        bytes.extend(frame(0x89, b"p", key));
                    }
                }
                // The reduction cuts long strings: only the length says more.
                let mut s = Skeleton::new(DEPTH);
                s.push(json.as_bytes());
                want.push_str(&format!("{}: {}\n", payload.len(), String::from_utf8_lossy(s.finish().unwrap())));
            }
            let role = if client { Role::Client } else { Role::Server };
            let got = run(role, deflate, &bytes, size, None);
            if got != want {
                // One that came in one piece is not reduced.
                for (got, want) in got.lines().zip(want.lines()) {
                    let start = &want[..want.len().min(150)];
                    prop_assert!(got.starts_with(std::str::from_utf8(start.as_bytes()).unwrap_or_default()) || got == want, "{} {}", got, want);
                }
                prop_assert_eq!(got.lines().count(), want.lines().count());
            }
        }

        /// After a hole only what was sent is read.
        #[test]
        fn a_hole_invents_no_message(texts in prop::collection::vec("[ -~äö]{0,90}", 2..8), from in 0usize..900, len in 1usize..200, told: bool, deflate in any::<Option<bool>>(), client: bool, size in 1usize..65) {
            let mut z = Deflater::new(deflate.unwrap_or_default());
            let key = client.then_some([0xa5, 0x01, 0x80, 0xff]);
            let sent: Vec<String> = texts.iter().enumerate().map(|(n, t)| serde_json::json!({ "n": n, "t": t }).to_string()).collect();
            let bytes: Vec<u8> = sent
                .iter()
                .flat_map(|s| match deflate {
                    Some(_) => frame(0xc1, &z.message(s.as_bytes()), key),
                    None => frame(0x81, s.as_bytes(), key),
                })
                .collect();
            let from = from % bytes.len();
            let len = len.min(bytes.len() - from);
            let role = if client { Role::Client } else { Role::Server };
            let got = run(role, deflate, &bytes, size, Some((from, len, told)));
            for line in got.lines().filter(|l| l.contains('{')) {
                prop_assert!(sent.iter().any(|s| s == line.split_once(": ").unwrap().1), "{}", got);
            }
            prop_assert!(got.contains("lost"));
        }
    }
}
