use tokengauge_core::inference::{Operation, ServerTiming};
use tokengauge_core::join::{Figures, id_key};
use tokengauge_core::name::Name;
use tokengauge_core::stream::Timestamp;

use super::*;
use crate::testing;

#[expect(clippy::disallowed_methods, reason = "any instant will do")]
fn now() -> Instant {
    Instant::now()
}

fn view(vantage: Vantage, span_id: u64, later_ms: u64) -> Box<Inference> {
    let mut i = testing::inference();
    (i.vantage, i.trace.span_id) = (vantage, span_id);
    i.timing.start = Timestamp::from_unix_nanos(testing::START + later_ms * 1_000_000);
    i.timing.ttft = i.timing.ttft.map(|t| t - Duration::from_millis(2 * later_ms));
    i.response.id = Name::new("chatcmpl-0123456789");
    Box::new(i)
}

/// Span, spans of others, network and queue in ms, whether the engine's phases are below it.
type Line = (u64, Vec<u64>, Option<(Option<u64>, Option<u64>)>, bool);

fn lines(run: impl FnOnce(&mut Settled<'_>)) -> Vec<Line> {
    let mut all = Vec::new();
    run(&mut |i, found| {
        let ms = |part: Option<u64>| part.map(|ns| ns / 1_000_000);
        let split = found.split.map(|s| (ms(s.network), ms(s.queue)));
        all.push((i.trace.span_id, found.others.iter().map(|o| o.span_id).collect(), split, found.phases.is_some()));
    });
    all
}

#[test]
fn views_wait_and_come_out_together_with_what_the_engine_told() {
    let start = now();
    let mut joining = Joining::new(Duration::from_secs(1), start);
    let told = Figures { queue: Some(100_000_000), prefill: Some(200_000_000), ..Figures::default() };
    joining.engines().tell(Engine {
        source: Source::Otlp,
        figures: told,
        tokens: None,
        speculated: None,
        caller: None,
        trace: None,
        ids: [id_key("0123456789"), None],
    });
    let first = lines(|settled| {
        joining.push(view(Vantage::Server, 2, 3), start, settled);
        joining.push(view(Vantage::Client, 1, 0), start, settled);
        let again = Inference { operation: Operation::FetchResponse, ..*view(Vantage::Client, 9, 0) };
        joining.push(Box::new(again), start, settled);
        joining.due(start + Duration::from_millis(999), settled);
    });
    assert_eq!(first, [(9, vec![], None, false)], "what is only sent again waits for nobody");
    let then = lines(|settled| joining.due(start + Duration::from_secs(1), settled));
    assert_eq!(then, [(1, vec![2], Some((Some(6), Some(100))), false), (2, vec![1], None, true)]);
    let shared = joining.shared();
    let mut said = Vec::new();
    shared.observe(&mut |m, attributes, n| said.push((m.name, attributes.last().map_or("", |a| a.1).to_owned(), n)));
    assert!(said.contains(&("tokengauge.join.views", "joined".into(), 2.0)), "{said:?}");
    assert!(said.contains(&("tokengauge.join.engine_views", "joined".into(), 1.0)));
    assert!(said.contains(&("tokengauge.join.waiting", String::new(), 0.0)));
}

#[test]
fn one_view_alone_is_what_it_was_and_the_end_waits_for_nobody() {
    let start = now();
    let mut joining = Joining::new(Duration::from_secs(60), start);
    let all = lines(|settled| {
        joining.push(view(Vantage::Client, 1, 0), start, settled);
        let mut told = *view(Vantage::Client, 2, 0);
        told.timing.start = told.timing.start.plus(Duration::from_secs(9));
        told.response.id = None;
        told.timing.ttft = Ok(Duration::from_millis(300));
        told.server_timing = Some(ServerTiming { prefill: Some(0.2), ..ServerTiming::default() });
        joining.push(Box::new(told), start, settled);
        joining.rest(start, settled);
    });
    assert_eq!(all, [(1, vec![], None, false), (2, vec![], Some((None, None)), true)]);
    let mut none = Joining::new(Duration::ZERO, start);
    let all = lines(|settled| none.push(view(Vantage::Client, 1, 0), start, settled));
    assert_eq!(all.len(), 1);
}

#[test]
fn the_wait_is_as_long_as_spans_need() {
    let of = |wait_s: Option<f64>, spans| Config { wait_s }.wait(spans);
    assert_eq!((of(None, false), of(None, true), of(Some(0.5), true)), (Duration::from_secs(1), SDK_DELAY, Duration::from_millis(500)));
    assert!(Config { wait_s: Some(-1.0) }.check().is_err() && Config { wait_s: Some(f64::NAN) }.check().is_err());
}
