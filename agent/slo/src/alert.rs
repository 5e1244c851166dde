//! Multi-window, multi-burn-rate alerts: one state per objective and severity.
//!
//! A row of the policy holds when both its windows burn faster than its factor and its long window has enough events to mean
//! anything. A severity fires when a row of it has held for the row's `for`; it resolves when none holds. A window without a valid event
//! does not burn. While the agent is blind the state is frozen: nothing fires, nothing resolves, no `for` runs out.

use crate::model::{Alerting, Severity};

/// What one window says.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Evidence {
    /// Burn rate; `None` where nothing was valid.
    pub burn: Option<f64>,
    /// Valid events.
    pub valid: u64,
    /// Bad events.
    pub bad: u64,
}

/// The state of both severities.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Alerts {
    /// Since when each severity fires, in the order of [`Severity::ALL`]; nanoseconds.
    pub firing: [Option<u64>; 2],
    /// Since when each row of the policy has held; nanoseconds.
    pub held: Vec<Option<u64>>,
}

impl Alerts {
    /// Whether the severity fires.
    pub fn fires(&self, severity: Severity) -> bool {
        self.firing.get(severity as usize).copied().flatten().is_some()
    }

    /// Whether a severity does not fire, but a row of it holds.
    pub fn pending(&self, policy: &Alerting) -> [bool; 2] {
        Severity::ALL.map(|severity| {
            let holds = policy.rows.iter().zip(&self.held).any(|(row, held)| row.severity == severity && held.is_some());
            holds && !self.fires(severity)
        })
    }

    /// Goes on to `now` (nanoseconds). `window` says what the window of so many seconds holds. Whether a severity began or ceased to
    /// fire.
    ///
    /// `target` is the objective's: a factor that it makes impossible becomes one that is possible ([`AlertRow::reachable`]).
    ///
    /// [`AlertRow::reachable`]: crate::model::AlertRow::reachable
    pub fn step(&mut self, policy: &Alerting, target: f64, now: u64, frozen: bool, window: impl Fn(u64) -> Evidence) -> bool {
        if frozen {
            return false;
        }
        self.held.resize(policy.rows.len(), None);
        let mut fires = [false; 2];
        for (row, held) in policy.rows.iter().zip(&mut self.held) {
            let (short, long) = (window(row.short_s), window(row.long_s));
            let factor = row.reachable(target);
            let burns = |e: &Evidence| e.burn.is_some_and(|b| b > factor);
            let holds = burns(&short) && burns(&long) && long.valid >= policy.min_events && long.bad >= policy.min_bad_events;
            *held = holds.then(|| held.unwrap_or(now));
            let lasted = held.is_some_and(|since| now.saturating_sub(since) >= row.for_s.saturating_mul(crate::ring::SECOND));
            if let Some(f) = fires.get_mut(row.severity as usize) {
                *f |= lasted;
            }
        }
        let before = self.firing;
        for (state, fires) in self.firing.iter_mut().zip(fires) {
            *state = fires.then(|| state.unwrap_or(now));
        }
        before.map(|f| f.is_some()) != self.firing.map(|f| f.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AlertRow;
    use crate::ring::SECOND;

    fn policy(for_s: u64) -> Alerting {
        let row = |severity, short_s, long_s, factor| AlertRow { severity, short_s, long_s, factor, for_s };
        Alerting {
            rows: vec![row(Severity::Page, 300, 3_600, 14.4), row(Severity::Ticket, 7_200, 86_400, 3.0)],
            min_events: 20,
            min_bad_events: 3,
            coverage_floor: 0.9,
            adapted: Vec::new(),
            runbook_url: None,
        }
    }

    fn says(burn: f64, valid: u64, bad: u64) -> impl Fn(u64) -> Evidence {
        move |_| Evidence { burn: Some(burn), valid, bad }
    }

    #[test]
    fn both_windows_must_burn_and_the_long_one_must_mean_something() {
        let fires = |window: &dyn Fn(u64) -> Evidence| {
            let mut a = Alerts::default();
            a.step(&policy(0), 0.999, SECOND, false, window);
            Severity::ALL.map(|s| a.fires(s))
        };
        assert_eq!(fires(&says(20.0, 100, 5)), [true, true]);
        assert_eq!(fires(&says(14.4, 100, 5)), [false, true], "faster than the factor, not as fast");
        assert_eq!(fires(&says(100.0, 19, 19)), [false, false], "too few events");
        assert_eq!(fires(&says(100.0, 2_000, 2)), [false, false], "too few bad ones");
        assert_eq!(fires(&|w| Evidence { burn: (w != 300).then_some(100.0), valid: 100, bad: 9 }), [false, true]);
        assert_eq!(fires(&|_| Evidence::default()), [false, false]);
    }

    #[test]
    fn it_fires_after_its_time_and_says_when_it_changes() {
        let (mut a, p) = (Alerts::default(), policy(120));
        assert!(!a.step(&p, 0.999, 1_000 * SECOND, false, says(20.0, 100, 5)));
        assert!(!a.step(&p, 0.999, 1_060 * SECOND, false, says(20.0, 100, 5)));
        assert!(a.step(&p, 0.999, 1_120 * SECOND, false, says(20.0, 100, 5)));
        assert_eq!(a.firing[0], Some(1_120 * SECOND));
        assert!(!a.step(&p, 0.999, 1_180 * SECOND, false, says(20.0, 100, 5)));
        assert!(a.step(&p, 0.999, 1_240 * SECOND, false, says(1.0, 100, 5)));
        assert!(!a.fires(Severity::Page));
    }

    #[test]
    fn while_blind_it_neither_fires_nor_resolves() {
        let (mut a, p) = (Alerts::default(), policy(0));
        a.step(&p, 0.999, SECOND, true, says(20.0, 100, 5));
        assert!(!a.fires(Severity::Page));
        a.step(&p, 0.999, 2 * SECOND, false, says(20.0, 100, 5));
        a.step(&p, 0.999, 3 * SECOND, true, |_| Evidence::default());
        assert!(a.fires(Severity::Page));
        a.step(&p, 0.999, 4 * SECOND, false, |_| Evidence::default());
        assert!(!a.fires(Severity::Page));
    }
}
