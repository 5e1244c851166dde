//! The next segment of a connection that is well, looked at before its turn: a tap with several packets at hand waits for the memory of all
//! of them at once.

use super::*;

impl Assembler {
    /// Where a segment belongs.
    #[inline]
    pub fn route(&self, segment: &Segment<'_>) -> Route {
        let (key, high) = Key::of(segment);
        Route { key, hash: key.hash(self.limits.hash_seed), high }
    }

    /// Looks at a segment before its turn: whether it may be the next one of a connection that is well, and where that may be. To be followed by
    /// [`Assembler::look`].
    #[inline]
    pub fn near<'a>(&self, segment: &Segment<'a>, route: &Route, seen: &mut Seen<'a>) -> bool {
        let plain = segment.flags & (SYN | FIN | RST | ACK) == ACK && segment.missing == 0;
        let Some(slot) = self.table.first(route.hash).filter(|_| plain) else { return false };
        (seen.payload, seen.key, seen.slot, seen.high) = (segment.payload, route.key, slot, route.high);
        (seen.seq, seen.ack) = (segment.seq, segment.ack);
        true
    }

    /// Looks at the connection itself: by then its memory has been on its way since [`Assembler::near`] was called for a whole batch.
    #[inline]
    pub fn look(&self, seen: &mut Seen<'_>) -> bool {
        let Some(mut conn) = self.conns.get(seen.slot as usize) else { return false };
        if conn.key != seen.key {
            let Some(slot) = self.find(&seen.key, seen.key.hash(self.limits.hash_seed)) else { return false };
            seen.slot = slot;
            conn = &self.conns[slot as usize];
        }
        (seen.id, seen.tag) = (conn.id, conn.halves[conn.direction(seen.high).index()].tag);
        true
    }

    #[inline]
    pub(super) fn find(&self, key: &Key, hash: u64) -> Option<u32> {
        let conns = &self.conns;
        self.table.find(hash, |slot| conns[slot as usize].key == *key)
    }

    /// The turn of a segment that was looked at, seen at `at`: its bytes are given to `out`, as [`StreamEvent::Data`] would be. False when it
    /// is not the plain next one: then nothing was done, and it is to be pushed.
    ///
    /// With each direction of a connection a tag is kept, which is `out`'s to set: it may tell where to find what belongs to it. It is 0 until it
    /// is set.
    #[inline]
    pub fn push_seen<F>(&mut self, at: Timestamp, seen: &Seen<'_>, out: F) -> bool
    where
        F: FnOnce(&mut u32, ConnId, Direction, &[u8]) -> Verdict,
    {
        let Some(conn) = self.conns.get_mut(seen.slot as usize) else { return false };
        // the slot may have got another connection since, and the connection an end
        if conn.id != seen.id || !conn.used || conn.closed || conn.listed || !conn.opened {
            return false;
        }
        let dir = conn.direction(seen.high);
        let [forward, reverse] = &mut conn.halves;
        let (half, peer) = if dir == Direction::Forward { (forward, reverse) } else { (reverse, forward) };
        let proof = !peer.known || ahead(seen.ack, peer.next) > 0;
        let carries = !seen.payload.is_empty();
        let plain = if carries { half.in_order(seen.seq) } else { half.known };
        if !conn.muted && (proof || !plain) {
            return false;
        }
        self.frames += 1;
        self.counters.packets += 1;
        self.counters.payload_bytes += seen.payload.len() as u64;
        (conn.last, conn.touched) = (at, true);
        if carries && !conn.muted {
            half.advance(seen.payload.len() as u32);
            self.counters.delivered_bytes += seen.payload.len() as u64;
            if out(&mut half.tag, conn.id, dir, seen.payload) == Verdict::Mute {
                conn.mute(&mut self.counters, &mut self.buffered);
            }
        }
        true
    }
}
