//! Captured packets, live and from files.
//!
//! A file is read by our own reader ([`format`]), in place: libpcap costs a call per packet, takes a copy of each, and does not say
//! at which byte a damaged file is damaged. Live capture is libpcap's ([`LiveTap`]).
//!
//! Both run the same [`Assembler`]; what it counted is published ten times a second of capture time in [`PcapStats`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokengauge_core::stream::{ConnId, Timestamp};
use tokengauge_core::tcp::packet::parse;
use tokengauge_core::tcp::{Assembler, Counters, Limits, LinkType, Seen, Segment, Skip};

use super::Sink;

mod blocks;
mod file;
pub mod format;
mod live;

pub use blocks::Blocks;
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
#[derive(Clone, Debug)]
pub struct Share {
    /// Which part, from 0.
    pub number: u32,
    /// Of how many.
    pub of: u32,
    /// What all of them read, where it is one file that they read together.
    pub blocks: Option<Arc<Blocks>>,
}

impl Share {
    /// All connections.
    pub const ALL: Self = Self { number: 0, of: 1, blocks: None };
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

/// What is done for a frame, in this order.
#[derive(Clone, Copy)]
enum Step {
    Expire,
    Sweep,
    Tick,
    Frame,
    End,
}

/// What a frame of a batch is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// Perhaps the next segment of a connection.
    Seen,
    /// Anything else.
    Other,
    /// Another share's.
    Foreign,
}

/// Frames that are handed on together, and what was found out about each.
struct Batch<'f> {
    frames: [Frame<'f>; BATCH],
    len: usize,
    looked: [Looked; BATCH],
    seen: [Seen<'f>; BATCH],
}

impl<'f> Batch<'f> {
    fn new() -> Self {
        let none = Frame { at: Timestamp::default(), link: None, bytes: &[], original: 0 };
        Self { frames: [none; BATCH], len: 0, looked: [Looked::Other; BATCH], seen: [Seen::default(); BATCH] }
    }

    fn is_full(&self) -> bool {
        self.len == BATCH
    }

    #[inline]
    fn push(&mut self, frame: Frame<'f>) {
        if let Some(place) = self.frames.get_mut(self.len) {
            *place = frame;
            self.len += 1;
        }
    }
}

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
        self.time(frame.at);
        self.place(Step::Frame);
        match frame.parse() {
            Ok(segment) => {
                let sink = &mut *self.sink;
                self.assembler.push(frame.at, &segment, &mut |event| sink.event(event));
            }
            Err(reason) => self.assembler.skip(reason),
        }
    }

    fn secrets(&mut self, key_log: &[u8]) {
        self.sink.secrets(key_log);
    }

    /// The frames of a batch, in order. All are looked at first; the few that are no plain next segment are read again.
    #[inline]
    fn frames(&mut self, batch: &mut Batch<'_>) {
        let Batch { frames, len, looked, seen } = batch;
        let Share { number, of, .. } = self.share;
        let frames = &frames[..std::mem::take(len)];
        for ((frame, looked), seen) in frames.iter().zip(&mut *looked).zip(&mut *seen) {
            *looked = match frame.parse() {
                Ok(segment) => {
                    let route = self.assembler.route(&segment);
                    match of > 1 && route.share(of) != number {
                        true => Looked::Foreign,
                        false if self.assembler.near(&segment, &route, seen) => Looked::Seen,
                        false => Looked::Other,
                    }
                }
                Err(_) if number > 0 => Looked::Foreign,
                Err(_) => Looked::Other,
            };
        }
        let (mut soon, mut known) = ([(ConnId::default(), 0); BATCH], 0);
        for ((_, looked), seen) in frames.iter().zip(&mut *looked).zip(&mut *seen) {
            if *looked == Looked::Seen {
                if self.assembler.look(seen) {
                    (soon[known], known) = ((seen.id, seen.tag), known + 1);
                } else {
                    *looked = Looked::Other;
                }
            }
        }
        self.sink.soon(&soon[..known]);
        for ((frame, looked), seen) in frames.iter().zip(&*looked).zip(&*seen) {
            match looked {
                Looked::Seen => {
                    self.time(frame.at);
                    self.place(Step::Frame);
                    let sink = &mut *self.sink;
                    if !self.assembler.push_seen(frame.at, seen, |tag, conn, dir, bytes| sink.data(tag, conn, dir, frame.at, bytes)) {
                        self.frame(frame);
                    }
                }
                Looked::Other => self.frame(frame),
                Looked::Foreign => {
                    self.time(frame.at);
                    self.assembler.pass();
                }
            }
        }
    }

    /// Says where in the capture we are, when others read other shares of it.
    #[inline]
    fn place(&mut self, step: Step) {
        if self.share.of > 1 {
            self.sink.at(self.assembler.frames(), step as u8);
        }
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
        self.place(Step::Expire);
        let sink = &mut *self.sink;
        self.assembler.expire(now, &mut |event| sink.event(event));
        self.place(Step::Sweep);
        let sink = &mut *self.sink;
        self.assembler.sweep(now, &mut |event| sink.event(event));
        self.place(Step::Tick);
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
        self.place(Step::End);
        let sink = &mut *self.sink;
        self.assembler.finish(self.latest, &mut |event| sink.event(event));
        self.publish();
    }
}
