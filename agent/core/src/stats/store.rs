//! Every series that is exported: one table of points for each metric, bounded, with the instants at which each began and last changed.
//!
//! What is recorded ([`Store::add`], [`Store::distribution`]) stays until there is little room and it has been idle; what is observed
//! ([`Store::observe`]) lasts as long as it is told. Whatever goes is noted ([`Table::gone`]), so that an exporter can say that it ended.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use crate::semconv::{Kind, Metric, attr, metric};
use crate::stats::distribution::Distribution;
use crate::stats::sets::{Set, Sets, Value};
use crate::stream::Timestamp;

/// Series of one metric, with that of the overflow: the default of the specification (metrics/sdk.md, "Cardinality limits").
pub const DEFAULT_LIMIT: usize = 2_000;
/// Values of one metric that are observed. Who tells them has bounds of their own; this one is against a mistake.
const MOST_OBSERVED: usize = 20_000;

/// The state of one series.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    /// A counter that is added to.
    Sum(u64),
    /// A value that is told: of a counter the total so far.
    Level(f64),
    /// A histogram.
    Distribution(Box<Distribution>),
}

/// One series.
#[derive(Clone, Debug)]
pub struct Point {
    /// Its attributes.
    pub set: Set,
    /// When it began: the process's start for what is observed, else the instant of its first value.
    pub start: Timestamp,
    /// When it last changed.
    pub last: Timestamp,
    /// Its state.
    pub data: Data,
    /// The state at the last delta, and when that was.
    sent: Option<(Data, Timestamp)>,
    round: u64,
}

impl Point {
    /// What came since this was last asked, and since when; `None` when nothing came. A series is told once even if it is still 0.
    pub fn delta(&mut self, now: Timestamp) -> Option<(Timestamp, Data)> {
        let (since, new) = match (&self.sent, &self.data) {
            (None, data) => (self.start, data.clone()),
            (Some((before, since)), data) => {
                let new = match (before, data) {
                    (Data::Sum(before), Data::Sum(n)) => Data::Sum(n.saturating_sub(*before)),
                    (Data::Level(before), Data::Level(n)) => Data::Level((n - before).max(0.0)),
                    (Data::Distribution(before), Data::Distribution(d)) => Data::Distribution(Box::new(d.since(before))),
                    (_, data) => data.clone(),
                };
                (*since, new)
            }
        };
        let nothing = match &new {
            Data::Sum(n) => *n == 0,
            Data::Level(n) => *n == 0.0,
            Data::Distribution(d) => d.count() == 0,
        };
        if nothing && self.sent.is_some() {
            return None;
        }
        self.sent = Some((self.data.clone(), now));
        Some((since, new))
    }
}

/// The series of one metric.
#[derive(Clone, Debug)]
pub struct Table {
    /// Which.
    pub metric: &'static Metric,
    points: Vec<Point>,
    index: FxHashMap<Set, usize>,
    gone: Vec<Set>,
    observed: bool,
}

impl Table {
    /// The series, the oldest first.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The series, to take deltas and exemplars.
    pub fn points_mut(&mut self) -> &mut [Point] {
        &mut self.points
    }

    /// Series that ended since this was last asked.
    pub fn gone(&mut self) -> Vec<Set> {
        let mut gone = std::mem::take(&mut self.gone);
        gone.retain(|set| !self.index.contains_key(set));
        gone
    }

    fn drop_points(&mut self, keep: impl Fn(&Point) -> bool) -> bool {
        let before = self.points.len();
        let gone = &mut self.gone;
        self.points.retain(|p| {
            let kept = keep(p);
            if !kept && gone.len() < MOST_OBSERVED {
                gone.push(p.set.clone());
            }
            kept
        });
        if self.points.len() == before {
            return false;
        }
        self.index = self.points.iter().enumerate().map(|(at, p)| (p.set.clone(), at)).collect();
        true
    }
}

/// A value that is observed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Told<'a> {
    /// Of a counter its total so far, else the value as it is now.
    Value(f64),
    /// A histogram that somebody else counts: upper bounds, counts (one more than bounds), sum; totals so far.
    Histogram(&'a [f64], &'a [u64], f64),
}

/// Takes what is observed: metric, attributes, value.
pub type Take<'a> = dyn FnMut(&'static Metric, &[(&str, &str)], Told<'_>) + 'a;

/// How a store is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Series of one metric at most.
    pub limit: usize,
    /// Whether even the metrics of the conventions have exponential buckets. Ours always have.
    pub exponential: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { limit: DEFAULT_LIMIT, exponential: false }
    }
}

/// Every series.
#[derive(Clone, Debug)]
pub struct Store {
    /// The sets of attributes.
    pub sets: Sets,
    tables: Vec<Table>,
    overflow: Set,
    shape: Shape,
    started: Timestamp,
    round: u64,
    overflown: u64,
}

