//! Builders of packets and captures, for tests and benches (feature `testing`): conversations with a known truth and injected faults.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::stream::Timestamp;

use super::packet::{ACK, Endpoint, FIN, LinkType, PSH, SYN, Segment};

/// One TCP packet, to be written in any link layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Who sends it; IPv4 or IPv6 as `destination`.
    pub source: SocketAddr,
    /// Whom it is for.
    pub destination: SocketAddr,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// The flags byte.
    pub flags: u8,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Packet {
    /// The IP packet. Checksums are left at 0: nothing here verifies them.
    pub fn ip(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(60 + self.payload.len());
        let length = u16::try_from(20 + self.payload.len()).unwrap_or(0);
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let total = if length == 0 { 0 } else { length.saturating_add(20) };
                bytes.extend([0x45, 0]);
                bytes.extend(total.to_be_bytes());
                bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
            }
            (source, destination) => {
                let six = |ip: IpAddr| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                bytes.extend([0x60, 0, 0, 0]);
                bytes.extend(length.to_be_bytes());
                bytes.extend([6, 64]);
                bytes.extend(six(source));
                bytes.extend(six(destination));
            }
        }
        bytes.extend(self.tcp());
        bytes
    }

    /// The TCP header and payload.
    pub fn tcp(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(20 + self.payload.len());
        bytes.extend(self.source.port().to_be_bytes());
        bytes.extend(self.destination.port().to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend([0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(&self.payload);
        bytes
    }

    /// The frame in a link layer.
    pub fn frame(&self, link: LinkType) -> Vec<u8> {
        let ethertype: [u8; 2] = if self.source.is_ipv4() && self.destination.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        let mut bytes = match link {
            LinkType::Ethernet => vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2],
            LinkType::LinuxCooked => vec![0; 14],
            LinkType::LinuxCooked2 => [&ethertype[..], &[0; 18]].concat(),
            LinkType::Loopback => vec![if ethertype == [8, 0] { 2 } else { 30 }, 0, 0, 0],
            LinkType::RawIp => Vec::new(),
        };
        if matches!(link, LinkType::Ethernet | LinkType::LinuxCooked) {
            bytes.extend(ethertype);
        }
        bytes.extend(self.ip());
        bytes
    }

    /// The segment that reading the packet must yield.
    pub fn segment(&self) -> Segment<'_> {
        let (source, destination): (Endpoint, Endpoint) = (self.source.into(), self.destination.into());
        Segment { source, destination, seq: self.seq, ack: self.ack, flags: self.flags, payload: &self.payload, missing: 0 }
    }
}

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Who {
    /// The opener.
    Client,
    /// The other end.
    Server,
}

/// What goes wrong between the wire and the capture.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// The handshake was before the capture.
    Midstream,
    /// Every n-th segment with payload is there a second time, 200 µs later.
    Retransmit(usize),
    /// Every n-th segment of the server changes places with its successor if that follows within 10 µs; the instants stay.
    Reorder(usize),
    /// The n-th segment with payload (from 0) was not captured.
    Loss(usize),
    /// Every packet is there twice, as on both interfaces of a bridge.
    Twice,
}

/// A TCP conversation: handshake, segmentation, acknowledgements and FINs are added to the messages.
#[derive(Clone, Debug)]
pub struct Conversation {
    client: SocketAddr,
    server: SocketAddr,
    start: Timestamp,
    segment: usize,
    first: [u32; 2],
    faults: Vec<Fault>,
    messages: Vec<(Duration, Who, Vec<u8>)>,
    finished: bool,
}

impl Conversation {
    /// A conversation that begins at `start`.
    pub fn new(client: SocketAddr, server: SocketAddr, start: Timestamp) -> Self {
        let first = [0x1000_0000 ^ u32::from(client.port()), 0xffff_f000];
        Self { client, server, start, segment: 1448, first, faults: Vec::new(), messages: Vec::new(), finished: true }
    }

    /// Adds a message at an instant after the start; messages must come in order of time.
    #[must_use]
    pub fn say(mut self, after: Duration, who: Who, bytes: impl Into<Vec<u8>>) -> Self {
        self.messages.push((after, who, bytes.into()));
        self
    }

    /// The most payload per packet; 1448 by default.
    #[must_use]
    pub fn segment(mut self, bytes: usize) -> Self {
        self.segment = bytes.max(1);
        self
    }

    /// The first sequence numbers of client and server. By default the server's wraps around after 4 KiB.
    #[must_use]
    pub fn first(mut self, client: u32, server: u32) -> Self {
        self.first = [client, server];
        self
    }

    /// Injects a fault.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Leaves out the FINs.
    #[must_use]
    pub fn unfinished(mut self) -> Self {
        self.finished = false;
        self
    }

