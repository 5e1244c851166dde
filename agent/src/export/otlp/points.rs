//! The store of series as requests of OTLP (`opentelemetry/proto/metrics/v1/metrics.proto`, 1.x), cut into pieces that receivers take.
//!
//! Every point has its series' own start: a series that came later did not exist before, and one that went and came back began anew. A series
//! that ended is said once, with `NoRecordedValue`, so that backends end it too and not five minutes later.

use tokengauge_core::semconv::{self, Kind, Metric, Profile};
use tokengauge_core::stats::Store;
use tokengauge_core::stats::distribution::{Distribution, Exemplar};
use tokengauge_core::stats::sets::{Attribute, Set, Value};
use tokengauge_core::stats::store::{Data, Point};
use tokengauge_core::stream::Timestamp;

use super::Env;
use super::carrier::LARGEST;
use crate::export::wire::Wire;

/// `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE` (specification, metrics/sdk_exporters/otlp.md). Sums that go up and down, and gauges,
/// are never deltas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Temporality {
    /// Since the series began. What Prometheus takes.
    #[default]
    Cumulative,
    /// Since the last export: counters and histograms.
    Delta,
    /// Deltas of what is recorded, totals of what is observed.
    LowMemory,
}

/// The form in which histograms travel: `OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Histograms {
    /// Those of the conventions with the bounds that they prescribe, ours exponential.
    #[default]
    Mixed,
    /// All with bounds: `explicit_bucket_histogram`.
    Explicit,
    /// All exponential: `base2_exponential_bucket_histogram`.
    Exponential,
}

/// How metrics are to be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Style {
    /// Totals or deltas.
    pub temporality: Temporality,
    /// Bounds or powers.
    pub histograms: Histograms,
}

impl Style {
    /// As the environment says; unknown words are the defaults.
    pub fn from_env(env: Env<'_>) -> Self {
        let word = |name| env(name).unwrap_or_default().to_ascii_lowercase();
        Self {
            temporality: match word("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE").as_str() {
                "delta" => Temporality::Delta,
                "lowmemory" => Temporality::LowMemory,
                _ => Temporality::Cumulative,
            },
            histograms: match word("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION").as_str() {
                "explicit_bucket_histogram" => Histograms::Explicit,
                "base2_exponential_bucket_histogram" => Histograms::Exponential,
                _ => Histograms::Mixed,
            },
        }
    }

    fn is_delta(self, m: &Metric, observed: bool) -> bool {
        matches!(m.kind, Kind::Counter | Kind::Histogram)
            && match self.temporality {
                Temporality::Cumulative => false,
                Temporality::Delta => true,
                Temporality::LowMemory => !observed,
            }
    }

    fn is_exponential(self, m: &Metric) -> bool {
        match self.histograms {
            Histograms::Mixed => m.is_own() && !m.buckets.is_empty(),
            Histograms::Explicit => false,
            // What others count has the bounds of others.
            Histograms::Exponential => !m.buckets.is_empty(),
        }
    }
}

/// `DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK`.
const NO_RECORDED_VALUE: u64 = 1;

/// Encodes the store. `resource` is an encoded `Resource`; `send` gets each request and the number of its points.
pub fn encode(store: &mut Store, profile: Profile, style: Style, resource: &[u8], now: Timestamp, send: &mut dyn FnMut(Vec<u8>, u32)) {
    let mut out = Cutter::new(resource, profile, send);
    for table in store.tables_mut() {
        let (metric, gone) = (table.metric, table.gone());
        for point in table.points_mut() {
            let delta = style.is_delta(metric, matches!(point.data, Data::Level(_)));
            out.metric(metric, style, delta);
            if !delta {
                out.point(point.start, now, &point.set, &point.data);
            } else if let Some((since, new)) = point.delta(now) {
                out.point(since, now, &point.set, &new);
            }
            if let Data::Distribution(distribution) = &mut point.data {
                distribution.exemplars_taken();
            }
        }
        if !gone.is_empty() {
            out.metric(metric, style, style.is_delta(metric, false));
            gone.iter().for_each(|set| out.no_value(now, set));
        }
        out.end_metric();
    }
    out.end();
}

