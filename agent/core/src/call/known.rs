//! What is known of an exchange by what was seen of it, where not all was.

use super::*;
use crate::http::head::Method;

impl Call {
    /// Whether what was seen until the end makes it an inference. Where path and body only make it likely, the answer must be known:
    /// unless it is an error, or none came, and nobody but the two ends is to blame.
    pub(super) fn is_known(&self, how: Over) -> bool {
        let facts = &self.measure.facts;
        if self.is_nameless() {
            // Some APIs carry the bodies of others, but without a model in them.
            return self.confirmed && facts.recognised && self.asked.model.0.is_some();
        }
        let status = self.response.as_ref().map(|r| r.status);
        let unseen = self.measure.timeline.holes() > 0 || matches!(how, Over::InputEnded | Over::Evicted | Over::Lost);
        let unanswered = self.response_bytes == 0 && !unseen;
        self.certainty == Match::Certain
            || facts.recognised
            || self.confirmed && !facts.foreign && (unanswered || status.is_some_and(|s| s >= 400))
    }

    /// Whether the request asks that its stream become a WebSocket (RFC 8441 §4).
    pub fn asks_for_a_tunnel(&self) -> bool {
        self.head.method == Method::Connect && self.head.upgrade == Some(Upgrade::WebSocket)
    }

    /// Whether the request's target was not seen: what else was seen must say whose it is.
    pub(super) fn is_nameless(&self) -> bool {
        self.head.partial && self.head.path.is_empty()
    }

    /// Whether the request is the dialect's own: then what it cannot read is a surprise, not somebody else's.
    pub(super) fn is_sure(&self) -> bool {
        (self.confirmed || self.certainty == Match::Certain) && !self.is_nameless()
    }

    /// Whether the answer came, or was to come, as a stream; `None` where what tells it was not seen.
    pub(super) fn is_stream(&self, dialect: &dyn Dialect, readable: bool) -> Option<bool> {
        let asked = dialect.streams(&self.head, &self.asked);
        let Some(head) = &self.response else {
            // What was to come is what was asked for, if that was seen.
            let seen = self.measure.timeline.holes() == 0 && self.settled;
            return seen.then_some(asked == Some(true));
        };
        // What the media type says is not known either.
        let unnamed = head.partial && head.media == MediaType::Missing;
        match &self.body {
            _ if head.status >= 400 => Some(false),
            // Every answer of gRPC is messages, a stream or not.
            Body::Stream(_) if head.media == MediaType::Grpc => {
                let told = asked.or(self.reader.as_ref().and_then(|r| r.streams()));
                told.or((self.measure.timeline.holes() == 0).then_some(true))
            }
            // One event alone may be all of an answer whose length was not seen.
            Body::Stream(_) if unnamed && self.pieces.is_some() => (self.measure.timeline.chunks().events > 1).then_some(true),
            Body::Stream(_) => (!unnamed || self.measure.facts.recognised).then_some(true),
            Body::Json(_) => (!unnamed || readable).then_some(false),
            _ if head.media == MediaType::EventStream || self.pieces.is_some() => Some(true),
            _ if head.media == MediaType::Json => Some(false),
            _ if unnamed => None,
            _ => Some(asked == Some(true)),
        }
    }
}
