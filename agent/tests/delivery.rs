//! What becomes of requests when receivers are away, slow, full or wrong: real HTTP and gRPC servers that answer as they are told.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "a test states its expectations so, and is about time")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use tokengauge::export::otlp::carrier::{Carrier as _, Signal};
use tokengauge::export::otlp::delivery::Loss;
use tokengauge::export::otlp::sender::{QueueConfig, Sender};
use tokengauge::export::otlp::{Compression, Config, Protocol};
use tonic_types::{ErrorDetails, StatusExt as _};

// ----------------------------------------------------------------------------------------------------------------- the receivers

/// How a receiver answers.
#[derive(Clone, Debug)]
enum Answer {
    Ok,
    /// A status line's code, and header lines.
    Http(u16, String),
    /// A gRPC code, and seconds of `RetryInfo`.
    Grpc(tonic::Code, Option<u64>),
    /// Takes the request and rejects so many.
    Partial(i64),
    /// Never.
    Hang,
    /// Later.
    Slow(Duration),
    /// 415 to whatever is compressed.
    OnlyPlain,
}

#[derive(Clone)]
struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    answer: Answer,
    /// Start times of the spans that were taken (each test numbers its spans so), in the order in which they came.
    taken: Vec<u64>,
    /// When requests came, taken or not.
    came: Vec<Instant>,
    encodings: Vec<(String, String)>,
}

impl Server {
    fn state(answer: Answer) -> Arc<Mutex<State>> {
        Arc::new(Mutex::new(State { answer, taken: Vec::new(), came: Vec::new(), encodings: Vec::new() }))
    }

    fn http(answer: Answer) -> Self {
        Self::http_at("127.0.0.1:0".parse().unwrap(), answer)
    }

    fn http_at(address: SocketAddr, answer: Answer) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let server = Self { address: listener.local_addr().unwrap(), state: Self::state(answer) };
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream.unwrap()));
            }
        });
        server
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let (mut length, mut encoding, mut kind, mut line) = (0, String::new(), String::new(), String::new());
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok()?;
                let Some((name, value)) = line.trim().split_once(':') else { break };
                match name.to_lowercase().as_str() {
                    "content-length" => length = value.trim().parse().unwrap(),
                    "content-encoding" => encoding = value.trim().to_owned(),
                    "content-type" => kind = value.trim().to_owned(),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let body = match encoding.as_str() {
                "gzip" => {
                    let mut plain = Vec::new();
                    flate2::read::GzDecoder::new(body.as_slice()).read_to_end(&mut plain).unwrap();
                    plain
                }
                "zstd" => {
                    let mut plain = Vec::with_capacity(8 << 20);
                    zstd_safe::decompress(&mut plain, &body).unwrap();
                    plain
                }
                _ => body,
            };
            let spans = if kind == "application/json" {
                let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
                let spans = json["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone();
                spans.iter().map(|s| s["startTimeUnixNano"].as_str().unwrap().parse().unwrap()).collect()
            } else {
                numbers(&ExportTraceServiceRequest::decode(body.as_slice()).unwrap())
            };
            let answer = match self.came(&kind, &encoding) {
                Answer::OnlyPlain if encoding.is_empty() => Answer::Ok,
                Answer::OnlyPlain => Answer::Http(415, String::new()),
                other => other,
            };
            let ok = |body: Vec<u8>| [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes(), body].concat();
            let reply = match answer {
                Answer::Ok => ok(Vec::new()),
                Answer::Slow(delay) => {
                    sleep(delay);
                    ok(Vec::new())
                }
                Answer::Partial(n) => ok(partial(n).encode_to_vec()),
                Answer::Http(status, headers) => format!("HTTP/1.1 {status} No\r\n{headers}content-length: 4\r\n\r\nwhy?").into_bytes(),
                Answer::Hang => {
                    sleep(Duration::from_secs(60));
                    return None;
                }
                Answer::Grpc(..) | Answer::OnlyPlain => panic!("not here"),
            };
            if reply.starts_with(b"HTTP/1.1 200") {
                self.state.lock().unwrap().taken.extend(spans);
            }
            (&stream).write_all(&reply).ok()?;
        }
    }

    fn came(&self, kind: &str, encoding: &str) -> Answer {
        let mut state = self.state.lock().unwrap();
        state.came.push(Instant::now());
        state.encodings.push((kind.to_owned(), encoding.to_owned()));
        state.answer.clone()
    }

    fn grpc(answer: Answer) -> Self {
        let (send, address) = std::sync::mpsc::channel();
        let state = Self::state(answer);
        let serving = Self { address: "0.0.0.0:0".parse().unwrap(), state: Arc::clone(&state) };
        std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                send.send(listener.local_addr().unwrap()).unwrap();
                let encodings = [tonic::codec::CompressionEncoding::Gzip, tonic::codec::CompressionEncoding::Zstd];
                let service = encodings.into_iter().fold(TraceServiceServer::new(serving), TraceServiceServer::accept_compressed);
                let incoming = tonic::transport::server::TcpIncoming::from(listener);
                tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
            });
        });
        Self { address: address.recv().unwrap(), state }
    }

    fn answer(&self, answer: Answer) {
        self.state.lock().unwrap().answer = answer;
    }

    fn taken(&self) -> Vec<u64> {
        self.state.lock().unwrap().taken.clone()
    }

    fn came_at(&self) -> Vec<Instant> {
        self.state.lock().unwrap().came.clone()
    }
}

