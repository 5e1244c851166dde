//! The turns of OpenAI's conversations: Realtime, and Responses on a WebSocket. In both a client's `response.create` asks for a response,
//! and `response.created` names it.
//!
//! Realtime: events carry the id of their response, so that overlapping ones are told apart. Who speaks asks without a
//! `response.create`: the turn began when the server committed what was said. Responses: events carry no id but a lane
//! (`stream_id`), in which responses follow each other.
//!
//! Which `response.create` a new response answers is told by order, for nothing else tells it. Where messages are missing the order
//! says nothing: a turn that cannot be told from another is given up, and a response whose beginning may be missing is nobody's.

use serde::Deserialize;

use crate::anomaly::Anomaly;
use crate::framing::Frame;
use crate::http::event::Side;
use crate::name::Name;

use super::body::{Asked, Class, ErrorField, Object, Word, object};
use super::conversation::{Beginning, Conversation, MAX_TURNS, TurnEvent, TurnId};
use super::responses::EventReader;
use super::{FrameKind, LlmEvent, Reader};

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Realtime.
    Realtime,
    /// Responses.
    Responses,
}

/// A turn that is not over.
#[derive(Debug)]
struct Turn {
    id: TurnId,
    /// Its lane, where lanes are named.
    lane: Option<Name>,
    /// The client's own name for what it asked.
    event: Option<Name>,
    /// The response; `None` while the turn waits for one.
    response: Option<Name>,
    reader: EventReader,
    /// Whether messages of the server are missing since it was last heard of.
    doubtful: bool,
    /// Whether an error is held against it.
    suspect: bool,
}

/// The turns of one connection.
#[derive(Debug)]
pub(super) struct Turns {
    kind: Kind,
    next: TurnId,
    turns: Vec<Turn>,
    model: Option<Name>,
    /// What was said by voice was committed, and no response to it was created.
    marked: bool,
    /// Whether anybody speaks: then responses come without having been asked for by a message.
    voice: bool,
    /// Responses that may still come to turns that were given up.
    owed: usize,
    /// Messages of the client, of the server, are missing since a response ended that was nobody's.
    unsure: [bool; 2],
    /// Responses that were given up.
    gone: Vec<Name>,
}

/// What tells one message from another.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Envelope<'a> {
    #[serde(borrow)]
    r#type: Word<'a>,
    #[serde(borrow)]
    event_id: Word<'a>,
    #[serde(borrow)]
    response_id: Word<'a>,
    #[serde(borrow)]
    stream_id: Word<'a>,
    #[serde(borrow)]
    response: Object<Response<'a>>,
    #[serde(borrow)]
    session: Object<Session<'a>>,
    #[serde(borrow)]
    error: Object<Refusal<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Response<'a> {
    #[serde(borrow)]
    id: Word<'a>,
    #[serde(borrow)]
    status: Word<'a>,
    status_details: Object<Details>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details {
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Session<'a> {
    #[serde(borrow)]
    model: Word<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Refusal<'a> {
    #[serde(borrow)]
    event_id: Word<'a>,
    r#type: Class,
    code: Class,
}

/// What a client's `response.create` asks for: beside its type (Responses), or in an object of its own (Realtime).
#[derive(Deserialize, Default)]
#[serde(default)]
struct Create {
    response: Object<Asked>,
}

