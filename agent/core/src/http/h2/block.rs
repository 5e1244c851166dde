//! Header blocks put together from HEADERS, PUSH_PROMISE and CONTINUATION frames (RFC 9113 §4.3, §6.2, §6.6, §6.10).

use std::borrow::Cow;
use std::ops::Range;

use super::wire::{Header, flag, kind};
use crate::anomaly::Anomaly;
use crate::stream::Timestamp;

/// Longest header block, as it is on the wire.
pub const MAX_BLOCK: usize = 64 << 10;

/// A header block with what its frames say.
#[derive(PartialEq, Eq, Debug)]
pub struct Headers<'a> {
    /// The stream; of a PUSH_PROMISE the promised one.
    pub stream: u32,
    /// When the first byte of its frame came.
    pub begun: Timestamp,
    /// Whether it is the stream's last word.
    pub end: bool,
    /// The block.
    pub block: Block<'a>,
}

/// A header block.
#[derive(PartialEq, Eq, Debug)]
pub enum Block<'a> {
    /// It is all there.
    Whole(Cow<'a, [u8]>),
    /// A part of it is in a hole.
    Lost,
    /// It cannot be had for another reason.
    Bad(Anomaly),
}

/// Why a payload was not read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spoiled {
    Hole,
    TooLong,
}

/// A frame's payload.
pub(super) type Payload<'a> = Result<Cow<'a, [u8]>, Spoiled>;

/// The header block of one direction that is not complete, if there is one.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: Option<Box<Open>>,
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

impl Blocks {
    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.open.as_ref().and_then(|o| o.block.as_ref().ok()).map_or(0, Vec::capacity)
    }

    /// Whether nothing but CONTINUATION may come.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// A frame begins; the block that it breaks off. Nothing but CONTINUATION of its stream goes on with one.
    pub fn interrupted(&mut self, frame: Header) -> Option<Headers<'static>> {
        let goes_on = |o: &Open| frame.kind == kind::CONTINUATION && o.carrier == frame.stream;
        let broken = self.open.take_if(|o| !goes_on(o))?;
        Some(Headers { stream: broken.stream, begun: broken.begun, end: broken.end, block: Block::Bad(Anomaly::BadFrame) })
    }

    /// A HEADERS or PUSH_PROMISE frame that began at `begun` is complete; its block, if that is complete as well.
    pub fn begins<'a>(&mut self, frame: Header, begun: Timestamp, payload: Payload<'a>) -> Option<Headers<'a>> {
        let end = frame.kind == kind::HEADERS && frame.has(flag::END_STREAM);
        let (stream, block) = match payload {
            Err(why) => (frame.stream, Err(why)),
            Ok(payload) => match fragment(frame, &payload) {
                None => return Some(Headers { stream: frame.stream, begun, end, block: Block::Bad(Anomaly::BadFrame) }),
                Some((promised, at)) => (promised.unwrap_or(frame.stream), Ok(part(payload, at))),
            },
        };
        if frame.has(flag::END_HEADERS) {
            return Some(Headers { stream, begun, end, block: block.into() });
        }
        self.open = Some(Box::new(Open { carrier: frame.stream, stream, begun, end, block: block.map(Cow::into_owned) }));
        None
    }

    /// A CONTINUATION frame is complete; its block, if that is complete as well. `Err` when nothing was begun.
    pub fn goes_on(&mut self, frame: Header, payload: Payload<'_>) -> Result<Option<Headers<'static>>, ()> {
        let open = self.open.as_mut().ok_or(())?;
        match (&mut open.block, payload) {
            (Ok(block), Ok(more)) if block.len() + more.len() <= MAX_BLOCK => block.extend_from_slice(&more),
            (Ok(_), Ok(_)) => open.block = Err(Spoiled::TooLong),
            (Ok(_), Err(why)) => open.block = Err(why),
            (Err(_), _) => {}
        }
        if !frame.has(flag::END_HEADERS) {
            return Ok(None);
        }
        let whole = |o: Box<Open>| Headers { stream: o.stream, begun: o.begun, end: o.end, block: o.block.map(Cow::Owned).into() };
        Ok(self.open.take().map(whole))
    }
}

impl<'a> From<Payload<'a>> for Block<'a> {
    fn from(block: Payload<'a>) -> Self {
        match block {
            Ok(block) => Self::Whole(block),
            Err(Spoiled::Hole) => Self::Lost,
            Err(Spoiled::TooLong) => Self::Bad(Anomaly::HeadTooLong),
        }
    }
}

/// A part of a payload.
fn part(payload: Cow<'_, [u8]>, at: Range<usize>) -> Cow<'_, [u8]> {
    match payload {
        Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[at]),
        Cow::Owned(mut bytes) => {
            bytes.truncate(at.end);
            bytes.drain(..at.start);
            Cow::Owned(bytes)
        }
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
