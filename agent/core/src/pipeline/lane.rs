//! The short way of a stream whose events are alike: one event in one chunk, like the one before.
//!
//! A lane is what such an event is compared with, and a list of the instants at which events came that were alike. They are told to the
//! call when the list is full or anything else happens on the connection ([`Pipeline::work`]), all at once: what the call makes of them does
//! not depend on when it is told. A lane is open only while nothing but the lane could change what the next event means.
//!
//! A body that is compressed (gzip, flushed after each event) is undone by the same decoder as without a lane: the call lends it to the lane. An
//! event that lies in one piece in the decoder's window is compared there; when it is another one, the call goes on with what was made of it.
//!
//! # What it gave
//! With 1,500 streams at once a chunk touched two dozen cache lines of its connection, session, call, reader and timeline, and two look-ups
//! led to them. In a lane it touches two, and those of the shape; the rest is touched once in [`KEPT`] chunks.

use super::{Conn, Pipeline, PipelineStats, Stage, Tag};
use crate::dialect::shape::Shape;
use crate::framing::sse;
use crate::http::coding::Decoder;
use crate::http::event::ExchangeId;
use crate::http::h1;
use crate::inference::Inference;
use crate::measure::Scratch;
use crate::stream::{ConnId, Direction, Timestamp, Verdict};

/// Events that are kept until the call is told.
const KEPT: usize = 15;

/// Two cache lines.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Lane {
    conn: ConnId,
    exchange: ExchangeId,
    shape: Shape,
    /// The instant of the first event that is kept.
    first: Timestamp,
    /// Nanoseconds from it to each of them.
    since: [u32; KEPT],
    /// How many are kept.
    kept: u8,
    /// Their bytes.
    bytes: u32,
    /// Where the decoder stands in [`Lanes::decoders`], if chunks are compressed; else 0.
    coded: u32,
    /// The direction of the responses.
    dir: Direction,
    open: bool,
}

const _: () = assert!(size_of::<Lane>() == 128);

impl Default for Lane {
    fn default() -> Self {
        Self {
            conn: ConnId::default(),
            exchange: 0,
            shape: Shape::default(),
            first: Timestamp::default(),
            since: [0; KEPT],
            kept: 0,
            bytes: 0,
            coded: 0,
            dir: Direction::Forward,
            open: false,
        }
    }
}

impl Lane {
    #[inline]
    fn is_of(&self, conn: ConnId, dir: Direction) -> bool {
        self.open && self.conn == conn && self.dir == dir
    }

    /// Where an event that comes at `at` can be kept.
    #[inline]
    fn place(&self, at: Timestamp) -> Option<u32> {
        if self.kept == 0 {
            return Some(0);
        }
        let fits = usize::from(self.kept) < KEPT && at >= self.first;
        u32::try_from(at.nanos_since(self.first)).ok().filter(|_| fits)
    }

    /// Keeps an event.
    #[inline]
    fn keep(&mut self, at: Timestamp, since: u32, bytes: usize) {
        if self.kept == 0 {
            self.first = at;
        }
        if let Some(place) = self.since.get_mut(usize::from(self.kept)) {
            *place = since;
            self.kept += 1;
            // at most KEPT chunks, none much longer than a shape
            self.bytes += bytes as u32;
        }
    }

    /// The instants that are kept.
    fn instants(&self) -> impl DoubleEndedIterator<Item = Timestamp> + '_ {
        let kept = self.since.iter().take(self.kept.into());
        kept.map(|since| Timestamp::from_unix_nanos(self.first.unix_nanos() + u64::from(*since)))
    }

    /// Tells the call what was kept. Returns by how much more it has buffered now.
    fn tell(&mut self, conn: &mut Conn) -> usize {
        let Some(last) = self.instants().next_back() else { return 0 };
        conn.last = last;
        let mut more = 0;
        if let (Stage::Http(http), Some((choice, kind))) = (&mut conn.stage, self.shape.known()) {
            more = http.calls.again(self.exchange, |call| call.again(self.instants(), choice, kind, self.bytes.into()));
        }
        (self.kept, self.bytes) = (0, 0);
        more
    }
}

