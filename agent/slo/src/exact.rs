//! The same figures as the engine's, from every single event: for recorded traffic, where all of it is known beforehand.
//!
//! Windows are half open and exact to the nanosecond: a request that ended at `t` counts in the window up to `t`, one that ended
//! exactly a window's length before does not. A slice counts from its end on. Alerts go step by step, as the engine's do; what was
//! excluded lowers coverage and can freeze them, time in which nothing was recorded does not (nobody knows whether anyone looked).

use std::collections::BTreeMap;

use crate::alert::{Alerts, Evidence};
use crate::budget::Totals;
use crate::decide::decide;
use crate::groups::{Groups, Labels};
use crate::loaded::{Loaded, traffic_seen};
use crate::model::{Budgeting, Slo, Verdict};
use crate::request::Request;
use crate::ring::SECOND;
use crate::select::selects;
use crate::series::SliceRule;
use crate::window::{Frame, WindowError};

/// One objective (or composite) and group at one instant.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Which objective; `None`: the composite as a whole.
    pub objective: Option<usize>,
    /// The group's values.
    pub group: Labels,
    /// Counts over the SLO's window.
    pub counts: Totals,
    /// The level over the SLO's window; `None` where nothing was valid.
    pub level: Option<f64>,
    /// Share of the budget that is left.
    pub budget_remaining: Option<f64>,
    /// Burn rate of each window of the policy (seconds, rate).
    pub burn: Vec<(u64, Option<f64>)>,
    /// Whether page and ticket fire.
    pub firing: [bool; 2],
    /// Whether what was excluded froze the alerts.
    pub frozen: bool,
}

/// The events of one objective and group, and what they sum up to.
#[derive(Default)]
struct Track {
    events: Vec<(u64, Verdict)>,
    /// After each event.
    sums: Vec<(u64, Totals)>,
    /// After each slice, by its end.
    slices: Vec<(u64, Totals)>,
    alerts: Alerts,
}

/// 5 m, 30 m, 1 h, 2 h, 6 h, 1 d, 3 d.
const USUAL_WINDOWS: [u64; 7] = [300, 1_800, 3_600, 7_200, 21_600, 86_400, 259_200];

/// One SLO over recorded traffic.
pub struct Exact {
    loaded: Loaded,
    /// Over which burn rates are told: those of the alert policy and the usual ones, so that histories of different policies compare.
    windows: Vec<u64>,
    groups: Vec<Groups>,
    /// By objective, then by group.
    tracks: Vec<Vec<Track>>,
    composite: BTreeMap<Labels, Track>,
}

impl Exact {
    /// Nothing recorded yet.
    ///
    /// # Errors
    /// When the SLO's window cannot be used.
    pub fn new(slo: Slo) -> Result<Self, (String, WindowError)> {
        let loaded = Loaded::new(slo)?;
        let groups: Vec<_> = loaded.slo.objectives.iter().map(|_| Groups::new(loaded.slo.group_by.as_ref())).collect();
        let tracks = groups.iter().map(|g| g.labels().iter().map(|_| Track::default()).collect()).collect();
        let mut windows: Vec<_> = loaded.windows.iter().copied().chain(USUAL_WINDOWS).collect();
        windows.sort_unstable();
        windows.dedup();
        Ok(Self { loaded, windows, groups, tracks, composite: BTreeMap::new() })
    }

    /// Its definition.
    pub fn slo(&self) -> &Slo {
        &self.loaded.slo
    }

    /// A request that ended at `end` (nanoseconds since the Unix epoch), in any order.
    pub fn add(&mut self, request: &Request<'_>, end: u64) {
        for ((objective, groups), tracks) in self.loaded.slo.objectives.iter().zip(&mut self.groups).zip(&mut self.tracks) {
            if !selects(&objective.sli.selector, request) {
                continue;
            }
            let place = groups.place(request);
            tracks.resize_with(groups.labels().len(), Track::default);
            if let Some(track) = tracks.get_mut(place) {
                track.events.push((end, decide(&objective.sli, request)));
            }
        }
    }

