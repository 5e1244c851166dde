//! The TLS tap on real processes: CPython (`_ex` calls, asyncio's memory BIOs), curl (plain calls), OpenSSL's own tool.
//!
//! A kernel that refuses BPF skips with the reason printed; `TOKENGAUGE_REQUIRE_BPF=1` turns the skip into a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // the helpers of tests state their expectations too
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokengauge::tap::tls::kernel::Mechanism;
use tokengauge::tap::tls::{TlsOptions, TlsTap, selftest};
use tokengauge::tap::{SharedCounters, Sink, StopFlag, Tap, TapError};
use tokengauge_core::stream::{ConnId, ConnInfo, Direction, End, Endpoints, GapReason, StreamEvent, Timestamp, Verdict};

fn bpf_works() -> bool {
    let test = selftest::self_test();
    if test.mechanism().is_some() {
        return true;
    }
    assert!(std::env::var_os("TOKENGAUGE_REQUIRE_BPF").is_none(), "BPF is required: {:?}", test.mechanisms);
    eprintln!("skipped: no mechanism works here: {:?}", test.mechanisms);
    false
}

#[derive(Debug, Default)]
struct Conn {
    info: Option<ConnInfo>,
    endpoints: Option<Endpoints>,
    bytes: [Vec<u8>; 2],
    gaps: Vec<(Direction, Option<u64>, GapReason, usize)>,
    ends: Vec<End>,
    times: Vec<Timestamp>,
}

impl Conn {
    fn pid(&self) -> u32 {
        self.info.as_ref().unwrap().process.as_ref().unwrap().pid
    }
}

#[derive(Default)]
struct Seen(BTreeMap<ConnId, Conn>);

struct Collect {
    seen: Arc<Mutex<Seen>>,
    mute: bool,
}

impl Sink for Collect {
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
        let mut seen = self.seen.lock().unwrap();
        let conn = seen.0.entry(event.conn()).or_default();
        match event {
            StreamEvent::Open { info, .. } => {
                conn.endpoints = info.endpoints;
                conn.info = Some(info);
            }
            StreamEvent::Identified { endpoints, .. } => conn.endpoints = Some(endpoints),
            StreamEvent::Data { dir, bytes, at, .. } => {
                conn.bytes[dir.index()].extend_from_slice(bytes);
                conn.times.push(at);
                if self.mute {
                    return Verdict::Mute;
                }
            }
            StreamEvent::Gap { dir, len, reason, .. } => {
                let at = conn.bytes[dir.index()].len();
                conn.gaps.push((dir, len, reason, at));
            }
            StreamEvent::Close { end, .. } => conn.ends.push(end),
        }
        Verdict::Watch
    }
    fn tick(&mut self, _: Timestamp) {}
}

struct Running {
    seen: Arc<Mutex<Seen>>,
    stop: StopFlag,
    counters: SharedCounters,
    thread: JoinHandle<Result<(), TapError>>,
}

