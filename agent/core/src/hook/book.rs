//! The requests that are open in engines, and what each of them was when it ended: its instants, and the intervals between them.
//!
//! Bounded by [`MAX_OPEN`] requests and by [`IDLE`]; whoever is let go without an end is told as such. No interval is measured across a
//! loss: of a request that was open when events were lost, only what lies wholly before or is told by an instant of its own counts.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::event::{Event, Finish, Kind, ModelName, RequestId, Source, Stamp, TraceIds, Via};
use crate::stream::Timestamp;

/// Most requests that are open at one time. When there are more, the one that began first is let go.
pub const MAX_OPEN: usize = 16_384;

/// A request of which nothing was told for so long is let go.
pub const IDLE: Duration = Duration::from_secs(900);

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum End {
    /// By itself.
    Finished,
    /// Its client did not want it any more.
    Cancelled,
    /// Its server is gone.
    Gone,
    /// Nothing was told of it for too long.
    Silent,
    /// There were too many.
    Evicted,
}

impl End {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Finished, Self::Cancelled, Self::Gone, Self::Silent, Self::Evicted];

    /// Its name in attributes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
            Self::Gone => "server_gone",
            Self::Silent => "silent",
            Self::Evicted => "evicted",
        }
    }
}

/// One request, as far as it was told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Request {
    /// Its id.
    pub id: RequestId,
    /// Who told it.
    pub source: Source,
    /// What its instants can be compared with.
    pub stamp: Stamp,
    /// The model.
    pub model: Option<ModelName>,
    /// The trace.
    pub trace: Option<TraceIds>,
    /// Which engine.
    pub engine: Option<u32>,
    /// Why it finished.
    pub finish: Option<Finish>,
    /// The server's own process had it.
    pub received: Option<Timestamp>,
    /// It began to wait.
    pub queued: Option<Timestamp>,
    /// It was scheduled for the first time.
    pub scheduled: Option<Timestamp>,
    /// Its first token.
    pub first_token: Option<Timestamp>,
    /// Its last token so far.
    pub last_token: Option<Timestamp>,
    /// It ended.
    pub ended: Option<Timestamp>,
    /// How often it was preempted.
    pub preemptions: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// Those of them that were cached.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer by the engine's own sum.
    pub output_told: Option<u32>,
    /// Tokens of the answer as they were told one after the other.
    pub output_counted: u32,
    /// Tokens that were drafted, and accepted.
    pub speculated: Option<(u32, u32)>,
    /// Whether events of it may have been lost.
    pub holed: bool,
    /// Whether its beginning was told.
    pub from_start: bool,
}

