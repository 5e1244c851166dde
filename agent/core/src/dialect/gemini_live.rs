//! Gemini Live (`wire.md` §8): a conversation on a WebSocket; the server's messages may be binary frames, and are JSON all the same.
//! Names in camel case and in snake case are taken alike.
//!
//! One record per turn of the model. It begins with the first byte of the client's `clientContent` that completes its turn, of a text or
//! an end of activity in `realtimeInput`, or with the server's word that the voice ended; where voice activity is detected
//! without a word on the wire, nothing says when the turn was asked for, and figures that begin there are undefined (`missed_start`).
//! It ends with `turnComplete`; what the server counts right behind that is its usage still. A tool that the client runs is part of the turn.
//! A turn that a client interrupts has the outcome `cancelled`.
//!
//! Messages carry no ids: a turn's are those until `turnComplete`. Where one is missing and the next turn has begun, they cannot be told
//! apart, and both are given up.

mod wire;

use crate::anomaly::Anomaly;
use crate::http::event::Side;
use crate::http::head::{RequestHead, Upgrade};
use crate::inference::Operation;
use crate::name::Name;

use super::body::{Asked, object};
use super::conversation::{Beginning, Conversation, MAX_TURNS, TurnEvent, TurnId};
use super::{About, Dialect, LlmEvent, Match, Reader};
use wire::{ClientMessage, Content, LiveReader, ServerMessage, Signal};

/// `…BidiGenerateContent`, upgraded.
#[derive(Debug)]
pub struct Live;

impl Dialect for Live {
    fn about(&self) -> &'static About {
        &About {
            api: "gemini.live",
            doc: "Gemini Live on a WebSocket, also on Vertex: one record per turn of the model",
            paths: &["{service}.BidiGenerateContent", "{service}/BidiGenerateContent"],
            operation: Operation::GenerateContent,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let named =
            || ["BidiGenerateContent", "BidiGenerateContentConstrained"].iter().any(|n| head.path.trim_end_matches('/').ends_with(n));
        match head.upgrade {
            Some(Upgrade::WebSocket) if named() => Match::Certain,
            Some(Upgrade::WebSocket) => Match::Maybe,
            _ => Match::No,
        }
    }

    fn confirms(&self, _asked: &Asked) -> bool {
        false
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(LiveReader)
    }

    fn conversation(&self) -> Option<Box<dyn Conversation>> {
        Some(Box::new(Session::default()))
    }
}

/// One connection.
#[derive(Debug, Default)]
struct Session {
    next: TurnId,
    /// Turns that are asked for and not complete, the oldest first. The first is the one that is answered.
    running: Vec<TurnId>,
    /// The turn that is complete, until the next one begins: its usage may still come.
    complete: Option<TurnId>,
    model: Option<Name>,
    marked: bool,
    /// Whether turns begin without a word of the client's.
    voice: bool,
    /// Messages of the client, of the server, are missing since a turn was complete that was nobody's.
    unsure: [bool; 2],
    /// Turns cannot be told apart until one is complete.
    blind: bool,
}

impl Session {
    fn begin(&mut self, beginning: Beginning, out: &mut Vec<TurnEvent>) {
        out.extend(self.complete.take().map(TurnEvent::Over));
        let id = self.next;
        self.next += 1;
        out.push(TurnEvent::Begin(id, beginning));
        let another = self.unsure[0] || self.unsure[1] && !self.running.is_empty();
        if another || self.blind {
            // Whether what comes next is this turn's, the one's before or a missing one's cannot be told.
            self.blind = true;
            out.extend(self.running.drain(..).map(TurnEvent::Lost));
            out.push(TurnEvent::Lost(id));
            return;
        }
        if self.running.len() >= MAX_TURNS {
            out.push(TurnEvent::Lost(self.running.remove(0)));
        }
        self.running.push(id);
    }

    fn client(&mut self, m: &ClientMessage<'_>, data: &[u8], out: &mut Vec<TurnEvent>) {
        if let Some(setup) = &m.setup.0 {
            self.model = setup.model.text().map(|m| m.strip_prefix("models/").unwrap_or(m)).and_then(Name::new).or(self.model.take());
        }
        let content = m.client_content.0.as_ref().is_some_and(|c| c.turn_complete.0 != Some(false));
        let input = m.realtime_input.0.as_ref();
        let spoken = input.is_some_and(|i| i.text.is_text() || i.activity_end.0 || i.audio_stream_end.0 == Some(true));
        self.voice |= input.is_some_and(|i| !i.text.is_text());
        if content || spoken {
            self.marked = false;
            self.begin(Beginning::Here(Box::new(object::<Asked>(data).unwrap_or_default())), out);
        }
    }

    fn server(&mut self, m: &ServerMessage<'_>, out: &mut Vec<TurnEvent>, says: &mut Vec<LlmEvent>) {
        if [&m.voice_activity_detection_signal, &m.voice_activity].iter().any(|s| s.0.as_ref().is_some_and(Signal::ends)) {
            self.marked = true;
            out.push(TurnEvent::Mark);
        }
        let content = m.server_content.0.as_ref();
        let complete = content.is_some_and(|c| c.turn_complete.0 == Some(true));
        if self.blind {
            // With this one over, the next that is asked for can be told.
            self.blind = !complete;
            if complete {
                (self.unsure, self.marked) = ([false, true], false);
            }
            return;
        }
        let answers = content.is_some_and(Content::answers) || m.tool_call.0.is_some();
        if answers && self.running.is_empty() {
            let [client, server] = self.unsure;
            match std::mem::take(&mut self.marked) {
                true if !client => self.begin(Beginning::AtMark, out),
                false if !client && !server && !complete => self.begin(Beginning::Unseen, out),
                _ => {
                    out.push(TurnEvent::Odd(Anomaly::MissedStart));
                    out.extend(self.complete.take().map(TurnEvent::Over));
                    if complete {
                        self.unsure = [false; 2];
                    }
                    return;
                }
            }
        }
        let kind = m.read(says);
        match (self.running.first().copied(), self.complete) {
            (Some(turn), _) if content.is_some() || m.tool_call.0.is_some() => {
                out.push(TurnEvent::Event(turn, kind));
                if complete {
                    self.marked = false;
                    self.running.remove(0);
                    // Further turns are waiting: what comes now is theirs.
                    match self.running.is_empty() {
                        true => self.complete = Some(turn),
                        false => out.push(TurnEvent::Over(turn)),
                    }
                }
            }
            (Some(turn), _) | (None, Some(turn)) => out.push(TurnEvent::Aside(turn)),
            (None, None) => {}
        }
    }
}

