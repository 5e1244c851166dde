//! One HTTP/2 connection: its streams, each an exchange (RFC 9113 §5, §8.1).
//!
//! The id of an exchange is its stream's, plus what was exchanged in HTTP/1.1 before an upgrade. Streams with even ids (server push) are
//! read for the header tables' sake only.
//!
//! Holes. One of known length within DATA concerns that stream alone. After any other, frames of any kind may be missing: every
//! open stream has a gap in that direction, its end may be lost, and header fields may refer to what was not seen.
//!
//! What stands behind a hole comes late, with instants that the other direction has passed already: a tap waits whether the hole is
//! filled. So a stream that its client resets is over only when the server's direction has come that far ([`Session::settle_left`]).

use rustc_hash::FxHashMap;

use super::block::{Block, Headers};
use super::fields::{Head, Kind};
use super::frame::{Begins, Hole, Part};
use super::half::Half;
use crate::anomaly::Anomaly;
use crate::http::event::{EndedBy, ExchangeId, HttpEvent, Over, Side};
use crate::stream::{Direction, End, Timestamp};
use crate::tenant::Tenants;
use std::sync::Arc;
use std::time::Duration;

/// Streams that may be open on one connection.
pub const MAX_STREAMS: usize = 1 << 17;

/// How long what stands behind a hole may be held back: longer than any tap does.
const HELD_BACK: Duration = Duration::from_secs(4);

/// No length, or one that no answer of ours has: four bytes are what a hundred thousand streams can afford.
const UNPROMISED: u32 = u32::MAX;

fn due(length: Option<u64>) -> u32 {
    length.and_then(|l| u32::try_from(l).ok()).unwrap_or(UNPROMISED)
}

type Out<'o> = &'o mut dyn FnMut(HttpEvent<'_>);

/// An exchange that is not over.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// When something of it came last.
    last: Timestamp,
    /// Whether the request is complete.
    asked: bool,
    /// Whether the final response's head was seen.
    answered: bool,
    /// Whether a hole may hide its end.
    adrift: bool,
    /// Whether the client has reset it.
    left: bool,
    /// How many bytes of the request, and once it is answered of the response, its `content-length` still promises (RFC 9113 §8.1.1).
    /// Some send END_STREAM in a frame of its own: a server that has the whole request may answer before it comes, and a client that
    /// has the whole answer may leave (curl does). `UNPROMISED` where no length was told.
    due: u32,
}

impl Stream {
    fn new(last: Timestamp) -> Self {
        Self { last, asked: false, answered: false, adrift: false, left: false, due: UNPROMISED }
    }
}

/// The streams of one connection.
#[derive(Debug)]
pub struct Session {
    requests: Direction,
    /// Whether `requests` is more than a guess.
    sure: bool,
    up: Half,
    down: Half,
    streams: FxHashMap<u32, Stream>,
    /// The stream whose response data came last, and when: no need to look it up again. 0 for none.
    recent: (u32, Timestamp),
    /// What exchange ids are above stream ids, wrapping.
    base: ExchangeId,
    /// The highest stream that a client opened.
    highest: u32,
    /// Whether requests may have been missed.
    missed: bool,
    /// The highest stream of whose response something came before its request. What a tap held back because of a hole comes late.
    too_early: u32,
    /// The last stream that the server will answer.
    last_answered: u32,
    /// Streams that their client has reset, and when.
    left: Vec<(Timestamp, u32)>,
    client_finished: bool,
    now: Timestamp,
}

impl Session {
    /// A connection from its beginning, whose requests travel in direction `requests`.
    pub fn new(requests: Direction) -> Self {
        Self::of(requests, true, [Begins::WithPreface, Begins::WithFrame])
    }

    /// A connection that was joined in its middle. Which direction requests travel in is told by the first header block.
    pub fn joined() -> Self {
        Self { missed: true, ..Self::of(Direction::Forward, false, [Begins::Anywhere; 2]) }
    }

    /// A connection that changed from HTTP/1.1 (RFC 7540 §3.2): its exchange `id`, whose request is complete, goes on as stream 1.
    pub fn upgraded(requests: Direction, id: ExchangeId) -> Self {
        let mut session = Self { base: id.wrapping_sub(1), highest: 1, ..Self::new(requests) };
        session.streams.insert(1, Stream { asked: true, ..Stream::new(Timestamp::default()) });
        // What the client reads with stands in a field of its request.
        session.down.fields.allow(u32::MAX);
        session
    }

