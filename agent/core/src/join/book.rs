//! Who belongs to whom. Views wait for each other for a while, then what was found together leaves together, each view once.
//!
//! Views of one exchange on one wire make a *wire*; wires that a proxy connects make a chain. What cannot be told from something else is
//! not joined: that is counted.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::engine::{Engine, Figures, Source};
use super::index::{Index, forget, keys_of, keys_of_engine};
use super::split::Split;
use super::view::View;
use crate::inference::Vantage;

/// Bounds of a [`Book`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Views that wait; beyond it the oldest leaves.
    pub views: usize,
    /// Engines' views that wait; beyond it the oldest is dropped.
    pub engines: usize,
    /// How long each of them waits for others.
    pub wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { views: 8_192, engines: 16_384, wait: Duration::from_secs(1) }
    }
}

/// Wires of a chain: a client, proxies, a server.
const MAX_HOPS: usize = 6;

/// What shares a key and is looked at, the newest: one `traceparent` may be a thousand requests'.
const LOOKED_AT: usize = 32;

/// One view on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// What the caller gave with it.
    pub token: u64,
    /// Whose view it is.
    pub vantage: Vantage,
    /// The number of its wire in the chain, from the client's.
    pub hop: usize,
}

/// What was found together, from the outermost view to the innermost.
#[derive(Clone, PartialEq, Debug)]
pub struct Joined {
    /// All of it; one where nothing else was found.
    pub seats: Vec<Seat>,
    /// Where the time went that the outermost view measured.
    pub split: Option<Split>,
    /// The engine's view, where it came by itself.
    pub engine: Option<Engine>,
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Views that left with others.
    pub joined: u64,
    /// Views that left alone.
    pub alone: u64,
    /// Times that several candidates could not be told from each other, so that none was taken.
    pub ambiguous: u64,
    /// Views that left before their time, for lack of room.
    pub evicted: u64,
    /// Engines' views that were joined, by source.
    pub engines: [u64; 3],
    /// Engines' views that nobody's request was found for in time, by source.
    pub lonely: [u64; 3],
    /// Engines' views that were dropped for lack of room or of a name, by source.
    pub dropped: [u64; 3],
    /// Splits whose parts were longer than what they are parts of.
    pub contradictions: u64,
}

struct Held {
    token: u64,
    view: View,
    wire: u64,
}

/// One exchange on one wire.
#[derive(Default)]
struct Wire {
    /// By place, from the client to the server.
    seats: [Option<u64>; 3],
    outer: Option<u64>,
    inner: Option<u64>,
}

/// All that waits.
pub struct Book {
    limits: Limits,
    next: u64,
    views: FxHashMap<u64, Held>,
    wires: FxHashMap<u64, Wire>,
    by_key: Index,
    due: VecDeque<(Duration, u64)>,
    engines: FxHashMap<u64, Engine>,
    engine_by_key: Index,
    engines_due: VecDeque<(Duration, u64)>,
    counts: Counts,
}

impl Book {
    /// Nothing waits yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            views: FxHashMap::default(),
            wires: FxHashMap::default(),
            by_key: Index::default(),
            due: VecDeque::new(),
            engines: FxHashMap::default(),
            engine_by_key: Index::default(),
            engines_due: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// What was counted so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Views and engines' views that wait.
    pub fn waiting(&self) -> (usize, usize) {
        (self.views.len(), self.engines.len())
    }

    /// Takes a view. `token` comes back in [`Joined`], exactly once.
    pub fn view(&mut self, token: u64, view: View, now: Duration, out: &mut Vec<Joined>) {
        while self.views.len() >= self.limits.views.max(1) {
            let Some((_, oldest)) = self.due.pop_front() else { break };
            if self.views.contains_key(&oldest) {
                self.counts.evicted += 1;
                self.leave(oldest, out);
            }
        }
        let number = self.number();
        let wire = self.wire_of(&view).unwrap_or(number);
        self.wires.entry(wire).or_default().seats[view.place()] = Some(number);
        self.views.insert(number, Held { token, view, wire });
        self.chain(number, wire);
        for key in keys_of(&view) {
            self.by_key.entry(key).or_default().push_back(number);
        }
        self.due.push_back((now + self.limits.wait, number));
    }

    /// Takes an engine's view.
    pub fn engine(&mut self, engine: Engine, now: Duration) {
        if engine.is_nameless() {
            self.counts.dropped[engine.source as usize] += 1;
            return;
        }
        while self.engines.len() >= self.limits.engines.max(1) {
            let Some((_, oldest)) = self.engines_due.pop_front() else { break };
            if let Some(old) = self.forget_engine(oldest) {
                self.counts.dropped[old.source as usize] += 1;
            }
        }
        let number = self.number();
        for key in keys_of_engine(&engine) {
            self.engine_by_key.entry(key).or_default().push_back(number);
        }
        self.engines.insert(number, engine);
        self.engines_due.push_back((now + self.limits.wait, number));
    }