fn watch(options: TlsOptions, mute: bool) -> Running {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let stop = StopFlag::default();
    let tap = Box::new(TlsTap::new(options));
    let counters = tap.counters().unwrap();
    let mut sink = Collect { seen: Arc::clone(&seen), mute };
    let flag = stop.clone();
    let thread = std::thread::spawn(move || tap.run(&mut sink, &flag));
    // Attached once the first counters are out.
    for _ in 0..500 {
        if counters.lock().unwrap().attach.iter().any(|(result, n)| *result == "attached" && *n > 0) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Running { seen, stop, counters, thread }
}

impl Running {
    fn end(self) -> Seen {
        std::thread::sleep(Duration::from_millis(100));
        self.stop.stop();
        self.thread.join().unwrap().unwrap();
        println!("{:?}", self.counters.lock().unwrap());
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

struct Python {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Python {
    fn start(code: &str, args: &[&str]) -> Self {
        let mut child =
            Command::new("python3").arg("-uc").arg(code).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A certificate for 127.0.0.1, made once per test run.
fn certificate() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let pem = dir.path().join("both.pem");
    let key = dir.path().join("key.pem");
    let cert = dir.path().join("cert.pem");
    let status = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .stderr(Stdio::null())
        .status()
        .expect("openssl");
    assert!(status.success());
    std::fs::write(&pem, [std::fs::read(&key).unwrap(), std::fs::read(&cert).unwrap()].concat()).unwrap();
    (dir, pem)
}

/// Answers each line `N` with N bytes in one write, until the client leaves; serves many clients.
const SERVER: &str = r#"
import ssl, socket, sys, threading
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain(sys.argv[1])
s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])
def serve(k):
    try:
        k = c.wrap_socket(k, server_side=True)
        while True:
            b = b""
            while not b.endswith(b"\n"):
                p = k.recv(65536)
                if not p: k.unwrap(); return
                b += p
            k.sendall(b"x" * int(b.split()[-1]))
    except (OSError, ValueError): pass
while True:
    k, _ = s.accept(); threading.Thread(target=serve, args=(k,), daemon=True).start()
"#;

const CLIENT: &str = r#"
import ssl, socket, sys
c = ssl.create_default_context(cafile=sys.argv[1])
s = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
print(s.getsockname()[1])
k = c.wrap_socket(s, server_hostname="localhost")
for line in sys.stdin:
    n = int(line.split()[-1])
    if n < 0: break
    k.sendall(line.encode())
    while n: n -= len(k.recv(n))
    print("done")
try: k.unwrap()
except OSError: pass
k.close(); del k
print("closed")
sys.stdin.readline()
"#;

fn address(port: &str) -> std::net::SocketAddr {
    format!("127.0.0.1:{port}").parse().unwrap()
}

#[test]
fn python_to_python_byte_for_byte_with_addresses_and_ends() {
    if !bpf_works() {
        return;
    }
    let (_dir, pem) = certificate();
    let mut server = Python::start(SERVER, &[pem.to_str().unwrap()]);
    let port = server.line();
    let running = watch(TlsOptions { scan: Duration::from_millis(200), ..TlsOptions::default() }, false);
    let mut client = Python::start(CLIENT, &[pem.to_str().unwrap(), &port]);
    let client_port = client.line();
    let mut sent = Vec::new();
    let sizes = [1, 255, 16_384, 100_000, 3, 400_000];
    for n in sizes {
        let line = format!("{}{n}", "y".repeat(n % 700) + " ");
        sent.extend_from_slice(line.as_bytes());
        sent.push(b'\n');
        client.say(&line);
        assert_eq!(client.line(), "done");
    }
    client.say("-1");
    assert_eq!(client.line(), "closed");
    let (client_pid, server_pid) = (client.pid(), server.pid());
    let seen = running.end();
    let of = |pid| seen.0.values().filter(|c| c.pid() == pid).collect::<Vec<_>>();
    let (at_client, at_server) = (of(client_pid), of(server_pid));
    assert_eq!((at_client.len(), at_server.len()), (1, 1), "{:?}", seen.0.keys());
    let (at_client, at_server) = (at_client[0], at_server[0]);
    assert!(at_client.bytes[0] == sent && at_server.bytes[1] == sent, "requests differ");
    let total: usize = sizes.iter().sum();
    assert_eq!((at_client.bytes[1].len(), at_server.gaps.len()), (total, 1), "{:?}", at_server.gaps);
    // One write of 400,000 bytes is more than one call may copy: the rest is a located hole.
    let copied = 17 * 16_384;
    assert_eq!(at_server.bytes[0].len(), total - 400_000 + copied);
    assert_eq!(at_server.gaps[0], (Direction::Forward, Some(400_000 - copied as u64), GapReason::TooLong, at_server.bytes[0].len()));
    assert!(at_client.bytes[1].iter().all(|b| *b == b'x') && at_client.gaps.is_empty());
    let (client_end, server_end) = (address(&client_port), address(&port));
    assert_eq!(at_client.endpoints, Some(Endpoints { local: client_end, remote: server_end }));
    assert_eq!(at_server.endpoints, Some(Endpoints { local: server_end, remote: client_end }));
    assert!(at_client.info.as_ref().unwrap().from_start && at_server.info.as_ref().unwrap().from_start);
    assert_eq!(at_client.ends, [End::Finished(Direction::Forward), End::Released]);
    assert_eq!(at_server.ends.last(), Some(&End::Released));
    assert!(at_client.times.is_sorted());
    assert_eq!(at_client.info.as_ref().unwrap().process.as_ref().unwrap().command.as_ref(), "python3");
}

#[test]
fn a_connection_that_was_there_before_is_joined() {
    if !bpf_works() {
        return;
    }
    let (_dir, pem) = certificate();
    let mut server = Python::start(SERVER, &[pem.to_str().unwrap()]);
    let port = server.line();
    let mut client = Python::start(CLIENT, &[pem.to_str().unwrap(), &port]);
    client.line();
    client.say("unseen 10");
    client.line();
    let running = watch(TlsOptions { pids: vec![client.pid()], ..TlsOptions::default() }, false);
    client.say("seen 20");
    client.line();
    let counters = Arc::clone(&running.counters);
    let seen = running.end();
    let conn = seen.0.values().next().expect("a connection");
    assert_eq!(seen.0.len(), 1, "the server is not in the list of pids");
    assert_eq!((conn.bytes[0].as_slice(), conn.bytes[1].len()), (&b"seen 20\n"[..], 20));
    assert!(!conn.info.as_ref().unwrap().from_start);
    assert_eq!(conn.ends, [End::InputEnded]);
    assert!(conn.endpoints.is_some_and(|e| e.remote == address(&port)));
    assert_eq!(counters.lock().unwrap().missed_start, 1);
}

#[test]
fn a_muted_connection_is_not_copied_and_its_process_end_is_seen() {
    if !bpf_works() {
        return;
    }
    let (_dir, pem) = certificate();
    let mut server = Python::start(SERVER, &[pem.to_str().unwrap()]);
    let port = server.line();
    let mut client = Python::start(CLIENT, &[pem.to_str().unwrap(), &port]);
    client.line();
    let options = TlsOptions { pids: vec![client.pid()], scan: Duration::from_millis(200), ..TlsOptions::default() };
    let running = watch(options, true);
    client.say("first 20");
    client.line();
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..50 {
        client.say("more 16000");
        client.line();
    }
    std::thread::sleep(Duration::from_millis(500));
    let counters = running.counters.lock().unwrap().clone();
    assert!(counters.records < 10, "copied although muted: {counters:?}");
    assert_eq!(counters.muted, 1);
    drop(client);
    std::thread::sleep(Duration::from_millis(700));
    let seen = running.end();
    assert_eq!(seen.0.values().next().unwrap().ends, [End::Released]);
}

#[test]
fn a_small_ring_loses_located_bytes_and_nothing_else() {
    if !bpf_works() {
        return;
    }
    let (_dir, pem) = certificate();
    let mut server = Python::start(SERVER, &[pem.to_str().unwrap()]);
    let port = server.line();
    let mut client = Python::start(CLIENT, &[pem.to_str().unwrap(), &port]);
    client.line();
    let options = TlsOptions { pids: vec![client.pid()], ring_bytes: 64 << 10, poll: Duration::from_millis(300), ..TlsOptions::default() };
    let running = watch(options, false);
    let mut total = 0;
    for _ in 0..20 {
        client.say("200000");
        client.line();
        total += 200_000;
    }
    client.say("-1");
    client.line();
    let counters = Arc::clone(&running.counters);
    let seen = running.end();
    let conn = seen.0.values().next().unwrap();
    let lost: u64 = conn.gaps.iter().map(|(_, len, _, _)| len.unwrap()).sum();
    assert!(lost > 0, "the ring was never full");
    assert!(conn.gaps.iter().all(|(_, _, reason, _)| *reason == GapReason::RingFull));
    let seen_bytes = conn.bytes[0].len() + conn.bytes[1].len();
    assert_eq!(seen_bytes as u64 + lost, total + 20 * 7, "sent = seen + counted");
    let counters = counters.lock().unwrap();
    assert_eq!(counters.dropped_bytes.iter().find(|d| d.0 == "ring_full").unwrap().1, lost);
}

#[test]
fn asyncio_moves_bytes_through_memory_and_has_no_addresses() {
    if !bpf_works() {
        return;
    }
    let (_dir, pem) = certificate();
    let mut server = Python::start(SERVER, &[pem.to_str().unwrap()]);
    let port = server.line();
    let running = watch(TlsOptions { scan: Duration::from_millis(200), ..TlsOptions::default() }, false);
    let mut client = Python::start(
        r#"
import asyncio, ssl, sys
async def main():
    c = ssl.create_default_context(cafile=sys.argv[1])
    r, w = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]), ssl=c, server_hostname="localhost")
    w.write(b"hello 5000\n"); await w.drain(); await r.readexactly(5000)
    w.close(); await w.wait_closed()
asyncio.run(main())
print("done"); sys.stdin.readline()
"#,
        &[pem.to_str().unwrap(), &port],
    );
    assert_eq!(client.line(), "done");
    let pid = client.pid();
    let seen = running.end();
    let conn = seen.0.values().find(|c| c.pid() == pid).expect("the client's connection");
    assert_eq!((conn.bytes[0].as_slice(), conn.bytes[1].len()), (&b"hello 5000\n"[..], 5000));
    assert_eq!(conn.endpoints, None);
    assert!(conn.info.as_ref().unwrap().from_start);
}