#[tonic::async_trait]
impl TraceService for Server {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let encoding = request.metadata().get("grpc-encoding").map_or("", |v| v.to_str().unwrap()).to_owned();
        let spans = numbers(request.get_ref());
        let reply = match self.came("grpc", &encoding) {
            Answer::Ok => ExportTraceServiceResponse::default(),
            Answer::Partial(n) => partial(n),
            Answer::Slow(delay) => {
                tokio::time::sleep(delay).await;
                ExportTraceServiceResponse::default()
            }
            Answer::Hang => std::future::pending().await,
            Answer::Grpc(code, None) => return Err(tonic::Status::new(code, "why?")),
            Answer::Grpc(code, Some(seconds)) => {
                let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(seconds)));
                return Err(tonic::Status::with_error_details(code, "why?", details));
            }
            Answer::Http(..) | Answer::OnlyPlain => panic!("no HTTP here"),
        };
        self.state.lock().unwrap().taken.extend(spans);
        Ok(tonic::Response::new(reply))
    }
}

fn partial(rejected: i64) -> ExportTraceServiceResponse {
    let partial_success = ExportTracePartialSuccess { rejected_spans: rejected, error_message: "too old".into() };
    ExportTraceServiceResponse { partial_success: Some(partial_success) }
}

fn numbers(request: &ExportTraceServiceRequest) -> Vec<u64> {
    request.resource_spans.iter().flat_map(|r| &r.scope_spans).flat_map(|s| &s.spans).map(|s| s.start_time_unix_nano).collect()
}

// ------------------------------------------------------------------------------------------------------------------- the senders

/// A request with one span for each number.
fn request(numbers: std::ops::Range<u64>) -> (Vec<u8>, u32) {
    let spans: Vec<_> =
        numbers.map(|n| Span { start_time_unix_nano: n, trace_id: vec![1; 16], span_id: vec![2; 8], ..Span::default() }).collect();
    let items = spans.len() as u32;
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    let request = ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }] };
    (request.encode_to_vec(), items)
}

fn config(address: SocketAddr, protocol: Protocol) -> Config {
    Config {
        endpoint: Some(format!("http://{address}")),
        endpoint_wins: true,
        protocol: Some(protocol),
        queue: QueueConfig { retry_max_s: 0.05, recovery_per_s: 1_000.0, ..QueueConfig::default() },
        ..Config::default()
    }
}

fn on_disk(mut config: Config, folder: &Path) -> Config {
    config.queue.directory = Some(folder.to_owned());
    config
}

fn start(config: &Config) -> Sender {
    Sender::start(config, &[Signal::Traces], &|_| None).unwrap()
}

fn send(sender: &Sender, numbers: std::ops::Range<u64>) {
    let (bytes, items) = request(numbers);
    sender.clone().carry(Signal::Traces, bytes, items);
}

fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !until() {
        assert!(Instant::now() < deadline, "{what} did not come");
        sleep(Duration::from_millis(5));
    }
}

fn lost(sender: &Sender, why: Loss) -> u64 {
    sender.delivery().lost(Signal::Traces, why)
}

const END: Duration = Duration::from_secs(4);

// --------------------------------------------------------------------------------------------------------------------- the tests

