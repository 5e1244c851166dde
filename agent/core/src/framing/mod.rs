//! Bodies cut into the units that an API delimits. A framer knows no LLM (invariant 3).

pub mod json;
pub mod sse;

use crate::anomaly::Anomaly;

/// One unit of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The event's name; empty when it has none.
    pub name: &'a [u8],
    /// Its data.
    pub data: &'a [u8],
}

/// How a body is cut into units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// Server-sent events.
    Sse,
    /// A JSON value per line.
    NdJson,
    /// A JSON array, element by element.
    Array,
    /// AWS event-stream.
    AwsEventStream,
    /// Length-prefixed messages of gRPC.
    Lengths,
}

/// What a framer yields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit<'a> {
    /// An event with data.
    Event(Frame<'a>),
    /// A comment or an event without data: a sign of life.
    KeepAlive,
    /// A surprise.
    Odd(Anomaly),
}

/// A framer of any kind.
#[derive(Debug)]
pub enum Framer {
    /// Server-sent events.
    Sse(sse::Framer),
}

impl Framer {
    /// A framer for a body that is cut so; `None` where there is none.
    pub fn new(framing: Framing) -> Option<Self> {
        match framing {
            Framing::Sse => Some(Self::Sse(sse::Framer::default())),
            _ => None,
        }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        match self {
            Self::Sse(f) => f.buffered(),
        }
    }

    /// Bytes are missing here.
    pub fn hole(&mut self) {
        match self {
            Self::Sse(f) => f.hole(),
        }
    }

    /// Takes the next piece of the body.
    pub fn push(&mut self, bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        match self {
            Self::Sse(f) => f.push(bytes, out),
        }
    }

    /// The body ended: what is complete without its delimiter is handed on.
    pub fn finish(&mut self, out: &mut impl FnMut(Unit<'_>)) {
        match self {
            Self::Sse(f) => f.finish(out),
        }
    }
}
