//! A response's body, read piece by piece: cut into events, shown to the dialect, stamped.

use super::*;
use crate::framing::sse;

/// Who reads an answer, and what makes another the better reader.
pub(super) struct Who<'c> {
    /// Whether the request is the dialect's own: then what it cannot read is a surprise, not somebody else's.
    pub(super) sure: bool,
    pub(super) reader: &'c mut Box<dyn Reader>,
    pub(super) dialect: &'c mut &'static dyn Dialect,
    pub(super) head: &'c RequestHead,
    pub(super) asked: &'c Asked,
}

impl Who<'_> {
    /// Reads an event. As long as none was known, another dialect may know it better.
    pub(super) fn frame(&mut self, frame: Frame<'_>, facts: &mut Facts, events: &mut Vec<LlmEvent>) -> FrameKind {
        let kind = self.reader.frame(frame, events);
        if kind != FrameKind::Unknown || facts.recognised || facts.tries >= MAX_TRIES {
            return kind;
        }
        facts.tries += 1;
        let mut other = kind;
        let known = |reader: &mut dyn Reader| {
            events.clear();
            other = reader.frame(frame, events);
            let output = events.iter().any(|e| matches!(e, LlmEvent::Delta { .. }));
            matches!(other, FrameKind::Event | FrameKind::Last) || other == FrameKind::Perhaps && output
        };
        let Some((dialect, reader)) = dialect::by_answer(self.head, self.asked, *self.dialect, known) else {
            events.clear();
            return kind;
        };
        (*self.dialect, *self.reader) = (dialect, reader);
        other
    }
}

/// A response's body while a piece of it is read.
pub(super) struct Reading<'c> {
    pub(super) who: Who<'c>,
    pub(super) measure: &'c mut Measure,
    pub(super) body: &'c mut Body,
    pub(super) pieces: Option<Framing>,
    pub(super) at: Timestamp,
}

impl Reading<'_> {
    /// Decoded bytes.
    pub(super) fn plain(&mut self, bytes: &[u8], cx: &mut Scratch<'_>) {
        if let Body::Undecided = self.body {
            match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
                Some(b'{' | b'[') => {
                    *self.body = match self.pieces {
                        Some(framing) => Body::Stream(Framer::new(framing)),
                        None => Body::Json(Skeleton::new(ANSWER_DEPTH)),
                    };
                }
                // `data`, `event`, `id`, `retry`, a comment.
                Some(b'd' | b'e' | b'i' | b'r' | b':') => *self.body = Body::Stream(Framer::new(Framing::Sse)),
                Some(_) => {
                    if self.who.sure {
                        cx.anomalies.count(Anomaly::UnknownBody);
                    }
                    self.measure.facts.unread = true;
                    self.measure.facts.foreign = true;
                    *self.body = Body::Skipped;
                }
                None => {}
            }
        }
        let Self { who, measure, body, at, .. } = self;
        if again(body, who.reader.as_ref(), measure, *at, bytes, cx.frames) {
            return;
        }
        match body {
            Body::Stream(framer) => framer.push(bytes, &mut |unit| unit_of(unit, *at, who, measure, cx)),
            Body::Json(skeleton) => skeleton.push(bytes),
            Body::Skipped | Body::Undecided => {}
        }
    }

    /// The body ended. What is left of an event that was cut off is none.
    pub(super) fn finish(&mut self, how: Over, cx: &mut Scratch<'_>) {
        let Self { who, measure, body, at, .. } = self;
        if let Body::Stream(framer) = body {
            framer.finish(&mut |unit| match unit {
                Unit::Event(frame) if how != Over::Complete && !is_whole(frame.data) => {}
                unit => unit_of(unit, *at, who, measure, cx),
            });
        }
    }
}

/// Whether an event without its blank line is all there: JSON that ends, or a terminator.
pub(super) fn is_whole(data: &[u8]) -> bool {
    data.starts_with(b"[DONE]") || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
}

/// Takes `bytes` if they are one whole event of a stream that is like the last one: what [`unit_of`] would make of it, without framer and
/// parser.
#[inline]
pub(super) fn again(body: &Body, reader: &dyn Reader, measure: &mut Measure, at: Timestamp, bytes: &[u8], frames: &mut u64) -> bool {
    let Body::Stream(Framer::Sse(framer)) = body else { return false };
    let Some(frame) = sse::one_event(bytes).filter(|_| framer.is_idle()) else { return false };
    let Some((choice, kind)) = reader.shape().and_then(|shape| shape.delta(frame)) else { return false };
    if measure.timeline.terminated() {
        return false;
    }
    measure.facts.recognised = true;
    *frames += 1;
    measure.timeline.delta(at, choice, kind);
    true
}

/// One unit of a stream: read, stamped, folded into the facts.
pub(super) fn unit_of(unit: Unit<'_>, at: Timestamp, who: &mut Who<'_>, measure: &mut Measure, cx: &mut Scratch<'_>) {
    let frame = match unit {
        Unit::Event(frame) => frame,
        Unit::KeepAlive => return,
        Unit::End => return measure.timeline.terminator(at),
        Unit::Odd(what) => return cx.anomalies.count(what),
    };
    cx.events.clear();
    let kind = who.frame(frame, &mut measure.facts, cx.events);
    measure.event(at, kind, who.sure, cx);
}
