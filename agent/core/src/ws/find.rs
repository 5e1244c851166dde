//! Where a frame begins, after bytes were lost.
//!
//! A frame has no mark of its own, so one header proves nothing. Taken is a header whose payload begins as a JSON object does, with a
//! name (`{"t`). Compressed payloads show nothing; where compression was agreed, the header that a chain of headers leads to is
//! taken as well, each standing right where the one before says that its frame ends. Positions decide, not the pieces in which
//! bytes come.

use super::frame::{Front, Header, MAX_HEADER, Opcode, Role, header, unmask};

/// Bytes of a payload that are looked at.
const LOOK: usize = 3;
/// Chains that are followed at a time; of more, the oldest are given up.
const MAX_CHAINS: usize = 32;
/// Headers in a row that make a frame believed.
const LINKS: u8 = 4;
/// Largest frame that is believed.
const PLAUSIBLE: u64 = 16 << 20;

#[derive(Clone, Copy, Debug)]
struct Chain {
    /// Where its next header must stand.
    next: u64,
    links: u8,
}

/// Looks for a frame in what comes.
#[derive(Debug)]
pub struct Finder {
    role: Role,
    deflate: bool,
    /// Bytes that do not yet say whether a frame begins with them.
    tail: Vec<u8>,
    /// The position of the first of them.
    at: u64,
    chains: Vec<Chain>,
}

/// A frame was found.
#[derive(Debug)]
pub struct Found {
    /// How many bytes of the last piece belong to what was skipped, or to `kept`.
    pub used: usize,
    /// The frame's first bytes.
    pub kept: Vec<u8>,
}

impl Finder {
    /// A finder of frames that `role` sends.
    pub fn new(role: Role, deflate: bool) -> Self {
        Self { role, deflate, tail: Vec::new(), at: 0, chains: Vec::new() }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.tail.capacity() + self.chains.capacity() * size_of::<Chain>()
    }

    /// Bytes in which no frame begins.
    pub fn passed(&self) -> u64 {
        self.at
    }

    /// Takes the next bytes until a frame is found in them.
    pub fn push(&mut self, input: &[u8]) -> Option<Found> {
        let mut used = 0;
        while used < input.len() {
            if self.tail.is_empty() {
                let (scanned, found) = self.scan(&input[used..]);
                used += scanned;
                if found {
                    return Some(Found { used, kept: Vec::new() });
                }
                self.tail.extend_from_slice(&input[used..]);
                return None;
            }
            // What was left waits for a few bytes more.
            let more = (input.len() - used).min(MAX_HEADER + LOOK);
            let before = self.tail.len();
            let mut window = std::mem::take(&mut self.tail);
            window.extend_from_slice(&input[used..used + more]);
            let (scanned, found) = self.scan(&window);
            if found {
                let kept = window.get(scanned..before).unwrap_or_default().to_vec();
                return Some(Found { used: used + scanned.saturating_sub(before), kept });
            }
            if scanned >= before {
                // The rest is looked at where it stands.
                used += scanned - before;
                window.clear();
            } else {
                used += more;
                window.drain(..scanned);
            }
            self.tail = window;
        }
        None
    }

    /// Looks at each position of `bytes` that can be judged: how many those are, and whether a frame begins behind them.
    fn scan(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut i = 0;
        while i < bytes.len() {
            let Some(found) = self.judge(&bytes[i..]) else { break };
            if found {
                return (i, true);
            }
            i += 1;
            self.at += 1;
        }
        (i, false)
    }