    /// Everything has been added: sorts and sums up.
    pub fn finish(&mut self) {
        for (objective, tracks) in self.loaded.slo.objectives.iter().zip(&mut self.tracks) {
            let rule = SliceRule::of(self.loaded.slo.budgeting, objective);
            tracks.iter_mut().for_each(|t| t.finish(rule));
        }
        if self.loaded.slo.composite {
            let mut all: BTreeMap<Labels, Track> = BTreeMap::new();
            for (groups, tracks) in self.groups.iter().zip(&self.tracks) {
                for (labels, track) in groups.labels().iter().zip(tracks) {
                    all.entry(labels.clone()).or_default().events.extend(&track.events);
                }
            }
            for (labels, track) in &mut all {
                track.finish(None);
                track.slices = self.composite_slices(labels);
            }
            self.composite = all;
        }
    }

    /// Each objective and group at `t`. Call it with growing instants: alerts have a memory.
    pub fn at(&mut self, t: u64, out: &mut Vec<Line>) {
        let slo = &self.loaded.slo;
        let begin = |seconds: u64| t.saturating_sub(seconds.saturating_mul(SECOND));
        let start = match &self.loaded.frame {
            Frame::Rolling(seconds) => begin(*seconds),
            Frame::Calendar(calendar) => {
                let wall = i64::try_from(t.div_ceil(SECOND)).unwrap_or(i64::MAX);
                u64::try_from(calendar.period(wall).0.max(0)).unwrap_or(0).saturating_mul(SECOND)
            }
        };
        for (number, (objective, (groups, tracks))) in slo.objectives.iter().zip(self.groups.iter().zip(&mut self.tracks)).enumerate() {
            let burn = |counts: &Totals| counts.burn_rate(slo.budgeting, objective.target);
            for (labels, track) in groups.labels().iter().zip(tracks) {
                let mut alerts = std::mem::take(&mut track.alerts);
                let now = track.until(t);
                let within = |from: u64| now.since(&track.until(from));
                let frozen = traffic_seen(&within(begin(self.loaded.shortest)), 0) < slo.alerting.coverage_floor;
                alerts.step(&slo.alerting, objective.target, t, frozen, |seconds| {
                    let counts = within(begin(seconds));
                    Evidence { burn: burn(&counts), valid: counts.valid, bad: counts.bad }
                });
                let counts = within(start);
                out.push(Line {
                    objective: Some(number),
                    group: labels.clone(),
                    counts,
                    level: counts.level(slo.budgeting),
                    budget_remaining: burn(&counts).map(|spent| 1.0 - spent),
                    burn: self.windows.iter().map(|w| (*w, burn(&within(begin(*w))))).collect(),
                    firing: alerts.firing.map(|f| f.is_some()),
                    frozen,
                });
                track.alerts = alerts;
            }
        }
        for (labels, track) in &mut self.composite {
            let mut alerts = std::mem::take(&mut track.alerts);
            let now = track.until(t);
            let within = |from: u64| now.since(&track.until(from));
            let target = slo.objectives.iter().map(|o| o.target).fold(0.0, f64::max);
            let burn = |from: u64| {
                if slo.budgeting != Budgeting::Occurrences {
                    return within(from).burn_rate(slo.budgeting, target);
                }
                let parts = slo.objectives.iter().zip(self.groups.iter().zip(&self.tracks));
                parts
                    .filter_map(|(o, (groups, tracks))| {
                        let part = tracks.get(groups.find(labels)?)?;
                        Some(o.weight * part.until(t).since(&part.until(from)).burn_rate(slo.budgeting, o.target)?)
                    })
                    .fold(None, |sum, b| Some(sum.unwrap_or(0.0) + b))
            };
            let frozen = traffic_seen(&within(begin(self.loaded.shortest)), 0) < slo.alerting.coverage_floor;
            alerts.step(&slo.alerting, target, t, frozen, |seconds| {
                let counts = within(begin(seconds));
                Evidence { burn: burn(begin(seconds)), valid: counts.valid, bad: counts.bad }
            });
            let counts = within(start);
            out.push(Line {
                objective: None,
                group: labels.clone(),
                counts,
                level: counts.level(slo.budgeting),
                budget_remaining: burn(start).map(|spent| 1.0 - spent),
                burn: self.windows.iter().map(|w| (*w, burn(begin(*w)))).collect(),
                firing: alerts.firing.map(|f| f.is_some()),
                frozen,
            });
            track.alerts = alerts;
        }
    }

