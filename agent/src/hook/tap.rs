//! The tap symbol: a probe on `tokengauge_tap_v1` wherever a process has it, and what comes through it.
//!
//! Files are found as those of TLS libraries are (`tap::tls::discover`): every file that a process maps with code is looked into once, which
//! costs the reading of its section headers. A ring of its own, so that a flood of events costs no plaintext and the reverse.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use rustc_hash::{FxHashMap, FxHashSet};
use tokengauge_core::hook::event::{Event, Source, Via};
use tokengauge_core::hook::raw;
use tokengauge_core::stream::Timestamp;
use tokengauge_ebpf_common::{Config, Header, SockOffsets, filter, kind};

use super::place::{self, Instruction};
use super::{Counters, HookSink};
use crate::clock::now;
use crate::tap::tls::discover::{Candidate, FileId, Processes, start_time};
use crate::tap::tls::kernel::{Attachment, Kernel, LoadOptions, Mechanism, Programs, Role};
use crate::tap::tls::{selftest, sys};
use crate::tap::{StopFlag, TapError};

/// Events handed over at once.
const BATCH: usize = 256;

/// Records taken in one go before the processes are looked at again.
const MAX_BATCH: usize = 100_000;

/// How long records may wait: their instants are the kernel's.
const POLL: Duration = Duration::from_millis(5);

/// The same, while nothing comes.
const IDLE: Duration = Duration::from_millis(50);

/// How often processes are looked at.
const SCAN: Duration = Duration::from_secs(1);

/// Processes that tell something, at most; what more of them tell is taken all the same, but their end is not noticed.
const MAX_SOURCES: usize = 16_384;

/// A file that nobody maps is let go after so many scans.
const UNUSED_SCANS: u32 = 60;

/// Calls of one try of a trial, and tries. Their records have room in the smallest ring.
const TRIAL: (u32, u32) = (100, 4);

/// What the tap is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Watch these processes only; empty: all.
    pub pids: Vec<u32>,
    /// Size of the ring buffer.
    pub ring_bytes: u32,
}

/// A file with a probe in it.
struct File {
    shown: String,
    unused: u32,
    _attachment: Attachment,
}

/// The tap. Dropping it takes the probes out.
pub struct HookTap {
    kernel: Kernel,
    ring: RingBuf<MapData>,
    cheapest: Instruction,
    files: BTreeMap<FileId, File>,
    processes: Processes,
    only: FxHashSet<u32>,
    /// Who has told something, and when it began.
    sources: FxHashMap<u32, Option<u64>>,
    unix_offset: u64,
    counters: Arc<Counters>,
    events: Vec<Event>,
    lost: u64,
}

