//! Events of a stream, one a line: the shortcut of the reader changes nothing.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::{Dialect, LlmEvent, openai::Chat};
use tokengauge_core::framing::Frame;

fn lasting(events: Vec<LlmEvent>) -> Vec<LlmEvent> {
    events.into_iter().filter(|e| !matches!(e, LlmEvent::Started { .. } | LlmEvent::Usage(_))).collect()
}

fuzz_target!(|data: &[u8]| {
    let mut reader = Chat.reader();
    for line in data.split(|b| *b == b'\n') {
        let (name, data) = line.split_at(line.iter().position(|b| *b == b'{').unwrap_or(0));
        let frame = Frame { name: name.trim_ascii(), data, error: false };
        let (mut with, mut without) = (Vec::new(), Vec::new());
        assert_eq!(reader.frame(frame, &mut with), Chat.reader().frame(frame, &mut without));
        assert_eq!(lasting(with), lasting(without));
    }
    reader.answer(data, &mut Vec::new());
});
