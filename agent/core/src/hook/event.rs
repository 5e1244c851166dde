//! One event of one request, as the engine tells it.
//!
//! An event owns nothing on the heap: it is made once for each record of a ring buffer or each message, looked at, and forgotten.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::name::{MAX_NAME, Name};
use crate::stream::Timestamp;

/// Something that happened to a request in the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// When: on the clock of the wire's instants as far as `stamp` says so.
    pub at: Timestamp,
    /// What `at` can be compared with.
    pub stamp: Stamp,
    /// Who told it.
    pub source: Source,
    /// The request, by the id that the server gives it. Together with the source's process it names one request.
    pub request: RequestId,
    /// What happened.
    pub kind: Kind,
    /// The model, where the server says which (it need not repeat it with every event).
    pub model: Option<ModelName>,
    /// The trace that the request belongs to, where the server knows.
    pub trace: Option<TraceIds>,
    /// Which engine of the server, e.g. its data-parallel rank.
    pub engine: Option<u32>,
    /// Why it ended ([`Kind::Finished`] only).
    pub finish: Option<Finish>,
    /// Numbers that came along.
    pub counts: Counts,
}

/// What happened. The order of a request's life; [`Kind::Preempted`] sends it back to the queue, and [`Kind::Scheduled`] comes again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The server's own process has the request (before its tokeniser).
    Received,
    /// It waits for the engine.
    Queued,
    /// The engine began to work on it (again, after a preemption).
    Scheduled,
    /// Its first token is there. One token, unless [`Counts::new`] says more.
    FirstToken,
    /// So many tokens more.
    Tokens(u32),
    /// It ended by itself, well or not ([`Event::finish`]).
    Finished,
    /// It had to give up its place (its KV cache) for others, and waits again.
    Preempted,
    /// Its client did not want it any more.
    Cancelled,
}

impl Kind {
    /// Its name in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Queued => "queued",
            Self::Scheduled => "scheduled",
            Self::FirstToken => "first_token",
            Self::Tokens(_) => "tokens",
            Self::Finished => "finished",
            Self::Preempted => "preempted",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing comes after it.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Finished | Self::Cancelled)
    }
}

/// Why a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Finish {
    /// The model was done, or met a stop sequence.
    Stop,
    /// The limit of tokens.
    Length,
    /// The engine failed.
    Error,
    /// Something else, e.g. a tool call.
    Other,
}

impl Finish {
    /// Its name in attributes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Error => "error",
            Self::Other => "other",
        }
    }
}

/// What an event's instant can be compared with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stamp {
    /// The kernel took it, when the tap symbol was called, by the clock that stamps the chunks of TLS libraries.
    Kernel,
    /// The server took it, by that same clock of this machine.
    Server,
    /// The server took it by a clock of its own: exact between events of one source, else known to the delay of the message.
    Shifted,
}

/// By which way an event came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Via {
    /// The tap symbol.
    Tap,
    /// The Unix socket.
    Socket,
}

impl Via {
    /// Its name in attributes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Socket => "socket",
        }
    }
}

/// Who told an event. Request ids are unique within a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Source {
    /// By which way.
    pub via: Via,
    /// The process (thread group), in the agent's PID namespace; of a socket, its peer's. 0: unknown.
    pub pid: u32,
    /// Which connection of the socket; never given twice. 0 at the tap symbol.
    pub connection: u32,
}

/// The trace of a request, as its `traceparent` names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceIds {
    /// The trace; never 0.
    pub trace_id: u128,
    /// The caller's span; 0: unknown.
    pub span_id: u64,
}

impl TraceIds {
    /// `None` for the trace of zeros, which W3C's trace context calls invalid.
    pub const fn new(trace_id: u128, span_id: u64) -> Option<Self> {
        if trace_id == 0 { None } else { Some(Self { trace_id, span_id }) }
    }
}

/// Numbers that an event may carry. What was not told is `None`, which is not 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Counts {
    /// Tokens of this event (of [`Kind::FirstToken`] and [`Kind::Tokens`]).
    pub new: Option<u32>,
    /// Tokens of the prompt, cached ones among them.
    pub prompt: Option<u32>,
    /// Tokens of the prompt that were found in a cache.
    pub cached: Option<u32>,
    /// Tokens of the answer so far.
    pub output: Option<u32>,
    /// Speculative decoding: tokens that were drafted for this event.
    pub drafted: Option<u32>,
    /// Those of them that were accepted.
    pub accepted: Option<u32>,
    /// Requests in the batch of the step that this event comes of.
    pub batch: Option<u32>,
    /// Bytes of the chunk that the server writes to its client for this event.
    pub chunk_bytes: Option<u32>,
}

