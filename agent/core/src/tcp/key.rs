//! What identifies a connection in a capture: two addresses and two ports. VLAN tags are not part of it, so that a packet captured
//! on a bridge and on its VLAN is recognised as the same.

use super::packet::{Endpoint, Segment};

/// The two ends in canonical order, so that both directions have one key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Key {
    low: u128,
    high: u128,
    /// Of the low end in the upper 16 bits.
    ports: u32,
}

impl Key {
    /// The key, and whether the source is the high end.
    #[inline]
    pub(super) fn of(segment: &Segment<'_>) -> (Self, bool) {
        let (a, b) = (segment.source, segment.destination);
        let flipped = (a.ip, a.port) > (b.ip, b.port);
        let (low, high) = if flipped { (b, a) } else { (a, b) };
        (Self { low: low.ip, high: high.ip, ports: u32::from(low.port) << 16 | u32::from(high.port) }, flipped)
    }

    /// Multiply and fold, as wyhash does. The seed keeps strangers from choosing colliding addresses.
    #[inline]
    pub(super) fn hash(&self, seed: u64) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let low = fold(self.low as u64 ^ seed, (self.low >> 64) as u64 ^ 0xa076_1d64_78bd_642f ^ u64::from(self.ports));
        let high = fold(self.high as u64 ^ seed.rotate_left(32), (self.high >> 64) as u64 ^ 0xe703_7ed1_a0b4_28db);
        fold(low ^ 0x8ebc_6af0_9c88_c6e3, high ^ seed)
    }

    pub(super) fn ends(&self) -> [Endpoint; 2] {
        [Endpoint { ip: self.low, port: (self.ports >> 16) as u16 }, Endpoint { ip: self.high, port: self.ports as u16 }]
    }
}
