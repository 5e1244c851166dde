//! The stage: finds the TLS connections among all, hands on the plaintext of those whose secrets are known, and everything else as
//! it is.
//!
//! What a connection carries is told by its first bytes, never by its port: until they are there they are held (six bytes decide). A
//! connection that is not TLS is forgotten at once, and from then on costs one look into a table per event.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::anomaly::{Anomalies, Anomaly};
use crate::stream::{ConnId, Direction, End, GapReason, StreamEvent, Timestamp, Verdict};

use super::conn::Conn;
use super::keylog::KeyLog;
use super::record::{HANDSHAKE, HEADER, looks_like_tls};
use super::shared::{Out, Shared};

/// Bytes that may be held in all connections together; beyond it the connection at hand is let go.
const BUFFERED: usize = 64 << 20;
/// Pieces of a connection without its beginning that are looked at: a stream's records often begin with a segment.
const LOOKED_AT: u8 = 16;

/// What was decrypted so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Connections of which at least one record was opened.
    pub connections: u64,
    /// Records that were opened.
    pub records: u64,
    /// Bytes of plaintext that were handed on.
    pub bytes: u64,
}

/// Decrypts the TLS connections of one tap.
#[derive(Debug, Default)]
pub struct Decrypt {
    shared: Shared,
    conns: FxHashMap<ConnId, State>,
    buffered: usize,
}

/// Connections that are not here are handed on as they are.
#[derive(Debug)]
enum State {
    /// The first bytes are too few to tell.
    Undecided(Box<Undecided>),
    /// Its beginning is missing, and it is not yet known to be TLS: so many more pieces are looked at.
    Midstream(u8),
    /// Being decrypted.
    Tls(Box<Conn>),
    /// Let go; only its end is awaited. Which directions have ended.
    Muted([bool; 2]),
}

#[derive(Debug)]
struct Undecided {
    from_start: bool,
    /// The first bytes of each direction and when the last of them came.
    first: [(Timestamp, Vec<u8>); 2],
    /// Whether something is missing before them.
    hole: [bool; 2],
}

impl Decrypt {
    /// A stage that knows the secrets of `keys`.
    pub fn new(keys: Arc<KeyLog>) -> Self {
        Self { shared: Shared { given: keys, ..Shared::default() }, ..Self::default() }
    }

    /// Takes a key log that the capture itself carries. It holds for the connections that follow it. If lines of it cannot be read,
    /// all others are taken.
    pub fn secrets(&mut self, text: &[u8]) {
        if self.shared.embedded.read(text).is_err() {
            self.shared.anomalies.count(Anomaly::TlsBadKeyLog);
        }
    }

    /// Surprises so far.
    pub const fn anomalies(&self) -> &Anomalies {
        &self.shared.anomalies
    }

    /// What was decrypted so far.
    pub const fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Takes one event and hands on what becomes of it.
    #[inline]
    pub fn push<F>(&mut self, event: StreamEvent<'_>, sink: &mut F) -> Verdict
    where
        F: FnMut(StreamEvent<'_>) -> Verdict,
    {
        if let StreamEvent::Open { conn, info, .. } = &event {
            let undecided = Undecided { from_start: info.from_start, first: Default::default(), hole: [false; 2] };
            self.conns.insert(*conn, State::Undecided(Box::new(undecided)));
            return sink(event);
        }
        if !self.conns.contains_key(&event.conn()) {
            return sink(event);
        }
        self.watched(event, sink)
    }

    /// An event of a connection that is TLS, or may be.
    #[inline(never)]
    fn watched(&mut self, event: StreamEvent<'_>, sink: &mut dyn FnMut(StreamEvent<'_>) -> Verdict) -> Verdict {
        let id = event.conn();
        let Some(state) = self.conns.get_mut(&id) else { return sink(event) };
        match state {
            State::Tls(_) => self.tls(id, event, sink),
            State::Muted(finished) => {
                if let StreamEvent::Close { end, .. } = event {
                    match end {
                        End::Finished(dir) => finished[dir.index()] = true,
                        _ => *finished = [true; 2],
                    }
                    if *finished == [true; 2] {
                        self.conns.remove(&id);
                    }
                }
                Verdict::Mute
            }
            State::Midstream(left) => {
                if let StreamEvent::Data { at, bytes, .. } = &event {
                    if looks_like_tls(bytes) == Some(true) {
                        return self.mute(id, *at, Anomaly::TlsMissedStart, sink);
                    }
                    *left = left.saturating_sub(1);
                }
                if *left == 0 || matches!(event, StreamEvent::Close { .. }) {
                    self.conns.remove(&id);
                }
                sink(event)
            }
            State::Undecided(undecided) => match event {
                StreamEvent::Data { dir, at, bytes, .. } => {
                    let (_, held) = &undecided.first[dir.index()];
                    let mut first = [0; HEADER + 1];
                    let seen = held.iter().chain(bytes).zip(first.iter_mut()).map(|(from, to)| *to = *from).count();
                    match looks_like_tls(&first[..seen]) {
                        None => {
                            let (last, held) = &mut undecided.first[dir.index()];
                            *last = at;
                            held.extend_from_slice(bytes);
                            Verdict::Watch
                        }
                        Some(true) => self.decided(id, dir, [first[0], first[HEADER]], event, sink),
                        Some(false) => self.pass(id, event, sink),
                    }
                }
                StreamEvent::Gap { dir, .. } if undecided.first[dir.index()].1.is_empty() => {
                    undecided.hole[dir.index()] = true;
                    sink(event)
                }
                StreamEvent::Close { end: End::Finished(dir), .. } if undecided.first[dir.index()].1.is_empty() => sink(event),
                StreamEvent::Open { .. } | StreamEvent::Identified { .. } => sink(event),
                StreamEvent::Gap { .. } | StreamEvent::Close { .. } => self.pass(id, event, sink),
            },
        }
    }

    /// Not TLS: hands on what was held, and the event.
    fn pass(&mut self, id: ConnId, event: StreamEvent<'_>, sink: &mut dyn FnMut(StreamEvent<'_>) -> Verdict) -> Verdict {
        let Some(State::Undecided(undecided)) = self.conns.remove(&id) else { return sink(event) };
        let missed = !undecided.from_start || undecided.hole != [false; 2];
        if missed && matches!(event, StreamEvent::Data { .. }) {
            self.conns.insert(id, State::Midstream(LOOKED_AT));
        }
        let mut verdict = Verdict::Watch;
        for (dir, (at, bytes)) in [Direction::Forward, Direction::Reverse].into_iter().zip(&undecided.first) {
            if !bytes.is_empty() && verdict == Verdict::Watch {
                verdict = sink(StreamEvent::Data { conn: id, dir, at: *at, bytes });
            }
        }
        if verdict == Verdict::Mute && !matches!(event, StreamEvent::Close { .. }) { verdict } else { sink(event) }
    }

