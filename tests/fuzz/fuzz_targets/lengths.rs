//! Length-prefixed messages, plain and compressed: pieces of any size give the same, and a hole nowhere breaks it.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::framing::lengths::Framer;

fuzz_target!(|data: &[u8]| {
    let Some((_, pieces)) = tokengauge_fuzz::pieces(data) else { return };
    let framer = || Framer::new(Some(tokengauge_fuzz::coding(data[0] >> 6)));
    assert_eq!(tokengauge_fuzz::frames!(framer(), [&data[1..]]), tokengauge_fuzz::frames!(framer(), pieces));
});
