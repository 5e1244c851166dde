//! OpenSSL's read and write functions, and what begins and ends a connection.
//!
//! One program for the entries and one for the returns of every read and write function: the attach cookie says which it is and
//! where the count stands. Bytes are copied when the call *returns*, because only then is it known how many were moved: a
//! non-blocking write that would block is called again with the same bytes, and must not count twice. A write's instant is
//! taken at its entry, a read's at its return.
//!
//! A call may lie inside another: Node writes a request from the callback that a read makes when the handshake is done. The outer
//! call then waits in a table of its own; the stack pointer tells whose return it is. Where a public function calls another
//! probed one with the same connection, direction and buffer, the inner one is the same call and is not counted. An entry that
//! was left without a return (longjmp, a cancelled thread) is recognised because later calls are not deeper on the stack.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid};
use aya_ebpf::helpers::bpf_probe_read_user;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use tokengauge_ebpf_common::cookie::{self, Count};
use tokengauge_ebpf_common::{COMMAND, Call, Conn, ConnKey, Header, MAX_DEPTH, MAX_PIECE, MAX_PIECES, OuterKey, dir, filter, flag, kind};

use crate::maps::{CALLS, CONFIG, CONNS, OUTER, PROCESSES, SENSELESS, count};
use crate::ring;

#[inline(always)]
pub fn watched(tgid: u32) -> bool {
    let Some(config) = CONFIG.get(0) else { return false };
    if tgid == config.own_tgid {
        return false;
    }
    match config.filter {
        filter::ONLY => unsafe { PROCESSES.get(&tgid) }.is_some(),
        filter::EXCEPT => unsafe { PROCESSES.get(&tgid) }.is_none(),
        _ => true,
    }
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn stack_pointer(regs: *const aya_ebpf::bindings::pt_regs) -> u64 {
    unsafe { (*regs).rsp }
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn stack_pointer(regs: *const aya_ebpf::bindings::pt_regs) -> u64 {
    unsafe { (*regs.cast::<aya_ebpf::bindings::user_pt_regs>()).sp }
}

#[uprobe]
pub fn ssl_enter(ctx: ProbeContext) -> u32 {
    let thread = bpf_get_current_pid_tgid();
    let tgid = (thread >> 32) as u32;
    if !watched(tgid) {
        return 0;
    }
    let stack = stack_pointer(ctx.regs);
    let slot = CALLS.get_ptr_mut(&thread);
    let place = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let ssl: u64 = ctx.arg(0).unwrap_or(0);
    let mut depth = 0;
    if let Some(outer) = slot {
        let outer = unsafe { &mut *outer };
        if outer.running != 0 && stack < outer.stack {
            let same = outer.ssl == ssl && cookie::dir(outer.cookie) == cookie::dir(place) && outer.buffer == ctx.arg(1).unwrap_or(0);
            // A socket used from here on may be that of the inner call.
            outer.wants_socket = 0;
            if same {
                return 0;
            }
            depth = outer.depth + 1;
            if depth >= MAX_DEPTH || OUTER.insert(&OuterKey { thread, depth: u64::from(outer.depth) }, &*outer, BPF_ANY as u64).is_err() {
                count(|c| c.calls_full += 1);
                return 0;
            }
        } else {
            outer.running = 0;
        }
    }
    let now = unsafe { bpf_ktime_get_ns() };
    let key = ConnKey { ssl, tgid, _pad: 0 };
    let (generation, flags) = match CONNS.get_ptr(&key) {
        Some(conn) => unsafe { ((*conn).generation, (*conn).flags) },
        None => {
            let conn = Conn { offset: [0; 2], generation: now, flags: 0, _pad: [0; 3] };
            if CONNS.insert(&key, &conn, BPF_ANY as u64).is_err() {
                count(|c| c.conns_full += 1);
                return 0;
            }
            hello(tgid, ssl, now);
            (now, 0)
        }
    };
    if flags & flag::MUTED != 0 && depth == 0 {
        return 0;
    }
    let (requested, count_at) = match cookie::count(place) {
        c if c == Count::At4th as u8 => (ctx.arg(2).unwrap_or(0), ctx.arg(3).unwrap_or(0)),
        c if c == Count::At5th as u8 => (ctx.arg(2).unwrap_or(0), ctx.arg(4).unwrap_or(0)),
        _ => (ctx.arg::<u64>(2).unwrap_or(0) & 0x7fff_ffff, 0),
    };
    let call = Call {
        ssl,
        buffer: ctx.arg(1).unwrap_or(0),
        requested,
        count_at,
        at: now,
        stack,
        cookie: place,
        generation,
        depth,
        wants_socket: u16::from(flags & flag::IDENTIFIED == 0),
        running: 1,
    };
    if let Some(slot) = slot {
        unsafe { *slot = call };
    } else if CALLS.insert(&thread, &call, BPF_ANY as u64).is_err() {
        count(|c| c.calls_full += 1);
    }
    0
}

#[uretprobe]
pub fn ssl_leave(ctx: RetProbeContext) -> u32 {
    let thread = bpf_get_current_pid_tgid();
    let Some(call) = CALLS.get_ptr_mut(&thread) else { return 0 };
    let call = unsafe { &mut *call };
    if call.running == 0 {
        return 0;
    }
    // At the return the return address is popped; 32 bytes of tolerance for what a trampoline may leave there.
    let here = stack_pointer(ctx.regs);
    let mut slot = call;
    for _ in 0..MAX_DEPTH {
        let above = here.wrapping_sub(slot.stack);
        if above <= 32 {
            break;
        }
        // Below: a call inside that is not counted. Above: the call at hand was left without a return, an outer one returns.
        if above as i64 > 0 && slot.depth > 0 {
            slot = back(slot, thread);
        } else {
            return 0;
        }
    }
    if here.wrapping_sub(slot.stack) > 32 {
        return 0;
    }
    let done = *slot;
    if slot.depth > 0 {
        back(slot, thread);
    } else {
        slot.running = 0;
        slot.wants_socket = 0;
    }
    finished(&ctx, &done, thread)
}

/// Puts the call that waits for this one back into its place; an empty one when it was forgotten.
#[inline(always)]
fn back(call: &mut Call, thread: u64) -> &mut Call {
    let outer = OuterKey { thread, depth: u64::from(call.depth - 1) };
    match OUTER.get_ptr(&outer) {
        Some(waiting) => *call = unsafe { *waiting },
        None => {
            call.depth = 0;
            call.running = 0;
            call.stack = 0;
        }
    }
    call
}

/// A call returned.
#[inline(always)]
fn finished(ctx: &RetProbeContext, call: &Call, thread: u64) -> u32 {
    let result: u64 = ctx.ret();
    let result = result as u32 as i32;
    if result <= 0 {
        return failed(call, (thread >> 32) as u32, result);
    }
    let moved = if cookie::count(call.cookie) == Count::Returned as u8 {
        Ok(result as u64)
    } else {
        unsafe { bpf_probe_read_user(call.count_at as *const u64) }
    };
    let moved = match moved {
        Ok(moved) if moved <= call.requested => moved,
        _ => {
            count(|c| c.senseless += 1);
            if let Some(places) = SENSELESS.get_ptr_mut(cookie::site(call.cookie)) {
                unsafe { *places += 1 };
            }
            return 0;
        }
    };
    if moved == 0 {
        return 0;
    }
    let tgid = (thread >> 32) as u32;
    let Some(conn) = CONNS.get_ptr_mut(&ConnKey { ssl: call.ssl, tgid, _pad: 0 }) else { return 0 };
    let dir = cookie::dir(call.cookie);
    let (offset, flags) = unsafe {
        let offset = &mut (*conn).offset[usize::from(dir & 1)];
        let at = *offset;
        *offset = at + moved;
        let flags = (*conn).flags;
        if flags & flag::WRITE_FAILED != 0 && dir == dir::WRITE {
            (*conn).flags = flags & !flag::WRITE_FAILED;
        }
        (at, flags)
    };
    let at = if dir == dir::READ { unsafe { bpf_ktime_get_ns() } } else { call.at };
    copy(call, tgid, dir, flags & flag::FROM_START, at, offset, moved);
    0
}

/// A call moved nothing. A read that returns 0 met the end of the other side's bytes (an error or "try again" is below 0); a
/// failed write is remembered until one succeeds.
#[inline(never)]
fn failed(call: &Call, tgid: u32, result: i32) -> u32 {
    let read = cookie::dir(call.cookie) == dir::READ;
    if read && result != 0 {
        return 0;
    }
    let Some(conn) = CONNS.get_ptr_mut(&ConnKey { ssl: call.ssl, tgid, _pad: 0 }) else { return 0 };
    let conn = unsafe { &mut *conn };
    if read && call.cookie & cookie::BOOLEAN != 0 {
        return 0;
    }
    if !read {
        conn.flags |= flag::WRITE_FAILED;
        return 0;
    }
    if conn.flags & flag::PEER_ENDED != 0 || conn.offset[0] | conn.offset[1] == 0 {
        return 0;
    }
    conn.flags |= flag::PEER_ENDED;
    ring::bare(&Header {
        kind: kind::PEER_END,
        dir: dir::READ,
        flags: conn.flags & flag::FROM_START,
        tgid,
        ssl: call.ssl,
        generation: conn.generation,
        at: unsafe { bpf_ktime_get_ns() },
        offset: conn.offset[1],
        ..Header::default()
    });
    0
}

/// Writes the bytes of one call as records of at most `MAX_PIECE`.
#[inline(always)]
fn copy(call: &Call, tgid: u32, dir: u8, flags: u16, at: u64, offset: u64, moved: u64) {
    let mut header = Header {
        kind: kind::DATA,
        dir,
        flags,
        len: 0,
        tgid,
        site: cookie::site(call.cookie),
        ssl: call.ssl,
        generation: call.generation,
        at,
        offset,
        skipped: 0,
    };
    let mut rest = moved;
    let mut from = call.buffer;
    for _ in 0..MAX_PIECES {
        let piece = if rest > MAX_PIECE as u64 { MAX_PIECE as u64 } else { rest };
        header.len = piece as u32;
        if !ring::data(&header, from) {
            count(|c| {
                c.unreadable += 1;
                c.unreadable_bytes += rest;
            });
            header.len = 0;
            header.skipped = rest;
            header.flags |= flag::UNREADABLE;
            return ring::bare(&header);
        }
        rest -= piece;
        if rest == 0 {
            return;
        }
        from += piece;
        header.offset += piece;
    }
    count(|c| {
        c.too_long += 1;
        c.too_long_bytes += rest;
    });
    header.len = 0;
    header.skipped = rest;
    ring::bare(&header);
}

/// Says whose connection it is, once.
#[inline(never)]
fn hello(tgid: u32, ssl: u64, generation: u64) {
    let Ok(command) = bpf_get_current_comm() else { return };
    let header =
        Header { kind: kind::HELLO, len: COMMAND as u32, tgid, ssl, generation, at: generation, ..Header::default() };
    ring::with(&header, &command);
}

/// `SSL_new` returned: from here on every byte is seen.
#[uretprobe]
pub fn ssl_new(ctx: RetProbeContext) -> u32 {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let ssl: u64 = ctx.ret();
    if ssl == 0 || !watched(tgid) {
        return 0;
    }
    let conn = Conn { offset: [0; 2], generation: unsafe { bpf_ktime_get_ns() }, flags: flag::FROM_START, _pad: [0; 3] };
    if CONNS.insert(&ConnKey { ssl, tgid, _pad: 0 }, &conn, BPF_ANY as u64).is_err() {
        count(|c| c.conns_full += 1);
    } else {
        hello(tgid, ssl, conn.generation);
    }
    0
}

#[inline(always)]
fn end(ctx: &ProbeContext, kind: u8) -> u32 {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let ssl: u64 = ctx.arg(0).unwrap_or(0);
    let key = ConnKey { ssl, tgid, _pad: 0 };
    let Some(conn) = CONNS.get_ptr(&key) else { return 0 };
    let conn = unsafe { *conn };
    let header = Header {
        kind,
        flags: conn.flags & (flag::FROM_START | flag::WRITE_FAILED | flag::QUIET),
        tgid,
        ssl,
        generation: conn.generation,
        at: unsafe { bpf_ktime_get_ns() },
        offset: conn.offset[0],
        skipped: conn.offset[1],
        ..Header::default()
    };
    if kind == kind::FREE {
        let _ = CONNS.remove(&key);
    }
    // Connections that never moved a byte are of no interest to anyone.
    if conn.offset[0] | conn.offset[1] != 0 {
        ring::bare(&header);
    }
    0
}

#[uprobe]
pub fn ssl_free(ctx: ProbeContext) -> u32 {
    end(&ctx, kind::FREE)
}

#[uprobe]
pub fn ssl_shutdown(ctx: ProbeContext) -> u32 {
    end(&ctx, kind::SHUTDOWN)
}

/// `SSL_set_quiet_shutdown(ssl, mode)`: with a mode, the `SSL_shutdown` to come says nothing to the other side.
#[uprobe]
pub fn ssl_quiet(ctx: ProbeContext) -> u32 {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let ssl: u64 = ctx.arg(0).unwrap_or(0);
    let mode: u64 = ctx.arg(1).unwrap_or(0);
    if mode as u32 != 0
        && let Some(conn) = CONNS.get_ptr_mut(&ConnKey { ssl, tgid, _pad: 0 })
    {
        unsafe { (*conn).flags |= flag::QUIET };
    }
    0
}
