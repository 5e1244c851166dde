//! What decompressing costs at least: `inflate_floor FILE`. Of each connection of a capture (Ethernet, IPv4, TCP in order, plain pcap) the
//! chunks of its answer are put together, and the bodies that are gzip are inflated, one after the other, each in pieces as they came, into
//! one buffer. Prints the CPU seconds that the inflating alone took.

use std::collections::HashMap;
use std::io::{Error, Result};

use flate2::{Decompress, FlushDecompress};

fn cpu_seconds() -> Result<f64> {
    // Of this process, user and system, as the kernel counts them: nanoseconds in the scheduler's own file.
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanos: u64 = text.split(' ').next().and_then(|n| n.parse().ok()).ok_or_else(|| Error::other("no schedstat"))?;
    Ok(nanos as f64 / 1e9)
}

/// The chunks of a body in the chunked coding, behind the response's head.
fn chunks(answer: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    let Some(head) = answer.windows(4).position(|w| w == b"\r\n\r\n") else { return all };
    let mut rest = &answer[head + 4..];
    while let Some(line) = rest.iter().position(|b| *b == b'\n') {
        let digits = std::str::from_utf8(&rest[..line]).unwrap_or("").trim_end();
        let size = usize::from_str_radix(digits, 16).unwrap_or(0);
        let Some(data) = rest.get(line + 1..line + 1 + size).filter(|data| !data.is_empty()) else { break };
        all.push(data);
        rest = rest.get(line + 3 + size..).unwrap_or_default();
    }
    all
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_default();
    let file = std::fs::read(path)?;
    let mut answers: HashMap<[u8; 12], Vec<u8>> = HashMap::new();
    let mut at = 24;
    while let Some(head) = file.get(at..at + 16) {
        let captured = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let Some(frame) = file.get(at + 16..at + 16 + captured) else { break };
        at += 16 + captured;
        let (Some(payload), Some(ends)) = (frame.get(54..), frame.get(26..).and_then(<[u8]>::first_chunk)) else { continue };
        answers.entry(*ends).or_default().extend_from_slice(payload);
    }
    let bodies: Vec<_> =
        answers.values().map(|answer| chunks(answer)).filter(|b| b.first().is_some_and(|b| b.starts_with(b"\x1f\x8b"))).collect();
    let (mut out, mut bytes, before) = (vec![0; 16 << 10], 0, cpu_seconds()?);
    for body in &bodies {
        let mut machine = Decompress::new_gzip(15);
        for piece in body {
            let (begin, mut given) = (machine.total_in(), 0);
            loop {
                let made = machine.total_out();
                machine.decompress(&piece[given..], &mut out, FlushDecompress::None).map_err(Error::other)?;
                bytes += machine.total_out() - made;
                given = usize::try_from(machine.total_in() - begin).unwrap_or(usize::MAX).min(piece.len());
                if given == piece.len() && machine.total_out() - made < out.len() as u64 {
                    break;
                }
            }
        }
    }
    println!("{:.6} s for {} bodies of {bytes} bytes", cpu_seconds()? - before, bodies.len());
    Ok(())
}
