//! The engine's memory on disk: one file, appended to once a second, made anew now and then.
//!
//! ```text
//! file    = "TGSLO\0\0\1" frame…                     the first frame is a snapshot
//! frame   = length u32 · crc32 u32 of kind and payload · kind u8 (1 snapshot, 2 changes) · payload     little endian
//! ```
//!
//! Why not an embedded store (redb, fjall): the state is one value that is read once, at the start, and of which a second changes a few
//! numbers. A log of those with a checksum each is two hundred lines, writes some hundred bytes per second without reading any, and a crash
//! can only cut its tail.
//!
//! * A killed process loses what it had not appended: at most the last second. What the kernel has taken survives the process; against
//!   a loss of power the file is synchronised every 10 s and whenever it is made anew.
//! * A torn or damaged tail is cut off at the last whole frame, and said. A file whose beginning is no journal is put aside as
//!   `….damaged`, never overwritten.
//! * It is made anew (snapshot to `….new`, synchronised, renamed) when changes outgrow the snapshot.
//! * When the disk is full or read-only, counting goes on in memory, [`Journal::trouble`] says so, and every second it is tried again; the
//!   first success writes a whole snapshot, because changes are missing.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use tokengauge_slo::book::Book;
use tokengauge_slo::snapshot::{apply, decode};

const MAGIC: &[u8; 8] = b"TGSLO\0\0\x01";
const SNAPSHOT: u8 = 1;
const CHANGES: u8 = 2;
/// Bytes before a frame's payload.
const HEAD: usize = 9;
/// Changes may grow to this, or to the size of the snapshot, before the file is made anew.
const MIN_CHANGES: u64 = 1 << 20;
/// Appends between two synchronisations: seconds.
const SYNC_EVERY: u32 = 10;
/// Largest file that is read back.
const MAX_FILE: u64 = 4 << 30;

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Option<File>,
    /// Held as long as the journal is open, so that two agents do not write one file.
    _lock: File,
    /// Bytes of the file that are whole frames.
    len: u64,
    snapshot_len: u64,
    unsynced: u32,
    trouble: Option<String>,
}

/// What was found at the start.
#[derive(Debug, Default)]
pub struct Found {
    /// The state as it was last written; `None` where there was none.
    pub book: Option<Book>,
    /// What was wrong with the file, in words.
    pub damage: Option<String>,
}

/// The journal cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The folder or the lock beside the file cannot be written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{path}: another process writes this journal")]
    Locked {
        /// The file.
        path: String,
    },
}

