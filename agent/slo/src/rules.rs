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
use tokengauge_core::semconv::{Metric, attr, metric, prometheus_name};

use crate::decimal::decimal;
use crate::model::{Objective, Slo};
use crate::window::window_name;

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
    Alert(Alert),
}

/// A rule that fires.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Alert {
    /// Its name.
    pub alert: String,
    /// PromQL.
    pub expr: String,
    /// How long it must hold before.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// Labels, `severity` among them.
    pub labels: BTreeMap<String, String>,
    /// `summary`, `description`, `runbook_url`.
    pub annotations: BTreeMap<String, String>,
}

/// The label under which an attribute reaches Prometheus (`UnderscoreEscapingWithSuffixes`, `semconv.md` §7).
fn label(attribute: &str) -> String {
    attribute.replace('.', "_")
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

    /// The labels that name it.
    fn names(&self) -> [(String, &'a str); 3] {
        let names =
            [(attr::SLO_NAME, &self.slo.name), (attr::SLO_SERVICE, &self.slo.service), (attr::SLO_OBJECTIVE_NAME, &self.objective.name)];
        names.map(|(attribute, name)| (label(attribute), name.as_str()))
    }

    /// Labels by which the agents' series add up.
    fn by(&self) -> String {
        let groups = self.slo.group_by.iter().flat_map(|g| &g.by);
        let named = self.names().map(|(label, _)| label).into_iter();
        let labels: Vec<_> = named.chain(groups.map(|d| format!("{}{}", label(attr::SLO_GROUP_PREFIX), d.attribute()))).collect();
        labels.join(", ")
    }

    /// Which of the agents' series.
    fn matcher(&self) -> String {
        format!("{{{}}}", self.names().map(|(label, name)| format!("{label}={}", quoted(name))).join(", "))
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
    fn sum(&self, function: &str, of: Metric, window_s: u64) -> String {
        format!("sum by ({}) ({function}({}{}[{}]))", self.by(), prometheus_name(&of), self.matcher(), window_name(window_s))
    }

    /// As [`Of::sum`], of the bad ones. A counter that has not been good yet is 0, not absent: the agent writes both from the start.
    fn bad(&self, function: &str, window_s: u64) -> String {
        format!("({} - {})", self.sum(function, metric::SLO_VALID, window_s), self.sum(function, metric::SLO_GOOD, window_s))
    }

    /// Every window that something asks for, in seconds, sorted.
    fn windows(&self) -> Vec<u64> {
        let mut windows: Vec<_> = self.slo.alerting.rows.iter().flat_map(|r| [r.short_s, r.long_s]).chain([300]).collect();
        windows.sort_unstable();
        windows.dedup();
        windows
    }
}

/// A number, exact to more digits than any objective has.
pub(crate) fn number(x: f64) -> String {
    decimal(x, 12)
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
