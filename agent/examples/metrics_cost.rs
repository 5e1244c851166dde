//! What metrics cost: processor time for each recorded inference, the time to encode ten thousand series for each receiver, and the memory
//! that they take; each beside a floor of the same run.
//!
//!     cargo run --release -p tokengauge --example metrics_cost
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::cast_precision_loss, reason = "a measurement of time itself")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use flate2::write::GzEncoder;
use tokengauge::export::metrics::{Config, Metrics};
use tokengauge::export::otlp::points::{Style, encode};
use tokengauge::export::prometheus::{Endpoint, Format};
use tokengauge::testing;
use tokengauge_core::inference::Inference;
use tokengauge_core::name::Name;
use tokengauge_core::semconv::Profile;

/// Gaps of the stream that is recorded: an answer of 128 chunks.
const CHUNKS: u64 = 128;
/// Series to hold, as the target has it.
const SERIES: usize = 10_000;

fn main() {
    let stream =
        Inference { timing: tokengauge_core::inference::Timing { gaps: gaps(1), ..testing::inference().timing }, ..testing::inference() };
    println!("{:<58} {:>12} {:>12} {:>8}", "what", "measured", "floor", "target");
    for profile in [Profile::V1_41, Profile::Both] {
        let metrics = Metrics::new(&Config::default(), profile, &|_| None).unwrap();
        let bytes = vec![7_u8; size_of::<Inference>() + CHUNKS as usize * 4];
        let floor = per(20_000, || drop(black_box(bytes.clone())));
        let cost = per(20_000, || metrics.record(black_box(&stream), true));
        line(&format!("a stream of {CHUNKS} chunks into metrics ({})", profile.as_str()), cost, floor, "15 µs");
    }
    let metrics = Metrics::new(&Config::default(), Profile::V1_41, &|_| None).unwrap();
    let refused = testing::refused();
    let floor = per(20_000, || drop(black_box(vec![7_u8; size_of::<Inference>()])));
    line("a refusal into metrics", per(20_000, || metrics.record(black_box(&refused), true)), floor, "15 µs");

    let before = resident();
    let metrics = Metrics::new(&Config { limit: 20_000, values: 20_000, ..Config::default() }, Profile::V1_41, &|_| None).unwrap();
    let (mut n, mut series) = (0, 0);
    while series < SERIES {
        let mut i = stream.clone();
        i.request.model = Name::new(&format!("model-number-{n}-of-many"));
        i.response.model = i.request.model.clone();
        // Each of them with a few requests of different lengths, so that histograms are as wide as they get.
        for spread in [1, 7, 50] {
            i.timing.gaps = gaps(spread);
            i.timing.ttft = Ok(Duration::from_millis(7 * spread * spread + n % 97));
            i.timing.duration = Ok(Duration::from_millis(900 * spread));
            metrics.record(&i, true);
        }
        n += 1;
        series = metrics.collect(|store, _| store.len());
    }
    let mut bytes = Vec::new();
    let otlp = per(10, || {
        bytes.clear();
        metrics.collect(|store, now| encode(store, Profile::V1_41, Style::default(), &[], now, &mut |request, _| bytes.push(request)));
    });
    let size: usize = bytes.iter().map(Vec::len).sum();
    line(
        &format!("{series} series as OTLP ({} KiB in {} requests)", size >> 10, bytes.len()),
        otlp,
        per(10, || drop(black_box(bytes.clone()))),
        "50 ms",
    );
    for format in [Format::Text, Format::OpenMetrics, Format::Protobuf] {
        let endpoint = Endpoint::new(&metrics, Vec::new());
        let took = per(10, || endpoint.render(format, &mut std::io::sink()).unwrap());
        // As it is sent: Prometheus takes gzip, and the page is compressed as it is written.
        let mut page = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        endpoint.render(format, &mut page).unwrap();
        let page = page.finish().unwrap();
        let floor = per(10, || drop(black_box(page.clone())));
        line(&format!("{series} series as {format:?} ({} KiB with gzip)", page.len() >> 10), took, floor, "-");
    }
    println!(
        "{:<58} {:>9.1} MiB {:>9.1} MiB {:>8}",
        format!("resident with {series} series, encoded in every form"),
        mib(peak()),
        mib(before),
        "60 MB"
    );
}

/// Gaps of a stream, some to hundreds of milliseconds.
fn gaps(spread: u64) -> tokengauge_core::gaps::Gaps {
    (1..CHUNKS).map(|k| (5 + k * k % 31 * spread) * 1_000_000 + k * 1_003).collect()
}

fn line(what: &str, took: Duration, floor: Duration, target: &str) {
    println!("{what:<58} {:>12} {:>12} {target:>8}", format!("{took:.1?}"), format!("{floor:.1?}"));
}

/// Processor time of one call, of the best of seven rounds.
fn per(times: u32, mut work: impl FnMut()) -> Duration {
    best(|| (0..times).for_each(|_| work())) / times
}

fn best(mut work: impl FnMut()) -> Duration {
    work();
    let once = |_| {
        let (began, used) = (Instant::now(), processor());
        work();
        // The thread's own time does not count what others take of a busy machine; a clock that is too coarse gives nothing.
        let used = processor() - used;
        if used.is_zero() { began.elapsed() } else { used }
    };
    (0..7).map(once).min().unwrap_or_default()
}

/// Processor time of this thread: `schedstat` has it in nanoseconds (Documentation/scheduler/sched-stats.rst).
fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or_default())
}

fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    line.unwrap_or_default() * 1024
}

fn resident() -> u64 {
    status("VmRSS:")
}

fn peak() -> u64 {
    status("VmHWM:")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