    /// What has waited long enough.
    pub fn due(&mut self, now: Duration, out: &mut Vec<Joined>) {
        while let Some((until, number)) = self.due.front().copied()
            && until <= now
        {
            self.due.pop_front();
            self.leave(number, out);
        }
        while let Some((until, number)) = self.engines_due.front().copied()
            && until <= now
        {
            self.engines_due.pop_front();
            if let Some(old) = self.forget_engine(number) {
                self.counts.lonely[old.source as usize] += 1;
            }
        }
    }

    /// Everything, as it stands: the agent ends.
    pub fn rest(&mut self, out: &mut Vec<Joined>) {
        self.due(Duration::MAX, out);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The newest that are known by a key, each once.
    fn known<'a>(&'a self, keys: impl Iterator<Item = u64> + 'a) -> impl Iterator<Item = &'a Held> + 'a {
        let numbers = keys.filter_map(|key| self.by_key.get(&key)).flat_map(|list| list.iter().rev().take(LOOKED_AT));
        numbers.filter_map(|number| self.views.get(number))
    }

    /// The wire that a view is of, if it waits.
    fn wire_of(&mut self, view: &View) -> Option<u64> {
        let free = |held: &&Held| self.wires.get(&held.wire).is_some_and(|w| w.seats[view.place()].is_none());
        let fits = |held: &&Held| held.view.same_wire(view) && free(held);
        // Both ends of a connection say most. Requests that follow each other closely are told apart by where they begin.
        let ends = view.keys.wire.into_iter();
        let nearest = self.known(ends).filter(fits).min_by_key(|held| held.view.start.abs_diff(view.start));
        if let Some(held) = nearest {
            return Some(held.wire);
        }
        for keys in [&view.keys.ids[..], &[view.keys.caller]] {
            let found = one(self.known(keys.iter().flatten().copied()).filter(fits).map(|held| held.wire));
            match found {
                Found::None => {}
                Found::One(wire) => return Some(wire),
                Found::Several => {
                    self.counts.ambiguous += 1;
                    return None;
                }
            }
        }
        None
    }

    /// Connects the wire of a view with those beyond a proxy.
    fn chain(&mut self, number: u64, wire: u64) {
        for outwards in [false, true] {
            let Some(end) = self.wires.get(&wire).map(|w| if outwards { w.outer } else { w.inner }) else { return };
            if end.is_none()
                && let Some(other) = self.beyond(number, wire, outwards)
            {
                let (outer, inner) = if outwards { (other, wire) } else { (wire, other) };
                if let Some(w) = self.wires.get_mut(&outer) {
                    w.inner = Some(inner);
                }
                if let Some(w) = self.wires.get_mut(&inner) {
                    w.outer = Some(outer);
                }
            }
        }
    }

    /// The one wire beyond a proxy that can be it.
    fn beyond(&mut self, number: u64, wire: u64, outwards: bool) -> Option<u64> {
        let view = &self.views.get(&number)?.view;
        let free = |held: &Held| {
            let other = self.wires.get(&held.wire);
            held.wire != wire && other.is_some_and(|w| if outwards { w.inner.is_none() } else { w.outer.is_none() })
        };
        let is = |held: &Held, known: bool| {
            let (outer, inner) = if outwards { (&held.view, view) } else { (view, &held.view) };
            outer.has_inside(inner, known)
        };
        let by_name = view.keys.ids.into_iter().chain([view.keys.caller]).flatten();
        let named = self.known(by_name).filter(|held| free(held) && held.view.shares_name(view) && is(held, true));
        let traced = self.known(view.keys.trace.into_iter()).filter(|held| free(held) && is(held, false));
        let found = match one(named.map(|held| held.wire)) {
            Found::None => one(traced.map(|held| held.wire)),
            found => {
                drop(traced);
                found
            }
        };
        let found = match found {
            Found::None => None,
            Found::One(other) => Some(other),
            Found::Several => {
                self.counts.ambiguous += 1;
                None
            }
        };
        // A chain has no circle and an end.
        found.filter(|other| self.hops(wire) + self.hops(*other) <= MAX_HOPS && !self.connected(wire, *other))
    }

