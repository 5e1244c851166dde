//! What a server counted since it was first read.
//!
//! Its own totals begin whenever it began, and begin anew when it does. Here they begin with 0 at the first reading and only grow, as
//! every counter of the agent's own, so that they can be compared with what was seen on the wire in the same time.

use std::collections::BTreeMap;

use super::figures::Quantity;
use super::gather::{Histogram, Key, MAX_SERIES, Reading, Value};

/// The figures of one server over time.
#[derive(Debug, Default)]
pub struct Book {
    series: BTreeMap<Key, Kept>,
    /// Whether it was read before.
    begun: bool,
    /// Series that found no room, and what the readings left out.
    left_out: u64,
}

#[derive(Debug)]
struct Kept {
    /// As the server last said it.
    last: Value,
    /// Since it was first read.
    since: Value,
}

impl Book {
    /// Takes the server's next text. `anew` says that it is another process than the last time: its totals count from 0.
    pub fn read(&mut self, reading: Reading, anew: bool) {
        self.left_out = self.left_out.saturating_add(reading.left_out).saturating_add(reading.bad);
        self.series.retain(|_, kept| !matches!(kept.since, Value::Level(_)));
        for (key, value) in reading.series {
            let full = self.series.len() >= MAX_SERIES;
            match self.series.get_mut(&key) {
                Some(kept) => {
                    let before = if anew { nothing(&value) } else { kept.last.clone() };
                    if !grow(&mut kept.since, &value, &before) {
                        // Another kind of server at the same address, or other bounds: a series that begins here.
                        kept.since = nothing(&value);
                    }
                    kept.last = value;
                }
                None if full => self.left_out = self.left_out.saturating_add(1),
                None => {
                    // What appears later was 0 before: servers write some series when there is something to count only.
                    let since = if self.begun || matches!(value, Value::Level(_)) { value.clone() } else { nothing(&value) };
                    self.series.insert(key, Kept { last: value, since });
                }
            }
        }
        self.begun = true;
    }

    /// The server could not be read: what it said of the present holds no longer.
    pub fn missed(&mut self) {
        self.series.retain(|_, kept| !matches!(kept.since, Value::Level(_)));
    }

    /// Every figure: levels as they were last said, totals and histograms since the first reading.
    pub fn figures(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.series.iter().map(|(key, kept)| (key, &kept.since))
    }

    /// What could not be taken of the texts: histograms that contradict themselves, series beyond the bound.
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The sum of a total's series; `None` without one.
    pub fn total(&self, is: Quantity) -> Option<f64> {
        let totals = self.figures().filter(|(key, _)| key.is == is).filter_map(|(_, value)| match value {
            Value::Total(total) => Some(*total),
            _ => None,
        });
        totals.fold(None, |sum, total| Some(sum.unwrap_or_default() + total))
    }

    /// Sum and count of a histogram's series; `None` without one.
    pub fn sum_and_count(&self, is: Quantity) -> Option<(f64, u64)> {
        let all = self.figures().filter(|(key, _)| key.is == is).filter_map(|(_, value)| match value {
            Value::Histogram(histogram) => Some((histogram.sum, histogram.count())),
            _ => None,
        });
        all.fold(None, |sum, (s, n)| {
            let (sums, count) = sum.unwrap_or_default();
            Some((sums + s, count + n))
        })
    }
}

/// As the value would be before anything was counted. A level is what it is.
fn nothing(of: &Value) -> Value {
    match of {
        Value::Level(level) => Value::Level(*level),
        Value::Total(_) => Value::Total(0.0),
        Value::Histogram(h) => Value::Histogram(Histogram { bounds: h.bounds.clone(), counts: vec![0; h.counts.len()], sum: 0.0 }),
    }
}

