//! One captured frame: link layer, IP, TCP header.
//!
//! [`parse`] walks the headers once and borrows the payload. Nothing is verified that a capture legitimately gets wrong: checksums
//! (offloaded to the card), IP total lengths of 0 (segmentation offload, RFC 2675 jumbograms and "BIG TCP"), frames longer than the MTU
//! (GRO). What it cannot or will not read it names in a [`Skip`], which the assembler counts.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The link layers that can be read, by their number in capture files (`LINKTYPE_…`) and in libpcap (`DLT_…`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkType {
    /// BSD loopback: a 4-byte address family in either byte order (0 and 108).
    Loopback,
    /// Ethernet, with any number of VLAN tags (1).
    Ethernet,
    /// Bare IP, version by its first nibble (12, 14, 101, 228, 229).
    RawIp,
    /// Linux cooked capture, what `any` yields (113).
    LinuxCooked,
    /// Linux cooked capture, version 2 (276).
    LinuxCooked2,
}

impl LinkType {
    /// By number; `None` for a link layer that cannot be read.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 | 108 => Self::Loopback,
            1 => Self::Ethernet,
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            113 => Self::LinuxCooked,
            276 => Self::LinuxCooked2,
            _ => return None,
        })
    }
}

/// One end of a connection, small enough to be a table key. IPv4 addresses are kept as IPv4-mapped IPv6 addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint {
    /// The address.
    pub ip: u128,
    /// The TCP port.
    pub port: u16,
}

impl From<Endpoint> for SocketAddr {
    fn from(end: Endpoint) -> Self {
        let ip = Ipv6Addr::from(end.ip);
        Self::new(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4), end.port)
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        let ip = match addr.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self { ip: ip.into(), port: addr.port() }
    }
}

/// TCP flag FIN: the sender has no more to send.
pub const FIN: u8 = 0x01;
/// TCP flag SYN: opening.
pub const SYN: u8 = 0x02;
/// TCP flag RST: abort.
pub const RST: u8 = 0x04;
/// TCP flag PSH.
pub const PSH: u8 = 0x08;
/// TCP flag ACK: the acknowledgement number is valid.
pub const ACK: u8 = 0x10;

/// A TCP segment; the payload borrows from the captured frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// Who sent it.
    pub source: Endpoint,
    /// Whom it is for.
    pub destination: Endpoint,
    /// Sequence number of the first payload byte (of the SYN, when there is one).
    pub seq: u32,
    /// The next sequence number that the sender expects, when [`ACK`] is set.
    pub ack: u32,
    /// The flags byte: [`FIN`], [`SYN`], [`RST`], [`PSH`], [`ACK`].
    pub flags: u8,
    /// What was captured of the payload.
    pub payload: &'a [u8],
    /// Payload bytes that were sent after `payload` but cut off by the capture's snapshot length.
    pub missing: u32,
}

/// Why a frame is not a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Skip {
    /// The link layer cannot be read.
    UnsupportedLink,
    /// Not IP (ARP, LLDP, …).
    NotIp,
    /// IP, but not TCP.
    NotTcp,
    /// A fragment other than the first: it has no TCP header.
    Fragment,
    /// The snapshot length cut it before the end of the fixed TCP header.
    Truncated,
    /// Its lengths contradict each other.
    Malformed,
}

impl Skip {
    /// Every reason, for tables of counters.
    pub const ALL: [Self; 6] = [Self::UnsupportedLink, Self::NotIp, Self::NotTcp, Self::Fragment, Self::Truncated, Self::Malformed];

    /// The reason's name in statistics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnsupportedLink => "unsupported_link",
            Self::NotIp => "not_ip",
            Self::NotTcp => "not_tcp",
            Self::Fragment => "fragment",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
        }
    }
}

/// No single packet is believed to have more payload than this: a larger "original length" is a lie of the file.
const MAX_MISSING: usize = 16 << 20;

/// Reads one frame. `original` is its length on the wire, which is more than `frame.len()` when the capture cut it.
///
/// # Errors
/// The reason why the frame is not a TCP segment.
#[inline]
pub fn parse(link: LinkType, frame: &[u8], original: u32) -> Result<Segment<'_>, Skip> {
    if link == LinkType::Ethernet
        && original as usize <= frame.len()
        && let Some(segment) = plain(frame)
    {
        return Ok(segment);
    }
    walk(link, frame, original)
}