/// Says of every level and gauge that it has no value any more: the process ends, and what it last said is true no longer. Totals stay.
pub fn encode_end(store: &mut Store, profile: Profile, style: Style, resource: &[u8], now: Timestamp, send: &mut dyn FnMut(Vec<u8>, u32)) {
    let mut out = Cutter::new(resource, profile, send);
    for table in store.tables().iter().filter(|t| matches!(t.metric.kind, Kind::Gauge | Kind::UpDownCounter)) {
        for Point { set, .. } in table.points() {
            out.metric(table.metric, style, false);
            out.no_value(now, set);
        }
        out.end_metric();
    }
    out.end();
}

/// Puts points into metrics and metrics into requests, each below [`LARGEST`].
struct Cutter<'a> {
    resource: &'a [u8],
    profile: Profile,
    send: &'a mut dyn FnMut(Vec<u8>, u32),
    /// Finished metrics: fields of a `ScopeMetrics`.
    metrics: Wire,
    /// Points of the metric at hand: fields of its data.
    points: Wire,
    at_hand: Option<(&'static Metric, bool, bool)>,
    items: u32,
}

impl<'a> Cutter<'a> {
    fn new(resource: &'a [u8], profile: Profile, send: &'a mut dyn FnMut(Vec<u8>, u32)) -> Self {
        Self { resource, profile, send, metrics: Wire::default(), points: Wire::default(), at_hand: None, items: 0 }
    }

    /// Points of this metric follow.
    fn metric(&mut self, m: &'static Metric, style: Style, delta: bool) {
        self.at_hand.get_or_insert((m, delta, style.is_exponential(m)));
    }

    fn point(&mut self, start: Timestamp, now: Timestamp, set: &Set, data: &Data) {
        let Some((m, _, exponential)) = self.at_hand else { return };
        let (start, now) = (start.unix_nanos().min(now.unix_nanos()), now.unix_nanos());
        self.points.nested(1, |w| match data {
            Data::Sum(n) => number(w, start, now, set, |w| w.fixed(6, *n)),
            Data::Level(x) if m.is_real() => number(w, start, now, set, |w| w.double(4, *x)),
            Data::Level(x) => number(w, start, now, set, |w| w.fixed(6, *x as i64 as u64)),
            Data::Distribution(d) if exponential => powers(w, start, now, set, d),
            Data::Distribution(d) => bounds(w, start, now, set, d),
        });
        self.counted();
    }

    fn no_value(&mut self, now: Timestamp, set: &Set) {
        let Some((m, _, exponential)) = self.at_hand else { return };
        let (of_attributes, of_flags) = match (m.kind, exponential) {
            (Kind::Histogram, true) => (1, 10),
            (Kind::Histogram, false) => (9, 10),
            _ => (7, 8),
        };
        self.points.nested(1, |w| {
            w.fixed(3, now.unix_nanos());
            attributes(w, of_attributes, set.attributes());
            w.uint(of_flags, NO_RECORDED_VALUE);
        });
        self.counted();
    }

    fn counted(&mut self) {
        self.items += 1;
        if self.metrics.0.len() + self.points.0.len() + self.resource.len() > LARGEST - LARGEST / 16 {
            let at_hand = self.at_hand;
            self.end_metric();
            self.end();
            self.at_hand = at_hand;
        }
    }

