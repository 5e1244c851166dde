//! `tokengauge slo backtest`: what would these objectives have done on recorded traffic?
//!
//! Exact: every single request counts where it ended (see `tokengauge_slo::exact`). Steps are whole multiples of `--step` in Unix time, from
//! the first at or after the first end to the first at or after the last.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tokengauge_slo::exact::{Exact, Line};
use tokengauge_slo::model::{Budgeting, Slo};
use tokengauge_slo::window::{utc, window_name};

use super::records::Record;
use super::{SloError, load};
use crate::cli::SloBacktestArgs;

/// What went wrong with a backtest as a whole. What is wrong with a line is said on standard error, and counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BacktestError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The result cannot be written.
    #[error("standard output: {0}")]
    Write(io::Error),
    /// An SLO cannot be used.
    #[error("{0}")]
    Slo(String),
    /// More steps than anyone reads.
    #[error("{0} steps from the first record to the last: take a longer --step, or records that lie closer together")]
    Steps(u64),
}

/// Most steps: more than a year of minutes, ten times over.
const MAX_STEPS: u64 = 5_300_000;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// What is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Format {
    /// What became of each objective, and when its alerts fired.
    #[default]
    Table,
    /// One JSON object per step and objective.
    Jsonl,
}

/// Records on their way into the objectives.
pub struct Backtest {
    slos: Vec<Exact>,
    first: u64,
    last: u64,
    records: u64,
    bad: u64,
}

#[derive(Serialize)]
struct Step<'a> {
    t_unix: u64,
    slo: &'a str,
    objective: &'a str,
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    group: Pairs<'a, &'a str>,
    valid: u64,
    good: u64,
    excluded: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    slices: Option<Slices>,
    sli: Option<f64>,
    error_budget_remaining: Option<f64>,
    burn_rate: Pairs<'a, Option<f64>>,
    alerts: Firing,
}

#[derive(Serialize)]
struct Slices {
    valid: u32,
    good: f64,
}

#[derive(Serialize)]
struct Firing {
    page: bool,
    ticket: bool,
}

/// An object whose keys keep their order.
struct Pairs<'a, T>(Vec<(std::borrow::Cow<'a, str>, T)>);

impl<T> Pairs<'_, T> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Serialize> Serialize for Pairs<'_, T> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().map(|(k, v)| (k, v)))
    }
}

impl Backtest {
    /// For these objectives.
    ///
    /// # Errors
    /// When a window cannot be used.
    pub fn new(slos: Vec<Slo>) -> Result<Self, BacktestError> {
        let ready = |slo| Exact::new(slo).map_err(|(slo, why)| BacktestError::Slo(format!("{slo}: {why}")));
        let slos = slos.into_iter().map(ready).collect::<Result<_, _>>()?;
        Ok(Self { slos, first: u64::MAX, last: 0, records: 0, bad: 0 })
    }

    /// Reads records; `name` is for messages. What is no record is said with its line and counted.
    ///
    /// # Errors
    /// When the input cannot be read.
    pub fn read(&mut self, name: &str, input: &mut dyn BufRead, complain: &mut dyn Write) -> io::Result<()> {
        let (mut line, mut number) = (Vec::new(), 0u64);
        loop {
            line.clear();
            if input.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            number += 1;
            let text = match std::str::from_utf8(&line) {
                Ok(text) => text.trim().trim_start_matches('\u{feff}'),
                Err(_) => {
                    self.bad += 1;
                    writeln!(complain, "tokengauge: {name}:{number}: not UTF-8")?;
                    continue;
                }
            };
            if text.is_empty() {
                continue;
            }
            match Record::parse(text) {
                Ok(record) => self.add(&record),
                Err(error) => {
                    self.bad += 1;
                    writeln!(complain, "tokengauge: {name}:{number}: {error}")?;
                }
            }
        }
    }

