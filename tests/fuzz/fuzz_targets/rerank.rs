//! Answers to both readers of rerank.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::rerank::{Cohere, Tei};

fuzz_target!(|data: &[u8]| {
    tokengauge_fuzz::reader(&Cohere, data);
    tokengauge_fuzz::reader(&Tei, data);
});
