//! Programs that do nothing: what a probe costs by itself, the yardstick of the benchmark; and the self-test's.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use tokengauge_ebpf_common::{Header, kind};

use crate::ring;

#[uprobe]
pub fn empty_enter(_ctx: ProbeContext) -> u32 {
    0
}

#[uretprobe]
pub fn empty_leave(_ctx: RetProbeContext) -> u32 {
    0
}

/// Reports that it ran, with its cookie: what `doctor` waits for.
#[uprobe]
pub fn self_test(ctx: ProbeContext) -> u32 {
    let header = Header {
        kind: kind::SELF_TEST,
        tgid: (bpf_get_current_pid_tgid() >> 32) as u32,
        at: unsafe { bpf_ktime_get_ns() },
        ssl: unsafe { bpf_get_attach_cookie(ctx.as_ptr()) },
        ..Header::default()
    };
    ring::bare(&header);
    0
}
