//! Plain data of all series at an instant: the only thing that views read, and what exporters read of the agent itself.

use crate::inference::{Operation, Outcome, Reason, Vantage};
use crate::name::Name;
use crate::stats::Histogram;
use crate::stream::Timestamp;

/// What tells one series from another.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SeriesKey {
    /// From whose side: the two views of one inference never fall into one series.
    pub vantage: Vantage,
    /// Who serves.
    pub provider: &'static str,
    /// The model: as answered, else as asked for; `None` when neither is known.
    pub model: Option<Name>,
    /// What was asked for.
    pub operation: Operation,
    /// Whether this is where series beyond the bound are put together.
    pub overflow: bool,
}

/// One series.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Whose.
    pub key: SeriesKey,
    /// Finished inferences by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// Streams without a first token by reason, in the order of [`Reason::ALL`].
    pub no_first_token: [u64; Reason::ALL.len()],
    /// Time to first token, seconds.
    pub ttft: Histogram,
    /// Gaps between arrivals, seconds.
    pub inter_chunk: Histogram,
    /// Time per output token, seconds.
    pub tpot: Histogram,
    /// Longest stall of each stream, seconds.
    pub max_stall: Histogram,
    /// Duration, seconds.
    pub duration: Histogram,
    /// Output tokens by the provider's count.
    pub output_tokens: u64,
    /// Events with generated output.
    pub generated: u64,
}

impl Series {
    /// An empty series.
    pub fn new(key: SeriesKey) -> Self {
        Self {
            key,
            outcomes: Default::default(),
            no_first_token: Default::default(),
            ttft: Histogram::default(),
            inter_chunk: Histogram::default(),
            tpot: Histogram::default(),
            max_stall: Histogram::default(),
            duration: Histogram::default(),
            output_tokens: 0,
            generated: 0,
        }
    }

    /// Finished inferences.
    pub fn requests(&self) -> u64 {
        self.outcomes.iter().sum()
    }
}

/// The state of everything at an instant.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Snapshot {
    /// When.
    pub at: Timestamp,
    /// The series, sorted by key.
    pub series: Vec<Series>,
    /// Inferences that are running.
    pub in_flight: u64,
    /// Connections that are watched.
    pub connections: u64,
    /// The agent's own counters, cumulative since its start: (area, name, count), e.g. `("anomaly", "bad_json", 3)`,
    /// `("gap", "ring_full", 1)`, `("drop", "ring_full", 12)`.
    pub counters: Vec<Counter>,
}

/// One cumulative counter of the agent itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    /// What it belongs to.
    pub area: Area,
    /// What is counted.
    pub name: &'static str,
    /// How often since the start.
    pub count: u64,
}

/// What a counter of the agent belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Area {
    /// Things that a tap read: packets, bytes, records, connections.
    Capture,
    /// Records that a tap's kernel side could not deliver, by reason.
    Drop,
    /// Bytes in them, where their number is known, by reason.
    DropBytes,
    /// Capture gaps by reason.
    Gap,
    /// Surprises of the wire.
    Anomaly,
    /// Attach attempts by result.
    Attach,
    /// Exchanges and inferences.
    Exchange,
}

impl Area {
    /// The area's name in statistics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Drop => "drop",
            Self::DropBytes => "drop_bytes",
            Self::Gap => "gap",
            Self::Anomaly => "anomaly",
            Self::Attach => "attach",
            Self::Exchange => "exchange",
        }
    }
}
