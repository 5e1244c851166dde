//! Amazon Bedrock InvokeModel (`wire.md` §5): each model's own form, in a stream wrapped as base64 in `{"bytes":…}`.
//!
//! The family is told by what an answer looks like, not by the model's name, which may be an ARN of anything: Anthropic messages,
//! Nova (Converse, each event under its name), OpenAI's chat and what is like it (gpt-oss, Jamba, Mistral, DeepSeek), and those that
//! give texts under a name of their own (Titan, Llama, Mistral's older ones, Cohere, Claude 2, Jurassic).
//!
//! **Which counts.** The last event has Bedrock's `amazon-bedrock-invocationMetrics`, whose counts differ from Anthropic's own `usage`
//! (it leaves out some tokens of tools and thinking). Where a family counts its tokens itself in a stream for every model (Anthropic,
//! Nova) that count is taken: it is what the same model reports everywhere else, and it covers all that was generated. For all others
//! it is Bedrock's. Bedrock's latencies are the server's own figures: `firstByteLatency` its time to first token,
//! `invocationLatency` its total.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem;
use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{RequestHead, ResponseHead};
use crate::inference::{Operation, ServerTiming, Usage};
use crate::name::Name;

use super::bedrock::{Payload, exception, model, model_and_action};
use super::body::{Asked, Class, Count, ErrorField, Few, IsThere, Number, Object, Text, Word, object};
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader, anthropic, openai};

/// Most of the buffer for what was wrapped that is kept from event to event.
const MAX_KEPT: usize = 64 << 10;

/// `POST /model/{model}/invoke` and `/invoke-with-response-stream`.
#[derive(Debug)]
pub struct Invoke;

impl Dialect for Invoke {
    fn about(&self) -> &'static About {
        &About {
            api: "bedrock.invoke",
            doc: "Amazon Bedrock InvokeModel: each model's own form (Anthropic, Nova, Titan, Llama, Mistral, Cohere, Jamba, DeepSeek, gpt-oss, …)",
            paths: &["/model/{model}/invoke-with-response-stream", "/model/{model}/invoke"],
            operation: Operation::Chat,
        }
    }

    fn operation(&self, head: &RequestHead) -> Operation {
        let model = model(head);
        let has = |word| model.as_ref().is_some_and(|m| m.as_str().contains(word));
        match () {
            () if has("embed") => Operation::Embeddings,
            () if has("rerank") => Operation::Rerank,
            () => Operation::Chat,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        match model_and_action(head) {
            Some((_, "invoke" | "invoke-with-response-stream")) => Match::Certain,
            _ => Match::No,
        }
    }

    fn confirms(&self, _asked: &Asked) -> bool {
        true
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(InvokeReader::default())
    }

    fn model(&self, head: &RequestHead) -> Option<Name> {
        model(head)
    }

    fn streams(&self, head: &RequestHead, _asked: &Asked) -> Option<bool> {
        Some(model_and_action(head)?.1 == "invoke-with-response-stream")
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Wrapped<'a> {
    #[serde(borrow)]
    bytes: Option<Word<'a>>,
}

/// An event or a whole answer of any family.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Inner<'a> {
    /// Anthropic.
    #[serde(borrow)]
    r#type: Word<'a>,
    /// OpenAI's chat and its like.
    choices: Option<Few<Choice>>,
    // Claude 2, Titan, Llama, Cohere: a text at the top.
    #[serde(borrow)]
    completion: Text<'a>,
    #[serde(borrow, rename = "outputText")]
    output_text: Text<'a>,
    #[serde(borrow)]
    generation: Text<'a>,
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    event_type: Word<'a>,
    stop_reason: Class,
    #[serde(rename = "completionReason")]
    completion_reason: Class,
    finish_reason: Class,
    // Titan, Mistral's older models, Cohere, Jurassic: a list of texts.
    #[serde(borrow)]
    results: Option<Few<Part<'a>>>,
    #[serde(borrow)]
    outputs: Option<Few<Part<'a>>>,
    #[serde(borrow)]
    generations: Option<Few<Part<'a>>>,
    #[serde(borrow)]
    completions: Option<Few<Jurassic<'a>>>,
    // Counts of whole answers.
    #[serde(rename = "inputTextTokenCount")]
    input_text_token_count: Count,
    prompt_token_count: Count,
    generation_token_count: Count,
    #[serde(rename = "amazon-bedrock-invocationMetrics")]
    metrics: Object<Metrics>,
    /// Cohere's id.
    #[serde(borrow)]
    generation_id: Word<'a>,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Choice {
    index: Count,
    stop_reason: Class,
    finish_reason: Class,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Part<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow, rename = "outputText")]
    output_text: Text<'a>,
    stop_reason: Class,
    finish_reason: Class,
    #[serde(rename = "completionReason")]
    completion_reason: Class,
    #[serde(rename = "tokenCount")]
    token_count: Count,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Jurassic<'a> {
    #[serde(borrow)]
    data: Object<JurassicData<'a>>,
    #[serde(borrow, rename = "finishReason")]
    finish_reason: Object<JurassicReason<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JurassicData<'a> {
    #[serde(borrow)]
    text: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JurassicReason<'a> {
    #[serde(borrow)]
    reason: Word<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metrics {
    input_token_count: Count,
    output_token_count: Count,
    cache_read_input_token_count: Count,
    cache_write_input_token_count: Count,
    invocation_latency: Number,
    first_byte_latency: Number,
}

