//! What one indicator counts for one group: ring, cumulative counters, the running slice, the calendar period.

use crate::budget::Totals;
use crate::model::{Budgeting, Objective, Verdict};
use crate::ring::{Geometry, Ring, SECOND};
use crate::window::{Calendar, Frame};

/// Cumulative counts since the series began; they only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Valid and good.
    pub good: u64,
    /// Valid and bad.
    pub bad: u64,
    /// Not seen well enough to say.
    pub excluded: u64,
    /// Nothing that the indicator could judge.
    pub not_applicable: u64,
}

impl Counters {
    /// Good and bad.
    pub fn valid(&self) -> u64 {
        self.good + self.bad
    }

    /// The count of one verdict.
    pub fn of(&mut self, verdict: Verdict) -> &mut u64 {
        match verdict {
            Verdict::Good => &mut self.good,
            Verdict::Bad => &mut self.bad,
            Verdict::Excluded => &mut self.excluded,
            Verdict::NotApplicable => &mut self.not_applicable,
        }
    }
}

/// How slices are cut and judged.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SliceRule {
    /// Nanoseconds; slices end at whole multiples of it.
    pub length: u64,
    /// A slice whose good share is below this is bad; `None`: it is bad to the degree of its bad share.
    pub target: Option<f64>,
}

impl SliceRule {
    /// The rule of an objective; `None` where events are counted. Without a length of its own a slice is a minute.
    pub fn of(budgeting: Budgeting, objective: &Objective) -> Option<Self> {
        let length = objective.time_slice_window_s.unwrap_or(60).max(1).saturating_mul(SECOND);
        match budgeting {
            Budgeting::Occurrences => None,
            Budgeting::Timeslices => Some(Self { length, target: Some(objective.time_slice_target.unwrap_or(1.0)) }),
            Budgeting::RatioTimeslices => Some(Self { length, target: None }),
        }
    }

    /// How bad a slice of so many events was.
    pub fn badness(&self, valid: u64, bad: u64) -> f64 {
        let share = bad as f64 / valid.max(1) as f64;
        match self.target {
            Some(target) => f64::from(u8::from((valid - bad) as f64 / (valid.max(1) as f64) < target)),
            None => share,
        }
    }

    /// When the slice that `tick` lies in ends. An instant on a bound belongs to the slice before it.
    pub fn end(&self, tick: u64) -> u64 {
        tick.div_ceil(self.length).max(1) * self.length
    }
}

/// The slice that is not over yet. It counts when it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slice {
    /// How it will be judged.
    pub rule: SliceRule,
    /// When it ends, nanoseconds.
    pub end: u64,
    /// Valid events so far.
    pub valid: u64,
    /// Bad ones among them.
    pub bad: u64,
}

/// The calendar period that is running.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Period {
    /// Unix seconds by the wall clock: after this …
    pub start_s: i64,
    /// … up to this.
    pub end_s: i64,
    /// When it ends on the engine's own time, nanoseconds.
    pub end: u64,
    /// What had been counted when it began.
    pub base: Totals,
}

/// One group's counts. Time is the engine's own (see `clock`), in nanoseconds, and never goes back: what comes late is counted now.
#[derive(Clone, Debug)]
pub struct Series {
    /// By time.
    pub ring: Ring<Totals>,
    /// Since the series began.
    pub counters: Counters,
    /// With the two slice methods.
    pub slice: Option<Slice>,
    /// With a calendar window.
    pub period: Option<Period>,
    /// The instant after which something is to be done before the next event is counted.
    next: u64,
}

impl Series {
    /// An empty one, from `now` on.
    pub fn new(geometry: &Geometry, rule: Option<SliceRule>, now: u64) -> Self {
        let slice = rule.map(|rule| Slice { rule, end: rule.end(now), valid: 0, bad: 0 });
        let mut new = Self { ring: Ring::new(geometry, now), counters: Counters::default(), slice, period: None, next: 0 };
        new.plan(now);
        new
    }

