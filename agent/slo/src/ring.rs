//! Counts by time, in bounded memory: rings of marks that become coarser with age.
//!
//! A mark is what had been counted up to a boundary, so a window's count is one subtraction and a request costs one addition. Each
//! level has boundaries at whole multiples of its resolution (in Unix time) and keeps as many as its age needs:
//!
//! | level | exact to | kept |
//! |---|---|---|
//! | 1 | 1 s | 64 s |
//! | 2 | 10 s | 11 min |
//! | 3 | 1 min | 6 h 8 min |
//! | 4 | 10 min | the longest alert window |
//! | 5 | 1 h (longer windows: coarser, at most 760 marks) | the SLO's window |
//!
//! A window that begins between two marks begins at the earlier one: nothing is forgotten early. What happened at a boundary belongs
//! to the time before it, so windows are half open: after their start, up to their end.

use std::collections::VecDeque;

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Most marks of a level.
const MOST: u64 = 760;

/// Resolutions and how many marks of each are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry(Vec<(u64, usize)>);

impl Geometry {
    /// For windows up to `alerts_s` at the resolution of alerts, and one of `window_s` seconds.
    pub fn new(alerts_s: u64, window_s: u64) -> Self {
        let mut levels: Vec<(u64, u64)> = vec![(1, 64), (10, 68), (60, 368)];
        let mut covered = 366 * 60;
        if alerts_s > covered {
            // Alert windows are days, not years: a longer one is as exact as the SLO's own.
            let marks = (alerts_s / 600 + 2).min(MOST);
            levels.push((600, marks));
            covered = (marks - 2) * 600;
        }
        let longest = window_s.max(alerts_s);
        if longest > covered {
            let fits = [3_600, 10_800, 21_600, 43_200, 86_400].into_iter().find(|r| longest / r + 2 <= MOST);
            let resolution = fits.unwrap_or_else(|| (longest / (MOST - 2)).div_ceil(86_400).max(1) * 86_400);
            levels.push((resolution, longest / resolution + 2));
        }
        Self(levels.into_iter().map(|(r, n)| (r, usize::try_from(n).unwrap_or(usize::MAX))).collect())
    }

    /// Marks in all levels.
    pub fn marks(&self) -> usize {
        self.0.iter().map(|(_, n)| n).sum()
    }

    /// The length in seconds of the bucket in which a window of `window_s` seconds begins.
    pub fn resolution_s(&self, window_s: u64) -> u64 {
        let holds = self.0.iter().find(|(r, n)| window_s <= r * (*n as u64 - 2));
        holds.or(self.0.last()).map_or(1, |(r, _)| *r)
    }
}

/// The marks of one resolution.
#[derive(Clone, Debug)]
struct Level<T> {
    /// Nanoseconds between boundaries.
    resolution: u64,
    keep: usize,
    marks: VecDeque<T>,
    /// Which boundary the last mark is of.
    newest: u64,
}

impl<T: Copy> Level<T> {
    fn oldest(&self) -> u64 {
        self.newest + 1 - self.marks.len() as u64
    }

    fn mark(&mut self, until: u64, total: T) {
        let last = until / self.resolution;
        if last <= self.newest {
            return;
        }
        let first = (self.newest + 1).max((last + 1).saturating_sub(self.keep as u64));
        for _ in first..=last {
            if self.marks.len() == self.keep {
                self.marks.pop_front();
            }
            self.marks.push_back(total);
        }
        self.newest = last;
    }
}

/// Totals and their marks.
#[derive(Clone, Debug)]
pub struct Ring<T> {
    /// Everything counted so far.
    pub total: T,
    levels: Vec<Level<T>>,
    born: u64,
}

impl<T: Copy + Default> Ring<T> {
    /// Nothing counted, from `now` (nanoseconds) on. The memory is taken here, once.
    pub fn new(geometry: &Geometry, now: u64) -> Self {
        let level = |(resolution_s, keep): &(u64, usize)| {
            let resolution = resolution_s * SECOND;
            let mut marks = VecDeque::with_capacity(*keep);
            marks.push_back(T::default());
            Level { resolution, keep: *keep, marks, newest: now / resolution }
        };
        Self { total: T::default(), levels: geometry.0.iter().map(level).collect(), born: now }
    }

    /// Since when it counts, in nanoseconds.
    pub fn born(&self) -> u64 {
        self.born
    }

    /// Marks every boundary up to `until` (nanoseconds) that has no mark yet, with the total as it stands.
    pub fn mark(&mut self, until: u64) {
        let total = self.total;
        self.levels.iter_mut().for_each(|l| l.mark(until, total));
    }

    /// The total up to `instant` (nanoseconds), as it was at the last boundary that is still known; what is older than every mark is
    /// the oldest mark.
    pub fn at(&self, instant: u64) -> T {
        for level in &self.levels {
            let boundary = instant / level.resolution;
            if boundary >= level.oldest() {
                let place = (boundary.min(level.newest) - level.oldest()) as usize;
                return level.marks.get(place).copied().unwrap_or_default();
            }
        }
        self.levels.last().and_then(|l| l.marks.front().copied()).unwrap_or_default()
    }

