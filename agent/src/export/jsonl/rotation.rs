//! Files that were rotated out: their names, their compression, how many are kept.
//!
//! `records.jsonl` becomes `records-2026-11-22T05-38-00.123Z.jsonl`, and when it is compressed `….jsonl.zst` or `….jsonl.gz`. Names sort by time. Only
//! files with exactly such names are ever touched.

use std::fs::{self, File};
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokengauge_core::stream::Timestamp;

/// `jsonl.rotate` of the configuration: when a new file begins, and what becomes of the old ones.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Rotate {
    /// A new file begins when this one has so many MiB.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub size_mib: u64,
    /// A new file begins when this one is so many hours old; by size only when it is not set.
    #[schemars(range(min = 1, max = 8_760))]
    pub age_h: Option<u64>,
    /// How many old files are kept; the oldest beyond them are deleted.
    #[schemars(range(min = 1, max = 10_000))]
    pub keep: usize,
    /// How many MiB old files may have together; the oldest beyond them are deleted.
    pub keep_mib: Option<u64>,
    /// How old files are compressed.
    pub compress: Compress,
}

impl Default for Rotate {
    fn default() -> Self {
        Self { size_mib: 100, age_h: None, keep: 10, keep_mib: None, compress: Compress::Zstd }
    }
}

impl Rotate {
    /// Whether the values make sense; the message names the key below `jsonl.rotate`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        let within = |key: &str, value: u64, most: u64| match value {
            v if (1..=most).contains(&v) => Ok(()),
            v => Err(format!("{key}: {v} is not between 1 and {most}")),
        };
        within("size_mib", self.size_mib, 1 << 20)?;
        within("age_h", self.age_h.unwrap_or(1), 8_760)?;
        within("keep", self.keep as u64, 10_000)?;
        within("keep_mib", self.keep_mib.unwrap_or(1), 1 << 30)
    }
}

/// `jsonl.rotate.compress`.
#[derive(Deserialize, Serialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Compress {
    /// Not at all.
    None,
    /// gzip: what every tool reads.
    Gzip,
    /// Zstandard: smaller, and several times faster.
    Zstd,
}

impl Compress {
    const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }
}

/// The ending of a file that is being made.
const PART: &str = ".part";

/// The names of what was rotated out of one file.
#[derive(Clone, Debug)]
pub struct Names {
    folder: PathBuf,
    stem: String,
    extension: String,
}

impl Names {
    /// Those that belong to the file at `path`.
    pub fn of(path: &Path) -> Self {
        let text = |part: Option<&std::ffi::OsStr>| part.map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let extension = text(path.extension());
        Self {
            folder: folder.to_owned(),
            stem: text(path.file_stem()),
            extension: if extension.is_empty() { String::new() } else { format!(".{extension}") },
        }
    }

    /// The name of a file that is rotated out at `at`; a free one, a millisecond later for each that is taken.
    pub fn next(&self, at: Timestamp) -> PathBuf {
        let mut millis = at.unix_nanos() / 1_000_000;
        loop {
            let name = format!("{}-{}{}", self.stem, stamp(millis), self.extension);
            let taken =
                [Compress::None, Compress::Gzip, Compress::Zstd].iter().any(|c| self.folder.join(format!("{name}{}", c.suffix())).exists());
            if !taken {
                return self.folder.join(name);
            }
            millis += 1;
        }
    }

    /// Every file that was rotated out, oldest first.
    fn all(&self) -> io::Result<Vec<PathBuf>> {
        let mut names: Vec<String> = fs::read_dir(&self.folder)?
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| self.owns(name).is_some_and(|rest| matches!(rest, "" | ".gz" | ".zst")))
            .collect();
        names.sort();
        Ok(names.into_iter().map(|n| self.folder.join(n)).collect())
    }

    /// What was left half made by a process that was killed.
    fn parts(&self) -> Vec<PathBuf> {
        let names = fs::read_dir(&self.folder).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok());
        names.filter(|n| self.owns(n).is_some_and(|rest| rest.ends_with(PART))).map(|n| self.folder.join(n)).collect()
    }

    /// What stands behind the name of a file of ours.
    fn owns<'a>(&self, name: &'a str) -> Option<&'a str> {
        let rest = name.strip_prefix(&self.stem)?.strip_prefix('-')?;
        let (stamp, rest) = rest.split_at_checked(STAMP.len())?;
        let right = stamp.bytes().zip(STAMP.bytes()).all(|(c, want)| if want == b'0' { c.is_ascii_digit() } else { c == want });
        if right { rest.strip_prefix(self.extension.as_str()) } else { None }
    }
}

