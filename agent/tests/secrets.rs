//! Planted secrets appear in no output: a capture whose every text and credential is one is measured, and every exporter's and
//! view's bytes, and the log at its most talkative, are searched, in plain, hexadecimal, percent-encoded and base64 form (invariant 6).
//! Tenants are named while that is done, by what stands in the same credentials: their hashes appear everywhere.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states its expectations so")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokengauge::agent::Running;
use tokengauge::export::jsonl::file::JsonFile;
use tokengauge::export::otlp::{Config, Otlp};
use tokengauge::export::prometheus::Endpoint;
use tokengauge::slo::live::{self, Live};
use tokengauge::tap::pcap::Share;
use tokengauge::{run, sources, tenant, testing, view};
use tokengauge_core::stream::Timestamp;
use tokengauge_core::tcp::build::{Conversation, PcapWriter, Who};

/// Where each stands says its name.
const SECRETS: [&str; 13] = [
    "sk-bearer-0f1e2d",
    "sk-apikey-3c4b5a",
    "key-in-query-9988",
    "cookie-7766554433",
    "password-in-target",
    "prompt-zebra-quilt",
    "system-violet-anchor",
    "answer-maple-comet",
    "thought-copper-tide",
    "tool-argument-velvet",
    "error-message-ember",
    "tenant-granite-fox",
    // The key of the tenants' hashes.
    "key-of-tenants-61728394",
];

/// Whose requests are: the first has a field of its own, the others their API key.
const TENANT: &str = SECRETS[11];

fn request(path: &str, body: &str, more: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: api.openai.com\r\n{more}Authorization: Bearer {}\r\nx-api-key: {}\r\nCookie: s={}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        SECRETS[0],
        SECRETS[1],
        SECRETS[3],
        body.len()
    )
}

fn response(kind: &str, body: &str) -> String {
    format!("HTTP/1.1 {kind}\r\nSet-Cookie: s={}\r\nContent-Length: {}\r\n\r\n{body}", SECRETS[3], body.len())
}

