//! Tells tokengauge what an inference engine knows of its requests, by calling a function that does nothing: `tokengauge_tap_v1`. The agent
//! puts a probe on it. Without the agent a call costs about as much as an empty call.
//!
//! No library, no initialisation, no thread, no allocation, no system call, no dependency, no `std`. The contract is `agent/hook/README.md`;
//! the structure is that of `agent/hook/include/tokengauge_tap.h`.
//!
//! ```
//! use tokengauge_tap::{Event, Finish, Kind};
//!
//! let mut request = Event::of("chatcmpl-1").model("llama-3.1-8b"); // once for each request
//! request.tell(Kind::Received);
//! request.tell(Kind::Scheduled);
//! request.tell(Kind::FirstToken);
//! request.tokens(1); // as often as there are some
//! request.finished(Finish::Stop, 128);
//! ```
#![no_std]
#![allow(unsafe_code)] // a call of a function that takes a pointer, the assembler that is that function, an event as bytes

use core::mem::{offset_of, size_of};

/// The version of the contract.
pub const VERSION: u16 = 1;
/// Bytes of the structure in front of its texts.
pub const FIXED: usize = 80;
/// Most bytes of a request's id, and of a model's name; what is longer is cut at a character's end.
pub const NAME: usize = 160;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// The server has the request (before its tokeniser).
    Received = 1,
    /// It waits for the engine.
    Queued = 2,
    /// The engine began to work on it (again, after a preemption).
    Scheduled = 3,
    /// Its first token is there.
    FirstToken = 4,
    /// So many more: [`Event::tokens`] tells it with their number.
    Tokens = 5,
    /// It ended by itself, well or not: [`Event::finished`] tells it with the reason.
    Finished = 6,
    /// It had to give up its place for others and waits again.
    Preempted = 7,
    /// Its client did not want it any more.
    Cancelled = 8,
}

/// Why it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Finish {
    /// The model was done, or met a stop sequence.
    Stop = 1,
    /// The limit of tokens.
    Length = 2,
    /// The engine failed.
    Error = 3,
    /// Something else.
    Other = 4,
}

const NEW: u16 = 1;
const PROMPT: u16 = 2;
const CACHED: u16 = 4;
const OUTPUT: u16 = 8;
const CHUNK: u16 = 16;
const ENGINE: u16 = 32;
const FINISH: u16 = 64;
const DRAFTED: u16 = 128;
const ACCEPTED: u16 = 256;
const BATCH: u16 = 512;

/// An event of one request, kept as long as the request lives and told again and again.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    size: u16,
    version: u16,
    kind: u16,
    present: u16,
    request_len: u16,
    model_len: u16,
    new_tokens: u32,
    prompt_tokens: u32,
    cached_tokens: u32,
    output_tokens: u32,
    chunk_bytes: u32,
    engine: u32,
    finish: u32,
    drafted_tokens: u32,
    accepted_tokens: u32,
    batch: u32,
    reserved: u32,
    trace_id: [u8; 16],
    span_id: [u8; 8],
    text: [u8; 2 * NAME],
}

const _: () = assert!(offset_of!(Event, new_tokens) == 12);
const _: () = assert!(offset_of!(Event, batch) == 48);
const _: () = assert!(offset_of!(Event, trace_id) == 56);
const _: () = assert!(offset_of!(Event, span_id) == 72);
const _: () = assert!(offset_of!(Event, text) == FIXED);
const _: () = assert!(size_of::<Event>() == 400);

/// As much of `text` as there is room for, up to a character's end.
fn cut(text: &str) -> &[u8] {
    let mut end = if text.len() < NAME { text.len() } else { NAME };
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.as_bytes().get(..end).unwrap_or_default()
}

impl Event {
    /// An event of the request with this id, with nothing told yet.
    pub fn of(request: &str) -> Self {
        let request = cut(request);
        let mut event = Self {
            size: FIXED as u16,
            version: VERSION,
            kind: 0,
            present: 0,
            request_len: request.len() as u16,
            model_len: 0,
            new_tokens: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            chunk_bytes: 0,
            engine: 0,
            finish: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
            batch: 0,
            reserved: 0,
            trace_id: [0; 16],
            span_id: [0; 8],
            text: [0; 2 * NAME],
        };
        if let Some(room) = event.text.get_mut(..request.len()) {
            room.copy_from_slice(request);
        }
        event
    }