#[test]
fn every_transport_and_compression_arrives() {
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf, Protocol::HttpJson] {
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let server = if protocol == Protocol::Grpc { Server::grpc(Answer::Ok) } else { Server::http(Answer::Ok) };
            let sender = start(&Config { compression: Some(compression), ..config(server.address, protocol) });
            send(&sender, 0..300);
            assert!(sender.shutdown(END), "{protocol:?} {compression:?}");
            assert_eq!(server.taken(), (0..300).collect::<Vec<_>>(), "{protocol:?} {compression:?}");
            let kind = match protocol {
                Protocol::Grpc => "grpc",
                Protocol::HttpProtobuf => "application/x-protobuf",
                Protocol::HttpJson => "application/json",
            };
            let encoding = if compression == Compression::None { "" } else { compression.name() };
            assert_eq!(server.state.lock().unwrap().encodings, [(kind.to_owned(), encoding.to_owned())]);
            assert_eq!(sender.delivery().figures(Signal::Traces).delivered, 300);
        }
    }
}

#[test]
fn http_statuses_mean_what_the_specification_says() {
    for (status, again) in [
        (400, false),
        (401, false),
        (404, false),
        (413, false),
        (429, true),
        (500, false),
        (501, false),
        (502, true),
        (503, true),
        (504, true),
    ] {
        let server = Server::http(Answer::Http(status, String::new()));
        let sender = start(&config(server.address, Protocol::HttpProtobuf));
        send(&sender, 0..10);
        if again {
            wait("another attempt", || sender.delivery().figures(Signal::Traces).retries >= 2);
            server.answer(Answer::Ok);
            wait("the delivery", || server.taken().len() == 10);
            assert_eq!(lost(&sender, Loss::Refused), 0, "{status}");
        } else {
            wait("the refusal", || lost(&sender, Loss::Refused) == 10);
            let trouble = sender.delivery().figures(Signal::Traces).trouble.unwrap();
            assert!(trouble.contains(&format!("answered {status}: why?")), "{trouble}");
            assert_eq!(server.came_at().len(), 1, "{status}");
        }
        assert!(sender.shutdown(END));
    }
}

#[test]
fn grpc_codes_mean_what_the_specification_says() {
    for (code, info, again) in [
        (tonic::Code::Unavailable, None, true),
        (tonic::Code::Aborted, None, true),
        (tonic::Code::ResourceExhausted, Some(0), true),
        (tonic::Code::ResourceExhausted, None, false),
        (tonic::Code::Unauthenticated, None, false),
        (tonic::Code::Internal, None, false),
    ] {
        let server = Server::grpc(Answer::Grpc(code, info));
        let sender = start(&config(server.address, Protocol::Grpc));
        send(&sender, 0..10);
        if again {
            wait("another attempt", || sender.delivery().figures(Signal::Traces).retries >= 2);
            server.answer(Answer::Ok);
            wait("the delivery", || server.taken().len() == 10);
        } else {
            wait("the refusal", || lost(&sender, Loss::Refused) == 10);
        }
        assert!(sender.shutdown(END));
    }
}

#[test]
fn a_receiver_that_does_not_know_a_compression_gets_everything_without_it() {
    let http = Server::http(Answer::OnlyPlain);
    let sender = start(&Config { compression: Some(Compression::Zstd), ..config(http.address, Protocol::HttpProtobuf) });
    send(&sender, 0..10);
    wait("the delivery", || http.taken().len() == 10);
    send(&sender, 10..20);
    assert!(sender.shutdown(END));
    assert_eq!(http.state.lock().unwrap().encodings.iter().map(|(_, coding)| coding.as_str()).collect::<Vec<_>>(), ["zstd", "", ""]);
    // What is wrong without compression stays wrong.
    http.answer(Answer::Http(415, String::new()));
    let sender = start(&config(http.address, Protocol::HttpProtobuf));
    send(&sender, 0..10);
    wait("the refusal", || lost(&sender, Loss::Refused) == 10);
    assert!(sender.shutdown(END));
}

#[test]
fn a_receiver_that_says_when_is_left_alone_until_then() {
    for (server, protocol) in [
        (Server::http(Answer::Http(429, "Retry-After: 1\r\n".into())), Protocol::HttpProtobuf),
        (Server::grpc(Answer::Grpc(tonic::Code::Unavailable, Some(1))), Protocol::Grpc),
    ] {
        let sender = start(&config(server.address, protocol));
        send(&sender, 0..1);
        wait("the second attempt", || server.came_at().len() == 2);
        let came = server.came_at();
        assert!(came[1] - came[0] >= Duration::from_millis(990), "{:?}", came[1] - came[0]);
        // Not even for a last attempt at the end.
        let before = server.came_at().len();
        assert!(!sender.shutdown(Duration::from_millis(800)));
        assert_eq!((server.came_at().len(), lost(&sender, Loss::Shutdown)), (before, 1));
    }
}

