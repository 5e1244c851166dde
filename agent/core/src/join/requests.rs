//! Requests that a hook tells of: their events put together to an engine's view, and what only the engine knows of tokens.
//!
//! Instants are compared within one source only. A request that nobody ends is forgotten after a while; so many are open at most.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::engine::{Engine, Figures, Source};
use super::{caller_key, id_key, trace_key};
use crate::hook::event::{Event, Kind, ModelName, RequestId, Source as Teller};
use crate::semconv::GAP;

/// Requests that may be open.
pub const MAX_OPEN: usize = 16_384;

/// How long a request may be open.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Models that are told apart; the others share one.
const MAX_MODELS: usize = 64;

/// What is known of one request so far. Instants in nanoseconds on its teller's clock.
#[derive(Default)]
struct Open {
    number: u64,
    received: Option<u64>,
    waits_since: Option<u64>,
    scheduled: Option<u64>,
    queue: Option<u64>,
    /// Of `queue`, what came after it was first scheduled.
    again: u64,
    first: Option<u64>,
    last: Option<u64>,
    tokens: u64,
    steps: u64,
    caller: Option<u64>,
    trace: Option<u64>,
    model: usize,
}

/// What the engines said of the tokens of one model.
#[derive(Clone, PartialEq, Debug)]
pub struct Tokens {
    /// The model; `None`: not told, or one of too many.
    pub model: Option<ModelName>,
    /// Times between two steps that gave one request tokens, by the bounds of [`GAP`]; one count more than bounds.
    pub gaps: [u64; GAP.len() + 1],
    /// Their sum, seconds.
    pub sum: f64,
    /// Steps that gave tokens.
    pub steps: u64,
    /// The tokens that they gave.
    pub tokens: u64,
    /// Tokens that were drafted.
    pub drafted: u64,
    /// Those of them that were accepted.
    pub accepted: u64,
}

impl Tokens {
    fn new(model: Option<ModelName>) -> Self {
        Self { model, gaps: [0; GAP.len() + 1], sum: 0.0, steps: 0, tokens: 0, drafted: 0, accepted: 0 }
    }

    fn gap(&mut self, nanos: u64) {
        let seconds = nanos as f64 / 1e9;
        if let Some(n) = self.gaps.get_mut(GAP.partition_point(|bound| *bound < seconds)) {
            *n += 1;
        }
        self.sum += seconds;
    }
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Requests that ended.
    pub ended: u64,
    /// Requests that were forgotten before they ended: too many, or too long.
    pub forgotten: u64,
    /// Events that contradict earlier ones: time that runs backwards, an end of what is not open.
    pub odd: u64,
}

/// All that are open.
pub struct Requests {
    open: FxHashMap<(Teller, RequestId), Open>,
    order: VecDeque<(Duration, u64, (Teller, RequestId))>,
    next: u64,
    limit: usize,
    models: Vec<Tokens>,
    counts: Counts,
}

