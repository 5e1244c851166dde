//! Compressed bytes, in pieces: the same output whatever their size, and no more than the bound allows.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::http::coding::Decoder;

fuzz_target!(|data: &[u8]| {
    let Some((_, pieces)) = tokengauge_fuzz::pieces(data) else { return };
    let Some(mut whole) = Decoder::new(tokengauge_fuzz::coding(data[0] >> 6)) else { return };
    let Some(mut cut) = Decoder::new(tokengauge_fuzz::coding(data[0] >> 6)) else { return };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let first = whole.push(&data[1..], &mut |bytes| a.extend_from_slice(bytes));
    let second = pieces.map(|piece| cut.push(piece, &mut |bytes| b.extend_from_slice(bytes))).find(Result::is_err).unwrap_or(Ok(()));
    assert_eq!(first, second);
    // Behind an error what was inflated so far depends on where the input was cut.
    assert!(first.is_err() || a == b);
    assert!(a.len() <= (17 << 20) + 200 * data.len());
});
