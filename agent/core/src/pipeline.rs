//! `StreamEvent` in, `Inference` out: the stages in order.
//!
//! ```text
//! StreamEvent ─ detect ─ http::Session ─ HttpEvent ─ Call (decode ─ frame ─ read ─ stamp) ─ Inference
//!                             └ upgraded ─ Socket (frame ─ message ─ converse ─ stamp) ─ Inference
//! ```
//!
//! A pipeline owns the connections of its tap: no lock, no thread, no clock. What it cannot use it forgets, and says so by
//! `Verdict::Mute`.

use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::anomaly::{Anomalies, Anomaly};
use crate::call::Call;
use crate::calls::Calls;
use crate::dialect::LlmEvent;
use crate::dialect::shape::Shape;
use crate::http::event::{ExchangeId, HttpEvent, Over};
use crate::http::head::Upgrade;
use crate::http::session::Session;
use crate::inference::Inference;
use crate::measure::{Place, Scratch};
use crate::socket::{Desk, Socket};
use crate::stream::{ConnId, ConnInfo, Direction, End, GapReason, StreamEvent, Timestamp, Verdict};
use crate::tenant::Tenants;

mod detecting;
mod lane;
mod late;
mod sink;
mod soon;
mod stage;
mod tunnels;

use detecting::Detecting;
use lane::Lanes;
use sink::Sink;
use tunnels::Tunnels;

pub use late::{Late, Overdue};
pub use soon::SOON;

/// Exchanges of other kinds after which a connection that never carried LLM traffic is muted.
const PATIENCE: u32 = 16;
/// Bytes in which a connection that was joined in its middle must show a message.
const FOOTING: u64 = 4 << 20;

/// What the pipeline counted since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PipelineStats {
    /// Connections seen.
    pub connections: u64,
    /// Connections that are open and watched.
    pub open_connections: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// HTTP exchanges, LLM traffic or not, and turns of conversations.
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

/// What a tap may keep with a direction of a connection, so that the pipeline need not look for it: see [`Pipeline::tagged`]. 0 is good for any.
pub type Tag = u32;

/// The pipeline of one tap.
#[derive(Debug, Default)]
pub struct Pipeline {
    options: Options,
    lanes: Lanes,
    /// Boxed, so that a look-up touches the few lines of the index and then just what it needs of the connection.
    conns: FxHashMap<ConnId, Box<Conn>>,
    stats: PipelineStats,
    buffered: usize,
    last_sweep: Timestamp,
    last_save: Timestamp,
    scratch: Vec<LlmEvent>,
    tenants: Option<Arc<Tenants>>,
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
    /// Its lane, if it has one.
    lane: Tag,
    info: ConnInfo,
}

#[derive(Debug)]
enum Stage {
    /// Which protocol, and who is the client?
    Detecting(Box<Detecting>),
    /// HTTP of any version.
    Http(Box<Http>),
    /// A WebSocket.
    Socket(Box<Socket>),
}

#[derive(Debug)]
#[repr(C)]
struct Http {
    calls: Calls,
    session: Session,
    upgraded: bool,
    /// What the connection has become.
    socket: Option<Box<Socket>>,
    /// What some of its streams have become.
    tunnels: Tunnels,
}

impl Pipeline {
    /// A pipeline with the given bounds.
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// Says of inferences whose they are.
    #[must_use]
    pub fn naming(mut self, tenants: Option<Arc<Tenants>>) -> Self {
        self.tenants = tenants;
        self
    }

    /// What was counted so far. Walks the connections to count what is in flight.
    pub fn stats(&self) -> PipelineStats {
        let running = |c: &Conn| match &c.stage {
            Stage::Detecting { .. } => 0,
            Stage::Http(http) => http.calls.iter().filter(|(_, c)| c.is_llm()).count() + http.tunnels.in_flight(),
            Stage::Socket(socket) => socket.in_flight(),
        };
        let in_flight = self.conns.values().map(Box::as_ref).map(running).sum::<usize>() as u64;
        PipelineStats { in_flight, ..self.stats.clone() }
    }

