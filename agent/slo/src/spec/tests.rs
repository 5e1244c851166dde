//! Whole files: what they become, what is wrong with them and where.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::convert::convert;
use crate::explain::{Fault, explain, fires};
use crate::model::{AlertRow, Limit, Op, Severity, SliKind, Window};
use crate::spec::ours::presets::PRESETS;

/// The repository's own SLO files.
fn fixtures() -> Vec<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/slo");
    let mut files = Vec::new();
    for folder in ["openslo", "short"] {
        let mut paths: Vec<_> = std::fs::read_dir(root.join(folder)).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        files.extend(
            paths.into_iter().map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(p).unwrap())),
        );
    }
    files
}

fn told(text: &str, expected: Expect) {
    let loaded = load(&[("slo.yaml", text)]);
    let lines: Vec<String> = loaded.problems.iter().map(|p| format!("{p}\n")).collect();
    expected.assert_eq(&lines.concat());
}

fn only(text: &str) -> Slo {
    let loaded = load(&[("slo.yaml", text)]);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    loaded.slos.into_iter().next().unwrap()
}

fn short(goal: &str) -> Slo {
    only(&format!("slos:\n  service: chat\n  objectives:\n    - {goal}\n"))
}

#[test]
fn errors_name_place_property_and_the_right_key() {
    told(
        "apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: Chat}\nspec:\n  service: chat\n  budgetingMetod: Occurrences\n  \
         timeWindow: [{duration: 30 days}]\n  indicator:\n    metadata: {name: a}\n    spec:\n      ratioMetric:\n        \
         good: {metricSource: {spec: {}}}\n        total: {metricSource: {type: x, spec: {q: 1}}}\n  \
         objectives: [{target: 99.9, op: lte}, {target: y}]\n",
        expect![[r#"
            slo.yaml:3:18: error: SLO Chat: metadata.name: must be an RFC 1123 label (at most 63 of a-z, 0-9 and `-`, beginning and ending with a letter or digit), found "Chat"
            slo.yaml:5:3: error: SLO Chat: spec.budgetingMethod: is required, but is empty
            slo.yaml:6:3: error: SLO Chat: spec.budgetingMetod: unknown key `budgetingMetod`, expected `description`, `service`, `indicator`, `indicatorRef`, `budgetingMethod`, `timeWindow`, `objectives` or `alertPolicies` (did you mean `budgetingMethod`?)
            slo.yaml:7:16: error: SLO Chat: spec.timeWindow[0]: `calendar` must be there when `isRolling` is false or absent
            slo.yaml:7:27: error: SLO Chat: spec.timeWindow[0].duration: must have a unit of `m`, `h`, `d`, `w`, `M`, `Q` or `Y`, found "days"
            slo.yaml:12:37: error: SLO Chat: spec.indicator.spec.ratioMetric.good.metricSource.spec: must not be empty
            slo.yaml:14:25: error: SLO Chat: spec.objectives[0].target: must be from 0 to below 1, found 99.9 (99.9 percent is `targetPercent: 99.9` or `target: 0.9990000000000001`)
            slo.yaml:14:35: error: SLO Chat: spec.objectives[0].op: is forbidden with a ratio metric: only a threshold metric is compared
            slo.yaml:14:50: error: SLO Chat: spec.objectives[1].target: expected a number, found `y`, which YAML 1.1 reads as the boolean true
        "#]],
    );
}

#[test]
fn errors_inside_our_specs_and_goals_have_places_too() {
    told(
        "slos:\n  service: chat\n  windw: 30d\n  objectives:\n    - ttft p95 => 800ms\n    - itl p95 <= 50ms\n    - ttft p95 <= 800\n    \
         - {goal: availability >= 100%}\n    - goodput{ttft<=800ms, tpot>=1ms} >= 99%\n    - y\n    - ttft mean <= 1s\n    \
         - {goal: ttft p90 <= 1s, alerting: {rows: [page 5m/1h 14.4x]}}\n",
        expect![[r#"
            slo.yaml:3:3: error: slos.windw: unknown key `windw`, expected `service`, `objectives`, `labels`, `window`, `when`, `policy`, `prices`, `groupBy`, `alerting`, `budgeting`, `sliceWindow` or `sliceTarget` (did you mean `window`?)
            slo.yaml:5:16: error: slos.objectives[0]: expected `<=`, `<`, `>=` or `>`, found `=> 800ms`
            slo.yaml:6:7: error: slos.objectives[1]: expected ttft, ttfa, tpot, inter_chunk_gap, max_stall, duration, output_speed, cost, availability or goodput, found `itl` (did you mean `tpot`?)
            slo.yaml:7:19: error: slos.objectives[2]: 800 of what? (write `800ms` or `800s`)
            slo.yaml:8:30: error: slos.objectives[3].goal: a share must be below 100 %, found 100 % (100 % leaves no error budget: nothing could ever fail)
            slo.yaml:9:32: error: slos.objectives[4]: the wrong direction for a limit on tpot (write `<=`)
            slo.yaml:10:7: error: slos.objectives[5]: expected a goal such as `ttft p95 <= 800ms`, found `y`, which YAML 1.1 reads as the boolean true (quote it: "y")
            slo.yaml:11:12: error: slos.objectives[6]: `mean` is no objective (a mean hides the slow requests; use a percentile such as p95)
            slo.yaml:12:40: error: slos.objectives[7].alerting: page 5m/1h at 14.4x can never fire at a target of 90%: with every request bad the budget burns 10x (at most 8x makes sense (80% of all requests bad))
        "#]],
    );
    told(
        "apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: a, annotations: {tokengauge.io/min-event: \"3\"}}\nspec:\n  service: chat\n  \
         budgetingMethod: Occurrences\n  timeWindow: [{duration: 30d, isRolling: true}]\n  indicator:\n    metadata: {name: a}\n    spec:\n      \
         ratioMetric:\n        good: {metricSource: {type: tokengauge, spec: {sli: ttft, maks: 800ms, when: {modle: x}}}}\n        \
         total: {metricSource: {type: tokengauge, spec: {sli: tpot, max: 8 furlongs, when: {model: /(/}}}}\n  objectives: [{target: 0.9}]\n",
        expect![[r#"
            slo.yaml:3:35: error: SLO a: metadata.annotations.tokengauge.io/min-event: no annotation of ours (did you mean `tokengauge.io/min-events`?)
            slo.yaml:12:67: error: SLO a: spec.indicator.spec.ratioMetric.good.metricSource.spec.maks: unknown key `maks`, expected `sli`, `max`, `min`, `below`, `above`, `limits`, `unit`, `when`, `policy`, `prices` or `groupBy` (did you mean `max`?)
            slo.yaml:12:87: error: SLO a: spec.indicator.spec.ratioMetric.good.metricSource.spec.when.modle: unknown key `modle`, expected `provider`, `model`, `operation`, `namespace`, `workload`, `tenant`, `server`, `vantage`, `stream` or `inputTokens` (did you mean `model`?)
            slo.yaml:13:73: error: SLO a: spec.indicator.spec.ratioMetric.total.metricSource.spec.max: no unit of time `furlongs` (us, ms, s, m, h)
            slo.yaml:13:99: error: SLO a: spec.indicator.spec.ratioMetric.total.metricSource.spec.when.model: no regular expression: unclosed group
        "#]],
    );
}

#[test]
fn traps_of_yaml_are_told() {
    told(
        "apiVersion: openslo/v1\nkind: Service\nmetadata: {name: on}\nspec: {}\n",
        expect![[r#"
        slo.yaml:3:18: error: Service: metadata.name: expected a text, found `on`, which YAML 1.1 reads as the boolean true (quote it: "on")
    "#]],
    );
    told(
        "slos:\n  service: chat\n  service: chat2\n  objectives: [availability >= 99%]\n",
        expect![[r#"
        slo.yaml:3:3: error: service: the key `service` stands twice; first in line 2
    "#]],
    );
    told(
        "a: [\n",
        expect![[r#"
        slo.yaml:2:1: error: no YAML: while parsing a node, did not find expected node content
    "#]],
    );
    told(
        "# nothing\n",
        expect![[r#"
        slo.yaml:1:1: error: a document without an object: nothing but comments
    "#]],
    );
    told(
        "version: prometheus/v1\nservice: x\n",
        expect![[r#"
        slo.yaml:1:10: error: version: this is a specification of Sloth, not of OpenSLO: Sloth computes it from Prometheus metrics
    "#]],
    );
    told(
        "--- # one\napiVersion: openslo/v1\n",
        expect![[r#"
        slo.yaml:2:1: error: expected a list of objects, found a map (a first line like `--- # comment` is taken for the beginning of a list)
    "#]],
    );
}

#[test]
fn the_fixtures_are_right_and_become_objectives() {
    let files = fixtures();
    let loaded = load_with(&files, Options { strict_refs: true });
    assert!(!loaded.refused(), "{:?}", loaded.problems);
    let names: Vec<String> = loaded.slos.iter().map(|s| format!("{} {} {}", s.name, s.objectives.len(), s.alerting.rows.len())).collect();
    expect![[r#"
        chat-availability 1 4
        chat-ttft-p95 1 4
        chat-ttft-p99 1 4
        chat-tpot-p95 1 4
        chat-duration 1 4
        chat-output-speed 1 4
        chat-good 1 4
        chat-cost-p99 1 4
        p90 1 4
        mlperf-ttft 1 4
        mlperf-tpot 1 4
        rag-ttft-p95 1 2
        batch-duration-p90 1 0
        batch-pyrra 1 4
        support-first-token 1 4
        support-duration 2 4
        support-good 2 4"#]]
    .assert_eq(&names.join("\n"));
    let others: Vec<String> = loaded.others.iter().map(|o| format!("{}: {}", o.name, o.source)).collect();
    expect![[r#"
        both: prometheus
        answered-99: prometheus
        as-json: prometheus
        queue: prometheus"#]]
    .assert_eq(&others.join("\n"));
}

#[test]
fn what_is_converted_means_the_same_and_is_openslo() {
    for (name, text) in fixtures().iter().filter(|(_, t)| t.contains("slos:")) {
        let before = load(&[(name, text)]);
        let yaml = convert(&before);
        let after = load(&[("converted.yaml", &yaml)]);
        assert!(after.problems.is_empty(), "{:?}", after.problems);
        assert_eq!(before.slos.len(), after.slos.len());
        for (a, b) in before.slos.iter().zip(&after.slos) {
            // All but where it stands and the description, which is made.
            assert_eq!((&a.name, &a.service, &a.labels, &a.group_by), (&b.name, &b.service, &b.labels, &b.group_by));
            assert_eq!((&a.window, a.budgeting), (&b.window, b.budgeting));
            assert_eq!(format!("{:?}", a.objectives), format!("{:?}", b.objectives));
            assert_eq!((&a.alerting.rows, a.alerting.min_bad_events), (&b.alerting.rows, b.alerting.min_bad_events), "{}", a.name);
            assert_eq!((a.alerting.coverage_floor, &a.alerting.runbook_url), (b.alerting.coverage_floor, &b.alerting.runbook_url));
        }
    }
}

#[test]
fn every_preset_is_right() {
    for preset in PRESETS {
        let text = format!("slos:\n  service: chat\n  objectives:\n    - preset: {}\n", preset.name);
        let loaded = load(&[("slo.yaml", text)]);
        assert!(loaded.problems.is_empty(), "{}: {:?}", preset.name, loaded.problems);
        assert_eq!(loaded.slos.len(), preset.goals.len(), "{}", preset.name);
    }
}

#[test]
fn goals_mean_what_they_say() {
    let limit = |goal: &str| {
        let objective = short(goal).objectives.remove(0);
        match objective.sli.kind {
            SliKind::Limit(clause) => (objective.target, clause.op, clause.limit),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(limit("ttft p95 <= 800ms"), (0.95, Op::Le, Limit::Fixed(0.8)));
    assert_eq!(limit("duration < 1.5s for 99.9%"), (0.999, Op::Lt, Limit::Fixed(1.5)));
    assert_eq!(limit("output_speed >= 20 tok/s for 95%"), (0.95, Op::Ge, Limit::Fixed(20.0)));
    assert_eq!(limit("output_speed p5 >= 20"), (0.95, Op::Ge, Limit::Fixed(20.0)));
    assert_eq!(limit("max_stall median <= 1m"), (0.5, Op::Le, Limit::Fixed(60.0)));
    assert_eq!(limit("ttft p99.9 <= 300ms + 0.5ms/token"), (0.999, Op::Le, Limit::PerInputToken { base: 0.3, per_token: 0.0005 }));
}

#[test]
fn tables_scale_and_stay_possible() {
    let rows = |slo: &Slo| slo.alerting.rows.iter().map(|r| (r.short_s / 60, r.long_s / 60, r.factor)).collect::<Vec<_>>();
    assert_eq!(rows(&short("availability >= 99.9%")), [(5, 60, 14.4), (30, 360, 6.0), (120, 1440, 3.0), (360, 4320, 1.0)]);
    let window = |w: &str| only(&format!("slos:\n  service: a\n  window: {w}\n  objectives: [availability >= 99.9%]\n"));
    assert_eq!(rows(&window("28d")), [(5, 60, 13.44), (30, 360, 5.6), (120, 1440, 2.8), (360, 4320, 0.933_333_333)]);
    assert_eq!(rows(&window("7d")), [(5, 60, 13.44), (30, 360, 3.5), (120, 1440, 1.4), (360, 4320, 0.98)]);
    assert_eq!(rows(&window("1d")), [(1, 9, 13.44), (4, 51, 3.5), (17, 206, 1.4), (51, 617, 0.98)]);
    let p90 = short("ttft p90 <= 1s");
    assert_eq!(rows(&p90)[0], (5, 60, 8.0));
    expect!["page 5m/1h at 14.4x can never fire at a target of 90%: with every request bad the budget burns 10x; it fires at 8x instead, when 80% of all requests are bad"].assert_eq(&p90.alerting.adapted.join("\n"));
    let pyrra = only("slos:\n  service: a\n  window: 28d\n  alerting: {table: pyrra}\n  objectives: [availability >= 99.9%]\n");
    assert_eq!(rows(&pyrra), [(5, 60, 14.0), (30, 360, 7.0), (120, 1440, 2.0), (360, 5760, 1.0)]);
}

#[test]
fn conditions_of_alert_policies_become_rows() {
    let text = "apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: a}\nspec:\n  service: s\n  budgetingMethod: Occurrences\n  \
        timeWindow: [{duration: 30d, isRolling: true}]\n  indicator:\n    metadata: {name: i}\n    spec:\n      ratioMetric:\n        \
        good: {metricSource: {type: tokengauge, spec: {sli: availability}}}\n        total: {metricSource: {type: tokengauge, spec: {sli: availability}}}\n  \
        objectives: [{target: 0.99}]\n  alertPolicies: [{alertPolicyRef: wake}]\n---\napiVersion: openslo/v1\nkind: AlertPolicy\nmetadata: {name: wake}\n\
        spec:\n  conditions: [{conditionRef: fast}]\n  notificationTargets: [{targetRef: nobody}]\n---\napiVersion: openslo/v1\nkind: AlertCondition\n\
        metadata: {name: fast}\nspec:\n  severity: critical\n  condition: {kind: burnrate, op: gte, threshold: 10, lookbackWindow: 1h, alertAfter: 5m}\n";
    let loaded = load(&[("slo.yaml", text)]);
    assert_eq!(
        loaded.slos[0].alerting.rows,
        [AlertRow { severity: Severity::Page, short_s: 3600, long_s: 3600, factor: 10.0, for_s: 300 }]
    );
    assert_eq!(
        loaded.problems[0].to_string(),
        "slo.yaml:22:37: warning: SLO a: spec.notificationTargets[0].targetRef: no AlertNotificationTarget named \"nobody\" in the files"
    );
    assert!(load_with(&[("slo.yaml", text)], Options { strict_refs: true }).refused());
}

/// What `explain` computes is what the rules do (`slo.md` §3.2: promtool, one-minute scrapes, 99.9 % over 30 days), to two minutes.
#[test]
fn alert_times_are_those_of_prometheus() {
    let slo = short("availability >= 99.9%");
    let first = |severity, share| {
        let rows = slo.alerting.rows.iter().filter(|r| r.severity == severity);
        rows.filter_map(|r| fires(r, 0.999, 0, 0, Fault { share, per_minute: None })).map(|(after, _)| after).min()
    };
    for (severity, share, minutes) in [
        (Severity::Page, 1.0, Some(0)),
        (Severity::Ticket, 1.0, Some(4)),
        (Severity::Page, 0.02, Some(43)),
        (Severity::Ticket, 0.02, Some(215)),
        (Severity::Page, 0.01, Some(215)),
        (Severity::Ticket, 0.01, Some(431)),
        (Severity::Page, 0.004, None),
        (Severity::Ticket, 0.004, Some(1080)),
        (Severity::Ticket, 0.002, Some(2160)),
        (Severity::Ticket, 0.0005, None),
    ] {
        match (first(severity, share), minutes) {
            (Some(after), Some(minutes)) => assert!(after.abs_diff(minutes) <= 2, "{severity:?} at {share}: {after}, not {minutes}"),
            (after, minutes) => assert_eq!(after, minutes, "{severity:?} at {share}"),
        }
    }
    // An outage of two hours: the page goes on for 28 minutes.
    let (_, stays) = fires(&slo.alerting.rows[1], 0.999, 0, 0, Fault { share: 1.0, per_minute: None }).unwrap();
    assert!(stays.abs_diff(28) <= 2, "{stays}");
    // Ten requests an hour: one failure must not page, an outage must.
    let outage = Fault { share: 1.0, per_minute: Some(10.0 / 60.0) };
    let (after, _) = fires(&slo.alerting.rows[0], 0.999, 3, 3, outage).unwrap();
    assert!((15..=20).contains(&after), "{after}");
}

#[test]
fn explanations_are_in_plain_words() {
    expect![[r#"
        chat-ttft-p95  (service chat, slo.yaml:4)
          95%: 95 % of requests have their first token after at most 800ms, over the last 30d.
            ("p95 of ttft" said as a ratio: each request is good or bad by itself, so nodes and days add up, and 5 % may be slower.)
            counts     every request
            bad        5xx, errors in a stream, cut streams, time-outs, 429
            judged     refusals, nothing generated
            left out   other 4xx, cancelled by the client, what cannot have the measure (not streamed, one token)
            excluded   what capture lost; it lowers coverage
            budget     50 of each 1,000 requests may fail; at 24000 a day, 36000 of 720000; a total outage spends it in 1d12h
            alerts     when both windows burn faster than the factor (at most 20x is possible: every request bad),
                       with 3 requests and 3 bad ones in the long window; frozen while less than 90 % of traffic is seen
              page     5m/1h     14.4x (72 % bad): total outage after 44m, and 2m longer than it lasts; 2 % errors never
              page    30m/6h        6x (30 % bad): total outage after 1h49m, and 21m longer than it lasts; 2 % errors never
              ticket   2h/1d        3x (15 % bad): total outage after 3h37m, and 1h42m longer than it lasts; 2 % errors never
              ticket   6h/3d        1x (5 % bad): total outage after 3h37m, and 5h42m longer than it lasts; 2 % errors never
    "#]]
    .assert_eq(&explain(&short("ttft p95 <= 800ms"), Some(24_000.0)));
}

#[test]
fn calendars_and_slices_are_kept() {
    let loaded = load(&fixtures());
    let rag = loaded.slos.iter().find(|s| s.name == "rag-ttft-p95").unwrap();
    assert!(matches!(&rag.window, Window::Calendar { count: 1, time_zone, .. } if time_zone == "Europe/Berlin"));
    assert_eq!((rag.objectives[0].time_slice_target, rag.objectives[0].time_slice_window_s), (Some(0.9), Some(300)));
}

/// Cuts, doubles and swaps pieces of a file, as an editor's accidents and an attacker's intentions do.
fn mutate(text: &str, steps: &[(u8, u16, u16)]) -> String {
    const PIECES: [&str; 24] = [
        "y",
        "on",
        "~",
        "1_0",
        "0o7",
        "&a ",
        "*a",
        "<<: ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        ":",
        "- ",
        "\n---\n",
        "\t",
        "!!int ",
        "%",
        "ü",
        "|\n",
        "99999999999999999999",
        "ttft p95 <= ",
    ];
    let mut chars: Vec<char> = text.chars().collect();
    for (kind, a, b) in steps {
        let len = chars.len().max(1);
        let (a, b) = (usize::from(*a) % len, usize::from(*b) % len);
        let (from, to) = (a.min(b), a.max(b).min(a.min(b) + 40));
        match kind % 4 {
            0 => drop(chars.drain(from..to.min(chars.len()))),
            1 => {
                let piece: Vec<char> = chars[from..to.min(chars.len())].to_vec();
                chars.splice(from..from, piece);
            }
            2 => drop(chars.splice(from..from, PIECES[b % PIECES.len()].chars())),
            _ => {
                let piece = PIECES[a % PIECES.len()].chars();
                chars.splice(from..to.min(chars.len()), piece).for_each(drop);
            }
        }
    }
    chars.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Ten thousand broken files: a verdict, every problem with a place in the file, and what is accepted can be explained and converted.
    #[test]
    fn mutated_files_get_a_verdict_or_a_located_error(file in 0usize..7, steps in prop::collection::vec(any::<(u8, u16, u16)>(), 1..6)) {
        static FILES: std::sync::LazyLock<Vec<(String, String)>> = std::sync::LazyLock::new(fixtures);
        let (name, text) = &FILES[file % FILES.len()];
        let text = mutate(text, &steps);
        let loaded = load(&[(name, &text)]);
        let lines = text.lines().count() + 1;
        for p in &loaded.problems {
            prop_assert!(p.pos.line >= 1 && p.pos.line <= lines && p.pos.column >= 1 && !p.message.is_empty(), "{p}");
        }
        for slo in &loaded.slos {
            prop_assert!(!explain(slo, Some(1000.0)).is_empty());
        }
        if !loaded.refused() {
            let again = load(&[("converted.yaml", convert(&loaded))]);
            prop_assert!(!again.refused(), "{:?}", again.problems.first());
        }
    }
}