/// The lanes of all connections. The first one is nobody's.
#[derive(Debug)]
pub(super) struct Lanes {
    all: Vec<Lane>,
    free: Vec<Tag>,
    /// What calls have lent: in one block, so that those of a thousand streams lie in a few pages. The first place is nobody's.
    decoders: Vec<Option<Decoder>>,
    free_decoders: Vec<u32>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { all: vec![Lane::default()], free: Vec::new(), decoders: vec![None], free_decoders: Vec::new() }
    }
}

impl Lanes {
    #[inline]
    pub(super) fn get(&self, tag: Tag) -> Option<&Lane> {
        self.all.get(tag as usize)
    }

    /// Tells the connection's call what its lane has kept, and closes the lane.
    #[inline]
    pub(super) fn settle(&mut self, conn: &mut Conn) {
        if conn.lane > 0
            && let Some(lane) = self.all.get_mut(conn.lane as usize)
        {
            lane.open = false;
            lane.tell(conn);
            let (exchange, coded) = (lane.exchange, std::mem::take(&mut lane.coded));
            if let Some(decoder) = self.vacate(coded)
                && let Stage::Http(http) = &mut conn.stage
            {
                http.calls.give_back(exchange, decoder);
            }
        }
    }

    /// What undoes the coding of a lane's chunks, if they are compressed.
    #[inline]
    pub(super) fn decoder(&self, lane: &Lane) -> Option<&Decoder> {
        self.decoders.get(lane.coded as usize)?.as_ref()
    }

    /// A place for a decoder.
    fn place(&mut self, decoder: Decoder) -> u32 {
        let free = self.free_decoders.pop().and_then(|n| Some((n, self.decoders.get_mut(n as usize)?)));
        if let Some((n, place)) = free {
            *place = Some(decoder);
            return n;
        }
        self.decoders.push(Some(decoder));
        // no more of them than lanes
        (self.decoders.len() - 1) as u32
    }

    /// Takes the decoder from its place.
    fn vacate(&mut self, coded: u32) -> Option<Decoder> {
        let decoder = self.decoders.get_mut(coded as usize)?.take()?;
        self.free_decoders.push(coded);
        Some(decoder)
    }

    /// When the connection was last heard of.
    pub(super) fn last(&self, conn: &Conn) -> Timestamp {
        self.get(conn.lane).and_then(|lane| lane.instants().next_back()).unwrap_or(conn.last)
    }

    /// Opens the connection's lane if its next event may be like the last one.
    #[inline]
    pub(super) fn open(&mut self, id: ConnId, conn: &mut Conn) {
        let Stage::Http(http) = &mut conn.stage else { return };
        let Some((exchange, shape)) = http.steady() else {
            if conn.lane > 0 && http.calls.is_empty() {
                self.close(conn);
            }
            return;
        };
        if conn.lane == 0 {
            conn.lane = self.free.pop().unwrap_or(self.all.len() as Tag);
            if conn.lane as usize == self.all.len() {
                self.all.push(Lane::default());
            }
        }
        if let Some(lane) = self.all.get_mut(conn.lane as usize) {
            if !lane.shape.is(shape) {
                lane.shape = shape.clone();
            }
            (lane.conn, lane.exchange, lane.dir, lane.open) = (id, exchange, http.session.requests().flip(), true);
            if let Some(decoder) = http.calls.lend(exchange) {
                let coded = self.place(decoder);
                self.all.get_mut(conn.lane as usize).into_iter().for_each(|lane| lane.coded = coded);
            }
        }
    }

    /// The connection needs no lane any more.
    pub(super) fn close(&mut self, conn: &mut Conn) {
        if conn.lane > 0
            && let Some(lane) = self.all.get_mut(conn.lane as usize)
        {
            let coded = std::mem::take(lane).coded;
            self.vacate(coded);
            self.free.push(conn.lane);
            conn.lane = 0;
        }
    }
}

impl Lane {
    /// Asks for the memory of the lane itself. The result says nothing.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        u64::from(self.since[KEPT - 1]) ^ self.conn.0
    }

    /// What its next event is compared with.
    #[inline]
    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }
}

impl Pipeline {
    /// Takes the next bytes of one direction of a connection, as [`StreamEvent::Data`] does.
    pub fn data(&mut self, conn: ConnId, dir: Direction, at: Timestamp, bytes: &[u8], out: &mut Vec<Inference>) -> Verdict {
        let mut tag = self.conns.get(&conn).map_or(0, |conn| conn.lane);
        self.tagged(&mut tag, conn, dir, at, bytes, out)
    }

