use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::join::engine::Figures;
use crate::join::split::Whole;
use crate::join::view::Keys;
use crate::join::{caller_key, hash, id_key, trace_key};

const MS: u64 = 1_000_000;
const WAIT: Duration = Duration::from_secs(1);

fn at(port: u16) -> Option<SocketAddr> {
    Some(SocketAddr::from(([10, 0, 0, 1], port)))
}

/// A view of a stream that began at `start` ms and had its first token `reach` ms later, on the connection between two ports.
fn view(vantage: Vantage, ends: (u16, u16), start: u64, reach: u64) -> View {
    let wire = hash(0, (ends, 0));
    View {
        vantage,
        api: "openai.chat_completions",
        pid: None,
        client: at(ends.0),
        server: at(ends.1),
        start: start * MS,
        end: (start + reach + 100) * MS,
        reach: Some(reach * MS),
        whole: Whole::Ttft,
        sent: Some(MS),
        rest: Some(100 * MS),
        told: None,
        waits_only: false,
        keys: Keys { wire: Some(wire), ..Keys::default() },
    }
}

fn named(mut v: View, id: &str) -> View {
    v.keys.ids[0] = id_key(id);
    v
}

fn traced(mut v: View, trace: u128, span: u64) -> View {
    (v.keys.caller, v.keys.trace) = (Some(caller_key(trace, span)), Some(trace_key(trace)));
    v
}

fn engine(source: Source, figures: Figures) -> Engine {
    Engine { source, figures, tokens: None, speculated: None, caller: None, trace: None, ids: [None; 2] }
}

/// What becomes of these, all of which come at once.
fn joined(views: &[View], engines: &[Engine]) -> (Vec<Joined>, Counts) {
    let (mut book, mut out) = (Book::new(Limits { wait: WAIT, ..Limits::default() }), Vec::new());
    for (token, v) in views.iter().enumerate() {
        book.view(token as u64, *v, Duration::ZERO, &mut out);
    }
    engines.iter().for_each(|e| book.engine(*e, Duration::ZERO));
    book.due(WAIT - Duration::from_nanos(1), &mut out);
    assert!(out.is_empty(), "{out:?}");
    book.due(WAIT, &mut out);
    assert_eq!(book.waiting(), (0, 0));
    assert!(book.by_key.is_empty() && book.engine_by_key.is_empty() && book.wires.is_empty());
    (out, book.counts())
}

fn tokens(joined: &[Joined]) -> Vec<Vec<u64>> {
    joined.iter().map(|j| j.seats.iter().map(|s| s.token).collect()).collect()
}

fn ms(part: Option<u64>) -> Option<u64> {
    part.map(|ns| ns / MS)
}

const CLIENT: (u16, u16) = (40_000, 80);
const UPSTREAM: (u16, u16) = (41_000, 8_000);

#[test]
fn two_ends_of_a_connection_leave_their_network() {
    let (out, counts) = joined(&[view(Vantage::Server, CLIENT, 2, 100), view(Vantage::Client, CLIENT, 0, 110)], &[]);
    assert_eq!(tokens(&out), [[1, 0]]);
    let split = out[0].split.unwrap();
    assert_eq!((split.total, ms(split.network), split.unattributed / MS), (110 * MS, Some(10), 100));
    assert_eq!((split.proxy, split.queue, split.parts()), (None, None, split.total));
    assert_eq!((counts.joined, counts.alone), (2, 0));
}

