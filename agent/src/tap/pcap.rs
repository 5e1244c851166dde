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
use tokengauge_core::tcp::{Assembler, Counters, Hint, Limits, LinkType, Segment, Skip};

use super::Sink;

mod file;
pub mod format;
mod live;
mod map;

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

/// Which part of a capture's connections a tap takes, when several read the same capture side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Which part, from 0.
    pub number: u32,
    /// Of how many.
    pub of: u32,
}

impl Share {
    /// All connections.
    pub const ALL: Self = Self { number: 0, of: 1 };
}

/// A captured frame where it was read.
#[derive(Clone, Copy)]
struct Frame<'f> {
    at: Timestamp,
    link: Option<LinkType>,
    bytes: &'f [u8],
    original: u32,
}

impl<'f> Frame<'f> {
    #[inline]
    fn parse(&self) -> Result<Segment<'f>, Skip> {
        self.link.ok_or(Skip::UnsupportedLink).and_then(|link| parse(link, self.bytes, self.original))
    }
}

/// Frames that are looked up together: their connections' memory is waited for at the same time. Eight are too few to hide the wait,
/// from 32 on the lines that were fetched first are gone again when 2,000 connections take turns.
const BATCH: usize = 16;

/// Frames in, events out: what file and live capture share.
struct Driver<'a> {
    assembler: Assembler,
    sink: &'a mut dyn Sink,
    stats: PcapStats,
    share: Share,
    /// The latest instant of a packet.
    latest: Timestamp,
    next_tick: Timestamp,
}

impl<'a> Driver<'a> {
    fn new(limits: Limits, sink: &'a mut dyn Sink, stats: PcapStats) -> Self {
        let zero = Timestamp::default();
        Self { assembler: Assembler::new(limits), sink, stats, share: Share::ALL, latest: zero, next_tick: zero }
    }

    /// One frame.
    fn frame(&mut self, frame: &Frame<'_>) {
        match frame.parse() {
            Ok(segment) => self.segment(frame.at, &segment, Hint::NONE),
            Err(reason) => self.skip(frame.at, reason),
        }
    }

    /// At most [`BATCH`] frames, in order. All are looked up first; to read their headers twice is cheaper than to keep what they say.
    #[inline]
    fn frames(&mut self, frames: &[Frame<'_>]) {
        let mut hints = [None; BATCH];
        for (frame, hint) in frames.iter().zip(&mut hints) {
            let Ok(segment) = frame.parse() else { continue };
            let route = self.assembler.route(&segment);
            let Share { number, of } = self.share;
            if of > 1 && route.share(of) != number {
                continue;
            }
            let (near, conn) = self.assembler.locate(&route);
            *hint = Some(near);
            if let Some(conn) = conn {
                self.sink.soon(conn);
            }
        }
        for (frame, hint) in frames.iter().zip(hints) {
            match (frame.parse(), hint) {
                (Ok(segment), Some(near)) => self.segment(frame.at, &segment, near),
                (Err(reason), _) if self.share.number == 0 => self.skip(frame.at, reason),
                _ => {
                    self.time(frame.at);
                    self.assembler.pass();
                }
            }
        }
    }

    #[inline]
    fn segment(&mut self, at: Timestamp, segment: &Segment<'_>, near: Hint) {
        self.time(at);
        let sink = &mut *self.sink;
        self.assembler.push_near(at, segment, near, &mut |event| sink.event(event));
    }

    fn skip(&mut self, at: Timestamp, reason: Skip) {
        self.time(at);
        self.assembler.skip(reason);
    }

    #[inline]
    fn time(&mut self, at: Timestamp) {
        if at > self.latest {
            self.latest = at;
            if at >= self.next_tick {
                self.tick(at);
            }
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
