//! Scripts that say what traffic comes and how things then stand: for the engine, and, by whoever writes rules, for `promtool test rules`.
//!
//! ```text
//! slo 99.9% 30d google                        # target, window, table of windows and factors (google or pyrra)
//! guard 3 3                                   # least events, least bad events of the long window; 0 0 when left out
//! load 1m good 6000x4330 0x120 bad 0x4330 6000x120
//! origin 4330m                                # minute 0 of everything below
//! eval at 60m burn_rate(1h) 1000              # also: budget, level, coverage, idle, observed, blind, page, ticket
//! expect page 0-148                           # minutes in which it fires, at every step from the origin on; `never`
//! measured sloth page 0-148 because …         # what other rules did with the same traffic, and why it is not the same
//! ```
//!
//! `load STEP SERIES VALUES…` gives one value per step; value number n comes at n × STEP. `5x10` is ten times 5, `_x10` in `good` is ten
//! steps in which nothing can be seen (in a rule's input: a series without samples). Series are `good`, `bad` and `excluded`; a shorter
//! one ends with zeros.

use std::collections::BTreeMap;

use crate::engine::Engine;
use crate::model::{Alerting, Budgeting, Objective, Policy, Selector, Severity, Sli, SliKind, Slo, Source, Window};
use crate::request::Request;
use crate::ring::SECOND;
use crate::spec::duration::{plain_number, shorthand_s};
use crate::spec::ours::alerting::{COVERAGE_FLOOR, google, pyrra};
use crate::status::Status;
use tokengauge_core::inference::Outcome;

/// Most values of one series.
const MAX_STEPS: usize = 200_000;

/// A line that is not understood, from 1, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ScriptError {
    /// The line.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// First and last minute of each span.
pub type Spans = Vec<(u64, u64)>;

/// One script.
#[derive(Clone, Debug)]
pub struct Script {
    /// The objective that it is about.
    pub slo: Slo,
    /// Seconds between values.
    pub step_s: u64,
    /// Good events per step; `None`: nothing can be seen.
    pub good: Vec<Option<u64>>,
    /// Bad events per step.
    pub bad: Vec<u64>,
    /// Excluded events per step.
    pub excluded: Vec<u64>,
    /// The step that is called 0.
    pub origin: u64,
    /// What is to hold at a step after the origin.
    pub evals: Vec<Eval>,
    /// When each severity is to fire, in steps after the origin.
    pub expect: BTreeMap<Severity, Spans>,
    /// What others did: who, which alert, when, and why it differs.
    pub measured: Vec<Measured>,
}

/// `eval at …`.
#[derive(Clone, PartialEq, Debug)]
pub struct Eval {
    /// Its line.
    pub line: usize,
    /// Steps after the origin.
    pub at: u64,
    /// What is asked: `burn_rate(1h)`, `budget`, `idle` …
    pub what: String,
    /// What is to come out; `None`: no value.
    pub value: Option<f64>,
}

/// `measured …`.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// Whose rules.
    pub who: String,
    /// Which alert.
    pub alert: Severity,
    /// When it fired.
    pub spans: Spans,
    /// Why that differs from what is expected here; empty when it does not by more than two minutes.
    pub because: String,
}