#[test]
fn requests_that_follow_each_other_on_a_connection_are_told_apart() {
    let views = [
        view(Vantage::Server, CLIENT, 2, 100),
        view(Vantage::Client, CLIENT, 0, 110),
        view(Vantage::Server, CLIENT, 502, 100),
        view(Vantage::Client, CLIENT, 500, 120),
        view(Vantage::Client, CLIENT, 900, 120),
        view(Vantage::Server, CLIENT, 1_500, 120),
    ];
    assert_eq!(tokens(&joined(&views, &[]).0), vec![vec![1, 0], vec![3, 2], vec![4], vec![5]]);
    // Mixed up in time: what both say of themselves decides.
    let apart = [
        named(view(Vantage::Client, CLIENT, 0, 110), "chatcmpl-aaaaaaaa"),
        named(view(Vantage::Server, CLIENT, 0, 100), "chatcmpl-bbbbbbbb"),
    ];
    assert_eq!(tokens(&joined(&apart, &[]).0), [[0], [1]]);
    // The same side twice is no pair, and neither is one side of another API.
    let twice = [view(Vantage::Client, CLIENT, 0, 110), view(Vantage::Client, CLIENT, 1, 110)];
    assert_eq!(joined(&twice, &[]).0.len(), 2);
    let other = View { api: "anthropic.messages", ..view(Vantage::Server, CLIENT, 0, 100) };
    assert_eq!(joined(&[twice[0], other], &[]).0.len(), 2);
}

#[test]
fn streams_of_one_connection_need_their_number_or_a_name() {
    let stream = |vantage, stream: u64, id: Option<&str>| {
        let mut v = view(vantage, CLIENT, 0, if vantage == Vantage::Client { 110 } else { 100 });
        v.keys.wire = Some(hash(0, (CLIENT, stream)));
        id.map_or(v, |id| named(v, id))
    };
    let views = [
        stream(Vantage::Client, 1, None),
        stream(Vantage::Client, 3, None),
        stream(Vantage::Server, 3, None),
        stream(Vantage::Server, 5, None),
    ];
    assert_eq!(tokens(&joined(&views, &[]).0), vec![vec![0], vec![1, 2], vec![3]]);
    let named = [stream(Vantage::Client, 1, Some("chatcmpl-aaaaaaaa")), stream(Vantage::Server, 9, Some("chatcmpl-aaaaaaaa"))];
    assert_eq!(tokens(&joined(&named, &[]).0), [[0, 1]]);
}

#[test]
fn an_address_may_be_translated_at_one_end() {
    let mut server = named(view(Vantage::Server, (40_000, 8_000), 1, 100), "chatcmpl-aaaaaaaa");
    let client = named(view(Vantage::Client, CLIENT, 0, 110), "chatcmpl-aaaaaaaa");
    let (out, _) = joined(&[server, client], &[]);
    assert_eq!((tokens(&out), ms(out[0].split.unwrap().network)), (vec![vec![1, 0]], Some(10)));
    // Neither end is the same: something stands between, and nobody knows what of it is network.
    server.client = at(40_001);
    let (out, _) = joined(&[server, client], &[]);
    let split = out[0].split;
    assert_eq!((tokens(&out), split), (vec![vec![1, 0]], None));
}

#[test]
fn of_a_connection_without_ends_nobody_knows_what_lies_between() {
    let told = Figures { prefill: Some(30 * MS), ..Figures::default() };
    let server = View { told: Some(told), ..named(view(Vantage::Server, CLIENT, 1, 100), "chatcmpl-aaaaaaaa") };
    let mut client = named(view(Vantage::Client, CLIENT, 0, 110), "chatcmpl-aaaaaaaa");
    (client.client, client.server, client.keys.wire) = (None, None, None);
    let (out, _) = joined(&[server, client], &[]);
    let split = out[0].split.unwrap();
    assert_eq!((tokens(&out), split.network, split.proxy, split.unattributed / MS), (vec![vec![1, 0]], None, None, 80));
}

