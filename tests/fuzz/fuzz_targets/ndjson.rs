//! A body of lines: pieces of any size give the same, and a hole nowhere breaks it.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::framing::ndjson::Framer;

fuzz_target!(|data: &[u8]| {
    let Some((_, pieces)) = tokengauge_fuzz::pieces(data) else { return };
    assert_eq!(tokengauge_fuzz::frames!(Framer::default(), [&data[1..]]), tokengauge_fuzz::frames!(Framer::default(), pieces));
});
