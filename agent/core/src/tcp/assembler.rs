//! Segments of many connections in, ordered stream events out.
//!
//! Connections live in a slab; a [`ConnId`] is the number of the frame that began the connection, so ids are unique, rise with time,
//! and are the same whether one assembler reads a capture or several share it ([`Route::share`], [`Assembler::pass`]). Where several
//! connections end at once, they do so in order of their ids.
//! # Speed
//! The next bytes of a connection that is well take a handful of compares: [`Assembler::push`] looks the connection up and hands the
//! payload on where it lies. With many connections at once that path waits for memory, so a tap that has several packets at hand
//! looks all of them up first ([`Assembler::near`], [`Assembler::look`]): the look-ups overlap, the connections are in the cache when their turn comes.
//! A connection is two cache lines for the same reason.
//!
//! Everything is bounded ([`Limits`]): when there are too many connections, those that have ended or never carried data go first, then
//! those that did not move for longest (a clock hand, as in page replacement). Ended connections stay for [`Limits::linger`], so that
//! late copies of their packets don't look like new connections.

use std::time::Duration;

use crate::stream::{ConnId, Direction, End, StreamEvent, Timestamp, Verdict};

use super::conn::{Conn, Env};
use super::counters::Counters;
use super::key::{Key, Route, Seen};
use super::limits::Limits;
use super::packet::{ACK, FIN, RST, SYN, Segment, Skip};
use super::reorder::{Pending, ahead};
use super::table::Table;

mod look;

/// A SYN that repeats the sequence number of the connection it would replace is a late copy of its SYN, unless the connection was
/// quiet for so long.
const LATE_SYN: Duration = Duration::from_millis(100);

/// Puts the segments of a capture in order.
pub struct Assembler {
    limits: Limits,
    counters: Counters,
    table: Table,
    conns: Vec<Conn>,
    free: Vec<u32>,
    /// Slots of connections in which something waits (or did at the last tick).
    waiting: Vec<u32>,
    buffered: usize,
    hand: usize,
    next_sweep: Timestamp,
    /// Frames so far, whatever they held and whoever took them.
    frames: u64,
}