impl Conversation for Session {
    fn recognises(&self, from: Side, data: &[u8]) -> bool {
        match from {
            Side::Request => object::<ClientMessage<'_>>(data).is_some_and(|m| m.setup.0.is_some_and(|s| s.model.text().is_some())),
            Side::Response => object::<ServerMessage<'_>>(data).is_some_and(|m| m.setup_complete.0),
        }
    }

    fn message(&mut self, from: Side, data: &[u8], out: &mut Vec<TurnEvent>, says: &mut Vec<LlmEvent>) {
        match from {
            Side::Request => match object::<ClientMessage<'_>>(data) {
                Some(message) => self.client(&message, data, out),
                None => out.push(TurnEvent::Odd(Anomaly::BadJson)),
            },
            Side::Response => match object::<ServerMessage<'_>>(data) {
                Some(message) => self.server(&message, out, says),
                None => out.push(TurnEvent::Odd(Anomaly::BadJson)),
            },
        }
    }

    fn missing(&mut self, from: Side, out: &mut Vec<TurnEvent>) {
        // Its usage may be missing, or what comes may be another's.
        out.extend(self.complete.take().map(TurnEvent::Over));
        match from {
            Side::Request => self.unsure[0] = true,
            Side::Response => (self.unsure[1], self.marked) = (true, false),
        }
        // The end of the first may be missing, and who comes next is another, seen or missing.
        let others = self.running.len() > 1 || !self.running.is_empty() && (self.unsure[0] || self.voice);
        if self.unsure[1] && others {
            self.blind = true;
            out.extend(self.running.drain(..).map(TurnEvent::Lost));
        }
    }

    fn forget(&mut self, turn: TurnId) {
        self.running.retain(|t| *t != turn);
        self.complete.take_if(|t| *t == turn);
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

    const ASK: &str = r#">{"clientContent":{"turnComplete":true}}"#;
    const TEXT: &str = r#"<{"serverContent":{"modelTurn":{"parts":[{"text":"a"}]}}}"#;
    const DONE: &str = r#"<{"serverContent":{"turnComplete":true}}"#;
    const COUNTS: &str = r#"<{"usageMetadata":{"promptTokenCount":1}}"#;

    fn check(lines: &[&str], want: Expect) {
        want.assert_eq(&hold(Box::new(Session::default()), lines));
    }

    #[test]
    fn one_after_the_other() {
        check(
            &[ASK, TEXT, DONE, COUNTS, ASK, ASK, TEXT, DONE, TEXT, DONE, COUNTS],
            expect![[r#"
            0 begins here [0]
            0 Event [1]
            0 Last [0]
            0 aside [1]
            0 over, 1 begins here [0]
            2 begins here [0]
            1 Event [1]
            1 Last, 1 over [0]
            2 Event [1]
            2 Last [0]
            2 aside [1]
        "#]],
        );
        check(
            &[r#">{"clientContent":{"turnComplete":false}}"#, r#">{"realtimeInput":{"text":"x"}}"#, DONE],
            expect![[r#"
             [0]
            0 begins here [0]
            0 Last [0]
        "#]],
        );
        check(
            &[TEXT, DONE, DONE, "<[]", "<{", ">{", r#"<{"toolCall":{"functionCalls":[{"name":"f"},{"args":{}}]}}"#],
            expect![[r#"
                0 begins unseen, 0 Event [1]
                0 Last [0]
                missed_start, 0 over [0]
                bad_json [0]
                bad_json [0]
                bad_json [0]
                1 begins unseen, 1 Event [2]
            "#]],
        );
    }

    #[test]
    fn missing_messages() {
        check(
            &[ASK, TEXT, "?", TEXT, DONE, ASK, TEXT, DONE],
            expect![[r#"
            0 begins here [0]
            0 Event [1]
             [0]
            0 Event [1]
            0 Last [0]
            0 over, 1 begins here [0]
            1 Event [1]
            1 Last [0]
        "#]],
        );
        check(
            &[ASK, TEXT, "?", ASK, TEXT, DONE, ASK, TEXT, DONE],
            expect![[r#"
            0 begins here [0]
            0 Event [1]
             [0]
            1 begins here, 0 lost, 1 lost [0]
             [0]
             [0]
            2 begins here [0]
            2 Event [1]
            2 Last [0]
        "#]],
        );
        check(
            &["!", ASK, TEXT, DONE, ASK, TEXT, DONE],
            expect![[r#"
             [0]
            0 begins here, 0 lost [0]
             [0]
             [0]
            1 begins here [0]
            1 Event [1]
            1 Last [0]
        "#]],
        );
        check(
            &["?", TEXT, DONE, TEXT, DONE],
            expect![[r#"
             [0]
            missed_start [0]
            missed_start [0]
            0 begins unseen, 0 Event [1]
            0 Last [0]
        "#]],
        );
    }
}
