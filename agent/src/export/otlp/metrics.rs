//! The instruments: the GenAI conventions' histograms, and our own figures under `tokengauge.*`.
//!
//! Names, units, bounds and meanings stand in [`semconv`]; here is only what is recorded when. The `gen_ai.client.*` metrics are
//! fed by what was seen at a client or in between, `gen_ai.server.*` only by what was seen at a server, and our own carry
//! `tokengauge.vantage`: an inference that is seen from both sides is never counted twice in one series.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider as _};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use tokengauge_core::inference::{Inference, Operation, Outcome, Reason, Vantage};
use tokengauge_core::name::Name;
use tokengauge_core::semconv::{self, Metric, attr, metric};
use tokengauge_core::stats::Snapshot;
use tokengauge_core::stats::snapshot::{Area, Counter as Count};

use super::transport::Delivery;
use crate::export::record::reason;

/// What the observable instruments read.
#[derive(Default, Debug)]
pub struct Shared {
    in_flight: u64,
    connections: u64,
    counters: Vec<Count>,
}

/// Puts the agent's own figures where the observable instruments find them.
pub fn publish(shared: &Mutex<Shared>, snapshot: &Snapshot) {
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    shared.in_flight = snapshot.in_flight;
    shared.connections = snapshot.connections;
    shared.counters.clone_from(&snapshot.counters);
}

/// The meter of everything that is measured.
pub fn meter(provider: &SdkMeterProvider) -> Meter {
    let scope = InstrumentationScope::builder(semconv::SCOPE)
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(semconv::Profile::V1_41.schema_url())
        .build();
    provider.meter_with_scope(scope)
}

/// Every label set of `tokengauge.requests` that a series may come to have, besides a success. They are written as 0 from the
/// start: a counter that first appears with 1 loses that 1 to `rate`.
const UNHAPPY: [(Outcome, Reason); 8] = [
    (Outcome::Completed, Reason::NoOutput),
    (Outcome::Failed, Reason::HttpError),
    (Outcome::Failed, Reason::StreamError),
    (Outcome::Failed, Reason::ServerClosed),
    (Outcome::Failed, Reason::Timeout),
    (Outcome::Cancelled, Reason::ClientCancelled),
    (Outcome::Truncated, Reason::Truncated),
    (Outcome::Lost, Reason::CaptureGap),
];

/// Series whose counters are initialised; beyond it the SDK's own bound of 2,000 attribute sets is reached anyway.
const INITIALISED: usize = 2_000;