impl HookTap {
    /// Loads the program; nothing is attached yet.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load(options: &Options, counters: Arc<Counters>) -> Result<Self, TapError> {
        let only: FxHashSet<u32> = options.pids.iter().copied().collect();
        let ring_bytes = options.ring_bytes.clamp(64 << 10, 1 << 30).next_power_of_two();
        let config = Config {
            own_tgid: if only.contains(&std::process::id()) { 0 } else { std::process::id() },
            filter: if only.is_empty() { filter::OFF } else { filter::ONLY },
            wake_bytes: u64::from(ring_bytes / 4),
            sock: SockOffsets::default(),
        };
        let (mut kernel, mut ring) = Kernel::load(&LoadOptions { programs: Programs::Hook, ring_bytes, mechanism: None, config })?;
        only.iter().for_each(|pid| kernel.list(*pid));
        let cheapest = trial(&mut kernel, &mut ring);
        tracing::info!(mechanism = kernel.mechanism().as_str(), ?cheapest, "the hook's program is loaded");
        Ok(Self {
            kernel,
            ring,
            cheapest,
            files: BTreeMap::new(),
            processes: Processes::default(),
            only,
            sources: FxHashMap::default(),
            unix_offset: sys::unix_minus_monotonic(),
            counters,
            events: Vec::with_capacity(BATCH),
            lost: 0,
        })
    }

    /// Works until `stop` is set.
    pub fn run(mut self, sink: &dyn HookSink, stop: &StopFlag) {
        let (mut scanned, mut quiet) = (now(), 0_u32);
        self.scan(sink);
        while !stop.is_set() {
            sys::wait_readable(&self.ring, if quiet > 200 { IDLE } else { POLL });
            let taken = self.drain(sink);
            quiet = if taken == 0 { quiet.saturating_add(1) } else { 0 };
            if now().saturating_duration_since(scanned) >= SCAN {
                scanned = now();
                self.scan(sink);
            }
        }
        self.files.clear(); // so that the ring gets no more
        self.drain(sink);
        self.publish();
    }

    /// Hands over what is there.
    fn drain(&mut self, sink: &dyn HookSink) -> usize {
        let (mut taken, mut good, mut looked) = (0, 0, 0);
        while taken < MAX_BATCH {
            let Some(record) = self.ring.next() else { break };
            taken += 1;
            let Some((header, payload)) = Header::parse(&record) else { continue };
            if header.kind != kind::HOOK {
                continue;
            }
            let at = Timestamp::from_unix_nanos(header.at.saturating_add(self.unix_offset));
            let event = raw::read(payload, at, Source { via: Via::Tap, pid: header.tgid, connection: 0 });
            drop(record);
            // Whatever the ring had no room for before this record was counted by now.
            if header.at > looked {
                looked = sys::monotonic();
                self.losses(sink);
            }
            if self.sources.len() < MAX_SOURCES {
                self.sources.entry(header.tgid).or_insert_with(|| start_time(header.tgid));
            }
            match event {
                Ok(event) => {
                    good += 1;
                    self.events.push(event);
                    if self.events.len() >= BATCH {
                        self.hand_over(sink);
                    }
                }
                Err(why) => self.counters.bad(Via::Tap, why, 1),
            }
        }
        self.hand_over(sink);
        self.counters.taken(Via::Tap, good);
        taken
    }

    fn hand_over(&mut self, sink: &dyn HookSink) {
        if !self.events.is_empty() {
            sink.take(&self.events);
            self.events.clear();
        }
    }

    /// What the ring had no room for is a hole in whatever is open: it is announced between the events before it and those behind it.
    fn losses(&mut self, sink: &dyn HookSink) {
        let kernel = self.kernel.counters();
        let lost = kernel.ring_full + kernel.unreadable;
        if lost > self.lost {
            self.lost = lost;
            self.hand_over(sink);
            sink.lost(Source { via: Via::Tap, pid: 0, connection: 0 });
        }
    }

    /// Looks for new files and for processes that are gone.
    fn scan(&mut self, sink: &dyn HookSink) {
        let found = self.processes.scan(|_| true, &self.only);
        for candidate in found.new {
            self.look(candidate);
        }
        let mut gone = Vec::new();
        self.files.retain(|id, file| {
            file.unused = if found.mapped.contains_key(id) { 0 } else { file.unused + 1 };
            let stays = file.unused < UNUSED_SCANS;
            if !stays {
                tracing::debug!(file = file.shown, "nobody maps it any more");
                gone.push(*id);
            }
            stays
        });
        gone.into_iter().for_each(|id| self.processes.forget(id));
        let ended: Vec<u32> =
            self.sources.iter().filter(|(pid, began)| began.is_none() || start_time(**pid) != **began).map(|(pid, _)| *pid).collect();
        if !ended.is_empty() {
            self.drain(sink);
        }
        for pid in ended {
            self.sources.remove(&pid);
            sink.gone(Source { via: Via::Tap, pid, connection: 0 });
        }
        self.publish();
    }

    /// Puts a probe into a file that has the symbol.
    fn look(&mut self, candidate: Candidate) {
        let own = candidate.pid == Some(std::process::id()) && self.only.is_empty();
        if own || self.files.contains_key(&candidate.id) {
            return;
        }
        let library = candidate.shown.rsplit('/').next().is_some_and(|name| name.contains(".so"));
        let Ok(sites) = place::places(&candidate.open, !library) else {
            // Gone or unreadable: the next process with this file is asked again.
            return self.processes.forget(candidate.id);
        };
        let Some(site) = place::best(&sites, self.cheapest) else { return };
        match self.kernel.attach(Role::HookTap, &candidate.open, &[(site.offset, 0)]) {
            Ok(attachment) => {
                self.counters.attached.fetch_add(1, Ordering::Relaxed);
                tracing::info!(file = candidate.shown, instruction = ?site.instruction, "attached to the hook");
                self.files.insert(candidate.id, File { shown: candidate.shown, unused: 0, _attachment: attachment });
            }
            Err(why) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(file = candidate.shown, %why, "the hook is not attached");
            }
        }
    }

    /// Makes the kernel's counters visible.
    fn publish(&self) {
        let kernel = self.kernel.counters();
        self.counters.kernel(&kernel);
        self.counters.sources(Via::Tap, self.sources.len());
    }
}

