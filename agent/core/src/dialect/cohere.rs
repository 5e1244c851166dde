//! Cohere: chat v2 (named SSE events), chat v1 (a JSON object a line) and embeddings (`wire.md` §2). Tokens are those that Cohere
//! bills, as the conventions want it (`semconv.md` §4); what it counted beside them is left out.
//! The plan before a tool call is text that the model shows to the caller: it counts as such, not as reasoning.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Class, Count, ErrorField, Few, IsThere, Text, Word, object};
use super::shape::Shape;
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST /v2/chat`.
#[derive(Debug)]
pub struct ChatV2;
/// `POST /v1/chat`.
#[derive(Debug)]
pub struct ChatV1;
/// `POST /v2/embed` and `/v1/embed`.
#[derive(Debug)]
pub struct Embed;

/// The paths are plain enough for others to use them: only at Cohere's own host they are sure.
pub(super) fn probe(head: &RequestHead, paths: &[&str]) -> Match {
    let path = head.path.trim_end_matches('/');
    if head.method != Method::Post || !paths.iter().any(|p| path.ends_with(p)) {
        return Match::No;
    }
    let own = head.host.as_ref().is_some_and(|h| h.as_str().contains("cohere"));
    if own { Match::Certain } else { Match::Likely }
}

impl Dialect for ChatV2 {
    fn about(&self) -> &'static About {
        &About {
            api: "cohere.chat_v2",
            doc: "Cohere chat v2: text, thinking, tool plans, tools; billed tokens",
            paths: &["/v2/chat"],
            operation: Operation::Chat,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        probe(head, self.about().paths)
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.messages.0 && asked.model.0.is_some()
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(V2Reader::default())
    }

    fn provider(&self) -> Option<&'static str> {
        Some("cohere")
    }
}

impl Dialect for ChatV1 {
    fn about(&self) -> &'static About {
        &About {
            api: "cohere.chat_v1",
            doc: "Cohere chat v1: a JSON object a line; billed tokens",
            paths: &["/v1/chat"],
            operation: Operation::Chat,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        probe(head, self.about().paths)
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.message.0 && !asked.messages.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(V1Reader::default())
    }

    fn provider(&self) -> Option<&'static str> {
        Some("cohere")
    }
}

impl Dialect for Embed {
    fn about(&self) -> &'static About {
        &About {
            api: "cohere.embed",
            doc: "Cohere embeddings, v1 and v2",
            paths: &["/v2/embed", "/v1/embed"],
            operation: Operation::Embeddings,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        probe(head, self.about().paths)
    }

    fn confirms(&self, asked: &Asked) -> bool {
        (asked.texts.0 || asked.images.0 || asked.inputs.0) && asked.model.0.is_some()
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(EmbedReader)
    }

    fn provider(&self) -> Option<&'static str> {
        Some("cohere")
    }
}

/// Usage (v2) or meta (v1 and the others).
#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    billed_units: Few<Units>,
    cached_tokens: Count,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Units {
    input_tokens: Count,
    output_tokens: Count,
}

impl Meta {
    fn event(&self) -> Option<LlmEvent> {
        let billed = self.billed_units.first();
        let count = |of: fn(&Units) -> Count| billed.and_then(|b| of(b).0);
        let usage = Usage {
            input: count(|b| b.input_tokens),
            output: count(|b| b.output_tokens),
            cache_read: self.cached_tokens.0,
            ..Usage::default()
        };
        (usage != Usage::default()).then_some(LlmEvent::Usage(usage))
    }
}

/// An event of v2, or a whole answer.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow)]
    r#type: Word<'a>,
    #[serde(borrow)]
    id: Word<'a>,
    #[serde(borrow)]
    delta: Few<Delta<'a>>,
    #[serde(borrow)]
    message: Few<Message<'a>>,
    #[serde(borrow)]
    finish_reason: Word<'a>,
    usage: Few<Meta>,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow)]
    message: Few<Message<'a>>,
    #[serde(borrow)]
    finish_reason: Word<'a>,
    usage: Few<Meta>,
    error: ErrorField,
    error_type: Class,
}

/// In a stream `content` and `tool_calls` are an object each, in an answer lists.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Message<'a> {
    #[serde(borrow)]
    content: Few<Content<'a>>,
    #[serde(borrow)]
    tool_plan: Text<'a>,
    #[serde(borrow)]
    tool_calls: Few<ToolCall<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Content<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    thinking: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ToolCall<'a> {
    #[serde(borrow)]
    function: Few<Function<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Function<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Text<'a>,
}

impl<'a> Message<'a> {
    /// Its output. Returns the last text that stands in the JSON as it is.
    fn events(&self, out: &mut Vec<LlmEvent>) -> Option<(&'a str, Output)> {
        let mut only = None;
        let mut put = |text: Text<'a>, kind: Output, out: &mut Vec<LlmEvent>| {
            out.extend(text.is_text().then_some(LlmEvent::Delta { choice: 0, kind }));
            if let Text::Here(text) = text {
                only = Some((text, kind));
            }
        };
        put(self.tool_plan, Output::Text, out);
        for content in self.content.iter() {
            put(content.thinking, Output::Reasoning, out);
            put(content.text, Output::Text, out);
        }
        for function in self.tool_calls.iter().flat_map(|c| c.function.iter()) {
            out.extend(function.name.is_text().then_some(LlmEvent::ToolStart));
            put(function.name, Output::Tool, out);
            put(function.arguments, Output::Tool, out);
        }
        only
    }
}

/// An ending, with the error that it may be.
fn finished(reason: &Word<'_>, error: &ErrorField, kind: Option<Name>, out: &mut Vec<LlmEvent>) {
    if error.is || reason.text() == Some("ERROR") {
        out.push(LlmEvent::Failed { kind: kind.or_else(|| error.kind.clone()) });
    }
    out.extend(reason.text().and_then(Name::new).map(|reason| LlmEvent::Finished { choice: 0, reason }));
}

#[derive(Debug, Default)]
struct V2Reader {
    shape: Shape,
}

impl Reader for V2Reader {
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
        let delta = event.delta.first();
        match kind {
            "message-start" => {
                out.extend(event.id.text().and_then(Name::new).map(|id| LlmEvent::Started { id: Some(id), model: None }));
            }
            "content-start" | "content-delta" | "tool-plan-delta" | "tool-call-start" | "tool-call-delta" => {
                let before = out.len();
                let only = delta.and_then(|d| d.message.first()).and_then(|m| m.events(out));
                if let (Some((text, output)), 1) = (only, out.len() - before) {
                    self.shape.learn(frame, text, 0, output);
                }
            }
            "content-end" | "tool-call-end" | "citation-start" | "citation-end" | "debug" => {}
            "message-end" => {
                let Some(delta) = delta else { return FrameKind::Last };
                out.extend(delta.usage.first().and_then(Meta::event));
                finished(&delta.finish_reason, &delta.error, delta.error_type.0.clone(), out);
                return FrameKind::Last;
            }
            _ if event.error.is => {
                out.push(LlmEvent::Failed { kind: event.error.kind.clone() });
                return FrameKind::Perhaps;
            }
            _ => return FrameKind::Unknown,
        }
        FrameKind::Event
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(event) = object::<Event<'_>>(body) else { return FrameKind::BadJson };
        let Some(message) = event.message.first() else { return FrameKind::Unknown };
        out.extend(event.id.text().and_then(Name::new).map(|id| LlmEvent::Started { id: Some(id), model: None }));
        message.events(out);
        out.extend(event.usage.first().and_then(Meta::event));
        finished(&event.finish_reason, &event.error, None, out);
        FrameKind::Event
    }
}

/// A line of v1, or a whole answer.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow)]
    event_type: Word<'a>,
    #[serde(borrow)]
    generation_id: Word<'a>,
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    tool_call_delta: Few<Call<'a>>,
    #[serde(borrow)]
    tool_calls: Few<Call<'a>>,
    #[serde(borrow)]
    finish_reason: Word<'a>,
    #[serde(borrow)]
    response: Few<Said<'a>>,
    error: ErrorField,
    meta: Few<Meta>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Call<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    parameters: Text<'a>,
}

/// The answer as the last line repeats it.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Said<'a> {
    #[serde(borrow)]
    generation_id: Word<'a>,
    meta: Few<Meta>,
}

#[derive(Debug, Default)]
struct V1Reader {
    started: bool,
    /// Whether tool calls came in pieces: then the event with all of them repeats what was there.
    called: bool,
}

impl V1Reader {
    fn started(&mut self, id: &Word<'_>, out: &mut Vec<LlmEvent>) {
        if let Some(id) = id.text().filter(|_| !self.started).and_then(Name::new) {
            self.started = true;
            out.push(LlmEvent::Started { id: Some(id), model: None });
        }
    }

    fn calls(calls: &Few<Call<'_>>, out: &mut Vec<LlmEvent>) {
        for call in calls.iter() {
            out.extend(call.name.is_text().then_some(LlmEvent::ToolStart));
            if call.name.is_text() || call.parameters.is_text() {
                out.push(LlmEvent::Delta { choice: 0, kind: Output::Tool });
            }
        }
    }
}

impl Reader for V1Reader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(line) = object::<Line<'_>>(frame.data) else { return FrameKind::BadJson };
        self.started(&line.generation_id, out);
        match line.event_type.text() {
            Some("stream-start" | "search-queries-generation" | "search-results" | "citation-generation" | "debug") => {}
            Some("text-generation") => {
                out.extend(line.text.is_text().then_some(LlmEvent::Delta { choice: 0, kind: Output::Text }));
            }
            Some("tool-calls-chunk") => {
                // Beside pieces of calls there is text: the plan.
                out.extend(line.text.is_text().then_some(LlmEvent::Delta { choice: 0, kind: Output::Reasoning }));
                self.called |= !line.tool_call_delta.is_empty();
                Self::calls(&line.tool_call_delta, out);
            }
            Some("tool-calls-generation") => {
                if !self.called {
                    Self::calls(&line.tool_calls, out);
                }
            }
            Some("stream-end") => {
                if let Some(said) = line.response.first() {
                    self.started(&said.generation_id, out);
                    out.extend(said.meta.first().and_then(Meta::event));
                }
                finished(&line.finish_reason, &line.error, None, out);
                return FrameKind::Last;
            }
            _ if line.error.is => {
                out.push(LlmEvent::Failed { kind: line.error.kind.clone() });
                return FrameKind::Perhaps;
            }
            _ => return FrameKind::Unknown,
        }
        FrameKind::Event
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(line) = object::<Line<'_>>(body) else { return FrameKind::BadJson };
        if line.generation_id.text().is_none() && line.finish_reason.text().is_none() {
            return FrameKind::Unknown;
        }
        self.started(&line.generation_id, out);
        out.extend(line.text.is_text().then_some(LlmEvent::Delta { choice: 0, kind: Output::Text }));
        Self::calls(&line.tool_calls, out);
        out.extend(line.meta.first().and_then(Meta::event));
        finished(&line.finish_reason, &line.error, None, out);
        FrameKind::Event
    }
}

/// An answer with embeddings: a list of them, or lists by their type.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Embedded<'a> {
    #[serde(borrow)]
    id: Word<'a>,
    embeddings: IsThere,
    meta: Few<Meta>,
}

#[derive(Debug)]
struct EmbedReader;

impl Reader for EmbedReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        self.answer(frame.data, out)
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(answer) = object::<Embedded<'_>>(body) else { return FrameKind::BadJson };
        if !answer.embeddings.0 {
            return FrameKind::Unknown;
        }
        out.extend(answer.id.text().and_then(Name::new).map(|id| LlmEvent::Started { id: Some(id), model: None }));
        out.extend(answer.meta.first().and_then(Meta::event));
        FrameKind::Event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(mut reader: Box<dyn Reader>, frames: &[&str], want: Expect) {
        let mut log = String::new();
        for frame in frames {
            let mut out = Vec::new();
            let kind = reader.frame(Frame { data: frame.as_bytes(), ..Frame::default() }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        want.assert_eq(&log);
    }

    #[test]
    fn events_of_v2() {
        check(
            ChatV2.reader(),
            &[
                r#"{"id":"i","type":"message-start","delta":{"message":{"role":"assistant","content":[],"tool_plan":"","tool_calls":[]}}}"#,
                r#"{"type":"tool-plan-delta","delta":{"message":{"tool_plan":"I"}}}"#,
                r#"{"type":"tool-plan-delta","delta":{"message":{"tool_plan":" will"}}}"#,
                r#"{"type":"tool-call-start","index":0,"delta":{"message":{"tool_calls":{"id":"t","function":{"name":"f","arguments":""}}}}}"#,
                r#"{"type":"tool-call-delta","index":0,"delta":{"message":{"tool_calls":{"function":{"arguments":"{}"}}}}}"#,
                r#"{"type":"tool-call-end","index":0}"#,
                r#"{"type":"content-start","index":0,"delta":{"message":{"content":{"type":"text","text":""}}}}"#,
                r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"thinking":"x"}}}}"#,
                r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"text":"x"}}}}"#,
                r#"{"type":"citation-start","index":0,"delta":{"message":{"citations":{"text":"x"}}}}"#,
                r#"{"type":"message-end","delta":{"finish_reason":"COMPLETE","usage":{"billed_units":{"input_tokens":28.0,"output_tokens":3},"tokens":{"input_tokens":900},"cached_tokens":4}}}"#,
                "[DONE]",
                r#"{"type":"message-end","delta":{"error":"broke","finish_reason":"ERROR","error_type":"INTERNAL","usage":{}}}"#,
                r#"{"type":"new"}"#,
            ],
            expect![[r#"
                Event [Started { id: Some("i"), model: None }]
                Event [Delta { choice: 0, kind: Text }]
                Event [Delta { choice: 0, kind: Text }]
                Event [ToolStart, Delta { choice: 0, kind: Tool }]
                Event [Delta { choice: 0, kind: Tool }]
                Event []
                Event []
                Event [Delta { choice: 0, kind: Reasoning }]
                Event [Delta { choice: 0, kind: Text }]
                Event []
                Last [Usage(Usage { input: Some(28), output: Some(3), cache_read: Some(4), cache_write: None, reasoning: None }), Finished { choice: 0, reason: "COMPLETE" }]
                Terminator []
                Last [Failed { kind: Some("INTERNAL") }, Finished { choice: 0, reason: "ERROR" }]
                Unknown []
            "#]],
        );
    }

    #[test]
    fn lines_of_v1() {
        check(
            ChatV1.reader(),
            &[
                r#"{"is_finished":false,"event_type":"stream-start","generation_id":"g"}"#,
                r#"{"is_finished":false,"event_type":"text-generation","text":"a"}"#,
                r#"{"is_finished":false,"event_type":"tool-calls-chunk","tool_call_delta":{"index":0,"name":"f"}}"#,
                r#"{"is_finished":false,"event_type":"tool-calls-chunk","tool_call_delta":{"index":0,"parameters":"{"}}"#,
                r#"{"is_finished":false,"event_type":"tool-calls-generation","tool_calls":[{"name":"f","parameters":{}}]}"#,
                r#"{"is_finished":true,"event_type":"stream-end","response":{"response_id":"r","generation_id":"g","text":"a","meta":{"billed_units":{"input_tokens":4,"output_tokens":2}}},"finish_reason":"COMPLETE"}"#,
            ],
            expect![[r#"
                Event [Started { id: Some("g"), model: None }]
                Event [Delta { choice: 0, kind: Text }]
                Event [ToolStart, Delta { choice: 0, kind: Tool }]
                Event [Delta { choice: 0, kind: Tool }]
                Event []
                Last [Usage(Usage { input: Some(4), output: Some(2), cache_read: None, cache_write: None, reasoning: None }), Finished { choice: 0, reason: "COMPLETE" }]
            "#]],
        );
    }
}
