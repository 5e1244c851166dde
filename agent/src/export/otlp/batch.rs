//! Spans put together to requests: `ExportTraceServiceRequest { ResourceSpans { resource, ScopeSpans { scope, span… } } }`, by hand, because every
//! span is bytes already.

use std::time::{Duration, Instant};

use opentelemetry_sdk::Resource;
use tokengauge_core::semconv::{self, Profile};

use super::Env;
use super::carrier::{Carrier, LARGEST, Signal};
use super::wire;

/// `OTEL_BSP_MAX_EXPORT_BATCH_SIZE` and `OTEL_BSP_SCHEDULE_DELAY` when they are not set.
const BATCH: u32 = 512;
const DELAY: Duration = Duration::from_secs(5);

/// Spans that wait to be sent together.
#[derive(Debug)]
pub struct Batch {
    /// `ResourceSpans.resource`, the same in all.
    resource: Vec<u8>,
    /// `ScopeSpans.scope`.
    scope: Vec<u8>,
    schema_url: &'static str,
    /// `ScopeSpans.spans`.
    spans: Vec<u8>,
    items: u32,
    since: Option<Instant>,
    most: u32,
    delay: Duration,
}

impl Batch {
    /// An empty batch; the environment says how many spans make a request and how long they wait for each other.
    pub fn new(resource: &Resource, profile: Profile, env: Env<'_>) -> Self {
        let number = |name: &str| env(name).and_then(|n| n.trim().parse::<u64>().ok());
        let most = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").filter(|n| *n > 0).map_or(BATCH, |n| u32::try_from(n).unwrap_or(u32::MAX));
        // Not more than may wait at all.
        let most = number("OTEL_BSP_MAX_QUEUE_SIZE").filter(|n| *n > 0).map_or(most, |n| most.min(u32::try_from(n).unwrap_or(u32::MAX)));
        let mut attributes = Vec::new();
        let mut pairs: Vec<_> = resource.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        pairs.sort_unstable();
        for (key, value) in &pairs {
            wire::attribute(&mut attributes, 1, key, &wire::Value::Text(value), usize::MAX);
        }
        let mut scope = Vec::new();
        wire::bytes(&mut scope, 1, semconv::SCOPE.as_bytes());
        wire::bytes(&mut scope, 2, env!("CARGO_PKG_VERSION").as_bytes());
        Self {
            resource: attributes,
            scope,
            schema_url: profile.schema_url(),
            spans: Vec::new(),
            items: 0,
            since: None,
            most,
            delay: number("OTEL_BSP_SCHEDULE_DELAY").map_or(DELAY, Duration::from_millis),
        }
    }

    /// Adds one span and hands the batch over when that makes it full.
    pub fn add(&mut self, span: &[u8], now: Instant, carrier: &mut dyn Carrier) {
        if self.spans.len() + span.len() > LARGEST - (4 << 10) {
            self.close(carrier);
        }
        wire::bytes(&mut self.spans, 2, span);
        self.items += 1;
        self.since.get_or_insert(now);
        if self.items >= self.most {
            self.close(carrier);
        }
    }

    /// Hands it over when its first span has waited long enough.
    pub fn tick(&mut self, now: Instant, carrier: &mut dyn Carrier) {
        if self.since.is_some_and(|since| now.duration_since(since) >= self.delay) {
            self.close(carrier);
        }
    }

