//! Alerts of an objective: burn rates by severity, and the companions that say when nothing can be said.

use std::collections::BTreeMap;

use tokengauge_core::semconv::{metric, prometheus_name};

use super::record::{error_ratio, events};
use super::{Alert, Of, RUNBOOKS, Rule, number, quoted};
use crate::model::{AlertRow, Severity};
use crate::window::window_name;

/// The names of the alerts. Each has a runbook.
pub mod name {
    /// The budget burns too fast.
    pub const BURN: &str = "TokengaugeErrorBudgetBurn";
    /// A page was firing when the last agent that watches the objective vanished.
    pub const BLIND: &str = "TokengaugeErrorBudgetBurnUnseen";
    /// No agent watches the objective any more.
    pub const UNOBSERVED: &str = "TokengaugeSloUnobserved";
    /// Too many requests could not be judged.
    pub const COVERAGE: &str = "TokengaugeSloCoverageLow";
    /// All of them.
    pub const ALL: [&str; 4] = [BURN, BLIND, UNOBSERVED, COVERAGE];
}

/// How long coverage is looked at: as long as the window that decides whether a page goes on.
const COVERAGE_S: u64 = 1800;

/// Every alert of an objective.
pub(crate) fn all(of: &Of<'_>) -> Vec<Rule> {
    let mut rules: Vec<_> = burns(of).into_iter().map(|b| b.alert).collect();
    if !rules.is_empty() {
        rules.push(unseen(of));
    }
    rules.extend([unobserved(of), coverage(of)]);
    rules.into_iter().map(Rule::Alert).collect()
}

/// A burn-rate alert, and what it is made of.
pub(crate) struct Burn<'a> {
    /// Any of them fires it.
    pub rows: Vec<&'a AlertRow>,
    /// How long it must hold before, in seconds.
    pub wait_s: u64,
    pub alert: Alert,
}

/// The burn-rate alerts: page before ticket.
pub(crate) fn burns<'a>(of: &Of<'a>) -> Vec<Burn<'a>> {
    Severity::ALL.into_iter().flat_map(|severity| burn(of, severity)).collect()
}

/// The burn-rate alerts of a severity: one rule for all rows that need no waiting, one for each that does.
fn burn<'a>(of: &Of<'a>, severity: Severity) -> Vec<Burn<'a>> {
    let rows = of.slo.alerting.rows.iter().filter(|r| r.severity == severity);
    let mut by_wait: BTreeMap<u64, Vec<&'a AlertRow>> = BTreeMap::new();
    for row in rows {
        by_wait.entry(row.for_s).or_default().push(row);
    }
    let share = number(of.objective.target * 100.0);
    let what = format!("{} of {}", of.objective.name, of.slo.name);
    let rule = |(wait_s, rows): (u64, Vec<&'a AlertRow>)| {
        let pairs: Vec<_> = rows
            .iter()
            .map(|r| format!("{}x over {} and {}", number(r.reachable(of.objective.target)), window_name(r.short_s), window_name(r.long_s)))
            .collect();
        let annotations = [
            ("summary", format!("{}: the error budget of {what} burns too fast", of.slo.service)),
            (
                "description",
                format!(
                    "More than {} of the budget of {share} % is being spent; at this rate it will not last the window. {}",
                    pairs.join(", or "),
                    of.slo.description.as_deref().unwrap_or_default()
                )
                .trim_end()
                .to_owned(),
            ),
        ];
        let expr = rows.iter().map(|row| pair(of, row)).collect::<Vec<_>>().join("\nor\n");
        Burn { rows, wait_s, alert: alert(of, name::BURN, expr, wait_s, severity, &annotations) }
    };
    by_wait.into_iter().map(rule).collect()
}

