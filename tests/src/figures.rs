//! The figures of a record, one by one, and what two records may differ in: nothing, an instant by a tolerance, or, after a
//! loss, only by what is not said any more.

use std::time::Duration;

use tokengauge_core::inference::{Inference, Outcome};
use tokengauge_core::name::Name;

/// One figure.
#[derive(Clone, PartialEq, Debug)]
pub enum Figure {
    /// A word.
    Word(Option<String>),
    /// A number that must be right or absent.
    Number(Option<f64>),
    /// A count of what was seen: after a loss it may be lower.
    Count(u64),
    /// An instant or a length of time.
    Time(Option<Duration>),
    /// Words in order.
    Words(Vec<String>),
}

/// All figures of a record but its vantage and its trace.
pub fn figures(i: &Inference) -> Vec<(&'static str, Figure)> {
    use Figure::{Count, Number, Time, Word, Words};
    let name = |n: &Option<Name>| Word(n.as_ref().map(|n| n.as_str().to_owned()));
    let word = |w: &str| Word(Some(w.to_owned()));
    let number = |n: Option<u64>| Number(n.map(|n| n as f64));
    let (q, a, t, c) = (&i.request, &i.response, &i.timing, &i.chunks);
    let u = i.usage.unwrap_or_default();
    let s = i.server_timing.unwrap_or_default();
    let gap = |n: Option<u64>| Time(n.map(Duration::from_nanos));
    vec![
        ("tap", word(i.tap.as_str())),
        ("api", word(i.api)),
        ("provider", Word(i.provider.map(str::to_owned))),
        ("operation", word(i.operation.as_str())),
        ("stream", Word(i.stream.map(|is| is.to_string()))),
        ("protocol", word(i.protocol)),
        ("client", Word(i.client.map(|a| a.to_string()))),
        ("server", Word(i.server.map(|a| a.to_string()))),
        ("host", name(&i.host)),
        ("request.model", name(&q.model)),
        ("request.bytes", Count(q.bytes)),
        ("request.id", name(&q.id)),
        ("request.traceparent", Word(q.traceparent.map(|p| format!("{p:?}")))),
        ("request.max_tokens", number(q.max_tokens)),
        ("request.temperature", Number(q.temperature)),
        ("request.top_p", Number(q.top_p)),
        ("request.choices", number(q.choices.map(u64::from))),
        ("response.model", name(&a.model)),
        ("response.id", name(&a.id)),
        ("response.status", number(a.status.map(u64::from))),
        ("finish_reasons", Words(a.finish_reasons.iter().map(|n| n.as_str().to_owned()).collect())),
        ("response.bytes", Count(a.bytes)),
        ("content_encoding", Word(a.content_encoding.map(str::to_owned))),
        ("outcome", word(i.outcome.as_str())),
        ("error", Word(i.error.as_ref().map(|e| format!("{} {}", e.kind.as_str(), e.stage.as_str())))),
        ("usage.input", number(u.input)),
        ("usage.output", number(u.output)),
        ("usage.cache_read", number(u.cache_read)),
        ("usage.cache_write", number(u.cache_write)),
        ("usage.reasoning", number(u.reasoning)),
        ("events", Count(c.events.into())),
        ("generated", Count(c.generated.into())),
        ("reasoning", Count(c.reasoning.into())),
        ("tool_starts", Count(c.tool_starts.into())),
        ("arrivals", Count(c.arrivals.into())),
        ("gap_count", Count(t.gaps.count())),
        ("request_sent", Time(t.request_sent)),
        ("response_head", Time(t.response_head)),
        ("first_body_byte", Time(t.first_body_byte)),
        ("first_event", Time(t.first_event)),
        ("first_reasoning", Time(t.first_reasoning)),
        ("first_output", Time(t.first_output)),
        ("last_generated", Time(t.last_generated)),
        ("ttft", Time(t.ttft.ok())),
        ("ttfa", Time(t.ttfa.ok())),
        ("duration", Time(t.duration.ok())),
        ("tpot", Time(t.tpot.ok().map(Duration::from_secs_f64))),
        ("tpot_after_first_chunk", Time(t.tpot_after_first_chunk.map(Duration::from_secs_f64))),
        ("max_stall", Time(t.max_stall.ok())),
        ("batch_ratio", Number(i.batch_ratio())),
        ("gap_max", gap(t.gaps.max())),
        ("server.queue", Number(s.queue)),
        ("server.prefill", Number(s.prefill)),
        ("server.ttft", Number(s.ttft)),
        ("server.tpot", Number(s.tpot)),
        ("server.decode", Number(s.decode)),
        ("server.total", Number(s.total)),
        ("server.load", Number(s.load)),
    ]
}

