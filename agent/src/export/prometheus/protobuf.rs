//! `io.prometheus.client` (`metrics.proto` of prometheus/client_model): the only exposition that carries native histograms.

use std::io;

use tokengauge_core::semconv::Kind;
use tokengauge_core::stats::Store;
use tokengauge_core::stats::distribution::{Distribution, Exemplar};
use tokengauge_core::stats::histogram::Histogram;
use tokengauge_core::stats::store::{Data, Point};
use tokengauge_core::stream::Timestamp;

use super::{families, label, labels, value};
use crate::export::wire::{Wire, zigzag};

/// `MetricType`.
const COUNTER: u64 = 0;
const GAUGE: u64 = 1;
const HISTOGRAM: u64 = 4;

/// What Prometheus makes of OTLP's histograms, too: exact zeros are in it and nothing else.
const ZERO_THRESHOLD: f64 = 1e-128;

/// All series, handed on family by family.
pub fn render(store: &Store, target: &[(String, String)], to: &mut dyn io::Write) -> io::Result<()> {
    let mut out = Wire::default();
    if !target.is_empty() {
        out.delimited(|w| {
            head(w, "target_info", "Who exports.", GAUGE);
            w.nested(4, |w| {
                target.iter().for_each(|(name, value)| pair(w, 1, &label(name), value));
                w.nested(2, |w| w.double(1, 1.0));
            });
        });
    }
    for family in families(store) {
        let (kind, field) = match family.metric.kind {
            Kind::Counter => (COUNTER, 3),
            Kind::Gauge | Kind::UpDownCounter => (GAUGE, 2),
            Kind::Histogram => (HISTOGRAM, 7),
        };
        out.delimited(|w| {
            head(w, &family.name, family.metric.doc, kind);
            for Point { set, start, data, .. } in family.points {
                w.nested(4, |w| {
                    labels(set).for_each(|(name, value)| pair(w, 1, &name, &value));
                    w.nested(field, |w| match data {
                        Data::Distribution(d) => histogram(w, d, *start),
                        data => {
                            w.double(1, value(data));
                            if kind == COUNTER {
                                time(w, 3, *start);
                            }
                        }
                    });
                });
            }
        });
        to.write_all(&out.0)?;
        out.0.clear();
    }
    to.write_all(&out.0)
}

fn head(w: &mut Wire, name: &str, help: &str, kind: u64) {
    w.text(1, name);
    w.text(2, help);
    w.uint(3, kind);
}

/// `LabelPair`.
fn pair(w: &mut Wire, field: u32, name: &str, value: &str) {
    w.nested(field, |w| {
        w.text(1, name);
        w.text(2, value);
    });
}

/// `google.protobuf.Timestamp`.
fn time(w: &mut Wire, field: u32, at: Timestamp) {
    w.nested(field, |w| {
        w.uint(1, at.unix_nanos() / 1_000_000_000);
        w.uint(2, at.unix_nanos() % 1_000_000_000);
    });
}

fn exemplar(w: &mut Wire, field: u32, e: &Exemplar) {
    w.nested(field, |w| {
        pair(w, 1, "trace_id", &format!("{:032x}", e.trace_id));
        pair(w, 1, "span_id", &format!("{:016x}", e.span_id));
        w.double(2, e.value);
        time(w, 3, e.at);
    });
}

fn histogram(w: &mut Wire, d: &Distribution, start: Timestamp) {
    w.uint(1, d.count());
    w.double(2, d.sum());
    let mut sum = 0;
    let bounds = d.bounds().iter().copied().chain([f64::INFINITY]);
    for (bucket, (bound, n)) in bounds.zip(d.counts()).enumerate() {
        sum += n;
        w.nested(3, |w| {
            w.uint(1, sum);
            w.double(2, bound);
            if let Some(e) = d.exemplars().iter().find(|e| e.bucket == bucket) {
                exemplar(w, 3, e);
            }
        });
    }
    if let Some(h) = d.exponential() {
        native(w, h);
    }
    time(w, 15, start);
    if d.exponential().is_some() {
        let mut sorted: Vec<_> = d.exemplars().iter().collect();
        sorted.sort_by_key(|e| e.at);
        sorted.iter().for_each(|e| exemplar(w, 16, e));
    }
}

/// Buckets by spans of used ones and differences of counts. Prometheus numbers buckets by their upper bounds: OTLP's 0 is its 1.
fn native(w: &mut Wire, h: &Histogram) {
    w.sint(5, h.scale().into());
    w.double(6, ZERO_THRESHOLD);
    w.uint(7, h.zeros());
    let (offset, counts) = h.buckets();
    let (mut end, mut at) = (0, 0);
    let mut deltas = Wire::default();
    let mut before = 0_i64;
    while at < counts.len() {
        let used = counts[at..].iter().take_while(|n| **n > 0).count();
        if used == 0 {
            at += 1;
            continue;
        }
        let first = i64::from(offset) + at as i64 + 1;
        w.nested(12, |w| {
            w.sint(1, first - end);
            w.uint(2, used as u64);
        });
        for n in &counts[at..at + used] {
            let n = *n as i64;
            deltas.varint(zigzag(n - before));
            before = n;
        }
        at += used;
        end = first + used as i64;
    }
    w.bytes(13, &deltas.0);
}
