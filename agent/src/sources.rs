//! From configuration to taps that are ready to run, each with its counters.

use std::path::Path;

use tokengauge_core::stats::snapshot::{Area, Counter};
use tokengauge_core::tcp::Limits;

use crate::config;
use crate::driver::Source;
use crate::tap::TapError;
use crate::tap::pcap::{FileTap, LiveOptions, LiveTap, PcapSnapshot};

/// A capture file; `-` is standard input.
///
/// # Errors
/// When it cannot be opened.
pub fn file(path: &Path) -> Result<Source, TapError> {
    let tap = FileTap::open(path, Limits::default())?;
    let (stats, progress) = (tap.stats(), tap.progress());
    let mut source = Source::with_counters(path.display().to_string(), Box::new(tap), Box::new(move || packets(&stats.snapshot())));
    source.progress = Some(progress);
    Ok(source)
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
    Ok(Source::with_counters(format!("packets on {}", config.interface), Box::new(tap), Box::new(move || live_packets(&stats.snapshot()))))
}

/// eBPF on TLS libraries.
///
/// # Errors
/// When the kernel refuses.
pub fn tls(_config: &config::Tls) -> Result<Source, TapError> {
    Err(TapError::Bpf { what: "this build has no TLS tap".into() })
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
