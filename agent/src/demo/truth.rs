//! What the demo's provider and clients wrote down, beside what was measured. Each side's stamps stand next to the calls that the
//! tap sees: the provider's are compared with what was seen at the server, the clients' with what was seen at the client; a
//! capture in between is compared with the provider's.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use tokengauge_core::inference::{Inference, Vantage};

use crate::view::table::seconds;

/// Largest median error of TTFT that counts as agreement. Python's own stamps come late by up to a few milliseconds when two
/// cores are busy with ten threads.
const TTFT_BOUND_S: f64 = 0.005;

/// One answer, as one side saw it.
#[derive(Deserialize, Clone, Debug)]
pub struct Answer {
    view: String,
    id: Option<String>,
    model: String,
    #[serde(alias = "t_request_ns", alias = "t_send_ns")]
    begun_ns: u64,
    chunks_ns: Vec<u64>,
    output_tokens: Option<u64>,
    outcome: String,
}

/// Reads the lines of a truth file; a line that was cut by the end of its writer is left out.
pub fn read(path: &Path) -> std::io::Result<Vec<Answer>> {
    let text = std::fs::read_to_string(path)?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Truth beside measurement.
pub struct Verdict {
    rows: BTreeMap<(String, &'static str), Row>,
}

/// One model at one vantage.
#[derive(Default)]
struct Row {
    answers: usize,
    measured: usize,
    outcomes_right: usize,
    tokens_right: usize,
    chunks_right: usize,
    truth: Vec<f64>,
    seen: Vec<f64>,
    errors: Vec<f64>,
}

/// Compares answers with inferences of the same id and side.
pub fn compare(truth: &[Answer], measured: &[Inference]) -> Verdict {
    let mut rows: BTreeMap<(String, &'static str), Row> = BTreeMap::new();
    let in_between = measured.iter().any(|i| i.vantage == Vantage::Unknown);
    for answer in truth {
        let vantage = match answer.view.as_str() {
            "provider" if in_between => Vantage::Unknown,
            "provider" => Vantage::Server,
            "client" if !in_between => Vantage::Client,
            _ => continue,
        };
        let row = rows.entry((answer.model.clone(), vantage.as_str())).or_default();
        row.answers += 1;
        let same = |i: &&Inference| i.vantage == vantage && i.response.id.as_ref().map(|id| id.as_str()) == answer.id.as_deref();
        let Some(inference) = measured.iter().find(same).filter(|_| answer.id.is_some()) else { continue };
        row.measured += 1;
        row.outcomes_right += usize::from(inference.outcome.as_str() == answer.outcome);
        // A cancelled stream has no usage, and what was on its way when the client left is a matter of the side.
        let whole = answer.outcome == "completed";
        row.tokens_right += usize::from(!whole || inference.usage.and_then(|u| u.output) == answer.output_tokens);
        row.chunks_right += usize::from(!whole || inference.chunks.generated as usize == answer.chunks_ns.len());
        if let (Some(first), Ok(ttft)) = (answer.chunks_ns.first(), inference.timing.ttft) {
            let truth = first.saturating_sub(answer.begun_ns) as f64 / 1e9;
            row.truth.push(truth);
            row.seen.push(ttft.as_secs_f64());
            row.errors.push((ttft.as_secs_f64() - truth).abs());
        }
    }
    Verdict { rows }
}

impl Verdict {
    /// Whether there are figures, none is missing, and all agree.
    pub fn good(&self) -> bool {
        !self.rows.is_empty() && self.rows.values().all(Row::good)
    }
}

impl Row {
    fn good(&self) -> bool {
        let n = self.answers;
        let all = [self.measured, self.outcomes_right, self.tokens_right, self.chunks_right];
        all.iter().all(|right| *right == n) && !self.errors.is_empty() && quantile(&self.errors, 0.5) <= Some(TTFT_BOUND_S)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "truth (what provider and clients wrote down) beside measurement")?;
        writeln!(
            f,
            "{:<12}  {:<8}  {:>8}  {:>8}  {:>8}  {:>7}  {:>7}  {:>10}  {:>10}  {:>10}  {:>9}",
            "MODEL", "SEEN AT", "MEASURED", "OUTCOMES", "CHUNKS", "TOKENS", "", "TTFT truth", "measured", "error p50", "max"
        )?;
        for ((model, vantage), row) in &self.rows {
            let of = |right: usize| format!("{right}/{}", row.answers);
            writeln!(
                f,
                "{model:<12}  {vantage:<8}  {:>8}  {:>8}  {:>8}  {:>7}  {:>7}  {:>10}  {:>10}  {:>10}  {:>9}",
                of(row.measured),
                of(row.outcomes_right),
                of(row.chunks_right),
                of(row.tokens_right),
                if row.good() { "agree" } else { "DIFFER" },
                seconds(quantile(&row.truth, 0.5)),
                seconds(quantile(&row.seen, 0.5)),
                seconds(quantile(&row.errors, 0.5)),
                seconds(quantile(&row.errors, 1.0)),
            )?;
        }
        let total: usize = self.rows.values().map(|r| r.measured).sum();
        let word = if self.good() { "measured, and the truth agrees" } else { "measured; the truth differs or is incomplete" };
        write!(f, "{total} inferences {word}")
    }
}

/// Linear interpolation.
fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * (sorted.len().checked_sub(1)? as f64);
    let (low, high) = (sorted.get(at.floor() as usize)?, sorted.get(at.ceil() as usize)?);
    Some(low + (high - low) * at.fract())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn answer(outcome: &str, tokens: u64) -> Answer {
        let i = testing::inference();
        let t0 = i.timing.start.unix_nanos();
        Answer {
            view: "client".into(),
            id: i.response.id.map(|n| n.to_string()),
            model: "m".into(),
            begun_ns: t0,
            chunks_ns: (0..u64::from(i.chunks.generated)).map(|n| t0 + i.timing.ttft.unwrap().as_nanos() as u64 + n).collect(),
            output_tokens: Some(tokens),
            outcome: outcome.into(),
        }
    }

    #[test]
    fn agreement_needs_every_answer_and_every_figure() {
        let seen = [testing::inference()];
        let tokens = seen[0].usage.and_then(|u| u.output).unwrap();
        assert!(compare(&[answer("completed", tokens)], &seen).good());
        assert!(!compare(&[answer("failed", tokens)], &seen).good());
        assert!(!compare(&[answer("completed", tokens + 1)], &seen).good());
        assert!(!compare(&[answer("completed", tokens)], &[]).good());
        assert!(!compare(&[], &seen).good());
        let mut late = answer("completed", tokens);
        late.begun_ns -= 20_000_000;
        assert!(!compare(&[late], &seen).good());
    }
}
