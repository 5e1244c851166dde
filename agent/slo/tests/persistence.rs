//! What is kept over a restart, a change of the files, and a step of the clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests state their expectations by unwrap")]

mod common;

use common::{DAY, HOUR, MINUTE, SECOND, objective, request, slo};
use proptest::prelude::*;
use tokengauge_slo::book::Book;
use tokengauge_slo::engine::Engine;
use tokengauge_slo::model::{Budgeting, CalendarUnit, Dimension, GroupBy, Slo, Verdict, Window};
use tokengauge_slo::request::Request;
use tokengauge_slo::snapshot::{Told, apply, decode, encode};
use tokengauge_slo::status::{Sight, Status};

const START: u64 = 20_000 * DAY;

fn slos() -> Vec<Slo> {
    let grouped = Slo { name: "grouped".into(), group_by: Some(GroupBy { by: vec![Dimension::Model], limit: 2 }), ..slo() };
    let mut sliced = Slo { name: "sliced".into(), budgeting: Budgeting::Timeslices, ..slo() };
    sliced.objectives[0].time_slice_target = Some(0.5);
    let month = Window::Calendar { count: 1, unit: CalendarUnit::Day, start: "2026-01-01 00:00:00".into(), time_zone: "UTC".into() };
    let monthly = Slo { name: "monthly".into(), window: month, ..slo() };
    let mut composite = Slo { name: "composite".into(), composite: true, ..slo() };
    composite.objectives.push(objective("99%", 0.99));
    vec![slo(), grouped, sliced, monthly, composite]
}

fn traffic(engine: &mut Engine, from: u64, to: u64) {
    let mut t = from;
    let models = ["a", "b", "c"];
    while t < to {
        let n = (t / SECOND) as usize;
        let verdict = if n.is_multiple_of(7) { Verdict::Bad } else { Verdict::Good };
        engine.observe(&Request { model: Some(models[n % 3]), ..request(verdict) }, t);
        t += 13 * SECOND;
    }
}

/// Everything but the alerts' beginnings, which an instant of evaluation decides.
fn same(a: &[Status], b: &[Status]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let plain = |s: &Status| Status { firing: s.firing.map(|f| f.map(|_| 0)), ..s.clone() };
        assert_eq!(plain(a), plain(b));
    }
}

fn restored(book: &Book, slos: Vec<Slo>, now: u64) -> Engine {
    let mut engine = Engine::new(slos, now).unwrap();
    engine.adopt(decode(&encode(book)).unwrap(), now);
    engine
}

#[test]
fn a_book_survives_its_bytes() {
    let mut engine = Engine::new(slos(), START).unwrap();
    traffic(&mut engine, START + SECOND, START + 30 * HOUR);
    let now = START + 30 * HOUR;
    engine.evaluate(now);
    let mut other = restored(&engine.book(), slos(), now);
    same(engine.statuses(), other.evaluate(now));
    traffic(&mut engine, now + SECOND, now + HOUR);
    traffic(&mut other, now + SECOND, now + HOUR);
    same(engine.evaluate(now + HOUR), other.evaluate(now + HOUR));
}

#[test]
fn a_journal_of_seconds_brings_a_book_to_the_same_state() {
    let mut engine = Engine::new(slos(), START).unwrap();
    let mut book = decode(&encode(&engine.book())).unwrap();
    let mut told = Told::all(&engine);
    let mut t = START;
    while t < START + 3 * HOUR {
        let next = t + MINUTE;
        traffic(&mut engine, t + SECOND, next);
        engine.evaluate(next);
        apply(&mut book, &told.changes(&engine)).unwrap();
        t = next;
    }
    let mut other = restored(&book, slos(), t);
    let (a, b) = (engine.evaluate(t).to_vec(), other.evaluate(t).to_vec());
    for (a, b) in a.iter().zip(&b) {
        assert_eq!((a.counters, a.valid, a.good, a.excluded, a.slices), (b.counters, b.valid, b.good, b.excluded, b.slices));
        assert_eq!(a.firing, b.firing);
        assert_eq!(a.burn.last(), b.burn.last());
    }
}

#[test]
fn a_changed_target_keeps_history_and_a_changed_indicator_does_not() {
    let mut engine = Engine::new(vec![slo()], START).unwrap();
    traffic(&mut engine, START + SECOND, START + HOUR);
    let before = engine.evaluate(START + HOUR)[0].clone();
    let mut changed = slo();
    changed.objectives[0].target = 0.5;
    changed.window = Window::Rolling { seconds: 7 * 86_400 };
    engine.replace(vec![changed], START + HOUR).unwrap();
    let after = engine.evaluate(START + HOUR)[0].clone();
    assert_eq!((after.counters, after.valid), (before.counters, before.valid));
    assert!(after.budget_remaining > before.budget_remaining);
    let mut other = slo();
    other.objectives[0].sli.policy.cancelled = Verdict::Bad;
    engine.replace(vec![other], START + HOUR).unwrap();
    assert_eq!(engine.evaluate(START + HOUR)[0].counters.valid(), 0);
}