#[test]
fn redirects_are_refused_and_not_followed() {
    let other = Server::http(Answer::Ok);
    let server = Server::http(Answer::Http(307, format!("Location: http://{}/v1/traces\r\n", other.address)));
    let sender = start(&config(server.address, Protocol::HttpProtobuf));
    send(&sender, 0..3);
    wait("the refusal", || lost(&sender, Loss::Refused) == 3);
    assert!(other.came_at().is_empty() && sender.shutdown(END));
}

#[test]
fn what_is_rejected_in_part_is_counted() {
    for (server, protocol) in
        [(Server::http(Answer::Partial(4)), Protocol::HttpProtobuf), (Server::grpc(Answer::Partial(4)), Protocol::Grpc)]
    {
        let sender = start(&config(server.address, protocol));
        send(&sender, 0..10);
        assert!(sender.shutdown(END));
        assert_eq!((lost(&sender, Loss::Rejected), sender.delivery().figures(Signal::Traces).delivered), (4, 6));
    }
}

/// A port where nobody listens.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn an_outage_waits_on_disk_and_comes_back_complete_and_paced() {
    let (dir, address) = (tempfile::tempdir().unwrap(), nowhere());
    let mut config = on_disk(config(address, Protocol::HttpProtobuf), dir.path());
    config.queue.recovery_per_s = 100.0;
    let sender = start(&config);
    (0..200).for_each(|n| send(&sender, n * 10..n * 10 + 10));
    wait("the disk", || sender.delivery().figures(Signal::Traces).disk_items == 2_000);
    assert!(sender.flush(Duration::ZERO), "what is on disk waits in memory no longer");
    let server = Server::http_at(address, Answer::Ok);
    wait("everything", || server.taken().len() >= 2_000);
    let mut taken = server.taken();
    taken.sort_unstable();
    assert_eq!(taken, (0..2_000).collect::<Vec<_>>(), "once each");
    let came = server.came_at();
    let took = *came.last().unwrap() - came[0];
    assert!(took >= Duration::from_millis(1_800), "200 requests at 100 a second came within {took:?}");
    wait("an empty disk", || sender.delivery().figures(Signal::Traces).disk_items == 0);
    assert!(sender.shutdown(END));
    assert_eq!(sender.delivery().all_lost(Signal::Traces), 0);
}

#[test]
fn without_a_disk_memory_is_bounded_and_the_oldest_goes() {
    let address = nowhere();
    let mut config = config(address, Protocol::HttpProtobuf);
    config.queue.memory_bytes = 64 << 10;
    let sender = start(&config);
    // 20,000 spans of 50 bytes are a megabyte; packed they are less.
    for n in 0..2_000 {
        send(&sender, n * 10..n * 10 + 10);
        assert!(sender.delivery().figures(Signal::Traces).memory_bytes <= 72 << 10);
        if n % 50 == 0 {
            sleep(Duration::from_millis(2));
        }
    }
    wait("the first failure", || sender.delivery().figures(Signal::Traces).trouble.is_some());
    let server = Server::http_at(address, Answer::Ok);
    wait("the rest", || sender.delivery().figures(Signal::Traces).memory_items == 0);
    let (mut taken, dropped) = (server.taken(), lost(&sender, Loss::QueueFull));
    taken.sort_unstable();
    assert_eq!((taken.len() as u64 + dropped, taken.last()), (20_000, Some(&19_999)));
    assert!(taken.windows(2).all(|w| w[1] == w[0] + 1) && taken.len() > 1_000 && dropped > 0, "{} {dropped}", taken.len());
    assert!(sender.shutdown(END));
}

