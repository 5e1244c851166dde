//! Which windows, which factors: tables of the trade, scaled to the period and kept possible.

use crate::decimal::decimal;
use crate::model::{AlertRow, Alerting, Severity};
use crate::spec::duration::{human, plain_number, shorthand_s};
use crate::spec::problem::{Class, Problems};
use crate::spec::read::join;
use crate::yaml::{Node, Pos};

/// Fewer events, and fewer bad ones, than this in the long window never alert: one failure at ten requests an hour must not page, a
/// real outage at ten requests an hour must (it does within 20 minutes).
pub const MIN_EVENTS: u64 = 3;
/// As [`MIN_EVENTS`], of bad ones.
pub const MIN_BAD_EVENTS: u64 = 3;
/// Below this share of traffic seen, alerts freeze (OpenObserve's floor, `slo.md` §7.2).
pub const COVERAGE_FLOOR: f64 = 0.9;

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;
const DAY: u64 = 86_400;
/// The period from which on the tables hold as they are.
const MONTH: u64 = 28 * DAY;

/// Share of the period's budget, short and long window. Google's multi-window table with Sloth's shares (slok/sloth, google-30d).
const SHARES: [(Severity, f64, u64, u64); 4] = [
    (Severity::Page, 0.02, 5 * MINUTE, HOUR),
    (Severity::Page, 0.05, 30 * MINUTE, 6 * HOUR),
    (Severity::Ticket, 0.10, 2 * HOUR, DAY),
    (Severity::Ticket, 0.10, 6 * HOUR, 3 * DAY),
];
/// The same windows over periods shorter than 28 days: the shares of Sloth's own 7-day example, or factors would fall below 1.
const SHORT_SHARES: [f64; 4] = [0.08, 0.125, 0.20, 0.42];
/// The period of that example; below it windows shrink with the period.
const WEEK: u64 = 7 * DAY;

/// Pyrra's table at 28 days: short, long, factor, `for`. Its lengths scale with the window, its factors do not.
const PYRRA: [(Severity, u64, u64, f64, u64); 4] = [
    (Severity::Page, 5 * MINUTE, HOUR, 14.0, 2 * MINUTE),
    (Severity::Page, 30 * MINUTE, 6 * HOUR, 7.0, 15 * MINUTE),
    (Severity::Ticket, 2 * HOUR, DAY, 2.0, HOUR),
    (Severity::Ticket, 6 * HOUR, 4 * DAY, 1.0, 3 * HOUR),
];

/// The default table for a period.
pub fn google(period_s: u64) -> Vec<AlertRow> {
    SHARES
        .iter()
        .zip(SHORT_SHARES)
        .map(|((severity, share, short_s, full_s), short_share)| {
            let share = if period_s >= MONTH { *share } else { short_share };
            // A long window longer than the period would mix periods: windows shrink, and the factor stays that of a week.
            let scale = (period_s as f64 / WEEK as f64).min(1.0);
            let minutes = |s: u64| ((s as f64 * scale / 60.0).round() as u64).max(1) * MINUTE;
            let (short_s, long_s) = if period_s < WEEK { (minutes(*short_s), minutes(*full_s)) } else { (*short_s, *full_s) };
            let factor = tidy(share * period_s.max(WEEK) as f64 / *full_s as f64);
            AlertRow { severity: *severity, short_s, long_s: long_s.max(2 * short_s), factor, for_s: 0 }
        })
        .collect()
}

/// Pyrra's table for a period.
pub fn pyrra(period_s: u64) -> Vec<AlertRow> {
    let scaled = |s: u64| ((s as f64 * period_s as f64 / MONTH as f64 / 60.0).round() as u64).max(1) * MINUTE;
    let row = |(severity, short, long, factor, hold): &(Severity, u64, u64, f64, u64)| AlertRow {
        severity: *severity,
        short_s: scaled(*short),
        long_s: scaled(*long).max(2 * scaled(*short)),
        factor: *factor,
        for_s: scaled(*hold),
    };
    PYRRA.iter().map(row).collect()
}

