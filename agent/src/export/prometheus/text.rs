//! Text 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>) and OpenMetrics 1.0.0 (its specification of 2020).

use std::fmt::Write as _;
use std::io;

use tokengauge_core::semconv::Kind;
use tokengauge_core::stats::Store;
use tokengauge_core::stats::distribution::{Distribution, Exemplar};
use tokengauge_core::stats::store::Data;

use super::{Family, families, label, labels, value};

/// The words of OpenMetrics for units; a name must end with its unit.
const UNITS: [&str; 3] = ["seconds", "bytes", "ratio"];

/// What is gathered before it is handed on, bytes.
const PIECE: usize = 64 << 10;

/// All series.
pub fn render(store: &Store, target: &[(String, String)], open: bool, to: &mut dyn io::Write) -> io::Result<()> {
    let mut out = String::new();
    info(&mut out, target, open);
    for family in families(store) {
        head(&mut out, &family, open);
        let mut attributes = String::new();
        for point in family.points {
            attributes.clear();
            for (name, value) in labels(&point.set) {
                put(&mut attributes, &name, &value);
            }
            match &point.data {
                Data::Distribution(d) => histogram(&mut out, &family.name, &attributes, d, open),
                data => sample(&mut out, &family.name, "", &attributes, value(data)),
            }
            if out.len() >= PIECE {
                to.write_all(out.as_bytes())?;
                out.clear();
            }
        }
    }
    if open {
        out += "# EOF\n";
    }
    to.write_all(out.as_bytes())
}

/// Who exports.
fn info(out: &mut String, target: &[(String, String)], open: bool) {
    if target.is_empty() {
        return;
    }
    let (family, kind) = if open { ("target", "info") } else { ("target_info", "gauge") };
    let _ = write!(out, "# HELP {family} Who exports.\n# TYPE {family} {kind}\n");
    let mut attributes = String::new();
    target.iter().for_each(|(name, value)| put(&mut attributes, &label(name), value));
    sample(out, "target_info", "", &attributes, 1.0);
}

fn head(out: &mut String, family: &Family<'_>, open: bool) {
    let kind = match family.metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge | Kind::UpDownCounter => "gauge",
        Kind::Histogram => "histogram",
    };
    let name = if open { family.base() } else { &family.name };
    let _ = write!(out, "# HELP {name} ");
    escape(out, family.metric.doc, open);
    let _ = write!(out, "\n# TYPE {name} {kind}\n");
    if let Some(unit) = UNITS.iter().find(|u| open && name.strip_suffix(*u).is_some_and(|n| n.ends_with('_'))) {
        let _ = writeln!(out, "# UNIT {name} {unit}");
    }
}

/// A label, with a comma behind it.
fn put(out: &mut String, name: &str, value: &str) {
    let _ = write!(out, "{name}=\"");
    escape(out, value, true);
    out.push_str("\",");
}

/// Values of labels and, in OpenMetrics, help; help of the older format keeps its quotes.
fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

fn sample(out: &mut String, name: &str, suffix: &str, attributes: &str, value: f64) {
    out.push_str(name);
    out.push_str(suffix);
    braces(out, attributes);
    out.push(' ');
    number(out, value);
    out.push('\n');
}

fn braces(out: &mut String, attributes: &str) {
    if !attributes.is_empty() {
        let _ = write!(out, "{{{}}}", attributes.trim_end_matches(','));
    }
}

/// As Prometheus writes numbers; Rust's shortest form is read back as the same one.
fn number(out: &mut String, x: f64) {
    let _ = match x {
        f64::INFINITY => write!(out, "+Inf"),
        f64::NEG_INFINITY => write!(out, "-Inf"),
        x => write!(out, "{x}"),
    };
}

fn histogram(out: &mut String, name: &str, attributes: &str, d: &Distribution, open: bool) {
    let mut sum = 0;
    let bounds = d.bounds().iter().copied().chain([f64::INFINITY]);
    for (bucket, (bound, n)) in bounds.zip(d.counts()).enumerate() {
        sum += n;
        let _ = write!(out, "{name}_bucket{{{attributes}le=\"");
        // OpenMetrics wants a float's canonical form, which Prometheus 3 makes of both.
        if open && bound.is_finite() && bound.fract() == 0.0 {
            let _ = write!(out, "{bound:.1}");
        } else {
            number(out, bound);
        }
        let _ = write!(out, "\"}} {sum}");
        if let Some(Exemplar { value, at, trace_id, span_id, .. }) = d.exemplars().iter().find(|e| open && e.bucket == bucket) {
            let seconds = at.unix_nanos() as f64 / 1e9;
            let _ = write!(out, " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {value} {seconds:.3}");
        }
        out.push('\n');
    }
    sample(out, name, "_sum", attributes, d.sum());
    sample(out, name, "_count", attributes, d.count() as f64);
}
