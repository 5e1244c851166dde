//! Large pages for the heap of a replay.
//!
//! A thousand compressed streams have a window of 32 KiB each. Every packet needs another one, and with pages of 4 KiB the processor finds the addresses of
//! none of them in its tables: a replay of the bench's compressed capture took a quarter less time with large pages, while one of plain streams, whose
//! memory is a few megabytes, took the same. Only what is touched becomes memory, in steps of 2 MiB at most.
#![allow(unsafe_code, reason = "mallopt(3), sbrk(2) and madvise(2) have no safe form")]

/// So much of the heap.
#[cfg(target_env = "gnu")]
const ROOM: libc::c_int = 64 << 20;

/// Asks the kernel for large pages where the heap will grow next. A hint: where it cannot be followed nothing changes.
#[cfg(target_env = "gnu")]
pub(super) fn large_pages() {
    // SAFETY: sets by how much the heap grows at a time; it takes no memory
    unsafe { libc::mallopt(libc::M_TOP_PAD, ROOM) };
    // SAFETY: with 0 it only says where the heap ends
    let end = || unsafe { libc::sbrk(0) };
    let before = end();
    // Blocks below the size that has a mapping of its own, until the heap grows: it is not known how much room it has.
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    while end() == before && blocks.len() < 16 {
        blocks.push(Vec::with_capacity(64 << 10));
        std::hint::black_box(&blocks);
    }
    let length = (end() as usize).saturating_sub(before as usize);
    // Not past what was added: what lies there may be somebody else's.
    if length >= ROOM as usize {
        // SAFETY: the range is the heap's own, and advice changes no content
        unsafe { libc::madvise(before, length, libc::MADV_HUGEPAGE) };
    }
}

/// Only glibc's allocator can be told.
#[cfg(not(target_env = "gnu"))]
pub(super) fn large_pages() {}
