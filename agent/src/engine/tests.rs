//! A server of a few lines that says what it is told to, and what is made of it.
use super::*;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::Instant;
use tokengauge_core::inference::{Usage, Vantage};

/// Answers each connection with what is in the mutex, and counts.
struct Scripted {
    at: SocketAddr,
    answer: Arc<Mutex<Vec<u8>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let (answer, asked) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (to_send, heard) = (Arc::clone(&answer), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                    head.push(byte[0]);
                }
                heard.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
                let bytes = to_send.lock().unwrap().clone();
                if bytes == b"nothing" {
                    // Says nothing and holds the connection.
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_secs(5));
                        drop(stream);
                    });
                    continue;
                }
                let _ = stream.write_all(&bytes);
            }
        });
        Self { at, answer, asked }
    }

    fn says(&self, head: &str, body: &[u8]) {
        *self.answer.lock().unwrap() = [format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes(), body].concat();
    }

    fn tokens(&self, n: u32) {
        self.says("200 OK", format!("llamacpp:tokens_predicted_total {n}\nllamacpp:requests_processing 1\n").as_bytes());
    }
}

fn config(at: SocketAddr) -> Config {
    let endpoint = Endpoint { url: format!("http://{at}"), kind: None, bearer_token_file: None };
    Config { discover: false, interval_s: 0.1, timeout_s: 0.5, endpoints: vec![endpoint] }
}

/// All series as text, without the prefix and the address.
fn shown(engines: &Engines) -> Vec<String> {
    let mut out = Vec::new();
    engines.each(&mut |metric, attributes, figure| {
        let labels: Vec<_> = attributes.iter().filter(|(n, _)| !n.starts_with("server.")).map(|(_, v)| *v).collect();
        let value = match figure {
            Figure::Number(n) => n.to_string(),
            Figure::Histogram(h) => format!("{} in {:?}", h.count(), h.counts),
        };
        out.push(format!("{} {} = {value}", metric.name.splitn(3, '.').last().unwrap(), labels.join(",")));
    });
    out
}

