//! Ollama's own API: chat, generate, embeddings (`wire.md` §2, §8; ollama/ollama docs/api.md). One JSON object a line, and the
//! line with `done: true` is the last. `stream` is true unless the request says no.
//!
//! The last line holds the server's own durations in nanoseconds; the time per output token is `eval_duration / eval_count`, as
//! Ollama's users compute it. A count of 0 is left out by the server: absent is not 0, so it stays unknown.

use serde::Deserialize;

use crate::framing::{Frame, Framing};
use crate::http::head::{Method, RequestHead};
use crate::inference::{Operation, ServerTiming, Usage};
use crate::name::Name;

use super::body::{Asked, Count, ErrorField, Few, Flag, IsList, Length, Number, Text, Word, object};
use super::shape::Shape;
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST /api/chat`.
#[derive(Debug)]
pub struct Chat;
/// `POST /api/generate`.
#[derive(Debug)]
pub struct Generate;
/// `POST /api/embed`, and `/api/embeddings` before it.
#[derive(Debug)]
pub struct Embed;

/// The paths are used by others as well (`/api/chat` by many a chat page's own backend).
fn probe(head: &RequestHead, paths: &[&str]) -> Match {
    let path = head.path.trim_end_matches('/');
    let own = head.method == Method::Post && paths.iter().any(|p| path.ends_with(p));
    if own { Match::Likely } else { Match::No }
}

fn lines(asked: &Asked) -> Option<Framing> {
    // Servers that copy the API often call its lines JSON.
    (asked.stream.0 != Some(false)).then_some(Framing::NdJson)
}

impl Dialect for Chat {
    fn about(&self) -> &'static About {
        &About {
            api: "ollama.chat",
            doc: "Ollama chat: text, thinking, tools; with the server's own durations",
            paths: &["/api/chat"],
            operation: Operation::Chat,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        probe(head, self.about().paths)
    }

    fn confirms(&self, asked: &Asked) -> bool {
        // Chat pages' own back ends have neither in their requests.
        asked.messages.0 && (asked.model.0.is_some() || asked.stream.0.is_some())
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(LineReader::default())
    }

    fn streams(&self, _head: &RequestHead, asked: &Asked) -> Option<bool> {
        Some(asked.stream.0 != Some(false))
    }

    fn provider(&self) -> Option<&'static str> {
        Some("ollama")
    }

    fn framing(&self, _head: &RequestHead, asked: &Asked) -> Option<Framing> {
        lines(asked)
    }
}

impl Dialect for Generate {
    fn about(&self) -> &'static About {
        &About {
            api: "ollama.generate",
            doc: "Ollama completion of a prompt; with the server's own durations",
            paths: &["/api/generate"],
            operation: Operation::TextCompletion,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        probe(head, self.about().paths)
    }

    fn confirms(&self, asked: &Asked) -> bool {
        // Without a prompt the model is only loaded, or unloaded.
        asked.model.0.is_some() && !asked.messages.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(LineReader::default())
    }

    fn streams(&self, _head: &RequestHead, asked: &Asked) -> Option<bool> {
        Some(asked.stream.0 != Some(false))
    }

    fn provider(&self) -> Option<&'static str> {
        Some("ollama")
    }

    fn framing(&self, _head: &RequestHead, asked: &Asked) -> Option<Framing> {
        lines(asked)
    }
}

impl Dialect for Embed {
    fn about(&self) -> &'static About {
        &About {
            api: "ollama.embed",
            doc: "Ollama embeddings, both forms",
            paths: &["/api/embed", "/api/embeddings"],
            operation: Operation::Embeddings,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        probe(head, self.about().paths)
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.model.0.is_some() && (asked.input.0 || asked.prompt.0)
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(EmbedReader)
    }

    fn provider(&self) -> Option<&'static str> {
        Some("ollama")
    }
}

/// A line of a stream, or a whole answer.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow)]
    model: Word<'a>,
    #[serde(borrow)]
    message: Few<Message<'a>>,
    #[serde(borrow)]
    response: Text<'a>,
    #[serde(borrow)]
    thinking: Text<'a>,
    logprobs: Length,
    done: Flag,
    #[serde(borrow)]
    done_reason: Word<'a>,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message<'a> {
    #[serde(borrow)]
    content: Text<'a>,
    #[serde(borrow)]
    thinking: Text<'a>,
    #[serde(borrow)]
    tool_calls: Few<ToolCall<'a>>,
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
}

/// Counts, and durations in nanoseconds. They stand in the last line only, and are read only there.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Totals {
    total_duration: Number,
    load_duration: Number,
    prompt_eval_duration: Number,
    eval_duration: Number,
    prompt_eval_count: Count,
    eval_count: Count,
}

fn seconds(nanoseconds: Number) -> Option<f64> {
    nanoseconds.0.filter(|n| *n >= 0.0).map(|n| n / 1e9)
}

impl Totals {
    fn events(&self, out: &mut Vec<LlmEvent>) {
        let (input, output) = (self.prompt_eval_count.0, self.eval_count.0);
        if input.is_some() || output.is_some() {
            out.push(LlmEvent::Usage(Usage { input, output, ..Usage::default() }));
        }
        let decode = seconds(self.eval_duration);
        let timing = ServerTiming {
            load: seconds(self.load_duration),
            prefill: seconds(self.prompt_eval_duration),
            decode,
            total: seconds(self.total_duration),
            tpot: decode.zip(output.filter(|n| *n > 0)).map(|(s, n)| s / n as f64),
            ..ServerTiming::default()
        };
        if timing != ServerTiming::default() {
            out.push(LlmEvent::Server(timing));
        }
    }
}

#[derive(Debug, Default)]
struct LineReader {
    started: bool,
    shape: Shape,
}

impl Reader for LineReader {
    fn shape(&self) -> Option<&Shape> {
        Some(&self.shape)
    }

    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        if let Some(event) = self.shape.event(frame) {
            out.push(event);
            return FrameKind::Event;
        }
        let Some(line) = object::<Line<'_>>(frame.data) else { return FrameKind::BadJson };
        let before = out.len();
        let (kind, only) = self.line(&line, frame.data, out);
        if let (Some((text, output)), 1, FrameKind::Event) = (only, out.len() - before, kind) {
            self.shape.learn(frame, text, 0, output);
        }
        kind
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        object::<Line<'_>>(body).map_or(FrameKind::BadJson, |line| self.line(&line, body, out).0)
    }
}

impl LineReader {
    fn line<'a>(&mut self, line: &Line<'a>, data: &[u8], out: &mut Vec<LlmEvent>) -> (FrameKind, Option<(&'a str, Output)>) {
        if line.error.is {
            out.push(LlmEvent::Failed { kind: line.error.kind.clone() });
            return (FrameKind::Perhaps, None);
        }
        // Every line says whether it is the last.
        let Some(done) = line.done.0 else { return (FrameKind::Unknown, None) };
        if let Some(model) = line.model.text().filter(|_| !self.started).and_then(Name::new) {
            self.started = true;
            out.push(LlmEvent::Started { id: None, model: Some(model) });
        }
        let message = line.message.first();
        let texts = [
            (message.map(|m| m.thinking).unwrap_or_default(), Output::Reasoning),
            (line.thinking, Output::Reasoning),
            (message.map(|m| m.content).unwrap_or_default(), Output::Text),
            (line.response, Output::Text),
        ];
        let mut only = None;
        for (text, kind) in texts.iter().filter(|(text, _)| text.is_text()) {
            out.push(LlmEvent::Delta { choice: 0, kind: *kind });
            if let Text::Here(text) = text {
                only = Some((*text, *kind));
            }
        }
        // Calls arrive whole.
        let calls = message.map(|m| &m.tool_calls).filter(|calls| !calls.is_empty());
        for call in calls.into_iter().flat_map(Few::iter) {
            if call.function.first().is_some_and(|f| f.name.is_text()) {
                out.push(LlmEvent::ToolStart);
            }
        }
        out.extend(calls.map(|_| LlmEvent::Delta { choice: 0, kind: Output::Tool }));
        out.extend(line.logprobs.0.filter(|n| *n > 0).map(LlmEvent::Tokens));
        if !done {
            return (FrameKind::Event, only);
        }
        if let Some(totals) = object::<Totals>(data) {
            totals.events(out);
        }
        out.extend(line.done_reason.text().and_then(Name::new).map(|reason| LlmEvent::Finished { choice: 0, reason }));
        (FrameKind::Last, None)
    }
}

/// An answer with embeddings.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Embedded<'a> {
    #[serde(borrow)]
    model: Word<'a>,
    embeddings: IsList,
    embedding: IsList,
    error: ErrorField,
}

#[derive(Debug)]
struct EmbedReader;

impl Reader for EmbedReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        self.answer(frame.data, out)
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(answer) = object::<Embedded<'_>>(body) else { return FrameKind::BadJson };
        if answer.error.is {
            out.push(LlmEvent::Failed { kind: answer.error.kind });
            return FrameKind::Perhaps;
        }
        if !answer.embeddings.0 && !answer.embedding.0 {
            return FrameKind::Unknown;
        }
        out.extend(answer.model.text().and_then(Name::new).map(|model| LlmEvent::Started { id: None, model: Some(model) }));
        if let Some(totals) = object::<Totals>(body) {
            totals.events(out);
        }
        FrameKind::Event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(lines: &[&str], want: Expect) {
        let mut reader = LineReader::default();
        let mut log = String::new();
        for line in lines {
            let mut out = Vec::new();
            let kind = reader.frame(Frame { data: line.as_bytes(), ..Frame::default() }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        want.assert_eq(&log);
    }

    #[test]
    fn lines_of_both_kinds() {
        check(
            &[
                r#"{"model":"m","created_at":"x","message":{"role":"assistant","content":"","thinking":"hm"},"done":false}"#,
                r#"{"model":"m","message":{"role":"assistant","content":"a","thinking":"b"},"done":false}"#,
                r#"{"model":"m","message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{}}},{"function":{"name":"g","arguments":{"a":1}}}]},"done":false}"#,
                r#"{"model":"m","response":"a\n","logprobs":[{"token":"a"},{"token":"\n"}],"done":false}"#,
                r#"{"model":"m","response":"","done":true,"done_reason":"stop","context":[1,2],"total_duration":4000000000,"load_duration":1000000000,"prompt_eval_duration":500000000,"eval_count":4,"eval_duration":2000000000}"#,
                r#"{"error":"out of memory"}"#,
                r#"{"model":"m"}"#,
                "[1]",
            ],
            expect![[r#"
                Event [Started { id: None, model: Some("m") }, Delta { choice: 0, kind: Reasoning }]
                Event [Delta { choice: 0, kind: Reasoning }, Delta { choice: 0, kind: Text }]
                Event [ToolStart, ToolStart, Delta { choice: 0, kind: Tool }]
                Event [Delta { choice: 0, kind: Text }, Tokens(2)]
                Last [Usage(Usage { input: None, output: Some(4), cache_read: None, cache_write: None, reasoning: None }), Server(ServerTiming { queue: None, prefill: Some(0.5), ttft: None, tpot: Some(0.5), decode: Some(2.0), total: Some(4.0), load: Some(1.0) }), Finished { choice: 0, reason: "stop" }]
                Perhaps [Failed { kind: None }]
                Unknown []
                BadJson []
            "#]],
        );
    }

    #[test]
    fn embeddings_of_both_kinds() {
        let mut out = Vec::new();
        assert_eq!(EmbedReader.answer(br#"{"model":"m","embeddings":[[0.1]],"prompt_eval_count":3}"#, &mut out), FrameKind::Event);
        assert_eq!(EmbedReader.answer(br#"{"embedding":[0.1]}"#, &mut out), FrameKind::Event);
        assert_eq!(out.len(), 2);
        assert_eq!(EmbedReader.answer(br#"{"model":"m"}"#, &mut out), FrameKind::Unknown);
    }
}
