//! One text of a server to one [`Reading`]: its samples under our names.

use std::collections::BTreeMap;

use super::Kind;
use super::figures::{self, Quantity, Server, Source, Take};
use super::text::Sample;
use crate::name::Name;

/// Most series of one text that are kept.
pub const MAX_SERIES: usize = 4_096;

/// Most models, ranks or reasons that one text may name; what is beyond stands under `_other`.
pub const MAX_NAMES: usize = 64;

/// Most buckets of a histogram.
const MAX_BUCKETS: usize = 256;

/// Most that a histogram may have counted: up to here every whole number is a double.
const MAX_COUNT: f64 = 9_007_199_254_740_992.0;

/// What stands for names beyond [`MAX_NAMES`].
const OTHER: &str = "_other";

/// What tells one series of a server from another.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Which figure.
    pub is: Quantity,
    /// Whose names it came under. A Triton whose back end is vLLM has figures of both.
    pub kind: Kind,
    /// The model, where the server names it.
    pub model: Option<Name>,
    /// The engine's rank, where the server has several.
    pub rank: Option<Name>,
    /// Why, in the server's words.
    pub reason: Option<Name>,
}

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// As it is now.
    Level(f64),
    /// Since some beginning.
    Total(f64),
    /// Since some beginning.
    Histogram(Histogram),
}

/// A histogram with bounds of its own.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Histogram {
    /// Upper bounds, inclusive, without the last bucket's, which is infinite.
    pub bounds: Vec<f64>,
    /// How many in each bucket; one more than bounds.
    pub counts: Vec<u64>,
    /// Sum of all.
    pub sum: f64,
}

impl Histogram {
    /// How many in all.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// What one text said.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reading {
    /// Every figure.
    pub series: BTreeMap<Key, Value>,
    /// Histograms that contradict themselves, and sums that are no numbers: left out.
    pub bad: u64,
    /// Samples beyond [`MAX_SERIES`], or with values that cannot be: left out.
    pub left_out: u64,
}

/// Collects one text's samples.
#[derive(Debug, Default)]
pub struct Gather {
    /// By figure and place among its sources.
    parts: BTreeMap<(Key, usize), Part>,
    names: Vec<Name>,
    left_out: u64,
}

#[derive(Debug)]
enum Part {
    Number(f64),
    Histogram(Raw),
}

/// A histogram as it comes, line by line.
#[derive(Debug, Default)]
struct Raw {
    /// Bound, what was counted up to it, and how many series say so.
    buckets: Vec<(f64, f64, u32)>,
    sum: Option<f64>,
    count: Option<f64>,
}

impl Gather {
    /// Takes one sample, if it is one of a figure.
    pub fn sample(&mut self, sample: Sample<'_>) {
        let Some(server) = figures::of_name(sample.name) else { return };
        for figure in server.figures {
            for (place, source) in figure.sources.iter().enumerate() {
                if let Some(what) = matches(source, sample.name)
                    && source.only.is_none_or(|(label, value)| sample.labels.get(label).as_deref() == Some(value))
                    && server.same.iter().all(|(label, value)| sample.labels.get(label).is_none_or(|v| v == *value))
                {
                    // Of alternatives the place matters; parts of a sum share one.
                    let place = if figure.sum { 0 } else { place };
                    self.take(server, figure.is, source, place, what, sample);
                }
            }
        }
    }

    fn take(&mut self, server: &Server, is: Quantity, source: &Source, place: usize, what: What, sample: Sample<'_>) {
        // A negative or infinite figure is none; NaN is what some write before there is one.
        let total = !matches!(source.take, Take::Level | Take::Highest);
        if !sample.value.is_finite() || (total && sample.value < 0.0) {
            self.left_out += u64::from(!sample.value.is_nan());
            return;
        }
        let mut name = |label: Option<&str>| {
            let label = label.filter(|l| !l.is_empty())?;
            self.name(&sample.labels.get(label)?)
        };
        let (model, rank) = (name(Some(server.model)), name(server.rank));
        let reason = name(source.reason);
        let key = (Key { is, kind: server.kind, model, rank, reason }, place);
        if !self.parts.contains_key(&key) && self.parts.len() >= MAX_SERIES {
            self.left_out += 1;
            return;
        }
        match what {
            What::Number => match self.parts.entry(key).or_insert(Part::Number(0.0)) {
                Part::Number(number) if source.take == Take::Highest => *number = number.max(sample.value * source.scale),
                Part::Number(number) => *number += sample.value * source.scale,
                Part::Histogram(_) => self.left_out += 1,
            },
            what => match self.parts.entry(key).or_insert_with(|| Part::Histogram(Raw::default())) {
                Part::Histogram(raw) => {
                    let fits = raw.take(what, source.scale, sample);
                    self.left_out += u64::from(!fits);
                }
                Part::Number(_) => self.left_out += 1,
            },
        }
    }

