//! Segments of two connections in any order: 12 bytes each say who, where, which flags, how much and when.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use tokengauge_core::stream::{StreamEvent, Verdict};
use tokengauge_core::tcp::packet::{Endpoint, Segment};
use tokengauge_core::tcp::{Assembler, Limits};
use tokengauge_fuzz::at;

fuzz_target!(|data: &[u8]| {
    let limits = Limits { connections: 2, buffered_per_direction: 4096, buffered: 8192, idle: Duration::from_secs(5), ..Limits::default() };
    let mut assembler = Assembler::new(limits);
    let (mut open, mut n) = (std::collections::BTreeSet::new(), 0);
    let mut see = |event: StreamEvent<'_>| {
        match event {
            StreamEvent::Open { conn, .. } => assert!(open.insert(conn), "opened twice"),
            StreamEvent::Data { conn, bytes, .. } => assert!(open.contains(&conn) && !bytes.is_empty()),
            other => assert!(open.contains(&other.conn())),
        }
        Verdict::Watch
    };
    let payload = [7; 64];
    for step in data.chunks_exact(8) {
        n += u64::from(step[0]);
        let ends = [1, 2].map(|ip| Endpoint { ip, port: 80 + u16::from(step[1] & 2) });
        let (from, to) = (usize::from(step[1] & 1), usize::from(step[1] & 1 ^ 1));
        let number = |a: u8, b: u8| u32::from(a).wrapping_mul(16).wrapping_sub(64) ^ u32::from(b & 0x80) << 24;
        let segment = Segment {
            source: ends[from],
            destination: ends[to],
            seq: number(step[2], step[3]),
            ack: number(step[4], step[3] << 1),
            flags: step[5] & 0x1f,
            payload: &payload[..usize::from(step[6] % 65)],
            missing: u32::from(step[7] / 128 * (step[7] % 128)),
        };
        assembler.push(at(n), &segment, &mut see);
        if step[3] & 1 == 1 {
            assembler.tick(at(n), &mut see);
        }
    }
    assembler.finish(at(n), &mut see);
    assert_eq!(assembler.buffered(), 0);
});
