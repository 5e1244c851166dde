//! Views read [`Snapshot`](tokengauge_core::stats::Snapshot)s, nothing else.

pub mod table;
