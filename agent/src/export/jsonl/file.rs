//! Records in a file that people rotate, fill up, move away and read meanwhile.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokengauge_core::inference::Inference;
use tokengauge_core::stats::Snapshot;
use tokengauge_core::stream::Timestamp;

use super::lines::{Lines, Taken};
use super::rotation::{self, Keeper, Names, Rotate};
use crate::export::record::Writer;
use crate::export::{ExportError, Exporter};

/// Bytes that wait at most for the next snapshot.
const BATCH: usize = 256 << 10;

/// How often a trouble that lasts is said again: in snapshots, so seconds.
const SAY_EVERY: u64 = 60;

/// What became of records.
#[derive(Debug, Default)]
pub struct Counters {
    /// Records that the system took.
    pub written: AtomicU64,
    /// Records that were given up because nothing could be written for too long.
    pub dropped: AtomicU64,
    /// Attempts to write, or to begin a new file, that failed.
    pub failures: AtomicU64,
    /// Files that were rotated out.
    pub rotated: AtomicU64,
    /// Torn lines that were found at the end of a file and taken out.
    pub torn: AtomicU64,
    /// Why nothing can be written now.
    trouble: Mutex<Option<String>>,
}

impl Counters {
    /// Why nothing can be written now; `None` when all is well.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Writes records to a file: whole ones only, and again once a full disk has room.
///
/// Lines are handed over with each snapshot, so that a reader sees them within about a second and a busy agent does not make a system call for each.
pub struct JsonFile {
    path: PathBuf,
    writer: Writer,
    lines: Lines,
    /// Records that wait.
    pending: u64,
    names: Names,
    rotate: Option<Rotate>,
    keeper: Option<Keeper>,
    reopen: Arc<AtomicBool>,
    counters: Arc<Counters>,
    /// The instant of the last snapshot.
    now: Timestamp,
    /// When the file got its first record; `None` while it is empty.
    since: Option<Timestamp>,
    snapshots: u64,
}

impl JsonFile {
    /// Appends to the file at `path`. Setting `reopen` makes it open `path` again, as `logrotate` wants it.
    ///
    /// # Errors
    /// When the file cannot be opened, or another process writes to it.
    pub fn open(path: &Path, rotate: Option<Rotate>, reopen: Arc<AtomicBool>) -> Result<Self, ExportError> {
        let wrong = |source| ExportError::Io { path: path.display().to_string(), source };
        let (lines, cut) = Lines::open(path).map_err(wrong)?;
        let names = Names::of(path);
        let keeper = rotate.clone().map(|r| Keeper::start(names.clone(), r)).transpose().map_err(wrong)?;
        let counters = Arc::new(Counters::default());
        if cut > 0 {
            counters.torn.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("{}: a torn record of {cut} bytes at its end was taken out", path.display());
        }
        let since = std::fs::metadata(path).ok().filter(|m| m.len() > 0).and_then(|m| born(&m));
        Ok(Self {
            path: path.to_owned(),
            writer: Writer::default(),
            lines,
            pending: 0,
            names,
            rotate,
            keeper,
            reopen,
            counters,
            now: crate::clock::wall(),
            since,
            snapshots: 0,
        })
    }

    /// What it counts, while it runs.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// What became of old files; `None` when it does not rotate.
    pub fn rotation(&self) -> Option<Arc<rotation::Counters>> {
        self.keeper.as_ref().map(Keeper::counters)
    }

    /// Hands over what waits.
    fn write_out(&mut self) -> std::io::Result<()> {
        let result = self.lines.flush();
        let left = if result.is_ok() { 0 } else { self.lines.waiting_lines() };
        let written = self.pending.saturating_sub(left);
        self.pending = left;
        self.counters.written.fetch_add(written, Ordering::Relaxed);
        if written > 0 && self.since.is_none() {
            self.since = Some(self.now);
        }
        self.tell(result.as_ref().err());
        result
    }

