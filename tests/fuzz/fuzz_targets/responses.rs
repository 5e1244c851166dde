//! Events of a stream, one a line: the shortcut of the reader changes nothing.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::responses::Responses;

fuzz_target!(|data: &[u8]| tokengauge_fuzz::reader(&Responses, data));
