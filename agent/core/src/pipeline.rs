//! `StreamEvent` in, `Inference` out: the stages in order.
//!
//! ```text
//! StreamEvent ─ detect ─ http::Session ─ HttpEvent ─ Call (decode ─ frame ─ read ─ stamp) ─ Inference
//! ```
//!
//! A pipeline owns the connections of its tap: no lock, no thread, no clock. What it cannot use it forgets, and says so by
//! `Verdict::Mute`.

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::anomaly::{Anomalies, Anomaly};
use crate::call::{Call, Place, Scratch};
use crate::calls::Calls;
use crate::dialect::LlmEvent;
use crate::http::detect::{Speaks, speaks};
use crate::http::event::{ExchangeId, HttpEvent, Over};
use crate::http::session::Session;
use crate::inference::Inference;
use crate::stream::{ConnId, ConnInfo, Direction, End, GapReason, StreamEvent, Timestamp, Verdict};

/// Exchanges of other kinds after which a connection that never carried LLM traffic is muted.
const PATIENCE: u32 = 16;
/// Bytes in which a connection that was joined in its middle must show a message.
const FOOTING: u64 = 4 << 20;
/// A client may leave a stream at the API's terminator: that long after it, the exchange is over without the transport's word.
const LINGER: Duration = Duration::from_secs(5);

/// What the pipeline counted since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PipelineStats {
    /// Connections seen.
    pub connections: u64,
    /// Connections that are open and watched.
    pub open_connections: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// HTTP exchanges, LLM traffic or not.
    pub exchanges: u64,
    /// Exchanges that are no LLM traffic.
    pub non_llm: u64,
    /// Finished inferences.
    pub inferences: u64,
    /// Inferences that are running.
    pub in_flight: u64,
    /// Events of streamed answers.
    pub events: u64,
    /// Capture gaps, in the order of `GapReason::ALL`.
    pub gaps: [u64; 6],
    /// Surprises of the wire.
    pub anomalies: Anomalies,
}

/// Bounds and seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Makes trace and span ids: with the same seed the same input gives the same ids. `run` takes a random one.
    pub seed: u64,
    /// Bytes that may be buffered in all connections together; beyond it the connection at hand is let go.
    pub buffer_limit: usize,
    /// Silence after which an unfinished exchange has timed out.
    pub idle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, buffer_limit: 64 << 20, idle: Duration::from_secs(600) }
    }
}

/// The pipeline of one tap.
#[derive(Debug, Default)]
pub struct Pipeline {
    options: Options,
    /// Boxed, so that a look-up touches the few lines of the index and then just what it needs of the connection.
    conns: FxHashMap<ConnId, Box<Conn>>,
    stats: PipelineStats,
    buffered: usize,
    last_sweep: Timestamp,
    last_save: Timestamp,
    scratch: Vec<LlmEvent>,
}

/// A connection that is watched.
#[derive(Debug)]
#[repr(C)]
struct Conn {
    stage: Stage,
    last: Timestamp,
    buffered: usize,
    /// Exchanges of other kinds since the last LLM traffic; `None` once there was any.
    others: Option<u32>,
    /// Which directions have said that they are done.
    finished: [bool; 2],
    info: ConnInfo,
}

#[derive(Debug)]
enum Stage {
    /// Which protocol, and who is the client? The first bytes of each direction, with the instant of their first.
    Detecting { first: [Option<(Timestamp, Vec<u8>)>; 2], passed: u64 },
    /// HTTP/1.1.
    Http(Box<Http>),
}

#[derive(Debug)]
#[repr(C)]
struct Http {
    calls: Calls,
    session: Session,
    upgraded: bool,
}

impl Pipeline {
    /// A pipeline with the given bounds.
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// What was counted so far. Walks the connections to count what is in flight.
    pub fn stats(&self) -> PipelineStats {
        let calls = self.conns.values().filter_map(|c| if let Stage::Http(http) = &c.stage { Some(&http.calls) } else { None });
        let in_flight = calls.flat_map(Calls::iter).filter(|(_, c)| c.is_llm()).count() as u64;
        PipelineStats { in_flight, ..self.stats.clone() }
    }

