//! AWS event-stream messages: pieces of any size give the same, and a hole nowhere breaks it. No fuzzer finds a checksum, so the
//! input is read in a second way as well: parts between bytes `0xfd` become messages, some of them with one byte wrong.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::framing::eventstream::Framer;

fn message(part: &[u8]) -> Vec<u8> {
    let Some((first, rest)) = part.split_first() else { return Vec::new() };
    let headers = usize::from(first & 0x7f).min(rest.len());
    let mut out = Vec::from(((rest.len() + 16) as u32).to_be_bytes());
    out.extend((headers as u32).to_be_bytes());
    out.extend(crc32fast::hash(&out).to_be_bytes());
    out.extend_from_slice(rest);
    out.extend(crc32fast::hash(&out).to_be_bytes());
    if *first > 0x7f {
        let at = usize::from(rest.first().copied().unwrap_or(0)) % out.len();
        out[at] ^= 1;
    }
    out
}

fuzz_target!(|data: &[u8]| {
    let Some((size, pieces)) = tokengauge_fuzz::pieces(data) else { return };
    assert_eq!(tokengauge_fuzz::frames!(Framer::default(), [&data[1..]]), tokengauge_fuzz::frames!(Framer::default(), pieces));
    let built: Vec<u8> = data[1..].split(|b| *b == 0xfd).flat_map(message).collect();
    assert_eq!(tokengauge_fuzz::frames!(Framer::default(), [&built]), tokengauge_fuzz::frames!(Framer::default(), built.chunks(size)));
});