    fn end_metric(&mut self) {
        let Some((m, delta, exponential)) = self.at_hand.take() else { return };
        if self.points.0.is_empty() {
            return;
        }
        let points = std::mem::take(&mut self.points);
        let temporality = if delta { 1 } else { 2 };
        self.metrics.nested(2, |w| {
            w.text(1, m.name);
            w.text(2, m.doc);
            w.text(3, m.unit);
            let data = match (m.kind, exponential) {
                (Kind::Gauge, _) => 5,
                (Kind::Counter | Kind::UpDownCounter, _) => 7,
                (Kind::Histogram, false) => 9,
                (Kind::Histogram, true) => 10,
            };
            w.nested(data, |w| {
                w.0.extend_from_slice(&points.0);
                if m.kind != Kind::Gauge {
                    w.uint(2, temporality);
                }
                if m.kind == Kind::Counter {
                    w.uint(3, 1);
                }
            });
        });
        // The buffer is kept for the next metric.
        self.points = points;
        self.points.0.clear();
    }

    fn end(&mut self) {
        if self.items == 0 {
            return;
        }
        let mut request = Wire(Vec::with_capacity(self.metrics.0.len() + self.resource.len() + 256));
        let schema = self.profile.schema_url();
        request.nested(1, |w| {
            w.bytes(1, self.resource);
            w.nested(2, |w| {
                w.nested(1, |w| {
                    w.text(1, semconv::SCOPE);
                    w.text(2, env!("CARGO_PKG_VERSION"));
                });
                w.0.extend_from_slice(&self.metrics.0);
                w.text(3, schema);
            });
        });
        self.metrics.0.clear();
        (self.send)(request.0, std::mem::take(&mut self.items));
    }
}

/// Repeated `KeyValue`.
pub fn attributes(w: &mut Wire, field: u32, all: &[Attribute]) {
    for (name, value) in all {
        w.nested(field, |w| {
            w.text(1, name);
            w.nested(2, |w| match value {
                Value::Word(text) => w.text(1, text),
                Value::Text(text) => w.text(1, text),
                Value::Flag(yes) => w.uint(2, u64::from(*yes)),
                Value::Int(n) => w.int(3, *n),
            });
        });
    }
}

/// `NumberDataPoint`.
fn number(w: &mut Wire, start: u64, now: u64, set: &Set, value: impl FnOnce(&mut Wire)) {
    w.fixed(2, start);
    w.fixed(3, now);
    value(w);
    attributes(w, 7, set.attributes());
}

/// `HistogramDataPoint`.
fn bounds(w: &mut Wire, start: u64, now: u64, set: &Set, d: &Distribution) {
    w.fixed(2, start);
    w.fixed(3, now);
    w.fixed(4, d.count());
    w.double(5, d.sum());
    w.fixed_list(6, d.counts().iter().copied());
    w.fixed_list(7, d.bounds().iter().map(|b| b.to_bits()));
    exemplars(w, 8, d);
    attributes(w, 9, set.attributes());
    if let Some((min, max)) = d.extremes() {
        w.double(11, min);
        w.double(12, max);
    }
}

/// `ExponentialHistogramDataPoint`.
fn powers(w: &mut Wire, start: u64, now: u64, set: &Set, d: &Distribution) {
    attributes(w, 1, set.attributes());
    w.fixed(2, start);
    w.fixed(3, now);
    w.fixed(4, d.count());
    w.double(5, d.sum());
    if let Some(h) = d.exponential() {
        w.sint(6, h.scale().into());
        w.fixed(7, h.zeros());
        let (offset, counts) = h.buckets();
        w.nested(8, |w| {
            w.sint(1, offset.into());
            w.nested(2, |w| counts.iter().for_each(|n| w.varint(*n)));
        });
    }
    exemplars(w, 11, d);
    if let Some((min, max)) = d.extremes() {
        w.double(12, min);
        w.double(13, max);
    }
}

/// Those that came since the last export.
fn exemplars(w: &mut Wire, field: u32, d: &Distribution) {
    for Exemplar { value, at, trace_id, span_id, .. } in d.exemplars().iter().filter(|e| e.fresh) {
        w.nested(field, |w| {
            w.fixed(2, at.unix_nanos());
            w.double(3, *value);
            w.bytes(4, &span_id.to_be_bytes());
            w.bytes(5, &trace_id.to_be_bytes());
        });
    }
}

#[cfg(test)]
#[path = "points_tests.rs"]
mod tests;
