//! SLO files, YAML and JSON: a verdict with every problem in its place; what is accepted can be explained and converted.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_slo::convert::convert;
use tokengauge_slo::explain::explain;
use tokengauge_slo::spec::load;

fuzz_target!(|data: &[u8]| {
    let Some((first, text)) = data.split_first() else { return };
    let name = if *first % 4 == 0 { "slo.json" } else { "slo.yaml" };
    let loaded = load(&[(name, text)]);
    let lines = text.iter().filter(|b| matches!(b, b'\n' | b'\r')).count() + 2;
    for p in &loaded.problems {
        assert!((1..=lines).contains(&p.pos.line) && p.pos.column >= 1 && !p.message.is_empty(), "{p}");
    }
    for slo in &loaded.slos {
        assert!(!explain(slo, Some(1e4)).is_empty());
    }
    if !loaded.refused() {
        let again = load(&[("converted.yaml", convert(&loaded))]);
        assert!(!again.refused(), "{:?}", again.problems.first());
        assert_eq!(again.slos.len(), loaded.short.len());
    }
});
