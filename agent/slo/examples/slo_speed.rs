//! What the engine costs: decisions per second of processor time, a whole evaluation, memory per objective, allocations per request.
//!
//! `cargo run --release -p tokengauge-slo --example slo_speed` prints the figures and ends with 1 when one misses its goal: 5 million decisions
//! (a request × an objective that looks at it) per second with 10 objectives, 5 ms for 1,000 objectives × 7 windows, 64 KB per objective
//! of 30 days, and no allocation per request.
#![expect(unsafe_code, reason = "an allocator that counts passes everything on to the system's")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use tokengauge_slo::engine::Engine;
use tokengauge_slo::request::Request;
use tokengauge_slo::spec;

struct Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 20_000 * 86_400 * SECOND;

/// Ten objectives as people write them: limits, a conjunction, availability; with and without selectors.
const TEN: &str = "slos:
  service: speed
  objectives:
    - ttft p95 <= 800ms
    - ttft p50 <= 200ms
    - ttfa p95 <= 2s
    - tpot p95 <= 50ms
    - max_stall p99 <= 2s
    - duration p95 <= 30s
    - output_speed >= 20 for 90%
    - availability >= 99.9%
    - goodput{ttft<=800ms, tpot<=50ms, max_stall<=2s} >= 99%
    - {goal: availability >= 99%, name: by-model, when: {model: \"gpt-4o*\"}}
";

fn request() -> Request<'static> {
    Request {
        provider: Some("openai"),
        model: Some("gpt-4o-mini-2024-07-18"),
        input_tokens: Some(900),
        output_tokens: Some(120),
        ttft: Ok(0.41),
        ttfa: Ok(0.5),
        tpot: Ok(0.02),
        inter_chunk_max: Ok(0.2),
        max_stall: Ok(0.2),
        duration: Ok(3.2),
        ..Request::plain()
    }
}

fn objectives(n: usize) -> String {
    (0..n).fold("slos:\n  service: many\n  objectives:\n".to_owned(), |text, i| {
        text + &format!("    - {{goal: \"ttft p95 <= {}ms\", name: o{i}}}\n", 100 + i)
    })
}

fn engine(text: &str) -> Option<Engine> {
    let loaded = spec::load(&[("speed.yaml", text)]);
    loaded.problems.iter().for_each(|p| println!("{p}"));
    Engine::new(loaded.slos, START).ok()
}

/// Seconds of processor time that this thread has had (Linux); another process on the machine does not count.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).map_or(f64::NAN, |nanos| nanos / 1e9)
}

fn main() -> ExitCode {
    let Some(mut ten) = engine(TEN) else { return ExitCode::FAILURE };
    let mut well = true;
    let mut say = |what: &str, value: f64, unit: &str, goal: f64, good: bool| {
        well &= good;
        println!("{what:<54} {value:>14.2} {unit:<8} goal {goal} {}", if good { "met" } else { "MISSED" });
    };
    // A thousand requests per second of the engine's time, evaluated once a second, as in a busy agent.
    const REQUESTS: u64 = 2_000_000;
    let (slow, fast) = (Request { ttft: Ok(1.2), ..request() }, request());
    let run = |engine: &mut Engine, from: u64, n: u64| {
        for i in from..from + n {
            let at = START + i * (SECOND / 1_000);
            engine.observe(if i % 50 == 0 { &slow } else { &fast }, at);
            if i % 1_000 == 999 {
                engine.evaluate(at);
            }
        }
    };
    run(&mut ten, 0, 10_000);
    let began = cpu();
    let calls = CALLS.load(Ordering::Relaxed);
    run(&mut ten, 10_000, REQUESTS);
    let allocated = CALLS.load(Ordering::Relaxed) - calls;
    let took = cpu() - began;
    let decided: u64 = ten.pages().iter().flat_map(|p| &p.series).map(|s| s.counters.valid() + s.counters.not_applicable).sum();
    let decisions = decided as f64 * REQUESTS as f64 / (REQUESTS + 10_000) as f64;
    say("decisions per second of processor time, 10 objectives", decisions / took / 1e6, "million", 5.0, decisions / took >= 5e6);
    say("allocations per request", allocated as f64 / REQUESTS as f64, "", 0.0, allocated == 0);
    drop(ten);

    let empty = LIVE.load(Ordering::Relaxed);
    let Some(mut many) = engine(&objectives(1_000)) else { return ExitCode::FAILURE };
    // A month, so that every ring is full.
    for hour in 0..31 * 24 {
        many.observe(&fast, START + hour * 3_600 * SECOND + SECOND);
        many.evaluate(START + hour * 3_600 * SECOND + 2 * SECOND);
    }
    let each = (LIVE.load(Ordering::Relaxed) - empty) as f64 / 1_000.0;
    say("bytes per objective of 30 days, full, all included", each, "B", 65_536.0, each <= 65_536.0);
    let mut best = f64::MAX;
    let mut t = START + 32 * 86_400 * SECOND;
    for _ in 0..50 {
        t += SECOND;
        many.observe(&fast, t);
        let began = Instant::now();
        let n = many.evaluate(t).len();
        best = best.min(began.elapsed().as_secs_f64() * 1e3);
        assert_eq!(n, 1_000);
    }
    say("1,000 objectives x 7 windows evaluated", best, "ms", 5.0, best <= 5.0);
    ExitCode::from(u8::from(!well))
}
