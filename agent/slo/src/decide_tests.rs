//! Each rule of `decide`, one row per case.

use super::*;
use crate::model::{Op, Pattern, Selector};

fn sli(kind: SliKind) -> Sli {
    let prices = vec![Price { model: Pattern::Exact("m".into()), input: 1.0, cached_input: Some(0.1), output: 10.0 }];
    Sli { selector: Selector::default(), kind, policy: Policy::default(), prices }
}

fn clause(measure: Measure, op: Op, limit: f64) -> Clause {
    Clause { measure, op, limit: Limit::Fixed(limit) }
}

fn ttft() -> Sli {
    sli(SliKind::Limit(clause(Measure::Ttft, Op::Le, 0.8)))
}

fn goodput() -> Sli {
    sli(SliKind::Goodput(vec![
        clause(Measure::Ttft, Op::Le, 0.8),
        clause(Measure::Tpot, Op::Le, 0.05),
        clause(Measure::MaxStall, Op::Le, 2.0),
    ]))
}

fn availability() -> Sli {
    sli(SliKind::Availability)
}

/// A good streamed answer.
fn answer() -> Request<'static> {
    Request {
        model: Some("m"),
        input_tokens: Some(1_000_000),
        output_tokens: Some(100_000),
        ttft: Ok(0.5),
        ttfa: Ok(0.6),
        tpot: Ok(0.02),
        inter_chunk_max: Ok(0.3),
        max_stall: Ok(0.3),
        duration: Ok(3.0),
        ..Request::plain()
    }
}

fn failed(status: u16, reason: Reason) -> Request<'static> {
    Request {
        outcome: Outcome::Failed,
        status: Some(status),
        ttft: Err(reason),
        ttfa: Err(reason),
        tpot: Err(Reason::NoUsage),
        max_stall: Err(Reason::OneArrival),
        inter_chunk_max: Err(Reason::OneArrival),
        output_tokens: None,
        ..answer()
    }
}

fn all(request: &Request<'_>) -> [Verdict; 3] {
    [availability(), ttft(), goodput()].map(|s| decide(&s, request))
}

