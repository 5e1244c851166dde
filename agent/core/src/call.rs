//! One exchange being measured: request and response as HTTP gives them on one side, the marks of an inference on the other.
//!
//! Here the stages meet: a body's bytes are decoded, framed, read by the dialect and stamped. What the dialect says is folded into
//! facts and marks at once; the bytes are gone when the call returns.

use crate::anomaly::{Anomalies, Anomaly};
use crate::dialect::body::{Asked, http_error_kind};
use crate::dialect::shape::Shape;
use crate::dialect::{self, Dialect, FrameKind, LlmEvent, Match, Reader};
use crate::framing::json::Skeleton;
use crate::framing::{Frame, Framer, Framing, Unit};
use crate::http::coding::Decoder;
use crate::http::event::{EndedBy, Over, Side};
use crate::http::head::{BodyLength, MediaType, RequestHead, ResponseHead};
use crate::inference::{Failure, Inference, Outcome, Reason, Request, Response, ServerTiming, Stage, Trace, Usage, Vantage};
use crate::name::Name;
use crate::semconv;
use crate::stream::{ConnInfo, Direction, Timestamp};
use crate::timeline::{Ending, Timeline};

/// Containers of a request that are looked into: the request itself and what stands right in it.
const REQUEST_DEPTH: usize = 2;
/// Containers of an answer that are looked into: `choices[0].message.tool_calls[0].function`.
const ANSWER_DEPTH: usize = 7;
/// Events of no known form after which no other dialect is tried any more.
const MAX_TRIES: u32 = 16;
/// Finish reasons kept of one answer.
const MAX_FINISHED: usize = 128;

