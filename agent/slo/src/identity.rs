//! The name of what an indicator counts: two definitions with the same name count the same, so that history may go on. A changed
//! target, window or alert policy changes nothing here; whatever changes which requests are valid or good does.

use std::fmt::Write as _;

use crate::model::{Clause, Limit, Policy, Selector, Sli, SliKind, Slo};
use crate::series::SliceRule;

/// Canonical text of an indicator within its SLO.
pub fn key(slo: &Slo, sli: &Sli, rule: Option<SliceRule>) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(text, "{}|", slo.name);
    selector(&mut text, &sli.selector);
    match &sli.kind {
        SliKind::Availability => text.push_str("|availability"),
        SliKind::Limit(c) => {
            text.push_str("|limit");
            clause(&mut text, c);
        }
        SliKind::Goodput(clauses) => {
            text.push_str("|goodput");
            clauses.iter().for_each(|c| clause(&mut text, c));
        }
    }
    let Policy { rate_limited, client_error, refused, cancelled, no_output } = sli.policy;
    let _ = write!(text, "|{rate_limited:?},{client_error:?},{refused:?},{cancelled:?},{no_output:?}|");
    for p in &sli.prices {
        let _ = write!(text, "{:?}={},{:?},{};", p.model, p.input, p.cached_input, p.output);
    }
    if let Some(SliceRule { length, target }) = rule {
        let _ = write!(text, "|slices {length},{target:?}");
    }
    if let Some(groups) = &slo.group_by {
        text.push_str("|by");
        groups.by.iter().for_each(|d| text.extend([" ", d.as_str()]));
    }
    text
}

/// Canonical text of a composite: of its parts and of what they weigh.
pub fn composite_key(slo: &Slo) -> String {
    let mut text = format!("composite|{:?}", slo.budgeting);
    for o in &slo.objectives {
        let _ = write!(text, "|{}x", o.weight);
        text.push_str(&key(slo, &o.sli, SliceRule::of(slo.budgeting, o)));
    }
    text
}

fn selector(text: &mut String, s: &Selector) {
    for (dimension, patterns) in &s.matches {
        // `Debug` quotes nothing, so lengths keep one pattern from looking like two.
        let _ = write!(text, "{}:", dimension.as_str());
        for pattern in patterns {
            let pattern = pattern.to_string();
            let _ = write!(text, "{}={pattern};", pattern.len());
        }
    }
    let _ = write!(text, "{:?},{:?},{:?}", s.stream, s.input_tokens_min, s.input_tokens_max);
}

fn clause(text: &mut String, c: &Clause) {
    let _ = write!(text, " {:?} {:?} ", c.measure, c.op);
    match &c.limit {
        Limit::Fixed(limit) => _ = write!(text, "{limit}"),
        Limit::PerInputToken { base, per_token } => _ = write!(text, "{base}+{per_token}/token"),
        Limit::ByInputTokens(bounds) => _ = write!(text, "{bounds:?}"),
    }
}