/// A stream, a whole answer, an HTTP error, an error in a stream whose type is a message, and something that is none of ours.
fn capture() -> Vec<u8> {
    let [_, _, query, _, password, prompt, system, answer, thought, tool, error, ..] = SECRETS;
    let body = format!(
        r#"{{"model":"m-1","stream":true,"user":"{prompt}","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{prompt}"}}]}}"#
    );
    let chunk = |delta: &str| format!("data: {{\"id\":\"c-1\",\"model\":\"m-1\",\"choices\":[{{\"index\":0,\"delta\":{{{delta}}}}}]}}\n\n");
    let stream = [
        chunk(&format!(r#""reasoning_content":"{thought}""#)),
        chunk(&format!(r#""content":"{answer}""#)),
        chunk(&format!(r#""content":"{answer}""#)),
        chunk(&format!(r#""tool_calls":[{{"index":0,"function":{{"name":"f","arguments":"{tool}"}}}}]"#)),
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n".into(),
    ]
    .concat();
    let whole = format!(
        r#"{{"id":"c-2","model":"m-1","choices":[{{"message":{{"content":"{answer}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#
    );
    let refused = format!(r#"{{"error":{{"message":"{error}","type":"{error} in words","code":null}}}}"#);
    let broken = format!("data: {{\"error\":{{\"message\":\"{error}\",\"type\":\"{error} in words\"}}}}\n\ndata: {{\"cut {answer}\n\n");
    let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
    let mut talk = Conversation::new(address(40_000), address(80), Timestamp::from_unix_nanos(1_700_000_000_000_000_000));
    let chat = format!("http://user:{password}@api.openai.com/v1/chat/completions?key={query}");
    for (path, body, answer) in [
        (chat.as_str(), body.as_str(), response("200 OK\r\nContent-Type: text/event-stream", &stream)),
        ("/v1/chat/completions", &body, response("200 OK\r\nContent-Type: application/json", &whole)),
        ("/v1/chat/completions", &body, response("400 Bad\r\nContent-Type: application/json", &refused)),
        ("/v1/chat/completions", &body, response("200 OK\r\nContent-Type: text/event-stream", &broken)),
        ("/elsewhere", prompt, response("200 OK", answer)),
    ] {
        let more = if path.starts_with("http:") { format!("X-Tenant-Id: {TENANT}\r\n") } else { String::new() };
        talk = talk.say(Duration::from_millis(5), Who::Client, request(path, body, &more));
        talk = talk.say(Duration::from_millis(50), Who::Server, answer);
    }
    let mut file = PcapWriter::new(1);
    file.packets(&talk.packets());
    file.finish()
}

/// An OTLP receiver that keeps every byte.
fn receiver() -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, kept) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let all = Arc::clone(&kept);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let all = Arc::clone(&all);
            std::thread::spawn(move || keep(&stream.unwrap(), &all));
        }
    });
    (address, kept)
}

fn keep(stream: &TcpStream, all: &Mutex<Vec<u8>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            all.lock().unwrap().extend_from_slice(line.as_bytes());
            match line.trim().to_lowercase().split_once(':') {
                Some(("content-length", n)) => length = n.trim().parse().unwrap(),
                None if line.trim().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        all.lock().unwrap().extend_from_slice(&body);
        let mut out = stream;
        out.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[test]
fn no_output_shows_a_planted_secret() {
    let dir = tempfile::tempdir().unwrap();
    let (pcap, jsonl) = (dir.path().join("x.pcap"), dir.path().join("x.jsonl"));
    let bytes = capture();
    for secret in &SECRETS[..12] {
        assert!(bytes.windows(secret.len()).any(|w| w == secret.as_bytes()), "the capture lacks {secret}");
    }
    std::fs::write(&pcap, bytes).unwrap();
    let (address, received) = receiver();
    let config = Config { endpoint: Some(format!("http://{address}")), ..Config::default() };
    let none = |_: &str| None;
    let log = Log::default();
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).with_writer(log.clone()).init();
    let (key, slos) = (dir.path().join("key"), dir.path().join("slo.yaml"));
    std::fs::write(&key, format!("{}\n", SECRETS[12])).unwrap();
    std::fs::write(&slos, "slos: {service: s, objectives: [{name: each, goal: availability >= 99%, groupBy: [tenant]}]}\n").unwrap();
    let (tenants, _) = tenant::open(&["x-tenant-id", "authorization"].map(str::to_owned), &key).unwrap();
    let hashes = [TENANT, SECRETS[0]].map(|name| tenants.tenant(b"x-tenant-id", name.as_bytes()).unwrap());
    let journal = dir.path().join("slo.journal");
    let live = Live::start(&live::Config { files: vec![slos], config_maps: None, journal: journal.clone() }, Arc::default());
    let metrics = tokengauge::export::metrics::Metrics::new(&Default::default(), Default::default(), &none).unwrap();
    metrics.by_tenant();
    let said = Arc::new(Mutex::new(String::new()));
    let lines = Arc::clone(&said);
    let running = Running::builder()
        .source(sources::file(&pcap, Share::ALL).unwrap())
        .exporter(Box::new(JsonFile::open(&jsonl, None, Arc::default()).unwrap()))
        .exporter(Box::new(live))
        .tenants(tenants)
        .exporter(Box::new(Otlp::new(&config, &metrics, &|_: &str| None).unwrap().unwrap()))
        .on_inference(move |i| *lines.lock().unwrap() += &format!("{}\n{i:?}\n", run::line(i)))
        .start()
        .unwrap();
    let ended = running.wait(Duration::from_secs(30)).unwrap();
    assert_eq!((ended.report.inferences, ended.report.non_llm_exchanges), (4, 1), "{:?}", ended.report);
    let records = std::fs::read(&jsonl).unwrap();
    let received = received.lock().unwrap().clone();
    for (name, what) in [("records", &records), ("otlp", &received)] {
        assert!(what.windows(3).any(|w| w == b"m-1"), "{name} lacks what it should show");
    }
    let said = said.lock().unwrap().clone();
    let table = view::table::render(&running.snapshot());
    let pages = ["text/plain", "application/openmetrics-text", "application/vnd.google.protobuf"].map(|accept| {
        let mut page = Vec::new();
        Endpoint::new(&metrics, Vec::new()).render(Endpoint::negotiate(accept), &mut page).unwrap();
        page
    });
    let status = std::fs::read(live::status_path(&journal)).unwrap();
    for hash in hashes {
        let shows = |what: &[u8]| what.windows(16).any(|w| w == hash.as_str().as_bytes());
        for (name, what) in [("records", &records), ("otlp", &received), ("status", &status)] {
            assert!(shows(what), "{name} lacks the tenant {hash:?}");
        }
        assert!(pages.iter().all(|page| shows(page)), "a page lacks the tenant {hash:?}");
    }
    let log = log.0.lock().unwrap().clone();
    assert!(!log.is_empty(), "the log was not on");
    let outputs: [(&str, &[u8]); 9] = [
        ("log", &log),
        ("pages", &pages.concat()),
        ("status", &status),
        ("journal", &std::fs::read(&journal).unwrap()),
        ("records", &records),
        ("otlp", &received),
        ("lines and records in memory", said.as_bytes()),
        ("table", table.as_bytes()),
        ("report", &serde_json::to_vec(&ended.report).unwrap()),
    ];
    testing::assert_no_secrets(&outputs, &SECRETS);
}
