//! Totals, and what follows from them: level, burn rate, error budget.

use crate::model::{Budgeting, Verdict};

/// What one series has counted, up to an instant. Differences of two are a window's counts.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Totals {
    /// Valid events.
    pub valid: u64,
    /// Bad ones among them.
    pub bad: u64,
    /// Excluded events; differences stay right when it wraps.
    pub excluded: u32,
    /// Finished slices with at least one valid event; differences stay right when it wraps.
    pub slices: u32,
    /// Bad slices ([`Budgeting::Timeslices`]), or the sum of their bad shares ([`Budgeting::RatioTimeslices`]).
    pub bad_slices: f64,
}

impl Totals {
    /// What came after `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            valid: self.valid.saturating_sub(earlier.valid),
            bad: self.bad.saturating_sub(earlier.bad),
            excluded: self.excluded.wrapping_sub(earlier.excluded),
            slices: self.slices.wrapping_sub(earlier.slices),
            bad_slices: self.bad_slices - earlier.bad_slices,
        }
    }

    /// Counts `n` events of one verdict.
    pub fn add(&mut self, verdict: Verdict, n: u64) {
        match verdict {
            Verdict::Good => self.valid += n,
            Verdict::Bad => {
                self.valid += n;
                self.bad += n;
            }
            Verdict::Excluded => self.excluded = self.excluded.wrapping_add(n as u32),
            Verdict::NotApplicable => {}
        }
    }

    /// Good events.
    pub fn good(&self) -> u64 {
        self.valid - self.bad
    }

    /// The share that was bad, by the budgeting method; `None` where nothing was valid.
    pub fn bad_ratio(&self, budgeting: Budgeting) -> Option<f64> {
        let (bad, valid) = match budgeting {
            Budgeting::Occurrences => (self.bad as f64, self.valid as f64),
            Budgeting::Timeslices | Budgeting::RatioTimeslices => (self.bad_slices, f64::from(self.slices)),
        };
        (valid > 0.0).then(|| bad / valid)
    }

    /// The share that was good: the level itself.
    pub fn level(&self, budgeting: Budgeting) -> Option<f64> {
        match budgeting {
            Budgeting::Occurrences => (self.valid > 0).then(|| self.good() as f64 / self.valid as f64),
            Budgeting::Timeslices | Budgeting::RatioTimeslices => self.bad_ratio(budgeting).map(|bad| 1.0 - bad),
        }
    }

    /// How fast the budget is spent: 1 spends it exactly within the SLO's window. `None` where nothing was valid.
    pub fn burn_rate(&self, budgeting: Budgeting, target: f64) -> Option<f64> {
        self.bad_ratio(budgeting).map(|bad| bad / (1.0 - target))
    }
}

/// Seconds until the budget is spent when it goes on burning at `burn`: `None` when it does not burn or nothing is known, 0 when it
/// is spent already. A burn rate of 1 spends a whole budget in one window.
pub fn exhaustion_s(remaining: Option<f64>, burn: Option<f64>, window_s: u64) -> Option<f64> {
    let remaining = remaining?;
    if remaining <= 0.0 {
        return Some(0.0);
    }
    burn.filter(|b| *b > 0.0).map(|b| remaining * window_s as f64 / b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(valid: u64, bad: u64) -> Totals {
        Totals { valid, bad, ..Totals::default() }
    }

    #[test]
    fn one_failure_in_ten_at_three_nines_burns_a_hundred_times() {
        let burn = counts(10, 1).burn_rate(Budgeting::Occurrences, 0.999).unwrap();
        assert!((burn - 100.0).abs() < 1e-9, "{burn}");
        assert_eq!(counts(0, 0).burn_rate(Budgeting::Occurrences, 0.999), None);
        assert_eq!(counts(4, 1).level(Budgeting::Occurrences), Some(0.75));
    }

    #[test]
    fn counters_that_wrap_still_differ_by_what_came() {
        let mut now = Totals { excluded: u32::MAX, slices: u32::MAX, ..Totals::default() };
        let before = now;
        now.add(Verdict::Excluded, 3);
        now.slices = now.slices.wrapping_add(2);
        assert_eq!((now.since(&before).excluded, now.since(&before).slices), (3, 2));
    }

    #[test]
    fn a_burn_of_ten_spends_half_a_budget_in_a_twentieth_of_the_window() {
        assert_eq!(exhaustion_s(Some(0.5), Some(10.0), 2_592_000), Some(129_600.0));
        assert_eq!(exhaustion_s(Some(-0.2), Some(0.0), 2_592_000), Some(0.0));
        assert_eq!(exhaustion_s(Some(1.0), Some(0.0), 2_592_000), None);
        assert_eq!(exhaustion_s(None, None, 2_592_000), None);
    }
}
