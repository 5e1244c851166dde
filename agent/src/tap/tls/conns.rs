//! From the kernel's records to stream events: which connection, in what order, with what holes.
//!
//! Every record carries the absolute offset of its bytes in their direction, so a lost record shows as a hole in front of the
//! next one, or in front of the connection's end: a [`StreamEvent::Gap`] where the bytes are missing. A connection is
//! (process, handle, generation): handles are addresses and come back after `SSL_free`. A connection is opened at its first byte,
//! by which time its socket is usually known. Payload is handed on where the kernel put it.
//!
//! Pure: no clock, no I/O; the process's name comes from the caller.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustc_hash::FxHashMap;
use tokengauge_core::stream::{
    ConnId, ConnInfo, Direction, End, Endpoints, GapReason, Process, Side, StreamEvent, TapKind, Timestamp, Verdict,
};
use tokengauge_ebpf_common::{Conn, ConnKey, Header, dir, flag, kind};

use crate::tap::Sink;

/// A connection as the agent knows it.
#[derive(Debug)]
struct State {
    id: ConnId,
    generation: u64,
    /// The next expected offset, by direction as in [`dir`].
    next: [u64; 2],
    endpoints: Option<Endpoints>,
    opened: bool,
    muted: bool,
    /// Which directions have ended.
    finished: [bool; 2],
    /// It was shut down without a goodbye.
    quiet: bool,
    /// Kernel time of its last record.
    last: u64,
}

/// All connections.
#[derive(Debug, Default)]
pub struct Conns {
    table: FxHashMap<ConnKey, State>,
    last_id: u64,
    /// What to add to a kernel stamp to get Unix time.
    unix_offset: u64,
    /// How many are muted.
    muted: u64,
    /// Whether this kernel tells sockets: then a connection without one is TLS over memory buffers.
    tells_sockets: bool,
    /// Holes seen.
    pub gaps: u64,
    /// Connections whose first bytes were not seen.
    pub missed_start: u64,
    /// Records whose offset lay behind what was seen already. Should stay zero.
    pub out_of_order: u64,
}

/// What the caller has to do about a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Todo {
    /// Nothing.
    Nothing,
    /// Tell the kernel to copy no more of it.
    Mute(ConnKey, u64),
}

