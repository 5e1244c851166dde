//! Length-prefixed messages as gRPC writes them (its "PROTOCOL-HTTP2", Length-Prefixed-Message): a flag, a big-endian u32, the bytes.
//! Compressed messages are inflated one by one.
//!
//! A hole of known length within a message costs that message: its prefix said where the next one begins. Behind any other hole nothing
//! tells where a message begins but that senders write whole ones: a piece that is messages from its first byte to its last is
//! believed ([`is_whole`]). What comes before one is skipped; that is counted.

use crate::anomaly::Anomaly;
use crate::framing::{Frame, MAX_EVENT, Unit, clear};
use crate::http::coding::Decoder;
use crate::http::head::Coding;

/// The flag and the length.
const PREFIX: usize = 5;

/// Cuts a body into messages.
#[derive(Debug)]
pub struct Framer {
    coding: Option<Coding>,
    decoder: Option<Decoder>,
    /// The prefix of the message that is being read, as far as it came.
    prefix: [u8; PREFIX],
    prefixed: usize,
    /// Bytes of the message that are still to come.
    left: usize,
    /// The beginning of the message, unless it is skipped.
    message: Vec<u8>,
    /// An inflated message.
    plain: Vec<u8>,
    state: State,
    /// Whether it was said that something is skipped.
    told: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Prefix,
    Message,
    /// In a message that is not wanted.
    Skip,
    /// Behind a hole: what comes is looked at for whole messages.
    Hole,
    /// The rest of the body cannot be read.
    Lost,
}

impl Framer {
    /// A framer of messages that are compressed, where their flag says so, with `coding` (`grpc-encoding`).
    pub fn new(coding: Option<Coding>) -> Self {
        Self {
            coding,
            decoder: None,
            prefix: [0; PREFIX],
            prefixed: 0,
            left: 0,
            message: Vec::new(),
            plain: Vec::new(),
            state: State::Prefix,
            told: false,
        }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.message.capacity() + self.plain.capacity() + self.decoder.as_ref().map_or(0, Decoder::buffered)
    }

    /// Bytes are missing here.
    pub fn hole(&mut self) {
        self.miss(None);
    }

    /// Bytes are missing here: so many, where that is known. A hole within one message costs that message only.
    pub fn miss(&mut self, missing: Option<u64>) {
        let left = missing.and_then(|n| (self.left as u64).checked_sub(n)).and_then(|left| usize::try_from(left).ok());
        let within = matches!(self.state, State::Message | State::Skip);
        self.forget();
        self.state = match (self.state, left) {
            (State::Lost, _) => State::Lost,
            (_, Some(0)) if within => State::Prefix,
            (_, Some(left)) if within => {
                self.left = left;
                State::Skip
            }
            _ => State::Hole,
        };
    }

    /// The body ended. A message that was not complete is none.
    pub fn finish(&mut self, _: &mut impl FnMut(Unit<'_>)) {
        *self = Self::new(self.coding);
    }

    fn forget(&mut self) {
        clear(&mut self.message);
        clear(&mut self.plain);
        (self.prefixed, self.left) = (0, 0);
    }

    /// Takes the next piece of the body.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        if self.state == State::Hole && !bytes.is_empty() {
            if is_whole(bytes) {
                (self.state, self.told) = (State::Prefix, false);
            } else if !std::mem::replace(&mut self.told, true) {
                out(Unit::Odd(Anomaly::FramingLost));
            }
        }
        loop {
            match self.state {
                State::Hole | State::Lost => return,
                State::Prefix => {
                    let (part, rest) = bytes.split_at(bytes.len().min(PREFIX - self.prefixed));
                    self.prefix[self.prefixed..self.prefixed + part.len()].copy_from_slice(part);
                    self.prefixed += part.len();
                    bytes = rest;
                    if self.prefixed < PREFIX {
                        return;
                    }
                    self.begin(out);
                }
                State::Message | State::Skip => {
                    let (part, rest) = bytes.split_at(bytes.len().min(self.left));
                    self.left -= part.len();
                    bytes = rest;
                    if self.state == State::Message {
                        if self.left == 0 && self.message.is_empty() {
                            self.deliver(part, out);
                        } else {
                            self.message.extend_from_slice(part);
                            if self.left == 0 {
                                let message = std::mem::take(&mut self.message);
                                self.deliver(&message, out);
                                self.message = message;
                            }
                        }
                    }
                    if self.left > 0 {
                        return;
                    }
                    self.forget();
                    self.state = State::Prefix;
                }
            }
        }
    }

    /// The prefix is complete.
    fn begin(&mut self, out: &mut impl FnMut(Unit<'_>)) {
        let [flag, length @ ..] = self.prefix;
        self.left = u32::from_be_bytes(length) as usize;
        self.state = if flag > 1 {
            out(Unit::Odd(Anomaly::BadMessage));
            State::Lost
        } else if self.left > MAX_EVENT {
            out(Unit::Odd(Anomaly::EventTooLong));
            State::Skip
        } else {
            State::Message
        };
    }

    /// A message is complete.
    fn deliver(&mut self, bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        // An empty message is one: every field has its default. It is empty also where the flag says that it is compressed.
        if self.prefix[0] == 0 || bytes.is_empty() {
            return out(Unit::Event(Frame { data: bytes, ..Frame::default() }));
        }
        if self.decoder.is_none() {
            self.decoder = self.coding.and_then(Decoder::new);
        }
        let Some(decoder) = &mut self.decoder else { return out(Unit::Odd(Anomaly::UnknownCoding)) };
        let plain = &mut self.plain;
        plain.clear();
        let mut too_long = false;
        let inflated = decoder.push(bytes, &mut |b| {
            too_long |= plain.len() + b.len() > MAX_EVENT;
            if !too_long {
                plain.extend_from_slice(b);
            }
        });
        decoder.restart();
        match inflated {
            Err(what) => out(Unit::Odd(what)),
            Ok(()) if too_long => out(Unit::Odd(Anomaly::EventTooLong)),
            Ok(()) => out(Unit::Event(Frame { data: plain, ..Frame::default() })),
        }
    }
}