/// The frame that nearly all are: Ethernet without tags, IPv4 without options, a whole TCP segment. One length check covers all fields;
/// everything else is [`walk`]'s.
#[inline]
fn plain(frame: &[u8]) -> Option<Segment<'_>> {
    let head: &[u8; 54] = frame.first_chunk()?;
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    // EtherType, version and header length; no fragment; TCP
    let plain = word(12) >> 8 == 0x0008_0045 && u32::from(head[20]) & 0x3f | u32::from(head[21]) == 0 && head[23] == TCP;
    let total = usize::from(u16::from_be_bytes([head[16], head[17]]));
    let header = usize::from(head[46] >> 4) * 4;
    if !plain || header < 20 || total < 20 + header {
        return None;
    }
    let ip = |at: usize| 0xffff_0000_0000 | u128::from(word(at));
    Some(Segment {
        source: Endpoint { ip: ip(26), port: (word(34) >> 16) as u16 },
        destination: Endpoint { ip: ip(30), port: word(34) as u16 },
        seq: word(38),
        ack: word(42),
        flags: head[47],
        payload: frame.get(34 + header..14 + total)?,
        missing: 0,
    })
}

/// Any frame, header by header.
fn walk(link: LinkType, frame: &[u8], original: u32) -> Result<Segment<'_>, Skip> {
    let cut = (original as usize).saturating_sub(frame.len());
    let short = if cut > 0 { Skip::Truncated } else { Skip::Malformed };
    let (protocol, at) = match link {
        LinkType::Ethernet => untag(frame, 12, short)?,
        LinkType::LinuxCooked => untag(frame, 14, short)?,
        // SLL2 keeps the protocol first; a VLAN tag still follows its whole header
        LinkType::LinuxCooked2 => match be16(frame, 0).ok_or(short)? {
            VLAN | SERVICE_VLAN | OLD_QINQ => untag(frame, 22, short)?,
            protocol => (protocol, 20),
        },
        LinkType::RawIp => (by_version(frame, 0).ok_or(short)?, 0),
        LinkType::Loopback => {
            let family = frame.first_chunk::<4>().ok_or(short)?;
            // a family number is small: whichever byte order makes it so is the writer's
            match u32::from_le_bytes(*family).min(u32::from_be_bytes(*family)) {
                2 | 10 | 24 | 28 | 30 => (by_version(frame, 4).ok_or(short)?, 4),
                _ => return Err(Skip::NotIp),
            }
        }
    };
    let packet = frame.get(at..).ok_or(short)?;
    match protocol {
        IPV4 => ipv4(packet, cut),
        IPV6 => ipv6(packet, cut),
        _ => Err(Skip::NotIp),
    }
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const OLD_QINQ: u16 = 0x9100;

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn by_version(bytes: &[u8], at: usize) -> Option<u16> {
    Some(match bytes.get(at)? >> 4 {
        4 => IPV4,
        6 => IPV6,
        _ => 0,
    })
}

/// The EtherType at `at` and where its packet begins, past any IEEE 802.1Q and 802.1ad tags.
#[inline]
fn untag(frame: &[u8], mut at: usize, short: Skip) -> Result<(u16, usize), Skip> {
    loop {
        match be16(frame, at).ok_or(short)? {
            VLAN | SERVICE_VLAN | OLD_QINQ => at += 4,
            protocol => return Ok((protocol, at + 2)),
        }
    }
}

/// IPv4, RFC 791 section 3.1. `cut` is how many bytes of the frame were not captured.
#[inline]
fn ipv4(packet: &[u8], cut: usize) -> Result<Segment<'_>, Skip> {
    let short = if cut > 0 { Skip::Truncated } else { Skip::Malformed };
    let head: &[u8; 20] = packet.first_chunk().ok_or(short)?;
    let header = usize::from(head[0] & 0x0f) * 4;
    if head[0] >> 4 != 4 || header < 20 {
        return Err(Skip::Malformed);
    }
    if head[9] != TCP {
        return Err(Skip::NotTcp);
    }
    if u16::from_be_bytes([head[6], head[7]]) & 0x1fff != 0 {
        return Err(Skip::Fragment);
    }
    let total = match usize::from(u16::from_be_bytes([head[2], head[3]])) {
        0 => packet.len() + cut, // left to the card (TSO), or too long for the field (BIG TCP)
        total => total,
    };
    let ip = |at: usize| 0xffff_0000_0000 | u128::from(u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    tcp(packet, header, total, short, ip(12), ip(16))
}

