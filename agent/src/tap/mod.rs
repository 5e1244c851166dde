//! Where bytes come from. A tap yields [`StreamEvent`]s and knows no HTTP (invariant 3).
//!
//! A tap owns its thread: [`Tap::run`] blocks, reads its source, stamps what it reads and hands it to the [`Sink`] in place,
//! without a copy or a queue in between. The sink's [`Verdict`] is the only message backwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokengauge_core::stream::{ConnId, Direction, StreamEvent, TapKind, Timestamp, Verdict};

pub mod pcap;
pub mod tls;

/// Takes what a tap yields. Implemented by the pipeline's driver in `run.rs` and by `replay`.
pub trait Sink {
    /// One event, in order per connection.
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict;

    /// What follows belongs to this place of the capture: the number of a frame, and a step in what is done for it. Said by taps that take
    /// a share of a capture, so that what the shares yield can be put into one order.
    fn at(&mut self, _frame: u64, _step: u8) {}

    /// The next bytes of a direction of a connection, as [`StreamEvent::Data`]. `tag` is kept with it by the tap, and is the sink's to set; it is 0
    /// at first.
    fn data(&mut self, _tag: &mut u32, conn: ConnId, dir: Direction, at: Timestamp, bytes: &[u8]) -> Verdict {
        self.event(StreamEvent::Data { conn, dir, at, bytes })
    }

    /// Bytes of these connections are about to come, and with these tags: a hint to fetch what will be needed. Changes nothing.
    fn soon(&self, _conns: &[(ConnId, u32)]) {}

    /// A key log that the capture itself carries; it holds for the TLS connections that follow.
    fn secrets(&mut self, _key_log: &[u8]) {}

    /// Time passed without an event: at least ten times a second while a live tap is idle, so that time-outs are noticed.
    fn tick(&mut self, now: Timestamp);
}

/// A source of stream events.
pub trait Tap: Send {
    /// What it is.
    fn kind(&self) -> TapKind;

    /// Where the tap will show its own counters while it runs; `None` when it has none.
    fn counters(&self) -> Option<SharedCounters> {
        None
    }

    /// Reads the source until it ends or `stop` is set, feeding `sink`. Before it returns, every connection that is still open
    /// is closed with `End::InputEnded`.
    ///
    /// # Errors
    /// When the source cannot be read (any further): what was read before the error has been delivered.
    fn run(self: Box<Self>, sink: &mut dyn Sink, stop: &StopFlag) -> Result<(), TapError>;
}

/// A tap's counters, written about once a second by the tap and read by the agent's vitals.
pub type SharedCounters = Arc<Mutex<TapCounters>>;

/// A tap's own counters, cumulative since its start unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TapCounters {
    /// Pieces of data taken.
    pub records: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Pieces that were lost, by reason.
    pub dropped: Vec<(&'static str, u64)>,
    /// Bytes that were lost, by reason.
    pub dropped_bytes: Vec<(&'static str, u64)>,
    /// Holes announced to the sink.
    pub gaps: u64,
    /// Connections whose first bytes were not seen.
    pub missed_start: u64,
    /// Connections open now.
    pub connections: u64,
    /// How many of them are muted now.
    pub muted: u64,
    /// Attach attempts by result.
    pub attach: Vec<(&'static str, u64)>,
    /// Attach plans that proved wrong and were replaced by the plain symbols.
    pub fallbacks: u64,
}

/// Set once, by a signal or by the end of a bounded run.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Asks every tap that shares the flag to end.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the taps should end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Why a tap could not start or go on. Each message names the file, interface or program it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// A file could not be opened or read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A capture file is not one, or is damaged from `offset` on.
    #[error("{path}: {what} (at byte {offset})")]
    BadCapture {
        /// The file.
        path: String,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// Live capture was refused.
    #[error("cannot capture on {interface}: {what}")]
    Interface {
        /// The interface.
        interface: String,
        /// What libpcap said.
        what: String,
    },
    /// The kernel refused eBPF, or lacks something that it needs.
    #[error("eBPF is not available: {what}")]
    Bpf {
        /// What was tried, and the kernel's answer.
        what: String,
    },
}
