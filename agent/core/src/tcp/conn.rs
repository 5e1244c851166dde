//! One connection as an observer sees it: two directions, each with the next sequence number due and what waits behind a hole.
//!
//! # When a hole becomes a gap
//!
//! Bytes that are missing may still come, because packets are retransmitted and captured out of order. A hole is given up when
//! * the peer acknowledged it and [`Limits::grace`] went by without progress: the receiver has the bytes, the capture lost them.
//!   The grace forgives captures that merge queues or interfaces and show an acknowledgement before its data;
//! * nobody acknowledged it and [`Limits::patience`] went by: every retransmission timer has fired by then;
//! * what waits behind it exceeds a bound; or the connection or the input ends.
//!
//! A single acknowledged byte with nothing behind it is not a hole: it is a FIN that was not captured.
//!
//! # Instants
//!
//! Bytes are stamped when they became readable: on arrival, or when the last hole before them was *filled*. A hole that was *given
//! up* delays nothing (the receiver did not wait for it), so what waited behind it keeps its own arrival, and the gap is stamped
//! with the arrival of the first byte behind it. Within one direction instants never run backwards because of this.

use crate::stream::{ConnId, ConnInfo, Direction, End, Endpoints, GapReason, Side, StreamEvent, TapKind, Timestamp, Verdict};

use super::counters::Counters;
use super::key::Key;
use super::limits::Limits;
use super::packet::Segment;
use super::reorder::{Pending, Proof, ahead};

/// The largest window TCP can announce (RFC 7323 section 2.3): nothing further ahead belongs to the connection.
const WINDOW: i32 = 1 << 30;
/// No retransmission is believed to be further back than this.
const HISTORY: i32 = 16 << 20;
/// So many segments in a row outside the window mean that we lost track of the connection.
const LOST_TRACK: u8 = 3;

/// What every step of a connection needs from the assembler.
pub(super) struct Env<'a, F> {
    pub(super) id: ConnId,
    pub(super) limits: &'a Limits,
    pub(super) counters: &'a mut Counters,
    /// Memory charged for everything that waits, in all connections.
    pub(super) buffered: &'a mut usize,
    pub(super) out: &'a mut F,
    /// The sink answered [`Verdict::Mute`].
    pub(super) muted: bool,
}