    /// The packets with their instants, in order of capture.
    pub fn packets(&self) -> Vec<(Timestamp, Packet)> {
        let mut out = Vec::new();
        let mut seq = self.first;
        let mut at = self.start;
        let emit = |out: &mut Vec<(Timestamp, Packet)>, seq: &mut [u32; 2], at: Timestamp, who: Who, flags: u8, payload: &[u8]| {
            let (me, peer) = (who as usize, 1 - who as usize);
            let ends = [self.client, self.server];
            let ack = if flags & ACK == 0 { 0 } else { seq[peer] };
            let packet = Packet { source: ends[me], destination: ends[peer], seq: seq[me], ack, flags, payload: payload.to_vec() };
            seq[me] = seq[me].wrapping_add(payload.len() as u32).wrapping_add(u32::from(flags & (SYN | FIN) != 0));
            out.push((at, packet));
        };
        let step = |at: &mut Timestamp, nanos: u64| *at = at.plus(Duration::from_nanos(nanos));
        if self.faults.contains(&Fault::Midstream) {
            seq = seq.map(|seq| seq.wrapping_add(1));
        } else {
            for (who, flags) in [(Who::Client, SYN), (Who::Server, SYN | ACK), (Who::Client, ACK)] {
                emit(&mut out, &mut seq, at, who, flags, &[]);
                step(&mut at, 10_000);
            }
        }
        for (after, who, bytes) in &self.messages {
            at = at.max(self.start.plus(*after));
            for piece in bytes.chunks(self.segment) {
                emit(&mut out, &mut seq, at, *who, PSH | ACK, piece);
                step(&mut at, 100);
            }
        }
        if self.finished {
            step(&mut at, 100_000);
            for (who, flags) in [(Who::Client, FIN | ACK), (Who::Server, FIN | ACK), (Who::Client, ACK)] {
                emit(&mut out, &mut seq, at, who, flags, &[]);
                step(&mut at, 10_000);
            }
        }
        for fault in &self.faults {
            self.inject(*fault, &mut out);
        }
        out
    }

    fn inject(&self, fault: Fault, packets: &mut Vec<(Timestamp, Packet)>) {
        let carriers: Vec<usize> = (0..packets.len()).filter(|&i| !packets[i].1.payload.is_empty()).collect();
        match fault {
            Fault::Midstream => {}
            Fault::Retransmit(n) => {
                for &i in carriers.iter().step_by(n.max(1)) {
                    let (at, packet) = packets[i].clone();
                    packets.push((at.plus(Duration::from_micros(200)), packet));
                }
                packets.sort_by_key(|(at, _)| *at);
            }
            Fault::Reorder(n) => {
                for pair in carriers.windows(2).step_by(n.max(2)) {
                    let (a, b) = (pair[0], pair[1]);
                    let near = packets[b].0.since(packets[a].0) < Duration::from_micros(10);
                    if near && [a, b].iter().all(|&i| packets[i].1.source == self.server) {
                        let swapped = (packets[b].1.clone(), packets[a].1.clone());
                        (packets[a].1, packets[b].1) = swapped;
                    }
                }
            }
            Fault::Loss(n) => {
                if let Some(&i) = carriers.get(n) {
                    packets.remove(i);
                }
            }
            Fault::Twice => *packets = packets.drain(..).flat_map(|packet| [packet.clone(), packet]).collect(),
        }
    }
}

/// Writes a pcap file, nanoseconds and little endian unless said otherwise.
#[derive(Clone, Debug)]
pub struct PcapWriter {
    bytes: Vec<u8>,
    nanos: bool,
    big_endian: bool,
    snaplen: usize,
}

impl PcapWriter {
    /// A file of link type `number` (1 is Ethernet).
    pub fn new(number: u32) -> Self {
        Self::with(number, true, false, 262_144)
    }

    /// A file with another precision, byte order or snapshot length.
    pub fn with(number: u32, nanos: bool, big_endian: bool, snaplen: usize) -> Self {
        let mut writer = Self { bytes: Vec::new(), nanos, big_endian, snaplen };
        writer.u32(if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 });
        let version: [u8; 4] = if big_endian { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
        writer.bytes.extend(version);
        for field in [0, 0, snaplen as u32, number] {
            writer.u32(field);
        }
        writer
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend(if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    /// Adds a frame, cut to the snapshot length.
    pub fn frame(&mut self, at: Timestamp, frame: &[u8]) {
        let nanos = at.unix_nanos();
        let kept = &frame[..frame.len().min(self.snaplen)];
        let fraction = nanos % 1_000_000_000 / if self.nanos { 1 } else { 1000 };
        for field in [(nanos / 1_000_000_000) as u32, fraction as u32, kept.len() as u32, frame.len() as u32] {
            self.u32(field);
        }
        self.bytes.extend(kept);
    }

    /// Adds packets as Ethernet frames.
    pub fn packets<'a>(&mut self, packets: impl IntoIterator<Item = &'a (Timestamp, Packet)>) {
        for (at, packet) in packets {
            self.frame(*at, &packet.frame(LinkType::Ethernet));
        }
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
