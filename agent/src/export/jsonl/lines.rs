//! A file of whole lines: what a full disk, a kill, `logrotate` and a second agent may do to it, and what is done about it.
//!
//! Lines wait in memory and are handed over together. Whatever part of them the system takes is cut back to the last whole line, so that a file never
//! holds half a record behind which another one stands. A process that is killed within a write may leave a torn line at the end: whoever opens the file next
//! takes it out.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What may wait while nothing can be written. Beyond it new lines are dropped and counted.
pub const MAX_WAITING: usize = 8 << 20;

/// How far a torn line is looked for from the end of a file.
const MAX_TAIL: u64 = 4 << 20;

/// A file that takes whole lines.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    /// `None` while it could not be opened again.
    file: Option<File>,
    waiting: Vec<u8>,
    /// Bytes of a torn line that could not be taken out yet.
    torn: bool,
}

/// What came of a line that was handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It waits to be written.
    Waits,
    /// There was no room: nothing could be written for too long.
    Dropped,
}

impl Lines {
    /// Opens the file for appending, alone. The second value is how many bytes of a torn line were at its end and have been taken out.
    ///
    /// # Errors
    /// When it cannot be opened, or another process writes to it.
    pub fn open(path: &Path) -> io::Result<(Self, u64)> {
        let mut lines = Self { path: path.to_owned(), file: None, waiting: Vec::new(), torn: false };
        let cut = lines.reopen()?;
        Ok((lines, cut))
    }

    /// Whether `path` is something that lines can be kept in: a regular file, or nothing yet. Pipes and terminals are not.
    pub fn suits(path: &Path) -> bool {
        std::fs::metadata(path).map_or(true, |m| m.is_file())
    }

    /// A line, with its end. It waits for [`Lines::flush`].
    pub fn push(&mut self, line: &[u8]) -> Taken {
        if self.waiting.len() + line.len() > MAX_WAITING {
            return Taken::Dropped;
        }
        self.waiting.extend_from_slice(line);
        Taken::Waits
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Lines that wait.
    pub fn waiting_lines(&self) -> u64 {
        memchr::memchr_iter(b'\n', &self.waiting).count() as u64
    }

    /// Bytes in the file.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn file_len(&self) -> io::Result<u64> {
        self.file.as_ref().map_or_else(|| Err(closed()), |f| Ok(f.metadata()?.len()))
    }

    /// Hands over what waits. What could not be written goes on waiting.
    ///
    /// # Errors
    /// With what the system said. The file ends with a whole line all the same, if the system allows that.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.reopen()?;
        }
        let Some(file) = self.file.as_mut() else { return Err(closed()) };
        if self.torn {
            mend(file)?;
            self.torn = false;
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        // Asked for each time: others may cut the file (`copytruncate`).
        let before = file.metadata()?.len();
        let (written, error) = write(file, &self.waiting);
        if error.is_none() {
            self.waiting.clear();
            // What a long outage let grow is given back.
            self.waiting.shrink_to(1 << 20);
            return Ok(());
        }
        let whole = memchr::memrchr(b'\n', self.waiting.get(..written).unwrap_or_default()).map_or(0, |at| at + 1);
        if whole < written && file.set_len(before + whole as u64).is_err() {
            self.torn = true;
        }
        self.waiting.drain(..whole);
        error.map_or(Ok(()), Err)
    }

    /// Opens the file anew, after it was moved away. What waits goes to the new one. The value is how many bytes of a torn line were taken out.
    ///
    /// # Errors
    /// When it cannot be opened; then each [`Lines::flush`] tries again.
    pub fn reopen(&mut self) -> io::Result<u64> {
        self.file = None;
        let open = |read| OpenOptions::new().read(read).append(true).create(true).open(&self.path);
        // A file that may be written and not read is taken as it is.
        let (mut file, readable) = match open(true) {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => (open(false)?, false),
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process writes to it")),
            // A file system without locks: nobody can be kept away.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let cut = if readable { mend(&mut file)? } else { 0 };
        (self.file, self.torn) = (Some(file), false);
        Ok(cut)
    }

    /// Whether another file, or none, stands where ours was opened.
    pub fn moved(&self) -> bool {
        let Some(Ok(ours)) = self.file.as_ref().map(File::metadata) else { return false };
        std::fs::metadata(&self.path).map_or(true, |there| (there.dev(), there.ino()) != (ours.dev(), ours.ino()))
    }

    /// Moves the file to `name` and begins a new one.
    ///
    /// # Errors
    /// When it cannot be moved (then it goes on as it is), or no new one can be made.
    pub fn rotate(&mut self, name: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, name)?;
        self.reopen().map(drop)
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "it could not be opened again")
}

