//! An objective in plain words and numbers: what is promised, what may fail, and when somebody is told.

use std::fmt::Write as _;

use crate::convert::window_words;
use crate::model::{AlertRow, Budgeting, Clause, Limit, Measure, Objective, Op, Policy, Selector, SliKind, Slo, Verdict};
use crate::spec::duration::human;
use crate::spec::ours::limit::round;
use crate::spec::ours::presets::PRESETS;

/// The longest fault that is looked at, in minutes: what does not fire by then does not fire.
const LONGEST: u64 = 90 * 24 * 60;

/// What an objective promises, in one sentence.
pub fn promise(objective: &Objective, slo: &Slo) -> String {
    let share = percent(objective.target);
    let over = window_words(&slo.window);
    let what = match &objective.sli.kind {
        SliKind::Availability => "are answered".to_owned(),
        SliKind::Limit(clause) => clause_words(clause),
        SliKind::Goodput(clauses) => {
            let all: Vec<String> = clauses.iter().map(clause_words).collect();
            format!("end well and, each by itself, {}", all.join(" and "))
        }
    };
    match slo.budgeting {
        Budgeting::Occurrences => format!("{share} of requests {what}, over {over}"),
        Budgeting::Timeslices => format!(
            "{share} of all slices of {} are good, over {over}; a slice is good when {} of its requests {what}",
            slice(objective),
            percent(objective.time_slice_target.unwrap_or_default()),
        ),
        Budgeting::RatioTimeslices => format!("in the mean of all slices of {}, {share} of requests {what}, over {over}", slice(objective)),
    }
}

fn slice(objective: &Objective) -> String {
    human(objective.time_slice_window_s.unwrap_or_default() as f64)
}

fn clause_words(clause: &Clause) -> String {
    let one = |n: f64| match clause.measure {
        Measure::OutputSpeed => format!("{} tokens per second", round(n)),
        Measure::Cost => round(n),
        _ => human(n),
    };
    let bound = match clause.op {
        Op::Le => "at most",
        Op::Lt => "less than",
        Op::Ge => "at least",
        Op::Gt => "more than",
    };
    let limit = match &clause.limit {
        Limit::Fixed(n) => one(*n),
        Limit::PerInputToken { base, per_token } => format!("{} plus {} for each input token", human(*base), human(*per_token)),
        Limit::ByInputTokens(buckets) => {
            let name = |b: u64| if b == u64::MAX { "longer".to_owned() } else { format!("up to {b} input tokens") };
            buckets.iter().map(|(b, n)| format!("{} ({})", one(*n), name(*b))).collect::<Vec<_>>().join(", ")
        }
    };
    match clause.measure {
        Measure::Ttft => format!("have their first token after {bound} {limit}"),
        Measure::Ttfa => format!("have their first token of an answer (reasoning apart) after {bound} {limit}"),
        Measure::Tpot => format!("need {bound} {limit} per output token"),
        Measure::InterChunkMax => format!("have no gap between chunks but of {bound} {limit}"),
        Measure::MaxStall => format!("are never silent but for {bound} {limit}"),
        Measure::Duration => format!("are done after {bound} {limit}"),
        Measure::OutputSpeed => format!("give {bound} {limit}"),
        Measure::Cost => format!("cost {bound} {limit}"),
    }
}

/// A share as percent.
fn percent(share: f64) -> String {
    format!("{} %", round(share * 100.0))
}

/// Explains an SLO. `requests_per_day` is its traffic, where that is known.
pub fn explain(slo: &Slo, requests_per_day: Option<f64>) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(slo, requests_per_day, &mut out);
    out
}

fn write(slo: &Slo, traffic: Option<f64>, out: &mut String) -> std::fmt::Result {
    writeln!(out, "{}  (service {}, {}:{})", slo.name, slo.service, slo.source.file, slo.source.line)?;
    if let Some(description) = &slo.description {
        writeln!(out, "  {description}")?;
    }
    for objective in &slo.objectives {
        writeln!(out, "  {}: {}.", objective.name, promise(objective, slo))?;
        if let Some(note) = as_ratio(objective) {
            writeln!(out, "    {note}")?;
        }
        writeln!(out, "    counts     {}", counts(objective, slo))?;
        if needs_usage(&objective.sli.kind) {
            writeln!(out, "    needs      {USAGE}")?;
        }
        for (label, names) in policy_words(&objective.sli.policy, &objective.sli.kind) {
            writeln!(out, "    {label:<10} {names}")?;
        }
        budget(objective, slo, traffic, out)?;
        alerts(objective, slo, traffic, out)?;
    }
    if slo.composite {
        let weights: Vec<String> = slo.objectives.iter().map(|o| format!("{} × {}", o.name, round(o.weight))).collect();
        writeln!(out, "  composite: burn adds up by weight: {}", weights.join(", "))?;
    }
    for note in &slo.alerting.adapted {
        writeln!(out, "  note: {note}")?;
    }
    Ok(())
}

