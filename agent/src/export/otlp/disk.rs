//! A queue of requests on disk, for the time in which the receiver takes none.
//!
//! ```text
//! folder/lock                 held while an agent uses the folder
//! folder/0000000000000007.q   a segment: "TGQUEUE\x01" frame…
//! folder/cursor               place of the oldest request that is not settled: segment u64 · offset u64 · crc32 u32
//! frame                       as in [`crate::frames`], kind 1: items u32 · at u64 · zstd of the request
//! ```
//!
//! * Segments are only appended to, and removed whole. A process that is killed loses what it had not appended; the kernel keeps the rest. Against
//!   a loss of power files are synchronised when they are full, every 10 s, and at the end.
//! * A request is taken by a reader, and settled when a receiver has answered. The cursor says up to where everything is settled; it is
//!   written at each step, so a killed process sends again what was on its way (at most as many requests as may be under way at once) and
//!   nothing else: *at least once*.
//! * A torn tail, as a crash leaves it, is left out at the next start; a damaged frame ends its segment. Both are counted.
//! * When the folder is full by `max_bytes` the oldest segment goes, and what it held is counted. Segments are a sixteenth of the bound, so
//!   that much may be missing from it. What is older than `max_age` goes as well.
//! * When the disk is full or gone, a write fails, what it wrote is taken back, and the caller keeps the request in memory.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::parcel::Parcel;
pub use super::segment::Place;
use super::segment::{MAGIC, REQUEST, SEGMENT, Segment, front, numbers, path, read_cursor, remove, scan};
use crate::frames::{self, HEAD, frame};

/// Bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all segments together.
    pub max_bytes: u64,
    /// How long a request may wait.
    pub max_age: Duration,
}

/// What was dropped, in items.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// The folder was full.
    pub full: u64,
    /// It had waited too long.
    pub expired: u64,
    /// What was read is not what was written; the items that are known to be missing.
    pub damaged: u64,
}

/// A request that was taken.
#[derive(Clone, Copy, Debug)]
struct Taken {
    items: u32,
    /// To be taken again.
    back: bool,
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    folder: PathBuf,
    bounds: Bounds,
    _lock: File,
    segments: VecDeque<Segment>,
    /// The file of the last segment; `None` until the next request, which begins a new one.
    writer: Option<File>,
    /// The file of the segment that was read last.
    reader: Option<(u64, File)>,
    /// The first request that was never taken.
    next: Place,
    taken: BTreeMap<Place, Taken>,
    cursor: File,
    written: Place,
    dropped: Dropped,
    unsynced: bool,
}

/// Why a queue cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The folder cannot be made, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The folder.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{path}: another process uses this folder")]
    Locked {
        /// The folder.
        path: String,
    },
}

