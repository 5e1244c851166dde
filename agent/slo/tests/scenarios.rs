//! Every script in `tests/fixtures/slo/scenarios` does what it says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests state their expectations by unwrap")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tokengauge_slo::scenario::{Script, Spans};

fn scripts() -> Vec<(String, Script)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/slo/scenarios");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "scenario"));
    paths.sort();
    let name = |p: &Path| p.file_stem().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|p| (name(p), Script::parse(&std::fs::read_to_string(p).unwrap()).unwrap_or_else(|e| panic!("{p:?}: {e}")))).collect()
}

fn show(spans: &Spans) -> String {
    let all: Vec<String> = spans.iter().map(|(a, b)| format!("{a}-{b}")).collect();
    if all.is_empty() { "never".into() } else { all.join(" ") }
}

/// Whether two lists of spans differ by at most two minutes at each end.
fn alike(a: &Spans, b: &Spans) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0.abs_diff(b.0) <= 2 && a.1.abs_diff(b.1) <= 2)
}

#[test]
fn every_scenario_does_what_it_says() {
    let (mut wrong, mut seen) = (String::new(), BTreeSet::new());
    for (name, script) in scripts() {
        let out = script.run().unwrap();
        seen.insert(name.clone());
        for what in &out.wrong {
            writeln!(wrong, "{name}: {what}").unwrap();
        }
        if script.expect.len() < 2 && script.evals.is_empty() {
            let all: Vec<String> = out.fired.iter().map(|(s, spans)| format!("expect {} {}", s.as_str(), show(spans))).collect();
            writeln!(wrong, "{name}: says nothing; it does: {}", all.join(", ")).unwrap();
        }
        for m in &script.measured {
            let ours = &out.fired[&m.alert];
            if !alike(ours, &m.spans) && m.because.is_empty() {
                writeln!(
                    wrong,
                    "{name}: {} {} {} measured, {} here, and nobody says why",
                    m.who,
                    m.alert.as_str(),
                    show(&m.spans),
                    show(ours)
                )
                .unwrap();
            }
            if alike(ours, &m.spans) && !m.because.is_empty() {
                writeln!(wrong, "{name}: {} {} is alike; there is nothing to explain", m.who, m.alert.as_str()).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(seen.len() >= 24, "{seen:?}");
}

#[test]
fn a_script_that_is_wrong_names_its_line() {
    let wrong = |text: &str| Script::parse(text).unwrap_err().to_string();
    assert_eq!(wrong("slo 99.9% 30d google\nlaod 1m good 1"), "line 2: expected slo, guard, load, origin, eval, expect or measured");
    assert_eq!(wrong("load 1m good fivex3"), "line 1: `fivex3`: expected VALUExTIMES");
    assert_eq!(wrong("load 1m bad _x3"), "line 1: `_` stands in good");
    assert_eq!(wrong("slo 100% 30d google"), "line 1: expected a target below 100%, as in 99.9%");
    let script = Script::parse("load 1m good 1x3\neval at 1m budget 7\neval at 1m nothing").unwrap();
    assert_eq!(
        script.run().unwrap().wrong,
        ["line 2: budget is Some(1.0), expected Some(7.0)", "line 3: `nothing` is nothing that can be asked"]
    );
}
