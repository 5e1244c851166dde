//! What identifies a connection in a capture: two addresses and two ports. VLAN tags are not part of it, so that a packet captured
//! on a bridge and on its VLAN is recognised as the same.

use super::packet::{Endpoint, Segment};
use crate::stream::ConnId;

/// The two ends in canonical order, so that both directions have one key. Words, not `u128`s: with their alignment a connection
/// would not fit into two cache lines.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Key {
    low: [u64; 2],
    high: [u64; 2],
    /// Of the low end in the upper 16 bits.
    ports: u32,
}

impl Key {
    /// The key, and whether the source is the high end: ports first, because they mostly differ.
    #[inline]
    pub(super) fn of(segment: &Segment<'_>) -> (Self, bool) {
        let (a, b) = (segment.source, segment.destination);
        let flipped = a.port > b.port || a.port == b.port && a.ip > b.ip;
        let (low, high) = if flipped { (b, a) } else { (a, b) };
        let words = |ip: u128| [ip as u64, (ip >> 64) as u64];
        (Self { low: words(low.ip), high: words(high.ip), ports: u32::from(low.port) << 16 | u32::from(high.port) }, flipped)
    }

    /// Multiply and fold, as wyhash does. The seed keeps strangers from choosing colliding addresses.
    #[inline]
    pub(super) fn hash(&self, seed: u64) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let low = fold(self.low[0] ^ seed, self.low[1] ^ 0xa076_1d64_78bd_642f ^ u64::from(self.ports));
        let high = fold(self.high[0] ^ seed.rotate_left(32), self.high[1] ^ 0xe703_7ed1_a0b4_28db);
        fold(low ^ 0x8ebc_6af0_9c88_c6e3, high ^ seed)
    }

    pub(super) fn ends(&self) -> [Endpoint; 2] {
        let ip = |words: [u64; 2]| u128::from(words[1]) << 64 | u128::from(words[0]);
        [Endpoint { ip: ip(self.low), port: (self.ports >> 16) as u16 }, Endpoint { ip: ip(self.high), port: self.ports as u16 }]
    }
}

/// Where a segment belongs, as far as its addresses and ports tell.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub(super) key: Key,
    pub(super) hash: u64,
    /// The source is the high end.
    pub(super) high: bool,
}

impl Route {
    /// Which of `shares` owns the connection: the same for both directions, evenly spread.
    #[inline]
    pub const fn share(&self, shares: u32) -> u32 {
        (((self.hash >> 32) * shares as u64) >> 32) as u32
    }
}

/// What is found out about a segment before its turn: see [`super::Assembler::near`] and [`super::Assembler::look`].
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen<'a> {
    pub(super) payload: &'a [u8],
    pub(super) key: Key,
    /// Its connection.
    pub id: ConnId,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) slot: u32,
    /// What the sink wants to be shown with the bytes: see [`super::Assembler::push_seen`].
    pub tag: u32,
    /// The source is the high end.
    pub(super) high: bool,
}
