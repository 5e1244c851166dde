//! Random traffic, counted by the engine, by `exact`, and by the slowest possible way.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests state their expectations by unwrap")]

mod common;

use common::{DAY, HOUR, MINUTE, SECOND, Slow, close, objective, request, slo};
use proptest::prelude::*;
use tokengauge_slo::engine::Engine;
use tokengauge_slo::exact::Exact;
use tokengauge_slo::model::{Budgeting, CalendarUnit, Slo, Verdict, Window};
use tokengauge_slo::ring::Geometry;
use tokengauge_slo::window::Frame;

/// A Monday in March 2026, before the clocks of Berlin change.
const START: u64 = 1_774_224_000 * SECOND;

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        6 => Just(Verdict::Good),
        2 => Just(Verdict::Bad),
        1 => Just(Verdict::NotApplicable),
        1 => Just(Verdict::Excluded),
    ]
}

/// Gaps between events: bursts, seconds, whole minutes, and silences of days.
fn traffic(n: usize) -> impl Strategy<Value = Vec<(u64, Verdict)>> {
    let gap = prop_oneof![
        4 => 0..3 * SECOND,
        4 => 0..10 * MINUTE,
        1 => Just(1),
        2 => (0..60u64).prop_map(|m| m * MINUTE),
        1 => 0..2 * DAY,
    ];
    prop::collection::vec((gap, verdict()), 1..n).prop_map(|gaps| {
        let mut t = START;
        gaps.into_iter()
            .map(|(gap, verdict)| {
                t += gap;
                (t, verdict)
            })
            .collect()
    })
}