#[test]
fn a_proxy_seen_on_both_sides_has_its_time() {
    let id = "chatcmpl-aaaaaaaa";
    let views = [
        named(view(Vantage::Server, UPSTREAM, 31, 60), id),
        named(view(Vantage::Client, UPSTREAM, 30, 64), id),
        named(view(Vantage::Server, CLIENT, 1, 105), id),
        named(view(Vantage::Client, CLIENT, 0, 110), id),
    ];
    let told = Figures { queue: Some(20 * MS), prefill: Some(30 * MS), decode: Some(90 * MS), ..Figures::default() }.completed();
    let engine = Engine { ids: [id_key("aaaaaaaa"), None], ..engine(Source::Hook, told) };
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]];
    for order in orders {
        let (out, counts) = joined(&order.map(|n| views[n]), &[engine]);
        assert_eq!(out.len(), 1, "{order:?}");
        let seats: Vec<_> = out[0].seats.iter().map(|s| (s.hop, s.vantage)).collect();
        assert_eq!(seats, [(0, Vantage::Client), (0, Vantage::Server), (1, Vantage::Client), (1, Vantage::Server)]);
        let split = out[0].split.unwrap();
        assert_eq!((ms(split.network), ms(split.proxy), ms(split.queue), ms(split.prefill)), (Some(9), Some(41), Some(20), Some(30)));
        assert_eq!((split.unattributed / MS, ms(split.decode), ms(split.engine_ttft)), (10, Some(90), Some(50)));
        assert_eq!((split.parts(), split.contradicts, split.source), (split.total, false, Some(Source::Hook)));
        assert_eq!((counts.engines, counts.joined), ([1, 0, 0], 4));
    }
}

#[test]
fn a_proxy_in_one_trace_needs_one_process_and_no_rival() {
    let mut outer = traced(view(Vantage::Server, CLIENT, 0, 110), 7, 1);
    let mut inner = traced(view(Vantage::Client, UPSTREAM, 30, 60), 7, 2);
    assert_eq!(joined(&[inner, outer], &[]).0.len(), 2, "a trace alone");
    (outer.pid, inner.pid) = (Some(5), Some(5));
    let (out, _) = joined(&[inner, outer], &[]);
    assert_eq!((tokens(&out), ms(out[0].split.unwrap().proxy)), (vec![vec![1, 0]], Some(50)));
    // An agent that asks twice in answering once is no proxy.
    let second = View { client: at(42_000), keys: Keys { wire: Some(1), ..inner.keys }, ..inner };
    let (out, counts) = joined(&[inner, second, outer], &[]);
    assert_eq!((out.len(), counts.ambiguous > 0), (3, true));
    // What began when the first token was out did not delay it.
    let late = View { start: 111 * MS, end: 300 * MS, ..inner };
    assert_eq!(joined(&[late, outer], &[]).0.len(), 2);
}

#[test]
fn engines_are_found_by_id_by_caller_or_by_a_trace_of_their_own() {
    let told = Figures { queue: Some(20 * MS), prefill: Some(30 * MS), ..Figures::default() };
    let lone = traced(view(Vantage::Server, CLIENT, 0, 110), 7, 1);
    for e in [
        Engine { caller: Some(caller_key(7, 1)), ..engine(Source::Otlp, told) },
        Engine { trace: Some(trace_key(7)), ..engine(Source::Otlp, told) },
    ] {
        let (out, counts) = joined(&[lone], &[e]);
        assert_eq!((ms(out[0].split.unwrap().queue), counts.engines), (Some(20), [0, 1, 0]));
        // Two of them: which is which?
        let (out, counts) = joined(&[lone], &[e, e]);
        assert_eq!((out[0].split, counts.ambiguous, counts.lonely), (None, 1, [0, 2, 0]));
    }
    // Another request of the trace may be the one that the engine means.
    let other = traced(view(Vantage::Server, UPSTREAM, 500, 110), 7, 2);
    let (out, _) = joined(&[lone, other], &[Engine { trace: Some(trace_key(7)), ..engine(Source::Otlp, told) }]);
    assert_eq!(out[0].split, None);
    let (_, counts) = joined(&[], &[engine(Source::Hook, told)]);
    assert_eq!(counts.dropped, [1, 0, 0]);
}

