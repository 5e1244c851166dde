//! The agent and the kernel programs mean the same bytes, whatever the architecture: these layouts are those of the BPF target, and hold
//! on the machine that runs this test. tests/real/image.py builds it for arm64 and runs it in an emulator; that the objects' tables have
//! these sizes is tested beside the loader (agent/src/tap/tls/kernel.rs).

use std::mem::{align_of, offset_of, size_of};

use tokengauge_ebpf_common::{Address, Call, Config, Conn, ConnKey, Counters, HEADER, Header, OuterKey, SockOffsets};

macro_rules! layout {
    ($type:ty: $($field:ident),+) => {
        (stringify!($type), size_of::<$type>(), align_of::<$type>(), vec![$(offset_of!($type, $field)),+])
    };
}

#[test]
fn layouts_are_those_of_the_kernel_side() {
    let layouts = [
        layout!(Header: kind, dir, flags, len, tgid, site, ssl, generation, at, offset, skipped),
        layout!(Address: family, local_port, remote_port, _pad, local, remote),
        layout!(ConnKey: ssl, tgid, _pad),
        layout!(Conn: offset, generation, flags, _pad),
        layout!(Call: ssl, buffer, requested, count_at, at, stack, cookie, generation, depth, wants_socket, running),
        layout!(OuterKey: thread, depth),
        layout!(SockOffsets: family, local_port, remote_port, local_v4, remote_v4, local_v6, remote_v6, protocol),
        layout!(Config: own_tgid, filter, wake_bytes, sock),
    ];
    let want = [
        ("Header", 56, 8, vec![0, 1, 2, 4, 8, 12, 16, 24, 32, 40, 48]),
        ("Address", 40, 2, vec![0, 2, 4, 6, 8, 24]),
        ("ConnKey", 16, 8, vec![0, 8, 12]),
        ("Conn", 32, 8, vec![0, 16, 24, 26]),
        ("Call", 72, 8, vec![0, 8, 16, 24, 32, 40, 48, 56, 64, 68, 70]),
        ("OuterKey", 16, 8, vec![0, 8]),
        ("SockOffsets", 32, 4, vec![0, 4, 8, 12, 16, 20, 24, 28]),
        ("Config", 48, 8, vec![0, 4, 8, 16]),
    ];
    assert_eq!(layouts, want);
    assert_eq!((HEADER, size_of::<Counters>(), align_of::<Counters>()), (56, 104, 8));
}