    fn of(requests: Direction, sure: bool, [up, down]: [Begins; 2]) -> Self {
        Self {
            requests,
            sure,
            up: Half::new(up),
            down: Half::new(down),
            streams: FxHashMap::default(),
            recent: (0, Timestamp::default()),
            base: 0,
            highest: 0,
            missed: false,
            too_early: 0,
            last_answered: u32::MAX,
            left: Vec::new(),
            client_finished: false,
            now: Timestamp::default(),
        }
    }

    /// Says of requests whose they are. Until it is known which direction they travel in, either may be theirs.
    pub fn naming(&mut self, tenants: Option<&Arc<Tenants>>) {
        self.up.naming(tenants);
        self.down.naming(tenants);
    }

    /// In which direction requests travel.
    pub fn requests(&self) -> Direction {
        self.requests
    }

    /// Whether frames were found in either direction.
    pub fn has_footing(&self) -> bool {
        self.up.frames.has_footing() || self.down.frames.has_footing()
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        let halves = [&self.up, &self.down].map(|h| h.frames.buffered() + h.fields.buffered());
        halves[0] + halves[1] + self.streams.capacity() * size_of::<(u32, Stream)>() + self.left.capacity() * size_of::<(Timestamp, u32)>()
    }

    /// Bytes skipped in both directions since a frame was found.
    pub fn skipped(&self) -> u64 {
        self.up.frames.skipped() + self.down.frames.skipped()
    }