impl Journal {
    /// Opens the journal at `path` and reads it. Nothing is written but a lock file beside it.
    ///
    /// # Errors
    /// When the folder cannot be written, or another process has the journal.
    pub fn open(path: &Path) -> Result<(Self, Found), JournalError> {
        let named = |path: &Path| path.display().to_string();
        let lock_path = beside(path, "lock");
        let io = |source| JournalError::Io { path: named(&lock_path), source };
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(JournalError::Locked { path: named(path) }),
            Err(std::fs::TryLockError::Error(source)) => return Err(io(source)),
        }
        let mut journal = Self { path: path.to_owned(), file: None, _lock: lock, len: 0, snapshot_len: 0, unsynced: 0, trouble: None };
        let mut bytes = Vec::new();
        match File::open(path).and_then(|f| f.take(MAX_FILE).read_to_end(&mut bytes)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((journal, Found::default())),
            Err(source) => return Err(JournalError::Io { path: named(path), source }),
            Ok(_) => {}
        }
        let (book, whole) = replay(&bytes);
        let mut found = Found { book, damage: None };
        if found.book.is_none() {
            let aside = beside(path, "damaged");
            let moved = std::fs::rename(path, &aside);
            found.damage = Some(match moved {
                Ok(()) => format!("{}: no journal of objectives; put aside as {}, budgets begin anew", named(path), named(&aside)),
                Err(e) => format!("{}: no journal of objectives, and it cannot be put aside ({e}); budgets begin anew", named(path)),
            });
        } else if whole < bytes.len() {
            found.damage = Some(format!(
                "{}: the last {} of {} bytes are torn or damaged and were left out",
                named(path),
                bytes.len() - whole,
                bytes.len()
            ));
        }
        // The first write is a snapshot in a new file: nothing is appended behind a torn frame.
        journal.len = 0;
        Ok((journal, found))
    }

    /// What keeps it from being written, in words; `None` while all is well.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether the next write must be a whole snapshot.
    pub fn wants_snapshot(&self) -> bool {
        self.file.is_none() || self.len - self.snapshot_len > self.snapshot_len.max(MIN_CHANGES)
    }

    /// Appends what has changed. Whether that went well; if not, [`Journal::wants_snapshot`] is true from now on.
    pub fn append(&mut self, changes: &[u8]) -> bool {
        let Some(file) = &mut self.file else { return false };
        let result = file.write_all(&frame(CHANGES, changes)).and_then(|()| {
            self.unsynced += 1;
            if self.unsynced < SYNC_EVERY {
                return Ok(());
            }
            self.unsynced = 0;
            file.sync_data()
        });
        match result {
            Ok(()) => {
                self.len += (HEAD + changes.len()) as u64;
                true
            }
            Err(error) => {
                // Half a frame may stand there; it is cut off when it is read. The next success is a new file.
                self.file = None;
                self.fail(&error);
                false
            }
        }
    }

    /// Makes the file anew. Whether that went well.
    pub fn snapshot(&mut self, book: &[u8]) -> bool {
        match self.write_anew(book) {
            Ok(file) => {
                self.len = (MAGIC.len() + HEAD + book.len()) as u64;
                (self.snapshot_len, self.unsynced) = (self.len, 0);
                self.file = Some(file);
                self.trouble = None;
                true
            }
            Err(error) => {
                self.file = None;
                self.fail(&error);
                false
            }
        }
    }

    fn write_anew(&self, book: &[u8]) -> io::Result<File> {
        let new = beside(&self.path, "new");
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(MAGIC)?;
            file.write_all(&frame(SNAPSHOT, book))?;
            file.sync_data()?;
            std::fs::rename(&new, &self.path)?;
            Ok(file)
        });
        if written.is_err() {
            // It takes room on a full disk and is of no use.
            let _ = std::fs::remove_file(&new);
        }
        let file = written?;
        // The new name is on the disk when its folder is. Some file systems refuse to synchronise folders; the file stands all the same.
        if let Some(Ok(folder)) = self.path.parent().map(|p| File::open(if p.as_os_str().is_empty() { Path::new(".") } else { p })) {
            let _ = folder.sync_all();
        }
        Ok(file)
    }

    fn fail(&mut self, error: &io::Error) {
        self.trouble = Some(format!("{}: {error}", self.path.display()));
    }
}

/// A file beside another, of whose name its own is the beginning.
pub(super) fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    PathBuf::from(name)
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + payload.len());
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&checksum(kind, payload).to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(payload);
    bytes
}

fn checksum(kind: u8, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    crc.update(payload);
    crc.finalize()
}

/// The state that a file's whole frames give, and how many of its bytes those are.
fn replay(bytes: &[u8]) -> (Option<Book>, usize) {
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else { return (None, 0) };
    let mut book: Option<Book> = None;
    while let Some((kind, payload, after)) = next(rest) {
        match (kind, &mut book) {
            (SNAPSHOT, book) => match decode(payload) {
                Ok(decoded) => *book = Some(decoded),
                Err(_) => break,
            },
            (CHANGES, Some(book)) => {
                // A checksum that is right over changes that are wrong: of another version. What came before holds.
                if apply(book, payload).is_err() {
                    break;
                }
            }
            _ => break,
        }
        rest = after;
    }
    (book, bytes.len() - rest.len())
}

