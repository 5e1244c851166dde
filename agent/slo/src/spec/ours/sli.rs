//! An OpenSLO indicator whose metric source is ours becomes a [`model::Sli`](crate::model::Sli).

use super::limit::{self, TextError};
use super::tables::SOURCE;
use super::{limit as limits, select};
use crate::model::{Clause, GroupBy, Limit, Measure, Op, Policy, Price, Selector, Sli, SliKind};
use crate::spec::openslo::rules::Part;
use crate::spec::problem::{Class, Problems};
use crate::spec::read::{Manner, join, read};
use crate::spec::shape::Ty;
use crate::yaml::{Node, Pos, Value};

/// The spec of one of our metric sources.
#[derive(Clone, Debug)]
struct Metric {
    name: String,
    pos: Pos,
    path: String,
    clauses: Vec<Clause>,
    unit: f64,
    selector: Selector,
    policy: Option<Policy>,
    prices: Vec<Price>,
    group_by: Option<GroupBy>,
}

/// An indicator and what its metrics group by.
#[derive(Clone, Debug)]
pub struct Indicator {
    /// What is measured.
    pub sli: Sli,
    /// One budget for each value.
    pub group_by: Option<GroupBy>,
}

/// How an objective compares a threshold metric: the comparison, the value, and where it stands.
pub type Threshold = Option<(Op, f64, Pos)>;

/// Reads an indicator's spec. `None` when it is refused; the problems say why.
pub fn indicator(spec: &Part<'_>, threshold: Threshold, problems: &mut Problems<'_>) -> Option<Indicator> {
    let errors = |p: &Problems<'_>| p.list.iter().filter(|p| p.level == crate::spec::problem::Level::Error).count();
    let before = errors(problems);
    let ratio = spec.at("ratioMetric");
    let found = if ratio.node.is_some() {
        if let Some((_, _, pos)) = threshold {
            problems.error(Class::Meaning, pos, &ratio.path, "a ratio metric is not compared with a value: leave `op` and `value` out");
        }
        ratio_metric(&ratio, problems)
    } else {
        threshold_metric(&spec.at("thresholdMetric"), threshold, problems)
    };
    found.filter(|_| errors(problems) == before)
}

fn ratio_metric(ratio: &Part<'_>, problems: &mut Problems<'_>) -> Option<Indicator> {
    let mut named = |key: &str| {
        let part = ratio.at(key);
        part.node?;
        metric(&part.at("metricSource").at("spec"), problems)
    };
    let (good, bad, total, raw) = (named("good"), named("bad"), named("total"), named("raw"));
    let failure = ratio.at("rawType").text() == "failure";
    let (one, bad) = match (good, bad, raw) {
        (Some(good), ..) => (good, false),
        (_, Some(bad), _) => (bad, true),
        (.., Some(raw)) => (raw, failure),
        _ => return None,
    };
    if let Some(total) = &total {
        same(&one, total, problems);
    }
    let group_by = one.group_by.clone().or_else(|| total.as_ref().and_then(|t| t.group_by.clone()));
    let policy = one.policy.or(total.as_ref().and_then(|t| t.policy));
    let prices = if one.prices.is_empty() { total.map(|t| t.prices).unwrap_or_default() } else { one.prices.clone() };
    let kind = kind(&one, bad, problems)?;
    Some(Indicator { sli: finish(kind, one, policy, prices, problems), group_by })
}

/// Good and total must look at the same requests.
fn same(one: &Metric, total: &Metric, problems: &mut Problems<'_>) {
    let mut differs = |what: &str, hint: &str| {
        let message = format!("good (or bad) and total differ in {what}: they must look at the same requests");
        problems.hinted(Class::Meaning, total.pos, &total.path, message, Some(hint.into()));
    };
    if one.name != total.name {
        differs("`sli`", &format!("write `sli: {}` in both", one.name));
    }
    if one.selector.matches != total.selector.matches
        || one.selector.stream != total.selector.stream
        || one.selector.input_tokens_min != total.selector.input_tokens_min
        || one.selector.input_tokens_max != total.selector.input_tokens_max
    {
        differs("`when`", "copy it");
    }
    if one.policy.zip(total.policy).is_some_and(|(a, b)| a != b) {
        differs("`policy`", "say it once");
    }
    if one.group_by.as_ref().zip(total.group_by.as_ref()).is_some_and(|(a, b)| a != b) {
        differs("`groupBy`", "say it once");
    }
    if !total.clauses.is_empty() {
        differs("their limits", "limits belong to good (or bad), never to total");
    }
}

