//! Lines of a stream to the readers of its answers and embeddings.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::ollama::{Chat, Embed};

fuzz_target!(|data: &[u8]| {
    tokengauge_fuzz::reader(&Chat, data);
    tokengauge_fuzz::reader(&Embed, data);
});
