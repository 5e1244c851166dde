//! Finding frames where nothing says where they begin: after a hole, and on a connection that is joined in its middle.
//!
//! Nine bytes are believed to be a frame's header when they are plausible and
//!
//! * they belong to a stream that is known to be open, or
//! * behind the payload that they announce another plausible header stands, or
//! * that payload ends exactly where a piece ends: senders write whole frames.
//!
//! Texts hold no zero byte, so that nothing in them looks like a header. In compressed bytes one is plausible by chance about once in
//! 10⁸ bytes, and followed by another hardly ever. Zeros do look like headers, shifted by some bytes: of padding, of empty frames. So
//! a stream that is not open must have a number that connections reach, and a frame that says nothing of it begins no search's end.

use super::wire::{HEADER, Header, flag, kind};
use crate::stream::Timestamp;

/// Longest payload that is believed: what is longer needs SETTINGS that hardly anyone sends, and more than two bytes of length.
const PLAUSIBLE: u32 = 0xffff;
/// Streams that are believed though they are not known to be open: eight million requests on one connection.
const REACHED: u32 = 1 << 24;
/// Bytes that may belong to a header whose rest is to come.
const TAIL: usize = HEADER - 1;

/// The search in one direction.
#[derive(Debug, Default)]
pub(super) struct Seek {
    /// The last bytes that were seen, with their instants.
    tail: [(u8, Timestamp); TAIL],
    held: usize,
    /// A plausible header was seen; what should come behind its payload is to be looked at.
    due: Option<Due>,
}

#[derive(Debug)]
struct Due {
    /// Bytes until it comes.
    skip: u64,
    head: [u8; HEADER],
    seen: usize,
    begun: Timestamp,
}

/// Where a frame begins: with bytes that are gone by, then with the rest of the input.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Start {
    pub bytes: [u8; HEADER],
    /// How many of `bytes` there are: less than a header.
    pub len: usize,
    /// When the first of them came; `None` when it is still in the input.
    pub begun: Option<Timestamp>,
}

impl Header {
    /// Whether a peer would send it: stricter than what it may send.
    fn is_plausible(self, known: &dyn Fn(u32) -> bool) -> bool {
        let only = |allowed: u8| self.flags & !allowed == 0;
        let (on_stream, length) = (self.stream != 0, self.length);
        length <= PLAUSIBLE
            && (self.stream < REACHED || known(self.stream))
            && match self.kind {
                kind::DATA => on_stream && only(flag::END_STREAM | flag::PADDED) && (length > 0 || self.has(flag::END_STREAM)),
                kind::HEADERS => on_stream && only(flag::END_STREAM | flag::END_HEADERS | flag::PADDED | flag::PRIORITY) && length > 0,
                kind::PRIORITY => on_stream && only(0) && length == 5,
                kind::RST_STREAM => on_stream && only(0) && length == 4,
                kind::SETTINGS if self.has(flag::ACK) => !on_stream && only(flag::ACK) && length == 0,
                kind::SETTINGS => !on_stream && only(0) && length.is_multiple_of(6) && length <= 6 * 16,
                kind::PUSH_PROMISE => on_stream && only(flag::END_HEADERS | flag::PADDED) && length > 4,
                kind::PING => !on_stream && only(flag::ACK) && length == 8,
                kind::GOAWAY => !on_stream && only(0) && (8..4096).contains(&length),
                kind::WINDOW_UPDATE => only(0) && length == 4,
                kind::CONTINUATION => on_stream && only(flag::END_HEADERS),
                _ => false,
            }
    }
}

impl Seek {
    /// Looks for a frame in `input`, which came at `at`, and in the bytes before it. What is not part of one is taken off `input`.
    pub fn look(&mut self, at: Timestamp, input: &mut &[u8], known: &dyn Fn(u32) -> bool) -> Option<Start> {
        let bytes = *input;
        let found = self.due(at, bytes, known).or_else(|| self.chain(at, bytes, known));
        if let Some((start, from)) = found {
            *input = &bytes[from..];
            return Some(start);
        }
        self.keep(at, bytes);
        *input = &[];
        None
    }