    fn add(&mut self, record: &Record<'_>) {
        let Some(request) = record.request() else { return };
        let end = record.end();
        self.records += 1;
        self.first = self.first.min(end);
        self.last = self.last.max(end);
        self.slos.iter_mut().for_each(|s| s.add(&request, end));
    }

    /// Records that were read, and lines that were none.
    pub fn counts(&self) -> (u64, u64) {
        (self.records, self.bad)
    }

    /// Goes through the steps.
    ///
    /// # Errors
    /// When there are too many of them, or the output cannot be written.
    pub fn run(&mut self, step_s: u64, format: Format, out: &mut dyn Write) -> Result<(), BacktestError> {
        self.slos.iter_mut().for_each(Exact::finish);
        let step = step_s.saturating_mul(SECOND).max(SECOND);
        let (mut lines, mut table) = (Vec::new(), Table::default());
        if self.records > 0 {
            let (first, last) = (self.first.div_ceil(step), self.last.div_ceil(step));
            if last - first >= MAX_STEPS {
                return Err(BacktestError::Steps(last - first + 1));
            }
            for t in (first..=last).map(|n| n.saturating_mul(step)) {
                for exact in &mut self.slos {
                    lines.clear();
                    exact.at(t, &mut lines);
                    match format {
                        Format::Jsonl => {
                            lines.iter().try_for_each(|l| write_line(out, exact.slo(), l, t / SECOND)).map_err(BacktestError::Write)?
                        }
                        Format::Table => lines.iter().for_each(|l| table.add(exact.slo(), l, t / SECOND)),
                    }
                }
            }
        }
        if format == Format::Table {
            table.write(out, self.records).map_err(BacktestError::Write)?;
        }
        out.flush().map_err(BacktestError::Write)
    }
}

fn names<'a>(slo: &'a Slo, line: &'a Line) -> (&'a str, Pairs<'a, &'a str>) {
    let objective = line.objective.and_then(|o| slo.objectives.get(o)).map_or("composite", |o| o.name.as_str());
    let by = slo.group_by.iter().flat_map(|g| &g.by);
    (objective, Pairs(by.zip(line.group.iter()).map(|(d, v)| (d.as_str().into(), &**v)).collect()))
}

fn write_line(out: &mut dyn Write, slo: &Slo, line: &Line, t_unix: u64) -> io::Result<()> {
    let (objective, group) = names(slo, line);
    let counts = &line.counts;
    let slices = (slo.budgeting != Budgeting::Occurrences)
        .then(|| Slices { valid: counts.slices, good: f64::from(counts.slices) - counts.bad_slices });
    let [page, ticket] = line.firing;
    let step = Step {
        t_unix,
        slo: &slo.name,
        objective,
        group,
        valid: counts.valid,
        good: counts.good(),
        excluded: u64::from(counts.excluded),
        slices,
        sli: line.level,
        error_budget_remaining: line.budget_remaining,
        burn_rate: Pairs(line.burn.iter().map(|(w, rate)| (window_name(*w).into(), *rate)).collect()),
        alerts: Firing { page, ticket },
    };
    serde_json::to_writer(&mut *out, &step)?;
    out.write_all(b"\n")
}

/// What became of each objective.
#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    index: std::collections::HashMap<(String, String), usize>,
}

struct Row {
    name: String,
    last: Option<Line>,
    lowest: Option<f64>,
    /// When page and ticket fired: from, to.
    fired: [Vec<(u64, u64)>; 2],
    firing: [bool; 2],
}

impl Table {
    fn add(&mut self, slo: &Slo, line: &Line, t: u64) {
        let (objective, group) = names(slo, line);
        let group: String = group.0.iter().map(|(k, v)| format!(" {k}={v}")).collect();
        let key = (slo.name.clone(), format!("{objective}{group}"));
        let at = *self.index.entry(key).or_insert_with_key(|(slo, objective)| {
            let name = format!("{slo} {objective}");
            self.rows.push(Row { name, last: None, lowest: None, fired: Default::default(), firing: [false; 2] });
            self.rows.len() - 1
        });
        let Some(row) = self.rows.get_mut(at) else { return };
        for ((spans, was), fires) in row.fired.iter_mut().zip(&mut row.firing).zip(line.firing) {
            match (fires, *was, spans.last_mut()) {
                (true, true, Some((_, to))) => *to = t,
                (true, ..) => spans.push((t, t)),
                _ => {}
            }
            *was = fires;
        }
        row.lowest = match (row.lowest, line.budget_remaining) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        row.last = Some(line.clone());
    }

