//! One direction of an HTTP/2 connection, cut into frames (RFC 9113 §4, §6).
//!
//! Pulled, not pushed: [`Parser::next`] takes bytes off the front of its input and returns one part at a time. DATA is passed on as
//! slices of the input; a header block is a slice as well where it lies whole in one piece, else it is buffered up to
//! [`MAX_BLOCK`]. After a hole the parser goes on where the length of the hole allows it, else it looks for a frame's header
//! ([`super::seek`]) and skips what is before it.

use std::borrow::Cow;

use super::block::{Blocks, Headers, MAX_BLOCK, Payload, Spoiled};
use super::seek::Seek;
use super::wire::{HEADER, Header, PREFACE, flag, kind};
use crate::anomaly::Anomaly;
use crate::stream::Timestamp;

/// Longest SETTINGS frame that is read: far more settings than there are.
const MAX_SETTINGS: u32 = 6 * 64;

/// A part of a direction.
#[derive(PartialEq, Eq, Debug)]
pub enum Part<'a> {
    /// A header block is complete.
    Headers(Headers<'a>),
    /// Bytes of DATA without padding.
    Data(u32, &'a [u8]),
    /// END_STREAM behind DATA.
    End(u32),
    /// RST_STREAM.
    Reset(u32),
    /// GOAWAY with the last stream that will be answered.
    Goaway(u32),
    /// SETTINGS_HEADER_TABLE_SIZE: how large a table the sender reads with; `u32::MAX` where a hole hides it.
    TableSize(u32),
    /// A header block was missed of which not even the beginning was seen.
    BlockMissed,
    /// What came here is no frame, and its place cannot be told: what follows is skipped until a frame is found.
    Lost,
    /// A surprise.
    Odd(Anomaly),
}

/// What a hole did to the framing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hole {
    /// In the data of this stream; the framing goes on.
    #[allow(missing_docs, reason = "the fields say what they are")]
    InData {
        stream: u32,
        /// How many bytes of data are missing; `None` where how many of them are padding is lost as well.
        missing: Option<u64>,
    },
    /// In something else that a frame holds; the framing goes on.
    InFrame,
    /// Frames must be found again: any number of any kind may be missing.
    FramingLost,
}

#[derive(Debug)]
enum State {
    /// The client's preface; bytes seen of it.
    Preface(usize),
    /// A frame's header; bytes seen of it.
    Header(usize),
    /// DATA: whether its pad length is still to come.
    Data { pad_length: bool },
    /// A payload that is read as a whole.
    Collect,
    /// A payload that is not read; whether one that should have been.
    Skip { spoiled: Option<Spoiled> },
    /// Looking for a frame.
    Seeking(Box<Seek>),
    /// Nothing is read any more.
    Deaf,
}

/// What a direction's next byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begins {
    /// The first of the client's preface.
    WithPreface,
    /// The first of a frame.
    WithFrame,
    /// Any.
    Anywhere,
}

/// The parser of one direction.
#[derive(Debug)]
pub struct Parser {
    state: State,
    head: [u8; HEADER],
    begun: Timestamp,
    frame: Header,
    /// Payload bytes to come, padding included.
    left: u32,
    /// How many of them are padding.
    padding: u32,
    /// Payload that is collected.
    payload: Vec<u8>,
    blocks: Blocks,
    skipped: u64,
}

impl Parser {
    /// A parser of a direction whose next byte is what `begins` says.
    pub fn new(begins: Begins) -> Self {
        let state = match begins {
            Begins::WithPreface => State::Preface(0),
            Begins::WithFrame => State::Header(0),
            Begins::Anywhere => State::Seeking(Box::default()),
        };
        Self {
            state,
            head: [0; HEADER],
            begun: Timestamp::default(),
            frame: Header::read([0; HEADER]),
            left: 0,
            padding: 0,
            payload: Vec::new(),
            blocks: Blocks::default(),
            skipped: 0,
        }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        let seek = if let State::Seeking(_) = self.state { size_of::<Seek>() } else { 0 };
        self.payload.capacity() + self.blocks.buffered() + seek
    }

    /// Bytes skipped since a frame was last found.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Whether it is known where frames begin.
    pub fn has_footing(&self) -> bool {
        !matches!(self.state, State::Seeking(_))
    }

