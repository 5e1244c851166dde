//! The short form as OpenSLO v1: the same objectives, in documents that every tool of OpenSLO accepts.

use std::fmt::Write as _;

use crate::explain;
use crate::model::{
    Alerting, Budgeting, CalendarUnit, Clause, GroupBy, Limit, Objective, Op, Policy, Price, Selector, Severity, Sli, SliKind, Slo,
    Verdict, Window,
};
use crate::spec::Loaded;
use crate::spec::duration::{human, to_shorthand};
use crate::spec::ours::alerting::{self, Choice, PREFIX};
use crate::spec::problem::Problems;

/// Every objective of the short form among `loaded`, as YAML documents of OpenSLO v1.
pub fn convert(loaded: &Loaded) -> String {
    let short = loaded.slos.iter().filter(|s| loaded.short.contains(&s.name));
    short.map(document).collect::<Vec<_>>().join("---\n")
}

/// One objective as a document.
fn document(slo: &Slo) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(slo, &mut out);
    out
}

fn write(slo: &Slo, out: &mut String) -> std::fmt::Result {
    writeln!(out, "apiVersion: openslo/v1\nkind: SLO\nmetadata:\n  name: {}", slo.name)?;
    if let Some(name) = &slo.display_name {
        writeln!(out, "  displayName: {}", quoted(name))?;
    }
    if !slo.labels.is_empty() {
        writeln!(out, "  labels:")?;
        for (key, value) in &slo.labels {
            writeln!(out, "    {}: {}", quoted(key), quoted(value))?;
        }
    }
    let annotations = annotations(slo);
    if !annotations.is_empty() {
        writeln!(out, "  annotations:")?;
        for (key, value) in annotations {
            writeln!(out, "    {PREFIX}{key}: {}", quoted(&value))?;
        }
    }
    writeln!(out, "spec:")?;
    let said = slo.description.clone().or_else(|| slo.objectives.first().map(|o| explain::promise(o, slo)));
    writeln!(out, "  description: {}", quoted(&said.unwrap_or_default().chars().take(1050).collect::<String>()))?;
    writeln!(out, "  service: {}", quoted(&slo.service))?;
    let method = match slo.budgeting {
        Budgeting::Occurrences => "Occurrences",
        Budgeting::Timeslices => "Timeslices",
        Budgeting::RatioTimeslices => "RatioTimeslices",
    };
    writeln!(out, "  budgetingMethod: {method}\n  timeWindow:")?;
    match &slo.window {
        Window::Rolling { seconds } => writeln!(out, "    - duration: {}\n      isRolling: true", to_shorthand(*seconds))?,
        Window::Calendar { count, unit, start, time_zone } => {
            writeln!(out, "    - duration: {count}{}\n      isRolling: false", unit_name(*unit))?;
            writeln!(out, "      calendar:\n        startTime: {}\n        timeZone: {}", quoted(start), quoted(time_zone))?;
        }
    }
    if let Some(objective) = slo.objectives.first() {
        let name: String = slo.name.chars().take(59).collect();
        writeln!(out, "  indicator:\n    metadata:\n      name: {name}-sli\n    spec:\n      ratioMetric:\n        counter: true")?;
        source(&objective.sli, slo.group_by.as_ref(), true, out)?;
        source(&objective.sli, None, false, out)?;
        writeln!(out, "  objectives:")?;
        one(objective, out)?;
    }
    Ok(())
}

fn one(objective: &Objective, out: &mut String) -> std::fmt::Result {
    writeln!(out, "    - displayName: {}\n      target: {}", quoted(&objective.name), objective.target)?;
    if let Some(target) = objective.time_slice_target {
        writeln!(out, "      timeSliceTarget: {target}")?;
    }
    if let Some(seconds) = objective.time_slice_window_s {
        writeln!(out, "      timeSliceWindow: {}", to_shorthand(seconds))?;
    }
    Ok(())
}

fn unit_name(unit: CalendarUnit) -> &'static str {
    match unit {
        CalendarUnit::Minute => "m",
        CalendarUnit::Hour => "h",
        CalendarUnit::Day => "d",
        CalendarUnit::Week => "w",
        CalendarUnit::Month => "M",
        CalendarUnit::Quarter => "Q",
        CalendarUnit::Year => "Y",
    }
}