/// Which nop a probe is cheapest on, on this machine and kernel: tried on the agent's own copy of the function. A place where probes are never
/// hit is no place, however quick a call is then: kernels refuse to probe the longest nop, or take it without effect.
fn trial(kernel: &mut Kernel, ring: &mut RingBuf<MapData>) -> Instruction {
    let sites = place::places(Path::new("/proc/self/exe"), true).unwrap_or_default();
    let mut event = tokengauge_tap::Event::of("trial");
    let mut best = None;
    for site in sites {
        let Ok(attached) = kernel.attach(Role::SelfTest, Path::new("/proc/self/exe"), &[(site.offset, 0)]) else { continue };
        // The first hits are dearer: the kernel makes a call of the nop then, where it can. The quickest of several tries is told.
        let tried = (0..TRIAL.1).map(|_| {
            let began = now();
            (0..TRIAL.0).for_each(|_| event.tell(tokengauge_tap::Kind::Queued));
            now().saturating_duration_since(began)
        });
        let took = tried.min().unwrap_or(Duration::MAX);
        drop(attached);
        let mut hits = 0;
        while ring.next().is_some() {
            hits += 1;
        }
        tracing::debug!(instruction = ?site.instruction, hits, ns = took.as_nanos() / u128::from(TRIAL.0), "a probe of the hook, each call");
        if hits >= TRIAL.0 * TRIAL.1 && best.is_none_or(|(_, least)| took < least) {
            best = Some((site.instruction, took));
        }
    }
    best.map_or(Instruction::Nop(1), |(instruction, _)| instruction)
}

/// Whether a probe on the symbol works here, by an event of this process that is received. For `doctor`.
///
/// # Errors
/// With what went wrong, in words.
pub fn self_test() -> Result<(), String> {
    receive(None)
}

fn receive(mechanism: Option<Mechanism>) -> Result<(), String> {
    let options =
        LoadOptions { programs: Programs::Hook, ring_bytes: 64 << 10, mechanism, config: Config { wake_bytes: 0, ..Config::default() } };
    let (mut kernel, mut ring) = Kernel::load(&options).map_err(|e| e.to_string())?;
    let (path, offset) = selftest::own_place(tokengauge_tap::address()).ok_or("own executable not found in /proc/self/maps")?;
    let _attached = kernel.attach(Role::HookTap, &path, &[(offset, 0)]).map_err(|e| e.to_string())?;
    tokengauge_tap::Event::of("self-test").tell(tokengauge_tap::Kind::Received);
    for _ in 0..20 {
        while let Some(record) = ring.next() {
            let source = Source { via: Via::Tap, pid: std::process::id(), connection: 0 };
            let read = |(_, payload): (Header, &[u8])| raw::read(payload, Timestamp::default(), source).ok();
            if Header::parse(&record).and_then(read).is_some_and(|event| event.request.as_str() == "self-test") {
                return Ok(());
            }
        }
        sys::wait_readable(&ring, Duration::from_millis(5));
    }
    Err("attached, but no event was received".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_received_or_the_reason_is_known() {
        for mechanism in [None, Some(Mechanism::UprobeMulti), Some(Mechanism::PerfUprobe)] {
            if let Err(why) = receive(mechanism) {
                assert!(std::env::var_os("TOKENGAUGE_REQUIRE_BPF").is_none(), "{mechanism:?}: {why}");
                eprintln!("skipped: {mechanism:?}: {why}");
            }
        }
    }

    #[test]
    fn the_trial_takes_a_place_that_is_hit() {
        let options = LoadOptions { programs: Programs::Hook, ring_bytes: 64 << 10, mechanism: None, config: Config::default() };
        let Ok((mut kernel, mut ring)) = Kernel::load(&options) else { return eprintln!("skipped: see the test above") };
        let cheapest = trial(&mut kernel, &mut ring);
        let sites = place::places(Path::new("/proc/self/exe"), true).unwrap();
        let site = place::best(&sites, cheapest).unwrap();
        assert_eq!(site.instruction, cheapest);
        let _attached = kernel.attach(Role::SelfTest, Path::new("/proc/self/exe"), &[(site.offset, 7)]).unwrap();
        tokengauge_tap::Event::of("trial").tell(tokengauge_tap::Kind::Queued);
        let hit = ring.next().and_then(|record| Header::parse(&record).map(|(header, _)| header.ssl));
        assert_eq!(hit, Some(7));
    }

    #[test]
    fn both_sides_mean_one_structure() {
        use tokengauge_ebpf_common::hook;
        assert_eq!((hook::VERSION, hook::FIXED, hook::MAX), (tokengauge_core::hook::VERSION, raw::FIXED, raw::MAX));
        assert_eq!((tokengauge_tap::VERSION, tokengauge_tap::FIXED), (hook::VERSION, hook::FIXED));
        const { assert!(tokengauge_tap::FIXED + 2 * tokengauge_tap::NAME <= hook::MAX) };
    }
}
