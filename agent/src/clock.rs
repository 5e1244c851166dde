//! The agent's own clocks: deadlines, ages, summaries, the instants of exported points. No inference is measured with them: events are
//! stamped by the taps (invariant 1).

use std::time::{Instant, SystemTime};

use tokengauge_core::stream::Timestamp;

/// Now, for lengths of time.
#[expect(clippy::disallowed_methods, reason = "the agent's own time; no inference is measured with it")]
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock; before 1970 it is 1970.
#[expect(clippy::disallowed_methods, reason = "the agent's own time; no inference is measured with it")]
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
