//! How each objective of a running agent stands: what is exported, and what `slo status` reads from the file beside the journal.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokengauge_slo::engine::Engine;
use tokengauge_slo::series::Counters;
use tokengauge_slo::status::{Sight, Status};
use tokengauge_slo::window::window_name;

/// One objective and group.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct View {
    /// The SLO's name.
    pub slo: String,
    /// Its service.
    pub service: String,
    /// The objective's name; `composite` for a composite as a whole.
    pub objective: String,
    /// Whether it is a composite as a whole.
    pub composite: bool,
    /// The group: dimension and value.
    pub group: BTreeMap<String, String>,
    /// The share of valid requests that must be good.
    pub target: f64,
    /// Length of the SLO's window in seconds; of a calendar window its nominal one.
    pub window_s: u64,
    /// Since the agent first counted it, over all its lives.
    pub total: Count,
    /// Since this process began: what is exported, with the process's start time.
    pub since_start: Count,
    /// Valid requests in the SLO's window.
    pub valid: u64,
    /// Good ones among them.
    pub good: u64,
    /// Those that capture could not see well enough.
    pub excluded: u64,
    /// The level over the SLO's window.
    pub sli: Option<f64>,
    /// Share of the error budget that is left.
    pub error_budget_remaining: Option<f64>,
    /// Seconds until it is spent.
    pub time_to_exhaustion_s: Option<f64>,
    /// By window.
    pub burn_rate: BTreeMap<String, Option<f64>>,
    /// Of page and ticket: `quiet`, `pending`, `firing`.
    pub alerts: [Alert; 2],
    /// `idle`, `observed` or `blind`; while blind, alerts are frozen.
    pub sight: String,
    /// Share of the shortest alert window's traffic and time that was seen.
    pub coverage: f64,
    /// Share of the SLO's window in which the agent was counting.
    pub window_covered: f64,
}

/// Counts that only grow.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Good and bad.
    pub valid: u64,
    /// Good.
    pub good: u64,
    /// Not seen well enough.
    pub excluded: u64,
    /// Nothing that the indicator could judge.
    pub not_applicable: u64,
}

/// The state of one severity.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Alert {
    /// Nothing burns too fast.
    Quiet,
    /// It does, but not yet for long enough.
    Pending,
    /// It fires.
    Firing,
}

/// What tells one view from another: service, SLO, objective (none of a composite as a whole) and the values of the group. Names and not
/// places: files may be read again.
pub type Key = (String, String, Option<String>, Vec<Box<str>>);

/// What tells this status from others.
pub fn key(engine: &Engine, status: &Status) -> Option<Key> {
    let slo = engine.slo(status.slo)?;
    let objective = status.objective.and_then(|o| slo.objectives.get(o)).map(|o| o.name.clone());
    Some((slo.service.clone(), slo.name.clone(), objective, status.group.to_vec()))
}

/// Everything but what was counted before `base`, in words.
pub fn view(engine: &Engine, status: &Status, base: Counters) -> Option<View> {
    let slo = engine.slo(status.slo)?;
    let objective = status.objective.and_then(|o| slo.objectives.get(o));
    let strictest = || slo.objectives.iter().map(|o| o.target).fold(0.0, f64::max);
    let dimensions = slo.group_by.iter().flat_map(|g| &g.by).map(|d| d.attribute().to_owned());
    let alert = |i: usize| match (status.firing.get(i).copied().flatten(), status.pending.get(i)) {
        (Some(_), _) => Alert::Firing,
        (None, Some(true)) => Alert::Pending,
        (None, _) => Alert::Quiet,
    };
    Some(View {
        slo: slo.name.clone(),
        service: slo.service.clone(),
        objective: objective.map_or_else(|| "composite".to_owned(), |o| o.name.clone()),
        composite: objective.is_none(),
        group: dimensions.zip(status.group.iter().map(|v| v.to_string())).collect(),
        target: objective.map_or_else(strictest, |o| o.target),
        window_s: slo.window.nominal_s(),
        total: count(status.counters, Counters::default()),
        since_start: count(status.counters, base),
        valid: status.valid,
        good: status.good,
        excluded: status.excluded,
        sli: status.level,
        error_budget_remaining: status.budget_remaining,
        time_to_exhaustion_s: status.exhaustion_s,
        burn_rate: status.burn.iter().map(|(w, rate)| (window_name(*w), *rate)).collect(),
        alerts: [alert(0), alert(1)],
        sight: status.sight.as_str().to_owned(),
        coverage: status.coverage,
        window_covered: status.window_covered,
    })
}

fn count(now: Counters, base: Counters) -> Count {
    Count {
        valid: now.valid().saturating_sub(base.valid()),
        good: now.good.saturating_sub(base.good),
        excluded: now.excluded.saturating_sub(base.excluded),
        not_applicable: now.not_applicable.saturating_sub(base.not_applicable),
    }
}

impl View {
    /// Whether its alerts are frozen.
    pub fn blind(&self) -> bool {
        self.sight == Sight::Blind.as_str()
    }
}
