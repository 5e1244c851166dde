//! One request, seen several times: by its client's tap, by its server's, on both sides of a proxy, and by the engine that answered it.
//! What belongs together is put together once, and the time to the first token is taken apart.
//!
//! ```text
//! Inference ─ View ─────────────────────────────┐
//! requests of a hook's book ─┐                  ├─► Book ─► Joined { seats, split }
//! spans, told times ─────────┴─ Engine ─────────┘   (waits, bounded)
//! ```
//!
//! Pure, as everything here: the caller says what time it is, and keeps what is exported. [`book`] finds who belongs to whom, [`view`] and
//! [`engine`] are what it compares, [`split`] does the arithmetic.

pub mod book;
pub mod engine;
mod index;
pub mod split;
pub mod view;

pub use book::{Book, Joined, Limits, Seat};
pub use engine::{Engine, Figures, Source};
pub use split::{Split, Whole};
pub use view::View;

use std::hash::{BuildHasher as _, Hash};

/// What two taps may differ in, nanoseconds: a packet is stamped by the kernel, a call to a TLS library when it begins or returns.
pub const SLACK: u64 = 5_000_000;

/// Letters of an id without which it names nothing: `1` or `req-7` are many requests' names.
const MIN_ID: usize = 8;

/// A hash of something that requests are known by. The hash is seedless and not secret: two requests that are made to share one are only
/// joined if everything else agrees.
pub(crate) fn hash(kind: u8, what: impl Hash) -> u64 {
    rustc_hash::FxBuildHasher.hash_one((kind, what))
}

/// The key of an id, whoever says it: a server makes the response's id of its own request id (vLLM: `chatcmpl-` and the `x-request-id`),
/// and its engine adds which of several prompts it was (`cmpl-…-0`).
pub fn id_key(id: &str) -> Option<u64> {
    let id = id.trim();
    let bare = ["chatcmpl-", "cmpl-", "resp_", "msg_"].iter().find_map(|p| id.strip_prefix(p)).unwrap_or(id);
    let bare = match bare.rsplit_once('-') {
        Some((rest, n)) if (1..=3).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_digit()) => rest,
        _ => bare,
    };
    (bare.len() >= MIN_ID).then(|| hash(1, bare))
}

/// The key of a caller's span.
pub fn caller_key(trace_id: u128, span_id: u64) -> u64 {
    hash(2, (trace_id, span_id))
}

/// The key of a trace, which many requests may share.
pub fn trace_key(trace_id: u128) -> u64 {
    hash(3, trace_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_whoever_says_it() {
        let same = ["chatcmpl-0a1b2c3d4e", "cmpl-0a1b2c3d4e-0", " 0a1b2c3d4e", "cmpl-0a1b2c3d4e-12"];
        assert!(same.iter().all(|id| id_key(id) == id_key("0a1b2c3d4e") && id_key(id).is_some()));
        assert_ne!(id_key("chatcmpl-0a1b2c3d4f"), id_key("0a1b2c3d4e"));
        assert!(["", "1", "req-7", "chatcmpl-1", "cmpl-abc-123"].iter().all(|id| id_key(id).is_none()));
        // The last group of a UUID is no number of a prompt.
        assert_ne!(id_key("3f2504e0-4f89-11d3-9a0c-030582c33010"), id_key("3f2504e0-4f89-11d3-9a0c"));
    }
}