    /// Its resolutions and how many marks of each it keeps.
    pub fn geometry(&self) -> Geometry {
        Geometry(self.levels.iter().map(|l| (l.resolution / SECOND, l.keep)).collect())
    }

    /// The same history in another geometry. Marks come from the finest level that has them.
    pub fn reshaped(&self, geometry: &Geometry, now: u64) -> Self {
        let mut new = Self::new(geometry, now);
        new.born = self.born;
        new.total = self.total;
        for level in &mut new.levels {
            level.newest = (now / level.resolution).max(self.levels.first().map_or(0, |l| l.newest * l.resolution / level.resolution));
            let oldest = (level.newest + 1).saturating_sub(level.keep as u64).max(self.born / level.resolution);
            level.marks.clear();
            level.marks.extend((oldest..=level.newest).map(|b| self.at(b * level.resolution)));
        }
        new
    }

    /// Each level's resolution in nanoseconds, how many marks it keeps, its newest boundary, and its marks from the oldest.
    pub fn levels(&self) -> impl Iterator<Item = (u64, usize, u64, impl ExactSizeIterator<Item = T> + '_)> + '_ {
        self.levels.iter().map(|l| (l.resolution, l.keep, l.newest, l.marks.iter().copied()))
    }

    /// A ring from what [`Ring::levels`] gave; `None` when that cannot be one.
    pub fn from_levels(total: T, born: u64, levels: Vec<(u64, usize, u64, Vec<T>)>) -> Option<Self> {
        let good = |(resolution, keep, newest, marks): &(u64, usize, u64, Vec<T>)| {
            let whole = *resolution >= SECOND && resolution % SECOND == 0;
            let fits = !marks.is_empty() && marks.len() <= *keep && *keep as u64 <= MOST && marks.len() as u64 <= newest.saturating_add(1);
            whole && fits && newest.checked_mul(*resolution).is_some()
        };
        let all = !levels.is_empty() && levels.iter().all(good);
        let level = |(resolution, keep, newest, marks): (u64, usize, u64, Vec<T>)| {
            let mut kept = VecDeque::with_capacity(keep);
            kept.extend(marks);
            Level { resolution, keep, marks: kept, newest }
        };
        all.then(|| Self { total, levels: levels.into_iter().map(level).collect(), born })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn thirty_days_are_exact_enough_and_small() {
        let g = Geometry::new(3 * DAY, 30 * DAY);
        assert_eq!(
            [300, 1_800, 3_600, 7_200, 21_600, DAY, 3 * DAY, 30 * DAY].map(|w| g.resolution_s(w)),
            [10, 60, 60, 60, 60, 600, 600, 3_600]
        );
        assert!(g.marks() * 32 < 60_000, "{}", g.marks());
        for window in [3_600, DAY, 7 * DAY, 92 * DAY, 366 * DAY, 4_000 * DAY] {
            let g = Geometry::new(4 * DAY, window);
            assert!(g.marks() * 32 < 64 * 1024, "{window}: {}", g.marks());
            assert!(g.resolution_s(window) * 72 <= window.max(4 * DAY), "{window}");
        }
    }

    #[test]
    fn windows_are_half_open_and_begin_at_the_earlier_mark() {
        let mut ring = Ring::<u64>::new(&Geometry::new(600, 600), 0);
        for t in 1..=700 {
            // One event at each whole second.
            ring.mark((t - 1) * SECOND);
            ring.total += 1;
        }
        ring.mark(700 * SECOND);
        let within = |w: u64| ring.total - ring.at((700 - w) * SECOND);
        assert_eq!(within(5), 5);
        assert_eq!(within(60), 60);
        assert_eq!(within(300), 300);
        assert_eq!(ring.total - ring.at(400_500_000_000), 300, "half a second is within one bucket of a second or ten");
        assert_eq!(ring.at(0), 0);
    }

    #[test]
    fn a_long_silence_costs_no_more_than_the_ring() {
        let mut ring = Ring::<u64>::new(&Geometry::new(3 * DAY, 30 * DAY), 0);
        ring.total = 7;
        ring.mark(10_000 * DAY * SECOND);
        assert_eq!(ring.at(9_999 * DAY * SECOND), 7);
        assert_eq!(ring.at(0), 7, "what is older than every mark is the oldest mark");
    }

    #[test]
    fn history_survives_another_geometry() {
        let mut ring = Ring::<u64>::new(&Geometry::new(3 * DAY, 30 * DAY), 0);
        for minute in 0..6 * 24 * 60 {
            ring.mark(minute * 60 * SECOND);
            ring.total += 1;
        }
        let now = 6 * DAY * SECOND;
        ring.mark(now);
        let other = ring.reshaped(&Geometry::new(3 * DAY, 7 * DAY), now);
        for window in [300, 3_600, DAY, 3 * DAY, 5 * DAY] {
            assert_eq!(ring.at(now - window * SECOND), other.at(now - window * SECOND), "{window}");
        }
        assert_eq!((other.total, other.born()), (ring.total, 0));
    }
}