    /// Says what goes wrong once, and what goes right again.
    fn tell(&self, error: Option<&std::io::Error>) {
        let mut trouble = self.counters.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) => {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                let what = format!("{}: {error}", self.path.display());
                if trouble.as_ref() != Some(&what) || self.snapshots.is_multiple_of(SAY_EVERY) {
                    let dropped = self.counters.dropped.load(Ordering::Relaxed);
                    tracing::error!("{what}: {} records wait, {dropped} were given up", self.pending);
                }
                *trouble = Some(what);
            }
            None if trouble.take().is_some() => {
                let dropped = self.counters.dropped.load(Ordering::Relaxed);
                tracing::info!("{}: records are written again; {dropped} were given up", self.path.display());
            }
            None => {}
        }
    }

    /// Begins a new file when this one is large or old enough.
    fn turn_over(&mut self) {
        let Some(rotate) = &self.rotate else { return };
        let large = self.lines.file_len().is_ok_and(|len| len >= rotate.size_mib << 20);
        let age = self.since.map_or(Duration::ZERO, |since| self.now.since(since));
        let old = rotate.age_h.is_some_and(|h| age >= Duration::from_secs(h * 3_600));
        if !large && !old {
            return;
        }
        let name = self.names.next(self.now);
        match self.lines.rotate(&name) {
            Ok(()) => {
                self.since = None;
                self.counters.rotated.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => self.tell(Some(&error)),
        }
        if let Some(keeper) = &self.keeper {
            keeper.wake();
        }
    }
}

/// When a file began, as far as the file system knows.
fn born(meta: &std::fs::Metadata) -> Option<Timestamp> {
    let at = meta.created().or_else(|_| meta.modified()).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Timestamp::from_unix_nanos(u64::try_from(at.as_nanos()).ok()?))
}

impl Exporter for JsonFile {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn inference(&mut self, inference: &Inference) {
        let line = self.writer.line(inference);
        match self.lines.push(line) {
            Taken::Waits => self.pending += 1,
            Taken::Dropped => _ = self.counters.dropped.fetch_add(1, Ordering::Relaxed),
        }
        // While nothing can be written, once a second is often enough to try.
        if self.lines.waiting() >= BATCH && self.counters.trouble().is_none() && self.write_out().is_ok() {
            self.turn_over();
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.now = snapshot.at;
        self.snapshots += 1;
        if self.reopen.swap(false, Ordering::Relaxed) || self.lines.moved() {
            // What waits belongs to the time before.
            let _ = self.write_out();
            match self.lines.reopen() {
                Ok(_) => self.since = self.lines.file_len().is_ok_and(|len| len > 0).then_some(self.now),
                Err(error) => self.tell(Some(&error)),
            }
        }
        if self.write_out().is_ok() {
            self.turn_over();
        } else if let Some(keeper) = &self.keeper {
            // Old files may be what fills the disk.
            keeper.wake();
        }
    }

    fn flush(&mut self, _within: Duration) -> Result<(), ExportError> {
        self.write_out().map_err(|source| ExportError::Io { path: self.path.display().to_string(), source })
    }

    fn shutdown(&mut self, within: Duration) -> Result<(), ExportError> {
        self.flush(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn at(seconds: u64) -> Snapshot {
        Snapshot { at: Timestamp::from_unix_nanos(seconds * 1_000_000_000), ..Snapshot::default() }
    }

    fn lines(path: &Path) -> usize {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()), "{}", path.display());
        text.lines().count()
    }

    fn rotated(dir: &Path) -> Vec<PathBuf> {
        let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path()).collect();
        all.retain(|p| p.file_name().is_some_and(|n| n != "r.jsonl"));
        all.sort();
        all
    }

