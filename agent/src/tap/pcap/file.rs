//! A capture file, or standard input, as a tap.
//!
//! The file is read into one reused buffer and its records are parsed where they lie. A buffer, not a memory map: a map needs `unsafe`
//! and kills the process when the file shrinks, and a pipe cannot be mapped.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokengauge_core::stream::TapKind;
use tokengauge_core::tcp::Limits;

use crate::tap::{Sink, StopFlag, Tap, TapError};

use super::format::{Bad, Format, Step};
use super::{Driver, PcapStats};

/// Large enough that system calls don't matter, small enough to stay in a core's cache.
const BUFFER: usize = 1 << 20;

/// Reads one capture file.
pub struct FileTap {
    path: String,
    input: Box<dyn Read + Send>,
    size: Option<u64>,
    limits: Limits,
    stats: PcapStats,
    consumed: Arc<AtomicU64>,
}

impl FileTap {
    /// Opens a pcap or pcapng file; `-` is standard input. Its content is looked at by [`Tap::run`].
    ///
    /// # Errors
    /// [`TapError::Io`] when it cannot be opened.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, TapError> {
        if path.as_os_str() == "-" {
            return Ok(Self::from_reader("standard input", Box::new(std::io::stdin()), limits));
        }
        let name = path.display().to_string();
        let io = |source| TapError::Io { path: name.clone(), source };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let size = metadata.is_file().then_some(metadata.len());
        Ok(Self { size, ..Self::from_reader(&name, Box::new(file), limits) })
    }

    /// Reads a capture from anywhere; `name` stands for it in messages.
    pub fn from_reader(name: &str, input: Box<dyn Read + Send>, limits: Limits) -> Self {
        let (stats, consumed) = (PcapStats::default(), Arc::default());
        Self { path: name.into(), input, size: None, limits, stats, consumed }
    }

    /// The size of the file in bytes, where it has one: what [`FileTap::progress`] will reach.
    pub const fn size(&self) -> Option<u64> {
        self.size
    }

    /// Bytes consumed so far, for a progress bar.
    pub fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.consumed)
    }

    /// Counters that go on counting while the tap runs.
    pub fn stats(&self) -> PcapStats {
        self.stats.clone()
    }
}

impl Tap for FileTap {
    fn kind(&self) -> TapKind {
        TapKind::Pcap
    }

    fn run(mut self: Box<Self>, sink: &mut dyn Sink, stop: &StopFlag) -> Result<(), TapError> {
        let mut driver = Driver::new(self.limits, sink, self.stats.clone());
        let result = self.read(&mut driver, stop);
        driver.finish();
        result
    }
}

impl FileTap {
    fn read(&mut self, driver: &mut Driver<'_>, stop: &StopFlag) -> Result<(), TapError> {
        let mut format = Format::default();
        let mut buffer = vec![0; BUFFER];
        // buffer[begin..end] was read and not consumed; `offset` is where `begin` lies in the file
        let (mut begin, mut end, mut offset) = (0, 0, 0u64);
        let mut skip = 0;
        while !stop.is_set() {
            buffer.copy_within(begin..end, 0);
            (begin, end) = (0, end - begin);
            let read = match self.input.read(&mut buffer[end..]) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => return Err(TapError::Io { path: self.path.clone(), source }),
            };
            end += read;
            let mut needed = 1;
            while begin < end {
                if skip > 0 {
                    let now = skip.min(end - begin);
                    (skip, begin, offset) = (skip - now, begin + now, offset + now as u64);
                    continue;
                }
                let bytes = &buffer[begin..end];
                match format.step(bytes).map_err(|bad| self.bad(offset, bad))? {
                    Step::Frame { used, frame, at, link, original } => {
                        driver.frame(at, link, &bytes[frame], original);
                        begin += used;
                        offset += used as u64;
                    }
                    Step::Skip(bytes) => skip = bytes,
                    Step::Need(bytes) => {
                        needed = bytes;
                        break;
                    }
                }
            }
            self.consumed.store(offset, Ordering::Relaxed);
            if read == 0 {
                let left = end - begin;
                return match (offset, left, skip) {
                    (0, 0, _) => Err(self.bad(0, Bad("the file is empty".into()))),
                    (_, 0, 0) => Ok(()),
                    (_, 0, _) => Err(self.bad(offset, Bad(format!("the file is cut short: {skip} more bytes belong to its last block")))),
                    _ => Err(self.bad(offset, Bad(format!("the file is cut short: {left} bytes are left of a record of at least {needed}")))),
                };
            }
            if needed > buffer.len() {
                buffer.resize(needed, 0);
            }
        }
        Ok(())
    }

    fn bad(&self, offset: u64, Bad(what): Bad) -> TapError {
        TapError::BadCapture { path: self.path.clone(), offset, what }
    }
}
