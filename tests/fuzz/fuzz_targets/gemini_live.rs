//! Messages of a conversation, one a line, each behind who sends it: turns begin and end once.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::{Dialect, gemini_live::Live};

fuzz_target!(|data: &[u8]| tokengauge_fuzz::converse(Live.conversation(), data));
