//! JSON lines: one record per finished inference, as [`super::record`] lays it out. Files are written by [`file`], everything else by [`JsonLines`].

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use tokengauge_core::inference::Inference;
use tokengauge_core::stats::Snapshot;

use super::record::Writer;
use super::{ExportError, Exporter};

pub mod file;
pub mod lines;
pub mod rotation;

/// Writes records to standard output, a pipe or a terminal.
///
/// Lines are buffered and flushed with each snapshot, so that a reader sees them within about a second and a busy agent does
/// not make a system call for each.
pub struct JsonLines<W: Write> {
    out: BufWriter<W>,
    path: String,
    writer: Writer,
    error: Option<io::Error>,
}

impl JsonLines<Box<dyn Write + Send>> {
    /// Writes to what stands at `path` and is no regular file: a pipe, a terminal; `-` is standard output.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        if path == Path::new("-") {
            return Ok(Self::new(Box::new(io::stdout()), "-"));
        }
        let name = path.display().to_string();
        match OpenOptions::new().append(true).open(path) {
            Ok(file) => Ok(Self::new(Box::new(file), &name)),
            Err(source) => Err(ExportError::Io { path: name, source }),
        }
    }
}

impl<W: Write> JsonLines<W> {
    /// Writes to `out`; `path` names it in messages.
    pub fn new(out: W, path: &str) -> Self {
        Self { out: BufWriter::with_capacity(1 << 20, out), path: path.to_owned(), writer: Writer::default(), error: None }
    }

    /// Whether the reader at the other end went away: nothing more can be written, and nobody wants it.
    pub fn is_closed(&self) -> bool {
        self.error.as_ref().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Writes one record that is a line already.
    pub fn write_line(&mut self, line: &[u8]) {
        if self.error.is_none() {
            self.error = self.out.write_all(line).err();
        }
    }

    /// Writes one record.
    pub fn write(&mut self, inference: &Inference) {
        if self.error.is_none() {
            self.error = self.out.write_all(self.writer.line(inference)).err();
        }
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    /// When that fails now, or failed before. A reader that closed its end is no error: it has what it wanted.
    pub fn finish(&mut self) -> Result<(), ExportError> {
        if self.error.is_none() {
            self.error = self.out.flush().err();
        }
        match &self.error {
            Some(e) if !self.is_closed() => {
                Err(ExportError::Io { path: self.path.clone(), source: io::Error::new(e.kind(), e.to_string()) })
            }
            _ => Ok(()),
        }
    }
}

impl<W: Write + Send> Exporter for JsonLines<W> {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn inference(&mut self, inference: &Inference) {
        self.write(inference);
    }

    fn snapshot(&mut self, _snapshot: &Snapshot) {
        if self.error.is_none() {
            self.error = self.out.flush().err();
        }
    }

    fn flush(&mut self, _within: Duration) -> Result<(), ExportError> {
        self.finish()
    }

    fn shutdown(&mut self, within: Duration) -> Result<(), ExportError> {
        self.flush(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn one_line_each_and_only_after_a_flush() {
        let mut bytes = Vec::new();
        let mut lines = JsonLines::new(&mut bytes, "-");
        lines.inference(&testing::inference());
        lines.inference(&testing::refused());
        lines.shutdown(Duration::ZERO).unwrap();
        drop(lines);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()));
    }

    #[test]
    fn a_message_names_the_file() {
        let Err(error) = JsonLines::open(Path::new("/nonexistent/x.jsonl")) else { panic!("opened") };
        assert!(error.to_string().starts_with("/nonexistent/x.jsonl: "), "{error}");
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut lines = JsonLines::new(Closed, "-");
        lines.inference(&testing::inference());
        assert!(lines.flush(Duration::ZERO).is_ok());
        assert!(lines.is_closed());
    }
}
