//! One span per inference, made of the wire's instants: it begins with the request's first byte and ends where the answer
//! ended, not where the exporter got to know of it. It holds no text, since an [`Inference`] has no field for any.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Event, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, Context, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample as _, SpanData, SpanEvents, SpanLinks};
use tokengauge_core::inference::{Inference, Outcome, Vantage};
use tokengauge_core::name::Name;
use tokengauge_core::semconv::{self, attr, metric};
use tokengauge_core::stream::Timestamp;

use super::Env;
use super::metrics::error_type;
use crate::export::record::reason;

/// Which spans are exported, by `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`: by default all, except those whose caller
/// said in its `traceparent` that the trace is not sampled.
#[derive(Debug)]
pub struct Sampling(Sampler);

impl Sampling {
    /// As the environment says; an unknown name is the default.
    pub fn from_env(env: Env<'_>) -> Self {
        let ratio = env("OTEL_TRACES_SAMPLER_ARG").and_then(|v| v.parse().ok()).filter(|r| (0.0..=1.0).contains(r)).unwrap_or(1.0);
        let name = env("OTEL_TRACES_SAMPLER").unwrap_or_default();
        let root = match name.strip_prefix("parentbased_").unwrap_or(&name) {
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => Sampler::TraceIdRatioBased(ratio),
            _ => Sampler::AlwaysOn,
        };
        let alone = matches!(name.as_str(), "always_on" | "always_off" | "traceidratio");
        Self(if alone { root } else { Sampler::ParentBased(Box::new(root)) })
    }

    fn takes(&self, i: &Inference, parent: Option<SpanContext>, name: &str, kind: &SpanKind) -> bool {
        let context = parent.map(|p| Context::new().with_remote_span_context(p));
        let trace = TraceId::from(i.trace.trace_id);
        let result = self.0.should_sample(context.as_ref(), trace, name, kind, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}

/// The span of an inference; `None` when it is not sampled.
pub fn span(i: &Inference, sampling: &Sampling) -> Option<SpanData> {
    let trace_id = TraceId::from(i.trace.trace_id);
    let parent =
        i.request.traceparent.filter(|_| i.trace.parent.is_some()).map(|p| {
            SpanContext::new(TraceId::from(p.trace_id), SpanId::from(p.span_id), TraceFlags::new(p.flags), true, TraceState::NONE)
        });
    let kind = if i.vantage == Vantage::Server { SpanKind::Server } else { SpanKind::Client };
    let name: Cow<'static, str> = match &i.request.model {
        Some(model) => format!("{} {model}", i.operation.as_str()).into(),
        None => i.operation.as_str().into(),
    };
    if !sampling.takes(i, parent, &name, &kind) {
        return None;
    }
    let first_token = i.timing.ttft.ok().map(|ttft| Event::new(semconv::EVENT_FIRST_TOKEN, time(i.timing.start.plus(ttft)), Vec::new(), 0));
    let mut events = SpanEvents::default();
    events.events.extend(first_token);
    let error = error_type(i);
    Some(SpanData {
        span_context: SpanContext::new(trace_id, SpanId::from(i.trace.span_id), TraceFlags::SAMPLED, false, TraceState::NONE),
        parent_span_id: i.trace.parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: i.trace.parent.is_some(),
        span_kind: kind,
        name,
        start_time: time(i.timing.start),
        end_time: time(i.timing.end.max(i.timing.start)),
        status: match (&error, i.outcome) {
            // A client that left is no fault of the service: the status stays unset, the outcome is an attribute.
            (Some(kind), Outcome::Failed) => Status::error(kind.clone()),
            _ => Status::Unset,
        },
        attributes: attributes(i, error),
        dropped_attributes_count: 0,
        events,
        links: SpanLinks::default(),
        instrumentation_scope: InstrumentationScope::builder(semconv::SCOPE)
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(semconv::Profile::V1_41.schema_url())
            .build(),
    })
}

fn time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(at.unix_nanos())
}

/// Attributes that exist only where their value does.
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn put(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        self.0.extend(value.map(|v| KeyValue::new(key, v)));
    }

    fn name(&mut self, key: &'static str, value: Option<&Name>) {
        self.put(key, value.map(|n| n.as_str().to_owned()));
    }

    fn count(&mut self, key: &'static str, value: Option<u64>) {
        self.put(key, value.map(|n| i64::try_from(n).unwrap_or(i64::MAX)));
    }

    fn seconds(&mut self, key: &'static str, value: Option<Duration>) {
        self.put(key, value.map(|d| d.as_secs_f64()));
    }
}

