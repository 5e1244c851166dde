//! One exchange being measured: request and response as HTTP gives them on one side, the marks of an inference on the other.
//!
//! Here the stages meet: a body's bytes are decoded, framed, read by the dialect and stamped. What the dialect says is folded into
//! facts and marks at once; the bytes are gone when the call returns.

use crate::anomaly::Anomaly;
use crate::dialect::body::{Asked, http_error_kind};
use crate::dialect::shape::Shape;
use crate::dialect::{self, Dialect, FrameKind, LlmEvent, Match, Reader};
use crate::facts::Facts;
use crate::framing::json::Skeleton;
use crate::framing::{Frame, Framer, Framing, Unit};
use crate::http::coding::Decoder;
use crate::http::event::{EndedBy, Over, Side};
use crate::http::head::{BodyLength, MediaType, RequestHead, ResponseHead, Upgrade};
use crate::inference::{Inference, Request, Response};
use crate::measure::{Ended, Exchange, Measure, Place, Scratch};
use crate::name::Name;
use crate::request::RequestBody;
use crate::stream::Timestamp;

/// Containers of an answer that are looked into: `choices[0].message.tool_calls[0].function`.
const ANSWER_DEPTH: usize = 7;
/// Events of no known form after which no other dialect is tried any more.
const MAX_TRIES: u32 = 16;

/// One exchange. What every chunk of a stream needs stands first and together; the rest is boxed where it is large and often absent.
#[derive(Debug)]
#[repr(C)]
pub struct Call {
    body: Body,
    reader: Option<Box<dyn Reader>>,
    decoder: Option<Box<Decoder>>,
    response_bytes: u64,
    measure: Measure,
    dialect: Option<&'static dyn Dialect>,
    certainty: Match,
    /// Whether the request's body is one that the dialect knows.
    confirmed: bool,
    asked: Asked,
    request_body: Option<Box<RequestBody>>,
    /// Whether it is known what the request asks for.
    settled: bool,
    request_decoder: Option<Box<Decoder>>,
    request_bytes: u64,
    response: Option<Box<ResponseHead>>,
    /// How a body is cut that its head calls JSON, where it is a stream all the same.
    pieces: Option<Framing>,
    head: RequestHead,
}

/// How the response's body is read.
#[derive(Debug)]
enum Body {
    /// Not at all.
    Skipped,
    /// Its first byte decides.
    Undecided,
    /// As a stream of events.
    Stream(Framer),
    /// As one JSON value.
    Json(Skeleton),
}

impl Call {
    /// A call whose request's first byte came at `begun`.
    pub fn new(begun: Timestamp, head: RequestHead) -> Self {
        let (dialect, certainty) = dialect::recognise(&head).map_or((None, Match::No), |(d, m)| (Some(d), m));
        let request_decoder = head.coding.filter(|_| dialect.is_some()).and_then(Decoder::new).map(Box::new);
        Self {
            dialect,
            certainty,
            confirmed: false,
            asked: Asked::default(),
            request_body: dialect.map(|_| Box::new(RequestBody::new(&head))),
            settled: false,
            request_decoder,
            request_bytes: 0,
            measure: Measure::new(begun),
            response: None,
            response_bytes: 0,
            decoder: None,
            body: Body::Skipped,
            pieces: None,
            reader: None,
            head,
        }
    }

    /// Whether this is, as far as can be told, LLM traffic.
    pub fn is_llm(&self) -> bool {
        let facts = &self.measure.facts;
        self.dialect.is_some() && (self.certainty == Match::Certain || facts.recognised || self.confirmed && !facts.foreign)
    }

    /// Whether this may turn out to be LLM traffic.
    pub fn may_be_llm(&self) -> bool {
        self.dialect.is_some()
    }