    /// The slices of all parts of one group together.
    fn composite_slices(&self, labels: &Labels) -> Vec<(u64, Totals)> {
        let slo = &self.loaded.slo;
        let rules: Vec<_> = slo.objectives.iter().filter_map(|o| SliceRule::of(slo.budgeting, o)).collect();
        let Some(length) = rules.iter().map(|r| r.length).max() else { return Vec::new() };
        let mut slices: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for (number, (groups, tracks)) in self.groups.iter().zip(&self.tracks).enumerate() {
            let Some(track) = groups.find(labels).and_then(|at| tracks.get(at)) else { continue };
            for (end, verdict) in track.events.iter().filter(|(_, v)| matches!(v, Verdict::Good | Verdict::Bad)) {
                let parts = slices.entry(end.div_ceil(length) * length).or_insert_with(|| vec![(0, 0); rules.len()]);
                if let Some((valid, bad)) = parts.get_mut(number) {
                    *valid += 1;
                    *bad += u64::from(*verdict == Verdict::Bad);
                }
            }
        }
        let mut sum = Totals::default();
        let badness = |parts: &[(u64, u64)]| -> f64 {
            let each = slo.objectives.iter().zip(&rules).zip(parts).filter(|(_, (valid, _))| *valid > 0);
            let weight = |w: f64| if slo.budgeting == Budgeting::RatioTimeslices { w } else { 1.0 };
            each.map(|((o, rule), (valid, bad))| weight(o.weight) * rule.badness(*valid, *bad)).sum::<f64>().min(1.0)
        };
        slices
            .into_iter()
            .map(|(end, parts)| {
                sum.slices += 1;
                sum.bad_slices += badness(&parts);
                (end, sum)
            })
            .collect()
    }
}

impl Track {
    fn finish(&mut self, rule: Option<SliceRule>) {
        self.events.sort_by_key(|(end, _)| *end);
        let mut sum = Totals::default();
        self.sums = self
            .events
            .iter()
            .map(|(end, verdict)| {
                sum.add(*verdict, 1);
                (*end, sum)
            })
            .collect();
        let Some(rule) = rule else { return };
        let mut sum = Totals::default();
        let valid: Vec<_> = self.events.iter().filter(|(_, v)| matches!(v, Verdict::Good | Verdict::Bad)).collect();
        for slice in valid.chunk_by(|(a, _), (b, _)| rule.end(*a) == rule.end(*b)) {
            let bad = slice.iter().filter(|(_, v)| *v == Verdict::Bad).count();
            sum.slices += 1;
            sum.bad_slices += rule.badness(slice.len() as u64, bad as u64);
            self.slices.push((slice.first().map_or(0, |(end, _)| rule.end(*end)), sum));
        }
    }

    /// The totals of what ended at or before `t`.
    fn until(&self, t: u64) -> Totals {
        let last = |sums: &[(u64, Totals)]| {
            let after = sums.partition_point(|(end, _)| *end <= t);
            after.checked_sub(1).and_then(|i| sums.get(i)).map_or_else(Totals::default, |(_, total)| *total)
        };
        let slices = last(&self.slices);
        Totals { slices: slices.slices, bad_slices: slices.bad_slices, ..last(&self.sums) }
    }
}