/// What a script did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcomes {
    /// When each severity fired, in steps after the origin.
    pub fired: BTreeMap<Severity, Spans>,
    /// What did not come out as the script says.
    pub wrong: Vec<String>,
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// The first line that is not understood.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let mut script = Self {
            slo: slo(0.999, 30 * 86_400, "google"),
            step_s: 60,
            good: Vec::new(),
            bad: Vec::new(),
            excluded: Vec::new(),
            origin: 0,
            evals: Vec::new(),
            expect: BTreeMap::new(),
            measured: Vec::new(),
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.split(" #").next().unwrap_or_default().trim();
            if !line.is_empty() && !line.starts_with('#') {
                script.line(number + 1, line).map_err(|what| ScriptError { line: number + 1, what })?;
            }
        }
        let steps = script.good.len().max(script.bad.len()).max(script.excluded.len());
        script.good.resize(steps, Some(0));
        script.bad.resize(steps, 0);
        script.excluded.resize(steps, 0);
        Ok(script)
    }

    fn line(&mut self, number: usize, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["slo", target, window, table] => {
                let target = target.strip_suffix('%').and_then(plain_number).filter(|t| (0.0..100.0).contains(t));
                let target = target.ok_or("expected a target below 100%, as in 99.9%")? / 100.0;
                let window = shorthand_s(window).filter(|w| *w > 0).ok_or("expected a window, as in 30d")?;
                if !matches!(table, "google" | "pyrra") {
                    return Err(format!("unknown table `{table}`: expected google or pyrra"));
                }
                let guard = (self.slo.alerting.min_events, self.slo.alerting.min_bad_events);
                // A target in per cent is a decimal number; so is its hundredth.
                self.slo = slo((target * 1e12).round() / 1e12, window, table);
                (self.slo.alerting.min_events, self.slo.alerting.min_bad_events) = guard;
            }
            ["guard", events, bad] => {
                let count = |text: &str| text.parse().map_err(|_| format!("`{text}` is no count"));
                (self.slo.alerting.min_events, self.slo.alerting.min_bad_events) = (count(events)?, count(bad)?);
            }
            ["load", step, ref series @ ..] => {
                self.step_s = shorthand_s(step).filter(|s| *s > 0).ok_or("expected a step, as in 1m")?;
                self.load(series)?;
            }
            ["origin", at] => self.origin = self.steps(at)?,
            ["eval", "at", at, what, ref value @ ..] => {
                let value = match value {
                    [] => Some(1.0),
                    ["none"] => None,
                    [value] => Some(plain_number(value).ok_or_else(|| format!("`{value}` is no number"))?),
                    _ => return Err("expected one value".into()),
                };
                self.evals.push(Eval { line: number, at: self.steps(at)?, what: what.to_owned(), value });
            }
            ["expect", severity, ref all @ ..] => {
                let spans = spans(all)?;
                self.expect.insert(alert(severity)?, spans);
            }
            ["measured", who, severity, ref rest @ ..] => {
                let at = rest.iter().position(|w| *w == "because").unwrap_or(rest.len());
                let (all, because) = rest.split_at(at);
                let because = because.get(1..).unwrap_or_default().join(" ");
                self.measured.push(Measured { who: who.to_owned(), alert: alert(severity)?, spans: spans(all)?, because });
            }
            _ => return Err("expected slo, guard, load, origin, eval, expect or measured".into()),
        }
        Ok(())
    }

    fn load(&mut self, words: &[&str]) -> Result<(), String> {
        let mut series = "";
        for word in words {
            if matches!(*word, "good" | "bad" | "excluded") {
                series = word;
                continue;
            }
            let (value, times) = word.split_once('x').unwrap_or((word, "1"));
            let times: usize = times.parse().map_err(|_| format!("`{word}`: expected VALUExTIMES"))?;
            let count = if value == "_" { None } else { Some(value.parse().map_err(|_| format!("`{word}`: expected VALUExTIMES"))?) };
            let length = match series {
                "good" => self.good.len(),
                "bad" => self.bad.len(),
                "excluded" => self.excluded.len(),
                _ => return Err("expected good, bad or excluded before values".into()),
            };
            if times > MAX_STEPS || length + times > MAX_STEPS {
                return Err(format!("more than {MAX_STEPS} values"));
            }
            match (series, count) {
                ("good", count) => self.good.extend(std::iter::repeat_n(count, times)),
                (_, None) => return Err("`_` stands in good".into()),
                ("bad", Some(count)) => self.bad.extend(std::iter::repeat_n(count, times)),
                (_, Some(count)) => self.excluded.extend(std::iter::repeat_n(count, times)),
            }
        }
        Ok(())
    }

    fn steps(&self, text: &str) -> Result<u64, String> {
        let seconds = if text == "0m" { Some(0) } else { shorthand_s(text) };
        let whole = seconds.filter(|s| s % self.step_s == 0).map(|s| s / self.step_s);
        whole.ok_or_else(|| format!("`{text}`: expected a whole number of steps"))
    }

    /// Runs it in the engine, evaluating at every step.
    ///
    /// # Errors
    /// When the objective cannot be used.
    pub fn run(&self) -> Result<Outcomes, crate::engine::EngineError> {
        // Whole days, so that every boundary of a bucket is one of a step too.
        const START: u64 = 20_000 * 86_400;
        let at = |step: u64| (START + step * self.step_s) * SECOND;
        let mut engine = Engine::new(vec![self.slo.clone()], (START - 1) * SECOND)?;
        let bad = Request { outcome: Outcome::Failed, status: Some(500), ..Request::plain() };
        let lost = Request { outcome: Outcome::Lost, status: None, ..Request::plain() };
        let mut out = Outcomes { fired: Severity::ALL.map(|s| (s, Vec::new())).into(), wrong: Vec::new() };
        for (step, ((good, n_bad), n_lost)) in (0..).zip(self.good.iter().zip(&self.bad).zip(&self.excluded)) {
            let t = at(step);
            // What is blind at a step was blind since the one before.
            engine.set_blind(good.is_none(), t.saturating_sub(self.step_s * SECOND).max((START - 1) * SECOND));
            for (request, n) in [(&Request::plain(), good.unwrap_or(0)), (&bad, *n_bad), (&lost, *n_lost)] {
                if n > 0 {
                    engine.observe_many(request, n, t);
                }
            }
            let Some(status) = engine.evaluate(t).first() else { continue };
            let Some(since) = step.checked_sub(self.origin) else { continue };
            for (severity, fired) in &mut out.fired {
                if status.firing.get(*severity as usize).copied().flatten().is_none() {
                    continue;
                }
                match fired.last_mut().filter(|(_, to)| *to + 1 == since) {
                    Some((_, to)) => *to = since,
                    None => fired.push((since, since)),
                }
            }
            for eval in self.evals.iter().filter(|e| e.at == since) {
                out.wrong.extend(check(eval, status));
            }
        }
        for (severity, spans) in &self.expect {
            let fired = out.fired.get(severity);
            if fired != Some(spans) {
                out.wrong.push(format!("{} fires {:?}, expected {spans:?}", severity.as_str(), fired.map_or(&[][..], |f| f)));
            }
        }
        Ok(out)
    }
}

