//! From inferences to figures over many of them: histograms, series, and the snapshot that views and exporters read.

pub mod aggregator;
pub mod histogram;
pub mod snapshot;

pub use aggregator::Aggregator;
pub use histogram::Histogram;
pub use snapshot::{Series, SeriesKey, Snapshot};
