//! What an OTLP receiver gets: real gRPC and HTTP servers, an exporter in a process of its own with the environment of the test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states its expectations so")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{MetricsService, MetricsServiceServer};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, HistogramDataPoint, Metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message as _;
use tokengauge::agent::Running;
use tokengauge::export::Exporter as _;
use tokengauge::export::metrics::Metrics;
use tokengauge::export::otlp::{Config, Otlp, environment};
use tokengauge::join::Joining;
use tokengauge::{testing, vitals::Vitals};
use tokengauge_core::inference::{Inference, ServerTiming, TraceParent, Vantage};
use tokengauge_core::pipeline::PipelineStats;
use tokengauge_core::semconv::{self, Profile};
use tokengauge_core::stats::Snapshot;

/// One request as a receiver got it.
enum Got {
    Metrics(BTreeMap<String, String>, ExportMetricsServiceRequest),
    Traces(BTreeMap<String, String>, ExportTraceServiceRequest),
}

// ------------------------------------------------------------------------------------------------------------ the exporting side

/// What is exported in every test: a stream with a parent, a refusal, and the first one again as its server saw it.
fn inferences() -> [Inference; 3] {
    let mut first = testing::inference();
    first.request.traceparent = Some(TraceParent { trace_id: first.trace.trace_id, span_id: 0xb7ad_6b71_6920_3331, flags: 1 });
    first.trace.parent = Some(0xb7ad_6b71_6920_3331);
    let told = ServerTiming { queue: Some(0.05), load: Some(0.01), prefill: Some(0.1), decode: Some(0.02), ..ServerTiming::default() };
    first.server_timing = Some(told);
    let mut server = first.clone();
    server.vantage = Vantage::Server;
    server.trace.span_id = 0x55;
    [first, testing::refused(), server]
}

fn metrics(env: tokengauge::export::otlp::Env<'_>) -> Metrics {
    Metrics::new(&tokengauge::export::metrics::Config::default(), Profile::V1_41, env).unwrap()
}

#[test]
#[ignore = "started by the other tests, with an environment"]
fn child() {
    let mut otlp = Otlp::new(&Config::default(), &metrics(&environment), &environment).unwrap().unwrap();
    inferences().iter().for_each(|i| otlp.inference(i));
    let start = tokengauge::clock::now();
    let mut joining = Joining::new(Duration::from_secs(1), start);
    for i in inferences() {
        joining.push(Box::new(i), start, &mut |i, found| otlp.settled(i, found));
    }
    joining.rest(start, &mut |i, found| otlp.settled(i, found));
    let (vitals, mut snapshot) = (Vitals::default(), Snapshot::default());
    let slot = vitals.register(Box::new(Vec::new));
    let mut stats = PipelineStats { in_flight: 3, ..PipelineStats::default() };
    stats.anomalies.count(tokengauge_core::anomaly::Anomaly::BadJson);
    vitals.publish(slot, &stats);
    vitals.fill(&mut snapshot);
    otlp.snapshot(&snapshot);
    otlp.shutdown(Duration::from_secs(4)).unwrap();
}

/// Exports to `address` from a process of its own.
fn export(address: SocketAddr, environment: &[(&str, &str)]) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}"))
        .envs(environment.iter().copied())
        .status()
        .unwrap();
    assert!(status.success());
}

// ----------------------------------------------------------------------------------------------------------- the receiving side

struct Grpc(std::sync::Mutex<Sender<Got>>);

fn metadata<T>(request: &tonic::Request<T>) -> BTreeMap<String, String> {
    let headers = request.metadata().clone().into_headers();
    headers.iter().map(|(k, v)| (k.to_string(), v.to_str().unwrap_or_default().to_owned())).collect()
}

#[tonic::async_trait]
impl MetricsService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        self.0.lock().unwrap().send(Got::Metrics(metadata(&request), request.into_inner())).unwrap();
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.0.lock().unwrap().send(Got::Traces(metadata(&request), request.into_inner())).unwrap();
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

