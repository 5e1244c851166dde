//! The fast path of a stream: its chunks differ in one string only. Once a chunk was parsed and found to be nothing but one piece
//! of output, its name and what stood before and behind that string are remembered; a later chunk with the same bytes there is
//! the same event, and needs no parsing.
//!
//! The output's own text is not remembered. That the shortcut never changes a result is held by a property test
//! (`tests/tests/recordings.rs`: every event of every recording and flow, and mutations of them, with and without it).

use crate::framing::Frame;

use super::{LlmEvent, Output};

/// Longest frame that is remembered.
const MAX_SHAPE: usize = 4096;

/// The shape of the last chunk that was one piece of output.
#[derive(Debug, Default)]
pub struct Shape {
    name: Vec<u8>,
    before: Vec<u8>,
    behind: Vec<u8>,
    choice: u32,
    kind: Option<Output>,
}

impl Shape {
    /// What `frame` is, if its shape is the remembered one.
    pub fn event(&self, frame: Frame<'_>) -> Option<LlmEvent> {
        let kind = self.kind.filter(|_| frame.name == self.name)?;
        let text = frame.data.strip_prefix(self.before.as_slice())?.strip_suffix(self.behind.as_slice())?;
        // The text must be one whole string: not empty, no quote in it, no backslash before the closing quote, no raw control.
        let whole = !text.is_empty()
            && memchr::memchr2(b'"', b'\\', text).is_none()
            && text.iter().all(|b| *b >= 0x20)
            && std::str::from_utf8(text).is_ok();
        whole.then_some(LlmEvent::Delta { choice: self.choice, kind })
    }

    /// Remembers `frame`, which was parsed and found to be nothing but `text` of this kind.
    pub fn learn(&mut self, frame: Frame<'_>, text: &str, choice: u32, kind: Output) {
        self.kind = None;
        let Some(start) = (text.as_ptr() as usize).checked_sub(frame.data.as_ptr() as usize) else { return };
        let end = start + text.len();
        if frame.data.len() > MAX_SHAPE
            || end > frame.data.len()
            || frame.data.get(start.wrapping_sub(1)) != Some(&b'"')
            || frame.data.get(end) != Some(&b'"')
        {
            return;
        }
        self.name.clear();
        self.name.extend_from_slice(frame.name);
        self.before.clear();
        self.before.extend_from_slice(&frame.data[..start]);
        self.behind.clear();
        self.behind.extend_from_slice(&frame.data[end..]);
        (self.choice, self.kind) = (choice, Some(kind));
    }
}
