//! Prometheus rules of an SLO: what pages a whole service, of which each agent sees a slice.
//!
//! Ratios of nodes do not add up, counters do (`slo.md` §1): every rule begins with `sum by (…) (rate(…))` of the agents' two
//! counters. Record names and the `sloth_*` labels are Sloth's, so that its dashboards light up; what differs from Sloth on purpose:
//!
//! - nothing is recorded where there is no traffic, instead of NaN;
//! - the level over the whole window weighs by traffic (Sloth's default is the mean of five-minute ratios);
//! - alerts need a minimum of events and of bad events in the long window;
//! - a page that was ringing when its series vanished keeps ringing under another name, and coverage has an alert of its own.

pub mod alert;
pub mod promtool;
mod record;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::{Objective, Slo};

/// A rule file, or the `spec` of a `PrometheusRule`.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct RuleFile {
    /// Evaluated each in its own order.
    pub groups: Vec<Group>,
}

/// A group of rules: evaluated one after the other at one instant.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Group {
    /// Unique in its file.
    pub name: String,
    /// In the order in which they need each other.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Serialize, Clone, PartialEq, Debug)]
#[serde(untagged)]
pub enum Rule {
    /// Keeps the value of an expression as a series.
    Record {
        /// The series.
        record: String,
        /// PromQL.
        expr: String,
        /// Labels beside those of the expression.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        labels: BTreeMap<String, String>,
    },
    /// Fires while an expression has a value.
    Alert {
        /// Its name.
        alert: String,
        /// PromQL.
        expr: String,
        /// How long it must hold before.
        #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
        hold: Option<String>,
        /// Labels, `severity` among them.
        labels: BTreeMap<String, String>,
        /// `summary`, `description`, `runbook_url`.
        annotations: BTreeMap<String, String>,
    },
}

/// The labels under which the agents' counters reach Prometheus (`UnderscoreEscapingWithSuffixes`, `semconv.md` §7).
pub mod label {
    /// Name of the SLO.
    pub const SLO: &str = "tokengauge_slo_name";
    /// Its service.
    pub const SERVICE: &str = "tokengauge_slo_service";
    /// Name of the objective.
    pub const OBJECTIVE: &str = "tokengauge_slo_objective_name";
    /// Before the name of a dimension of a grouped SLO.
    pub const GROUP: &str = "tokengauge_slo_group_";
}

/// The agents' series.
pub mod series {
    /// Requests that count.
    pub const VALID: &str = "tokengauge_slo_events_valid_total";
    /// Those of them that were good.
    pub const GOOD: &str = "tokengauge_slo_events_good_total";
    /// Those that could not be judged.
    pub const EXCLUDED: &str = "tokengauge_slo_events_excluded_total";
    /// There as long as an agent watches the objective.
    pub const OBJECTIVE: &str = "tokengauge_slo_objective_ratio";
}

/// Where the runbooks are.
pub const RUNBOOKS: &str = "https://github.com/tokengauge/tokengauge/blob/main/helm/tokengauge/runbooks";

/// The rules of these SLOs.
pub fn rules(slos: &[Slo]) -> RuleFile {
    let mut groups = Vec::new();
    for slo in slos {
        for objective in &slo.objectives {
            let of = Of::new(slo, objective);
            // One group: its rules are evaluated in order at one instant, so that no alert lags behind its records.
            let rules = [record::sli(&of), record::meta(&of), alert::all(&of)].concat();
            groups.push(Group { name: format!("tokengauge-slo-{}", of.id), rules });
        }
    }
    RuleFile { groups }
}

/// An objective and how the rules call it.
pub(crate) struct Of<'a> {
    pub slo: &'a Slo,
    pub objective: &'a Objective,
    /// `sloth_id`: unique.
    pub id: String,
    /// `sloth_slo`.
    pub short: String,
}

impl<'a> Of<'a> {
    fn new(slo: &'a Slo, objective: &'a Objective) -> Self {
        let short = if slo.objectives.len() == 1 { slo.name.clone() } else { format!("{}-{}", slo.name, slug(&objective.name)) };
        Self { slo, objective, id: format!("{}-{short}", slo.service), short }
    }

    /// The share that may fail.
    fn budget(&self) -> f64 {
        1.0 - self.objective.target
    }

    /// Labels by which the agents' series add up.
    fn by(&self) -> String {
        let mut labels = vec![label::SLO.to_owned(), label::SERVICE.to_owned(), label::OBJECTIVE.to_owned()];
        labels.extend(self.slo.group_by.iter().flat_map(|g| &g.by).map(|d| format!("{}{}", label::GROUP, d.attribute())));
        labels.join(", ")
    }

    /// Which of the agents' series.
    fn matcher(&self) -> String {
        let (slo, service, objective) = (quoted(&self.slo.name), quoted(&self.slo.service), quoted(&self.objective.name));
        format!("{{{}={slo}, {}={service}, {}={objective}}}", label::SLO, label::SERVICE, label::OBJECTIVE)
    }

