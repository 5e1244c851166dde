//! Flows carried as TCP packets: what the network does to them must not change what is measured, and what the capture loses must
//! not be made up.

use std::time::Duration;

use tokengauge_core::inference::Inference;
use tokengauge_core::tcp::build::Fault;
use tokengauge_core::tcp::packet::{ACK, FIN};
use tokengauge_tests::carry::{can_carry, carry};
use tokengauge_tests::figures::{differences, invented};
use tokengauge_tests::flow::{Flow, OPEN, Seat, fixtures};

const TOLERANCE: Duration = Duration::from_micros(100);
/// Segments large enough for every write of every flow, as the wire mostly has it, and small ones.
const SIZES: [usize; 2] = [60_000, 200];

fn lossy_flows() -> impl Iterator<Item = Flow> {
    flows().into_iter().filter(|f| OPEN.iter().all(|(name, _)| *name != f.name))
}

fn flows() -> Vec<Flow> {
    fixtures().into_iter().map(|(_, flow)| Flow { seat: Seat::Middle, ..flow }).filter(can_carry).collect()
}

fn report(wrong: &[String]) {
    let shown: Vec<&str> = wrong.iter().take(60).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), shown.join("\n"));
}

#[test]
fn packets_measure_as_streams_do() {
    let mut wrong = Vec::new();
    for flow in flows() {
        let direct = flow.measure();
        let (carried, _) = carry(&flow, SIZES[0], &[]).measure();
        let mut bad = differences(&direct.inferences, &carried.inferences, TOLERANCE);
        // The tap is another one: a packet capture in both.
        bad.retain(|b| !b.contains(": tap "));
        wrong.extend(bad.into_iter().map(|b| format!("{}: {b}", flow.name)));
    }
    report(&wrong);
}

#[test]
fn retransmitted_reordered_and_duplicated_packets_change_nothing() {
    let mut wrong = Vec::new();
    for flow in flows() {
        for size in SIZES {
            let (clean, _) = carry(&flow, size, &[]).measure();
            for fault in [Fault::Retransmit(1), Fault::Retransmit(3), Fault::Reorder(2), Fault::Reorder(3), Fault::Twice] {
                let (got, _) = carry(&flow, size, &[fault]).measure();
                let mut bad = differences(&clean.inferences, &got.inferences, TOLERANCE);
                if got.stats.anomalies != clean.stats.anomalies || got.stats.gaps != clean.stats.gaps {
                    bad.push("other anomalies or gaps".into());
                }
                if size < SIZES[0] && matches!(fault, Fault::Reorder(_)) {
                    // Pieces of one write that change places are readable at one instant instead of 0.1 µs apart.
                    let burst = |i: &Inference| i.timing.max_stall.is_ok_and(|s| s < Duration::from_micros(1));
                    let moved =
                        if clean.inferences.iter().any(burst) { &["arrivals", "reasons", "tpot", "max_stall"][..] } else { &["arrivals"] };
                    bad.retain(|b| !moved.iter().any(|m| b.contains(m)));
                }
                wrong.extend(bad.into_iter().map(|b| format!("{} segments of {size} {fault:?}: {b}", flow.name)));
            }
        }
    }
    report(&wrong);
}

#[test]
fn one_packet_lost_anywhere_invents_nothing_and_is_counted() {
    let mut wrong = Vec::new();
    for flow in lossy_flows() {
        for size in SIZES {
            let carried = carry(&flow, size, &[]);
            let (clean, _) = carried.measure();
            let carriers = carried.packets.iter().filter(|(_, p)| !p.payload.is_empty()).count();
            for n in 0..carried.packets.len() {
                let (got, counters) = carried.without(n).measure();
                let lost = &carried.packets[n].1;
                let payload = lost.payload.len() as u64;
                // What is behind it in its direction, or acknowledges it, proves the loss; where neither comes, nobody can know.
                let proven = carried.packets[n + 1..].iter().any(|(_, p)| p.source == lost.source || p.flags & ACK != 0);
                let mut bad = if payload == 0 || proven { invented(&clean.inferences, &got.inferences, TOLERANCE) } else { Vec::new() };
                if lost.flags & FIN != 0 {
                    // A lost FIN may change who seems to have gone first.
                    bad.retain(|b| !b.contains("outcome") && !b.contains("error") || !carried.resets());
                }
                let (gaps, bytes): (u64, u64) = (counters.gaps.iter().sum(), counters.gap_bytes);
                // A connection of which no byte was seen is none; a muted one is not watched any more.
                if proven && payload > 0 && carriers > 1 && counters.muted == 0 && (gaps, bytes) != (1, payload) {
                    bad.push(format!("{gaps} gaps of {bytes} bytes, lost were {payload}"));
                }
                wrong.extend(bad.into_iter().map(|b| format!("{} segments of {size}, packet {n} lost: {b}", flow.name)));
            }
        }
    }
    report(&wrong);
}
