//! Compressed bytes, in pieces: the same output whatever their size, and no more than the bound allows. DEFLATE gives what zlib makes of it.
#![no_main]
use libfuzzer_sys::fuzz_target;
use flate2::{Decompress, FlushDecompress, Status};
use tokengauge_core::http::coding::Decoder;
use tokengauge_core::http::head::Coding;

/// What zlib makes of a stream: the text, and whether it ended; `None` when it is none.
fn zlib(bytes: &[u8]) -> Option<(Vec<u8>, bool)> {
    let (mut machine, mut text, mut room) = (Decompress::new(false), Vec::new(), vec![0; 1 << 16]);
    loop {
        let (used, before) = (machine.total_in() as usize, machine.total_out());
        let status = machine.decompress(&bytes[used..], &mut room, FlushDecompress::None).ok()?;
        let made = (machine.total_out() - before) as usize;
        text.extend_from_slice(&room[..made]);
        if status == Status::StreamEnd || made < room.len() {
            return Some((text, status == Status::StreamEnd));
        }
    }
}

fn as_zlib_does(raw: &[u8], size: usize) {
    let Some(mut ours) = Decoder::new(Coding::Gzip) else { return };
    let (mut text, mut done) = (Vec::new(), ours.push(b"\x1f\x8b\x08\0\0\0\0\0\0\0", &mut |_| ()));
    for piece in raw.chunks(size) {
        done = done.and_then(|()| ours.push(piece, &mut |bytes| text.extend_from_slice(bytes)));
    }
    match zlib(raw) {
        None => assert!(done.is_err()),
        // What follows its end may be another member, or nonsense.
        Some((theirs, true)) => assert!(text.starts_with(&theirs)),
        Some((theirs, false)) if done.is_ok() => assert_eq!(text, theirs),
        // A code that can never be used is noticed earlier.
        Some((_, false)) => assert!(zlib(&[raw, &[0; 600]].concat()).is_none()),
    }
}

fuzz_target!(|data: &[u8]| {
    if let Some((size, _)) = tokengauge_fuzz::pieces(data).filter(|_| data[0] >> 6 == 0) {
        as_zlib_does(&data[1..], size);
    }
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