    /// Takes one event; finished inferences go to `out`.
    pub fn push(&mut self, event: StreamEvent<'_>, out: &mut Vec<Inference>) -> Verdict {
        match event {
            StreamEvent::Open { conn, at, info } => {
                self.stats.connections += 1;
                self.stats.open_connections += 1;
                let from_start = info.from_start;
                let stage = Stage::Detecting(Box::new(Detecting { first: [None, None], passed: 0, from_start, joined: None }));
                self.conns
                    .insert(conn, Box::new(Conn { stage, last: at, buffered: 0, others: Some(0), finished: [false; 2], lane: 0, info }));
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
                self.work(conn, at, out, |stage, sink| stage.gap(sink, dir, at, len))
            }
            StreamEvent::Close { conn, at, end } => {
                let mut both = false;
                if let (End::Finished(dir), Some(c)) = (end, self.conns.get_mut(&conn)) {
                    c.finished[dir.index()] = true;
                    both = c.finished == [true; 2];
                }
                let verdict = self.work(conn, at, out, |stage, sink| stage.close(sink, at, end, both));
                // A connection that only its client has half-closed goes on.
                let over = match (end, self.conns.get(&conn).map(|c| &c.stage)) {
                    (End::Finished(dir), Some(Stage::Http(http))) => both || http.session.requests() != dir,
                    (End::Finished(dir), Some(Stage::Socket(socket))) => both || socket.requests() != dir,
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

    fn parse(&mut self, conn: ConnId, dir: Direction, at: Timestamp, bytes: &[u8], out: &mut Vec<Inference>) -> Verdict {
        self.work(conn, at, out, |stage, sink| match stage {
            Stage::Detecting(detecting) => {
                if let Some(mut http) = detecting.data(sink, dir, at, bytes) {
                    *stage = http.socket.take().map_or_else(|| Stage::Http(Box::new(http)), Stage::Socket);
                }
            }
            Stage::Http(http) => {
                http.data(sink, dir, at, bytes);
                if let Some(socket) = http.socket.take() {
                    *stage = Stage::Socket(socket);
                }
            }
            Stage::Socket(socket) => sink.socket(socket, |socket, desk| socket.data(dir, at, bytes, desk)),
        })
    }

    /// Lets `step` work on a connection, then sees to what follows from it: mutes, bounds, counts.
    fn work(&mut self, id: ConnId, at: Timestamp, out: &mut Vec<Inference>, step: impl FnOnce(&mut Stage, &mut Sink<'_>)) -> Verdict {
        let Some(conn) = self.conns.get_mut(&id) else { return Verdict::Mute };
        self.lanes.settle(conn);
        conn.last = at;
        let mut sink = Sink {
            info: &conn.info,
            conn: id,
            seed: self.options.seed,
            lost: None,
            tenants: self.tenants.as_ref(),
            stats: &mut self.stats,
            events: &mut self.scratch,
            out,
            others: &mut conn.others,
            mute: None,
        };
        step(&mut conn.stage, &mut sink);
        let mute = sink.mute;
        self.lanes.open(id, conn);
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
        for (id, conn) in &mut self.conns {
            self.lanes.settle(conn);
            match &mut conn.stage {
                Stage::Detecting { .. } => {}
                Stage::Http(http) => {
                    http.calls.save();
                    http.tunnels.save();
                }
                Stage::Socket(socket) => socket.forget_gaps(),
            }
            self.lanes.open(*id, conn);
            conn.buffered = conn.stage.buffered();
            self.buffered += conn.buffered;
        }
    }

    fn evict(&mut self, id: ConnId, at: Timestamp, out: &mut Vec<Inference>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let mut sink = Sink {
            info: &conn.info,
            conn: id,
            seed: self.options.seed,
            lost: None,
            tenants: self.tenants.as_ref(),
            stats: &mut self.stats,
            events: &mut self.scratch,
            out,
            others: &mut conn.others,
            mute: None,
        };
        conn.stage.close(&mut sink, at, End::Evicted, false);
        self.forget(id);
    }

    fn forget(&mut self, id: ConnId) {
        if let Some(mut conn) = self.conns.remove(&id) {
            self.lanes.close(&mut conn);
            self.buffered -= conn.buffered;
            self.stats.open_connections -= 1;
        }
    }

    /// Notices what ended by the passing of time.
    pub fn tick(&mut self, now: Timestamp, out: &mut Vec<Inference>) {
        for what in self.overdue(now) {
            self.give_up(&what, now, out);
        }
    }
}

impl Http {
    fn new(session: Session) -> Self {
        Self { session, calls: Calls::default(), upgraded: false, socket: None, tunnels: Tunnels::default() }
    }

    fn buffered(&self) -> usize {
        self.session.buffered() + self.calls.buffered() + self.tunnels.buffered()
    }

    /// The exchange whose response comes, and what its next event looks like if it is like the last one: when nothing else is under way.
    #[inline]
    fn steady(&self) -> Option<(ExchangeId, &Shape)> {
        let id = self.session.before_chunk()?;
        Some((id, self.calls.get(id)?.steady()?))
    }

    /// Takes the next bytes. What is HTTP no more goes to what the connection has become.
    fn data(&mut self, sink: &mut Sink<'_>, dir: Direction, at: Timestamp, mut bytes: &[u8]) {
        while self.socket.is_none() {
            let mut rest: &[u8] = &[];
            self.run(sink, at, |session, out| rest = session.data(dir, at, bytes, out));
            bytes = rest;
            if rest.is_empty() || self.upgraded {
                return;
            }
        }
        if let Some(socket) = &mut self.socket {
            sink.socket(socket, |socket, desk| socket.data(dir, at, bytes, desk));
        }
    }

    /// Lets the session work and takes what it yields to the calls.
    fn run(&mut self, sink: &mut Sink<'_>, at: Timestamp, step: impl FnOnce(&mut Session, &mut dyn FnMut(HttpEvent<'_>))) {
        let Self { session, calls, upgraded, socket, tunnels } = self;
        let (requests, protocol, shared) = (session.requests(), session.protocol(), session.is_shared());
        let mut take = |mut event: HttpEvent<'_>| {
            if !tunnels.is_empty() {
                let Some(other) = tunnels.take(event, requests, at, sink) else { return };
                event = other;
            }
            if let HttpEvent::Response { id, head, .. } = &mut event
                && (200..300).contains(&head.status)
                && let Some(asked) = calls.remove_if(*id, Call::asks_for_a_tunnel)
            {
                return tunnels.open(*id, requests, asked.into_head(), head.clone(), sink);
            }
            let PipelineStats { anomalies, events: frames, .. } = &mut *sink.stats;
            let mut cx = Scratch { events: &mut *sink.events, anomalies, frames };
            match event {
                HttpEvent::ResponseBody { id, bytes } => calls.with(id, |call| call.response_body(at, bytes, &mut cx)),
                HttpEvent::Request { id, begun, head } => {
                    calls.insert(id, Box::new(Call::new(begun, head)));
                    sink.stats.exchanges += 1;
                }
                HttpEvent::RequestBody { id, bytes } => calls.with(id, |call| call.request_body(at, bytes, &mut cx)),
                HttpEvent::RequestEnd { id } => calls.with(id, |call| call.request_end(at, &mut cx)),
                HttpEvent::Response { id, begun, head } => calls.with(id, |call| call.response_head(begun, head, &mut cx)),
                HttpEvent::Gap { id, of: side, missing, .. } => calls.with(id, |call| call.gap(at, side, missing, sink.lost)),
                HttpEvent::Trailers { id, grpc_status, partial } => calls.with(id, |call| call.trailers(at, grpc_status, partial)),
                HttpEvent::Over { id, how, by, at: since } => {
                    let Some(call) = calls.remove(id) else { return };
                    let place = Place { info: sink.info, requests, protocol, identity: [sink.seed, sink.conn.0, id] };
                    let done = call.over(since.unwrap_or(at), (how, by), &place, &mut cx);
                    sink.over(done, how);
                }
                HttpEvent::Odd(what) => {
                    sink.stats.anomalies.count(what);
                    if what == Anomaly::HeadTooLong && !shared {
                        sink.mute = Some(Anomaly::HeadTooLong);
                    }
                }
                HttpEvent::Upgraded { id, head } => {
                    let asked = calls.remove(id).map(|call| call.into_head()).filter(|asked| asked.upgrade == Some(Upgrade::WebSocket));
                    *socket = asked.and_then(|asked| Socket::new(requests, asked, head)).map(Box::new);
                    *upgraded = socket.is_none();
                }
            }
        };
        step(session, &mut take);
        if *upgraded && sink.mute.is_none() {
            sink.mute = Some(Anomaly::Upgraded);
        }
        if sink.mute == Some(Anomaly::NotLlm) && (!tunnels.is_empty() || calls.iter().any(|(_, call)| call.may_be_llm())) {
            sink.mute = None;
        }
        if session.skipped() > FOOTING && calls.is_empty() && tunnels.is_empty() {
            sink.mute = Some(Anomaly::MissedStart);
        }
    }
}