/// Whether `bytes` are messages from the first to the last byte, none of them empty: empty ones are zeros, as many a tensor is.
fn is_whole(bytes: &[u8]) -> bool {
    let mut left = bytes;
    while let Some(([0 | 1, length @ ..], rest)) = left.split_first_chunk::<PREFIX>() {
        let length = u32::from_be_bytes(*length) as usize;
        match rest.split_at_checked(length) {
            Some((_, [])) if length > 0 => return true,
            Some((_, rest)) if length > 0 => left = rest,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::testing::{check, show};
    use expect_test::expect;
    use flate2::Compression;
    use std::io::Write;

    fn message(flag: u8, bytes: &[u8]) -> Vec<u8> {
        [&[flag][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), Compression::default());
        gz.write_all(bytes).unwrap();
        gz.finish().unwrap()
    }

    #[test]
    fn messages_plain_empty_and_cut_off() {
        let body = [message(0, b"one"), message(0, b""), message(0, b"three"), message(0, b"never complete")[..9].to_vec()].concat();
        check!(
            Framer::new(None),
            &[&body],
            expect![[r#"
            [] one
            [] 
            [] three
        "#]]
        );
    }

    #[test]
    fn compressed_messages_stand_on_their_own() {
        let body = [
            message(1, &gzip(b"one")),
            message(0, b"plain"),
            message(1, b"garbage"),
            message(1, &gzip(&vec![b'x'; MAX_EVENT + 1])),
            message(1, b""),
            message(1, &gzip(b"two")[..]),
        ]
        .concat();
        check!(
            Framer::new(Some(Coding::Gzip)),
            &[&body],
            expect![[r#"
                [] one
                [] plain
                odd bad_coding
                odd event_too_long
                [] 
                [] two
            "#]]
        );
        let zlib = |text: &[u8]| {
            let mut z = flate2::write::ZlibEncoder::new(Vec::new(), Compression::default());
            z.write_all(text).unwrap();
            message(1, &z.finish().unwrap())
        };
        check!(
            Framer::new(Some(Coding::Deflate)),
            &[&[zlib(b"one"), zlib(b"two")].concat()],
            expect![[r#"
            [] one
            [] two
        "#]]
        );
        check!(Framer::new(None), &[&message(1, b"one")], expect!["odd unknown_coding\n"]);
    }

    #[test]
    fn behind_a_hole_whole_messages_are_believed() {
        let body = [message(0, b"one"), message(0, b"two")].concat();
        let lost = [&body[..10], &body[11..]];
        check!(Framer::new(None), &lost, expect![["[] one\nodd framing_lost\n"]]);
        let run = |pieces: &[&[u8]]| {
            let (mut framer, mut out) = (Framer::new(None), String::new());
            for piece in pieces {
                match piece {
                    [] => framer.hole(),
                    piece => framer.push(piece, &mut |u| show(u, &mut out)),
                }
            }
            out
        };
        expect![[r#"
            [] one
            odd framing_lost
            [] one
            [] two
            [] three
        "#]]
        .assert_eq(&run(&[&body[..10], b"", &body[11..], &body[1..], &body, &message(0, b"three")]));
        // Part of one, none at all, empty ones.
        for no in [&body[..9], b"\x02\0\0\0\x01x", &[0; 5], &[0; 25]] {
            assert_eq!(run(&[&body[..3], b"", no]), "odd framing_lost\n", "{no:?}");
        }
        check!(Framer::new(None), &[&message(0, b"one"), b""], expect!["[] one\n"]);
        check!(Framer::new(None), &[&[message(2, b""), message(0, b"one")].concat()], expect!["odd bad_message\n"]);
    }

    #[test]
    fn a_hole_within_a_message_costs_that_message_only() {
        let body = [message(0, b"one"), message(0, b"second"), message(0, b"three")].concat();
        for (from, to) in [(13, 14), (14, 19), (13, 19), (15, 16)] {
            for size in 1..=64 {
                let (mut framer, mut out) = (Framer::new(None), String::new());
                body[..from].chunks(size).for_each(|b| framer.push(b, &mut |u| show(u, &mut out)));
                framer.miss(Some((to - from) as u64));
                body[to..].chunks(size).for_each(|b| framer.push(b, &mut |u| show(u, &mut out)));
                assert_eq!(out, "[] one\n[] three\n", "{from}..{to} in pieces of {size}");
            }
        }
        // Beyond it, or within a prefix, nothing tells where the next begins.
        for (from, missing) in [(13, 7), (10, 1), (8, 1)] {
            let mut framer = Framer::new(None);
            framer.push(&body[..from], &mut |_| {});
            framer.miss(Some(missing));
            assert_eq!(framer.state, State::Hole);
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_skipped_by_its_length() {
        let body = [message(0, &vec![b'x'; MAX_EVENT + 1]), message(0, b"next")].concat();
        let (mut framer, mut out) = (Framer::new(None), String::new());
        for piece in body.chunks(100_000) {
            framer.push(piece, &mut |u| show(u, &mut out));
            assert_eq!(framer.buffered(), 0);
        }
        assert_eq!(out, "odd event_too_long\n[] next\n");
    }
}