/// Nova: an event of Converse under its name.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Nova<'a> {
    message_start: IsThere,
    #[serde(borrow)]
    content_block_start: Object<Payload<'a>>,
    #[serde(borrow)]
    content_block_delta: Object<Payload<'a>>,
    content_block_stop: IsThere,
    #[serde(borrow)]
    message_stop: Object<Payload<'a>>,
    #[serde(borrow)]
    metadata: Object<Payload<'a>>,
}

impl Metrics {
    fn timing(&self) -> LlmEvent {
        let seconds = |ms: Number| ms.0.filter(|v| *v >= 0.0).map(|v| v / 1000.0);
        let (ttft, total) = (seconds(self.first_byte_latency), seconds(self.invocation_latency));
        LlmEvent::Server(ServerTiming { ttft, total, ..ServerTiming::default() })
    }

    fn counts(&self) -> Usage {
        let (read, write) = (self.cache_read_input_token_count.0, self.cache_write_input_token_count.0);
        let cached = read.unwrap_or(0).saturating_add(write.unwrap_or(0));
        Usage {
            input: self.input_token_count.0.map(|n| n.saturating_add(cached)),
            output: self.output_token_count.0,
            cache_read: read,
            cache_write: write,
            reasoning: None,
        }
    }
}

/// In whose form a stream comes; found at its first event that shows it.
#[derive(Debug, Default)]
enum Family {
    #[default]
    Unknown,
    Anthropic(Box<dyn Reader>),
    Chat(Box<dyn Reader>),
    Nova,
    Text,
}

#[derive(Debug, Default)]
struct InvokeReader {
    family: Family,
    /// What was wrapped, of the event at hand.
    inner: Vec<u8>,
    named: bool,
}

impl Reader for InvokeReader {
    fn head(&mut self, head: &ResponseHead, out: &mut Vec<LlmEvent>) {
        // A whole answer's counts, where its body has none.
        if let Some((input, output)) = head.tokens.as_deref().copied() {
            out.push(LlmEvent::Usage(Usage { input, output, ..Usage::default() }));
        }
    }

    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        if frame.error {
            out.push(exception(frame));
            return FrameKind::Event;
        }
        let Some(wrapped) = object::<Wrapped<'_>>(frame.data) else { return FrameKind::BadJson };
        let Some(bytes) = wrapped.bytes else { return FrameKind::Unknown };
        let mut inner = std::mem::take(&mut self.inner);
        inner.clear();
        // The framer bounds the event, and what is unwrapped is shorter.
        let ok = STANDARD.decode_vec(bytes.text().unwrap_or_default(), &mut inner).is_ok();
        let kind = if ok { self.unwrapped(&inner, out) } else { FrameKind::BadJson };
        if inner.capacity() <= MAX_KEPT {
            self.inner = inner;
        }
        kind
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(inner) = object::<Inner<'_>>(body) else { return FrameKind::BadJson };
        if inner.r#type.text() == Some("message") {
            return anthropic::Messages.reader().answer(body, out);
        }
        if inner.choices.is_some() {
            let kind = openai::Chat.reader().answer(body, out);
            stop_reasons(&inner, out);
            return kind;
        }
        if object::<Payload<'_>>(body).is_some_and(|p| p.answer(out)) {
            return FrameKind::Event;
        }
        // Any other is the model's own business: an answer, as far as it goes.
        self.texts(&inner, out);
        let titan = inner.results.iter().flat_map(Few::iter).filter_map(|r| r.token_count.0).reduce(u64::saturating_add);
        let (input, output) = (inner.input_text_token_count.0.or(inner.prompt_token_count.0), titan.or(inner.generation_token_count.0));
        if input.is_some() || output.is_some() {
            out.push(LlmEvent::Usage(Usage { input, output, ..Usage::default() }));
        }
        FrameKind::Event
    }
}

