//! A conversation on a WebSocket being measured: messages of both directions in, a record per turn out.
//!
//! The conversation ([`crate::dialect::conversation`]) says which message begins, belongs to and ends which turn; here are the
//! instants. What is missing in a direction is a hole in every turn that runs, and so is what ends a connection the end of each.

mod stream;
mod turn;

use crate::anomaly::Anomaly;
use crate::dialect::conversation::{Beginning, Conversation, MAX_TURNS, TurnEvent, TurnId};
use crate::dialect::{self, Dialect, FrameKind};
use crate::http::event::{EndedBy, Over, Side};
use crate::http::head::{Deflate, RequestHead, ResponseHead};
use crate::inference::Inference;
use crate::measure::{Measure, Place, Scratch};
use crate::stream::{ConnInfo, Direction, End, Timestamp};
use crate::ws::frame::Role;
use crate::ws::message::{Event, Messages};
use turn::{Opened, Turn};

/// The record's `protocol` of a turn.
pub const PROTOCOL: &str = "websocket";
/// Messages in which a conversation must show what it is, where its path does not say.
const PATIENCE: u32 = 16;
/// Ids of turns begin here, so that none is an exchange's.
const TURN_IDS: u64 = 1 << 32;

/// What a conversation needs from its surroundings.
#[derive(Debug)]
pub struct Desk<'a> {
    /// The connection.
    pub info: &'a ConnInfo,
    /// What makes ids: the pipeline's seed, the connection.
    pub identity: [u64; 2],
    /// How many bytes the hole at hand is long, where that is known.
    pub lost: Option<u64>,
    /// Where surprises and events are counted.
    pub scratch: Scratch<'a>,
    /// Where finished inferences go.
    pub out: &'a mut Vec<Inference>,
}

/// How a side ended what it had to say.
#[derive(Clone, Copy, Debug)]
struct Left {
    at: Timestamp,
    by: EndedBy,
    code: Option<u16>,
}

