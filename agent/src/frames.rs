//! Frames with checksums: what the agent's journals on disk are made of.
//!
//! ```text
//! frame   = length u32 · crc32 u32 of kind and payload · kind u8 · payload     little endian; the length is the payload's
//! ```
//!
//! Files of frames are only appended to, so a crash can do no more than tear the last frame. A reader stops at the first frame that is
//! short or whose checksum is wrong.

/// Bytes before a frame's payload.
pub const HEAD: usize = 9;

/// A frame whose payload is all parts after one another.
pub fn frame(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let len = parts.iter().map(|p| p.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(HEAD + len);
    bytes.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&checksum(kind, parts).to_le_bytes());
    bytes.push(kind);
    parts.iter().for_each(|p| bytes.extend_from_slice(p));
    bytes
}

fn checksum(kind: u8, parts: &[&[u8]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    parts.iter().for_each(|p| crc.update(p));
    crc.finalize()
}

/// Kind and payload of the frame that `bytes` begin with, and what follows it; `None` when it is torn or damaged.
pub fn next(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first()?;
    let (payload, after) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    (checksum(*kind, &[payload]) == u32::from_le_bytes(*crc)).then_some((*kind, payload, after))
}

/// Length of the payload that follows a frame's first [`HEAD`] bytes.
pub fn payload_len(head: &[u8; HEAD]) -> usize {
    let [a, b, c, d, ..] = *head;
    u32::from_le_bytes([a, b, c, d]) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_back_and_every_damage_is_seen() {
        let bytes = [frame(7, &[b"ab", b"", b"c"]), frame(8, &[])].concat();
        let (kind, payload, rest) = next(&bytes).unwrap();
        assert_eq!((kind, payload, next(rest).unwrap()), (7, b"abc".as_slice(), (8, b"".as_slice(), b"".as_slice())));
        assert_eq!(payload_len(bytes.first_chunk().unwrap()), 3);
        let first = bytes.len() - rest.len();
        for at in 0..first {
            assert_eq!(next(&bytes[..at]), None);
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert_eq!(next(&damaged), None, "{at}");
        }
    }
}