fn kind(metric: &Metric, bad: bool, problems: &mut Problems<'_>) -> Option<SliKind> {
    let mut clauses = metric.clauses.clone();
    match metric.name.as_str() {
        "availability" => Some(SliKind::Availability),
        "goodput" if clauses.is_empty() => {
            problems.error(Class::Meaning, metric.pos, &metric.path, "goodput needs `limits`: what a good request keeps");
            None
        }
        "goodput" if bad => {
            problems.error(Class::Meaning, metric.pos, &metric.path, "goodput counts good requests: use `good`");
            None
        }
        "goodput" => Some(SliKind::Goodput(clauses)),
        name => {
            let Some(mut clause) = clauses.pop() else {
                let hint = if name == "output_speed" { "min: 20" } else { "max: 800ms" };
                let message = format!("{name} needs a limit here: without one nothing is good or bad");
                problems.hinted(Class::Meaning, metric.pos, &metric.path, message, Some(format!("for example `{hint}`")));
                return None;
            };
            if bad {
                // What is bad from 800 ms on is good below it.
                clause.op = match clause.op {
                    Op::Le => Op::Gt,
                    Op::Lt => Op::Ge,
                    Op::Ge => Op::Lt,
                    Op::Gt => Op::Le,
                };
            }
            direction(&clause, metric, bad, problems);
            Some(SliKind::Limit(clause))
        }
    }
}

/// A ceiling on a speed, or a floor under a latency, is a mistake.
fn direction(clause: &Clause, metric: &Metric, bad: bool, problems: &mut Problems<'_>) {
    let floor = matches!(clause.op, Op::Ge | Op::Gt);
    if floor != clause.measure.is_floor() {
        let name = clause.measure.name();
        let right = if clause.measure.is_floor() == bad { "`max` or `below`" } else { "`min` or `above`" };
        let side = if bad { "bad" } else { "good" };
        let message = format!("this calls slow requests good: what is {side} about {name} is told by {right}");
        problems.error(Class::Meaning, metric.pos, &metric.path, message);
    }
}

fn threshold_metric(part: &Part<'_>, threshold: Threshold, problems: &mut Problems<'_>) -> Option<Indicator> {
    let metric = metric(&part.at("metricSource").at("spec"), problems)?;
    let Ok(measure) = limit::measure(&metric.name) else {
        let message = format!("{} is no value that can be compared: use a ratio metric", metric.name);
        problems.error(Class::Meaning, metric.pos, &metric.path, message);
        return None;
    };
    if !metric.clauses.is_empty() {
        let message = "a threshold metric has its limit in the objective (`op`, `value`), not here";
        problems.error(Class::Meaning, metric.pos, &metric.path, message);
    }
    let Some((op, value, pos)) = threshold else {
        problems.error(Class::Meaning, metric.pos, &metric.path, "a threshold metric needs `op` and `value` in each objective");
        return None;
    };
    let value = if measure.is_time() { value * metric.unit } else { value };
    if value <= 0.0 {
        problems.error(Class::Meaning, pos, &metric.path, format!("the objective's `value` must be above 0, found {value}"));
    }
    let clause = Clause { measure, op, limit: Limit::Fixed(value) };
    direction(&clause, &metric, false, problems);
    let (policy, prices, group_by) = (metric.policy, metric.prices.clone(), metric.group_by.clone());
    Some(Indicator { sli: finish(SliKind::Limit(clause), metric, policy, prices, problems), group_by })
}

fn finish(kind: SliKind, metric: Metric, policy: Option<Policy>, prices: Vec<Price>, problems: &mut Problems<'_>) -> Sli {
    needs_prices(&kind, &prices, metric.pos, &metric.path, problems);
    Sli { selector: metric.selector, kind, policy: policy.unwrap_or_default(), prices }
}

/// A cost without prices cannot be told.
pub fn needs_prices(kind: &SliKind, prices: &[Price], pos: Pos, path: &str, problems: &mut Problems<'_>) {
    let cost = match kind {
        SliKind::Availability => false,
        SliKind::Limit(clause) => clause.measure == Measure::Cost,
        SliKind::Goodput(clauses) => clauses.iter().any(|c| c.measure == Measure::Cost),
    };
    if cost && prices.is_empty() {
        problems.error(Class::Meaning, pos, path, "a limit on cost needs `prices`");
    }
}

/// Reads the spec of a metric source.
fn metric(spec: &Part<'_>, problems: &mut Problems<'_>) -> Option<Metric> {
    let mut node = spec.node?.clone();
    let path = spec.path.as_str();
    let before = problems.list.len();
    read(&mut node, &Ty::Object(&SOURCE), path, Manner::Ours, problems);
    if problems.list.len() > before {
        return None;
    }
    let name = node.get("sli").and_then(Node::text)?.to_owned();
    let mut clauses = Vec::new();
    bounds(&node, &name, path, &mut clauses, problems);
    if let Some(limits) = node.get("limits") {
        let path = join(path, "limits");
        if name != "goodput" {
            problems.error(Class::Meaning, limits.pos, &path, "`limits` belongs to `sli: goodput`; one measure has `max` or `min`");
        }
        for entry in limits.entries() {
            let path = join(&path, &entry.key);
            match limit::measure(&entry.key) {
                Ok(measure) if matches!(entry.value.value, Value::Map(_)) => {
                    bounds(&entry.value, measure.name(), &path, &mut clauses, problems)
                }
                Ok(measure) => {
                    let op = if measure.is_floor() { Op::Ge } else { Op::Le };
                    if let Some(limit) = read_limit(measure, &entry.value, &path, problems) {
                        clauses.push(Clause { measure, op, limit });
                    }
                }
                Err(e) => problems.hinted(Class::Meaning, entry.key_pos, &path, e.message, e.hint),
            }
        }
    }
    let part = |key: &str| node.get(key).map(|n| (n, join(path, key)));
    Some(Metric {
        pos: node.pos,
        path: path.to_owned(),
        clauses,
        unit: if node.get("unit").and_then(Node::text) == Some("ms") { 1e-3 } else { 1.0 },
        selector: part("when").map(|(n, p)| select::selector(n, &p, problems)).unwrap_or_default(),
        policy: part("policy").map(|(n, _)| select::policy(n)),
        prices: part("prices").map(|(n, p)| select::prices(n, &p, problems)).unwrap_or_default(),
        group_by: part("groupBy").and_then(|(n, p)| select::group_by(n, &p, problems)),
        name,
    })
}