    /// Names the model, for all events that follow.
    #[must_use]
    pub fn model(mut self, model: &str) -> Self {
        let (model, at) = (cut(model), usize::from(self.request_len));
        if let Some(room) = self.text.get_mut(at..at + model.len()) {
            room.copy_from_slice(model);
            self.model_len = model.len() as u16;
        }
        self
    }

    /// Names the trace that the request belongs to, as `traceparent` does: most significant byte first.
    #[must_use]
    pub const fn trace(mut self, trace_id: [u8; 16], span_id: [u8; 8]) -> Self {
        self.trace_id = trace_id;
        self.span_id = span_id;
        self
    }

    /// Which engine of the server, e.g. its data-parallel rank.
    #[must_use]
    pub const fn engine(mut self, engine: u32) -> Self {
        self.engine = engine;
        self.present |= ENGINE;
        self
    }

    /// The prompt's tokens, for all events that follow.
    pub const fn prompt(&mut self, tokens: u32) {
        self.prompt_tokens = tokens;
        self.present |= PROMPT;
    }

    /// How many of them were found in a cache, for all events that follow.
    pub const fn cached(&mut self, tokens: u32) {
        self.cached_tokens = tokens;
        self.present |= CACHED;
    }

    /// Requests in the batch of this step, for all events that follow.
    pub const fn batch(&mut self, requests: u32) {
        self.batch = requests;
        self.present |= BATCH;
    }

    /// Tokens that were drafted for the next event, and accepted (speculative decoding).
    pub const fn drafted(&mut self, drafted: u32, accepted: u32) {
        self.drafted_tokens = drafted;
        self.accepted_tokens = accepted;
        self.present |= DRAFTED | ACCEPTED;
    }

    /// Bytes of the chunk that is written to the client for the next event. Never the chunk itself.
    pub const fn chunk(&mut self, bytes: u32) {
        self.chunk_bytes = bytes;
        self.present |= CHUNK;
    }

    /// Tells that this happened. What belongs to one event only (drafted tokens, a chunk) is forgotten then.
    #[inline]
    pub fn tell(&mut self, kind: Kind) {
        self.prepare(kind);
        call(self);
        self.done();
    }

    /// Tells that so many tokens more are there.
    #[inline]
    pub fn tokens(&mut self, tokens: u32) {
        self.prepare_tokens(tokens);
        call(self);
        self.done();
    }

    /// Tells that it ended, and with how many tokens.
    pub fn finished(&mut self, why: Finish, output_tokens: u32) {
        self.prepare_finished(why, output_tokens);
        call(self);
        self.done();
    }

    /// What [`Event::tell`] does before it tells; for other ways to tell it.
    #[inline]
    pub const fn prepare(&mut self, kind: Kind) {
        self.kind = kind as u16;
    }

    /// What [`Event::tokens`] does before it tells.
    #[inline]
    pub const fn prepare_tokens(&mut self, tokens: u32) {
        self.new_tokens = tokens;
        self.present |= NEW;
        self.prepare(Kind::Tokens);
    }

    /// What [`Event::finished`] does before it tells.
    pub const fn prepare_finished(&mut self, why: Finish, output_tokens: u32) {
        self.finish = why as u32;
        self.output_tokens = output_tokens;
        self.present |= FINISH | OUTPUT;
        self.prepare(Kind::Finished);
    }

    /// Forgets what belonged to the event that was told.
    #[inline]
    pub const fn done(&mut self) {
        self.present &= !(NEW | DRAFTED | ACCEPTED | CHUNK);
    }

    /// The structure as it is handed over.
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: a `repr(C)` structure of integers without padding (its size is the sum of its fields), borrowed for as long as the slice.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), self.len()) }
    }

    /// How many bytes are handed over.
    pub const fn len(&self) -> usize {
        FIXED + self.request_len as usize + self.model_len as usize
    }

    /// Never: an event has at least its fixed part.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// Where the probe stands, for tests and for an agent that tries itself.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn address() -> usize {
    tokengauge_tap_v1 as *const () as usize
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn call(event: &Event) {
    // SAFETY: the function reads nothing and returns at once. Whoever stands on it copies at most `len` bytes, which are the event's own.
    unsafe { tokengauge_tap_v1(event, event.len()) }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline]