impl<F: FnMut(StreamEvent<'_>) -> Verdict> Env<'_, F> {
    #[inline]
    fn emit(&mut self, event: StreamEvent<'_>) {
        self.muted |= (self.out)(event) == Verdict::Mute;
    }
}

/// One direction.
#[derive(Default, Debug)]
pub(super) struct Half {
    pub(super) pending: Option<Box<Pending>>,
    /// The sequence number of the next byte due.
    pub(super) next: u32,
    /// The sequence number of the first byte.
    pub(super) start: u32,
    /// `next` and `start` mean something.
    pub(super) known: bool,
    /// `next` was taken from a segment without payload in midstream: it may be off by a keep-alive probe or by reordering.
    soft: bool,
    /// A FIN was seen, or all bytes before it were delivered.
    fin_seen: bool,
    pub(super) finished: bool,
    fin: u32,
    /// What the sink wants to be shown with the next bytes.
    pub(super) tag: u32,
    outside: u8,
}

impl Half {
    pub(super) fn begin(&mut self, seq: u32) {
        (self.next, self.start, self.known, self.soft) = (seq, seq, true, false);
    }

    fn begin_soft(&mut self, seq: u32) {
        self.begin(seq);
        self.soft = true;
    }

    /// The next `len` bytes were handed on.
    #[inline]
    pub(super) fn advance(&mut self, len: u32) {
        self.next = self.next.wrapping_add(len);
        self.soft = false;
    }

    /// Whether `len` bytes at `seq` can be handed on at once.
    #[inline]
    pub(super) fn in_order(&self, seq: u32) -> bool {
        seq == self.next && self.known && !self.finished && self.pending.is_none()
    }
}

/// Two cache lines: with thousands of connections at once, every further line is one more wait for memory.
#[derive(Default, Debug)]
#[repr(align(64))]
pub(super) struct Conn {
    /// The smaller and the larger address, and their ports; see [`Key`].
    pub(super) key: Key,
    pub(super) id: ConnId,
    pub(super) halves: [Half; 2],
    /// Of the last packet; once `closed`, of the end.
    pub(super) last: Timestamp,
    pub(super) used: bool,
    /// `local` is the larger address.
    pub(super) local_is_high: bool,
    pub(super) from_start: bool,
    pub(super) opened: bool,
    pub(super) muted: bool,
    pub(super) closed: bool,
    /// Moved since the eviction hand came by.
    pub(super) touched: bool,
    /// In the assembler's list of connections in which something waits.
    pub(super) listed: bool,
}

impl Conn {
    #[inline]
    pub(super) fn direction(&self, source_is_high: bool) -> Direction {
        if source_is_high == self.local_is_high { Direction::Forward } else { Direction::Reverse }
    }

    pub(super) fn waits(&self) -> bool {
        self.halves.iter().any(|half| half.pending.is_some())
    }

    /// The first event of a connection, as late as possible: scans and floods of SYNs never get that far.
    pub(super) fn open<F: FnMut(StreamEvent<'_>) -> Verdict>(&mut self, at: Timestamp, env: &mut Env<'_, F>) {
        if self.opened {
            return;
        }
        self.opened = true;
        let [low, high] = self.key.ends().map(Into::into);
        let (local, remote) = if self.local_is_high { (high, low) } else { (low, high) };
        env.emit(StreamEvent::Open {
            conn: env.id,
            at,
            info: ConnInfo {
                tap: TapKind::Pcap,
                side: Side::Middle,
                endpoints: Some(Endpoints { local, remote }),
                process: None,
                from_start: self.from_start,
            },
        });
        // Whoever ended before there was a byte ended all the same.
        for dir in [Direction::Forward, Direction::Reverse] {
            if self.halves[dir.index()].finished {
                env.emit(StreamEvent::Close { conn: env.id, at, end: End::Finished(dir) });
            }
        }
    }

    /// Hands on the next bytes of a direction, and then a gap of `missing` cut-off ones.
    #[inline]
    pub(super) fn deliver<F: FnMut(StreamEvent<'_>) -> Verdict>(
        &mut self,
        dir: Direction,
        at: Timestamp,
        bytes: &[u8],
        missing: u32,
        env: &mut Env<'_, F>,
    ) {
        self.open(at, env);
        let half = &mut self.halves[dir.index()];
        half.next = half.next.wrapping_add(bytes.len() as u32).wrapping_add(missing);
        half.soft = false;
        if !bytes.is_empty() && !env.muted {
            env.counters.delivered_bytes += bytes.len() as u64;
            env.emit(StreamEvent::Data { conn: env.id, dir, at, bytes });
        }
        if missing > 0 {
            Self::gap(dir, at, Some(missing.into()), GapReason::Snaplen, env);
        }
    }

    fn gap<F: FnMut(StreamEvent<'_>) -> Verdict>(dir: Direction, at: Timestamp, len: Option<u64>, reason: GapReason, env: &mut Env<'_, F>) {
        if env.muted {
            return;
        }
        env.counters.gaps[reason as usize] += 1;
        env.counters.gap_bytes += len.unwrap_or(0);
        env.emit(StreamEvent::Gap { conn: env.id, dir, at, len, reason });
    }

    /// A segment with payload that is not simply the next one.
    pub(super) fn data<F: FnMut(StreamEvent<'_>) -> Verdict>(
        &mut self,
        dir: Direction,
        at: Timestamp,
        segment: &Segment<'_>,
        env: &mut Env<'_, F>,
    ) {
        let half = &mut self.halves[dir.index()];
        if half.finished {
            env.counters.strays += 1;
            return;
        }
        if !half.known {
            half.begin(segment.seq);
        }
        let mut offset = ahead(segment.seq, half.next);
        if half.soft && (-0xffff..=1).contains(&offset) {
            half.begin(segment.seq);
            offset = 0;
        }
        if !(-HISTORY..=WINDOW).contains(&offset) {
            env.counters.out_of_window += 1;
            half.outside += 1;
            if half.outside < LOST_TRACK {
                return;
            }
            // we lost track: more was missed than can be told
            self.release_all(dir, env);
            self.open(at, env);
            Self::gap(dir, at, None, GapReason::PacketLost, env);
            self.halves[dir.index()].begin(segment.seq);
            offset = 0;
        }
        let half = &mut self.halves[dir.index()];
        half.outside = 0;
        let length = segment.payload.len() as u32 + segment.missing;
        let end = i64::from(offset) + i64::from(length);
        if end <= 0 {
            let keep_alive = offset == -1 && length <= 1;
            *(if keep_alive { &mut env.counters.keep_alives } else { &mut env.counters.retransmitted }) += 1;
        } else if offset > 0 {
            env.counters.out_of_order += 1;
            self.put_aside(dir, at, segment, env);
            self.enforce_bounds(dir, env);
        } else {
            let old = offset.unsigned_abs() as usize;
            env.counters.overlaps += u64::from(old > 0);
            let fresh = segment.payload.get(old..).unwrap_or_default();
            if let Some(pending) = &mut half.pending {
                pending.floor = pending.floor.max(at);
                // what the snapshot length cut off here may have been seen whole before
                if segment.missing > 0 {
                    self.put_aside(dir, at, segment, env);
                } else {
                    self.deliver(dir, at, fresh, 0, env);
                }
                self.drain(dir, env);
                let half = &mut self.halves[dir.index()];
                if let Some(proof) = half.pending.as_mut().and_then(|pending| pending.proof.as_mut()) {
                    proof.at = at;
                }
            } else {
                let missing = (segment.missing as usize).min(length as usize - old) as u32;
                self.deliver(dir, at, fresh, missing, env);
            }
        }
    }

    fn pending<'a, F>(half: &'a mut Half, env: &mut Env<'_, F>) -> &'a mut Pending {
        half.pending.get_or_insert_with(|| {
            *env.buffered += Pending::COST;
            Box::default()
        })
    }

    fn put_aside<F>(&mut self, dir: Direction, at: Timestamp, segment: &Segment<'_>, env: &mut Env<'_, F>) {
        let half = &mut self.halves[dir.index()];
        let next = half.next;
        let pending = Self::pending(half, env);
        let mut seen = false;
        let cut_at = segment.seq.wrapping_add(segment.payload.len() as u32);
        for (seq, len, bytes) in [(segment.seq, segment.payload.len() as u32, segment.payload), (cut_at, segment.missing, &[][..])] {
            let (cost, covered) = pending.insert(next, seq, len, bytes, at);
            *env.buffered += cost;
            seen |= covered;
        }
        env.counters.overlaps += u64::from(seen);
    }

    fn enforce_bounds<F: FnMut(StreamEvent<'_>) -> Verdict>(&mut self, dir: Direction, env: &mut Env<'_, F>) {
        while let Some(pending) = &self.halves[dir.index()].pending
            && !pending.pieces.is_empty()
            && (pending.cost > env.limits.buffered_per_direction || *env.buffered > env.limits.buffered)
        {
            let reason = if pending.proof.is_some() { GapReason::PacketLost } else { GapReason::Bound };
            self.release(dir, false, reason, env);
        }
    }

    /// Hands on everything that no longer waits for anything.
    fn drain<F: FnMut(StreamEvent<'_>) -> Verdict>(&mut self, dir: Direction, env: &mut Env<'_, F>) {
        let Some(mut pending) = self.halves[dir.index()].pending.take() else { return };
        while let Some((piece, cost)) = pending.pop_due(self.halves[dir.index()].next) {
            *env.buffered -= cost;
            let old = ahead(self.halves[dir.index()].next, piece.seq).unsigned_abs();
            if old < piece.len {
                let at = piece.at.max(pending.floor);
                match piece.bytes.get(old as usize..) {
                    Some(bytes) if !bytes.is_empty() => self.deliver(dir, at, bytes, 0, env),
                    _ => self.deliver(dir, at, &[], piece.len - old, env),
                }
            }
        }
        let half = &mut self.halves[dir.index()];
        if pending.proof.is_some_and(|proof| ahead(proof.ack, half.next) <= 0) {
            pending.proof = None;
        }
        if pending.pieces.is_empty() && pending.proof.is_none() {
            *env.buffered -= Pending::COST;
        } else {
            half.pending = Some(pending);
        }
    }

    /// Gives up the first hole of a direction, or with `proven` as much of it as was acknowledged, and hands on what waited behind.
    fn release<F: FnMut(StreamEvent<'_>) -> Verdict>(&mut self, dir: Direction, proven: bool, reason: GapReason, env: &mut Env<'_, F>) {
        let half = &mut self.halves[dir.index()];
        let Some(pending) = &mut half.pending else { return };
        let proof = pending.proof;
        let (to, at) = match (pending.pieces.front(), proof) {
            (Some(front), Some(proof)) if proven && ahead(proof.ack, front.seq) < 0 => (proof.ack, front.at),
            (Some(front), _) => (front.seq, front.at),
            (None, Some(proof)) => (proof.ack, proof.at),
            (None, None) => (half.next, pending.floor),
        };
        let at = at.max(pending.floor);
        let len = ahead(to, half.next);
        if len > 0 && !(len == 1 && pending.pieces.is_empty()) {
            half.next = to;
            self.open(at, env);
            Self::gap(dir, at, u64::try_from(len).ok(), reason, env);
        } else if pending.pieces.is_empty() {
            pending.proof = None;
        }
        self.drain(dir, env);
    }

    /// Gives up every hole of a direction.
    fn release_all<F: FnMut(StreamEvent<'_>) -> Verdict>(&mut self, dir: Direction, env: &mut Env<'_, F>) {
        while self.halves[dir.index()].pending.is_some() {
            self.release(dir, false, GapReason::PacketLost, env);
        }
    }

    /// Gives up the holes whose time is up.
    pub(super) fn expire<F: FnMut(StreamEvent<'_>) -> Verdict>(&mut self, now: Timestamp, env: &mut Env<'_, F>) {
        for dir in [Direction::Forward, Direction::Reverse] {
            while let Some(pending) = &self.halves[dir.index()].pending {
                let proven = pending.proof.is_some_and(|proof| now.since(proof.at) >= env.limits.grace);
                if !proven && pending.pieces.front().is_none_or(|front| now.since(front.at) < env.limits.patience) {
                    break;
                }
                self.release(dir, proven, GapReason::PacketLost, env);
            }
            self.settle(dir, now, env);
        }
        self.obey(env);
    }

    /// The peer acknowledged bytes of `dir` up to `ack`, or a first segment of `dir`'s peer says where `dir` stands.
    pub(super) fn acknowledged<F>(&mut self, dir: Direction, ack: u32, at: Timestamp, env: &mut Env<'_, F>) {
        let half = &mut self.halves[dir.index()];
        if !half.known || half.finished {
            return;
        }
        let ack = if half.fin_seen && ahead(ack, half.fin) == 1 { half.fin } else { ack };
        let unseen = ahead(ack, half.next);
        if unseen <= 0 || unseen > WINDOW || (unseen == 1 && half.pending.is_none()) {
            return;
        }
        match &mut Self::pending(half, env).proof {
            Some(proof) if ahead(ack, proof.ack) > 0 => proof.ack = ack,
            Some(_) => {}
            none => *none = Some(Proof { ack, at }),
        }
    }

    /// A segment without payload says where its sender stands.
    pub(super) fn stands_at(&mut self, dir: Direction, seq: u32) {
        let half = &mut self.halves[dir.index()];
        if !half.known {
            half.begin_soft(seq);
        }
    }

    /// The sender has no more to send after `seq`.
    pub(super) fn fin<F>(&mut self, dir: Direction, seq: u32, at: Timestamp, env: &mut Env<'_, F>) {
        let half = &mut self.halves[dir.index()];
        if self.muted {
            half.fin_seen = true;
            (half.fin, half.next) = (seq, seq);
            return;
        }
        if !half.known {
            half.begin(seq);
        }
        let offset = ahead(seq, half.next);
        if half.fin_seen || !(-HISTORY..=WINDOW).contains(&offset) {
            return;
        }
        (half.fin_seen, half.fin) = (true, seq);
        if offset > 0 {
            let next = half.next;
            let cost = Self::pending(half, env).insert_end(next, seq, at);
            *env.buffered += cost;
        }
    }

    /// A FIN that acknowledges one byte more than was seen: the FIN of `dir` came first and was not captured. Who went first matters.
    pub(super) fn finished_unseen<F: FnMut(StreamEvent<'_>) -> Verdict>(
        &mut self,
        dir: Direction,
        ack: u32,
        at: Timestamp,
        env: &mut Env<'_, F>,
    ) {
        let half = &self.halves[dir.index()];
        if half.known && !half.fin_seen && !half.finished && half.pending.is_none() && ahead(ack, half.next) == 1 {
            self.fin(dir, half.next, at, env);
            self.settle(dir, at, env);
        } else if half.fin_seen && !half.finished && ahead(ack, half.fin) > 0 {
            // It was captured, and waits behind a hole of which nothing will come any more.
            self.release_all(dir, env);
            self.settle(dir, at, env);
        }
    }

    /// Ends a direction once everything before its FIN was handed on, and the connection once both have ended.
    pub(super) fn settle<F: FnMut(StreamEvent<'_>) -> Verdict>(&mut self, dir: Direction, at: Timestamp, env: &mut Env<'_, F>) {
        let half = &mut self.halves[dir.index()];
        if self.closed || half.finished || !half.fin_seen || ahead(half.fin, half.next) > 0 {
            return;
        }
        half.finished = true;
        if let Some(pending) = half.pending.take() {
            *env.buffered -= pending.cost + Pending::COST; // bytes beyond the FIN are nobody's
        }
        let both = self.halves.iter().all(|half| half.finished);
        self.closed |= both;
        self.last = at;
        if self.opened {
            env.emit(StreamEvent::Close { conn: env.id, at, end: End::Finished(dir) });
        }
    }

    /// Whether a RST with this sequence number is believed.
    pub(super) fn believes_reset(&self, dir: Direction, seq: u32) -> bool {
        let half = &self.halves[dir.index()];
        self.muted || !half.known || (-HISTORY..=WINDOW).contains(&ahead(seq, half.next))
    }

    /// The sender in `dir` aborted the connection after `seq`.
    pub(super) fn reset<F: FnMut(StreamEvent<'_>) -> Verdict>(&mut self, dir: Direction, seq: u32, at: Timestamp, env: &mut Env<'_, F>) {
        self.release_all(dir, env);
        let half = &mut self.halves[dir.index()];
        let unseen = ahead(seq, half.next);
        if self.opened && !self.muted && half.known && !half.fin_seen && (2..=WINDOW).contains(&unseen) {
            half.next = seq;
            Self::gap(dir, at, u64::try_from(unseen).ok(), GapReason::PacketLost, env);
        }
        env.counters.resets += 1;
        self.close(at, End::Reset(dir), env);
    }

    /// Gives up all holes and ends the connection, unless it has ended already.
    pub(super) fn close<F: FnMut(StreamEvent<'_>) -> Verdict>(&mut self, at: Timestamp, end: End, env: &mut Env<'_, F>) {
        if self.closed {
            return;
        }
        for dir in [Direction::Forward, Direction::Reverse] {
            self.release_all(dir, env);
            self.settle(dir, at, env);
        }
        if !self.closed && self.opened {
            env.emit(StreamEvent::Close { conn: env.id, at, end });
        }
        (self.closed, self.last) = (true, at);
        self.obey(env);
    }

    /// Stops watching when the sink said so: nothing waits any more.
    pub(super) fn obey<F>(&mut self, env: &mut Env<'_, F>) {
        if env.muted && !self.muted {
            self.mute(env.counters, env.buffered);
        }
    }

    /// Stops watching.
    #[cold]
    pub(super) fn mute(&mut self, counters: &mut Counters, buffered: &mut usize) {
        self.muted = true;
        // Who is over anyway need not be muted.
        counters.muted += u64::from(!self.closed);
        for half in &mut self.halves {
            if let Some(pending) = half.pending.take() {
                *buffered -= pending.cost + Pending::COST;
            }
        }
    }
}

const _: () = assert!(size_of::<Conn>() == 128);
