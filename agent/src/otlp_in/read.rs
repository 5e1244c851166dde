//! What engines' spans say of requests. A span that says nothing of that kind is somebody else's, and is only forwarded.

use std::collections::VecDeque;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use rustc_hash::FxHashMap;
use tokengauge_core::join::engine::nanos;
use tokengauge_core::join::{Engine, Figures, Source, caller_key, id_key, trace_key};
use tokengauge_core::semconv::engines as name;

/// Traces of which parts came before the span that they belong to.
const PENDING: usize = 4_096;

/// What spans below that of a request said before it came: SGLang's stages, Triton's compute.
#[derive(Clone, Copy, Default)]
struct Parts {
    queue: Option<u64>,
    prefill: Option<u64>,
    /// The instant at which a model began, and the span above.
    started: Option<(u64, u64)>,
    /// There was more than one of a kind: whose they are cannot be told.
    several: bool,
}

/// Reads spans.
#[derive(Default)]
pub struct Reading {
    pending: FxHashMap<u128, Parts>,
    order: VecDeque<u128>,
}

/// What a request had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Spans that said something of a request's time.
    pub read: u64,
    /// Others.
    pub other: u64,
}

impl Reading {
    /// Says what the spans of a request tell.
    pub fn read(&mut self, request: &ExportTraceServiceRequest, tell: &mut dyn FnMut(Engine)) -> Counted {
        let spans = request.resource_spans.iter().flat_map(|r| &r.scope_spans).flat_map(|s| &s.spans);
        let mut counted = Counted::default();
        for span in spans {
            match self.span(span, tell) {
                true => counted.read += 1,
                false => counted.other += 1,
            }
        }
        counted
    }

    /// Whether it says something.
    fn span(&mut self, span: &Span, tell: &mut dyn FnMut(Engine)) -> bool {
        let Some(trace) = id::<16>(&span.trace_id).map(u128::from_be_bytes) else { return false };
        let parent = id::<8>(&span.parent_span_id).map(u64::from_be_bytes);
        if let Some(known) = self.part(trace, parent, span) {
            return known;
        }
        let number = |key: &str| nanos(attribute(span, key).and_then(number));
        let text = |key: &str| attribute(span, key).and_then(text);
        let (ttft, queue, prefill) = (number(name::LATENCY_TTFT), number(name::LATENCY_QUEUE), number(name::LATENCY_PREFILL));
        let mut figures = Figures { ttft, queue, decode: number(name::LATENCY_DECODE), ..Figures::default() };
        let mut ids = [text(name::REQUEST_ID).and_then(id_key), None];
        if queue.is_some() {
            figures.prefill = prefill;
        } else if figures != Figures::default() || prefill.is_some() {
            // SGLang: what it calls prefill has the queue in it; its stages tell them apart, where they are traced.
            let parts = self.take(trace);
            (figures.queue, figures.prefill) = (parts.queue, parts.prefill);
        } else if let (Some(queue), Some(_)) = (text(name::TGI_QUEUE).and_then(duration), text(name::TGI_INFERENCE).and_then(duration)) {
            figures.queue = Some(queue);
        } else if attribute(span, name::TRITON_MODEL).is_some() {
            let own = id::<8>(&span.span_id).map(u64::from_be_bytes);
            let started = self.take(trace).started.filter(|(_, above)| Some(*above) == own).map(|(at, _)| at);
            figures.queue = started.zip(event(span, name::TRITON_QUEUED)).and_then(|(started, queued)| started.checked_sub(queued));
            ids[1] = text(name::TRITON_REQUEST).and_then(id_key);
        }
        if figures == Figures::default() {
            return false;
        }
        tell(Engine {
            source: Source::Otlp,
            figures: figures.completed(),
            tokens: attribute(span, name::COMPLETION_TOKENS).and_then(number_of),
            speculated: None,
            caller: parent.map(|parent| caller_key(trace, parent)),
            trace: Some(trace_key(trace)),
            ids,
        });
        true
    }

    /// Keeps what a span below a request's says; `None` when it is none of these.
    fn part(&mut self, trace: u128, parent: Option<u64>, span: &Span) -> Option<bool> {
        let length = || span.end_time_unix_nano.checked_sub(span.start_time_unix_nano);
        let set = |to: &mut Option<u64>, several: &mut bool, value: Option<u64>| {
            *several |= to.is_some();
            *to = value;
        };
        match span.name.as_str() {
            name::SGLANG_QUEUE => {
                let Parts { queue, several, .. } = self.pending(trace);
                set(queue, several, length());
            }
            name::SGLANG_PREFILL => {
                let Parts { prefill, several, .. } = self.pending(trace);
                set(prefill, several, length());
            }
            _ => {
                let started = event(span, name::TRITON_STARTED)?;
                // Where the model's own span has the event, there is none below.
                if attribute(span, name::TRITON_MODEL).is_some() {
                    return None;
                }
                let parts = self.pending(trace);
                parts.several |= parts.started.is_some();
                parts.started = parent.map(|parent| (started, parent));
            }
        }
        Some(true)
    }

