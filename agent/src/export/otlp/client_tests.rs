use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;
use opentelemetry_proto::tonic::metrics::v1::{Histogram, HistogramDataPoint, Metric, ResourceMetrics, ScopeMetrics, metric};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::*;

fn kind(failure: &Failure) -> (&'static str, Option<u64>) {
    match failure {
        Failure::Again { after, .. } => ("again", after.map(|d| d.as_secs())),
        Failure::Refused { .. } => ("refused", None),
    }
}

#[test]
fn every_code_of_grpc_means_what_the_specification_says() {
    for (code, again) in [
        (Code::Cancelled, true),
        (Code::Unknown, false),
        (Code::InvalidArgument, false),
        (Code::DeadlineExceeded, true),
        (Code::NotFound, false),
        (Code::AlreadyExists, false),
        (Code::PermissionDenied, false),
        (Code::ResourceExhausted, false),
        (Code::FailedPrecondition, false),
        (Code::Aborted, true),
        (Code::OutOfRange, true),
        (Code::Unimplemented, false),
        (Code::Internal, false),
        (Code::Unavailable, true),
        (Code::DataLoss, true),
        (Code::Unauthenticated, false),
    ] {
        let failure = of_status("x", &Status::new(code, "words\nof it"));
        assert_eq!(kind(&failure).0 == "again", again, "{code:?}");
        assert!(failure.what().ends_with("words of it"));
    }
    let with_info = |code| {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(7)));
        kind(&of_status("x", &Status::with_error_details(code, "", details)))
    };
    assert_eq!(with_info(Code::ResourceExhausted), ("again", Some(7)));
    assert_eq!(with_info(Code::Unavailable), ("again", Some(7)));
    assert_eq!(with_info(Code::InvalidArgument), ("refused", None));
}

#[test]
fn a_connection_that_breaks_is_tried_again() {
    let status = Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
    assert_eq!(kind(&of_status("x", &status)).0, "again");
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 90);
    let of = |text: &'static str| {
        let headers = http::HeaderMap::from_iter([(http::header::RETRY_AFTER, http::HeaderValue::from_static(text))]);
        retry_after(&headers, now)
    };
    assert_eq!(of("120"), Some(Duration::from_secs(120)));
    assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(90)));
    assert_eq!(of("Sat, 06 Nov 1993 08:49:37 GMT"), Some(Duration::ZERO));
    assert_eq!(of("soon"), None);
    assert_eq!(retry_after(&http::HeaderMap::new(), now), None);
}

#[test]
fn partial_success_in_both_encodings() {
    let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: "too\u{7} old".into() };
    let bytes = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    let want = Reply { rejected: 3, message: "too  old".into() };
    assert_eq!(reply(Signal::Traces, &bytes), want);
    for number in ["3", "\"3\""] {
        let text = format!(r#"{{"partialSuccess": {{"rejectedSpans": {number}, "errorMessage": "too  old"}}}}"#);
        assert_eq!(json_reply(Signal::Traces, text.as_bytes()), want);
    }
    assert_eq!(json_reply(Signal::Metrics, br#"{"partialSuccess": {"rejectedDataPoints": "9"}}"#).rejected, 9);
    for nothing in [&b""[..], b"{}", b"garbage"] {
        assert_eq!((json_reply(Signal::Traces, nothing), reply(Signal::Metrics, &[])), (Reply::default(), Reply::default()));
    }
}

#[test]
fn what_an_http_error_says() {
    let status = RpcStatus { message: "no such tenant".into() }.encode_to_vec();
    assert_eq!(status_message(&status), "no such tenant");
    assert_eq!(status_message(b"bad gateway\r\n"), "bad gateway");
    assert_eq!(json_message(br#"{"code": 3, "message": "no such tenant"}"#), "no such tenant");
    assert_eq!(status_message(&[0xff; 20]), "");
    assert_eq!(status_message("x".repeat(10_000).as_bytes()).len(), SHOWN);
}

#[test]
fn json_is_that_of_otlp() {
    let span = Span { trace_id: vec![0x4b; 16], span_id: vec![0xf0; 8], start_time_unix_nano: 17, name: "chat".into(), ..Span::default() };
    let scope = ScopeSpans { spans: vec![span], ..ScopeSpans::default() };
    let request =
        ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { scope_spans: vec![scope], ..ResourceSpans::default() }] };
    let json: serde_json::Value = serde_json::from_slice(&to_json(Signal::Traces, &request.encode_to_vec()).unwrap()).unwrap();
    let span = &json["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!(span["traceId"], "4b".repeat(16));
    assert_eq!((&span["spanId"], &span["startTimeUnixNano"], &span["name"]), (&"f0".repeat(8).into(), &"17".into(), &"chat".into()));
    let point = HistogramDataPoint { count: 3, ..HistogramDataPoint::default() };
    let data = metric::Data::Histogram(Histogram { data_points: vec![point], ..Histogram::default() });
    let scope = ScopeMetrics { metrics: vec![Metric { data: Some(data), ..Metric::default() }], ..ScopeMetrics::default() };
    let request = ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics { scope_metrics: vec![scope], ..ResourceMetrics::default() }],
    };
    let text = String::from_utf8(to_json(Signal::Metrics, &request.encode_to_vec()).unwrap()).unwrap();
    assert!(text.contains("dataPoints") && !text.contains("null"), "{text}");
    assert!(to_json(Signal::Metrics, &[0xff]).unwrap_err().starts_with("a request is no Protobuf"));
}

#[test]
fn bodies_are_compressed_as_said() {
    use std::io::Read as _;
    let body = Bytes::from(vec![7; 10_000]);
    let (packed, coding) = compressed(Compression::Gzip, body.clone()).unwrap();
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(packed.as_ref()).read_to_end(&mut plain).unwrap();
    assert_eq!((coding, plain.as_slice()), (Some("gzip"), body.as_ref()));
    let (packed, coding) = compressed(Compression::Zstd, body.clone()).unwrap();
    assert_eq!((coding, super::super::parcel::Parcel::packed(packed.to_vec(), 1, 0).plain()), (Some("zstd"), Some(body.clone())));
    assert_eq!(compressed(Compression::None, body.clone()).unwrap(), (body, None));
}