fn check(eval: &Eval, status: &Status) -> Option<String> {
    let flag = |on: bool| Some(if on { 1.0 } else { 0.0 });
    let found = match eval.what.as_str() {
        "budget" => status.budget_remaining,
        "level" => status.level,
        "coverage" => Some(status.coverage),
        "valid" => Some(status.valid as f64),
        "excluded" => Some(status.excluded as f64),
        "exhaustion_s" => status.exhaustion_s,
        word @ ("idle" | "observed" | "blind") => flag(status.sight.as_str() == word),
        "page" => flag(status.firing.first().copied().flatten().is_some()),
        "ticket" => flag(status.firing.last().copied().flatten().is_some()),
        other => {
            let window = other.strip_prefix("burn_rate(").and_then(|w| w.strip_suffix(')')).and_then(shorthand_s);
            match window.and_then(|w| status.burn.iter().find(|(s, _)| *s == w)) {
                Some((_, rate)) => *rate,
                None => return Some(format!("line {}: `{other}` is nothing that can be asked", eval.line)),
            }
        }
    };
    let same = match (found, eval.value) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0),
        (a, b) => a.is_none() && b.is_none(),
    };
    (!same).then(|| format!("line {}: {} is {found:?}, expected {:?}", eval.line, eval.what, eval.value))
}

fn alert(text: &str) -> Result<Severity, String> {
    Severity::ALL.into_iter().find(|s| s.as_str() == text).ok_or_else(|| format!("`{text}`: expected page or ticket"))
}

fn spans(words: &[&str]) -> Result<Spans, String> {
    if words == ["never"] {
        return Ok(Vec::new());
    }
    let span = |word: &&str| {
        let (from, to) = word.split_once('-').unwrap_or((word, word));
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    words.iter().map(|w| span(w).ok_or_else(|| format!("`{w}`: expected FROM-TO in steps, or never"))).collect()
}

fn slo(target: f64, window_s: u64, table: &str) -> Slo {
    let sli = Sli { selector: Selector::default(), kind: SliKind::Availability, policy: Policy::default(), prices: Vec::new() };
    let rows = if table == "pyrra" { pyrra(window_s) } else { google(window_s) };
    let name = format!("{}%", (target * 1e8).round() / 1e6);
    Slo {
        name: "scenario".into(),
        display_name: None,
        description: None,
        service: "scenario".into(),
        labels: BTreeMap::new(),
        window: Window::Rolling { seconds: window_s },
        budgeting: Budgeting::Occurrences,
        objectives: vec![Objective { name, target, sli, weight: 1.0, time_slice_target: None, time_slice_window_s: None }],
        composite: false,
        group_by: None,
        alerting: Alerting {
            rows,
            min_events: 0,
            min_bad_events: 0,
            coverage_floor: COVERAGE_FLOOR,
            adapted: Vec::new(),
            runbook_url: None,
        },
        source: Source::default(),
    }
}