    /// A bounded name: one of the first [`MAX_NAMES`], else `_other`.
    fn name(&mut self, value: &str) -> Option<Name> {
        let name = Name::new(value)?;
        if !self.names.contains(&name) {
            if self.names.len() >= MAX_NAMES {
                return Name::new(OTHER);
            }
            self.names.push(name.clone());
        }
        Some(name)
    }

    /// The end of the text.
    pub fn finish(self) -> Reading {
        let mut reading = Reading { left_out: self.left_out, ..Reading::default() };
        // The first name of a figure that a text has, for every series of the figure.
        let mut best: BTreeMap<(Kind, Quantity), usize> = BTreeMap::new();
        for (key, place) in self.parts.keys() {
            let first = best.entry((key.kind, key.is)).or_insert(*place);
            *first = (*first).min(*place);
        }
        for ((key, place), part) in self.parts {
            if best.get(&(key.kind, key.is)) != Some(&place) {
                continue;
            }
            let value = match part {
                // Too large to be added up.
                Part::Number(number) if !number.is_finite() => None,
                Part::Number(number) if key.is.metric().kind == crate::semconv::Kind::Gauge => Some(Value::Level(number)),
                Part::Number(number) => Some(Value::Total(number)),
                Part::Histogram(raw) => raw.finish().map(Value::Histogram),
            };
            match value {
                Some(value) => drop(reading.series.insert(key, value)),
                None => reading.bad += 1,
            }
        }
        reading
    }
}

impl Raw {
    fn take(&mut self, what: What, scale: f64, sample: Sample<'_>) -> bool {
        let add = |place: &mut Option<f64>, value: f64| *place = Some(place.unwrap_or_default() + value);
        match what {
            What::Sum => add(&mut self.sum, sample.value * scale),
            What::Count => add(&mut self.count, sample.value),
            What::Bucket => {
                let Some(bound) = sample.labels.get("le").and_then(|le| le.parse::<f64>().ok()).filter(|b| !b.is_nan()) else {
                    return false;
                };
                let bound = bound * scale;
                let full = self.buckets.len() > MAX_BUCKETS;
                match self.buckets.iter_mut().find(|b| b.0 == bound) {
                    Some(bucket) => {
                        bucket.1 += sample.value;
                        bucket.2 += 1;
                    }
                    None if full => return false,
                    None => self.buckets.push((bound, sample.value, 1)),
                }
            }
            What::Number => {}
        }
        true
    }

    /// `None` when it contradicts itself.
    fn finish(mut self) -> Option<Histogram> {
        self.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (last, series) = self.buckets.last().map(|b| (*b, b.2))?;
        let whole = last.0 == f64::INFINITY
            && self.buckets.iter().all(|b| b.2 == series)
            && self.buckets.is_sorted_by(|a, b| a.1 <= b.1)
            && last.1 <= MAX_COUNT
            && self.count.is_none_or(|count| count == last.1);
        if !whole {
            return None;
        }
        let mut before = 0.0;
        let counts = self.buckets.iter().map(|(_, up_to, _)| {
            let here = up_to - before;
            before = *up_to;
            here.round() as u64
        });
        let counts = counts.collect();
        let bounds = self.buckets.iter().map(|b| b.0).filter(|b| b.is_finite()).collect();
        Some(Histogram { bounds, counts, sum: self.sum.filter(|s| s.is_finite())? })
    }
}

/// Which line of a metric a sample is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Number,
    Bucket,
    Sum,
    Count,
}