/// What tells one series of counters from another: vantage, provider, operation, request model, response model.
type SeriesKey = (Vantage, &'static str, Operation, Option<Name>, Option<Name>);

/// The synchronous instruments.
pub struct Instruments {
    client_duration: Histogram<f64>,
    client_first_chunk: Histogram<f64>,
    client_per_chunk: Histogram<f64>,
    client_tokens: Histogram<u64>,
    server_duration: Histogram<f64>,
    server_ttft: Histogram<f64>,
    server_tpot: Histogram<f64>,
    ttft: Histogram<f64>,
    ttfa: Histogram<f64>,
    tpot: Histogram<f64>,
    gap: Histogram<f64>,
    max_stall: Histogram<f64>,
    speed: Histogram<f64>,
    requests: Counter<u64>,
    input_tokens: Counter<u64>,
    output_tokens: Counter<u64>,
    initialised: HashSet<SeriesKey>,
}

impl Instruments {
    /// Registers all instruments.
    pub fn new(provider: &SdkMeterProvider, shared: &Arc<Mutex<Shared>>, delivery: &Arc<Delivery>) -> Self {
        let meter = meter(provider);
        observe(&meter, shared, delivery);
        let seconds =
            |m: Metric| meter.f64_histogram(m.name).with_unit(m.unit).with_description(m.doc).with_boundaries(m.buckets.to_vec()).build();
        let counter = |m: Metric| meter.u64_counter(m.name).with_unit(m.unit).with_description(m.doc).build();
        let usage = metric::CLIENT_TOKEN_USAGE;
        Self {
            client_duration: seconds(metric::CLIENT_OPERATION_DURATION),
            client_first_chunk: seconds(metric::CLIENT_TIME_TO_FIRST_CHUNK),
            client_per_chunk: seconds(metric::CLIENT_TIME_PER_OUTPUT_CHUNK),
            client_tokens: meter
                .u64_histogram(usage.name)
                .with_unit(usage.unit)
                .with_description(usage.doc)
                .with_boundaries(usage.buckets.to_vec())
                .build(),
            server_duration: seconds(metric::SERVER_REQUEST_DURATION),
            server_ttft: seconds(metric::SERVER_TIME_TO_FIRST_TOKEN),
            server_tpot: seconds(metric::SERVER_TIME_PER_OUTPUT_TOKEN),
            ttft: seconds(metric::TIME_TO_FIRST_TOKEN),
            ttfa: seconds(metric::TIME_TO_FIRST_ANSWER),
            tpot: seconds(metric::TIME_PER_OUTPUT_TOKEN),
            gap: seconds(metric::INTER_CHUNK_GAP),
            max_stall: seconds(metric::MAX_STALL),
            speed: seconds(metric::OUTPUT_SPEED),
            requests: counter(metric::REQUESTS),
            input_tokens: counter(metric::INPUT_TOKENS),
            output_tokens: counter(metric::OUTPUT_TOKENS),
            initialised: HashSet::new(),
        }
    }

    /// Records one finished inference. Undefined is not zero: what was not measured leaves no sample, and neither does an existing
    /// response that is sent again.
    pub fn record(&mut self, i: &Inference) {
        if !i.operation.is_inference() {
            return;
        }
        self.conventions(i);
        self.own(i);
    }

    fn conventions(&self, i: &Inference) {
        let t = &i.timing;
        let mut attributes = common(i);
        if let Some(host) = i.host.as_ref().map(|h| h.as_str().to_owned()).or_else(|| i.server.map(|s| s.ip().to_string())) {
            attributes.push(KeyValue::new(attr::SERVER_ADDRESS, host));
            attributes.extend(i.server.map(|s| KeyValue::new(attr::SERVER_PORT, i64::from(s.port()))));
        }
        let at_server = i.vantage == Vantage::Server;
        if let Ok(duration) = t.duration {
            // v1.41.1 allows error.type on the durations only.
            let mut attributes = attributes.clone();
            attributes.extend(error_type(i).map(|e| KeyValue::new(attr::ERROR_TYPE, e)));
            let histogram = if at_server { &self.server_duration } else { &self.client_duration };
            histogram.record(duration.as_secs_f64(), &attributes);
        }
        if at_server {
            if i.outcome == Outcome::Completed
                && let Ok(ttft) = t.ttft
            {
                self.server_ttft.record(ttft.as_secs_f64(), &attributes);
                // By the conventions' own definition, which counts from the first token to the end of the request.
                let tokens = i.usage.and_then(|u| u.output).filter(|n| *n > 1);
                if let (Some(n), Ok(duration)) = (tokens, t.duration) {
                    self.server_tpot.record(duration.saturating_sub(ttft).as_secs_f64() / (n - 1) as f64, &attributes);
                }
            }
            return;
        }
        if let Some(first) = t.first_event.filter(|_| i.is_stream()) {
            self.client_first_chunk.record(first.as_secs_f64(), &attributes);
        }
        t.gaps.iter().for_each(|gap| self.client_per_chunk.record(gap as f64 / 1e9, &attributes));
        let usage = i.usage.unwrap_or_default();
        for (kind, count) in [("input", usage.input), ("output", usage.output)] {
            if let Some(count) = count {
                attributes.push(KeyValue::new(attr::TOKEN_TYPE, kind));
                self.client_tokens.record(count, &attributes);
                attributes.pop();
            }
        }
    }

    fn own(&mut self, i: &Inference) {
        let t = &i.timing;
        let mut attributes = common(i);
        attributes.push(KeyValue::new(attr::VANTAGE, i.vantage.as_str()));
        self.initialise(i, &attributes);
        let measured = [
            (&self.ttft, t.ttft.ok().map(|d| d.as_secs_f64())),
            (&self.ttfa, t.ttfa.ok().map(|d| d.as_secs_f64())),
            (&self.tpot, t.tpot.ok()),
            (&self.max_stall, t.max_stall.ok().map(|d| d.as_secs_f64())),
            (&self.speed, t.output_tokens_per_s()),
        ];
        for (histogram, value) in measured {
            if let Some(value) = value {
                histogram.record(value, &attributes);
            }
        }
        // Chunks that share an instant are one arrival: a gap of zero is no gap here.
        t.gaps.iter().filter(|g| *g > 0).for_each(|gap| self.gap.record(gap as f64 / 1e9, &attributes));
        let usage = i.usage.unwrap_or_default();
        for (counter, count) in [(&self.input_tokens, usage.input), (&self.output_tokens, usage.output)] {
            if let Some(count) = count {
                counter.add(count, &attributes);
            }
        }
        self.count(1, &mut attributes, i.outcome, reason(i));
    }

    fn initialise(&mut self, i: &Inference, attributes: &[KeyValue]) {
        let key = (i.vantage, i.provider_or_other(), i.operation, i.request.model.clone(), i.response.model.clone());
        if self.initialised.len() >= INITIALISED || !self.initialised.insert(key) {
            return;
        }
        let mut attributes = attributes.to_vec();
        self.count(0, &mut attributes, Outcome::Completed, None);
        for (outcome, reason) in UNHAPPY {
            self.count(0, &mut attributes, outcome, Some(reason));
        }
        self.input_tokens.add(0, &attributes);
        self.output_tokens.add(0, &attributes);
    }

    fn count(&self, n: u64, attributes: &mut Vec<KeyValue>, outcome: Outcome, reason: Option<Reason>) {
        let len = attributes.len();
        attributes.push(KeyValue::new(attr::OUTCOME, outcome.as_str()));
        attributes.extend(reason.map(|r| KeyValue::new(attr::REASON, r.as_str())));
        self.requests.add(n, attributes);
        attributes.truncate(len);
    }
}

/// `error.type`: the provider's own code, else how it ended; a client that left is named, since it was no success either.
pub fn error_type(i: &Inference) -> Option<String> {
    match (&i.error, i.outcome) {
        (Some(e), _) => Some(e.kind.as_str().to_owned()),
        (None, Outcome::Cancelled) => Some(Reason::ClientCancelled.as_str().to_owned()),
        (None, Outcome::Failed) => Some("_OTHER".to_owned()),
        (None, _) => None,
    }
}

fn common(i: &Inference) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(9);
    attributes.push(KeyValue::new(attr::OPERATION_NAME, i.operation.as_str()));
    attributes.push(KeyValue::new(attr::PROVIDER_NAME, i.provider_or_other()));
    let models = [(attr::REQUEST_MODEL, &i.request.model), (attr::RESPONSE_MODEL, &i.response.model)];
    attributes.extend(models.iter().filter_map(|(key, model)| Some(KeyValue::new(*key, model.as_ref()?.as_str().to_owned()))));
    attributes
}