impl Turns {
    /// The turns of a connection that was just opened.
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, next: 0, turns: Vec::new(), model: None, marked: false, voice: false, owed: 0, unsure: [false; 2], gone: Vec::new() }
    }

    fn begin(&mut self, beginning: Beginning, out: &mut Vec<TurnEvent>) -> &mut Turn {
        if self.turns.len() >= MAX_TURNS {
            out.push(TurnEvent::Lost(self.turns.remove(0).id));
        }
        let id = self.next;
        self.next += 1;
        out.push(TurnEvent::Begin(id, beginning));
        self.turns.push(Turn {
            id,
            lane: None,
            event: None,
            response: None,
            reader: EventReader::default(),
            doubtful: false,
            suspect: false,
        });
        // Just pushed.
        let last = self.turns.len() - 1;
        &mut self.turns[last]
    }

    /// Ends the turns for which `which` holds without their end having been seen.
    fn give_up(&mut self, which: impl Fn(&Turn) -> bool, out: &mut Vec<TurnEvent>) {
        for turn in self.turns.extract_if(.., |t| which(t)) {
            out.push(TurnEvent::Lost(turn.id));
            self.gone.extend(turn.response);
        }
        let many = self.gone.len().saturating_sub(MAX_TURNS);
        self.gone.drain(..many);
    }

    fn client(&mut self, e: &Envelope<'_>, data: &[u8], out: &mut Vec<TurnEvent>) {
        if e.r#type.text() != Some("response.create") {
            return;
        }
        let inner = object::<Create>(data).and_then(|c| c.response.0);
        let asked = inner.or_else(|| object::<Asked>(data)).unwrap_or_default();
        let lane = e.stream_id.text().and_then(Name::new);
        // Who asks again has got the answer before: where messages are missing, its end was among them. An error that is held
        // against a turn is its own now.
        let of_lane = |t: &Turn| t.lane == lane && t.response.is_none();
        let in_turn = self.kind == Kind::Responses;
        self.give_up(|t| t.doubtful && (of_lane(t) || in_turn && t.lane == lane), out);
        out.extend(self.turns.extract_if(.., |t| of_lane(t) && t.suspect).map(|t| TurnEvent::Over(t.id)));
        self.marked = false;
        // Nothing that is missing of the client can have asked for this one.
        let turn = self.begin(Beginning::Here(Box::new(asked)), out);
        turn.lane = lane;
        turn.event = e.event_id.text().and_then(Name::new);
    }

    fn created(&mut self, response: Option<Name>, lane: Option<Name>, out: &mut Vec<TurnEvent>) -> Option<usize> {
        // A response that was cut off from us and is not heard of when the next one is made, is over.
        self.give_up(|t| t.doubtful && t.response.is_some() && t.lane == lane, out);
        // Which of several it is, whether it is one's that spoke, or one's whose request is missing, cannot be told.
        let waits = |t: &Turn| t.response.is_none() && t.lane == lane;
        let several = self.turns.iter().filter(|t| waits(t)).count() + usize::from(self.marked) > 1;
        let any = self.turns.iter().any(waits);
        if any && self.unsure[0] || (several || self.voice) && self.turns.iter().any(|t| waits(t) && t.doubtful) {
            let waiting = self.turns.iter().filter(|t| waits(t)).count();
            self.owed += if self.voice { waiting } else { waiting - 1 };
            self.give_up(waits, out);
            self.marked = false;
            self.gone.extend(response);
            out.push(TurnEvent::Odd(Anomaly::MissedStart));
            return None;
        }
        if let Some(n) = self.turns.iter().position(waits) {
            let turn = &mut self.turns[n];
            if std::mem::take(&mut turn.suspect) {
                out.push(TurnEvent::Pardoned(turn.id));
            }
            turn.response = response;
            return Some(n);
        }
        if self.owed > 0 {
            self.owed -= 1;
            self.gone.extend(response);
            out.push(TurnEvent::Odd(Anomaly::MissedStart));
            return None;
        }
        let [client, server] = self.unsure;
        let beginning = match std::mem::take(&mut self.marked) {
            true if !client => Beginning::AtMark,
            false if !client && !server => Beginning::Unseen,
            _ => {
                out.push(TurnEvent::Odd(Anomaly::MissedStart));
                return None;
            }
        };
        let turn = self.begin(beginning, out);
        turn.response = response;
        turn.lane = lane;
        Some(self.turns.len() - 1)
    }

    /// The turn that a server's message belongs to.
    fn owner(&mut self, e: &Envelope<'_>, kind: &str, out: &mut Vec<TurnEvent>) -> Option<usize> {
        let id = e.response_id.text().or_else(|| e.response.0.as_ref().and_then(|r| r.id.text())).and_then(Name::new);
        let lane = e.stream_id.text().and_then(Name::new);
        if id.is_some()
            && let Some(n) = self.turns.iter().position(|t| t.response == id)
        {
            return Some(n);
        }
        if kind == "response.created" {
            return self.created(id, lane, out);
        }
        match (self.kind, &id) {
            (Kind::Realtime, Some(id)) if self.gone.contains(id) => None,
            (Kind::Realtime, Some(_)) => {
                // Its `response.created` is missing: it is told by being the only one that waits.
                let mut waiting = (0..self.turns.len()).filter(|n| self.turns[*n].response.is_none());
                let n = waiting.next().filter(|n| waiting.next().is_none() && self.turns[*n].doubtful && !self.unsure[0] && !self.voice)?;
                self.turns[n].response = id;
                Some(n)
            }
            (Kind::Responses, None) => self.turns.iter().position(|t| t.lane == lane && t.response.is_some()),
            _ => None,
        }
    }

    fn server(&mut self, e: &Envelope<'_>, data: &[u8], out: &mut Vec<TurnEvent>, says: &mut Vec<LlmEvent>) {
        let kind = e.r#type.text().unwrap_or_default();
        match kind {
            "session.created" | "session.updated" => {
                let named = e.session.0.as_ref().and_then(|s| s.model.text()).and_then(Name::new);
                self.model = named.or(self.model.take());
            }
            // Whichever is the last says when the user was done.
            "input_audio_buffer.committed" | "input_audio_buffer.speech_stopped" => {
                (self.marked, self.voice) = (true, true);
                out.push(TurnEvent::Mark);
            }
            "error" => self.error(e, data, out, says),
            _ if kind.starts_with("response.") => self.response(e, kind, data, out, says),
            _ => {}
        }
    }

    fn response(&mut self, e: &Envelope<'_>, kind: &str, data: &[u8], out: &mut Vec<TurnEvent>, says: &mut Vec<LlmEvent>) {
        let Some(n) = self.owner(e, kind, out) else {
            if terminal(kind) {
                // That was the one whose beginning was missing.
                self.unsure = [false; 2];
            }
            return;
        };
        let turn = &mut self.turns[n];
        turn.doubtful = false;
        if kind == "response.created" && self.kind == Kind::Realtime {
            // The session has the model, its responses have not.
            says.push(LlmEvent::Started { id: None, model: self.model.clone() });
        }
        let read = turn.reader.frame(Frame { name: kind.as_bytes(), data, error: false }, says);
        if let Some(r) = e.response.0.as_ref().filter(|_| terminal(kind)) {
            match r.status.text() {
                // The client took it back, by a word or by speaking up.
                Some("cancelled") => says.push(LlmEvent::Cancelled),
                Some("failed") => {
                    says.push(LlmEvent::Failed { kind: r.status_details.0.as_ref().and_then(|d| d.error.kind.clone()) });
                }
                _ => {}
            }
        }
        out.push(TurnEvent::Event(turn.id, read));
        if read == FrameKind::Last {
            out.push(TurnEvent::Over(turn.id));
            self.turns.remove(n);
        }
    }

    /// An error: of the turn whose request it names, else held against the turn that waits the longest, until a response is created
    /// for it all the same. In a lane it may also be of the response that is made there.
    fn error(&mut self, e: &Envelope<'_>, data: &[u8], out: &mut Vec<TurnEvent>, says: &mut Vec<LlmEvent>) {
        let refusal = e.error.0.as_ref();
        let named = refusal.and_then(|r| r.event_id.text()).and_then(Name::new);
        let lane = e.stream_id.text().and_then(Name::new);
        let waits = |t: &Turn| t.response.is_none() && t.lane == lane && !t.suspect;
        let found = match &named {
            Some(_) => self.turns.iter().position(|t| t.event == named && t.response.is_none()),
            None if self.kind == Kind::Responses && self.turns.iter().filter(|t| t.lane == lane && t.doubtful).count() > 1 => {
                // Whose it is cannot be told.
                return self.give_up(|t| t.lane == lane && t.doubtful, out);
            }
            None if self.kind == Kind::Responses => {
                let running = self.turns.iter().position(|t| t.response.is_some() && t.lane == lane);
                running.or_else(|| self.turns.iter().position(waits))
            }
            None => self.turns.iter().position(waits),
        };
        let Some(turn) = found.map(|n| &mut self.turns[n]) else { return };
        if turn.response.is_some() {
            let read = turn.reader.frame(Frame { name: b"error", data, error: false }, says);
            out.push(TurnEvent::Event(turn.id, read));
            return;
        }
        let kind = refusal.and_then(|r| r.r#type.0.clone().or_else(|| r.code.0.clone()));
        says.push(LlmEvent::Failed { kind });
        turn.suspect = true;
        let id = turn.id;
        // On Responses a client sends nothing else that may be refused.
        if named.is_some() || self.kind == Kind::Responses {
            out.extend([TurnEvent::Event(id, FrameKind::Last), TurnEvent::Over(id)]);
            self.turns.retain(|t| t.id != id);
        } else {
            out.push(TurnEvent::Suspected(id));
        }
    }
}