/// IPv6, RFC 8200 sections 3 and 4.
#[inline]
fn ipv6(packet: &[u8], cut: usize) -> Result<Segment<'_>, Skip> {
    let short = if cut > 0 { Skip::Truncated } else { Skip::Malformed };
    let head: &[u8; 40] = packet.first_chunk().ok_or(short)?;
    if head[0] >> 4 != 6 {
        return Err(Skip::Malformed);
    }
    let total = match usize::from(u16::from_be_bytes([head[4], head[5]])) {
        0 => packet.len() + cut, // a jumbogram (RFC 2675), or left to the card
        payload => 40 + payload,
    };
    let (mut next, mut at) = (head[6], 40);
    // each step moves forward by at least 8 bytes, so the walk ends with the packet
    while next != TCP {
        let field = |offset: usize| packet.get(at + offset).copied().ok_or(short);
        let length = match next {
            // hop-by-hop options, routing, destination options, mobility, HIP, shim6
            0 | 43 | 60 | 135 | 139 | 140 => (usize::from(field(1)?) + 1) * 8,
            44 => {
                if be16(packet, at + 2).ok_or(short)? & 0xfff8 != 0 {
                    return Err(Skip::Fragment);
                }
                8
            }
            51 => (usize::from(field(1)?) + 2) * 4, // authentication header, RFC 4302 section 2.2
            _ => return Err(Skip::NotTcp),
        };
        next = field(0)?;
        at += length;
    }
    let ip = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u128::from_be_bytes(*bytes));
    tcp(packet, at, total, short, ip(8), ip(24))
}

const TCP: u8 = 6;