fn attributes(i: &Inference, error: Option<String>) -> Vec<KeyValue> {
    let t = &i.timing;
    let mut a = Attributes(Vec::with_capacity(40));
    a.put(attr::OPERATION_NAME, Some(i.operation.as_str()));
    a.put(attr::PROVIDER_NAME, Some(i.provider_or_other()));
    a.put(attr::ERROR_TYPE, error);
    a.name(attr::REQUEST_MODEL, i.request.model.as_ref());
    a.put(attr::REQUEST_STREAM, i.stream.filter(|is| *is));
    a.count(attr::REQUEST_MAX_TOKENS, i.request.max_tokens);
    a.put(attr::REQUEST_TEMPERATURE, i.request.temperature);
    a.put(attr::REQUEST_TOP_P, i.request.top_p);
    a.count(attr::REQUEST_CHOICE_COUNT, i.request.choices.filter(|n| *n != 1).map(u64::from));
    a.name(attr::RESPONSE_MODEL, i.response.model.as_ref());
    a.name(attr::RESPONSE_ID, i.response.id.as_ref());
    if !i.response.finish_reasons.is_empty() {
        let reasons = i.response.finish_reasons.iter().map(|r| StringValue::from(r.as_str().to_owned())).collect();
        a.put(attr::RESPONSE_FINISH_REASONS, Some(Value::Array(Array::String(reasons))));
    }
    a.seconds(attr::RESPONSE_TIME_TO_FIRST_CHUNK, t.first_event.filter(|_| i.is_stream()));
    let usage = i.usage.unwrap_or_default();
    a.count(attr::USAGE_INPUT, usage.input);
    a.count(attr::USAGE_OUTPUT, usage.output);
    a.count(attr::USAGE_CACHE_READ, usage.cache_read);
    a.count(attr::USAGE_CACHE_CREATION, usage.cache_write);
    a.count(attr::USAGE_REASONING, usage.reasoning);
    if i.provider == Some("openai") {
        a.put(attr::OPENAI_API_TYPE, i.api.strip_prefix("openai.").filter(|api| matches!(*api, "chat_completions" | "responses")));
    }
    match &i.host {
        Some(host) => a.name(attr::SERVER_ADDRESS, Some(host)),
        None => a.put(attr::SERVER_ADDRESS, i.server.map(|s| s.ip().to_string())),
    }
    a.put(attr::SERVER_PORT, i.server.map(|s| i64::from(s.port())));
    a.put(attr::HTTP_STATUS, i.response.status.map(i64::from));
    let (protocol, version) = i.protocol.split_once('/').map_or((i.protocol, None), |(name, version)| (name, Some(version)));
    a.put(attr::NETWORK_PROTOCOL_NAME, Some(protocol));
    a.put(attr::NETWORK_PROTOCOL_VERSION, version);
    a.put(attr::PROCESS_PID, i.process.as_ref().map(|p| i64::from(p.pid)));
    a.put(attr::PROCESS_COMMAND, i.process.as_ref().map(|p| p.command.to_string()));
    a.put(attr::VANTAGE, Some(i.vantage.as_str()));
    a.put(attr::TAP, Some(i.tap.as_str()));
    a.put(attr::API, Some(i.api));
    a.put(attr::OUTCOME, Some(i.outcome.as_str()));
    a.put(attr::REASON, reason(i).map(|r| r.as_str()));
    a.seconds(metric::TIME_TO_FIRST_TOKEN.name, t.ttft.ok());
    a.seconds(metric::TIME_TO_FIRST_ANSWER.name, t.ttfa.ok());
    a.put(metric::TIME_PER_OUTPUT_TOKEN.name, t.tpot.ok());
    a.seconds(metric::MAX_STALL.name, t.max_stall.ok());
    a.put(metric::OUTPUT_SPEED.name, t.output_tokens_per_s());
    a.count(attr::CHUNKS_GENERATED, Some(u64::from(i.chunks.generated)));
    a.count(attr::CHUNKS_ARRIVALS, Some(u64::from(i.chunks.arrivals)));
    a.count(attr::GAPS, Some(u64::from(i.gaps)).filter(|n| *n > 0));
    a.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use tokengauge_core::inference::TraceParent;

    fn sampling(name: &str, arg: &str) -> Sampling {
        let env = |n: &str| match n {
            "OTEL_TRACES_SAMPLER" => Some(name.to_owned()),
            _ => Some(arg.to_owned()),
        };
        Sampling::from_env(&env)
    }

    fn with_parent(flags: u8) -> Inference {
        let mut i = testing::inference();
        let traceparent = TraceParent { trace_id: i.trace.trace_id, span_id: 7, flags };
        (i.request.traceparent, i.trace.parent) = (Some(traceparent), Some(7));
        i
    }

    #[test]
    fn times_and_ids_are_the_wires() {
        let span = span(&with_parent(1), &Sampling::from_env(&|_| None)).unwrap();
        let start = SystemTime::UNIX_EPOCH + Duration::from_nanos(testing::START);
        assert_eq!((span.start_time, span.end_time), (start, start + Duration::from_millis(480)));
        assert_eq!(span.events.events[0].timestamp, start + Duration::from_millis(410));
        assert_eq!(span.span_context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!((span.parent_span_id, span.parent_span_is_remote), (SpanId::from(7), true));
        assert_eq!((span.name.as_ref(), span.span_kind, span.status), ("chat gpt-4o-mini", SpanKind::Client, Status::Unset));
    }

    #[test]
    fn a_failure_is_an_error_and_a_server_is_a_server() {
        let span = span(&Inference { vantage: Vantage::Server, ..testing::refused() }, &Sampling::from_env(&|_| None)).unwrap();
        assert_eq!((span.span_kind, span.status), (SpanKind::Server, Status::error("rate_limit_exceeded")));
        assert!(span.attributes.contains(&KeyValue::new("error.type", "rate_limit_exceeded")));
        assert!(!span.attributes.iter().any(|a| a.key.as_str() == "tokengauge.time_to_first_token"));
    }

    #[test]
    fn the_callers_decision_is_kept() {
        for (name, arg, flags, want) in [
            ("", "", Some(1), true),
            ("", "", Some(0), false),
            ("", "", None, true),
            ("always_on", "", Some(0), true),
            ("always_off", "", None, false),
            ("parentbased_always_off", "", Some(1), true),
            ("parentbased_always_off", "", None, false),
            ("traceidratio", "0", Some(1), false),
            ("parentbased_traceidratio", "1", None, true),
        ] {
            let i = flags.map_or_else(testing::inference, with_parent);
            assert_eq!(span(&i, &sampling(name, arg)).is_some(), want, "{name} {arg} {flags:?}");
        }
    }
}