fn terminal(kind: &str) -> bool {
    matches!(kind, "response.done" | "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled")
}

impl Conversation for Turns {
    fn recognises(&self, from: Side, data: &[u8]) -> bool {
        let Some(e) = object::<Envelope<'_>>(data) else { return false };
        let kind = e.r#type.text().unwrap_or_default();
        match (from, self.kind) {
            (Side::Request, Kind::Realtime) => matches!(kind, "session.update" | "conversation.item.create" | "input_audio_buffer.append"),
            (Side::Response, Kind::Realtime) => kind == "session.created" && e.session.0.is_some(),
            (Side::Request, Kind::Responses) => {
                kind == "response.create" && object::<Asked>(data).is_some_and(|a| a.input.0 || a.model.0.is_some())
            }
            (Side::Response, Kind::Responses) => false,
        }
    }

    fn message(&mut self, from: Side, data: &[u8], out: &mut Vec<TurnEvent>, says: &mut Vec<LlmEvent>) {
        match (object::<Envelope<'_>>(data), from) {
            (None, _) => out.push(TurnEvent::Odd(Anomaly::BadJson)),
            (Some(e), Side::Request) => self.client(&e, data, out),
            (Some(e), Side::Response) => self.server(&e, data, out, says),
        }
    }

    fn missing(&mut self, from: Side, out: &mut Vec<TurnEvent>) {
        match from {
            Side::Request => self.unsure[0] = true,
            Side::Response => {
                self.unsure[1] = true;
                self.marked = false;
                self.turns.iter_mut().for_each(|t| t.doubtful = true);
                // Whether an error that is held against a turn is its own cannot be told any more.
                self.give_up(|t| t.suspect, out);
            }
        }
    }