fn exact(slo: &Slo, events: &[(u64, Verdict)]) -> Exact {
    let mut exact = Exact::new(slo.clone()).unwrap();
    events.iter().rev().for_each(|(t, v)| exact.add(&request(*v), *t));
    exact.finish();
    exact
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Exact: every figure equal, wherever one looks.
    #[test]
    fn backtests_are_exact(events in traffic(80), step in 1..90u64, target in 0.0..0.9999f64) {
        let mut slo = slo();
        slo.objectives[0].target = target;
        let slow = Slow { events: events.clone() };
        let mut exact = exact(&slo, &events);
        let mut t = START;
        let end = events.last().unwrap().0 + HOUR;
        for _ in 0..60 {
            t += (end - START) / 50 / (step * SECOND).max(1) * step * SECOND + step * SECOND;
            let mut lines = Vec::new();
            exact.at(t, &mut lines);
            let (valid, bad, excluded) = slow.counts(t.saturating_sub(30 * DAY), t);
            let line = &lines[0];
            prop_assert_eq!((line.counts.valid, line.counts.bad, u64::from(line.counts.excluded)), (valid, bad, excluded));
            prop_assert!(close(line.budget_remaining, slow.burn(t - 30 * DAY, t, target).map(|b| 1.0 - b)));
            for (w, rate) in &line.burn {
                prop_assert!(close(*rate, slow.burn(t - w * SECOND, t, target)));
            }
        }
    }

    /// The engine: equal to 1e-9 for the window that begins at the mark before; that mark is at most one bucket away.
    #[test]
    fn the_engine_is_exact_to_one_bucket(events in traffic(120), evaluate in prop::collection::vec(any::<bool>(), 120), target in 0.0..0.9999f64) {
        let mut slo = slo();
        slo.objectives[0].target = target;
        let geometry = Geometry::new(3 * 86_400, 30 * 86_400);
        let mut engine = Engine::new(vec![slo], START).unwrap();
        let mut slow = Slow::default();
        for ((t, verdict), evaluate) in events.iter().zip(evaluate) {
            engine.observe(&request(*verdict), *t);
            slow.events.push((*t, *verdict));
            if !evaluate {
                continue;
            }
            let status = &engine.evaluate(*t)[0];
            for (w, rate) in &status.burn {
                let bucket = geometry.resolution_s(*w) * SECOND;
                let from = (t - w * SECOND) / bucket * bucket;
                prop_assert!(close(*rate, slow.burn(from, *t, target)), "{w}: {rate:?} {:?}", slow.burn(from, *t, target));
            }
            let from = (t - 30 * DAY) / HOUR * HOUR;
            prop_assert!(close(status.budget_remaining, slow.burn(from, *t, target).map(|b| 1.0 - b)));
            let (valid, bad, excluded) = slow.counts(from, *t);
            prop_assert_eq!((status.valid, status.good, status.excluded), (valid, valid - bad, excluded));
        }
    }

    /// At whole minutes nothing is lost to buckets in windows up to six hours, nor at whole hours in any: the engine equals `exact`.
    #[test]
    fn engine_and_backtest_agree_at_whole_hours(events in traffic(150), budgeting in 0..3u8, group in any::<bool>()) {
        let mut slo = slo();
        slo.budgeting = [Budgeting::Occurrences, Budgeting::Timeslices, Budgeting::RatioTimeslices][usize::from(budgeting)];
        slo.composite = group;
        let mut second = objective("99%", 0.99);
        second.weight = 2.0;
        slo.objectives.push(second);
        for o in &mut slo.objectives {
            o.time_slice_window_s = Some(300);
            o.time_slice_target = Some(0.6);
        }
        let mut exact = exact(&slo, &events);
        let mut engine = Engine::new(vec![slo.clone()], START - 1).unwrap();
        let mut events = events.into_iter().peekable();
        let slow = Slow { events: events.clone().collect() };
        let mut t = START;
        while events.peek().is_some() {
            t += HOUR;
            while let Some((at, verdict)) = events.next_if(|(at, _)| *at <= t) {
                engine.observe(&request(verdict), at);
            }
            let mut lines = Vec::new();
            exact.at(t, &mut lines);
            let statuses = engine.evaluate(t);
            prop_assert_eq!(lines.len(), statuses.len());
            for (line, status) in lines.iter().zip(statuses) {
                prop_assert_eq!(line.objective, status.objective);
                prop_assert_eq!((line.counts.valid, line.counts.good(), u64::from(line.counts.excluded)), (status.valid, status.good, status.excluded));
                prop_assert!(close(line.budget_remaining, status.budget_remaining), "{line:?}\n{status:?}");
                prop_assert!(line.burn.iter().zip(&status.burn).all(|(a, b)| a.0 == b.0 && close(a.1, b.1)), "{line:?}\n{status:?}");
                prop_assert_eq!(line.firing, status.firing.map(|f| f.is_some()), "{:?}\n{:?}", line, status);
            }
            if budgeting > 0 && events.peek().is_none() {
                let target = (budgeting == 1).then_some(0.6);
                let (n, bad) = slow.slices(t - 30 * DAY, t, 300 * SECOND, target);
                let (slices, badness) = statuses[0].slices.unwrap();
                prop_assert_eq!(slices, n);
                prop_assert!((badness - bad).abs() < 1e-9);
            }
        }
    }

    /// Calendar windows over 40 days with a change of clocks, months, weeks and days.
    #[test]
    fn calendar_budgets_follow_the_calendar(events in traffic(150), unit in 0..4u8, zone in 0..3u8) {
        let unit = [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Quarter][usize::from(unit)];
        let zone = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"][usize::from(zone)];
        let mut slo = slo();
        slo.window = Window::Calendar { count: 1, unit, start: "2026-01-01 02:30:00".into(), time_zone: zone.into() };
        let Frame::Calendar(calendar) = Frame::new(&slo.window).unwrap() else { unreachable!() };
        let slow = Slow { events: events.clone() };
        let mut exact = exact(&slo, &events);
        let mut engine = Engine::new(vec![slo], START - 1).unwrap();
        let mut events = events.into_iter().peekable();
        let mut t = START;
        while t < START + 40 * DAY {
            t += 30 * MINUTE;
            while let Some((at, verdict)) = events.next_if(|(at, _)| *at <= t) {
                engine.observe(&request(verdict), at);
            }
            let from = calendar.period((t / SECOND) as i64).0 as u64 * SECOND;
            let (valid, bad, _) = slow.counts(from, t);
            let status = &engine.evaluate(t)[0];
            prop_assert_eq!((status.valid, status.good), (valid, valid - bad));
            let mut lines = Vec::new();
            exact.at(t, &mut lines);
            prop_assert_eq!((lines[0].counts.valid, lines[0].counts.bad), (valid, bad));
        }
    }
}
