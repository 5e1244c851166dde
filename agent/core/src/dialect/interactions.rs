//! Gemini Interactions (`wire.md` §7): named events, steps instead of choices, `[DONE]` behind the end. Output tokens leave thoughts
//! out, our output does not; thought signatures are no output, thoughts come as summaries.
//!
//! As with OpenAI Responses an existing interaction can be sent again, which is no inference.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{MediaType, Method, RequestHead};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Count, ErrorField, Object, Text, Word, object};
use super::shape::Shape;
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST …/interactions`.
#[derive(Debug)]
pub struct Interactions;

/// Whether this asks for an existing interaction as a stream.
fn fetches(head: &RequestHead) -> bool {
    let mut segments = head.path.trim_end_matches('/').rsplit('/');
    head.method == Method::Other
        && head.query.stream
        && segments.next().is_some_and(|id| !id.is_empty())
        && segments.next() == Some("interactions")
}

impl Dialect for Interactions {
    fn about(&self) -> &'static About {
        &About {
            api: "gemini.interactions",
            doc: "Gemini interactions; an existing one that is sent again",
            paths: &["/v1beta/interactions", "/interactions/{id}?stream=true"],
            operation: Operation::GenerateContent,
        }
    }

    fn operation(&self, head: &RequestHead) -> Operation {
        if fetches(head) { Operation::FetchResponse } else { Operation::GenerateContent }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let path = head.path.trim_end_matches('/');
        match head.method {
            Method::Post if path.ends_with("/v1beta/interactions") => Match::Certain,
            // The word is a common one: elsewhere body and answer decide.
            Method::Post if path.ends_with("/interactions") && matches!(head.media, MediaType::Json | MediaType::Missing) => Match::Maybe,
            _ if fetches(head) && path.contains("/v1beta/") => Match::Certain,
            _ => Match::No,
        }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        // Messages are a chat's, but where the path is ours they do not say otherwise.
        asked.input.0 || asked.messages.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(InteractionReader::default())
    }

    fn streams(&self, head: &RequestHead, asked: &Asked) -> Option<bool> {
        if fetches(head) { Some(true) } else { asked.stream.0 }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow)]
    event_type: Word<'a>,
    #[serde(borrow)]
    interaction: Object<Interaction<'a>>,
    #[serde(borrow)]
    step: Object<Step<'a>>,
    #[serde(borrow)]
    delta: Object<Delta<'a>>,
    error: ErrorField,
}

/// An interaction: in an event, or as a whole answer.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Interaction<'a> {
    #[serde(borrow)]
    object: Word<'a>,
    #[serde(borrow)]
    id: Word<'a>,
    #[serde(borrow)]
    model: Word<'a>,
    #[serde(borrow)]
    status: Word<'a>,
    usage: Object<UsageField>,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Step<'a> {
    #[serde(borrow)]
    r#type: Word<'a>,
    #[serde(borrow)]
    name: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow)]
    r#type: Word<'a>,
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    content: Object<Content<'a>>,
    #[serde(borrow)]
    data: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Text<'a>,
    #[serde(borrow)]
    code: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Content<'a> {
    #[serde(borrow)]
    text: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct UsageField {
    total_input_tokens: Count,
    total_tool_use_tokens: Count,
    total_output_tokens: Count,
    total_thought_tokens: Count,
    total_cached_tokens: Count,
}

impl UsageField {
    fn counts(&self) -> Usage {
        let (said, thoughts) = (self.total_output_tokens.0, self.total_thought_tokens.0);
        Usage {
            input: self.total_input_tokens.0.map(|n| n.saturating_add(self.total_tool_use_tokens.0.unwrap_or(0))),
            output: said.or(thoughts).map(|_| said.unwrap_or(0).saturating_add(thoughts.unwrap_or(0))),
            cache_read: self.total_cached_tokens.0,
            cache_write: None,
            reasoning: thoughts,
        }
    }
}

impl<'a> Delta<'a> {
    /// The output in it, if any: the one text where there is just one.
    fn output(&self) -> Option<(Output, Text<'a>)> {
        let kind = self.r#type.text().unwrap_or_default();
        let inner = self.content.0.as_ref().map(|c| c.text).unwrap_or_default();
        let (output, text) = match kind {
            "text" => (Output::Text, self.text),
            "thought_summary" if inner.is_text() => (Output::Summary, inner),
            "thought_summary" => (Output::Summary, self.text),
            "audio" | "image" | "video" => (Output::Text, self.data),
            "arguments_delta" => (Output::Tool, self.arguments),
            _ if kind.ends_with("_call") => {
                let parts = [self.name, self.arguments, self.code];
                (Output::Tool, if parts.iter().any(Text::is_text) { Text::Some } else { Text::None })
            }
            _ => return None,
        };
        text.is_text().then_some((output, text))
    }
}

#[derive(Debug, Default)]
struct InteractionReader {
    named: bool,
    shape: Shape,
}

impl InteractionReader {
    fn started(&mut self, interaction: &Interaction<'_>, out: &mut Vec<LlmEvent>) {
        let (id, model) = (interaction.id.text().and_then(Name::new), interaction.model.text().and_then(Name::new));
        if !self.named && (id.is_some() || model.is_some()) {
            self.named = true;
            out.push(LlmEvent::Started { id, model });
        }
    }
}

/// What stands in an interaction that is over.
fn ended(interaction: &Interaction<'_>, out: &mut Vec<LlmEvent>) {
    out.extend(interaction.usage.0.as_ref().map(|u| LlmEvent::Usage(u.counts())));
    let status = interaction.status.text().filter(|s| *s != "in_progress");
    out.extend(status.and_then(Name::new).map(|reason| LlmEvent::Finished { choice: 0, reason }));
    if interaction.error.is || status == Some("failed") {
        out.push(LlmEvent::Failed { kind: interaction.error.kind.clone() });
    }
}

impl Reader for InteractionReader {
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
        let kind = event.event_type.text().unwrap_or_else(|| std::str::from_utf8(frame.name).unwrap_or_default());
        if event.error.is {
            out.push(LlmEvent::Failed { kind: event.error.kind.clone() });
            return FrameKind::Event;
        }
        if let Some(interaction) = &event.interaction.0 {
            self.started(interaction, out);
        }
        match kind {
            "step.delta" => {
                if let Some((output, text)) = event.delta.0.as_ref().and_then(Delta::output) {
                    out.push(LlmEvent::Delta { choice: 0, kind: output });
                    if let (Text::Here(text), 1) = (text, out.len()) {
                        self.shape.learn(frame, text, 0, output);
                    }
                }
            }
            "step.start" => {
                let call = |s: &Step<'_>| s.r#type.text().is_some_and(|t| t.ends_with("_call")) && s.name.is_text();
                if event.step.0.as_ref().is_some_and(call) {
                    out.extend([LlmEvent::ToolStart, LlmEvent::Delta { choice: 0, kind: Output::Tool }]);
                }
            }
            "interaction.completed" => {
                if let Some(interaction) = &event.interaction.0 {
                    ended(interaction, out);
                }
                return FrameKind::Last;
            }
            "error" => out.push(LlmEvent::Failed { kind: None }),
            "step.stop" => {}
            _ if kind.starts_with("interaction.") => {}
            _ => return FrameKind::Unknown,
        }
        FrameKind::Event
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(interaction) = object::<Interaction<'_>>(body) else { return FrameKind::BadJson };
        if interaction.object.text() != Some("interaction") && interaction.usage.0.is_none() && !interaction.error.is {
            return FrameKind::Unknown;
        }
        self.started(&interaction, out);
        ended(&interaction, out);
        FrameKind::Event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::request;
    use expect_test::{Expect, expect};

    fn check(frames: &[&str], want: Expect) {
        let (mut reader, mut log) = (InteractionReader::default(), String::new());
        for frame in frames {
            let (name, data) = frame.split_once('|').unwrap_or(("", frame));
            let mut out = Vec::new();
            let kind = reader.frame(Frame { name: name.as_bytes(), data: data.as_bytes(), error: false }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        want.assert_eq(&log);
    }

    #[test]
    fn steps_and_their_end() {
        check(
            &[
                r#"interaction.created|{"interaction":{"id":"i","model":"m","status":"in_progress"}}"#,
                r#"{"event_type":"step.start","index":0,"step":{"type":"thought"}}"#,
                r#"{"event_type":"step.delta","delta":{"type":"thought_summary","content":{"type":"text","text":"hm"}}}"#,
                r#"{"event_type":"step.delta","delta":{"type":"thought_summary","content":{"type":"text","text":"so"}}}"#,
                r#"{"event_type":"step.delta","delta":{"type":"thought_signature","signature":"c2ln"}}"#,
                r#"{"event_type":"step.start","step":{"type":"function_call","name":"f","id":"1"}}"#,
                r#"{"event_type":"step.delta","delta":{"type":"arguments_delta","arguments":"{}"}}"#,
                r#"{"event_type":"step.delta","delta":{"type":"google_search_call","arguments":{"queries":["q"]}}}"#,
                r#"{"event_type":"step.delta","delta":{"type":"google_search_result","text":"r"}}"#,
                r#"{"event_type":"step.delta","delta":{"type":"text","text":"a\n"}}"#,
                r#"{"event_type":"step.stop"}"#,
                r#"{"event_type":"interaction.completed","interaction":{"id":"i","status":"completed","usage":{"total_input_tokens":11,"total_tool_use_tokens":2,"total_output_tokens":42,"total_thought_tokens":126,"total_cached_tokens":0}}}"#,
                "done|[DONE]",
                r#"error|{"error":{"code":"unavailable","message":"words"}}"#,
                r#"{"event_type":"other"}"#,
                "x",
            ],
            expect![[r#"
                Event [Started { id: Some("i"), model: Some("m") }]
                Event []
                Event [Delta { choice: 0, kind: Summary }]
                Event [Delta { choice: 0, kind: Summary }]
                Event []
                Event [ToolStart, Delta { choice: 0, kind: Tool }]
                Event [Delta { choice: 0, kind: Tool }]
                Event [Delta { choice: 0, kind: Tool }]
                Event []
                Event [Delta { choice: 0, kind: Text }]
                Event []
                Last [Usage(Usage { input: Some(13), output: Some(168), cache_read: Some(0), cache_write: None, reasoning: Some(126) }), Finished { choice: 0, reason: "completed" }]
                Terminator []
                Event [Failed { kind: Some("unavailable") }]
                Unknown []
                BadJson []
            "#]],
        );
    }

    #[test]
    fn which_requests() {
        let head = |line: &str| request(format!("{line} HTTP/1.1\r\ncontent-type: application/json").as_bytes()).unwrap();
        assert_eq!(Interactions.probe(&head("POST /v1beta/interactions?alt=sse")), Match::Certain);
        assert_eq!(Interactions.probe(&head("POST /api/interactions")), Match::Maybe);
        assert_eq!(Interactions.probe(&head("POST /api/chats")), Match::No);
        let again = head("GET /v1beta/interactions/v1_x?stream=true");
        assert_eq!((Interactions.probe(&again), Interactions.operation(&again)), (Match::Certain, Operation::FetchResponse));
        assert_eq!(Interactions.probe(&head("GET /v1beta/interactions/v1_x")), Match::No);
    }
}
