//! Bodies cut into the units that an API delimits. A framer knows no LLM (invariant 3).
//!
//! Each takes its body in pieces of any size, hands on a unit that lies within one piece as a slice of that piece, buffers no
//! more than [`MAX_EVENT`], and goes on behind a hole as soon as it can tell for sure where a unit begins.

pub mod array;
pub mod eventstream;
pub mod json;
pub mod lengths;
pub mod ndjson;
pub mod protobuf;
pub mod sse;

use crate::anomaly::Anomaly;
use crate::http::head::Coding;

/// Longest event, in bytes.
pub const MAX_EVENT: usize = 1 << 20;

/// One unit of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Frame<'a> {
    /// The event's name; empty when it has none.
    pub name: &'a [u8],
    /// Its data.
    pub data: &'a [u8],
    /// Whether the framing itself says that this is an error (an event-stream's exception).
    pub error: bool,
}

/// What a framer yields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit<'a> {
    /// An event with data.
    Event(Frame<'a>),
    /// A comment, a blank line or an event without data: a sign of life.
    KeepAlive,
    /// The framing's own end of the stream: the bracket that closes an array. It is no event.
    End,
    /// A surprise.
    Odd(Anomaly),
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
    /// Length-prefixed messages of gRPC; those whose flag says so are compressed with this coding.
    Lengths(Option<Coding>),
}

/// A framer of any kind.
#[derive(Debug)]
pub enum Framer {
    /// Server-sent events.
    Sse(sse::Framer),
    /// A JSON value per line.
    NdJson(ndjson::Framer),
    /// A JSON array.
    Array(array::Framer),
    /// AWS event-stream.
    AwsEventStream(eventstream::Framer),
    /// Length-prefixed messages.
    Lengths(Box<lengths::Framer>),
}

/// Does the same with a framer of any kind.
macro_rules! each {
    ($self:ident, $f:ident => $what:expr) => {
        match $self {
            Self::Sse($f) => $what,
            Self::NdJson($f) => $what,
            Self::Array($f) => $what,
            Self::AwsEventStream($f) => $what,
            Self::Lengths($f) => $what,
        }
    };
}

impl Framer {
    /// A framer for a body that is cut so.
    pub fn new(framing: Framing) -> Self {
        match framing {
            Framing::Sse => Self::Sse(sse::Framer::default()),
            Framing::NdJson => Self::NdJson(ndjson::Framer::default()),
            Framing::Array => Self::Array(array::Framer::default()),
            Framing::AwsEventStream => Self::AwsEventStream(eventstream::Framer::default()),
            Framing::Lengths(coding) => Self::Lengths(Box::new(lengths::Framer::new(coding))),
        }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        each!(self, f => f.buffered())
    }

    /// Bytes are missing here: so many, where that is known.
    pub fn hole(&mut self, missing: Option<u64>) {
        match self {
            Self::Lengths(framer) => framer.miss(missing),
            Self::Sse(framer) => framer.hole(),
            Self::NdJson(framer) => framer.hole(),
            Self::Array(framer) => framer.hole(),
            Self::AwsEventStream(framer) => framer.hole(),
        }
    }

    /// Takes the next piece of the body.
    pub fn push(&mut self, bytes: &[u8], out: &mut impl FnMut(Unit<'_>)) {
        each!(self, f => f.push(bytes, out));
    }

    /// The body ended: what is complete without its delimiter is handed on.
    pub fn finish(&mut self, out: &mut impl FnMut(Unit<'_>)) {
        each!(self, f => f.finish(out));
    }
}

/// Empties a buffer; gives its memory back when a large event made it large.
fn clear(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > 16 << 10 {
        *buffer = Vec::new();
    }
}

#[cfg(test)]
mod testing {
    //! What every framer's tests have in common.

    use super::*;

    /// Runs a framer over `pieces`; an empty piece is a hole.
    macro_rules! run {
        ($framer:expr, $pieces:expr) => {{
            let (mut framer, mut out) = ($framer, String::new());
            for piece in $pieces {
                match piece {
                    [] => framer.hole(),
                    piece => framer.push(piece, &mut |u| crate::framing::testing::show(u, &mut out)),
                }
                assert!(framer.buffered() <= 3 * crate::framing::MAX_EVENT);
            }
            framer.finish(&mut |u| crate::framing::testing::show(u, &mut out));
            out
        }};
    }

    /// Checks what `parts` give (between two of them lies a hole), and that cutting them into pieces of any size changes nothing.
    macro_rules! check {
        ($framer:expr, $parts:expr, $want:expr) => {{
            let parts: &[&[u8]] = $parts;
            let cut = |size: usize| -> Vec<&[u8]> {
                let mut pieces: Vec<&[u8]> = Vec::new();
                for (n, part) in parts.iter().enumerate() {
                    if n > 0 {
                        pieces.push(&[]);
                    }
                    pieces.extend(part.chunks(size));
                }
                pieces
            };
            let whole = crate::framing::testing::run!($framer, cut(usize::MAX));
            $want.assert_eq(&whole);
            for size in 1..=64 {
                assert_eq!(crate::framing::testing::run!($framer, cut(size)), whole, "in pieces of {size}");
            }
        }};
    }

    pub(super) use {check, run};

    /// A unit as a line.
    pub fn show(unit: Unit<'_>, out: &mut String) {
        match unit {
            Unit::Event(f) => {
                let text = |b: &[u8]| String::from_utf8_lossy(b).replace('\r', "␍").replace('\n', "⏎");
                let error = if f.error { "!" } else { "" };
                out.push_str(&format!("[{}{error}] {}\n", text(f.name), text(f.data)));
            }
            Unit::KeepAlive => out.push_str("keep-alive\n"),
            Unit::End => out.push_str("end\n"),
            Unit::Odd(a) => out.push_str(&format!("odd {}\n", a.as_str())),
        }
    }
}