    /// As [`Pipeline::data`], for a tap that keeps a tag with each direction of a connection, which is set here.
    #[inline]
    pub fn tagged(
        &mut self,
        tag: &mut Tag,
        conn: ConnId,
        dir: Direction,
        at: Timestamp,
        bytes: &[u8],
        out: &mut Vec<Inference>,
    ) -> Verdict {
        self.stats.bytes += bytes.len() as u64;
        let rest = self.short(*tag, (conn, dir, at), bytes, out);
        if rest.is_empty() {
            return Verdict::Watch;
        }
        let verdict = self.long(conn, dir, at, rest, out);
        *tag = self.conns.get(&conn).map_or(0, |conn| conn.lane);
        verdict
    }

    /// What is in no lane.
    #[inline(never)]
    fn long(&mut self, conn: ConnId, dir: Direction, at: Timestamp, bytes: &[u8], out: &mut Vec<Inference>) -> Verdict {
        // On HTTP/2 the common case is one event in one frame in one piece, like the one before.
        if let Some(c) = self.conns.get_mut(&conn)
            && let Stage::Http(http) = &mut c.stage
            && let Some((id, part)) = http.session.whole_part(dir, at, bytes)
            && let Some(more) = http.calls.event(id, at, part, &mut self.stats.events)
        {
            c.last = at;
            if more == 0 {
                return Verdict::Watch;
            }
            return self.work(conn, at, out, |_, _| {});
        }
        self.parse(conn, dir, at, bytes, out)
    }

    /// Takes the chunks off the front of `bytes` that the connection's lane knows. Returns what is left.
    #[inline]
    pub(super) fn short<'a>(
        &mut self,
        tag: Tag,
        (conn, dir, at): (ConnId, Direction, Timestamp),
        mut bytes: &'a [u8],
        out: &mut Vec<Inference>,
    ) -> &'a [u8] {
        while let Some(lane) = self.lanes.all.get_mut(tag as usize)
            && lane.is_of(conn, dir)
        {
            let Some(since) = lane.place(at) else {
                self.full(tag, conn, at, out);
                continue;
            };
            let Some((data, rest)) = h1::first_chunk(bytes) else { break };
            if lane.coded > 0 {
                self.coded(tag, (conn, at, since), data, out);
                bytes = rest;
                continue;
            }
            if sse::one_event(data).and_then(|frame| lane.shape.delta(frame)).is_none() {
                break;
            }
            lane.keep(at, since, data.len());
            self.stats.events += 1;
            bytes = rest;
        }
        bytes
    }

    /// Takes a chunk of a lane whose chunks are compressed.
    #[inline]
    fn coded(&mut self, tag: Tag, (conn, at, since): (ConnId, Timestamp, u32), data: &[u8], out: &mut Vec<Inference>) {
        let Lanes { all, decoders, .. } = &mut self.lanes;
        let Some(lane) = all.get_mut(tag as usize) else { return };
        let Some(Some(decoder)) = decoders.get_mut(lane.coded as usize) else { return };
        let (held, mut rest) = (decoder.buffered(), data);
        let done = decoder.piece(&mut rest);
        // A decoder that needs more memory is counted with its call.
        if done == Ok(false) && held == decoder.buffered() && sse::one_event(decoder.text()).and_then(|f| lane.shape.delta(f)).is_some() {
            lane.keep(at, since, data.len());
            self.stats.events += 1;
            return;
        }
        let exchange = lane.exchange;
        let _ = self.work(conn, at, out, |stage, sink| {
            let Stage::Http(http) = stage else { return };
            let PipelineStats { anomalies, events: frames, .. } = &mut *sink.stats;
            let mut cx = Scratch { events: &mut *sink.events, anomalies, frames };
            http.calls.with(exchange, |call| call.response_rest(at, data.len(), done, rest, &mut cx));
        });
    }

    /// The list of a lane is full: nothing has happened that could close it, unless memory is short.
    #[inline(never)]
    fn full(&mut self, tag: Tag, id: ConnId, at: Timestamp, out: &mut Vec<Inference>) {
        let (Some(conn), Some(lane)) = (self.conns.get_mut(&id), self.lanes.all.get_mut(tag as usize)) else { return };
        let more = lane.tell(conn);
        conn.buffered += more;
        self.buffered += more;
        if self.buffered > self.options.buffer_limit {
            let _ = self.work(id, at, out, |_, _| {});
        }
    }
}
