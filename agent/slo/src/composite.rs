//! Several indicators, one budget: `compositeWeight` of OpenSLO v1.
//!
//! * Occurrences: burn adds up. The composite's burn rate is the sum of weight × burn rate of its parts, and so is the budget spent.
//! * Timeslices: a slice is bad when it is bad for any part.
//! * RatioTimeslices: missing parts add up. A slice's level is 1 − the sum of weight × (1 − ratio) of its parts, but not below 0.
//!
//! The composite's own target, with the slice methods, is the strictest of its parts. Its counts are those of its parts together.

use crate::alert::{Alerts, Evidence};
use crate::book::Page;
use crate::budget::{Totals, exhaustion_s};
use crate::groups::Labels;
use crate::model::{Budgeting, Slo, Verdict};
use crate::series::{Series, SliceRule};
use crate::status::Status;

/// The running slice of one group: when it ends, and what each part has counted in it.
#[derive(Clone, Debug, Default)]
struct Running {
    end: u64,
    parts: Vec<(u64, u64)>,
}

/// What the composite of one SLO keeps beside its page in the book.
#[derive(Clone, Debug)]
pub struct Composite {
    /// Its page.
    pub page: usize,
    /// One for each group.
    pub alerts: Vec<Alerts>,
    running: Vec<Running>,
}

/// One part, as [`Composite::tell`] sees it: its place in the SLO and its counts; `None` when it has none in this group.
pub type Part<'a> = (usize, Option<&'a Series>);

impl Composite {
    /// A composite that counts on that page.
    pub fn new(page: usize) -> Self {
        Self { page, alerts: Vec::new(), running: Vec::new() }
    }

    /// A verdict on one part, so many times.
    pub fn observe(&mut self, slo: &Slo, page: &mut Page, place: usize, objective: usize, (verdict, n): (Verdict, u64), tick: u64) {
        self.close(slo, page, place, tick.saturating_sub(1));
        let Some(series) = page.series.get_mut(place) else { return };
        series.add(verdict, n, tick);
        if slo.budgeting == Budgeting::Occurrences || !matches!(verdict, Verdict::Good | Verdict::Bad) {
            return;
        }
        if self.running.len() <= place {
            self.running.resize(place + 1, Running::default());
        }
        let Some(running) = self.running.get_mut(place) else { return };
        running.parts.resize(slo.objectives.len(), (0, 0));
        if running.end == 0 {
            running.end = length(slo).map_or(0, |l| tick.div_ceil(l) * l);
        }
        if let Some((valid, bad)) = running.parts.get_mut(objective) {
            *valid += n;
            *bad += if verdict == Verdict::Bad { n } else { 0 };
        }
    }

    /// Closes the slice of a group that has ended by `tick`.
    pub fn close(&mut self, slo: &Slo, page: &mut Page, place: usize, tick: u64) {
        let (Some(running), Some(series)) = (self.running.get_mut(place), page.series.get_mut(place)) else { return };
        if running.end == 0 || running.end > tick {
            return;
        }
        series.advance(running.end - 1);
        let parts = slo.objectives.iter().zip(&running.parts).filter(|(_, (valid, _))| *valid > 0);
        let bad: f64 = parts
            .filter_map(|(o, (valid, bad))| {
                let badness = SliceRule::of(slo.budgeting, o)?.badness(*valid, *bad);
                Some(if slo.budgeting == Budgeting::RatioTimeslices { o.weight * badness } else { badness })
            })
            .sum();
        series.ring.total.slices = series.ring.total.slices.wrapping_add(1);
        series.ring.total.bad_slices += bad.min(1.0);
        running.end = 0;
        running.parts.fill((0, 0));
    }

    /// Fills in level, budget, burn rates and alerts. `base` is the composite's own totals when the window began, `window` the
    /// beginning of the last so many seconds.
    pub fn tell(&mut self, slo: &Slo, place: usize, status: &mut Status, own: &Series, parts: &[Part<'_>], now: &Now<'_>) {
        let target = slo.objectives.iter().map(|o| o.target).fold(0.0, f64::max);
        let burn = |from: &dyn Fn(&Series) -> Totals| {
            match slo.budgeting {
                Budgeting::Occurrences => parts.iter().filter_map(|(o, series)| {
                    let (o, series) = (slo.objectives.get(*o)?, (*series)?);
                    Some(o.weight * series.ring.total.since(&from(series)).burn_rate(slo.budgeting, o.target)?)
                }),
                Budgeting::Timeslices | Budgeting::RatioTimeslices => {
                    return own.ring.total.since(&from(own)).burn_rate(slo.budgeting, target);
                }
            }
            .fold(None, |sum, b| Some(sum.unwrap_or(0.0) + b))
        };
        let within = own.ring.total.since(&(now.base)(own));
        (status.valid, status.good, status.excluded) = (within.valid, within.good(), u64::from(within.excluded));
        status.slices = (slo.budgeting != Budgeting::Occurrences).then(|| (u64::from(within.slices), within.bad_slices));
        status.counters = own.counters;
        let spent = burn(&|s| (now.base)(s));
        status.budget_remaining = spent.map(|s| 1.0 - s);
        status.level = within.level(slo.budgeting);
        for (window, rate) in &mut status.burn {
            *rate = burn(&|s| s.ring.at(now.tick.saturating_sub(*window * crate::ring::SECOND)));
        }
        let rate = status.burn.iter().find(|(w, _)| *w == now.rate_window).and_then(|(_, b)| *b);
        status.exhaustion_s = exhaustion_s(status.budget_remaining, rate, now.window_s);
        if self.alerts.len() <= place {
            self.alerts.resize(place + 1, Alerts::default());
        }
        let Some(alerts) = self.alerts.get_mut(place) else { return };
        alerts.step(&slo.alerting, target, now.tick, status.sight == crate::status::Sight::Blind, |seconds| {
            let counts = own.ring.total.since(&own.ring.at(now.tick.saturating_sub(seconds * crate::ring::SECOND)));
            let rate = status.burn.iter().find(|(w, _)| *w == seconds).and_then(|(_, b)| *b);
            Evidence { burn: rate, valid: counts.valid, bad: counts.bad }
        });
        status.firing = alerts.firing;
        status.pending = alerts.pending(&slo.alerting);
    }

    /// The alerts of each group.
    pub fn states<'a>(&'a self, page: &'a Page) -> impl Iterator<Item = (&'a Labels, &'a Alerts)> + 'a {
        page.groups.labels().iter().zip(&self.alerts)
    }
}

/// The instant that is told of.
pub struct Now<'a> {
    /// Nanoseconds of the engine's time.
    pub tick: u64,
    /// The totals of a series when the SLO's window began.
    pub base: &'a dyn Fn(&Series) -> Totals,
    /// Over which burn rate the time to exhaustion is told, seconds.
    pub rate_window: u64,
    /// Length of the SLO's window, seconds.
    pub window_s: u64,
}

/// The composite's slices are as long as the longest of its parts'.
fn length(slo: &Slo) -> Option<u64> {
    slo.objectives.iter().filter_map(|o| SliceRule::of(slo.budgeting, o)).map(|r| r.length).max()
}