impl InvokeReader {
    /// An event as its model made it.
    fn unwrapped(&mut self, data: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let frame = Frame { name: b"", data, error: false };
        match &mut self.family {
            Family::Anthropic(reader) => {
                let kind = reader.frame(frame, out);
                if kind == FrameKind::Last
                    && let Some(m) = object::<Inner<'_>>(data).and_then(|i| i.metrics.0)
                {
                    out.push(m.timing());
                }
                return kind;
            }
            Family::Nova => return nova(data, out).unwrap_or(FrameKind::Unknown),
            _ => {}
        }
        let Some(inner) = object::<Inner<'_>>(data) else { return FrameKind::BadJson };
        if let Family::Unknown = self.family {
            if inner.r#type.text().is_some_and(|t| t.starts_with("message") || t.starts_with("content_block") || t == "ping") {
                self.family = Family::Anthropic(anthropic::Messages.reader());
                return self.unwrapped(data, out);
            }
            if inner.choices.is_some() {
                self.family = Family::Chat(openai::Chat.reader());
            } else if let Some(kind) = nova(data, out) {
                self.family = Family::Nova;
                return kind;
            }
        }
        let known = match &mut self.family {
            Family::Chat(reader) => {
                let kind = reader.frame(frame, out);
                stop_reasons(&inner, out);
                kind == FrameKind::Event
            }
            _ => self.texts(&inner, out),
        };
        if let Family::Unknown = self.family
            && known
        {
            self.family = Family::Text;
        }
        if let Some(m) = &inner.metrics.0 {
            out.extend([LlmEvent::Usage(m.counts()), m.timing()]);
        }
        if known || inner.metrics.0.is_some() { FrameKind::Event } else { FrameKind::Unknown }
    }

    /// Texts under names of their own. Whether there is anything known.
    fn texts(&mut self, inner: &Inner<'_>, out: &mut Vec<LlmEvent>) -> bool {
        if let Some(id) = inner.generation_id.text().and_then(Name::new).filter(|_| !self.named) {
            self.named = true;
            out.push(LlmEvent::Started { id: Some(id), model: None });
        }
        let before = out.len();
        let mut piece = |choice: usize, text: bool, reason: [&Class; 3]| {
            let choice = choice as u32;
            if text {
                out.push(LlmEvent::Delta { choice, kind: Output::Text });
            }
            let reason = reason.into_iter().find_map(|r| r.0.clone());
            out.extend(reason.map(|reason| LlmEvent::Finished { choice, reason }));
        };
        let plain = matches!(inner.event_type.text(), None | Some("text-generation"));
        let top = [inner.completion, inner.output_text, inner.generation];
        let text = top.iter().any(Text::is_text) || plain && inner.text.is_text();
        piece(0, text, [&inner.stop_reason, &inner.completion_reason, &inner.finish_reason]);
        for parts in [&inner.results, &inner.outputs, &inner.generations] {
            for (n, p) in parts.iter().flat_map(Few::iter).enumerate() {
                piece(n, p.text.is_text() || p.output_text.is_text(), [&p.stop_reason, &p.completion_reason, &p.finish_reason]);
            }
        }
        for (n, c) in inner.completions.iter().flat_map(Few::iter).enumerate() {
            let reason = Class(c.finish_reason.0.as_ref().and_then(|r| r.reason.text()).and_then(Name::class));
            piece(n, c.data.0.as_ref().is_some_and(|d| d.text.is_text()), [&reason, &Class(None), &Class(None)]);
        }
        if inner.error.is {
            out.push(LlmEvent::Failed { kind: inner.error.kind.clone() });
        }
        out.len() > before || inner.event_type.text().is_some()
    }
}

/// What a choice calls `stop_reason` instead of `finish_reason` (Mistral, DeepSeek).
fn stop_reasons(inner: &Inner<'_>, out: &mut Vec<LlmEvent>) {
    for (n, choice) in inner.choices.iter().flat_map(Few::iter).enumerate() {
        let index = choice.index.0.and_then(|n| u32::try_from(n).ok()).unwrap_or(n as u32);
        let reason = choice.stop_reason.0.clone().filter(|_| choice.finish_reason.0.is_none());
        out.extend(reason.map(|reason| LlmEvent::Finished { choice: index, reason }));
    }
}