    fn pending(&mut self, trace: u128) -> &mut Parts {
        if !self.pending.contains_key(&trace) {
            if self.pending.len() >= PENDING
                && let Some(oldest) = self.order.pop_front()
            {
                self.pending.remove(&oldest);
            }
            self.order.push_back(trace);
        }
        self.pending.entry(trace).or_default()
    }

    fn take(&mut self, trace: u128) -> Parts {
        let Some(parts) = self.pending.remove(&trace) else { return Parts::default() };
        self.order.retain(|t| *t != trace);
        if parts.several { Parts::default() } else { parts }
    }
}

/// An id of that many bytes; zeros are none.
fn id<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok().filter(|id: &[u8; N]| id.iter().any(|b| *b != 0))
}

fn attribute<'a>(span: &'a Span, key: &str) -> Option<&'a Value> {
    span.attributes.iter().find(|a| a.key == key)?.value.as_ref()?.value.as_ref()
}

fn event(span: &Span, name: &str) -> Option<u64> {
    span.events.iter().find(|e| e.name == name).map(|e| e.time_unix_nano)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds")]
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::DoubleValue(x) => Some(*x),
        Value::IntValue(n) => Some(*n as f64),
        _ => None,
    }
}

fn number_of(value: &Value) -> Option<u64> {
    match value {
        Value::IntValue(n) => u64::try_from(*n).ok(),
        _ => None,
    }
}

