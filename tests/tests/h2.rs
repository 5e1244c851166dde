//! What is measured over HTTP/1.1 is measured over HTTP/2: the same records, whatever the peers make of frames and header tables, alone
//! or among others on one connection, whatever the network does to it, and nothing made up where the capture has holes.

use std::time::Duration;

use tokengauge_core::inference::Inference;
use tokengauge_core::tcp::Limits;
use tokengauge_core::tcp::build::Fault;
use tokengauge_core::tcp::packet::{ACK, FIN};
use tokengauge_tests::carry::{can_carry, carry};
use tokengauge_tests::figures::{differences, invented};
use tokengauge_tests::flow::{Flow, Measured, OPEN, Seat, Step, fixtures};
use tokengauge_tests::h2::{Style, over_h2, together};
use tokengauge_tests::recordings;

const TOLERANCE: Duration = Duration::from_micros(100);
const STYLES: [Style; 3] = [Style::PLAIN, Style::USUAL, Style::ODD];

/// Our own flows, and the recordings where there are any.
fn flows() -> Vec<Flow> {
    let own = fixtures().into_iter().map(|(_, flow)| flow);
    own.chain(recordings::all().unwrap_or_default().iter().map(|r| r.flow())).collect()
}

fn report(wrong: &[String]) {
    let shown: Vec<&str> = wrong.iter().take(60).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), shown.join("\n"));
}

/// In what two measurements differ but for the protocol.
fn compare(clean: &Measured, got: &Measured, tolerance: Duration) -> Vec<String> {
    let mut bad = differences(&clean.inferences, &got.inferences, tolerance);
    bad.retain(|b| !b.contains(": protocol "));
    for i in &got.inferences {
        if i.protocol != "http/2" {
            bad.push(format!("protocol {}", i.protocol));
        }
    }
    bad
}

#[test]
fn http_2_measures_as_http_1_does() {
    let (mut wrong, mut carried, mut records) = (Vec::new(), 0, 0);
    for flow in flows() {
        let clean = flow.measure();
        for style in STYLES {
            let Some(h2) = over_h2(&flow, style) else { continue };
            let got = h2.measure();
            carried += 1;
            records += got.inferences.len();
            let mut bad = compare(&clean, &got, Duration::ZERO);
            if (got.stats.exchanges, got.stats.non_llm, got.stats.events)
                != (clean.stats.exchanges, clean.stats.non_llm, clean.stats.events)
            {
                bad.push(format!("{:?}, not {:?}", got.stats, clean.stats));
            }
            wrong.extend(bad.into_iter().map(|b| format!("{} {style:?}: {b}", flow.name)));
        }
    }
    report(&wrong);
    assert!(carried > 300 && records > 200, "{carried} carried, {records} records");
}

#[test]
fn pieces_of_every_size_measure_the_same() {
    let mut wrong = Vec::new();
    for flow in fixtures().into_iter().filter_map(|(_, flow)| over_h2(&flow, Style::ODD)) {
        let whole = flow.measure();
        for size in 1..=64 {
            let cut = flow.cut(size).measure();
            let mut bad = differences(&whole.inferences, &cut.inferences, Duration::ZERO);
            if cut.stats != whole.stats {
                bad.push(format!("{:?}, not {:?}", cut.stats, whole.stats));
            }
            wrong.extend(bad.into_iter().map(|b| format!("{} in pieces of {size}: {b}", flow.name)));
        }
    }
    report(&wrong);
}

/// All flows at once, each a little later, so that their frames stand between each other: the shifted flows, and the connection.
fn all_at_once(flows: Vec<Flow>, style: Style) -> Option<(Vec<Flow>, Flow)> {
    let shifted: Vec<(Flow, Duration)> = flows.into_iter().zip(0..).map(|(f, n)| (f, Duration::from_micros(3137 * n))).collect();
    let (taken, connection) = together(&shifted, style)?;
    let later = |step: &Step, by: Duration| match step.clone() {
        Step::Data(at, who, bytes) => Step::Data(at + by, who, bytes),
        Step::Gap(at, who, len) => Step::Gap(at + by, who, len),
        Step::End(at, end) => Step::End(at + by, end),
        Step::Tick(at) => Step::Tick(at + by),
    };
    let alone = taken.iter().map(|n| &shifted[*n]).map(|(f, by)| f.with(f.steps.iter().map(|s| later(s, *by)).collect()));
    Some((alone.map(|f| Flow { seat: Seat::Client, ..f }).collect(), Flow { seat: Seat::Client, ..connection }))
}

