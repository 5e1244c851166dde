//! Good, bad, not applicable or excluded: decided once per request and indicator, when the request ends (`formulas.md` §3.4).
//!
//! 1. What capture could not see the end of (`truncated`, `lost`) is excluded.
//! 2. Classes of their own (cancelled, 429, other 4xx, refused, nothing generated) take the verdict of the [`Policy`]. Where that is
//!    *good* the request goes on like one that succeeded, and a figure that it lacks because of its class is not held against it.
//! 3. [`SliKind::Availability`]: what is left is good when it completed.
//! 4. A limit is met, broken, not applicable or unseen. An undefined figure is broken where the service failed, not applicable where
//!    it cannot exist, unseen where capture is to blame. A failed request keeps the figures that it had (a first token that came in time
//!    came in time), except its duration: a failure's duration is not the time of an answer, so it is broken.
//! 5. Goodput: bad when it failed or any limit is broken, else excluded when any is unseen, else not applicable when any is, else good.

use tokengauge_core::inference::{Outcome, Reason};

use crate::model::{Clause, Limit, Measure, Policy, Price, Sli, SliKind, Verdict};
use crate::request::{Figure, Request};

/// What `request`, which the selector has let through, is to `sli`.
pub fn decide(sli: &Sli, request: &Request<'_>) -> Verdict {
    let lenient = match class(&sli.policy, request) {
        Class::Verdict(verdict) => return verdict,
        Class::Plain => false,
        Class::AsSuccess => true,
    };
    let failed = request.outcome == Outcome::Failed && !lenient;
    let judge = |clause: &Clause| judge(clause, sli, request, failed, lenient);
    match &sli.kind {
        SliKind::Availability if failed => Verdict::Bad,
        SliKind::Availability => Verdict::Good,
        SliKind::Limit(clause) => judge(clause),
        SliKind::Goodput(_) if failed && !impossible(request) => Verdict::Bad,
        SliKind::Goodput(clauses) => clauses.iter().map(judge).fold(Verdict::Good, worse),
    }
}

/// What the policy says before any figure is looked at.
enum Class {
    /// It decides.
    Verdict(Verdict),
    /// It counts as a success whatever it lacks.
    AsSuccess,
    /// No class of its own: success or failure.
    Plain,
}

fn class(policy: &Policy, request: &Request<'_>) -> Class {
    let verdict = match (request.outcome, request.status) {
        (Outcome::Lost | Outcome::Truncated, _) => return Class::Verdict(Verdict::Excluded),
        (Outcome::Cancelled, _) => policy.cancelled,
        (Outcome::Failed, Some(429)) => policy.rate_limited,
        (Outcome::Failed, Some(400..=499)) => policy.client_error,
        (Outcome::Failed, _) => return Class::Plain,
        (Outcome::Completed, _) if request.refused => policy.refused,
        (Outcome::Completed, _) if request.ttft == Err(Reason::NoOutput) => policy.no_output,
        (Outcome::Completed, _) => return Class::Plain,
    };
    match verdict {
        Verdict::Good => Class::AsSuccess,
        other => Class::Verdict(other),
    }
}

/// A goodput of streamed figures says nothing of a request that was not to be streamed, even when it failed.
fn impossible(request: &Request<'_>) -> bool {
    request.stream == Some(false) && request.ttft == Err(Reason::NotStreaming)
}

/// The stronger of two results of one conjunction.
fn worse(a: Verdict, b: Verdict) -> Verdict {
    let rank = |v| match v {
        Verdict::Bad => 3,
        Verdict::Excluded => 2,
        Verdict::NotApplicable => 1,
        Verdict::Good => 0,
    };
    if rank(b) > rank(a) { b } else { a }
}

fn judge(clause: &Clause, sli: &Sli, request: &Request<'_>, failed: bool, lenient: bool) -> Verdict {
    if failed && clause.measure == Measure::Duration {
        return Verdict::Bad;
    }
    let value = match figure(clause.measure, &sli.prices, request) {
        Ok(value) => value,
        Err(reason) => return undefined(reason, clause.measure, failed, lenient),
    };
    let limit = match &clause.limit {
        Limit::Fixed(limit) => Some(*limit),
        Limit::PerInputToken { base, per_token } => request.input_tokens.map(|n| base + per_token * n as f64),
        Limit::ByInputTokens(bounds) => {
            request.input_tokens.and_then(|n| bounds.iter().find(|(bound, _)| n <= *bound).map(|(_, limit)| *limit))
        }
    };
    match limit {
        None => Verdict::NotApplicable,
        Some(limit) if clause.op.holds(value, limit) => Verdict::Good,
        Some(_) => Verdict::Bad,
    }
}

/// What the lack of a figure means.
fn undefined(reason: Reason, measure: Measure, failed: bool, lenient: bool) -> Verdict {
    match reason {
        Reason::CaptureGap | Reason::MissedStart | Reason::Unparsed | Reason::Evicted | Reason::Truncated => Verdict::Excluded,
        Reason::NotStreaming | Reason::SeveralChoices => Verdict::NotApplicable,
        // Nothing was billed, nothing was lost.
        Reason::NoUsage if measure == Measure::Cost => Verdict::NotApplicable,
        _ if lenient => Verdict::Good,
        Reason::HttpError | Reason::StreamError | Reason::ServerClosed | Reason::Timeout => Verdict::Bad,
        // Tokens, arrivals and counts that a failure kept from coming.
        _ if failed => Verdict::Bad,
        Reason::NoOutput | Reason::NoUsage | Reason::OneToken | Reason::OneArrival | Reason::ClientCancelled => Verdict::NotApplicable,
    }
}

/// What is measured, in the unit of the measure.
fn figure(measure: Measure, prices: &[Price], request: &Request<'_>) -> Figure {
    match measure {
        Measure::Ttft => request.ttft,
        Measure::Ttfa => request.ttfa,
        Measure::Tpot => request.tpot,
        Measure::InterChunkMax => request.inter_chunk_max,
        Measure::MaxStall => request.max_stall,
        Measure::Duration => request.duration,
        Measure::OutputSpeed => match request.tpot {
            Ok(tpot) if tpot > 0.0 => Ok(1.0 / tpot),
            Ok(_) => Err(Reason::OneArrival),
            Err(reason) => Err(reason),
        },
        Measure::Cost => cost(prices, request).ok_or(Reason::NoUsage),
    }
}

/// The cost of a request in the currency of the prices; `None` without usage or without a price for its model.
pub fn cost(prices: &[Price], request: &Request<'_>) -> Option<f64> {
    let model = request.model.unwrap_or_default();
    let price = prices.iter().find(|p| p.model.matches(model))?;
    // Embeddings have no output; what has neither count has no usage.
    let (input, output) = match (request.input_tokens, request.output_tokens) {
        (None, None) => return None,
        (input, output) => (input.unwrap_or(0), output.unwrap_or(0)),
    };
    let cached = request.cached_tokens.unwrap_or(0).min(input);
    let cached_price = price.cached_input.unwrap_or(price.input);
    Some(((input - cached) as f64 * price.input + cached as f64 * cached_price + output as f64 * price.output) / 1e6)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
