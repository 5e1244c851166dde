//! Amazon Bedrock Converse (`wire.md` §5): one form for every model. The model stands in the path, percent-encoded, and may be an ARN.
//!
//! Uncached, read and written input tokens are counted apart, so the total is their sum. A stream ends with its body; an exception
//! is a frame of the framing's own kind, named by its class.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead, percent_decoded};
use crate::inference::{Operation, ServerTiming, Usage};
use crate::name::Name;

use super::body::{Asked, Count, ErrorField, Few, Number, Object, Text, Word, http_error_kind, object};
use super::shape::Shape;
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST /model/{model}/converse` and `/converse-stream`.
#[derive(Debug)]
pub struct Converse;

/// Model and action of `/model/{model}/{action}`. An ARN's slash may stand as it is.
pub(super) fn model_and_action(head: &RequestHead) -> Option<(&str, &str)> {
    let (_, rest) = head.path.trim_end_matches('/').split_once("/model/")?;
    rest.rsplit_once('/').filter(|(model, _)| head.method == Method::Post && !model.is_empty())
}

/// The model that a path of Bedrock names.
pub(super) fn model(head: &RequestHead) -> Option<Name> {
    Name::new(&percent_decoded(model_and_action(head)?.0))
}

impl Dialect for Converse {
    fn about(&self) -> &'static About {
        &About {
            api: "bedrock.converse",
            doc: "Amazon Bedrock Converse: every model in one form",
            paths: &["/model/{model}/converse-stream", "/model/{model}/converse"],
            operation: Operation::Chat,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        match model_and_action(head) {
            Some((_, "converse" | "converse-stream")) => Match::Certain,
            _ => Match::No,
        }
    }

    fn confirms(&self, _asked: &Asked) -> bool {
        // A stored prompt needs no messages.
        true
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ConverseReader::default())
    }

    fn model(&self, head: &RequestHead) -> Option<Name> {
        model(head)
    }

    fn streams(&self, head: &RequestHead, _asked: &Asked) -> Option<bool> {
        Some(model_and_action(head)?.1 == "converse-stream")
    }
}

/// What an event says, or a whole answer; which of it is there depends on the event's name.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Payload<'a> {
    #[serde(borrow)]
    start: Object<Start<'a>>,
    #[serde(borrow)]
    delta: Object<Block<'a>>,
    #[serde(borrow)]
    stop_reason: Word<'a>,
    #[serde(borrow)]
    output: Object<Answer<'a>>,
    usage: Object<UsageField>,
    metrics: Object<Metrics>,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Start<'a> {
    #[serde(borrow)]
    tool_use: Object<ToolUse<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Answer<'a> {
    #[serde(borrow)]
    message: Object<Message<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message<'a> {
    #[serde(borrow)]
    content: Option<Few<Block<'a>>>,
}

/// A piece of a block, or a whole one.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Block<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    tool_use: Object<ToolUse<'a>>,
    #[serde(borrow)]
    reasoning_content: Object<Reasoning<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ToolUse<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    input: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Reasoning<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    reasoning_text: Object<ReasoningText<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ReasoningText<'a> {
    #[serde(borrow)]
    text: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct UsageField {
    input_tokens: Count,
    output_tokens: Count,
    cache_read_input_tokens: Count,
    cache_write_input_tokens: Count,
    // Nova's names.
    cache_read_input_token_count: Count,
    cache_write_input_token_count: Count,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metrics {
    latency_ms: Number,
}

impl UsageField {
    fn counts(&self) -> Usage {
        let read = self.cache_read_input_tokens.0.or(self.cache_read_input_token_count.0);
        let write = self.cache_write_input_tokens.0.or(self.cache_write_input_token_count.0);
        let cached = read.unwrap_or(0).saturating_add(write.unwrap_or(0));
        Usage {
            input: self.input_tokens.0.map(|n| n.saturating_add(cached)),
            output: self.output_tokens.0,
            cache_read: read,
            cache_write: write,
            reasoning: None,
        }
    }
}

impl<'a> Block<'a> {
    /// The output in it: text, reasoning, input of a tool.
    fn outputs(&self) -> [(Output, Text<'a>); 3] {
        let reasoning = self.reasoning_content.0.as_ref();
        let whole = reasoning.and_then(|r| r.reasoning_text.0.as_ref()).map(|r| r.text).unwrap_or_default();
        let reasoning = reasoning.map(|r| r.text).filter(Text::is_text).unwrap_or(whole);
        let input = self.tool_use.0.as_ref().map(|t| t.input).unwrap_or_default();
        [(Output::Text, self.text), (Output::Reasoning, reasoning), (Output::Tool, input)]
    }
}

impl<'a> Payload<'a> {
    /// What the event of this name says; `None` when the name is not known. Of a piece of output the text comes with it, where it is
    /// all that the event says.
    pub(super) fn events(&self, name: &str, out: &mut Vec<LlmEvent>) -> Option<Option<(Output, &'a str)>> {
        let mut only = None;
        match name {
            "contentBlockStart" => opened(self.start.0.as_ref().and_then(|s| s.tool_use.0.as_ref()), out),
            "contentBlockDelta" => {
                let outputs = self.delta.0.iter().flat_map(Block::outputs);
                let mut some = outputs.filter(|(_, text)| text.is_text());
                out.extend(some.clone().map(|(kind, _)| LlmEvent::Delta { choice: 0, kind }));
                if let (Some((kind, Text::Here(text))), None) = (some.next(), some.next()) {
                    only = Some((kind, text));
                }
            }
            "messageStop" => self.stopped(out),
            "metadata" => self.counted(out),
            "messageStart" | "contentBlockStop" | "initial-response" => {}
            _ => return None,
        }
        Some(only)
    }

    /// A whole answer; whether it is one.
    pub(super) fn answer(&self, out: &mut Vec<LlmEvent>) -> bool {
        let Some(answer) = &self.output.0 else { return false };
        for block in answer.message.0.iter().flat_map(|m| &m.content).flat_map(Few::iter) {
            opened(block.tool_use.0.as_ref(), out);
            let kinds = block.outputs().into_iter().filter(|(_, text)| text.is_text());
            out.extend(kinds.map(|(kind, _)| LlmEvent::Delta { choice: 0, kind }));
        }
        self.stopped(out);
        self.counted(out);
        true
    }

    fn stopped(&self, out: &mut Vec<LlmEvent>) {
        out.extend(self.stop_reason.text().and_then(Name::new).map(|reason| LlmEvent::Finished { choice: 0, reason }));
    }

    fn counted(&self, out: &mut Vec<LlmEvent>) {
        out.extend(self.usage.0.as_ref().map(|u| LlmEvent::Usage(u.counts())));
        let total = self.metrics.0.as_ref().and_then(|m| m.latency_ms.0).map(|ms| ms / 1000.0);
        out.extend(total.map(|_| LlmEvent::Server(ServerTiming { total, ..ServerTiming::default() })));
    }
}

/// The opening of a named tool call: its name is generated text.
fn opened(tool: Option<&ToolUse<'_>>, out: &mut Vec<LlmEvent>) {
    if tool.is_some_and(|t| t.name.is_text()) {
        out.extend([LlmEvent::ToolStart, LlmEvent::Delta { choice: 0, kind: Output::Tool }]);
    }
}

/// An exception, named by the framing; else by what its payload says.
pub(super) fn exception(frame: Frame<'_>) -> LlmEvent {
    let class = std::str::from_utf8(frame.name).ok().and_then(Name::class);
    LlmEvent::Failed { kind: class.or_else(|| http_error_kind(frame.data)) }
}

#[derive(Debug, Default)]
struct ConverseReader {
    shape: Shape,
}

impl Reader for ConverseReader {
    fn shape(&self) -> Option<&Shape> {
        Some(&self.shape)
    }

    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        if let Some(event) = self.shape.event(frame) {
            out.push(event);
            return FrameKind::Event;
        }
        if frame.error {
            out.push(exception(frame));
            return FrameKind::Event;
        }
        let Some(payload) = object::<Payload<'_>>(frame.data) else { return FrameKind::BadJson };
        if payload.error.is {
            out.push(LlmEvent::Failed { kind: payload.error.kind.clone() });
            return FrameKind::Event;
        }
        match payload.events(std::str::from_utf8(frame.name).unwrap_or_default(), out) {
            Some(Some((kind, text))) => self.shape.learn(frame, text, 0, kind),
            Some(None) => {}
            None => return FrameKind::Unknown,
        }
        FrameKind::Event
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(payload) = object::<Payload<'_>>(body) else { return FrameKind::BadJson };
        if payload.answer(out) { FrameKind::Event } else { FrameKind::Unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::request;
    use expect_test::{Expect, expect};

    fn check(frames: &[&str], want: Expect) {
        let (mut reader, mut log) = (ConverseReader::default(), String::new());
        for frame in frames {
            let (name, data) = frame.split_once('|').unwrap();
            let (name, error) = name.strip_prefix('!').map_or((name, false), |n| (n, true));
            let mut out = Vec::new();
            let kind = reader.frame(Frame { name: name.as_bytes(), data: data.as_bytes(), error }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        want.assert_eq(&log);
    }

    #[test]
    fn a_stream_with_everything() {
        check(
            &[
                r#"messageStart|{"role":"assistant","p":"abc"}"#,
                r#"contentBlockDelta|{"contentBlockIndex":0,"delta":{"reasoningContent":{"text":"hm"}},"p":"abcd"}"#,
                r#"contentBlockDelta|{"contentBlockIndex":0,"delta":{"reasoningContent":{"text":"so"}},"p":""}"#,
                r#"contentBlockDelta|{"contentBlockIndex":0,"delta":{"reasoningContent":{"signature":"c2ln"}},"p":"ab"}"#,
                r#"contentBlockDelta|{"contentBlockIndex":0,"delta":{"reasoningContent":{"redactedContent":"c2ln"}},"p":"ab"}"#,
                r#"contentBlockStart|{"contentBlockIndex":1,"start":{"toolUse":{"name":"f","toolUseId":"t"}}}"#,
                r#"contentBlockDelta|{"contentBlockIndex":1,"delta":{"toolUse":{"input":""}}}"#,
                r#"contentBlockDelta|{"contentBlockIndex":1,"delta":{"toolUse":{"input":"{}"}}}"#,
                r#"contentBlockDelta|{"contentBlockIndex":2,"delta":{"text":"a"},"p":"a"}"#,
                r#"contentBlockStop|{"contentBlockIndex":2}"#,
                r#"messageStop|{"stopReason":"tool_use"}"#,
                r#"metadata|{"metrics":{"latencyMs":1500},"usage":{"inputTokens":10,"outputTokens":7,"totalTokens":22,"cacheReadInputTokens":5,"cacheWriteInputTokens":0}}"#,
                r#"!throttlingException|{"message":"Too many requests, please wait"}"#,
                "!|{}",
                "!two words|",
                "newEvent|{}",
                "metadata|[]",
            ],
            expect![[r#"
                Event []
                Event [Delta { choice: 0, kind: Reasoning }]
                Event [Delta { choice: 0, kind: Reasoning }]
                Event []
                Event []
                Event [ToolStart, Delta { choice: 0, kind: Tool }]
                Event []
                Event [Delta { choice: 0, kind: Tool }]
                Event [Delta { choice: 0, kind: Text }]
                Event []
                Event [Finished { choice: 0, reason: "tool_use" }]
                Event [Usage(Usage { input: Some(15), output: Some(7), cache_read: Some(5), cache_write: Some(0), reasoning: None }), Server(ServerTiming { queue: None, prefill: None, ttft: None, tpot: None, decode: None, total: Some(1.5), load: None })]
                Event [Failed { kind: Some("throttlingException") }]
                Event [Failed { kind: None }]
                Event [Failed { kind: None }]
                Unknown []
                BadJson []
            "#]],
        );
    }

    #[test]
    fn models_in_paths() {
        let name = |path: &str| {
            let head = request(format!("POST {path} HTTP/1.1").as_bytes()).unwrap();
            (Converse.probe(&head), Converse.model(&head).map(|n| n.to_string()), Converse.streams(&head, &Asked::default()))
        };
        assert_eq!(name("/model/us.maker.m-v1%3A0/converse"), (Match::Certain, Some("us.maker.m-v1:0".into()), Some(false)));
        let arn = "arn:aws:bedrock:eu-west-1:123:inference-profile/eu.maker.m";
        assert_eq!(name(&format!("/model/{arn}/converse-stream")), (Match::Certain, Some(arn.into()), Some(true)));
        let encoded = "/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A123%3Ainference-profile%2Feu.maker.m/converse-stream";
        assert_eq!(name(encoded), (Match::Certain, Some(arn.into()), Some(true)));
        assert_eq!(name("/model//converse").0, Match::No);
        assert_eq!(name("/model/m/invoke").0, Match::No);
        assert_eq!(name("/converse").0, Match::No);
    }
}