#[test]
fn time_away_is_time_not_seen_and_what_fires_goes_on_firing() {
    let mut engine = Engine::new(vec![slo()], START).unwrap();
    let mut t = START;
    for _ in 0..120 {
        t += MINUTE;
        engine.observe_many(&request(Verdict::Good), 100, t);
        engine.evaluate(t);
    }
    for _ in 0..5 {
        t += MINUTE;
        engine.observe_many(&request(Verdict::Bad), 100, t);
        engine.evaluate(t);
    }
    assert!(engine.statuses()[0].firing[0].is_some());
    let book = engine.book();
    let back = t + HOUR;
    let mut engine = restored(&book, vec![slo()], back);
    let status = engine.evaluate(back)[0].clone();
    assert_eq!(status.sight, Sight::Blind);
    assert!(status.firing[0].is_some(), "frozen");
    assert!(status.coverage < 0.01);
    let mut t = back;
    for _ in 0..5 {
        t += MINUTE;
        engine.observe_many(&request(Verdict::Good), 100, t);
        engine.evaluate(t);
    }
    let status = &engine.statuses()[0];
    assert_eq!((status.sight, status.firing[0]), (Sight::Observed, None));
    assert_eq!(status.counters.valid(), 13_000);
}

#[test]
fn a_clock_that_is_set_moves_no_window() {
    for step in [-3_600i64, 3_600, -86_400 * 400] {
        let mut set = Engine::new(vec![slo()], START).unwrap();
        let mut left = Engine::new(vec![slo()], START).unwrap();
        traffic(&mut set, START + SECOND, START + 2 * HOUR);
        traffic(&mut left, START + SECOND, START + 2 * HOUR);
        let now = START + 2 * HOUR;
        set.evaluate(now);
        left.evaluate(now);
        set.clock_stepped(step * SECOND as i64);
        let moved = |t: u64| t.saturating_add_signed(step * SECOND as i64);
        for i in 1..120 {
            let t = now + i * MINUTE;
            set.observe(&request(Verdict::Bad), moved(t));
            left.observe(&request(Verdict::Bad), t);
            assert_eq!(set.evaluate(moved(t)), left.evaluate(t), "{step}");
        }
    }
}

#[test]
fn a_clock_set_back_during_a_restart_loses_nothing() {
    let mut engine = Engine::new(vec![slo()], START).unwrap();
    traffic(&mut engine, START + SECOND, START + HOUR);
    let before = engine.evaluate(START + HOUR)[0].clone();
    // It comes up before its own past, as without a battery; NTP then puts it right.
    let mut back = restored(&engine.book(), vec![slo()], START - DAY);
    let after = back.evaluate(START - DAY)[0].clone();
    assert_eq!((after.valid, after.good, after.budget_remaining), (before.valid, before.good, before.budget_remaining));
    back.observe(&request(Verdict::Bad), START - DAY + SECOND);
    back.clock_stepped((DAY + HOUR) as i64);
    let after = back.evaluate(START + HOUR + 2 * SECOND)[0].clone();
    assert_eq!((after.valid, after.sight), (before.valid + 1, Sight::Observed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Bytes from a disk are never trusted.
    #[test]
    fn damaged_books_are_refused_and_nothing_panics(cut in 0usize..4_000, flips in prop::collection::vec((0usize..4_000, any::<u8>()), 0..4)) {
        let mut engine = Engine::new(slos(), START).unwrap();
        traffic(&mut engine, START + SECOND, START + 20 * MINUTE);
        engine.evaluate(START + 20 * MINUTE);
        let mut bytes = encode(&engine.book());
        bytes.truncate(cut.max(bytes.len() / 2));
        for (at, xor) in flips {
            let len = bytes.len();
            bytes[at % len] ^= xor;
        }
        if let Ok(book) = decode(&bytes) {
            let now = (book.now.min(u64::MAX / 4)).saturating_add(SECOND);
            if book.now < START * 2 {
                let mut engine = Engine::new(slos(), now).unwrap();
                engine.adopt(book, now);
                engine.evaluate(now);
            }
        }
        let mut book = engine.book();
        let _ = apply(&mut book, &bytes);
    }
}