/// What a percentile means once requests are counted.
fn as_ratio(objective: &Objective) -> Option<String> {
    let SliKind::Limit(clause) = &objective.sli.kind else { return None };
    let Limit::Fixed(_) = clause.limit else { return None };
    let p = round(objective.target * 100.0);
    let (name, share) = (clause.measure.name(), round((1.0 - objective.target) * 100.0));
    Some(if clause.measure.is_floor() {
        format!("(The {share}th percentile of {name} keeps the limit, said as a ratio: each request is good or bad by itself.)")
    } else {
        format!(
            "(\"p{p} of {name}\" said as a ratio: each request is good or bad by itself, so nodes and days add up, and {share} % may be slower.)"
        )
    })
}

/// What an indicator in tokens rests on.
const USAGE: &str = "the server's token counts: where an answer has none (OpenAI streams: ask for `stream_options.include_usage`), \
                     a success cannot be judged, and failures alone count";

/// Whether it is made of the provider's counts of tokens.
fn needs_usage(kind: &SliKind) -> bool {
    let clauses = match kind {
        SliKind::Availability => &[],
        SliKind::Limit(clause) => std::slice::from_ref(clause),
        SliKind::Goodput(clauses) => clauses.as_slice(),
    };
    let in_tokens =
        |c: &Clause| matches!(c.measure, Measure::Tpot | Measure::OutputSpeed | Measure::Cost) || !matches!(c.limit, Limit::Fixed(_));
    clauses.iter().any(in_tokens)
}

fn counts(objective: &Objective, slo: &Slo) -> String {
    let selector = &objective.sli.selector;
    let mut parts = selector_words(selector);
    if parts.is_empty() {
        parts.push("every request".into());
    }
    if let Some(groups) = &slo.group_by {
        let by: Vec<&str> = groups.by.iter().map(|d| d.as_str()).collect();
        parts.push(format!("one budget for each {}, at most {}, the rest together", by.join(" and "), groups.limit));
    }
    parts.join("; ")
}

fn selector_words(selector: &Selector) -> Vec<String> {
    let mut parts: Vec<String> = selector
        .matches
        .iter()
        .map(|(dimension, patterns)| {
            let texts: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            format!("{} {}", dimension.as_str(), texts.join(" or "))
        })
        .collect();
    match selector.stream {
        Some(true) => parts.push("streamed".into()),
        Some(false) => parts.push("not streamed".into()),
        None => {}
    }
    match (selector.input_tokens_min, selector.input_tokens_max) {
        (Some(min), Some(max)) => parts.push(format!("{min} to {max} input tokens")),
        (Some(min), None) => parts.push(format!("at least {min} input tokens")),
        (None, Some(max)) => parts.push(format!("at most {max} input tokens")),
        (None, None) => {}
    }
    parts
}

fn policy_words(policy: &Policy, kind: &SliKind) -> Vec<(&'static str, String)> {
    let all = [
        ("429", policy.rate_limited),
        ("other 4xx", policy.client_error),
        ("refusals", policy.refused),
        ("cancelled by the client", policy.cancelled),
        ("nothing generated", policy.no_output),
    ];
    let of = |verdict: Verdict| all.iter().filter(|(_, v)| *v == verdict).map(|(name, _)| *name).collect::<Vec<_>>();
    let mut bad = vec!["5xx", "errors in a stream", "cut streams", "time-outs"];
    bad.extend(of(Verdict::Bad));
    let mut left = of(Verdict::NotApplicable);
    if !matches!(kind, SliKind::Availability) {
        left.push("what cannot have the measure (not streamed, one token)");
    }
    let mut parts = vec![("bad", bad.join(", "))];
    for (label, names) in [("judged", of(Verdict::Good)), ("left out", left)] {
        if !names.is_empty() {
            parts.push((label, names.join(", ")));
        }
    }
    parts.push(("excluded", "what capture lost; it lowers coverage".into()));
    parts
}

fn budget(objective: &Objective, slo: &Slo, traffic: Option<f64>, out: &mut String) -> std::fmt::Result {
    let share = 1.0 - objective.target;
    let seconds = slo.window.nominal_s() as f64;
    write!(out, "    budget     {} of each 1,000 requests may fail", round(share * 1000.0))?;
    if let Some(per_day) = traffic {
        let all = per_day * seconds / 86_400.0;
        write!(out, "; at {} a day, {} of {}", round(per_day), round((all * share).floor()), round(all))?;
    }
    writeln!(out, "; a total outage spends it in {}", human((seconds * share).round()))
}