#[test]
fn readings_of_cumulative_metrics_are_thinned_and_deltas_are_not() {
    for (cumulative, kept) in [(true, 2), (false, 20)] {
        let (dir, address) = (tempfile::tempdir().unwrap(), nowhere());
        let config = on_disk(config(address, Protocol::HttpProtobuf), dir.path());
        let mut sender = Sender::start(&config, &[Signal::Metrics], &|_| None).unwrap();
        for n in 0..20 {
            if cumulative {
                sender.reading(Signal::Metrics);
            }
            // Two requests per reading. (What they hold is of no interest to the sender.)
            for part in 0..2 {
                let (bytes, _) = request(n * 2 + part..n * 2 + part + 1);
                sender.carry(Signal::Metrics, bytes, 1);
            }
            sleep(Duration::from_millis(5));
        }
        wait("the first failure", || sender.delivery().figures(Signal::Metrics).trouble.is_some());
        sleep(Duration::from_millis(100));
        let server = Server::http_at(address, Answer::Ok);
        wait("the newest", || server.taken().last() == Some(&39));
        let taken = server.taken();
        assert!(taken.windows(2).all(|w| w[0] < w[1]), "in order: {taken:?}");
        let superseded = sender.delivery().lost(Signal::Metrics, Loss::Superseded);
        assert_eq!((taken.len() as u64, taken.len() as u64 + superseded), (kept * 2, 40));
        assert_eq!(sender.delivery().all_lost(Signal::Metrics), 0);
        assert!(sender.shutdown(END));
    }
}

#[test]
fn a_receiver_that_hangs_delays_no_end_and_what_it_held_is_on_disk_for_the_next_start() {
    for (server, protocol) in [(Server::http(Answer::Hang), Protocol::HttpProtobuf), (Server::grpc(Answer::Hang), Protocol::Grpc)] {
        let dir = tempfile::tempdir().unwrap();
        let config = on_disk(config(server.address, protocol), dir.path());
        let sender = start(&config);
        (0..20).for_each(|n| send(&sender, n * 10..n * 10 + 10));
        wait("requests under way", || server.came_at().len() >= 2);
        let began = Instant::now();
        assert!(sender.shutdown(Duration::from_millis(1_500)), "{:?}", sender.delivery());
        assert!(began.elapsed() < Duration::from_millis(1_500));
        let figures = sender.delivery().figures(Signal::Traces);
        assert_eq!((figures.disk_items, figures.memory_items, sender.delivery().all_lost(Signal::Traces)), (200, 0, 0));
        drop(sender);
        server.answer(Answer::Ok);
        let sender = start(&config);
        wait("all of the last life", || server.taken().len() == 200);
        assert!(sender.shutdown(END));
    }
}

#[test]
fn without_a_disk_the_end_counts_and_says_what_is_lost() {
    let sender = start(&config(nowhere(), Protocol::Grpc));
    send(&sender, 0..10);
    wait("the first failure", || sender.delivery().figures(Signal::Traces).trouble.is_some());
    assert!(!sender.shutdown(Duration::from_millis(700)));
    assert_eq!(lost(&sender, Loss::Shutdown), 10);
    let said = sender.delivery().error("shutdown").to_string();
    assert!(said.contains("10 spans were lost") && said.contains("refused"), "{said}");
}

#[test]
fn a_slow_receiver_gets_everything_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::http(Answer::Slow(Duration::from_millis(20)));
    let mut config = on_disk(config(server.address, Protocol::HttpProtobuf), dir.path());
    config.queue.memory_bytes = 64 << 10;
    let sender = start(&config);
    for n in 0..200 {
        send(&sender, n * 100..n * 100 + 100);
        sleep(Duration::from_millis(1));
        assert!(sender.delivery().figures(Signal::Traces).memory_bytes < 128 << 10);
    }
    wait("everything", || server.taken().len() >= 20_000);
    let mut taken = server.taken();
    taken.sort_unstable();
    assert_eq!((taken, sender.delivery().all_lost(Signal::Traces)), ((0..20_000).collect::<Vec<_>>(), 0));
    assert!(sender.shutdown(END));
}

#[test]
fn an_attempt_that_gets_no_answer_in_time_is_repeated_on_a_new_connection() {
    for (server, protocol) in [(Server::http(Answer::Hang), Protocol::HttpProtobuf), (Server::grpc(Answer::Hang), Protocol::Grpc)] {
        let sender = start(&Config { timeout_s: Some(0.2), ..config(server.address, protocol) });
        send(&sender, 0..5);
        wait("another attempt", || server.came_at().len() >= 2);
        server.answer(Answer::Ok);
        wait("the delivery", || server.taken().len() >= 5);
        assert!(sender.shutdown(END));
        assert_eq!(sender.delivery().all_lost(Signal::Traces), 0);
    }
}
