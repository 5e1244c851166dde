//! Events of a stream, one a line: whatever they say, no tokens are believed.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::unknown::Unknown;

fuzz_target!(|data: &[u8]| {
    tokengauge_fuzz::comparing(&Unknown, data);
});
