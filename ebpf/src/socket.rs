//! Which socket a connection uses: learnt from the socket calls that happen inside its TLS calls.
//!
//! No field of the library is read: while a thread is inside a TLS call, the socket that it sends to or receives from is the
//! connection's. With memory BIOs (asyncio, Node) no socket call happens inside, and the socket stays unknown: never a guess.
//! These two programs run at every socket call of the machine, so the first thing they do is to leave.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use tokengauge_ebpf_common::{Address, ConnKey, Header, flag, kind};

use crate::maps::{CALLS, CONFIG, CONNS};
use crate::ring;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const IPPROTO_TCP: u16 = 6;
const IPPROTO_MPTCP: u16 = 262;

#[btf_tracepoint(function = "sock_send_length")]
pub fn sock_send_length(ctx: BtfTracePointContext) -> i32 {
    seen(ctx.arg::<u64>(0));
    0
}

#[btf_tracepoint(function = "sock_recv_length")]
pub fn sock_recv_length(ctx: BtfTracePointContext) -> i32 {
    seen(ctx.arg::<u64>(0));
    0
}

#[inline(always)]
fn read<T>(sock: u64, offset: u32) -> Option<T> {
    unsafe { bpf_probe_read_kernel((sock + u64::from(offset)) as *const T) }.ok()
}

#[inline(always)]
fn seen(sock: u64) -> Option<()> {
    let thread = bpf_get_current_pid_tgid();
    let call = CALLS.get_ptr_mut(&thread)?;
    let call = unsafe { &mut *call };
    if call.wants_socket == 0 {
        return None;
    }
    let at = CONFIG.get(0)?.sock;
    if at.family == 0 {
        return None;
    }
    let protocol: u16 = read(sock, at.protocol)?;
    if protocol != IPPROTO_TCP && protocol != IPPROTO_MPTCP {
        return None;
    }
    let mut address = Address {
        family: read(sock, at.family)?,
        local_port: read(sock, at.local_port)?,
        remote_port: read(sock, at.remote_port)?,
        ..Address::default()
    };
    match address.family {
        AF_INET => {
            let local: [u8; 4] = read(sock, at.local_v4)?;
            let remote: [u8; 4] = read(sock, at.remote_v4)?;
            address.local[..4].copy_from_slice(&local);
            address.remote[..4].copy_from_slice(&remote);
        }
        AF_INET6 => {
            address.local = read(sock, at.local_v6)?;
            address.remote = read(sock, at.remote_v6)?;
        }
        _ => return None,
    }
    let tgid = (thread >> 32) as u32;
    let key = ConnKey { ssl: call.ssl, tgid, _pad: 0 };
    let conn = CONNS.get_ptr_mut(&key)?;
    let flags = unsafe {
        (*conn).flags |= flag::IDENTIFIED;
        (*conn).flags
    };
    call.wants_socket = 0;
    let header = Header {
        kind: kind::IDENTIFY,
        flags: flags & flag::FROM_START,
        len: size_of::<Address>() as u32,
        tgid,
        ssl: call.ssl,
        generation: call.generation,
        at: call.at,
        ..Header::default()
    };
    ring::with(&header, &address);
    Some(())
}
