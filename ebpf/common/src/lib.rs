//! The `#[repr(C)]` ABI between the kernel programs and the agent.
//!
//! Every ring buffer record begins with a [`Header`]; what follows depends on its [`kind`]. Both sides are compiled for one
//! machine, so integers are in native order. The kernel writes the structures by pointer; the agent reads them with
//! [`Header::parse`] from the bytes of the record, without `unsafe`. This is not a stable format: object and agent are one build.
#![no_std]

/// What a record is; the value of [`Header::kind`].
pub mod kind {
    /// `len` bytes of plaintext follow.
    pub const DATA: u8 = 1;
    /// An [`Address`](super::Address) follows: the socket that a call on this connection used.
    pub const IDENTIFY: u8 = 2;
    /// `SSL_shutdown` was called: the process has no more to send.
    pub const SHUTDOWN: u8 = 3;
    /// `SSL_free` was called. `offset` and `skipped` are the final offsets of the written and of the read direction.
    pub const FREE: u8 = 4;
    /// The self-test's trigger was hit.
    pub const SELF_TEST: u8 = 5;
    /// A read found the end of the other side's bytes.
    pub const PEER_END: u8 = 6;
    /// A connection was created or seen for the first time; [`COMMAND`](super::COMMAND) bytes follow: the name of the thread's command.
    /// Who lives shortly is gone before its name could be looked up.
    pub const HELLO: u8 = 7;
    /// The hook's tap symbol was called; `len` bytes of its structure follow (`agent/hook/README.md`).
    pub const HOOK: u8 = 8;
}

/// The structure that servers hand to the tap symbol, as far as the kernel side looks at it.
pub mod hook {
    /// The version whose structures are copied: its second 16 bits.
    pub const VERSION: u16 = 1;
    /// Its fewest bytes.
    pub const FIXED: usize = 80;
    /// Most bytes that are copied of one.
    pub const MAX: usize = 512;
}

/// What was read in, seen from the process: the value of [`Header::dir`] and an index of [`Conn::offset`].
pub mod dir {
    /// The process wrote.
    pub const WRITE: u8 = 0;
    /// The process read.
    pub const READ: u8 = 1;
}

/// Bits of [`Header::flags`] and of [`Conn::flags`].
pub mod flag {
    /// The creation of the connection was seen, hence its first byte.
    pub const FROM_START: u16 = 1;
    /// The agent wants no more bytes of it (in [`Conn`] only).
    pub const MUTED: u16 = 2;
    /// Its socket is known (in [`Conn`] only).
    pub const IDENTIFIED: u16 = 4;
    /// The bytes counted by [`Header::skipped`] could not be read (without it: they were more than one call may copy).
    pub const UNREADABLE: u16 = 8;
    /// The last write failed: when the connection ends now, the other side was gone (or would not read any more).
    pub const WRITE_FAILED: u16 = 16;
    /// `SSL_set_quiet_shutdown` was called: the process lets go without a goodbye.
    pub const QUIET: u16 = 32;
    /// A read found the end of the other side's bytes, and that was reported (in [`Conn`] only).
    pub const PEER_ENDED: u16 = 64;
}

/// Length of a command's name, padded with zeros.
pub const COMMAND: usize = 16;

/// The longest piece that one record carries.
pub const MAX_PIECE: usize = 16 * 1024;
/// How many pieces one call may yield. What is longer is announced by [`Header::skipped`].
pub const MAX_PIECES: usize = 17;

/// Begins every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u8,
    /// One of [`dir`].
    pub dir: u8,
    /// Bits of [`flag`].
    pub flags: u16,
    /// Bytes that follow and count. The record itself may be longer: sizes come in classes.
    pub len: u32,
    /// Thread group id (what user space calls the pid), in the initial PID namespace.
    pub tgid: u32,
    /// Which attached place it came from: [`cookie::site`].
    pub site: u32,
    /// The library's handle of the connection.
    pub ssl: u64,
    /// When the connection was first seen: tells apart two connections whose handles had one address.
    pub generation: u64,
    /// Nanoseconds of CLOCK_MONOTONIC: entry of a write, return of a read.
    pub at: u64,
    /// Absolute offset, in its direction, of the first of the `len` bytes.
    pub offset: u64,
    /// Bytes right behind those `len` which were moved by the same call but are not copied.
    pub skipped: u64,
}