    /// Whether what was seen until the end makes it an inference. Where path and body only make it likely, the answer must be known:
    /// unless it is an error, or none came, and nobody but the two ends is to blame.
    fn is_known(&self, how: Over) -> bool {
        let facts = &self.measure.facts;
        let status = self.response.as_ref().map(|r| r.status);
        let unseen = self.measure.timeline.holes() > 0 || matches!(how, Over::InputEnded | Over::Evicted | Over::Lost);
        let unanswered = self.response_bytes == 0 && !unseen;
        self.certainty == Match::Certain
            || facts.recognised
            || self.confirmed && !facts.foreign && (unanswered || status.is_some_and(|s| s >= 400))
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        let body = match &self.body {
            Body::Stream(f) => f.buffered(),
            Body::Json(s) => s.buffered(),
            Body::Skipped | Body::Undecided => 0,
        };
        let decoders = [&self.decoder, &self.request_decoder].into_iter().flatten().map(|d| d.buffered()).sum::<usize>();
        body + self.request_body.as_ref().map_or(0, |body| body.buffered()) + decoders + self.measure.timeline.buffered()
    }

    /// Gives up the single gaps between chunks to save memory.
    pub fn forget_gaps(&mut self) {
        self.measure.timeline.forget_gaps();
    }

    /// The request's head, when the call is over without being one: the connection changes its protocol.
    pub fn into_head(self) -> RequestHead {
        self.head
    }

    /// Whether the API's terminator was seen, and when.
    pub fn terminated_at(&self) -> Option<Timestamp> {
        self.measure.timeline.terminator_at()
    }

    /// Bytes of the request's body.
    pub fn request_body(&mut self, at: Timestamp, bytes: &[u8], cx: &mut Scratch<'_>) {
        self.request_bytes += bytes.len() as u64;
        let Some(body) = &mut self.request_body else { return };
        match &mut self.request_decoder {
            None if self.head.coding.is_some() => {}
            None => body.push(bytes),
            Some(decoder) => {
                if let Err(what) = decoder.push(bytes, &mut |b| body.push(b)) {
                    cx.anomalies.count(what);
                }
            }
        }
        if !self.settled && body.is_complete() {
            self.measure.timeline.request_sent(at);
            self.settle(cx);
        }
    }

    /// The request is complete.
    pub fn request_end(&mut self, at: Timestamp, cx: &mut Scratch<'_>) {
        self.request_decoder = None;
        if !self.settled {
            self.measure.timeline.request_sent(at);
            self.settle(cx);
        }
        // Whether it asked more than once is looked at when the exchange is over.
        if !self.request_body.as_ref().is_some_and(|body| body.is_several()) {
            self.request_body = None;
        }
    }

    /// What is asked for can be read.
    fn settle(&mut self, cx: &mut Scratch<'_>) {
        self.settled = true;
        let Some(body) = &self.request_body else { return };
        match body.asked(self.dialect) {
            Ok(asked) => {
                let fits = self.dialect.is_some_and(|d| d.confirms(&asked));
                let other = (!fits).then(|| dialect::by_body(&self.head, &asked)).flatten();
                // The path says one thing, the body another: whoever recognises the body has it. If nobody does, it is a bad
                // request where the path is sure, else none of ours.
                if !fits && (other.is_some() || self.certainty < Match::Certain) {
                    self.dialect = other.map(|(d, _)| d);
                    self.certainty = other.map_or(Match::No, |(_, m)| m.min(Match::Likely));
                } else if self.head.media == MediaType::Grpc {
                    // A service's name and what it is asked, both of which the dialect knows, leave no doubt.
                    self.certainty = Match::Certain;
                }
                self.confirmed = self.certainty >= Match::Likely && (fits || other.is_some());
                self.asked = asked;
            }
            // A request that cannot be read keeps its place where the path is sure, and may yet be known by its answer where the
            // path is one of an API's; one without a body has nothing to read.
            Err(_) if self.certainty < Match::Likely => self.dialect = None,
            Err(_) if self.certainty == Match::Likely => self.certainty = Match::Maybe,
            Err(_) if self.request_bytes == 0 => {}
            Err(what) => cx.anomalies.count(what),
        }
    }