impl Store {
    /// An empty store of a process that began at `started`.
    pub fn new(shape: Shape, started: Timestamp) -> Self {
        let mut sets = Sets::default();
        let overflow = sets.of(vec![(Cow::Borrowed(attr::OVERFLOW), Value::Flag(true))]);
        let table = |metric| Table { metric, points: Vec::new(), index: FxHashMap::default(), gone: Vec::new(), observed: false };
        Self { sets, tables: metric::ALL.iter().map(table).collect(), overflow, shape, started, round: 0, overflown: 0 }
    }

    /// The tables, one for each metric, in the order of [`metric::ALL`].
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The tables, to take deltas, exemplars and ends.
    pub fn tables_mut(&mut self) -> &mut [Table] {
        &mut self.tables
    }

    /// When the process began.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// Adds to a counter.
    pub fn add(&mut self, metric: &'static Metric, set: &Set, n: u64, now: Timestamp) {
        if let Some(Point { data: Data::Sum(sum), .. }) = self.point(metric, set, now) {
            *sum += n;
        }
    }

    /// The distribution of a histogram.
    pub fn distribution(&mut self, metric: &'static Metric, set: &Set, now: Timestamp) -> Option<&mut Distribution> {
        match self.point(metric, set, now) {
            Some(Point { data: Data::Distribution(distribution), .. }) => Some(distribution),
            _ => None,
        }
    }

    /// Whether a counter's series may still be made before they are needed: half of the room is for those that are.
    pub fn has_room(&self, metric: &Metric) -> bool {
        self.tables.get(metric.index).is_some_and(|t| t.points.len() < self.shape.limit / 2)
    }

    fn point(&mut self, metric: &'static Metric, set: &Set, now: Timestamp) -> Option<&mut Point> {
        let table = self.tables.get_mut(metric.index)?;
        let mut at = table.index.get(set).copied();
        if at.is_none() {
            let full = table.points.len() + 1 >= self.shape.limit;
            self.overflown += u64::from(full);
            // The two views of an inference stay apart even here; the conventions' metrics have only one of them.
            let set = match set.get(attr::VANTAGE) {
                _ if !full => set.clone(),
                Some(vantage) => self.sets.with(&self.overflow, attr::VANTAGE, vantage.clone()),
                None => self.overflow.clone(),
            };
            at = Some(*table.index.entry(set.clone()).or_insert_with(|| {
                let exponential = self.shape.exponential || metric.is_own();
                let data = match metric.kind {
                    Kind::Histogram => Data::Distribution(Box::new(Distribution::new(metric.buckets, exponential))),
                    _ => Data::Sum(0),
                };
                table.points.push(Point { set, start: now, last: now, data, sent: None, round: 0 });
                table.points.len() - 1
            }));
        }
        let point = table.points.get_mut(at?)?;
        point.last = now.max(point.last);
        Some(point)
    }

    /// Takes what `tell` is called with: metric, attributes, value. Series of the same metrics that are not told any more have ended.
    pub fn observe(&mut self, now: Timestamp, from: impl FnOnce(&mut Take<'_>)) {
        self.round += 1;
        let Self { sets, tables, round, started, .. } = self;
        from(&mut |metric, attributes, told| {
            let Some(table) = tables.get_mut(metric.index) else { return };
            let data = match told {
                Told::Value(value) if value.is_finite() && metric.kind != Kind::Histogram => Data::Level(value),
                Told::Histogram(bounds, counts, sum) if sum.is_finite() && metric.kind == Kind::Histogram => {
                    Data::Distribution(Box::new(Distribution::counted(bounds, counts, sum)))
                }
                _ => return,
            };
            table.observed = true;
            let set =
                sets.of(attributes.iter().map(|(name, value)| (Cow::Owned((*name).to_owned()), Value::Text((*value).into()))).collect());
            let at = table.index.get(&set).copied();
            if let Some(point) = at.and_then(|at| table.points.get_mut(at)) {
                (point.data, point.last, point.round) = (data, now, *round);
            } else if table.points.len() < MOST_OBSERVED {
                table.index.insert(set.clone(), table.points.len());
                table.points.push(Point { set, start: *started, last: now, data, sent: None, round: *round });
            }
        });
        for table in self.tables.iter_mut().filter(|t| t.observed) {
            table.drop_points(|p| p.round == self.round);
        }
    }

    /// Where there is little room, lets go of series that were idle since `before`; whether any went.
    pub fn sweep(&mut self, before: Timestamp) -> bool {
        let crowded = self.shape.limit - self.shape.limit / 4;
        let mut any = false;
        for table in self.tables.iter_mut().filter(|t| !t.observed && t.points.len() >= crowded) {
            any |= table.drop_points(|p| p.last >= before || p.set.get(attr::OVERFLOW).is_some());
        }
        self.sets.sweep();
        any
    }

    /// Series as they are now.
    pub fn len(&self) -> usize {
        self.tables.iter().map(|t| t.points.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How often a measurement went to a series of the overflow.
    pub fn overflown(&self) -> u64 {
        self.overflown
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
