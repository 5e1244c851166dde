//! What stands between a tap and the rest: the tap's own [`Pipeline`], on the tap's own thread, without a lock or a queue.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokengauge_core::inference::Inference;
use tokengauge_core::pipeline::{Options, Pipeline, PipelineStats};
use tokengauge_core::stats::snapshot::Counter;
use tokengauge_core::stream::{ConnId, StreamEvent, Timestamp, Verdict};

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

/// What the driver tells of: finished inferences, and how far the pipeline is.
pub trait Progress {
    /// A finished inference.
    fn inference(&mut self, inference: Inference);

    /// About ten times a second of the tap's time, and at the end. `stats` walks the open connections: call it when it is needed.
    fn tick(&mut self, stats: &dyn Fn() -> PipelineStats);
}

/// The [`Sink`] of every tap.
pub struct Driver<P> {
    pipeline: Pipeline,
    finished: Vec<Inference>,
    ticked: Option<Timestamp>,
    progress: P,
}

impl<P: Progress> Driver<P> {
    /// A driver with a pipeline of its own.
    pub fn new(options: Options, progress: P) -> Self {
        Self { pipeline: Pipeline::new(options), finished: Vec::new(), ticked: None, progress }
    }

    /// Call when the tap has returned: hands over what is left.
    pub fn finish(mut self) -> (PipelineStats, P) {
        self.hand_over();
        self.progress.tick(&|| self.pipeline.stats());
        (self.pipeline.stats(), self.progress)
    }

    fn hand_over(&mut self) {
        self.finished.drain(..).for_each(|i| self.progress.inference(i));
    }
}

impl<P: Progress> Sink for Driver<P> {
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
        let (at, verdict) = match event {
            StreamEvent::Data { conn, dir, at, bytes } => (Some(at), self.pipeline.data(conn, dir, at, bytes, &mut self.finished)),
            StreamEvent::Open { at, .. } | StreamEvent::Gap { at, .. } | StreamEvent::Close { at, .. } => {
                (Some(at), self.pipeline.push(event, &mut self.finished))
            }
            StreamEvent::Identified { .. } => (None, self.pipeline.push(event, &mut self.finished)),
        };
        if !self.finished.is_empty() {
            self.hand_over();
        }
        // A tap that is never idle never ticks.
        if let Some(at) = at
            && self.ticked.is_none_or(|t| at.since(t) >= TICK)
        {
            self.tick(at);
        }
        verdict
    }

    fn soon(&self, conn: ConnId) {
        self.pipeline.soon(conn);
    }

    fn tick(&mut self, now: Timestamp) {
        self.ticked = Some(now);
        self.pipeline.tick(now, &mut self.finished);
        self.hand_over();
        self.progress.tick(&|| self.pipeline.stats());
    }
}
