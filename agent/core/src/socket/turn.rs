//! A turn while it is measured, and its record.

use crate::dialect::Dialect;
use crate::dialect::body::Asked;
use crate::dialect::conversation::TurnId;
use crate::http::event::{EndedBy, Over};
use crate::http::head::{RequestHead, ResponseHead};
use crate::inference::{Inference, Request, Response};
use crate::measure::{Ended, Exchange, Measure, Place};
use crate::name::Name;
use crate::stream::Timestamp;

/// A turn that is not over.
#[derive(Debug)]
pub struct Turn {
    /// Which.
    pub id: TurnId,
    /// What was said, and when.
    pub measure: Measure,
    /// What was asked for.
    pub asked: Box<Asked>,
    /// Bytes of the message that asked.
    pub request_bytes: u64,
    /// Bytes of the messages that answered.
    pub response_bytes: u64,
    /// Whether an error is held against it that may be another's.
    pub suspect: bool,
    /// Whether it was not asked for by a message of the client, and whether one is missing that did is not known yet.
    pub unproven: bool,
}

/// What a turn's record takes from its connection.
#[derive(Debug)]
pub struct Opened<'a> {
    /// The API.
    pub dialect: &'static dyn Dialect,
    /// The request that opened the conversation.
    pub head: &'a RequestHead,
    /// The answer to it.
    pub answer: &'a ResponseHead,
    /// The model that was named since.
    pub model: Option<Name>,
}

/// How a turn ended: when, how, by what, and with which close code.
pub type End = (Timestamp, Over, EndedBy, Option<u16>);

impl Turn {
    /// The error that is held against it, if any, is none of its own.
    pub fn pardon(&mut self) {
        if std::mem::take(&mut self.suspect) {
            self.measure.pardon();
        }
    }

    /// The record.
    pub fn record(self, (at, how, by, code): End, opened: Opened<'_>, place: &Place<'_>) -> Inference {
        let Opened { dialect, head, answer, model } = opened;
        let asked = &self.asked;
        let request = Request {
            model: asked.model.0.clone().or_else(|| head.query.model.clone()).or(model),
            bytes: self.request_bytes,
            id: head.id.clone(),
            traceparent: head.traceparent.as_deref().copied(),
            tenant: head.tenant,
            max_tokens: asked.bound(),
            temperature: asked.heat(),
            top_p: asked.nucleus(),
            choices: None,
        };
        let response = Response {
            status: Some(answer.status),
            bytes: self.response_bytes,
            content_encoding: None,
            request_id: answer.id.clone(),
            limits: answer.limits.as_deref().copied().unwrap_or_default(),
            ..Response::default()
        };
        let what = Exchange { dialect, head, provider: answer.provider, hidden: false, request, response, place };
        // 1000 says that all is well, which it is not in the middle of a turn.
        let code = code.filter(|c| *c != 1000).and_then(|c| Name::new(&c.to_string()));
        self.measure.finish(Ended { at, how, by, stream: Some(true), readable: true, echoed: false, code }, what)
    }
}