    /// Takes one event; finished inferences go to `out`.
    pub fn push(&mut self, event: StreamEvent<'_>, out: &mut Vec<Inference>) -> Verdict {
        match event {
            StreamEvent::Open { conn, at, info } => {
                self.stats.connections += 1;
                self.stats.open_connections += 1;
                let stage = Stage::Detecting { first: [None, None], passed: 0 };
                self.conns.insert(conn, Box::new(Conn { stage, last: at, buffered: 0, others: Some(0), finished: [false; 2], info }));
                Verdict::Watch
            }
            StreamEvent::Identified { conn, endpoints } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    c.info.endpoints = Some(endpoints);
                }
                Verdict::Watch
            }
            StreamEvent::Data { conn, dir, at, bytes } => self.data(conn, dir, at, bytes, out),
            StreamEvent::Gap { conn, dir, at, len, reason } => {
                if let Some(n) = GapReason::ALL.iter().position(|r| *r == reason) {
                    self.stats.gaps[n] += 1;
                }
                self.work(conn, at, out, |stage, sink| match stage {
                    Stage::Http(http) => http.run(sink, at, |session, out| session.gap(dir, len, out)),
                    Stage::Detecting { first, .. } => first[dir.index()] = None,
                })
            }
            StreamEvent::Close { conn, at, end } => {
                let mut both = false;
                if let (End::Finished(dir), Some(c)) = (end, self.conns.get_mut(&conn)) {
                    c.finished[dir.index()] = true;
                    both = c.finished == [true; 2];
                }
                let verdict = self.work(conn, at, out, |stage, sink| {
                    if let Stage::Http(http) = stage {
                        http.run(sink, at, |session, out| {
                            // Of a server that was done before it was asked, the session knows nothing yet.
                            let server = session.requests().flip();
                            let first = if both && end == End::Finished(server.flip()) { End::Finished(server) } else { end };
                            session.close(first, out);
                        });
                    }
                });
                // A connection that only its client has half-closed goes on.
                let over = match (end, self.conns.get(&conn).map(|c| &c.stage)) {
                    (End::Finished(dir), Some(Stage::Http(http))) => both || http.session.requests() != dir,
                    (End::Finished(_), _) => both,
                    _ => true,
                };
                if over {
                    self.forget(conn);
                }
                verdict
            }
        }
    }

    /// Takes the next bytes of one direction of a connection, as [`StreamEvent::Data`] does.
    #[inline]
    pub fn data(&mut self, conn: ConnId, dir: Direction, at: Timestamp, bytes: &[u8], out: &mut Vec<Inference>) -> Verdict {
        self.stats.bytes += bytes.len() as u64;
        // The common case is one event in one chunk in one piece, like the one before.
        if let Some(c) = self.conns.get_mut(&conn)
            && let Stage::Http(http) = &mut c.stage
            && let Some((id, part)) = http.session.whole_part(dir, bytes)
            && let Some(call) = http.calls.get(id)
            && let Some(more) = call.event(at, part, &mut self.stats.events)
        {
            c.last = at;
            if more == 0 {
                return Verdict::Watch;
            }
            return self.work(conn, at, out, |_, _| {});
        }
        self.parse(conn, dir, at, bytes, out)
    }

    /// Asks for the memory that the next bytes of a connection will need; changes nothing. With thousands of connections at once each
    /// of them is out of the cache when its turn comes, and a tap that has several packets at hand can wait for all of them together.
    #[inline]
    pub fn soon(&self, conn: ConnId) {
        if let Some(c) = self.conns.get(&conn)
            && let Stage::Http(http) = &c.stage
        {
            std::hint::black_box(http.session.touch() ^ http.calls.only().map_or(0, Call::touch));
        }
    }

    fn parse(&mut self, conn: ConnId, dir: Direction, at: Timestamp, bytes: &[u8], out: &mut Vec<Inference>) -> Verdict {
        self.work(conn, at, out, |stage, sink| {
            if let Stage::Detecting { .. } = stage {
                stage.detect(sink, dir, at, bytes);
            } else if let Stage::Http(http) = stage {
                http.data(sink, dir, at, bytes);
            }
        })
    }

    /// Lets `step` work on a connection, then sees to what follows from it: mutes, bounds, counts.
    fn work(&mut self, id: ConnId, at: Timestamp, out: &mut Vec<Inference>, step: impl FnOnce(&mut Stage, &mut Sink<'_>)) -> Verdict {
        let Some(conn) = self.conns.get_mut(&id) else { return Verdict::Mute };
        conn.last = at;
        let mut sink = Sink {
            info: &conn.info,
            conn: id,
            seed: self.options.seed,
            stats: &mut self.stats,
            events: &mut self.scratch,
            out,
            others: &mut conn.others,
            mute: None,
        };
        step(&mut conn.stage, &mut sink);
        let mute = sink.mute;
        let buffered = conn.stage.buffered();
        self.buffered = self.buffered + buffered - conn.buffered;
        conn.buffered = buffered;
        if self.buffered > self.options.buffer_limit {
            self.save(at);
        }
        if self.buffered > self.options.buffer_limit && buffered > 0 {
            self.stats.anomalies.count(Anomaly::BufferBound);
            self.evict(id, at, out);
            return Verdict::Mute;
        }
        if let Some(why) = mute {
            self.stats.anomalies.count(why);
            self.evict(id, at, out);
            return Verdict::Mute;
        }
        Verdict::Watch
    }

    /// Before a connection is let go for want of memory: all give up what only percentiles need. At most once a second.
    fn save(&mut self, at: Timestamp) {
        if at.since(self.last_save) < Duration::from_secs(1) {
            return;
        }
        self.last_save = at;
        self.buffered = 0;
        for conn in self.conns.values_mut() {
            if let Stage::Http(http) = &mut conn.stage {
                http.calls.save();
            }
            conn.buffered = conn.stage.buffered();
            self.buffered += conn.buffered;
        }
    }

    fn evict(&mut self, id: ConnId, at: Timestamp, out: &mut Vec<Inference>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Stage::Http(http) = &mut conn.stage {
            let mut sink = Sink {
                info: &conn.info,
                conn: id,
                seed: self.options.seed,
                stats: &mut self.stats,
                events: &mut self.scratch,
                out,
                others: &mut conn.others,
                mute: None,
            };
            http.run(&mut sink, at, |session, out| session.close(End::Evicted, out));
        }
        self.forget(id);
    }

    fn forget(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.remove(&id) {
            self.buffered -= conn.buffered;
            self.stats.open_connections -= 1;
        }
    }

    /// Notices what ended by the passing of time.
    pub fn tick(&mut self, now: Timestamp, out: &mut Vec<Inference>) {
        if now.since(self.last_sweep) < Duration::from_secs(1) {
            return;
        }
        self.last_sweep = now;
        let idle = self.options.idle;
        let silent: Vec<ConnId> = self.conns.iter().filter(|(_, c)| now.since(c.last) >= idle).map(|(id, _)| *id).collect();
        for conn in silent {
            let _ = self.push(StreamEvent::Close { conn, at: now, end: End::Idle }, out);
        }
        // Exchanges whose API has ended, though their transport has not.
        let left = |(id, call): (ExchangeId, &Call)| call.terminated_at().is_some_and(|t| now.since(t) >= LINGER).then_some(id);
        let left: Vec<(ConnId, ExchangeId)> = self
            .conns
            .iter()
            .filter_map(|(conn, c)| if let Stage::Http(http) = &c.stage { Some((*conn, http)) } else { None })
            .flat_map(|(conn, http)| http.calls.iter().filter_map(left).map(move |id| (conn, id)))
            .collect();
        for (conn, id) in left {
            let at = self.conns.get(&conn).map_or(now, |c| c.last);
            let _ = self.work(conn, at, out, |stage, sink| {
                if let Stage::Http(http) = stage {
                    http.run(sink, at, |session, out| session.give_up(id, out));
                }
            });
        }
    }
}

