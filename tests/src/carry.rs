//! Flows carried as TCP packets: the bytes of a flow through [`Conversation`], faults, the assembler and the pipeline.

use std::net::SocketAddr;
use std::time::Duration;

use tokengauge_core::stream::{StreamEvent, Timestamp};
use tokengauge_core::tcp::build::{Conversation, Fault, Packet, Who as Speaker};
use tokengauge_core::tcp::packet::{ACK, FIN, RST};
use tokengauge_core::tcp::{Assembler, Counters, Limits};

use crate::flow::{BASE, Ended, Flow, Measured, Meter, Step, Who};

/// The client's address in every flow.
pub const CLIENT: &str = "10.0.0.9:40000";
/// The server's.
pub const SERVER: &str = "10.0.0.1:443";
const FIRST: [u32; 2] = [0x1000_0000, 0xffff_f000];

/// A flow as packets.
#[derive(Clone, Debug)]
pub struct Carried {
    /// The packets, in order of capture.
    pub packets: Vec<(Timestamp, Packet)>,
    /// When the input ends.
    pub end: Timestamp,
}

/// Whether a flow can be carried: no gap of its own, no ticks of its own, nothing that only a tap in a process sees, the whole connection.
pub fn can_carry(flow: &Flow) -> bool {
    let fits = |s: &Step| match s {
        Step::Data(..) => true,
        Step::Gap(..) | Step::Tick(_) => false,
        Step::End(_, end) => matches!(end, Ended::Fin(_) | Ended::Rst(_) | Ended::Input),
    };
    flow.from_start && flow.steps.iter().all(fits)
}

/// Carries a flow in segments of at most `segment` bytes, with faults.
pub fn carry(flow: &Flow, segment: usize, faults: &[Fault]) -> Carried {
    let (client, server): (SocketAddr, SocketAddr) = (CLIENT.parse().unwrap(), SERVER.parse().unwrap());
    let speaker = |who: Who| if who == Who::Client { Speaker::Client } else { Speaker::Server };
    // The handshake takes its 30 µs before the flow's zero.
    let begin = Timestamp::from_unix_nanos(BASE.unix_nanos() - 1_000_000);
    let mut talk = Conversation::new(client, server, begin).first(FIRST[0], FIRST[1]).segment(segment).unfinished();
    let mut sent = [0u32; 2];
    let (mut ends, mut writes) = (Vec::new(), Vec::<(Duration, Who, Vec<u8>)>::new());
    for step in &flow.steps {
        match step {
            Step::Data(at, who, bytes) => {
                // What one end writes at one instant is one write.
                match writes.last_mut() {
                    Some((when, by, all)) if when == at && by == who => all.extend_from_slice(bytes),
                    _ => writes.push((*at, *who, bytes.clone())),
                }
                sent[*who as usize] += bytes.len() as u32;
            }
            Step::End(at, Ended::Fin(who)) => ends.push((*at, *who, FIN | ACK, sent)),
            Step::End(at, Ended::Rst(who)) => ends.push((*at, *who, RST, sent)),
            _ => {}
        }
    }
    for (at, who, bytes) in writes {
        talk = talk.say(at + Duration::from_millis(1), speaker(who), bytes);
    }
    for fault in faults {
        talk = talk.fault(*fault);
    }
    let mut packets = talk.packets();
    let mut fins = [0u32; 2];
    for (n, (at, who, flags, sent)) in ends.into_iter().enumerate() {
        let (me, peer) = (who as usize, 1 - who as usize);
        let addresses = [client, server];
        let seq = |who: usize| FIRST[who].wrapping_add(1).wrapping_add(sent[who]).wrapping_add(fins[who]);
        let ack = if flags & ACK == 0 { 0 } else { seq(peer) };
        let packet = Packet { source: addresses[me], destination: addresses[peer], seq: seq(me), ack, flags, payload: Vec::new() };
        fins[me] += u32::from(flags & FIN != 0);
        // Behind everything of its instant.
        packets.push((BASE.plus(at).plus(Duration::from_nanos(90_000 + n as u64)), packet));
    }
    packets.sort_by_key(|(at, _)| *at);
    let last = flow.steps.last().map_or(Duration::ZERO, Step::at);
    let end = packets.last().map_or(BASE, |(at, _)| *at).max(BASE.plus(last));
    Carried { packets, end }
}

impl Carried {
    /// Whether an end resets the connection.
    pub fn resets(&self) -> bool {
        self.packets.iter().any(|(_, p)| p.flags & RST != 0)
    }

    /// The packets without number `n`.
    pub fn without(&self, n: usize) -> Self {
        let mut packets = self.packets.clone();
        packets.remove(n);
        Self { packets, end: self.end }
    }

    /// Measures what a capture of the packets shows.
    pub fn measure(&self) -> (Measured, Counters) {
        let mut assembler = Assembler::new(Limits::default());
        let mut meter = Meter::default();
        let mut ticked = BASE;
        for (at, packet) in &self.packets {
            // As a tap does: time passes between packets, too.
            while at.since(ticked) >= Duration::from_millis(100) {
                ticked = if at.since(ticked) > Duration::from_secs(10) { *at } else { ticked.plus(Duration::from_millis(100)) };
                assembler.tick(ticked, &mut |event: StreamEvent<'_>| meter.verdict(event));
            }
            assembler.push(*at, &packet.segment(), &mut |event: StreamEvent<'_>| meter.verdict(event));
        }
        assembler.finish(self.end, &mut |event: StreamEvent<'_>| meter.verdict(event));
        let counters = *assembler.counters();
        (meter.finish(), counters)
    }
}
