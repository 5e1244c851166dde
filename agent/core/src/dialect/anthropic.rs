//! Anthropic messages, streaming and not (`wire.md` §2, §6), also as Vertex serves them: there the path names the model and the body
//! carries `anthropic_version` (Bedrock wraps them: [`super::bedrock_invoke`]). Usage is cumulative and comes in two places: what a later event says
//! replaces what an earlier one said. Total input is uncached + cache read + cache write.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Count, ErrorField, Few, Text, Word, http_error_kind, object};
use super::gemini::{custom_method, model_before_method};
use super::shape::Shape;
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST /v1/messages`, and `POST …/publishers/anthropic/models/{model}:rawPredict` or `:streamRawPredict` of Vertex.
#[derive(Debug)]
pub struct Messages;

impl Dialect for Messages {
    fn about(&self) -> &'static About {
        &About {
            api: "anthropic.messages",
            doc: "Anthropic messages, also on Vertex: text, thinking, tools, server tools",
            paths: &[
                "/v1/messages",
                "/publishers/anthropic/models/{model}:streamRawPredict",
                "/publishers/anthropic/models/{model}:rawPredict",
            ],
            operation: Operation::Chat,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let path = head.path.trim_end_matches('/');
        if raw(head) {
            // `count-tokens` stands where a model stands, and is none.
            let ours = path.contains("/publishers/anthropic/");
            let counts = path.contains("/models/count-tokens");
            return if ours && !counts { Match::Certain } else { Match::No };
        }
        match (head.method, path.ends_with("/messages")) {
            (Method::Post, true) if head.anthropic || path.ends_with("/v1/messages") => Match::Certain,
            (Method::Post, true) => Match::Maybe,
            // A target that was not seen (HTTP/2): the answer decides.
            (Method::Post, false) if path.is_empty() => Match::Maybe,
            _ => Match::No,
        }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.messages.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(MessagesReader::default())
    }

    fn model(&self, head: &RequestHead) -> Option<Name> {
        model_before_method(head).filter(|_| raw(head))
    }

    fn streams(&self, head: &RequestHead, asked: &Asked) -> Option<bool> {
        asked.stream.0.or_else(|| raw(head).then(|| custom_method(head) == Some("streamRawPredict")))
    }
}

/// Whether this is Vertex' way to pass a body on to a publisher's model.
fn raw(head: &RequestHead) -> bool {
    matches!(custom_method(head), Some("rawPredict" | "streamRawPredict"))
}

/// An event of a stream, or a whole answer (`type: message`).
#[derive(Deserialize, Default)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow)]
    r#type: Word<'a>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
    #[serde(borrow)]
    content_block: Option<Block<'a>>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    usage: Option<UsageField>,
    error: ErrorField,
    #[serde(borrow)]
    id: Word<'a>,
    #[serde(borrow)]
    model: Word<'a>,
    #[serde(borrow)]
    content: Option<Few<Block<'a>>>,
    #[serde(borrow)]
    stop_reason: Word<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message<'a> {
    #[serde(borrow)]
    id: Word<'a>,
    #[serde(borrow)]
    model: Word<'a>,
    usage: Option<UsageField>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Block<'a> {
    #[serde(borrow)]
    r#type: Word<'a>,
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    thinking: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    thinking: Text<'a>,
    #[serde(borrow)]
    partial_json: Text<'a>,
    #[serde(borrow)]
    stop_reason: Word<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct UsageField {
    input_tokens: Count,
    output_tokens: Count,
    cache_read_input_tokens: Count,
    cache_creation_input_tokens: Count,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OutputDetails {
    thinking_tokens: Count,
}

#[derive(Debug, Default)]
struct MessagesReader {
    shape: Shape,
    /// Whether `message_start` was seen (or a whole answer): without it the cached parts of the input may be missing.
    started: bool,
    /// The parts of the input as last said.
    uncached: Option<u64>,
    cache_read: Option<u64>,
    cache_write: Option<u64>,
    output: Option<u64>,
    thinking: Option<u64>,
}

impl Reader for MessagesReader {
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
        let Some(event) = object::<Event<'_>>(data) else { return FrameKind::BadJson };
        let kind = event.r#type.text().unwrap_or_else(|| std::str::from_utf8(frame.name).unwrap_or_default());
        match kind {
            "ping" => return FrameKind::KeepAlive,
            "message_start" => {
                if let Some(m) = &event.message {
                    self.started = true;
                    out.push(LlmEvent::Started { id: m.id.text().and_then(Name::new), model: m.model.text().and_then(Name::new) });
                    // Its count of output is a placeholder (`wire.md` §6): without a `message_delta` the output is not known.
                    self.usage(m.usage.as_ref(), false, out);
                }
            }
            "content_block_start" => self.block(event.content_block.as_ref(), out),
            "content_block_delta" => {
                if let Some(delta) = &event.delta {
                    let texts = [(delta.text, Output::Text), (delta.thinking, Output::Reasoning), (delta.partial_json, Output::Tool)];
                    let mut some = texts.iter().filter(|(text, _)| text.is_text());
                    out.extend(some.clone().map(|(_, kind)| LlmEvent::Delta { choice: 0, kind: *kind }));
                    // Nothing but one text that the JSON holds without escapes.
                    if let (Some((Text::Here(text), kind)), None) = (some.next(), some.next()) {
                        self.shape.learn(frame, text, 0, *kind);
                    }
                }
            }
            "message_delta" => {
                self.usage(event.usage.as_ref(), true, out);
                let reason = event.delta.as_ref().and_then(|d| d.stop_reason.text()).and_then(Name::new);
                out.extend(reason.map(|reason| LlmEvent::Finished { choice: 0, reason }));
            }
            "message_stop" => return FrameKind::Last,
            "content_block_stop" => {}
            "error" => out.push(LlmEvent::Failed { kind: event.error.kind.clone().or_else(|| http_error_kind(data)) }),
            _ if event.error.is => out.push(LlmEvent::Failed { kind: event.error.kind.clone() }),
            _ => return FrameKind::Unknown,
        }
        FrameKind::Event
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(event) = object::<Event<'_>>(body) else { return FrameKind::BadJson };
        if event.error.is {
            out.push(LlmEvent::Failed { kind: event.error.kind.clone() });
            return FrameKind::Event;
        }
        if event.r#type.text() != Some("message") {
            return FrameKind::Unknown;
        }
        out.push(LlmEvent::Started { id: event.id.text().and_then(Name::new), model: event.model.text().and_then(Name::new) });
        for block in event.content.iter().flat_map(Few::iter) {
            self.block(Some(block), out);
        }
        self.started = true;
        self.usage(event.usage.as_ref(), true, out);
        out.extend(event.stop_reason.text().and_then(Name::new).map(|reason| LlmEvent::Finished { choice: 0, reason }));
        FrameKind::Event
    }
}

impl MessagesReader {
    fn block(&mut self, block: Option<&Block<'_>>, out: &mut Vec<LlmEvent>) {
        let Some(block) = block else { return };
        let kind = match block.r#type.text() {
            Some("text") if block.text.is_text() => Output::Text,
            Some("thinking") if block.thinking.is_text() => Output::Reasoning,
            // The name is generated text, and the only output of a call without arguments.
            Some("tool_use" | "server_tool_use" | "mcp_tool_use") if block.name.is_text() => {
                out.push(LlmEvent::ToolStart);
                Output::Tool
            }
            _ => return,
        };
        out.push(LlmEvent::Delta { choice: 0, kind });
    }

    fn usage(&mut self, usage: Option<&UsageField>, output: bool, out: &mut Vec<LlmEvent>) {
        let Some(u) = usage else { return };
        self.uncached = u.input_tokens.0.or(self.uncached);
        self.cache_read = u.cache_read_input_tokens.0.or(self.cache_read);
        self.cache_write = u.cache_creation_input_tokens.0.or(self.cache_write);
        self.output = u.output_tokens.0.filter(|_| output).or(self.output);
        self.thinking = u.output_tokens_details.as_ref().and_then(|d| d.thinking_tokens.0).or(self.thinking);
        let cached = self.cache_read.unwrap_or(0).saturating_add(self.cache_write.unwrap_or(0));
        let complete = self.started || self.cache_read.is_some() && self.cache_write.is_some();
        out.push(LlmEvent::Usage(Usage {
            input: self.uncached.filter(|_| complete).map(|n| n.saturating_add(cached)),
            output: self.output,
            cache_read: self.cache_read,
            cache_write: self.cache_write,
            reasoning: self.thinking,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(frames: &[&str], want: Expect) {
        let mut reader = MessagesReader::default();
        let mut log = String::new();
        for frame in frames {
            let mut out = Vec::new();
            let kind = reader.frame(Frame { name: b"", data: frame.as_bytes(), error: false }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        want.assert_eq(&log);
    }

    #[test]
    fn on_vertex() {
        let head = |path: &str| crate::http::head::request(format!("POST {path} HTTP/1.1").as_bytes()).unwrap();
        let ours = head("/v1/projects/p/locations/l/publishers/anthropic/models/claude-x%402026:streamRawPredict");
        assert_eq!((Messages.probe(&ours), Messages.streams(&ours, &Asked::default())), (Match::Certain, Some(true)));
        assert_eq!(Messages.model(&ours).unwrap().as_str(), "claude-x@2026");
        let whole = head("/v1/projects/p/locations/l/publishers/anthropic/models/claude-x:rawPredict");
        assert_eq!((Messages.probe(&whole), Messages.streams(&whole, &Asked::default())), (Match::Certain, Some(false)));
        for other in ["publishers/anthropic/models/count-tokens:rawPredict", "publishers/mistralai/models/m:rawPredict"] {
            assert_eq!(Messages.probe(&head(&format!("/v1/projects/p/locations/l/{other}"))), Match::No, "{other}");
        }
        assert_eq!(Messages.model(&head("/v1/messages")), None);
    }

    #[test]
    fn a_stream() {
        check(
            &[
                r#"{"type":"message_start","message":{"id":"m1","model":"claude","usage":{"input_tokens":10,"cache_read_input_tokens":5,"cache_creation_input_tokens":0,"output_tokens":1}}}"#,
                r#"{"type":"ping"}"#,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"b"}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}"#,
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#,
                r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}"#,
                r#"{"type":"content_block_start","index":2,"content_block":{"type":"web_search_tool_result","content":[]}}"#,
                r#"{"type":"content_block_stop","index":1}"#,
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}"#,
                r#"{"type":"message_stop"}"#,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#,
                r#"{"type":"new_thing"}"#,
            ],
            expect![[r#"
                Event [Started { id: Some("m1"), model: Some("claude") }, Usage(Usage { input: Some(15), output: None, cache_read: Some(5), cache_write: Some(0), reasoning: None })]
                KeepAlive []
                Event []
                Event [Delta { choice: 0, kind: Text }]
                Event [Delta { choice: 0, kind: Text }]
                Event []
                Event [ToolStart, Delta { choice: 0, kind: Tool }]
                Event []
                Event []
                Event []
                Event [Usage(Usage { input: Some(15), output: Some(7), cache_read: Some(5), cache_write: Some(0), reasoning: None }), Finished { choice: 0, reason: "end_turn" }]
                Last []
                Event [Failed { kind: Some("overloaded_error") }]
                Unknown []
            "#]],
        );
    }
}
