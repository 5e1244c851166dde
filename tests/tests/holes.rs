//! A hole in the capture is located: the record says when, and how many bytes are missing, whatever carries the answer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states its expectations so")]

use std::time::Duration;

use tokengauge_core::inference::{Inference, MAX_HOLES};
use tokengauge_tests::flow::{Flow, Step, Who};
use tokengauge_tests::h2::{Style, over_h2, websocket_over_h2};

/// Instants since the request, in milliseconds, and bytes.
fn holes(i: &Inference) -> Vec<(u128, Option<u64>)> {
    i.timing.holes.iter().map(|h| (h.at.since(i.timing.start).as_millis(), h.bytes)).collect()
}

/// The flow with the server's bytes at these milliseconds missing.
fn without(flow: &Flow, at: &[u64], told: bool) -> (Flow, Vec<(u128, Option<u64>)>) {
    let mut want = Vec::new();
    let steps = flow.steps.iter().map(|step| match step {
        Step::Data(when, Who::Server, bytes) if at.iter().any(|ms| *when == Duration::from_millis(*ms)) => {
            let len = told.then_some(bytes.len() as u64);
            want.push((when.as_millis(), len));
            Step::Gap(*when, Who::Server, len)
        }
        other => other.clone(),
    });
    let steps = steps.collect();
    (flow.with(steps), want)
}

fn streamed() -> Flow {
    let chunk = |at: u32, text: &str| {
        format!(
            "{at} < @data {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n"
        )
    };
    let head = "0 > @post https://api.openai.com/v1/chat/completions {\"model\":\"m\",\"stream\":true,\"messages\":[]}\n10 < @head 200 text/event-stream\n";
    let body: String = (2..=9).map(|n| chunk(n * 10, &"word ".repeat(n as usize))).collect();
    Flow::parse("streamed", &format!("{head}{body}100 < @data [DONE]\n101 < @last\n")).unwrap()
}

#[test]
fn on_every_version_of_http() {
    let mut flows = vec![streamed()];
    flows.extend([Style::PLAIN, Style::USUAL].map(|style| over_h2(&streamed(), style).unwrap()));
    for flow in flows {
        let whole = flow.measure();
        assert_eq!(holes(&whole.inferences[0]), []);
        for told in [true, false] {
            let (cut, want) = without(&flow, &[40, 70], told);
            let got = cut.measure();
            assert_eq!((want.len(), got.inferences.len()), (2, 1), "{}", flow.name);
            let i = &got.inferences[0];
            assert_eq!((holes(i), i.gaps as usize), (want, 2), "{} told: {told}", i.protocol);
            assert_eq!(i.timing.ttft, whole.inferences[0].timing.ttft);
        }
    }
}

#[test]
fn in_a_conversation() {
    let delta = |at: u32| {
        format!(
            "{at} < @ws {{\"type\":\"response.output_text.delta\",\"response_id\":\"r1\",\"item_id\":\"i\",\"output_index\":0,\"content_index\":0,\"delta\":\"a\"}}\n"
        )
    };
    let text = format!(
        "0 > @ws-open https://api.openai.com/v1/realtime?model=m\n5 < @ws-accept\n10 > @ws {{\"type\":\"response.create\"}}\n\
         12 < @ws {{\"type\":\"response.created\",\"response\":{{\"id\":\"r1\",\"status\":\"in_progress\"}}}}\n{}{}{}\
         50 < @ws {{\"type\":\"response.done\",\"response\":{{\"id\":\"r1\",\"status\":\"completed\"}}}}\n60 > @ws-close 1000\n61 < @ws-close 1000\n",
        delta(20),
        delta(30),
        delta(40)
    );
    let flow = Flow::parse("ws", &text).unwrap();
    for flow in [Some(flow.clone()), websocket_over_h2(&flow, Style::PLAIN)].into_iter().flatten() {
        let (cut, want) = without(&flow, &[30], true);
        let got = cut.measure();
        assert_eq!((want.len(), got.inferences.len()), (1, 1));
        let i = &got.inferences[0];
        // A turn begins with the message that asks for it, 10 ms behind the connection.
        let [(at, bytes)] = holes(i)[..] else { panic!("{:?}", i.timing.holes) };
        assert_eq!((at + 10, bytes), want[0]);
    }
}

#[test]
fn as_many_as_are_kept() {
    let mut flow = streamed();
    let steps = flow.steps.clone();
    let last = steps.iter().rposition(|s| matches!(s, Step::Data(..))).unwrap();
    let gap = |n: u64| Step::Gap(Duration::from_millis(90) + Duration::from_micros(n), Who::Server, None);
    flow.steps.splice(last..last, (0..100).map(gap));
    let i = &flow.measure().inferences[0];
    assert_eq!((i.timing.holes.len(), i.gaps), (MAX_HOLES, 100));
}
