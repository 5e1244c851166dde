//! One direction of an HTTP/2 connection, cut into frames (RFC 9113 §4, §6).
//!
//! Pulled, not pushed: [`Parser::next`] takes bytes off the front of its input and returns one part at a time. DATA is passed on as
//! slices of the input; a header block is a slice as well where it lies whole in one piece, else it is buffered up to
//! [`MAX_BLOCK`]. After a hole the parser goes on where the length of the hole allows it, else it looks for a frame's header
//! ([`super::seek`]) and skips what is before it.

use std::ops::Range;

use super::seek::Seek;
use crate::anomaly::Anomaly;
use crate::stream::Timestamp;

/// The connection preface of a client (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's header.
pub const HEADER: usize = 9;
/// Longest header block, as it is on the wire.
pub const MAX_BLOCK: usize = 64 << 10;
/// Longest SETTINGS frame that is read: far more settings than there are.
const MAX_SETTINGS: u32 = 6 * 64;

/// Frame types (RFC 9113 §6).
pub(super) mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub(super) mod flag {
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 0x20;
}

/// A part of a direction.
#[derive(PartialEq, Eq, Debug)]
pub enum Part<'a> {
    /// A header block is complete.
    Headers {
        /// The stream; of a PUSH_PROMISE the promised one.
        stream: u32,
        /// When the first byte of its frame came.
        begun: Timestamp,
        /// Whether it is the stream's last word.
        end: bool,
        /// The block.
        block: Block<'a>,
    },
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

/// A header block.
#[derive(PartialEq, Eq, Debug)]
pub enum Block<'a> {
    /// It lay whole in one piece.
    Slice(&'a [u8]),
    /// It came in pieces.
    Joined(Vec<u8>),
    /// A part of it is in a hole.
    Lost,
    /// It cannot be had for another reason.
    Bad(Anomaly),
}

/// What a hole did to the framing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hole {
    /// In the data of this stream; the framing goes on.
    InData(u32),
    /// In something else that a frame holds; the framing goes on.
    InFrame,
    /// Frames must be found again: any number of any kind may be missing.
    FramingLost,
}

/// A frame's header (RFC 9113 §4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub length: u32,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl Header {
    pub fn read(bytes: [u8; HEADER]) -> Self {
        let [a, b, c, kind, flags, d, e, f, g] = bytes;
        Self { length: u32::from_be_bytes([0, a, b, c]), kind, flags, stream: u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff }
    }

    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether a peer may send it at all (RFC 9113 §6: everything else is a connection error).
    fn is_valid(self) -> bool {
        match self.kind {
            kind::DATA | kind::HEADERS | kind::CONTINUATION => self.stream != 0,
            kind::PUSH_PROMISE => self.stream != 0 && self.length >= 4,
            kind::RST_STREAM => self.stream != 0 && self.length == 4,
            kind::SETTINGS => self.stream == 0 && self.length.is_multiple_of(6),
            kind::PING => self.stream == 0 && self.length == 8,
            kind::GOAWAY => self.stream == 0 && self.length >= 8,
            kind::WINDOW_UPDATE => self.length == 4,
            _ => true,
        }
    }
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

/// Why a payload was not read.
#[derive(Clone, Copy, Debug)]
enum Spoiled {
    Hole,
    TooLong,
}

/// A whole payload.
enum Payload<'a> {
    Slice(&'a [u8]),
    Joined(Vec<u8>),
    Spoiled(Spoiled),
}