    /// TLS: `said` is the type of the first record of `dir` and of the first message in it.
    fn decided(
        &mut self,
        id: ConnId,
        dir: Direction,
        said: [u8; 2],
        event: StreamEvent<'_>,
        sink: &mut dyn FnMut(StreamEvent<'_>) -> Verdict,
    ) -> Verdict {
        let (StreamEvent::Data { at, .. }, Some(State::Undecided(undecided))) = (&event, self.conns.remove(&id)) else {
            return sink(event);
        };
        let client = match said {
            [HANDSHAKE, 1] => dir,
            [HANDSHAKE, 2] => dir.flip(),
            _ => return self.mute(id, *at, Anomaly::TlsMissedStart, sink),
        };
        let mut conn = Box::new(Conn::new(client));
        let mut out = Out { conn: id, sink: &mut *sink, muted: false };
        for (side, (at, bytes)) in [Direction::Forward, Direction::Reverse].into_iter().zip(&undecided.first) {
            // what is missing before a hello is nothing
            if undecided.hole[side.index()] && side != dir {
                conn.gap(side, *at, None, GapReason::PacketLost, &mut out);
            }
            // a few bytes of a first record can be no reason to let go
            let _ = conn.data(side, *at, bytes, &mut self.shared, &mut out);
        }
        self.buffered += conn.buffered();
        self.conns.insert(id, State::Tls(conn));
        self.tls(id, event, sink)
    }

    /// An event of a connection that is being decrypted.
    fn tls(&mut self, id: ConnId, event: StreamEvent<'_>, sink: &mut dyn FnMut(StreamEvent<'_>) -> Verdict) -> Verdict {
        let Some(State::Tls(conn)) = self.conns.get_mut(&id) else { return sink(event) };
        let before = conn.buffered();
        let mut out = Out { conn: id, sink: &mut *sink, muted: false };
        let (mut over, mut why, mut now) = (false, None, Timestamp::default());
        match event {
            StreamEvent::Data { dir, at, bytes, .. } => {
                why = conn.data(dir, at, bytes, &mut self.shared, &mut out).err();
                now = at;
            }
            StreamEvent::Gap { dir, at, len, reason, .. } => conn.gap(dir, at, len, reason, &mut out),
            StreamEvent::Close { at, end, .. } => over = conn.close(at, end, &mut out),
            StreamEvent::Open { .. } | StreamEvent::Identified { .. } => return sink(event),
        }
        let muted = out.muted;
        let after = conn.buffered();
        self.buffered = (self.buffered + after).saturating_sub(before);
        if over {
            self.buffered = self.buffered.saturating_sub(after);
            self.conns.remove(&id);
        } else if muted {
            self.buffered = self.buffered.saturating_sub(after);
            self.conns.insert(id, State::Muted([false; 2]));
        } else if let Some(why) = why.or_else(|| (self.buffered > BUFFERED && after > 0).then_some(Anomaly::BufferBound)) {
            self.buffered = self.buffered.saturating_sub(after);
            return self.mute(id, now, why, sink);
        }
        if muted { Verdict::Mute } else { Verdict::Watch }
    }

    /// Lets go of a connection that cannot be read.
    fn mute(&mut self, id: ConnId, at: Timestamp, why: Anomaly, sink: &mut dyn FnMut(StreamEvent<'_>) -> Verdict) -> Verdict {
        self.shared.anomalies.count(why);
        self.conns.insert(id, State::Muted([false; 2]));
        let _ = sink(StreamEvent::Close { conn: id, at, end: End::Evicted });
        Verdict::Mute
    }
}

#[cfg(test)]
mod tests;