    /// Whether a frame begins at the front of `bytes`; `None` when they do not say.
    fn judge(&mut self, bytes: &[u8]) -> Option<bool> {
        let header = match header(bytes, self.deflate) {
            Front::NotYet => return None,
            Front::Bad => None,
            Front::Header(h) => Some(h).filter(|h| self.fits(h)),
        };
        let Some(header) = header else {
            self.chains.retain(|c| c.next != self.at);
            return Some(false);
        };
        if self.shows_json(&header, &bytes[header.size..])? {
            return Some(true);
        }
        if !self.deflate {
            return Some(false);
        }
        let links = self.chains.iter().filter(|c| c.next == self.at).map(|c| c.links + 1).max().unwrap_or(1);
        if links >= LINKS {
            return Some(true);
        }
        self.chains.retain(|c| c.next > self.at);
        if self.chains.len() >= MAX_CHAINS {
            self.chains.remove(0);
        }
        self.chains.push(Chain { next: self.at + header.size as u64 + header.len, links });
        Some(false)
    }

    /// Whether a header is what a well-behaved sender of this side writes.
    fn fits(&self, h: &Header) -> bool {
        let empty = h.len == 0 && !h.opcode.is_control();
        h.masked == (self.role == Role::Client) && h.minimal && h.len <= PLAUSIBLE && !empty
    }

    /// Whether a frame's payload begins as a message of JSON does.
    fn shows_json(&self, h: &Header, payload: &[u8]) -> Option<bool> {
        let readable = matches!(h.opcode, Opcode::Text | Opcode::Binary) && !h.rsv1 && h.len > LOOK as u64;
        if !readable {
            return Some(false);
        }
        let mut begin = [0; LOOK];
        unmask(payload.get(..LOOK)?, h.key, &mut begin);
        Some(matches!(begin, [b'{', b'"', name] if name.is_ascii_alphabetic() || name == b'_'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ws::build::frame;
    use proptest::prelude::*;

    /// Where in `bytes` a frame is found, however they are cut.
    fn find(role: Role, deflate: bool, bytes: &[u8]) -> Option<usize> {
        let one = |size: usize| {
            let mut finder = Finder::new(role, deflate);
            let mut passed = 0;
            for piece in bytes.chunks(size) {
                if let Some(found) = finder.push(piece) {
                    return Some(passed + found.used - found.kept.len());
                }
                passed += piece.len();
            }
            None
        };
        let whole = one(usize::MAX);
        for size in 1..=64 {
            assert_eq!(one(size), whole, "in pieces of {size}");
        }
        whole
    }

    #[test]
    fn json_is_believed_at_once() {
        let rest = br#"the rest of a message with \u0081 and "{\"type\":\"x\"}" in it"}"#;
        for (role, key) in [(Role::Server, None), (Role::Client, Some([1, 200, 3, 77]))] {
            for opcode in [0x81, 0x01, 0x82] {
                let next = frame(opcode, br#"{"type":"response.done"}"#, key);
                assert_eq!(find(role, false, &[&rest[..], &next].concat()), Some(rest.len()));
                assert_eq!(find(role, false, &next), Some(0));
            }
        }
        // The other side's frames are none.
        assert_eq!(find(Role::Client, false, &frame(0x81, br#"{"type":"x"}"#, None)), None);
    }

    #[test]
    fn a_chain_is_believed() {
        let mut bytes = b"rest of compressed bytes \xc1\x20 and so on".to_vec();
        let from = bytes.len();
        let mut starts = Vec::new();
        for n in 0..5u8 {
            starts.push(bytes.len());
            bytes.extend(frame(0xc1, &[n ^ 0x5a; 40], None));
        }
        assert_eq!(starts[0], from);
        assert_eq!(find(Role::Server, true, &bytes), Some(starts[3]));
        assert_eq!(find(Role::Server, true, &bytes[..starts[3]]), None);
        assert_eq!(find(Role::Server, false, &bytes), None);
    }

    proptest! {
        #[test]
        fn nothing_is_found_in_json(text in "[ -~äöü\u{81}\u{2019}😀]{0,400}") {
            let json = serde_json::json!({ "delta": text, "n": [1, 2] }).to_string();
            prop_assert_eq!(find(Role::Server, false, json.as_bytes()), None);
        }

        #[test]
        fn garbage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), deflate: bool, client: bool) {
            find(if client { Role::Client } else { Role::Server }, deflate, &bytes);
        }
    }
}
