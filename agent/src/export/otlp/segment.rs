//! The files of [`super::disk`]: how they are named, read back and found whole.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::frames;

/// The first bytes of a segment.
pub const MAGIC: &[u8; 8] = b"TGQUEUE\x01";
/// The kind of a frame with a request.
pub const REQUEST: u8 = 1;
/// Bounds of a segment's size.
pub const SEGMENT: (u64, u64) = (64 << 10, 8 << 20);

/// Where a request stands. Places are ordered as the requests were written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The segment's number.
    pub segment: u64,
    /// Bytes before it.
    pub offset: u64,
}

/// One file of the queue.
#[derive(Debug)]
pub struct Segment {
    /// Its number, which is its name.
    pub number: u64,
    /// Bytes of whole frames, the magic included.
    pub len: u64,
    /// Items that are not settled.
    pub items: u64,
    /// When its newest request was handed over.
    pub newest: u64,
}

/// The place up to which everything is settled; `None` where none was written, or it is damaged.
pub fn read_cursor(file: &File) -> Option<Place> {
    let mut bytes = [0; 20];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let (segment, rest) = bytes.split_first_chunk::<8>()?;
    let (offset, crc) = rest.split_first_chunk::<8>()?;
    (crc32fast::hash(bytes.get(..16)?).to_le_bytes() == *crc)
        .then(|| Place { segment: u64::from_le_bytes(*segment), offset: u64::from_le_bytes(*offset) })
}

/// Items, instant and packed request of a frame's payload.
pub fn front(payload: &[u8]) -> Option<(u32, u64, &[u8])> {
    let (items, rest) = payload.split_first_chunk::<4>()?;
    let (at, packed) = rest.split_first_chunk::<8>()?;
    Some((u32::from_le_bytes(*items), u64::from_le_bytes(*at), packed))
}

/// A segment's file.
pub fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016}.q"))
}

/// What cannot be removed is in nobody's way: its number is below the cursor's.
pub fn remove(folder: &Path, number: u64) {
    let _ = std::fs::remove_file(path(folder, number));
}

/// The segments that there are, oldest first.
pub fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut all: Vec<u64> =
        std::fs::read_dir(folder)?.flatten().filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".q")?.parse().ok()).collect();
    all.sort_unstable();
    Ok(all)
}

/// The segment as its whole frames from `from` on give it, and the bytes behind them.
pub fn scan(folder: &Path, number: u64, from: u64) -> io::Result<(Segment, u64)> {
    let mut bytes = Vec::new();
    // Larger than any segment: one request may be larger than a segment should be.
    File::open(path(folder, number))?.take(SEGMENT.1 + (256 << 20)).read_to_end(&mut bytes)?;
    let mut segment = Segment { number, len: 0, items: 0, newest: 0 };
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else { return Ok((segment, bytes.len() as u64)) };
    while let Some((REQUEST, payload, after)) = frames::next(rest) {
        let Some((items, at, _)) = front(payload) else { break };
        if (bytes.len() - rest.len()) as u64 >= from {
            segment.items += u64::from(items);
        }
        segment.newest = segment.newest.max(at);
        rest = after;
    }
    segment.len = (bytes.len() - rest.len()) as u64;
    Ok((segment, rest.len() as u64))
}
