//! Recording rules: error ratios over each window, and what dashboards ask of an SLO.

use std::collections::BTreeMap;

use tokengauge_core::semconv::{attr, metric};

use super::{Of, Rule, label, number};
use crate::model::{Budgeting, Window};
use crate::window::window_name;

/// Names of the records that are ours, beside Sloth's.
pub(crate) const VALID_RATE: &str = "tokengauge:slo_valid:rate5m";
pub(crate) const BAD_RATE: &str = "tokengauge:slo_bad:rate5m";
/// The longest window that is read from the counters themselves.
pub(crate) const RAW_S: u64 = 3600;
/// Of the two slice methods: what share of the present slice is bad.
pub(crate) const SLICE_ERROR: &str = "tokengauge:slo_slice_error:ratio";

/// The name of the error ratio over a window.
pub(crate) fn error_ratio(window_s: u64) -> String {
    format!("slo:sli_error:ratio_rate{}", window_name(window_s))
}

/// Error ratios by window.
pub(crate) fn sli(of: &Of<'_>) -> Vec<Rule> {
    let mut rules =
        vec![record(VALID_RATE, of.sum("rate", metric::SLO_VALID, 300), of.labels()), record(BAD_RATE, of.bad("rate", 300), of.labels())];
    let slice = of.objective.time_slice_window_s.unwrap_or(60);
    if of.slo.budgeting != Budgeting::Occurrences {
        let ratio = format!("{}\n/\n({} > 0)", of.bad("rate", slice.max(60)), of.sum("rate", metric::SLO_VALID, slice.max(60)));
        let error = match of.slo.budgeting {
            // A slice is bad when its ratio does not reach the slice's target.
            Budgeting::Timeslices => format!("({ratio})\n> bool {}", number(1.0 - of.objective.time_slice_target.unwrap_or(0.0))),
            _ => ratio,
        };
        rules.push(record(SLICE_ERROR, error, of.labels()));
    }
    for window in of.windows() {
        let labels = with(of.labels(), "sloth_window", &window_name(window));
        rules.push(record(&error_ratio(window), over(of, window), labels));
    }
    if let Window::Rolling { seconds } = of.slo.window {
        rules.push(record(&error_ratio(seconds), over(of, seconds), with(of.labels(), "sloth_window", &window_name(seconds))));
    }
    rules
}

/// The error ratio over a window. Beyond an hour it is made of the recorded five-minute rates, each with its traffic: they are one series
/// where the counters are two for each node, and days of those are slow to read.
fn over(of: &Of<'_>, window_s: u64) -> String {
    let (recorded, window) = (of.recorded(), window_name(window_s));
    match of.slo.budgeting {
        Budgeting::Occurrences if window_s <= RAW_S => {
            format!("{}\n/\n({} > 0)", of.bad("rate", window_s), of.sum("rate", metric::SLO_VALID, window_s))
        }
        Budgeting::Occurrences => {
            format!("sum_over_time({BAD_RATE}{recorded}[{window}])\n/\n(sum_over_time({VALID_RATE}{recorded}[{window}]) > 0)")
        }
        _ => format!("avg_over_time({SLICE_ERROR}{recorded}[{window}])"),
    }
}

/// How many requests there were over a window, and how many of them were bad.
pub(crate) fn events(of: &Of<'_>, bad: bool, window_s: u64) -> String {
    let record = if bad { BAD_RATE } else { VALID_RATE };
    match (window_s <= RAW_S, bad) {
        (true, true) => of.bad("increase", window_s),
        (true, false) => of.sum("increase", metric::SLO_VALID, window_s),
        (false, _) => {
            let by = format!("sum by ({})", of.by());
            format!("{by} (avg_over_time({record}{}[{}]) * {window_s})", of.recorded(), window_name(window_s))
        }
    }
}

/// Constants of an objective, and its present state.
pub(crate) fn meta(of: &Of<'_>) -> Vec<Rule> {
    let (labels, recorded) = (of.labels(), of.recorded());
    let vector = |x: f64| format!("vector({})", number(x));
    let mut rules = vec![
        record("slo:objective:ratio", vector(of.objective.target), labels.clone()),
        record("slo:error_budget:ratio", vector(of.budget()), labels.clone()),
    ];
    let over_budget = |ratio: String| {
        format!("{ratio}{recorded}\n/ on (sloth_id, sloth_service, sloth_slo) group_left\nslo:error_budget:ratio{recorded}")
    };
    rules.push(record("slo:current_burn_rate:ratio", over_budget(error_ratio(300)), labels.clone()));
    // A calendar period has no PromQL: the agents' own gauges say what is left of it.
    if let Window::Rolling { seconds } = of.slo.window {
        rules.push(record("slo:time_period:days", vector(seconds as f64 / 86_400.0), labels.clone()));
        rules.push(record("slo:period_burn_rate:ratio", over_budget(error_ratio(seconds)), labels.clone()));
        rules.push(record("slo:period_error_budget_remaining:ratio", format!("1 - slo:period_burn_rate:ratio{recorded}"), labels.clone()));
    }
    let mut info = labels;
    info.insert("sloth_mode".into(), "tokengauge".into());
    info.insert("sloth_spec".into(), "openslo/v1".into());
    info.insert("sloth_version".into(), env!("CARGO_PKG_VERSION").into());
    info.insert("sloth_objective".into(), number(of.objective.target * 100.0));
    info.insert(label(attr::SLO_NAME), of.slo.name.clone());
    info.insert(label(attr::SLO_OBJECTIVE_NAME), of.objective.name.clone());
    rules.push(record("sloth_slo_info", "vector(1)".into(), info));
    rules
}

fn with(mut labels: BTreeMap<String, String>, key: &str, value: &str) -> BTreeMap<String, String> {
    labels.insert(key.into(), value.into());
    labels
}

fn record(record: &str, expr: String, labels: BTreeMap<String, String>) -> Rule {
    Rule::Record { record: record.into(), expr, labels }
}
