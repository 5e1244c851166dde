//! The silences between the chunks of one stream: each of them while there are few, their sums for ever. And the holes that capture left in it.

use crate::stream::Timestamp;

/// Gaps that are kept one by one; beyond it only their number, sum and extremes are known.
pub const MAX_GAPS: usize = 1 << 16;
/// Gaps of this length and above are kept in units of 1,024 ns.
const COARSE: u64 = 1 << 31;

/// Gaps between consecutive generated events of one choice, in nanoseconds, zero when they shared an instant.
///
/// Four bytes each: exact up to 2.1 s, to the microsecond beyond. What a stream holds of them is bounded however long it runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gaps {
    kept: Vec<u32>,
    count: u64,
    sum: u64,
    /// Both mean something when `count > 0`.
    min: u64,
    max: u64,
    /// Those that were kept were given up.
    forgotten: bool,
}

impl Gaps {
    /// Asks for the memory that [`Gaps::push`] will need. The result says nothing.
    pub fn touch(&self) -> u64 {
        self.kept.last().map_or(0, |gap| (*gap).into())
    }

    /// Adds one.
    #[inline]
    pub fn push(&mut self, nanos: u64) {
        self.min = if self.count == 0 { nanos } else { self.min.min(nanos) };
        self.count += 1;
        self.sum = self.sum.saturating_add(nanos);
        self.max = self.max.max(nanos);
        if self.kept.len() < MAX_GAPS && !self.forgotten {
            let coarse = u32::try_from(nanos >> 10).unwrap_or(u32::MAX) | COARSE as u32;
            self.kept.push(if nanos < COARSE { nanos as u32 } else { coarse });
        }
    }

    /// Gives up the single gaps to save memory; number, sum and extremes stay.
    pub fn forget(&mut self) {
        self.kept = Vec::new();
        self.forgotten = self.count > 0;
    }

    /// Bytes that are held.
    pub fn buffered(&self) -> usize {
        self.kept.capacity() * size_of::<u32>()
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether [`Gaps::iter`] gives every one of them.
    pub fn complete(&self) -> bool {
        self.kept.len() as u64 == self.count
    }

    /// All of them together, in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The shortest, in nanoseconds.
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// The longest, in nanoseconds.
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// Those that are kept, in order, in nanoseconds.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.kept.iter().map(|g| if u64::from(*g) < COARSE { u64::from(*g) } else { (u64::from(*g) ^ COARSE) << 10 })
    }
}

impl FromIterator<u64> for Gaps {
    fn from_iter<I: IntoIterator<Item = u64>>(gaps: I) -> Self {
        let mut all = Self::default();
        gaps.into_iter().for_each(|g| all.push(g));
        all
    }
}

/// Holes of an answer that are kept one by one; the record's `gaps` counts them all.
pub const MAX_HOLES: usize = 32;

/// Bytes that were not captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hole {
    /// When they are known to be missing: when what stands behind them came.
    pub at: Timestamp,
    /// How many, of the whole connection, where that is known.
    pub bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_gaps_are_exact_and_long_ones_to_the_microsecond() {
        let given = [0, 1, 20_000_000, COARSE - 1, COARSE, 600_000_000_000, u64::MAX];
        let gaps: Gaps = given.into_iter().collect();
        let got: Vec<u64> = gaps.iter().collect();
        assert_eq!(got[..4], given[..4]);
        assert!(got[4..6].iter().zip(&given[4..6]).all(|(g, want)| want - g < 1024), "{got:?}");
        assert_eq!((gaps.count(), gaps.min(), gaps.max(), gaps.complete()), (7, Some(0), Some(u64::MAX), true));
    }

    #[test]
    fn memory_is_bounded_and_the_sums_go_on() {
        let mut gaps: Gaps = std::iter::repeat_n(3, MAX_GAPS + 10).collect();
        assert_eq!((gaps.count(), gaps.sum(), gaps.complete()), (MAX_GAPS as u64 + 10, 3 * (MAX_GAPS as u64 + 10), false));
        assert!(gaps.buffered() <= 4 * MAX_GAPS);
        gaps.forget();
        gaps.push(9);
        assert_eq!((gaps.buffered(), gaps.complete(), gaps.max(), gaps.iter().count()), (0, false, Some(9), 0));
    }
}