fn next(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first()?;
    let (payload, after) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    (checksum(*kind, payload) == u32::from_le_bytes(*crc)).then_some((*kind, payload, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokengauge_slo::engine::Engine;
    use tokengauge_slo::request::Request;
    use tokengauge_slo::snapshot::{Told, encode};

    const START: u64 = 1_700_000_000_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    fn engine() -> Engine {
        let loaded = tokengauge_slo::spec::load(&[("x.yaml", "slos:\n  service: g\n  objectives:\n    - availability >= 99%\n")]);
        Engine::new(loaded.slos, START).unwrap()
    }

    /// A journal of ten seconds with one request each.
    fn written(path: &Path) {
        let (mut engine, (mut journal, found)) = (engine(), Journal::open(path).unwrap());
        assert!(found.book.is_none() && found.damage.is_none());
        assert!(journal.wants_snapshot());
        assert!(journal.snapshot(&encode(&engine.book())));
        let mut told = Told::all(&engine);
        for i in 1..=10 {
            engine.observe(&Request::plain(), START + i * SECOND);
            engine.evaluate(START + i * SECOND);
            assert!(journal.append(&told.changes(&engine)));
        }
    }

    fn good(book: &Book) -> u64 {
        book.pages[0].series[0].counters.good
    }

    #[test]
    fn every_cut_loses_the_tail_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slo.journal");
        written(&path);
        let bytes = std::fs::read(&path).unwrap();
        let (book, whole) = replay(&bytes);
        assert_eq!((good(&book.unwrap()), whole), (10, bytes.len()));
        let mut last = 0;
        for cut in 0..bytes.len() {
            match replay(&bytes[..cut]) {
                (Some(book), whole) => {
                    assert!(whole <= cut && good(&book) >= last);
                    last = good(&book);
                }
                (None, _) => assert_eq!(last, 0),
            }
        }
        assert_eq!(last, 9);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            if let (Some(book), whole) = replay(&damaged) {
                assert!(whole <= at && good(&book) < 10, "{at}");
            }
        }
    }

    #[test]
    fn damage_is_said_and_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slo.journal");
        written(&path);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let (_, found) = Journal::open(&path).unwrap();
        assert_eq!(good(&found.book.unwrap()), 9);
        assert!(found.damage.unwrap().contains("torn or damaged"));
        std::fs::write(&path, b"something else").unwrap();
        let (_, found) = Journal::open(&path).unwrap();
        assert!(found.book.is_none());
        assert!(found.damage.unwrap().contains("put aside"));
        assert_eq!(std::fs::read(dir.path().join("slo.journal.damaged")).unwrap(), b"something else");
    }

    #[test]
    fn two_processes_do_not_write_one_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slo.journal");
        let first = Journal::open(&path).unwrap();
        assert!(matches!(Journal::open(&path), Err(JournalError::Locked { .. })));
        drop(first);
        Journal::open(&path).unwrap();
    }

    #[test]
    fn a_folder_that_goes_away_is_said_and_the_next_success_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("slo.journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        std::fs::rename(&folder, dir.path().join("gone")).unwrap();
        assert!(!journal.snapshot(&encode(&engine().book())));
        assert!(journal.trouble().unwrap().contains("slo.journal"));
        assert!(!journal.append(&[]) && journal.wants_snapshot());
        std::fs::create_dir(&folder).unwrap();
        assert!(journal.snapshot(&encode(&engine().book())));
        assert_eq!(journal.trouble(), None);
        assert!(replay(&std::fs::read(&path).unwrap()).0.is_some());
    }

    #[test]
    fn it_is_made_anew_before_it_grows_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slo.journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let engine = engine();
        journal.snapshot(&encode(&engine.book()));
        let changes = Told::all(&engine).changes(&engine);
        let mut appended = 0;
        while !journal.wants_snapshot() {
            journal.append(&changes);
            appended += 1;
        }
        assert!(std::fs::metadata(&path).unwrap().len() <= MIN_CHANGES + (1 << 17), "{appended}");
        journal.snapshot(&encode(&engine.book()));
        assert!(std::fs::metadata(&path).unwrap().len() < 1 << 17);
    }
}