    #[test]
    fn records_are_there_after_a_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let mut file = JsonFile::open(&path, None, Arc::default()).unwrap();
        file.inference(&testing::inference());
        file.inference(&testing::refused());
        assert_eq!(lines(&path), 0);
        file.snapshot(&at(1));
        assert_eq!((lines(&path), file.counters().written.load(Ordering::Relaxed)), (2, 2));
        file.inference(&testing::inference());
        file.shutdown(Duration::ZERO).unwrap();
        assert_eq!(lines(&path), 3);
        let error = JsonFile::open(Path::new("/nonexistent/x.jsonl"), None, Arc::default()).err().unwrap();
        assert!(error.to_string().starts_with("/nonexistent/x.jsonl: "), "{error}");
    }

    #[test]
    fn a_new_file_by_size_and_by_age() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let rotate = Rotate { size_mib: 1, age_h: Some(2), compress: rotation::Compress::None, ..Rotate::default() };
        let mut file = JsonFile::open(&path, Some(rotate), Arc::default()).unwrap();
        file.snapshot(&at(3_600));
        let mut sent = 0;
        while file.counters().rotated.load(Ordering::Relaxed) == 0 {
            file.inference(&testing::inference());
            sent += 1;
            assert!(sent < 10_000);
        }
        let old = rotated(dir.path());
        assert!(old.len() == 1 && old[0].ends_with("r-1970-01-01T01-00-00.000Z.jsonl"), "{old:?}");
        assert_eq!(lines(&old[0]), sent);
        let len = std::fs::metadata(&old[0]).unwrap().len();
        assert!((1 << 20..(1 << 20) + BATCH as u64 * 2).contains(&len), "{len}");
        // An empty file never grows old.
        file.snapshot(&at(50 * 3_600));
        assert_eq!(rotated(dir.path()).len(), 1);
        file.inference(&testing::inference());
        file.snapshot(&at(50 * 3_600));
        file.snapshot(&at(52 * 3_600 - 1));
        assert_eq!(rotated(dir.path()).len(), 1);
        file.snapshot(&at(52 * 3_600));
        assert_eq!((rotated(dir.path()).len(), lines(&path)), (2, 0));
    }

    #[test]
    fn logrotate_in_all_its_ways() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("r.jsonl"), dir.path().join("r.jsonl.1"));
        let hangup = Arc::new(AtomicBool::new(false));
        let mut file = JsonFile::open(&path, None, Arc::clone(&hangup)).unwrap();
        let one = |file: &mut JsonFile| {
            file.inference(&testing::inference());
            file.snapshot(&at(1));
        };
        one(&mut file);
        // create + postrotate kill -HUP
        std::fs::rename(&path, &moved).unwrap();
        std::fs::write(&path, "").unwrap();
        hangup.store(true, Ordering::Relaxed);
        one(&mut file);
        assert_eq!((lines(&moved), lines(&path), hangup.load(Ordering::Relaxed)), (2, 0, false), "what waited belongs to the old file");
        one(&mut file);
        assert_eq!(lines(&path), 1);
        // without a signal: noticed all the same
        std::fs::rename(&path, &moved).unwrap();
        one(&mut file);
        one(&mut file);
        assert_eq!((lines(&moved), lines(&path)), (2, 1));
        // copytruncate
        std::fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        one(&mut file);
        assert_eq!(lines(&path), 1);
        // deleted
        std::fs::remove_file(&path).unwrap();
        one(&mut file);
        one(&mut file);
        assert!(lines(&path) >= 1);
    }

    #[test]
    fn trouble_is_told_counted_and_overcome() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, path) = (dir.path().join("sub"), dir.path().join("sub/r.jsonl"));
        std::fs::create_dir(&folder).unwrap();
        let mut file = JsonFile::open(&path, None, Arc::default()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        // The deleted file takes the first; then there is no folder for a new one.
        file.snapshot(&at(1));
        for second in 2..5 {
            file.inference(&testing::inference());
            file.snapshot(&at(second));
        }
        let counters = file.counters();
        assert!(counters.trouble().unwrap().contains("r.jsonl: No such file"), "{:?}", counters.trouble());
        assert!(file.shutdown(Duration::ZERO).is_err());
        std::fs::create_dir(&folder).unwrap();
        file.snapshot(&at(6));
        assert_eq!((lines(&path), counters.trouble(), counters.written.load(Ordering::Relaxed)), (3, None, 3));
        assert!(counters.failures.load(Ordering::Relaxed) >= 3);
    }
}
