//! Unit tests of the generated rules, for `promtool test rules`: the scenarios of `slo.md` §3.2 and §7, scaled to each objective.
//!
//! What is expected is computed here by counting events, not by PromQL. Where a range's end falls on a sample, Prometheus 2 counts
//! one sample more than Prometheus 3: a minute at which the two would differ is not asserted.

use std::collections::BTreeMap;

use serde::Serialize;
use tokengauge_core::semconv::{metric, prometheus_name};

use super::Of;
use super::alert::{self, Burn};
use super::record::RAW_S;
use crate::model::Slo;

/// A test file.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct TestFile {
    rule_files: Vec<String>,
    evaluation_interval: String,
    tests: Vec<Test>,
}

#[derive(Serialize, Clone, PartialEq, Debug)]
struct Test {
    name: String,
    interval: String,
    input_series: Vec<Input>,
    alert_rule_test: Vec<Expected>,
}

#[derive(Serialize, Clone, PartialEq, Debug)]
struct Input {
    series: String,
    values: String,
}

#[derive(Serialize, Clone, PartialEq, Debug)]
struct Expected {
    eval_time: String,
    alertname: String,
    exp_alerts: Vec<Firing>,
}

#[derive(Serialize, Clone, PartialEq, Debug)]
struct Firing {
    exp_labels: BTreeMap<String, String>,
    exp_annotations: BTreeMap<String, String>,
}

/// What happens, minute by minute, from the first error on.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// In words.
    pub name: &'static str,
    /// Minutes of clean traffic before the first error: as in the table, more than the longest usual window of three days, or to save
    /// time only more than the longest window of a page.
    pub clean_min: usize,
    /// One request each so many minutes; 0 is 6,000 in each minute.
    pub every_min: usize,
    /// How many minutes and which share of the requests fails, in budgets; infinity is all of them.
    pub phases: &'static [(usize, f64)],
    /// Only so many requests fail in all.
    pub only: Option<u64>,
    /// Minutes that are looked at.
    pub minutes: usize,
}

/// The scenarios of `slo.md` §3.2 whose course promtool can tell.
pub const CASES: [Case; 10] = [
    Case { name: "everything fails for 2 h", clean_min: 4330, every_min: 0, phases: &[(120, f64::INFINITY)], only: None, minutes: 300 },
    Case { name: "20 budgets for 6 h", clean_min: 400, every_min: 0, phases: &[(360, 20.0)], only: None, minutes: 500 },
    Case { name: "10 budgets for 12 h", clean_min: 400, every_min: 0, phases: &[(720, 10.0)], only: None, minutes: 900 },
    Case { name: "4 budgets for 9 h", clean_min: 400, every_min: 0, phases: &[(540, 4.0)], only: None, minutes: 600 },
    Case { name: "2 budgets for 9 h", clean_min: 400, every_min: 0, phases: &[(540, 2.0)], only: None, minutes: 600 },
    Case { name: "half a budget for 9 h", clean_min: 400, every_min: 0, phases: &[(540, 0.5)], only: None, minutes: 600 },
    Case { name: "everything fails for a minute", clean_min: 400, every_min: 0, phases: &[(1, f64::INFINITY)], only: None, minutes: 60 },
    Case { name: "everything fails for 10 min", clean_min: 400, every_min: 0, phases: &[(10, f64::INFINITY)], only: None, minutes: 120 },
    Case {
        name: "10 requests an hour, one fails",
        clean_min: 400,
        every_min: 6,
        phases: &[(1, f64::INFINITY)],
        only: Some(1),
        minutes: 240,
    },
    Case {
        name: "10 requests an hour, all fail for 6 h",
        clean_min: 400,
        every_min: 6,
        phases: &[(360, f64::INFINITY)],
        only: None,
        minutes: 480,
    },
];