/// An event of Nova; `None` when it is none.
fn nova(data: &[u8], out: &mut Vec<LlmEvent>) -> Option<FrameKind> {
    let nova = object::<Nova<'_>>(data)?;
    let named = [
        ("contentBlockStart", &nova.content_block_start),
        ("contentBlockDelta", &nova.content_block_delta),
        ("messageStop", &nova.message_stop),
        ("metadata", &nova.metadata),
    ];
    let mut known = nova.message_start.0 || nova.content_block_stop.0;
    for (name, payload) in named {
        if let Some(payload) = &payload.0 {
            known |= payload.events(name, out).is_some();
        }
    }
    if known && memmem::find(data, b"amazon-bedrock-invocationMetrics").is_some() {
        out.extend(object::<Inner<'_>>(data).and_then(|i| i.metrics.0).map(|m| m.timing()));
    }
    known.then_some(FrameKind::Event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// Reads what a model says, wrapped.
    fn check(inner: &[&str], want: Expect) {
        let (mut reader, mut log) = (InvokeReader::default(), String::new());
        for inner in inner {
            let data = format!(r#"{{"bytes":"{}","p":"abc"}}"#, STANDARD.encode(inner));
            let mut out = Vec::new();
            let kind = reader.frame(Frame { name: b"chunk", data: data.as_bytes(), error: false }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        want.assert_eq(&log);
    }

    #[test]
    fn the_last_event_of_every_family() {
        let metrics = r#""amazon-bedrock-invocationMetrics":{"inputTokenCount":7,"outputTokenCount":3,"invocationLatency":900,"firstByteLatency":300}"#;
        check(
            &[&format!(r#"{{"type":"message_stop",{metrics}}}"#)],
            expect![[r#"
                Last [Server(ServerTiming { queue: None, prefill: None, ttft: Some(0.3), tpot: None, decode: None, total: Some(0.9), load: None })]
            "#]],
        );
        check(
            &[
                r#"{"messageStart":{"role":"assistant"}}"#,
                r#"{"contentBlockDelta":{"delta":{"text":"a"}}}"#,
                &format!(r#"{{"metadata":{{"usage":{{"inputTokens":7,"outputTokens":4,"cacheReadInputTokenCount":1}}}},{metrics}}}"#),
                r#"{"other":{}}"#,
            ],
            expect![[r#"
                Event []
                Event [Delta { choice: 0, kind: Text }]
                Event [Usage(Usage { input: Some(8), output: Some(4), cache_read: Some(1), cache_write: None, reasoning: None }), Server(ServerTiming { queue: None, prefill: None, ttft: Some(0.3), tpot: None, decode: None, total: Some(0.9), load: None })]
                Unknown []
            "#]],
        );
        check(
            &[
                r#"{"choices":[{"index":1,"text":"a","stop_reason":null}]}"#,
                &format!(
                    r#"{{"choices":[{{"index":1,"text":"","stop_reason":"stop"}}],"usage":{{"prompt_tokens":9,"completion_tokens":9}},{metrics}}}"#
                ),
            ],
            expect![[r#"
                Event [Delta { choice: 1, kind: Text }]
                Event [Usage(Usage { input: Some(9), output: Some(9), cache_read: None, cache_write: None, reasoning: None }), Finished { choice: 1, reason: "stop" }, Usage(Usage { input: Some(7), output: Some(3), cache_read: None, cache_write: None, reasoning: None }), Server(ServerTiming { queue: None, prefill: None, ttft: Some(0.3), tpot: None, decode: None, total: Some(0.9), load: None })]
            "#]],
        );
        check(
            &[
                r#"{"what":"ever"}"#,
                r#"{"generation":"a"}"#,
                r#"{"outputText":"b","completionReason":"LENGTH"}"#,
                r#"{"error":{"type":"e"}}"#,
                "[]",
            ],
            expect![[r#"
                Unknown []
                Event [Delta { choice: 0, kind: Text }]
                Event [Delta { choice: 0, kind: Text }, Finished { choice: 0, reason: "LENGTH" }]
                Event [Failed { kind: Some("e") }]
                BadJson []
            "#]],
        );
    }

    #[test]
    fn operations_by_model() {
        let operation = |model: &str| {
            let head = crate::http::head::request(format!("POST /model/{model}/invoke HTTP/1.1").as_bytes()).unwrap();
            Invoke.operation(&head)
        };
        assert_eq!(operation("amazon.titan-embed-text-v2%3A0"), Operation::Embeddings);
        assert_eq!(operation("cohere.rerank-v3"), Operation::Rerank);
        assert_eq!(operation("meta.llama"), Operation::Chat);
    }
}
