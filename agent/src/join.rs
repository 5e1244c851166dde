//! Where finished inferences wait for the other views of their requests (`core::join`), on the export thread. What waits is the record's
//! span and the split of its time; the record itself, its metrics and its objectives do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::inference::{Inference, Vantage};
use tokengauge_core::join::book::Counts;
use tokengauge_core::join::{Book, Engine, Joined, Limits, Source, Split, View};
use tokengauge_core::semconv::{attr, metric};

use crate::export::observe::{Observe, Tell};

/// Engines' views that may wait for the export thread.
const INBOX: usize = 8_192;

/// What spans wait in an exporter of OpenTelemetry's SDKs before they are sent, and a margin.
const SDK_DELAY: Duration = Duration::from_secs(7);

/// `join` in the configuration file.
#[derive(Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How long the views of a request wait for each other, seconds; without it 1, and 7 where spans of engines are received (`otlp_in`), which
    /// come late. 0: nothing is joined.
    pub wait_s: Option<f64>,
}

impl Config {
    /// Whether the values make sense; the message names the key below `join`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        match self.wait_s {
            Some(s) if !(0.0..=60.0).contains(&s) => Err(format!("wait_s: {s} is not between 0 and 60")),
            _ => Ok(()),
        }
    }

    /// How long views wait; `spans` says that engines' spans are received.
    pub fn wait(&self, spans: bool) -> Duration {
        let usual = if spans { SDK_DELAY } else { Limits::default().wait };
        self.wait_s.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or(usual)
    }
}

/// The span of another view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Other {
    /// Its trace.
    pub trace_id: u128,
    /// Its id.
    pub span_id: u64,
    /// Whose view it is.
    pub vantage: Vantage,
}

/// What was found with an inference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found<'a> {
    /// The other views, from the client's to the server's.
    pub others: &'a [Other],
    /// Where its time went: of the outermost view of a request only, so that each request is counted once.
    pub split: Option<&'a Split>,
    /// Wires that the request was seen on.
    pub hops: usize,
    /// The engine's phases: of the innermost view only, which is the nearest to it.
    pub phases: Option<&'a Split>,
    /// What the engine told of it by itself, beside `split`.
    pub engine: Option<&'a Engine>,
}

/// What others may read of it at any time.
#[derive(Debug, Default)]
pub struct Shared {
    joined: AtomicU64,
    alone: AtomicU64,
    evicted: AtomicU64,
    ambiguous: AtomicU64,
    contradictions: AtomicU64,
    engines: [[AtomicU64; 3]; 3],
    waiting: AtomicU64,
    /// Engines' views that found the inbox full.
    refused: [AtomicU64; 3],
}

impl Shared {
    fn publish(&self, c: &Counts, waiting: usize) {
        let put = |to: &AtomicU64, n: u64| to.store(n, Ordering::Relaxed);
        put(&self.joined, c.joined);
        put(&self.alone, c.alone);
        put(&self.evicted, c.evicted);
        put(&self.ambiguous, c.ambiguous);
        put(&self.contradictions, c.contradictions);
        put(&self.waiting, waiting as u64);
        for (to, from) in self.engines.iter().zip([&c.engines, &c.lonely, &c.dropped]) {
            to.iter().zip(from).for_each(|(to, n)| put(to, *n));
        }
    }
}

impl Observe for Arc<Shared> {
    fn observe(&self, tell: &mut Tell<'_>) {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        for (result, n) in [("joined", &self.joined), ("alone", &self.alone), ("evicted", &self.evicted)] {
            tell(&metric::JOIN_VIEWS, &[(attr::RESULT, result)], get(n));
        }
        tell(&metric::JOIN_AMBIGUOUS, &[], get(&self.ambiguous));
        tell(&metric::JOIN_CONTRADICTIONS, &[], get(&self.contradictions));
        tell(&metric::JOIN_WAITING, &[], get(&self.waiting));
        let [joined, alone, dropped] = &self.engines;
        // What stands in the answer itself belongs to its view from the start.
        for source in [Source::Hook, Source::Otlp] {
            let at = source as usize;
            let of = |n: &[AtomicU64; 3]| n.get(at).map_or(0.0, get);
            for (result, n) in [("joined", of(joined)), ("alone", of(alone)), ("dropped", of(dropped) + of(&self.refused))] {
                tell(&metric::JOIN_ENGINE_VIEWS, &[(attr::SPLIT_SOURCE, source.as_str()), (attr::RESULT, result)], n);
            }
        }
    }
}

