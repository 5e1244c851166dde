//! The structure that a server hands to the tap symbol, read from the bytes that the kernel copied.
//!
//! The layout is that of `struct tokengauge_event` in `agent/hook/include/tokengauge_tap.h`, in the machine's own byte order:
//!
//! ```text
//!  0 u16 size           bytes of the fixed part, 80 in version 1; the texts begin there
//!  2 u16 version        1
//!  4 u16 kind           1 received … 8 cancelled
//!  6 u16 present        which of the numbers were told, see `present`
//!  8 u16 request_len    bytes of the request's id
//! 10 u16 model_len      bytes of the model's name, behind it
//! 12 u32 new_tokens    16 u32 prompt_tokens   20 u32 cached_tokens   24 u32 output_tokens
//! 28 u32 chunk_bytes   32 u32 engine          36 u32 finish          40 u32 drafted_tokens
//! 44 u32 accepted_tokens   48 u32 batch       52 u32 reserved, 0
//! 56 u8[16] trace_id   72 u8[8] span_id       as in `traceparent`: most significant byte first; zeros: unknown
//! 80 the id, then the name
//! ```
//!
//! A later structure of the same version is longer in front of the texts, which is why `size` stands in it.

use super::VERSION;
use super::event::{Counts, Event, Finish, Kind, ModelName, RequestId, Source, Stamp, TraceIds};
use crate::stream::Timestamp;

/// Bytes of the fixed part in version 1.
pub const FIXED: usize = 80;

/// Most bytes that are copied of one structure: the fixed part, two texts of 160 bytes, and room for what may be added.
pub const MAX: usize = 512;

/// The kinds as numbers.
pub mod kind {
    /// [`Kind::Received`](super::Kind::Received).
    pub const RECEIVED: u16 = 1;
    /// [`Kind::Queued`](super::Kind::Queued).
    pub const QUEUED: u16 = 2;
    /// [`Kind::Scheduled`](super::Kind::Scheduled).
    pub const SCHEDULED: u16 = 3;
    /// [`Kind::FirstToken`](super::Kind::FirstToken).
    pub const FIRST_TOKEN: u16 = 4;
    /// [`Kind::Tokens`](super::Kind::Tokens).
    pub const TOKENS: u16 = 5;
    /// [`Kind::Finished`](super::Kind::Finished).
    pub const FINISHED: u16 = 6;
    /// [`Kind::Preempted`](super::Kind::Preempted).
    pub const PREEMPTED: u16 = 7;
    /// [`Kind::Cancelled`](super::Kind::Cancelled).
    pub const CANCELLED: u16 = 8;
}

/// Bits of `present`: which numbers were told. Zeros in a structure are no claim.
pub mod present {
    /// `new_tokens`.
    pub const NEW: u16 = 1;
    /// `prompt_tokens`.
    pub const PROMPT: u16 = 2;
    /// `cached_tokens`.
    pub const CACHED: u16 = 4;
    /// `output_tokens`.
    pub const OUTPUT: u16 = 8;
    /// `chunk_bytes`.
    pub const CHUNK: u16 = 16;
    /// `engine`.
    pub const ENGINE: u16 = 32;
    /// `finish`.
    pub const FINISH: u16 = 64;
    /// `drafted_tokens`.
    pub const DRAFTED: u16 = 128;
    /// `accepted_tokens`.
    pub const ACCEPTED: u16 = 256;
    /// `batch`.
    pub const BATCH: u16 = 512;
}

/// Why an event is none; the value of `tokengauge.result` of `tokengauge.hook.events`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Bad {
    /// Shorter than its fixed part, or than the texts that it announces.
    TooShort,
    /// Another version than [`VERSION`].
    Version,
    /// A kind that is not known: of a newer server, most likely.
    Kind,
    /// No request's id, or one that is no UTF-8.
    Request,
    /// [`Kind::Tokens`] that do not say how many.
    Tokens,
    /// A message that is no Protobuf, or not of ours.
    Message,
}

