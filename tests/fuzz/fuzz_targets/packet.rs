//! One frame of any link layer, cut anywhere.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::tcp::packet::{LinkType, parse};

fuzz_target!(|data: &[u8]| {
    let Some((&[link, more], frame)) = data.split_first_chunk() else { return };
    let Some(link) = LinkType::from_number([0, 1, 12, 113, 276][usize::from(link) % 5]) else { return };
    if let Ok(segment) = parse(link, frame, frame.len() as u32 + u32::from(more)) {
        assert!(segment.payload.len() <= frame.len() && (more > 0 || segment.missing as usize <= 65_535 + 40));
    }
});
