//! The bounds of what is remembered and what may wait.

use std::time::Duration;

/// The bounds of an [`Assembler`](super::Assembler).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections remembered at a time, ended ones included. Each costs about 140 bytes.
    pub connections: usize,
    /// Bytes that may wait behind a hole in one direction of a connection, overhead included.
    pub buffered_per_direction: usize,
    /// Bytes that may wait behind holes altogether, overhead included.
    pub buffered: usize,
    /// A connection in which nothing moves for so long is let go.
    pub idle: Duration,
    /// How long a hole that the peer has acknowledged may still be filled without progress.
    pub grace: Duration,
    /// How long any other hole may still be filled.
    pub patience: Duration,
    /// How long an ended connection is remembered.
    pub linger: Duration,
    /// Makes the hash of addresses unpredictable; a live tap chooses it at random. It never changes what is handed on.
    pub hash_seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1 << 17,
            buffered_per_direction: 1 << 20,
            buffered: 64 << 20,
            idle: Duration::from_secs(600),
            grace: Duration::from_millis(100),
            patience: Duration::from_secs(3),
            linger: Duration::from_secs(60),
            hash_seed: 0x2d35_8dcc_aa6c_78a5,
        }
    }
}
