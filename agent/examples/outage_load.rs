//! An agent whose tap makes its own traffic: every exchange passes the pipeline, the export thread and the OTLP exporter of the real thing. For
//! `tests/outage/run.py`, which takes its receiver away meanwhile.
//!
//! `outage_load CONFIG RATE SECONDS`: so many inferences a second for so long (0: until SIGTERM). It prints a line of JSON ten times a second, and
//! one at the end with `"ended": true`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "a tool of the tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokengauge::agent::Running;
use tokengauge::config::{Config, Semconv};
use tokengauge::driver::Source;
use tokengauge::export::metrics::Metrics;
use tokengauge::export::otlp::carrier::Signal;
use tokengauge::export::otlp::sender::Sender;
use tokengauge::export::otlp::{Otlp, environment};
use tokengauge::tap::{Sink, StopFlag, Tap, TapError};
use tokengauge_core::pipeline::Options;
use tokengauge_core::stream::{ConnId, ConnInfo, Direction, End, Endpoints, Side, StreamEvent, TapKind, Timestamp};

fn wall() -> u64 {
    u64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

const REQUEST: &str = concat!(
    "POST /v1/chat/completions HTTP/1.1\r\nHost: api.openai.com\r\nContent-Type: application/json\r\nContent-Length: 93\r\n\r\n",
    r#"{"model":"gpt-4o-mini","stream":true,"messages":[{"role":"user","content":"hello there ok"}]}"#
);
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";

fn chunk(n: u64, text: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-{n}\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n"
    )
}

fn last(n: u64) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-{n}\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":6,\"total_tokens\":15}}}}\n\ndata: [DONE]\n\n"
    )
}

/// Exchanges of one connection each, at a steady rate.
struct Load {
    rate: f64,
    seconds: f64,
    made: Arc<AtomicU64>,
}

impl Load {
    fn exchange(sink: &mut dyn Sink, n: u64) {
        let conn = ConnId(n);
        let client = std::net::SocketAddr::from(([10, 0, (n >> 22) as u8, (n >> 14) as u8], 1024 + (n & 0x3fff) as u16));
        let info = ConnInfo {
            tap: TapKind::Tls,
            side: Side::Local,
            endpoints: Some(Endpoints { local: client, remote: "10.0.0.1:443".parse().unwrap() }),
            process: None,
            from_start: true,
        };
        let start = wall().saturating_sub(500_000_000);
        let at = |ms: u64| Timestamp::from_unix_nanos(start + ms * 1_000_000);
        let _ = sink.event(StreamEvent::Open { conn, at: at(0), info });
        let mut data = |dir, ms, text: &str| _ = sink.event(StreamEvent::Data { conn, dir, at: at(ms), bytes: text.as_bytes() });
        data(Direction::Forward, 0, REQUEST);
        data(Direction::Reverse, 300, HEAD);
        for (ms, text) in [(310, "a"), (330, "b"), (350, "c"), (390, "d"), (410, "e"), (430, "f")] {
            data(Direction::Reverse, ms, &chunk(n, text));
        }
        data(Direction::Reverse, 440, &last(n));
        let _ = sink.event(StreamEvent::Close { conn, at: at(450), end: End::Finished(Direction::Reverse) });
    }
}

impl Tap for Load {
    fn kind(&self) -> TapKind {
        TapKind::Tls
    }

    fn run(self: Box<Self>, sink: &mut dyn Sink, stop: &StopFlag) -> Result<(), TapError> {
        let began = Instant::now();
        while !stop.is_set() {
            let passed = began.elapsed().as_secs_f64();
            if self.seconds > 0.0 && passed >= self.seconds {
                break;
            }
            let (due, made) = ((passed * self.rate) as u64, self.made.load(Ordering::Relaxed));
            (made..due).for_each(|n| Self::exchange(sink, n));
            self.made.store(due.max(made), Ordering::Release);
            sink.tick(Timestamp::from_unix_nanos(wall()));
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn line(made: &AtomicU64, sender: &Sender, ended: bool, undelivered: &[String]) -> String {
    let of = |signal| {
        let f = sender.delivery().figures(signal);
        let lost: serde_json::Map<_, _> = tokengauge::export::otlp::delivery::Loss::ALL
            .into_iter()
            .map(|why| (why.as_str().to_owned(), sender.delivery().lost(signal, why).into()))
            .collect();
        serde_json::json!({
            "delivered": f.delivered, "requests": f.requests, "retries": f.retries, "disk_errors": f.disk_errors, "memory_items": f.memory_items,
            "memory_bytes": f.memory_bytes, "disk_items": f.disk_items, "disk_bytes": f.disk_bytes, "trouble": f.trouble,
            "disk_trouble": f.disk_trouble, "lost": lost,
        })
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of_status = |key: &str| -> u64 {
        status.lines().find_map(|l| l.strip_prefix(key)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    serde_json::json!({
        "made": made.load(Ordering::Acquire), "traces": of(Signal::Traces), "metrics": of(Signal::Metrics), "rss_bytes": of_status("VmRSS:"),
        "peak_rss_bytes": of_status("VmHWM:"), "ended": ended, "undelivered": undelivered,
    })
    .to_string()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, rate, seconds] = args.as_slice() else { panic!("outage_load CONFIG RATE SECONDS") };
    let config = Config::parse(&std::fs::read_to_string(path).unwrap(), path).unwrap();
    let profile = Semconv::profile(config.semconv, &environment);
    let metrics = Metrics::new(&config.metrics, profile, &environment).unwrap();
    let otlp = Otlp::new(&config.otlp, &metrics, &environment).unwrap().unwrap();
    tokengauge::log::start(config.log.as_deref(), None).unwrap();
    let (sender, made) = (otlp.sender().clone(), Arc::new(AtomicU64::new(0)));
    let load = Load { rate: rate.parse().unwrap(), seconds: seconds.parse().unwrap(), made: Arc::clone(&made) };
    let stop = StopFlag::default();
    let terminated = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let flag = stop.clone();
    std::thread::spawn(move || {
        terminated.block_on(async {
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap().recv().await;
            flag.stop();
        });
    });
    // Ids differ from one life to the next, as those of real agents do.
    let options = Options { seed: wall(), ..Options::default() };
    let running = Running::builder().options(options).stop_flag(stop).source(Source::new("load", Box::new(load))).exporter(Box::new(otlp));
    let running = running.start().unwrap();
    let ended = loop {
        if let Some(ended) = running.wait(Duration::from_millis(100)) {
            break ended;
        }
        println!("{}", line(&made, &sender, false, &[]));
    };
    println!("{}", line(&made, &sender, true, &ended.undelivered));
}
