//! The first message of a gRPC request, reduced while it streams: short fields stay whole, of long ones (prompts, tensors, images)
//! only the beginning is kept. What remains is a message again, of which the ends of long fields are missing.

use crate::anomaly::Anomaly;
use crate::http::coding::Decoder;
use crate::http::head::Coding;

/// Bytes kept of one field.
const MAX_FIELD: u64 = 1024;
/// Bytes kept of a message.
const MAX_MESSAGE: usize = 64 << 10;
/// The flag and the length before a message.
const PREFIX: u8 = 5;

/// Reduces the first of the messages that are pushed into it, and counts the others.
#[derive(Debug)]
pub struct Skeleton {
    coding: Option<Coding>,
    /// Inflates the first message, where it is compressed.
    decoder: Option<Box<Decoder>>,
    message: Reduced,
    prefix: [u8; PREFIX as usize],
    prefixed: u8,
    /// Bytes of the message that are still to come.
    left: u64,
    messages: u32,
    trouble: Option<Anomaly>,
    /// A hole lies behind the first message: the others are not counted any more.
    deaf: bool,
}

/// A message while it is reduced.
#[derive(Debug, Default)]
struct Reduced {
    kept: Vec<u8>,
    state: State,
    /// What keeps it from being read on.
    trouble: Option<Anomaly>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A field's key: what of it came, and in how many bytes.
    Key(u64, u8),
    /// An integer: how many bytes came.
    Varint(u8),
    /// The length of a field.
    Length(u64, u8),
    /// Bytes of a field that are kept, and those behind them that are not.
    Bytes(u64, u64),
}

impl Default for State {
    fn default() -> Self {
        Self::Key(0, 0)
    }
}

impl Skeleton {
    /// A skeleton of messages that are compressed, where their flag says so, with `coding` (`grpc-encoding`).
    pub fn new(coding: Option<Coding>) -> Self {
        Self {
            coding,
            decoder: None,
            message: Reduced::default(),
            prefix: [0; PREFIX as usize],
            prefixed: 0,
            left: 0,
            messages: 0,
            trouble: None,
            deaf: false,
        }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.message.kept.capacity() + self.decoder.as_ref().map_or(0, |d| d.buffered())
    }

    /// Bytes are missing: where messages begin cannot be told any more.
    pub fn hole(&mut self) {
        self.deaf = true;
        if !self.is_complete() {
            self.trouble.get_or_insert(Anomaly::FramingLost);
        }
    }

    /// How many messages have begun.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Whether the first message is complete.
    pub fn is_complete(&self) -> bool {
        self.messages > 1 || self.messages == 1 && self.left == 0
    }

    /// The first message.
    ///
    /// # Errors
    /// What keeps it from being read.
    pub fn finish(&self) -> Result<&[u8], Anomaly> {
        match self.trouble {
            Some(what) => Err(what),
            None if !self.is_complete() => Err(Anomaly::BadMessage),
            None => Ok(&self.message.kept),
        }
    }

    /// Takes the next piece of the body.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.deaf || self.trouble.is_some() {
                return;
            }
            if self.left == 0 {
                self.prefix[usize::from(self.prefixed)] = byte;
                self.prefixed += 1;
                bytes = rest;
                if self.prefixed == PREFIX {
                    let [flag, length @ ..] = self.prefix;
                    self.prefixed = 0;
                    self.left = u64::from(u32::from_be_bytes(length));
                    self.messages = self.messages.saturating_add(1);
                    match flag {
                        0 => {}
                        1 if self.messages > 1 || self.left == 0 => {}
                        1 => match self.coding.and_then(Decoder::new) {
                            None => self.trouble = Some(Anomaly::UnknownCoding),
                            decoder => self.decoder = decoder.map(Box::new),
                        },
                        _ => self.trouble = Some(Anomaly::BadMessage),
                    }
                }
                continue;
            }
            let here = self.left.min(bytes.len() as u64) as usize;
            let (part, rest) = bytes.split_at(here);
            bytes = rest;
            self.left -= here as u64;
            if self.messages == 1 {
                let Self { message, decoder, .. } = self;
                let inflated = match decoder {
                    None => {
                        message.push(part);
                        Ok(())
                    }
                    Some(decoder) => decoder.push(part, &mut |bytes| message.push(bytes)),
                };
                self.trouble = inflated.err();
                if self.left == 0 {
                    self.decoder = None;
                    let cut = self.message.state != State::Key(0, 0);
                    // Only now: how far an inflater has come before it stumbles depends on the pieces.
                    let trouble = self.trouble.or(self.message.trouble);
                    self.trouble = trouble.or(cut.then_some(Anomaly::BadMessage));
                }
            }
        }
    }
}