    /// The wires of a chain, from the client's.
    fn wires_of(&self, wire: u64) -> Vec<u64> {
        let mut first = wire;
        for _ in 0..MAX_HOPS {
            match self.wires.get(&first).and_then(|w| w.outer) {
                Some(outer) => first = outer,
                None => break,
            }
        }
        let mut all = vec![first];
        while let Some(inner) = self.wires.get(all.last().unwrap_or(&first)).and_then(|w| w.inner)
            && all.len() < MAX_HOPS
        {
            all.push(inner);
        }
        all
    }

    fn hops(&self, wire: u64) -> usize {
        self.wires_of(wire).len()
    }

    fn connected(&self, wire: u64, other: u64) -> bool {
        self.wires_of(wire).contains(&other)
    }

    /// A view leaves, with everything that was found with it.
    fn leave(&mut self, number: u64, out: &mut Vec<Joined>) {
        let Some(wire) = self.views.get(&number).map(|held| held.wire) else { return };
        let wires = self.wires_of(wire);
        let mut all: Vec<(usize, u64, Held)> = Vec::new();
        for (hop, wire) in wires.iter().enumerate() {
            for number in self.wires.remove(wire).into_iter().flat_map(|w| w.seats).flatten() {
                if let Some(held) = self.views.remove(&number) {
                    all.push((hop, number, held));
                }
            }
        }
        for (_, number, held) in &all {
            forget(&mut self.by_key, keys_of(&held.view), *number);
        }
        let engine = self.take_engine(&all);
        let views: Vec<(usize, &View)> = all.iter().map(|(hop, _, held)| (*hop, &held.view)).collect();
        let split = Split::of(&views, best(&views, engine.as_ref()));
        if all.len() > 1 {
            self.counts.joined += all.len() as u64;
        } else {
            self.counts.alone += 1;
        }
        self.counts.contradictions += u64::from(split.is_some_and(|s| s.contradicts));
        let seats = all.iter().map(|(hop, _, held)| Seat { token: held.token, vantage: held.view.vantage, hop: *hop }).collect();
        out.push(Joined { seats, split, engine });
    }

    /// The engine's view of these, the best source's: by an id, else by the caller's span, else by a trace that is nobody else's.
    fn take_engine(&mut self, all: &[(usize, u64, Held)]) -> Option<Engine> {
        let views = || all.iter().rev().map(|(_, _, held)| &held.view);
        let ids: Vec<u64> = views().flat_map(|v| v.keys.ids).flatten().collect();
        let callers: Vec<u64> = views().filter_map(|v| v.keys.caller).collect();
        let traces: Vec<u64> = views().filter_map(|v| v.keys.trace).filter(|t| self.known([*t].into_iter()).next().is_none()).collect();
        let mut best: Option<Engine> = None;
        for source in Source::ALL {
            let mut of_source = None;
            for keys in [&ids, &callers, &traces] {
                let numbers = keys.iter().filter_map(|key| self.engine_by_key.get(key)).flatten();
                let mut numbers: Vec<u64> = numbers.copied().filter(|n| self.engines.get(n).is_some_and(|e| e.source == source)).collect();
                numbers.sort_unstable();
                numbers.dedup();
                match numbers.as_slice() {
                    [] => continue,
                    [one] => of_source = Some(*one),
                    _ => self.counts.ambiguous += 1,
                }
                break;
            }
            if let Some(engine) = of_source.and_then(|number| self.forget_engine(number)) {
                self.counts.engines[source as usize] += 1;
                best = best.or(Some(engine));
            }
        }
        best
    }

    fn forget_engine(&mut self, number: u64) -> Option<Engine> {
        let engine = self.engines.remove(&number)?;
        forget(&mut self.engine_by_key, keys_of_engine(&engine), number);
        Some(engine)
    }
}

/// How many there are.
enum Found {
    None,
    One(u64),
    Several,
}

fn one(mut all: impl Iterator<Item = u64>) -> Found {
    match all.next() {
        None => Found::None,
        Some(first) if all.any(|other| other != first) => Found::Several,
        Some(first) => Found::One(first),
    }
}

/// The source that tells most of what comes before the first token; of equals the best. What it leaves out and another tells that is no phase
/// before the first token is taken from the other.
fn best(views: &[(usize, &View)], engine: Option<&Engine>) -> Option<(Source, Figures)> {
    let told = views.iter().rev().find_map(|(_, v)| v.answer());
    let came = engine.map(|e| (e.source, e.figures));
    let (first, second) = match (came, told) {
        (Some(came), Some(told)) if told.1.phases() > came.1.phases() => (Some(told), Some(came)),
        (Some(came), told) => (Some(came), told),
        (None, told) => (told, None),
    };
    first.map(|(source, figures)| {
        let other = second.map(|(_, f)| f).unwrap_or_default();
        (source, Figures { decode: figures.decode.or(other.decode), ttft: figures.ttft.or(other.ttft), ..figures })
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
