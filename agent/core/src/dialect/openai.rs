//! OpenAI chat completions, completions and embeddings, as OpenAI and every compatible server speak them (`wire.md` §2, §3).
//!
//! What differs between servers and is taken as it comes: the name of the reasoning field (`reasoning_content`, `reasoning`,
//! `reasoning_details`, content parts), usage in the last chunk, in an own chunk, on every chunk (cumulative: the last counts) or
//! inside `x_groq`, a missing `[DONE]`, error objects in a chunk or as an event of their own, tool calls in pieces or whole.
//!
//! Mistral's chat API is this one with content in parts: it has no name of its own here; who serves it is the provider.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{MediaType, Method, RequestHead};
use crate::inference::{Operation, ServerTiming, Usage};
use crate::name::Name;

use super::body::{Asked, Class, Count, ErrorField, Few, Length, Number, Text, Word, object};
use super::shape::Shape;
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST …/chat/completions`.
#[derive(Debug)]
pub struct Chat;
/// `POST …/completions`.
#[derive(Debug)]
pub struct Completions;
/// `POST …/embeddings`.
#[derive(Debug)]
pub struct Embeddings;

fn probe(head: &RequestHead, paths: &[&str]) -> Match {
    if head.method != Method::Post {
        return Match::No;
    }
    let path = head.path.trim_end_matches('/');
    if paths.iter().any(|p| path.ends_with(p)) {
        return Match::Certain;
    }
    // Elsewhere the body decides: any server that speaks the API is recognised, wherever it is mounted.
    let json = matches!(head.media, MediaType::Json | MediaType::Missing);
    if json && !head.anthropic && !path.ends_with("/messages") { Match::Maybe } else { Match::No }
}

impl Dialect for Chat {
    fn about(&self) -> &'static About {
        &About {
            api: "openai.chat_completions",
            doc: "OpenAI chat completions and every compatible server (vLLM, SGLang, llama.cpp, TGI, Ollama, Azure, Groq, DeepSeek, Mistral, OpenRouter, …)",
            paths: &["/chat/completions"],
            operation: Operation::Chat,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        probe(head, self.about().paths)
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.messages.0 && !asked.anthropic_version.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ChatReader::default())
    }

    fn model(&self, head: &RequestHead) -> Option<Name> {
        deployment(&head.path)
    }
}

impl Dialect for Completions {
    fn about(&self) -> &'static About {
        &About {
            api: "openai.completions",
            doc: "OpenAI completions of a prompt, and compatible servers",
            paths: &["/v1/completions", "/openai/completions", "/completions"],
            operation: Operation::TextCompletion,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let path = head.path.trim_end_matches('/');
        if head.method != Method::Post || !path.ends_with("/completions") || path.ends_with("/chat/completions") {
            return probe(head, &[]);
        }
        // Without a version before it, the path is llama.cpp's own as well.
        let sure = ["/v1/completions", "/openai/completions", "/fim/completions", "/beta/completions"];
        let sure = sure.iter().any(|p| path.ends_with(p)) || path.contains("/deployments/");
        if sure { Match::Certain } else { Match::Likely }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.prompt.0 && !asked.prompt.1 && asked.model.0.is_some() && !asked.messages.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ChatReader::default())
    }

    fn model(&self, head: &RequestHead) -> Option<Name> {
        deployment(&head.path)
    }
}

impl Dialect for Embeddings {
    fn about(&self) -> &'static About {
        &About {
            api: "openai.embeddings",
            doc: "OpenAI embeddings, and compatible servers",
            paths: &["/embeddings"],
            operation: Operation::Embeddings,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        match probe(head, self.about().paths) {
            // `input` alone says too little: the Responses API has it as well.
            Match::Maybe => Match::No,
            sure => sure,
        }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.input.0 && !asked.messages.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ChatReader::default())
    }

    fn model(&self, head: &RequestHead) -> Option<Name> {
        deployment(&head.path)
    }
}

/// The deployment that an Azure path names: there the model stands in the path, not in the body.
fn deployment(path: &str) -> Option<Name> {
    let rest = path.split("/deployments/").nth(1)?;
    Name::new(rest.split('/').next()?)
}

/// A chunk of a stream, or a whole answer.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Chunk<'a> {
    #[serde(borrow)]
    id: Word<'a>,
    #[serde(borrow)]
    model: Word<'a>,
    #[serde(borrow)]
    choices: Option<Few<Choice<'a>>>,
    usage: Option<UsageField>,
    x_groq: Option<XGroq>,
    timings: Option<Timings>,
    metrics: Option<Metrics>,
    time_info: Option<GroqUsageTimes>,
    error: ErrorField,
    #[serde(borrow)]
    object: Word<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Choice<'a> {
    index: Count,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    message: Option<Delta<'a>>,
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    finish_reason: Word<'a>,
    logprobs: Few<Probabilities>,
    /// The ids of the chunk's tokens (vLLM's `return_token_ids`).
    token_ids: Length,
}

/// One entry per token, where they were asked for: in chats under `content` (or `refusal`), in completions under `tokens`.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Probabilities {
    content: Length,
    refusal: Length,
    tokens: Length,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Text<'a>,
    #[serde(borrow)]
    refusal: Text<'a>,
    #[serde(borrow)]
    reasoning_content: Text<'a>,
    #[serde(borrow)]
    reasoning: Text<'a>,
    #[serde(borrow)]
    reasoning_details: Option<Few<ReasoningDetail<'a>>>,
    #[serde(borrow)]
    tool_calls: Option<Few<ToolCall<'a>>>,
    #[serde(borrow)]
    function_call: Option<Function<'a>>,
    #[serde(borrow)]
    audio: Option<Audio<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ReasoningDetail<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    summary: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ToolCall<'a> {
    #[serde(borrow)]
    function: Option<Function<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Function<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Audio<'a> {
    #[serde(borrow)]
    data: Text<'a>,
    #[serde(borrow)]
    transcript: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct UsageField {
    prompt_tokens: Count,
    completion_tokens: Count,
    prompt_tokens_details: Option<InputDetails>,
    completion_tokens_details: Option<OutputDetails>,
    prompt_cache_hit_tokens: Count,
    reasoning_tokens: Count,
    // GPUStack (`servers.md` §4).
    time_to_first_token_ms: Number,
    time_per_output_token_ms: Number,
    // Groq.
    queue_time: Number,
    prompt_time: Number,
    completion_time: Number,
    total_time: Number,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct InputDetails {
    cached_tokens: Count,
    cache_write_tokens: Count,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: Count,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct XGroq {
    usage: Option<UsageField>,
    error: Class,
}

/// llama.cpp (`servers.md` §4).
#[derive(Deserialize, Default)]
#[serde(default)]
struct Timings {
    prompt_ms: Number,
    predicted_ms: Number,
    predicted_per_token_ms: Number,
}

/// vLLM with `--enable-per-request-metrics`.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Metrics {
    time_to_first_token_ms: Number,
    generation_time_ms: Number,
    queue_time_ms: Number,
    mean_itl_ms: Number,
}

/// A host behind the Hugging Face router: the names of Groq's usage, in seconds.
#[derive(Deserialize, Default)]
#[serde(default)]
struct GroqUsageTimes {
    queue_time: Number,
    prompt_time: Number,
    completion_time: Number,
    total_time: Number,
}

impl Chunk<'_> {
    /// Whether this is a chunk of the family: other APIs have ids, models and `usage` as well, but not these.
    fn known(&self) -> bool {
        let counted = self.usage.as_ref().is_some_and(|u| u.prompt_tokens.0.is_some() || u.completion_tokens.0.is_some());
        let object = self.object.text().is_some_and(|o| o.starts_with("chat.completion") || o == "text_completion" || o == "list");
        self.choices.is_some() || counted || object
    }

    /// What the chunk is. An error alone is everybody's.
    fn kind(&self, named_error: bool) -> FrameKind {
        match self.known() {
            true => FrameKind::Event,
            false if self.error.is || named_error => FrameKind::Perhaps,
            false => FrameKind::Unknown,
        }
    }
}

fn seconds(ms: Number) -> Option<f64> {
    ms.0.filter(|v| *v >= 0.0).map(|v| v / 1000.0)
}

#[derive(Debug, Default)]
struct ChatReader {
    has_id: bool,
    has_model: bool,
    shape: Shape,
}

impl Reader for ChatReader {
    fn shape(&self) -> Option<&Shape> {
        Some(&self.shape)
    }

    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        if let Some(event) = self.shape.event(frame) {
            out.push(event);
            return FrameKind::Event;
        }
        let data = frame.data.trim_ascii();
        if data.starts_with(b"[DONE]") {
            return FrameKind::Terminator;
        }
        let Some(chunk) = object::<Chunk<'_>>(data) else { return FrameKind::BadJson };
        let before = out.len();
        let only = self.chunk(&chunk, frame.name == b"error", data, out);
        if let (Some((text, choice, kind)), 1) = (only, out.len() - before) {
            self.shape.learn(frame, text, choice, kind);
        }
        chunk.kind(frame.name == b"error")
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(chunk) = object::<Chunk<'_>>(body) else { return FrameKind::BadJson };
        let before = out.len();
        self.chunk(&chunk, false, body, out);
        let kind = chunk.kind(false);
        if kind == FrameKind::Unknown {
            out.truncate(before);
        }
        kind
    }
}

impl ChatReader {
    /// Turns a chunk into events. Returns the one piece of output, when there is nothing else in the chunk that may change.
    fn chunk<'a>(&mut self, chunk: &Chunk<'a>, named_error: bool, data: &[u8], out: &mut Vec<LlmEvent>) -> Option<(&'a str, u32, Output)> {
        let id = chunk.id.text().filter(|_| !self.has_id).and_then(Name::new);
        let model = chunk.model.text().filter(|_| !self.has_model).and_then(Name::new);
        if id.is_some() || model.is_some() {
            self.has_id |= id.is_some();
            self.has_model |= model.is_some();
            out.push(LlmEvent::Started { id, model });
        }
        let mut only = None;
        for (i, choice) in chunk.choices.iter().flat_map(Few::iter).enumerate() {
            let index = choice.index.0.and_then(|n| u32::try_from(n).ok()).unwrap_or(i as u32);
            only = choice_events(choice, index, out);
        }
        let groq = chunk.x_groq.as_ref();
        if let Some(usage) = chunk.usage.as_ref().or_else(|| groq.and_then(|g| g.usage.as_ref())) {
            out.push(LlmEvent::Usage(usage.counts()));
            out.extend(usage.server().map(LlmEvent::Server));
        }
        if let Some(t) = &chunk.timings {
            let (prefill, decode) = (seconds(t.prompt_ms), seconds(t.predicted_ms));
            out.push(LlmEvent::Server(ServerTiming {
                prefill,
                decode,
                tpot: seconds(t.predicted_per_token_ms),
                ..ServerTiming::default()
            }));
        }
        if let Some(m) = &chunk.metrics {
            let (ttft, decode) = (seconds(m.time_to_first_token_ms), seconds(m.generation_time_ms));
            let (queue, tpot) = (seconds(m.queue_time_ms), seconds(m.mean_itl_ms));
            out.push(LlmEvent::Server(ServerTiming { ttft, decode, queue, tpot, ..ServerTiming::default() }));
        }
        if let Some(t) = &chunk.time_info {
            out.push(LlmEvent::Server(ServerTiming {
                queue: t.queue_time.0,
                prefill: t.prompt_time.0,
                decode: t.completion_time.0,
                total: t.total_time.0,
                ..ServerTiming::default()
            }));
        }
        if chunk.error.is || named_error || groq.is_some_and(|g| g.error.0.is_some()) {
            let kind = chunk.error.kind.clone().or_else(|| super::body::http_error_kind(data));
            out.push(LlmEvent::Failed { kind });
        }
        only
    }
}

fn choice_events<'a>(choice: &Choice<'a>, index: u32, out: &mut Vec<LlmEvent>) -> Option<(&'a str, u32, Output)> {
    let empty = Delta::default();
    let delta = choice.delta.as_ref().or(choice.message.as_ref()).unwrap_or(&empty);
    let mut only = None;
    let reasoning = [&delta.reasoning_content, &delta.reasoning];
    let details = delta.reasoning_details.iter().flat_map(Few::iter).any(|d| d.text.is_text() || d.summary.is_text());
    if reasoning.iter().any(|t| t.is_text()) || details || delta.content.is_thinking() {
        out.push(LlmEvent::Delta { choice: index, kind: Output::Reasoning });
        // Details mirror the text: two strings change from chunk to chunk then.
        if let (Text::Here(t), false) = (reasoning.iter().find(|t| t.is_text()).copied().copied().unwrap_or_default(), details) {
            only = Some((t, index, Output::Reasoning));
        }
    }
    let texts = [&delta.content, &delta.refusal, &choice.text];
    let audio = delta.audio.as_ref().is_some_and(|a| a.data.is_text() || a.transcript.is_text());
    if texts.iter().any(|t| t.is_text()) || audio {
        out.push(LlmEvent::Delta { choice: index, kind: Output::Text });
        if let Some(Text::Here(t)) = texts.iter().find(|t| t.is_text()) {
            only = Some((t, index, Output::Text));
        }
    }
    let calls = delta.tool_calls.iter().flat_map(Few::iter).filter_map(|t| t.function.as_ref()).chain(&delta.function_call);
    let mut tool = false;
    for call in calls {
        if call.name.is_text() {
            out.push(LlmEvent::ToolStart);
        }
        tool |= call.name.is_text() || call.arguments.is_text();
        if let Text::Here(t) = call.arguments {
            only = Some((t, index, Output::Tool));
        }
    }
    if tool {
        out.push(LlmEvent::Delta { choice: index, kind: Output::Tool });
    }
    let listed = choice.logprobs.first().map(|p| [p.content.0, p.refusal.0, p.tokens.0].iter().flatten().sum());
    out.extend(choice.token_ids.0.max(listed).filter(|n| *n > 0).map(LlmEvent::Tokens));
    if let Some(reason) = choice.finish_reason.text().and_then(Name::new) {
        out.push(LlmEvent::Finished { choice: index, reason });
    }
    only
}

impl UsageField {
    fn counts(&self) -> Usage {
        let (input, output) = (self.prompt_tokens_details.as_ref(), self.completion_tokens_details.as_ref());
        Usage {
            input: self.prompt_tokens.0,
            output: self.completion_tokens.0,
            cache_read: input.and_then(|i| i.cached_tokens.0).or(self.prompt_cache_hit_tokens.0),
            cache_write: input.and_then(|i| i.cache_write_tokens.0),
            reasoning: output.and_then(|o| o.reasoning_tokens.0).or(self.reasoning_tokens.0),
        }
    }

    fn server(&self) -> Option<ServerTiming> {
        let timing = ServerTiming {
            queue: self.queue_time.0,
            prefill: self.prompt_time.0,
            decode: self.completion_time.0,
            total: self.total_time.0,
            ttft: seconds(self.time_to_first_token_ms),
            tpot: seconds(self.time_per_output_token_ms),
            load: None,
        };
        (timing != ServerTiming::default()).then_some(timing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(frames: &[&str], want: Expect) {
        let mut reader = ChatReader::default();
        let mut log = String::new();
        for frame in frames {
            let (name, data) = frame.split_once('|').unwrap_or(("", frame));
            let mut out = Vec::new();
            let kind = reader.frame(Frame { name: name.as_bytes(), data: data.as_bytes(), error: false }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        want.assert_eq(&log);
    }

    #[test]
    fn reasoning_text_tools_and_the_end() {
        check(
            &[
                r#"{"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}"#,
                r#"{"id":"c1","choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#,
                r#"{"id":"c1","choices":[{"index":1,"delta":{"content":"a \" quote"}}]}"#,
                r#"{"id":"c1","choices":[{"index":1,"delta":{"content":"text"}}]}"#,
                r#"{"id":"c1","choices":[{"index":1,"delta":{"content":"more"}}]}"#,
                r#"{"id":"c1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}}]}"#,
                r#"{"id":"c1","choices":[{"index":0,"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"x"}]},{"type":"text","text":"y"}]}}]}"#,
                r#"{"id":"c1","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}"#,
                r#"{"choices":[],"usage":{"prompt_tokens":28.0,"completion_tokens":10,"completion_tokens_details":{"reasoning_tokens":11}}}"#,
                "[DONE]",
                r#"error|{"error":{"message":"m","type":"server_error"}}"#,
                r#"{"error":"text only"}"#,
                "{\"cut",
                r#"{"what":"ever"}"#,
            ],
            expect![[r#"
                Event [Started { id: Some("c1"), model: Some("m") }]
                Event [Delta { choice: 0, kind: Reasoning }]
                Event [Delta { choice: 1, kind: Text }]
                Event [Delta { choice: 1, kind: Text }]
                Event [Delta { choice: 1, kind: Text }]
                Event [ToolStart, Delta { choice: 0, kind: Tool }]
                Event [Delta { choice: 0, kind: Reasoning }, Delta { choice: 0, kind: Text }]
                Event [Finished { choice: 0, reason: "stop" }]
                Event [Usage(Usage { input: Some(28), output: Some(10), cache_read: None, cache_write: None, reasoning: Some(11) })]
                Terminator []
                Perhaps [Failed { kind: Some("server_error") }]
                Perhaps [Failed { kind: None }]
                BadJson []
                Unknown []
            "#]],
        );
    }

    #[test]
    fn the_shortcut_takes_only_what_is_the_same_event() {
        let mut reader = ChatReader::default();
        let mut out = Vec::new();
        let chunk = |text: &str, more: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]{more}}}"#);
        let mut read = |data: String| {
            out.clear();
            let kind = reader.frame(Frame { name: b"", data: data.as_bytes(), error: false }, &mut out);
            (kind, out.len())
        };
        assert_eq!(read(chunk("a", "")), (FrameKind::Event, 1));
        assert_eq!(read(chunk("bcd", "")), (FrameKind::Event, 1));
        assert_eq!(read(chunk("", "")), (FrameKind::Event, 0));
        assert_eq!(read(chunk(r#"x"}}],"error":{"type":"e"},"z":[{"z":{"q":""#, "")).1, 2);
        assert_eq!(read(chunk("\u{1}", "")), (FrameKind::BadJson, 0));
        assert_eq!(read(chunk("\\", "")), (FrameKind::BadJson, 0));
        assert_eq!(read(chunk("a", r#","usage":{"completion_tokens":1}"#)).1, 2);
        assert_eq!(read(chunk("b", r#","usage":{"completion_tokens":2}"#)).1, 2);
    }
}
