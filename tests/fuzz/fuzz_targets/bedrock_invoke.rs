//! What models say, one event a line, wrapped as Bedrock wraps it; a line that is none of theirs goes in as it stands.
#![no_main]
use libfuzzer_sys::fuzz_target;
use base64::Engine as _;
use tokengauge_core::dialect::{Dialect, FrameKind, bedrock_invoke::Invoke};
use tokengauge_core::framing::Frame;

fuzz_target!(|data: &[u8]| {
    let mut reader = Invoke.reader();
    for line in data.split(|b| *b == b'\n') {
        let mut out = Vec::new();
        let bytes = base64::engine::general_purpose::STANDARD.encode(line);
        let wrapped = format!(r#"{{"bytes":"{bytes}","p":""}}"#);
        let data = if line.starts_with(b"=") { &line[1..] } else { wrapped.as_bytes() };
        let kind = reader.frame(Frame { name: b"chunk", data, error: false }, &mut out);
        // What cannot be read says nothing.
        assert!(kind != FrameKind::BadJson || out.is_empty());
        Invoke.reader().answer(line, &mut Vec::new());
    }
});
