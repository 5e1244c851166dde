//! An exponential histogram of fixed scale: bucket bounds are powers of 2^(1/16), so a quantile is within 2.2 % of a value that
//! occurred. It grows with the range of its values, not with their number, and merges exactly.

use std::collections::BTreeMap;

/// Buckets per power of two.
const PER_OCTAVE: f64 = 16.0;

/// A distribution of non-negative values.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Histogram {
    buckets: BTreeMap<i32, u64>,
    zeros: u64,
    count: u64,
    sum: f64,
    min: f64,
    max: f64,
}

impl Histogram {
    /// Adds one value; negative and non-finite ones are ignored.
    pub fn record(&mut self, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        if self.count == 0 {
            (self.min, self.max) = (value, value);
        }
        self.count += 1;
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        if value == 0.0 {
            self.zeros += 1;
        } else {
            *self.buckets.entry(bucket(value)).or_default() += 1;
        }
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        (self.min, self.max) = if self.count == 0 { (other.min, other.max) } else { (self.min.min(other.min), self.max.max(other.max)) };
        self.count += other.count;
        self.sum += other.sum;
        self.zeros += other.zeros;
        for (b, n) in &other.buckets {
            *self.buckets.entry(*b).or_default() += n;
        }
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of the values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The largest value.
    pub fn max(&self) -> Option<f64> {
        (self.count > 0).then_some(self.max)
    }

    /// The value below which the share `q` (0 to 1) of the values lies, within 2.2 %; `None` without values.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let rank = (q.clamp(0.0, 1.0) * (self.count - 1) as f64).round() as u64;
        if rank < self.zeros {
            return Some(0.0);
        }
        let mut seen = self.zeros;
        for (b, n) in &self.buckets {
            seen += n;
            if rank < seen {
                return Some(middle(*b).clamp(self.min, self.max));
            }
        }
        Some(self.max)
    }
}

fn bucket(value: f64) -> i32 {
    // Values from 1e-300 to 1e300 stay within ±16,000.
    (value.log2() * PER_OCTAVE).floor() as i32
}

fn middle(bucket: i32) -> f64 {
    ((f64::from(bucket) + 0.5) / PER_OCTAVE).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the obviously right way: sort, take the nearest rank.
        #[test]
        fn a_quantile_is_within_its_bound(values in prop::collection::vec(1e-6f64..1e6, 1..200), q in 0.0f64..=1.0, cut in 0usize..200) {
            let (mut a, mut b) = (Histogram::default(), Histogram::default());
            let cut = cut.min(values.len());
            values[..cut].iter().for_each(|v| a.record(*v));
            values[cut..].iter().for_each(|v| b.record(*v));
            a.merge(&b);
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let want = sorted[(q * (sorted.len() - 1) as f64).round() as usize];
            let got = a.quantile(q).unwrap();
            prop_assert!((got / want - 1.0).abs() <= 0.0221, "{got} for {want}");
            prop_assert_eq!(a.count(), values.len() as u64);
            prop_assert_eq!(a.max().unwrap(), *sorted.last().unwrap());
        }
    }

    #[test]
    fn nothing_is_not_zero() {
        let mut h = Histogram::default();
        assert_eq!((h.quantile(0.5), h.max()), (None, None));
        h.record(f64::NAN);
        h.record(-1.0);
        assert_eq!(h.count(), 0);
        h.record(0.0);
        assert_eq!(h.quantile(0.5), Some(0.0));
    }
}
