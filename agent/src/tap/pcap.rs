//! Captured packets, live and from files.
//!
//! A file is read by our own reader ([`format`]), in place: libpcap costs a call per packet, takes a copy of each, and does not say
//! at which byte a damaged file is damaged. Live capture is libpcap's ([`LiveTap`]).
//!
//! Both run the same [`Assembler`]; what it counted is published ten times a second of capture time in [`PcapStats`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokengauge_core::stream::Timestamp;
use tokengauge_core::tcp::packet::parse;
use tokengauge_core::tcp::{Assembler, Counters, Limits, LinkType, Skip};

use super::Sink;

mod file;
pub mod format;
mod live;

pub use file::FileTap;
pub use live::{LiveOptions, LiveTap};

/// How often capture time is told to the assembler and the sink.
const TICK: Duration = Duration::from_millis(100);

/// What a packet tap counted so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PcapSnapshot {
    /// Packets, gaps, connections.
    pub tcp: Counters,
    /// Connections remembered at the moment.
    pub remembered: u64,
    /// Bytes that wait behind holes at the moment, overhead included.
    pub buffered: u64,
    /// Live: packets for which the kernel's buffer had no room. It misses losses: the gaps are the measure (facts/capture.md §3).
    pub kernel_dropped: u64,
    /// Live: packets dropped by the interface or its driver.
    pub interface_dropped: u64,
}

/// Shared counters of one tap: the tap writes, the agent's vitals read.
#[derive(Clone, Default, Debug)]
pub struct PcapStats(Arc<Mutex<PcapSnapshot>>);

impl PcapStats {
    /// The latest figures.
    pub fn snapshot(&self) -> PcapSnapshot {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, update: impl FnOnce(&mut PcapSnapshot)) {
        update(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Frames in, events out: what file and live capture share.
struct Driver<'a> {
    assembler: Assembler,
    sink: &'a mut dyn Sink,
    stats: PcapStats,
    /// The latest instant of a packet.
    latest: Timestamp,
    next_tick: Timestamp,
}

impl<'a> Driver<'a> {
    fn new(limits: Limits, sink: &'a mut dyn Sink, stats: PcapStats) -> Self {
        let zero = Timestamp::default();
        Self { assembler: Assembler::new(limits), sink, stats, latest: zero, next_tick: zero }
    }

    #[inline]
    fn frame(&mut self, at: Timestamp, link: Option<LinkType>, frame: &[u8], original: u32) {
        if at > self.latest {
            self.latest = at;
            if at >= self.next_tick {
                self.tick(at);
            }
        }
        match link.ok_or(Skip::UnsupportedLink).and_then(|link| parse(link, frame, original)) {
            Ok(segment) => {
                let sink = &mut *self.sink;
                self.assembler.push(at, &segment, &mut |event| sink.event(event));
            }
            Err(reason) => self.assembler.skip(reason),
        }
    }

    #[cold]
    fn tick(&mut self, now: Timestamp) {
        self.next_tick = now.plus(TICK);
        let sink = &mut *self.sink;
        self.assembler.tick(now, &mut |event| sink.event(event));
        self.sink.tick(now);
        self.publish();
    }

    fn publish(&self) {
        self.stats.publish(|stats| {
            stats.tcp = *self.assembler.counters();
            stats.remembered = self.assembler.remembered() as u64;
            stats.buffered = self.assembler.buffered() as u64;
        });
    }

    /// Closes what is open; the instant is the last one seen.
    fn finish(mut self) {
        let sink = &mut *self.sink;
        self.assembler.finish(self.latest, &mut |event| sink.event(event));
        self.publish();
    }
}
