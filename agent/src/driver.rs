//! What stands between a tap and the rest: the tap's own [`Pipeline`], on the tap's own thread, without a lock or a queue.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokengauge_core::inference::Inference;
use tokengauge_core::pipeline::{Options, Pipeline, PipelineStats};
use tokengauge_core::stats::snapshot::Counter;
use tokengauge_core::stream::{ConnId, Direction, StreamEvent, Timestamp, Verdict};
use tokengauge_core::tenant::Tenants;
use tokengauge_core::tls::{self, Decrypt, KeyLog};

use crate::tap::{Sink, Tap};

/// How often a busy tap lets its pipeline notice time-outs and publishes what it counted.
const TICK: Duration = Duration::from_millis(100);

/// A tap, ready to run, and a way to read what it counts itself while it runs.
pub struct Source {
    /// The file, interface or method, for messages.
    pub name: String,
    /// The tap.
    pub tap: Box<dyn Tap>,
    /// Reads the tap's own counters (packets, records, drops, attaches); may be called from any thread, at any time.
    pub counters: Probe,
    /// Bytes read so far, where the source is a file.
    pub progress: Option<Arc<AtomicU64>>,
}

/// Reads a tap's own counters.
pub type Probe = Box<dyn Fn() -> Vec<Counter> + Send + Sync>;

impl Source {
    /// A tap that counts nothing itself.
    pub fn new(name: impl Into<String>, tap: Box<dyn Tap>) -> Self {
        Self::with_counters(name, tap, Box::new(Vec::new))
    }

    /// A tap with its counters.
    pub fn with_counters(name: impl Into<String>, tap: Box<dyn Tap>, counters: Probe) -> Self {
        Self { name: name.into(), tap, counters, progress: None }
    }
}

/// A place in the order of what a capture yields: the frame's number and the step (see [`Sink::at`]), a number for the kinds of what the
/// passing of time ends, the connection. Whatever has the same place comes from one tap, in its order.
pub type Order = (u64, u8, u8, ConnId);

/// What the driver tells of: finished inferences, and how far the pipeline is.
pub trait Progress {
    /// Where in the order of its capture the next inferences stand; said only where several taps share a capture.
    fn order(&mut self, _order: Order) {}

    /// A finished inference.
    fn inference(&mut self, inference: Inference);

    /// An event of this instant of the tap's clock has just been handled; said of some of them, and of the first after each [`Progress::tick`].
    fn reached(&mut self, _at: Timestamp) {}

    /// About ten times a second of the tap's time, and at the end. `stats` walks the open connections: call it when it is needed.
    fn tick(&mut self, stats: &dyn Fn() -> PipelineStats);
}

/// The [`Sink`] of every tap.
pub struct Driver<P> {
    pipeline: Pipeline,
    /// Between the tap and the pipeline, where there are secrets.
    decrypt: Option<Box<Decrypt>>,
    finished: Vec<Inference>,
    ticked: Option<Timestamp>,
    /// What the tap said last with [`Sink::at`].
    place: (u64, u8),
    /// Events until the tap's lag is looked at again: a clock costs more than an event.
    until_look: u32,
    progress: P,
}

/// Events between two looks at how far a busy tap is behind; each tick begins anew with the next one.
const LOOK_EVERY: u32 = 64;

impl<P: Progress> Driver<P> {
    /// A driver with a pipeline of its own.
    pub fn new(options: Options, progress: P) -> Self {
        Self { pipeline: Pipeline::new(options), decrypt: None, finished: Vec::new(), ticked: None, place: (0, 0), until_look: 0, progress }
    }

    /// Decrypts TLS connections whose secrets are in `keys`, if there are any.
    #[must_use]
    pub fn decrypting(mut self, keys: Option<Arc<KeyLog>>) -> Self {
        self.decrypt = keys.map(|keys| Box::new(Decrypt::new(keys)));
        self
    }

    /// Says whose requests are.
    #[must_use]
    pub fn naming(mut self, tenants: Option<Arc<Tenants>>) -> Self {
        self.pipeline = self.pipeline.naming(tenants);
        self
    }

    /// What was decrypted so far; `None` when no secrets were given.
    pub fn decrypted(&self) -> Option<tls::Counters> {
        self.decrypt.as_ref().map(|stage| *stage.counters())
    }