impl Stage {
    fn buffered(&self) -> usize {
        match self {
            Self::Detecting { first, .. } => first.iter().flatten().map(|(_, b)| b.capacity()).sum(),
            Self::Http(http) => http.session.buffered() + http.calls.iter().map(|(_, c)| c.buffered()).sum::<usize>(),
        }
    }

    fn detect(&mut self, sink: &mut Sink<'_>, dir: Direction, at: Timestamp, bytes: &[u8]) {
        let Self::Detecting { first, passed } = self else { return };
        let (begun, mut seen) = first[dir.index()].take().unwrap_or((at, Vec::new()));
        let held = seen.len();
        // As many bytes as decide: the longest beginning that is known is the HTTP/2 preface.
        seen.extend_from_slice(&bytes[..bytes.len().min(32)]);
        let requests = match speaks(&seen) {
            Speaks::Request => dir,
            Speaks::Response => dir.flip(),
            Speaks::NotYet => {
                first[dir.index()] = Some((begun, seen));
                return;
            }
            Speaks::Http2 => {
                sink.mute = Some(Anomaly::Upgraded);
                return;
            }
            Speaks::Other if sink.info.from_start => {
                sink.mute = Some(Anomaly::NotHttp);
                return;
            }
            Speaks::Other => {
                *passed += bytes.len() as u64;
                if *passed > FOOTING {
                    sink.mute = Some(Anomaly::NotHttp);
                }
                return;
            }
        };
        let whole = sink.info.from_start && requests == dir;
        if !whole {
            sink.stats.anomalies.count(Anomaly::MissedStart);
        }
        // In this direction a message begins here, whatever was missed of the other one.
        let at_start = if requests == dir { [true, sink.info.from_start] } else { [false, true] };
        let mut http = Box::new(Http { session: Session::new(requests, at_start), calls: Calls::default(), upgraded: false });
        seen.truncate(held);
        if !seen.is_empty() {
            http.data(sink, dir, begun, &seen);
        }
        http.data(sink, dir, at, bytes);
        *self = Self::Http(http);
    }
}

