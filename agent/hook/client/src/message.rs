//! The messages of the socket, as `tokengauge_hook.proto` has them.

use prost::Message;
use tokengauge_tap::{FIXED, VERSION};

use crate::Told;

/// Events of one sender.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Batch {
    /// [`VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// When it was made, in nanoseconds of CLOCK_MONOTONIC.
    #[prost(uint64, tag = "2")]
    pub sent_at: u64,
    /// Events dropped since the sender began.
    #[prost(uint64, tag = "3")]
    pub dropped: u64,
    /// The events.
    #[prost(message, repeated, tag = "4")]
    pub events: Vec<Event>,
}

/// One event.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Event {
    /// When, on the clock of `sent_at`.
    #[prost(uint64, tag = "1")]
    pub at: u64,
    /// What happened.
    #[prost(uint32, tag = "2")]
    pub kind: u32,
    /// The request's id.
    #[prost(string, tag = "3")]
    pub request: String,
    /// The model's name.
    #[prost(string, tag = "4")]
    pub model: String,
    /// Tokens of this event.
    #[prost(uint32, optional, tag = "5")]
    pub new_tokens: Option<u32>,
    /// Tokens of the prompt.
    #[prost(uint32, optional, tag = "6")]
    pub prompt_tokens: Option<u32>,
    /// Those of them that were cached.
    #[prost(uint32, optional, tag = "7")]
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer so far.
    #[prost(uint32, optional, tag = "8")]
    pub output_tokens: Option<u32>,
    /// Bytes of the chunk.
    #[prost(uint32, optional, tag = "9")]
    pub chunk_bytes: Option<u32>,
    /// Which engine.
    #[prost(uint32, optional, tag = "10")]
    pub engine: Option<u32>,
    /// Why it ended.
    #[prost(uint32, optional, tag = "11")]
    pub finish: Option<u32>,
    /// Tokens drafted.
    #[prost(uint32, optional, tag = "12")]
    pub drafted_tokens: Option<u32>,
    /// And accepted.
    #[prost(uint32, optional, tag = "13")]
    pub accepted_tokens: Option<u32>,
    /// Requests in the batch of the step.
    #[prost(uint32, optional, tag = "14")]
    pub batch: Option<u32>,
    /// The trace, 16 bytes.
    #[prost(bytes = "vec", tag = "15")]
    pub trace_id: Vec<u8>,
    /// The caller's span, 8 bytes.
    #[prost(bytes = "vec", tag = "16")]
    pub span_id: Vec<u8>,
}

/// A batch with its length in front.
pub(crate) fn batch(events: &[Told], sent_at: u64, dropped: u64) -> Vec<u8> {
    let events = events.iter().map(|(at, event)| one(*at, event.bytes())).collect();
    let batch = Batch { version: VERSION.into(), sent_at, dropped, events };
    let length = u32::try_from(batch.encoded_len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_le_bytes().to_vec();
    batch.encode_raw(&mut bytes);
    bytes
}

/// The structure behind the tap symbol as a message.
fn one(at: u64, bytes: &[u8]) -> Event {
    let u16_at = |at: usize| bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_ne_bytes(*b));
    let present = u16_at(6);
    let number = |bit: u32, at: usize| {
        let told = present >> bit & 1 == 1;
        told.then(|| bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b)))
    };
    let (texts, split) = (bytes.get(FIXED..).unwrap_or_default(), usize::from(u16_at(8)));
    let (request, model) = texts.split_at_checked(split).unwrap_or_default();
    let part = |at: usize, len: usize| bytes.get(at..at + len).filter(|b| b.iter().any(|b| *b != 0)).unwrap_or_default().to_vec();
    Event {
        at,
        kind: u16_at(4).into(),
        request: String::from_utf8_lossy(request).into_owned(),
        model: String::from_utf8_lossy(model).into_owned(),
        new_tokens: number(0, 12),
        prompt_tokens: number(1, 16),
        cached_tokens: number(2, 20),
        output_tokens: number(3, 24),
        chunk_bytes: number(4, 28),
        engine: number(5, 32),
        finish: number(6, 36),
        drafted_tokens: number(7, 40),
        accepted_tokens: number(8, 44),
        batch: number(9, 48),
        trace_id: part(56, 16),
        span_id: part(72, 8),
    }
}