/// The observable instruments: they read the latest snapshot.
fn observe(meter: &Meter, shared: &Arc<Mutex<Shared>>, delivery: &Arc<Delivery>) {
    let level = |m: Metric, of: fn(&Shared) -> u64| {
        let shared = Arc::clone(shared);
        meter
            .i64_observable_up_down_counter(m.name)
            .with_unit(m.unit)
            .with_description(m.doc)
            .with_callback(move |observer| {
                let shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                observer.observe(i64::try_from(of(&shared)).unwrap_or(i64::MAX), &[]);
            })
            .build()
    };
    level(metric::IN_FLIGHT, |s| s.in_flight);
    level(metric::CAPTURE_OPEN_CONNECTIONS, |s| s.connections);
    let single = |m: Metric, area: Area, name: &'static str| {
        let shared = Arc::clone(shared);
        meter
            .u64_observable_counter(m.name)
            .with_unit(m.unit)
            .with_description(m.doc)
            .with_callback(move |observer| {
                let shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                shared.counters.iter().filter(|c| c.area == area && c.name == name).for_each(|c| observer.observe(c.count, &[]));
            })
            .build()
    };
    single(metric::CAPTURE_PACKETS, Area::Capture, "packets");
    single(metric::CAPTURE_RECORDS, Area::Capture, "records");
    single(metric::CAPTURE_BYTES, Area::Exchange, "bytes");
    single(metric::CAPTURE_CONNECTIONS, Area::Exchange, "connections");
    single(metric::CAPTURE_EXCHANGES, Area::Exchange, "exchanges");
    single(metric::CAPTURE_NON_LLM, Area::Exchange, "non_llm");
    single(metric::CAPTURE_EVENTS, Area::Exchange, "events");
    let by_name = |m: Metric, area: Area, key: &'static str, but: &'static [&'static str]| {
        let shared = Arc::clone(shared);
        meter
            .u64_observable_counter(m.name)
            .with_unit(m.unit)
            .with_description(m.doc)
            .with_callback(move |observer| {
                let shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let counters = shared.counters.iter().filter(|c| c.area == area && !but.contains(&c.name));
                counters.for_each(|c| observer.observe(c.count, &[KeyValue::new(key, c.name)]));
            })
            .build()
    };
    by_name(metric::CAPTURE_GAPS, Area::Gap, attr::REASON, &[]);
    by_name(metric::CAPTURE_DROPS, Area::Drop, attr::REASON, &[]);
    by_name(metric::CAPTURE_DROPPED_BYTES, Area::DropBytes, attr::REASON, &[]);
    by_name(metric::CAPTURE_ATTACHES, Area::Attach, attr::RESULT, &[]);
    by_name(metric::CAPTURE_OTHER, Area::Capture, attr::COUNTER, &["packets", "records"]);
    by_name(metric::ANOMALIES, Area::Anomaly, attr::ANOMALY, &[]);
    let delivery = Arc::clone(delivery);
    meter
        .u64_observable_counter(metric::EXPORT_DROPS.name)
        .with_unit(metric::EXPORT_DROPS.unit)
        .with_description(metric::EXPORT_DROPS.doc)
        .with_callback(move |observer| {
            for (signal, reason, count) in delivery.drops() {
                observer.observe(count, &[KeyValue::new(attr::SIGNAL, signal), KeyValue::new(attr::REASON, reason)]);
            }
        })
        .build();
}
