use std::borrow::Cow;
use std::collections::BTreeMap;

use expect_test::expect;
use prost::Message as _;
use tokengauge_core::semconv::{Profile, metric};
use tokengauge_core::stats::sets::Value;
use tokengauge_core::stats::store::{Shape, Told};
use tokengauge_core::stream::Timestamp;

use super::*;

/// What is read of `metrics.proto`.
#[derive(Clone, PartialEq, prost::Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metrics: Vec<OneMetric>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct OneMetric {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Pair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<NativeHistogram>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Pair {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Number {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    created: Option<Time>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}
#[derive(Clone, PartialEq, prost::Message)]
struct NativeHistogram {
    #[prost(uint64, optional, tag = "1")]
    count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    buckets: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    spans: Vec<BucketSpan>,
    #[prost(sint64, repeated, tag = "13")]
    deltas: Vec<i64>,
    #[prost(message, optional, tag = "15")]
    created: Option<Time>,
    #[prost(message, repeated, tag = "16")]
    exemplars: Vec<OneExemplar>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative: Option<u64>,
    #[prost(double, optional, tag = "2")]
    bound: Option<f64>,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<OneExemplar>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct BucketSpan {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct OneExemplar {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Pair>,
    #[prost(double, optional, tag = "2")]
    value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    time: Option<Time>,
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_unix_nanos(second * 1_000_000_000)
}

fn sample() -> Store {
    let mut store = Store::new(Shape::default(), at(1));
    let set = store.sets.of(vec![
        (Cow::Borrowed("gen_ai.request.model"), Value::Text("a\"b\\c\nd".into())),
        (Cow::Borrowed("server.port"), Value::Int(443)),
    ]);
    store.add(&metric::REQUESTS, &set, 3, at(5));
    let d = store.distribution(&metric::SERVER_TIME_PER_OUTPUT_TOKEN, &set, at(6)).unwrap();
    [0.0, 0.3, 1.0, 9.0].iter().for_each(|v| d.record(*v));
    d.exemplify(1.0, at(4), 0xaa, 0xbb);
    let d = store.distribution(&metric::TIME_TO_FIRST_TOKEN, &set, at(6)).unwrap();
    [0.0, 0.25, 0.26, 0.5, 0.5, 0.5].iter().for_each(|v| d.record(*v));
    d.exemplify(0.5, at(4), 0xaa, 0xbb);
    store.observe(at(7), |tell| {
        tell(&metric::IN_FLIGHT, &[], Told::Value(2.0));
        tell(&metric::SLO_COVERAGE, &[("a.b-c", "x")], Told::Value(0.5));
    });
    store
}

fn target() -> Vec<(String, String)> {
    vec![("service.version".to_owned(), "1.2".to_owned())]
}

fn page(target: &[(String, String)], format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    render(&sample(), target, format, &mut bytes).unwrap();
    bytes
}

fn lines(open: bool, of: &str) -> String {
    let format = if open { Format::OpenMetrics } else { Format::Text };
    let text = String::from_utf8(page(&target(), format)).unwrap();
    text.lines().filter(|l| l.contains(of)).map(|l| format!("{l}\n")).collect()
}

#[test]
fn text() {
    expect![[r#"
        # HELP tokengauge_requests_total Finished inferences by outcome and reason.
        # TYPE tokengauge_requests_total counter
        tokengauge_requests_total{gen_ai_request_model="a\"b\\c\nd",server_port="443"} 3
    "#]]
    .assert_eq(&lines(false, "tokengauge_requests"));
    expect![[r#"
        # HELP gen_ai_server_time_per_output_token_seconds (duration - time to first token) / (output tokens - 1) of successful responses, seen at the server.
        # TYPE gen_ai_server_time_per_output_token_seconds histogram
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.01"} 1
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.025"} 1
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.05"} 1
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.075"} 1
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.1"} 1
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.15"} 1
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.2"} 1
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.3"} 2
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.4"} 2
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.5"} 2
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="0.75"} 2
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="1"} 3
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="2.5"} 3
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="+Inf"} 4
        gen_ai_server_time_per_output_token_seconds_sum{gen_ai_request_model="a\"b\\c\nd",server_port="443"} 10.3
        gen_ai_server_time_per_output_token_seconds_count{gen_ai_request_model="a\"b\\c\nd",server_port="443"} 4
    "#]]
    .assert_eq(&lines(false, "per_output_token"));
    assert_eq!(lines(false, "tokengauge_slo_coverage_ratio{"), "tokengauge_slo_coverage_ratio{a_b_c=\"x\"} 0.5\n");
    assert_eq!(
        lines(false, "tokengauge_in_flight "),
        "# HELP tokengauge_in_flight Inferences that are running.\n# TYPE tokengauge_in_flight gauge\ntokengauge_in_flight 2\n"
    );
    assert_eq!(lines(false, "target_info{"), "target_info{service_version=\"1.2\"} 1\n");
    assert_eq!(lines(false, "EOF"), "");
}

#[test]
fn open_metrics() {
    expect![[r#"
        # HELP tokengauge_requests Finished inferences by outcome and reason.
        # TYPE tokengauge_requests counter
        tokengauge_requests_total{gen_ai_request_model="a\"b\\c\nd",server_port="443"} 3
    "#]]
    .assert_eq(&lines(true, "tokengauge_requests"));
    expect![[r#"
        # UNIT gen_ai_server_time_per_output_token_seconds seconds
        # UNIT tokengauge_time_to_first_token_seconds seconds
        # UNIT tokengauge_slo_coverage_ratio ratio
    "#]]
    .assert_eq(&lines(true, "# UNIT"));
    expect![[r#"
        gen_ai_server_time_per_output_token_seconds_bucket{gen_ai_request_model="a\"b\\c\nd",server_port="443",le="1.0"} 3 # {trace_id="000000000000000000000000000000aa",span_id="00000000000000bb"} 1 4.000
    "#]]
    .assert_eq(&lines(true, "le=\"1.0\"} 3"));
    assert_eq!(lines(true, "target"), "# HELP target Who exports.\n# TYPE target info\ntarget_info{service_version=\"1.2\"} 1\n");
    assert!(page(&[], Format::OpenMetrics).ends_with(b"\n# EOF\n"));
}

#[test]
fn protobuf() {
    let bytes = page(&target(), Format::Protobuf);
    let mut rest = bytes.as_slice();
    let mut families = BTreeMap::new();
    while !rest.is_empty() {
        let family = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        families.insert(family.name.clone().unwrap(), family);
    }
    assert_eq!(families.len(), 6);
    let requests = &families["tokengauge_requests_total"];
    let counter = requests.metrics[0].counter.as_ref().unwrap();
    assert_eq!((requests.kind, counter.value, counter.created.clone()), (Some(0), Some(3.0), Some(Time { seconds: 5, nanos: 0 })));
    assert_eq!(requests.metrics[0].labels[0].value.as_deref(), Some("a\"b\\c\nd"));
    assert_eq!(families["tokengauge_in_flight"].metrics[0].gauge.as_ref().unwrap().value, Some(2.0));
    let native = families["tokengauge_time_to_first_token_seconds"].metrics[0].histogram.clone().unwrap();
    assert_eq!((native.count, native.sum, native.zero_count, native.zero_threshold), (Some(6), Some(2.01), Some(1), Some(1e-128)));
    // Scale 7: 0.25 is the upper bound of bucket -256 in Prometheus' count, 0.26 is in bucket -248, 0.5 of -128.
    let spans: Vec<_> = native.spans.iter().map(|s| (s.offset.unwrap(), s.length.unwrap())).collect();
    assert_eq!((native.schema, spans, native.deltas), (Some(7), vec![(-256, 1), (7, 1), (119, 1)], vec![1, 0, 2]));
    assert_eq!((native.buckets.len(), native.buckets[12].cumulative, native.buckets[12].bound), (28, Some(6), Some(0.5)));
    assert_eq!(native.exemplars[0].labels[0].value.as_deref(), Some("000000000000000000000000000000aa"));
    assert_eq!(native.exemplars[0].time, Some(Time { seconds: 4, nanos: 0 }));
    assert_eq!(native.buckets[12].exemplar, Some(native.exemplars[0].clone()));
    let classic = families["gen_ai_server_time_per_output_token_seconds"].metrics[0].histogram.clone().unwrap();
    assert_eq!((classic.schema, classic.spans.len(), classic.buckets.len()), (None, 0, 14));
}

#[test]
fn what_a_scraper_asks_for() {
    let prometheus_3 = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
        application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
        text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    for (accept, want) in [
        (prometheus_3, Format::Protobuf),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", Format::OpenMetrics),
        ("text/plain;version=0.0.4", Format::Text),
        ("*/*", Format::Text),
        ("", Format::Text),
        ("application/json", Format::Text),
        ("application/openmetrics-text; version=2.0.0, text/plain;q=0.1", Format::Text),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text;q=0.9,*/*;q=0.1", Format::Text),
        ("application/openmetrics-text;q=0,text/plain;q=0.1", Format::Text),
    ] {
        assert_eq!(Endpoint::negotiate(accept), want, "{accept}");
    }
}

/// Of every profile, as the translator would name it: no two series of different metrics share a name.
#[test]
fn no_two_metrics_share_a_name() {
    for profile in Profile::ALL {
        let mut seen = BTreeMap::new();
        for m in metric::ALL.iter().filter(|m| profile.has(m.under)) {
            let name = prometheus_name(m);
            let suffixes: &[&str] = if m.kind == Kind::Histogram { &["", "_bucket", "_count", "_sum"] } else { &[""] };
            for suffix in suffixes {
                let other = seen.insert(format!("{name}{suffix}"), m.name);
                assert_eq!(other, None, "{} under {}", m.name, profile.as_str());
            }
        }
    }
}