    /// Which of the recorded series.
    fn recorded(&self) -> String {
        format!("{{sloth_id={}}}", quoted(&self.id))
    }

    /// `sloth_*` labels, and those of the SLO's metadata that Prometheus can take.
    fn labels(&self) -> BTreeMap<String, String> {
        let own = self.slo.labels.iter().filter(|(key, _)| is_label(key)).map(|(k, v)| (k.clone(), v.clone()));
        let sloth = [("sloth_id", &self.id), ("sloth_service", &self.slo.service), ("sloth_slo", &self.short)];
        own.chain(sloth.map(|(k, v)| (k.to_owned(), v.clone()))).collect()
    }

    /// `sum by (…) (function(series[window]))`.
    fn sum(&self, function: &str, series: &str, window_s: u64) -> String {
        format!("sum by ({}) ({function}({series}{}[{}]))", self.by(), self.matcher(), duration(window_s))
    }

    /// As [`Of::sum`], of the bad ones. A counter that has not been good yet is 0, not absent: the agent writes both from the start.
    fn bad(&self, function: &str, window_s: u64) -> String {
        format!("({} - {})", self.sum(function, series::VALID, window_s), self.sum(function, series::GOOD, window_s))
    }

    /// Every window that something asks for, in seconds, sorted.
    fn windows(&self) -> Vec<u64> {
        let mut windows: Vec<_> = self.slo.alerting.rows.iter().flat_map(|r| [r.short_s, r.long_s]).chain([300]).collect();
        windows.sort_unstable();
        windows.dedup();
        windows
    }
}

/// A duration as Prometheus writes it, in one unit where one fits.
pub fn duration(seconds: u64) -> String {
    match seconds {
        s if s > 0 && s % 604_800 == 0 && s > 604_800 * 4 => format!("{}w", s / 604_800),
        s if s > 0 && s % 86_400 == 0 => format!("{}d", s / 86_400),
        s if s > 0 && s % 3600 == 0 => format!("{}h", s / 3600),
        s if s > 0 && s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

/// A number without the noise of binary fractions: 1 − 0.999 is 0.001.
pub(crate) fn number(x: f64) -> String {
    let rounded = format!("{x:.12}");
    let trimmed = rounded.trim_end_matches('0').trim_end_matches('.');
    if trimmed.is_empty() || trimmed == "-" { "0".into() } else { trimmed.into() }
}

/// A PromQL string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\\' | '"' => out.extend(['\\', c]),
            '\n' => out += "\\n",
            c => out.push(c),
        }
    }
    out + "\""
}

/// `99.9%` → `99-9`: what may stand in a group's name.
fn slug(name: &str) -> String {
    let dashed: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let parts: Vec<_> = dashed.split('-').filter(|p| !p.is_empty()).collect();
    parts.join("-")
}

fn is_label(key: &str) -> bool {
    let mut bytes = key.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_') && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AlertRow, Alerting, Budgeting, Dimension, GroupBy, Policy, Selector, Severity, Sli, SliKind, Source, Window};

    fn row(severity: Severity, short_s: u64, long_s: u64, factor: f64) -> AlertRow {
        AlertRow { severity, short_s, long_s, factor, for_s: 0 }
    }

    pub(super) fn slo(target: f64) -> Slo {
        Slo {
            name: "chat".into(),
            display_name: None,
            description: Some("answers come".into()),
            service: "llm".into(),
            labels: BTreeMap::from([("team".into(), "ml".into()), ("not/a label".into(), "x".into())]),
            window: Window::Rolling { seconds: 30 * 86_400 },
            budgeting: Budgeting::Occurrences,
            objectives: vec![Objective {
                name: "99.9%".into(),
                target,
                sli: Sli { selector: Selector::default(), kind: SliKind::Availability, policy: Policy::default(), prices: vec![] },
                weight: 1.0,
                time_slice_target: None,
                time_slice_window_s: None,
            }],
            composite: false,
            group_by: None,
            alerting: Alerting {
                rows: vec![
                    row(Severity::Page, 300, 3600, 14.4),
                    row(Severity::Page, 1800, 21_600, 6.0),
                    row(Severity::Ticket, 7200, 86_400, 3.0),
                    row(Severity::Ticket, 21_600, 259_200, 1.0),
                ],
                min_events: 1,
                min_bad_events: 1,
                coverage_floor: 0.9,
                adapted: vec![],
                runbook_url: None,
            },
            source: Source::default(),
        }
    }

    #[test]
    fn written() {
        let mut grouped = slo(0.95);
        grouped.name = "grouped".into();
        grouped.group_by = Some(GroupBy { by: vec![Dimension::Model, Dimension::InputTokens], limit: 10 });
        grouped.alerting.min_bad_events = 3;
        let all = [slo(0.999), grouped];
        expect_test::expect_file!["rules/golden.yml"].assert_eq(&serde_norway::to_string(&rules(&all)).unwrap());
    }
}