fn call(_event: &Event) {}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" {
    fn tokengauge_tap_v1(event: *const Event, bytes: usize);
}

// The function itself: the same bytes as in the C header, which says why. Weak and in a group, so that both may be linked into one program.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
macro_rules! code {
    () => {
        "990: nop\n.byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n.byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0\nret"
    };
}
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
macro_rules! arguments {
    () => {
        ".asciz \"8@%rdi 8@%rsi\""
    };
}
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
macro_rules! code {
    () => {
        "hint #34\n990: nop\nnop\nret"
    };
}
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
macro_rules! arguments {
    () => {
        ".asciz \"8@x0 8@x1\""
    };
}
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
core::arch::global_asm!(
    ".pushsection .text.tokengauge_tap_v1,\"axG\",%progbits,tokengauge_tap_v1,comdat",
    ".weak tokengauge_tap_v1",
    ".type tokengauge_tap_v1,%function",
    ".p2align 4",
    "tokengauge_tap_v1:",
    code!(),
    ".size tokengauge_tap_v1, . - tokengauge_tap_v1",
    ".popsection",
    ".pushsection .note.stapsdt,\"G\",%note,tokengauge_tap_v1,comdat",
    ".balign 4",
    ".4byte 992f - 991f, 994f - 993f, 3",
    "991: .asciz \"stapsdt\"",
    "992: .balign 4",
    "993: .8byte 990b",
    ".8byte _.stapsdt.base",
    ".8byte 0",
    ".asciz \"tokengauge\"",
    ".asciz \"tap_v1\"",
    arguments!(),
    "994: .balign 4",
    ".popsection",
    ".ifndef _.stapsdt.base",
    ".pushsection .stapsdt.base,\"aG\",%progbits,.stapsdt.base,comdat",
    ".weak _.stapsdt.base",
    ".hidden _.stapsdt.base",
    "_.stapsdt.base: .space 1",
    ".size _.stapsdt.base, 1",
    ".popsection",
    ".endif",
    options(raw),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_that_of_the_contract() {
        let mut event = Event::of("req-1").model("m").engine(3);
        event.prompt(10);
        event.prepare_tokens(2);
        let bytes = event.bytes();
        assert_eq!(bytes.len(), 86);
        assert_eq!(bytes[..12], [80, 0, 1, 0, 5, 0, 1 | 2 | 32, 0, 5, 0, 1, 0].map(|b: u8| b));
        assert_eq!((bytes[12], bytes[16], bytes[32]), (2, 10, 3));
        assert_eq!(&bytes[80..], b"req-1m");
    }

    #[test]
    fn names_are_cut_where_a_character_ends() {
        let long = "ä".repeat_to::<400>();
        let event = Event::of(core::str::from_utf8(&long[..322]).expect("whole characters"));
        assert_eq!(event.request_len, 160);
        let mut odd = [b'x'; 161];
        odd[159..161].copy_from_slice("ä".as_bytes());
        assert_eq!(Event::of(core::str::from_utf8(&odd).expect("a character at the end")).request_len, 159);
        assert_eq!(Event::of("").model("").len(), FIXED);
    }

    trait Repeat {
        fn repeat_to<const N: usize>(&self) -> [u8; N];
    }
    impl Repeat for str {
        fn repeat_to<const N: usize>(&self) -> [u8; N] {
            core::array::from_fn(|i| self.as_bytes()[i % self.len()])
        }
    }

    #[test]
    fn the_function_begins_with_a_nop_and_returns() {
        let mut event = Event::of("req-1");
        event.tell(Kind::Received);
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: the function is 17 bytes of code.
            let code = unsafe { core::slice::from_raw_parts(address() as *const u8, 17) };
            assert_eq!(code, [0x90, 0x0f, 0x1f, 0x44, 0, 0, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xc3]);
        }
    }
}
