//! A JSON body reduced as it streams: the same in pieces; what was valid and short stays valid.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::dialect::body::{Asked, object};
use tokengauge_core::framing::json::{MAX_BODY, Skeleton};

fuzz_target!(|data: &[u8]| {
    let Some((_, pieces)) = tokengauge_fuzz::pieces(data) else { return };
    let (mut whole, mut cut) = (Skeleton::new(usize::from(data[0] >> 5)), Skeleton::new(usize::from(data[0] >> 5)));
    whole.push(&data[1..]);
    pieces.for_each(|piece| cut.push(piece));
    assert_eq!(whole.finish(), cut.finish());
    if let Ok(body) = whole.finish() {
        assert!(body.len() <= MAX_BODY);
        let _ = object::<Asked>(body);
    }
});