    /// The final response's head is complete; its first byte came at `begun`.
    pub fn response_head(&mut self, begun: Timestamp, head: ResponseHead, cx: &mut Scratch<'_>) {
        self.measure.timeline.response_head(begun);
        if let Some(dialect) = self.dialect {
            self.reader = Some(dialect.reader());
            let framing = match head.media {
                _ if head.status >= 400 => None,
                MediaType::EventStream => Some(Framing::Sse),
                MediaType::Ndjson => Some(Framing::NdJson),
                MediaType::AwsEventStream => Some(Framing::AwsEventStream),
                MediaType::Grpc => Some(Framing::Lengths(head.message_coding)),
                MediaType::Json | MediaType::Other | MediaType::Missing => None,
            };
            self.body = framing.map_or(Body::Undecided, |f| Body::Stream(Framer::new(f)));
            // A JSON body that the dialect knows to be cut into pieces.
            // Whose length is known beforehand is no stream.
            let sized = matches!(head.body, BodyLength::Bytes(_));
            let known = self.confirmed || self.certainty == Match::Certain;
            self.pieces = dialect.framing(&self.head, &self.asked).filter(|_| head.status < 400 && known && !sized);
            cx.events.clear();
            if let Some(reader) = self.reader.as_deref_mut() {
                reader.head(&head, cx.events);
            }
            cx.events.drain(..).for_each(|e| self.measure.facts.take(e));
            if let Some(coding) = head.coding {
                self.decoder = Decoder::new(coding).map(Box::new);
                if self.decoder.is_none() {
                    cx.anomalies.count(Anomaly::UnknownCoding);
                    self.measure.facts.unread = true;
                    self.body = Body::Skipped;
                }
            }
            if let Some(ms) = head.processing_ms {
                self.measure.facts.server.get_or_insert_default().total = Some(ms / 1000.0);
            }
        }
        self.response = Some(Box::new(head));
    }

    /// The next bytes of the response's body, if they are one whole event of a stream in no coding, and that is like the last one: then
    /// [`Call::response_body`] need not be called. Returns by how much more is buffered.
    #[inline]
    pub fn event(&mut self, at: Timestamp, bytes: &[u8], frames: &mut u64) -> Option<usize> {
        if self.decoder.is_some() {
            return None;
        }
        let reader = self.reader.as_deref()?;
        let before = self.measure.timeline.buffered();
        again(&self.body, reader, &mut self.measure, at, bytes, frames).then(|| {
            self.measure.timeline.body(at);
            self.response_bytes += bytes.len() as u64;
            self.measure.timeline.buffered() - before
        })
    }

    /// Asks for the memory that [`Call::event`] will need, but for the shape's. The result says nothing.
    #[inline]
    pub fn touch(&self) -> u64 {
        let framer = u64::from(matches!(self.body, Body::Stream(_)));
        framer ^ self.response_bytes ^ self.measure.timeline.touch() ^ u64::from(self.measure.facts.recognised)
    }

    /// What the next event looks like if it is like the last one.
    #[inline]
    pub fn shape(&self) -> Option<&Shape> {
        self.reader.as_deref()?.shape()
    }

    /// Bytes of the response's body.
    pub fn response_body(&mut self, at: Timestamp, bytes: &[u8], cx: &mut Scratch<'_>) {
        self.measure.timeline.body(at);
        self.response_bytes += bytes.len() as u64;
        let (Some(reader), Some(dialect)) = (&mut self.reader, &mut self.dialect) else { return };
        let sure = self.confirmed || self.certainty == Match::Certain;
        let who = Who { sure, reader, dialect, head: &self.head, asked: &self.asked };
        let mut parts = Reading { who, measure: &mut self.measure, body: &mut self.body, pieces: self.pieces, at };
        match &mut self.decoder {
            None => parts.plain(bytes, cx),
            Some(decoder) => {
                if let Err(what) = decoder.push(bytes, &mut |b| parts.plain(b, cx)) {
                    cx.anomalies.count(what);
                    self.measure.facts.unread = true;
                }
            }
        }
    }

