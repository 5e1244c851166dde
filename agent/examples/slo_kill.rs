//! Kills a process that keeps a journal of objectives, again and again, and looks at what its successor remembers.
//!
//! `slo_kill JOURNAL KILLS`: each life counts requests, appends what changed, and only then says on standard output how many it has
//! counted. After each `kill -9` the next life must remember all that was said, and no more than what was being written.
//! Exit code 0 when that held every time.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use tokengauge::slo::journal::Journal;
use tokengauge_slo::engine::Engine;
use tokengauge_slo::request::Request;
use tokengauge_slo::snapshot::{Told, encode};

const OBJECTIVES: &str = "slos:\n  service: kill\n  objectives:\n    - availability >= 99.9%\n    - availability >= 99%\n";
const START: u64 = 1_700_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// Requests between two appends.
const BATCH: u64 = 1_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1..).unwrap_or_default() {
        [life, path] if life == "life" => one_life(Path::new(path)),
        [path, kills] => parent(path, kills.parse().unwrap_or(200)),
        _ => ExitCode::from(2),
    }
}

/// Counts until it is killed.
fn one_life(path: &Path) -> ExitCode {
    let slos = || tokengauge_slo::spec::load(&[("kill.yaml", OBJECTIVES)]).slos;
    let Ok((mut journal, found)) = Journal::open(path) else { return ExitCode::FAILURE };
    let Ok(mut engine) = Engine::new(slos(), START) else { return ExitCode::FAILURE };
    let mut out = std::io::stdout().lock();
    if let Some(book) = found.book {
        let now = book.now;
        engine.adopt(book, now);
    }
    let (mut now, _) = engine.time();
    let counted = |engine: &Engine| engine.pages().first().and_then(|p| p.series.first()).map_or(0, |s| s.counters.good);
    let damage = found.damage.is_some_and(|d| !d.contains("torn"));
    if writeln!(out, "{} {damage}", counted(&engine)).is_err() || !journal.snapshot(&encode(&engine.book())) {
        return ExitCode::FAILURE;
    }
    let mut told = Told::all(&engine);
    loop {
        now += SECOND;
        engine.observe_many(&Request::plain(), BATCH, now);
        engine.evaluate(now);
        // Every so often the file is made anew, so that kills meet that as well.
        let kept = if (now / SECOND).is_multiple_of(7) || journal.wants_snapshot() {
            let kept = journal.snapshot(&encode(&engine.book()));
            told = Told::all(&engine);
            kept
        } else {
            journal.append(&told.changes(&engine))
        };
        if !kept || writeln!(out, "{}", counted(&engine)).and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
}

fn parent(path: &str, kills: u32) -> ExitCode {
    let Ok(me) = std::env::current_exe() else { return ExitCode::FAILURE };
    let (mut said, mut most_lost, mut wrong) = (0u64, 0u64, 0u32);
    // Any sequence will do, so long as it meets every phase of a life.
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for kill in 0..=kills {
        let Ok(mut child) = Command::new(&me).args(["life", path]).stdout(Stdio::piped()).spawn() else { return ExitCode::FAILURE };
        let Some(out) = child.stdout.take() else { return ExitCode::FAILURE };
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_micros(5_000 + random % 60_000));
        if child.kill().and_then(|()| child.wait()).is_err() {
            return ExitCode::FAILURE;
        }
        let mut lines = BufReader::new(out).lines().map_while(Result::ok);
        let Some(first) = lines.next() else { continue };
        let (remembered, damage) = first.split_once(' ').unwrap_or((&first, "true"));
        let remembered: u64 = remembered.parse().unwrap_or(0);
        // What was appended but not said yet may be remembered as well: one batch.
        if remembered < said || remembered > said + BATCH || damage == "true" {
            println!("kill {kill}: {said} were said, {remembered} are remembered");
            wrong += 1;
        }
        most_lost = most_lost.max(said.saturating_sub(remembered));
        // A line that the kill has cut is no line; the pipe gives whole ones only up to it.
        said = lines.filter_map(|l| l.parse().ok()).last().unwrap_or(remembered).max(remembered);
    }
    println!("{kills} kills, {said} requests, {most_lost} lost, {wrong} wrong");
    ExitCode::from(u8::from(wrong > 0))
}
