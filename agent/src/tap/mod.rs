//! Where bytes come from. A tap yields [`StreamEvent`]s and knows no HTTP (invariant 3).
//!
//! A tap owns its thread: [`Tap::run`] blocks, reads its source, stamps what it reads and hands it to the [`Sink`] in place,
//! without a copy or a queue in between. The sink's [`Verdict`] is the only message backwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokengauge_core::stream::{StreamEvent, TapKind, Timestamp, Verdict};

pub mod pcap;
pub mod tls;

/// Takes what a tap yields. Implemented by the pipeline's driver in `run.rs` and by `replay`.
pub trait Sink {
    /// One event, in order per connection.
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict;

    /// Time passed without an event: at least ten times a second while a live tap is idle, so that time-outs are noticed.
    fn tick(&mut self, now: Timestamp);
}

/// A source of stream events.
pub trait Tap: Send {
    /// What it is.
    fn kind(&self) -> TapKind;

    /// Reads the source until it ends or `stop` is set, feeding `sink`. Before it returns, every connection that is still open
    /// is closed with `End::InputEnded`.
    ///
    /// # Errors
    /// When the source cannot be read (any further): what was read before the error has been delivered.
    fn run(self: Box<Self>, sink: &mut dyn Sink, stop: &StopFlag) -> Result<(), TapError>;
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
