//! The files of secrets that `replay --keylog` is given. They are read whole before any capture.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokengauge_core::stats::snapshot::{Area, Counter};
use tokengauge_core::tls::{BadLine, Counters, KeyLog};

use crate::driver::Probe;

/// No key log is believed to be larger.
const LARGEST: u64 = 256 << 20;

/// What is wrong with a key log. Whatever can be read of it is used all the same.
#[derive(Debug, thiserror::Error)]
pub enum KeyLogError {
    /// It cannot be opened or read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// It has a line that cannot be read, and perhaps more of them.
    #[error("{path}: {source}{}", more(*.bad))]
    BadLine {
        /// The file.
        path: String,
        /// The first such line.
        source: BadLine,
        /// How many there are.
        bad: u64,
    },
    /// It has no secret that decrypts anything. An empty log is not wrong, but nobody means it.
    #[error("{path}: no secret of a TLS connection in it")]
    NoSecret {
        /// The file.
        path: String,
    },
    /// It is larger than any key log.
    #[error("{path}: larger than {} MiB: not read", LARGEST >> 20)]
    TooLarge {
        /// The file.
        path: String,
    },
}

fn more(bad: u64) -> String {
    if bad > 1 { format!("; {} lines are bad", bad) } else { String::new() }
}

impl KeyLogError {
    /// Whether something could not be read.
    pub const fn is_failure(&self) -> bool {
        !matches!(self, Self::NoSecret { .. })
    }
}

/// Reads all the files: their secrets together (`None` without a file), and what was wrong with them.
pub fn read(paths: &[PathBuf]) -> (Option<Arc<KeyLog>>, Vec<KeyLogError>) {
    let (mut log, mut errors) = (KeyLog::new(), Vec::new());
    for path in paths {
        errors.extend(read_one(path, &mut log).err());
    }
    ((!paths.is_empty()).then(|| Arc::new(log)), errors)
}

fn read_one(path: &Path, log: &mut KeyLog) -> Result<(), KeyLogError> {
    let name = || path.display().to_string();
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut text));
    read.map_err(|source| KeyLogError::Io { path: name(), source })?;
    if text.len() as u64 > LARGEST {
        return Err(KeyLogError::TooLarge { path: name() });
    }
    let before = *log.counts();
    let result = log.read(&text);
    let now = log.counts();
    result.map_err(|source| KeyLogError::BadLine { path: name(), source, bad: now.bad - before.bad })?;
    if now.secrets == before.secrets { Err(KeyLogError::NoSecret { path: name() }) } else { Ok(()) }
}

/// What was decrypted, for the closing statistics.
pub fn probe(of: Counters) -> Probe {
    let counter = |name, count| Counter { area: Area::Capture, name, count };
    Box::new(move || {
        vec![
            counter("decrypted_connections", of.connections),
            counter("decrypted_records", of.records),
            counter("decrypted_bytes", of.bytes),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_together_and_errors_name_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let line = |n: u8| format!("CLIENT_RANDOM {} {}\n", format!("{n:02x}").repeat(32), "ab".repeat(48));
        let paths = [
            path("one", &line(1)),
            path("two", &format!("{}nonsense here\nmore\n{}", line(2), line(3))),
            path("empty", "# nothing\n"),
            dir.path().join("missing"),
        ];
        let (log, errors) = read(&paths);
        assert_eq!(log.unwrap().len(), 3);
        let text: Vec<String> = errors.iter().map(|e| e.to_string().replace(&format!("{}/", dir.path().display()), "")).collect();
        assert_eq!(
            text,
            [
                "two: line 2: not a line of a key log: it begins with no label; 2 lines are bad",
                "empty: no secret of a TLS connection in it",
                "missing: No such file or directory (os error 2)"
            ]
        );
        assert_eq!(errors.iter().map(KeyLogError::is_failure).collect::<Vec<_>>(), [true, false, true]);
        assert!(read(&[]).0.is_none());
    }
}