#[test]
fn curl_against_openssl() {
    if !bpf_works() {
        return;
    }
    let (dir, pem) = certificate();
    let body = vec![b'z'; 150_000];
    std::fs::write(dir.path().join("page"), &body).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut server = Command::new("openssl")
        .args(["s_server", "-quiet", "-WWW", "-port", &port, "-cert"])
        .arg(&pem)
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let running = watch(TlsOptions::default(), false);
    std::thread::sleep(Duration::from_millis(300));
    let fetch = |out: &Path| {
        let url = format!("https://127.0.0.1:{port}/page");
        Command::new("curl").args(["-sk", "--http1.0", &url, "-o"]).arg(out).status().unwrap()
    };
    assert!(fetch(&dir.path().join("out")).success());
    let seen = running.end();
    let _ = server.kill();
    let _ = server.wait();
    let named = |name: &str| {
        seen.0
            .values()
            .find(|c| c.info.as_ref().unwrap().process.as_ref().unwrap().command.as_ref() == name)
            .unwrap_or_else(|| panic!("{name}"))
    };
    let (client, server) = (named("curl"), named("openssl"));
    assert!(client.bytes[0].starts_with(b"GET /page HTTP/1.0\r\n") && client.bytes[1].ends_with(&body));
    assert_eq!((&client.bytes[0], &client.bytes[1]), (&server.bytes[1], &server.bytes[0]));
    assert!(client.gaps.is_empty() && server.gaps.is_empty());
    let ends = client.endpoints.unwrap();
    assert_eq!(server.endpoints, Some(Endpoints { local: ends.remote, remote: ends.local }));
    assert_eq!(client.ends.last(), Some(&End::Released));
}

