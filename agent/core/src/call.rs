//! One exchange being measured: request and response as HTTP gives them on one side, the marks of an inference on the other.
//!
//! Here the stages meet: a body's bytes are decoded, framed, read by the dialect and stamped. What the dialect says is folded into
//! facts and marks at once; the bytes are gone when the call returns.

mod answer;
mod ended;
mod known;
mod reading;

use crate::anomaly::Anomaly;
use crate::dialect::body::{Asked, http_error_kind};
use crate::dialect::shape::Shape;
use crate::dialect::{self, Dialect, FrameKind, LlmEvent, Match, Output, Reader};
use crate::facts::Facts;
use crate::framing::json::Skeleton;
use crate::framing::{Frame, Framer, Framing, Unit};
use crate::http::coding::Decoder;
use crate::http::event::{EndedBy, Over, Side, grpc_code};
use crate::http::head::{BodyLength, Coding, MediaType, RequestHead, ResponseHead, Upgrade};
use crate::inference::{Inference, Request, Response};
use crate::measure::{Ended, Exchange, Measure, Place, Scratch};
use crate::name::Name;
use crate::request::RequestBody;
use crate::stream::Timestamp;
use reading::{Reading, Who, again};

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

    /// What the next event of the response looks like if it is like the last one, when it may be taken by [`Call::again`], after the decoder
    /// that [`Call::lend`] gives has taken its bytes.
    #[inline]
    pub fn steady(&self) -> Option<&Shape> {
        let Body::Stream(Framer::Sse(framer)) = &self.body else { return None };
        let known = self.measure.facts.recognised && !self.measure.timeline.terminated();
        let plain = self.decoder.as_ref().is_none_or(|decoder| decoder.is_within());
        if !known || !plain || !framer.is_idle() {
            return None;
        }
        self.shape().filter(|shape| shape.known().is_some())
    }

    /// Gives away what undoes the coding of the response's body, if that has one. It must be there again ([`Call::give_back`]) before the
    /// next bytes of the body are.
    pub fn lend(&mut self) -> Option<Decoder> {
        self.decoder.as_deref_mut().map(Decoder::take)
    }

    /// Takes back what was lent.
    pub fn give_back(&mut self, decoder: Decoder) {
        if let Some(place) = self.decoder.as_deref_mut() {
            *place = decoder;
        }
    }

    /// Events came at these instants, `bytes` of them together, which were all like the last one: each of them one piece of output. Returns
    /// by how much more is buffered.
    pub fn again(&mut self, instants: impl Iterator<Item = Timestamp>, choice: u32, kind: Output, bytes: u64) -> usize {
        let before = self.measure.timeline.buffered();
        self.response_bytes += bytes;
        self.measure.timeline.deltas(instants, choice, kind);
        self.measure.timeline.buffered() - before
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
        if self.response_bytes == 0 {
            self.guess_coding(bytes);
        }
        self.read(at, bytes.len(), cx, |decoder, out| match decoder {
            None => {
                out(bytes);
                Ok(())
            }
            Some(decoder) => decoder.push(bytes, &mut |text| out(text)),
        });
    }

    /// Bytes of the response's body, `count` of them, that the decoder that was lent began to take: [`Decoder::piece`] gave `done` and left `rest`.
    pub fn response_rest(&mut self, at: Timestamp, count: usize, done: Result<bool, Anomaly>, rest: &[u8], cx: &mut Scratch<'_>) {
        self.read(at, count, cx, |decoder, out| match decoder {
            None => Ok(()),
            Some(decoder) => {
                let more = done?;
                if !decoder.text().is_empty() {
                    out(decoder.text());
                }
                if more { decoder.push(rest, &mut |text| out(text)) } else { Ok(()) }
            }
        });
    }

    /// Reads the text that `step` makes of the next `count` bytes of the response's body.
    #[inline]
    fn read(
        &mut self,
        at: Timestamp,
        count: usize,
        cx: &mut Scratch<'_>,
        step: impl FnOnce(Option<&mut Decoder>, &mut dyn FnMut(&[u8])) -> Result<(), Anomaly>,
    ) {
        self.measure.timeline.body(at);
        self.response_bytes += count as u64;
        let sure = self.is_sure();
        let (Some(reader), Some(dialect)) = (&mut self.reader, &mut self.dialect) else { return };
        let who = Who { sure, reader, dialect, head: &self.head, asked: &self.asked };
        let mut parts = Reading { who, measure: &mut self.measure, body: &mut self.body, pieces: self.pieces, at };
        if let Err(what) = step(self.decoder.as_deref_mut(), &mut |text| parts.plain(text, cx)) {
            cx.anomalies.count(what);
            self.measure.facts.unread = true;
        }
    }

    /// Where the field that names the coding may not have been seen, the body's first byte tells what it can be at all. It is not said
    /// to be in that coding: that it can be read proves the events, not the field.
    fn guess_coding(&mut self, bytes: &[u8]) {
        let unseen = self.response.as_ref().is_some_and(|r| r.partial && r.coding.is_none() && r.media != MediaType::Grpc);
        if unseen && self.dialect.is_some() {
            self.decoder = bytes.first().and_then(|byte| Coding::by_first(*byte)).and_then(Decoder::new).map(Box::new);
        }
    }

    /// The response's trailers. `partial`: there are fields that cannot be known.
    pub fn trailers(&mut self, at: Timestamp, grpc_status: Option<u32>, partial: bool) {
        let may_be_grpc = self.response.as_ref().is_some_and(|r| r.media == MediaType::Grpc || r.partial && r.media == MediaType::Missing);
        match grpc_status {
            // How it ended is in what was not seen.
            None if partial && may_be_grpc => self.gap(at, Side::Response, None, None),
            None => {}
            Some(0) => self.measure.facts.ended_well = true,
            Some(code) => {
                let known = self.measure.facts.failed.take().flatten();
                self.measure.facts.failed = Some(known.or_else(|| Name::new(grpc_code(code))));
            }
        }
    }

    /// Bytes are missing: `missing` of the body, where that is known and nothing else is; `lost` of the connection, where that is known.
    pub fn gap(&mut self, at: Timestamp, of: Side, missing: Option<u64>, lost: Option<u64>) {
        match of {
            Side::Request => {
                self.measure.timeline.hole_in_request();
                if let Some(body) = &mut self.request_body {
                    body.hole();
                }
            }
            Side::Response => {
                self.measure.hole(at, lost);
                if let Some(reader) = &mut self.reader {
                    reader.hole();
                }
                // What is missing of compressed bytes says nothing about the plain ones.
                let missing = missing.filter(|_| self.decoder.is_none());
                if let Some(decoder) = &mut self.decoder {
                    decoder.break_off();
                    self.measure.facts.unread = true;
                }
                match &mut self.body {
                    Body::Stream(framer) => framer.hole(missing),
                    Body::Json(skeleton) => skeleton.hole(),
                    // What comes next is not the first byte, and says nothing about the rest.
                    Body::Undecided => match self.pieces {
                        Some(framing) => {
                            let mut framer = Framer::new(framing);
                            framer.hole(None);
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
}
