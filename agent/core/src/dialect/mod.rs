//! The APIs that are understood: one file each, one registry.
//!
//! A dialect sees no raw bytes, no clock, no socket: heads, reduced JSON and frames come in, [`LlmEvent`]s go out. Texts stay in its
//! reader (invariant 6): no event has a field for one.

pub mod anthropic;
pub mod asked;
pub mod bedrock;
pub mod bedrock_invoke;
pub mod body;
pub mod cohere;
pub mod conversation;
pub mod engine;
pub mod gemini;
pub mod gemini_live;
mod growth;
pub mod interactions;
pub mod kserve;
pub mod llama_cpp;
pub mod ollama;
pub mod openai;
pub mod protobuf;
pub mod realtime;
pub mod rerank;
pub mod responses;
pub mod sglang;
pub mod shape;
pub mod tgi;
pub mod tgis;
pub mod triton;
mod turns;
pub mod unknown;
pub mod values;

use crate::framing::{Frame, Framing};
use crate::http::head::{RequestHead, ResponseHead};
use crate::inference::{Operation, ServerTiming, Usage};
use crate::name::Name;
use body::Asked;
use conversation::Conversation;
use shape::Shape;

/// Every dialect. Help, documentation and tests are derived from this list; the first that fits best is taken.
pub static DIALECTS: &[&dyn Dialect] = &[
    &openai::Chat,
    &openai::Completions,
    &openai::Embeddings,
    &anthropic::Messages,
    &gemini::Generate,
    &gemini::Embed,
    // Before the next: both ask by `input`, and this one only where the path says so.
    &interactions::Interactions,
    &responses::Responses,
    &realtime::Realtime,
    &gemini_live::Live,
    &bedrock::Converse,
    &bedrock_invoke::Invoke,
    &ollama::Chat,
    &ollama::Generate,
    &ollama::Embed,
    &cohere::ChatV2,
    &cohere::ChatV1,
    &cohere::Embed,
    &rerank::Cohere,
    &rerank::Tei,
    &tgi::Generate,
    &tgi::Embed,
    &sglang::Generate,
    &llama_cpp::Completion,
    &triton::Generate,
    &engine::SGLANG,
    &engine::VLLM,
    &engine::TENSORRT_LLM,
    &tgis::Tgis,
    &kserve::Infer,
    // The last: what nobody else claims.
    &unknown::Unknown,
];

/// How sure a dialect is that a request is one of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Match {
    /// It is not.
    No,
    /// The head does not exclude it; the body decides, and the answer must confirm it.
    Maybe,
    /// A path of its own that others use as well: the body must confirm, and the answer must not contradict.
    Likely,
    /// The path says so; the body must not contradict.
    Certain,
}

/// What a dialect says of itself.
#[derive(Debug)]
pub struct About {
    /// The record's `api`.
    pub api: &'static str,
    /// One line for people.
    pub doc: &'static str,
    /// The paths by which it is recognised for certain, as people write them: suffixes; `{…}` stands for any segment.
    pub paths: &'static [&'static str],
    /// What its requests ask for.
    pub operation: Operation,
}

/// An API family.
pub trait Dialect: Sync + std::fmt::Debug {
    /// What it is.
    fn about(&self) -> &'static About;

    /// What a request with this head asks for.
    fn operation(&self, _head: &RequestHead) -> Operation {
        self.about().operation
    }

    /// Whether a finish reason says that no output of its choice follows, so that the usage which comes with it is final.
    fn finish_is_last(&self) -> bool {
        true
    }

    /// Whether a request with this head may be one of its own.
    fn probe(&self, head: &RequestHead) -> Match;

    /// Whether this body is one of its own requests.
    fn confirms(&self, asked: &Asked) -> bool;

    /// A reader for one answer.
    fn reader(&self) -> Box<dyn Reader>;

    /// What a request says that is no JSON: the first message of a gRPC call, reduced by [`crate::framing::protobuf::Skeleton`]. `None`
    /// when it cannot be read.
    fn asked(&self, _message: &[u8]) -> Option<Asked> {
        None
    }

    /// The model that the request names outside its body.
    fn model(&self, _head: &RequestHead) -> Option<Name> {
        None
    }

    /// Follows a conversation on a WebSocket, where the API has one.
    fn conversation(&self) -> Option<Box<dyn Conversation>> {
        None
    }

    /// Whether a stream is asked for, as far as the request says.
    fn streams(&self, _head: &RequestHead, asked: &Asked) -> Option<bool> {
        asked.stream.0
    }

    /// Who serves this API where neither the host nor the server says otherwise: a value of `gen_ai.provider.name`.
    fn provider(&self) -> Option<&'static str> {
        None
    }

    /// Whether the end of the HTTP response is the API's only terminator: no event says that nothing will follow.
    fn ends_with_body(&self) -> bool {
        false
    }

    /// Whether each of several choices has counts of its own, so that what is not seen of one is missing in the sum.
    fn counts_by_choice(&self) -> bool {
        false
    }

    /// How a stream is cut whose media type says no more than JSON; `None` when such an answer is one JSON value.
    fn framing(&self, _head: &RequestHead, _asked: &Asked) -> Option<Framing> {
        None
    }
}

/// The conversations that a request to change to WebSocket may open: one where its path is sure, else all that nothing excludes.
pub fn conversations(head: &RequestHead) -> Vec<(&'static dyn Dialect, Box<dyn Conversation>)> {
    let may = |least: Match| DIALECTS.iter().copied().filter(move |d| d.probe(head) >= least);
    let with = |d: &'static dyn Dialect| Some((d, d.conversation()?));
    let sure: Vec<_> = may(Match::Certain).filter_map(with).collect();
    if sure.is_empty() { may(Match::Maybe).filter_map(with).collect() } else { sure }
}

