//! One span per inference, made of the wire's instants: it begins with the request's first byte and ends where the answer
//! ended, not where the exporter got to know of it. It holds no text, since an [`Inference`] has no field for any.
//!
//! A span is written as Protobuf directly. As `SpanData` it would be some forty keys and values with an allocation each, copied into the
//! messages of `opentelemetry-proto`, and then counted and written; this way it is one pass into one buffer that is used again
//! (`cargo run --release -p tokengauge --example export_cost` measures it).

use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;

use tokengauge_core::inference::{Hole, Inference, Outcome, Vantage};
use tokengauge_core::name::Name;
use tokengauge_core::semconv::{self, Profile, attr, metric};
use tokengauge_core::tenant::Tenant;
use tokengauge_core::workload;

use super::Env;
use super::sampling::{Decision, Keep, Sampling, Slow};
use super::wire::{self, Value};
use crate::export::record::reason;
use crate::join::{Found, Other};

mod phases;

pub use phases::Phase;

/// `otlp.spans`: which inferences become spans, and what stands in them.
#[derive(Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct SpansConfig {
    /// What is exported although the sampler leaves it out: any of `failed`, `slow`, `cancelled`; all of them when not said.
    pub keep: Option<Vec<Keep>>,
    /// Limits beyond which an inference is slow, beside those of the objectives.
    pub slow: Slow,
    /// Silences between two chunks that become events, seconds; 1 when not said.
    pub stall_s: Option<f64>,
    /// Every so many chunks one becomes an event; 0, the default: none.
    pub chunk_events: u32,
    /// Whether an engine's phases (queue, load, prefill, decode) become spans below that of the request, where the engine tells them.
    pub phases: bool,
}

impl SpansConfig {
    /// Whether the values make sense; the message names the key below `otlp.spans`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        if self.stall_s.is_some_and(|s| !(0.001..=86_400.0).contains(&s)) {
            return Err("stall_s: must be between 0.001 and 86400".into());
        }
        self.slow.check()
    }
}

/// How much a span may hold (specification of the tracing SDK, span limits). What is beyond is left out and counted in the span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpanLimits {
    /// Letters of a text.
    pub value_len: usize,
    /// Attributes of a span.
    pub attributes: u32,
    /// Events of a span.
    pub events: u32,
    /// Links of a span.
    pub links: u32,
    /// Attributes of an event.
    pub event_attributes: u32,
    /// Attributes of a link.
    pub link_attributes: u32,
}

impl SpanLimits {
    /// As the environment says; a span's own variable goes before the one for everything.
    pub fn new(env: Env<'_>) -> Self {
        let number = |name: &str| env(name).and_then(|n| n.trim().parse::<u64>().ok());
        let count = |names: &[&str]| names.iter().find_map(|n| number(n)).map_or(128, |n| u32::try_from(n).unwrap_or(u32::MAX));
        let len = number("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT").or_else(|| number("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"));
        Self {
            value_len: len.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)),
            attributes: count(&["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT"]),
            events: count(&["OTEL_SPAN_EVENT_COUNT_LIMIT"]),
            links: count(&["OTEL_SPAN_LINK_COUNT_LIMIT"]),
            event_attributes: count(&["OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT"]),
            link_attributes: count(&["OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT"]),
        }
    }
}

/// Field numbers of `Span` (opentelemetry/proto/trace/v1/trace.proto).
mod field {
    pub const TRACE_ID: u32 = 1;
    pub const SPAN_ID: u32 = 2;
    pub const PARENT_SPAN_ID: u32 = 4;
    pub const NAME: u32 = 5;
    pub const KIND: u32 = 6;
    pub const START: u32 = 7;
    pub const END: u32 = 8;
    pub const ATTRIBUTES: u32 = 9;
    pub const DROPPED_ATTRIBUTES: u32 = 10;
    pub const EVENTS: u32 = 11;
    pub const DROPPED_EVENTS: u32 = 12;
    pub const LINKS: u32 = 13;
    pub const DROPPED_LINKS: u32 = 14;
    pub const STATUS: u32 = 15;
    pub const FLAGS: u32 = 16;
}

const KIND_SERVER: u64 = 2;
const KIND_CLIENT: u64 = 3;
const STATUS_ERROR: u64 = 2;
/// `SpanFlags`: the context's flags, whether it is known if the parent is remote, and whether it is.
const SAMPLED: u32 = 1;
const KNOWS_REMOTE: u32 = 0x100;
const REMOTE: u32 = 0x200;

/// Makes spans.
pub struct Maker {
    sampling: Sampling,
    limits: SpanLimits,
    profile: Profile,
    stall: u64,
    chunk_events: u32,
    phases: bool,
    span: Vec<u8>,
    part: Vec<u8>,
}

