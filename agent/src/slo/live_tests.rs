//! The agent's objectives over restarts, changed and broken files, and a journal that cannot be written.

use super::*;
use crate::testing;
use tokengauge_core::stats::Aggregator;

const GOOD: &str = "slos:\n  service: g\n  objectives:\n    - availability >= 99%\n";

struct Place {
    dir: tempfile::TempDir,
    config: Config,
}

fn place(text: &str) -> Place {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slo.yaml");
    std::fs::write(&file, text).unwrap();
    let config = Config { files: vec![file], config_maps: None, journal: dir.path().join("slo.journal") };
    Place { dir, config }
}

fn standing(live: &Live) -> Standing {
    live.shared().lock().unwrap().clone()
}

fn second(live: &mut Live) {
    live.snapshot(&Aggregator::default().snapshot());
}

#[test]
fn budgets_survive_a_restart_and_exported_counters_begin_at_0() {
    let p = place(GOOD);
    let mut live = Live::start(&p.config, Arc::default());
    let first = standing(&live);
    assert_eq!((first.objectives.len(), first.objectives[0].since_start), (1, Default::default()), "there from the start, at 0");
    (0..5).for_each(|_| live.inference(&testing::inference()));
    second(&mut live);
    assert_eq!(standing(&live).objectives[0].since_start.valid, 5);
    live.shutdown(Duration::ZERO).unwrap();
    drop(live);
    let live = Live::start(&p.config, Arc::default());
    let view = standing(&live).objectives[0].clone();
    assert_eq!((view.total.valid, view.valid, view.since_start.valid), (5, 5, 0));
}

#[test]
fn a_broken_file_keeps_the_last_good_one() {
    let p = place(GOOD);
    let mut live = Live::start(&p.config, Arc::default());
    live.inference(&testing::inference());
    std::fs::write(&p.config.files[0], "slos:\n  service: g\n  objectvies: []\n").unwrap();
    (0..LOOK_EVERY).for_each(|_| second(&mut live));
    let now = standing(&live);
    assert_eq!((now.objectives.len(), now.refused, now.objectives[0].total.valid), (1, 1, 1));
    assert!(now.broken.iter().any(|b| b.contains("slo.yaml:3:")), "{:?}", now.broken);
    // Another target: the history stays.
    std::fs::write(&p.config.files[0], GOOD.replace("99", "95")).unwrap();
    (0..LOOK_EVERY).for_each(|_| second(&mut live));
    let now = standing(&live);
    assert_eq!((now.broken.len(), now.refused), (0, 1));
    assert_eq!((now.objectives[0].objective.as_str(), now.objectives[0].valid, now.objectives[0].since_start.valid), ("95%", 1, 0));
}

#[test]
fn exported_counters_go_on_when_files_are_read_again() {
    let p = place(GOOD);
    let mut live = Live::start(&p.config, Arc::default());
    (0..3).for_each(|_| live.inference(&testing::inference()));
    second(&mut live);
    // Another one before it: its place changes, its name does not.
    let more = GOOD.replace("    - avail", "    - duration p95 <= 30s\n    - avail");
    std::fs::write(&p.config.files[0], &more).unwrap();
    (0..LOOK_EVERY).for_each(|_| second(&mut live));
    live.inference(&testing::inference());
    second(&mut live);
    let counts = |live: &Live| {
        let mut all: Vec<_> = standing(live).objectives.iter().map(|v| (v.objective.clone(), v.since_start.valid)).collect();
        all.sort();
        all
    };
    assert_eq!(counts(&live), [("95%".to_owned(), 1), ("99%".to_owned(), 4)]);
    // Under the same name something else: it begins anew.
    std::fs::write(&p.config.files[0], more.replace("availability >= 99%", "ttft <= 1s for 99%")).unwrap();
    (0..LOOK_EVERY).for_each(|_| second(&mut live));
    assert_eq!(counts(&live), [("95%".to_owned(), 1), ("99%".to_owned(), 0)]);
}