/// Reads one answer.
pub trait Reader: std::fmt::Debug + Send {
    /// The answer's head, where it says something about the inference.
    fn head(&mut self, _head: &ResponseHead, _out: &mut Vec<LlmEvent>) {}

    /// One event of a stream.
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind;

    /// Events may be missing here: what is summed up over several is short from now on.
    fn hole(&mut self) {}

    /// Whether what was read is a stream's, where the way in which it is cut does not tell: gRPC.
    fn streams(&self) -> Option<bool> {
        None
    }

    /// What the stream's next event looks like if it is like the last one. An event of this shape is what [`Shape::delta`] says; it
    /// need not be given to [`Reader::frame`].
    fn shape(&self) -> Option<&Shape> {
        None
    }

    /// A whole answer that is no stream, reduced by [`crate::framing::json::Skeleton`].
    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind;
}

/// What a frame is to its API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// An event that counts.
    Event,
    /// An event that counts, if the answer is one of the API's at all, which this alone does not say: an error, say.
    Perhaps,
    /// A sign of life.
    KeepAlive,
    /// The API's terminator as an event of its own that counts as an event (`message_stop`).
    Last,
    /// The API's terminator that does not count (`[DONE]`).
    Terminator,
    /// It is not what the API prescribes. It counts as an event.
    BadJson,
    /// Valid JSON of no known form. It counts as an event.
    Unknown,
}

/// The common tongue of all dialects.
#[derive(Clone, PartialEq, Debug)]
pub enum LlmEvent {
    /// The answer names its id or model; sent when either becomes known.
    Started {
        /// The API's id of the response.
        id: Option<Name>,
        /// The model as the server gives it.
        model: Option<Name>,
    },
    /// Generated output. Never called a token: a frame may hold several.
    Delta {
        /// Which choice.
        choice: u32,
        /// What kind.
        kind: Output,
    },
    /// A named tool call was opened (a `Delta` goes with it).
    ToolStart,
    /// Exactly so many output tokens are in this event, by ids or probabilities that stand beside the text.
    Tokens(u64),
    /// Counts of tokens. What is `Some` replaces what was known.
    Usage(Usage),
    /// A choice ended.
    Finished {
        /// Which choice.
        choice: u32,
        /// As the provider spells it.
        reason: Name,
    },
    /// An error inside the answer; its type or code, where it is of low cardinality.
    Failed {
        /// The provider's error type or code.
        kind: Option<Name>,
    },
    /// The client took its request back, and the server says so.
    Cancelled,
    /// What the server says about its own time.
    Server(ServerTiming),
}

/// Kinds of generated output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Visible text, refusal, audio.
    Text,
    /// Reasoning.
    Reasoning,
    /// A summary of reasoning: it counts as reasoning, but its length says nothing about the reasoning's tokens.
    Summary,
    /// A tool call's name or arguments.
    Tool,
}

impl Output {
    /// Whether it is reasoning, in full or summarised.
    pub const fn is_reasoning(self) -> bool {
        matches!(self, Self::Reasoning | Self::Summary)
    }
}

/// Calls beside inferences, by the last segment of their path: they count or cut tokens, and generate nothing.
const NO_INFERENCE: [&str; 8] =
    ["count_tokens", "input_tokens", "tokenize", "detokenize", "tokenizer", "apply-template", "token-count", "moderations"];

/// The dialect that may own a request; of those that fit equally well the first.
pub fn recognise(head: &RequestHead) -> Option<(&'static dyn Dialect, Match)> {
    let last = head.path.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default();
    if NO_INFERENCE.contains(&last) || last == "countTokens" {
        return None;
    }
    best(head, |_| true)
}

/// A dialect whose requests look like `asked`, wherever they are sent: recognition by content.
pub fn by_body(head: &RequestHead, asked: &Asked) -> Option<(&'static dyn Dialect, Match)> {
    best(head, |d| d.confirms(asked))
}

fn best(head: &RequestHead, fits: impl Fn(&dyn Dialect) -> bool) -> Option<(&'static dyn Dialect, Match)> {
    let found = DIALECTS.iter().copied().map(|d| (d, d.probe(head))).filter(|(d, m)| *m > Match::No && fits(*d));
    found.reduce(|a, b| if b.1 > a.1 { b } else { a })
}

/// Another dialect than `not`, one that `knows` the beginning of the answer: where several APIs share a path, or a body says too
/// little, the answer decides.
pub fn by_answer(
    head: &RequestHead,
    asked: &Asked,
    not: &'static dyn Dialect,
    mut knows: impl FnMut(&mut dyn Reader) -> bool,
) -> Option<(&'static dyn Dialect, Box<dyn Reader>)> {
    let others = DIALECTS.iter().copied().filter(|d| d.about().api != not.about().api);
    // A path that is an API's for certain is taken only by those whose path it is as well.
    let certain = not.probe(head) == Match::Certain;
    let fitting = others.filter(|d| match d.probe(head) {
        Match::No => false,
        Match::Maybe => !certain && d.confirms(asked),
        Match::Likely | Match::Certain => true,
    });
    fitting.map(|d| (d, d.reader())).find_map(|(d, mut reader)| knows(reader.as_mut()).then_some((d, reader)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_docs_are_there_and_unique() {
        for d in DIALECTS {
            let about = d.about();
            assert!(!about.doc.is_empty() && !about.doc.ends_with('.') && !about.paths.is_empty());
            assert_eq!(DIALECTS.iter().filter(|o| o.about().api == about.api).count(), 1);
        }
    }
}
