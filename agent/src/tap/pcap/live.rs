//! Live capture through libpcap.
//!
//! libpcap hands packets over in blocks that the kernel closes when they are full or [`BLOCK`] after their first packet. So what is
//! captured is complete only up to some instant in the past, and ticks tell that instant, not the present. Time stamps are the kernel's.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap::{Active, Capture, Error, Precision};
use tokengauge_core::stream::{TapKind, Timestamp};
use tokengauge_core::tcp::{Limits, LinkType};

use crate::tap::{Sink, StopFlag, Tap, TapError};

use super::{Driver, Frame, PcapStats, TICK};

/// How long the kernel may keep a block that is not full.
const BLOCK: Duration = Duration::from_millis(40);
/// Packets older than this have been handed over, unless we are overrun.
const LAG: Duration = Duration::from_millis(100);
/// Packets between two looks at the clock and the stop flag.
const BATCH: usize = 1024;

/// What to capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveOptions {
    /// An interface, or `any`.
    pub interface: String,
    /// A filter in libpcap's language.
    pub filter: String,
    /// The kernel's buffer in bytes. libpcap's default of 2 MiB loses packets without saying so (facts/capture.md §3).
    pub buffer: usize,
    /// Bytes kept of each packet.
    pub snaplen: usize,
    /// Whether to ask for packets that are not for this host.
    pub promiscuous: bool,
    /// The assembler's bounds; the hash seed is chosen at random.
    pub limits: Limits,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            interface: "any".into(),
            filter: "tcp".into(),
            buffer: 16 << 20,
            snaplen: 262_144,
            promiscuous: false,
            limits: Limits::default(),
        }
    }
}

/// Captures on an interface.
pub struct LiveTap {
    interface: String,
    capture: Capture<Active>,
    limits: Limits,
    stats: PcapStats,
    /// Nanoseconds per unit of the stamps' fraction.
    unit: u64,
}

impl LiveTap {
    /// Begins to capture; the packets wait in the kernel's buffer until [`Tap::run`].
    ///
    /// # Errors
    /// [`TapError::Interface`] with what libpcap said: no such interface, no permission, a filter that it does not understand.
    pub fn open(options: &LiveOptions) -> Result<Self, TapError> {
        let interface = options.interface.clone();
        let refused = |error: Error| TapError::Interface { interface: interface.clone(), what: error.to_string() };
        let int = |value: usize| i32::try_from(value).unwrap_or(i32::MAX);
        let inactive = Capture::from_device(interface.as_str())
            .map_err(refused)?
            .buffer_size(int(options.buffer))
            .snaplen(int(options.snaplen))
            .promisc(options.promiscuous)
            .timeout(int(BLOCK.as_millis() as usize));
        // libpcap keeps microseconds when an interface has no better, and does not tell through this crate: packet sockets always do
        let nanos = cfg!(target_os = "linux");
        let inactive = if nanos { inactive.precision(Precision::Nano) } else { inactive };
        let mut capture = inactive.open().and_then(Capture::setnonblock).map_err(refused)?;
        capture.filter(&options.filter, true).map_err(refused)?;
        let link = capture.get_datalink();
        if u32::try_from(link.0).ok().and_then(LinkType::from_number).is_none() {
            let what = format!("its link layer (DLT {}) cannot be read", link.0);
            return Err(TapError::Interface { interface, what });
        }
        let limits = Limits { hash_seed: RandomState::new().hash_one(0u8), ..options.limits };
        Ok(Self { interface, capture, limits, stats: PcapStats::default(), unit: if nanos { 1 } else { 1000 } })
    }

    /// Counters that go on counting while the tap runs.
    pub fn stats(&self) -> PcapStats {
        self.stats.clone()
    }

    fn capture(&mut self, driver: &mut Driver<'_>, stop: &StopFlag) -> Result<(), TapError> {
        let link = u32::try_from(self.capture.get_datalink().0).ok().and_then(LinkType::from_number);
        let mut ticked = Timestamp::default();
        while !stop.is_set() {
            let mut idle = false;
            for _ in 0..BATCH {
                match self.capture.next_packet() {
                    Ok(packet) => {
                        let ts = packet.header.ts;
                        let (seconds, fraction) = (ts.tv_sec.try_into().unwrap_or(0u64), ts.tv_usec.try_into().unwrap_or(0u64));
                        let at = Timestamp::from_unix_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(fraction * self.unit));
                        driver.frame(&Frame { at, link, bytes: packet.data, original: packet.header.len });
                    }
                    Err(Error::TimeoutExpired) => {
                        idle = true;
                        break;
                    }
                    Err(Error::NoMorePackets) => return Ok(()),
                    Err(error) => return Err(TapError::Interface { interface: self.interface.clone(), what: error.to_string() }),
                }
            }
            let now = now();
            if now.since(ticked) >= TICK / 2 || now < ticked {
                ticked = now;
                let complete = Timestamp::from_unix_nanos(now.unix_nanos().saturating_sub(LAG.as_nanos() as u64));
                driver.tick(complete.max(driver.latest.min(now)));
                if let Ok(stat) = self.capture.stats() {
                    self.stats.publish(|stats| {
                        stats.kernel_dropped = stat.dropped.into();
                        stats.interface_dropped = stat.if_dropped.into();
                    });
                }
            }
            if idle {
                wait(self.capture.as_raw_fd());
            }
        }
        Ok(())
    }
}

impl Tap for LiveTap {
    fn kind(&self) -> TapKind {
        TapKind::Pcap
    }

    fn run(mut self: Box<Self>, sink: &mut dyn Sink, stop: &StopFlag) -> Result<(), TapError> {
        let mut driver = Driver::new(self.limits, sink, self.stats.clone());
        let result = self.capture(&mut driver, stop);
        driver.finish();
        result
    }
}

#[allow(clippy::disallowed_methods, reason = "a live tap stamps its ticks")]
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::default().plus(since)
}

/// Waits until there may be packets, at most half a tick. libpcap's own waiting has no end on an interface where nothing happens.
#[allow(unsafe_code, reason = "poll(2) has no safe form in the standard library")]
fn wait(fd: std::os::fd::RawFd) {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, alive for the call; an interrupted or failed wait only means that we look again
    unsafe { libc::poll(&raw mut poll, 1, TICK.as_millis() as libc::c_int / 2) };
}
