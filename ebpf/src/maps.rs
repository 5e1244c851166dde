//! The tables shared with the agent. The agent sets their sizes before loading (`tap/tls/kernel.rs`).

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use tokengauge_ebpf_common::{Call, Config, Conn, ConnKey, Counters, MAX_SITES, OuterKey};

/// Records on their way to the agent.
#[map]
pub static RECORDS: RingBuf = RingBuf::with_byte_size(32 << 20, 0);

/// Connections. Not an LRU: an eviction would forget offsets and mutes silently; a full table is counted instead.
#[map]
pub static CONNS: HashMap<ConnKey, Conn> = HashMap::with_max_entries(65_536, 0);

/// Running calls by thread. An LRU: threads that die inside a call leave their entry behind.
#[map]
pub static CALLS: LruHashMap<u64, Call> = LruHashMap::with_max_entries(32_768, 0);

/// Calls that wait for a call inside them to return. Rarely used: only callbacks do that.
#[map]
pub static OUTER: LruHashMap<OuterKey, Call> = LruHashMap::with_max_entries(4_096, 0);

/// Listed processes, see `Config::filter`.
#[map]
pub static PROCESSES: HashMap<u32, u8> = HashMap::with_max_entries(65_536, 1 /* BPF_F_NO_PREALLOC */);

/// Settings.
#[map]
pub static CONFIG: Array<Config> = Array::with_max_entries(1, 0);

/// Counters per CPU.
#[map]
pub static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);

/// Senseless results per place: a plan that is wrong shows here and is taken back.
#[map]
pub static SENSELESS: Array<u64> = Array::with_max_entries(MAX_SITES, 0);

/// Adds to this CPU's counters. A program that preempts another on its CPU may lose an increment of the other: these are not
/// atomic because they are paid on every call.
#[inline(always)]
pub fn count(f: impl FnOnce(&mut Counters)) {
    if let Some(counters) = COUNTERS.get_ptr_mut(0) {
        f(unsafe { &mut *counters });
    }
}