    /// Looks at what stands behind the payload of a plausible header: the start of that frame, and how much of `bytes` is before the
    /// rest of it.
    fn due(&mut self, at: Timestamp, bytes: &[u8], known: &dyn Fn(u32) -> bool) -> Option<(Start, usize)> {
        let due = self.due.as_mut()?;
        let skipped = usize::try_from(due.skip).unwrap_or(usize::MAX).min(bytes.len());
        due.skip -= skipped as u64;
        let rest = &bytes[skipped..];
        if rest.is_empty() {
            return None;
        }
        if due.seen == 0 {
            due.begun = at;
        }
        let before = due.seen;
        let more = rest.len().min(HEADER - before);
        due.head[before..before + more].copy_from_slice(&rest[..more]);
        due.seen += more;
        if due.seen < HEADER {
            return None;
        }
        let due = self.due.take()?;
        let begun = (before > 0).then_some(due.begun);
        Header::read(due.head).is_plausible(known).then_some((Start { bytes: due.head, len: before, begun }, skipped))
    }

    /// Looks for a plausible header that is confirmed by what stands behind it.
    fn chain(&mut self, at: Timestamp, bytes: &[u8], known: &dyn Fn(u32) -> bool) -> Option<(Start, usize)> {
        let held = self.held;
        let total = held + bytes.len();
        let byte = |i: usize| if i < held { self.tail[i].0 } else { bytes[i - held] };
        let header = |i: usize| {
            let mut head = [0; HEADER];
            (i + HEADER <= total).then(|| {
                head.iter_mut().enumerate().for_each(|(n, b)| *b = byte(i + n));
                Header::read(head)
            })
        };
        // The first byte of a plausible length is zero.
        let in_tail = (0..held).filter(|i| self.tail[*i].0 == 0);
        let in_bytes = memchr::memchr_iter(0, bytes).map(|i| held + i);
        let mut candidate = None;
        for i in in_tail.chain(in_bytes) {
            let Some(head) = header(i) else { break };
            let is_known = known(head.stream);
            if !head.is_plausible(known) || head.kind == kind::DATA && head.length == 0 && !is_known {
                continue;
            }
            let next = i + HEADER + head.length as usize;
            let open = matches!(head.kind, kind::DATA | kind::HEADERS | kind::RST_STREAM | kind::WINDOW_UPDATE) && is_known;
            if open || next == total || next < total && header(next).is_some_and(|h| h.is_plausible(known)) {
                let len = held.saturating_sub(i);
                let mut start = Start { bytes: [0; HEADER], len, begun: (len > 0).then(|| self.tail[i].1) };
                start.bytes.iter_mut().zip(&self.tail[held - len..held]).for_each(|(b, (tail, _))| *b = *tail);
                return Some((start, i.saturating_sub(held)));
            }
            if candidate.is_none() && next + HEADER > total {
                candidate = Some(next);
            }
        }
        if let (None, Some(next)) = (&self.due, candidate) {
            // The beginning of the next header may be here already.
            let seen = total.saturating_sub(next);
            let mut due = Due { skip: next.saturating_sub(total) as u64, head: [0; HEADER], seen, begun: at };
            due.head.iter_mut().take(due.seen).enumerate().for_each(|(n, b)| *b = byte(next + n));
            self.due = Some(due);
        }
        None
    }

    /// Remembers the last bytes, in which a header may begin.
    fn keep(&mut self, at: Timestamp, bytes: &[u8]) {
        for byte in &bytes[bytes.len().saturating_sub(TAIL)..] {
            if self.held == TAIL {
                self.tail.rotate_left(1);
                self.held -= 1;
            }
            self.tail[self.held] = (*byte, at);
            self.held += 1;
        }
    }
}