    fn write(&self, out: &mut dyn Write, records: u64) -> io::Result<()> {
        let percent = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{:.3}%", v * 100.0));
        writeln!(out, "{records} records\n")?;
        let width = self.rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0).max(9);
        writeln!(
            out,
            "{:width$}  {:>9} {:>9} {:>8} {:>9} {:>11} {:>11}",
            "objective", "valid", "good", "excluded", "level", "budget left", "lowest"
        )?;
        for row in &self.rows {
            let Some(last) = &row.last else { continue };
            let c = &last.counts;
            let (level, left, lowest) = (percent(last.level), percent(last.budget_remaining), percent(row.lowest));
            writeln!(out, "{:width$}  {:>9} {:>9} {:>8} {level:>9} {left:>11} {lowest:>11}", row.name, c.valid, c.good(), c.excluded)?;
        }
        for row in &self.rows {
            for (severity, spans) in ["page", "ticket"].iter().zip(&row.fired) {
                if !spans.is_empty() {
                    writeln!(out, "\n{} {severity} would have fired:", row.name)?;
                }
                for (from, to) in spans {
                    writeln!(out, "  {} to {} UTC", utc(*from as i64), utc(*to as i64))?;
                }
            }
        }
        Ok(())
    }
}

/// The command. The result is whether every line was a record.
///
/// # Errors
/// When a file cannot be read, an SLO cannot be used, or the output cannot be written.
pub fn command(args: &SloBacktestArgs) -> Result<bool, SloError> {
    let loaded = load(&args.slos)?;
    if loaded.refused() {
        return Ok(false);
    }
    if loaded.slos.is_empty() {
        return Err(BacktestError::Slo("there is no objective of ours in these files".to_owned()).into());
    }
    Ok(backtest(loaded.slos, &args.records, args.step, args.format)?)
}