fn between(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<Duration> {
    from.zip(to).filter(|(from, to)| from <= to).map(|(from, to)| to.since(from))
}

impl Request {
    fn new(event: &Event, holed: bool) -> Self {
        Self {
            id: event.request,
            source: event.source,
            stamp: event.stamp,
            model: None,
            trace: None,
            engine: None,
            finish: None,
            received: None,
            queued: None,
            scheduled: None,
            first_token: None,
            last_token: None,
            ended: None,
            preemptions: 0,
            prompt_tokens: None,
            cached_tokens: None,
            output_told: None,
            output_counted: 0,
            speculated: None,
            holed,
            from_start: matches!(event.kind, Kind::Received | Kind::Queued),
        }
    }

    /// From queued to scheduled for the first time; from received, when it was never said to be queued.
    pub fn queue(&self) -> Option<Duration> {
        between(self.queued.or(self.received), self.scheduled)
    }

    /// From scheduled to the first token.
    pub fn prefill(&self) -> Option<Duration> {
        between(self.scheduled, self.first_token)
    }

    /// From received to the first token.
    pub fn ttft(&self) -> Option<Duration> {
        between(self.received, self.first_token)
    }

    /// From the first to the last token.
    pub fn decode(&self) -> Option<Duration> {
        between(self.first_token, self.last()).filter(|_| self.output_tokens().is_some_and(|n| n > 1))
    }

    /// From scheduled to the last token.
    pub fn inference(&self) -> Option<Duration> {
        between(self.scheduled, self.last())
    }

    /// From received to its end.
    pub fn end_to_end(&self) -> Option<Duration> {
        between(self.received, self.ended)
    }

    /// (last - first token) / (tokens - 1) of a request with two tokens or more.
    pub fn time_per_output_token(&self) -> Option<Duration> {
        self.decode().zip(self.output_tokens()?.checked_sub(1)).and_then(|(decode, steps)| decode.checked_div(steps))
    }

    /// Tokens of the answer: the engine's sum, else what was counted where nothing can be missing.
    pub fn output_tokens(&self) -> Option<u32> {
        self.output_told.or((self.from_start && !self.holed && self.output_counted > 0).then_some(self.output_counted))
    }

    /// The last token, unless a later one may have been lost.
    fn last(&self) -> Option<Timestamp> {
        self.last_token.filter(|_| !self.holed)
    }

    /// Takes what an event says beside what happened.
    fn note(&mut self, event: &Event) {
        self.model = event.model.or(self.model);
        self.trace = event.trace.or(self.trace);
        self.engine = event.engine.or(self.engine);
        self.finish = event.finish.or(self.finish);
        self.prompt_tokens = event.counts.prompt.or(self.prompt_tokens);
        self.cached_tokens = event.counts.cached.or(self.cached_tokens);
        self.output_told = event.counts.output.or(self.output_told);
        // One kind of stamps is as good as the worse of them.
        if event.stamp == Stamp::Shifted {
            self.stamp = Stamp::Shifted;
        }
        if let (Some(drafted), Some(accepted)) = (event.counts.drafted, event.counts.accepted) {
            let (d, a) = self.speculated.unwrap_or_default();
            self.speculated = Some((d.saturating_add(drafted), a.saturating_add(accepted.min(drafted))));
        }
    }
}

/// What a book says when it takes an event.
#[derive(Clone, Copy, Debug)]
pub enum Said<'a> {
    /// A request has tokens again, so long after those before.
    Step(&'a Request, Duration),
    /// A request ended.
    Ended(&'a Request, End),
}

/// What is kept of an open request.
#[derive(Debug)]
struct Open {
    request: Request,
    /// Its number, which no other has.
    number: u64,
    touched: Timestamp,
    /// Losses that its source had when it began.
    losses: u64,
    /// The same at its last token.
    losses_at_last: u64,
}

/// Which process a request is of, and its id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    /// The process; of one that is not known, the connection.
    of: (u32, u32),
    id: RequestId,
}

impl Key {
    fn of(source: Source, id: RequestId) -> Self {
        Self { of: if source.pid == 0 { (0, source.connection) } else { (source.pid, 0) }, id }
    }
}

/// What a book counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Requests that ended, in the order of [`End::ALL`].
    pub ended: [u64; End::ALL.len()],
    /// Events that a process told by a second way: its requests are those of the first.
    pub twice: u64,
    /// Events of requests whose beginning was not told.
    pub late: u64,
}

/// The open requests.
#[derive(Debug, Default)]
pub struct Book {
    open: FxHashMap<Key, Open>,
    /// In the order in which they began; some are over.
    order: VecDeque<(Key, u64)>,
    next: u64,
    /// Losses of the tap, and of each connection.
    tap_losses: u64,
    losses: FxHashMap<u32, u64>,
    counted: Counted,
}

