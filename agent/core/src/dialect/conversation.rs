//! Conversations: many inferences on one connection, told apart by what the messages of both sides say. One inference is one *turn*: what
//! a client (or its voice) asks for once, until the model's answer to it is over.
//!
//! A conversation knows no time, as a reader knows none. It says which message begins, belongs to and ends which turn; who listens
//! has the instants.

use crate::anomaly::Anomaly;
use crate::http::event::Side;
use crate::name::Name;

use super::body::Asked;
use super::{FrameKind, LlmEvent};

/// Which turn of its conversation, counted from 0.
pub type TurnId = u64;

/// Turns of one conversation that may run at a time; of more, the oldest is given up.
pub const MAX_TURNS: usize = 64;

/// Where a turn began.
#[derive(Clone, PartialEq, Debug)]
pub enum Beginning {
    /// With this message: a client's at its first byte, a server's where it is complete.
    Here(Box<Asked>),
    /// With the last message that was a [`TurnEvent::Mark`].
    AtMark,
    /// Nothing on the wire says when it was asked for.
    Unseen,
}

/// What a message does to the turns of its conversation.
#[derive(Clone, PartialEq, Debug)]
pub enum TurnEvent {
    /// A turn begins.
    Begin(TurnId, Beginning),
    /// A turn that begins later may turn out to have begun with this message.
    Mark,
    /// The message is an event of this turn, and what the conversation hears in it belongs to it.
    Event(TurnId, FrameKind),
    /// The message is no event of this turn, but what the conversation hears in it belongs to it.
    Aside(TurnId),
    /// The message is an error that may be this turn's: if nothing more comes of it, this was its end.
    Suspected(TurnId),
    /// The error was another's.
    Pardoned(TurnId),
    /// The turn is over.
    Over(TurnId),
    /// The turn's end was not seen, and will not be.
    Lost(TurnId),
    /// A surprise.
    Odd(Anomaly),
}

/// Follows one conversation.
pub trait Conversation: std::fmt::Debug + Send {
    /// Whether a message shows that this is a conversation of this kind, where its path does not.
    fn recognises(&self, from: Side, data: &[u8]) -> bool;

    /// A message, reduced or whole. What it does to turns goes to `out`; what it says for the one turn it belongs to, to `says`.
    fn message(&mut self, from: Side, data: &[u8], out: &mut Vec<TurnEvent>, says: &mut Vec<LlmEvent>);

    /// One or more messages of a side are missing.
    fn missing(&mut self, from: Side, out: &mut Vec<TurnEvent>);

    /// A turn is over for reasons of its connection's.
    fn forget(&mut self, turn: TurnId);

    /// The model that the conversation is with, as far as it was named.
    fn model(&self) -> Option<Name>;
}

/// Holds a conversation as lines, for tests: `>` and `<` before a message of the client's, of the server's; `!` and `?` where messages of
/// theirs are missing. What comes of each line is a line.
#[cfg(test)]
pub(super) fn hold(mut conversation: Box<dyn Conversation>, lines: &[&str]) -> String {
    let mut log = String::new();
    for line in lines {
        let (mut out, mut says) = (Vec::new(), Vec::new());
        match line.split_at(1) {
            (">", text) => conversation.message(Side::Request, text.as_bytes(), &mut out, &mut says),
            ("<", text) => conversation.message(Side::Response, text.as_bytes(), &mut out, &mut says),
            ("!", _) => conversation.missing(Side::Request, &mut out),
            _ => conversation.missing(Side::Response, &mut out),
        }
        let beginning = |b: &Beginning| match b {
            Beginning::Here(_) => "here",
            Beginning::AtMark => "at the mark",
            Beginning::Unseen => "unseen",
        };
        let events: Vec<String> = out
            .iter()
            .map(|e| match e {
                TurnEvent::Begin(id, b) => format!("{id} begins {}", beginning(b)),
                TurnEvent::Event(id, kind) => format!("{id} {kind:?}"),
                TurnEvent::Aside(id) => format!("{id} aside"),
                TurnEvent::Suspected(id) => format!("{id} suspected"),
                TurnEvent::Pardoned(id) => format!("{id} pardoned"),
                TurnEvent::Over(id) => format!("{id} over"),
                TurnEvent::Lost(id) => format!("{id} lost"),
                TurnEvent::Mark => "mark".to_owned(),
                TurnEvent::Odd(what) => what.as_str().to_owned(),
            })
            .collect();
        log.push_str(&format!("{} [{}]\n", events.join(", "), says.len()));
    }
    log
}