impl Reduced {
    fn push(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.kept.len() > MAX_MESSAGE {
                self.trouble = Some(Anomaly::BodyTooLong);
            }
            if self.trouble.is_some() {
                return;
            }
            let more = byte & 0x80 != 0;
            self.state = match self.state {
                State::Bytes(keep, skip) => {
                    let kept = keep.min(bytes.len() as u64) as usize;
                    self.kept.extend_from_slice(&bytes[..kept]);
                    let skipped = skip.min((bytes.len() - kept) as u64) as usize;
                    bytes = &bytes[kept + skipped..];
                    match (keep - kept as u64, skip - skipped as u64) {
                        (0, 0) => State::Key(0, 0),
                        (keep, skip) => State::Bytes(keep, skip),
                    }
                }
                State::Key(_, 10) | State::Length(_, 10) | State::Varint(10) => {
                    self.trouble = Some(Anomaly::BadMessage);
                    return;
                }
                State::Varint(n) => {
                    self.kept.push(byte);
                    bytes = rest;
                    if more { State::Varint(n + 1) } else { State::Key(0, 0) }
                }
                State::Key(value, n) => {
                    self.kept.push(byte);
                    bytes = rest;
                    let value = value | u64::from(byte & 0x7f) << (7 * n);
                    match value & 7 {
                        _ if more => State::Key(value, n + 1),
                        0 => State::Varint(0),
                        1 => State::Bytes(8, 0),
                        2 => State::Length(0, 0),
                        5 => State::Bytes(4, 0),
                        _ => {
                            self.trouble = Some(Anomaly::BadMessage);
                            return;
                        }
                    }
                }
                State::Length(value, n) => {
                    bytes = rest;
                    let value = value | u64::from(byte & 0x7f) << (7 * n);
                    if more {
                        State::Length(value, n + 1)
                    } else {
                        let keep = value.min(MAX_FIELD);
                        let mut length = keep;
                        while length > 0x7f {
                            self.kept.push(length as u8 | 0x80);
                            length >>= 7;
                        }
                        self.kept.push(length as u8);
                        if value == 0 { State::Key(0, 0) } else { State::Bytes(keep, value - keep) }
                    }
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::protobuf::Fields;
    use crate::dialect::protobuf::build::Message;
    use std::io::Write as _;

    fn framed(flag: u8, message: impl AsRef<[u8]>) -> Vec<u8> {
        [&[flag][..], &(message.as_ref().len() as u32).to_be_bytes(), message.as_ref()].concat()
    }

    fn run(body: &[u8], size: usize) -> (Result<Vec<u8>, Anomaly>, u32) {
        let mut skeleton = Skeleton::new(Some(Coding::Gzip));
        for piece in body.chunks(size) {
            skeleton.push(piece);
            assert!(skeleton.buffered() <= 4 * MAX_MESSAGE);
        }
        (skeleton.finish().map(<[u8]>::to_vec), skeleton.messages())
    }

    fn check(body: &[u8]) -> (Result<Vec<u8>, Anomaly>, u32) {
        let whole = run(body, usize::MAX);
        for size in 1..=64 {
            assert_eq!(run(body, size), whole, "in pieces of {size}");
        }
        whole
    }

    #[test]
    fn short_fields_stay_and_long_ones_are_cut() {
        let short = Message::default().int(1, 300).bytes(2, "text").float(3, 0.5).bytes(4, "").int(1000, u64::MAX);
        assert_eq!(check(&framed(0, &short)), (Ok(short.0.clone()), 1));
        let long = Message::default().bytes(1, "m").bytes(2, "x".repeat(100_000)).int(3, 7);
        let (kept, messages) = check(&[framed(0, &long), framed(0, &short), framed(1, "")].concat());
        assert_eq!(messages, 3);
        let kept = kept.unwrap();
        let lengths: Vec<_> = Fields::of(&kept).map(|f| f.map(|(n, v)| (n, v.bytes().map(<[u8]>::len), v.integer()))).collect();
        assert_eq!(lengths, [Ok((1, Some(1), None)), Ok((2, Some(1024), None)), Ok((3, None, Some(7)))]);
        assert_eq!(check(&framed(0, "")), (Ok(Vec::new()), 1));
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gz.write_all(&long.0).unwrap();
        let zipped = gz.finish().unwrap();
        assert_eq!(check(&[framed(1, &zipped), framed(1, &zipped)].concat()), (Ok(kept), 2));
        assert_eq!(check(&framed(1, "")), (Ok(Vec::new()), 1));
    }

    /// Found by fuzzing: a message that is none, in compressed bytes that cannot be inflated behind it.
    #[test]
    fn what_is_told_of_two_troubles_does_not_depend_on_the_pieces() {
        let bytes = [
            b"\x01\x22\x01x\0jjj\xb0".as_slice(),
            &[b'j'; 29],
            b"\0\0\0\0\x05\x10\x01\" \0\0\0\x01x\0\0jjj\xea",
            &[b'j'; 18],
            b"\0\xff\xff'",
            &[0xff; 9],
            b"\0",
        ]
        .concat();
        let run = |size: usize| {
            let mut skeleton = Skeleton::new(Some(Coding::Deflate));
            bytes.chunks(size).for_each(|piece| skeleton.push(piece));
            skeleton.finish().err()
        };
        assert!((1..=64).all(|size| run(size) == run(1)), "{:?}", (1..=64).map(run).collect::<Vec<_>>());
    }

    #[test]
    fn what_cannot_be_read() {
        let message = Message::default().int(1, 300).bytes(2, "text");
        for cut in 0..5 + message.0.len() {
            assert_eq!(check(&framed(0, &message)[..cut]).0, Err(Anomaly::BadMessage), "cut at {cut}");
        }
        assert_eq!(check(&framed(0, &message.0[..message.0.len() - 1])).0, Err(Anomaly::BadMessage));
        assert_eq!(check(&framed(1, &message)).0, Err(Anomaly::BadCoding));
        let mut skeleton = Skeleton::new(None);
        skeleton.push(&framed(1, &message));
        assert_eq!(skeleton.finish(), Err(Anomaly::UnknownCoding));
        assert_eq!(check(&framed(2, &message)).0, Err(Anomaly::BadMessage));
        assert_eq!(check(&framed(0, [0x0b; 20])).0, Err(Anomaly::BadMessage));
        assert_eq!(check(&framed(0, [0xff; 20])).0, Err(Anomaly::BadMessage));
        let many = framed(0, [1 << 3, 1].repeat(MAX_MESSAGE));
        assert_eq!(run(&many, 100_000).0, Err(Anomaly::BodyTooLong));
        let mut skeleton = Skeleton::new(Some(Coding::Gzip));
        skeleton.push(&framed(0, &message)[..6]);
        skeleton.hole();
        skeleton.push(&framed(0, &message));
        assert_eq!(skeleton.finish(), Err(Anomaly::FramingLost));
        // Behind the first message a hole hides no more than how many follow.
        let mut skeleton = Skeleton::new(Some(Coding::Gzip));
        skeleton.push(&framed(0, &message));
        skeleton.hole();
        skeleton.push(b"garbage");
        assert_eq!((skeleton.finish(), skeleton.messages()), (Ok(&message.0[..]), 1));
    }
}
