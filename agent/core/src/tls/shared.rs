//! What the connections of a stage share, and where their plaintext goes.

use std::sync::Arc;

use crate::anomaly::Anomalies;
use crate::stream::{ConnId, Direction, End, GapReason, StreamEvent, Timestamp, Verdict};

use super::decrypt::Counters;
use super::keylog::KeyLog;
use super::record::Spare;

/// What all connections share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The secrets that were given.
    pub given: Arc<KeyLog>,
    /// Those of the capture itself.
    pub embedded: KeyLog,
    pub anomalies: Anomalies,
    pub counters: Counters,
    pub spare: Spare,
    /// The plaintext of the record at hand.
    pub plain: Vec<u8>,
}

/// Where the plaintext goes. Remembers a `Mute`.
pub(super) struct Out<'a> {
    pub conn: ConnId,
    pub sink: &'a mut dyn FnMut(StreamEvent<'_>) -> Verdict,
    pub muted: bool,
}

impl Out<'_> {
    /// Plaintext.
    pub fn data(&mut self, dir: Direction, at: Timestamp, bytes: &[u8]) {
        if !self.muted && !bytes.is_empty() {
            self.muted = (self.sink)(StreamEvent::Data { conn: self.conn, dir, at, bytes }) == Verdict::Mute;
        }
    }

    /// A gap in it.
    pub fn gap(&mut self, dir: Direction, at: Timestamp, len: Option<u64>, reason: GapReason) {
        if !self.muted {
            self.muted = (self.sink)(StreamEvent::Gap { conn: self.conn, dir, at, len, reason }) == Verdict::Mute;
        }
    }

    /// An end.
    pub fn close(&mut self, at: Timestamp, end: End) {
        self.muted |= (self.sink)(StreamEvent::Close { conn: self.conn, at, end }) == Verdict::Mute;
    }
}
