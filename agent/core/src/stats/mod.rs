//! From inferences to figures over many of them: histograms, the store of all series that are exported, and the snapshot that views read.

pub mod aggregator;
pub mod distribution;
pub mod histogram;
pub mod sets;
pub mod snapshot;
pub mod store;
pub mod top;

pub use aggregator::Aggregator;
pub use histogram::Histogram;
pub use snapshot::{Series, SeriesKey, Snapshot};
pub use store::Store;