fn grpc_receiver() -> (SocketAddr, Receiver<Got>) {
    let (sender, got) = channel();
    let (address, bound) = channel();
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            address.send(listener.local_addr().unwrap()).unwrap();
            let gzip = tonic::codec::CompressionEncoding::Gzip;
            tonic::transport::Server::builder()
                .add_service(MetricsServiceServer::new(Grpc(sender.clone().into())).accept_compressed(gzip))
                .add_service(TraceServiceServer::new(Grpc(sender.into())).accept_compressed(gzip))
                .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener))
                .await
                .unwrap();
        });
    });
    (bound.recv().unwrap(), got)
}

fn http_receiver() -> (SocketAddr, Receiver<Got>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, (sender, got)) = (listener.local_addr().unwrap(), channel());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let sender = sender.clone();
            std::thread::spawn(move || serve(stream.unwrap(), &sender));
        }
    });
    (address, got)
}

fn serve(stream: TcpStream, sender: &Sender<Got>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let path = line.split(' ').nth(1)?.to_owned();
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let mut body = vec![0; headers["content-length"].parse().unwrap()];
        reader.read_exact(&mut body).ok()?;
        if headers.get("content-encoding").map(String::as_str) == Some("gzip") {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(body.as_slice()).read_to_end(&mut plain).unwrap();
            body = plain;
        }
        let got = match path.as_str() {
            "/v1/metrics" => Got::Metrics(headers, ExportMetricsServiceRequest::decode(body.as_slice()).unwrap()),
            "/v1/traces" => Got::Traces(headers, ExportTraceServiceRequest::decode(body.as_slice()).unwrap()),
            other => panic!("{other}"),
        };
        sender.send(got).unwrap();
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        (&stream).write_all(answer.as_bytes()).ok()?;
    }
}

/// Everything that a receiver got, put together.
#[derive(Default)]
struct All {
    headers: Vec<BTreeMap<String, String>>,
    resources: Vec<BTreeMap<String, String>>,
    metrics: BTreeMap<String, Metric>,
    /// Names of levels that were said to have ended.
    ended: Vec<String>,
    spans: Vec<Span>,
    scopes: Vec<(String, String)>,
}

impl All {
    fn of(got: &Receiver<Got>) -> Self {
        let mut all = Self::default();
        while let Ok(got) = got.try_recv() {
            match got {
                Got::Metrics(headers, request) => {
                    all.headers.push(headers);
                    for resource in request.resource_metrics {
                        all.resources.push(table(&resource.resource.unwrap().attributes));
                        for scope in resource.scope_metrics {
                            all.scopes.push((scope.scope.unwrap().name, scope.schema_url));
                            for m in scope.metrics {
                                if ended(&m) {
                                    all.ended.push(m.name);
                                } else {
                                    all.metrics.insert(m.name.clone(), m);
                                }
                            }
                        }
                    }
                }
                Got::Traces(headers, request) => {
                    all.headers.push(headers);
                    for resource in request.resource_spans {
                        all.resources.push(table(&resource.resource.unwrap().attributes));
                        all.spans.extend(resource.scope_spans.into_iter().flat_map(|s| s.spans));
                    }
                }
            }
        }
        all
    }

    /// Attributes and counts of an exponential histogram's points.
    fn powers(&self, name: &str) -> Vec<(BTreeMap<String, String>, u64)> {
        let Some(Data::ExponentialHistogram(h)) = self.metrics.get(name).and_then(|m| m.data.as_ref()) else { return Vec::new() };
        assert_eq!(h.aggregation_temporality, AggregationTemporality::Cumulative as i32, "{name}");
        let exemplified = h.data_points.iter().flat_map(|p| &p.exemplars);
        exemplified.for_each(|e| assert!(self.spans.iter().any(|s| s.trace_id == e.trace_id && s.span_id == e.span_id), "{name}"));
        h.data_points.iter().map(|p| (table(&p.attributes), p.count)).collect()
    }

    fn histogram(&self, name: &str) -> &[HistogramDataPoint] {
        match self.metrics.get(name).and_then(|m| m.data.as_ref()) {
            Some(Data::Histogram(h)) => {
                assert_eq!(h.aggregation_temporality, AggregationTemporality::Cumulative as i32, "{name}");
                &h.data_points
            }
            _ => &[],
        }
    }

