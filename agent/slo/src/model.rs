//! What an SLO is once its files are read, checked and resolved: the common ground of the readers (`spec`), the engine, the
//! rule generator and `explain`. Words are those of OpenSLO v1 and of the SRE workbook.

mod alerting;

use std::collections::BTreeMap;
use std::fmt;

use regex::Regex;

pub use alerting::{AlertRow, Alerting, Severity};

/// One service level objective of a service: an indicator, a window, and one target or several.
#[derive(Clone, Debug)]
pub struct Slo {
    /// `metadata.name`: an RFC 1123 label, unique among the loaded files.
    pub name: String,
    /// `metadata.displayName`.
    pub display_name: Option<String>,
    /// `spec.description`.
    pub description: Option<String>,
    /// The service that it belongs to: `spec.service`.
    pub service: String,
    /// `metadata.labels`, for the rules' labels.
    pub labels: BTreeMap<String, String>,
    /// Over which time the budget is spent.
    pub window: Window,
    /// How requests become a level.
    pub budgeting: Budgeting,
    /// At least one. Names are unique.
    pub objectives: Vec<Objective>,
    /// Whether the objectives are parts of one composite SLO (per-objective indicators and weights).
    pub composite: bool,
    /// One budget for each value of these dimensions.
    pub group_by: Option<GroupBy>,
    /// When to page and when to open a ticket.
    pub alerting: Alerting,
    /// Where it was defined.
    pub source: Source,
}

/// Where something stands in a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Source {
    /// The file, as it was named.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
}

/// One target.
#[derive(Clone, Debug)]
pub struct Objective {
    /// `displayName`, else the target in words (`99.9%`), made unique.
    pub name: String,
    /// The share of valid events that must be good: 0 ≤ target < 1.
    pub target: f64,
    /// Which requests, and what is good about them.
    pub sli: Sli,
    /// Weight in a composite; 1 by default.
    pub weight: f64,
    /// The share of good events that makes a slice good, with [`Budgeting::Timeslices`].
    pub time_slice_target: Option<f64>,
    /// Length of a slice in seconds, with the two slice methods.
    pub time_slice_window_s: Option<u64>,
}

/// `budgetingMethod`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budgeting {
    /// Good events over valid events.
    Occurrences,
    /// Good slices over all slices; a slice is good when its ratio reaches the objective's `timeSliceTarget`.
    Timeslices,
    /// Mean of the slices' ratios.
    RatioTimeslices,
}

/// `timeWindow`.
#[derive(Clone, PartialEq, Debug)]
pub enum Window {
    /// The last so many seconds.
    Rolling {
        /// Length in seconds.
        seconds: u64,
    },
    /// Periods that begin at the calendar's bounds.
    Calendar {
        /// How many units a period lasts: 1 in `1M`.
        count: u32,
        /// The unit.
        unit: CalendarUnit,
        /// When the first period began: local civil time `YYYY-MM-DD hh:mm:ss`.
        start: String,
        /// IANA name of the time zone.
        time_zone: String,
    },
}

impl Window {
    /// Its length in seconds; of a calendar window the nominal one (a month is 30 days, a quarter 90, a year 365).
    pub fn nominal_s(&self) -> u64 {
        match self {
            Self::Rolling { seconds } => *seconds,
            Self::Calendar { count, unit, .. } => {
                let unit = match unit {
                    CalendarUnit::Minute => 60,
                    CalendarUnit::Hour => 3600,
                    CalendarUnit::Day => 86_400,
                    CalendarUnit::Week => 604_800,
                    CalendarUnit::Month => 2_592_000,
                    CalendarUnit::Quarter => 7_776_000,
                    CalendarUnit::Year => 31_536_000,
                };
                u64::from(*count) * unit
            }
        }
    }
}

/// The units of a calendar window. Months, quarters and years have the calendar's lengths; days and weeks are civil ones (23 to 25
/// hours at a change of clocks).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CalendarUnit {
    /// `m`
    Minute,
    /// `h`
    Hour,
    /// `d`
    Day,
    /// `w`
    Week,
    /// `M`
    Month,
    /// `Q`
    Quarter,
    /// `Y`
    Year,
}

/// Which requests count, and what makes them good.
#[derive(Clone, Debug)]
pub struct Sli {
    /// Which requests it looks at.
    pub selector: Selector,
    /// What is asked of them.
    pub kind: SliKind,
    /// How outcomes count that are neither plain success nor plain failure.
    pub policy: Policy,
    /// What tokens cost, for [`Measure::Cost`].
    pub prices: Vec<Price>,
}

/// What is asked of a request.
#[derive(Clone, PartialEq, Debug)]
pub enum SliKind {
    /// It was answered: no limit on any time.
    Availability,
    /// One limit holds (`ttft`, `tpot` …).
    Limit(Clause),
    /// It ended well and every limit holds on the same request (`formulas.md` §3.4).
    Goodput(Vec<Clause>),
}

/// `measure op limit`.
#[derive(Clone, PartialEq, Debug)]
pub struct Clause {
    /// What is measured.
    pub measure: Measure,
    /// How it is compared: good when `measure op limit`.
    pub op: Op,
    /// With what.
    pub limit: Limit,
}

/// What a clause measures, on one request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Measure {
    /// Time to first token, seconds.
    Ttft,
    /// Time to first answer, seconds.
    Ttfa,
    /// Time per output token, seconds.
    Tpot,
    /// The worst gap between consecutive chunks of one choice, seconds.
    InterChunkMax,
    /// The longest silence between arrivals, seconds.
    MaxStall,
    /// Duration, seconds.
    Duration,
    /// Output tokens per second as one user sees them (1/TPOT).
    OutputSpeed,
    /// Cost of the request in the currency of the prices.
    Cost,
}

