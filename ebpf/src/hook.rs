//! The tap symbol that servers call with what they know of a request: its structure is copied and stamped, nothing more.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use tokengauge_ebpf_common::{Header, hook, kind};

use crate::maps::count;
use crate::openssl::watched;
use crate::ring;

/// `tokengauge_tap_v1(event, bytes)`.
#[uprobe]
pub fn hook_tap(ctx: ProbeContext) -> u32 {
    let at = unsafe { bpf_ktime_get_ns() };
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    if !watched(tgid) {
        return 0;
    }
    let from: u64 = ctx.arg(0).unwrap_or(0);
    let len: u64 = ctx.arg(1).unwrap_or(0);
    if len < hook::FIXED as u64 {
        count(|c| c.hook_too_short += 1);
        return 0;
    }
    let kept = if len > hook::MAX as u64 { hook::MAX as u64 } else { len };
    ring::event(&Header { kind: kind::HOOK, len: kept as u32, tgid, at, skipped: len - kept, ..Header::default() }, from);
    0
}