#[test]
fn a_write_that_would_block_and_is_repeated_counts_once() {
    if !bpf_works() {
        return;
    }
    let (_dir, pem) = certificate();
    let mut both = Python::start(
        r#"
import ssl, socket, sys, os, select
sc = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); sc.load_cert_chain(sys.argv[1])
cc = ssl.create_default_context(cafile=sys.argv[1])
l = socket.create_server(("127.0.0.1", 0))
print("ready"); sys.stdin.readline()
pid = os.fork()
if pid == 0:
    k = sc.wrap_socket(l.accept()[0], server_side=True)
    os.read(0, 1)
    n = 0
    while True:
        p = k.recv(65536)
        if not p: break
        n += len(p)
    print("received", n); os._exit(0)
k = cc.wrap_socket(socket.create_connection(l.getsockname()), server_hostname="localhost")
k.setblocking(False)
blocked = n = 0
data = os.urandom(12000)
while n < 1000:
    try: k.send(data); n += 1
    except ssl.SSLWantWriteError:
        blocked += 1
        if blocked == 1: print("blocked"); sys.stdout.flush()
        select.select([], [k], [])
try: k.unwrap()
except OSError: pass
k.close()
os.wait()
print("sent", n * len(data), blocked)
sys.stdin.readline()
"#,
        &[pem.to_str().unwrap()],
    );
    assert_eq!(both.line(), "ready");
    let running = watch(TlsOptions { scan: Duration::from_millis(200), ..TlsOptions::default() }, false);
    both.say("go");
    assert_eq!(both.line(), "blocked");
    both.say("read");
    let mut lines = [both.line(), both.line()];
    lines.sort();
    assert_eq!(lines[0], "received 12000000");
    assert!(lines[1].starts_with("sent 12000000 ") && !lines[1].ends_with(" 0"), "{lines:?}");
    let pid = both.pid();
    let seen = running.end();
    let conn = seen.0.values().find(|c| c.pid() == pid).expect("the writer");
    let lost: u64 = conn.gaps.iter().map(|gap| gap.1.unwrap()).sum();
    assert_eq!(conn.bytes[0].len() as u64 + lost, 12_000_000, "blocked writes counted twice, or lost");
}