impl Conns {
    /// No connections yet.
    pub fn new(unix_offset: u64) -> Self {
        Self { unix_offset, ..Self::default() }
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// How many of them are muted.
    pub const fn muted(&self) -> u64 {
        self.muted
    }

    fn time(&self, at: u64) -> Timestamp {
        Timestamp::from_unix_nanos(at.saturating_add(self.unix_offset))
    }

    /// Takes one record. `process` is asked once for each connection, when it is opened.
    pub fn record(&mut self, header: &Header, payload: &[u8], process: impl FnOnce(u32) -> Process, sink: &mut dyn Sink) -> Todo {
        let key = ConnKey { ssl: header.ssl, tgid: header.tgid, _pad: 0 };
        let at = self.time(header.at);
        match self.table.get(&key) {
            Some(state) if state.generation == header.generation => {}
            Some(_) => {
                // The end of the previous one was lost, or this is a late record of one that is gone already.
                if self.table.get(&key).is_some_and(|s| s.generation > header.generation) {
                    return Todo::Nothing;
                }
                self.close(key, at, End::Released, None, sink);
                self.start(key, header);
            }
            None if matches!(header.kind, kind::DATA | kind::IDENTIFY) => self.start(key, header),
            None => return Todo::Nothing,
        }
        let mut verdict = Verdict::Watch;
        match header.kind {
            kind::IDENTIFY => {
                self.tells_sockets = true;
                if let (Some(endpoints), Some(state)) = (endpoints(payload), self.table.get_mut(&key))
                    && state.endpoints != Some(endpoints)
                {
                    state.endpoints = Some(endpoints);
                    if state.opened && !state.muted {
                        verdict = sink.event(StreamEvent::Identified { conn: state.id, endpoints });
                    }
                }
            }
            kind::DATA => verdict = self.data(key, at, header, payload, process, sink),
            kind::PEER_END => verdict = self.finished(key, at, Direction::Reverse, sink),
            kind::SHUTDOWN if header.flags & (flag::QUIET | flag::WRITE_FAILED) != 0 => {
                // No goodbye was said: `FREE` will tell.
                if let Some(state) = self.table.get_mut(&key) {
                    state.quiet = true;
                }
            }
            kind::SHUTDOWN => verdict = self.finished(key, at, Direction::Forward, sink),
            kind::FREE => {
                let quiet = header.flags & (flag::QUIET | flag::WRITE_FAILED) != 0 || self.table.get(&key).is_some_and(|s| s.quiet);
                // Over memory buffers no write fails when the other side is gone: the event loop that learns it from its socket
                // frees the connection without the goodbye that it says in every other case (asyncio, uvicorn, hypercorn).
                let silent = |s: &State| self.tells_sockets && s.endpoints.is_none() && !s.finished[Direction::Forward.index()];
                let left = quiet || self.table.get(&key).is_some_and(silent);
                let end = if left { End::Abandoned } else { End::Released };
                self.close(key, at, end, Some([header.offset, header.skipped]), sink);
            }
            _ => {}
        }
        match self.table.get_mut(&key) {
            Some(state) if verdict == Verdict::Mute && !state.muted => {
                state.muted = true;
                self.muted += 1;
                Todo::Mute(key, state.generation)
            }
            _ => Todo::Nothing,
        }
    }

    /// One side has no more to send; said once for each.
    fn finished(&mut self, key: ConnKey, at: Timestamp, dir: Direction, sink: &mut dyn Sink) -> Verdict {
        let Some(state) = self.table.get_mut(&key).filter(|s| s.opened) else { return Verdict::Watch };
        if std::mem::replace(&mut state.finished[dir.index()], true) {
            return Verdict::Watch;
        }
        sink.event(StreamEvent::Close { conn: state.id, at, end: End::Finished(dir) })
    }

    fn start(&mut self, key: ConnKey, header: &Header) {
        self.last_id += 1;
        let state = State {
            id: ConnId(self.last_id),
            generation: header.generation,
            next: [0; 2],
            endpoints: None,
            opened: false,
            muted: false,
            finished: [false; 2],
            quiet: false,
            last: header.at,
        };
        self.table.insert(key, state);
    }

    fn data(
        &mut self,
        key: ConnKey,
        at: Timestamp,
        header: &Header,
        payload: &[u8],
        process: impl FnOnce(u32) -> Process,
        sink: &mut dyn Sink,
    ) -> Verdict {
        let Some(state) = self.table.get_mut(&key) else { return Verdict::Watch };
        state.last = header.at;
        if state.muted {
            return Verdict::Watch;
        }
        let conn = state.id;
        let mut verdict = Verdict::Watch;
        let mut tell = |event: StreamEvent<'_>| {
            if sink.event(event) == Verdict::Mute {
                verdict = Verdict::Mute;
            }
        };
        if !state.opened {
            state.opened = true;
            let from_start = header.flags & flag::FROM_START != 0;
            self.missed_start += u64::from(!from_start);
            let info =
                ConnInfo { tap: TapKind::Tls, side: Side::Local, endpoints: state.endpoints, process: Some(process(key.tgid)), from_start };
            tell(StreamEvent::Open { conn, at, info });
        }
        let direction = direction(header.dir);
        let next = &mut state.next[usize::from(header.dir & 1)];
        if header.offset < *next {
            self.out_of_order += 1;
            return verdict;
        }
        if header.offset > *next {
            self.gaps += 1;
            tell(StreamEvent::Gap { conn, dir: direction, at, len: Some(header.offset - *next), reason: GapReason::RingFull });
        }
        if !payload.is_empty() {
            tell(StreamEvent::Data { conn, dir: direction, at, bytes: payload });
        }
        if header.skipped > 0 {
            self.gaps += 1;
            let reason = if header.flags & flag::UNREADABLE != 0 { GapReason::Unreadable } else { GapReason::TooLong };
            tell(StreamEvent::Gap { conn, dir: direction, at, len: Some(header.skipped), reason });
        }
        *next = header.offset + payload.len() as u64 + header.skipped;
        verdict
    }

    /// Ends a connection. What is missing up to its final offsets is announced first.
    fn close(&mut self, key: ConnKey, at: Timestamp, end: End, offsets: Option<[u64; 2]>, sink: &mut dyn Sink) {
        let Some(state) = self.table.remove(&key) else { return };
        self.muted -= u64::from(state.muted);
        if !state.opened {
            return;
        }
        for (which, seen) in [dir::WRITE, dir::READ].into_iter().zip(state.next) {
            let missing = offsets.map_or(0, |o| o[usize::from(which)].saturating_sub(seen));
            if missing > 0 && !state.muted {
                self.gaps += 1;
                let gap = StreamEvent::Gap { conn: state.id, dir: direction(which), at, len: Some(missing), reason: GapReason::RingFull };
                let _ = sink.event(gap);
            }
        }
        let _ = sink.event(StreamEvent::Close { conn: state.id, at, end });
    }

