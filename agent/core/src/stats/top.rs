//! The values that one attribute may have: those that come often keep their names, the others share one. Bounded, whatever comes.
//!
//! While there is room every value is taken at once. From three quarters of the bound on a value must have come [`OFTEN`] times first, which
//! names that are made up for each request never do; and values that were not seen for a while make room.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::stream::Timestamp;

/// How often a value must have come to be taken when there is little room.
const OFTEN: u32 = 4;
/// Values that are counted while they have no name (Metwally and others, "Space-Saving", 2005).
const CANDIDATES: usize = 128;

/// The values of one attribute.
#[derive(Clone, Debug)]
pub struct Top {
    limit: usize,
    /// With the instant at which they were last seen.
    taken: FxHashMap<Arc<str>, Timestamp>,
    /// How often a value came at most, and how many of these may have been another's.
    candidates: FxHashMap<Box<str>, (u32, u32)>,
    refused: u64,
}

impl Top {
    /// At most `limit` values.
    pub fn new(limit: usize) -> Self {
        Self { limit, taken: FxHashMap::default(), candidates: FxHashMap::default(), refused: 0 }
    }

    /// The value as it may be used; `None` when it is one of the others.
    pub fn admit(&mut self, value: &str, now: Timestamp) -> Option<Arc<str>> {
        if let Some(seen) = self.taken.get_mut(value) {
            *seen = now.max(*seen);
            return self.taken.get_key_value(value).map(|(name, _)| Arc::clone(name));
        }
        let crowded = self.taken.len() >= self.limit - self.limit / 4;
        if self.taken.len() >= self.limit || crowded && !self.comes_often(value) {
            self.refused += 1;
            return None;
        }
        self.candidates.remove(value);
        let name: Arc<str> = value.into();
        self.taken.insert(Arc::clone(&name), now);
        Some(name)
    }

    fn comes_often(&mut self, value: &str) -> bool {
        if let Some((count, error)) = self.candidates.get_mut(value) {
            *count = count.saturating_add(1);
            return *count - *error >= OFTEN;
        }
        let mut inherited = 0;
        if self.candidates.len() >= CANDIDATES {
            let least = self.candidates.iter().min_by_key(|(_, (count, _))| *count).map(|(v, (count, _))| (v.clone(), *count));
            if let Some((least, count)) = least {
                self.candidates.remove(&least);
                inherited = count;
            }
        }
        self.candidates.insert(value.into(), (inherited + 1, inherited));
        false
    }

    /// Lets go of values that were not seen since `before`, when there is little room.
    pub fn sweep(&mut self, before: Timestamp) {
        if self.taken.len() >= self.limit - self.limit / 4 {
            self.taken.retain(|_, seen| *seen >= before);
        }
    }

    /// Values that have a name.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// How often a value was one of the others.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_unix_nanos(second * 1_000_000_000)
    }

    #[test]
    fn a_flood_does_not_keep_out_what_comes_often() {
        let mut top = Top::new(100);
        let mut named = 0;
        for i in 0..100_000_u32 {
            top.admit(&format!("made-up-{i}"), at(1));
            // Late, and one request in ten: still it is taken.
            if i > 50_000 && i % 10 == 0 {
                named += u32::from(top.admit("real", at(1)).is_some());
            }
        }
        assert!(top.len() <= 76 && top.candidates.len() <= CANDIDATES, "{}", top.len());
        assert_eq!(named, 4_999 - (OFTEN - 1));
        assert!(top.refused() >= 100_000 - 76);
    }

    #[test]
    fn values_that_are_gone_make_room() {
        let mut top = Top::new(4);
        ["a", "b", "c"].iter().for_each(|v| assert!(top.admit(v, at(1)).is_some()));
        assert!(top.admit("d", at(2)).is_none());
        assert!(top.admit("a", at(100)).is_some());
        top.sweep(at(50));
        assert_eq!(top.len(), 1);
        assert_eq!(top.admit("d", at(101)).as_deref(), Some("d"));
        // With enough room nothing is forgotten.
        top.sweep(at(1_000));
        assert_eq!(top.len(), 2);
    }
}