    /// The sum of a counter's points that have all of these attributes; `None` without such a point.
    fn sum(&self, name: &str, with: &[(&str, &str)]) -> Option<i64> {
        let Some(Data::Sum(sum)) = self.metrics.get(name).and_then(|m| m.data.as_ref()) else { return None };
        assert_eq!(sum.aggregation_temporality, AggregationTemporality::Cumulative as i32, "{name}");
        let points = sum.data_points.iter().filter(|p| {
            let attributes = table(&p.attributes);
            with.iter().all(|(k, v)| attributes.get(*k).map(String::as_str) == Some(*v))
        });
        points
            .map(|p| match p.value {
                Some(number_data_point::Value::AsInt(n)) => n,
                _ => panic!("{name} is no integer"),
            })
            .reduce(|a, b| a + b)
    }
}

/// Whether every point of a level says that it has no value any more.
fn ended(m: &Metric) -> bool {
    let points = match m.data.as_ref() {
        Some(Data::Gauge(g)) => &g.data_points,
        Some(Data::Sum(s)) => &s.data_points,
        _ => return false,
    };
    points.iter().all(|p| p.flags & 1 == 1)
}

fn table(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(s) => s.clone(),
        Value::IntValue(n) => n.to_string(),
        Value::DoubleValue(x) => x.to_string(),
        Value::BoolValue(b) => b.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|a| (a.key.clone(), a.value.as_ref().and_then(|v| v.value.as_ref()).map_or_else(String::new, text))).collect()
}

// ------------------------------------------------------------------------------------------------------------------- the tests

