//! A conversation on a stream of HTTP/2 (RFC 8441) gives the records that it gives on a connection of its own.

use std::time::Duration;

use tokengauge_core::anomaly::Anomaly;
use tokengauge_tests::figures::{differences, invented};
use tokengauge_tests::flow::{Flow, Measured, Step, Who, fixtures};
use tokengauge_tests::h2::{Style, websocket_over_h2};

#[test]
fn a_stream_of_http_2_is_a_websocket_like_any_other() {
    let (mut wrong, mut carried, mut records) = (Vec::new(), 0, 0);
    for (_, flow) in fixtures() {
        for style in [Style::PLAIN, Style::USUAL, Style::ODD] {
            let Some(h2) = websocket_over_h2(&flow, style) else { continue };
            let (clean, got) = (flow.measure(), h2.measure());
            carried += 1;
            records += got.inferences.len();
            let mut bad = differences(&clean.inferences, &got.inferences, Duration::ZERO);
            // RFC 8441 §5: 200 stands for 101.
            bad.retain(|b| !b.contains(": response.status Number(Some(200.0)), not Number(Some(101.0))"));
            for size in [1, 7, 50] {
                let cut = h2.cut(size).measure();
                bad.extend(differences(&got.inferences, &cut.inferences, Duration::ZERO).into_iter().map(|b| format!("cut {size}: {b}")));
            }
            wrong.extend(bad.into_iter().map(|b| format!("{} {style:?}: {b}", flow.name)));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(carried > 30 && records > 30, "{carried} carried, {records} records");
}

#[test]
fn a_gap_at_every_write_invents_nothing() {
    let mut wrong = Vec::new();
    for flow in fixtures().into_iter().filter_map(|(_, flow)| websocket_over_h2(&flow, Style::USUAL)) {
        let clean = flow.measure();
        for (n, step) in flow.steps.iter().enumerate() {
            let Step::Data(at, who, bytes) = step else { continue };
            for told in [Some(bytes.len() as u64), None] {
                let mut steps = flow.steps.clone();
                steps[n] = Step::Gap(*at, *who, told);
                let bad = invented(&clean.inferences, &flow.with(steps).measure().inferences, Duration::ZERO);
                wrong.extend(bad.into_iter().map(|b| format!("{} write {n} told {told:?}: {b}", flow.name)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// What no API speaks is let go without the connection, and a refusal is an answer.
#[test]
fn a_tunnel_of_somebody_else_leaves_the_connection_alone() {
    let flow = |path: &str, status: u16| {
        let text =
            format!("0 > @ws-open http://h{path}\n5 < @ws-accept\n10 > @ws {{\"a\":1}}\n20 < @ws {{\"b\":2}}\n30 < @ws-close 1000\n");
        let mut h2 = websocket_over_h2(&Flow::parse("other", &text).unwrap(), Style::PLAIN).unwrap();
        if status == 404 {
            for step in &mut h2.steps {
                if let Step::Data(_, Who::Server, bytes) = step {
                    // `:status: 200` and `:status: 404` of the static table.
                    bytes.iter_mut().filter(|b| **b == 0x88).for_each(|b| *b = 0x8d);
                }
            }
        }
        h2.measure()
    };
    let known = |m: &Measured| (m.inferences.len(), m.stats.anomalies.of(Anomaly::Upgraded), m.stats.open_connections);
    assert_eq!(known(&flow("/chat", 404)), (0, 0, 0));
    let refused = flow("/v1/realtime?model=m", 404);
    assert_eq!((refused.inferences.len(), refused.inferences[0].response.status), (1, Some(404)));
    let (records, _, open) = known(&flow("/chat", 200));
    assert_eq!((records, open), (0, 0));
}
