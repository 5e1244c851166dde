//! What waits behind a hole in one direction of a connection.
//!
//! Pieces are sorted, do not overlap, and keep the instant at which each byte was first seen; of two copies the first one stays.

use std::collections::VecDeque;

use crate::stream::Timestamp;

/// How far sequence number `a` is ahead of `b` (RFC 9293 section 3.4: modulo 2³²).
#[inline]
pub(super) const fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b).cast_signed()
}

/// A run of bytes behind a hole; a run cut off by the snapshot length has no `bytes`; a FIN is a run of length 0.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) seq: u32,
    pub(super) len: u32,
    pub(super) at: Timestamp,
    pub(super) bytes: Box<[u8]>,
}

/// What a piece is charged with besides its bytes: itself and the allocator's overhead.
const PIECE_COST: usize = 80;

impl Piece {
    fn cost(&self) -> usize {
        self.bytes.len() + PIECE_COST
    }

    /// Whether the piece ends at or before `at`, both as distances from `base`.
    fn ends_by(&self, base: u32, at: i64) -> bool {
        i64::from(ahead(self.seq, base)) + i64::from(self.len) <= at
    }
}

/// The peer acknowledged bytes that were not seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proof {
    /// Up to where.
    pub(super) ack: u32,
    /// Since when, without progress in between.
    pub(super) at: Timestamp,
}

#[derive(Default, Debug)]
pub(super) struct Pending {
    pub(super) pieces: VecDeque<Piece>,
    pub(super) proof: Option<Proof>,
    /// Bytes cannot have become readable before this instant: that of the last segment that filled a hole before them.
    pub(super) floor: Timestamp,
    /// Memory charged for the pieces.
    pub(super) cost: usize,
}

impl Pending {
    /// Memory charged for an instance without pieces.
    pub(super) const COST: usize = 128;

    /// Keeps what is new of `len` bytes at `seq`; `bytes` is empty when they were cut off. Nothing is kept before `base`, the next
    /// sequence number due. Returns how much memory was charged, and whether a part was there already.
    pub(super) fn insert(&mut self, base: u32, seq: u32, len: u32, bytes: &[u8], at: Timestamp) -> (usize, bool) {
        let before = self.cost;
        let begin = i64::from(ahead(seq, base));
        let (mut from, to) = (begin.max(0), begin + i64::from(len));
        let mut covered = from > begin;
        let mut i = self.pieces.partition_point(|piece| piece.ends_by(base, from));
        while from < to {
            while self.pieces.get(i).is_some_and(|piece| piece.ends_by(base, from)) {
                i += 1;
            }
            let stop = match self.pieces.get(i) {
                Some(piece) => {
                    let start = i64::from(ahead(piece.seq, base));
                    if start <= from {
                        covered = true;
                        from = start + i64::from(piece.len);
                        continue;
                    }
                    covered |= start < to;
                    start.min(to)
                }
                None => to,
            };
            // all three are within one segment's length, so they fit
            let (skip, len) = ((from - begin) as usize, (stop - from) as usize);
            let piece = Piece {
                seq: seq.wrapping_add(skip as u32),
                len: len as u32,
                at,
                bytes: bytes.get(skip..skip + len).unwrap_or_default().into(),
            };
            self.cost += piece.cost();
            self.pieces.insert(i, piece);
            from = stop;
        }
        (self.cost - before, covered)
    }

    /// Remembers that the stream ends at `seq`, behind everything that waits; otherwise it is not believed.
    pub(super) fn insert_end(&mut self, base: u32, seq: u32, at: Timestamp) -> usize {
        let position = i64::from(ahead(seq, base));
        if !self.pieces.back().is_none_or(|last| last.ends_by(base, position)) {
            return 0;
        }
        let piece = Piece { seq, len: 0, at, bytes: Box::default() };
        let cost = piece.cost();
        self.cost += cost;
        self.pieces.push_back(piece);
        cost
    }

    /// Takes the first piece if it begins at or before `next`.
    pub(super) fn pop_due(&mut self, next: u32) -> Option<(Piece, usize)> {
        let piece = self.pieces.pop_front_if(|piece| ahead(piece.seq, next) <= 0)?;
        let cost = piece.cost();
        self.cost -= cost;
        Some((piece, cost))
    }
}
