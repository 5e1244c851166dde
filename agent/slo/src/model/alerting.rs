//! When somebody is told.

/// When to page and when to open a ticket.
#[derive(Clone, PartialEq, Debug)]
pub struct Alerting {
    /// An alert of a severity fires when, in one of its rows, both windows burn faster than the row's factor.
    pub rows: Vec<AlertRow>,
    /// Fewer valid events than this in the long window never fire.
    pub min_events: u64,
    /// Fewer bad events than this in the long window never fire.
    pub min_bad_events: u64,
    /// Below this share of traffic seen, alerts freeze (neither fire nor resolve) and a coverage alert fires instead.
    pub coverage_floor: f64,
    /// What was changed because it could never fire, and why. Shown by `validate` and `explain`.
    pub adapted: Vec<String>,
    /// Page, for the runbook annotation.
    pub runbook_url: Option<String>,
}

/// A pair of windows and what fires.
#[derive(Clone, PartialEq, Debug)]
pub struct AlertRow {
    /// How urgent.
    pub severity: Severity,
    /// The short window, seconds.
    pub short_s: u64,
    /// The long window, seconds.
    pub long_s: u64,
    /// Burn rate above which it fires.
    pub factor: f64,
    /// How long it must hold before it fires, seconds. The SRE workbook argues against it: 0 by default.
    pub for_s: u64,
}

/// The share of the highest possible burn rate at which a row fires whose own factor can never be reached.
const REACHABLE: f64 = 0.8;

impl AlertRow {
    /// The factor to compare with for a target. The highest possible burn rate is 1/(1 − target): a factor that reaches it can never
    /// be exceeded, so it becomes 80 % of that, which is when 80 % of all requests are bad.
    pub fn reachable(&self, target: f64) -> f64 {
        let highest = 1.0 / (1.0 - target);
        // `max` is what 1 − 1/n leaves of n: 1/(1 − 0.95) is 19.999999999999982.
        if self.factor < highest * (1.0 - 1e-9) { self.factor } else { ((highest * REACHABLE) * 1e6).round() / 1e6 }
    }
}

/// How urgent an alert is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Wake somebody.
    Page,
    /// Next working day.
    Ticket,
}

impl Severity {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Page, Self::Ticket];

    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Ticket => "ticket",
        }
    }
}
