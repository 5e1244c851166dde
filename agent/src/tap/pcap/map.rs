//! A file in memory, without a copy.
//!
//! A file that is cut while it is mapped kills whoever reads beyond its new end, so [`Map::still_whole`] is asked before each stretch
//! of it. A cut within the millisecond that a stretch takes is not survived; a capture that grows while it is read is harmless.
//!
//! Used where several threads read one file: its pages are mapped once for all of them, and each looks at the headers of all packets but at the
//! payload of its own only. One thread alone is faster with `read` into a buffer of 128 KiB: the kernel's copy (40 ms for 236 MB) costs what
//! the page faults cost, and leaves the bytes in the cache (a replay takes 15 % less time). What was read is given back, so that a large
//! file does not look like a large process.

#![allow(unsafe_code, reason = "mmap(2) has no safe form")]

use std::fs::File;
use std::os::fd::AsRawFd as _;

/// A file's bytes, read-only, as many as it had when it was mapped.
pub(super) struct Map {
    start: *const u8,
    len: usize,
    /// Bytes at the front that were given back.
    released: usize,
}

// SAFETY: the mapping is private to this value, read-only, and not tied to a thread
unsafe impl Send for Map {}

/// What is given back is a multiple of any page's size.
const STRETCH: usize = 4 << 20;

impl Map {
    /// Maps a regular file that is not empty; `None` when the system refuses.
    pub(super) fn of(file: &File, len: u64) -> Option<Self> {
        let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
        // SAFETY: a new mapping at an address of the kernel's choice; the descriptor is open, and failure is looked for
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the range is the mapping just made; the call is advice
        unsafe { libc::madvise(start, len, libc::MADV_SEQUENTIAL) };
        Some(Self { start: start.cast_const().cast(), len, released: 0 })
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes long and lives as long as `self`. Pages beyond the end of a file that was cut would raise
        // SIGBUS: see the module's documentation
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Whether the file is still as long as it was.
    pub(super) fn still_whole(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|now| now.len() >= self.len as u64)
    }

    /// Bytes before `offset` are not needed in memory any more; they stay readable.
    pub(super) fn release(&mut self, offset: usize) {
        let begin = self.released;
        let end = offset.min(self.len) / STRETCH * STRETCH;
        if end > begin {
            // SAFETY: within the mapping and page-aligned; a private read-only mapping of a file is read again when it is touched
            unsafe { libc::madvise(self.start.add(begin).cast_mut().cast(), end - begin, libc::MADV_DONTNEED) };
            self.released = end;
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `of`, and nothing borrows from it any more
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.len) };
    }
}