/// One exchange. What every chunk of a stream needs stands first and together; the rest is boxed where it is large and often absent.
#[derive(Debug)]
#[repr(C)]
pub struct Call {
    body: Body,
    reader: Option<Box<dyn Reader>>,
    decoder: Option<Box<Decoder>>,
    response_bytes: u64,
    timeline: Timeline,
    facts: Facts,
    dialect: Option<&'static dyn Dialect>,
    certainty: Match,
    /// Whether the request's body is one that the dialect knows.
    confirmed: bool,
    asked: Asked,
    request_body: Option<Box<Skeleton>>,
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

/// What the dialect said so far.
#[derive(Debug, Default)]
struct Facts {
    id: Option<Name>,
    model: Option<Name>,
    finished: Vec<(u32, Name)>,
    usage: Option<Usage>,
    failed: Option<Option<Name>>,
    server: Option<ServerTiming>,
    /// Whether the answer is one of the dialect's.
    recognised: bool,
    /// Whether there was an answer of another form.
    foreign: bool,
    /// How many events were shown to other dialects.
    tries: u32,
    /// Whether something could not be read at all.
    unread: bool,
    /// Whether bytes are missing behind the last finish reason.
    hole_since_finish: bool,
    /// Whether `usage` is the last word: it came with the finish reasons or behind them.
    usage_settled: bool,
    /// Whether bytes are missing behind `usage`.
    hole_since_usage: bool,
}

/// What a call needs from its surroundings while it reads.
#[derive(Debug)]
pub struct Scratch<'a> {
    /// Reused for the events of one frame.
    pub events: &'a mut Vec<LlmEvent>,
    /// Where surprises are counted.
    pub anomalies: &'a mut Anomalies,
    /// Where events are counted.
    pub frames: &'a mut u64,
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
            request_body: dialect.map(|_| Box::new(Skeleton::new(REQUEST_DEPTH))),
            request_decoder,
            request_bytes: 0,
            timeline: Timeline::new(begun),
            response: None,
            response_bytes: 0,
            decoder: None,
            body: Body::Skipped,
            pieces: None,
            reader: None,
            facts: Facts::default(),
            head,
        }
    }

    /// Whether this is, as far as can be told, LLM traffic.
    pub fn is_llm(&self) -> bool {
        self.dialect.is_some() && (self.certainty == Match::Certain || self.facts.recognised || self.confirmed && !self.facts.foreign)
    }

    /// Whether what was seen until the end makes it an inference. Where path and body only make it likely, the answer must be known:
    /// unless it is an error, or none came, and nobody but the two ends is to blame.
    fn is_known(&self, how: Over) -> bool {
        let status = self.response.as_ref().map(|r| r.status);
        let unseen = self.timeline.holes() > 0 || matches!(how, Over::InputEnded | Over::Evicted | Over::Lost);
        let unanswered = self.response_bytes == 0 && !unseen;
        self.certainty == Match::Certain
            || self.facts.recognised
            || self.confirmed && !self.facts.foreign && (unanswered || status.is_some_and(|s| s >= 400))
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        let body = match &self.body {
            Body::Stream(f) => f.buffered(),
            Body::Json(s) => s.buffered(),
            Body::Skipped | Body::Undecided => 0,
        };
        let decoders = [&self.decoder, &self.request_decoder].into_iter().flatten().map(|d| d.buffered()).sum::<usize>();
        body + self.request_body.as_ref().map_or(0, |body| body.buffered()) + decoders + self.timeline.buffered()
    }

    /// Gives up the single gaps between chunks to save memory.
    pub fn forget_gaps(&mut self) {
        self.timeline.forget_gaps();
    }

    /// Whether the API's terminator was seen, and when.
    pub fn terminated_at(&self) -> Option<Timestamp> {
        self.timeline.terminator_at()
    }

    /// Bytes of the request's body.
    pub fn request_body(&mut self, bytes: &[u8], cx: &mut Scratch<'_>) {
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
    }

    /// The request is complete.
    pub fn request_end(&mut self, at: Timestamp, cx: &mut Scratch<'_>) {
        self.timeline.request_sent(at);
        self.request_decoder = None;
        let Some(body) = self.request_body.take() else { return };
        let asked = body.finish().and_then(|b| dialect::body::object::<Asked>(b).ok_or(Anomaly::BadJson));
        match asked {
            Ok(asked) => {
                let fits = self.dialect.is_some_and(|d| d.confirms(&asked));
                let other = (!fits).then(|| dialect::by_body(&self.head, &asked)).flatten();
                // The path says one thing, the body another: whoever recognises the body has it. If nobody does, it is a bad
                // request where the path is sure, else none of ours.
                if !fits && (other.is_some() || self.certainty < Match::Certain) {
                    self.dialect = other.map(|(d, _)| d);
                    self.certainty = other.map_or(Match::No, |(_, m)| m.min(Match::Likely));
                }
                self.confirmed = self.certainty >= Match::Likely && (fits || other.is_some());
                self.asked = asked;
            }
            // A request that cannot be read keeps its place where the path is sure, and may yet be known by its answer where the
            // path is one of an API's. One without a body has nothing to read.
            Err(_) if self.certainty < Match::Likely => self.dialect = None,
            Err(_) if self.certainty == Match::Likely => self.certainty = Match::Maybe,
            Err(_) if self.request_bytes == 0 => {}
            Err(what) => cx.anomalies.count(what),
        }
    }

    /// The final response's head is complete; its first byte came at `begun`.
    pub fn response_head(&mut self, begun: Timestamp, head: ResponseHead, cx: &mut Scratch<'_>) {
        self.timeline.response_head(begun);
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
            cx.events.drain(..).for_each(|e| self.facts.take(e));
            if let Some(coding) = head.coding {
                self.decoder = Decoder::new(coding).map(Box::new);
                if self.decoder.is_none() {
                    cx.anomalies.count(Anomaly::UnknownCoding);
                    self.facts.unread = true;
                    self.body = Body::Skipped;
                }
            }
            if let Some(ms) = head.processing_ms {
                self.facts.server.get_or_insert_default().total = Some(ms / 1000.0);
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
        let before = self.timeline.buffered();
        again(&self.body, reader, &mut self.timeline, &mut self.facts, at, bytes, frames).then(|| {
            self.timeline.body(at);
            self.response_bytes += bytes.len() as u64;
            self.timeline.buffered() - before
        })
    }

    /// Asks for the memory that [`Call::event`] will need. The result says nothing.
    pub fn touch(&self) -> u64 {
        let shape = self.reader.as_deref().and_then(Reader::shape).map_or(0, Shape::touch);
        u64::from(shape) ^ self.response_bytes ^ self.timeline.touch() ^ u64::from(self.facts.recognised)
    }

    /// Bytes of the response's body.
    pub fn response_body(&mut self, at: Timestamp, bytes: &[u8], cx: &mut Scratch<'_>) {
        self.timeline.body(at);
        self.response_bytes += bytes.len() as u64;
        let (Some(reader), Some(dialect)) = (&mut self.reader, &mut self.dialect) else { return };
        let sure = self.confirmed || self.certainty == Match::Certain;
        let who = Who { sure, reader, dialect, head: &self.head, asked: &self.asked };
        let (facts, timeline, body) = (&mut self.facts, &mut self.timeline, &mut self.body);
        let mut parts = Reading { who, facts, timeline, body, pieces: self.pieces, at };
        match &mut self.decoder {
            None => parts.plain(bytes, cx),
            Some(decoder) => {
                if let Err(what) = decoder.push(bytes, &mut |b| parts.plain(b, cx)) {
                    cx.anomalies.count(what);
                    self.facts.unread = true;
                }
            }
        }
    }

    /// The response's trailers.
    pub fn trailers(&mut self, grpc_status: Option<u32>) {
        if let Some(code) = grpc_status.filter(|code| *code != 0) {
            let known = self.facts.failed.take().flatten();
            self.facts.failed = Some(known.or_else(|| Name::new(grpc_code(code))));
        }
    }

    /// Bytes are missing.
    pub fn gap(&mut self, of: Side) {
        match of {
            Side::Request => {
                self.timeline.hole_in_request();
                if let Some(body) = &mut self.request_body {
                    body.hole();
                }
            }
            Side::Response => {
                self.timeline.hole();
                self.facts.hole_since_finish = true;
                self.facts.hole_since_usage = true;
                if let Some(decoder) = &mut self.decoder {
                    decoder.break_off();
                    self.facts.unread = true;
                }
                match &mut self.body {
                    Body::Stream(framer) => framer.hole(),
                    Body::Json(skeleton) => skeleton.hole(),
                    // What lies in the hole would have decided.
                    Body::Undecided => {
                        self.facts.unread = true;
                        self.body = Body::Skipped;
                    }
                    Body::Skipped => {}
                }
            }
        }
    }

    /// The exchange is over. `None` when it was no inference.
    pub fn over(mut self, at: Timestamp, (how, by): (Over, EndedBy), conn: &Place<'_>, cx: &mut Scratch<'_>) -> Option<Inference> {
        if let Body::Stream(_) = self.body
            && let (Some(reader), Some(dialect)) = (&mut self.reader, &mut self.dialect)
        {
            let sure = self.confirmed || self.certainty == Match::Certain;
            let who = Who { sure, reader, dialect, head: &self.head, asked: &self.asked };
            let (facts, timeline, body) = (&mut self.facts, &mut self.timeline, &mut self.body);
            Reading { who, facts, timeline, body, pieces: None, at }.finish(how, cx);
        }
        let status = self.response.as_ref().map(|r| r.status);
        let http_error = status.is_some_and(|s| s >= 400);
        let mut readable = true;
        if let Body::Json(skeleton) = &self.body {
            let whole = self.answer(skeleton, http_error, how, cx)?;
            (self.facts, self.dialect, readable) = (whole.facts, Some(whole.dialect), whole.readable);
        }
        let dialect = self.dialect?;
        if !self.is_known(how) {
            return None;
        }
        let asked_stream = dialect.streams(&self.head, &self.asked) == Some(true);
        let stream = match (&self.body, &self.response) {
            (Body::Stream(_), Some(_)) => !http_error,
            (Body::Json(_), _) => false,
            (_, Some(r)) => !http_error && (r.media == MediaType::EventStream || r.media != MediaType::Json && asked_stream),
            (_, None) => asked_stream,
        };
        let (outcome, error, reason) = self.verdict(how, stream, readable, status);
        let response_ended = how == Over::Complete;
        let ending = Ending {
            at,
            response_ended,
            outcome,
            stream,
            reason,
            choices: self.facts.finished.len(),
            echoed: self.asked.echo.0 == Some(true),
        };
        // A count that grows with the stream is final only where nothing can have followed it.
        let outgrown = self.facts.hole_since_usage || matches!(outcome, Outcome::Lost | Outcome::Truncated);
        let partial = dialect.counts_by_choice() && (self.timeline.hole_in_response() || outgrown);
        let settled = !stream || (self.facts.usage_settled && !dialect.usage_grows() || !outgrown) && !partial;
        // What is only sent again was counted when it was made.
        let operation = dialect.operation(&self.head);
        let usage = self.facts.usage.filter(|u| *u != Usage::default() && settled && operation.is_inference());
        let unseen = self.timeline.hole_in_response() || matches!(outcome, Outcome::Lost | Outcome::Truncated);
        if unseen && self.facts.finished.len() < self.timeline.choices().max(usize::from(stream)) {
            // Some of several choices: which reasons are missing cannot be told.
            self.facts.finished.clear();
        }
        let ended_by = if self.timeline.terminated() { EndedBy::Terminator } else { by };
        let gaps = self.timeline.holes();
        let chunks = if stream { self.timeline.chunks() } else { crate::inference::Chunks::default() };
        let timing = self.timeline.finish(&ending, usage.as_ref());
        self.facts.finished.sort_by_key(|(choice, _)| *choice);
        let (client, server) = conn.ends();
        let provider = self.head.host.as_ref().and_then(|h| semconv::provider_of_host(h.as_str()));
        let provider = provider.or(self.response.as_ref().and_then(|r| r.provider)).or(dialect.provider());
        let trace = conn.trace(timing.start, self.head.traceparent);
        let asked_model = self.asked.model.0.take().or_else(|| dialect.model(&self.head)).or(self.head.query.model);
        Some(Inference {
            tap: conn.info.tap,
            vantage: conn.vantage(),
            api: dialect.about().api,
            provider: provider.unwrap_or(semconv::PROVIDER_OTHER),
            operation,
            stream,
            protocol: conn.protocol,
            client,
            server,
            host: self.head.host,
            process: conn.info.process.clone(),
            request: Request {
                model: asked_model,
                bytes: self.request_bytes,
                id: self.head.id,
                traceparent: self.head.traceparent,
                max_tokens: self.asked.bound(),
                temperature: self.asked.heat(),
                top_p: self.asked.nucleus(),
                choices: self.asked.choices(),
            },
            response: Response {
                model: self.facts.model,
                id: self.facts.id,
                status,
                finish_reasons: self.facts.finished.into_iter().map(|(_, reason)| reason).collect(),
                bytes: self.response_bytes,
                content_encoding: self.response.as_ref().and_then(|r| r.coding).map(|c| c.as_str()),
                limits: self.response.as_ref().map(|r| r.limits).unwrap_or_default(),
                request_id: self.response.and_then(|r| r.id),
            },
            outcome,
            ended_by,
            error,
            usage,
            chunks,
            timing,
            gaps,
            server_timing: self.facts.server,
            trace,
        })
    }

    /// Reads an answer that is no stream, or an HTTP error's body. `None` when it is of no form that the dialect knows, and the
    /// dialect was no more than a guess.
    fn answer(&self, skeleton: &Skeleton, http_error: bool, how: Over, cx: &mut Scratch<'_>) -> Option<Whole> {
        let mut dialect = self.dialect?;
        // What the head said stays.
        let Facts { server, unread, recognised, usage, .. } = self.facts;
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

    fn verdict(&self, how: Over, stream: bool, readable: bool, status: Option<u16>) -> (Outcome, Option<Failure>, Reason) {
        let fail = |kind: Option<Name>, other: &str, stage| {
            let kind = kind.or_else(|| Name::new(other));
            kind.map(|kind| Failure { kind, stage })
        };
        let facts = &self.facts;
        if let Some(status) = status.filter(|s| *s >= 400) {
            return (Outcome::Failed, fail(facts.failed.clone().flatten(), &status.to_string(), Stage::Http), Reason::HttpError);
        }
        if let Some(kind) = &facts.failed {
            return (Outcome::Failed, fail(kind.clone(), semconv::PROVIDER_OTHER, Stage::Stream), Reason::StreamError);
        }
        let last_word = !facts.finished.is_empty() || self.dialect.is_some_and(Dialect::ends_with_body);
        let ended = self.timeline.terminated() || how == Over::Complete && last_word;
        let hole = self.timeline.hole_in_response() || self.timeline.hole_since_frame();
        match (stream, how) {
            (false, Over::Complete) if status.is_some() && readable && !facts.unread => {
                return (Outcome::Completed, None, Reason::NotStreaming);
            }
            (false, Over::Complete) if hole => return (Outcome::Lost, None, Reason::CaptureGap),
            (false, Over::Complete) => return (Outcome::Lost, None, Reason::Unparsed),
            // What lies in a hole may have been an error: only a finish reason behind it proves a good end.
            (true, _) if ended && (!hole || !facts.finished.is_empty() && !facts.hole_since_finish) => {
                return (Outcome::Completed, None, Reason::NoOutput);
            }
            _ => {}
        }
        match how {
            Over::Evicted => (Outcome::Lost, None, Reason::Evicted),
            Over::Lost => (Outcome::Lost, None, Reason::CaptureGap),
            _ if hole => (Outcome::Lost, None, Reason::CaptureGap),
            _ if facts.unread => (Outcome::Lost, None, Reason::Unparsed),
            Over::ClientClosed => (Outcome::Cancelled, None, Reason::ClientCancelled),
            Over::ServerReset => (Outcome::Failed, fail(None, "connection_reset", Stage::Transport), Reason::ServerClosed),
            Over::Complete | Over::ServerClosed => (Outcome::Failed, fail(None, "closed_early", Stage::Transport), Reason::ServerClosed),
            Over::Timeout => (Outcome::Failed, fail(None, "timeout", Stage::Transport), Reason::Timeout),
            Over::InputEnded => (Outcome::Truncated, None, Reason::Truncated),
        }
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

impl Facts {
    fn take(&mut self, event: LlmEvent) {
        match event {
            LlmEvent::Started { id, model } => {
                self.id = self.id.take().or(id);
                self.model = self.model.take().or(model);
            }
            LlmEvent::Usage(usage) => {
                let old = self.usage.unwrap_or_default();
                self.usage = Some(Usage {
                    input: usage.input.or(old.input),
                    output: usage.output.or(old.output),
                    cache_read: usage.cache_read.or(old.cache_read),
                    cache_write: usage.cache_write.or(old.cache_write),
                    reasoning: usage.reasoning.or(old.reasoning),
                });
            }
            LlmEvent::Finished { choice, reason } => {
                self.hole_since_finish = false;
                let room = self.finished.len() < MAX_FINISHED;
                match self.finished.iter_mut().find(|(c, _)| *c == choice) {
                    Some((_, old)) => *old = reason,
                    None if room => self.finished.push((choice, reason)),
                    None => {}
                }
            }
            LlmEvent::Failed { kind } => {
                let known = self.failed.take().flatten();
                self.failed = Some(known.or(kind));
            }
            LlmEvent::Server(timing) => {
                let old = self.server.unwrap_or_default();
                self.server = Some(ServerTiming {
                    queue: timing.queue.or(old.queue),
                    prefill: timing.prefill.or(old.prefill),
                    ttft: timing.ttft.or(old.ttft),
                    tpot: timing.tpot.or(old.tpot),
                    decode: timing.decode.or(old.decode),
                    total: timing.total.or(old.total),
                    load: timing.load.or(old.load),
                });
            }
            LlmEvent::Delta { .. } | LlmEvent::ToolStart | LlmEvent::Tokens(_) => {}
        }
    }
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
    facts: &'c mut Facts,
    timeline: &'c mut Timeline,
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
                    self.facts.unread = true;
                    self.facts.foreign = true;
                    *self.body = Body::Skipped;
                }
                None => {}
            }
        }
        let Self { who, facts, timeline, body, at, .. } = self;
        if again(body, who.reader.as_ref(), timeline, facts, *at, bytes, cx.frames) {
            return;
        }
        match body {
            Body::Stream(framer) => framer.push(bytes, &mut |unit| unit_of(unit, *at, who, facts, timeline, cx)),
            Body::Json(skeleton) => skeleton.push(bytes),
            Body::Skipped | Body::Undecided => {}
        }
    }

    /// The body ended. What is left of an event that was cut off is none.
    fn finish(&mut self, how: Over, cx: &mut Scratch<'_>) {
        let Self { who, facts, timeline, body, at, .. } = self;
        if let Body::Stream(framer) = body {
            framer.finish(&mut |unit| match unit {
                Unit::Event(frame) if how != Over::Complete && !is_whole(frame.data) => {}
                unit => unit_of(unit, *at, who, facts, timeline, cx),
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
fn again(
    body: &Body,
    reader: &dyn Reader,
    timeline: &mut Timeline,
    facts: &mut Facts,
    at: Timestamp,
    bytes: &[u8],
    frames: &mut u64,
) -> bool {
    let Body::Stream(Framer::Sse(framer)) = body else { return false };
    let Some(frame) = framer.whole(bytes) else { return false };
    let Some((choice, kind)) = reader.shape().and_then(|shape| shape.delta(frame)) else { return false };
    if timeline.terminated() {
        return false;
    }
    facts.recognised = true;
    *frames += 1;
    timeline.delta(at, choice, kind);
    true
}

/// One unit of a stream: read, stamped, folded into the facts.
fn unit_of(unit: Unit<'_>, at: Timestamp, who: &mut Who<'_>, facts: &mut Facts, timeline: &mut Timeline, cx: &mut Scratch<'_>) {
    let frame = match unit {
        Unit::Event(frame) => frame,
        Unit::KeepAlive => return,
        Unit::End => return timeline.terminator(at),
        Unit::Odd(what) => return cx.anomalies.count(what),
    };
    cx.events.clear();
    let kind = who.frame(frame, facts, cx.events);
    match kind {
        FrameKind::KeepAlive => return,
        FrameKind::Terminator => return timeline.terminator(at),
        FrameKind::BadJson if who.sure || facts.recognised => cx.anomalies.count(Anomaly::BadJson),
        FrameKind::Unknown if who.sure || facts.recognised => cx.anomalies.count(Anomaly::UnknownEvent),
        FrameKind::BadJson | FrameKind::Unknown => {}
        FrameKind::Event | FrameKind::Last => facts.recognised = true,
        FrameKind::Perhaps => facts.recognised |= who.sure,
    }
    facts.foreign |= matches!(kind, FrameKind::BadJson | FrameKind::Unknown);
    if timeline.terminated() {
        cx.anomalies.count(Anomaly::AfterTerminator);
    }
    *cx.frames += 1;
    timeline.frame(at, cx.events);
    if kind == FrameKind::Last {
        timeline.terminator(at);
    }
    let counted = cx.events.iter().any(|e| matches!(e, LlmEvent::Usage(_)));
    cx.events.drain(..).for_each(|e| facts.take(e));
    if counted {
        facts.usage_settled = facts.finished.len() >= timeline.choices().max(1);
        facts.hole_since_usage = false;
    }
}

/// Where a call takes place.
#[derive(Debug)]
pub struct Place<'a> {
    /// The connection.
    pub info: &'a ConnInfo,
    /// In which direction its requests travel.
    pub requests: Direction,
    /// The record's `protocol`.
    pub protocol: &'static str,
    /// What makes ids: the pipeline's seed, the connection, the exchange.
    pub identity: [u64; 3],
}

impl Place<'_> {
    fn ends(&self) -> (Option<std::net::SocketAddr>, Option<std::net::SocketAddr>) {
        match (self.info.endpoints, self.requests) {
            (Some(e), Direction::Forward) => (Some(e.local), Some(e.remote)),
            (Some(e), Direction::Reverse) => (Some(e.remote), Some(e.local)),
            (None, _) => (None, None),
        }
    }

    fn vantage(&self) -> Vantage {
        match (self.info.side, self.requests) {
            (crate::stream::Side::Middle, _) => Vantage::Unknown,
            (crate::stream::Side::Local, Direction::Forward) => Vantage::Client,
            (crate::stream::Side::Local, Direction::Reverse) => Vantage::Server,
        }
    }

    fn trace(&self, start: Timestamp, parent: Option<crate::inference::TraceParent>) -> Trace {
        let mut state = start.unix_nanos();
        let mut next = |salt: u64| {
            for word in self.identity {
                state = mix(state ^ word).wrapping_add(salt);
            }
            mix(state).max(1)
        };
        let own = u128::from(next(1)) << 64 | u128::from(next(2));
        Trace { trace_id: parent.map_or(own, |p| p.trace_id), span_id: next(3), parent: parent.map(|p| p.span_id) }
    }
}

/// SplitMix64's finaliser.
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
