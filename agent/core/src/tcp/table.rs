//! The index from a connection's key to its slot: open addressing, linear probing, 8 bytes per entry.
//!
//! The keys stay in the slots, so a million connections cost 16 MB here. A look-up touches one cache line of the index and the slot
//! that the packet needs anyway. Removal shifts the followers back, so there are no tombstones to clean up.

/// One entry: the upper half of the hash, and the slot + 1 (0 is empty).
type Entry = (u32, u32);

pub(super) struct Table {
    entries: Vec<Entry>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { entries: vec![(0, 0); 64], len: 0 }
    }

    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    /// The slot whose entry has `hash` and satisfies `is`.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let (tag, mask) = ((hash >> 32) as u32, self.mask());
        let mut at = hash as usize & mask;
        loop {
            let (entry, slot) = self.entries[at];
            if slot == 0 {
                return None;
            }
            if entry == tag && is(slot - 1) {
                return Some(slot - 1);
            }
            at = (at + 1) & mask;
        }
    }

    /// The first slot whose entry has `hash`: nearly always the one that [`Table::find`] finds.
    #[inline]
    pub(super) fn first(&self, hash: u64) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Adds a slot that is not in the table. `hash_of` says the hash of those that are.
    pub(super) fn insert(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.len + 1) * 3 > self.entries.len() * 2 {
            let doubled = vec![(0, 0); self.entries.len() * 2];
            for (_, slot) in std::mem::replace(&mut self.entries, doubled) {
                if slot != 0 {
                    self.place(hash_of(slot - 1), slot);
                }
            }
        }
        self.place(hash, slot + 1);
        self.len += 1;
    }

    fn place(&mut self, hash: u64, slot: u32) {
        let mask = self.mask();
        let mut at = hash as usize & mask;
        while self.entries[at].1 != 0 {
            at = (at + 1) & mask;
        }
        self.entries[at] = ((hash >> 32) as u32, slot);
    }

    /// Removes a slot that is in the table.
    pub(super) fn remove(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) {
        let mask = self.mask();
        let mut hole = hash as usize & mask;
        while self.entries[hole].1 != slot + 1 {
            if self.entries[hole].1 == 0 {
                return;
            }
            hole = (hole + 1) & mask;
        }
        // an entry behind the hole may move into it unless its home lies between the two
        let mut at = (hole + 1) & mask;
        while self.entries[at].1 != 0 {
            let home = hash_of(self.entries[at].1 - 1) as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
            at = (at + 1) & mask;
        }
        self.entries[hole] = (0, 0);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a set: few distinct hashes, so that runs are long and wrap around the end.
        #[test]
        fn behaves_like_a_set(steps in prop::collection::vec((0u32..120, any::<bool>()), 1..400), spread in 1u64..40) {
            let hash_of = |slot: u32| (u64::from(slot) % spread + 50).wrapping_mul(0x1_0000_0001);
            let (mut table, mut model) = (Table::new(), BTreeSet::new());
            for (slot, add) in steps {
                if add && model.insert(slot) {
                    table.insert(hash_of(slot), slot, hash_of);
                } else if !add && model.remove(&slot) {
                    table.remove(hash_of(slot), slot, hash_of);
                }
                prop_assert_eq!(table.len, model.len());
            }
            for slot in 0..120 {
                prop_assert_eq!(table.find(hash_of(slot), |s| s == slot).is_some(), model.contains(&slot));
            }
        }
    }
}
