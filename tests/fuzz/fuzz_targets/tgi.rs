//! Events of a stream, one a line, to the readers of TGI and TEI.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::tgi::{Embed, Generate};

fuzz_target!(|data: &[u8]| {
    tokengauge_fuzz::reader(&Generate, data);
    tokengauge_fuzz::reader(&Embed, data);
});