/// Adds what came since `before`; everything, when the server began anew. Whether they are values of one kind.
fn grow(since: &mut Value, now: &Value, before: &Value) -> bool {
    match (since, now, before) {
        (Value::Total(since), Value::Total(now), Value::Total(before)) => {
            *since += if now < before { *now } else { now - before };
            true
        }
        (Value::Histogram(since), Value::Histogram(now), Value::Histogram(before)) => {
            if since.bounds != now.bounds || before.bounds != now.bounds {
                return false;
            }
            let anew = now.counts.iter().zip(&before.counts).any(|(now, before)| now < before);
            for (at, (now, before)) in since.counts.iter_mut().zip(now.counts.iter().zip(&before.counts)) {
                *at = at.saturating_add(if anew { *now } else { now - before });
            }
            since.sum += if anew { now.sum } else { now.sum - before.sum };
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::gather::Gather;
    use crate::engine::text::Reader;
    use proptest::prelude::*;

    fn reading(text: &str) -> Reading {
        let (mut reader, mut gather) = (Reader::default(), Gather::default());
        reader.push(text.as_bytes(), &mut |s| gather.sample(s));
        reader.finish(&mut |s| gather.sample(s));
        gather.finish()
    }

    fn tokens(n: u32) -> Reading {
        reading(&format!("vllm:generation_tokens_total {n}\nvllm:num_requests_running {n}\n"))
    }

    fn ttft(fast: u32, slow: u32) -> Reading {
        let name = "vllm:time_to_first_token_seconds";
        reading(&format!(
            "{name}_bucket{{le=\"1\"}} {fast}\n{name}_bucket{{le=\"+Inf\"}} {}\n{name}_sum {}\n{name}_count {}\n",
            fast + slow,
            f64::from(fast) * 0.5 + f64::from(slow) * 2.0,
            fast + slow
        ))
    }

    fn level(book: &Book) -> Option<f64> {
        book.figures().find_map(|(key, value)| match value {
            Value::Level(level) if key.is == Quantity::Running => Some(*level),
            _ => None,
        })
    }

    #[test]
    fn counted_from_the_first_reading_on() {
        let mut book = Book::default();
        assert_eq!(book.total(Quantity::GenerationTokens), None);
        for (said, want) in [(1000, 0.0), (1010, 10.0), (1010, 10.0), (5, 15.0), (7, 17.0)] {
            book.read(tokens(said), false);
            assert_eq!(book.total(Quantity::GenerationTokens), Some(want), "after {said}");
            assert_eq!(level(&book), Some(f64::from(said)));
        }
        // Another process that has already counted more than the last one did.
        book.read(tokens(9), true);
        assert_eq!(book.total(Quantity::GenerationTokens), Some(26.0));
        // A level does not outlive the server that said it, what was counted does.
        book.missed();
        assert_eq!((level(&book), book.total(Quantity::GenerationTokens)), (None, Some(26.0)));
    }

    #[test]
    fn what_appears_later_was_nothing_before() {
        let mut book = Book::default();
        book.read(tokens(10), false);
        book.read(reading("vllm:request_success_total{finished_reason=\"stop\"} 3\n"), false);
        assert_eq!(book.total(Quantity::Finished), Some(3.0));
        // Gone and back: what it was still counts.
        book.read(tokens(12), false);
        assert_eq!(book.total(Quantity::GenerationTokens), Some(2.0));
    }

    #[test]
    fn histograms_grow_bucket_by_bucket() {
        let mut book = Book::default();
        book.read(ttft(100, 10), false);
        assert_eq!(book.sum_and_count(Quantity::Ttft), Some((0.0, 0)));
        book.read(ttft(104, 11), false);
        assert_eq!(book.sum_and_count(Quantity::Ttft), Some((4.0, 5)));
        // The slow bucket became less: everything began anew, though there are more of the fast.
        book.read(ttft(200, 1), false);
        assert_eq!(book.sum_and_count(Quantity::Ttft), Some((106.0, 206)));
        // Other bounds: a new series.
        let name = "vllm:time_to_first_token_seconds";
        book.read(reading(&format!("{name}_bucket{{le=\"+Inf\"}} 9\n{name}_sum 1\n")), false);
        assert_eq!(book.sum_and_count(Quantity::Ttft), Some((0.0, 0)));
    }

    proptest! {
        #[test]
        fn totals_are_what_was_counted(steps in proptest::collection::vec((0_u32..50, proptest::bool::ANY), 1..30)) {
            let (mut book, mut said, mut want) = (Book::default(), 1_000_000_u32, 0);
            book.read(tokens(said), false);
            for (step, restart) in steps {
                said = if restart { step } else { said + step };
                want += step;
                book.read(tokens(said), restart);
                prop_assert_eq!(book.total(Quantity::GenerationTokens), Some(f64::from(want)));
            }
        }
    }
}