impl Maker {
    /// As configuration and environment say.
    pub fn new(config: &SpansConfig, profile: Profile, env: Env<'_>) -> Self {
        let stall = Duration::try_from_secs_f64(config.stall_s.unwrap_or(1.0)).unwrap_or(Duration::MAX);
        Self {
            sampling: Sampling::new(config.keep.as_deref(), config.slow, env),
            limits: SpanLimits::new(env),
            profile,
            stall: u64::try_from(stall.as_nanos()).unwrap_or(u64::MAX),
            chunk_events: config.chunk_events,
            phases: config.phases,
            span: Vec::new(),
            part: Vec::new(),
        }
    }

    /// Whether an inference's span is exported. `broke` says that it broke an objective.
    pub fn decide(&self, i: &Inference, broke: bool) -> Decision {
        self.sampling.decide(i, broke)
    }

    /// The encoded span of an inference. `kept`: why it is exported although the sampler leaves it out.
    pub fn span(&mut self, i: &Inference, kept: Option<Keep>, found: &Found<'_>) -> &[u8] {
        self.span.clear();
        self.identity(i);
        let error = i.error_type();
        self.attributes(i, error, kept, found);
        self.events(i);
        self.links(found.others);
        if let (Some(kind), Outcome::Failed) = (&error, i.outcome) {
            // A client that left is no fault of the service: the status stays unset, the outcome is an attribute.
            self.part.clear();
            wire::bytes(&mut self.part, 2, kind.as_bytes());
            wire::uint(&mut self.part, 3, STATUS_ERROR);
            wire::bytes(&mut self.span, field::STATUS, &self.part);
        }
        let remote = if i.trace.parent.is_some() { REMOTE } else { 0 };
        wire::fixed32(&mut self.span, field::FLAGS, SAMPLED | KNOWS_REMOTE | remote);
        &self.span
    }

    fn identity(&mut self, i: &Inference) {
        let out = &mut self.span;
        wire::bytes(out, field::TRACE_ID, &i.trace.trace_id.to_be_bytes());
        wire::bytes(out, field::SPAN_ID, &i.trace.span_id.to_be_bytes());
        if let Some(parent) = i.trace.parent {
            wire::bytes(out, field::PARENT_SPAN_ID, &parent.to_be_bytes());
        }
        let (operation, model) = (i.operation.as_str(), i.request.model.as_ref().map(Name::as_str));
        wire::head(out, field::NAME, operation.len() + model.map_or(0, |m| 1 + m.len()));
        out.extend_from_slice(operation.as_bytes());
        if let Some(model) = model {
            out.push(b' ');
            out.extend_from_slice(model.as_bytes());
        }
        wire::uint(out, field::KIND, if i.vantage == Vantage::Server { KIND_SERVER } else { KIND_CLIENT });
        wire::fixed64(out, field::START, i.timing.start.unix_nanos());
        wire::fixed64(out, field::END, i.timing.end.max(i.timing.start).unix_nanos());
    }

    fn attributes(&mut self, i: &Inference, error: Option<&str>, kept: Option<Keep>, found: &Found<'_>) {
        let limits = &self.limits;
        let mut a =
            Attributes { out: &mut self.span, field: field::ATTRIBUTES, left: limits.attributes, longest: limits.value_len, dropped: 0 };
        attributes(&mut a, i, error, self.profile);
        a.text(attr::SAMPLING_KEPT, kept.map(Keep::as_str));
        phases::split(&mut a, found);
        let dropped = a.dropped;
        if dropped > 0 {
            wire::uint(&mut self.span, field::DROPPED_ATTRIBUTES, dropped.into());
        }
    }

    fn events(&mut self, i: &Inference) {
        let t = &i.timing;
        let left = self.limits.events;
        let mut events = Events { maker: self, holes: &t.holes, left, dropped: 0 };
        if let Ok(ttft) = t.ttft {
            events.generated(i, ttft);
        }
        events.holes_until(u64::MAX);
        let dropped = events.dropped;
        if dropped > 0 {
            wire::uint(&mut self.span, field::DROPPED_EVENTS, dropped.into());
        }
    }

    /// Leads to the other views of the same request.
    fn links(&mut self, others: &[Other]) {
        let room = usize::try_from(self.limits.links).unwrap_or(usize::MAX);
        for other in others.iter().take(room) {
            self.part.clear();
            wire::bytes(&mut self.part, 1, &other.trace_id.to_be_bytes());
            wire::bytes(&mut self.part, 2, &other.span_id.to_be_bytes());
            let mut a =
                Attributes { out: &mut self.part, field: 4, left: self.limits.link_attributes, longest: self.limits.value_len, dropped: 0 };
            a.text(attr::VANTAGE, Some(other.vantage.as_str()));
            let dropped = a.dropped;
            if dropped > 0 {
                wire::uint(&mut self.part, 5, dropped.into());
            }
            wire::bytes(&mut self.span, field::LINKS, &self.part);
        }
        let dropped = others.len().saturating_sub(room);
        if dropped > 0 {
            wire::uint(&mut self.span, field::DROPPED_LINKS, dropped as u64);
        }
    }
}

