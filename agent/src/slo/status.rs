//! `tokengauge slo status`: how the objectives of the agent on this machine stand.

use std::io::{self, Write};
use std::path::PathBuf;

use tokengauge_slo::window::{utc, window_name};

use super::live::{Standing, default_journal, status_path};
use super::view::{Alert, View};
use super::{SloError, clock};
use crate::cli::{SloFormat, SloStatusArgs};

/// An agent that has said nothing for so many seconds does not run.
const STALE_S: u64 = 15;

/// Characters of a whole budget.
const BAR: usize = 20;

/// Prints how things stand; whether all is well with the agent: it runs, its files are right, its journal is written. Alerts are no
/// fault of the agent.
pub fn status(args: &SloStatusArgs, out: &mut dyn Write) -> Result<bool, SloError> {
    let path = status_path(&args.journal.clone().unwrap_or_else(default_journal));
    let Some(standing) = read(&path) else {
        writeln!(
            out,
            "{}: no agent with objectives has written here (`slo:` in its configuration; --journal names another place)",
            path.display()
        )?;
        return Ok(false);
    };
    let now = clock::now().0 / 1_000_000_000;
    if args.format == SloFormat::Json {
        serde_json::to_writer(&mut *out, &standing).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        write(&standing, now, out)?;
    }
    Ok(well(&standing, now))
}

fn read(path: &PathBuf) -> Option<Standing> {
    let text = std::fs::read(path).ok()?;
    serde_json::from_slice(&text).ok()
}

fn stale(standing: &Standing, now: u64) -> bool {
    now.abs_diff(standing.at_unix) > STALE_S
}

fn well(standing: &Standing, now: u64) -> bool {
    !stale(standing, now) && standing.broken.is_empty() && standing.journal_trouble.is_none()
}

fn write(standing: &Standing, now: u64, out: &mut dyn Write) -> io::Result<()> {
    let name = |v: &View| {
        let group: String = v.group.iter().map(|(k, v)| format!(" {k}={v}")).collect();
        format!("{} {}{group}", v.slo, v.objective)
    };
    let width = standing.objectives.iter().map(|v| name(v).chars().count()).max().unwrap_or(0).max(9);
    writeln!(
        out,
        "{:width$}  {:>9}  {:<BAR$} {:>9}  {:>7}  {:<8} {:<8} {:>8}  seen",
        "objective", "level", "budget left", "", "burn 1h", "page", "ticket", "spent in"
    )?;
    for v in &standing.objectives {
        let percent = |x: Option<f64>| x.map_or_else(|| "-".into(), |x| format!("{:.2}%", x * 100.0));
        let burn = v.burn_rate.get("1h").copied().flatten().map_or_else(|| "-".into(), |b| format!("{b:.2}"));
        let [page, ticket] = v.alerts.map(|a| alert(a, v.blind()));
        let spent = v.time_to_exhaustion_s.map_or_else(|| "-".into(), time);
        let seen = format!("{} {:.0}%{}", v.sight, v.coverage * 100.0, young(v));
        let (level, left) = (percent(v.sli), percent(v.error_budget_remaining));
        writeln!(
            out,
            "{:width$}  {level:>9}  {} {left:>9}  {burn:>7}  {page:<8} {ticket:<8} {spent:>8}  {seen}",
            name(v),
            bar(v.error_budget_remaining)
        )?;
    }
    if standing.objectives.is_empty() {
        writeln!(out, "no objectives")?;
    }
    if stale(standing, now) {
        writeln!(out, "\nthe agent (process {}) wrote this at {} UTC and nothing since", standing.pid, utc(standing.at_unix as i64))?;
    }
    for what in &standing.broken {
        writeln!(out, "\n{what}\n  what was read at {} UTC stays in force", utc(standing.loaded_unix as i64))?;
    }
    for what in standing.journal_trouble.iter().chain(&standing.journal_damage) {
        writeln!(out, "\n{what}")?;
    }
    Ok(())
}

/// Full blocks for what is left of a budget; `!` when it is overspent.
fn bar(left: Option<f64>) -> String {
    let Some(left) = left else { return format!("{:·<BAR$}", "") };
    if left < 0.0 {
        return format!("{:!<BAR$}", "");
    }
    let full = (left.min(1.0) * BAR as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

fn alert(alert: Alert, frozen: bool) -> &'static str {
    match (alert, frozen) {
        (Alert::Firing, true) => "FIRING*",
        (Alert::Firing, false) => "FIRING",
        (Alert::Pending, _) => "pending",
        (Alert::Quiet, true) => "frozen",
        (Alert::Quiet, false) => "quiet",
    }
}

/// How much of the window there is, where it is not (nearly) all.
fn young(v: &View) -> String {
    if v.window_covered >= 0.995 {
        return String::new();
    }
    format!(", {:.1}% of {}", v.window_covered * 100.0, window_name(v.window_s))
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0}s"),
        s if s < 7_200.0 => format!("{:.0}m", s / 60.0),
        s if s < 172_800.0 => format!("{:.0}h", s / 3_600.0),
        s if s < 864_000_000.0 => format!("{:.0}d", s / 86_400.0),
        _ => "never".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_a_budget() {
        let all = [Some(1.0), Some(0.5), Some(0.0), Some(-3.0), None].map(bar);
        assert!(all.iter().all(|b| b.chars().count() == BAR), "{all:?}");
        assert_eq!([&*all[1], &*all[3]], ["██████████░░░░░░░░░░", "!!!!!!!!!!!!!!!!!!!!"]);
    }

    #[test]
    fn what_is_old_or_broken_is_not_well() {
        let fresh = Standing { at_unix: 1_000, ..Standing::default() };
        assert!(well(&fresh, 1_010) && !well(&fresh, 1_016));
        assert!(!well(&Standing { broken: vec!["x".into()], ..fresh.clone() }, 1_000));
        assert!(!well(&Standing { journal_trouble: Some("x".into()), ..fresh }, 1_000));
    }
}