#[test]
fn a_signal_has_the_files_read_again() {
    let p = place(GOOD);
    let reload = Arc::new(AtomicBool::new(false));
    let mut live = Live::start(&p.config, Arc::clone(&reload));
    let before = standing(&live).loaded_unix;
    live.evaluations = 1;
    reload.store(true, Ordering::Relaxed);
    second(&mut live);
    assert!(!reload.load(Ordering::Relaxed) && standing(&live).loaded_unix >= before);
}

#[test]
fn an_agent_starts_with_a_broken_file_and_says_so() {
    let p = place("slos: 7\n");
    let live = Live::start(&p.config, Arc::default());
    let now = standing(&live);
    assert!(now.objectives.is_empty() && !now.broken.is_empty() && now.refused == 1);
}

#[test]
fn a_journal_that_cannot_be_written_is_said_and_counting_goes_on() {
    let mut p = place(GOOD);
    p.config.journal = p.dir.path().join("none/slo.journal");
    let mut live = Live::start(&p.config, Arc::default());
    live.inference(&testing::inference());
    second(&mut live);
    let now = standing(&live);
    assert_eq!(now.objectives[0].valid, 1);
    assert!(now.journal_trouble.unwrap().contains("in memory only"));
    assert!(live.shutdown(Duration::ZERO).is_err());
}

#[test]
fn while_no_tap_sees_anything_objectives_are_blind() {
    let p = place(GOOD);
    let mut live = Live::start(&p.config, Arc::default());
    let seen = Arc::new(AtomicBool::new(true));
    let sees = Arc::clone(&seen);
    live.seeing(move || sees.load(Ordering::Relaxed));
    live.inference(&testing::inference());
    second(&mut live);
    let view = standing(&live).objectives[0].clone();
    assert_eq!((view.sight.as_str(), view.coverage), ("observed", 1.0));
    seen.store(false, Ordering::Relaxed);
    second(&mut live);
    // Time passes: what the engine did not see of it is missing from the coverage.
    std::thread::sleep(Duration::from_millis(20));
    second(&mut live);
    let view = standing(&live).objectives[0].clone();
    assert_eq!(view.sight, "blind");
    assert!(view.coverage < 1.0, "{}", view.coverage);
    seen.store(true, Ordering::Relaxed);
    second(&mut live);
    let back = standing(&live).objectives[0].coverage;
    std::thread::sleep(Duration::from_millis(20));
    second(&mut live);
    assert!(standing(&live).objectives[0].coverage > back, "what is seen raises the coverage again");
}

#[test]
fn tenants_have_objectives_of_their_own() {
    use tokengauge_core::tenant::Tenant;
    let one = Tenant::new([1; 8]);
    let text = format!(
        "slos:\n  service: g\n  objectives:\n    - {{name: one, goal: availability >= 99%, when: {{tenant: \"{}\"}}}}\n    - {{name: each, goal: availability >= 99%, groupBy: [tenant]}}\n",
        one.as_str()
    );
    let p = place(&text);
    let mut live = Live::start(&p.config, Arc::default());
    for tenant in [Some(one), Some(Tenant::new([2; 8])), Some(one), None] {
        let mut i = testing::inference();
        i.request.tenant = tenant;
        live.inference(&i);
    }
    second(&mut live);
    let now = standing(&live);
    assert!(now.broken.is_empty(), "{:?}", now.broken);
    let of = |tenant: &str| now.objectives.iter().find(|v| v.group.get("tenant").is_some_and(|t| t == tenant)).map(|v| v.valid);
    assert_eq!((of("0101010101010101"), of("0202020202020202")), (Some(2), Some(1)), "{:?}", now.objectives);
    let selected = now.objectives.iter().find(|v| v.group.is_empty()).map(|v| v.valid);
    assert_eq!(selected, Some(2), "{:?}", now.objectives);
}