    /// Nothing more is read.
    pub fn deafen(&mut self) {
        *self = Self { state: State::Deaf, ..Self::new(Begins::WithFrame) };
    }

    fn seek(&mut self) {
        *self = Self { skipped: self.skipped, ..Self::new(Begins::Anywhere) };
    }

    /// Bytes are missing here: `len`, where that is known. Parts that are complete now come with the next [`Self::next`], which needs
    /// no bytes for it.
    pub fn hole(&mut self, len: Option<u64>) -> Hole {
        let inside = len.and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= self.left);
        match (&mut self.state, inside) {
            (State::Data { pad_length }, Some(n)) => {
                // When a stream ended that ends within the hole is not known, though no data may be missing.
                let in_data = *pad_length || self.left > self.padding || n == self.left && self.frame.has(flag::END_STREAM);
                let unknown = std::mem::take(pad_length);
                if unknown {
                    // How much of what follows is padding is lost as well.
                    self.padding = self.left;
                }
                let data = u64::from(n.min(self.left - self.padding));
                let missing = (!unknown).then_some(data);
                self.left -= n;
                self.padding = self.padding.min(self.left);
                if in_data { Hole::InData { stream: self.frame.stream, missing } } else { Hole::InFrame }
            }
            (State::Collect, Some(n)) => {
                self.state = State::Skip { spoiled: Some(Spoiled::Hole) };
                self.payload = Vec::new();
                self.left -= n;
                Hole::InFrame
            }
            (State::Skip { .. }, Some(n)) => {
                self.left -= n;
                Hole::InFrame
            }
            (State::Deaf, _) => Hole::InFrame,
            _ => {
                self.seek();
                Hole::FramingLost
            }
        }
    }

    /// The stream and the data of the one frame that `bytes` are, when one is due: [`Parser::next`] would yield just this and leave the
    /// parser as it is. Most senders write a frame at a time, so most packets are one.
    #[inline]
    pub fn whole_data<'a>(&self, bytes: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let (head, data) = bytes.split_first_chunk()?;
        let head = Header::read(*head);
        let plain = head.kind == kind::DATA && head.flags == 0 && head.stream != 0 && !self.blocks.is_open();
        (plain && matches!(self.state, State::Header(0)) && !data.is_empty() && head.length as usize == data.len())
            .then_some((head.stream, data))
    }

    /// The next part, taken off the front of `input`, which came at `at`; `None` when more bytes are needed. `known` says whether a
    /// stream is open: its frames are believed at once when frames are looked for.
    pub fn next<'a>(&mut self, at: Timestamp, input: &mut &'a [u8], known: &dyn Fn(u32) -> bool) -> Option<Part<'a>> {
        loop {
            let within = matches!(self.state, State::Data { .. } | State::Collect | State::Skip { .. });
            if within && self.left == 0 {
                let payload = match self.state {
                    State::Skip { spoiled: Some(why) } => Err(why),
                    _ => Ok(Cow::Owned(std::mem::take(&mut self.payload))),
                };
                self.state = State::Header(0);
                match self.frame_ends(payload) {
                    Some(part) => return Some(part),
                    None => continue,
                }
            }
            if input.is_empty() {
                return None;
            }
            match &mut self.state {
                State::Header(seen) => {
                    if *seen == 0 {
                        self.begun = at;
                    }
                    let bytes = take(input, (HEADER - *seen) as u32);
                    self.head[*seen..*seen + bytes.len()].copy_from_slice(bytes);
                    *seen += bytes.len();
                    if *seen == HEADER
                        && let Some(part) = self.frame_begins()
                    {
                        return Some(part);
                    }
                }
                State::Data { pad_length: true } => {
                    self.padding = u32::from(input[0]);
                    *input = &input[1..];
                    self.left -= 1;
                    self.state = State::Data { pad_length: false };
                    if self.padding > self.left {
                        self.padding = self.left;
                        return Some(Part::Odd(Anomaly::BadFrame));
                    }
                }
                State::Data { pad_length: false } => {
                    let bytes = take(input, self.left - self.padding);
                    self.left -= bytes.len() as u32;
                    if self.left == self.padding {
                        self.left -= take(input, self.left).len() as u32;
                        self.padding = self.left;
                    }
                    if !bytes.is_empty() {
                        return Some(Part::Data(self.frame.stream, bytes));
                    }
                }
                State::Collect => {
                    let bytes = take(input, self.left);
                    self.left -= bytes.len() as u32;
                    if self.left == 0 && self.payload.is_empty() {
                        self.state = State::Header(0);
                        if let Some(part) = self.frame_ends(Ok(Cow::Borrowed(bytes))) {
                            return Some(part);
                        }
                    } else {
                        self.payload.extend_from_slice(bytes);
                    }
                }
                State::Skip { .. } => self.left -= take(input, self.left).len() as u32,
                State::Preface(seen) => {
                    let len = input.len().min(PREFACE.len() - *seen);
                    if input[..len] != PREFACE[*seen..*seen + len] {
                        self.seek();
                        return Some(Part::Lost);
                    }
                    *input = &input[len..];
                    *seen += len;
                    if *seen == PREFACE.len() {
                        self.state = State::Header(0);
                    }
                }
                State::Seeking(seek) => {
                    let before = input.len();
                    let found = seek.look(at, input, known);
                    self.skipped += (before - input.len()) as u64;
                    if let Some(start) = found {
                        // All but the last byte of a header at most: that one is in the input.
                        self.head[..start.len].copy_from_slice(&start.bytes[..start.len]);
                        self.begun = start.begun.unwrap_or(at);
                        self.skipped = 0;
                        self.state = State::Header(start.len);
                    }
                }
                State::Deaf => *input = &[],
            }
        }
    }

    /// A frame's header is complete.
    fn frame_begins(&mut self) -> Option<Part<'static>> {
        let frame = Header::read(self.head);
        (self.frame, self.left, self.padding) = (frame, frame.length, 0);
        if !frame.is_valid() {
            self.seek();
            return Some(Part::Lost);
        }
        let collected = |most: u32| match frame.length <= most {
            true => State::Collect,
            false => State::Skip { spoiled: Some(Spoiled::TooLong) },
        };
        self.state = match frame.kind {
            kind::DATA => State::Data { pad_length: frame.has(flag::PADDED) },
            // Padding and priority come on top.
            kind::HEADERS | kind::PUSH_PROMISE | kind::CONTINUATION => collected(MAX_BLOCK as u32 + 270),
            kind::SETTINGS | kind::RST_STREAM => collected(MAX_SETTINGS),
            kind::GOAWAY => collected(MAX_BLOCK as u32),
            _ => State::Skip { spoiled: None },
        };
        self.blocks.interrupted(frame).map(Part::Headers)
    }

    /// A frame's payload is complete.
    fn frame_ends<'a>(&mut self, payload: Payload<'a>) -> Option<Part<'a>> {
        let frame = self.frame;
        match frame.kind {
            kind::DATA if frame.has(flag::END_STREAM) => Some(Part::End(frame.stream)),
            kind::HEADERS | kind::PUSH_PROMISE => self.blocks.begins(frame, self.begun, payload).map(Part::Headers),
            kind::CONTINUATION => match self.blocks.goes_on(frame, payload) {
                Ok(headers) => headers.map(Part::Headers),
                Err(()) => Some(Part::BlockMissed),
            },
            kind::RST_STREAM => Some(Part::Reset(frame.stream)),
            kind::GOAWAY => {
                let last = payload.ok()?.first_chunk().map(|b| u32::from_be_bytes(*b))?;
                Some(Part::Goaway(last & 0x7fff_ffff))
            }
            kind::SETTINGS if !frame.has(flag::ACK) => {
                let Ok(bytes) = payload else { return Some(Part::TableSize(u32::MAX)) };
                let size = |s: &[u8]| match *s {
                    [0, 1, a, b, c, d] => Some(u32::from_be_bytes([a, b, c, d])),
                    _ => None,
                };
                // Of several the last one holds (RFC 9113 §6.5).
                bytes.chunks(6).filter_map(size).next_back().map(Part::TableSize)
            }
            _ => None,
        }
    }
}

fn take<'a>(input: &mut &'a [u8], most: u32) -> &'a [u8] {
    let n = usize::try_from(most).unwrap_or(usize::MAX).min(input.len());
    let (front, rest) = input.split_at(n);
    *input = rest;
    front
}

#[cfg(test)]
mod tests;