/// Takes what engines tell, from any thread. It never blocks.
#[derive(Clone, Debug)]
pub struct Engines {
    inbox: SyncSender<Engine>,
    shared: Arc<Shared>,
}

impl Engines {
    /// Takes an engine's view; when too many wait it is dropped and counted.
    pub fn tell(&self, engine: Engine) {
        match self.inbox.try_send(engine) {
            // The agent is ending.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(engine)) => {
                if let Some(n) = self.shared.refused.get(engine.source as usize) {
                    n.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// All that waits.
pub struct Joining {
    book: Book,
    began: Instant,
    wait: Duration,
    next: u64,
    /// By the token under which the book knows its view.
    held: FxHashMap<u64, Box<Inference>>,
    inbox: Receiver<Engine>,
    engines: Engines,
    out: Vec<Joined>,
}

/// Takes an inference that waits no longer, and what was found with it.
pub type Settled<'a> = dyn FnMut(&Inference, &Found<'_>) + 'a;

impl Joining {
    /// Nothing waits yet; what will waits so long.
    pub fn new(wait: Duration, now: Instant) -> Self {
        let (sender, inbox) = sync_channel(INBOX);
        let book = Book::new(Limits { wait, ..Limits::default() });
        let engines = Engines { inbox: sender, shared: Arc::default() };
        Self { book, began: now, wait, next: 0, held: FxHashMap::default(), inbox, engines, out: Vec::new() }
    }

    /// Where engines' views are to be told.
    pub fn engines(&self) -> Engines {
        self.engines.clone()
    }

    /// What was counted, for metrics.
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.engines.shared)
    }

    /// Takes a finished inference. It comes back by `settled`, exactly once: now or later.
    pub fn push(&mut self, inference: Box<Inference>, now: Instant, settled: &mut Settled<'_>) {
        let Some(view) = View::of(&inference) else { return settled(&inference, &Found::default()) };
        self.next += 1;
        self.held.insert(self.next, inference);
        self.book.view(self.next, view, now.saturating_duration_since(self.began), &mut self.out);
        if self.wait.is_zero() {
            self.due(now, settled);
        } else {
            self.hand_out(settled);
        }
    }

    /// Those that have waited long enough.
    pub fn due(&mut self, now: Instant, settled: &mut Settled<'_>) {
        let now = now.saturating_duration_since(self.began);
        self.inbox.try_iter().take(INBOX).for_each(|engine| self.book.engine(engine, now));
        self.book.due(now, &mut self.out);
        self.hand_out(settled);
        self.engines.shared.publish(&self.book.counts(), self.held.len());
    }

    /// All of them: the agent ends.
    pub fn rest(&mut self, now: Instant, settled: &mut Settled<'_>) {
        self.due(now, settled);
        self.book.rest(&mut self.out);
        self.hand_out(settled);
        self.engines.shared.publish(&self.book.counts(), self.held.len());
    }

    fn hand_out(&mut self, settled: &mut Settled<'_>) {
        let mut out = std::mem::take(&mut self.out);
        for joined in out.drain(..) {
            let views: Vec<Box<Inference>> = joined.seats.iter().filter_map(|seat| self.held.remove(&seat.token)).collect();
            let span = |i: &Inference| Other { trace_id: i.trace.trace_id, span_id: i.trace.span_id, vantage: i.vantage };
            let hops = joined.seats.last().map_or(1, |seat| seat.hop + 1);
            let split = joined.split.as_ref();
            for (n, inference) in views.iter().enumerate() {
                let others: Vec<Other> = views.iter().enumerate().filter(|(at, _)| *at != n).map(|(_, i)| span(i)).collect();
                let found = Found {
                    others: &others,
                    split: split.filter(|_| n == 0),
                    hops,
                    phases: split.filter(|_| n + 1 == views.len()),
                    engine: joined.engine.as_ref().filter(|_| n == 0),
                };
                settled(inference, &found);
            }
        }
        self.out = out;
    }
}

#[cfg(test)]
#[path = "join_tests.rs"]
mod tests;
