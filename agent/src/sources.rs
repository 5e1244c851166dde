//! From configuration to taps that are ready to run, each with its counters.

use std::path::Path;
use std::sync::PoisonError;

use regex::Regex;
use tokengauge_core::stats::snapshot::{Area, Counter};
use tokengauge_core::tcp::Limits;

use crate::config;
use crate::driver::Source;
use crate::tap::pcap::{FileTap, LiveOptions, LiveTap, PcapSnapshot, Share};
use crate::tap::tls::{TlsOptions, TlsTap};
use crate::tap::{Tap as _, TapCounters, TapError};

/// A capture file, or a share of its connections; `-` is standard input.
///
/// # Errors
/// When it cannot be opened.
pub fn file(path: &Path, share: Share) -> Result<Source, TapError> {
    let tap = FileTap::open(path, Limits::default())?.sharing(share);
    let (stats, progress) = (tap.stats(), tap.progress());
    let mut source = Source::with_counters(path.display().to_string(), Box::new(tap), Box::new(move || packets(&stats.snapshot())));
    source.progress = Some(progress);
    Ok(source)
}

/// What the tap of TLS libraries is called.
pub const TLS: &str = "TLS libraries by eBPF";

/// What a live capture is called.
pub fn live_name(config: &config::Pcap) -> String {
    format!("packets on {}", config.interface)
}

/// A live capture.
///
/// # Errors
/// When libpcap refuses.
pub fn live(config: &config::Pcap) -> Result<Source, TapError> {
    let tap = LiveTap::open(&LiveOptions {
        interface: config.interface.clone(),
        filter: config.filter.clone().unwrap_or_else(|| "tcp".into()),
        buffer: (config.buffer_mib as usize) << 20,
        snaplen: config.snaplen as usize,
        ..LiveOptions::default()
    })?;
    let stats = tap.stats();
    Ok(Source::with_counters(live_name(config), Box::new(tap), Box::new(move || live_packets(&stats.snapshot()))))
}

/// eBPF on TLS libraries. Whether the kernel allows it shows when the tap runs.
///
/// # Errors
/// When a pattern is no regular expression; [`config::Config::load`] has said so before.
pub fn tls(config: &config::Tls) -> Result<Source, TapError> {
    let any_of = |patterns: &[String]| {
        let joined: Vec<String> = patterns.iter().map(|p| format!("(?:{p})")).collect();
        let pattern = (!joined.is_empty()).then(|| Regex::new(&joined.join("|"))).transpose();
        pattern.map_err(|e| TapError::Bpf { what: format!("process filter: {e}") })
    };
    let tap = TlsTap::new(TlsOptions {
        pids: config.pids.clone(),
        include: any_of(&config.include)?,
        exclude: any_of(&config.exclude)?,
        ring_bytes: config.ring_mib << 20,
        ..TlsOptions::default()
    });
    let shared = tap.counters().unwrap_or_default();
    let probe = move || records(&shared.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Source::with_counters(TLS, Box::new(tap), Box::new(probe)))
}

fn records(now: &TapCounters) -> Vec<Counter> {
    let counter = |area, name, count| Counter { area, name, count };
    let capture = [
        ("records", now.records),
        ("record_bytes", now.bytes),
        ("announced_gaps", now.gaps),
        ("missed_start", now.missed_start),
        ("attach_fallbacks", now.fallbacks),
    ];
    let mut all: Vec<_> = capture.map(|(name, count)| counter(Area::Capture, name, count)).into();
    all.extend(now.dropped.iter().map(|(name, count)| counter(Area::Drop, name, *count)));
    all.extend(now.dropped_bytes.iter().map(|(name, count)| counter(Area::DropBytes, name, *count)));
    all.extend(now.attach.iter().map(|(name, count)| counter(Area::Attach, name, *count)));
    all
}

/// Gaps are left out: the pipeline counts those that reach it, and twice would be wrong.
fn packets(now: &PcapSnapshot) -> Vec<Counter> {
    let counters = now.tcp.iter().filter(|(name, _)| !name.starts_with("gap_"));
    counters.map(|(name, count)| Counter { area: Area::Capture, name, count }).collect()
}

fn live_packets(now: &PcapSnapshot) -> Vec<Counter> {
    let dropped = |name, count| Counter { area: Area::Drop, name, count };
    let mut all = packets(now);
    all.extend([dropped("kernel_buffer", now.kernel_dropped), dropped("interface", now.interface_dropped)]);
    all
}
