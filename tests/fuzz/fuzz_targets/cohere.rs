//! Events of a stream, one a line, to the reader of chat v2; whole answers to both.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::cohere::{ChatV2, Embed};

fuzz_target!(|data: &[u8]| {
    tokengauge_fuzz::reader(&ChatV2, data);
    tokengauge_fuzz::reader(&Embed, data);
});