    /// Call when the tap has returned: hands over what is left.
    pub fn finish(mut self) -> (PipelineStats, P) {
        self.progress.tick(&|| stats(&self.pipeline, self.decrypt.as_deref()));
        (stats(&self.pipeline, self.decrypt.as_deref()), self.progress)
    }

    /// An event that is perhaps of a TLS connection; its instant, and the verdict.
    #[inline(never)]
    fn decrypt(&mut self, event: StreamEvent<'_>) -> (Option<Timestamp>, Verdict) {
        let at = match &event {
            StreamEvent::Open { at, .. } | StreamEvent::Data { at, .. } | StreamEvent::Gap { at, .. } | StreamEvent::Close { at, .. } => {
                Some(*at)
            }
            StreamEvent::Identified { .. } => None,
        };
        let Self { pipeline, finished, decrypt, .. } = self;
        let mut sink = |event: StreamEvent<'_>| pipeline.push(event, finished);
        (at, decrypt.as_mut().map_or(Verdict::Watch, |stage| stage.push(event, &mut sink)))
    }

    /// What follows from an event.
    #[inline]
    fn after(&mut self, conn: ConnId, at: Option<Timestamp>) {
        if !self.finished.is_empty() {
            self.hand_over(0, conn);
        }
        if let Some(at) = at {
            match self.until_look.checked_sub(1) {
                Some(left) => self.until_look = left,
                None => {
                    self.until_look = LOOK_EVERY;
                    self.progress.reached(at);
                }
            }
        }
        // A tap that is never idle never ticks.
        if let Some(at) = at
            && self.ticked.is_none_or(|t| at.since(t) >= TICK)
        {
            self.tick(at);
        }
    }

    fn hand_over(&mut self, kind: u8, conn: ConnId) {
        let (frame, step) = self.place;
        self.progress.order((frame, step, kind, conn));
        self.finished.drain(..).for_each(|i| self.progress.inference(i));
    }
}

impl<P: Progress> Sink for Driver<P> {
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
        let conn = event.conn();
        let (at, verdict) = match event {
            _ if self.decrypt.is_some() => self.decrypt(event),
            StreamEvent::Data { conn, dir, at, bytes } => (Some(at), self.pipeline.data(conn, dir, at, bytes, &mut self.finished)),
            StreamEvent::Open { at, .. } | StreamEvent::Gap { at, .. } | StreamEvent::Close { at, .. } => {
                (Some(at), self.pipeline.push(event, &mut self.finished))
            }
            StreamEvent::Identified { .. } => (None, self.pipeline.push(event, &mut self.finished)),
        };
        self.after(conn, at);
        verdict
    }

    fn at(&mut self, frame: u64, step: u8) {
        self.place = (frame, step);
    }

    #[inline]
    fn data(&mut self, tag: &mut u32, conn: ConnId, dir: Direction, at: Timestamp, bytes: &[u8]) -> Verdict {
        if self.decrypt.is_some() {
            return self.event(StreamEvent::Data { conn, dir, at, bytes });
        }
        let verdict = self.pipeline.tagged(tag, conn, dir, at, bytes, &mut self.finished);
        self.after(conn, Some(at));
        verdict
    }

    fn soon(&self, conns: &[(ConnId, u32)]) {
        self.pipeline.soon(conns);
    }

    fn secrets(&mut self, key_log: &[u8]) {
        self.decrypt.get_or_insert_default().secrets(key_log);
    }

    fn tick(&mut self, now: Timestamp) {
        self.ticked = Some(now);
        for overdue in self.pipeline.overdue(now) {
            self.pipeline.give_up(&overdue, now, &mut self.finished);
            self.hand_over(overdue.what.kind(), overdue.conn);
        }
        self.until_look = 0;
        self.progress.tick(&|| stats(&self.pipeline, self.decrypt.as_deref()));
    }
}

/// What the pipeline and the stage before it counted.
fn stats(pipeline: &Pipeline, decrypt: Option<&Decrypt>) -> PipelineStats {
    let mut stats = pipeline.stats();
    if let Some(stage) = decrypt {
        stats.anomalies.add(stage.anomalies());
    }
    stats
}
