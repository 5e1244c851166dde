//! The finished record of one inference: plain data, and no field that could hold text (invariant 6).
//!
//! Definitions of every figure: `formulas.md` §3, repeated at the fields. Exporters own their wire structs (invariant 8).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::gaps::Gaps;
pub use crate::gaps::{Hole, MAX_HOLES};
use crate::http::event::EndedBy;
use crate::http::head::Limits;
use crate::name::Name;
use crate::stream::{Process, TapKind, Timestamp};
use crate::tenant::Tenant;
pub use crate::trace::{Trace, TraceParent};
use crate::workload::Workload;

mod told;

/// One request to a model and what became of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Inference {
    /// How it was seen.
    pub tap: TapKind,
    /// From whose side it was seen.
    pub vantage: Vantage,
    /// The wire format, e.g. `openai.chat_completions`.
    pub api: &'static str,
    /// Who serves it: a value of `gen_ai.provider.name`; `None` where the header fields that may say so were not seen.
    pub provider: Option<&'static str>,
    /// What was asked for: a value of `gen_ai.operation.name`.
    pub operation: Operation,
    /// Whether the answer came (or was to come) as a stream; `None` where what tells it was not seen.
    pub stream: Option<bool>,
    /// The transport protocol, e.g. `http/1.1`.
    pub protocol: &'static str,
    /// Which exchange of its connection it is; on HTTP/2 its stream.
    pub exchange: u64,
    /// The client's end of the connection, where known.
    pub client: Option<SocketAddr>,
    /// The server's end of the connection, where known.
    pub server: Option<SocketAddr>,
    /// The host that the request names, without its port.
    pub host: Option<Name>,
    /// The tapped process, where there is one.
    pub process: Option<Process>,
    /// Who the client is in Kubernetes; `None` where that is not known. Filled in behind the pipeline, shared by all records of one pod.
    pub client_workload: Option<Arc<Workload>>,
    /// Who the server is.
    pub server_workload: Option<Arc<Workload>>,
    /// What was asked.
    pub request: Request,
    /// What was answered.
    pub response: Response,
    /// How it ended.
    pub outcome: Outcome,
    /// What ended it: the first end that the wire shows.
    pub ended_by: EndedBy,
    /// Why it failed; `None` when it did not.
    pub error: Option<Failure>,
    /// Tokens, by the provider's count; `None` when it gave none.
    pub usage: Option<Usage>,
    /// How the answer was cut into pieces.
    pub chunks: Chunks,
    /// When, and how long.
    pub timing: Timing,
    /// Capture gaps inside this exchange; at least one where a gap before it hides whether it was a stream.
    pub gaps: u32,
    /// What the server itself says about its time. Beside our figures, never instead of them.
    pub server_timing: Option<ServerTiming>,
    /// The identity of the span that is exported for it.
    pub trace: Trace,
}

/// From whose side an inference was seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Vantage {
    /// In the client's process or on its host.
    Client,
    /// In the server's process or on its host.
    Server,
    /// Somewhere in between.
    Unknown,
}

impl Vantage {
    /// The record's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Unknown => "unknown",
        }
    }
}

/// What was asked for, in the words of `gen_ai.operation.name`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Operation {
    /// A chat-like completion.
    Chat,
    /// A completion of text.
    TextCompletion,
    /// Embeddings.
    Embeddings,
    /// Content of several kinds (Gemini).
    GenerateContent,
    /// An order of relevance.
    Rerank,
    /// An existing response, sent again: no inference, and none of its figures belongs into a metric.
    FetchResponse,
}

impl Operation {
    /// The value of `gen_ai.operation.name`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::TextCompletion => "text_completion",
            Self::Embeddings => "embeddings",
            Self::GenerateContent => "generate_content",
            Self::Rerank => "rerank",
            Self::FetchResponse => "fetch_response",
        }
    }

    /// Whether a model runs for it. What is only sent again has no usage (semantic conventions) and is in no metric; its record and
    /// its span say by their operation what they are.
    pub const fn is_inference(self) -> bool {
        !matches!(self, Self::FetchResponse)
    }
}

/// What was asked. No prompt, no credential.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Request {
    /// The model's name as asked for.
    pub model: Option<Name>,
    /// Bytes of the body on the wire.
    pub bytes: u64,
    /// `x-request-id` of the request.
    pub id: Option<Name>,
    /// The W3C `traceparent` of the request.
    pub traceparent: Option<TraceParent>,
    /// Who asked; `None` where nothing says so, or nobody wants to know.
    pub tenant: Option<Tenant>,
    /// Upper bound of output tokens asked for.
    pub max_tokens: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus sampling bound.
    pub top_p: Option<f64>,
    /// Number of choices asked for, when it is not 1.
    pub choices: Option<u32>,
}