impl Assembler {
    /// An assembler without connections.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits: Limits { connections: limits.connections.clamp(1, u32::MAX as usize - 1), ..limits },
            counters: Counters::default(),
            table: Table::new(),
            conns: Vec::new(),
            free: Vec::new(),
            waiting: Vec::new(),
            buffered: 0,
            hand: 0,
            next_sweep: Timestamp::default(),
            frames: 0,
        }
    }

    /// What was counted so far.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts a frame that is not a segment.
    pub fn skip(&mut self, reason: Skip) {
        self.frames += 1;
        self.counters.skip(reason);
    }

    /// Memory charged for what waits behind holes, in bytes.
    pub const fn buffered(&self) -> usize {
        self.buffered
    }

    /// Connections remembered now, ended ones included.
    pub fn remembered(&self) -> usize {
        self.conns.len() - self.free.len()
    }

    /// A frame that another assembler of the same capture takes, or counts.
    #[inline]
    pub const fn pass(&mut self) {
        self.frames += 1;
    }

    /// Frames so far: the number of the latest one, counted from 1.
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// One segment, seen at `at`.
    pub fn push<F>(&mut self, at: Timestamp, segment: &Segment<'_>, out: &mut F)
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        let route = self.route(segment);
        let mut seen = Seen::default();
        if self.near(segment, &route, &mut seen)
            && self.look(&mut seen)
            && self.push_seen(at, &seen, |_, conn, dir, bytes| out(StreamEvent::Data { conn, dir, at, bytes }))
        {
            return;
        }
        self.frames += 1;
        self.counters.packets += 1;
        self.counters.payload_bytes += segment.payload.len() as u64;
        match self.find(&route.key, route.hash) {
            Some(slot) => self.unusual(slot, at, segment, route.high, out),
            None => self.first(at, segment, route, out),
        }
    }

    /// A segment that belongs to no connection we know.
    #[cold]
    fn first<F>(&mut self, at: Timestamp, segment: &Segment<'_>, Route { key, hash, high }: Route, out: &mut F)
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        let syn = segment.flags & SYN != 0;
        if segment.flags & RST != 0 || (!syn && segment.payload.is_empty() && segment.missing == 0) {
            self.counters.strays += 1;
            return;
        }
        let slot = self.vacant(at, out);
        self.conns[slot as usize].key = key;
        self.conns[slot as usize].used = true;
        let (conns, seed) = (&self.conns, self.limits.hash_seed);
        self.table.insert(hash, slot, |slot| conns[slot as usize].key.hash(seed));
        self.start(slot, segment, high);
        self.unusual(slot, at, segment, high, out);
    }

    /// Makes a slot that has its key a new connection, as its first segment says.
    fn start(&mut self, slot: u32, segment: &Segment<'_>, source_is_high: bool) {
        let conn = &mut self.conns[slot as usize];
        conn.id = ConnId(self.frames);
        let syn = segment.flags & SYN != 0;
        // who answers a SYN did not send the first one
        conn.local_is_high = source_is_high ^ (syn && segment.flags & ACK != 0);
        conn.from_start = syn;
        (conn.opened, conn.muted, conn.closed) = (false, false, false);
        // what waited in an attempt that never carried anything is given back
        let waited = std::mem::take(&mut conn.halves).into_iter().filter_map(|half| half.pending);
        self.buffered -= waited.map(|pending| pending.cost + Pending::COST).sum::<usize>();
        self.counters.connections += 1;
        self.counters.midstream += u64::from(!syn);
    }

    /// Everything but the next bytes of a connection that is well.
    #[inline(never)]
    fn unusual<F>(&mut self, slot: u32, at: Timestamp, segment: &Segment<'_>, source_is_high: bool, out: &mut F)
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        if !self.replace(slot, at, segment, source_is_high, out) {
            return;
        }
        let conn = &mut self.conns[slot as usize];
        (conn.last, conn.touched) = (at, true);
        let dir = conn.direction(source_is_high);
        let mut env =
            Env { id: conn.id, limits: &self.limits, counters: &mut self.counters, buffered: &mut self.buffered, out, muted: false };
        let syn = u32::from(segment.flags & SYN != 0);
        let seq = segment.seq.wrapping_add(syn);
        let carries = !segment.payload.is_empty() || segment.missing > 0;
        if !conn.muted {
            let half = &mut conn.halves[dir.index()];
            if syn > 0 && !half.known {
                half.begin(seq);
            }
            let peer = &mut conn.halves[dir.flip().index()];
            if segment.flags & ACK != 0 && segment.flags & RST == 0 {
                // after a SYN, the first acknowledgement says where the other direction begins, even if its SYN was not captured
                if !peer.known && conn.from_start {
                    peer.begin(segment.ack);
                }
                if segment.flags & FIN != 0 {
                    conn.finished_unseen(dir.flip(), segment.ack, at, &mut env);
                }
                conn.acknowledged(dir.flip(), segment.ack, at, &mut env);
            }
            if carries {
                let shifted = Segment { seq, ..segment.clone() };
                conn.data(dir, at, &shifted, &mut env);
            } else if syn == 0 && segment.flags & RST == 0 {
                conn.stands_at(dir, seq);
            }
            conn.obey(&mut env);
        }
        if segment.flags & RST != 0 {
            if conn.believes_reset(dir, seq) {
                conn.reset(dir, seq, at, &mut env);
            } else {
                env.counters.out_of_window += 1;
            }
        } else if segment.flags & FIN != 0 {
            let end = seq.wrapping_add(segment.payload.len() as u32).wrapping_add(segment.missing);
            conn.fin(dir, end, at, &mut env);
        }
        if !conn.closed {
            conn.settle(dir, at, &mut env);
            if conn.waits() {
                conn.expire(at, &mut env);
            }
            conn.obey(&mut env);
        }
        if conn.waits() && !conn.listed {
            conn.listed = true;
            self.waiting.push(slot);
        }
    }

    /// Decides whether a segment belongs to the connection in `slot` or begins another on the same addresses and ports, and makes
    /// room for that. False when the segment is a late copy that belongs to neither.
    fn replace<F>(&mut self, slot: u32, at: Timestamp, segment: &Segment<'_>, source_is_high: bool, out: &mut F) -> bool
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        let conn = &mut self.conns[slot as usize];
        let quiet = at.since(conn.last);
        let dir = conn.direction(source_is_high);
        let half = &conn.halves[dir.index()];
        let carried = conn.opened || conn.closed;
        let fresh = if segment.flags & SYN == 0 {
            if !conn.closed {
                return true;
            }
            let carries = !segment.payload.is_empty() || segment.missing > 0;
            carries && segment.flags & RST == 0 && quiet > self.limits.linger
        } else if !carried {
            if half.known && segment.seq.wrapping_add(1) != half.start {
                // a second attempt with another sequence number, and nothing was carried by the first
                true
            } else {
                return true;
            }
        } else if half.known && segment.seq.wrapping_add(1) == half.start {
            segment.flags & ACK == 0 && quiet > LATE_SYN
        } else {
            // a midstream connection whose other direction was never seen may still see the SYN of it, out of order
            half.known || conn.closed || quiet > LATE_SYN
        };
        if !fresh {
            // the acknowledgement of the last FIN comes after the end of every connection
            let said = segment.flags & (SYN | FIN | RST) != 0 || !segment.payload.is_empty() || segment.missing > 0;
            self.counters.strays += u64::from(said);
            return false;
        }
        if carried {
            self.counters.reused += u64::from(!conn.closed);
            self.close(slot, at, End::Released, out);
        }
        self.start(slot, segment, source_is_high);
        true
    }

    /// A free slot; makes one free when there are too many.
    fn vacant<F>(&mut self, at: Timestamp, out: &mut F) -> u32
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        if self.conns.len() < self.limits.connections {
            self.conns.push(Conn::default());
            return (self.conns.len() - 1) as u32;
        }
        // a few steps of the hand look for one that has ended or carried nothing, so that a flood evicts itself
        let (mut steps, mut quiet) = (0, None);
        loop {
            self.hand = (self.hand + 1) % self.conns.len();
            steps += 1;
            let conn = &mut self.conns[self.hand];
            let mut slot = self.hand as u32;
            if conn.opened && !conn.closed {
                if !std::mem::take(&mut conn.touched) {
                    quiet = quiet.or(Some(slot));
                }
                match quiet {
                    Some(found) if steps >= 16 => slot = found,
                    _ => continue,
                }
            }
            let conn = &self.conns[slot as usize];
            self.counters.evicted += u64::from(!conn.closed);
            self.close(slot, at, End::Evicted, out);
            self.forget(slot);
            self.free.pop();
            return slot;
        }
    }

    fn close<F>(&mut self, slot: u32, at: Timestamp, end: End, out: &mut F)
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        let conn = &mut self.conns[slot as usize];
        let mut env =
            Env { id: conn.id, limits: &self.limits, counters: &mut self.counters, buffered: &mut self.buffered, out, muted: false };
        conn.close(at, end, &mut env);
    }

    /// Frees the slot of an ended connection.
    fn forget(&mut self, slot: u32) {
        let (conns, seed) = (&self.conns, self.limits.hash_seed);
        let hash_of = |slot: u32| conns[slot as usize].key.hash(seed);
        self.table.remove(hash_of(slot), slot, hash_of);
        let conn = &mut self.conns[slot as usize];
        conn.used = false;
        self.free.push(slot);
    }

    /// Time passed: gives up holes whose time is up, and lets go of idle connections. To be called about ten times a second; with
    /// nothing to do it costs nothing.
    pub fn tick<F>(&mut self, now: Timestamp, out: &mut F)
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        self.expire(now, out);
        self.sweep(now, out);
    }

    /// The first half of [`Assembler::tick`]: gives up holes whose time is up.
    pub fn expire<F>(&mut self, now: Timestamp, out: &mut F)
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_unstable_by_key(|slot| self.conns[*slot as usize].id);
        waiting.retain(|&slot| {
            let conn = &mut self.conns[slot as usize];
            if conn.waits() {
                let mut env = Env {
                    id: conn.id,
                    limits: &self.limits,
                    counters: &mut self.counters,
                    buffered: &mut self.buffered,
                    out,
                    muted: false,
                };
                conn.expire(now, &mut env);
            }
            conn.listed = conn.waits();
            conn.listed
        });
        self.waiting = waiting;
    }

    /// The second half: lets go of idle connections.
    pub fn sweep<F>(&mut self, now: Timestamp, out: &mut F)
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        // a sweep looks at every slot, so it is rare; a clock that jumped back does not put it off
        let pause = (self.limits.idle.min(self.limits.linger) / 8).max(Duration::from_millis(100));
        if now >= self.next_sweep || now.plus(pause) < self.next_sweep {
            self.next_sweep = now.plus(pause);
            let Limits { linger, idle, .. } = self.limits;
            for slot in self.slots(|conn| now.since(conn.last) >= if conn.closed { linger } else { idle }) {
                self.counters.idle += u64::from(!self.conns[slot as usize].closed);
                self.close(slot, now, End::Idle, out);
                self.forget(slot);
            }
        }
    }

    /// The slots of the connections that satisfy `which`, in order of their ids.
    fn slots(&self, which: impl Fn(&Conn) -> bool) -> Vec<u32> {
        let all = (0..).zip(&self.conns);
        let mut found: Vec<u32> = all.filter(|(_, conn)| conn.used && which(conn)).map(|(slot, _)| slot).collect();
        found.sort_unstable_by_key(|slot| self.conns[*slot as usize].id);
        found
    }

    /// The input ended at `at`: closes everything that is open, in order of the ids.
    pub fn finish<F>(&mut self, at: Timestamp, out: &mut F)
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        for slot in self.slots(|_| true) {
            self.close(slot, at, End::InputEnded, out);
            self.forget(slot);
        }
    }
}

#[cfg(test)]
mod tests;
