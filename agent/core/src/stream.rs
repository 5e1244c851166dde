//! What any tap yields: the bytes of connections, in order, each piece with its instant, or the admission that some were lost.
//!
//! A tap says which *endpoint* sent bytes, never who is client or server: that is decided later, by who sent a request.
//! Nothing here owns payload. `Data` borrows from the tap's buffer (a ring buffer record, a captured packet), so that the
//! bytes of an in-order chunk are parsed where the kernel put them.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::workload::Container;

/// An instant, in nanoseconds since the Unix epoch, on the one clock of its tap.
///
/// Taps whose source is a monotonic clock add one offset, measured once, so that differences stay exact.
///
/// One more than the nanoseconds is kept, so that an `Option` of it, of which every inference has a dozen, takes no more room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(NonZeroU64);

impl Default for Timestamp {
    fn default() -> Self {
        Self(NonZeroU64::MIN)
    }
}

impl Timestamp {
    /// The instant `nanos` nanoseconds after the Unix epoch; the last two that a `u64` can say are one.
    pub const fn from_unix_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn unix_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// Time from `earlier` to `self`; zero when `earlier` is later (clocks of merged captures may disagree).
    pub const fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// [`Timestamp::since`] in nanoseconds.
    pub const fn nanos_since(self, earlier: Timestamp) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }

    /// This instant and `by` later, without overflow.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.unix_nanos() / 1_000_000_000, self.unix_nanos() % 1_000_000_000)
    }
}

/// A connection, unique within one run of one tap and never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ConnId(pub u64);

/// Which endpoint of [`Endpoints`] sent the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From `local` to `remote`: what a tapped process writes; in a packet capture, what the connection's opener sends.
    Forward,
    /// From `remote` to `local`.
    Reverse,
}

impl Direction {
    /// The other direction.
    pub const fn flip(self) -> Self {
        match self {
            Self::Forward => Self::Reverse,
            Self::Reverse => Self::Forward,
        }
    }

    /// 0 or 1, for tables of two.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The two ends of a connection as the tap names them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Endpoints {
    /// The tapped process's end; in a packet capture, the connection's opener (or, when the opening was not seen, the first sender).
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// Where the bytes were seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TapKind {
    /// eBPF on a TLS library's functions.
    Tls,
    /// eBPF on plaintext sockets.
    Socket,
    /// Captured packets, live or from a file.
    Pcap,
    /// A hook beside an inference server.
    Hook,
}

impl TapKind {
    /// The record's `tap` value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Socket => "socket",
            Self::Pcap => "pcap",
            Self::Hook => "hook",
        }
    }
}

/// On whose side of a connection a tap sits, as far as the tap itself can know.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The tap sees what the process at `local` writes and reads.
    Local,
    /// The tap sits somewhere between the two (a packet capture).
    Middle,
}

/// A process that owns an end of a connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    /// Process id (thread group id) in the agent's PID namespace.
    pub pid: u32,
    /// The command name as the kernel keeps it (at most 15 bytes).
    pub command: Box<str>,
    /// The container that it runs in, where it does.
    pub container: Option<Arc<Container>>,
}

/// What is known of a connection when it is first seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnInfo {
    /// Kind of the tap.
    pub tap: TapKind,
    /// Where the tap sits.
    pub side: Side,
    /// The two ends; `None` when the tap does not know them (yet): unknown is never guessed.
    pub endpoints: Option<Endpoints>,
    /// The tapped process, where there is one.
    pub process: Option<Process>,
    /// Whether the connection was seen from its first byte. If not, a parser must find its footing first, and what it could
    /// not see is counted as `missed_start`.
    pub from_start: bool,
}

/// Why bytes are missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GapReason {
    /// A packet was never captured.
    PacketLost,
    /// A packet was cut by the capture's snapshot length.
    Snaplen,
    /// The kernel's ring buffer was full.
    RingFull,
    /// A single call moved more bytes than the tap copies.
    TooLong,
    /// The kernel could not read the process's memory, or no key opens a record.
    Unreadable,
    /// A buffer reached its bound and was let go.
    Bound,
}

impl GapReason {
    /// Every reason, for tables of counters.
    pub const ALL: [Self; 6] = [Self::PacketLost, Self::Snaplen, Self::RingFull, Self::TooLong, Self::Unreadable, Self::Bound];

    /// The reason's name in metrics and statistics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PacketLost => "packet_lost",
            Self::Snaplen => "snaplen",
            Self::RingFull => "ring_full",
            Self::TooLong => "too_long",
            Self::Unreadable => "unreadable",
            Self::Bound => "bound",
        }
    }
}

/// How a connection, or one half of it, ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// The sender in this direction said it has no more to send (TCP FIN, TLS close_notify). The other direction may go on.
    Finished(Direction),
    /// The sender in this direction aborted the connection (TCP RST). Both directions are over.
    Reset(Direction),
    /// The local process let go of the connection (`SSL_free`, process exit). Both directions are over.
    Released,
    /// The local process let go without a goodbye, although it lives: its last write failed, or it asked its TLS library to be
    /// quiet. RFC 8446 §6.1 wants a close_notify of whoever ends its side; who says none has nobody left to say it to, or aborts.
    Abandoned,
    /// Nothing moved for the tap's idle limit. Both directions are over as far as we are concerned.
    Idle,
    /// The tap's bound on connections or bytes made it let go. An observer's failure, never the service's.
    Evicted,
    /// The input or the agent ended first.
    InputEnded,
}

/// What any tap yields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamEvent<'a> {
    /// A connection is seen for the first time.
    Open {
        /// The connection.
        conn: ConnId,
        /// When.
        at: Timestamp,
        /// What is known of it.
        info: ConnInfo,
    },
    /// The ends of a connection became known after it was opened.
    Identified {
        /// The connection.
        conn: ConnId,
        /// Its ends.
        endpoints: Endpoints,
    },
    /// The next bytes of one direction, without a hole before them.
    Data {
        /// The connection.
        conn: ConnId,
        /// Who sent them.
        dir: Direction,
        /// When they were seen: at the tap's vantage, the moment they were written or became readable.
        at: Timestamp,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Bytes of one direction are missing here.
    Gap {
        /// The connection.
        conn: ConnId,
        /// Whose bytes.
        dir: Direction,
        /// When the loss was proven.
        at: Timestamp,
        /// How many bytes; `None` when that cannot be told.
        len: Option<u64>,
        /// Why.
        reason: GapReason,
    },
    /// A connection or one half of it ended.
    Close {
        /// The connection.
        conn: ConnId,
        /// When.
        at: Timestamp,
        /// How.
        end: End,
    },
}

impl StreamEvent<'_> {
    /// The connection the event is about.
    pub const fn conn(&self) -> ConnId {
        match self {
            Self::Open { conn, .. }
            | Self::Identified { conn, .. }
            | Self::Data { conn, .. }
            | Self::Gap { conn, .. }
            | Self::Close { conn, .. } => *conn,
        }
    }
}

/// The answer to a [`StreamEvent`], and the only message that travels backwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum Verdict {
    /// Go on.
    Watch,
    /// This connection carries no LLM traffic: stop copying it, in the kernel where that is possible. Further events for it
    /// are ignored, except `Close`.
    Mute,
}