    /// One made of its parts, as they were at `now`.
    pub fn from_parts(ring: Ring<Totals>, counters: Counters, slice: Option<Slice>, period: Option<Period>, now: u64) -> Self {
        let mut new = Self { ring, counters, slice, period, next: 0 };
        new.plan(now);
        new
    }

    /// The bytes that it holds.
    pub fn bytes(geometry: &Geometry) -> usize {
        size_of::<Self>() + geometry.marks() * size_of::<Totals>()
    }

    /// Counts `n` events at `tick`.
    pub fn add(&mut self, verdict: Verdict, n: u64, tick: u64) {
        if tick > self.next {
            // What happens on a boundary belongs before it.
            self.go(tick - 1, tick - 1);
        }
        *self.counters.of(verdict) += n;
        self.ring.total.add(verdict, n);
        if let Some(slice) = &mut self.slice
            && matches!(verdict, Verdict::Good | Verdict::Bad)
        {
            slice.valid += n;
            slice.bad += if verdict == Verdict::Bad { n } else { 0 };
        }
    }

    /// Everything up to `tick` has been counted: closes slices and periods and sets marks. A period is told of until it is over, its
    /// last instant included.
    pub fn advance(&mut self, tick: u64) {
        self.go(tick, tick.saturating_sub(1));
    }

    fn go(&mut self, tick: u64, over: u64) {
        if let Some(end) = self.period.map(|p| p.end).filter(|end| *end <= over) {
            self.close_slice(end);
            self.ring.mark(end);
            if let Some(period) = &mut self.period {
                // Which period runs now is told by `settle`; until then it begins here and has no end.
                *period = Period { start_s: period.end_s, end_s: i64::MAX, end: u64::MAX, base: self.ring.total };
            }
        }
        self.close_slice(tick);
        self.ring.mark(tick);
        self.plan(tick);
    }

    /// Puts the period in its place on the calendar. `offset` leads from the engine's time to the wall clock's.
    pub fn settle(&mut self, frame: &Frame, offset: i64, now: u64) {
        let Frame::Calendar(calendar) = frame else {
            self.period = None;
            return;
        };
        let wall_s = wall_s(now, offset);
        if let Some(p) = self.period
            && p.end_s != i64::MAX
            && p.start_s < wall_s
            && wall_s <= p.end_s
        {
            let end = tick(p.end_s, offset);
            self.period = Some(Period { end, ..p });
            self.plan(now);
            return;
        }
        self.period = Some(self.period_at(calendar, wall_s, offset));
        self.plan(now);
    }

    fn period_at(&self, calendar: &Calendar, wall_s: i64, offset: i64) -> Period {
        let (start_s, end_s) = calendar.period(wall_s);
        let base = match self.period {
            Some(p) if p.start_s == start_s => p.base,
            // A period that began before this series did, or was left by a step of the clock: as exact as the ring is.
            _ => self.ring.at(tick(start_s, offset)),
        };
        Period { start_s, end_s, end: tick(end_s, offset), base }
    }

    /// Whether [`Series::settle`] is due.
    pub fn unsettled(&self) -> bool {
        self.period.is_none_or(|p| p.end_s == i64::MAX)
    }

    fn close_slice(&mut self, tick: u64) {
        let Some(slice) = &mut self.slice else { return };
        if slice.end > tick {
            return;
        }
        if slice.valid > 0 {
            self.ring.mark(slice.end - 1);
            self.ring.total.slices = self.ring.total.slices.wrapping_add(1);
            self.ring.total.bad_slices += slice.rule.badness(slice.valid, slice.bad);
        }
        *slice = Slice { end: slice.rule.end(tick + 1), valid: 0, bad: 0, ..*slice };
    }

    fn plan(&mut self, now: u64) {
        let second = (now / SECOND + 1) * SECOND;
        let slice = self.slice.map_or(u64::MAX, |s| s.end);
        let period = self.period.map_or(u64::MAX, |p| p.end);
        self.next = second.min(slice).min(period);
    }
}