/// What a connection's events flow into.
struct Sink<'a> {
    info: &'a ConnInfo,
    conn: ConnId,
    seed: u64,
    stats: &'a mut PipelineStats,
    events: &'a mut Vec<LlmEvent>,
    out: &'a mut Vec<Inference>,
    others: &'a mut Option<u32>,
    mute: Option<Anomaly>,
}

impl Http {
    fn data(&mut self, sink: &mut Sink<'_>, dir: Direction, at: Timestamp, bytes: &[u8]) {
        self.run(sink, at, |session, out| {
            session.data(dir, at, bytes, out);
        });
    }

    /// Lets the session work and takes what it yields to the calls.
    fn run(&mut self, sink: &mut Sink<'_>, at: Timestamp, step: impl FnOnce(&mut Session, &mut dyn FnMut(HttpEvent<'_>))) {
        let Self { session, calls, upgraded } = self;
        let (requests, protocol) = (session.requests(), session.protocol());
        let mut take = |event: HttpEvent<'_>| {
            let PipelineStats { anomalies, events: frames, .. } = &mut *sink.stats;
            let mut cx = Scratch { events: &mut *sink.events, anomalies, frames };
            match event {
                HttpEvent::ResponseBody { id, bytes } => {
                    if let Some(call) = calls.get(id) {
                        call.response_body(at, bytes, &mut cx);
                    }
                }
                HttpEvent::Request { id, begun, head } => {
                    calls.insert(id, Box::new(Call::new(begun, head)));
                    sink.stats.exchanges += 1;
                }
                HttpEvent::RequestBody { id, bytes } => {
                    if let Some(call) = calls.get(id) {
                        call.request_body(bytes, &mut cx);
                    }
                }
                HttpEvent::RequestEnd { id } => {
                    if let Some(call) = calls.get(id) {
                        call.request_end(at, &mut cx);
                    }
                }
                HttpEvent::Response { id, begun, head } => {
                    if let Some(call) = calls.get(id) {
                        call.response_head(begun, head, &mut cx);
                    }
                }
                HttpEvent::Gap { id, of: side, .. } => {
                    if let Some(call) = calls.get(id) {
                        call.gap(side);
                    }
                }
                HttpEvent::Trailers { id, grpc_status } => {
                    if let Some(call) = calls.get(id) {
                        call.trailers(grpc_status);
                    }
                }
                HttpEvent::Over { id, how, by } => {
                    let Some(call) = calls.remove(id) else { return };
                    let place = Place { info: sink.info, requests, protocol, identity: [sink.seed, sink.conn.0, id] };
                    let done = call.over(at, (how, by), &place, &mut cx);
                    sink.over(done, how);
                }
                HttpEvent::Odd(what) => {
                    sink.stats.anomalies.count(what);
                    if what == Anomaly::HeadTooLong {
                        sink.mute = Some(Anomaly::HeadTooLong);
                    }
                }
                HttpEvent::Upgraded { id, .. } => {
                    calls.remove(id);
                    *upgraded = true;
                }
            }
        };
        step(session, &mut take);
        if *upgraded && sink.mute.is_none() {
            sink.mute = Some(Anomaly::Upgraded);
        }
        if session.skipped() > FOOTING && calls.is_empty() {
            sink.mute = Some(Anomaly::MissedStart);
        }
    }
}

impl Sink<'_> {
    fn over(&mut self, done: Option<Inference>, how: Over) {
        match done {
            Some(inference) => {
                self.stats.inferences += 1;
                *self.others = None;
                self.out.push(inference);
            }
            None => {
                self.stats.non_llm += 1;
                if let Some(n) = self.others {
                    *n += 1;
                    if *n >= PATIENCE && how == Over::Complete {
                        self.mute = Some(Anomaly::NotLlm);
                    }
                }
            }
        }
    }
}