    /// Ends the connections of a process that is gone. `now` is kernel time; `last` gives the kernel's final offsets. Returns
    /// which they were.
    pub fn process_gone(&mut self, tgid: u32, now: u64, last: impl Fn(ConnKey) -> Option<Conn>, sink: &mut dyn Sink) -> Vec<ConnKey> {
        let keys: Vec<ConnKey> = self.table.keys().filter(|key| key.tgid == tgid).copied().collect();
        for key in &keys {
            self.close(*key, self.time(now), End::Released, last(*key).map(|c| c.offset), sink);
        }
        keys
    }

    /// Ends connections that the kernel no longer has, whose `FREE` record was lost: those silent for `idle` nanoseconds are
    /// looked up by `look`.
    pub fn sweep(&mut self, now: u64, idle: u64, look: impl Fn(ConnKey) -> Option<Conn>, sink: &mut dyn Sink) {
        let silent: Vec<(ConnKey, u64)> =
            self.table.iter().filter(|(_, s)| s.last.saturating_add(idle) < now).map(|(k, s)| (*k, s.generation)).collect();
        for (key, generation) in silent {
            if look(key).is_none_or(|conn| conn.generation != generation) {
                self.close(key, self.time(now), End::Released, None, sink);
            } else if let Some(state) = self.table.get_mut(&key) {
                state.last = now; // looked at again after another while
            }
        }
    }

    /// The tap ends: every connection ends with it. `last` gives the kernel's final offsets.
    pub fn finish(&mut self, now: u64, last: impl Fn(ConnKey) -> Option<Conn>, sink: &mut dyn Sink) {
        let mut keys: Vec<(ConnId, ConnKey)> = self.table.iter().map(|(key, state)| (state.id, *key)).collect();
        keys.sort_unstable_by_key(|(id, _)| *id);
        for (_, key) in keys {
            let generation = self.table.get(&key).map(|s| s.generation);
            let offsets = last(key).filter(|c| Some(c.generation) == generation).map(|c| c.offset);
            self.close(key, self.time(now), End::InputEnded, offsets, sink);
        }
    }
}

const fn direction(dir: u8) -> Direction {
    if dir == dir::READ { Direction::Reverse } else { Direction::Forward }
}