#[test]
fn what_tells_most_of_the_phases_is_taken() {
    let in_answer = Figures { queue: Some(5 * MS), prefill: Some(30 * MS), ..Figures::default() };
    let lone = View { told: Some(in_answer), ..named(view(Vantage::Server, CLIENT, 0, 110), "chatcmpl-aaaaaaaa") };
    let by_hook = |figures| Engine { ids: [id_key("aaaaaaaa"), None], ..engine(Source::Hook, figures) };
    let (out, _) = joined(&[lone], &[by_hook(Figures { ttft: Some(40 * MS), ..Figures::default() })]);
    let split = out[0].split.unwrap();
    assert_eq!((split.source, ms(split.queue), ms(split.engine_ttft)), (Some(Source::Answer), Some(5), Some(40)));
    let (out, _) = joined(&[lone], &[by_hook(Figures { queue: Some(6 * MS), prefill: Some(31 * MS), ..Figures::default() })]);
    assert_eq!((out[0].split.unwrap().source, ms(out[0].split.unwrap().queue)), (Some(Source::Hook), Some(6)));
}

#[test]
fn an_engine_that_only_waits_before_its_prefill_has_its_queue_derived() {
    let told = Figures { prefill: Some(30 * MS), decode: Some(80 * MS), ..Figures::default() };
    let llama = View { told: Some(told), waits_only: true, ..view(Vantage::Server, CLIENT, 0, 110) };
    let split = joined(&[llama], &[]).0[0].split.unwrap();
    assert_eq!((ms(split.queue), split.queue_derived, ms(split.prefill), split.unattributed / MS), (Some(79), true, Some(30), 1));
    // Seen from a client there is a network in it, and other engines do other things.
    for v in [View { vantage: Vantage::Client, ..llama }, View { waits_only: false, ..llama }] {
        let split = joined(&[v], &[]).0[0].split.unwrap();
        assert_eq!((split.queue, split.queue_derived, split.unattributed / MS), (None, false, 80));
    }
    // An answer that is no stream: its decode is a part.
    let whole = View { whole: Whole::Duration, reach: Some(120 * MS), ..llama };
    let split = joined(&[whole], &[]).0[0].split.unwrap();
    assert_eq!((ms(split.queue), ms(split.decode), split.parts()), (Some(9), Some(80), 120 * MS));
}

#[test]
fn a_contradiction_is_cut_and_counted() {
    let told = Figures { queue: Some(90 * MS), prefill: Some(80 * MS), decode: Some(500 * MS), ..Figures::default() };
    let (out, counts) = joined(&[View { told: Some(told), ..view(Vantage::Server, CLIENT, 0, 110) }], &[]);
    let split = out[0].split.unwrap();
    assert_eq!((ms(split.prefill), ms(split.queue), ms(split.decode)), (Some(80), Some(30), Some(100)));
    assert!(split.contradicts && counts.contradictions == 1 && split.parts() == split.total);
    // A server that says its first token came later than its client had it.
    let (out, counts) = joined(&[view(Vantage::Server, CLIENT, 0, 150), view(Vantage::Client, CLIENT, 0, 110)], &[]);
    assert_eq!((ms(out[0].split.unwrap().network), counts.contradictions), (Some(0), 1));
}

#[test]
fn what_waits_is_bounded_and_leaves_in_order() {
    let (mut book, mut out) = (Book::new(Limits { views: 100, engines: 50, wait: WAIT }), Vec::new());
    for n in 0..1_000_u64 {
        let v = traced(view(Vantage::Client, ((n % 60_000) as u16, 80), n, 10), 7, 1);
        book.view(n, v, Duration::ZERO, &mut out);
        book.engine(Engine { ids: [Some(n), None], ..engine(Source::Hook, Figures::default()) }, Duration::ZERO);
        let (views, engines) = book.waiting();
        assert!(views <= 100 && engines <= 50);
    }
    assert_eq!((book.counts().evicted, book.counts().dropped), (900, [950, 0, 0]));
    book.rest(&mut out);
    assert_eq!(tokens(&out).concat(), (0..1_000).collect::<Vec<_>>());
    assert!(book.by_key.is_empty() && book.engine_by_key.is_empty() && book.wires.is_empty());
}