#[test]
fn perf_uprobes_do_the_same() {
    if !bpf_works() {
        return;
    }
    if !selftest::self_test().mechanisms.iter().any(|(m, r)| *m == Mechanism::PerfUprobe && r.is_ok()) {
        eprintln!("skipped: no perf uprobes here");
        return;
    }
    let (_dir, pem) = certificate();
    let mut server = Python::start(SERVER, &[pem.to_str().unwrap()]);
    let port = server.line();
    let options = TlsOptions { mechanism: Some(Mechanism::PerfUprobe), plain_symbols: true, ..TlsOptions::default() };
    let running = watch(options, false);
    let mut client = Python::start(CLIENT, &[pem.to_str().unwrap(), &port]);
    client.line();
    client.say("hello 3000");
    client.line();
    let pid = client.pid();
    let seen = running.end();
    let conn = seen.0.values().find(|c| c.pid() == pid).expect("the client");
    assert_eq!((conn.bytes[0].as_slice(), conn.bytes[1].len()), (&b"hello 3000\n"[..], 3000));
    assert!(conn.endpoints.is_some());
}

#[test]
fn node_with_its_own_openssl() {
    if !bpf_works() {
        return;
    }
    let code = r#"
const tls = require("tls"), fs = require("fs");
const s = tls.connect({ port: +process.argv[2], host: "127.0.0.1", ca: fs.readFileSync(process.argv[1]), servername: "localhost" });
let n = 0;
process.stdin.once("data", () => s.write("hello 70000\n"));
s.on("secureConnect", () => console.log("ready"));
s.on("data", d => { n += d.length; if (n == 70000) { console.log("done"); } });
process.stdin.on("end", () => process.exit(0));
"#;
    let (_dir, pem) = certificate();
    let mut server = Python::start(SERVER, &[pem.to_str().unwrap()]);
    let port = server.line();
    let spawned = Command::new("node").args(["-e", code]).arg(&pem).arg(&port).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = spawned else {
        eprintln!("skipped: no node here");
        return;
    };
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut node = Python { child, out };
    assert_eq!(node.line(), "ready");
    // Statically linked: its executable is found by its exported functions.
    let running = watch(TlsOptions { pids: vec![node.pid()], ..TlsOptions::default() }, false);
    node.say("go");
    assert_eq!(node.line(), "done");
    let seen = running.end();
    let conn = seen.0.values().next().expect("a connection");
    assert_eq!((conn.bytes[0].as_slice(), conn.bytes[1].len()), (&b"hello 70000\n"[..], 70_000));
    assert_eq!(conn.endpoints, None, "node moves ciphertext through memory");
}