impl Requests {
    /// None yet; so many at most.
    pub fn new(limit: usize) -> Self {
        let models = vec![Tokens::new(None)];
        Self { open: FxHashMap::default(), order: VecDeque::new(), next: 0, limit: limit.max(1), models, counts: Counts::default() }
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// What was counted.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// What was said of tokens, by model; the first is of those without one.
    pub fn tokens(&self) -> &[Tokens] {
        &self.models
    }

    /// Takes an event; when it ends the request, the engine's view of it.
    pub fn event(&mut self, e: &Event, now: Duration) -> Option<Engine> {
        let key = (e.source, e.request);
        if !self.open.contains_key(&key) {
            if e.kind.is_end() {
                // Its beginning came before the agent.
                self.counts.odd += 1;
                return None;
            }
            self.forget(now);
            self.next += 1;
            self.open.insert(key, Open { number: self.next, ..Open::default() });
            self.order.push_back((now, self.next, key));
        }
        let model = e.model.map(|model| self.model(model));
        let open = self.open.get_mut(&key)?;
        if let Some(model) = model {
            open.model = model;
        }
        let tokens = self.models.get_mut(open.model)?;
        let odd = open.take(e, tokens);
        self.counts.odd += u64::from(odd);
        if !e.kind.is_end() {
            return None;
        }
        let open = self.open.remove(&key)?;
        self.counts.ended += 1;
        Some(open.ended(&e.request))
    }

    fn model(&mut self, model: ModelName) -> usize {
        if let Some(at) = self.models.iter().position(|t| t.model == Some(model)) {
            return at;
        }
        if self.models.len() > MAX_MODELS {
            return 0;
        }
        self.models.push(Tokens::new(Some(model)));
        self.models.len() - 1
    }

    /// Forgets what is open for too long, and makes room.
    fn forget(&mut self, now: Duration) {
        while let Some((since, number, key)) = self.order.front().copied() {
            let ended = self.open.get(&key).is_none_or(|o| o.number != number);
            let too_old = now.saturating_sub(since) > LONGEST;
            if !ended && !too_old && self.open.len() < self.limit {
                break;
            }
            self.order.pop_front();
            if !ended {
                self.open.remove(&key);
                self.counts.forgotten += 1;
            }
        }
        // Those that ended stand behind one that is open: they are not kept for it.
        if self.order.len() > 4 * self.limit {
            let open = &self.open;
            self.order.retain(|(_, number, key)| open.get(key).is_some_and(|o| o.number == *number));
        }
    }
}

impl Open {
    /// Whether the event contradicts earlier ones.
    fn take(&mut self, e: &Event, tokens: &mut Tokens) -> bool {
        let at = e.at.unix_nanos();
        if let Some(trace) = e.trace {
            self.trace = Some(trace_key(trace.trace_id));
            self.caller = Some(caller_key(trace.trace_id, trace.span_id)).filter(|_| trace.span_id != 0).or(self.caller);
        }
        match e.kind {
            Kind::Received => {
                self.received.get_or_insert(at);
            }
            Kind::Queued => {
                self.waits_since.get_or_insert(at);
            }
            Kind::Preempted => self.waits_since = Some(at),
            Kind::Scheduled => {
                let since = self.waits_since.take();
                let waited = since.map(|since| at.saturating_sub(since));
                if self.first.is_none() {
                    if let Some(waited) = waited {
                        self.queue = Some(self.queue.unwrap_or(0) + waited);
                        self.again += if self.scheduled.is_some() { waited } else { 0 };
                    }
                    self.scheduled.get_or_insert(at);
                }
                return since.is_some_and(|since| at < since);
            }
            Kind::FirstToken => return self.step(at, e.counts.new.unwrap_or(1), e, tokens),
            Kind::Tokens(n) => return self.step(at, n, e, tokens),
            Kind::Finished | Kind::Cancelled => {
                self.tokens = self.tokens.max(e.counts.output.map_or(0, u64::from));
            }
        }
        false
    }

    fn step(&mut self, at: u64, n: u32, e: &Event, tokens: &mut Tokens) -> bool {
        let backwards = self.last.is_some_and(|last| at < last);
        if n == 0 || backwards {
            return backwards;
        }
        if let Some(last) = self.last {
            tokens.gap(at - last);
        }
        self.first.get_or_insert(at);
        self.last = Some(at);
        self.tokens = (self.tokens + u64::from(n)).max(e.counts.output.map_or(0, u64::from));
        self.steps += 1;
        tokens.steps += 1;
        tokens.tokens += u64::from(n);
        tokens.drafted += e.counts.drafted.map_or(0, u64::from);
        tokens.accepted += e.counts.accepted.map_or(0, u64::from);
        false
    }