#[test]
fn what_each_kind_of_end_is_to_availability_ttft_and_goodput() {
    use Verdict::{Bad, Excluded, Good, NotApplicable};
    let no_output = Request { ttft: Err(Reason::NoOutput), ttfa: Err(Reason::NoOutput), generated: Some(0), ..answer() };
    let cut = Request { outcome: Outcome::Failed, tpot: Err(Reason::NoUsage), ..answer() };
    let cases: [(&str, Request<'_>, [Verdict; 3]); 17] = [
        ("good", answer(), [Good; 3]),
        ("slow", Request { ttft: Ok(0.81), ..answer() }, [Good, Bad, Bad]),
        ("at the limit", Request { ttft: Ok(0.8), ..answer() }, [Good; 3]),
        ("a stall", Request { max_stall: Ok(2.1), ..answer() }, [Good, Good, Bad]),
        ("500", failed(500, Reason::HttpError), [Bad; 3]),
        ("429 burns", failed(429, Reason::HttpError), [Bad; 3]),
        ("400 is the caller's", failed(400, Reason::HttpError), [NotApplicable; 3]),
        ("error inside a 200", failed(200, Reason::StreamError), [Bad; 3]),
        ("closed early", failed(200, Reason::ServerClosed), [Bad; 3]),
        ("timeout", failed(200, Reason::Timeout), [Bad; 3]),
        ("cut after a first token in time", cut, [Bad, Good, Bad]),
        ("cancelled", Request { outcome: Outcome::Cancelled, ..answer() }, [NotApplicable; 3]),
        ("lost", Request { outcome: Outcome::Lost, ..answer() }, [Excluded; 3]),
        ("truncated", Request { outcome: Outcome::Truncated, ..answer() }, [Excluded; 3]),
        ("one token", Request { tpot: Err(Reason::OneToken), max_stall: Err(Reason::OneArrival), ..answer() }, [Good, Good, NotApplicable]),
        ("gap after the first token", Request { tpot: Err(Reason::CaptureGap), ..answer() }, [Good, Good, Excluded]),
        ("no output is good", no_output, [Good; 3]),
    ];
    for (name, request, expected) in cases {
        assert_eq!(all(&request), expected, "{name}");
    }
}

#[test]
fn a_broken_limit_is_broken_whatever_else_was_not_seen() {
    let unseen = Request { ttft: Ok(3.0), tpot: Err(Reason::CaptureGap), ..answer() };
    assert_eq!(decide(&goodput(), &unseen), Verdict::Bad);
    let mixed = Request { tpot: Err(Reason::CaptureGap), max_stall: Err(Reason::OneArrival), ..answer() };
    assert_eq!(decide(&goodput(), &mixed), Verdict::Excluded);
}

#[test]
fn what_is_not_streamed_leaves_streamed_indicators() {
    let whole = Request {
        stream: Some(false),
        ttft: Err(Reason::NotStreaming),
        ttfa: Err(Reason::NotStreaming),
        tpot: Err(Reason::NotStreaming),
        max_stall: Err(Reason::NotStreaming),
        ..answer()
    };
    assert_eq!(all(&whole), [Verdict::Good, Verdict::NotApplicable, Verdict::NotApplicable]);
    let broken = Request { outcome: Outcome::Failed, status: Some(500), ..whole };
    assert_eq!(all(&broken), [Verdict::Bad, Verdict::NotApplicable, Verdict::NotApplicable]);
}

#[test]
fn policies_decide_over_their_classes() {
    let with = |change: fn(&mut Policy)| {
        let mut s = ttft();
        change(&mut s.policy);
        s
    };
    let refused = Request { refused: true, ttft: Ok(2.0), ..answer() };
    assert_eq!(decide(&ttft(), &refused), Verdict::Bad, "a refusal is an answer, and this one was slow");
    assert_eq!(decide(&with(|p| p.refused = Verdict::Bad), &answer()), Verdict::Good);
    assert_eq!(decide(&with(|p| p.refused = Verdict::NotApplicable), &refused), Verdict::NotApplicable);
    let left = Request { outcome: Outcome::Cancelled, ttft: Err(Reason::ClientCancelled), ..answer() };
    assert_eq!(decide(&with(|p| p.cancelled = Verdict::Bad), &left), Verdict::Bad);
    assert_eq!(decide(&with(|p| p.cancelled = Verdict::Good), &left), Verdict::Good);
    let too_many = failed(429, Reason::HttpError);
    assert_eq!(decide(&with(|p| p.rate_limited = Verdict::NotApplicable), &too_many), Verdict::NotApplicable);
    assert_eq!(decide(&with(|p| p.rate_limited = Verdict::Good), &too_many), Verdict::Good);
}

#[test]
fn a_fast_failure_is_no_good_duration() {
    let duration = sli(SliKind::Limit(clause(Measure::Duration, Op::Le, 10.0)));
    assert_eq!(decide(&duration, &answer()), Verdict::Good);
    assert_eq!(decide(&duration, &Request { duration: Ok(0.01), ..failed(500, Reason::HttpError) }), Verdict::Bad);
    assert_eq!(decide(&duration, &Request { duration: Err(Reason::CaptureGap), ..answer() }), Verdict::Excluded);
}

#[test]
fn limits_grow_with_the_prompt() {
    let mut s = ttft();
    let of = |limit| SliKind::Limit(Clause { measure: Measure::Ttft, op: Op::Le, limit });
    s.kind = of(Limit::PerInputToken { base: 0.2, per_token: 0.001 });
    let at = |tokens, ttft| Request { input_tokens: tokens, ttft: Ok(ttft), ..answer() };
    assert_eq!(decide(&s, &at(Some(1_000), 1.2)), Verdict::Good);
    assert_eq!(decide(&s, &at(Some(999), 1.2)), Verdict::Bad);
    assert_eq!(decide(&s, &at(None, 0.1)), Verdict::NotApplicable);
    s.kind = of(Limit::ByInputTokens(vec![(400, 0.2), (4_000, 0.8)]));
    assert_eq!(decide(&s, &at(Some(400), 0.3)), Verdict::Bad);
    assert_eq!(decide(&s, &at(Some(401), 0.3)), Verdict::Good);
    assert_eq!(decide(&s, &at(Some(4_001), 0.3)), Verdict::NotApplicable);
}

#[test]
fn cost_counts_cached_tokens_at_their_own_price() {
    let s = sli(SliKind::Limit(clause(Measure::Cost, Op::Le, 2.0)));
    assert_eq!(cost(&s.prices, &answer()), Some(2.0));
    assert_eq!(decide(&s, &answer()), Verdict::Good);
    let cached = Request { cached_tokens: Some(500_000), ..answer() };
    assert_eq!(cost(&s.prices, &cached), Some(1.55));
    assert_eq!(decide(&s, &Request { model: Some("x"), ..answer() }), Verdict::NotApplicable);
    assert_eq!(decide(&s, &failed(500, Reason::HttpError)), Verdict::Good, "the prompt's cost is known");
    assert_eq!(decide(&s, &Request { input_tokens: None, ..failed(500, Reason::HttpError) }), Verdict::NotApplicable);
}

#[test]
fn speed_is_the_inverse_of_the_time_per_token() {
    let s = sli(SliKind::Limit(clause(Measure::OutputSpeed, Op::Ge, 50.0)));
    assert_eq!(decide(&s, &answer()), Verdict::Good);
    assert_eq!(decide(&s, &Request { tpot: Ok(0.021), ..answer() }), Verdict::Bad);
}
