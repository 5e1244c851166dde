//! One inference being measured: what its dialect says is folded into facts and marks as it comes, and a record is made of them at
//! its end. An HTTP exchange and a turn of a conversation are measured alike; who drives a [`Measure`] knows what carries it.

use crate::anomaly::{Anomalies, Anomaly};
use crate::dialect::{Dialect, FrameKind, LlmEvent};
use crate::facts::Facts;
use crate::http::event::{EndedBy, Over};
use crate::http::head::RequestHead;
use crate::inference::{Chunks, Failure, Inference, Outcome, Reason, Request, Response, Stage, Usage, Vantage};
use crate::name::Name;
use crate::semconv;
use crate::stream::{ConnInfo, Direction, Side, Timestamp};
use crate::timeline::{Ending, Timeline};
use crate::trace::{Trace, TraceParent};

/// One inference being measured.
#[derive(Debug)]
pub struct Measure {
    /// What the answer said.
    pub facts: Facts,
    /// When.
    pub timeline: Timeline,
}

/// How an inference ended, as what carried it says.
#[derive(Clone, Debug)]
pub struct Ended {
    /// When.
    pub at: Timestamp,
    /// How.
    pub how: Over,
    /// By what.
    pub by: EndedBy,
    /// Whether the answer came, or was to come, as a stream; `None` where that cannot be told.
    pub stream: Option<bool>,
    /// Whether an answer that is no stream could be read.
    pub readable: bool,
    /// Whether the prompt was to be echoed.
    pub echoed: bool,
    /// Why the server ended the connection, as it says itself: a close code of a WebSocket.
    pub code: Option<Name>,
}

/// What is known of an inference beside its facts and marks.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// Its API.
    pub dialect: &'static dyn Dialect,
    /// The head of its request, or of the request that opened its conversation.
    pub head: &'a RequestHead,
    /// The provider that the server named.
    pub provider: Option<&'static str>,
    /// Whether it may have named one where it was not seen.
    pub hidden: bool,
    /// What was asked.
    pub request: Request,
    /// What was answered, as far as the facts do not say it.
    pub response: Response,
    /// Where.
    pub place: &'a Place<'a>,
}

/// What a measure needs from its surroundings while it reads.
#[derive(Debug)]
pub struct Scratch<'a> {
    /// Reused for the events of one frame.
    pub events: &'a mut Vec<LlmEvent>,
    /// Where surprises are counted.
    pub anomalies: &'a mut Anomalies,
    /// Where events are counted.
    pub frames: &'a mut u64,
}

impl Measure {
    /// A measure of an inference that begins at `start`.
    pub fn new(start: Timestamp) -> Self {
        Self { facts: Facts::default(), timeline: Timeline::new(start) }
    }

    /// Bytes of the answer are missing: so many of the connection, where that is known.
    pub fn hole(&mut self, at: Timestamp, bytes: Option<u64>) {
        self.timeline.hole(at, bytes);
        self.facts.hole_since_finish = true;
        self.facts.hole_since_usage = true;
    }

    /// Events of the answer are missing, though the bytes that are missing need not be its own: one hole until the next event.
    pub fn missing(&mut self, at: Timestamp, bytes: Option<u64>) {
        if !self.timeline.hole_since_frame() {
            self.hole(at, bytes);
        }
    }

    /// What was said for this inference in a message that is no event of it, in `cx.events`.
    pub fn aside(&mut self, cx: &mut Scratch<'_>) {
        cx.events.drain(..).for_each(|e| self.facts.take(e));
    }

    /// An error that was taken for this inference's was none of its own.
    pub fn pardon(&mut self) {
        self.facts.failed = None;
        self.timeline.go_on();
    }

