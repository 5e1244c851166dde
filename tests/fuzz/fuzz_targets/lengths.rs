//! Length-prefixed messages, plain and compressed: pieces of any size give the same, and a hole nowhere breaks it.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::framing::Unit;
use tokengauge_core::framing::lengths::Framer;
use tokengauge_fuzz::{HOLE, coding, frames, pieces};

fuzz_target!(|data: &[u8]| {
    let Some((_, cut)) = pieces(data) else { return };
    let framer = || Framer::new(Some(coding(data[0] >> 6)));
    // What is found behind a hole of unknown length depends on the pieces.
    if !data[1..].contains(&HOLE) {
        assert_eq!(frames!(framer(), [&data[1..]]), frames!(framer(), cut));
        return;
    }
    let mut holed = framer();
    let (mut given, mut plain) = (0, 0);
    for (n, part) in data[1..].split(|b| *b == HOLE).enumerate() {
        if n > 0 {
            holed.miss((n % 3 > 0).then_some(n as u64));
        }
        given += part.len();
        holed.push(part, &mut |unit| {
            if let Unit::Event(frame) = unit {
                plain += frame.data.len();
            }
        });
    }
    // Compressed ones may be longer than what they came in.
    assert!(plain <= given || data[1..].contains(&1));
});