impl Bad {
    /// Every one.
    pub const ALL: [Self; 6] = [Self::TooShort, Self::Version, Self::Kind, Self::Request, Self::Tokens, Self::Message];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooShort => "too_short",
            Self::Version => "unknown_version",
            Self::Kind => "unknown_kind",
            Self::Request => "bad_request_id",
            Self::Tokens => "no_token_count",
            Self::Message => "bad_message",
        }
    }
}

/// The kind of a number; `new` are the tokens that came along.
///
/// # Errors
/// When there is no such kind, or its tokens are not told.
pub fn kind_of(number: u32, new: Option<u32>) -> Result<Kind, Bad> {
    Ok(match u16::try_from(number).unwrap_or_default() {
        kind::RECEIVED => Kind::Received,
        kind::QUEUED => Kind::Queued,
        kind::SCHEDULED => Kind::Scheduled,
        kind::FIRST_TOKEN => Kind::FirstToken,
        kind::TOKENS => Kind::Tokens(new.ok_or(Bad::Tokens)?),
        kind::FINISHED => Kind::Finished,
        kind::PREEMPTED => Kind::Preempted,
        kind::CANCELLED => Kind::Cancelled,
        _ => return Err(Bad::Kind),
    })
}

/// Why a request ended, of its number: 1 stop, 2 length, 3 error; everything else is something else.
pub const fn finish_of(number: u32) -> Finish {
    match number {
        1 => Finish::Stop,
        2 => Finish::Length,
        3 => Finish::Error,
        _ => Finish::Other,
    }
}

/// Reads the structure. `bytes` may be longer than what it says of itself.
///
/// # Errors
/// When it says too little to be an event.
pub fn read(bytes: &[u8], at: Timestamp, source: Source) -> Result<Event, Bad> {
    let fixed: &[u8; FIXED] = bytes.first_chunk().ok_or(Bad::TooShort)?;
    // The array is as long as every place below needs; the places are constants.
    let u16_at = |at: usize| fixed.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_ne_bytes(*b));
    let u32_at = |at: usize| fixed.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b));
    let told = u16_at(6);
    let number = |bit: u16, at: usize| (told & bit != 0).then(|| u32_at(at));
    if u16_at(2) != VERSION {
        return Err(Bad::Version);
    }
    let size = usize::from(u16_at(0));
    if size < FIXED {
        return Err(Bad::TooShort);
    }
    let counts = Counts {
        new: number(present::NEW, 12),
        prompt: number(present::PROMPT, 16),
        cached: number(present::CACHED, 20),
        output: number(present::OUTPUT, 24),
        chunk_bytes: number(present::CHUNK, 28),
        drafted: number(present::DRAFTED, 40),
        accepted: number(present::ACCEPTED, 44),
        batch: number(present::BATCH, 48),
    };
    let texts = bytes.get(size..).ok_or(Bad::TooShort)?;
    let (request, rest) = texts.split_at_checked(usize::from(u16_at(8))).ok_or(Bad::TooShort)?;
    let model = rest.get(..usize::from(u16_at(10))).ok_or(Bad::TooShort)?;
    let trace_id = fixed.get(56..).and_then(|b| b.first_chunk()).map_or(0, |b| u128::from_be_bytes(*b));
    let span_id = fixed.get(72..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b));
    Ok(Event {
        at,
        stamp: Stamp::Kernel,
        source,
        kind: kind_of(u32::from(u16_at(4)), counts.new)?,
        request: RequestId::new(request).ok_or(Bad::Request)?,
        model: ModelName::new(model),
        trace: TraceIds::new(trace_id, span_id),
        engine: number(present::ENGINE, 32),
        finish: number(present::FINISH, 36).map(finish_of),
        counts,
    })
}

#[cfg(test)]
mod tests {
    use super::super::event::Via;
    use super::*;
    use proptest::prelude::*;

