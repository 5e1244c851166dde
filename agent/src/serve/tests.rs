//! The listener over real sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::*;

fn shown() -> Shown {
    let health = Arc::new(Health::default());
    health.part("tap", vec![]).beat();
    let metrics: Metrics = Arc::new(|accept, to| {
        write!(to, "# wanted {}\n{}", accept.unwrap_or("-"), "x 1\n".repeat(1000))?;
        Ok("text/plain; version=0.0.4")
    });
    Shown { health, metrics: Some(metrics) }
}

fn start(config: &Config) -> Server {
    let config = Config { listen: "127.0.0.1:0".into(), ..config.clone() };
    Server::start(&config, shown()).unwrap()
}

fn ask(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A server that closes on unread bytes resets; what it said before was read.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(server: &Server, path: &str, headers: &str) -> String {
    ask(server, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n"))
}

#[test]
fn pages_and_their_absence() {
    let server = start(&Config::default());
    let healthy = get(&server, "/healthz", "");
    assert!(healthy.starts_with("HTTP/1.1 200") && healthy.ends_with("[+] tap: at work\nalive\n"), "{healthy}");
    assert!(get(&server, "/readyz", "").ends_with("\nready\n"));
    let metrics = get(&server, "/metrics", "Accept: application/openmetrics-text\r\n");
    assert!(metrics.contains("version=0.0.4") && metrics.contains("# wanted application/openmetrics-text\nx 1\n"), "{}", &metrics[..300]);
    assert!(get(&server, "/", "").contains("/metrics\n"));
    assert!(get(&server, "/nothing", "").starts_with("HTTP/1.1 404"));
    let post = ask(&server, "POST /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi");
    assert!(post.starts_with("HTTP/1.1 405") && post.to_lowercase().contains("allow: get, head"), "{post}");
    let head = ask(&server, "HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(get(&server, "/debug/pprof/profile?seconds=1", "").starts_with("HTTP/1.1 404"), "off unless it is asked for");
    let server = start(&Config { profile: true, ..Config::default() });
    assert!(get(&server, "/debug/pprof/profile?seconds=0", "").starts_with("HTTP/1.1 400"));
    let server = start(&Config { metrics: false, ..Config::default() });
    assert!(get(&server, "/metrics", "").starts_with("HTTP/1.1 404"));
}

#[test]
fn a_stuck_tap_shows() {
    let shown = shown();
    shown.health.part("tap that starts", vec![]);
    let health = Arc::clone(&shown.health);
    let server = Server::start(&Config { listen: "127.0.0.1:0".into(), ..Config::default() }, shown).unwrap();
    let not_yet = get(&server, "/readyz", "");
    assert!(not_yet.starts_with("HTTP/1.1 503") && not_yet.contains("[-] tap that starts: starting"), "{not_yet}");
    assert!(get(&server, "/healthz", "").starts_with("HTTP/1.1 200"));
    health.part("failed", vec![]).end(Some("no such device".into()));
    assert!(get(&server, "/readyz", "").contains("[-] failed: failed: no such device"));
}

#[test]
fn gzip_where_it_is_taken() {
    let server = start(&Config::default());
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    assert!(String::from_utf8_lossy(&answer[..end]).to_lowercase().contains("content-encoding: gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&answer[end..]).read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 1001);
}

#[test]
fn metrics_want_a_token_and_health_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let server = start(&Config { bearer_token_file: Some(file), ..Config::default() });
    let refused = get(&server, "/metrics", "");
    assert!(refused.starts_with("HTTP/1.1 401") && refused.to_lowercase().contains("www-authenticate: bearer"), "{refused}");
    assert!(get(&server, "/metrics", "Authorization: Bearer nope\r\n").starts_with("HTTP/1.1 401"));
    assert!(get(&server, "/metrics", "Authorization: Bearer s3cret\r\n").starts_with("HTTP/1.1 200"));
    assert!(get(&server, "/readyz", "").starts_with("HTTP/1.1 200"));
    assert_eq!(server.counters().unauthorized.load(Ordering::Relaxed), 2);
}

#[test]
fn too_much_is_refused_and_counted() {
    let server = start(&Config::default());
    // Heads that are too large, and what is no HTTP.
    let large = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    assert!(ask(&server, &large).starts_with("HTTP/1.1 431"));
    let many = (0..200).map(|n| format!("X-{n}: x\r\n")).collect::<String>();
    assert!(ask(&server, &format!("GET / HTTP/1.1\r\nHost: x\r\n{many}\r\n")).starts_with("HTTP/1.1 431"));
    assert!(ask(&server, "\x16\x03\x01 no HTTP\r\n\r\n").starts_with("HTTP/1.1 400"));
    // Connections that say nothing hold their places; the next one finds none, and those before are not disturbed.
    let idle: Vec<_> = (0..64).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let counters = server.counters();
    let mut last = TcpStream::connect(server.address()).unwrap();
    last.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(counters.refused.load(Ordering::Relaxed), 1);
    let mut one = &idle[5];
    one.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    one.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("alive"), "{answer}");
    drop(idle);
    assert!(counters.broken.load(Ordering::Relaxed) >= 3);
}

#[test]
fn a_metrics_page_that_hangs_does_not_hide_health() {
    let release = Arc::new(std::sync::Barrier::new(2));
    let wait = Arc::clone(&release);
    let slow: Metrics = Arc::new(move |_, to| {
        wait.wait();
        to.write_all(b"late\n").map(|()| "text/plain")
    });
    let config = Config { listen: "127.0.0.1:0".into(), ..Config::default() };
    let server = Server::start(&config, Shown { metrics: Some(slow), ..shown() }).unwrap();
    let mut scrape = TcpStream::connect(server.address()).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    assert!(get(&server, "/healthz", "").contains("alive"));
    release.wait();
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("late\n"));
}

#[test]
fn settings_that_are_wrong_say_so() {
    let of = |listen: &str| Config { listen: listen.into(), ..Config::default() }.address();
    for (text, want) in [("9464", "127.0.0.1:9464"), ("localhost:1", "127.0.0.1:1"), ("0.0.0.0:80", "0.0.0.0:80"), ("[::1]:5", "[::1]:5")] {
        assert_eq!(of(text).unwrap().to_string(), want);
    }
    for text in ["", "x", ":9464", "127.0.0.1", "70000", "example.org:80"] {
        assert!(of(text).unwrap_err().starts_with("listen: `"), "{text}");
    }
    let server = start(&Config::default());
    let taken = Config { listen: server.address().to_string(), ..Config::default() };
    let error = Server::start(&taken, shown()).err().unwrap().to_string();
    assert!(error.starts_with("http.listen: 127.0.0.1:") && error.contains("in use"), "{error}");
    let nowhere = Tls { certificate: "/nonexistent/tls.crt".into(), key: "/nonexistent/tls.key".into() };
    let config = Config { listen: "127.0.0.1:0".into(), tls: Some(nowhere), ..Config::default() };
    let error = Server::start(&config, shown()).err().unwrap().to_string();
    assert!(error.starts_with("http.tls.certificate: /nonexistent/tls.crt: "), "{error}");
}

/// Writes a certificate for `localhost`, signed by itself, with the machine's openssl; `None` where there is none.
fn certificate(dir: &std::path::Path, serial: &str) -> Tls {
    let path = |name: &str| dir.join(name);
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-set_serial", serial])
        .arg("-keyout")
        .arg(path("tls.key"))
        .arg("-out")
        .arg(path("tls.crt"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Tls { certificate: path("tls.crt"), key: path("tls.key") }
}

fn curl(server: &Server, authority: &std::path::Path, path: &str) -> std::process::Output {
    let port = server.address().port();
    std::process::Command::new("curl")
        .args(["-sS", "--max-time", "10", "--resolve", &format!("localhost:{port}:127.0.0.1"), "--cacert"])
        .arg(authority)
        .arg(format!("https://localhost:{port}{path}"))
        .output()
        .unwrap()
}

#[test]
fn https_with_a_certificate_that_is_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let tls = certificate(dir.path(), "1");
    let server = start(&Config { tls: Some(tls.clone()), ..Config::default() });
    let said = curl(&server, &tls.certificate, "/healthz");
    assert!(String::from_utf8_lossy(&said.stdout).ends_with("alive\n"), "{}", String::from_utf8_lossy(&said.stderr));
    // No HTTP without TLS.
    assert!(!get(&server, "/healthz", "").contains("200"));
    // Half written, then whole: another key, so that the old certificate would be refused.
    let old = std::fs::read(&tls.certificate).unwrap();
    std::fs::write(&tls.certificate, "").unwrap();
    std::fs::write(dir.path().join("old.crt"), old).unwrap();
    let said = curl(&server, &dir.path().join("old.crt"), "/healthz");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    certificate(dir.path(), "2");
    let said = curl(&server, &tls.certificate, "/healthz");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert!(!curl(&server, &dir.path().join("old.crt"), "/healthz").status.success());
}
