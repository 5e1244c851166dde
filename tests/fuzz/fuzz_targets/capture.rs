//! A mutated capture: the flows of the fixtures as packets, and an input that says what is done to them. Four bytes a change: what,
//! where (two), how much. So every input is a whole, mostly valid capture, and the faults lie deep in it.
#![no_main]
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tokengauge_tests::carry::{Carried, can_carry, carry};
use tokengauge_tests::flow::fixtures;

/// Every flow that packets can carry, in large segments and in small ones.
fn captures() -> &'static [Carried] {
    static ALL: OnceLock<Vec<Carried>> = OnceLock::new();
    ALL.get_or_init(|| {
        let flows: Vec<_> = fixtures().into_iter().map(|(_, flow)| flow).filter(can_carry).collect();
        [60_000, 200].into_iter().flat_map(|size| flows.iter().map(move |f| carry(f, size, &[]))).collect()
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((&[high, low], changes)) = data.split_first_chunk() else { return };
    let all = captures();
    let Carried { mut packets, end } = all[usize::from(u16::from_be_bytes([high, low])) % all.len()].clone();
    for change in changes.chunks_exact(4).take(64) {
        if packets.is_empty() {
            return;
        }
        let n = usize::from(u16::from_be_bytes([change[1], change[2]])) % packets.len();
        let (much, last) = (change[3], packets.len() - 1);
        let length = packets[n].1.payload.len();
        let at = if length > 0 { usize::from(much) * 131 % length } else { 0 };
        match change[0] % 10 {
            0 => drop(packets.remove(n)),
            1 => packets.insert(n, packets[n].clone()),
            2 => {
                let (here, there) = (n, (n + 1 + usize::from(much % 4)).min(last));
                // They change places, not instants: a capture's clock goes on.
                let (a, b) = (packets[here].1.clone(), packets[there].1.clone());
                (packets[here].1, packets[there].1) = (b, a);
            }
            3 => packets[n].1.payload.iter_mut().skip(at).take(1).for_each(|b| *b ^= much | 1),
            4 => packets[n].1.payload.truncate(at),
            5 => {
                let piece: Vec<u8> = packets[n].1.payload.iter().skip(at).take(40).copied().collect();
                packets[n].1.payload.splice(at..at, piece);
            }
            6 => packets[n].1.seq = packets[n].1.seq.wrapping_add(u32::from(much)).wrapping_sub(128),
            7 => packets[n].1.flags ^= 1 << (much % 5),
            8 => packets.truncate(n + 1),
            // What one connection says ends up in another's direction.
            _ => {
                let other = &all[usize::from(much) % all.len()].packets;
                let stranger = other[n % other.len()].1.payload.clone();
                packets[n].1.payload = stranger;
            }
        }
    }
    let (measured, counters) = Carried { packets, end }.measure();
    measured.inferences.iter().for_each(tokengauge_fuzz::check);
    let stats = &measured.stats;
    assert_eq!((stats.open_connections, stats.in_flight), (0, 0));
    assert_eq!(stats.inferences, measured.inferences.len() as u64);
    assert!(stats.inferences + stats.non_llm <= stats.exchanges);
    assert!(counters.gap_bytes < 1 << 34);
});
