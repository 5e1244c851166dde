//! Every flow measures to its `.expect`, and what must hold for all flows.
//!
//! `UPDATE_EXPECT=1 cargo test -p tokengauge-tests --test golden` writes the `.expect` files; read them before you commit them.

use std::time::Duration;

use tokengauge_core::inference::Vantage;
use tokengauge_tests::figures::invented;
use tokengauge_tests::flow::{Ended, Flow, Measured, OPEN, Step, Who, fixtures};

#[test]
fn every_flow_measures_to_its_expect() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut wrong = Vec::new();
    for (path, flow) in fixtures() {
        let (got, expect) = (flow.measure().show(), path.with_extension("expect"));
        if update {
            std::fs::write(&expect, &got).unwrap();
        }
        let want = std::fs::read_to_string(&expect).unwrap_or_default();
        if got != want {
            wrong.push(format!("== {}\n-- expected\n{want}-- measured\n{got}", flow.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pieces_of_every_size_measure_the_same() {
    for (_, flow) in fixtures() {
        let whole = flow.measure();
        for size in 1..=64 {
            let cut = flow.cut(size).measure();
            assert_eq!(cut, whole, "{} in pieces of {size}", flow.name);
        }
    }
}

#[test]
fn the_other_side_sees_the_same() {
    let other = |v| match v {
        Vantage::Client => Vantage::Server,
        Vantage::Server => Vantage::Client,
        Vantage::Unknown => Vantage::Unknown,
    };
    for (_, flow) in fixtures() {
        if flow.steps.iter().any(|s| matches!(s, Step::End(_, Ended::Released))) {
            // Who lets go is the tapped process: on the other side it is another event.
            continue;
        }
        let mut seen = flow.flipped().measure();
        for i in &mut seen.inferences {
            i.vantage = other(i.vantage);
        }
        assert_eq!(seen, flow.measure(), "{}", flow.name);
    }
}

fn lossy_flows() -> impl Iterator<Item = Flow> {
    fixtures().into_iter().map(|(_, flow)| flow).filter(|f| OPEN.iter().all(|(name, _)| *name != f.name))
}

/// Loses bytes `from..to` of write `n` of a flow; the length of the hole is told or not.
fn lose(flow: &Flow, n: usize, from: usize, to: usize, told: bool) -> Flow {
    let mut steps = flow.steps.clone();
    let Step::Data(at, who, bytes) = &flow.steps[n] else { return flow.clone() };
    let mut new = vec![
        Step::Data(*at, *who, bytes[..from].to_vec()),
        Step::Gap(*at, *who, told.then_some((to - from) as u64)),
        Step::Data(*at, *who, bytes[to..].to_vec()),
    ];
    new.retain(|s| !matches!(s, Step::Data(_, _, b) if b.is_empty()));
    steps.splice(n..=n, new);
    flow.with(steps)
}

/// Where frames and lines begin in a write.
fn frames(bytes: &[u8]) -> Vec<usize> {
    let mut at = vec![0];
    at.extend((1..bytes.len()).filter(|&i| bytes[i - 1] == b'\n'));
    at.push(bytes.len());
    at
}

fn check_loss(flow: &Flow, clean: &Measured, n: usize, from: usize, to: usize, wrong: &mut Vec<String>) {
    for told in [true, false] {
        let got = lose(flow, n, from, to, told).measure();
        let mut bad = invented(&clean.inferences, &got.inferences, Duration::ZERO);
        if got.stats.gaps.iter().sum::<u64>() != 1 + clean.stats.gaps.iter().sum::<u64>() {
            // After a mute nothing is counted any more; the flow says so by its anomalies.
            let muted = got.stats.anomalies.iter().any(|(a, _)| matches!(a.as_str(), "not_http" | "not_llm" | "upgraded"));
            if !muted && clean.stats.inferences > 0 && got.stats.open_connections > 0 {
                bad.push("the gap was not counted".into());
            }
        }
        wrong.extend(bad.into_iter().map(|b| format!("{} write {n} bytes {from}..{to} told {told}: {b}", flow.name)));
    }
}

fn writes(flow: &Flow) -> impl Iterator<Item = (usize, Who, &Vec<u8>)> {
    flow.steps.iter().enumerate().filter_map(|(n, s)| match s {
        Step::Data(_, who, bytes) => Some((n, *who, bytes)),
        _ => None,
    })
}

fn report(wrong: &[String]) {
    let shown: Vec<&str> = wrong.iter().take(60).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} figures that the clean flow has not:\n{}", wrong.len(), shown.join("\n"));
}

#[test]
fn a_gap_at_every_write_and_every_frame_invents_nothing() {
    let mut wrong = Vec::new();
    for flow in lossy_flows() {
        let clean = flow.measure();
        for (n, _, bytes) in writes(&flow) {
            check_loss(&flow, &clean, n, 0, bytes.len(), &mut wrong);
            let starts = frames(bytes);
            for pair in starts.windows(2) {
                check_loss(&flow, &clean, n, pair[0], pair[1], &mut wrong);
            }
            // From here to the end of the write.
            for from in &starts[1..starts.len() - 1] {
                check_loss(&flow, &clean, n, *from, bytes.len(), &mut wrong);
            }
        }
    }
    report(&wrong);
}

#[test]
fn a_gap_anywhere_invents_nothing() {
    let mut wrong = Vec::new();
    // A multiplicative generator: the same places in every run.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n.max(1) as u64) as usize
    };
    for flow in lossy_flows() {
        let clean = flow.measure();
        for (n, _, bytes) in writes(&flow) {
            for _ in 0..24 {
                let from = below(bytes.len());
                let most = bytes.len() - from;
                let len = 1 + if below(2) == 0 { below(most.min(16)) } else { below(most) };
                check_loss(&flow, &clean, n, from, (from + len).min(bytes.len()), &mut wrong);
            }
        }
    }
    report(&wrong);
}

#[test]
fn an_input_that_ends_anywhere_invents_nothing() {
    let mut wrong = Vec::new();
    for flow in lossy_flows() {
        let clean = flow.measure();
        for n in 0..flow.steps.len() {
            let at = flow.steps[n].at();
            let mut steps = flow.steps[..n].to_vec();
            steps.push(Step::End(at, Ended::Input));
            let mut got = flow.with(steps).measure();
            // What is counted until the end is lower without a gap.
            got.inferences.iter_mut().for_each(|i| i.gaps = i.gaps.max(1));
            let bad = invented(&clean.inferences, &got.inferences, Duration::ZERO);
            wrong.extend(bad.into_iter().map(|b| format!("{} ended before step {n}: {b}", flow.name)));
        }
    }
    report(&wrong);
}
