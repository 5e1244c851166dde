//! What is told of one objective and group.

use crate::groups::Labels;
use crate::series::Counters;

/// Whether there was anything to see, and whether it could be seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Sight {
    /// At work, and nothing came within the shortest alert window. No events, budget untouched.
    #[default]
    Idle,
    /// At work, and requests came.
    Observed,
    /// Down, not attached, or losing more than the coverage floor allows. Alerts are frozen.
    Blind,
}

impl Sight {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Observed => "observed",
            Self::Blind => "blind",
        }
    }
}

/// One objective, one group, at one instant.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    /// Which SLO, by its place in the engine's list.
    pub slo: usize,
    /// Which objective of it; `None`: the composite as a whole.
    pub objective: Option<usize>,
    /// The group's values, in the order of `groupBy`.
    pub group: Labels,
    /// Since the series began; only ever grows.
    pub counters: Counters,
    /// Valid events in the SLO's window.
    pub valid: u64,
    /// Good ones among them.
    pub good: u64,
    /// Excluded events in the SLO's window.
    pub excluded: u64,
    /// With the slice methods: finished slices with events in the SLO's window, and the sum of how bad they were.
    pub slices: Option<(u64, f64)>,
    /// The level over the SLO's window; `None` where nothing was valid.
    pub level: Option<f64>,
    /// Share of the error budget that is left; negative when overspent; `None` where nothing was valid.
    pub budget_remaining: Option<f64>,
    /// Seconds until the budget is spent at the rate of the shortest page's long window (1 h by default); `None`: it is not being spent.
    pub exhaustion_s: Option<f64>,
    /// Burn rate of each window of the policy (seconds, rate), shortest first.
    pub burn: Vec<(u64, Option<f64>)>,
    /// Since when page and ticket fire, nanoseconds of the engine's time.
    pub firing: [Option<u64>; 2],
    /// Whether a row of page, of ticket holds but not yet for long enough.
    pub pending: [bool; 2],
    /// Whether there was anything to see.
    pub sight: Sight,
    /// Share of the traffic and time of the shortest alert window that was seen.
    pub coverage: f64,
    /// Share of the SLO's window in which the agent was counting and not blind: below 1 the window is young or has holes.
    pub window_covered: f64,
}