fn any_view() -> impl Strategy<Value = View> {
    let vantage = prop_oneof![Just(Vantage::Client), Just(Vantage::Server), Just(Vantage::Unknown)];
    let lengths = (prop::option::of(0..400_u64), prop::option::of(0..50_u64), prop::option::of(0..400_u64));
    let told = prop::option::of((prop::option::of(0..u64::MAX), prop::option::of(0..300 * MS), prop::option::of(0..300 * MS)));
    (vantage, 0..3_u16, 0..3_u16, 0..300_u64, lengths, told, 0..3_u64, 0..4_u64, any::<(bool, bool)>()).prop_map(
        |(vantage, client, server, start, (reach, sent, rest), told, id, span, (stream, waits_only))| {
            let mut v = view(vantage, (client, 100 + server), start, reach.unwrap_or(50));
            (v.reach, v.sent, v.rest) = (reach.map(|r| r * MS), sent.map(|s| s * MS), rest.map(|r| r * MS));
            v.whole = if stream { Whole::Ttft } else { Whole::Duration };
            v.waits_only = waits_only;
            v.told = told.map(|(queue, prefill, decode)| Figures { queue, prefill, decode, ..Figures::default() }.completed());
            v.pid = Some(u32::from(client));
            v.keys.ids[0] = (id > 0).then_some(id);
            if span > 0 { traced(v, 9, span) } else { v }
        },
    )
}

fn any_engine() -> impl Strategy<Value = Engine> {
    (0..3_usize, prop::option::of(0..u64::MAX), prop::option::of(0..200 * MS), 0..3_u64, 0..4_u64).prop_map(
        |(source, queue, prefill, id, span)| {
            let figures = Figures { queue, prefill, ..Figures::default() }.completed();
            let (caller, trace) = (Some(caller_key(9, span)), Some(trace_key(9)));
            Engine { ids: [(id > 0).then_some(id), None], caller, trace, ..engine(Source::ALL[source], figures) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn parts_never_exceed_the_whole_and_nobody_leaves_twice(
        steps in prop::collection::vec((prop_oneof![any_view().prop_map(Ok), any_engine().prop_map(Err)], 0..400_u64), 0..40),
        views in 1..20_usize,
    ) {
        let (mut book, mut out) = (Book::new(Limits { views, engines: 5, wait: WAIT }), Vec::new());
        let (mut now, mut given) = (Duration::ZERO, Vec::new());
        for (n, (step, pause)) in steps.iter().enumerate() {
            now += Duration::from_millis(*pause);
            match step {
                Ok(v) => {
                    given.push(n as u64);
                    book.view(n as u64, *v, now, &mut out);
                }
                Err(e) => book.engine(*e, now),
            }
            book.due(now, &mut out);
            prop_assert!(book.waiting().0 <= views && book.waiting().1 <= 5);
        }
        book.rest(&mut out);
        let mut left = tokens(&out).concat();
        left.sort_unstable();
        prop_assert_eq!(left, given);
        prop_assert!(book.by_key.is_empty() && book.engine_by_key.is_empty() && book.wires.is_empty());
        for joined in &out {
            let Some(split) = joined.split else { continue };
            prop_assert_eq!(split.parts(), split.total);
            let first = joined.seats.first().and_then(|s| steps[s.token as usize].0.as_ref().ok()).unwrap();
            prop_assert_eq!(Some(split.total), first.reach);
            prop_assert!(split.whole == Whole::Duration || split.decode.is_none_or(|d| d <= first.rest.unwrap_or(0)));
        }
    }
}
