//! Where finished inferences and snapshots go. An exporter knows no timeline (invariant 3) and owns its wire structs
//! (invariant 8): core types are not `Serialize`.

use std::time::Duration;

use tokengauge_core::inference::Inference;
use tokengauge_core::stats::Snapshot;

use crate::join::Found;

pub mod jsonl;
pub mod metrics;
pub mod observe;
pub mod otlp;
pub mod prometheus;
pub mod record;
pub mod wire;

/// A destination. All exporters live on the one export thread; none is ever called from a tap's thread.
pub trait Exporter: Send {
    /// Its name in messages and counters.
    fn name(&self) -> &'static str;

    /// One finished inference. What cannot be delivered is counted by the exporter and reported by [`Exporter::shutdown`].
    fn inference(&mut self, inference: &Inference);

    /// What was found with an inference that [`Exporter::inference`] had before: once for each, when nothing more is waited for.
    fn settled(&mut self, inference: &Inference, found: &Found<'_>) {
        let _ = (inference, found);
    }

    /// The agent's own figures, about once a second; the snapshot's series are empty.
    fn snapshot(&mut self, snapshot: &Snapshot);

    /// Delivers what is buffered.
    ///
    /// # Errors
    /// When that was not possible within the time given.
    fn flush(&mut self, within: Duration) -> Result<(), ExportError>;

    /// Delivers what is buffered and ends.
    ///
    /// # Errors
    /// When something could not be delivered within the time given.
    fn shutdown(&mut self, within: Duration) -> Result<(), ExportError>;
}

/// Why an export failed. The message names the file or the endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A file could not be written.
    #[error("{path}: {source}")]
    Io {
        /// The file, `-` for standard output.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The OTLP exporter could not be built from its configuration.
    #[error("otlp: {what}")]
    Config {
        /// What is wrong.
        what: String,
    },
    /// The OTLP receiver did not take everything in time.
    #[error("otlp: {what}")]
    Undelivered {
        /// What is left, and the last error.
        what: String,
    },
}
