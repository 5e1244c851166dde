//! One direction of a TLS connection.

use crate::stream::{GapReason, Timestamp};

use super::handshake::Messages;
use super::record::Reader;
use super::seal::Seal;

/// What is known of one direction.
#[derive(Debug, Default)]
pub(super) struct Half {
    pub reader: Reader,
    pub seal: Seal,
    pub messages: Messages,
    /// A hole, not yet told, that may have hidden application data: when it was proven, and why it is there.
    pub hole: Option<(Timestamp, GapReason)>,
    /// The sender said that no more comes, and that was handed on.
    pub finished: bool,
    /// The same, by TCP.
    pub tcp_finished: bool,
}

impl Half {
    /// Nothing more is read of it.
    pub fn give_up(&mut self) {
        self.reader.give_up();
        self.messages.restart();
    }

    /// Bytes that are held.
    pub fn buffered(&self) -> usize {
        self.reader.buffered() + self.messages.buffered()
    }
}