    fn ended(&self, id: &RequestId) -> Engine {
        let from = |since: Option<u64>, until: Option<u64>| until?.checked_sub(since?);
        let figures = Figures {
            queue: self.queue,
            load: None,
            prefill: from(self.scheduled, self.first).map(|all| all.saturating_sub(self.again)),
            decode: from(self.first, self.last),
            ttft: from(self.received, self.first),
        };
        Engine {
            source: Source::Hook,
            figures: figures.completed(),
            tokens: Some(self.tokens).filter(|n| *n > 0),
            steps: Some(self.steps).filter(|n| *n > 0),
            caller: self.caller,
            trace: self.trace,
            ids: [id_key(id.as_str()), None],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::event::{Counts as Numbers, Stamp, TraceIds, Via};
    use crate::stream::Timestamp;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn event(id: &str, ms: u64, kind: Kind) -> Event {
        Event {
            at: Timestamp::from_unix_nanos(ms * MS),
            stamp: Stamp::Kernel,
            source: Teller { via: Via::Tap, pid: 7, connection: 0 },
            request: RequestId::new(id.as_bytes()).unwrap(),
            kind,
            model: None,
            trace: None,
            engine: None,
            finish: None,
            counts: Numbers::default(),
        }
    }

    fn ended(requests: &mut Requests, id: &str, events: &[(u64, Kind)]) -> Engine {
        let mut last = None;
        for (ms, kind) in events {
            assert!(last.is_none());
            last = requests.event(&event(id, *ms, *kind), Duration::ZERO);
        }
        last.unwrap()
    }

    fn ms(figures: Figures) -> [Option<u64>; 4] {
        [figures.queue, figures.prefill, figures.decode, figures.ttft].map(|f| f.map(|n| n / MS))
    }

    #[test]
    fn a_life_in_events() {
        use Kind::*;
        let mut r = Requests::new(9);
        let life = [(0, Received), (2, Queued), (12, Scheduled), (42, FirstToken), (50, Tokens(2)), (59, Tokens(1)), (60, Finished)];
        let e = ended(&mut r, "chatcmpl-aaaaaaaa", &life);
        assert_eq!((ms(e.figures), e.tokens, e.steps), ([Some(10), Some(30), Some(17), Some(42)], Some(4), Some(3)));
        assert_eq!(e.ids[0], id_key("aaaaaaaa"));
        let t = &r.tokens()[0];
        assert_eq!((t.gaps.iter().sum::<u64>(), t.steps, t.tokens), (2, 3, 4));
        assert!((t.sum - 0.017).abs() < 1e-12);
        // Preempted while it read the prompt: the wait in between is queue, and no prefill.
        let life = [(0, Queued), (10, Scheduled), (20, Preempted), (50, Scheduled), (70, FirstToken), (71, Finished)];
        assert_eq!(ms(ended(&mut r, "preempted-1", &life).figures), [Some(40), Some(30), Some(0), Some(70)]);
        // What is not told is not known.
        let life = [(0, Received), (30, FirstToken), (40, Cancelled)];
        assert_eq!(ms(ended(&mut r, "short-life", &life).figures), [None, None, Some(0), Some(30)]);
        assert_eq!(r.counts(), Counts { ended: 3, forgotten: 0, odd: 0 });
    }

    #[test]
    fn odd_events_are_counted_and_measure_nothing() {
        use Kind::*;
        let mut r = Requests::new(9);
        assert_eq!(r.event(&event("unknown-1", 5, Finished), Duration::ZERO), None);
        let e = ended(&mut r, "backwards", &[(50, Queued), (40, Scheduled), (60, FirstToken), (55, Tokens(1)), (61, Finished)]);
        assert_eq!((ms(e.figures), e.tokens), ([Some(0), Some(20), Some(0), Some(20)], Some(1)));
        assert_eq!(r.counts().odd, 3);
    }

    #[test]
    fn models_and_callers_are_told_apart() {
        let mut r = Requests::new(9);
        for n in 0..100_u32 {
            let mut e = event(&format!("request-{n}"), 1, Kind::FirstToken);
            e.model = ModelName::new(format!("m{n}").as_bytes());
            e.trace = TraceIds::new(9, 4);
            e.counts.drafted = Some(3);
            r.event(&e, Duration::ZERO);
            let ended = r.event(&event(&format!("request-{n}"), 2, Kind::Finished), Duration::ZERO).unwrap();
            assert_eq!((ended.caller, ended.trace), (Some(caller_key(9, 4)), Some(trace_key(9))));
        }
        assert_eq!((r.tokens().len(), r.tokens()[0].tokens, r.tokens()[1].drafted), (MAX_MODELS + 1, 36, 3));
    }

    #[test]
    fn what_is_open_is_bounded_in_number_and_time() {
        let mut r = Requests::new(10);
        for n in 0..100 {
            r.event(&event(&format!("request-{n}"), n, Kind::Received), Duration::from_secs(n));
            assert!(r.open() <= 10);
        }
        r.event(&event("later", 1, Kind::Received), LONGEST + Duration::from_secs(200));
        assert_eq!((r.open(), r.counts().forgotten), (1, 100));
        // One that stays open does not keep those that ended.
        for n in 0..1_000 {
            r.event(&event(&format!("again-{n}"), 1, Kind::Received), LONGEST + Duration::from_secs(201));
            r.event(&event(&format!("again-{n}"), 1, Kind::Finished), LONGEST + Duration::from_secs(201));
        }
        assert!((r.open(), r.order.len() <= 41) == (1, true));
    }

    proptest! {
        #[test]
        fn any_events_make_figures_that_agree(steps in prop::collection::vec((0..3_u8, 0..100_u64, 0..8_u8, 0..3_u32), 0..60)) {
            let mut r = Requests::new(2);
            for (id, at, kind, n) in steps {
                let kind = [Kind::Received, Kind::Queued, Kind::Scheduled, Kind::FirstToken, Kind::Tokens(n), Kind::Finished, Kind::Preempted, Kind::Cancelled][usize::from(kind)];
                let e = r.event(&event(&format!("request-{id}"), at, kind), Duration::from_millis(at));
                prop_assert!(r.open() <= 2);
                if let Some(f) = e.map(|e| e.figures) {
                    let all = [f.queue, f.prefill, f.decode, f.ttft];
                    prop_assert!(all.iter().flatten().all(|n| *n <= 6_000 * MS));
                }
            }
        }
    }
}
