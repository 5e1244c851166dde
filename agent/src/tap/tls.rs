//! eBPF on TLS libraries: plaintext where it is written and read, from all processes of the machine, without touching one.
//!
//! Kernel programs (`ebpf/`) stand at the libraries' read and write functions and copy what passes into one ring buffer; this
//! side finds the libraries (`discover`), says where in them a probe is cheap (`plan`), attaches (`attach`, `kernel`), and turns
//! records into [`StreamEvent`](tokengauge_core::stream::StreamEvent)s (`conns`). The agent polls the ring instead of being woken
//! for each record: instants are the kernel's, so that delivery may be late by [`TlsOptions::poll`] without any error in time.
//!
//! What it is not: it decrypts nothing, knows no HTTP, and reads no field of a library's structures; which socket a connection
//! uses is learnt from the socket calls inside its TLS calls, and stays unknown where there are none (memory BIOs).

use std::sync::Arc;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use regex::Regex;
use rustc_hash::{FxHashMap, FxHashSet};
use tokengauge_core::stream::{Process, TapKind, Timestamp};
use tokengauge_ebpf_common::{Config, Header, filter, kind};

use super::{Sink, StopFlag, Tap, TapError};
use crate::enrich::procfs;

mod attach;
mod btf;
mod conns;
pub(crate) mod discover;
pub(crate) mod elf;
pub mod kernel;
mod openssl;
pub mod plan;
pub mod selftest;
pub(crate) mod sys;

use attach::Attachments;
pub use attach::Outcome;
use conns::{Conns, Todo};
use discover::Processes;
use elf::Image;
use kernel::{Kernel, LoadOptions, Mechanism, Programs, Role};
use plan::Place;

/// A TLS library's recogniser: knows its files, and where in them the probes go. One file in `tap/tls/` each.
pub(crate) trait TlsLibrary: Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;
    /// Whether a shared library of this file name is one. Executables are looked into under any name.
    fn is_named(&self, file: &str) -> bool;
    /// The functions that a file must have to be one.
    fn required(&self) -> &'static [&'static str];
    /// All functions whose addresses it wants.
    fn interesting(&self) -> &'static [&'static str];
    /// Where the probes go, in the order in which they are to be attached.
    fn sites(&self, image: &Image, functions: Functions) -> Vec<Site>;
}

/// Every library that the tap knows.
static LIBRARIES: &[&dyn TlsLibrary] = &[&openssl::OpenSsl];

/// How places are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Functions {
    /// By the planner.
    Planned,
    /// The plain symbols.
    Symbols,
}

/// A place and the programs that stand there.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    roles: &'static [Role],
    dir: u8,
    place: Place,
}

/// What the tap is told.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Watch these processes only; empty: all.
    pub pids: Vec<u32>,
    /// Watch only processes whose command name matches.
    pub include: Option<Regex>,
    /// Watch none whose command name matches.
    pub exclude: Option<Regex>,
    /// Size of the ring buffer; rounded up to a power of two, at least 64 KiB.
    pub ring_bytes: u32,
    /// How long records may wait.
    pub poll: Duration,
    /// How often processes are looked at.
    pub scan: Duration,
    /// `None`: the best that the kernel has.
    pub mechanism: Option<Mechanism>,
    /// Attach at the plain symbols, without a plan. For comparison.
    pub plain_symbols: bool,
}

impl Default for TlsOptions {
    fn default() -> Self {
        Self {
            pids: Vec::new(),
            include: None,
            exclude: None,
            ring_bytes: 32 << 20,
            poll: Duration::from_millis(5),
            scan: Duration::from_secs(1),
            mechanism: None,
            plain_symbols: false,
        }
    }
}

/// The tap. Nothing is loaded before it runs.
pub struct TlsTap {
    options: TlsOptions,
    counters: super::SharedCounters,
}

impl TlsTap {
    /// A tap with these options.
    pub fn new(options: TlsOptions) -> Self {
        Self { options, counters: super::SharedCounters::default() }
    }
}

impl Tap for TlsTap {
    fn kind(&self) -> TapKind {
        TapKind::Tls
    }

    fn counters(&self) -> Option<super::SharedCounters> {
        Some(Arc::clone(&self.counters))
    }

    fn run(self: Box<Self>, sink: &mut dyn Sink, stop: &StopFlag) -> Result<(), TapError> {
        let mut running = Running::start(*self)?;
        running.scan(sink);
        while !stop.is_set() {
            running.turn(sink);
        }
        running.finish(sink);
        Ok(())
    }
}

/// What is known of a process whose bytes were seen.
struct Known {
    process: Process,
    /// `None`: it was gone already.
    started: Option<u64>,
    watched: bool,
}

