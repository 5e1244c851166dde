//! Lines of a stream to the reader of chat v1.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::cohere::ChatV1;

fuzz_target!(|data: &[u8]| {
    tokengauge_fuzz::comparing(&ChatV1, data);
});