/// A header block that CONTINUATION frames complete.
#[derive(Debug)]
struct Open {
    /// The stream whose frames it is in.
    carrier: u32,
    stream: u32,
    begun: Timestamp,
    end: bool,
    /// What is there of it, or why it cannot be had.
    block: Result<Vec<u8>, Spoiled>,
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
    open: Option<Box<Open>>,
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
            open: None,
            skipped: 0,
        }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        let seek = if let State::Seeking(_) = self.state { size_of::<Seek>() } else { 0 };
        let block = self.open.as_ref().and_then(|o| o.block.as_ref().ok()).map_or(0, Vec::capacity);
        self.payload.capacity() + block + seek
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
                let in_data = *pad_length || self.left > self.padding;
                if std::mem::take(pad_length) {
                    // How much of what follows is padding is lost as well.
                    self.padding = self.left;
                }
                self.left -= n;
                self.padding = self.padding.min(self.left);
                if in_data { Hole::InData(self.frame.stream) } else { Hole::InFrame }
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

    /// The next part, taken off the front of `input`, which came at `at`; `None` when more bytes are needed. `known` says whether a
    /// stream is open: its frames are believed at once when frames are looked for.
    pub fn next<'a>(&mut self, at: Timestamp, input: &mut &'a [u8], known: &dyn Fn(u32) -> bool) -> Option<Part<'a>> {
        loop {
            let within = matches!(self.state, State::Data { .. } | State::Collect | State::Skip { .. });
            if within && self.left == 0 {
                let payload = match self.state {
                    State::Skip { spoiled: Some(why) } => Payload::Spoiled(why),
                    _ => Payload::Joined(std::mem::take(&mut self.payload)),
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
                        if let Some(part) = self.frame_ends(Payload::Slice(bytes)) {
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
        // A block is continued by nothing but CONTINUATION of its stream (RFC 9113 §6.10).
        let carries_on = |o: &mut Box<Open>| frame.kind == kind::CONTINUATION && o.carrier == frame.stream;
        let broken = self.open.take_if(|o| !carries_on(o))?;
        Some(broken.part(Some(Block::Bad(Anomaly::BadFrame))))
    }

    /// A frame's payload is complete.
    fn frame_ends<'a>(&mut self, payload: Payload<'a>) -> Option<Part<'a>> {
        let frame = self.frame;
        let bytes = match &payload {
            Payload::Slice(bytes) => Some(*bytes),
            Payload::Joined(bytes) => Some(bytes.as_slice()),
            Payload::Spoiled(_) => None,
        };
        match frame.kind {
            kind::DATA if frame.has(flag::END_STREAM) => Some(Part::End(frame.stream)),
            kind::HEADERS | kind::PUSH_PROMISE => self.block_begins(payload),
            kind::CONTINUATION => self.block_goes_on(payload),
            kind::RST_STREAM => Some(Part::Reset(frame.stream)),
            kind::GOAWAY => {
                let last = bytes?.first_chunk().map(|b| u32::from_be_bytes(*b))?;
                Some(Part::Goaway(last & 0x7fff_ffff))
            }
            kind::SETTINGS if !frame.has(flag::ACK) => {
                let Some(bytes) = bytes else { return Some(Part::TableSize(u32::MAX)) };
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

    /// A HEADERS or PUSH_PROMISE frame is complete.
    fn block_begins<'a>(&mut self, payload: Payload<'a>) -> Option<Part<'a>> {
        let frame = self.frame;
        let end = frame.kind == kind::HEADERS && frame.has(flag::END_STREAM);
        let mut open = Open { carrier: frame.stream, stream: frame.stream, begun: self.begun, end, block: Ok(Vec::new()) };
        let whole = frame.has(flag::END_HEADERS);
        let fragment = match &payload {
            Payload::Slice(bytes) => fragment(frame, bytes),
            Payload::Joined(bytes) => fragment(frame, bytes),
            Payload::Spoiled(why) => {
                open.block = Err(*why);
                None
            }
        };
        if let Some((promised, bytes)) = fragment {
            open.stream = promised.unwrap_or(frame.stream);
            if let (true, Payload::Slice(slice)) = (whole, &payload) {
                return Some(open.part(Some(Block::Slice(&slice[bytes]))));
            }
            if let Payload::Slice(bytes_of) = &payload {
                open.block = Ok(bytes_of[bytes].to_vec());
            } else if let Payload::Joined(mut vec) = payload {
                vec.truncate(bytes.end);
                vec.drain(..bytes.start);
                open.block = Ok(vec);
            }
        } else if open.block.is_ok() {
            return Some(open.part(Some(Block::Bad(Anomaly::BadFrame))));
        }
        if whole {
            return Some(open.part(None));
        }
        self.open = Some(Box::new(open));
        None
    }

    /// A CONTINUATION frame is complete.
    fn block_goes_on<'a>(&mut self, payload: Payload<'a>) -> Option<Part<'a>> {
        let Some(open) = &mut self.open else { return Some(Part::BlockMissed) };
        let add = match &payload {
            Payload::Slice(bytes) => Ok(*bytes),
            Payload::Joined(bytes) => Ok(bytes.as_slice()),
            Payload::Spoiled(why) => Err(*why),
        };
        match (&mut open.block, add) {
            (Ok(block), Ok(bytes)) if block.len() + bytes.len() <= MAX_BLOCK => block.extend_from_slice(bytes),
            (Ok(_), Ok(_)) => open.block = Err(Spoiled::TooLong),
            (Ok(_), Err(why)) => open.block = Err(why),
            (Err(_), _) => {}
        }
        if !self.frame.has(flag::END_HEADERS) {
            return None;
        }
        self.open.take().map(|open| open.part(None))
    }
}

impl Open {
    /// The block as a part; `block` where it is not the one that was joined.
    fn part(self, block: Option<Block<'_>>) -> Part<'_> {
        let joined = || match self.block {
            Ok(block) => Block::Joined(block),
            Err(Spoiled::Hole) => Block::Lost,
            Err(Spoiled::TooLong) => Block::Bad(Anomaly::HeadTooLong),
        };
        Part::Headers { stream: self.stream, begun: self.begun, end: self.end, block: block.unwrap_or_else(joined) }
    }
}

/// Where the fragment of a header block lies in a payload, and which stream it promises; `None` when the payload has no room for what
/// its flags say.
fn fragment(frame: Header, payload: &[u8]) -> Option<(Option<u32>, Range<usize>)> {
    let (mut start, mut end) = (0, payload.len());
    if frame.has(flag::PADDED) {
        start = 1;
        end = end.checked_sub(usize::from(*payload.first()?))?;
    }
    let mut promised = None;
    if frame.kind == kind::PUSH_PROMISE {
        promised = payload.get(start..)?.first_chunk().map(|b| u32::from_be_bytes(*b) & 0x7fff_ffff);
        start += 4;
    } else if frame.has(flag::PRIORITY) {
        start += 5;
    }
    (start <= end).then_some((promised, start..end))
}

fn take<'a>(input: &mut &'a [u8], most: u32) -> &'a [u8] {
    let n = usize::try_from(most).unwrap_or(usize::MAX).min(input.len());
    let (front, rest) = input.split_at(n);
    *input = rest;
    front
}

#[cfg(test)]
mod tests;
