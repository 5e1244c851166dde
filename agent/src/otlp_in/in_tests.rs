//! Real clients against the receiver: the gRPC channel and the HTTP client that exporters use.

use std::sync::Mutex as Lock;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use tokengauge_core::name::Name;
use tonic::codec::CompressionEncoding;
use tonic::transport::Endpoint;

use super::*;
use crate::clock::now;
use crate::join::Joining;
use crate::testing;

/// A request that was forwarded, and its spans.
type Forwarded = (Vec<u8>, u32);

/// What was forwarded.
#[derive(Clone, Default)]
struct Carried(Arc<Lock<Vec<Forwarded>>>);
impl Carrier for Carried {
    fn carry(&mut self, signal: Signal, request: Vec<u8>, items: u32) {
        assert_eq!(signal, Signal::Traces);
        self.0.lock().unwrap().push((request, items));
    }
}

fn request(id: &str) -> ExportTraceServiceRequest {
    let attribute = |key: &str, value| KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() };
    let span = Span {
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        name: "llm_request".into(),
        attributes: vec![
            attribute("gen_ai.latency.time_in_queue", Value::DoubleValue(0.02)),
            attribute("gen_ai.request.id", Value::StringValue(id.into())),
        ],
        ..Span::default()
    };
    let scope_spans = vec![ScopeSpans { spans: vec![span, Span::default()], ..ScopeSpans::default() }];
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }] }
}

/// A receiver, what it forwards, and what it told when it is asked for it.
fn receiving(listen: &str) -> (Receiving, Carried, Joining) {
    let (joining, carried) = (Joining::new(Duration::from_secs(60), now()), Carried::default());
    let taking = Taking::new(joining.engines(), Some(Box::new(carried.clone())));
    (Receiving::start(&Config { listen: listen.into(), forward: true }, taking).unwrap(), carried, joining)
}

fn answers(receiving: &Receiving) -> [u64; 5] {
    Answer::ALL.map(|a| receiving.counters().answers[a as usize].load(Ordering::Relaxed))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn grpc_as_exporters_speak_it() {
    let (receiving, carried, mut joining) = receiving("127.0.0.1:0");
    let address = receiving.address().unwrap();
    runtime().block_on(async {
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let mut plain = TraceServiceClient::new(channel.clone());
        plain.export(request("chatcmpl-0123456789")).await.unwrap();
        let mut gzip = TraceServiceClient::new(channel.clone()).send_compressed(CompressionEncoding::Gzip);
        gzip.export(request("chatcmpl-abcdefghij")).await.unwrap();
        let mut huge = request("chatcmpl-0123456789");
        huge.resource_spans[0].schema_url = "x".repeat(5 << 20);
        assert_eq!(plain.export(huge).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
        // It goes on after that.
        plain.export(request("chatcmpl-0123456789")).await.unwrap();
        let metrics = opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient::new(channel);
        let refused = { metrics }.export(opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest::default()).await;
        assert_eq!(refused.unwrap_err().code(), tonic::Code::Unimplemented);
    });
    assert_eq!(answers(&receiving), [3, 0, 1, 1, 0]);
    let carried = carried.0.lock().unwrap();
    assert_eq!(carried.iter().map(|(_, spans)| *spans).collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(carried[1].0, request("chatcmpl-abcdefghij").encode_to_vec(), "byte for byte");
    let mut told = Vec::new();
    receiving.counters().observe(&mut |m, attributes, n| told.push((m.name, attributes[0].1.to_owned(), n)));
    assert!(
        told.contains(&("tokengauge.otlp_in.spans", "read".into(), 3.0))
            && told.contains(&("tokengauge.otlp_in.spans", "other".into(), 3.0))
    );
    // What was told reaches the request that it is of.
    let mut i = testing::inference();
    i.response.id = Name::new("chatcmpl-abcdefghij");
    joining.push(Box::new(i), now(), &mut |_, _| {});
    let mut queue = None;
    joining.rest(now(), &mut |_, found| queue = found.split.and_then(|s| s.queue));
    assert_eq!(queue, Some(20_000_000));
}

#[test]
fn http_as_exporters_speak_it_and_as_they_should_not() {
    let (receiving, carried, _joining) = receiving("localhost:0");
    let url = format!("http://{}/v1/traces", receiving.address().unwrap());
    let post = |url: &str, media: &str, coding: Option<&str>, body: Vec<u8>| {
        let client = reqwest::blocking::Client::new();
        let mut request = client.post(url).header("content-type", media).body(body);
        if let Some(coding) = coding {
            request = request.header("content-encoding", coding);
        }
        let response = request.send().unwrap();
        (response.status().as_u16(), response.text().unwrap())
    };
    let good = request("chatcmpl-0123456789").encode_to_vec();
    let gzip = {
        use std::io::Write as _;
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(&good).unwrap();
        out.finish().unwrap()
    };
    let json = serde_json::to_vec(&request("chatcmpl-0123456789")).unwrap();
    assert_eq!(post(&url, "application/x-protobuf", None, good.clone()), (200, String::new()));
    assert_eq!(post(&url, "application/x-protobuf", Some("gzip"), gzip), (200, String::new()));
    assert_eq!(post(&url, "application/json; charset=utf-8", None, json), (200, "{}".into()));
    assert_eq!(post(&url, "application/x-protobuf", None, vec![0xff; 99]).0, 400);
    assert_eq!(post(&url, "application/x-protobuf", Some("gzip"), good.clone()).0, 400);
    assert_eq!(post(&url, "application/json", None, b"[1]".to_vec()).0, 400);
    assert_eq!(post(&url, "application/x-protobuf", None, vec![0; 5 << 20]).0, 413);
    assert_eq!(post(&url, "text/plain", None, good.clone()).0, 404);
    assert_eq!(post(&url.replace("traces", "metrics"), "application/x-protobuf", None, good.clone()).0, 404);
    assert_eq!(answers(&receiving), [3, 3, 1, 2, 0]);
    let carried = carried.0.lock().unwrap();
    assert!(carried.len() == 3 && carried.iter().all(|(bytes, _)| *bytes == good), "the same in whatever form it came");
}

#[test]
fn a_socket_is_taken_over_from_the_dead_and_goes_with_the_receiver() {
    use std::io::{Read as _, Write as _};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("otlp.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = format!("unix:{}", path.display());
    let (receiving, carried, joining) = receiving(&listen);
    let body = request("chatcmpl-0123456789").encode_to_vec();
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(carried.0.lock().unwrap().len(), 1);
    // A second one does not take it from the living.
    let second = Receiving::start(&Config { listen, forward: false }, Taking::new(joining.engines(), None));
    assert!(matches!(second, Err(ReceiveError::Bind { .. })));
    drop(receiving);
    assert!(!path.exists());
}

#[test]
fn only_what_nobody_else_reaches_is_a_place() {
    let place = |listen: &str| Config { listen: listen.into(), forward: false }.place();
    assert_eq!(place("localhost:4317"), Ok(Place::Port("127.0.0.1:4317".parse().unwrap())));
    assert_eq!(place("[::1]:4317"), Ok(Place::Port("[::1]:4317".parse().unwrap())));
    assert_eq!(place("unix:/run/x.sock"), Ok(Place::Socket("/run/x.sock".into())));
    for bad in ["0.0.0.0:4317", "10.0.0.1:4317", "4317", "", "unix:", "unix:x"] {
        assert!(place(bad).is_err(), "{bad}");
    }
}