/// The tap while it runs.
struct Running {
    options: TlsOptions,
    counters: super::SharedCounters,
    kernel: Kernel,
    ring: RingBuf<MapData>,
    attachments: Attachments,
    processes: Processes,
    only: FxHashSet<u32>,
    conns: Conns,
    known: FxHashMap<u32, Known>,
    unix_offset: u64,
    /// Kernel time of the last scan and the last tick.
    scanned: u64,
    ticked: u64,
    scans: u32,
    /// Turns without a record.
    quiet: u32,
}

/// The sink is told the time at least so often.
const TICK: Duration = Duration::from_millis(50);
/// A connection silent for this long is looked up in the kernel's table, in case its end was lost.
const SILENT: Duration = Duration::from_secs(10);
/// Records taken in one go before the clock and the processes are looked at again.
const MAX_BATCH: usize = 50_000;

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Running {
    fn start(tap: TlsTap) -> Result<Self, TapError> {
        let TlsTap { options, counters } = tap;
        let own = std::process::id();
        let only: FxHashSet<u32> = options.pids.iter().copied().collect();
        let ring_bytes = options.ring_bytes.clamp(64 << 10, 1 << 30).next_power_of_two();
        let by_name = options.include.is_some() || options.exclude.is_some();
        let config = Config {
            own_tgid: if only.contains(&own) { 0 } else { own },
            filter: match (only.is_empty(), by_name) {
                (false, _) => filter::ONLY,
                (true, true) => filter::EXCEPT,
                (true, false) => filter::OFF,
            },
            wake_bytes: u64::from(ring_bytes / 4),
            sock: tokengauge_ebpf_common::SockOffsets::default(),
        };
        let (mut kernel, ring) = Kernel::load(&LoadOptions { programs: Programs::Tls, ring_bytes, mechanism: options.mechanism, config })?;
        for pid in &only {
            kernel.list(*pid);
        }
        if let Err(why) = kernel.sockets() {
            tracing::warn!(why, "addresses of TLS connections stay unknown");
        }
        tracing::info!(mechanism = kernel.mechanism().as_str(), "eBPF programs are loaded");
        let unix_offset = sys::unix_minus_monotonic();
        Ok(Self {
            options,
            counters,
            kernel,
            ring,
            attachments: Attachments::new(LIBRARIES),
            processes: Processes::default(),
            only,
            conns: Conns::new(unix_offset),
            known: FxHashMap::default(),
            unix_offset,
            scanned: 0,
            ticked: 0,
            scans: 0,
            quiet: 0,
        })
    }

    /// Waits a little, takes what is there, does what is due.
    fn turn(&mut self, sink: &mut dyn Sink) {
        // After a second without a record the agent sleeps longer; the first record after that waits at most as long.
        let wait = if self.quiet > 200 { self.options.poll * 4 } else { self.options.poll };
        sys::wait_readable(&self.ring, wait);
        let now = sys::monotonic();
        let taken = self.drain(MAX_BATCH, sink);
        self.quiet = if taken == 0 { self.quiet.saturating_add(1) } else { 0 };
        if now.saturating_sub(self.ticked) >= nanos(TICK) {
            self.ticked = now;
            sink.tick(Timestamp::from_unix_nanos(now.saturating_add(self.unix_offset)));
        }
        if now.saturating_sub(self.scanned) >= nanos(self.options.scan) {
            self.scan(sink);
        }
    }

    fn drain(&mut self, at_most: usize, sink: &mut dyn Sink) -> usize {
        let mut taken = 0;
        while taken < at_most {
            let Some(record) = self.ring.next() else { break };
            taken += 1;
            let Some((header, payload)) = Header::parse(&record) else { continue };
            if header.kind == kind::SELF_TEST {
                continue;
            }
            let command = (header.kind == kind::HELLO).then_some(payload);
            let known = self.known.entry(header.tgid).or_insert_with(|| know(header.tgid, command, &self.options));
            if !known.watched {
                if self.only.is_empty() {
                    self.kernel.list(header.tgid);
                } else {
                    self.kernel.unlist(header.tgid);
                }
                continue;
            }
            if command.is_some() {
                continue;
            }
            let process = &known.process;
            if let Todo::Mute(key, generation) = self.conns.record(&header, payload, |_| process.clone(), sink) {
                self.kernel.mute(key, generation);
            }
        }
        taken
    }

    /// Looks for new libraries and for processes that are gone.
    fn scan(&mut self, sink: &mut dyn Sink) {
        self.scanned = sys::monotonic();
        let is_named = |name: &str| LIBRARIES.iter().any(|library| library.is_named(name));
        let mut found = self.processes.scan(is_named, &self.only);
        if self.scans == 0 {
            found.new.splice(0..0, self.processes.system_libraries(is_named));
        }
        self.scans = self.scans.wrapping_add(1);
        let functions = if self.options.plain_symbols { Functions::Symbols } else { Functions::Planned };
        for candidate in found.new {
            let (shown, id, pid) = (candidate.shown.clone(), candidate.id, candidate.pid);
            match self.attachments.add(&mut self.kernel, candidate, functions) {
                (Outcome::NotTls, _) => {}
                (Outcome::Attached, _) => tracing::info!(file = shown, "attached"),
                // It left before it could be looked at: the next process with this file is asked again.
                (Outcome::Refused | Outcome::Unreadable, _) if pid.is_some_and(|pid| discover::start_time(pid).is_none()) => {
                    self.processes.forget(id);
                }
                (outcome, why) => tracing::warn!(file = shown, outcome = outcome.as_str(), why, "not attached"),
            }
        }
        for told in self.attachments.distrust(&mut self.kernel) {
            tracing::warn!("{told}");
        }
        for file in self.attachments.detach_unused(&found.mapped) {
            self.processes.forget(file);
        }
        self.bury(sink);
        self.publish();
    }

    /// Ends the connections of processes that are gone, and forgets what the kernel keeps of such.
    fn bury(&mut self, sink: &mut dyn Sink) {
        let now = sys::monotonic();
        let gone: Vec<u32> =
            self.known.iter().filter(|(pid, k)| k.started.is_none() || discover::start_time(**pid) != k.started).map(|(p, _)| *p).collect();
        if !gone.is_empty() {
            self.drain(usize::MAX, sink);
        }
        for pid in gone {
            let kernel = &self.kernel;
            let keys = self.conns.process_gone(pid, now, |key| kernel.conn(key), sink);
            keys.into_iter().for_each(|key| self.kernel.forget(key));
            self.kernel.unlist(pid);
            self.known.remove(&pid);
        }
        if self.scans.is_multiple_of(10) {
            let mut alive: FxHashMap<u32, bool> = FxHashMap::default();
            for key in self.kernel.conn_keys() {
                if !*alive.entry(key.tgid).or_insert_with(|| discover::start_time(key.tgid).is_some()) {
                    self.kernel.forget(key);
                }
            }
            let kernel = &self.kernel;
            self.conns.sweep(now, nanos(SILENT), |key| kernel.conn(key), sink);
        }
    }

    /// Makes the counters visible.
    fn publish(&self) {
        let kernel = self.kernel.counters();
        let counters = super::TapCounters {
            records: kernel.records,
            bytes: kernel.bytes,
            dropped: vec![
                ("ring_full", kernel.ring_full),
                ("unreadable", kernel.unreadable),
                ("too_long", kernel.too_long),
                ("conns_full", kernel.conns_full),
                ("calls_full", kernel.calls_full),
                ("senseless", kernel.senseless),
                ("out_of_order", self.conns.out_of_order),
            ],
            dropped_bytes: vec![
                ("ring_full", kernel.ring_full_bytes),
                ("unreadable", kernel.unreadable_bytes),
                ("too_long", kernel.too_long_bytes),
            ],
            gaps: self.conns.gaps,
            missed_start: self.conns.missed_start,
            connections: self.conns.count() as u64,
            muted: self.conns.muted(),
            attach: self.attachments.outcomes.iter().map(|(outcome, n)| (outcome.as_str(), *n)).collect(),
            fallbacks: self.attachments.fallbacks,
        };
        if let Ok(mut shared) = self.counters.lock() {
            *shared = counters;
        }
    }

    fn finish(&mut self, sink: &mut dyn Sink) {
        self.attachments.detach_all(); // so that the ring gets no more
        self.drain(usize::MAX, sink);
        let kernel = &self.kernel;
        self.conns.finish(sys::monotonic(), |key| kernel.conn(key), sink);
        self.publish();
    }
}

/// What there is to know of a process, when its first connection is seen. `told` is its command's name as the kernel side saw it,
/// padded with zeros: a process may be gone before it can be looked up.
fn know(pid: u32, told: Option<&[u8]>, options: &TlsOptions) -> Known {
    let started = discover::start_time(pid);
    let told = told.map(|name| String::from_utf8_lossy(name.split(|b| *b == 0).next().unwrap_or_default()).into_owned());
    let command = discover::command(pid).or(told).unwrap_or_default();
    let watched =
        options.include.as_ref().is_none_or(|r| r.is_match(&command)) && options.exclude.as_ref().is_none_or(|r| !r.is_match(&command));
    Known { process: Process { pid, command: command.into(), container: procfs::container(pid) }, started, watched }
}
