//! A body of events: pieces of any size give the same, and a hole nowhere breaks it.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::framing::{Unit, sse::Framer};

fn run<'a>(pieces: impl Iterator<Item = &'a [u8]>, hole: u8) -> Vec<u8> {
    let (mut framer, mut out) = (Framer::default(), Vec::new());
    let mut see = |unit: Unit<'_>| match unit {
        Unit::Event(frame) => out.extend([b"\x00e", frame.name, b"\x00d", frame.data].concat()),
        Unit::KeepAlive => out.push(1),
        Unit::Odd(what) => out.extend([2, what as u8]),
    };
    for piece in pieces {
        for (n, part) in piece.split(|b| *b == hole).enumerate() {
            if n > 0 {
                framer.hole();
            }
            framer.push(part, &mut see);
        }
    }
    framer.finish(&mut see);
    out
}

fuzz_target!(|data: &[u8]| {
    let Some((_, pieces)) = tokengauge_fuzz::pieces(data) else { return };
    assert_eq!(run(std::iter::once(&data[1..]), 0xfe), run(pieces, 0xfe));
});