/// Events of a span, in the order of their instants, up to the limit.
struct Events<'a> {
    maker: &'a mut Maker,
    /// Those that are not told yet.
    holes: &'a [Hole],
    left: u32,
    dropped: u32,
}

impl Events<'_> {
    /// The first token, and what of the chunks behind it is told.
    fn generated(&mut self, i: &Inference, ttft: Duration) {
        let t = &i.timing;
        let first = t.start.plus(ttft).unix_nanos();
        self.add(semconv::EVENT_FIRST_TOKEN, first, &[]);
        // Where gaps do not lead from the first to the last chunk (several choices, holes, too many of them), no chunk's instant is known.
        let span = t.last_generated.map(|last| u64::try_from(last.saturating_sub(ttft).as_nanos()).unwrap_or(u64::MAX));
        // A gap of more than two seconds is kept to the microsecond.
        let known = t.gaps.complete() && span.is_some_and(|span| span.abs_diff(t.gaps.sum()) <= 2_000 * t.gaps.count());
        let (stall, every) = (self.maker.stall, u64::from(self.maker.chunk_events));
        if known && (every > 0 || t.gaps.max().is_some_and(|g| g >= stall)) {
            let mut at = first;
            for (number, gap) in (1_u64..).zip(t.gaps.iter()) {
                if gap >= stall {
                    self.add(semconv::EVENT_STALL, at, &[(attr::STALL_DURATION, Value::Double(gap as f64 / 1e9))]);
                }
                at += gap;
                if every > 0 && number.is_multiple_of(every) {
                    let number = Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
                    self.add(semconv::EVENT_CHUNK, at, &[(attr::CHUNK_NUMBER, number), (attr::CHUNK_GAP, Value::Double(gap as f64 / 1e9))]);
                }
            }
        }
    }

    /// Holes that are no later than that.
    fn holes_until(&mut self, until: u64) {
        while let Some((hole, rest)) = self.holes.split_first().filter(|(hole, _)| hole.at.unix_nanos() <= until) {
            self.holes = rest;
            let bytes = hole.bytes.map(|n| (attr::GAP_BYTES, Value::Int(i64::try_from(n).unwrap_or(i64::MAX))));
            self.put(semconv::EVENT_GAP, hole.at.unix_nanos(), bytes.as_slice());
        }
    }

    fn add(&mut self, name: &str, at: u64, attributes: &[(&str, Value<'_>)]) {
        self.holes_until(at);
        self.put(name, at, attributes);
    }

    fn put(&mut self, name: &str, at: u64, attributes: &[(&str, Value<'_>)]) {
        if self.left == 0 {
            self.dropped += 1;
            return;
        }
        self.left -= 1;
        let Maker { part, span, limits, .. } = &mut *self.maker;
        part.clear();
        wire::fixed64(part, 1, at);
        wire::bytes(part, 2, name.as_bytes());
        let mut a = Attributes { out: part, field: 3, left: limits.event_attributes, longest: limits.value_len, dropped: 0 };
        attributes.iter().for_each(|(key, value)| a.put(key, Some(*value)));
        let dropped = a.dropped;
        if dropped > 0 {
            wire::uint(part, 4, dropped.into());
        }
        wire::bytes(span, field::EVENTS, part);
    }
}

/// Attributes that exist only where their value does, up to the limit.
struct Attributes<'a> {
    out: &'a mut Vec<u8>,
    field: u32,
    left: u32,
    longest: usize,
    dropped: u32,
}

impl Attributes<'_> {
    fn put(&mut self, key: &str, value: Option<Value<'_>>) {
        let Some(value) = value else { return };
        if self.left == 0 {
            self.dropped += 1;
            return;
        }
        self.left -= 1;
        wire::attribute(self.out, self.field, key, &value, self.longest);
    }

    fn text(&mut self, key: &str, value: Option<&str>) {
        self.put(key, value.map(Value::Text));
    }

    fn name(&mut self, key: &str, value: Option<&Name>) {
        self.text(key, value.map(Name::as_str));
    }

    fn count(&mut self, key: &str, value: Option<u64>) {
        self.put(key, value.map(|n| Value::Int(i64::try_from(n).unwrap_or(i64::MAX))));
    }

    fn double(&mut self, key: &str, value: Option<f64>) {
        self.put(key, value.map(Value::Double));
    }

    fn seconds(&mut self, key: &str, value: Option<Duration>) {
        self.double(key, value.map(|d| d.as_secs_f64()));
    }
}

/// The most important first: a limit cuts the end.
fn attributes(a: &mut Attributes<'_>, i: &Inference, error: Option<&str>, profile: Profile) {
    let t = &i.timing;
    a.text(attr::OPERATION_NAME, Some(i.operation.as_str()));
    a.text(attr::PROVIDER_NAME, Some(i.provider_or_other()));
    a.text(attr::ERROR_TYPE, error);
    a.name(attr::REQUEST_MODEL, i.request.model.as_ref());
    a.put(attr::REQUEST_STREAM, i.stream.filter(|is| *is).map(Value::Bool));
    a.count(attr::REQUEST_MAX_TOKENS, i.request.max_tokens);
    a.double(attr::REQUEST_TEMPERATURE, i.request.temperature);
    a.double(attr::REQUEST_TOP_P, i.request.top_p);
    a.count(attr::REQUEST_CHOICE_COUNT, i.request.choices.filter(|n| *n != 1).map(u64::from));
    a.name(attr::RESPONSE_MODEL, i.response.model.as_ref());
    a.name(attr::RESPONSE_ID, i.response.id.as_ref());
    finish_reasons(a, &i.response.finish_reasons);
    a.seconds(attr::RESPONSE_TIME_TO_FIRST_CHUNK, t.first_event.filter(|_| i.is_stream()));
    let usage = i.usage.unwrap_or_default();
    a.count(attr::USAGE_INPUT, usage.input);
    a.count(attr::USAGE_OUTPUT, usage.output);
    a.count(attr::USAGE_CACHE_READ, usage.cache_read);
    profile.cache_write().iter().for_each(|key| a.count(key, usage.cache_write));
    a.count(attr::USAGE_REASONING, usage.reasoning);
    if i.provider == Some("openai") {
        a.text(attr::OPENAI_API_TYPE, i.api.strip_prefix("openai.").filter(|api| matches!(*api, "chat_completions" | "responses")));
    }
    match (&i.host, i.server) {
        (Some(host), _) => a.name(attr::SERVER_ADDRESS, Some(host)),
        (None, Some(server)) => a.text(attr::SERVER_ADDRESS, Some(&server.ip().to_string())),
        (None, None) => {}
    }
    a.count(attr::SERVER_PORT, i.server.map(|s| s.port().into()));
    a.count(attr::HTTP_STATUS, i.response.status.map(u64::from));
    let (protocol, version) = i.protocol.split_once('/').map_or((i.protocol, None), |(name, version)| (name, Some(version)));
    a.text(attr::NETWORK_PROTOCOL_NAME, Some(protocol));
    a.text(attr::NETWORK_PROTOCOL_VERSION, version);
    a.count(attr::PROCESS_PID, i.process.as_ref().map(|p| p.pid.into()));
    if let Some(process) = &i.process {
        a.text(attr::PROCESS_COMMAND, Some(process.command.as_ref()));
    }
    a.text(attr::TENANT, i.request.tenant.as_ref().map(Tenant::as_str));
    workload::attributes::of_span(i, |name, value| a.text(&name, Some(&value)));
    a.text(attr::VANTAGE, Some(i.vantage.as_str()));
    a.text(attr::TAP, Some(i.tap.as_str()));
    a.text(attr::API, Some(i.api));
    a.text(attr::OUTCOME, Some(i.outcome.as_str()));
    a.text(attr::REASON, reason(i).map(|r| r.as_str()));
    a.seconds(metric::TIME_TO_FIRST_TOKEN.name, t.ttft.ok());
    a.seconds(metric::TIME_TO_FIRST_ANSWER.name, t.ttfa.ok());
    a.double(metric::TIME_PER_OUTPUT_TOKEN.name, t.tpot.ok());
    a.seconds(metric::MAX_STALL.name, t.max_stall.ok());
    a.double(metric::OUTPUT_SPEED.name, t.output_tokens_per_s());
    a.count(attr::CHUNKS_GENERATED, Some(i.chunks.generated.into()));
    a.count(attr::CHUNKS_ARRIVALS, Some(i.chunks.arrivals.into()));
    a.count(attr::GAPS, Some(u64::from(i.gaps)).filter(|n| *n > 0));
}

/// One per choice.
fn finish_reasons(a: &mut Attributes<'_>, reasons: &[Name]) {
    match reasons {
        [] => {}
        [only] => a.put(attr::RESPONSE_FINISH_REASONS, Some(Value::Texts(&[only.as_str()]))),
        several => {
            let texts: Vec<&str> = several.iter().map(Name::as_str).collect();
            a.put(attr::RESPONSE_FINISH_REASONS, Some(Value::Texts(&texts)));
        }
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