/// `op`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `lte`
    Le,
    /// `lt`
    Lt,
    /// `gte`
    Ge,
    /// `gt`
    Gt,
}

impl Op {
    /// Whether `value op limit`.
    pub fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Le => value <= limit,
            Self::Lt => value < limit,
            Self::Ge => value >= limit,
            Self::Gt => value > limit,
        }
    }
}

/// What a measure is compared with.
#[derive(Clone, PartialEq, Debug)]
pub enum Limit {
    /// The same for each request.
    Fixed(f64),
    /// Grows with the prompt: `base + per_input_token × input tokens`.
    PerInputToken {
        /// For an empty prompt.
        base: f64,
        /// For each input token more.
        per_token: f64,
    },
    /// By the prompt's length: the limit of the first bucket whose bound (inclusive, in input tokens) is not below it. The last
    /// bound may be `u64::MAX`; a longer prompt than every bound is not applicable.
    ByInputTokens(Vec<(u64, f64)>),
}

/// How outcomes count that are neither plain success nor plain failure (`formulas.md` §3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Status 429.
    pub rate_limited: Verdict,
    /// Other statuses from 400 to 499.
    pub client_error: Verdict,
    /// A finish reason that says refusal or content filter.
    pub refused: Verdict,
    /// The client went first.
    pub cancelled: Verdict,
    /// Properly finished with nothing generated.
    pub no_output: Verdict,
}

impl Default for Policy {
    /// 429 burns budget, what the caller did wrong does not (newchat PR 140, `slo.md` §8); a refusal is an answer; a client that leaves
    /// is a class of its own.
    fn default() -> Self {
        Self {
            rate_limited: Verdict::Bad,
            client_error: Verdict::NotApplicable,
            refused: Verdict::Good,
            cancelled: Verdict::NotApplicable,
            no_output: Verdict::Good,
        }
    }
}

/// What a request is to one objective. Decided once, when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Valid and good.
    Good,
    /// Valid and bad.
    Bad,
    /// It cannot be judged by this indicator (no stream, one token); leaves the valid events and is counted.
    NotApplicable,
    /// Capture could not see enough; excluded, counted, lowers coverage.
    Excluded,
}

/// What tokens of a model cost.
#[derive(Clone, Debug)]
pub struct Price {
    /// The models that it holds for; the first that matches is taken.
    pub model: Pattern,
    /// Per million input tokens that were not read from a cache.
    pub input: f64,
    /// Per million input tokens read from a cache; as `input` when absent.
    pub cached_input: Option<f64>,
    /// Per million output tokens.
    pub output: f64,
}

/// Which requests an indicator looks at: all conditions hold.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    /// Each dimension at most once; the value must match one of the patterns.
    pub matches: Vec<(Dimension, Vec<Pattern>)>,
    /// Only streamed, or only not streamed.
    pub stream: Option<bool>,
    /// Input tokens at least this many.
    pub input_tokens_min: Option<u64>,
    /// Input tokens at most this many.
    pub input_tokens_max: Option<u64>,
}

/// What tells requests apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Dimension {
    /// `gen_ai.provider.name`
    Provider,
    /// The model: as answered, else as asked for.
    Model,
    /// `gen_ai.operation.name`
    Operation,
    /// Kubernetes namespace of the observed end: the client's where it was seen at a client, the server's where it was seen at a server.
    Namespace,
    /// Kubernetes workload of the observed end, or its process's name.
    Workload,
    /// Keyed hash of the tenant.
    Tenant,
    /// The host that the request names, else the server's address.
    Server,
    /// `client`, `server` or `unknown`.
    Vantage,
    /// `true` or `false`.
    Stream,
    /// The bucket of input tokens: `0-400`, `401-1000`, `1001-4000`, `4001-16000`, `16001-64000`, `64001+`, `unknown`.
    InputTokens,
}

impl Dimension {
    /// Every dimension.
    pub const ALL: [Self; 10] = [
        Self::Provider,
        Self::Model,
        Self::Operation,
        Self::Namespace,
        Self::Workload,
        Self::Tenant,
        Self::Server,
        Self::Vantage,
        Self::Stream,
        Self::InputTokens,
    ];

    /// The key in selectors and in `groupBy`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Model => "model",
            Self::Operation => "operation",
            Self::Namespace => "namespace",
            Self::Workload => "workload",
            Self::Tenant => "tenant",
            Self::Server => "server",
            Self::Vantage => "vantage",
            Self::Stream => "stream",
            Self::InputTokens => "inputTokens",
        }
    }

    /// The end of the attribute and of the Prometheus label of a group: words with underscores, as both want it.
    pub const fn attribute(self) -> &'static str {
        match self {
            Self::InputTokens => "input_tokens",
            other => other.as_str(),
        }
    }
}

/// A value's pattern.
#[derive(Clone)]
pub enum Pattern {
    /// Equal.
    Exact(String),
    /// `gpt-4o*`: `*` is any text, `?` any one character. Kept compiled beside its source.
    Glob(String, Regex),
    /// `/^gpt-(4o|5)/`: the regex crate's syntax, so matching takes linear time.
    Regex(Regex),
    /// Anything but this.
    Not(Box<Pattern>),
}

impl Pattern {
    /// Whether `value` matches.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => text == value,
            Self::Glob(_, regex) | Self::Regex(regex) => regex.is_match(value),
            Self::Not(inner) => !inner.matches(value),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) | Self::Glob(text, _) => f.write_str(text),
            Self::Regex(regex) => write!(f, "/{regex}/"),
            Self::Not(inner) => write!(f, "!{inner}"),
        }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// One budget for each value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupBy {
    /// By which dimensions.
    pub by: Vec<Dimension>,
    /// At most so many groups; what comes later is in one group of its own, the overflow.
    pub limit: usize,
}