/// `good:` or `total:`.
fn source(sli: &Sli, group_by: Option<&GroupBy>, good: bool, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "        {}:\n          metricSource:\n            type: tokengauge\n            spec:",
        if good { "good" } else { "total" }
    )?;
    let pad = "              ";
    match &sli.kind {
        SliKind::Availability => writeln!(out, "{pad}sli: availability")?,
        SliKind::Limit(clause) => {
            writeln!(out, "{pad}sli: {}", clause.measure.name())?;
            if good {
                writeln!(out, "{pad}{}: {}", op_key(clause.op), limit(clause))?;
            }
        }
        SliKind::Goodput(clauses) => {
            writeln!(out, "{pad}sli: goodput")?;
            if good {
                writeln!(out, "{pad}limits:")?;
                for clause in clauses {
                    writeln!(out, "{pad}  {}: {{{}: {}}}", clause.measure.name(), op_key(clause.op), limit(clause))?;
                }
            }
        }
    }
    when(&sli.selector, pad, out)?;
    if good {
        policy(&sli.policy, pad, out)?;
        prices(&sli.prices, pad, out)?;
        if let Some(groups) = group_by {
            let by: Vec<&str> = groups.by.iter().map(|d| d.as_str()).collect();
            writeln!(out, "{pad}groupBy: {{by: [{}], limit: {}}}", by.join(", "), groups.limit)?;
        }
    }
    Ok(())
}

fn op_key(op: Op) -> &'static str {
    match op {
        Op::Le => "max",
        Op::Ge => "min",
        Op::Lt => "below",
        Op::Gt => "above",
    }
}

/// A limit as a YAML value.
fn limit(clause: &Clause) -> String {
    let one = |n: f64| if clause.measure.is_time() { time(n) } else { n.to_string() };
    match &clause.limit {
        Limit::Fixed(n) => one(*n),
        Limit::PerInputToken { base, per_token } => format!("{{base: {}, perInputToken: {}}}", time(*base), time(*per_token)),
        Limit::ByInputTokens(buckets) => {
            let bound = |b: u64| if b == u64::MAX { "more".to_owned() } else { b.to_string() };
            let all: Vec<String> = buckets.iter().map(|(b, n)| format!("{}: {}", bound(*b), one(*n))).collect();
            format!("{{byInputTokens: {{{}}}}}", all.join(", "))
        }
    }
}

/// Seconds as text that reads back to the same number.
fn time(seconds: f64) -> String {
    for (unit, scale) in [("s", 1.0), ("ms", 1e3), ("us", 1e6)] {
        let text = format!("{}{unit}", (seconds * scale * 1e9).round() / 1e9);
        if (seconds * scale >= 1.0 || unit == "us") && crate::spec::duration::seconds(&text) == Some(seconds) {
            return text;
        }
    }
    format!("{seconds}s")
}

fn when(selector: &Selector, pad: &str, out: &mut String) -> std::fmt::Result {
    let tokens = selector.input_tokens_min.is_some() || selector.input_tokens_max.is_some();
    if selector.matches.is_empty() && selector.stream.is_none() && !tokens {
        return Ok(());
    }
    writeln!(out, "{pad}when:")?;
    for (dimension, patterns) in &selector.matches {
        let texts: Vec<String> = patterns.iter().map(|p| quoted(&p.to_string())).collect();
        let value = if texts.len() == 1 { texts.concat() } else { format!("[{}]", texts.join(", ")) };
        writeln!(out, "{pad}  {}: {value}", dimension.as_str())?;
    }
    if let Some(stream) = selector.stream {
        writeln!(out, "{pad}  stream: {stream}")?;
    }
    if tokens {
        let bound = |name: &str, n: Option<u64>| n.map(|n| format!("{name}: {n}"));
        let bounds: Vec<String> =
            [bound("min", selector.input_tokens_min), bound("max", selector.input_tokens_max)].into_iter().flatten().collect();
        writeln!(out, "{pad}  inputTokens: {{{}}}", bounds.join(", "))?;
    }
    Ok(())
}