fn alerts(objective: &Objective, slo: &Slo, traffic: Option<f64>, out: &mut String) -> std::fmt::Result {
    let alerting = &slo.alerting;
    if alerting.rows.is_empty() {
        return writeln!(out, "    alerts     none");
    }
    let highest = 1.0 / (1.0 - objective.target);
    writeln!(
        out,
        "    alerts     when both windows burn faster than the factor (at most {}x is possible: every request bad),
               with {} requests and {} bad ones in the long window; frozen while less than {} of traffic is seen",
        round(highest),
        alerting.min_events,
        alerting.min_bad_events,
        percent(alerting.coverage_floor),
    )?;
    for row in &alerting.rows {
        let factor = row.reachable(objective.target);
        let bad = factor * (1.0 - objective.target);
        write!(
            out,
            "      {:<6} {:>4}/{:<4} {:>6}x ({} bad):",
            row.severity.as_str(),
            human(row.short_s as f64),
            human(row.long_s as f64),
            round(factor),
            percent(bad),
        )?;
        for (name, share, end) in [("total outage", 1.0, ";"), ("2 % errors", 0.02, "")] {
            let fault = Fault { share, per_minute: traffic.map(|t| t / 1440.0) };
            match fires(row, objective.target, alerting.min_events, alerting.min_bad_events, fault) {
                Some((after, stays)) => {
                    write!(out, " {name} after {}, and {} longer than it lasts{end}", minutes(after), minutes(stays))?;
                }
                None => write!(out, " {name} never{end}")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn minutes(m: u64) -> String {
    human(m as f64 * 60.0)
}

/// A fault: a share of requests fails from one minute on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fault {
    /// The share that fails.
    pub share: f64,
    /// Requests per minute, for the guards of low traffic; without it there are enough.
    pub per_minute: Option<f64>,
}

/// When a row fires after a fault has begun, in minutes, and how long it goes on behind a fault that lasted until then or two hours,
/// whichever is longer. Steady traffic, all good before and after; steps of one minute. `None`: never.
pub fn fires(row: &AlertRow, target: f64, min_events: u64, min_bad_events: u64, fault: Fault) -> Option<(u64, u64)> {
    let limit = row.reachable(target) * (1.0 - target);
    let (short, long) = ((row.short_s / 60).max(1), (row.long_s / 60).max(1));
    // The share of bad minutes in a window that ends `t` minutes after the fault began, of a fault of `length` minutes.
    let ratio = |t: u64, window: u64, length: u64| {
        let from = t.saturating_sub(window);
        t.min(length).saturating_sub(from) as f64 / window as f64 * fault.share
    };
    let burns = |t: u64, length: u64| {
        let seen = fault.per_minute.is_none_or(|rate| {
            let bad = ratio(t, long, length) * long as f64 * rate;
            rate * long as f64 >= min_events as f64 && bad >= min_bad_events as f64
        });
        // As many digits as a sum of counters keeps: a burn that equals the factor is not above it.
        let over = |window: u64| ratio(t, window, length) > limit * (1.0 + 1e-9);
        seen && over(short) && over(long)
    };
    let first = (1..=LONGEST.min(2 * long + 1)).find(|t| burns(*t, u64::MAX))?;
    let after = first + row.for_s / 60;
    let length = after.max(120);
    let stays = (length..=length + 2 * long).take_while(|t| burns(*t, length)).count() as u64;
    Some((after, stays))
}

/// The presets, one a line.
pub fn presets() -> String {
    let mut out = String::new();
    for preset in PRESETS {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{:<34} {}\n{:<34} {}", preset.name, preset.goals.join(" · "), "", preset.doc);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_token_counts_says_so() {
        let says = |goal: &str| {
            let text = format!("slos:\n  service: g\n  objectives:\n    - {goal}\n");
            let loaded = crate::spec::load(&[("x.yaml", text)]);
            assert!(!loaded.refused(), "{:?}", loaded.problems);
            explain(&loaded.slos[0], None).contains(USAGE)
        };
        for goal in ["tpot p95 <= 50ms", "goodput{ttft<=2s, tpot<=100ms} >= 99%", "ttft p95 <= 300ms + 0.5ms/token"] {
            assert!(says(goal), "{goal}");
        }
        for goal in ["availability >= 99%", "ttft p95 <= 1s", "goodput{ttft<=2s, max_stall<=3s} >= 99%"] {
            assert!(!says(goal), "{goal}");
        }
    }
}