/// Waits until the series are such.
fn until(engines: &Engines, what: &str, holds: impl Fn(&[String]) -> bool) -> Vec<String> {
    #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let now = shown(engines);
        if holds(&now) {
            return now;
        }
        #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
        let late = Instant::now() > end;
        assert!(!late, "{what} never came: {now:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn process(pid: u32) -> tokengauge_core::stream::Process {
    tokengauge_core::stream::Process { pid, command: "client".into(), container: None }
}

fn has(all: &[String], line: &str) -> bool {
    all.iter().any(|l| l == line)
}

#[test]
fn a_server_is_read_dies_and_comes_back() {
    let server = Scripted::start();
    server.tokens(100);
    let scraping = Scraping::start(&config(server.at)).unwrap();
    let engines = scraping.engines();
    let now = until(&engines, "the first reading", |all| has(all, "up llama.cpp = 1"));
    assert!(has(&now, "generation_tokens llama.cpp = 0") && has(&now, "requests.running llama.cpp = 1"), "{now:?}");
    let head = server.asked.lock().unwrap()[0].clone();
    assert!(head.starts_with("GET /metrics HTTP/1.1\r\n") && head.to_lowercase().contains("accept: text/plain"), "{head}");
    server.tokens(130);
    until(&engines, "30 tokens", |all| has(all, "generation_tokens llama.cpp = 30"));
    // Gone: its levels end, what it counted stays.
    server.says("503 Service Unavailable", b"");
    let now = until(&engines, "the failure", |all| has(all, "up llama.cpp = 0"));
    assert!(has(&now, "generation_tokens llama.cpp = 30") && !now.iter().any(|l| l.starts_with("requests.running")), "{now:?}");
    // Back, and counting from 0.
    server.tokens(7);
    until(&engines, "7 more", |all| has(all, "generation_tokens llama.cpp = 37"));
    // No further round begins once it is dropped.
    drop(scraping);
    std::thread::sleep(Duration::from_millis(300));
    let asked = server.asked.lock().unwrap().len();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(server.asked.lock().unwrap().len(), asked);
}

#[test]
fn whatever_a_server_says_has_a_name() {
    let server = Scripted::start();
    server.tokens(1);
    let scraping = Scraping::start(&config(server.at)).unwrap();
    let engines = scraping.engines();
    until(&engines, "the first reading", |all| has(all, "up llama.cpp = 1"));
    let large = [b"#".repeat(1_023), b"\n".to_vec()].concat().repeat(1_025);
    for (head, body, result) in [
        ("302 Found\r\nLocation: /elsewhere", b"".as_slice(), "status"),
        ("501 Not Implemented", b"{\"error\":{}}", "status"),
        ("200 OK", b"<html>hello</html>", "no_figures"),
        ("200 OK", b"up 1\n", "no_figures"),
        ("200 OK\r\nContent-Length: 999", b"llamacpp:tokens_predicted_total 9\n", "cut_short"),
        ("200 OK\r\nContent-Type: application/openmetrics-text", b"llamacpp:tokens_predicted_total 9\n", "cut_short"),
        ("200 OK\r\nContent-Length: 99999999", b"", "too_large"),
        ("200 OK", &large, "too_large"),
    ] {
        server.says(head, body);
        let line = format!("scrapes llama.cpp,{result} = ");
        let count = |all: &[String]| all.iter().find_map(|l| l.strip_prefix(&line)?.parse::<u32>().ok()).unwrap_or_default();
        let before = count(&shown(&engines));
        until(&engines, result, |all| has(all, "up llama.cpp = 0") && count(all) > before);
        server.tokens(1);
        until(&engines, "the return", |all| has(all, "up llama.cpp = 1"));
    }
    *server.answer.lock().unwrap() = b"nothing".to_vec();
    until(&engines, "the time-out", |all| all.iter().any(|l| l.starts_with("scrapes llama.cpp,timeout = ")));
    // Bad lines are counted, good ones beside them are figures.
    server.says("200 OK", b"llamacpp:tokens_predicted_total 41\nnot a line\nllamacpp:requests_processing two\n");
    let now = until(&engines, "bad lines", |all| has(all, "up llama.cpp = 1") && has(all, "generation_tokens llama.cpp = 40"));
    assert!(now.iter().any(|l| l.starts_with("bad_lines llama.cpp = ") && !l.ends_with("= 0")), "{now:?}");
    assert!(server.asked.lock().unwrap().iter().all(|head| !head.contains("elsewhere")));
}

#[test]
fn nobody_there_and_no_token() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let scraping = Scraping::start(&config(free)).unwrap();
    until(&scraping.engines(), "the refusal", |all| has(all, "up  = 0") && all.iter().any(|l| l.starts_with("scrapes connect = ")));
    let (server, folder) = (Scripted::start(), tempfile::tempdir().unwrap());
    server.tokens(1);
    let path = folder.path().join("token");
    let mut config = config(server.at);
    config.endpoints[0].bearer_token_file = Some(path.clone());
    let scraping = Scraping::start(&config).unwrap();
    until(&scraping.engines(), "the missing token", |all| all.iter().any(|l| l.starts_with("scrapes token = ")));
    assert!(server.asked.lock().unwrap().is_empty());
    std::fs::write(path, "s3cret\n").unwrap();
    until(&scraping.engines(), "the token", |all| has(all, "up llama.cpp = 1"));
    assert!(server.asked.lock().unwrap()[0].to_lowercase().contains("authorization: bearer s3cret\r\n"));
}

#[test]
fn the_wire_stands_beside_it() {
    let server = Scripted::start();
    server.tokens(1_000);
    let scraping = Scraping::start(&config(server.at)).unwrap();
    let engines = scraping.engines();
    until(&engines, "the first reading", |all| has(all, "up llama.cpp = 1"));
    let mut wire = OnWire::new(&engines);
    let mut inference = crate::testing::inference();
    inference.usage = Some(Usage { output: Some(60), ..Usage::default() });
    wire.inference(&inference); // another server
    (inference.server, inference.vantage) = (Some(server.at), Vantage::Server);
    wire.inference(&inference);
    server.tokens(1_080);
    let now = until(&engines, "the tokens", |all| has(all, "generation_tokens llama.cpp = 80"));
    assert!(has(&now, "wire.output_tokens llama.cpp,server,pcap = 60"), "{now:?}");
    assert!(has(&now, "wire.token_coverage llama.cpp,server = 0.75"), "{now:?}");
    assert!(!now.iter().any(|l| l.contains("time_to_first_token_excess")), "llama.cpp tells no TTFT: {now:?}");
    // A process of another network namespace has another loopback; one of ours has this one.
    inference.process = Some(process(std::process::id()));
    wire.inference(&inference);
    assert!(has(&shown(&engines), "wire.output_tokens llama.cpp,server,pcap = 120"));
    inference.process = Some(process(u32::MAX));
    wire.inference(&inference);
    assert!(has(&shown(&engines), "wire.output_tokens llama.cpp,server,pcap = 120"));
}