/// `size_of::<Header>()`.
pub const HEADER: usize = size_of::<Header>();

impl Header {
    /// Reads the header of a record; `None` when the record is too short for it or for its `len`.
    pub fn parse(record: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = record.split_at_checked(HEADER)?;
        let u32_at = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let header = Self {
            kind: *head.first()?,
            dir: *head.get(1)?,
            flags: u16::from_ne_bytes(head.get(2..4)?.try_into().ok()?),
            len: u32_at(4)?,
            tgid: u32_at(8)?,
            site: u32_at(12)?,
            ssl: u64_at(16)?,
            generation: u64_at(24)?,
            at: u64_at(32)?,
            offset: u64_at(40)?,
            skipped: u64_at(48)?,
        };
        let payload = rest.get(..usize::try_from(header.len).ok()?)?;
        Some((header, payload))
    }
}

/// The two ends of a socket. Addresses are in network order; IPv4 stands in the first four bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// `AF_INET` (2) or `AF_INET6` (10).
    pub family: u16,
    /// The process's port, in host order.
    pub local_port: u16,
    /// The other port, in network order as the kernel keeps it.
    pub remote_port: u16,
    /// Zero.
    pub _pad: u16,
    /// The process's address.
    pub local: [u8; 16],
    /// The other address.
    pub remote: [u8; 16],
}

/// Key of the connection table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnKey {
    /// The library's handle.
    pub ssl: u64,
    /// Thread group id.
    pub tgid: u32,
    /// Zero.
    pub _pad: u32,
}

/// What the kernel remembers of a connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conn {
    /// Bytes written and read so far, indexed by [`dir`].
    pub offset: [u64; 2],
    /// When it was first seen.
    pub generation: u64,
    /// Bits of [`flag`].
    pub flags: u16,
    /// Zero.
    pub _pad: [u16; 3],
}

/// A call that has begun, kept by thread until it returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// The connection.
    pub ssl: u64,
    /// The caller's buffer.
    pub buffer: u64,
    /// How many bytes it may move.
    pub requested: u64,
    /// Where the call will store how many it moved, when it does not return that.
    pub count_at: u64,
    /// When it began.
    pub at: u64,
    /// The stack pointer at the function's entry: tells the call's own return from a nested one's.
    pub stack: u64,
    /// The place's cookie.
    pub cookie: u64,
    /// Generation of the connection.
    pub generation: u64,
    /// How many calls of this thread it runs inside of (a callback of one connection's read writes on it or on another one).
    pub depth: u32,
    /// Not zero while the connection's socket is unknown.
    pub wants_socket: u16,
    /// Not zero until the call returns. The entry stays for the thread's next call: taking it out and putting one in costs more
    /// than all the rest.
    pub running: u16,
}

/// The agent's settings, the one element of an array map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The agent itself, never tapped; zero in tests that tap themselves.
    pub own_tgid: u32,
    /// One of [`filter`].
    pub filter: u32,
    /// The agent is woken when so many bytes wait in the ring.
    pub wake_bytes: u64,
    /// Offsets within `struct sock`, from the kernel's BTF.
    pub sock: SockOffsets,
}

/// How the table of processes is meant.
pub mod filter {
    /// All processes are watched.
    pub const OFF: u32 = 0;
    /// Only listed ones are.
    pub const ONLY: u32 = 1;
    /// All but listed ones are.
    pub const EXCEPT: u32 = 2;
}