    /// Hands over what there is.
    pub fn close(&mut self, carrier: &mut dyn Carrier) {
        self.since = None;
        if self.items == 0 {
            return;
        }
        let scope_len = wire::field_len(1, self.scope.len()) + self.spans.len() + wire::field_len(3, self.schema_url.len());
        let resource_len =
            wire::field_len(1, self.resource.len()) + wire::field_len(2, scope_len) + wire::field_len(3, self.schema_url.len());
        let mut request = Vec::with_capacity(wire::field_len(1, resource_len));
        wire::head(&mut request, 1, resource_len);
        wire::bytes(&mut request, 1, &self.resource);
        wire::head(&mut request, 2, scope_len);
        wire::bytes(&mut request, 1, &self.scope);
        request.extend_from_slice(&self.spans);
        wire::bytes(&mut request, 3, self.schema_url.as_bytes());
        wire::bytes(&mut request, 3, self.schema_url.as_bytes());
        self.spans.clear();
        carrier.carry(Signal::Traces, request, std::mem::take(&mut self.items));
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::KeyValue;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::Span;
    use prost::Message as _;

    use super::*;

    #[derive(Default)]
    struct Taken(Vec<(Vec<u8>, u32)>);
    impl Carrier for Taken {
        fn carry(&mut self, signal: Signal, request: Vec<u8>, items: u32) {
            assert_eq!(signal, Signal::Traces);
            self.0.push((request, items));
        }
    }

    fn batch(table: &[(&str, &str)]) -> Batch {
        let resource = Resource::builder_empty().with_attributes([KeyValue::new("service.name", "me"), KeyValue::new("a", 7)]).build();
        Batch::new(&resource, Profile::V1_41, &|name| table.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    fn span(n: u64) -> Vec<u8> {
        Span { start_time_unix_nano: n, ..Span::default() }.encode_to_vec()
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_request_is_read_as_it_was_made() {
        let (mut batch, mut taken) = (batch(&[]), Taken::default());
        (0..3).for_each(|n| batch.add(&span(n), now(), &mut taken));
        assert!(taken.0.is_empty());
        batch.close(&mut taken);
        batch.close(&mut taken);
        let [(request, 3)] = taken.0.as_slice() else { panic!("{}", taken.0.len()) };
        let request = ExportTraceServiceRequest::decode(request.as_slice()).unwrap();
        let resource = &request.resource_spans[0];
        let keys: Vec<_> = resource.resource.as_ref().unwrap().attributes.iter().map(|a| a.key.as_str()).collect();
        let scope = &resource.scope_spans[0];
        let of = scope.scope.as_ref().unwrap();
        assert_eq!((keys, of.name.as_str(), of.version.as_str()), (vec!["a", "service.name"], "tokengauge", env!("CARGO_PKG_VERSION")));
        assert_eq!((resource.schema_url.as_str(), scope.schema_url.as_str()), (Profile::V1_41.schema_url(), Profile::V1_41.schema_url()));
        assert_eq!(scope.spans.iter().map(|s| s.start_time_unix_nano).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn batches_are_of_the_size_and_the_age_that_the_environment_says() {
        let (mut batch, mut taken, start) =
            (batch(&[("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2"), ("OTEL_BSP_SCHEDULE_DELAY", "300")]), Taken::default(), now());
        (0..5).for_each(|n| batch.add(&span(n), start, &mut taken));
        assert_eq!(taken.0.iter().map(|t| t.1).collect::<Vec<_>>(), [2, 2]);
        batch.tick(start + Duration::from_millis(299), &mut taken);
        assert_eq!(taken.0.len(), 2);
        batch.tick(start + Duration::from_millis(300), &mut taken);
        assert_eq!(taken.0.iter().map(|t| t.1).collect::<Vec<_>>(), [2, 2, 1]);
        batch.tick(start + Duration::from_secs(9), &mut taken);
        assert_eq!(taken.0.len(), 3);
    }

    #[test]
    fn no_request_is_larger_than_receivers_take() {
        let (mut batch, mut taken) = (batch(&[("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000")]), Taken::default());
        let large = Span { name: "x".repeat(10_000), ..Span::default() }.encode_to_vec();
        (0..1_000).for_each(|_| batch.add(&large, now(), &mut taken));
        batch.close(&mut taken);
        assert!(taken.0.len() > 4 && taken.0.iter().all(|(r, _)| r.len() <= LARGEST));
        assert_eq!(taken.0.iter().map(|t| t.1).sum::<u32>(), 1_000);
    }
}