/// Tests of the burn-rate alerts of these SLOs, whose rules are in `rule_file`. Only objectives that count occurrences: slices depend on
/// when rules are evaluated.
pub fn tests(slos: &[Slo], rule_file: &str) -> TestFile {
    let mut tests = Vec::new();
    for slo in slos.iter().filter(|s| s.budgeting == crate::model::Budgeting::Occurrences && s.group_by.is_none()) {
        for objective in &slo.objectives {
            let of = Of::new(slo, objective);
            tests.extend(CASES.iter().map(|case| test(&of, case)));
        }
    }
    TestFile { rule_files: vec![rule_file.into()], evaluation_interval: "1m".into(), tests }
}

fn test(of: &Of<'_>, case: &Case) -> Test {
    let traffic = Traffic::new(case, of.budget());
    let labels = of.matcher();
    let input = |of, increments: &[u64]| Input { series: prometheus_name(&of) + &labels, values: notation(increments) };
    let good: Vec<_> = traffic.valid.iter().zip(&traffic.bad).map(|(v, b)| v - b).collect();
    let present = vec![0; traffic.valid.len()];
    Test {
        name: format!("{}: {}", of.id, case.name),
        interval: "1m".into(),
        input_series: vec![
            input(metric::SLO_VALID, &traffic.valid),
            input(metric::SLO_GOOD, &good),
            input(metric::SLO_EXCLUDED, &present),
            input(metric::SLO_OBJECTIVE, &present),
        ],
        alert_rule_test: asserted(of, case, &traffic),
    }
}

/// Requests by minute.
struct Traffic {
    valid: Vec<u64>,
    bad: Vec<u64>,
}

impl Traffic {
    fn new(case: &Case, budget: f64) -> Self {
        let (mut valid, mut bad) = (Vec::new(), Vec::new());
        let (mut failed, mut owed) = (0, 0.0);
        for minute in 0..case.clean_min + case.minutes {
            let requests = match case.every_min {
                0 => 6000,
                n => u64::from(minute % n == case.clean_min % n),
            };
            let mut behind = minute.checked_sub(case.clean_min);
            let phase = case.phases.iter().find(|(length, _)| match behind {
                Some(m) if m < *length => true,
                Some(m) => {
                    behind = Some(m - length);
                    false
                }
                None => false,
            });
            let share = phase.map_or(0.0, |(_, budgets)| (budgets * budget).min(1.0));
            owed += requests as f64 * share;
            let fails = (owed.floor() as u64).min(requests).min(case.only.map_or(u64::MAX, |n| n - failed));
            owed -= fails as f64;
            failed += fails;
            valid.push(requests);
            bad.push(fails);
        }
        Self { valid, bad }
    }
}

/// Prefix sums of both counters.
struct Sums {
    valid: Vec<u64>,
    bad: Vec<u64>,
}

impl Sums {
    fn new(traffic: &Traffic) -> Self {
        let sums = |of: &[u64]| {
            let mut sum = 0;
            std::iter::once(0)
                .chain(of.iter().map(|n| {
                    sum += n;
                    sum
                }))
                .collect()
        };
        Self { valid: sums(&traffic.valid), bad: sums(&traffic.bad) }
    }

    /// Both over a window as the rules see them, when a range holds `less` samples less. The longer ones are made of five-minute rates.
    fn seen(&self, at: usize, seconds: u64, less: usize) -> (f64, f64) {
        let minutes = (seconds / 60) as usize;
        let stretched = |at: usize, minutes: usize| {
            let stretch = minutes as f64 / (minutes - less) as f64;
            let (valid, bad) = self.over(at, minutes - less);
            (valid * stretch, bad * stretch)
        };
        if seconds <= RAW_S {
            return stretched(at, minutes);
        }
        let samples = (minutes + 1 - less).min(at + 1);
        let rates = (0..samples).map(|n| stretched(at - n, 5));
        let (valid, bad) = rates.fold((0.0, 0.0), |sum, rate| (sum.0 + rate.0, sum.1 + rate.1));
        let per_sample = minutes as f64 / samples as f64 / 5.0;
        (valid * per_sample, bad * per_sample)
    }

    /// Both over the last `minutes` up to and with `at`.
    fn over(&self, at: usize, minutes: usize) -> (f64, f64) {
        let from = (at + 1).saturating_sub(minutes);
        ((self.valid[at + 1] - self.valid[from]) as f64, (self.bad[at + 1] - self.bad[from]) as f64)
    }
}

