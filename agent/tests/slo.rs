//! `tokengauge slo` as a stranger meets it: exit codes, places, JSON.
#![allow(clippy::unwrap_used, reason = "a test states its expectations so")]

use std::process::{Command, Output};

fn slo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tokengauge")).arg("slo").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const REF: &str = "apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: a}\nspec:\n  service: s\n  budgetingMethod: Occurrences\n  \
                   timeWindow: [{duration: 30d, isRolling: true}]\n  indicatorRef: elsewhere\n  objectives: [{target: 0.9}]\n";

#[test]
fn verdicts_places_and_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (good, bad, alone) = (path("good.yaml"), path("bad.yaml"), path("sub/alone.yaml"));
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(&good, "slos:\n  service: chat\n  objectives: [ttft p90 <= 800ms]\n").unwrap();
    std::fs::write(&bad, "slos:\n  service: chat\n  objectivs: [ttft p95 <= 800ms]\n").unwrap();
    std::fs::write(&alone, REF).unwrap();

    let out = slo(&["validate", &good]);
    assert_eq!(out.status.code(), Some(0));
    assert!(text(&out.stdout).contains("it fires at 8x instead"), "{}", text(&out.stdout));
    let out = slo(&["validate", &bad]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stdout).contains("bad.yaml:3:3: error: slos.objectivs: unknown key `objectivs`"), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("did you mean `objectives`?"));

    // A reference to what is elsewhere: a warning of a file, an error of a folder.
    assert_eq!(slo(&["validate", &alone]).status.code(), Some(0));
    assert_eq!(slo(&["validate", "--strict-refs", &alone]).status.code(), Some(1));
    let out = slo(&["validate", &path("sub"), "--format", "json"]);
    assert_eq!(out.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["valid"], false);
    assert_eq!(report["files"][0]["errors"][0]["class"], "reference");
    assert_eq!(report["files"][0]["errors"][0]["path"], "spec.indicatorRef");
    assert_eq!(report["files"][0]["errors"][0]["line"], 8);

    assert_eq!(slo(&["validate"]).status.code(), Some(2));
    let out = slo(&["validate", &path("none.yaml")]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("none.yaml"));
}

#[test]
fn explained_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("good.yaml").display().to_string();
    std::fs::write(&good, "slos:\n  service: chat\n  objectives: [ttft p95 <= 800ms, availability >= 99.9%]\n").unwrap();
    let out = slo(&["explain", &good, "--requests-per-day", "1000"]);
    assert_eq!(out.status.code(), Some(0));
    assert!(text(&out.stdout).contains("at 1000 a day, 1500 of 30000"), "{}", text(&out.stdout));
    let out = slo(&["convert", &good]);
    assert_eq!(out.status.code(), Some(0));
    let converted = dir.path().join("converted.yaml").display().to_string();
    std::fs::write(&converted, &out.stdout).unwrap();
    assert_eq!(slo(&["validate", &converted]).status.code(), Some(0));
    assert!(text(&slo(&["explain", "--presets"]).stdout).contains("mlperf/llama2-70b-interactive"));
    let schema: serde_json::Value = serde_json::from_slice(&slo(&["schema"]).stdout).unwrap();
    assert!(schema["$defs"]["TokengaugeSource"]["properties"]["sli"].is_object());
}
