//! One SLO as the engine holds it, and how a status of it is told.

use crate::alert::{Alerts, Evidence};
use crate::book::Unseen;
use crate::budget::{Totals, exhaustion_s};
use crate::composite::Composite;
use crate::groups::Labels;
use crate::model::{Budgeting, Severity, Slo};
use crate::ring::{Geometry, Ring, SECOND};
use crate::series::Series;
use crate::status::{Sight, Status};
use crate::window::{Frame, WindowError};

/// Fewer unseen requests than this in a window say nothing about coverage.
const NOISE: u64 = 10;

/// One SLO and what was made ready for it.
pub struct Loaded {
    /// Its definition.
    pub slo: Slo,
    /// Its window.
    pub frame: Frame,
    /// Every window of the alert policy, seconds, shortest first.
    pub windows: Vec<u64>,
    /// The shortest short window: what coverage and idleness are told over.
    pub shortest: u64,
    /// The long window of the page with the shortest one: over which the rate of spending is told.
    pub rate_window: u64,
    /// Of its rings.
    pub geometry: Geometry,
    /// When it is one.
    pub composite: Option<Composite>,
}

/// What there was to see, as the engine knows it.
pub struct Eyes<'a> {
    /// What was not seen.
    pub unseen: &'a Ring<Unseen>,
    /// Whether nothing can be seen now.
    pub blind: bool,
    /// Nanoseconds of the engine's time.
    pub tick: u64,
}

impl Loaded {
    /// Makes an SLO ready.
    ///
    /// # Errors
    /// When its window cannot be used.
    pub fn new(slo: Slo) -> Result<Self, (String, WindowError)> {
        let frame = Frame::new(&slo.window).map_err(|why| (slo.name.clone(), why))?;
        let rows = &slo.alerting.rows;
        let mut windows: Vec<u64> = rows.iter().flat_map(|r| [r.short_s, r.long_s]).collect();
        windows.sort_unstable();
        windows.dedup();
        let shortest = rows.iter().map(|r| r.short_s).min().unwrap_or(300);
        let pages = rows.iter().filter(|r| r.severity == Severity::Page);
        let rate_window = pages.map(|r| r.long_s).min().or(windows.last().copied()).unwrap_or(3_600);
        let geometry = Geometry::new(windows.last().copied().unwrap_or(3_600), frame.longest_s());
        Ok(Self { slo, frame, windows, shortest, rate_window, geometry, composite: None })
    }

    /// A status that says nothing yet.
    pub fn empty(&self, slo: usize, objective: Option<usize>, group: &Labels) -> Status {
        Status {
            slo,
            objective,
            group: group.clone(),
            counters: crate::series::Counters::default(),
            valid: 0,
            good: 0,
            excluded: 0,
            slices: None,
            level: None,
            budget_remaining: None,
            exhaustion_s: None,
            burn: self.windows.iter().map(|w| (*w, None)).collect(),
            firing: [None; 2],
            pending: [false; 2],
            sight: Sight::Idle,
            coverage: 1.0,
            window_covered: 0.0,
        }
    }

    /// What a series had counted when the SLO's window began.
    pub fn base(&self, series: &Series, tick: u64) -> Totals {
        match (&self.frame, &series.period) {
            (Frame::Calendar(_), Some(period)) => period.base,
            (Frame::Calendar(_), None) => series.ring.total,
            (Frame::Rolling(seconds), _) => series.ring.at(before(tick, *seconds)),
        }
    }

