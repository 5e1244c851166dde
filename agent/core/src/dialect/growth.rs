//! A text that comes with every event: the piece that is new, or all of it so far? SGLang sends either, by a switch of the
//! server that is not on the wire (`wire.md` §2); Triton's back ends differ, too. The text itself tells by how it grows.

use std::hash::Hasher;

use rustc_hash::FxHasher;

/// Events that must have grown before a text that does not continue its predecessor is taken for a correction of it.
const SURE: u32 = 2;

/// What is remembered of the text before: its length and a hash, not the text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    length: usize,
    hash: u64,
    /// How often a text began with the one before it and was longer.
    grown: u32,
    /// Whether the texts are pieces.
    pieces: bool,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

impl Growth {
    /// Whether `text` brings something new.
    pub fn is_new(&mut self, text: &str) -> bool {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return false;
        }
        if self.pieces {
            return true;
        }
        let continues = bytes.get(..self.length).is_some_and(|start| hash(start) == self.hash);
        let first = self.length == 0;
        if continues && bytes.len() == self.length {
            return false;
        }
        if !first && continues {
            self.grown += 1;
        }
        // A detokenizer may correct its last character: a text that has grown before goes on growing.
        self.pieces = !first && !continues && self.grown < SURE;
        (self.length, self.hash) = (bytes.len(), hash(bytes));
        true
    }

    /// Whether the texts were seen to be all of the output so far.
    pub fn is_whole(&self) -> bool {
        self.grown >= SURE
    }

    /// Whether the texts were seen to be pieces.
    pub fn is_pieces(&self) -> bool {
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(texts: &[&str]) -> Vec<bool> {
        let mut growth = Growth::default();
        texts.iter().map(|t| growth.is_new(t)).collect()
    }

    #[test]
    fn growing_texts_and_pieces() {
        assert_eq!(run(&["", "a", "ab", "ab", "abc", "abc"]), [false, true, true, false, true, false]);
        assert_eq!(run(&["a", " b", " b", "", " b", "a"]), [true, true, true, false, true, true]);
        // The last character was half a one.
        assert_eq!(run(&["x", "xy", "xy\u{fffd}", "xyé", "xyé", "xyéz"]), [true, true, true, true, false, true]);
        // One piece that happens to begin with the one before it.
        assert_eq!(run(&["1", "10", " and", " and"]), [true, true, true, true]);
        assert_eq!(run(&["ä", "äö"]), [true, true]);
    }
}