/// When each alert fires, and nothing where that depends on how a range is counted.
fn asserted(of: &Of<'_>, case: &Case, traffic: &Traffic) -> Vec<Expected> {
    let sums = Sums::new(traffic);
    let burns = alert::burns(of);
    let mut states: Vec<Vec<Option<bool>>> = Vec::new();
    for burn in &burns {
        let ways = [(0, 0.995), (0, 1.005), (1, 0.995), (1, 1.005)].map(|way| course(of, burn, &sums, case, way));
        states.push((0..case.minutes).map(|m| ways.iter().all(|w| w[m] == ways[0][m]).then_some(ways[0][m])).collect());
    }
    let known = |minute: usize| states.iter().all(|s| s[minute].is_some());
    let mut out = Vec::new();
    for minute in (0..case.minutes).filter(|m| known(*m)) {
        let neighbour = |n: Option<usize>| n.filter(|n| *n < case.minutes).is_none_or(|n| states.iter().any(|s| s[n] != s[minute]));
        if !neighbour(minute.checked_sub(1)) && !neighbour(Some(minute + 1)) {
            continue;
        }
        let fires = burns.iter().zip(&states).filter(|(_, s)| s[minute] == Some(true));
        let firing = fires.map(|(burn, _)| firing(of, burn)).collect();
        out.push(Expected { eval_time: format!("{}m", case.clean_min + minute), alertname: alert::name::BURN.into(), exp_alerts: firing });
    }
    out
}

/// An alert as it is expected.
fn firing(of: &Of<'_>, burn: &Burn<'_>) -> Firing {
    let mut labels = burn.alert.labels.clone();
    labels.extend(of.names().map(|(label, name)| (label, name.to_owned())));
    Firing { exp_labels: labels, exp_annotations: burn.alert.annotations.clone() }
}

/// Whether an alert fires, minute by minute, when a range holds `less` samples less and every limit is `scale` times what it is: what is
/// on the limit depends on rounding.
fn course(of: &Of<'_>, burn: &Burn<'_>, sums: &Sums, case: &Case, (less, scale): (usize, f64)) -> Vec<bool> {
    let mut since = None;
    let mut fires = Vec::new();
    for minute in 0..case.minutes {
        let at = case.clean_min + minute;
        let active = burn.rows.iter().any(|row| {
            let window = |seconds| sums.seen(at, seconds, less);
            let ((valid, bad), (short_valid, short_bad)) = (window(row.long_s), window(row.short_s));
            let limit = row.reachable(of.objective.target) * of.budget() * scale;
            let burns = |bad: f64, valid: f64| valid > 0.0 && bad / valid > limit;
            let enough = |n: f64, least: u64| least <= 1 || n > least as f64 - 0.5;
            let alerting = &of.slo.alerting;
            burns(short_bad, short_valid) && burns(bad, valid) && enough(valid, alerting.min_events) && enough(bad, alerting.min_bad_events)
        });
        since = active.then(|| since.unwrap_or(minute));
        fires.push(since.is_some_and(|since| (minute - since) as u64 * 60 >= burn.wait_s));
    }
    fires
}

/// promtool's expanding notation of a counter that grows by these increments: `0+5x2` is 0 5 10.
fn notation(increments: &[u64]) -> String {
    let mut out = String::from("0");
    let (mut value, mut n) = (0, 0);
    // The first sample is the counter as it is written when the objective is loaded; what came in minute 0 is in it.
    while n < increments.len() {
        let step = increments[n];
        let run = increments[n..].iter().take_while(|i| **i == step).count();
        let more = if n == 0 { run - 1 } else { run };
        if n == 0 {
            value = step;
            out = format!("{value}+{step}x{more}");
        } else {
            out += &format!(" {}+{step}x{}", value + step, more - 1);
        }
        value += step * more as u64;
        n += run;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters() {
        assert_eq!(notation(&[5, 5, 5, 0, 0, 2, 5]), "5+5x2 15+0x1 17+2x0 22+5x0");
        assert_eq!(notation(&[0]), "0+0x0");
    }
}
