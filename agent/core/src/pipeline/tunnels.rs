//! WebSockets on streams of HTTP/2 (RFC 8441): an extended CONNECT that was answered with 2xx is a conversation from then on, beside
//! the exchanges of the connection's other streams.

use rustc_hash::FxHashMap;

use super::sink::Sink;
use crate::anomaly::Anomaly;
use crate::http::event::{ExchangeId, HttpEvent, Side};
use crate::http::head::{RequestHead, ResponseHead};
use crate::socket::{Desk, Socket};
use crate::stream::{Direction, Timestamp};

/// The conversations on one connection, by their streams.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    /// Made for the first one, which most connections never have.
    open: Option<Box<FxHashMap<ExchangeId, Box<Socket>>>>,
    buffered: usize,
}

impl Tunnels {
    /// The request `asked` on stream `id` was answered with `answer`.
    pub(super) fn open(&mut self, id: ExchangeId, requests: Direction, asked: RequestHead, answer: ResponseHead, sink: &mut Sink<'_>) {
        match Socket::new(requests, asked, answer) {
            Some(socket) => {
                let socket = Box::new(socket.on_stream(id));
                self.buffered += socket.buffered();
                self.open.get_or_insert_default().insert(id, socket);
            }
            // What comes on the stream belongs to nobody.
            None => sink.stats.anomalies.count(Anomaly::Upgraded),
        }
    }

    /// Takes an event of one of the conversations; gives back any other.
    pub(super) fn take<'e>(
        &mut self,
        event: HttpEvent<'e>,
        requests: Direction,
        now: Timestamp,
        sink: &mut Sink<'_>,
    ) -> Option<HttpEvent<'e>> {
        let (HttpEvent::RequestBody { id, .. }
        | HttpEvent::RequestEnd { id }
        | HttpEvent::ResponseBody { id, .. }
        | HttpEvent::Gap { id, .. }
        | HttpEvent::Trailers { id, .. }
        | HttpEvent::Over { id, .. }) = event
        else {
            return Some(event);
        };
        if !self.open.as_ref().is_some_and(|open| open.contains_key(&id)) {
            return Some(event);
        }
        self.step(id, sink, |socket, desk| match event {
            HttpEvent::RequestBody { bytes, .. } => socket.data(requests, now, bytes, desk),
            HttpEvent::ResponseBody { bytes, .. } => socket.data(requests.flip(), now, bytes, desk),
            HttpEvent::Gap { of, missing, .. } => {
                let dir = if of == Side::Request { requests } else { requests.flip() };
                socket.gap(dir, now, missing, desk);
            }
            HttpEvent::RequestEnd { .. } => socket.asked_all(now, desk),
            HttpEvent::Over { how, by, at, .. } => socket.stream_over(at.unwrap_or(now), how, by, desk),
            _ => {}
        });
        if let HttpEvent::Over { .. } = event {
            self.forget(id);
        }
        None
    }

    /// Lets a conversation work. One that nobody recognises is let go, and none that goes wrong takes the connection with it.
    fn step(&mut self, id: ExchangeId, sink: &mut Sink<'_>, work: impl FnOnce(&mut Socket, &mut Desk<'_>)) {
        let Some(socket) = self.open.as_mut().and_then(|open| open.get_mut(&id)) else { return };
        let (before, mute) = (socket.buffered(), sink.mute.take());
        sink.socket(socket, work);
        self.buffered = self.buffered + socket.buffered() - before;
        if let Some(why) = std::mem::replace(&mut sink.mute, mute) {
            sink.stats.anomalies.count(why);
            self.forget(id);
        }
    }

    fn all(&self) -> impl Iterator<Item = (&ExchangeId, &Box<Socket>)> {
        self.open.iter().flat_map(|open| open.iter())
    }

    fn forget(&mut self, id: ExchangeId) {
        if let Some(socket) = self.open.as_mut().and_then(|open| open.remove(&id)) {
            self.buffered -= socket.buffered();
        }
    }

    /// Turns whose API has ended for some time are over.
    pub(super) fn give_up(&mut self, ended: impl Fn(Timestamp) -> bool, sink: &mut Sink<'_>) {
        let mut due: Vec<ExchangeId> = self.all().filter(|(_, s)| s.has_ended(&ended)).map(|(id, _)| *id).collect();
        due.sort_unstable();
        for id in due {
            self.step(id, sink, |socket, desk| socket.give_up(&ended, desk));
        }
    }

    /// Whether a turn waits for no more than time to pass.
    pub(super) fn has_ended(&self, ended: impl Fn(Timestamp) -> bool) -> bool {
        self.all().any(|(_, socket)| socket.has_ended(&ended))
    }

    /// Gives up what only percentiles need.
    pub(super) fn save(&mut self) {
        self.open.iter_mut().flat_map(|open| open.values_mut()).for_each(|socket| socket.forget_gaps());
        self.buffered = self.all().map(|(_, socket)| socket.buffered()).sum();
    }

    /// Turns that run.
    pub(super) fn in_flight(&self) -> usize {
        self.all().map(|(_, socket)| socket.in_flight()).sum()
    }

    /// Bytes that all of them have buffered.
    pub(super) fn buffered(&self) -> usize {
        self.buffered
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.is_empty())
    }
}