/// A factor without what binary fractions add: 14.4, not 14.399999999999999.
fn tidy(factor: f64) -> f64 {
    (factor * 1e9).round() / 1e9
}

/// Parses a row: `page 5m/1h 14.4x for 2m`.
pub fn row(text: &str) -> Result<AlertRow, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let wrong = || format!("expected a row such as `page 5m/1h 14.4x` or `ticket 6h/3d 1x for 30m`, found {text:?}");
    let (severity, windows, factor, hold) = match words[..] {
        [severity, windows, factor] => (severity, windows, factor, None),
        [severity, windows, factor, "for", hold] => (severity, windows, factor, Some(hold)),
        _ => return Err(wrong()),
    };
    let severity = Severity::ALL.into_iter().find(|s| s.as_str() == severity).ok_or_else(wrong)?;
    let (short, long) = windows.split_once('/').ok_or_else(wrong)?;
    let (short_s, long_s) = (window_s(short).ok_or_else(wrong)?, window_s(long).ok_or_else(wrong)?);
    let factor = plain_number(factor.trim_end_matches(['x', '×'])).ok_or_else(wrong)?;
    let for_s = hold.map_or(Some(0), window_s).ok_or_else(wrong)?;
    check(&AlertRow { severity, short_s, long_s, factor, for_s })
}

fn check(row: &AlertRow) -> Result<AlertRow, String> {
    if row.short_s == 0 || row.long_s < row.short_s {
        return Err(format!(
            "the short window ({}) must not be longer than the long one ({})",
            human(row.short_s as f64),
            human(row.long_s as f64)
        ));
    }
    if row.long_s > 90 * DAY {
        return Err("a window of more than 90 days".into());
    }
    if row.factor <= 0.0 {
        return Err(format!("a factor must be above 0, found {}", row.factor));
    }
    Ok(row.clone())
}

/// Minutes, hours, days or weeks; whole minutes.
fn window_s(text: &str) -> Option<u64> {
    let s = shorthand_s(text)?;
    (text.ends_with(['m', 'h', 'd', 'w']) && !text.contains(' ')).then_some(s)
}

/// What a file says about alerting, before the SLO's period and target are known.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// A table by name.
    pub table: Option<String>,
    /// Rows of one's own.
    pub rows: Vec<AlertRow>,
    /// Where they stand.
    pub pos: Pos,
    /// Their path.
    pub path: String,
    /// The guards.
    pub min_events: Option<u64>,
    /// The guards.
    pub min_bad_events: Option<u64>,
    /// The floor.
    pub coverage_floor: Option<f64>,
    /// For whoever is woken.
    pub runbook_url: Option<String>,
}

impl Choice {
    /// This one, with what it leaves open taken from another.
    pub fn or(mut self, other: &Self) -> Self {
        if self.table.is_none() && self.rows.is_empty() {
            self.table.clone_from(&other.table);
            self.rows.clone_from(&other.rows);
            (self.pos, self.path) = (other.pos, other.path.clone());
        }
        self.min_events = self.min_events.or(other.min_events);
        self.min_bad_events = self.min_bad_events.or(other.min_bad_events);
        self.coverage_floor = self.coverage_floor.or(other.coverage_floor);
        self.runbook_url = self.runbook_url.or_else(|| other.runbook_url.clone());
        self
    }
}