    /// One event of a stream: `kind`, and what it says in `cx.events`. `sure`: the request is its dialect's own, so that what cannot be
    /// read is a surprise and not somebody else's.
    pub fn event(&mut self, at: Timestamp, kind: FrameKind, sure: bool, cx: &mut Scratch<'_>) {
        let Self { facts, timeline } = self;
        match kind {
            FrameKind::KeepAlive => return,
            FrameKind::Terminator => return timeline.terminator(at),
            FrameKind::BadJson if sure || facts.recognised => cx.anomalies.count(Anomaly::BadJson),
            FrameKind::Unknown if sure || facts.recognised => cx.anomalies.count(Anomaly::UnknownEvent),
            FrameKind::BadJson | FrameKind::Unknown => {}
            FrameKind::Event | FrameKind::Last => facts.recognised = true,
            FrameKind::Perhaps => facts.recognised |= sure,
        }
        facts.foreign |= matches!(kind, FrameKind::BadJson | FrameKind::Unknown);
        if timeline.terminated() {
            facts.went_on = true;
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

    /// The record.
    pub fn finish(mut self, ended: Ended, what: Exchange<'_>) -> Inference {
        let Ended { at, how, by, stream: as_stream, readable, echoed, code } = ended;
        let stream = as_stream == Some(true);
        let (outcome, error, reason) = self.verdict(how, stream, readable, what.response.status, code, what.dialect.ends_with_body());
        // Whether there was a first token to be seen is not known.
        let reason = if as_stream.is_none() && outcome == Outcome::Completed { Reason::CaptureGap } else { reason };
        let response_ended = how == Over::Complete;
        // Where a finish reason is not the last word, only the end is.
        let last_word = what.dialect.finish_is_last();
        let end_seen = (response_ended || self.timeline.terminated()) && !self.facts.hole_since_finish;
        let finished = if last_word || end_seen { self.facts.finished.len() } else { 0 };
        let ending = Ending { at, response_ended, outcome, stream, reason, choices: finished, echoed };
        // A count that grows with the stream is final only where nothing can have followed it.
        let outgrown = self.facts.hole_since_usage || matches!(outcome, Outcome::Lost | Outcome::Truncated);
        let partial = what.dialect.counts_by_choice() && (self.timeline.hole_in_response() || outgrown);
        let settled = !stream || (self.facts.usage_settled && last_word || !outgrown) && !partial;
        // What is only sent again was counted when it was made.
        let operation = what.dialect.operation(what.head);
        let usage = self.facts.usage.as_deref().copied().filter(|u| *u != Usage::default() && settled && operation.is_inference());
        let unseen = self.timeline.hole_in_response() || matches!(outcome, Outcome::Lost | Outcome::Truncated);
        if unseen && finished < self.timeline.choices().max(usize::from(stream)) {
            // Some of several choices: which reasons are missing cannot be told.
            self.facts.finished.clear();
        }
        let ended_by = if self.timeline.terminated() { EndedBy::Terminator } else { by };
        // What would tell how it was answered is missing, though no byte of it is.
        let gaps = self.timeline.holes().max(u32::from(as_stream.is_none() && what.response.status.is_some()));
        let chunks = if stream { self.timeline.chunks() } else { Chunks::default() };
        let timing = self.timeline.finish(&ending, usage.as_ref());
        self.facts.finished.sort_by_key(|(choice, _)| *choice);
        let Exchange { dialect, head, provider: named, hidden, request, response, place } = what;
        let (client, server) = place.ends();
        let provider = head.host.as_ref().and_then(|h| semconv::provider_of_host(h.as_str())).or(named);
        // Who says most was not seen: what the API is mostly served by says nothing then.
        let hidden = hidden || head.partial && head.host.is_none();
        let usual = || dialect.provider().unwrap_or(semconv::PROVIDER_OTHER);
        Inference {
            tap: place.info.tap,
            vantage: place.vantage(),
            api: dialect.about().api,
            provider: provider.or_else(|| (!hidden).then(usual)),
            operation,
            stream: as_stream,
            protocol: place.protocol,
            exchange: place.identity[2],
            client,
            server,
            host: head.host.clone(),
            process: place.info.process.clone(),
            client_workload: None,
            server_workload: None,
            trace: place.trace(timing.start, request.traceparent),
            request,
            response: Response {
                model: self.facts.model,
                id: self.facts.id,
                finish_reasons: self.facts.finished.into_iter().map(|(_, reason)| reason).collect(),
                ..response
            },
            outcome,
            ended_by,
            error,
            usage,
            chunks,
            timing,
            gaps,
            server_timing: self.facts.server.map(|server| *server),
        }
    }

    fn verdict(
        &self,
        how: Over,
        stream: bool,
        readable: bool,
        status: Option<u16>,
        code: Option<Name>,
        ends_with_body: bool,
    ) -> (Outcome, Option<Failure>, Reason) {
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
        if facts.cancelled {
            return (Outcome::Cancelled, None, Reason::ClientCancelled);
        }
        let last_word = facts.ended_well || !facts.finished.is_empty() || ends_with_body;
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
            Over::Complete | Over::ServerClosed => (Outcome::Failed, fail(code, "closed_early", Stage::Transport), Reason::ServerClosed),
            Over::Timeout => (Outcome::Failed, fail(None, "timeout", Stage::Transport), Reason::Timeout),
            Over::InputEnded => (Outcome::Truncated, None, Reason::Truncated),
        }
    }
}

/// Where an inference takes place.
#[derive(Debug)]
pub struct Place<'a> {
    /// The connection.
    pub info: &'a ConnInfo,
    /// In which direction its requests travel.
    pub requests: Direction,
    /// The record's `protocol`.
    pub protocol: &'static str,
    /// What makes ids, beside the connection's ends: the pipeline's seed, the connection where its ends are not known, the exchange.
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
            (Side::Middle, _) => Vantage::Unknown,
            (Side::Local, Direction::Forward) => Vantage::Client,
            (Side::Local, Direction::Reverse) => Vantage::Server,
        }
    }

    fn trace(&self, start: Timestamp, parent: Option<TraceParent>) -> Trace {
        let mut state = start.unix_nanos();
        let ends = self.info.endpoints.map_or(0, |e| fold(e.local) ^ fold(e.remote));
        // A connection's number may change with what else was captured, its ends do not.
        let [seed, number, exchange] = self.identity;
        let identity = [seed, if self.info.endpoints.is_some() { 0 } else { number }, exchange];
        let mut next = |salt: u64| {
            for word in identity {
                state = mix(state ^ word).wrapping_add(salt);
            }
            state = mix(state ^ ends);
            mix(state).max(1)
        };
        let own = u128::from(next(1)) << 64 | u128::from(next(2));
        Trace { trace_id: parent.map_or(own, |p| p.trace_id), span_id: next(3), parent: parent.map(|p| p.span_id) }
    }
}

/// An address as one word.
fn fold(address: std::net::SocketAddr) -> u64 {
    let ip = match address.ip() {
        std::net::IpAddr::V4(ip) => u128::from(ip.to_bits()),
        std::net::IpAddr::V6(ip) => ip.to_bits(),
    };
    mix((ip as u64) ^ mix((ip >> 64) as u64 ^ u64::from(address.port())))
}

/// SplitMix64's finaliser.
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