/// How an instant looks in a name: digits stand for zeros.
const STAMP: &str = "0000-00-00T00-00-00.000Z";

/// Unix milliseconds as civil time in UTC, without what file systems do not like.
fn stamp(millis: u64) -> String {
    let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
    // Days to civil date: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", for dates from 1970 on.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second, milli) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}.{milli:03}Z")
}

/// What became of old files.
#[derive(Debug, Default)]
pub struct Counters {
    /// Compressed.
    pub compressed: AtomicU64,
    /// Deleted because there were too many.
    pub deleted: AtomicU64,
    /// Could not be compressed or deleted; they are tried again with the next.
    pub failed: AtomicU64,
}

/// Compresses and deletes on a thread of its own, so that nobody waits for it.
#[derive(Debug)]
pub struct Keeper {
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
}

impl Keeper {
    /// Begins with what an earlier process left.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(names: Names, rotate: Rotate) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let counters = Arc::new(Counters::default());
        let counting = Arc::clone(&counters);
        let thread = std::thread::Builder::new().name("jsonl-keeper".into()).spawn(move || keep(&names, &rotate, &woken, &counting))?;
        let keeper = Self { wake: Some(wake), thread: Some(thread), counters };
        keeper.wake();
        Ok(keeper)
    }

    /// There may be something to do.
    pub fn wake(&self) {
        // One that waits already does it all.
        let _ = self.wake.as_ref().map(|w| w.try_send(()));
    }

    /// What it did.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Waits until everything that there is to do is done. For tests and tools: a running agent leaves it to the next start.
    pub fn finish(mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn keep(names: &Names, rotate: &Rotate, woken: &Receiver<()>, counters: &Counters) {
    // What somebody else was killed at.
    names.parts().iter().for_each(|p| _ = fs::remove_file(p));
    while woken.recv().is_ok() {
        let failed = |path: &Path, error: &io::Error| {
            counters.failed.fetch_add(1, Ordering::Relaxed);
            tracing::error!("{}: {error}: it is tried again with the next file", path.display());
        };
        // First what makes room.
        if let Err((path, error)) = thin(names, rotate, counters) {
            failed(&path, &error);
        }
        for path in names.all().unwrap_or_default() {
            let packed = matches!(path.extension().and_then(|e| e.to_str()), Some("gz" | "zst"));
            if packed || rotate.compress == Compress::None {
                continue;
            }
            match compress(&path, rotate.compress) {
                Ok(()) => _ = counters.compressed.fetch_add(1, Ordering::Relaxed),
                Err(error) => failed(&path, &error),
            }
        }
    }
}

/// Deletes the oldest beyond the bounds.
fn thin(names: &Names, rotate: &Rotate, counters: &Counters) -> Result<(), (PathBuf, io::Error)> {
    let all = names.all().map_err(|e| (names.folder.clone(), e))?;
    let most = rotate.keep_mib.map_or(u64::MAX, |mib| mib << 20);
    let mut bytes = 0u64;
    for (n, path) in all.iter().rev().enumerate() {
        bytes = bytes.saturating_add(fs::metadata(path).map_or(0, |m| m.len()));
        if n >= rotate.keep || bytes > most {
            fs::remove_file(path).map_err(|e| (path.clone(), e))?;
            counters.deleted.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Makes a compressed file beside the old one, then takes the old one away: at no instant is there less than one whole file.
fn compress(path: &Path, how: Compress) -> io::Result<()> {
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let (done, part) = (with(how.suffix()), with(&format!("{}{PART}", how.suffix())));
    let made = pack(path, &part, how);
    if let Err(error) = made {
        let _ = fs::remove_file(&part);
        return Err(error);
    }
    fs::rename(&part, &done)?;
    fs::remove_file(path)
}

fn pack(from: &Path, to: &Path, how: Compress) -> io::Result<()> {
    let source = File::open(from)?;
    let mode = source.metadata()?.permissions();
    let mut reader = BufReader::with_capacity(1 << 17, source);
    let target = File::create(to)?;
    target.set_permissions(mode)?;
    let target = match how {
        Compress::None => return Ok(()),
        Compress::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(target, flate2::Compression::default());
            io::copy(&mut reader, &mut encoder)?;
            encoder.finish()?
        }
        Compress::Zstd => {
            let mut encoder = zstd::stream::write::Encoder::new(target, 3)?;
            encoder.include_checksum(true)?;
            io::copy(&mut reader, &mut encoder)?;
            encoder.finish()?
        }
    };
    let mut target = target;
    target.flush()?;
    // The old one goes when this one is on the disk, not before.
    target.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(dir: &Path) -> Vec<String> {
        let mut all: Vec<String> = fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn stamps_are_civil_time() {
        for (millis, want) in [
            (0, "1970-01-01T00-00-00.000Z"),
            (951_782_399_999, "2000-02-28T23-59-59.999Z"),
            (951_782_400_000, "2000-02-29T00-00-00.000Z"),
            (1_798_761_599_001, "2026-12-31T23-59-59.001Z"),
            (4_107_542_400_000, "2100-03-01T00-00-00.000Z"),
        ] {
            assert_eq!(stamp(millis), want);
        }
    }

    #[test]
    fn only_names_of_ours() {
        let names = Names::of(Path::new("/x/records.jsonl"));
        for (name, want) in [
            ("records-2026-11-22T05-38-00.123Z.jsonl", Some("")),
            ("records-2026-11-22T05-38-00.123Z.jsonl.gz", Some(".gz")),
            ("records-2026-11-22T05-38-00.123Z.jsonl.zst.part", Some(".zst.part")),
            ("records-2026-11-22T05-38-00.123Z.json", None),
            ("records-2026-11-22.jsonl", None),
            ("records-xxxx-11-22T05-38-00.123Z.jsonl", None),
            ("records.jsonl", None),
            ("other-2026-11-22T05-38-00.123Z.jsonl", None),
        ] {
            assert_eq!(names.owns(name), want, "{name}");
        }
        assert_eq!(Names::of(Path::new("plain")).owns("plain-2026-11-22T05-38-00.123Z.gz"), Some(".gz"));
    }

    #[test]
    fn old_files_are_packed_and_thinned() {
        for how in [Compress::Gzip, Compress::Zstd, Compress::None] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("r.jsonl");
            let names = Names::of(&path);
            let text = "{\"v\":1}\n".repeat(1000);
            for n in 0..5u64 {
                // The same instant for all: each gets a name of its own.
                fs::write(names.next(Timestamp::from_unix_nanos(n)), &text).unwrap();
            }
            fs::write(dir.path().join("r-1970-01-01T00-00-00.000Z.jsonl.zst.part"), "half").unwrap();
            fs::write(dir.path().join("other.jsonl"), "not ours").unwrap();
            let keeper = Keeper::start(names, Rotate { keep: 3, compress: how, ..Rotate::default() }).unwrap();
            let counters = keeper.counters();
            keeper.finish();
            let suffix = how.suffix();
            let want: Vec<String> = std::iter::once("other.jsonl".to_owned())
                .chain((2..5).map(|n| format!("r-1970-01-01T00-00-00.00{n}Z.jsonl{suffix}")))
                .collect();
            assert_eq!(list(dir.path()), want);
            assert_eq!(counters.deleted.load(Ordering::Relaxed), 2);
            let packed = File::open(dir.path().join(&want[1])).unwrap();
            let read = match how {
                Compress::Gzip => io::read_to_string(flate2::read::GzDecoder::new(packed)),
                Compress::Zstd => io::read_to_string(zstd::stream::read::Decoder::new(packed).unwrap()),
                Compress::None => io::read_to_string(packed),
            };
            assert_eq!(read.unwrap(), text);
        }
    }

    #[test]
    fn a_bound_in_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::of(&dir.path().join("r.jsonl"));
        for n in 0..4u64 {
            fs::write(names.next(Timestamp::from_unix_nanos(n)), vec![b'\n'; 600 << 10]).unwrap();
        }
        let rotate = Rotate { keep_mib: Some(1), compress: Compress::None, ..Rotate::default() };
        thin(&names, &rotate, &Counters::default()).unwrap();
        assert_eq!(list(dir.path()), ["r-1970-01-01T00-00-00.003Z.jsonl"]);
    }

    #[test]
    fn a_target_that_cannot_be_written_leaves_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r-1970-01-01T00-00-00.000Z.jsonl");
        fs::write(&path, "{}\n").unwrap();
        fs::create_dir(dir.path().join("r-1970-01-01T00-00-00.000Z.jsonl.gz.part")).unwrap();
        assert!(compress(&path, Compress::Gzip).is_err());
        assert!(path.exists());
    }
}
