//! What Prometheus scrapes, made of the same store as OTLP, under the names of the translator's default strategy.
//!
//! [`Endpoint`] knows no HTTP: it says which [`Format`] an `Accept` field asks for, and renders it. As text every histogram has its buckets
//! with bounds, counted one by one, so a limit that is a bound is exact; in Protobuf ours are native histograms beside that. Exemplars are in
//! OpenMetrics and Protobuf, created timestamps in Protobuf.

use std::io;

use tokengauge_core::semconv::{Kind, Metric, prometheus_name};
use tokengauge_core::stats::Store;
use tokengauge_core::stats::sets::Set;
use tokengauge_core::stats::store::{Data, Point};

use crate::export::metrics::Metrics;

mod protobuf;
mod text;

/// A form of exposition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Text 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// `io.prometheus.client.MetricFamily`, each with its length before it.
    Protobuf,
}

impl Format {
    /// The `Content-Type` of the answer.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
        }
    }
}

/// What a scrape is answered with.
#[derive(Clone)]
pub struct Endpoint {
    metrics: Metrics,
    /// Who exports: `target_info`.
    target: Vec<(String, String)>,
}

impl Endpoint {
    /// Shows these series, and who exports them, in the words of OpenTelemetry (`service.version`, `host.name` …).
    pub fn new(metrics: &Metrics, target: Vec<(String, String)>) -> Self {
        Self { metrics: metrics.clone(), target }
    }

    /// The format that an `Accept` field prefers; text when it wants none of ours, as Prometheus' own libraries do.
    pub fn negotiate(accept: &str) -> Format {
        let mut best = (0.0, Format::Text);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let parameters: Vec<(String, &str)> = parts
                .filter_map(|p| p.split_once('='))
                .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().trim_matches('"')))
                .collect();
            let is = |name: &str, want: &[&str]| parameters.iter().filter(|(n, _)| n == name).all(|(_, v)| want.contains(v));
            let format = match kind.as_str() {
                "application/vnd.google.protobuf"
                    if is("proto", &["io.prometheus.client.MetricFamily"]) && is("encoding", &["delimited"]) =>
                {
                    Format::Protobuf
                }
                "application/openmetrics-text" if is("version", &["1.0.0", "0.0.1"]) => Format::OpenMetrics,
                "text/plain" if is("version", &["0.0.4"]) => Format::Text,
                "*/*" | "text/*" => Format::Text,
                _ => continue,
            };
            let quality = parameters.iter().find(|(n, _)| n == "q").map_or(1.0, |(_, q)| q.parse().unwrap_or(0.0));
            if quality > best.0 {
                best = (quality, format);
            }
        }
        best.1
    }

    /// All series as they are now, in pieces: as text they are many times as large as the store.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn render(&self, format: Format, to: &mut dyn io::Write) -> io::Result<()> {
        self.metrics.collect(|store, _| render(store, &self.target, format, to))
    }
}

fn render(store: &Store, target: &[(String, String)], format: Format, to: &mut dyn io::Write) -> io::Result<()> {
    match format {
        Format::Text => text::render(store, target, false, to),
        Format::OpenMetrics => text::render(store, target, true, to),
        Format::Protobuf => protobuf::render(store, target, to),
    }
}

/// One metric as it is exposed: its name with and without the suffix of counters, and its points.
struct Family<'a> {
    metric: &'static Metric,
    /// With `_total`.
    name: String,
    points: &'a [Point],
}

/// Every metric that has a series.
fn families(store: &Store) -> impl Iterator<Item = Family<'_>> {
    let tables = store.tables().iter().filter(|t| !t.points().is_empty());
    tables.map(|t| Family { metric: t.metric, name: prometheus_name(t.metric), points: t.points() })
}

impl Family<'_> {
    /// The name without the suffix of counters.
    fn base(&self) -> &str {
        if self.metric.kind == Kind::Counter { self.name.trim_end_matches("_total") } else { &self.name }
    }
}

/// The labels of a series.
fn labels(set: &Set) -> impl Iterator<Item = (String, std::borrow::Cow<'_, str>)> {
    set.attributes().iter().map(|(name, value)| (label(name), value.label()))
}

/// The name of a label: letters, digits and underscores, and no digit first.
fn label(name: &str) -> String {
    let mut out: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert_str(0, "key_");
    }
    out
}

/// The value of what is no histogram.
fn value(data: &Data) -> f64 {
    match data {
        Data::Sum(n) => *n as f64,
        Data::Level(x) => *x,
        Data::Distribution(d) => d.sum(),
    }
}

#[cfg(test)]
#[path = "prometheus_tests.rs"]
mod tests;