fn near(a: Option<Duration>, b: Option<Duration>, tolerance: Duration) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) <= tolerance,
        (a, b) => a == b,
    }
}

/// In what two runs differ; instants may by `tolerance`.
pub fn differences(clean: &[Inference], got: &[Inference], tolerance: Duration) -> Vec<String> {
    let mut out = Vec::new();
    if clean.len() != got.len() {
        out.push(format!("{} records, not {}", got.len(), clean.len()));
    }
    for (n, (want, got)) in clean.iter().zip(got).enumerate() {
        if want.timing.start.since(got.timing.start).max(got.timing.start.since(want.timing.start)) > tolerance {
            out.push(format!("{n}: start"));
        }
        let reasons = |i: &Inference| {
            let t = &i.timing;
            [t.ttft.err(), t.ttfa.err(), t.duration.err(), t.tpot.err(), t.max_stall.err()]
        };
        if reasons(want) != reasons(got) {
            out.push(format!("{n}: reasons {:?}, not {:?}", reasons(got), reasons(want)));
        }
        for ((what, a), (_, b)) in figures(want).into_iter().zip(figures(got)) {
            let ok = match (&a, &b) {
                (Figure::Time(a), Figure::Time(b)) => near(*a, *b, tolerance),
                _ => a == b,
            };
            if !ok {
                out.push(format!("{n}: {what} {b:?}, not {a:?}"));
            }
        }
    }
    out
}

/// What a run on a capture with losses says that the clean one does not: absent is right everywhere, any other figure must be
/// the clean one; counts may be lower where the record owns up to a gap; the outcome may be `lost` or `truncated`. The rules of
/// `score.py --lossy`.
pub fn invented(clean: &[Inference], got: &[Inference], tolerance: Duration) -> Vec<String> {
    let mut out = Vec::new();
    let mut taken = vec![false; clean.len()];
    for (n, g) in got.iter().enumerate() {
        let fits = |c: &Inference| c.timing.start.since(g.timing.start).max(g.timing.start.since(c.timing.start)) <= tolerance;
        let same_id = |c: &Inference| g.response.id.is_none() || c.response.id == g.response.id;
        let same_model = |c: &Inference| g.request.model.is_none() || c.request.model == g.request.model;
        let free = |k: usize| !taken[k] && fits(&clean[k]);
        let found = (0..clean.len())
            .find(|&k| free(k) && same_id(&clean[k]) && same_model(&clean[k]))
            .or_else(|| (0..clean.len()).find(|&k| free(k)));
        let Some(k) = found else {
            out.push(format!("{n}: a record of nothing, start {:?} id {:?}", g.timing.start, g.response.id));
            continue;
        };
        taken[k] = true;
        let status = g.response.status.map(|s| format!("{s} http"));
        let unseen = matches!(g.outcome, Outcome::Lost | Outcome::Truncated);
        for ((what, want), (_, got)) in figures(&clean[k]).into_iter().zip(figures(g)) {
            let ok = match (&want, &got) {
                (_, Figure::Word(None) | Figure::Number(None) | Figure::Time(None)) => true,
                (_, Figure::Word(_)) if unseen && (what == "outcome" || what == "error") => true,
                // With the body lost, the status is all there is to say.
                (_, Figure::Word(got)) if what == "error" => want == Figure::Word(got.clone()) || g.gaps >= 1 && *got == status,
                // A reason that replaced it may have come behind the end of our sight.
                (Figure::Words(want), Figure::Words(got)) if unseen && want.len() == got.len() => true,
                // Where no answer came within sight it is what was asked for.
                (_, Figure::Word(_)) if what == "stream" && g.response.status.is_none() && g.timing.request_sent.is_some() => true,
                (Figure::Words(_), Figure::Words(got)) if got.is_empty() => true,
                // The end of the request was not seen, and it says so by having no `request_sent`.
                (Figure::Count(want), Figure::Count(got)) if what == "request.bytes" && g.timing.request_sent.is_none() => got <= want,
                (Figure::Count(want), Figure::Count(got)) => got == want || (g.gaps >= 1 || unseen) && got <= want,
                (Figure::Time(want), Figure::Time(got)) if what == "gap_max" => want.is_some_and(|w| *got <= Some(w + tolerance)),
                (Figure::Time(want), Figure::Time(got)) => near(*want, *got, tolerance),
                _ => want == got,
            };
            if !ok {
                out.push(format!("{n}: {what} {got:?}, clean {want:?}"));
            }
        }
    }
    out
}