/// The client's own clock against the kernel's stamps: from before its write to behind its read.
#[test]
fn times_are_those_of_the_process() {
    if !bpf_works() {
        return;
    }
    let (_dir, pem) = certificate();
    let mut server = Python::start(SERVER, &[pem.to_str().unwrap()]);
    let port = server.line();
    let mut client = Python::start(
        r#"
import ssl, socket, sys, time
c = ssl.create_default_context(cafile=sys.argv[1])
k = c.wrap_socket(socket.create_connection(("127.0.0.1", int(sys.argv[2]))), server_hostname="localhost")
print("ready"); sys.stdin.readline()
for i in range(101):
    a = time.monotonic_ns(); k.sendall(b"250\n")
    k.recv(250)
    print(time.monotonic_ns() - a); time.sleep(0.005)
sys.stdin.readline()
"#,
        &[pem.to_str().unwrap(), &port],
    );
    client.line();
    let running = watch(TlsOptions { pids: vec![client.pid()], ..TlsOptions::default() }, false);
    client.say("go");
    let truth: Vec<i64> = (0..101).map(|_| client.line().parse().unwrap()).collect();
    let seen = running.end();
    let times = &seen.0.values().next().unwrap().times;
    assert_eq!(times.len(), 202);
    let mut errors: Vec<i64> = times
        .chunks(2)
        .zip(&truth)
        .map(|(pair, truth)| (truth - i64::try_from(pair[1].since(pair[0]).as_nanos()).unwrap()).abs())
        .collect();
    errors.sort_unstable();
    println!("|error| of write-to-first-byte: median {} us, maximum {} us", errors[50] / 1000, errors[100] / 1000);
    assert!(errors[50] <= 500_000, "median error {} ns", errors[50]);
}

/// 10,000 chunks a second over 200 connections: every one is seen, or counted as lost. `TOKENGAUGE_LOAD_SECONDS` (default 3).
#[test]
fn under_load_every_chunk_is_seen_or_counted() {
    if !bpf_works() {
        return;
    }
    let seconds: u64 = std::env::var("TOKENGAUGE_LOAD_SECONDS").map_or(3, |s| s.parse().unwrap());
    let (dir, pem) = certificate();
    let program = dir.path().join("tls_pair");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/bench/tls_pair.c");
    let built = Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(source).args(["-lssl", "-lcrypto"]).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no cc, or no libssl headers");
        return;
    }
    let mut child = Command::new(&program).arg(&pem).args(["250", "200"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut load = Python { child, out };
    assert_eq!(load.line(), "ready");

    #[derive(Default)]
    struct Count {
        chunks: [u64; 2],
        bytes: u64,
        lost: u64,
        conns: u64,
    }
    struct Counting(Arc<Mutex<Count>>);
    impl Sink for Counting {
        fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
            let mut count = self.0.lock().unwrap();
            match event {
                StreamEvent::Data { dir, bytes, .. } => {
                    count.chunks[dir.index()] += 1;
                    count.bytes += bytes.len() as u64;
                }
                StreamEvent::Gap { len, .. } => count.lost += len.unwrap(),
                StreamEvent::Open { .. } => count.conns += 1,
                _ => {}
            }
            Verdict::Watch
        }
        fn tick(&mut self, _: Timestamp) {}
    }
    let count: Arc<Mutex<Count>> = Arc::default();
    let stop = StopFlag::default();
    let tap = Box::new(TlsTap::new(TlsOptions { pids: vec![load.pid()], ..TlsOptions::default() }));
    let counters = tap.counters().unwrap();
    let (flag, mut sink) = (stop.clone(), Counting(Arc::clone(&count)));
    let thread = std::thread::spawn(move || tap.run(&mut sink, &flag));
    while counters.lock().unwrap().attach.is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    load.say(&format!("rate 10000 {seconds}"));
    let moved: u64 = load.line().parse().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    stop.stop();
    thread.join().unwrap().unwrap();
    let count = count.lock().unwrap();
    println!("{moved} chunks moved; written {}, read {}, bytes lost {}", count.chunks[0], count.chunks[1], count.lost);
    println!("{:?}", counters.lock().unwrap());
    assert_eq!(moved, 10_000 * seconds);
    assert_eq!(count.bytes + count.lost, moved * 2 * 250, "sent = seen + counted");
    assert_eq!(count.conns, 400, "200 connections, both ends of each in one process");
}
