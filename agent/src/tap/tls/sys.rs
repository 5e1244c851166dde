//! The few system calls that aya 0.14 has no interface for: loading a program for `uprobe_multi`, attaching it, waiting on the
//! ring, reading two clocks.
//!
//! This is one of the two modules of the TLS tap with `unsafe` in it (the other is `kernel.rs`, for aya's `Pod`); each block says
//! why it is sound. No pointer outlives the call that it is passed to.
#![allow(unsafe_code)] // raw bpf(2): see above

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use aya_obj::generated::bpf_insn;

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;

/// `union bpf_attr` as BPF_PROG_LOAD reads it, up to `expected_attach_type`.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// `union bpf_attr` as BPF_LINK_CREATE reads it for BPF_TRACE_UPROBE_MULTI.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    _pad: u32,
}

fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: `attr` is a live, fully initialised `repr(C)` structure of the given size, without padding bytes that are not
    // fields; the kernel reads it and what it points to during the call only.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Loads a uprobe program so that it can be attached by `uprobe_multi`. The verifier's last words are in the error.
pub(super) fn load_uprobe_multi(name: &str, instructions: &[bpf_insn]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut attr = ProgLoad {
        prog_type: BPF_PROG_TYPE_KPROBE,
        insn_cnt: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        expected_attach_type: BPF_TRACE_UPROBE_MULTI,
        ..ProgLoad::default()
    };
    for (to, from) in attr.prog_name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    match bpf(BPF_PROG_LOAD, &attr) {
        Ok(fd) => Ok(fd),
        Err(first) => {
            let mut log = vec![0u8; 256 * 1024];
            attr.log_level = 1;
            attr.log_size = 256 * 1024;
            attr.log_buf = log.as_mut_ptr() as u64;
            match bpf(BPF_PROG_LOAD, &attr) {
                Ok(fd) => Ok(fd),
                Err(_) => {
                    let text = String::from_utf8_lossy(log.split(|b| *b == 0).next().unwrap_or_default()).into_owned();
                    let tail: Vec<&str> = text.lines().rev().take(12).collect();
                    let tail: Vec<&str> = tail.into_iter().rev().collect();
                    Err(io::Error::new(first.kind(), format!("{first}; {}", tail.join(" | "))))
                }
            }
        }
    }
}

/// Attaches a program at many file offsets of `path`, in all processes, now and later. Closing the descriptor detaches.
pub(super) fn attach_uprobe_multi(
    program: BorrowedFd<'_>,
    path: &std::path::Path,
    at_return: bool,
    places: &[(u64, u64)],
) -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let offsets: Vec<u64> = places.iter().map(|(offset, _)| *offset).collect();
    let cookies: Vec<u64> = places.iter().map(|(_, cookie)| *cookie).collect();
    let attr = LinkCreate {
        prog_fd: u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?,
        attach_type: BPF_TRACE_UPROBE_MULTI,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        cookies: cookies.as_ptr() as u64,
        count: u32::try_from(places.len()).map_err(io::Error::other)?,
        multi_flags: if at_return { BPF_F_UPROBE_MULTI_RETURN } else { 0 },
        ..LinkCreate::default()
    };
    bpf(BPF_LINK_CREATE, &attr)
}

/// Waits until `fd` is readable or the time is over.
pub(crate) fn wait_readable(fd: &impl AsRawFd, at_most: std::time::Duration) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let millis = i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one live `pollfd`, count 1. An error (EINTR) means an early return, which the caller's loop does not mind.
    let _ = unsafe { libc::poll(&raw mut poll, 1, millis) };
}

/// Nanoseconds of one of the kernel's clocks.
fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live `timespec` to write to; the two clocks that are asked for exist on every Linux.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// What to add to a kernel stamp (CLOCK_MONOTONIC) to get Unix time: the tightest of a few readings, once for the whole process, so that what
/// several taps see at one instant has one stamp.
pub(crate) fn unix_minus_monotonic() -> u64 {
    static OFFSET: OnceLock<u64> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        (0..16)
            .map(|_| {
                let before = clock(libc::CLOCK_MONOTONIC);
                let unix = clock(libc::CLOCK_REALTIME);
                let after = clock(libc::CLOCK_MONOTONIC);
                (after - before, unix.saturating_sub(before.midpoint(after)))
            })
            .min()
            .map_or(0, |(_, offset)| offset)
    })
}

/// Now, in nanoseconds of CLOCK_MONOTONIC, the clock of `bpf_ktime_get_ns`.
pub(crate) fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}