fn check(all: &All) {
    for m in semconv::metric::ALL {
        let Some(got) = all.metrics.get(m.name) else {
            // Instruments without a value are not sent.
            let silent = [
                "tokengauge.capture.packets",
                "tokengauge.capture.records",
                "tokengauge.capture.attaches",
                "tokengauge.capture.dropped",
                "tokengauge.capture.other",
                "tokengauge.split.proxy",
                "gen_ai.client.inference.usage.cache_write.input_tokens",
            ];
            // What other parts of a running agent tell: objectives, servers, names of pods, the process, the file of records, the listener. None of them is here.
            let others = [
                "tokengauge.slo.",
                "tokengauge.engine.",
                "tokengauge.agent.",
                "tokengauge.jsonl.",
                "tokengauge.kubernetes.",
                "tokengauge.hook.",
                "tokengauge.join.",
                "tokengauge.otlp_in.",
                "tokengauge.http.",
                "tokengauge.tap.",
                "process.",
            ];
            let other = others.iter().any(|p| m.name.starts_with(p)) || m.name == "tokengauge.capture.lag";
            assert!(silent.contains(&m.name) || other || !Profile::V1_41.has(m.under), "{} is missing", m.name);
            continue;
        };
        assert_eq!((got.unit.as_str(), got.description.as_str()), (m.unit, m.doc), "{}", m.name);
        for point in all.histogram(m.name) {
            // What the sender counts brings its own bounds.
            let bounds = if *m == semconv::metric::EXPORT_DURATION { &semconv::LATENCY[..] } else { m.buckets };
            assert_eq!(point.explicit_bounds, bounds, "{}", m.name);
        }
    }
    assert!(all.metrics.keys().all(|name| semconv::metric::ALL.iter().any(|m| m.name == name)));
    assert!(all.scopes.iter().all(|(name, schema)| name == "tokengauge" && schema == Profile::V1_41.schema_url()));

    // Prescribed attributes, and error.type on the durations only.
    let durations = all.histogram("gen_ai.client.operation.duration");
    assert_eq!(durations.len(), 2);
    let failed = durations.iter().map(|p| table(&p.attributes)).find(|a| a.contains_key("error.type")).unwrap();
    assert_eq!(failed["error.type"], "rate_limit_exceeded");
    let chunk = &all.histogram("gen_ai.client.operation.time_to_first_chunk")[0];
    assert_eq!((chunk.count, chunk.sum), (1, Some(0.32)));
    assert_eq!(
        table(&chunk.attributes).into_iter().collect::<Vec<_>>(),
        [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "openai"),
            ("gen_ai.request.model", "gpt-4o-mini"),
            // A date is no series; the span has it.
            ("gen_ai.response.model", "gpt-4o-mini"),
            ("server.address", "api.openai.com"),
            ("server.port", "8000"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
    );
    // One observation per chunk after the first, coalesced ones as zero; our own gaps are between arrivals.
    let per_chunk = &all.histogram("gen_ai.client.operation.time_per_output_chunk")[0];
    assert_eq!((per_chunk.count, per_chunk.sum, per_chunk.min), (3, Some(0.05), Some(0.0)));
    assert_eq!(all.powers("tokengauge.inter_chunk_gap").iter().map(|(_, n)| *n).collect::<Vec<_>>(), [2, 2]);
    let usage: BTreeMap<_, _> =
        all.histogram("gen_ai.client.token.usage").iter().map(|p| (table(&p.attributes)["gen_ai.token.type"].clone(), p.sum)).collect();
    assert_eq!(usage, BTreeMap::from([("input".to_owned(), Some(9.0)), ("output".to_owned(), Some(6.0))]));
    // Seen from both sides: two series of ours, and the conventions' server metrics only from the server's side.
    let ttft = all.powers("tokengauge.time_to_first_token");
    let mut vantages: Vec<_> = ttft.iter().map(|(attributes, n)| (attributes["tokengauge.vantage"].clone(), *n)).collect();
    vantages.sort();
    assert_eq!(vantages, [("client".to_owned(), 1), ("server".to_owned(), 1)]);
    let server = &all.histogram("gen_ai.server.time_per_output_token")[0];
    assert_eq!(server.count, 1);
    assert!((server.sum.unwrap() - (0.48 - 0.41) / 5.0).abs() < 1e-12, "{:?}", server.sum);
    assert_eq!(all.histogram("gen_ai.server.request.duration").len(), 1);

    // Outcomes, with zeros from the first moment.
    let requests =
        |vantage: &str, outcome: &str| all.sum("tokengauge.requests", &[("tokengauge.vantage", vantage), ("tokengauge.outcome", outcome)]);
    assert_eq!(
        (requests("client", "completed"), requests("client", "failed"), requests("server", "completed")),
        (Some(1), Some(1), Some(1))
    );
    assert_eq!((requests("client", "cancelled"), requests("server", "lost")), (Some(0), Some(0)));
    assert_eq!(all.sum("tokengauge.requests", &[("tokengauge.reason", "http_error"), ("tokengauge.outcome", "failed")]), Some(1));
    assert_eq!(all.sum("tokengauge.output_tokens", &[("tokengauge.vantage", "client")]), Some(6));
    assert_eq!(all.sum("tokengauge.in_flight", &[]), Some(3));
    // Levels end with the process, totals stay.
    let levels = ["tokengauge.capture.open_connections", "tokengauge.export.series", "tokengauge.in_flight"];
    assert!(levels.iter().all(|name| all.ended.iter().any(|ended| ended == name)), "{:?}", all.ended);
    assert!(!all.ended.iter().any(|name| name == "tokengauge.requests"));
    assert_eq!(all.sum("tokengauge.anomalies", &[("tokengauge.anomaly", "bad_json")]), Some(1));
    assert_eq!(all.sum("tokengauge.anomalies", &[("tokengauge.anomaly", "bad_head")]), Some(0));
    assert_eq!(all.sum("tokengauge.capture.gaps", &[("tokengauge.reason", "ring_full")]), Some(0));

    // Spans have the wire's times and ids.
    assert_eq!(all.spans.len(), 3);
    let span = |id: u64| all.spans.iter().find(|s| s.span_id == id.to_be_bytes()).unwrap();
    let client = span(0x00f0_67aa_0ba9_02b7);
    assert_eq!(client.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!(client.parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    assert_eq!((client.start_time_unix_nano, client.end_time_unix_nano), (testing::START, testing::START + 480_000_000));
    assert_eq!((client.name.as_str(), client.kind), ("chat gpt-4o-mini", SpanKind::Client as i32));
    assert_eq!((client.events[0].name.as_str(), client.events[0].time_unix_nano), ("tokengauge.first_token", testing::START + 410_000_000));
    let attributes = table(&client.attributes);
    for (key, value) in [
        ("gen_ai.request.stream", "true"),
        ("gen_ai.request.max_tokens", "100"),
        ("gen_ai.response.time_to_first_chunk", "0.32"),
        ("gen_ai.usage.output_tokens", "6"),
        ("gen_ai.usage.cache_read.input_tokens", "0"),
        ("openai.api.type", "chat_completions"),
        ("tokengauge.time_to_first_token", "0.41"),
        ("tokengauge.outcome", "completed"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(attributes.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(!attributes.contains_key("error.type") && !attributes.contains_key("gen_ai.usage.cache_creation.input_tokens"));
    let refused = span(3);
    assert_eq!(refused.status.as_ref().unwrap().code, StatusCode::Error as i32);
    assert!(refused.parent_span_id.is_empty());
    let server = span(0x55);
    assert_eq!(server.kind, SpanKind::Server as i32);

    // Both views of one request: each leads to the other, and its time is taken apart once.
    assert_eq!(
        (server.links[0].span_id.as_slice(), client.links[0].span_id.as_slice()),
        (client.span_id.as_slice(), server.span_id.as_slice())
    );
    let parts = ["network", "queue", "load", "prefill", "unattributed"]
        .map(|p| attributes[&format!("tokengauge.split.{p}")].parse::<f64>().unwrap());
    assert!(parts[..4] == [0.0, 0.05, 0.01, 0.1] && (parts.iter().sum::<f64>() - 0.41).abs() < 1e-9, "{parts:?}");
    assert!(!table(&server.attributes).keys().any(|key| key.starts_with("tokengauge.split.")));
    let [(queue, 1)] = &all.powers("tokengauge.split.queue")[..] else { panic!("the request is counted once") };
    assert_eq!((queue["tokengauge.split.source"].as_str(), queue["tokengauge.split.whole"].as_str()), ("answer", "time_to_first_token"));
}

fn check_environment(all: &All) {
    assert!(all.headers.iter().all(|h| h["x-tenant"] == "blue" && h["authorization"] == "Bearer abc"), "{:?}", all.headers);
    for resource in &all.resources {
        assert_eq!((resource["service.name"].as_str(), resource["deployment.environment.name"].as_str()), ("my-agent", "test"));
        assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
        assert!(!resource["service.instance.id"].is_empty());
    }
}

const ENVIRONMENT: [(&str, &str); 4] = [
    ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue,authorization=Bearer%20abc"),
    ("OTEL_SERVICE_NAME", "my-agent"),
    ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=ignored"),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
];

#[test]
fn grpc() {
    let (address, got) = grpc_receiver();
    export(address, &[&ENVIRONMENT[..], &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]].concat());
    let all = All::of(&got);
    check(&all);
    check_environment(&all);
}

#[test]
fn http() {
    let (address, got) = http_receiver();
    export(address, &ENVIRONMENT);
    let all = All::of(&got);
    check(&all);
    check_environment(&all);
    assert!(all.headers.iter().all(|h| h["content-encoding"] == "gzip" && h["content-type"] == "application/x-protobuf"));
}

#[test]
fn one_signal_may_be_switched_off() {
    let (address, got) = http_receiver();
    export(address, &[("OTEL_METRICS_EXPORTER", "none")]);
    let all = All::of(&got);
    assert!(all.metrics.is_empty() && all.spans.len() == 3);
    assert_eq!(all.resources[0]["service.name"], "tokengauge");
}

/// A receiver that takes the connection and never answers, by each transport.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test of time itself")]
fn a_hanging_receiver_does_not_delay_the_end() {
    for protocol in ["grpc", "http/protobuf"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
        let config = Config {
            endpoint: Some(format!("http://{address}")),
            endpoint_wins: true,
            protocol: serde_norway::from_str(protocol).unwrap(),
            ..Config::default()
        };
        let mut otlp = Otlp::new(&config, &metrics(&|_| None), &|_| None).unwrap().unwrap();
        for i in inferences() {
            otlp.inference(&i);
            otlp.settled(&i, &tokengauge::join::Found::default());
        }
        let running = Running::builder().exporter(Box::new(otlp)).start().unwrap();
        let began = std::time::Instant::now();
        let ended = running.stop();
        assert!(began.elapsed() < Duration::from_secs(5), "{protocol}: {:?}", began.elapsed());
        assert!(!ended.undelivered.is_empty(), "{protocol}");
    }
}
