//! Writing records.
//!
//! A record is reserved in the ring and filled there: no scratch memory, which another program on the same CPU could overwrite
//! (uprobe programs may be preempted), and no second copy. The verifier wants reservations of constant size, so records come
//! in size classes; the header says how many bytes count.

use core::ptr::addr_of_mut;

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::{bpf_probe_read_user, bpf_ringbuf_discard, bpf_ringbuf_query, bpf_ringbuf_reserve, bpf_ringbuf_submit};
use tokengauge_ebpf_common::{Header, MAX_PIECE, hook};

use crate::maps::{CONFIG, RECORDS, count};

#[repr(C)]
struct Record<const N: usize> {
    header: Header,
    bytes: [u8; N],
}

/// The agent polls; it is woken only when the ring fills faster than it polls.
#[inline(always)]
fn wakeup() -> u64 {
    let waiting = unsafe { bpf_ringbuf_query(ring(), BPF_RB_AVAIL_DATA as u64) };
    match CONFIG.get(0) {
        Some(config) if waiting > config.wake_bytes => BPF_RB_FORCE_WAKEUP as u64,
        _ => BPF_RB_NO_WAKEUP as u64,
    }
}

#[inline(always)]
fn ring() -> *mut core::ffi::c_void {
    (&raw const RECORDS).cast_mut().cast()
}

#[inline(always)]
fn lost(header: &Header) {
    count(|c| {
        c.ring_full += 1;
        c.ring_full_bytes += u64::from(header.len);
    });
}

/// A record of a header alone.
#[inline(always)]
pub fn bare(header: &Header) {
    let record = unsafe { bpf_ringbuf_reserve(ring(), size_of::<Header>() as u64, 0) }.cast::<Header>();
    if record.is_null() {
        return lost(header);
    }
    unsafe {
        *record = *header;
        bpf_ringbuf_submit(record.cast(), wakeup());
    }
}

/// A record of a header and a structure.
#[inline(always)]
pub fn with<T: Copy>(header: &Header, value: &T) {
    #[repr(C)]
    struct Pair<T>(Header, T);
    let record = unsafe { bpf_ringbuf_reserve(ring(), size_of::<Pair<T>>() as u64, 0) }.cast::<Pair<T>>();
    if record.is_null() {
        return lost(header);
    }
    unsafe {
        addr_of_mut!((*record).0).write(*header);
        addr_of_mut!((*record).1).write(*value);
        bpf_ringbuf_submit(record.cast(), wakeup());
    }
}

/// Copies `header.len` bytes (at most [`MAX_PIECE`]) of the process's memory into a record. False when they are unreadable.
#[inline(always)]
pub fn data(header: &Header, from: u64) -> bool {
    let len = u64::from(header.len);
    if len <= 64 {
        class::<64>(header, from)
    } else if len <= 192 {
        class::<192>(header, from)
    } else if len <= 384 {
        class::<384>(header, from)
    } else if len <= 768 {
        class::<768>(header, from)
    } else if len <= 1536 {
        class::<1536>(header, from)
    } else if len <= 4096 {
        class::<4096>(header, from)
    } else {
        class::<MAX_PIECE>(header, from)
    }
}

#[inline(always)]
fn class<const N: usize>(header: &Header, from: u64) -> bool {
    let record = unsafe { bpf_ringbuf_reserve(ring(), size_of::<Record<N>>() as u64, 0) }.cast::<Record<N>>();
    if record.is_null() {
        lost(header);
        return true;
    }
    let len = header.len;
    unsafe {
        addr_of_mut!((*record).header).write(*header);
        if len as usize > N || bpf_probe_read_user(addr_of_mut!((*record).bytes).cast(), len, from as *const _) != 0 {
            bpf_ringbuf_discard(record.cast(), BPF_RB_NO_WAKEUP as u64);
            return false;
        }
        bpf_ringbuf_submit(record.cast(), wakeup());
    }
    count(|c| {
        c.records += 1;
        c.bytes += u64::from(len);
    });
    true
}

/// Copies an event of the hook, `header.len` bytes (at most [`hook::MAX`]) of the process's memory, into a record, if it is of our version.
#[inline(always)]
pub fn event(header: &Header, from: u64) {
    let len = header.len;
    if len <= 128 {
        event_class::<128>(header, from)
    } else if len <= 256 {
        event_class::<256>(header, from)
    } else {
        event_class::<{ hook::MAX }>(header, from)
    }
}

#[inline(always)]
fn event_class<const N: usize>(header: &Header, from: u64) {
    let record = unsafe { bpf_ringbuf_reserve(ring(), size_of::<Record<N>>() as u64, 0) }.cast::<Record<N>>();
    if record.is_null() {
        return lost(header);
    }
    let len = header.len;
    unsafe {
        addr_of_mut!((*record).header).write(*header);
        if len as usize > N || bpf_probe_read_user(addr_of_mut!((*record).bytes).cast(), len, from as *const _) != 0 {
            bpf_ringbuf_discard(record.cast(), BPF_RB_NO_WAKEUP as u64);
            return count(|c| c.unreadable += 1);
        }
        let version = addr_of_mut!((*record).bytes).cast::<u16>().add(1).read();
        if version != hook::VERSION {
            bpf_ringbuf_discard(record.cast(), BPF_RB_NO_WAKEUP as u64);
            return count(|c| c.hook_unknown_version += 1);
        }
        bpf_ringbuf_submit(record.cast(), wakeup());
    }
    count(|c| c.records += 1);
}