#[test]
fn concurrent_streams_measure_as_connections_of_their_own() {
    for style in STYLES {
        let (alone, connection) = all_at_once(flows(), style).unwrap();
        let mut clean = Measured { inferences: Vec::new(), stats: Default::default() };
        for flow in &alone {
            clean.inferences.extend(flow.measure().inferences);
        }
        let sorted = |mut m: Measured| {
            m.inferences.sort_by_key(|i| (i.timing.start, i.response.id.as_ref().map(|n| n.as_str().to_owned())));
            m
        };
        let (clean, got) = (sorted(clean), sorted(connection.measure()));
        assert!(clean.inferences.len() > 60, "{}", clean.inferences.len());
        report(&compare(&clean, &got, Duration::ZERO));
        for size in [1, 2, 7, 9, 10, 63] {
            let cut = sorted(connection.cut(size).measure());
            report(&compare(&clean, &cut, Duration::ZERO));
        }
    }
}

/// Flows of which a loss may not change what is left.
fn apart() -> Vec<Flow> {
    fixtures().into_iter().map(|(_, f)| f).filter(|f| OPEN.iter().all(|(name, _)| *name != f.name)).collect()
}

fn carriers() -> Vec<Flow> {
    let seen = |f: Flow| Flow { seat: Seat::Middle, ..f };
    let single = fixtures().into_iter().filter(|(_, f)| can_carry(f)).filter_map(|(_, f)| over_h2(&f, Style::USUAL));
    let all = all_at_once(apart(), Style::ODD).map(|(_, flow)| flow);
    single.chain(all).map(seen).collect()
}

#[test]
fn retransmitted_reordered_and_duplicated_packets_change_nothing() {
    let mut wrong = Vec::new();
    for flow in carriers() {
        for size in [60_000, 200] {
            let (clean, _) = carry(&flow, size, &[]).measure();
            for fault in [Fault::Retransmit(1), Fault::Retransmit(3), Fault::Reorder(2), Fault::Reorder(3), Fault::Twice] {
                let (got, _) = carry(&flow, size, &[fault]).measure();
                let mut bad = differences(&clean.inferences, &got.inferences, TOLERANCE);
                if size < 60_000 && matches!(fault, Fault::Reorder(_)) {
                    // Pieces of one write that change places are readable at one instant instead of 0.1 µs apart.
                    bad.retain(|b| !["arrivals", "OneArrival", "tpot Time(None)", "max_stall Time(None)"].iter().any(|w| b.contains(w)));
                }
                wrong.extend(bad.into_iter().map(|b| format!("{} segments of {size} {fault:?}: {b}", flow.name)));
            }
        }
    }
    report(&wrong);
}

/// Of the many packets of many flows at once some are enough.
const SOME: usize = 60;

#[test]
fn one_packet_lost_anywhere_invents_nothing() {
    let mut wrong = Vec::new();
    for flow in carriers().into_iter().filter(|f| OPEN.iter().all(|(name, _)| *name != f.name)) {
        for size in [60_000, 200] {
            let carried = carry(&flow, size, &[]);
            let (clean, _) = carried.measure();
            for n in (0..carried.packets.len()).step_by(carried.packets.len().div_ceil(SOME)) {
                let (got, counters) = carried.without(n).measure();
                let lost = &carried.packets[n].1;
                // What is behind it in its direction, or acknowledges it, proves the loss; where neither comes, nobody can know.
                let proven = carried.packets[n + 1..].iter().any(|(_, p)| p.source == lost.source || p.flags & ACK != 0);
                let mut bad =
                    if lost.payload.is_empty() || proven { invented(&clean.inferences, &got.inferences, TOLERANCE) } else { Vec::new() };
                if lost.flags & FIN != 0 {
                    // A lost FIN may change who seems to have gone first.
                    bad.retain(|b| !b.contains("outcome") && !b.contains("error") || !carried.resets());
                }
                if flow.name == "together" && counters.muted > 0 {
                    bad.push("the connection was given up".into());
                }
                wrong.extend(bad.into_iter().map(|b| format!("{} segments of {size}, packet {n} lost: {b}", flow.name)));
            }
        }
    }
    report(&wrong);
}