    /// The response's trailers.
    pub fn trailers(&mut self, grpc_status: Option<u32>) {
        match grpc_status {
            None => {}
            Some(0) => self.measure.facts.ended_well = true,
            Some(code) => {
                let known = self.measure.facts.failed.take().flatten();
                self.measure.facts.failed = Some(known.or_else(|| Name::new(grpc_code(code))));
            }
        }
    }

    /// Bytes are missing.
    pub fn gap(&mut self, of: Side) {
        match of {
            Side::Request => {
                self.measure.timeline.hole_in_request();
                if let Some(body) = &mut self.request_body {
                    body.hole();
                }
            }
            Side::Response => {
                self.measure.hole();
                if let Some(decoder) = &mut self.decoder {
                    decoder.break_off();
                    self.measure.facts.unread = true;
                }
                match &mut self.body {
                    Body::Stream(framer) => framer.hole(),
                    Body::Json(skeleton) => skeleton.hole(),
                    // What comes next is not the first byte, and says nothing about the rest.
                    Body::Undecided => match self.pieces {
                        Some(framing) => {
                            let mut framer = Framer::new(framing);
                            framer.hole();
                            self.body = Body::Stream(framer);
                        }
                        None => {
                            self.measure.facts.unread = true;
                            self.body = Body::Skipped;
                        }
                    },
                    Body::Skipped => {}
                }
            }
        }
    }

    /// The exchange is over. `None` when it was no inference.
    pub fn over(mut self, at: Timestamp, (how, by): (Over, EndedBy), place: &Place<'_>, cx: &mut Scratch<'_>) -> Option<Inference> {
        if let Body::Stream(_) = self.body
            && let (Some(reader), Some(dialect)) = (&mut self.reader, &mut self.dialect)
        {
            let sure = self.confirmed || self.certainty == Match::Certain;
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
            return None;
        }
        let asked_stream = dialect.streams(&self.head, &self.asked) == Some(true);
        let stream = match (&self.body, &self.response) {
            // Every answer of gRPC is messages, a stream or not.
            (Body::Stream(_), Some(r)) if r.media == MediaType::Grpc => {
                let told = dialect.streams(&self.head, &self.asked).or(self.reader.as_ref().and_then(|r| r.streams()));
                !http_error && told != Some(false)
            }
            (Body::Stream(_), Some(_)) => !http_error,
            (Body::Json(_), _) => false,
            (_, Some(r)) => {
                let named = r.media == MediaType::EventStream || self.pieces.is_some();
                !http_error && (named || r.media != MediaType::Json && asked_stream)
            }
            (_, None) => asked_stream,
        };
        if !stream && !matches!(self.body, Body::Json(_)) {
            // What the head counted stands for the body only where that was read.
            self.measure.facts.usage = None;
        }
        let echoed = self.asked.echo.0 == Some(true);
        let asked_model = self.asked.model.0.take().or_else(|| dialect.model(&self.head)).or_else(|| self.head.query.model.clone());
        let request = Request {
            model: asked_model,
            bytes: self.request_bytes,
            id: self.head.id.clone(),
            traceparent: self.head.traceparent,
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
            limits: head.map(|r| r.limits).unwrap_or_default(),
            ..Response::default()
        };
        let provider = head.and_then(|r| r.provider);
        let what = Exchange { dialect, head: &self.head, provider, request, response, place };
        Some(self.measure.finish(Ended { at, how, by, stream, readable, echoed, code: None }, what))
    }