    const SOURCE: Source = Source { via: Via::Tap, pid: 7, connection: 0 };
    const AT: Timestamp = Timestamp::from_unix_nanos(1_000);

    /// As a C program would fill it.
    fn structure(kind: u16, told: u16, request: &[u8], model: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [FIXED as u16, VERSION, kind, told, request.len() as u16, model.len() as u16] {
            bytes.extend(field.to_ne_bytes());
        }
        for number in 101..=111_u32 {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
        bytes.extend(0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
        bytes.extend(request);
        bytes.extend(model);
        bytes
    }

    #[test]
    fn every_field_is_read() {
        let event = read(&structure(kind::TOKENS, 0x3ff, b"chatcmpl-1", b"m"), AT, SOURCE).unwrap();
        let counts = Counts {
            new: Some(101),
            prompt: Some(102),
            cached: Some(103),
            output: Some(104),
            chunk_bytes: Some(105),
            drafted: Some(108),
            accepted: Some(109),
            batch: Some(110),
        };
        let want = Event {
            at: AT,
            stamp: Stamp::Kernel,
            source: SOURCE,
            request: RequestId::new(b"chatcmpl-1").unwrap(),
            kind: Kind::Tokens(101),
            model: ModelName::new(b"m"),
            trace: TraceIds::new(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7),
            engine: Some(106),
            finish: Some(Finish::Other),
            counts,
        };
        assert_eq!(event, want);
    }

    #[test]
    fn what_is_not_told_is_absent() {
        let mut bytes = structure(kind::RECEIVED, 0, b"r", b"");
        bytes[56..80].fill(0);
        let event = read(&bytes, AT, SOURCE).unwrap();
        assert_eq!((event.kind, event.model, event.trace, event.engine, event.finish), (Kind::Received, None, None, None, None));
        assert_eq!(event.counts, Counts::default());
    }

    #[test]
    fn bad_structures_are_named() {
        let good = structure(kind::QUEUED, 0, b"req", b"model");
        for len in 0..good.len() {
            assert_eq!(read(&good[..len], AT, SOURCE), Err(Bad::TooShort), "cut to {len}");
        }
        let changed = |at: usize, to: u16| {
            let mut bytes = good.clone();
            bytes[at..at + 2].copy_from_slice(&to.to_ne_bytes());
            read(&bytes, AT, SOURCE).map(|e| e.kind)
        };
        for (at, to, want) in [
            (0, 79, Bad::TooShort),
            (0, 81, Bad::TooShort),
            (2, 2, Bad::Version),
            (2, 0, Bad::Version),
            (4, 0, Bad::Kind),
            (4, 9, Bad::Kind),
            (4, kind::TOKENS, Bad::Tokens),
            (8, 0, Bad::Request),
            (8, 300, Bad::TooShort),
            (10, 6, Bad::TooShort),
        ] {
            assert_eq!(changed(at, to), Err(want), "{to} at {at}");
        }
    }

    #[test]
    fn a_longer_fixed_part_and_bytes_behind_it_are_no_obstacle() {
        let mut bytes = structure(kind::QUEUED, 0, b"req", b"model");
        bytes.splice(80..80, [0xaa; 16]);
        bytes[..2].copy_from_slice(&96_u16.to_ne_bytes());
        bytes.extend([0; 100]);
        let event = read(&bytes, AT, SOURCE).unwrap();
        assert_eq!((event.request.as_str(), event.model.unwrap().as_str()), ("req", "model"));
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(mut bytes in proptest::collection::vec(any::<u8>(), 0..MAX), ours in any::<bool>()) {
            if ours && bytes.len() > 4 {
                bytes[..4].copy_from_slice(&[80, 0, 1, 0]);
            }
            if let Ok(event) = read(&bytes, AT, SOURCE) {
                prop_assert!(!event.request.as_bytes().is_empty());
            }
        }
    }
}