/// The `alerting:` of the short form, whose shape is checked.
pub fn short_form(node: &Node, path: &str, problems: &mut Problems<'_>) -> Choice {
    let mut choice = Choice { pos: node.pos, path: path.to_owned(), ..Choice::default() };
    choice.table = node.get("table").and_then(Node::text).map(str::to_owned);
    if let Some(rows) = node.get("rows") {
        if choice.table.is_some() {
            problems.error(Class::Meaning, rows.pos, &join(path, "rows"), "either `table` or `rows`");
        }
        for (i, item) in rows.items().iter().enumerate() {
            match row(item.text().unwrap_or_default()) {
                Ok(row) => choice.rows.push(row),
                Err(message) => problems.error(Class::Meaning, item.pos, &format!("{path}.rows[{i}]"), message),
            }
        }
    }
    let mut count = |key: &str| {
        let node = node.get(key)?;
        let n = node.number()?;
        if !(0.0..=1e9).contains(&n) {
            problems.error(Class::Meaning, node.pos, &join(path, key), format!("must be from 0 to a billion, found {n}"));
        }
        Some(n.max(0.0) as u64)
    };
    (choice.min_events, choice.min_bad_events) = (count("minEvents"), count("minBadEvents"));
    if let Some(floor) = node.get("coverageFloor") {
        choice.coverage_floor = floor.number();
        floor_in_range(floor.number(), floor.pos, &join(path, "coverageFloor"), problems);
    }
    choice.runbook_url = node.get("runbook").and_then(Node::text).map(str::to_owned);
    choice
}

fn floor_in_range(floor: Option<f64>, pos: Pos, path: &str, problems: &mut Problems<'_>) {
    if !floor.is_some_and(|f| (0.0..=1.0).contains(&f)) {
        problems.error(Class::Meaning, pos, path, "must be from 0 to 1");
    }
}

/// The prefix of our annotations on OpenSLO objects.
pub const PREFIX: &str = "tokengauge.io/";
/// Our annotations.
pub const ANNOTATIONS: [&str; 6] = ["alert-table", "alert-rows", "min-events", "min-bad-events", "coverage-floor", "runbook-url"];

/// Our annotations on an OpenSLO object.
pub fn annotations(node: &Node, path: &str, problems: &mut Problems<'_>) -> Choice {
    let mut choice = Choice { pos: node.pos, ..Choice::default() };
    for entry in node.entries() {
        let Some(key) = entry.key.strip_prefix(PREFIX) else { continue };
        let path = join(path, &entry.key);
        let text = entry.value.text().unwrap_or_default();
        let pos = entry.value.pos;
        let mut number = |what: &str| {
            let n = plain_number(text);
            if n.is_none() {
                problems.error(Class::Meaning, pos, &path, format!("expected {what} in quotes, found {text:?}"));
            }
            n
        };
        match key {
            "alert-table" => {
                if !["google", "pyrra", "none"].contains(&text) {
                    problems.error(Class::Meaning, pos, &path, format!("expected `google`, `pyrra` or `none`, found {text:?}"));
                }
                choice.table = Some(text.to_owned());
                (choice.pos, choice.path) = (pos, path);
            }
            "alert-rows" => {
                for part in text.split(',').map(str::trim) {
                    match row(part) {
                        Ok(row) => choice.rows.push(row),
                        Err(message) => problems.error(Class::Meaning, pos, &path, message),
                    }
                }
                (choice.pos, choice.path) = (pos, path);
            }
            "min-events" => choice.min_events = number("a number of events").map(|n| n as u64),
            "min-bad-events" => choice.min_bad_events = number("a number of events").map(|n| n as u64),
            "coverage-floor" => {
                choice.coverage_floor = number("a share from 0 to 1");
                floor_in_range(choice.coverage_floor, pos, &path, problems);
            }
            "runbook-url" => choice.runbook_url = Some(text.to_owned()),
            _ => {
                let near = crate::spec::shape::nearest(key, ANNOTATIONS).map(|k| format!("did you mean `{PREFIX}{k}`?"));
                problems.hinted(Class::Meaning, entry.key_pos, &path, "no annotation of ours", near);
            }
        }
    }
    choice
}

/// One of Sloth's `AlertWindows`.
#[derive(Clone, Debug)]
pub struct Windows {
    /// For objectives over this many seconds.
    pub period_s: u64,
    /// Its rows.
    pub rows: Vec<AlertRow>,
}

