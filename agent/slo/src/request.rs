//! What an indicator needs to know of one finished request. Everything is borrowed: deciding allocates nothing.

use std::net::SocketAddr;

use tokengauge_core::inference::{Inference, Outcome, Reason, Vantage};
use tokengauge_core::name::Name;
use tokengauge_core::tenant::Tenant;
use tokengauge_core::workload::Workload;

/// A figure in seconds, or why there is none.
pub type Figure = Result<f64, Reason>;

/// One finished request. What is unknown is `None`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Request<'a> {
    /// `gen_ai.provider.name`.
    pub provider: Option<&'a str>,
    /// The model: as answered, else as asked for.
    pub model: Option<&'a str>,
    /// `gen_ai.operation.name`.
    pub operation: Option<&'a str>,
    /// Kubernetes namespace of the observed end; see [`Request::of`].
    pub namespace: Option<&'a str>,
    /// Kubernetes workload of the observed end, or its process's name.
    pub workload: Option<&'a str>,
    /// Keyed hash of the tenant.
    pub tenant: Option<&'a str>,
    /// The host that the request names.
    pub host: Option<&'a str>,
    /// The server's address, used where no host is known.
    pub address: Option<Address<'a>>,
    /// `client`, `server` or `unknown`.
    pub vantage: &'a str,
    /// Whether the answer came as a stream.
    pub stream: Option<bool>,
    /// How it ended.
    pub outcome: Outcome,
    /// HTTP status.
    pub status: Option<u16>,
    /// Whether a finish reason says refusal or content filter.
    pub refused: bool,
    /// Events with generated output; `None` when nobody counted.
    pub generated: Option<u32>,
    /// Input tokens, cached ones included.
    pub input_tokens: Option<u64>,
    /// Input tokens read from a cache.
    pub cached_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// Time to first token, seconds.
    pub ttft: Figure,
    /// Time to first answer, seconds.
    pub ttfa: Figure,
    /// Time per output token, seconds.
    pub tpot: Figure,
    /// The worst gap between consecutive chunks, seconds.
    pub inter_chunk_max: Figure,
    /// The longest silence between arrivals, seconds.
    pub max_stall: Figure,
    /// Duration, seconds.
    pub duration: Figure,
}

/// A server's address as the source of the request has it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Address<'a> {
    /// As text.
    Text(&'a str),
    /// As a socket address; its port is not part of it.
    Socket(SocketAddr),
}

/// Finish reasons that say that the model would not, or was not let, answer: `refusal` (Anthropic), `content_filter` (OpenAI, Azure),
/// `SAFETY` and its relatives (Gemini), `guardrail_intervened`, `content_filtered` (Bedrock).
const REFUSALS: [&str; 12] = [
    "refusal",
    "content_filter",
    "content_filtered",
    "guardrail_intervened",
    "SAFETY",
    "RECITATION",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "IMAGE_SAFETY",
    "ERROR_TOXIC",
    "safety",
];

/// Whether a finish reason, as a provider spells it, says refusal or content filter.
pub fn is_refusal(finish_reason: &str) -> bool {
    REFUSALS.contains(&finish_reason)
}

impl<'a> Request<'a> {
    /// What the record of an inference says; `None` for what is no inference (an existing response that was sent again).
    ///
    /// Namespace and workload are those of the observed end, the client's where it was seen at a client, the server's where it was seen at a server: whoever
    /// has the traffic in hand. Where that end is no known workload, it is known by its process's name alone; where neither is known, the other end's are taken.
    pub fn of(i: &'a Inference) -> Option<Self> {
        let t = &i.timing;
        let usage = i.usage.as_ref();
        let of = |w: &'a Workload| (w.namespace.as_ref().map(Name::as_str), w.name().map(Name::as_str));
        let known = |w: &&Workload| w.name().is_some();
        let (namespace, workload) = match (i.observed().filter(known), &i.process) {
            (Some(observed), _) => of(observed),
            (None, Some(process)) => (None, Some(&*process.command)),
            (None, None) => i.peer().filter(known).map_or((None, None), of),
        };
        i.operation.is_inference().then(|| Self {
            provider: i.provider,
            model: i.response.model.as_ref().or(i.request.model.as_ref()).map(|n| n.as_str()),
            operation: Some(i.operation.as_str()),
            namespace,
            workload,
            tenant: i.request.tenant.as_ref().map(Tenant::as_str),
            host: i.host.as_ref().map(|n| n.as_str()),
            address: i.server.map(Address::Socket),
            vantage: i.vantage.as_str(),
            stream: i.stream,
            outcome: i.outcome,
            status: i.response.status,
            refused: i.response.finish_reasons.iter().any(|r| is_refusal(r.as_str())),
            generated: Some(i.chunks.generated),
            input_tokens: usage.and_then(|u| u.input),
            cached_tokens: usage.and_then(|u| u.cache_read),
            output_tokens: usage.and_then(|u| u.output),
            ttft: t.ttft.map(|d| d.as_secs_f64()),
            ttfa: t.ttfa.map(|d| d.as_secs_f64()),
            tpot: t.tpot,
            inter_chunk_max: match (t.gaps.max(), t.max_stall) {
                (Some(nanos), _) => Ok(nanos as f64 / 1e9),
                (None, Err(reason)) => Err(reason),
                // Arrivals without a gap between two of one choice.
                (None, Ok(_)) => Err(Reason::OneArrival),
            },
            max_stall: t.max_stall.map(|d| d.as_secs_f64()),
            duration: t.duration.map(|d| d.as_secs_f64()),
        })
    }

    /// A streamed chat that ended well with nothing measured; the ground that tests and scenarios build on.
    pub fn plain() -> Self {
        Self {
            provider: None,
            model: None,
            operation: Some("chat"),
            namespace: None,
            workload: None,
            tenant: None,
            host: None,
            address: None,
            vantage: Vantage::Unknown.as_str(),
            stream: Some(true),
            outcome: Outcome::Completed,
            status: Some(200),
            refused: false,
            generated: Some(1),
            input_tokens: None,
            cached_tokens: None,
            output_tokens: None,
            ttft: Err(Reason::Unparsed),
            ttfa: Err(Reason::Unparsed),
            tpot: Err(Reason::NoUsage),
            inter_chunk_max: Err(Reason::OneArrival),
            max_stall: Err(Reason::OneArrival),
            duration: Err(Reason::Unparsed),
        }
    }
}