/// Whose conversation it is.
#[derive(Debug)]
enum Talk {
    /// Nothing said so yet: who may be meant, and after how many messages nobody is.
    Open(Vec<(&'static dyn Dialect, Box<dyn Conversation>)>, u32),
    Known(&'static dyn Dialect, Box<dyn Conversation>),
}

/// One connection that changed to WebSocket, or one stream of a connection.
#[derive(Debug)]
pub struct Socket {
    requests: Direction,
    /// Where the ids of its turns begin.
    ids: u64,
    head: RequestHead,
    answer: ResponseHead,
    up: Messages,
    down: Messages,
    talk: Talk,
    turns: Vec<Turn>,
    /// Finished turns that nobody asked for, as far as was seen: kept until the client's next bytes show that nothing of it was missing.
    unproven: Vec<Inference>,
    mark: Option<Timestamp>,
    /// Bytes of the client are missing: what it sent after them was held back until that was proven, and may come behind what answers
    /// it. Until it speaks in its turn again.
    held_back: bool,
    /// When the server was heard last.
    heard_at: Timestamp,
    /// How the client and the server said goodbye, if they have. Which of them was first is known when both have, or nothing more comes:
    /// either may have been held back.
    left: [Option<Left>; 2],
    /// Reused for one message.
    heard: Vec<TurnEvent>,
}

impl Socket {
    /// The connection whose request `head`, sent in direction `requests`, was answered with `answer`. `None` when no known API speaks
    /// so.
    pub fn new(requests: Direction, head: RequestHead, answer: ResponseHead) -> Option<Self> {
        let mut who = dialect::conversations(&head);
        let talk = match who.len() {
            0 => return None,
            1 => who.pop().map(|(dialect, conversation)| Talk::Known(dialect, conversation))?,
            _ => Talk::Open(who, PATIENCE),
        };
        let takeover = |no: fn(Deflate) -> bool| answer.deflate.map(|d| !no(d));
        Some(Self {
            requests,
            ids: TURN_IDS,
            up: Messages::new(Role::Client, takeover(|d| d.client_no_context_takeover)),
            down: Messages::new(Role::Server, takeover(|d| d.server_no_context_takeover)),
            talk,
            turns: Vec::new(),
            unproven: Vec::new(),
            mark: None,
            held_back: false,
            heard_at: Timestamp::default(),
            left: [None; 2],
            heard: Vec::new(),
            head,
            answer,
        })
    }

    /// In which direction the client's messages travel.
    pub fn requests(&self) -> Direction {
        self.requests
    }

    /// Whether nobody recognises the conversation.
    pub fn is_unknown(&self) -> bool {
        matches!(self.talk, Talk::Open(_, 0))
    }

    /// Turns that run.
    pub fn in_flight(&self) -> usize {
        self.turns.iter().filter(|t| !t.measure.timeline.terminated()).count()
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        let turns: usize = self.turns.iter().map(|t| t.measure.timeline.buffered()).sum();
        self.up.buffered() + self.down.buffered() + turns
    }

    /// Bytes skipped in both directions while frames are being looked for.
    pub fn skipped(&self) -> u64 {
        self.up.skipped() + self.down.skipped()
    }

    /// Gives up the single gaps between chunks to save memory.
    pub fn forget_gaps(&mut self) {
        self.turns.iter_mut().for_each(|t| t.measure.timeline.forget_gaps());
    }

    /// Takes the next bytes of one direction.
    pub fn data(&mut self, dir: Direction, at: Timestamp, bytes: &[u8], desk: &mut Desk<'_>) {
        if dir != self.requests {
            self.heard_at = at;
        } else if self.up.is_looking() {
            self.doubt(desk);
        } else {
            self.prove(desk);
        }
        self.listen(dir, at, desk, |messages, out| messages.push(at, bytes, out));
    }

    /// Bytes of one direction are missing.
    pub fn gap(&mut self, dir: Direction, at: Timestamp, len: Option<u64>, desk: &mut Desk<'_>) {
        if dir == self.requests {
            self.held_back = true;
            self.doubt(desk);
        }
        self.listen(dir, at, desk, |messages, out| messages.hole(len, out));
    }

    /// Nothing of the client is missing up to here: turns that it did not ask for are what they seem.
    fn prove(&mut self, desk: &mut Desk<'_>) {
        self.turns.iter_mut().for_each(|t| t.unproven = false);
        desk.out.append(&mut self.unproven);
    }

    /// Something of the client is missing, or may be: turns that it did not ask for may have begun otherwise than they seem to.
    fn doubt(&mut self, desk: &mut Desk<'_>) {
        for turn in self.turns.extract_if(.., |t| t.unproven) {
            if let Talk::Known(_, conversation) = &mut self.talk {
                conversation.forget(turn.id);
            }
            desk.scratch.anomalies.count(Anomaly::MissedStart);
        }
        self.unproven.drain(..).for_each(|_| desk.scratch.anomalies.count(Anomaly::MissedStart));
    }

    fn listen(&mut self, dir: Direction, at: Timestamp, desk: &mut Desk<'_>, step: impl FnOnce(&mut Messages, &mut dyn FnMut(Event<'_>))) {
        let (from, other) = match dir == self.requests {
            true => (Side::Request, Messages::new(Role::Client, None)),
            false => (Side::Response, Messages::new(Role::Server, None)),
        };
        // The messages lend what they hold while the rest of the socket takes it.
        let mine = if from == Side::Request { &mut self.up } else { &mut self.down };
        let mut messages = std::mem::replace(mine, other);
        step(&mut messages, &mut |event| match event {
            // What was held back is out of its order, and in a conversation order says who asked for what.
            Event::Message { .. } if from == Side::Request && self.held_back && at < self.heard_at => self.missing(from, at, desk),
            Event::Message { begun, data, bytes } => self.message(from, begun, at, (data, bytes), desk),
            Event::Lost => self.missing(from, at, desk),
            Event::Close(code) => self.leave(from, Left { at, by: EndedBy::CloseFrame, code }, desk),
            Event::Odd(what) => desk.scratch.anomalies.count(what),
        });
        match from {
            Side::Request => self.up = messages,
            Side::Response => self.down = messages,
        }
    }

    fn message(&mut self, from: Side, begun: Timestamp, at: Timestamp, (data, bytes): (&[u8], u64), desk: &mut Desk<'_>) {
        if let Talk::Open(who, left) = &mut self.talk {
            match who.iter().position(|(_, c)| c.recognises(from, data)) {
                Some(n) => {
                    let (dialect, conversation) = who.swap_remove(n);
                    self.talk = Talk::Known(dialect, conversation);
                }
                None => {
                    *left = left.saturating_sub(1);
                    return;
                }
            }
        }
        if from == Side::Request {
            self.held_back = false;
        } else if self.up.is_blind() {
            // What the client asks for meanwhile is not seen.
            self.missing(Side::Request, at, desk);
        }
        let Talk::Known(_, conversation) = &mut self.talk else { return };
        let mut heard = std::mem::take(&mut self.heard);
        desk.scratch.events.clear();
        conversation.message(from, data, &mut heard, desk.scratch.events);
        for event in heard.drain(..) {
            match event {
                TurnEvent::Begin(id, beginning) => self.begin(id, beginning, from, begun, at, bytes),
                TurnEvent::Mark => self.mark = Some(at),
                TurnEvent::Event(id, kind) => self.event(id, kind, (begun, at), bytes, &mut desk.scratch),
                TurnEvent::Aside(id) => self.event(id, FrameKind::KeepAlive, (begun, at), bytes, &mut desk.scratch),
                TurnEvent::Suspected(id) => {
                    self.event(id, FrameKind::KeepAlive, (begun, at), bytes, &mut desk.scratch);
                    if let Some(turn) = self.turns.iter_mut().find(|t| t.id == id) {
                        turn.suspect = true;
                        turn.measure.timeline.terminator(at);
                    }
                }
                TurnEvent::Pardoned(id) => {
                    if let Some(turn) = self.turns.iter_mut().find(|t| t.id == id) {
                        turn.pardon();
                        // If the error was its own after all, the response is one's whose request is missing.
                        turn.unproven = true;
                    }
                }
                TurnEvent::Over(id) => self.over(id, at, Over::Complete, EndedBy::Terminator, None, desk),
                TurnEvent::Lost(id) => self.lost(id, at, desk),
                TurnEvent::Odd(what) => desk.scratch.anomalies.count(what),
            }
        }
        self.heard = heard;
    }

    fn begin(&mut self, id: TurnId, beginning: Beginning, from: Side, begun: Timestamp, at: Timestamp, bytes: u64) {
        let mark = self.mark.take();
        let start = match (&beginning, from) {
            (Beginning::Here(_), Side::Request) => begun,
            (Beginning::AtMark, _) => mark.unwrap_or(at),
            _ => at,
        };
        let mut measure = Measure::new(start);
        let mut request_bytes = 0;
        let unproven = !matches!(beginning, Beginning::Here(_));
        let asked = match beginning {
            Beginning::Here(asked) => {
                request_bytes = bytes;
                measure.timeline.request_sent(at);
                asked
            }
            Beginning::AtMark => Box::default(),
            Beginning::Unseen => {
                measure.timeline.start_unseen();
                Box::default()
            }
        };
        if self.down.is_blind() {
            measure.hole(at, None);
        }
        self.turns.push(Turn { id, measure, asked, request_bytes, response_bytes: 0, suspect: false, unproven });
    }

    fn event(&mut self, id: TurnId, kind: FrameKind, (begun, at): (Timestamp, Timestamp), bytes: u64, cx: &mut Scratch<'_>) {
        let Some(turn) = self.turns.iter_mut().find(|t| t.id == id) else { return cx.events.clear() };
        match kind {
            // No event of its own: only what it says counts.
            FrameKind::KeepAlive => turn.measure.aside(cx),
            kind => {
                turn.response_bytes += bytes;
                turn.measure.timeline.body(begun);
                turn.measure.event(at, kind, true, cx);
            }
        }
    }

    /// Messages of a side are missing.
    fn missing(&mut self, from: Side, at: Timestamp, desk: &mut Desk<'_>) {
        let ask = self.turns.iter_mut().filter(|t| !t.measure.timeline.terminated());
        match from {
            Side::Request => {}
            Side::Response => ask.for_each(|t| t.measure.missing(at, desk.lost)),
        }
        let Talk::Known(_, conversation) = &mut self.talk else { return };
        let mut heard = std::mem::take(&mut self.heard);
        conversation.missing(from, &mut heard);
        for event in heard.drain(..) {
            match event {
                TurnEvent::Lost(id) => self.lost(id, at, desk),
                TurnEvent::Over(id) => self.over(id, at, Over::Complete, EndedBy::Terminator, None, desk),
                _ => {}
            }
        }
        self.heard = heard;
    }

    /// A turn's end was not seen.
    fn lost(&mut self, id: TurnId, at: Timestamp, desk: &mut Desk<'_>) {
        if let Some(turn) = self.turns.iter_mut().find(|t| t.id == id) {
            turn.measure.missing(at, desk.lost);
        }
        self.over(id, at, Over::Lost, EndedBy::Lost, None, desk);
    }

    fn over(&mut self, id: TurnId, at: Timestamp, how: Over, by: EndedBy, code: Option<u16>, desk: &mut Desk<'_>) {
        let Some(n) = self.turns.iter().position(|t| t.id == id) else { return };
        let mut turn = self.turns.remove(n);
        if self.down.is_blind() && !turn.measure.timeline.terminated() {
            turn.measure.missing(at, desk.lost);
        }
        if matches!(how, Over::InputEnded | Over::Evicted | Over::Lost) {
            // What would have shown whose error it was is not there.
            turn.pardon();
        }
        let Talk::Known(dialect, conversation) = &self.talk else { return };
        let opened = Opened { head: &self.head, answer: &self.answer, dialect: *dialect, model: conversation.model() };
        let unproven = turn.unproven;
        let identity = [desk.identity[0], desk.identity[1], self.ids.wrapping_add(id)];
        let place = Place { info: desk.info, requests: self.requests, protocol: PROTOCOL, identity };
        let done = turn.record((at, how, by, code), opened, &place);
        if !unproven {
            desk.out.push(done);
        } else if self.unproven.len() < MAX_TURNS {
            self.unproven.push(done);
        } else {
            desk.scratch.anomalies.count(Anomaly::MissedStart);
        }
    }

    /// Every turn is over.
    fn all_over(&mut self, at: Timestamp, how: Over, by: EndedBy, code: Option<u16>, desk: &mut Desk<'_>) {
        while let Some(id) = self.turns.first().map(|t| t.id) {
            if let Talk::Known(_, conversation) = &mut self.talk {
                conversation.forget(id);
            }
            self.over(id, at, how, by, code, desk);
        }
    }

    /// A side says goodbye.
    fn leave(&mut self, from: Side, left: Left, desk: &mut Desk<'_>) {
        self.left[usize::from(from == Side::Response)].get_or_insert(left);
        if self.left.iter().all(Option::is_some) {
            self.ended(left.at, Over::ServerClosed, left.by, desk);
        }
    }

    /// The connection or one half of it ended.
    pub fn close(&mut self, end: End, at: Timestamp, desk: &mut Desk<'_>) {
        let by = EndedBy::from(end);
        let left = Left { at, by, code: None };
        let how = match end {
            End::Finished(dir) if dir == self.requests => {
                self.prove(desk);
                return self.leave(Side::Request, left, desk);
            }
            End::Finished(_) => Over::ServerClosed,
            End::Reset(dir) if dir == self.requests => Over::ClientClosed,
            End::Reset(_) => Over::ServerReset,
            // The process at `local` let go: the client when requests go forward, else the server.
            End::Released if self.requests == Direction::Forward => Over::ClientClosed,
            End::Released => Over::ServerClosed,
            // A server that lets go without a goodbye has lost its client; a client that does so aborts.
            End::Abandoned => Over::ClientClosed,
            End::Idle => Over::Timeout,
            End::Evicted => Over::Evicted,
            End::InputEnded => Over::InputEnded,
        };
        self.ended(at, how, by, desk);
        self.doubt(desk);
    }

    /// Nothing more comes: every turn is over, by whoever said goodbye first.
    fn ended(&mut self, at: Timestamp, how: Over, by: EndedBy, desk: &mut Desk<'_>) {
        let [client, server] = self.left;
        let first = match (client, server) {
            (Some(c), Some(s)) => Some((c.at <= s.at, if c.at <= s.at { c } else { s })),
            (Some(c), None) => Some((true, c)),
            (None, s) => s.map(|s| (false, s)),
        };
        // A goodbye of the client's may be among what is missing of it.
        let hidden = self.held_back || self.up.is_looking();
        match first {
            _ if how == Over::Evicted => self.all_over(at, how, by, None, desk),
            Some((true, left)) => self.all_over(left.at, Over::ClientClosed, left.by, None, desk),
            Some((false, _)) if hidden => self.all_over(at, Over::Lost, EndedBy::Lost, None, desk),
            Some((false, left)) => self.all_over(left.at, Over::ServerClosed, left.by, left.code, desk),
            None if hidden && matches!(how, Over::ServerClosed | Over::ServerReset) => {
                self.all_over(at, Over::Lost, EndedBy::Lost, None, desk)
            }
            None => self.all_over(at, how, by, None, desk),
        }
    }

    /// Turns whose API has ended for some time, while the conversation goes on: they are over.
    pub fn give_up(&mut self, ended: impl Fn(Timestamp) -> bool, desk: &mut Desk<'_>) {
        while let Some((id, at)) = self.turns.iter().find_map(|t| Some((t.id, t.measure.timeline.terminator_at().filter(|at| ended(*at))?)))
        {
            if let Talk::Known(_, conversation) = &mut self.talk {
                conversation.forget(id);
            }
            self.over(id, at, Over::Complete, EndedBy::Terminator, None, desk);
        }
        // The server has said goodbye, and the client has not answered.
        if let Some(left) = self.left[1].filter(|left| ended(left.at)) {
            self.ended(left.at, Over::ServerClosed, left.by, desk);
        }
    }

    /// Whether a turn waits for no more than time to pass.
    pub fn has_ended(&self, ended: impl Fn(Timestamp) -> bool) -> bool {
        !self.turns.is_empty() && self.left[1].is_some_and(|left| ended(left.at))
            || self.turns.iter().any(|t| t.measure.timeline.terminator_at().is_some_and(&ended))
    }
}