    /// Fills in everything about one objective and group, and moves its alerts on.
    pub fn tell(&self, status: &mut Status, objective: usize, series: &Series, alerts: &mut Alerts, eyes: &Eyes<'_>) {
        let Some(objective) = self.slo.objectives.get(objective) else { return };
        let (budgeting, total, tick) = (self.slo.budgeting, &series.ring.total, eyes.tick);
        let within = total.since(&self.base(series, tick));
        status.counters = series.counters;
        (status.valid, status.good, status.excluded) = (within.valid, within.good(), u64::from(within.excluded));
        status.slices = (budgeting != Budgeting::Occurrences).then(|| (u64::from(within.slices), within.bad_slices));
        status.level = within.level(budgeting);
        status.budget_remaining = within.burn_rate(budgeting, objective.target).map(|spent| 1.0 - spent);
        self.look(status, series, eyes);
        // Each window is looked up once; the rows of the policy then read the results.
        let mut seen = [(0, Evidence::default()); MOST_WINDOWS];
        for ((window, rate), kept) in status.burn.iter_mut().zip(&mut seen) {
            let counts = total.since(&series.ring.at(before(tick, *window)));
            *rate = counts.burn_rate(budgeting, objective.target);
            *kept = (*window, Evidence { burn: *rate, valid: counts.valid, bad: counts.bad });
        }
        let rate = status.burn.iter().find(|(w, _)| *w == self.rate_window).and_then(|(_, b)| *b);
        status.exhaustion_s = exhaustion_s(status.budget_remaining, rate, self.frame.longest_s());
        alerts.step(&self.slo.alerting, objective.target, tick, status.sight == Sight::Blind, |seconds| {
            seen.iter().find(|(w, _)| *w == seconds).map_or_else(
                || {
                    let counts = total.since(&series.ring.at(before(tick, seconds)));
                    Evidence { burn: counts.burn_rate(budgeting, objective.target), valid: counts.valid, bad: counts.bad }
                },
                |(_, e)| *e,
            )
        });
        status.firing = alerts.firing;
        status.pending = alerts.pending(&self.slo.alerting);
    }

    /// Fills in what there was to see.
    pub fn look(&self, status: &mut Status, series: &Series, eyes: &Eyes<'_>) {
        let from = before(eyes.tick, self.shortest);
        let counts = series.ring.total.since(&series.ring.at(from));
        let unseen_then = eyes.unseen.at(from);
        let of_traffic = traffic_seen(&counts, eyes.unseen.total.lost - unseen_then.lost);
        let share = |window_s: u64, blind: u64, born: u64| {
            let window = (window_s * SECOND).min(eyes.tick.saturating_sub(born)).max(1);
            1.0 - (blind as f64 / window as f64).min(1.0)
        };
        let born = eyes.unseen.born();
        status.coverage = of_traffic * share(self.shortest, eyes.unseen.total.blind - unseen_then.blind, born);
        let window_s = self.frame.longest_s();
        let start = match series.period {
            Some(p) => eyes.tick.saturating_sub(p.end.saturating_sub(((p.end_s - p.start_s).max(0) as u64).saturating_mul(SECOND))),
            None => window_s.saturating_mul(SECOND),
        };
        let length = start.max(1);
        let alive = length.min(eyes.tick.saturating_sub(series.ring.born()));
        let blind = eyes.unseen.total.blind - eyes.unseen.at(eyes.tick.saturating_sub(alive)).blind;
        status.window_covered = (alive.saturating_sub(blind) as f64 / length as f64).min(1.0);
        status.sight = if eyes.blind || status.coverage < self.slo.alerting.coverage_floor {
            Sight::Blind
        } else if counts.valid == 0 && counts.excluded == 0 {
            Sight::Idle
        } else {
            Sight::Observed
        };
    }
}

/// Windows whose counts are kept while a status is told; a policy with more looks the others up again.
const MOST_WINDOWS: usize = 12;

/// Share of the traffic of a window that was seen: of what was valid, excluded or, not known of which SLO, `lost`.
pub fn traffic_seen(counts: &Totals, lost: u64) -> f64 {
    let unseen = lost + u64::from(counts.excluded);
    if unseen < NOISE { 1.0 } else { counts.valid as f64 / (counts.valid + unseen) as f64 }
}

/// The instant so many seconds before.
fn before(tick: u64, seconds: u64) -> u64 {
    tick.saturating_sub(seconds.saturating_mul(SECOND))
}