impl Book {
    /// Takes an event.
    pub fn take(&mut self, event: &Event, said: &mut dyn FnMut(Said<'_>)) {
        let key = Key::of(event.source, event.request);
        let losses = self.losses_of(event.source);
        if !self.open.contains_key(&key) {
            // The end of something that is not known says nothing: it has ended already, or was never seen.
            if event.kind.is_end() {
                self.counted.late += 1;
                return;
            }
            self.begin(key, event, losses, said);
        }
        let Self { open, counted, .. } = self;
        let Some(entry) = open.get_mut(&key) else { return };
        let request = &mut entry.request;
        if request.source.via != event.source.via {
            counted.twice += 1;
            return;
        }
        entry.touched = event.at;
        request.holed |= losses != entry.losses;
        request.note(event);
        let first = |mark: &mut Option<Timestamp>| {
            mark.get_or_insert(event.at);
        };
        match event.kind {
            Kind::Received => first(&mut request.received),
            Kind::Queued => first(&mut request.queued),
            Kind::Scheduled => first(&mut request.scheduled),
            Kind::Preempted => request.preemptions = request.preemptions.saturating_add(1),
            Kind::FirstToken | Kind::Tokens(_) => {
                let tokens = match event.kind {
                    Kind::Tokens(tokens) => tokens,
                    _ => event.counts.new.unwrap_or(1),
                };
                if tokens == 0 {
                    return;
                }
                request.output_counted = request.output_counted.saturating_add(tokens);
                // Who tells tokens only has told the first with them, unless that may have been missed.
                if event.kind == Kind::FirstToken || request.last_token.is_none() && request.from_start && !request.holed {
                    first(&mut request.first_token);
                }
                let before = request.last_token.replace(event.at);
                let whole = std::mem::replace(&mut entry.losses_at_last, losses) == losses;
                if let Some(interval) = between(before, Some(event.at)).filter(|_| whole) {
                    said(Said::Step(request, interval));
                }
            }
            Kind::Finished | Kind::Cancelled => {
                request.ended = Some(event.at);
                self.end(key, if event.kind == Kind::Finished { End::Finished } else { End::Cancelled }, said);
            }
        }
    }

    fn begin(&mut self, key: Key, event: &Event, losses: u64, said: &mut dyn FnMut(Said<'_>)) {
        while self.open.len() >= MAX_OPEN {
            let Some((oldest, number)) = self.order.pop_front() else { break };
            if self.open.get(&oldest).is_some_and(|o| o.number == number) {
                self.end(oldest, End::Evicted, said);
            }
        }
        if self.order.len() >= 2 * MAX_OPEN {
            let open = &self.open;
            self.order.retain(|(key, number)| open.get(key).is_some_and(|o| o.number == *number));
        }
        let number = self.next;
        self.next += 1;
        let request = Request::new(event, false);
        self.counted.late += u64::from(!request.from_start && event.kind != Kind::Scheduled);
        self.order.push_back((key, number));
        self.open.insert(key, Open { request, number, touched: event.at, losses, losses_at_last: losses });
    }

    fn end(&mut self, key: Key, how: End, said: &mut dyn FnMut(Said<'_>)) {
        if let Some(entry) = self.open.remove(&key) {
            if let Some(n) = self.counted.ended.get_mut(how as usize) {
                *n += 1;
            }
            said(Said::Ended(&entry.request, how));
        }
    }

    fn losses_of(&self, source: Source) -> u64 {
        match source.via {
            Via::Tap => self.tap_losses,
            Via::Socket => self.losses.get(&source.connection).copied().unwrap_or(0),
        }
    }

    /// Events of a source were lost before those that come now; at the tap symbol, of any process.
    pub fn lost(&mut self, source: Source) {
        match source.via {
            Via::Tap => self.tap_losses += 1,
            Via::Socket => *self.losses.entry(source.connection).or_default() += 1,
        }
    }

    /// A source is gone, and its open requests with it.
    pub fn gone(&mut self, source: Source, said: &mut dyn FnMut(Said<'_>)) {
        self.losses.remove(&source.connection);
        let of = |request: &Request| {
            request.source.via == source.via && request.source.pid == source.pid && request.source.connection == source.connection
        };
        let theirs: Vec<Key> = self.open.iter().filter(|(_, o)| of(&o.request)).map(|(key, _)| *key).collect();
        theirs.into_iter().for_each(|key| self.end(key, End::Gone, said));
    }

    /// Lets go of requests of which nothing was told for [`IDLE`].
    pub fn tick(&mut self, now: Timestamp, said: &mut dyn FnMut(Said<'_>)) {
        let silent: Vec<Key> = self.open.iter().filter(|(_, o)| now.since(o.touched) >= IDLE).map(|(key, _)| *key).collect();
        silent.into_iter().for_each(|key| self.end(key, End::Silent, said));
    }

    /// How many requests are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// What was counted.
    pub const fn counted(&self) -> &Counted {
        &self.counted
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