/// A duration as Rust's `{:?}` writes it: `1.5s`, `12.345ms`, `7µs`, `90ns`.
fn duration(text: &str) -> Option<u64> {
    let unit = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = text.split_at_checked(unit)?;
    let scale = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" | "us" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    };
    nanos(number.parse::<f64>().ok().map(|n| n * scale))
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, span::Event};
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    fn with(name: &str, attributes: &[(&str, Value)]) -> Span {
        let value = |v: &Value| Some(AnyValue { value: Some(v.clone()) });
        Span {
            trace_id: 9_u128.to_be_bytes().to_vec(),
            span_id: 5_u64.to_be_bytes().to_vec(),
            parent_span_id: 4_u64.to_be_bytes().to_vec(),
            name: name.into(),
            attributes: attributes.iter().map(|(key, v)| KeyValue { key: (*key).into(), value: value(v), ..KeyValue::default() }).collect(),
            ..Span::default()
        }
    }

    fn lasting(mut span: Span, ms: u64) -> Span {
        (span.start_time_unix_nano, span.end_time_unix_nano) = (7, 7 + ms * 1_000_000);
        span
    }

    fn at(mut span: Span, name: &str, ms: u64) -> Span {
        span.events.push(Event { time_unix_nano: ms * 1_000_000, name: name.into(), ..Event::default() });
        span
    }

    fn request(spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
        ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }] }
    }

    fn told(reading: &mut Reading, spans: Vec<Span>) -> (Vec<Engine>, Counted) {
        let mut all = Vec::new();
        let counted = reading.read(&request(spans), &mut |e| all.push(e));
        (all, counted)
    }

    fn ms(e: &Engine) -> [Option<u64>; 4] {
        let f = e.figures;
        [f.queue, f.prefill, f.decode, f.ttft].map(|f| f.map(|n| n / 1_000_000))
    }

    fn s(seconds: f64) -> Value {
        Value::DoubleValue(seconds)
    }

    #[test]
    fn vllm_tells_all_in_one_span() {
        let span = with(
            "llm_request",
            &[
                ("gen_ai.latency.time_to_first_token", s(0.06)),
                ("gen_ai.latency.time_in_queue", s(0.02)),
                ("gen_ai.latency.time_in_model_prefill", s(0.03)),
                ("gen_ai.latency.time_in_model_decode", s(0.5)),
                ("gen_ai.request.id", Value::StringValue("chatcmpl-0123456789".into())),
                ("gen_ai.usage.completion_tokens", Value::IntValue(12)),
            ],
        );
        let (all, counted) = told(&mut Reading::default(), vec![span, with("GET /health", &[])]);
        let [e] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((ms(e), e.tokens), ([Some(20), Some(30), Some(500), Some(60)], Some(12)));
        assert_eq!((e.ids[0], e.caller, e.trace), (id_key("0123456789"), Some(caller_key(9, 4)), Some(trace_key(9))));
        assert_eq!(counted, Counted { read: 1, other: 1 });
    }

    #[test]
    fn sglang_tells_queue_and_prefill_by_stages_and_only_then() {
        let root = with("Req 0123", &[("gen_ai.latency.time_to_first_token", s(0.06)), ("gen_ai.latency.time_in_model_prefill", s(0.05))]);
        let mut reading = Reading::default();
        assert_eq!(ms(&told(&mut reading, vec![root.clone()]).0[0]), [None, None, None, Some(60)]);
        // Stages end before the request does, and may come in an earlier batch.
        assert!(
            told(&mut reading, vec![lasting(with("prefill_waiting", &[]), 20), lasting(with("prefill_forward", &[]), 25)]).0.is_empty()
        );
        assert_eq!(ms(&told(&mut reading, vec![root.clone()]).0[0]), [Some(20), Some(25), None, Some(60)]);
        // Two requests in one trace: whose are they?
        let two = vec![lasting(with("prefill_waiting", &[]), 20), lasting(with("prefill_waiting", &[]), 30), root];
        assert_eq!(ms(&told(&mut reading, two).0[0]), [None, None, None, Some(60)]);
        assert!(reading.pending.is_empty() && reading.order.is_empty());
    }

    #[test]
    fn tgi_tells_durations_as_text() {
        let of = |queue: &str| {
            let text = |t: &str| Value::StringValue(t.into());
            let span =
                with("generate_stream", &[("queue_time", text(queue)), ("inference_time", text("1.2s")), ("total_time", text("1.3s"))]);
            told(&mut Reading::default(), vec![span]).0.first().and_then(|e| e.figures.queue)
        };
        assert_eq!([of("1.5s"), of("12.5ms"), of("7µs"), of("90ns")], [1_500_000_000, 12_500_000, 7_000, 90].map(Some));
        assert!(["", "ms", "1.2.3ms", "-5ms", "5 minutes", "9999999999s"].iter().all(|odd| of(odd).is_none()));
    }

    #[test]
    fn triton_tells_when_it_was_queued_and_when_the_model_began() {
        let mut compute = at(with("compute", &[]), "COMPUTE_START", 130);
        compute.parent_span_id = 5_u64.to_be_bytes().to_vec();
        let model = |id: &str| {
            let text = |t: &str| Value::StringValue(t.into());
            at(with("my_model", &[("triton.model_name", text("my_model")), ("triton.request_id", text(id))]), "QUEUE_START", 100)
        };
        let (all, counted) = told(&mut Reading::default(), vec![compute.clone(), model("request-77")]);
        assert_eq!((ms(&all[0]), all[0].ids[1]), ([Some(30), None, None, None], id_key("request-77")));
        assert_eq!(counted.read, 2);
        // The compute of another model's request.
        compute.parent_span_id = 6_u64.to_be_bytes().to_vec();
        assert!(told(&mut Reading::default(), vec![compute, model("request-77")]).0.is_empty());
    }

    #[test]
    fn what_waits_for_its_request_is_bounded() {
        let mut reading = Reading::default();
        for n in 1..10_000_u128 {
            let mut span = lasting(with("prefill_waiting", &[]), 1);
            span.trace_id = n.to_be_bytes().to_vec();
            told(&mut reading, vec![span]);
        }
        assert_eq!((reading.pending.len(), reading.order.len()), (PENDING, PENDING));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..400), keys in prop::collection::vec(0..6_usize, 0..6)) {
            let known = [name::LATENCY_QUEUE, name::LATENCY_PREFILL, name::TGI_QUEUE, name::TGI_INFERENCE, name::TRITON_MODEL, "x"];
            let mut reading = Reading::default();
            let odd = Span { trace_id: bytes.clone(), start_time_unix_nano: 9, end_time_unix_nano: 3, ..with("prefill_waiting", &[]) };
            reading.read(&request(vec![odd]), &mut |_| {});
            if let Ok(request) = ExportTraceServiceRequest::decode(bytes.as_slice()) {
                reading.read(&request, &mut |_| {});
            }
            let bits = bytes.iter().fold(7_u64, |n, b| n.wrapping_mul(31).wrapping_add(u64::from(*b)).rotate_left(9));
            let values = [Value::StringValue(String::from_utf8_lossy(&bytes).into_owned()), Value::DoubleValue(f64::from_bits(bits))];
            let attributes: Vec<_> = keys.into_iter().map(|n| (known[n], values[n % 2].clone())).collect();
            let (told, _) = told(&mut reading, vec![with("Req", &attributes)]);
            prop_assert!(told.iter().all(|e| e.figures != Figures::default()));
        }
    }
}