/// Both windows of a row burn faster than its factor, and there is enough to judge by.
fn pair(of: &Of<'_>, row: &AlertRow) -> String {
    let (recorded, by) = (of.recorded(), of.by());
    let limit = format!("({} * {})", number(row.reachable(of.objective.target)), number(of.budget()));
    let over = |window| format!("max by ({by}, sloth_id, sloth_service, sloth_slo) ({}{recorded} > {limit})", error_ratio(window));
    let mut parts = vec![over(row.short_s), over(row.long_s)];
    // Half an event less: `increase` extrapolates, and three events can come out as 2.99.
    let alerting = &of.slo.alerting;
    let enough = |sum: String, least: u64| (least > 1).then(|| format!("{sum} > {}", number(least as f64 - 0.5)));
    parts.extend(enough(events(of, false, row.long_s), alerting.min_events));
    parts.extend(enough(events(of, true, row.long_s), alerting.min_bad_events));
    format!("(\n  {}\n)", parts.join(&format!("\n  and on ({by})\n  ")))
}

/// In rule systems an outage that takes the series with it silences its own page. This one goes on.
fn unseen(of: &Of<'_>) -> Alert {
    let by = of.by();
    let firing = format!(
        "max by ({by}, sloth_id, sloth_service, sloth_slo) (max_over_time(ALERTS{{alertname={}, alertstate=\"firing\", severity=\"page\", sloth_id={}}}[1h]))",
        quoted(name::BURN),
        quoted(&of.id)
    );
    let expr = format!("{firing}\nunless on ({by})\nmax by ({by}) ({}{})", prometheus_name(&metric::SLO_OBJECTIVE), of.matcher());
    let annotations = [
        ("summary", format!("{}: the budget of {} was burning when its last agent vanished", of.slo.service, of.slo.name)),
        ("description", "Whether the outage goes on is not known: no agent reports this objective. Treat the page as firing.".to_owned()),
    ];
    alert(of, name::BLIND, expr, 0, Severity::Page, &annotations)
}

/// The objective is loaded somewhere as long as its series is there, traffic or not: idle is not blind.
fn unobserved(of: &Of<'_>) -> Alert {
    let (by, there) = (of.by(), prometheus_name(&metric::SLO_OBJECTIVE) + &of.matcher());
    let expr = format!("max by ({by}) (present_over_time({there}[1d]))\nunless on ({by})\nmax by ({by}) ({there})");
    let annotations = [
        ("summary", format!("{}: no agent watches {} any more", of.slo.service, of.slo.name)),
        (
            "description",
            "Within the last day an agent reported this objective, now none does. No data is not the same as no errors.".to_owned(),
        ),
    ];
    alert(of, name::UNOBSERVED, expr, 600, Severity::Ticket, &annotations)
}

/// Requests that were seen and could not be judged.
fn coverage(of: &Of<'_>) -> Alert {
    let (excluded, valid) = (of.sum("rate", metric::SLO_EXCLUDED, COVERAGE_S), of.sum("rate", metric::SLO_VALID, COVERAGE_S));
    let missing = 1.0 - of.slo.alerting.coverage_floor;
    let expr = format!("{excluded}\n/\n(({excluded} + {valid}) > 0)\n> {}", number(missing));
    let annotations = [
        ("summary", format!("{}: too much of {} cannot be judged", of.slo.service, of.slo.name)),
        (
            "description",
            format!(
                "Capture lost parts of more than {} % of the requests over {}. Burn rates say little now.",
                number(missing * 100.0),
                window_name(COVERAGE_S)
            ),
        ),
    ];
    alert(of, name::COVERAGE, expr, 600, Severity::Ticket, &annotations)
}

fn alert(of: &Of<'_>, alert: &str, expr: String, wait_s: u64, severity: Severity, told: &[(&str, String)]) -> Alert {
    let mut labels = of.labels();
    labels.insert("severity".into(), severity.as_str().into());
    labels.insert("sloth_severity".into(), severity.as_str().into());
    let mut annotations: BTreeMap<_, _> = told.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    let runbook = of.slo.alerting.runbook_url.clone().unwrap_or_else(|| format!("{RUNBOOKS}/{alert}.md"));
    annotations.insert("runbook_url".into(), runbook);
    Alert { alert: alert.into(), expr, hold: (wait_s > 0).then(|| window_name(wait_s)), labels, annotations }
}