/// `max`, `min`, `below`, `above` of a map: at most one.
fn bounds(node: &Node, name: &str, path: &str, clauses: &mut Vec<Clause>, problems: &mut Problems<'_>) {
    let ops = [("max", Op::Le), ("min", Op::Ge), ("below", Op::Lt), ("above", Op::Gt)];
    let there: Vec<_> = ops.iter().filter_map(|(key, op)| node.entry(key).map(|e| (e, *op))).collect();
    let Some(((entry, op), rest)) = there.split_first() else { return };
    if let Some((second, _)) = rest.first() {
        problems.error(
            Class::Meaning,
            second.key_pos,
            &join(path, &second.key),
            format!("`{}` is there already: one limit each", entry.key),
        );
        return;
    }
    let path = join(path, &entry.key);
    let Ok(measure) = limit::measure(name) else {
        let message = format!("{name} has no limit of its own");
        let hint = (name == "goodput").then(|| format!("write `limits: {{ttft: {}}}`", entry.value.text().unwrap_or("800ms")));
        problems.hinted(Class::Meaning, entry.key_pos, &path, message, hint);
        return;
    };
    if let Some(limit) = read_limit(measure, &entry.value, &path, problems) {
        clauses.push(Clause { measure, op: *op, limit });
    }
}

/// A limit: a text, a number, `{base, perInputToken}` or `{byInputTokens}`.
pub fn read_limit(measure: Measure, node: &Node, path: &str, problems: &mut Problems<'_>) -> Option<Limit> {
    let mut told = |node: &Node, path: &str, error: TextError| {
        problems.hinted(Class::Meaning, node.inside(error.offset), path, error.message, error.hint);
    };
    if !matches!(node.value, Value::Map(_)) {
        return limits::limit(measure, &scalar(node)).map_err(|e| told(node, path, e)).ok();
    }
    let fixed = |node: &Node| match limits::limit(measure, &scalar(node)) {
        Ok(Limit::Fixed(n)) => Ok(n),
        Ok(_) => Err(TextError { offset: 0, message: "expected one limit, found a sum".into(), hint: None }),
        Err(e) => Err(e),
    };
    match (node.get("base"), node.get("perInputToken"), node.get("byInputTokens")) {
        (Some(base), Some(per), None) if measure.is_time() => {
            let base_s = fixed(base).map_err(|e| told(base, &join(path, "base"), e)).ok()?;
            let text = format!("1s + {}/token", scalar(per));
            match limits::limit(measure, &text) {
                Ok(Limit::PerInputToken { per_token, .. }) => Some(Limit::PerInputToken { base: base_s, per_token }),
                _ => {
                    let message = format!("expected a time such as `0.5ms`, found {}", per.found());
                    problems.error(Class::Meaning, per.pos, &join(path, "perInputToken"), message);
                    None
                }
            }
        }
        (None, None, Some(buckets)) => {
            let path = join(path, "byInputTokens");
            let mut out: Vec<(u64, f64)> = Vec::new();
            for entry in buckets.entries() {
                let path = join(&path, &entry.key);
                let bound = if entry.key == "more" { Some(u64::MAX) } else { entry.key.parse().ok() };
                let Some(bound) = bound else {
                    let message = format!("expected a number of input tokens or `more`, found `{}`", entry.key);
                    problems.error(Class::Meaning, entry.key_pos, &path, message);
                    return None;
                };
                match fixed(&entry.value) {
                    Ok(limit) => out.push((bound, limit)),
                    Err(e) => {
                        problems.hinted(Class::Meaning, entry.value.inside(e.offset), &path, e.message, e.hint);
                        return None;
                    }
                }
            }
            out.sort_by_key(|(bound, _)| *bound);
            if out.is_empty() {
                problems.error(Class::Meaning, buckets.pos, &path, "needs at least one bucket");
                return None;
            }
            Some(Limit::ByInputTokens(out))
        }
        _ => {
            let message = format!("a limit on {} is a value, `{{base, perInputToken}}` (of a time) or `{{byInputTokens}}`", measure.name());
            problems.error(Class::Meaning, node.pos, path, message);
            None
        }
    }
}

fn scalar(node: &Node) -> String {
    match &node.value {
        Value::Text(text) => text.clone(),
        Value::Int(n) => n.to_string(),
        Value::Float(n) => n.to_string(),
        _ => String::new(),
    }
}