/// Reads `AlertWindows`, whose shape is checked.
pub fn windows(document: &Node, problems: &mut Problems<'_>) -> Option<Windows> {
    let spec = document.get("spec")?;
    let before = problems.list.len();
    let mut time = |node: &Node, path: &str| {
        let s = node.text().and_then(window_s).filter(|s| *s > 0);
        if s.is_none() {
            problems.error(Class::Meaning, node.pos, path, format!("expected a time such as `5m`, `1h` or `30d`, found {}", node.found()));
        }
        s
    };
    let period_s = time(spec.get("sloPeriod")?, "spec.sloPeriod")?;
    let mut rows = Vec::new();
    for severity in Severity::ALL {
        for speed in ["quick", "slow"] {
            let path = format!("spec.{}.{speed}", severity.as_str());
            let pair = spec.get(severity.as_str())?.get(speed)?;
            let (short, long) = (pair.get("shortWindow")?, pair.get("longWindow")?);
            let (Some(short_s), Some(long_s)) = (time(short, &join(&path, "shortWindow")), time(long, &join(&path, "longWindow"))) else {
                continue;
            };
            let percent = pair.get("errorBudgetPercent").and_then(Node::number)?;
            let factor = tidy(percent / 100.0 * period_s as f64 / long_s as f64);
            rows.push((pair.pos, path, AlertRow { severity, short_s, long_s, factor, for_s: 0 }));
        }
    }
    let mut out = Vec::new();
    for (pos, path, row) in rows {
        match check(&row) {
            Ok(row) => out.push(row),
            Err(message) => problems.error(Class::Meaning, pos, &path, message),
        }
    }
    (problems.list.len() == before).then_some(Windows { period_s, rows: out })
}

/// What alerting becomes for a period and targets. `conditions` are rows of OpenSLO alert conditions; they win over the default.
pub fn resolve(
    choice: &Choice,
    conditions: Vec<AlertRow>,
    windows: &[Windows],
    period_s: u64,
    targets: &[f64],
    problems: &mut Problems<'_>,
) -> Alerting {
    let mut adapted = Vec::new();
    let own = !choice.rows.is_empty();
    let mut rows = match choice.table.as_deref() {
        _ if own => choice.rows.clone(),
        Some("none") => Vec::new(),
        Some("pyrra") => pyrra(period_s),
        Some(_) => google(period_s),
        None if !conditions.is_empty() => conditions,
        None => match windows.iter().rev().find(|w| w.period_s == period_s) {
            Some(windows) => windows.rows.clone(),
            None => {
                if period_s < WEEK {
                    adapted.push(format!("windows are shortened with the window of {}", human(period_s as f64)));
                }
                google(period_s)
            }
        },
    };
    let lowest = targets.iter().copied().fold(1.0, f64::min);
    for row in &mut rows {
        let highest = 1.0 / (1.0 - lowest);
        if row.reachable(lowest) == row.factor || lowest >= 1.0 {
            continue;
        }
        let possible = row.reachable(lowest);
        let why = format!(
            "{} {}/{} at {}x can never fire at a target of {}%: with every request bad the budget burns {}x",
            row.severity.as_str(),
            human(row.short_s as f64),
            human(row.long_s as f64),
            round(row.factor),
            round(lowest * 100.0),
            round(highest),
        );
        if own {
            let hint =
                Some(format!("at most {}x makes sense ({}% of all requests bad)", round(possible), round(possible / highest * 100.0)));
            problems.hinted(Class::Meaning, choice.pos, &choice.path, why, hint);
            continue;
        }
        adapted.push(format!(
            "{why}; it fires at {}x instead, when {}% of all requests are bad",
            round(possible),
            round(possible / highest * 100.0)
        ));
        // With several targets the row keeps its factor for those that can reach it (AlertRow::reachable).
        if targets.iter().all(|t| *t == lowest) {
            row.factor = possible;
        }
    }
    Alerting {
        rows,
        min_events: choice.min_events.unwrap_or(MIN_EVENTS),
        min_bad_events: choice.min_bad_events.unwrap_or(MIN_BAD_EVENTS),
        coverage_floor: choice.coverage_floor.unwrap_or(COVERAGE_FLOOR),
        adapted,
        runbook_url: choice.runbook_url.clone(),
    }
}

/// A number for people.
fn round(n: f64) -> String {
    decimal(n, 3)
}