/// Reads an `Address`: IPv4 within IPv6 becomes IPv4, as the peer sees it.
fn endpoints(payload: &[u8]) -> Option<Endpoints> {
    let u16_at = |at: usize| Some(u16::from_ne_bytes(payload.get(at..at + 2)?.try_into().ok()?));
    let family = u16_at(0)?;
    let ip = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = payload.get(at..at + 16)?.try_into().ok()?;
        match family {
            2 => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
            10 => Some(Ipv6Addr::from(bytes).to_canonical()),
            _ => None,
        }
    };
    Some(Endpoints { local: SocketAddr::new(ip(8)?, u16_at(2)?), remote: SocketAddr::new(ip(24)?, u16::from_be(u16_at(4)?)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    #[derive(Default)]
    struct Log(Vec<String>, Option<u64>);
    impl Sink for Log {
        fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
            self.0.push(match event {
                StreamEvent::Open { conn, info, .. } => {
                    let ends = info.endpoints.map_or("?".to_owned(), |e| format!("{}-{}", e.local, e.remote));
                    format!("{} open {ends} from_start={}", conn.0, info.from_start)
                }
                StreamEvent::Identified { conn, endpoints } => format!("{} is {}-{}", conn.0, endpoints.local, endpoints.remote),
                StreamEvent::Data { conn, dir, at, bytes } => {
                    format!("{} {dir:?} {} at {}", conn.0, String::from_utf8_lossy(bytes), at.unix_nanos())
                }
                StreamEvent::Gap { conn, dir, len, reason, .. } => format!("{} {dir:?} gap {len:?} {}", conn.0, reason.as_str()),
                StreamEvent::Close { conn, end, .. } => format!("{} close {end:?}", conn.0),
            });
            if self.1 == Some(self.0.len() as u64) { Verdict::Mute } else { Verdict::Watch }
        }
        fn tick(&mut self, _: Timestamp) {}
    }

    fn header(kind: u8, dir: u8, generation: u64, offset: u64) -> Header {
        Header { kind, dir, tgid: 7, ssl: 0xabc, generation, offset, at: 100 + offset, ..Header::default() }
    }

    fn data(dir: u8, offset: u64, bytes: &'static str) -> (Header, Vec<u8>) {
        (header(kind::DATA, dir, 1, offset), bytes.into())
    }

    fn address(family: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; 40];
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        bytes[2..4].copy_from_slice(&5000u16.to_ne_bytes());
        bytes[4..6].copy_from_slice(&443u16.to_be_bytes());
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
        bytes[8..24].copy_from_slice(if family == 2 { &[127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] } else { &mapped });
        bytes[24..40].copy_from_slice(&mapped);
        if family == 2 {
            bytes[24..28].copy_from_slice(&[10, 0, 0, 2]);
        }
        bytes
    }

    fn check(records: &[(Header, Vec<u8>)], mute_after: Option<u64>, expected: Expect) -> Vec<Todo> {
        let mut conns = Conns::new(1000);
        let mut log = Log(Vec::new(), mute_after);
        let process = |pid| Process { pid, command: "x".into(), container: None };
        let mut todo = Vec::new();
        for (header, payload) in records {
            match conns.record(header, payload, process, &mut log) {
                Todo::Nothing => {}
                mute => todo.push(mute),
            }
        }
        conns.finish(9, |_| None, &mut log);
        expected.assert_eq(&log.0.join("\n"));
        todo
    }

    #[test]
    fn bytes_pass_in_order_and_a_hole_is_located() {
        check(
            &[
                (header(kind::IDENTIFY, 0, 1, 0), address(2)),
                data(dir::WRITE, 0, "ask"),
                data(dir::READ, 0, "answer"),
                data(dir::READ, 10, "more"),
                (Header { skipped: 90, ..header(kind::DATA, dir::WRITE, 1, 3) }, vec![]),
                data(dir::WRITE, 93, "!"),
                (header(kind::SHUTDOWN, 0, 1, 0), vec![]),
                (header(kind::SHUTDOWN, 0, 1, 0), vec![]),
                (Header { skipped: 20, ..header(kind::FREE, 0, 1, 94) }, vec![]),
            ],
            None,
            expect![[r#"
                1 open 127.0.0.1:5000-10.0.0.2:443 from_start=false
                1 Forward ask at 1100
                1 Reverse answer at 1100
                1 Reverse gap Some(4) ring_full
                1 Reverse more at 1110
                1 Forward gap Some(90) too_long
                1 Forward ! at 1193
                1 close Finished(Forward)
                1 Reverse gap Some(6) ring_full
                1 close Released"#]],
        );
    }

    #[test]
    fn memory_buffers_that_are_freed_without_a_goodbye_were_abandoned() {
        let gone = [data(dir::READ, 0, "ask"), data(dir::WRITE, 0, "answ"), (header(kind::FREE, 0, 1, 4), vec![])];
        // Nothing told a socket so far: this kernel may not be able to.
        check(
            &gone,
            None,
            expect![[r#"
                1 open ? from_start=false
                1 Reverse ask at 1100
                1 Forward answ at 1100
                1 close Released"#]],
        );
        let other = (Header { ssl: 0xdef, ..header(kind::IDENTIFY, 0, 1, 0) }, address(2));
        check(
            &[std::slice::from_ref(&other), &gone[..]].concat(),
            None,
            expect![[r#"
                2 open ? from_start=false
                2 Reverse ask at 1100
                2 Forward answ at 1100
                2 close Abandoned"#]],
        );
        check(
            &[&[other], &gone[..2], &[(header(kind::SHUTDOWN, 0, 1, 0), vec![])], &gone[2..]].concat(),
            None,
            expect![[r#"
                2 open ? from_start=false
                2 Reverse ask at 1100
                2 Forward answ at 1100
                2 close Finished(Forward)
                2 close Released"#]],
        );
    }

    #[test]
    fn a_handle_that_comes_back_is_another_connection() {
        check(
            &[
                data(dir::WRITE, 0, "a"),
                (Header { flags: flag::FROM_START, ..header(kind::DATA, dir::WRITE, 2, 0) }, b"b".to_vec()),
                (header(kind::FREE, 0, 1, 1), vec![]),
                (header(kind::IDENTIFY, 0, 2, 0), address(10)),
                (header(kind::FREE, 0, 2, 1), vec![]),
                (header(kind::FREE, 0, 2, 1), vec![]),
            ],
            None,
            expect![[r#"
                1 open ? from_start=false
                1 Forward a at 1100
                1 close Released
                2 open ? from_start=true
                2 Forward b at 1100
                2 is 127.0.0.1:5000-127.0.0.1:443
                2 close Released"#]],
        );
    }

    #[test]
    fn a_muted_connection_is_told_to_the_kernel_once_and_only_ends() {
        let todo = check(
            &[data(dir::WRITE, 0, "a"), data(dir::WRITE, 1, "b"), data(dir::READ, 5, "c"), (header(kind::FREE, 0, 1, 90), vec![])],
            Some(2),
            expect![[r#"
                1 open ? from_start=false
                1 Forward a at 1100
                1 close Released"#]],
        );
        assert_eq!(todo, [Todo::Mute(ConnKey { ssl: 0xabc, tgid: 7, _pad: 0 }, 1)]);
    }
}
