//! OpenAI Responses (`wire.md` §4), as OpenAI, Azure, xAI, DeepSeek, vLLM, Ollama and Bedrock's compatible endpoint speak it.
//!
//! What an event carries is told by its type alone, and the same types travel on WebSockets (Responses over `wss`, Realtime):
//! [`delta_kind`] and [`EventReader`] serve them all. `….done` mirrors repeat what the deltas said and are no output; neither is a
//! tool's result.
//!
//! `GET …/responses/{id}?stream=true` sends an existing response again: its operation is `fetch_response`, its usage is left out, and
//! it is in no metric.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{MediaType, Method, RequestHead, Upgrade};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Class, Count, ErrorField, Few, Object, Text, Word, object};
use super::conversation::Conversation;
use super::shape::Shape;
use super::turns::{Kind, Turns};
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST …/responses`, and the same response sent again.
#[derive(Debug)]
pub struct Responses;

/// Whether this asks for an existing response as a stream: `…/responses/{id}?stream=true`.
fn fetches(head: &RequestHead) -> bool {
    let mut segments = head.path.trim_end_matches('/').rsplit('/');
    head.method == Method::Other
        && head.query.stream
        && segments.next().is_some_and(|id| !id.is_empty())
        && segments.next() == Some("responses")
}

/// Whether this is the path as OpenAI, Azure, or a server at the root has it.
fn ours(head: &RequestHead) -> bool {
    let path = head.path.trim_end_matches('/');
    path == "/responses" || path.ends_with("/v1/responses") || path.ends_with("/openai/responses")
}

impl Dialect for Responses {
    fn about(&self) -> &'static About {
        &About {
            api: "openai.responses",
            doc: "OpenAI Responses and compatible servers (Azure, xAI, DeepSeek, vLLM, Ollama, Bedrock); an existing response that is sent again",
            paths: &["/v1/responses", "/openai/responses", "/responses/{id}?stream=true"],
            operation: Operation::Chat,
        }
    }

    fn operation(&self, head: &RequestHead) -> Operation {
        if fetches(head) { Operation::FetchResponse } else { Operation::Chat }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let json = matches!(head.media, MediaType::Json | MediaType::Missing);
        match head.method {
            Method::Post if ours(head) => Match::Certain,
            // Answers to a survey are called so as well: body and answer decide.
            Method::Post if json && head.path.trim_end_matches('/').ends_with("/responses") => Match::Likely,
            Method::Post if json && !head.anthropic => Match::Maybe,
            _ if fetches(head) => Match::Certain,
            _ if head.upgrade == Some(Upgrade::WebSocket) => {
                if head.path.trim_end_matches('/').ends_with("/responses") {
                    Match::Certain
                } else {
                    Match::Maybe
                }
            }
            _ => Match::No,
        }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        // A stored prompt may stand for the input. Messages are a chat's, but where the path is ours they do not say otherwise: on
        // other paths the chat comes first.
        asked.input.0 || asked.prompt.1 || asked.messages.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(EventReader::default())
    }

    fn conversation(&self) -> Option<Box<dyn Conversation>> {
        Some(Box::new(Turns::new(Kind::Responses)))
    }

    fn streams(&self, head: &RequestHead, asked: &Asked) -> Option<bool> {
        if fetches(head) { Some(true) } else { asked.stream.0 }
    }
}

/// What the `delta` of an event of this type is; `None` when it is no output. Names of Realtime, and of its beta, are among them.
pub(super) fn delta_kind(event: &str) -> Option<Output> {
    Some(match event.strip_prefix("response.")?.strip_suffix(".delta")? {
        "output_text" | "text" | "refusal" | "audio" | "audio.transcript" => Output::Text,
        "output_audio" | "output_audio_transcript" | "audio_transcript" => Output::Text,
        "reasoning_text" => Output::Reasoning,
        "reasoning_summary_text" => Output::Summary,
        "function_call_arguments" | "custom_tool_call_input" | "mcp_call_arguments" => Output::Tool,
        "code_interpreter_call_code" | "shell_call_command" => Output::Tool,
        _ => return None,
    })
}

/// An event, or a whole response.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow)]
    r#type: Word<'a>,
    #[serde(borrow)]
    delta: Text<'a>,
    #[serde(borrow)]
    item: Object<Item<'a>>,
    #[serde(borrow)]
    response: Object<Response<'a>>,
    usage: Object<UsageField>,
    error: ErrorField,
    code: Class,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Response<'a> {
    #[serde(borrow)]
    object: Word<'a>,
    #[serde(borrow)]
    id: Word<'a>,
    #[serde(borrow)]
    model: Word<'a>,
    #[serde(borrow)]
    status: Word<'a>,
    #[serde(borrow)]
    incomplete_details: Object<Incomplete<'a>>,
    error: ErrorField,
    usage: Object<UsageField>,
    #[serde(borrow)]
    output: Option<Few<Item<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Incomplete<'a> {
    #[serde(borrow)]
    reason: Word<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Item<'a> {
    #[serde(borrow)]
    r#type: Word<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    content: Text<'a>,
    #[serde(borrow)]
    summary: Text<'a>,
}

impl Item<'_> {
    /// Whether this is a call that the model makes, not its result.
    fn is_call(&self) -> bool {
        self.r#type.text().is_some_and(|t| t.contains("call") && !t.contains("output"))
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct UsageField {
    input_tokens: Count,
    output_tokens: Count,
    input_tokens_details: Object<InputDetails>,
    output_tokens_details: Object<OutputDetails>,
    // Realtime's names.
    input_token_details: Object<InputDetails>,
    output_token_details: Object<OutputDetails>,
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

impl UsageField {
    fn counts(&self) -> Usage {
        let input = self.input_tokens_details.0.as_ref().or(self.input_token_details.0.as_ref());
        let output = self.output_tokens_details.0.as_ref().or(self.output_token_details.0.as_ref());
        Usage {
            input: self.input_tokens.0,
            output: self.output_tokens.0,
            cache_read: input.and_then(|i| i.cached_tokens.0),
            cache_write: input.and_then(|i| i.cache_write_tokens.0),
            reasoning: output.and_then(|o| o.reasoning_tokens.0),
        }
    }
}

/// Reads events of one response, or a whole one.
#[derive(Debug, Default)]
pub(super) struct EventReader {
    named: bool,
    shape: Shape,
}

impl Reader for EventReader {
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
        if let Some(output) = delta_kind(kind) {
            if event.delta.is_text() {
                out.push(LlmEvent::Delta { choice: 0, kind: output });
            }
            if let Text::Here(text) = event.delta {
                self.shape.learn(frame, text, 0, output);
            }
            return FrameKind::Event;
        }
        let response = event.response.0.as_ref();
        if let Some(r) = response {
            self.started(r, out);
        }
        match kind {
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" | "response.done" => {
                let usage = response.and_then(|r| r.usage.0.as_ref()).or(event.usage.0.as_ref()).map(UsageField::counts);
                // xAI's Realtime leaves the inner usage empty and puts the counts beside the response.
                let beside = || event.usage.0.as_ref().map(UsageField::counts);
                let usage = usage.filter(|u| *u != Usage::default()).or_else(beside);
                out.extend(usage.map(LlmEvent::Usage));
                match response {
                    Some(r) => ended(r, out),
                    None => {
                        out.extend(Name::new(kind.trim_start_matches("response.")).map(|reason| LlmEvent::Finished { choice: 0, reason }))
                    }
                }
                FrameKind::Last
            }
            "response.output_item.added" => {
                // The name of a tool is generated text, and the only output of a call without arguments.
                if event.item.0.as_ref().is_some_and(|item| item.is_call() && item.name.is_text()) {
                    out.extend([LlmEvent::ToolStart, LlmEvent::Delta { choice: 0, kind: Output::Tool }]);
                }
                FrameKind::Event
            }
            "keepalive" | "ping" => FrameKind::KeepAlive,
            _ if kind == "error" || event.error.is => {
                out.push(LlmEvent::Failed { kind: event.error.kind.clone().or_else(|| event.code.0.clone()) });
                // Others say it so as well.
                FrameKind::Perhaps
            }
            _ if kind.starts_with("response.") => FrameKind::Event,
            _ => FrameKind::Unknown,
        }
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(response) = object::<Response<'_>>(body) else { return FrameKind::BadJson };
        let items = response.output.iter().flat_map(Few::iter).any(|item| item.r#type.text().is_some());
        if response.object.text() != Some("response") && !items && !response.error.is {
            return FrameKind::Unknown;
        }
        self.started(&response, out);
        for item in response.output.iter().flat_map(Few::iter) {
            let kinds = match item.r#type.text() {
                Some("message") => [(item.content.is_text(), Output::Text), (false, Output::Text)],
                Some("reasoning") => [(item.content.is_text(), Output::Reasoning), (item.summary.is_text(), Output::Summary)],
                _ => [(item.is_call(), Output::Tool), (false, Output::Tool)],
            };
            if item.is_call() && item.name.is_text() {
                out.push(LlmEvent::ToolStart);
            }
            out.extend(kinds.into_iter().filter(|(is, _)| *is).map(|(_, kind)| LlmEvent::Delta { choice: 0, kind }));
        }
        out.extend(response.usage.0.as_ref().map(|u| LlmEvent::Usage(u.counts())));
        ended(&response, out);
        if response.object.text() == Some("response") || items { FrameKind::Event } else { FrameKind::Perhaps }
    }
}

impl EventReader {
    /// The response's id and model, when they are said for the first time.
    fn started(&mut self, response: &Response<'_>, out: &mut Vec<LlmEvent>) {
        let (id, model) = (response.id.text().and_then(Name::new), response.model.text().and_then(Name::new));
        if !self.named && (id.is_some() || model.is_some()) {
            self.named = true;
            out.push(LlmEvent::Started { id, model });
        }
    }
}

/// What the status of a response says: its end as `status` or `status:reason`, or nothing while it is still being made (a response in
/// the background).
fn ended(response: &Response<'_>, out: &mut Vec<LlmEvent>) {
    let status = response.status.text().filter(|s| !matches!(*s, "queued" | "in_progress"));
    let why = response.incomplete_details.0.as_ref().and_then(|d| d.reason.text());
    let reason = status.and_then(|status| match why {
        Some(why) => Name::new(&format!("{status}:{why}")),
        None => Name::new(status),
    });
    out.extend(reason.map(|reason| LlmEvent::Finished { choice: 0, reason }));
    if response.error.is || status == Some("failed") {
        out.push(LlmEvent::Failed { kind: response.error.kind.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::request;
    use expect_test::{Expect, expect};

    fn check(frames: &[&str], want: Expect) {
        let (mut reader, mut log) = (EventReader::default(), String::new());
        for frame in frames {
            let (name, data) = frame.split_once('|').unwrap_or(("", frame));
            let mut out = Vec::new();
            let kind = reader.frame(Frame { name: name.as_bytes(), data: data.as_bytes(), error: false }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        want.assert_eq(&log);
    }

    #[test]
    fn a_stream_with_everything() {
        check(
            &[
                r#"{"type":"response.created","sequence_number":0,"response":{"id":"r1","model":"m","status":"in_progress","usage":null}}"#,
                r#"{"type":"response.reasoning_summary_text.delta","sequence_number":1,"delta":"hm"}"#,
                r#"{"type":"response.reasoning_summary_text.delta","sequence_number":2,"delta":"so"}"#,
                r#"{"type":"response.reasoning_summary_text.done","sequence_number":3,"text":"hmso"}"#,
                r#"{"type":"response.output_item.added","item":{"type":"function_call","name":"f","arguments":""}}"#,
                r#"{"type":"response.output_item.added","item":{"type":"function_call_output","name":"f"}}"#,
                r#"{"type":"response.function_call_arguments.delta","delta":"{}"}"#,
                r#"{"type":"response.shell_call_output_content.delta","delta":"ls"}"#,
                r#"{"type":"response.output_text.delta","delta":""}"#,
                r#"response.audio.transcript.delta|{"delta":"a \"word\""}"#,
                r#"{"type":"keepalive"}"#,
                r#"{"type":"error","code":"server_error","message":"some words","param":null}"#,
                r#"{"type":"error","error":{"type":"invalid","code":"other","message":"m"}}"#,
                r#"{"type":"response.failed","response":{"id":"r1","status":"failed","error":{"code":"server_error","message":"m"},"usage":null}}"#,
                r#"{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"usage":{"input_tokens":9,"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0}}}}"#,
                r#"{"type":"response.done","response":{"status":"completed","usage":{}},"usage":{"input_tokens":5,"output_tokens":42,"input_token_details":{"cached_tokens":1}}}"#,
                r#"{"type":"response.done"}"#,
                "[DONE]",
                "[]",
                r#"{"type":"session.created"}"#,
            ],
            expect![[r#"
                Event [Started { id: Some("r1"), model: Some("m") }]
                Event [Delta { choice: 0, kind: Summary }]
                Event [Delta { choice: 0, kind: Summary }]
                Event []
                Event [ToolStart, Delta { choice: 0, kind: Tool }]
                Event []
                Event [Delta { choice: 0, kind: Tool }]
                Event []
                Event []
                Event [Delta { choice: 0, kind: Text }]
                KeepAlive []
                Perhaps [Failed { kind: Some("server_error") }]
                Perhaps [Failed { kind: Some("invalid") }]
                Last [Finished { choice: 0, reason: "failed" }, Failed { kind: Some("server_error") }]
                Last [Usage(Usage { input: Some(9), output: Some(0), cache_read: None, cache_write: None, reasoning: Some(0) }), Finished { choice: 0, reason: "incomplete:max_output_tokens" }]
                Last [Usage(Usage { input: Some(5), output: Some(42), cache_read: Some(1), cache_write: None, reasoning: None }), Finished { choice: 0, reason: "completed" }]
                Last [Finished { choice: 0, reason: "done" }]
                Terminator []
                BadJson []
                Unknown []
            "#]],
        );
    }

    #[test]
    fn which_requests() {
        let probe =
            |line: &str| Responses.probe(&request(format!("{line} HTTP/1.1\r\ncontent-type: application/json").as_bytes()).unwrap());
        let operation = |line: &str| Responses.operation(&request(format!("{line} HTTP/1.1").as_bytes()).unwrap());
        assert_eq!(probe("POST /v1/responses"), Match::Certain);
        assert_eq!(probe("POST /openai/responses?api-version=1"), Match::Certain);
        assert_eq!(probe("POST /responses"), Match::Certain);
        assert_eq!(probe("POST /surveys/7/responses"), Match::Likely);
        assert_eq!(probe("GET /v1/responses/resp_1?stream=true&starting_after=4"), Match::Certain);
        assert_eq!(operation("GET /v1/responses/resp_1?stream=true&starting_after=4"), Operation::FetchResponse);
        assert_eq!(operation("POST /v1/responses"), Operation::Chat);
        for other in ["GET /v1/responses/resp_1", "GET /v1/responses/resp_1/input_items?stream=true", "GET /v1/responses?stream=true"] {
            assert_eq!(probe(other), Match::No, "{other}");
        }
        assert_eq!(probe("POST /v1/responses/resp_1/cancel"), Match::Maybe);
    }
}
