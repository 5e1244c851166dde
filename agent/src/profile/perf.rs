//! perf_event_open(2) on the threads of this process: one ring for each, in which the kernel writes samples.
#![allow(unsafe_code)] // perf_event_open, mmap: see each block

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Samples for each second of a thread's processor time.
pub const HZ: u32 = 99;

/// Threads that are sampled at most.
const MAX_THREADS: usize = 64;

/// Pages of samples in each ring; a power of two.
const PAGES: usize = 4;

/// Different samples that are kept.
const MAX_SAMPLES: usize = 100_000;

/// A sample: who was where.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Sample {
    /// Name of the thread.
    pub thread: Arc<str>,
    /// The instruction.
    pub ip: u64,
}

/// A running recording; dropping it ends it.
pub struct Recording {
    rings: Vec<Ring>,
    samples: BTreeMap<Sample, u64>,
    lost: u64,
}

impl Recording {
    /// Begins with every thread that there is.
    ///
    /// # Errors
    /// When the kernel allows none.
    pub fn start() -> io::Result<Self> {
        let (mut rings, mut refused) = (Vec::new(), None);
        for entry in std::fs::read_dir("/proc/self/task")?.flatten().take(MAX_THREADS) {
            let Some(tid) = entry.file_name().to_str().and_then(|n| n.parse::<libc::pid_t>().ok()) else { continue };
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            match Ring::open(tid, name.trim().into()) {
                Ok(ring) => rings.push(ring),
                // A thread that ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if rings.is_empty() => Err(error),
            _ => Ok(Self { rings, samples: BTreeMap::new(), lost: 0 }),
        }
    }

    /// Takes what is there.
    pub fn drain(&mut self) {
        let Self { rings, samples, lost } = self;
        for ring in rings {
            let thread = Arc::clone(&ring.thread);
            ring.drain(|event| match event {
                Event::At(ip) => {
                    let sample = Sample { thread: Arc::clone(&thread), ip };
                    let room = samples.len() < MAX_SAMPLES;
                    match samples.get_mut(&sample) {
                        Some(count) => *count += 1,
                        None if room => _ = samples.insert(sample, 1),
                        None => *lost += 1,
                    }
                }
                Event::Lost(count) => *lost += count,
            });
        }
    }

    /// The samples with how often each was met, and how many found no room.
    pub fn finish(mut self) -> (BTreeMap<Sample, u64>, u64) {
        self.drain();
        (self.samples, self.lost)
    }
}

/// What a ring holds.
enum Event {
    At(u64),
    Lost(u64),
}

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER0` (linux/perf_event.h).
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_freq: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
const PERF_SAMPLE_IP: u64 = 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HV: u64 = 1 << 6;
const FLAG_FREQ: u64 = 1 << 10;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;

/// Where the kernel writes how far it is, in the first page (`struct perf_event_mmap_page`).
const DATA_HEAD: usize = 1024;
/// Where we write how far we are.
const DATA_TAIL: usize = 1032;

/// One thread's ring.
struct Ring {
    thread: Arc<str>,
    _fd: OwnedFd,
    base: NonNull<u8>,
    page: usize,
}

// SAFETY: the mapping belongs to the ring alone, and nothing in it is bound to the thread that made it.
unsafe impl Send for Ring {}

impl Ring {
    fn open(tid: libc::pid_t, thread: Arc<str>) -> io::Result<Self> {
        let attr = Attr {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: PERF_COUNT_SW_TASK_CLOCK,
            sample_freq: u64::from(HZ),
            sample_type: PERF_SAMPLE_IP,
            flags: FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_HV | FLAG_FREQ,
            ..Attr::default()
        };
        // SAFETY: `attr` is a live, initialised structure of the size that it states; the kernel only reads it.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: sysconf has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let (length, access) = (page * (PAGES + 1), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice; it is unmapped in `drop` and nowhere else.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { thread, _fd: fd, base, page })
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both places are in the first page, aligned to 8 and valid as long as the mapping, which lives as long as `self`; the kernel reads and
        // writes them atomically.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Eight bytes of the ring; records are aligned to 8, so none of them is cut by the end.
    fn word(&self, at: u64) -> u64 {
        let size = (self.page * PAGES) as u64;
        let offset = self.page + ((at % size) & !7) as usize;
        // SAFETY: the offset is aligned to 8 and within the mapping; the kernel has written it before it moved its head, which was read by `Acquire`.
        unsafe { self.base.as_ptr().add(offset).cast::<u64>().read_volatile() }
    }

    fn drain(&mut self, mut f: impl FnMut(Event)) {
        let head = self.counter(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.counter(DATA_TAIL).load(Ordering::Relaxed);
        while tail < head {
            // `struct perf_event_header`: type, misc, size.
            let header = self.word(tail);
            let (kind, size) = (header as u32, header >> 48);
            if size < 8 {
                // Cannot be: whatever it is, what follows makes no sense either.
                tail = head;
                break;
            }
            match kind {
                PERF_RECORD_SAMPLE if size >= 16 => f(Event::At(self.word(tail + 8))),
                PERF_RECORD_LOST if size >= 24 => f(Event::Lost(self.word(tail + 16))),
                _ => {}
            }
            tail += size;
        }
        self.counter(DATA_TAIL).store(tail, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this is what `open` mapped, with the same length, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.page * (PAGES + 1)) };
    }
}