/// A short string without a place on the heap: valid UTF-8 without control characters and without white space around it, never empty. The
/// same rules as [`Name`]'s, so that ids of both kinds can be compared.
#[derive(Clone, Copy)]
pub struct Short<const N: usize> {
    /// At most `N`, which is at most 255.
    len: u8,
    bytes: [u8; N],
}

/// A request's id.
pub type RequestId = Short<MAX_NAME>;

/// A model's name.
pub type ModelName = Short<MAX_NAME>;

impl<const N: usize> Short<N> {
    /// Reads `bytes`; `None` when they are no UTF-8 or nothing is left of them. What is longer than `N` is cut at a character's end.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut short = Self { len: 0, bytes: [0; N] };
        if bytes.len() <= N && bytes.iter().all(u8::is_ascii_graphic) {
            short.push(bytes);
        } else {
            let text = std::str::from_utf8(bytes).ok()?.trim_matches(|c: char| c.is_whitespace() || c.is_control());
            for c in text.chars().filter(|c| !c.is_control()) {
                if !short.push(c.encode_utf8(&mut [0; 4]).as_bytes()) {
                    break;
                }
            }
            // Where it was cut.
            let kept = short.as_str().trim_end().len();
            short.bytes.get_mut(kept..).unwrap_or_default().fill(0);
            short.len = u8::try_from(kept).unwrap_or_default();
        }
        (short.len > 0).then_some(short)
    }

    /// Whether there was room.
    fn push(&mut self, more: &[u8]) -> bool {
        let at = usize::from(self.len);
        let room = self.bytes.get_mut(at..at + more.len());
        let (Some(room), Ok(len)) = (room, u8::try_from(at + more.len())) else { return false };
        room.copy_from_slice(more);
        self.len = len;
        true
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// As a name, which has a place on the heap.
    pub fn to_name(&self) -> Option<Name> {
        Name::new(self.as_str())
    }
}

impl<const N: usize> PartialEq for Short<N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const N: usize> Eq for Short<N> {}

impl<const N: usize> PartialEq<Name> for Short<N> {
    fn eq(&self, other: &Name) -> bool {
        self.as_bytes() == other.as_str().as_bytes()
    }
}

impl<const N: usize> Hash for Short<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl<const N: usize> fmt::Debug for Short<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> fmt::Display for Short<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_bounded_and_printable() {
        let id = |text: &str| RequestId::new(text.as_bytes()).map(|id| id.as_str().to_owned());
        assert_eq!(id("chatcmpl-1"), Some("chatcmpl-1".into()));
        assert_eq!(id(" a\u{1b}[31mb \n"), Some("a[31mb".into()));
        assert_eq!((id(""), id(" \n")), (None, None));
        assert_eq!(RequestId::new(b"\xff\xfe"), None);
        assert_eq!(id(&"x".repeat(1_000)).map(|s| s.len()), Some(MAX_NAME));
        // 159 bytes and a character of two: it does not fit.
        assert_eq!(id(&format!("{}ä", "x".repeat(159))).map(|s| s.len()), Some(159));
    }

    proptest! {
        #[test]
        fn an_id_is_the_name_of_the_same_text(text in "\\PC{0,200}|[ -~]{0,200}|[a\u{0}-\u{20}ä]{0,30}|[a ä\u{1}]{150,170}") {
            let (id, name) = (RequestId::new(text.as_bytes()), Name::new(&text));
            prop_assert_eq!(id.map(|id| id.as_str().to_owned()), name.as_ref().map(|n| n.as_str().to_owned()));
            if let (Some(id), Some(name)) = (id, name) {
                prop_assert!(id == name);
                prop_assert_eq!(id.to_name(), Some(name));
            }
        }
    }

    #[test]
    fn equal_ids_hash_alike_whatever_stands_behind_them() {
        let hash = |id: &RequestId| {
            let mut hasher = rustc_hash::FxHasher::default();
            id.hash(&mut hasher);
            hasher.finish()
        };
        let (a, b) = (RequestId::new(b"req-1").unwrap(), RequestId::new(b" req-1\n").unwrap());
        assert_eq!((a, hash(&a)), (b, hash(&b)));
        assert_ne!(a, RequestId::new(b"req-2").unwrap());
    }

    #[test]
    fn a_trace_of_zeros_is_none() {
        assert_eq!(TraceIds::new(0, 7), None);
        assert_eq!(TraceIds::new(7, 0), Some(TraceIds { trace_id: 7, span_id: 0 }));
    }

    #[test]
    fn an_event_is_small_and_ends_are_ends() {
        assert!(size_of::<Event>() <= 512, "{}", size_of::<Event>());
        let ends = [Kind::Received, Kind::Tokens(1), Kind::Preempted, Kind::Finished, Kind::Cancelled].map(Kind::is_end);
        assert_eq!(ends, [false, false, false, true, true]);
    }
}
