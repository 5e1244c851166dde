//! A process that writes records as fast as it can, for `tests/jsonl/kill.sh`.
//!
//! `jsonl_life FILE [SECONDS]`: each record carries a number, which goes on where the last whole record of the file and of those rotated out ended. After each
//! batch it says on standard output how many records the system has taken and how many were given up.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokengauge::export::Exporter as _;
use tokengauge::export::jsonl::file::JsonFile;
use tokengauge::export::jsonl::rotation::{Compress, Rotate};
use tokengauge::testing;
use tokengauge_core::name::Name;
use tokengauge_core::stats::Snapshot;
use tokengauge_core::stream::Timestamp;

/// Records between two snapshots.
const BATCH: u64 = 200;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let (Some(path), seconds) = (args.get(1), args.get(2).and_then(|s| s.parse().ok()).unwrap_or(3_600u64)) else {
        return ExitCode::from(2);
    };
    let rotate = Rotate { size_mib: 1, keep: 1_000, compress: Compress::None, ..Rotate::default() };
    let Ok(mut file) = JsonFile::open(Path::new(path), Some(rotate), Arc::default()) else { return ExitCode::FAILURE };
    let (mut next, mut out) = (next_number(Path::new(path)), std::io::stdout().lock());
    let counters = file.counters();
    let mut record = testing::inference();
    let first = next;
    #[allow(clippy::disallowed_methods, reason = "how long it is to live")]
    let (began, clock) = (Instant::now(), SystemTime::now);
    while began.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..BATCH {
            record.request.model = Some(Name::new(&format!("n{next}")));
            file.inference(&record);
            next += 1;
        }
        let at = clock().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        file.snapshot(&Snapshot { at: Timestamp::from_unix_nanos(u64::try_from(at).unwrap_or(0)), ..Snapshot::default() });
        let (written, dropped) = (counters.written.load(Ordering::Relaxed), counters.dropped.load(Ordering::Relaxed));
        let failures = counters.failures.load(Ordering::Relaxed);
        if writeln!(out, "{first} {written} {dropped} {failures}").and_then(|()| out.flush()).is_err() {
            break;
        }
        if counters.trouble().is_some() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let _ = file.shutdown(Duration::ZERO);
    ExitCode::SUCCESS
}

/// One more than the number of the last record in the file, or in the newest that was rotated out.
fn next_number(path: &Path) -> u64 {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut files: Vec<_> =
        path.parent().and_then(|d| std::fs::read_dir(d).ok()).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!("{stem}-"))));
    files.sort();
    files.push(path.to_owned());
    let last = |path: &std::path::PathBuf| {
        let file = std::io::BufReader::new(std::fs::File::open(path).ok()?);
        let line = file.lines().map_while(Result::ok).last()?;
        let (_, rest) = line.split_once("\"model\":\"n")?;
        rest.split('"').next()?.parse::<u64>().ok()
    };
    files.iter().rev().find_map(last).map_or(0, |n| n + 1)
}