fn backtest(slos: Vec<Slo>, records: &[PathBuf], step_s: u64, format: Format) -> Result<bool, BacktestError> {
    let mut test = Backtest::new(slos)?;
    let mut complain = io::stderr().lock();
    for path in records {
        let name = path.display().to_string();
        let read = |source| BacktestError::Read { path: name.clone(), source };
        if path == Path::new("-") {
            test.read("-", &mut io::stdin().lock(), &mut complain).map_err(read)?;
        } else {
            let file = File::open(path).map_err(read)?;
            test.read(&name, &mut BufReader::with_capacity(1 << 18, file), &mut complain).map_err(read)?;
        }
    }
    match test.run(step_s, format, &mut BufWriter::new(io::stdout().lock())) {
        Err(BacktestError::Write(e)) if e.kind() == io::ErrorKind::BrokenPipe => {}
        other => other?,
    }
    let (records, bad) = test.counts();
    if bad > 0 {
        let _ = writeln!(complain, "tokengauge: {bad} of {} lines are no records; what is printed is without them", records + bad);
    }
    Ok(bad == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: &str = "slos:\n  service: gateway\n  window: 30d\n  objectives:\n    - availability >= 99%\n";

    fn slos() -> Vec<Slo> {
        let loaded = tokengauge_slo::spec::load(&[("x.yaml", SLO)]);
        assert!(!loaded.refused(), "{:?}", loaded.problems);
        loaded.slos
    }

    fn run(records: &str, step_s: u64, format: Format) -> (String, String, Backtest) {
        let mut test = Backtest::new(slos()).unwrap();
        let (mut out, mut complaints) = (Vec::new(), Vec::new());
        test.read("r.jsonl", &mut records.as_bytes(), &mut complaints).unwrap();
        test.run(step_s, format, &mut out).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(complaints).unwrap(), test)
    }

    fn record(start_s: u64, duration: f64, outcome: &str) -> String {
        format!("{{\"start_unix_nano\":\"{start_s}000000000\",\"outcome\":\"{outcome}\",\"timing_s\":{{\"duration\":{duration}}}}}\n")
    }

    #[test]
    fn a_record_counts_from_the_step_at_which_it_ended() {
        let records = record(1_000, 139.5, "failed") + &record(1_000, 80.0, "completed");
        let (out, complaints, _) = run(&records, 60, Format::Jsonl);
        assert_eq!(complaints, "");
        let steps: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let of = |key: &str| steps.iter().map(|s| s[key].to_string()).collect::<Vec<_>>();
        assert_eq!(of("t_unix"), ["1080", "1140"]);
        assert_eq!(of("valid"), ["1", "2"]);
        assert_eq!(of("good"), ["1", "1"]);
        assert_eq!(of("sli"), ["1.0", "0.5"]);
        let burn = steps[1]["burn_rate"].as_object().unwrap();
        assert_eq!(burn.keys().collect::<Vec<_>>(), ["1d", "1h", "2h", "30m", "3d", "5m", "6h"]);
        assert!((burn["5m"].as_f64().unwrap() - 50.0).abs() < 1e-9);
        assert!((steps[1]["error_budget_remaining"].as_f64().unwrap() + 49.0).abs() < 1e-9);
        assert_eq!(steps[0]["alerts"], serde_json::json!({"page": false, "ticket": false}));
    }

    #[test]
    fn where_nothing_is_valid_there_is_null() {
        let (out, ..) = run(&record(60, 0.0, "lost"), 60, Format::Jsonl);
        let step: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (&step["excluded"], &step["sli"], &step["error_budget_remaining"]),
            (&1.into(), &serde_json::Value::Null, &serde_json::Value::Null)
        );
        assert!(step["burn_rate"].as_object().unwrap().values().all(serde_json::Value::is_null));
    }

    #[test]
    fn lines_that_are_no_records_are_named_and_counted() {
        let records = format!("\u{feff}{}\n{{\"start_unix_nano\":true}}\n\nnonsense\n", record(60, 1.0, "completed").trim());
        let (out, complaints, test) = run(&records, 60, Format::Jsonl);
        assert_eq!(out.lines().count(), 1);
        assert_eq!(test.counts(), (1, 2));
        let told: Vec<&str> = complaints.lines().map(|l| l.split_once(": ").unwrap().1.split_once(": ").unwrap().0).collect();
        assert_eq!(told, ["r.jsonl:2", "r.jsonl:4"]);
    }

    #[test]
    fn the_table_says_when_alerts_would_have_fired() {
        let mut records: String = (0..3_600).map(|s| record(s, 0.5, "completed")).collect();
        records.extend((3_600..4_200).map(|s| record(s, 0.5, "failed")));
        records.extend((4_200..9_000).map(|s| record(s, 0.5, "completed")));
        let (out, ..) = run(&records, 60, Format::Table);
        assert!(out.contains("9000 records"), "{out}");
        assert!(out.contains("page would have fired:\n  1970-01-01 01:"), "{out}");
    }

    #[test]
    fn records_that_lie_too_far_apart_are_refused() {
        let mut test = Backtest::new(slos()).unwrap();
        let records = record(1, 0.0, "completed") + &record(1_800_000_000, 0.0, "completed");
        test.read("r", &mut records.as_bytes(), &mut Vec::new()).unwrap();
        assert!(matches!(test.run(60, Format::Jsonl, &mut Vec::new()), Err(BacktestError::Steps(_))));
        test.run(3_600, Format::Table, &mut Vec::new()).unwrap();
    }
}
