use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as V};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message as _;
use tokengauge_core::gaps::Gaps;
use tokengauge_core::inference::{Reason, TraceParent};
use tokengauge_core::join::{Split, Whole};

use super::*;
use crate::testing;

fn maker(config: &SpansConfig, table: &[(&str, &str)]) -> Maker {
    Maker::new(config, Profile::V1_41, &|name| table.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
}

fn plain() -> Maker {
    maker(&SpansConfig::default(), &[])
}

fn read(maker: &mut Maker, i: &Inference) -> Span {
    found(maker, i, &Found::default())
}

fn found(maker: &mut Maker, i: &Inference, found: &Found<'_>) -> Span {
    Span::decode(maker.span(i, None, found)).unwrap()
}

fn table(attributes: &[KeyValue]) -> BTreeMap<&str, V> {
    attributes.iter().map(|a| (a.key.as_str(), a.value.clone().unwrap().value.unwrap())).collect()
}

fn events(span: &Span) -> Vec<(&str, u64)> {
    span.events.iter().map(|e| (e.name.as_str(), (e.time_unix_nano - testing::START) / 1_000_000)).collect()
}

#[test]
fn times_and_ids_are_the_wires() {
    let mut i = testing::inference();
    i.request.traceparent = Some(TraceParent { trace_id: i.trace.trace_id, span_id: 7, flags: 1 });
    i.trace.parent = Some(7);
    let span = read(&mut plain(), &i);
    assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (testing::START, testing::START + 480_000_000));
    assert_eq!(events(&span), [("tokengauge.first_token", 410)]);
    assert_eq!(span.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!(
        (span.span_id.as_slice(), span.parent_span_id.as_slice()),
        (&[0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 2, 0xb7][..], &[0, 0, 0, 0, 0, 0, 0, 7][..])
    );
    assert_eq!((span.name.as_str(), span.kind(), span.status), ("chat gpt-4o-mini", SpanKind::Client, None));
    assert_eq!(span.flags, 0x301);
    let root = read(&mut plain(), &testing::inference());
    assert_eq!((root.flags, root.parent_span_id.len()), (0x101, 0));
}

#[test]
fn a_failure_is_an_error_and_a_server_is_a_server() {
    let span = read(&mut plain(), &Inference { vantage: Vantage::Server, ..testing::refused() });
    let status = span.status.clone().unwrap();
    assert_eq!((span.kind(), status.code(), status.message.as_str()), (SpanKind::Server, StatusCode::Error, "rate_limit_exceeded"));
    let attributes = table(&span.attributes);
    assert_eq!(attributes["error.type"], V::StringValue("rate_limit_exceeded".into()));
    assert!(!attributes.contains_key("tokengauge.time_to_first_token") && span.events.is_empty());
    // A client that left is no fault of the service.
    let left = read(&mut plain(), &Inference { outcome: Outcome::Cancelled, ..testing::inference() });
    assert_eq!((left.status, &table(&left.attributes)["tokengauge.outcome"]), (None, &V::StringValue("cancelled".into())));
}

#[test]
fn attributes_are_there_where_their_values_are() {
    let mut i = testing::inference();
    i.usage.as_mut().unwrap().cache_write = Some(3);
    i.response.finish_reasons = ["stop", "length"].iter().filter_map(|r| Name::new(r)).collect();
    let span = read(&mut plain(), &i);
    let attributes = table(&span.attributes);
    for (key, value) in [
        ("gen_ai.operation.name", V::StringValue("chat".into())),
        ("gen_ai.provider.name", V::StringValue("openai".into())),
        ("gen_ai.request.stream", V::BoolValue(true)),
        ("gen_ai.request.max_tokens", V::IntValue(100)),
        ("gen_ai.request.temperature", V::DoubleValue(0.5)),
        ("gen_ai.response.time_to_first_chunk", V::DoubleValue(0.32)),
        ("gen_ai.usage.cache_creation.input_tokens", V::IntValue(3)),
        ("openai.api.type", V::StringValue("chat_completions".into())),
        ("server.address", V::StringValue("api.openai.com".into())),
        ("server.port", V::IntValue(8000)),
        ("network.protocol.version", V::StringValue("1.1".into())),
        ("tokengauge.time_to_first_token", V::DoubleValue(0.41)),
    ] {
        assert_eq!(attributes.get(key), Some(&value), "{key}");
    }
    let V::ArrayValue(reasons) = &attributes["gen_ai.response.finish_reasons"] else { panic!() };
    assert_eq!(reasons.values.len(), 2);
    for absent in
        ["error.type", "gen_ai.usage.cache_write.input_tokens", "tokengauge.sampling.kept", "tokengauge.gaps", "gen_ai.request.top_p"]
    {
        assert!(!attributes.contains_key(absent), "{absent}");
    }
    let named = |profile| {
        let span = read(&mut Maker::new(&SpansConfig::default(), profile, &|_| None), &i);
        let attributes = table(&span.attributes);
        ["gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_write.input_tokens"].map(|key| attributes.contains_key(key))
    };
    assert_eq!((named(Profile::Main), named(Profile::Both)), ([false, true], [true, true]));
    let mut nameless = testing::inference();
    nameless.host = None;
    assert_eq!(table(&read(&mut plain(), &nameless).attributes)["server.address"], V::StringValue("10.0.0.1".into()));
}

#[test]
fn holes_are_events_at_their_instants_with_their_bytes() {
    let hole = |ms: u64, bytes| Hole { at: i_start().plus(Duration::from_millis(ms)), bytes };
    let mut i = testing::inference();
    // Between holes of an answer only what was before the first is measured.
    i.timing.gaps = Gaps::default();
    i.timing.holes = vec![hole(300, None), hole(410, Some(1_460)), hole(470, Some(20))];
    i.gaps = 3;
    let span = read(&mut plain(), &i);
    let want = [("tokengauge.gap", 300), ("tokengauge.gap", 410), ("tokengauge.first_token", 410), ("tokengauge.gap", 470)];
    assert_eq!(events(&span), want);
    let bytes: Vec<_> = span.events.iter().map(|e| table(&e.attributes).get("tokengauge.gap.bytes").cloned()).collect();
    assert_eq!(bytes, [None, Some(V::IntValue(1_460)), None, Some(V::IntValue(20))]);
    assert_eq!(table(&span.attributes)["tokengauge.gaps"], V::IntValue(3));
    // Where no first token is known, a hole mostly is the reason.
    i.timing.ttft = Err(Reason::CaptureGap);
    assert_eq!(events(&read(&mut plain(), &i)), [("tokengauge.gap", 300), ("tokengauge.gap", 410), ("tokengauge.gap", 470)]);
    let limited = read(&mut maker(&SpansConfig::default(), &[("OTEL_SPAN_EVENT_COUNT_LIMIT", "1")]), &i);
    assert_eq!((events(&limited), limited.dropped_events_count), (vec![("tokengauge.gap", 300)], 2));
}

fn i_start() -> tokengauge_core::stream::Timestamp {
    tokengauge_core::stream::Timestamp::from_unix_nanos(testing::START)
}

#[test]
fn the_tenant_is_an_attribute_where_it_is_known() {
    let mut i = testing::inference();
    assert!(!table(&read(&mut plain(), &i).attributes).contains_key("tokengauge.tenant"));
    i.request.tenant = Some(Tenant::new([0xab; 8]));
    assert_eq!(table(&read(&mut plain(), &i).attributes)["tokengauge.tenant"], V::StringValue("abababababababab".into()));
}

#[test]
fn stalls_and_chunks_are_events_at_their_instants() {
    // Chunks at 410, 430, 430, 460 ms.
    let i = testing::inference();
    let of = |stall_s, chunk_events| {
        let config = SpansConfig { stall_s: Some(stall_s), chunk_events, ..SpansConfig::default() };
        read(&mut maker(&config, &[]), &i)
    };
    assert_eq!(events(&of(0.5, 0)), [("tokengauge.first_token", 410)]);
    let stalled = of(0.03, 0);
    assert_eq!(events(&stalled), [("tokengauge.first_token", 410), ("tokengauge.stall", 430)]);
    assert_eq!(table(&stalled.events[1].attributes)["tokengauge.stall.duration"], V::DoubleValue(0.03));
    let first = ("tokengauge.first_token", 410);
    assert_eq!(events(&of(9.0, 1)), [first, ("tokengauge.chunk", 430), ("tokengauge.chunk", 430), ("tokengauge.chunk", 460)]);
    let second = of(9.0, 2);
    assert_eq!(events(&second), [first, ("tokengauge.chunk", 430)]);
    assert_eq!(table(&second.events[1].attributes)["tokengauge.chunk.number"], V::IntValue(2));
    // Gaps that do not lead from the first to the last chunk tell no chunk's instant.
    let mut torn = i.clone();
    torn.timing.gaps = [20_000_000].into_iter().collect::<Gaps>();
    let config = SpansConfig { stall_s: Some(0.001), chunk_events: 1, ..SpansConfig::default() };
    assert_eq!(events(&read(&mut maker(&config, &[]), &torn)), [first]);
}

#[test]
fn limits_cut_and_count() {
    let i = testing::inference();
    let all = read(&mut plain(), &i).attributes.len() as u32;
    let span =
        read(&mut maker(&SpansConfig::default(), &[("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "5"), ("OTEL_ATTRIBUTE_COUNT_LIMIT", "9")]), &i);
    assert_eq!((span.attributes.len(), span.dropped_attributes_count), (5, all - 5));
    assert_eq!(span.attributes[0].key, "gen_ai.operation.name");
    let span = read(&mut maker(&SpansConfig::default(), &[("OTEL_ATTRIBUTE_COUNT_LIMIT", "9")]), &i);
    assert_eq!((span.attributes.len(), span.dropped_attributes_count), (9, all - 9));
    for name in ["OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"] {
        let span = read(&mut maker(&SpansConfig::default(), &[(name, "3")]), &i);
        let attributes = table(&span.attributes);
        assert_eq!((&attributes["gen_ai.request.model"], span.name.as_str()), (&V::StringValue("gpt".into()), "chat gpt-4o-mini"));
        assert_eq!(attributes["gen_ai.request.max_tokens"], V::IntValue(100));
    }
    let chunks = SpansConfig { chunk_events: 1, ..SpansConfig::default() };
    let span = read(&mut maker(&chunks, &[("OTEL_SPAN_EVENT_COUNT_LIMIT", "2"), ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "1")]), &i);
    assert_eq!((span.events.len(), span.dropped_events_count), (2, 2));
    assert_eq!((span.events[1].attributes.len(), span.events[1].dropped_attributes_count), (1, 1));
}

#[test]
fn a_view_links_to_the_others() {
    let other = |span_id, vantage| Other { trace_id: 9, span_id, vantage };
    let others = [other(0x55, Vantage::Server), other(0x66, Vantage::Client)];
    let of = |table_: &[(&str, &str)]| {
        let mut maker = maker(&SpansConfig::default(), table_);
        found(&mut maker, &testing::inference(), &Found { others: &others, ..Found::default() })
    };
    let span = of(&[]);
    let [link, second] = span.links.as_slice() else { panic!("{}", span.links.len()) };
    assert_eq!((link.span_id.as_slice(), link.trace_id.as_slice()), (&0x55_u64.to_be_bytes()[..], &9_u128.to_be_bytes()[..]));
    assert_eq!(table(&link.attributes)["tokengauge.vantage"], V::StringValue("server".into()));
    assert_eq!(table(&second.attributes)["tokengauge.vantage"], V::StringValue("client".into()));
    let span = of(&[("OTEL_SPAN_LINK_COUNT_LIMIT", "1")]);
    assert_eq!((span.links.len(), span.dropped_links_count), (1, 1));
    let span = of(&[("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "0")]);
    assert_eq!((span.links[0].attributes.len(), span.links[0].dropped_attributes_count), (0, 1));
}

fn split() -> Split {
    const MS: u64 = 1_000_000;
    Split {
        whole: Whole::Ttft,
        total: 410 * MS,
        network: Some(10 * MS),
        proxy: None,
        queue: Some(100 * MS),
        queue_derived: true,
        load: None,
        prefill: Some(200 * MS),
        decode: Some(50 * MS),
        unattributed: 100 * MS,
        engine_ttft: None,
        source: Some(tokengauge_core::join::Source::Answer),
        contradicts: false,
    }
}

#[test]
fn where_the_time_went_stands_in_attributes() {
    let split = split();
    let span = found(&mut plain(), &testing::inference(), &Found { split: Some(&split), hops: 2, ..Found::default() });
    let attributes = table(&span.attributes);
    for (key, value) in [
        ("tokengauge.split.network", V::DoubleValue(0.01)),
        ("tokengauge.split.queue", V::DoubleValue(0.1)),
        ("tokengauge.split.queue_derived", V::BoolValue(true)),
        ("tokengauge.split.prefill", V::DoubleValue(0.2)),
        ("tokengauge.split.unattributed", V::DoubleValue(0.1)),
        ("tokengauge.split.source", V::StringValue("answer".into())),
        ("tokengauge.split.whole", V::StringValue("time_to_first_token".into())),
        ("tokengauge.split.hops", V::IntValue(2)),
    ] {
        assert_eq!(attributes.get(key), Some(&value), "{key}");
    }
    assert!(!attributes.contains_key("tokengauge.split.proxy") && !attributes.contains_key("tokengauge.split.load"));
}

#[test]
fn phases_are_spans_that_end_where_the_first_token_is() {
    let (split, i) = (split(), testing::inference());
    let phases = |config: &SpansConfig, found: &Found<'_>| -> Vec<Span> {
        let mut maker = maker(config, &[]);
        Phase::ALL.iter().filter_map(|p| maker.phase(&i, *p, found).map(|b| Span::decode(b).unwrap())).collect()
    };
    let found = Found { phases: Some(&split), ..Found::default() };
    assert!(phases(&SpansConfig::default(), &found).is_empty());
    let on = SpansConfig { phases: true, ..SpansConfig::default() };
    assert!(phases(&on, &Found::default()).is_empty());
    let all = phases(&on, &found);
    let ms = |ns: u64| (ns - testing::START) / 1_000_000;
    let shown: Vec<_> = all.iter().map(|s| (s.name.as_str(), ms(s.start_time_unix_nano), ms(s.end_time_unix_nano))).collect();
    assert_eq!(shown, [("tokengauge.queue", 110, 210), ("tokengauge.prefill", 210, 410), ("tokengauge.decode", 410, 460)]);
    let ids: std::collections::BTreeSet<_> = all.iter().map(|s| s.span_id.clone()).collect();
    assert!(ids.len() == 3 && all.iter().all(|s| s.parent_span_id == i.trace.span_id.to_be_bytes() && s.kind() == SpanKind::Internal));
    assert_eq!(table(&all[0].attributes)["tokengauge.split.queue_derived"], V::BoolValue(true));
    assert_eq!(table(&all[1].attributes)["tokengauge.split.source"], V::StringValue("answer".into()));
}

#[test]
fn what_is_kept_against_the_sampler_says_so() {
    let mut maker = maker(&SpansConfig::default(), &[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0")]);
    assert_eq!(maker.decide(&testing::inference(), false), Decision::Dropped);
    for (i, broke, why) in [(testing::refused(), false, "failed"), (testing::inference(), true, "slow")] {
        let Decision::Kept(kept) = maker.decide(&i, broke) else { panic!("{why}") };
        let span = Span::decode(maker.span(&i, Some(kept), &Found::default())).unwrap();
        assert_eq!(table(&span.attributes)["tokengauge.sampling.kept"], V::StringValue(why.into()));
    }
}

#[test]
fn a_buffer_that_is_used_again_holds_nothing_of_the_span_before() {
    let mut maker = plain();
    let first = read(&mut maker, &testing::inference());
    read(&mut maker, &testing::refused());
    let mut again = testing::inference();
    again.response.id = None;
    again.timing.start = tokengauge_core::stream::Timestamp::from_unix_nanos(testing::START + 9_000_000_000);
    let again = read(&mut maker, &again);
    assert_eq!((again.attributes.len() + 1, again.events.len()), (first.attributes.len(), 1));
}