/// What was answered, without its text.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Response {
    /// The model's name as the server gives it.
    pub model: Option<Name>,
    /// The API's id of the response.
    pub id: Option<Name>,
    /// HTTP status; `None` when no response was seen.
    pub status: Option<u16>,
    /// As the provider spells them, one per choice.
    pub finish_reasons: Vec<Name>,
    /// Bytes of the body on the wire.
    pub bytes: u64,
    /// The content coding; then instants are those of the decompressed flush.
    pub content_encoding: Option<&'static str>,
    /// `x-request-id` of the response: what the server's own logs call the request.
    pub request_id: Option<Name>,
    /// What the response says about the caller's limits.
    pub limits: Limits,
}

/// How an inference ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// As it should.
    Completed,
    /// HTTP error, error inside a 200, or the server closed without terminator.
    Failed,
    /// The client went first.
    Cancelled,
    /// The input or the agent ended first.
    Truncated,
    /// Capture could not see enough to say.
    Lost,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 5] = [Self::Completed, Self::Failed, Self::Cancelled, Self::Truncated, Self::Lost];

    /// The record's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Truncated => "truncated",
            Self::Lost => "lost",
        }
    }
}

/// Why an inference failed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Failure {
    /// The provider's error type or code, else the status, else `connection_reset`, `closed_early`, `timeout`. Never the message.
    pub kind: Name,
    /// Where it failed.
    pub stage: Stage,
}

/// Where an inference failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// By an HTTP status, before any stream.
    Http,
    /// By an error inside a 200.
    Stream,
    /// By the end of the connection.
    Transport,
}

impl Stage {
    /// The record's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Stream => "stream",
            Self::Transport => "transport",
        }
    }
}

/// Tokens by the provider's count. Totals as the semantic conventions want them: input includes cached, output includes
/// reasoning. A count that the provider did not give is `None`, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// All input tokens.
    pub input: Option<u64>,
    /// All output tokens.
    pub output: Option<u64>,
    /// Input tokens read from a cache.
    pub cache_read: Option<u64>,
    /// Input tokens written to a cache.
    pub cache_write: Option<u64>,
    /// Output tokens spent on reasoning.
    pub reasoning: Option<u64>,
}

/// How an answer was cut into pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chunks {
    /// Complete events of the API, without keep-alives and `[DONE]`.
    pub events: u32,
    /// Events with generated output.
    pub generated: u32,
    /// Those of them with reasoning.
    pub reasoning: u32,
    /// Openings of a named tool call.
    pub tool_starts: u32,
    /// Distinct instants among the generated ones; `generated - arrivals` were coalesced.
    pub arrivals: u32,
}

/// The marks and measures of one inference. All durations are since `start`, except the lengths `tpot`, `max_stall`, `gaps`.
#[derive(Clone, PartialEq, Debug)]
pub struct Timing {
    /// First byte of the request (t0).
    pub start: Timestamp,
    /// When the record was closed: the instant of the terminator, of the connection's end, or of the input's end.
    pub end: Timestamp,
    /// Last byte of the request.
    pub request_sent: Option<Duration>,
    /// First byte of the final status line.
    pub response_head: Option<Duration>,
    /// First byte of the body.
    pub first_body_byte: Option<Duration>,
    /// First complete event that is no keep-alive.
    pub first_event: Option<Duration>,
    /// First event with reasoning.
    pub first_reasoning: Option<Duration>,
    /// First event with visible text or a tool call.
    pub first_output: Option<Duration>,
    /// Time to first token: the first generated output of any kind.
    pub ttft: Result<Duration, Reason>,
    /// Time to first answer: the first output that is not reasoning.
    pub ttfa: Result<Duration, Reason>,
    /// Last generated output.
    pub last_generated: Option<Duration>,
    /// Until the API's terminator, else the end of the response.
    pub duration: Result<Duration, Reason>,
    /// Time per output token: (last − first generated) / (output tokens − 1), in seconds.
    pub tpot: Result<f64, Reason>,
    /// (last − first generated) / (output tokens behind the first generated event), in seconds: AIPerf's and Artificial Analysis'
    /// form of it. Only where it is exactly known how many tokens came up to that event.
    pub tpot_after_first_chunk: Option<f64>,
    /// Whether `tpot` leaves out reasoning tokens, because the reasoning was hidden or summarised.
    pub tpot_without_reasoning: bool,
    /// Longest silence between consecutive arrivals from the first to the last generated output.
    pub max_stall: Result<Duration, Reason>,
    /// Gaps between consecutive generated events of one choice; none spans a capture gap.
    pub gaps: Gaps,
    /// Where bytes of the answer were not captured: the first [`MAX_HOLES`].
    pub holes: Vec<Hole>,
}

