//! `zstd` (RFC 8878), with the window of at most 8 MiB that RFC 9659 asks of a content coding.

use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use super::{Library, Step};
use crate::anomaly::Anomaly;

/// Largest window, as its binary logarithm (RFC 9659 §3).
const WINDOW_LOG: u32 = 23;

/// Any number of frames, one behind the other.
pub struct Zstd {
    context: DCtx<'static>,
    /// Bytes that a fresh context holds.
    base: usize,
    /// Bytes that went in or came out.
    moved: usize,
}

impl Zstd {
    /// A decoder before its first frame; `None` when there is no memory.
    pub fn new() -> Option<Self> {
        let mut context = DCtx::try_create()?;
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).ok()?;
        let base = context.sizeof();
        Some(Self { context, base, moved: 0 })
    }

    /// Bytes that are held: the state, the window that the frame asks for, a block. The latter two are reserved at once, but
    /// take memory only as far as they were filled.
    pub fn buffered(&self) -> usize {
        self.context.sizeof().min(self.base.saturating_add(self.moved))
    }
}

impl Library for Zstd {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Anomaly> {
        let mut from = InBuffer::around(input);
        let mut to = OutBuffer::around(output);
        self.context.decompress_stream(&mut to, &mut from).map_err(|_| Anomaly::BadCoding)?;
        let (used, made) = (from.pos(), to.pos());
        self.moved = self.moved.saturating_add(used + made);
        // Behind a frame another may follow.
        Ok(Step { used, made, ended: false })
    }
}

impl std::fmt::Debug for Zstd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zstd").field("buffered", &self.buffered()).finish()
    }
}
