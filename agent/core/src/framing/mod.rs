//! Bodies cut into the units that an API delimits. A framer knows no LLM (invariant 3).

pub mod json;
pub mod sse;

/// One unit of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The event's name; empty when it has none.
    pub name: &'a [u8],
    /// Its data.
    pub data: &'a [u8],
}
