//! The capture file formats pcap and pcapng, read in place.
//!
//! [`Format::step`] looks at the bytes at hand and says what they begin with: it asks for more when they end too early, never copies,
//! and fails only on what no later byte could repair. References: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.

use std::ops::Range;

use tokengauge_core::stream::Timestamp;
use tokengauge_core::tcp::LinkType;

/// No record is believed to be longer: libpcap's own limit is 256 KiB, and a jumbo GRO segment stays below it.
pub const MAX_RECORD: usize = 16 << 20;

/// What the bytes at hand begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Not enough of them: so many are needed at least.
    Need(usize),
    /// Nothing of interest in the next so many bytes, which may be more than are at hand.
    Skip(usize),
    /// Secrets of TLS connections that follow.
    Secrets {
        /// The length of their block.
        used: usize,
        /// Where the text of a key log lies in the bytes at hand.
        text: Range<usize>,
    },
    /// A captured frame.
    Frame {
        /// The length of its record.
        used: usize,
        /// Where the frame lies in the bytes at hand.
        frame: Range<usize>,
        /// When it was captured.
        at: Timestamp,
        /// Its link layer, if that can be read.
        link: Option<LinkType>,
        /// Its length on the wire.
        original: u32,
    },
}

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bad(pub String);

/// How a file is to be read, as far as it has said so.
#[derive(Clone, Debug, Default)]
pub enum Format {
    /// Nothing was read yet.
    #[default]
    Unknown,
    /// Classic pcap.
    Pcap {
        /// Fields are big endian.
        big: bool,
        /// Nanoseconds per unit of the stamp's fraction: 1 or 1000.
        unit: u32,
        /// The one link layer.
        link: Option<LinkType>,
    },
    /// pcapng: a sequence of blocks.
    Ng(Section),
}

/// A section of a pcapng file.
#[derive(Clone, Debug, Default)]
pub struct Section {
    big: bool,
    interfaces: Vec<Interface>,
    /// The last instant seen: simple packet blocks have none of their own.
    latest: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: Option<LinkType>,
    snaplen: u32,
    resolution: Resolution,
    /// Seconds to add to every stamp.
    offset: i64,
}

/// The unit of an interface's time stamps (option `if_tsresol`).
#[derive(Clone, Copy, Debug)]
enum Resolution {
    /// So many nanoseconds.
    Nanos(u64),
    /// So many in a nanosecond; 0 when that does not fit.
    PerNano(u64),
    /// 2⁻ⁿ seconds.
    Binary(u8),
}

impl Resolution {
    fn from_option(value: u8) -> Self {
        let power = u32::from(value & 0x7f);
        match (value & 0x80 != 0, power) {
            (true, _) => Self::Binary(value & 0x7f),
            (false, 0..=9) => Self::Nanos(10u64.pow(9 - power)),
            (false, _) => Self::PerNano(10u64.checked_pow(power - 9).unwrap_or(0)),
        }
    }