/// TCP, RFC 9293 section 3.1. `total` is the length of the IP packet by its own account, `at` where its TCP header begins.
#[inline]
fn tcp(packet: &[u8], at: usize, total: usize, short: Skip, source: u128, destination: u128) -> Result<Segment<'_>, Skip> {
    let head: &[u8; 20] = packet.get(at..).and_then(<[u8]>::first_chunk).ok_or(short)?;
    let begin = at + usize::from(head[12] >> 4) * 4;
    if begin < at + 20 || begin > total {
        return Err(Skip::Malformed);
    }
    // what follows `total` is Ethernet padding or a frame check sequence; what is missing up to it was cut
    let payload = packet.get(begin..packet.len().min(total)).unwrap_or_default();
    let missing = (total - begin - payload.len()).min(MAX_MISSING);
    Ok(Segment {
        source: Endpoint { ip: source, port: u16::from_be_bytes([head[0], head[1]]) },
        destination: Endpoint { ip: destination, port: u16::from_be_bytes([head[2], head[3]]) },
        seq: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
        ack: u32::from_be_bytes([head[8], head[9], head[10], head[11]]),
        flags: head[13],
        payload,
        missing: u32::try_from(missing).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tcp::build::Packet;

    fn packet(six: bool) -> Packet {
        let (source, destination) = if six { ("[2001:db8::1]:40000", "[2001:db8::2]:8000") } else { ("10.0.0.2:40000", "10.0.0.1:8000") };
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        Packet { source, destination, seq: 7, ack: 9, flags: ACK | PSH, payload: b"hello".to_vec() }
    }

    fn check(link: LinkType, frame: &[u8], expected: Result<&Packet, Skip>) {
        assert_eq!(parse(link, frame, frame.len() as u32), expected.map(Packet::segment));
        // cut anywhere: no panic, and whatever is read is consistent
        for n in 0..frame.len() {
            let cut = parse(link, &frame[..n], frame.len() as u32);
            match (cut, expected) {
                (Ok(cut), Ok(whole)) => {
                    assert_eq!(cut.payload.len() + cut.missing as usize, whole.payload.len());
                    assert!(whole.payload.starts_with(cut.payload));
                }
                (Ok(_), Err(_)) => panic!("a cut frame says more than the whole"),
                (Err(reason), Ok(_)) => assert!(matches!(reason, Skip::Truncated), "{reason:?} at {n}"),
                (Err(_), Err(_)) => {}
            }
        }
    }

    const LINKS: [(u32, LinkType); 9] = [
        (0, LinkType::Loopback),
        (108, LinkType::Loopback),
        (1, LinkType::Ethernet),
        (12, LinkType::RawIp),
        (101, LinkType::RawIp),
        (228, LinkType::RawIp),
        (229, LinkType::RawIp),
        (113, LinkType::LinuxCooked),
        (276, LinkType::LinuxCooked2),
    ];

    #[test]
    fn every_link_layer() {
        for (number, link) in LINKS {
            assert_eq!(LinkType::from_number(number), Some(link));
            for six in [false, true] {
                let packet = packet(six);
                check(link, &packet.frame(link), Ok(&packet));
            }
        }
        assert_eq!(LinkType::from_number(105), None);
        let packet = packet(false);
        check(LinkType::Loopback, &[&[0, 0, 0, 2][..], &packet.ip()].concat(), Ok(&packet));
    }

    #[test]
    fn vlan_tags_and_padding() {
        let packet = packet(false);
        let frame = packet.frame(LinkType::Ethernet);
        for tags in [&[0x81, 0, 0, 5][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6], &[0x91, 0, 0, 5, 0x81, 0, 0, 6]] {
            check(LinkType::Ethernet, &[&frame[..12], tags, &frame[12..]].concat(), Ok(&packet));
        }
        let cooked = packet.frame(LinkType::LinuxCooked);
        check(LinkType::LinuxCooked, &[&cooked[..14], &[0x81, 0, 0, 5], &cooked[14..]].concat(), Ok(&packet));
        let cooked = packet.frame(LinkType::LinuxCooked2);
        check(LinkType::LinuxCooked2, &[&[0x81, 0], &cooked[2..20], &[0, 5, 8, 0], &cooked[20..]].concat(), Ok(&packet));
        let padded = [&frame[..], &[0; 9]].concat();
        assert_eq!(parse(LinkType::Ethernet, &padded, padded.len() as u32), Ok(packet.segment()));
    }

    #[test]
    fn ipv6_extension_headers() {
        let packet = packet(true);
        let plain = packet.ip();
        let with = |first: u8, headers: &[u8]| {
            let mut ip = [&plain[..40], headers, &plain[40..]].concat();
            let payload = u16::try_from(ip.len() - 40).unwrap();
            ip[4..6].copy_from_slice(&payload.to_be_bytes());
            ip[6] = first;
            ip
        };
        let options = [60, 0, 1, 4, 0, 0, 0, 0, 6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        check(LinkType::RawIp, &with(0, &options), Ok(&packet));
        check(LinkType::RawIp, &with(51, &[6, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]), Ok(&packet));
        check(LinkType::RawIp, &with(44, &[6, 0, 0, 1, 0, 0, 0, 1]), Ok(&packet));
        check(LinkType::RawIp, &with(44, &[6, 0, 0, 8, 0, 0, 0, 1]), Err(Skip::Fragment));
        check(LinkType::RawIp, &with(50, &[0; 8]), Err(Skip::NotTcp));
        let mut jumbo = plain.clone();
        jumbo[4..6].copy_from_slice(&[0, 0]);
        check(LinkType::RawIp, &jumbo, Ok(&packet));
    }

    #[test]
    fn ipv4_oddities() {
        let packet = packet(false);
        let plain = packet.ip();
        let patch = |at: usize, bytes: &[u8]| {
            let mut ip = plain.clone();
            ip[at..at + bytes.len()].copy_from_slice(bytes);
            ip
        };
        check(LinkType::RawIp, &patch(2, &[0, 0]), Ok(&packet)); // segmentation offload
        check(LinkType::RawIp, &patch(6, &[0x20, 0]), Ok(&packet)); // the first fragment
        check(LinkType::RawIp, &patch(6, &[0x20, 1]), Err(Skip::Fragment));
        check(LinkType::RawIp, &patch(9, &[17]), Err(Skip::NotTcp));
        check(LinkType::RawIp, &patch(0, &[0x44]), Err(Skip::Malformed));
        check(LinkType::RawIp, &patch(32, &[0x40]), Err(Skip::Malformed));
        check(LinkType::RawIp, &patch(32, &[0xf0]), Err(Skip::Malformed));
        check(LinkType::RawIp, &patch(0, &[0x55]), Err(Skip::NotIp));
        let mut options = [&plain[..20], &[1, 1, 1, 0], &plain[20..]].concat();
        options[0] = 0x46;
        options[3] += 4;
        check(LinkType::RawIp, &options, Ok(&packet));
        check(LinkType::Ethernet, &[&[0; 12][..], &[8, 6], &[0; 40]].concat(), Err(Skip::NotIp));
    }

    proptest! {
        /// The shortcut says what the walk says, or nothing.
        #[test]
        fn plain_frames_are_read_alike(six: bool, at in 12usize..60, value: u8, trailer in 0usize..8, cut in 0usize..70) {
            let mut frame = packet(six).frame(LinkType::Ethernet);
            frame.extend(&[0; 8][..trailer]);
            let whole = frame.len() as u32;
            prop_assert!(six || plain(&frame).is_some());
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
            frame.truncate(frame.len() - cut.min(frame.len()));
            for original in [whole, frame.len() as u32] {
                prop_assert_eq!(parse(LinkType::Ethernet, &frame, original), walk(LinkType::Ethernet, &frame, original));
            }
        }

        #[test]
        fn never_panics(frame in prop::collection::vec(any::<u8>(), 0..120), original: u32, kind in 0usize..9, tame: bool) {
            let mut frame = frame;
            if tame && frame.len() > 50 {
                frame[0] = 0x45;
                frame[9] = 6;
            }
            if let Ok(segment) = parse(LINKS[kind].1, &frame, original) {
                prop_assert!(segment.payload.len() <= frame.len());
            }
        }
    }
}