/// Wall-clock seconds of an instant of the engine, rounded up: an instant within a second belongs to the period that its end is in.
pub fn wall_s(tick: u64, offset: i64) -> i64 {
    let nanos = i128::from(tick) + i128::from(offset);
    i64::try_from(-((-nanos).div_euclid(i128::from(SECOND)))).unwrap_or(i64::MAX)
}

/// The engine's instant of a wall-clock second.
pub fn tick(wall_s: i64, offset: i64) -> u64 {
    let nanos = i128::from(wall_s) * i128::from(SECOND) - i128::from(offset);
    u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CalendarUnit, Window};

    const MINUTE: u64 = 60 * SECOND;

    fn series(rule: Option<SliceRule>) -> Series {
        Series::new(&Geometry::new(3_600, 86_400), rule, 0)
    }

    #[test]
    fn slices_count_when_they_are_over() {
        let rule = SliceRule { length: MINUTE, target: Some(0.9) };
        let mut s = series(Some(rule));
        s.add(Verdict::Good, 9, 10 * SECOND);
        s.add(Verdict::Bad, 1, MINUTE);
        assert_eq!(s.ring.total.slices, 0);
        s.add(Verdict::Bad, 2, MINUTE + 1);
        assert_eq!((s.ring.total.slices, s.ring.total.bad_slices), (1, 0.0), "nine of ten reach the target");
        s.advance(10 * MINUTE);
        assert_eq!((s.ring.total.slices, s.ring.total.bad_slices), (2, 1.0), "slices without events are none");
        let before = s.ring.at(MINUTE);
        assert_eq!((before.slices, before.valid), (1, 10));
        assert_eq!(s.ring.at(2 * MINUTE).bad_slices, 1.0);
    }

    #[test]
    fn ratio_slices_are_bad_to_their_degree() {
        let mut s = series(Some(SliceRule { length: MINUTE, target: None }));
        s.add(Verdict::Good, 3, SECOND);
        s.add(Verdict::Bad, 1, SECOND);
        s.add(Verdict::Bad, 1, 2 * MINUTE);
        s.advance(3 * MINUTE);
        assert_eq!(s.ring.total.bad_ratio(Budgeting::RatioTimeslices), Some(1.25 / 2.0));
    }

    #[test]
    fn a_period_begins_with_nothing_spent() {
        let window = Window::Calendar { count: 1, unit: CalendarUnit::Day, start: "1970-01-01 00:00:00".into(), time_zone: "UTC".into() };
        let frame = Frame::new(&window).unwrap();
        let day = 86_400 * SECOND;
        let mut s = series(None);
        s.settle(&frame, 0, 1);
        s.add(Verdict::Bad, 4, day);
        s.add(Verdict::Good, 1, day + 1);
        assert!(s.unsettled());
        s.settle(&frame, 0, day + 1);
        let spent = s.ring.total.since(&s.period.unwrap().base);
        assert_eq!((spent.valid, spent.bad), (1, 0), "what ended at midnight is yesterday's");
        // The clock goes back by an hour, into yesterday, and on again.
        s.settle(&frame, -3_600 * SECOND as i64, day + 2);
        assert_eq!(s.ring.total.since(&s.period.unwrap().base).bad, 4);
        s.settle(&frame, 0, day + 3);
        let spent = s.ring.total.since(&s.period.unwrap().base);
        assert_eq!((spent.valid, spent.bad), (1, 0));
    }

    #[test]
    fn what_comes_late_counts_now() {
        let mut s = series(None);
        s.add(Verdict::Good, 1, 100 * SECOND);
        s.add(Verdict::Bad, 1, 40 * SECOND);
        s.advance(100 * SECOND);
        assert_eq!(s.ring.total.since(&s.ring.at(99 * SECOND)).valid, 2);
    }
}