    /// Whose body's next part `bytes` are, and that part, if they are one frame of DATA and nothing follows from it.
    #[inline]
    pub fn whole_part<'a>(&mut self, dir: Direction, at: Timestamp, bytes: &'a [u8]) -> Option<(ExchangeId, &'a [u8])> {
        if dir == self.requests || !self.left.is_empty() {
            return None;
        }
        let (stream, data) = self.down.frames.whole_data(bytes)?;
        // Where a length is counted down, each byte is to be seen once.
        if self.recent.0 != stream && self.streams.get(&stream).is_none_or(|s| s.due != UNPROMISED) {
            return None;
        }
        self.now = at;
        self.is_answered(stream, at, data.len()).then(|| (self.id(stream), data))
    }

    /// Asks for the memory that [`Session::whole_part`] will need. The result says nothing.
    pub fn touch(&self) -> u64 {
        u64::from(self.recent.0) ^ self.base
    }

    /// Takes the next bytes of one direction. Returns what is left of them when it was learnt who is the client: what comes now is to
    /// be taken with that in mind.
    pub fn data<'a>(&mut self, dir: Direction, at: Timestamp, mut bytes: &'a [u8], out: Out<'_>) -> &'a [u8] {
        self.now = at;
        if dir != self.requests {
            self.settle_left(at, out);
        }
        loop {
            let is_request = dir == self.requests;
            let Self { up, down, streams, .. } = self;
            let half = if is_request { up } else { down };
            let Some(part) = half.frames.next(at, &mut bytes, &|stream| streams.contains_key(&stream)) else { return &[] };
            match part {
                Part::Data(stream, bytes) if is_request => self.request_data(stream, at, bytes, out),
                Part::Data(stream, bytes) => self.response_data(stream, at, bytes, out),
                Part::Headers(Headers { stream, begun, end, block }) => {
                    let in_hole = block == Block::Lost;
                    let head = half.read(block, out);
                    if in_hole {
                        self.head_lost(is_request, stream, out);
                    }
                    if !self.sure && stream % 2 == 1 {
                        if self.decide(dir, head.kind()) {
                            self.headers(dir == self.requests, (stream, begun, end), head, out);
                            return bytes;
                        }
                    } else {
                        self.headers(is_request, (stream, begun, end), head, out);
                    }
                }
                Part::End(stream) if is_request => self.request_ends(stream, at, out),
                Part::End(stream) => self.response_ends(stream, out),
                Part::Reset(stream) if is_request => self.leave(stream, at),
                Part::Reset(stream) => self.over(stream, Over::ServerReset, EndedBy::StreamReset, out),
                Part::Goaway(last) if !is_request => self.goaway(last, out),
                Part::Goaway(_) => {}
                // Whoever says it reads with such a table what the other one writes.
                Part::TableSize(size) if is_request => self.down.fields.allow(size),
                Part::TableSize(size) => self.up.fields.allow(size),
                Part::BlockMissed => half.fields.lose(),
                Part::Lost => {
                    out(HttpEvent::Odd(Anomaly::BadFrame));
                    self.framing_lost(is_request, out);
                }
                Part::Odd(what) => out(HttpEvent::Odd(what)),
            }
        }
    }

    fn id(&self, stream: u32) -> ExchangeId {
        self.base.wrapping_add(stream.into())
    }

    /// Learns from a header block that came in direction `dir` who is the client.
    fn decide(&mut self, dir: Direction, kind: Kind) -> bool {
        let requests = match kind {
            Kind::Request => dir,
            Kind::Response => dir.flip(),
            Kind::Trailers | Kind::Unclear => return false,
        };
        if requests != self.requests {
            // There is no exchange yet.
            self.requests = requests;
            std::mem::swap(&mut self.up, &mut self.down);
        }
        self.sure = true;
        true
    }

    fn headers(&mut self, is_request: bool, (stream, begun, end): (u32, Timestamp, bool), head: Head, out: Out<'_>) {
        if stream % 2 == 0 {
            return;
        }
        if is_request {
            self.request_head((stream, begun, end), head, out);
        } else {
            self.response_head((stream, begun, end), head, out);
        }
    }

    fn request_head(&mut self, (stream, begun, end): (u32, Timestamp, bool), head: Head, out: Out<'_>) {
        if self.streams.contains_key(&stream) {
            // Trailers.
            if end {
                self.request_ends(stream, self.now, out);
            }
            return;
        }
        // Ids rise: a lower one is that of a stream that is over.
        if stream <= self.highest || head.kind() == Kind::Trailers {
            return;
        }
        self.highest = stream;
        if self.streams.len() >= MAX_STREAMS {
            out(HttpEvent::Odd(Anomaly::PipelineTooDeep));
            return;
        }
        self.streams.insert(stream, Stream { asked: end, due: due(head.length), ..Stream::new(self.now) });
        let id = self.id(stream);
        out(HttpEvent::Request { id, begun, head: head.request(end) });
        if end {
            out(HttpEvent::RequestEnd { id });
        }
        if stream <= self.too_early {
            self.head_lost(false, stream, out);
        }
        if stream > self.last_answered {
            self.over(stream, Over::ServerClosed, EndedBy::Goaway, out);
        }
    }

    /// A head of a stream is in a hole or was passed over.
    fn head_lost(&mut self, is_request: bool, stream: u32, out: Out<'_>) {
        let of = if is_request { Side::Request } else { Side::Response };
        if let Some(s) = self.streams.get_mut(&stream).filter(|s| !(is_request && s.asked)) {
            s.adrift = true;
            out(HttpEvent::Gap { id: self.id(stream), of, body_goes_on: false, missing: None });
        }
    }

    fn request_data(&mut self, stream: u32, at: Timestamp, bytes: &[u8], out: Out<'_>) {
        let id = self.id(stream);
        let Some(s) = self.streams.get_mut(&stream).filter(|s| !s.asked) else { return };
        s.last = at;
        let promised = s.due != UNPROMISED && !s.answered;
        // What goes beyond is no part of it, whatever pieces it comes in (RFC 9113 §8.1.1: malformed).
        let mine = if promised { bytes.len().min(s.due as usize) } else { bytes.len() };
        if promised {
            s.due -= mine as u32;
        }
        let whole = promised && s.due == 0;
        if mine > 0 {
            out(HttpEvent::RequestBody { id, bytes: &bytes[..mine] });
        }
        if whole {
            self.request_ends(stream, at, out);
        }
    }

    fn request_ends(&mut self, stream: u32, at: Timestamp, out: Out<'_>) {
        let id = self.id(stream);
        if let Some(s) = self.streams.get_mut(&stream).filter(|s| !s.asked) {
            (s.asked, s.last) = (true, at);
            out(HttpEvent::RequestEnd { id });
        }
    }

    fn response_data(&mut self, stream: u32, at: Timestamp, bytes: &[u8], out: Out<'_>) {
        if self.is_answered(stream, at, bytes.len()) {
            out(HttpEvent::ResponseBody { id: self.id(stream), bytes });
        }
    }

    /// Whether response data of `stream` at `at` is part of a response whose head was seen. What comes before a head is left of a response
    /// whose head is lost.
    fn is_answered(&mut self, stream: u32, at: Timestamp, length: usize) -> bool {
        if self.recent.0 != stream {
            self.settle_recent();
            let Some(s) = self.streams.get_mut(&stream).filter(|s| s.answered) else {
                self.note_early(stream);
                return false;
            };
            if s.due != UNPROMISED {
                // What is counted is looked up each time; streamed answers promise no length.
                (s.due, s.last) = (s.due.saturating_sub(u32::try_from(length).unwrap_or(u32::MAX)), at);
                return true;
            }
        }
        self.recent = (stream, at);
        true
    }

    fn note_early(&mut self, stream: u32) {
        if stream % 2 == 1 && stream > self.highest {
            self.too_early = self.too_early.max(stream);
        }
    }

    /// Writes down when the stream came last that was not looked up.
    fn settle_recent(&mut self) {
        let (stream, last) = std::mem::take(&mut self.recent);
        if let Some(s) = self.streams.get_mut(&stream).filter(|_| stream != 0) {
            s.last = last;
        }
    }

    fn response_head(&mut self, (stream, begun, end): (u32, Timestamp, bool), head: Head, out: Out<'_>) {
        let id = self.id(stream);
        let Some(s) = self.streams.get_mut(&stream) else {
            let is_final = head.kind() == Kind::Response && head.status().is_none_or(|s| s >= 200);
            // Behind the end of a stream its last frames may still be under way.
            if is_final && (self.missed || stream > self.highest) {
                out(HttpEvent::Odd(Anomaly::OrphanResponse));
            }
            self.note_early(stream);
            return;
        };
        s.last = self.now;
        let (grpc_status, partial) = (head.grpc_status(), head.is_partial());
        if s.answered {
            out(HttpEvent::Trailers { id, grpc_status, partial });
        } else {
            match head.status() {
                Some(..200) if !end => return,
                Some(status) => {
                    (s.answered, s.due) = (true, due(head.length));
                    out(HttpEvent::Response { id, begun, head: head.response(status, end) });
                    if end && (grpc_status.is_some() || partial) {
                        out(HttpEvent::Trailers { id, grpc_status, partial });
                    }
                }
                // What comes cannot be read without it.
                None if partial && s.adrift => {}
                None if partial => self.head_lost(false, stream, out),
                None => {
                    s.adrift = true;
                    out(HttpEvent::Odd(Anomaly::BadHead));
                }
            }
        }
        if end {
            self.response_ends(stream, out);
        }
    }

    fn response_ends(&mut self, stream: u32, out: Out<'_>) {
        let answered = self.streams.get(&stream).is_some_and(|s| s.answered);
        let (how, by) = if answered { (Over::Complete, EndedBy::EndStream) } else { (Over::Lost, EndedBy::Lost) };
        self.over(stream, how, by, out);
    }

    fn goaway(&mut self, last: u32, out: Out<'_>) {
        self.last_answered = last;
        for stream in self.sorted(|stream, _| stream > last) {
            self.over(stream, Over::ServerClosed, EndedBy::Goaway, out);
        }
    }

    /// The client has reset a stream.
    fn leave(&mut self, stream: u32, at: Timestamp) {
        if let Some(s) = self.streams.get_mut(&stream).filter(|s| !s.left) {
            // What it goes on to send is not asked any more.
            (s.left, s.asked) = (true, true);
            self.left.push((at, stream));
        }
    }

    /// Streams that their client has reset until `until` are over: the server's direction has come that far, or will come no further.
    fn settle_left(&mut self, until: Timestamp, out: Out<'_>) {
        let due = self.left.iter().take_while(|(at, _)| *at <= until).count();
        for (at, stream) in self.left.drain(..due).collect::<Vec<_>>() {
            self.over_at(stream, Over::ClientClosed, EndedBy::StreamReset, Some(at), out);
        }
    }

    /// A stream is over.
    fn over(&mut self, stream: u32, how: Over, by: EndedBy, out: Out<'_>) {
        self.over_at(stream, how, by, None, out);
    }

    fn over_at(&mut self, stream: u32, how: Over, by: EndedBy, at: Option<Timestamp>, out: Out<'_>) {
        if self.recent.0 == stream {
            self.recent = Default::default();
        }
        if let Some(s) = self.streams.remove(&stream) {
            let cut = matches!(how, Over::ClientClosed | Over::ServerClosed | Over::ServerReset);
            let how = if cut && s.answered && s.due == 0 && !s.adrift { Over::Complete } else { how };
            out(HttpEvent::Over { id: self.id(stream), how, by, at });
        }
    }

    /// The streams of which `which` holds, in their order.
    fn sorted(&self, which: impl Fn(u32, &Stream) -> bool) -> Vec<u32> {
        let mut found: Vec<u32> = self.streams.iter().filter(|(n, s)| which(**n, s)).map(|(n, _)| *n).collect();
        found.sort_unstable();
        found
    }

    /// Bytes of one direction are missing.
    pub fn gap(&mut self, dir: Direction, at: Timestamp, len: Option<u64>, out: Out<'_>) {
        let is_request = dir == self.requests;
        let half = if is_request { &mut self.up } else { &mut self.down };
        match half.frames.hole(len) {
            Hole::InData { stream, missing } => {
                let (of, open) = match self.streams.get_mut(&stream) {
                    Some(s) if is_request => {
                        s.due = if s.answered { s.due } else { UNPROMISED };
                        (Side::Request, !s.asked)
                    }
                    Some(s) => {
                        s.due = UNPROMISED;
                        (Side::Response, true)
                    }
                    None => (Side::Response, false),
                };
                if open {
                    out(HttpEvent::Gap { id: self.id(stream), of, body_goes_on: true, missing });
                }
            }
            Hole::InFrame => {}
            Hole::FramingLost => self.framing_lost(is_request, out),
        }
        // What the hole completed.
        self.data(dir, at, &[], out);
    }

    /// Frames of any kind may be missing in one direction.
    fn framing_lost(&mut self, is_request: bool, out: Out<'_>) {
        let (half, of) = if is_request { (&mut self.up, Side::Request) } else { (&mut self.down, Side::Response) };
        half.fields.lose();
        self.missed |= is_request;
        for stream in self.sorted(|_, _| true) {
            let id = self.id(stream);
            if let Some(s) = self.streams.get_mut(&stream) {
                s.adrift = true;
                s.due = if is_request == s.answered { s.due } else { UNPROMISED };
                if !(is_request && s.asked) {
                    out(HttpEvent::Gap { id, of, body_goes_on: false, missing: None });
                }
            }
        }
    }

    /// The connection or one half of it ended.
    pub fn close(&mut self, end: End, out: Out<'_>) {
        let how = match end {
            End::Finished(dir) if dir == self.requests => {
                self.client_finished = true;
                return;
            }
            End::Reset(dir) if dir != self.requests && !self.client_finished => Over::ServerReset,
            // The process at `local` let go: the client when requests go forward, else the server.
            End::Released if self.requests == Direction::Reverse && !self.client_finished => Over::ServerClosed,
            End::Finished(_) if !self.client_finished => Over::ServerClosed,
            // A server that lets go without a goodbye has lost its client; a client that does so aborts.
            End::Finished(_) | End::Reset(_) | End::Released | End::Abandoned => Over::ClientClosed,
            End::Idle => Over::Timeout,
            End::Evicted => Over::Evicted,
            End::InputEnded if self.client_finished => Over::ClientClosed,
            End::InputEnded => Over::InputEnded,
        };
        self.up.frames.deafen();
        self.down.frames.deafen();
        self.settle_left(Timestamp::from_unix_nanos(u64::MAX), out);
        let ours = matches!(how, Over::Evicted | Over::InputEnded);
        for stream in self.sorted(|_, _| true) {
            let adrift = self.streams.get(&stream).is_some_and(|s| s.adrift) && !ours;
            self.over(stream, if adrift { Over::Lost } else { how }, EndedBy::from(end), out);
        }
    }

    /// An exchange's response has reached its API's end, though not its stream's.
    pub fn give_up(&mut self, id: ExchangeId, out: Out<'_>) {
        if let Ok(stream) = u32::try_from(id.wrapping_sub(self.base)) {
            self.over(stream, Over::Complete, EndedBy::Terminator, out);
        }
    }

    /// Streams of which nothing came for `idle` are over, whatever the others do.
    pub fn expire(&mut self, now: Timestamp, idle: Duration, out: Out<'_>) {
        self.settle_recent();
        // No later than now, and no earlier than it can be known.
        let settled = now.unix_nanos().saturating_sub(HELD_BACK.as_nanos() as u64);
        self.settle_left(Timestamp::from_unix_nanos(settled), out);
        for stream in self.sorted(|_, s| now.since(s.last) >= idle) {
            let adrift = self.streams.get(&stream).is_some_and(|s| s.adrift);
            self.over(stream, if adrift { Over::Lost } else { Over::Timeout }, EndedBy::Idle, out);
        }
        if self.streams.capacity() > 64 && self.streams.len() < self.streams.capacity() / 8 {
            self.streams.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests;
