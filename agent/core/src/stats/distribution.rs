//! The values of one series of a histogram: in buckets with given bounds, in exponential ones where asked for, and a few of the requests that
//! they came from.

use std::borrow::Cow;

use crate::stats::Histogram;
use crate::stream::Timestamp;

/// Most exemplars of one series.
pub const MAX_EXEMPLARS: usize = 8;

/// One value, and the span of the request that it came from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Exemplar {
    /// The value.
    pub value: f64,
    /// When that request ended, on the wire.
    pub at: Timestamp,
    /// Its trace.
    pub trace_id: u128,
    /// Its span.
    pub span_id: u64,
    /// The bucket with given bounds that the value is in.
    pub bucket: usize,
    /// Whether it came since exemplars were last taken.
    pub fresh: bool,
}

/// The values of one series.
#[derive(Clone, PartialEq, Debug)]
pub struct Distribution {
    bounds: Cow<'static, [f64]>,
    counts: Box<[u64]>,
    count: u64,
    sum: f64,
    /// Unknown in differences.
    extremes: Option<(f64, f64)>,
    exponential: Option<Histogram>,
    exemplars: Vec<Exemplar>,
}

impl Distribution {
    /// An empty one with these upper bounds (inclusive), and exponential buckets beside them where asked for.
    pub fn new(bounds: &'static [f64], exponential: bool) -> Self {
        Self {
            bounds: Cow::Borrowed(bounds),
            counts: vec![0; bounds.len() + 1].into(),
            count: 0,
            sum: 0.0,
            extremes: None,
            exponential: exponential.then(Histogram::default),
            exemplars: Vec::new(),
        }
    }

    /// One that was counted elsewhere: upper bounds, the values in each bucket and beyond the last bound, and their sum.
    pub fn counted(bounds: &[f64], counts: &[u64], sum: f64) -> Self {
        let counts: Box<[u64]> = (0..=bounds.len()).map(|at| counts.get(at).copied().unwrap_or_default()).collect();
        let count = counts.iter().sum();
        Self { bounds: Cow::Owned(bounds.to_vec()), counts, count, sum, extremes: None, exponential: None, exemplars: Vec::new() }
    }

    /// Adds one value; negative and non-finite ones are ignored.
    pub fn record(&mut self, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        self.count += 1;
        self.sum += value;
        self.extremes = Some(match self.extremes {
            Some((min, max)) => (min.min(value), max.max(value)),
            None => (value, value),
        });
        if let Some(count) = self.counts.get_mut(self.bounds.partition_point(|b| *b < value)) {
            *count += 1;
        }
        if let Some(exponential) = &mut self.exponential {
            exponential.record(value);
        }
    }

    /// Remembers where a value that was recorded came from: the latest of each bucket, and when these are too many, the longest ago goes, but
    /// never that of the largest bucket: what one looks for is the slow request.
    pub fn exemplify(&mut self, value: f64, at: Timestamp, trace_id: u128, span_id: u64) {
        let bucket = self.bounds.partition_point(|b| *b < value);
        let new = Exemplar { value, at, trace_id, span_id, bucket, fresh: true };
        if let Some(same) = self.exemplars.iter_mut().find(|e| e.bucket == bucket) {
            *same = new;
            return;
        }
        if self.exemplars.len() < MAX_EXEMPLARS {
            self.exemplars.push(new);
            return;
        }
        let largest = self.exemplars.iter().map(|e| e.bucket).max().unwrap_or_default();
        if let Some(oldest) = self.exemplars.iter_mut().filter(|e| e.bucket != largest).min_by_key(|e| e.at) {
            *oldest = new;
        }
    }

    /// What was recorded since it was `earlier`, a former state of it.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut new = self.clone();
        new.counts.iter_mut().zip(&earlier.counts).for_each(|(mine, before)| *mine = mine.saturating_sub(*before));
        new.count = self.count.saturating_sub(earlier.count);
        new.sum = self.sum - earlier.sum;
        new.extremes = None;
        new.exponential = self.exponential.as_ref().zip(earlier.exponential.as_ref()).map(|(mine, before)| mine.since(before));
        new
    }

    /// Upper bounds, inclusive.
    pub fn bounds(&self) -> &[f64] {
        &self.bounds
    }

    /// Values in each bucket; the last one is beyond the last bound.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The smallest and the largest.
    pub fn extremes(&self) -> Option<(f64, f64)> {
        self.extremes
    }

    /// The exponential buckets.
    pub fn exponential(&self) -> Option<&Histogram> {
        self.exponential.as_ref()
    }

    /// The exemplars, in no order.
    pub fn exemplars(&self) -> &[Exemplar] {
        &self.exemplars
    }

    /// Takes note that the exemplars were exported.
    pub fn exemplars_taken(&mut self) {
        self.exemplars.iter_mut().for_each(|e| e.fresh = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[f64] = &[0.1, 1.0, 10.0];

    fn at(n: u64) -> Timestamp {
        Timestamp::from_unix_nanos(n)
    }

    #[test]
    fn bounds_are_inclusive() {
        let mut d = Distribution::new(BOUNDS, true);
        [0.0, 0.1, 0.11, 1.0, 10.0, 10.1, f64::NAN, -1.0].iter().for_each(|v| d.record(*v));
        assert_eq!((d.counts(), d.count(), d.extremes()), (&[2, 2, 1, 1][..], 6, Some((0.0, 10.1))));
        assert_eq!(d.exponential().map(|h| (h.count(), h.zeros())), Some((6, 1)));
        let earlier = d.clone();
        d.record(0.5);
        let new = d.since(&earlier);
        assert_eq!((new.counts(), new.count(), new.extremes()), (&[0, 1, 0, 0][..], 1, None));
        assert_eq!(new.exponential().map(Histogram::count), Some(1));
    }

    #[test]
    fn the_slow_and_the_recent_are_exemplified() {
        static MANY: [f64; 12] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0];
        let mut d = Distribution::new(&MANY, false);
        d.exemplify(100.0, at(1), 7, 7);
        (0..11).for_each(|i| d.exemplify(i as f64 + 0.5, at(10 + i), 1, i));
        d.exemplify(10.6, at(99), 2, 2);
        let mut kept: Vec<_> = d.exemplars().iter().map(|e| (e.value, e.at.unix_nanos())).collect();
        kept.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert_eq!(kept.len(), MAX_EXEMPLARS);
        assert_eq!(kept[7], (100.0, 1));
        assert_eq!(kept[6], (10.6, 99));
        assert!(d.exemplars().iter().all(|e| e.fresh));
        d.exemplars_taken();
        assert!(!d.exemplars().iter().any(|e| e.fresh));
    }
}
