//! A body of gRPC: as a request it is reduced, in pieces of any size to the same; as an answer its messages go to every dialect that reads
//! Protobuf.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::engine::{SGLANG, TENSORRT_LLM, VLLM};
use tokengauge_core::dialect::kserve::Infer;
use tokengauge_core::dialect::tgis::Tgis;
use tokengauge_core::dialect::{Dialect, LlmEvent};
use tokengauge_core::framing::Unit;
use tokengauge_core::framing::lengths::Framer;
use tokengauge_core::framing::protobuf::Skeleton;

const DIALECTS: [&dyn Dialect; 5] = [&SGLANG, &VLLM, &TENSORRT_LLM, &Tgis, &Infer];

fuzz_target!(|data: &[u8]| {
    let Some((_, pieces)) = tokengauge_fuzz::pieces(data) else { return };
    let coding = Some(tokengauge_fuzz::coding(data[0] >> 6));
    let (mut whole, mut cut) = (Skeleton::new(coding), Skeleton::new(coding));
    whole.push(&data[1..]);
    for piece in pieces {
        cut.push(piece);
        // The window of brotli is the largest.
        assert!(cut.buffered() < 32 << 20);
    }
    assert_eq!((whole.finish(), whole.messages()), (cut.finish(), cut.messages()));
    if let Ok(message) = whole.finish() {
        DIALECTS.iter().for_each(|d| drop(d.asked(message)));
    }
    let mut readers = DIALECTS.map(|d| d.reader());
    let (mut framer, mut out) = (Framer::new(coding), Vec::new());
    framer.push(&data[1..], &mut |unit| {
        let Unit::Event(frame) = unit else { return };
        for reader in &mut readers {
            out.clear();
            reader.frame(frame, &mut out);
            // Each piece of output has a byte of its own.
            assert!(out.iter().filter(|e| matches!(e, LlmEvent::Delta { .. })).count() <= frame.data.len());
        }
    });
});