/// Writes as much as the system takes.
fn write(file: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|r| !r.is_empty()) {
        match file.write(rest) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

/// Takes a torn line from the end of the file. A file without any line end near its end is none of ours: it gets a line end and is left alone otherwise.
fn mend(file: &mut File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let from = len.saturating_sub(MAX_TAIL);
    let mut tail = [b'\n'; 1];
    if len > 0 {
        file.seek(SeekFrom::Start(len - 1))?;
        file.read_exact(&mut tail)?;
    }
    if tail == *b"\n" {
        return Ok(0);
    }
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.take(MAX_TAIL).read_to_end(&mut bytes)?;
    let whole = memchr::memrchr(b'\n', &bytes).map(|at| from + at as u64 + 1);
    match whole {
        Some(whole) => file.set_len(whole).map(|()| len - whole),
        // From the start on: a single line that was torn.
        None if from == 0 && bytes.first() == Some(&b'{') => file.set_len(0).map(|()| len),
        None => file.write_all(b"\n").map(|()| 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_torn_end_is_taken_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        for (found, left, cut) in [
            ("", "", 0),
            ("{}\n", "{}\n", 0),
            ("{}\n{\"a\":", "{}\n", 5),
            ("{\"a\":", "", 5),
            ("some text of somebody", "some text of somebody\n", 0),
        ] {
            std::fs::write(&path, found).unwrap();
            let (mut lines, taken) = Lines::open(&path).unwrap();
            assert_eq!((text(&path).as_str(), taken), (left, cut), "{found}");
            lines.push(b"{\"b\":1}\n");
            lines.flush().unwrap();
            assert_eq!(text(&path), format!("{left}{{\"b\":1}}\n"));
        }
    }

    #[test]
    fn two_agents_do_not_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        let (one, _) = Lines::open(&path).unwrap();
        assert_eq!(Lines::open(&path).unwrap_err().to_string(), "another process writes to it");
        drop(one);
        assert!(Lines::open(&path).is_ok());
    }

    #[test]
    fn a_file_that_was_moved_or_cut() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("x.jsonl"), dir.path().join("x.jsonl.1"));
        let (mut lines, _) = Lines::open(&path).unwrap();
        lines.push(b"1\n");
        lines.flush().unwrap();
        assert!(!lines.moved());
        std::fs::rename(&path, &old).unwrap();
        assert!(lines.moved());
        // Until it is opened again it goes on with the old one.
        lines.push(b"2\n");
        lines.flush().unwrap();
        lines.push(b"3\n");
        lines.reopen().unwrap();
        lines.flush().unwrap();
        assert_eq!((text(&old), text(&path)), ("1\n2\n".to_owned(), "3\n".to_owned()));
        std::fs::write(&path, "").unwrap();
        lines.push(b"4\n");
        lines.flush().unwrap();
        assert_eq!((text(&path), lines.file_len().unwrap()), ("4\n".to_owned(), 2));
        lines.rotate(&dir.path().join("x.jsonl.2")).unwrap();
        assert_eq!((text(&path).as_str(), text(&dir.path().join("x.jsonl.2")).as_str()), ("", "4\n"));
    }

    #[test]
    fn memory_is_bounded_while_nothing_can_be_written() {
        let (file, line) = (File::open("/dev/null").unwrap(), vec![b'x'; 1 << 16]);
        let mut lines = Lines { path: "/nonexistent/x".into(), file: Some(file), waiting: Vec::new(), torn: false };
        let taken = (0..1000).filter(|_| lines.push(&line) == Taken::Waits).count();
        assert_eq!(taken, MAX_WAITING / line.len());
    }

    proptest! {
        /// However much of what waits is taken, the file and what still waits are the lines in order.
        #[test]
        fn nothing_is_lost_or_torn(sizes in proptest::collection::vec(1usize..40, 1..30), full in 0u64..600) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x");
            let (mut lines, _) = Lines::open(&path).unwrap();
            let all: Vec<u8> = sizes.iter().enumerate().flat_map(|(n, s)| format!("{{{n}{}\n", "x".repeat(*s)).into_bytes()).collect();
            lines.push(&all);
            // What a full disk does: part of a write, then no more.
            let whole = {
                let part = all.get(..full as usize).unwrap_or(&all);
                let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                file.write_all(part).unwrap();
                memchr::memrchr(b'\n', part).map_or(0, |at| at + 1)
            };
            lines.torn = true;
            lines.waiting.drain(..whole);
            lines.flush().unwrap();
            prop_assert_eq!(std::fs::read(&path).unwrap(), all);
        }
    }
}