    fn forget(&mut self, turn: TurnId) {
        self.turns.retain(|t| t.id != turn);
    }

    fn model(&self) -> Option<Name> {
        self.model.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::conversation::hold;
    use expect_test::{Expect, expect};

    const CREATE: &str = r#">{"type":"response.create"}"#;

    fn check(kind: Kind, lines: &[&str], want: Expect) {
        want.assert_eq(&hold(Box::new(Turns::new(kind)), lines));
    }

    fn created(id: &str) -> String {
        format!(r#"<{{"type":"response.created","response":{{"id":"{id}"}}}}"#)
    }

    fn delta(id: &str) -> String {
        format!(r#"<{{"type":"response.output_text.delta","response_id":"{id}","delta":"x"}}"#)
    }

    fn done(id: &str) -> String {
        format!(r#"<{{"type":"response.done","response":{{"id":"{id}","status":"completed","usage":{{"output_tokens":3}}}}}}"#)
    }

    #[test]
    fn missing_messages_of_the_server() {
        // Its creation is missing: it is told by being the only one that waits.
        check(
            Kind::Realtime,
            &[CREATE, "?", &delta("a"), &done("a")],
            expect![[r#"
            0 begins here [0]
             [0]
            0 Event [1]
            0 Last, 0 over [3]
        "#]],
        );
        // Nothing more of the first: the next creation says that it is over.
        check(
            Kind::Realtime,
            &[CREATE, &created("a"), "?", CREATE, &created("b"), &delta("a"), &done("b")],
            expect![[r#"
            0 begins here [0]
            0 Event [2]
             [0]
            1 begins here [0]
            0 lost, 1 Event [2]
             [0]
            1 Last, 1 over [2]
        "#]],
        );
        // Not even its creation: who asks again has got the answer before.
        check(
            Kind::Realtime,
            &[CREATE, "?", CREATE, &created("b"), &done("b")],
            expect![[r#"
            0 begins here [0]
             [0]
            0 lost, 1 begins here [0]
            1 Event [2]
            1 Last, 1 over [2]
        "#]],
        );
        // The mark is missing, or is older than the hole.
        check(
            Kind::Realtime,
            &[r#"<{"type":"input_audio_buffer.committed"}"#, "?", &created("a"), &done("a"), &created("b"), &done("b")],
            expect![[r#"
                mark [0]
                 [0]
                missed_start [0]
                 [0]
                0 begins unseen, 0 Event [2]
                0 Last, 0 over [2]
            "#]],
        );
    }

    #[test]
    fn missing_messages_of_the_client() {
        check(
            Kind::Realtime,
            &[
                "!",
                &created("a"),
                &done("a"),
                r#"<{"type":"input_audio_buffer.committed"}"#,
                &created("b"),
                &done("b"),
                "!",
                CREATE,
                &created("c"),
                &done("c"),
            ],
            expect![[r#"
                 [0]
                missed_start [0]
                 [0]
                mark [0]
                0 begins at the mark, 0 Event [2]
                0 Last, 0 over [2]
                 [0]
                1 begins here [0]
                1 lost, missed_start [0]
                 [0]
            "#]],
        );
    }

    #[test]
    fn errors() {
        let error = r#"<{"type":"error","error":{"type":"t","event_id":null}}"#;
        check(
            Kind::Realtime,
            &[CREATE, error, &created("a"), error, &done("a")],
            expect![[r#"
            0 begins here [0]
            0 suspected [1]
            0 pardoned, 0 Event [2]
             [0]
            0 Last, 0 over [2]
        "#]],
        );
        check(
            Kind::Realtime,
            &[CREATE, error, CREATE, &created("b"), &done("b")],
            expect![[r#"
            0 begins here [0]
            0 suspected [1]
            0 over, 1 begins here [0]
            1 Event [2]
            1 Last, 1 over [2]
        "#]],
        );
        check(
            Kind::Realtime,
            &[CREATE, error, "?"],
            expect![[r#"
            0 begins here [0]
            0 suspected [1]
            0 lost [0]
        "#]],
        );
        check(
            Kind::Realtime,
            &[error, "<[]", "<{", r#"<{"type":7}"#, r#">{"type":{}}"#],
            expect![[r#"
             [0]
            bad_json [0]
            bad_json [0]
             [0]
             [0]
        "#]],
        );
        check(
            Kind::Responses,
            &[CREATE, &created("a"), error, CREATE, error],
            expect![[r#"
                0 begins here [0]
                0 Event [1]
                0 Perhaps [1]
                1 begins here [0]
                0 Perhaps [1]
            "#]],
        );
    }

    #[test]
    fn lanes() {
        let lane = |kind: &str, lane: &str| {
            format!(r#"<{{"type":"response.{kind}","stream_id":"{lane}","delta":"x","response":{{"id":"r{lane}"}}}}"#)
        };
        let ask = |lane: &str| format!(r#">{{"type":"response.create","stream_id":"{lane}"}}"#);
        let event = |lane: &str| format!(r#"<{{"type":"response.output_text.delta","stream_id":"{lane}","delta":"x"}}"#);
        check(
            Kind::Responses,
            &[
                &ask("1"),
                &ask("2"),
                &lane("created", "2"),
                &lane("created", "1"),
                &event("1"),
                &event("2"),
                &event("3"),
                &lane("completed", "1"),
                &event("2"),
                &lane("completed", "2"),
            ],
            expect![[r#"
                0 begins here [0]
                1 begins here [0]
                1 Event [1]
                0 Event [1]
                0 Event [1]
                1 Event [1]
                 [0]
                0 Last, 0 over [0]
                1 Event [1]
                1 Last, 1 over [0]
            "#]],
        );
    }

    #[test]
    fn turns_are_bounded() {
        let mut lines = vec![CREATE; MAX_TURNS + 2];
        lines.push("?");
        let log = hold(Box::new(Turns::new(Kind::Realtime)), &lines);
        assert_eq!(log.matches("lost").count(), 2, "{log}");
    }
}