/// Why a figure is undefined (`formulas.md` §3.2, §3.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// The answer was no stream.
    NotStreaming,
    /// Properly finished with nothing generated.
    NoOutput,
    /// A status of 400 or above came before the stream.
    HttpError,
    /// An error event inside a 200.
    StreamError,
    /// The server closed without terminator.
    ServerClosed,
    /// The client closed first.
    ClientCancelled,
    /// Neither end closed within the observer's limit.
    Timeout,
    /// Capture lost bytes.
    CaptureGap,
    /// Capture began in the middle.
    MissedStart,
    /// We could not read it.
    Unparsed,
    /// Our bounds made us let go.
    Evicted,
    /// The provider gave no count of tokens.
    NoUsage,
    /// Fewer than two tokens.
    OneToken,
    /// Fewer than two distinct arrivals.
    OneArrival,
    /// More than one choice, without a count for each.
    SeveralChoices,
    /// The input or the agent ended first.
    Truncated,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 16] = [
        Self::NotStreaming,
        Self::NoOutput,
        Self::HttpError,
        Self::StreamError,
        Self::ServerClosed,
        Self::ClientCancelled,
        Self::Timeout,
        Self::CaptureGap,
        Self::MissedStart,
        Self::Unparsed,
        Self::Evicted,
        Self::NoUsage,
        Self::OneToken,
        Self::OneArrival,
        Self::SeveralChoices,
        Self::Truncated,
    ];

    /// The record's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotStreaming => "not_streaming",
            Self::NoOutput => "no_output",
            Self::HttpError => "http_error",
            Self::StreamError => "stream_error",
            Self::ServerClosed => "server_closed",
            Self::ClientCancelled => "client_cancelled",
            Self::Timeout => "timeout",
            Self::CaptureGap => "capture_gap",
            Self::MissedStart => "missed_start",
            Self::Unparsed => "unparsed",
            Self::Evicted => "evicted",
            Self::NoUsage => "no_usage",
            Self::OneToken => "one_token",
            Self::OneArrival => "one_arrival",
            Self::SeveralChoices => "several_choices",
            Self::Truncated => "truncated",
        }
    }
}

/// What a server says about its own time, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ServerTiming {
    /// Waiting before it began.
    pub queue: Option<f64>,
    /// Reading the prompt.
    pub prefill: Option<f64>,
    /// Until the first token, by its own clock.
    pub ttft: Option<f64>,
    /// Per output token.
    pub tpot: Option<f64>,
    /// Generating.
    pub decode: Option<f64>,
    /// All of it.
    pub total: Option<f64>,
    /// Loading the model.
    pub load: Option<f64>,
}

impl Timing {
    /// Output tokens per second as one user sees them: 1/TPOT.
    pub fn output_tokens_per_s(&self) -> Option<f64> {
        self.tpot.ok().filter(|t| *t > 0.0).map(|t| 1.0 / t)
    }

    /// Output tokens of the request over its whole duration.
    pub fn total_tokens_per_s(&self, usage: Option<&Usage>) -> Option<f64> {
        let seconds = self.duration.ok()?.as_secs_f64();
        let tokens = usage?.output?;
        (seconds > 0.0).then(|| tokens as f64 / seconds)
    }
}

impl Inference {
    /// Events with generated output per output token; may exceed 1.
    pub fn batch_ratio(&self) -> Option<f64> {
        let tokens = self.usage?.output.filter(|n| *n > 0)?;
        let counted = self.gaps == 0 && self.is_stream() && self.timing.ttft != Err(Reason::Unparsed);
        counted.then(|| f64::from(self.chunks.generated) / tokens as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_named_once() {
        for r in Reason::ALL {
            assert_eq!(Reason::ALL.iter().filter(|o| o.as_str() == r.as_str()).count(), 1);
        }
    }
}