impl Queue {
    /// Opens the queue in `folder`, which is made if need be, and finds what waits there. The text says what was left out.
    ///
    /// # Errors
    /// When the folder cannot be used, or another process uses it.
    pub fn open(folder: &Path, bounds: Bounds) -> Result<(Self, Option<String>), QueueError> {
        let io = |source| QueueError::Io { path: folder.display().to_string(), source };
        std::fs::create_dir_all(folder).map_err(io)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join("lock")).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(QueueError::Locked { path: folder.display().to_string() }),
            Err(std::fs::TryLockError::Error(source)) => return Err(io(source)),
        }
        let cursor = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(folder.join("cursor")).map_err(io)?;
        let start = read_cursor(&cursor).unwrap_or(Place { segment: 0, offset: 0 });
        let (mut segments, mut torn) = (VecDeque::new(), 0);
        for number in numbers(folder).map_err(io)? {
            if number < start.segment {
                remove(folder, number);
                continue;
            }
            let from = if number == start.segment { start.offset } else { 0 };
            let (segment, left_out) = scan(folder, number, from).map_err(io)?;
            torn += left_out;
            if segment.items == 0 {
                remove(folder, number);
            } else {
                segments.push_back(segment);
            }
        }
        let next = segments.front().map_or(Place { segment: start.segment, offset: 0 }, |s: &Segment| Place {
            segment: s.number,
            offset: if s.number == start.segment { start.offset.max(MAGIC.len() as u64) } else { MAGIC.len() as u64 },
        });
        let left_out = (torn > 0).then(|| format!("{}: {torn} bytes are torn or damaged and were left out", folder.display()));
        let queue = Self {
            folder: folder.to_owned(),
            bounds,
            _lock: lock,
            segments,
            writer: None,
            reader: None,
            next,
            taken: BTreeMap::new(),
            cursor,
            written: start,
            dropped: Dropped::default(),
            unsynced: false,
        };
        Ok((queue, left_out))
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.len).sum()
    }

    /// Items that are not settled.
    pub fn items(&self) -> u64 {
        self.segments.iter().map(|s| s.items).sum()
    }

    /// Whether there is something to take.
    pub fn waits(&self) -> bool {
        self.taken.values().any(|t| t.back)
            || self.segments.iter().any(|s| {
                let begin = if s.number == self.next.segment { self.next.offset } else { MAGIC.len() as u64 };
                s.number >= self.next.segment && s.len > begin
            })
    }

    /// What was dropped since the last call.
    pub fn dropped(&mut self) -> Dropped {
        std::mem::take(&mut self.dropped)
    }

    /// Appends a request; `now` is Unix nanoseconds.
    ///
    /// # Errors
    /// When it could not be written: then it is not in the queue.
    pub fn push(&mut self, parcel: &Parcel, now: u64) -> io::Result<()> {
        let bytes = frame(REQUEST, &[&parcel.items.to_le_bytes(), &parcel.at.to_le_bytes(), &parcel.to_packed()]);
        let len = bytes.len() as u64;
        if len + MAGIC.len() as u64 > self.bounds.max_bytes {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "one request is larger than max_bytes"));
        }
        self.expire(now);
        while self.bytes() + len + MAGIC.len() as u64 > self.bounds.max_bytes && !self.segments.is_empty() {
            self.drop_oldest(|dropped| &mut dropped.full);
        }
        let full = (self.bounds.max_bytes / 16).clamp(SEGMENT.0, SEGMENT.1);
        if self.segments.back().is_none_or(|s| s.len + len > full) {
            self.close()?;
        }
        if self.writer.is_none() {
            self.writer = Some(self.begin()?);
        }
        let (Some(file), Some(segment)) = (&self.writer, self.segments.back_mut()) else { return Err(io::Error::other("no segment")) };
        if let Err(error) = file.write_all_at(&bytes, segment.len) {
            // Half a frame must not stand before the next one. Where even that fails the segment is given up; its reader stops there.
            if file.set_len(segment.len).is_err() {
                self.writer = None;
            }
            return Err(error);
        }
        segment.len += len;
        segment.items += u64::from(parcel.items);
        segment.newest = segment.newest.max(parcel.at);
        self.unsynced = true;
        Ok(())
    }

    /// The oldest request that is not on its way. It stays until it is settled.
    pub fn take(&mut self, now: u64) -> Option<(Place, Parcel)> {
        self.expire(now);
        if let Some(place) = self.taken.iter().find(|(_, t)| t.back).map(|(p, _)| *p) {
            if let Some((parcel, _)) = self.read(place) {
                if let Some(taken) = self.taken.get_mut(&place) {
                    taken.back = false;
                }
                return Some((place, parcel));
            }
            self.lose(place);
        }
        loop {
            let segment = self.segments.iter().find(|s| s.number >= self.next.segment)?;
            if segment.number > self.next.segment {
                self.next = Place { segment: segment.number, offset: MAGIC.len() as u64 };
            }
            if self.next.offset >= segment.len {
                // Behind the last whole frame. More may come in the last segment only.
                let after = self.segments.iter().find(|s| s.number > self.next.segment)?.number;
                self.next = Place { segment: after, offset: MAGIC.len() as u64 };
                continue;
            }
            let place = self.next;
            let Some((parcel, len)) = self.read(place) else {
                // Nothing behind a damaged frame can be found. What was taken from the segment earlier is not affected.
                let earlier = self.taken.iter().filter(|(p, _)| p.segment == place.segment).map(|(_, t)| u64::from(t.items)).sum();
                if self.segments.back().is_some_and(|s| s.number == place.segment) {
                    self.writer = None;
                }
                if let Some(segment) = self.segments.iter_mut().find(|s| s.number == place.segment) {
                    self.dropped.damaged += segment.items.saturating_sub(earlier);
                    (segment.items, segment.len) = (earlier, place.offset);
                }
                self.sweep();
                continue;
            };
            self.next.offset += len;
            self.taken.insert(place, Taken { items: parcel.items, back: false });
            if self.too_old(parcel.at, now) {
                self.dropped.expired += u64::from(parcel.items);
                self.settle(place);
                continue;
            }
            return Some((place, parcel));
        }
    }

    /// A receiver has answered: the request is not needed any more.
    pub fn settle(&mut self, place: Place) {
        let Some(taken) = self.taken.remove(&place) else { return };
        if let Some(segment) = self.segments.iter_mut().find(|s| s.number == place.segment) {
            segment.items = segment.items.saturating_sub(taken.items.into());
        }
        self.sweep();
    }

    /// It is to be taken again. Whether it still can be: it may have been dropped meanwhile.
    pub fn back(&mut self, place: Place) -> bool {
        self.taken.get_mut(&place).map(|taken| taken.back = true).is_some()
    }

    /// Makes what was written survive a loss of power.
    ///
    /// # Errors
    /// When the system says so.
    pub fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.unsynced)
            && let Some(file) = &self.writer
        {
            file.sync_data()?;
        }
        Ok(())
    }

    fn lose(&mut self, place: Place) {
        self.dropped.damaged += self.taken.get(&place).map_or(0, |t| u64::from(t.items));
        self.settle(place);
    }

    /// Ends the last segment.
    fn close(&mut self) -> io::Result<()> {
        self.sync()?;
        self.writer = None;
        Ok(())
    }

    fn begin(&mut self) -> io::Result<File> {
        let number = self.segments.back().map_or(self.next.segment, |s| s.number).max(self.written.segment) + 1;
        let path = path(&self.folder, number);
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path)?;
        if let Err(error) = file.write_all_at(MAGIC, 0) {
            // It takes room on a full disk and is of no use.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        self.segments.push_back(Segment { number, len: MAGIC.len() as u64, items: 0, newest: 0 });
        Ok(file)
    }

    fn read(&mut self, place: Place) -> Option<(Parcel, u64)> {
        let end = self.segments.iter().find(|s| s.number == place.segment)?.len;
        if self.reader.as_ref().is_none_or(|(number, _)| *number != place.segment) {
            self.reader = Some((place.segment, File::open(path(&self.folder, place.segment)).ok()?));
        }
        let (_, file) = self.reader.as_ref()?;
        let mut head = [0; HEAD];
        file.read_exact_at(&mut head, place.offset).ok()?;
        let len = (HEAD + frames::payload_len(&head)) as u64;
        // A length that leads out of what was written is damage, and no reason to ask for its memory.
        if place.offset + len > end {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        file.read_exact_at(&mut bytes, place.offset).ok()?;
        let (kind, payload, _) = frames::next(&bytes)?;
        let (items, at, packed) = front(payload).filter(|_| kind == REQUEST)?;
        Some((Parcel::packed(packed.to_vec(), items, at), len))
    }

    /// Drops what is too old: whole segments at once.
    fn expire(&mut self, now: u64) {
        while self.segments.front().is_some_and(|s| s.items > 0 && self.too_old(s.newest, now)) {
            self.drop_oldest(|dropped| &mut dropped.expired);
        }
    }

    fn too_old(&self, at: u64, now: u64) -> bool {
        now.saturating_sub(at) > u64::try_from(self.bounds.max_age.as_nanos()).unwrap_or(u64::MAX)
    }

    fn drop_oldest(&mut self, why: fn(&mut Dropped) -> &mut u64) {
        let Some(segment) = self.segments.pop_front() else { return };
        // What is on its way may arrive yet; it is not counted here, and settling it does nothing.
        let flying = |(p, t): &(&Place, &Taken)| p.segment == segment.number && !t.back;
        let under_way: u64 = self.taken.iter().filter(flying).map(|(_, t)| u64::from(t.items)).sum();
        *why(&mut self.dropped) += segment.items.saturating_sub(under_way);
        self.taken.retain(|p, _| p.segment != segment.number);
        if self.segments.is_empty() {
            self.writer = None;
        }
        remove(&self.folder, segment.number);
        self.sweep();
    }

    /// Removes segments with nothing left and moves the cursor.
    fn sweep(&mut self) {
        let first = self.taken.keys().next().copied().map_or(self.next, |p| p.min(self.next));
        while let Some(segment) = self.segments.front() {
            let behind = segment.number < first.segment || (segment.number == first.segment && first.offset >= segment.len);
            // An empty segment that is still written to stays.
            if !behind || (self.segments.len() == 1 && self.writer.is_some() && segment.len < SEGMENT.0) {
                break;
            }
            let number = segment.number;
            self.segments.pop_front();
            if self.segments.is_empty() {
                self.writer = None;
            }
            if self.reader.as_ref().is_some_and(|(n, _)| *n == number) {
                self.reader = None;
            }
            remove(&self.folder, number);
        }
        if first != self.written {
            let mut bytes = [first.segment.to_le_bytes(), first.offset.to_le_bytes()].concat();
            bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
            // A cursor that cannot be written costs requests that are sent twice, after a crash.
            if self.cursor.write_all_at(&bytes, 0).is_ok() {
                self.written = first;
            }
        }
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
