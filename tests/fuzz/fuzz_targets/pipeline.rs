//! The whole way from stream events to records, and what holds for every record.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::pipeline::{Options, Pipeline};

fuzz_target!(|data: &[u8]| {
    let (mut pipeline, mut out) = (Pipeline::new(Options::default()), Vec::new());
    tokengauge_fuzz::script(data, |event| {
        let _ = pipeline.push(event, &mut out);
    });
    out.iter().for_each(tokengauge_fuzz::check);
    let stats = pipeline.stats();
    assert!(stats.open_connections == 0 && stats.in_flight == 0 && stats.inferences == out.len() as u64);
    assert!(stats.inferences + stats.non_llm <= stats.exchanges);
});