/// Where no field refers to another, nothing that comes behind a loss is touched by it.
#[test]
fn behind_a_lost_packet_streams_are_whole() {
    // Until a hole is given up, which takes a grace behind its proof, the requests behind it wait, and what is answered meanwhile is not known to be theirs.
    let near = 3 * Limits::default().grace;
    let (mut wrong, mut compared) = (Vec::new(), 0);
    let (_, all) = all_at_once(apart(), Style { table: false, ..Style::ODD }).unwrap();
    for size in [60_000, 200] {
        let carried = carry(&Flow { seat: Seat::Middle, ..all.clone() }, size, &[]);
        let (clean, _) = carried.measure();
        for n in (0..carried.packets.len()).step_by(carried.packets.len().div_ceil(SOME)) {
            let (got, _) = carried.without(n).measure();
            let behind = |m: &Measured| {
                let mut later: Vec<Inference> = m.inferences.clone();
                later.retain(|i| i.timing.start > carried.packets[n].0.plus(near));
                later.sort_by_key(|i| (i.timing.start, i.trace.span_id));
                later
            };
            let clean = behind(&clean);
            compared += clean.len();
            let bad = differences(&clean, &behind(&got), TOLERANCE);
            wrong.extend(bad.into_iter().map(|b| format!("segments of {size}, packet {n} lost: {b}")));
        }
    }
    report(&wrong);
    assert!(compared > 5_000, "{compared}");
}

#[test]
fn a_gap_at_every_frame_invents_nothing() {
    let mut wrong = Vec::new();
    for flow in fixtures().into_iter().filter_map(|(_, flow)| over_h2(&flow, Style::ODD)) {
        if OPEN.iter().any(|(name, _)| *name == flow.name) {
            continue;
        }
        let clean = flow.measure();
        for (n, step) in flow.steps.iter().enumerate() {
            let Step::Data(at, who, bytes) = step else { continue };
            let mut begins = vec![0];
            while let Some(&[a, b, c]) = begins.last().and_then(|at| bytes.get(*at..*at + 3)) {
                let preface = if n == 0 && begins.len() == 1 { 24 } else { usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c) };
                begins.push(begins[begins.len() - 1] + preface + if n == 0 && begins.len() == 1 { 0 } else { 9 });
            }
            let ends = begins.iter().map(|b| (*b).min(bytes.len())).collect::<Vec<_>>();
            // A frame, its header, its payload's first half, from its middle to the write's end.
            let parts = ends.windows(2).flat_map(|w| {
                let (from, to) = (w[0], w[1]);
                let middle = from + 9 + to.saturating_sub(from + 9) / 2;
                [(from, to), (from, from + 9), (from + 9, middle), (middle, bytes.len()), (middle, to)]
            });
            for (from, to) in parts.map(|(a, b)| (a.min(bytes.len()), b.min(bytes.len()))).filter(|(a, b)| a < b) {
                for told in [true, false] {
                    let mut new = vec![
                        Step::Data(*at, *who, bytes[..from].to_vec()),
                        Step::Gap(*at, *who, told.then_some((to - from) as u64)),
                        Step::Data(*at, *who, bytes[to..].to_vec()),
                    ];
                    new.retain(|s| !matches!(s, Step::Data(_, _, b) if b.is_empty()));
                    let mut steps = flow.steps.clone();
                    steps.splice(n..=n, new);
                    let got = flow.with(steps).measure();
                    let bad = invented(&clean.inferences, &got.inferences, Duration::ZERO);
                    wrong.extend(bad.into_iter().map(|b| format!("{} write {n} bytes {from}..{to} told {told}: {b}", flow.name)));
                }
            }
        }
    }
    report(&wrong);
}