    fn nanos(self, ticks: u64) -> u64 {
        match self {
            Self::Nanos(nanos) => ticks.saturating_mul(nanos),
            Self::PerNano(per) => ticks.checked_div(per).unwrap_or(0),
            Self::Binary(power) => {
                // at most 2⁶⁴ · 10⁹ < 2⁹⁴
                let nanos = (u128::from(ticks) * 1_000_000_000).checked_shr(power.into()).unwrap_or(0);
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Interface {
    fn instant(&self, ticks: u64) -> Timestamp {
        let offset = self.offset.saturating_mul(1_000_000_000);
        Timestamp::from_unix_nanos(self.resolution.nanos(ticks).saturating_add_signed(offset))
    }
}

const PCAP_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const SECRETS: u32 = 10;
/// The type of secrets that are a TLS key log.
const TLS_KEY_LOG: u32 = 0x544c_534b;

#[inline]
fn word(big: bool, bytes: &[u8], at: usize) -> u32 {
    let Some(four) = bytes.get(at..).and_then(<[u8]>::first_chunk) else { return 0 };
    if big { u32::from_be_bytes(*four) } else { u32::from_le_bytes(*four) }
}

fn half(big: bool, bytes: &[u8], at: usize) -> u16 {
    let Some(two) = bytes.get(at..).and_then(<[u8]>::first_chunk) else { return 0 };
    if big { u16::from_be_bytes(*two) } else { u16::from_le_bytes(*two) }
}

impl Format {
    /// What `bytes`, the rest of the file as far as it was read, begin with. They are not empty.
    ///
    /// # Errors
    /// When they begin with nothing that belongs here.
    #[inline]
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, Bad> {
        match self {
            Self::Pcap { big, unit, link } => pcap_record(*big, *unit, *link, bytes),
            Self::Ng(section) => section.block(bytes),
            Self::Unknown => self.begin(bytes),
        }
    }

    /// The record of a frame that `bytes` begin with, if it is whole and the format is the one that nearly every capture has: pcap, little
    /// endian. What [`Format::step`] says of it, in a third of the time.
    #[inline]
    #[allow(clippy::type_complexity, reason = "what a step yields, taken apart at once")]
    pub fn frame<'a>(&self, bytes: &'a [u8]) -> Option<(usize, Timestamp, Option<LinkType>, &'a [u8], u32)> {
        let Self::Pcap { big, unit, link } = self else { return None };
        let head: &[u8; RECORD_HEADER] = bytes.first_chunk()?;
        if *big {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let used = RECORD_HEADER + word(8) as usize;
        let frame = bytes.get(RECORD_HEADER..used).filter(|_| used <= RECORD_HEADER + MAX_RECORD)?;
        let at = Timestamp::from_unix_nanos(u64::from(word(0)) * 1_000_000_000 + u64::from(word(4)) * u64::from(*unit));
        Some((used, at, *link, frame, word(12)))
    }

    #[cold]
    fn begin(&mut self, bytes: &[u8]) -> Result<Step, Bad> {
        let Some(magic) = bytes.first_chunk::<4>() else { return Ok(Step::Need(4)) };
        let (big, unit) = match u32::from_be_bytes(*magic) {
            0xa1b2_c3d4 => (true, 1000),
            0xd4c3_b2a1 => (false, 1000),
            0xa1b2_3c4d => (true, 1),
            0x4d3c_b2a1 => (false, 1),
            SECTION => {
                *self = Self::Ng(Section::default());
                return self.step(bytes);
            }
            0xa1b2_cd34 | 0x34cd_b2a1 => return Err(Bad("a pcap file of the modified kind (Kuznetzov) is not supported".into())),
            other if other >> 16 == 0x1f8b => return Err(Bad("compressed with gzip: decompress it first".into())),
            0x28b5_2ffd => return Err(Bad("compressed with zstd: decompress it first".into())),
            other => return Err(Bad(format!("neither pcap nor pcapng: the file begins with 0x{other:08x}"))),
        };
        if bytes.len() < PCAP_HEADER {
            return Ok(Step::Need(PCAP_HEADER));
        }
        let major = half(big, bytes, 4);
        if major != 2 {
            return Err(Bad(format!("version {major} of the pcap format is not supported")));
        }
        // the upper half may tell the length of frame check sequences, which the IP length cuts off anyway
        let link = LinkType::from_number(word(big, bytes, 20) & 0xffff);
        *self = Self::Pcap { big, unit, link };
        Ok(Step::Skip(PCAP_HEADER))
    }
}

#[inline]
fn pcap_record(big: bool, unit: u32, link: Option<LinkType>, bytes: &[u8]) -> Result<Step, Bad> {
    let Some(head) = bytes.first_chunk::<RECORD_HEADER>() else { return Ok(Step::Need(RECORD_HEADER)) };
    let captured = word(big, head, 8) as usize;
    if captured > MAX_RECORD {
        return Err(Bad(format!("a packet of {captured} bytes is not believable")));
    }
    let used = RECORD_HEADER + captured;
    if bytes.len() < used {
        return Ok(Step::Need(used));
    }
    let (seconds, fraction) = (u64::from(word(big, head, 0)), u64::from(word(big, head, 4)));
    let at = Timestamp::from_unix_nanos(seconds * 1_000_000_000 + fraction * u64::from(unit));
    Ok(Step::Frame { used, frame: RECORD_HEADER..used, at, link, original: word(big, head, 12) })
}

impl Section {
    #[inline]
    fn block(&mut self, bytes: &[u8]) -> Result<Step, Bad> {
        if bytes.len() < 12 {
            return Ok(Step::Need(12));
        }
        // the type of a section header reads the same in both byte orders, and what follows tells which one it is
        let section = word(false, bytes, 0) == SECTION;
        let big = if section {
            match bytes[8..12] {
                [0x1a, 0x2b, 0x3c, 0x4d] => true,
                [0x4d, 0x3c, 0x2b, 0x1a] => false,
                _ => return Err(Bad("a section header without a byte-order magic".into())),
            }
        } else {
            self.big
        };
        let kind = word(big, bytes, 0);
        let used = word(big, bytes, 4) as usize;
        if used < 12 || !used.is_multiple_of(4) {
            return Err(Bad(format!("a block of type {kind} claims {used} bytes")));
        }
        if !section && !matches!(kind, INTERFACE | OLD_PACKET | SIMPLE_PACKET | ENHANCED_PACKET | SECRETS) {
            return Ok(Step::Skip(used));
        }
        if used > MAX_RECORD {
            return Err(Bad(format!("a block of type {kind} and {used} bytes is not believable")));
        }
        if bytes.len() < used {
            return Ok(Step::Need(used));
        }
        let trailer = word(big, bytes, used - 4) as usize;
        if trailer != used {
            return Err(Bad(format!("a block of type {kind} claims {used} bytes at its begin and {trailer} at its end")));
        }
        let block = &bytes[..used - 4];
        match kind {
            ENHANCED_PACKET => {
                let ticks = u64::from(word(big, block, 12)) << 32 | u64::from(word(big, block, 16));
                self.frame(block, used, word(big, block, 8), Some(ticks), 28, word(big, block, 20), word(big, block, 24))
            }
            OLD_PACKET => {
                let ticks = u64::from(word(big, block, 12)) << 32 | u64::from(word(big, block, 16));
                self.frame(block, used, half(big, block, 8).into(), Some(ticks), 28, word(big, block, 20), word(big, block, 24))
            }
            SIMPLE_PACKET => {
                let original = word(big, block, 8);
                // the padding cannot be told from the frame unless the snapshot length is known
                let snaplen = self.interfaces.first().map_or(0, |interface| interface.snaplen);
                let captured = if snaplen == 0 { original } else { original.min(snaplen) };
                let room = block.len().saturating_sub(12) as u32;
                self.frame(block, used, 0, None, 12, captured.min(room), original)
            }
            SECRETS => {
                let end = 16usize.saturating_add(word(big, block, 12) as usize);
                if end > block.len() {
                    return Err(Bad(format!("secrets of {} bytes in a block of {used}", end - 16)));
                }
                match word(big, block, 8) {
                    TLS_KEY_LOG => Ok(Step::Secrets { used, text: 16..end }),
                    _ => Ok(Step::Skip(used)),
                }
            }
            INTERFACE => {
                if block.len() < 16 {
                    return Err(Bad(format!("an interface description of {used} bytes")));
                }
                self.interfaces.push(self.interface(block));
                Ok(Step::Skip(used))
            }
            _ => {
                let major = half(big, block, 12);
                if block.len() < 24 || major != 1 {
                    return Err(Bad(format!("version {major} of the pcapng format is not supported")));
                }
                *self = Self { big, interfaces: Vec::new(), latest: self.latest };
                Ok(Step::Skip(used))
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of three kinds of blocks, each read once")]
    #[inline]
    fn frame(
        &mut self,
        block: &[u8],
        used: usize,
        interface: u32,
        ticks: Option<u64>,
        begin: usize,
        captured: u32,
        original: u32,
    ) -> Result<Step, Bad> {
        let end = begin.saturating_add(captured as usize);
        if end > block.len() {
            return Err(Bad(format!("a packet of {captured} bytes in a block of {used}")));
        }
        let Some(interface) = self.interfaces.get(interface as usize) else {
            return Err(Bad(format!("a packet of interface {interface}, which was not described")));
        };
        let at = ticks.map_or(self.latest, |ticks| interface.instant(ticks));
        self.latest = at;
        Ok(Step::Frame { used, frame: begin..end, at, link: interface.link, original })
    }

    fn interface(&self, block: &[u8]) -> Interface {
        let big = self.big;
        let mut interface = Interface {
            link: LinkType::from_number(half(big, block, 8).into()),
            snaplen: word(big, block, 12),
            resolution: Resolution::Nanos(1000),
            offset: 0,
        };
        let mut options = block.get(16..).unwrap_or_default();
        while options.len() >= 4 {
            let (code, length) = (half(big, options, 0), usize::from(half(big, options, 2)));
            let Some(value) = options.get(4..4 + length) else { break };
            match (code, value) {
                (0, _) => break,
                (9, [resolution, ..]) => interface.resolution = Resolution::from_option(*resolution),
                (14, _) if length == 8 => {
                    let (first, second) = (u64::from(word(big, value, 0)), u64::from(word(big, value, 4)));
                    interface.offset = if big { first << 32 | second } else { second << 32 | first }.cast_signed();
                }
                _ => {}
            }
            options = options.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
        }
        interface
    }
}
