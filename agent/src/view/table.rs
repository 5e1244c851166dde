//! A snapshot as an aligned table for people: one row per series.

use std::fmt::Write as _;

use tokengauge_core::inference::Outcome;
use tokengauge_core::name::Name;
use tokengauge_core::stats::{Series, Snapshot};

const HEADERS: [&str; 14] = [
    "MODEL",
    "PROVIDER",
    "SEEN AT",
    "REQ",
    "OK",
    "FAILED",
    "CANCELLED",
    "CUT/LOST",
    "TTFT p50",
    "p95",
    "GAP p50",
    "p99",
    "TOK/S p50",
    "WORST STALL",
];

/// The table, with a line end after each row. Percentiles are of histograms: within 4.4 %, and mostly closer, see `Histogram::error`.
pub fn render(snapshot: &Snapshot) -> String {
    if snapshot.series.is_empty() {
        return "no inferences\n".to_owned();
    }
    let rows: Vec<[String; HEADERS.len()]> = snapshot.series.iter().map(row).collect();
    let mut widths = HEADERS.map(str::len);
    for row in &rows {
        widths.iter_mut().zip(row).for_each(|(w, cell)| *w = (*w).max(cell.chars().count()));
    }
    let mut out = String::new();
    line(&mut out, &HEADERS.map(str::to_owned), &widths);
    rows.iter().for_each(|row| line(&mut out, row, &widths));
    out
}

/// The first three columns are words and stand left, the others are figures and stand right.
fn line(out: &mut String, cells: &[String; HEADERS.len()], widths: &[usize; HEADERS.len()]) {
    let start = out.len();
    for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let _ = if i < 3 { write!(out, "{cell:<width$}  ") } else { write!(out, "{cell:>width$}  ") };
    }
    out.truncate(start + out[start..].trim_end().len());
    out.push('\n');
}

fn row(series: &Series) -> [String; HEADERS.len()] {
    let key = &series.key;
    let outcome = |o: Outcome| Outcome::ALL.iter().position(|x| *x == o).and_then(|i| series.outcomes.get(i)).copied().unwrap_or_default();
    let model = match (&key.model, key.overflow) {
        (_, true) => "(more models)",
        (Some(model), _) => Name::as_str(model),
        (None, _) => "(unknown)",
    };
    [
        cut(model, 48),
        key.provider.to_owned(),
        key.vantage.as_str().to_owned(),
        series.requests().to_string(),
        outcome(Outcome::Completed).to_string(),
        outcome(Outcome::Failed).to_string(),
        outcome(Outcome::Cancelled).to_string(),
        (outcome(Outcome::Truncated) + outcome(Outcome::Lost)).to_string(),
        seconds(series.ttft.quantile(0.5)),
        seconds(series.ttft.quantile(0.95)),
        seconds(series.inter_chunk.quantile(0.5)),
        seconds(series.inter_chunk.quantile(0.99)),
        series.tpot.quantile(0.5).filter(|t| *t > 0.0).map_or("-".into(), |t| format!("{:.1}", 1.0 / t)),
        seconds(series.max_stall.max()),
    ]
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width { text.to_owned() } else { text.chars().take(width - 1).chain(['…']).collect() }
}

/// Three figures and a unit, `-` for what is undefined.
pub fn seconds(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(s) if s < 0.000_999_5 => format!("{:.0}µs", s * 1e6),
        Some(s) if s < 0.009_995 => format!("{:.2}ms", s * 1e3),
        Some(s) if s < 0.099_95 => format!("{:.1}ms", s * 1e3),
        Some(s) if s < 0.999_5 => format!("{:.0}ms", s * 1e3),
        Some(s) if s < 9.995 => format!("{s:.2}s"),
        Some(s) => format!("{s:.1}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use expect_test::expect;
    use tokengauge_core::stats::Aggregator;

    #[test]
    fn rows_are_aligned() {
        let mut all = Aggregator::default();
        all.add(&testing::inference());
        all.add(&testing::inference());
        all.add(&testing::refused());
        expect![[r#"
            MODEL                   PROVIDER  SEEN AT  REQ  OK  FAILED  CANCELLED  CUT/LOST  TTFT p50    p95  GAP p50     p99  TOK/S p50  WORST STALL
            gpt-4o-mini             openai    client     1   0       1          0         0         -      -        -       -          -            -
            gpt-4o-mini-2024-07-18  openai    client     2   2       0          0         0     410ms  410ms   30.0ms  30.0ms      100.0       30.0ms
        "#]].assert_eq(&render(&all.snapshot()));
        assert_eq!(render(&Snapshot::default()), "no inferences\n");
    }

    #[test]
    fn three_figures() {
        let texts = [0.000_012_3, 0.001_234, 0.0999, 0.09996, 0.4, 0.9996, 1.234, 61.0].map(|s| seconds(Some(s)));
        assert_eq!(texts.join(" "), "12µs 1.23ms 99.9ms 100ms 400ms 1.00s 1.23s 61.0s");
    }
}
