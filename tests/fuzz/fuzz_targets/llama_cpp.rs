//! Events of a stream, one a line.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::llama_cpp::Completion;

fuzz_target!(|data: &[u8]| {
    tokengauge_fuzz::comparing(&Completion, data);
});