fn matches(source: &Source, name: &str) -> Option<What> {
    let suffix = name.strip_prefix(source.name)?;
    match (source.take, suffix) {
        (Take::Level | Take::Highest | Take::Total, "") | (Take::Total, "_total") => Some(What::Number),
        (Take::Histogram, "_bucket") => Some(What::Bucket),
        (Take::Histogram, "_sum") => Some(What::Sum),
        (Take::Histogram, "_count") => Some(What::Count),
        (Take::SumOf, "_sum") => Some(What::Number),
        _ => None,
    }
}

/// Every series in one line, and what could not be read in the last.
#[cfg(test)]
pub(super) fn shown(reading: &Reading) -> String {
    let mut out = String::new();
    for (key, value) in &reading.series {
        let labels = [&key.model, &key.rank, &key.reason].map(|l| l.as_ref().map_or("-", Name::as_str));
        let value = match value {
            Value::Level(v) => format!("{v}"),
            Value::Total(v) => format!("total {v}"),
            Value::Histogram(h) => {
                let full = h.counts.iter().enumerate().filter(|(_, n)| **n > 0);
                let full: Vec<_> = full.map(|(i, n)| format!("{n} up to {}", h.bounds.get(i).unwrap_or(&f64::INFINITY))).collect();
                format!("{} of {} bounds, sum {:.6}: {}", h.count(), h.bounds.len(), h.sum, full.join(", "))
            }
        };
        out += &format!("{} {} [{}] {value}\n", key.kind.as_str(), key.is.metric().name, labels.join(" "));
    }
    if reading.bad + reading.left_out > 0 {
        out += &format!("{} bad, {} left out\n", reading.bad, reading.left_out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::text::Reader;
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Reading {
        let (mut reader, mut gather) = (Reader::default(), Gather::default());
        reader.push(text.as_bytes(), &mut |s| gather.sample(s));
        reader.finish(&mut |s| gather.sample(s));
        gather.finish()
    }

    fn bucket(le: &str, n: u32) -> String {
        format!("vllm:time_to_first_token_seconds_bucket{{engine=\"0\",le=\"{le}\"}} {n}\n")
    }

    #[test]
    fn old_names_count_only_without_the_new() {
        let both = "vllm:kv_cache_usage_perc 0.25\nvllm:gpu_cache_usage_perc 0.75\n";
        assert_eq!(shown(&read(both)), "vllm tokengauge.engine.kv_cache.usage [- - -] 0.25\n");
        let old = "vllm:gpu_cache_usage_perc 0.75\n";
        assert_eq!(shown(&read(old)), "vllm tokengauge.engine.kv_cache.usage [- - -] 0.75\n");
    }

    #[test]
    fn ranks_that_repeat_each_other_count_once() {
        let text = "sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\",dp_rank=\"0\"} 3\n\
                    sglang:num_running_reqs{model_name=\"m\",tp_rank=\"1\",dp_rank=\"0\"} 3\n\
                    sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\",dp_rank=\"1\"} 4\n\
                    sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\",dp_rank=\"1\",priority=\"5\"} 2\n\
                    sglang:num_running_reqs{model_name=\"n\",tp_rank=\"0\",dp_rank=\"1\",priority=\"\"} 7\n";
        let want = "sglang tokengauge.engine.requests.running [m 0 -] 3\n\
                    sglang tokengauge.engine.requests.running [m 1 -] 4\n\
                    sglang tokengauge.engine.requests.running [n 1 -] 7\n";
        assert_eq!(shown(&read(text)), want);
    }

    #[test]
    fn series_that_we_do_not_tell_apart_are_added() {
        let text = "sglang:generation_tokens_total{is_streaming=\"true\"} 3\nsglang:generation_tokens_total{is_streaming=\"false\"} 4\n";
        assert_eq!(shown(&read(text)), "sglang tokengauge.engine.generation_tokens [- - -] total 7\n");
        let text = "nv_inference_compute_input_duration_us{model=\"m\",version=\"1\"} 1000000\n\
                    nv_inference_compute_infer_duration_us{model=\"m\",version=\"1\"} 2500000\n\
                    nv_inference_compute_infer_duration_us{model=\"m\",version=\"2\"} 500000\n";
        assert_eq!(shown(&read(text)), "triton tokengauge.engine.spent.inference [m - -] total 4\n");
    }

    #[test]
    fn histograms_that_contradict_themselves_are_left_out() {
        let whole = bucket("0.1", 2) + &bucket("1.0", 5) + &bucket("+Inf", 6);
        let (sum, count) =
            ("vllm:time_to_first_token_seconds_sum{engine=\"0\"} 3.5\n", "vllm:time_to_first_token_seconds_count{engine=\"0\"} 6\n");
        assert_eq!(
            shown(&read(&(whole.clone() + sum + count))),
            "vllm tokengauge.engine.time_to_first_token [- 0 -] 6 of 2 bounds, sum 3.500000: 2 up to 0.1, 3 up to 1, 1 up to inf\n"
        );
        let bad = "1 bad, 0 left out\n";
        for text in [
            whole.clone() + count,                                           // no sum
            whole.clone() + sum + &count.replace('6', "7"),                  // another count
            bucket("0.1", 2) + &bucket("1.0", 5) + sum,                      // no last bucket
            bucket("0.1", 5) + &bucket("1.0", 2) + &bucket("+Inf", 6) + sum, // less than before
            whole.clone() + &bucket("1.0", 5) + sum,                         // a bucket twice
            sum.to_owned() + count,                                          // no bucket
        ] {
            assert_eq!(shown(&read(&text)), bad, "{text}");
        }
        let text = whole + &bucket("one", 5) + sum;
        assert_eq!(read(&text).left_out, 1);
    }

    #[test]
    fn what_cannot_be_is_left_out() {
        let huge = "vllm:prompt_tokens_total{x=\"1\"} 1.5e308\nvllm:prompt_tokens_total{x=\"2\"} 1.5e308\n";
        assert_eq!(shown(&read(huge)), "1 bad, 0 left out\n");
        let text = "vllm:prompt_tokens_total -1\nvllm:generation_tokens_total +Inf\nvllm:num_requests_running NaN\n";
        let reading = read(text);
        assert_eq!((reading.series.len(), reading.left_out), (0, 2));
    }

    #[test]
    fn names_and_series_are_bounded() {
        let text: String = (0..10_000).map(|i| format!("vllm:prompt_tokens_total{{model_name=\"m{i}\"}} 1\n")).collect();
        let reading = read(&text);
        assert_eq!(reading.series.len(), MAX_NAMES + 1);
        let other = reading.series.iter().find(|(k, _)| k.model.as_ref().is_some_and(|m| m.as_str() == OTHER)).unwrap();
        assert_eq!(other.1, &Value::Total(10_000.0 - MAX_NAMES as f64));
        let text: String =
            (0..10_000).map(|i| format!("vllm:prompt_tokens_total{{model_name=\"{}\",engine=\"{}\"}} 1\n", i / 50, i % 50)).collect();
        assert!(read(&text).series.len() <= MAX_SERIES);
        let text: String = (0..1_000).map(|i| bucket(&i.to_string(), i)).collect();
        let reading = read(&text);
        assert_eq!(reading.bad, 1);
        assert!(reading.left_out > 0);
    }

    proptest! {
        #[test]
        fn any_buckets_give_what_was_observed_or_nothing(observed in proptest::collection::vec(0_u32..50, 1..8), broken in proptest::option::of(0_usize..8)) {
            let (mut text, mut up_to) = (String::new(), 0);
            for (i, n) in observed.iter().enumerate() {
                up_to += n;
                let le = if i + 1 == observed.len() { "+Inf".to_owned() } else { format!("{}", i + 1) };
                if broken != Some(i) {
                    text += &bucket(&le, up_to);
                }
            }
            text += &format!("vllm:time_to_first_token_seconds_sum{{engine=\"0\"}} 1\nvllm:time_to_first_token_seconds_count{{engine=\"0\"}} {up_to}\n");
            let reading = read(&text);
            match reading.series.values().next() {
                Some(Value::Histogram(h)) => {
                    prop_assert_eq!(h.count(), u64::from(up_to));
                    prop_assert_eq!(h.counts.len(), h.bounds.len() + 1);
                    prop_assert!(broken != Some(observed.len() - 1));
                }
                other => {
                    prop_assert!(other.is_none());
                    prop_assert_eq!((reading.bad, broken), (1, Some(observed.len() - 1)));
                }
            }
        }
    }
}
