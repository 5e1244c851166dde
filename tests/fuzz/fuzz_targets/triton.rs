//! Events of a stream, one a line.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::triton::Generate;

fuzz_target!(|data: &[u8]| {
    tokengauge_fuzz::comparing(&Generate, data);
});
