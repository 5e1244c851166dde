//! The end of an exchange: what was seen until then makes a record, or none.

use super::*;

impl Call {
    /// The exchange is over. `None` when it was no inference.
    pub fn over(mut self, at: Timestamp, (how, by): (Over, EndedBy), place: &Place<'_>, cx: &mut Scratch<'_>) -> Option<Inference> {
        let sure = self.is_sure();
        if let Body::Stream(_) = self.body
            && let (Some(reader), Some(dialect)) = (&mut self.reader, &mut self.dialect)
        {
            let who = Who { sure, reader, dialect, head: &self.head, asked: &self.asked };
            Reading { who, measure: &mut self.measure, body: &mut self.body, pieces: None, at }.finish(how, cx);
        }
        let status = self.response.as_ref().map(|r| r.status);
        let http_error = status.is_some_and(|s| s >= 400);
        let mut readable = true;
        if let Body::Json(skeleton) = &self.body {
            let whole = self.answer(skeleton, http_error, how, cx)?;
            (self.measure.facts, self.dialect, readable) = (whole.facts, Some(whole.dialect), whole.readable);
        }
        // A coding that was not seen and cannot be told looks like nonsense.
        self.measure.facts.unread |= !self.measure.facts.recognised && self.response.as_ref().is_some_and(|r| r.partial);
        // Who asks to change to another protocol has asked for nothing yet, unless that was refused.
        if self.head.upgrade == Some(Upgrade::WebSocket) && !http_error {
            return None;
        }
        let dialect = self.dialect?;
        let grpc = self.response.as_ref().is_some_and(|r| r.media == MediaType::Grpc);
        if self.request_body.as_ref().is_some_and(|body| body.is_several()) || grpc && self.measure.facts.went_on {
            cx.anomalies.count(Anomaly::SeveralRequests);
            return None;
        }
        if !self.is_known(how) {
            if self.is_nameless() && self.measure.facts.recognised {
                cx.anomalies.count(Anomaly::UnknownApi);
            }
            return None;
        }
        let stream = self.is_stream(dialect, readable);
        if stream != Some(true) && matches!(self.body, Body::Skipped | Body::Undecided) {
            // What the head counted stands for the body only where that was read.
            self.measure.facts.usage = None;
        }
        let echoed = self.asked.echo.0 == Some(true);
        let asked_model = self.asked.model.0.take().or_else(|| dialect.model(&self.head)).or_else(|| self.head.query.model.clone());
        let request = Request {
            model: asked_model,
            bytes: self.request_bytes,
            id: self.head.id.clone(),
            traceparent: self.head.traceparent.as_deref().copied(),
            tenant: self.head.tenant,
            max_tokens: self.asked.bound(),
            temperature: self.asked.heat(),
            top_p: self.asked.nucleus(),
            choices: self.asked.choices(),
        };
        let head = self.response.as_ref();
        let response = Response {
            status,
            bytes: self.response_bytes,
            content_encoding: head.and_then(|r| r.coding).map(|c| c.as_str()),
            request_id: head.and_then(|r| r.id.clone()),
            limits: head.and_then(|r| r.limits.as_deref().copied()).unwrap_or_default(),
            ..Response::default()
        };
        let provider = head.and_then(|r| r.provider);
        let unseen = self.measure.timeline.holes() > 0 || matches!(how, Over::InputEnded | Over::Evicted | Over::Lost);
        let hidden = head.map_or(unseen, |r| r.partial);
        let what = Exchange { dialect, head: &self.head, provider, hidden, request, response, place };
        Some(self.measure.finish(Ended { at, how, by, stream, readable, echoed, code: None }, what))
    }
}