/// Offsets of the fields of `struct sock` that name its ends.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SockOffsets {
    /// `skc_family`, u16.
    pub family: u32,
    /// `skc_num`: the local port in host order.
    pub local_port: u32,
    /// `skc_dport`: the remote port in network order.
    pub remote_port: u32,
    /// `skc_rcv_saddr`.
    pub local_v4: u32,
    /// `skc_daddr`.
    pub remote_v4: u32,
    /// `skc_v6_rcv_saddr`.
    pub local_v6: u32,
    /// `skc_v6_daddr`.
    pub remote_v6: u32,
    /// `sk_protocol`.
    pub protocol: u32,
}

/// What the kernel counts, per CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records written to the ring.
    pub records: u64,
    /// Bytes of plaintext in them.
    pub bytes: u64,
    /// Records lost because the ring was full.
    pub ring_full: u64,
    /// Bytes in those.
    pub ring_full_bytes: u64,
    /// Pieces whose memory could not be read.
    pub unreadable: u64,
    /// Bytes in those.
    pub unreadable_bytes: u64,
    /// Calls that moved more than one call may copy.
    pub too_long: u64,
    /// Bytes of those that were not copied.
    pub too_long_bytes: u64,
    /// Calls not seen because the connection table was full.
    pub conns_full: u64,
    /// Calls not seen because the table of running calls was full, or because they lay too deep in each other.
    pub calls_full: u64,
    /// Calls whose result made no sense: the place is wrong.
    pub senseless: u64,
    /// Events of the hook that say they are shorter than any event is.
    pub hook_too_short: u64,
    /// Events of the hook of another version.
    pub hook_unknown_version: u64,
}

impl Counters {
    /// How many fields there are.
    pub const FIELDS: usize = size_of::<Self>() / 8;

    /// The fields in order of declaration, read from a per-CPU value.
    pub fn from_fields(f: [u64; Self::FIELDS]) -> Self {
        let [
            records,
            bytes,
            ring_full,
            ring_full_bytes,
            unreadable,
            unreadable_bytes,
            too_long,
            too_long_bytes,
            conns_full,
            calls_full,
            senseless,
            hook_too_short,
            hook_unknown_version,
        ] = f;
        Self {
            records,
            bytes,
            ring_full,
            ring_full_bytes,
            unreadable,
            unreadable_bytes,
            too_long,
            too_long_bytes,
            conns_full,
            calls_full,
            senseless,
            hook_too_short,
            hook_unknown_version,
        }
    }
}

/// What an attach cookie says about its place: the one program serves all places.
pub mod cookie {
    /// How a call tells how many bytes it moved.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum Count {
        /// It returns the number; zero or less is none.
        Returned = 0,
        /// It returns more than zero and stores the number where its fourth argument (rcx) points.
        At4th = 1,
        /// The same, fifth argument (r8).
        At5th = 2,
    }

    /// The place is a function that returns 1 or 0 only (`SSL_read_ex` itself): its 0 does not tell an end from "try again".
    pub const BOOLEAN: u64 = 1 << 16;

    /// Builds a cookie.
    pub const fn new(site: u32, dir: u8, count: Count) -> u64 {
        (site as u64) << 32 | (count as u64) << 8 | dir as u64
    }
    /// The place's number.
    pub const fn site(cookie: u64) -> u32 {
        (cookie >> 32) as u32
    }
    /// One of [`dir`](super::dir).
    pub const fn dir(cookie: u64) -> u8 {
        (cookie & 1) as u8
    }
    /// A [`Count`] as a number.
    pub const fn count(cookie: u64) -> u8 {
        (cookie >> 8) as u8
    }
}

/// How deep calls of one thread may lie in each other.
pub const MAX_DEPTH: u32 = 4;

/// Key of the table of calls that wait for a call inside them to return.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OuterKey {
    /// The thread, as `bpf_get_current_pid_tgid` gives it.
    pub thread: u64,
    /// [`Call::depth`] of the waiting call.
    pub depth: u64,
}

/// How many places there may be at once.
pub const MAX_SITES: u32 = 4096;