fn policy(policy: &Policy, pad: &str, out: &mut String) -> std::fmt::Result {
    let default = Policy::default();
    let all = [
        ("rateLimited", policy.rate_limited, default.rate_limited),
        ("clientErrors", policy.client_error, default.client_error),
        ("refused", policy.refused, default.refused),
        ("cancelled", policy.cancelled, default.cancelled),
        ("noOutput", policy.no_output, default.no_output),
    ];
    let word = |verdict| match verdict {
        Verdict::Good => "good",
        Verdict::Bad => "bad",
        Verdict::NotApplicable | Verdict::Excluded => "ignore",
    };
    let own: Vec<String> = all.iter().filter(|(_, v, d)| v != d).map(|(key, v, _)| format!("{key}: {}", word(*v))).collect();
    if own.is_empty() { Ok(()) } else { writeln!(out, "{pad}policy: {{{}}}", own.join(", ")) }
}

fn prices(prices: &[Price], pad: &str, out: &mut String) -> std::fmt::Result {
    if prices.is_empty() {
        return Ok(());
    }
    writeln!(out, "{pad}prices:")?;
    for price in prices {
        let cached = price.cached_input.map(|c| format!(", cachedInput: {c}")).unwrap_or_default();
        writeln!(
            out,
            "{pad}  - {{model: {}, input: {}{cached}, output: {}}}",
            quoted(&price.model.to_string()),
            price.input,
            price.output
        )?;
    }
    Ok(())
}

/// Our annotations: what differs from what would be there without them.
fn annotations(slo: &Slo) -> Vec<(&'static str, String)> {
    let targets: Vec<f64> = slo.objectives.iter().map(|o| o.target).collect();
    let mut nothing = Problems::new("");
    let Alerting { rows, min_events, min_bad_events, coverage_floor, runbook_url, .. } = &slo.alerting;
    let default = alerting::resolve(&Choice::default(), Vec::new(), &[], slo.window.nominal_s(), &targets, &mut nothing);
    let mut out = Vec::new();
    if rows.is_empty() {
        out.push(("alert-table", "none".to_owned()));
    } else if *rows != default.rows {
        let row = |r: &crate::model::AlertRow| {
            let severity = match r.severity {
                Severity::Page => "page",
                Severity::Ticket => "ticket",
            };
            let hold = if r.for_s > 0 { format!(" for {}", to_shorthand(r.for_s)) } else { String::new() };
            format!("{severity} {}/{} {}x{hold}", to_shorthand(r.short_s), to_shorthand(r.long_s), r.factor)
        };
        out.push(("alert-rows", rows.iter().map(row).collect::<Vec<_>>().join(", ")));
    }
    if *min_events != default.min_events {
        out.push(("min-events", min_events.to_string()));
    }
    if *min_bad_events != default.min_bad_events {
        out.push(("min-bad-events", min_bad_events.to_string()));
    }
    if coverage_floor.to_bits() != default.coverage_floor.to_bits() {
        out.push(("coverage-floor", coverage_floor.to_string()));
    }
    if let Some(url) = runbook_url {
        out.push(("runbook-url", url.clone()));
    }
    out
}

/// A text as YAML: plain where nobody could misread it, else in JSON's quotes.
fn quoted(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let word = text.chars().all(safe) && text.starts_with(|c: char| c.is_ascii_alphabetic());
    let trap = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"].contains(&text.to_ascii_lowercase().as_str());
    if word && !trap { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// The window in words.
pub(crate) fn window_words(window: &Window) -> String {
    match window {
        Window::Rolling { seconds } => format!("the last {}", human(*seconds as f64)),
        Window::Calendar { count, unit, time_zone, .. } => {
            let unit = match unit {
                CalendarUnit::Minute => "minute",
                CalendarUnit::Hour => "hour",
                CalendarUnit::Day => "day",
                CalendarUnit::Week => "week",
                CalendarUnit::Month => "month",
                CalendarUnit::Quarter => "quarter",
                CalendarUnit::Year => "year",
            };
            if *count == 1 {
                format!("each calendar {unit} ({time_zone})")
            } else {
                format!("every {count} calendar {unit}s ({time_zone})")
            }
        }
    }
}