    /// Reads an answer that is no stream, or an HTTP error's body. `None` when it is of no form that the dialect knows, and the
    /// dialect was no more than a guess.
    fn answer(&self, skeleton: &Skeleton, http_error: bool, how: Over, cx: &mut Scratch<'_>) -> Option<Whole> {
        let mut dialect = self.dialect?;
        // What the head said stays.
        let Facts { server, unread, recognised, usage, .. } = self.measure.facts;
        let mut facts = Facts { server, unread, recognised, ..Facts::default() };
        let body = match skeleton.finish() {
            Ok(body) if how == Over::Complete => body,
            Ok(_) => return Some(Whole { facts, dialect, readable: false }),
            Err(what) => {
                cx.anomalies.count(what);
                return Some(Whole { facts, dialect, readable: false });
            }
        };
        if http_error {
            let said = || self.response.as_ref().and_then(|r| r.error_type.clone());
            facts.failed = http_error_kind(body).or_else(said).map(Some);
            return Some(Whole { facts, dialect, readable: true });
        }
        // What the head counted is the answer's, where its body does not say it better.
        facts.usage = usage;
        cx.events.clear();
        let mut kind = dialect.reader().answer(body, cx.events);
        if kind == FrameKind::Unknown {
            let known = |reader: &mut dyn Reader| {
                cx.events.clear();
                kind = reader.answer(body, cx.events);
                matches!(kind, FrameKind::Event | FrameKind::Last)
            };
            match dialect::by_answer(&self.head, &self.asked, dialect, known) {
                Some((other, _)) => dialect = other,
                None => {
                    cx.events.clear();
                    kind = FrameKind::Unknown;
                }
            }
        }
        let surprise = match kind {
            FrameKind::BadJson => Some(Anomaly::BadJson),
            FrameKind::Unknown => Some(Anomaly::UnknownEvent),
            _ => None,
        };
        let sure = self.confirmed || self.certainty == Match::Certain;
        if sure {
            surprise.into_iter().for_each(|what| cx.anomalies.count(what));
        }
        let readable = surprise.is_none();
        facts.recognised |= readable && (sure || kind != FrameKind::Perhaps);
        facts.foreign |= !readable;
        cx.events.drain(..).for_each(|e| facts.take(e));
        // A tentative dialect whose answer it does not know was the wrong guess.
        (readable || self.certainty == Match::Certain).then_some(Whole { facts, dialect, readable })
    }
}

/// The name of a gRPC status code (<https://grpc.io/docs/guides/status-codes/>).
fn grpc_code(code: u32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    usize::try_from(code).ok().and_then(|n| NAMES.get(n).copied()).unwrap_or("UNKNOWN")
}

/// An answer that is no stream.
struct Whole {
    facts: Facts,
    /// Whose form it has.
    dialect: &'static dyn Dialect,
    /// Whether it could be read.
    readable: bool,
}

/// Who reads an answer, and what makes another the better reader.
struct Who<'c> {
    /// Whether the request is the dialect's own: then what it cannot read is a surprise, not somebody else's.
    sure: bool,
    reader: &'c mut Box<dyn Reader>,
    dialect: &'c mut &'static dyn Dialect,
    head: &'c RequestHead,
    asked: &'c Asked,
}

impl Who<'_> {
    /// Reads an event. As long as none was known, another dialect may know it better.
    fn frame(&mut self, frame: Frame<'_>, facts: &mut Facts, events: &mut Vec<LlmEvent>) -> FrameKind {
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
struct Reading<'c> {
    who: Who<'c>,
    measure: &'c mut Measure,
    body: &'c mut Body,
    pieces: Option<Framing>,
    at: Timestamp,
}

impl Reading<'_> {
    /// Decoded bytes.
    fn plain(&mut self, bytes: &[u8], cx: &mut Scratch<'_>) {
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
    fn finish(&mut self, how: Over, cx: &mut Scratch<'_>) {
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
fn is_whole(data: &[u8]) -> bool {
    data.starts_with(b"[DONE]") || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
}

/// Takes `bytes` if they are one whole event of a stream that is like the last one: what [`unit_of`] would make of it, without framer and
/// parser.
#[inline]
fn again(body: &Body, reader: &dyn Reader, measure: &mut Measure, at: Timestamp, bytes: &[u8], frames: &mut u64) -> bool {
    let Body::Stream(Framer::Sse(framer)) = body else { return false };
    let Some(frame) = framer.whole(bytes) else { return false };
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
fn unit_of(unit: Unit<'_>, at: Timestamp, who: &mut Who<'_>, measure: &mut Measure, cx: &mut Scratch<'_>) {
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
