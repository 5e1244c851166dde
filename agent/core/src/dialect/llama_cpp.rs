//! llama.cpp's server in its own tongue (`wire.md` §2, §3): `/completion`, the same at `/completions` (which OpenAI's API also uses:
//! the body decides, or the answer), and `/infill`. `timings` is the server's own figure; where it stands in every event, or
//! `tokens_predicted` does, the first event's own tokens are known. Progress of the prompt is no output.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead};
use crate::inference::{Operation, ServerTiming, Usage};
use crate::name::Name;

use super::body::{Asked, Count, ErrorField, Few, Flag, IsThere, Length, Number, Text, Word};
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// Answers that are told apart.
const MAX_ANSWERS: usize = 128;

/// `POST /completion`.
#[derive(Debug)]
pub struct Completion;

impl Dialect for Completion {
    fn about(&self) -> &'static About {
        &About {
            api: "llama_cpp.completion",
            doc: "llama.cpp's server, native: completion and infill; with the server's own timings",
            paths: &["/completion", "/completions", "/infill"],
            operation: Operation::TextCompletion,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let path = head.path.trim_end_matches('/');
        let foreign = ["/v1/completions", "/chat/completions", "/fim/completions"].iter().any(|p| path.ends_with(p))
            || path.contains("/deployments/")
            || path.contains("/openai/");
        let own = head.method == Method::Post && !foreign && self.about().paths.iter().any(|p| path.ends_with(p));
        if own { Match::Likely } else { Match::No }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        (asked.prompt.0 || asked.input_prefix.0) && !asked.messages.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(CompletionReader::default())
    }

    fn counts_by_choice(&self) -> bool {
        true
    }

    fn provider(&self) -> Option<&'static str> {
        Some("llama_cpp")
    }
}

/// An event of a stream, or a whole answer.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow)]
    content: Text<'a>,
    stop: Flag,
    index: Count,
    #[serde(borrow)]
    model: Word<'a>,
    /// The ids of the event's tokens, where they were asked for.
    tokens: Length,
    /// One entry per token of the event, where probabilities were asked for.
    completion_probabilities: Length,
    tokens_predicted: Count,
    tokens_evaluated: Count,
    #[serde(borrow)]
    stop_type: Word<'a>,
    stopped_eos: Flag,
    stopped_word: Flag,
    stopped_limit: Flag,
    timings: Few<Timings>,
    prompt_progress: IsThere,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Timings {
    cache_n: Count,
    prompt_ms: Number,
    predicted_ms: Number,
    predicted_per_token_ms: Number,
}

fn seconds(ms: Number) -> Option<f64> {
    ms.0.filter(|v| *v >= 0.0).map(|v| v / 1000.0)
}

/// One of several prompts' answers.
#[derive(Debug)]
struct Answer {
    index: u32,
    input: Option<u64>,
    output: Option<u64>,
    stopped: bool,
}

#[derive(Debug, Default)]
struct CompletionReader {
    started: bool,
    answers: Vec<Answer>,
}

impl Reader for CompletionReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        let data = frame.data.trim_ascii();
        if data.starts_with(b"[DONE]") {
            return FrameKind::Terminator;
        }
        if frame.name == b"error" {
            // The field `error:` holds the error itself.
            out.push(LlmEvent::Failed { kind: super::body::http_error_kind(data) });
            return FrameKind::Perhaps;
        }
        let Some(event) = super::body::object::<Event<'_>>(data) else { return FrameKind::BadJson };
        self.event(&event, 0, true, out)
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        // Several prompts have several answers.
        let Some(events) = super::body::objects::<Event<'_>>(body) else { return FrameKind::BadJson };
        let mut kind = FrameKind::Unknown;
        for (n, event) in events.iter().enumerate() {
            kind = self.event(event, n as u32, false, out);
        }
        if kind == FrameKind::Last { FrameKind::Event } else { kind }
    }
}

impl CompletionReader {
    fn event(&mut self, event: &Event<'_>, place: u32, stream: bool, out: &mut Vec<LlmEvent>) -> FrameKind {
        if event.error.is {
            out.push(LlmEvent::Failed { kind: event.error.kind.clone() });
            return FrameKind::Perhaps;
        }
        let Some(stop) = event.stop.0 else {
            // Older servers send progress without it.
            return if event.prompt_progress.0 { FrameKind::Event } else { FrameKind::Unknown };
        };
        if let Some(model) = event.model.text().filter(|_| !self.started).and_then(Name::new) {
            self.started = true;
            out.push(LlmEvent::Started { id: None, model: Some(model) });
        }
        let choice = event.index.0.and_then(|n| u32::try_from(n).ok()).unwrap_or(place);
        // In a stream the last event has no text of its own.
        if event.content.is_text() && (!stop || !stream) {
            out.push(LlmEvent::Delta { choice, kind: Output::Text });
        }
        if let Some(n) = event.tokens.0.max(event.completion_probabilities.0).filter(|n| *n > 0 && !stop) {
            out.push(LlmEvent::Tokens(n));
        }
        let timings = event.timings.first();
        let (input, output) = self.counts(event, choice, stop);
        if input.is_some() || output.is_some() {
            let cache_read = timings.and_then(|t| t.cache_n.0);
            out.push(LlmEvent::Usage(Usage { input, output, cache_read, ..Usage::default() }));
        }
        if let Some(t) = timings {
            out.push(LlmEvent::Server(ServerTiming {
                prefill: seconds(t.prompt_ms),
                decode: seconds(t.predicted_ms),
                tpot: seconds(t.predicted_per_token_ms),
                ..ServerTiming::default()
            }));
        }
        if !stop {
            return FrameKind::Event;
        }
        let flags = [(event.stopped_eos, "eos"), (event.stopped_word, "word"), (event.stopped_limit, "limit")];
        let older = flags.iter().find(|(flag, _)| flag.0 == Some(true)).map(|(_, name)| *name);
        let reason = event.stop_type.text().filter(|t| *t != "none").or(older).and_then(Name::new);
        out.extend(reason.map(|reason| LlmEvent::Finished { choice, reason }));
        if self.answers.iter().all(|a| a.stopped) { FrameKind::Last } else { FrameKind::Event }
    }

    /// The counts of all answers so far: each counts its own.
    fn counts(&mut self, event: &Event<'_>, index: u32, stopped: bool) -> (Option<u64>, Option<u64>) {
        let (input, output) = (event.tokens_evaluated.0, event.tokens_predicted.0);
        let room = self.answers.len() < MAX_ANSWERS;
        match self.answers.iter_mut().find(|a| a.index == index) {
            Some(answer) => {
                (answer.input, answer.output) = (input.or(answer.input), output.or(answer.output));
                answer.stopped |= stopped;
            }
            None if room => self.answers.push(Answer { index, input, output, stopped }),
            None => {}
        }
        let sum = |of: fn(&Answer) -> Option<u64>| self.answers.iter().filter_map(of).reduce(u64::saturating_add);
        (sum(|a| a.input), sum(|a| a.output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_stream() {
        let mut log = String::new();
        let mut reader = CompletionReader::default();
        for frame in [
            r#"{"index":0,"content":"","tokens":[],"stop":false,"prompt_progress":{"total":9,"cache":0,"processed":4,"time_ms":3}}"#,
            r#"{"index":0,"content":" a","tokens":[5,6],"stop":false,"id_slot":0,"tokens_predicted":2,"tokens_evaluated":9}"#,
            r#"{"index":0,"content":"b","stop":false,"completion_probabilities":[{"id":1}]}"#,
            r#"{"index":0,"content":"","stop":true,"model":"m","tokens_predicted":4,"tokens_evaluated":9,"stop_type":"limit","timings":{"cache_n":3,"prompt_ms":20,"predicted_ms":40,"predicted_per_token_ms":10}}"#,
            r#"{"content":"","stop":true,"stopped_eos":false,"stopped_word":true,"stopped_limit":false}"#,
            "[DONE]",
            r#"{"error":{"code":500,"message":"m","type":"server_error"}}"#,
            r#"error|{"code":500,"message":"m","type":"server_error"}"#,
            r#"{"choices":[]}"#,
        ] {
            let (name, data) = frame.split_once('|').unwrap_or(("", frame));
            let mut out = Vec::new();
            let kind = reader.frame(Frame { name: name.as_bytes(), data: data.as_bytes(), error: false }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        expect![[r#"
            Event []
            Event [Delta { choice: 0, kind: Text }, Tokens(2), Usage(Usage { input: Some(9), output: Some(2), cache_read: None, cache_write: None, reasoning: None })]
            Event [Delta { choice: 0, kind: Text }, Tokens(1), Usage(Usage { input: Some(9), output: Some(2), cache_read: None, cache_write: None, reasoning: None })]
            Last [Started { id: None, model: Some("m") }, Usage(Usage { input: Some(9), output: Some(4), cache_read: Some(3), cache_write: None, reasoning: None }), Server(ServerTiming { queue: None, prefill: Some(0.02), ttft: None, tpot: Some(0.01), decode: Some(0.04), total: None, load: None }), Finished { choice: 0, reason: "limit" }]
            Last [Usage(Usage { input: Some(9), output: Some(4), cache_read: None, cache_write: None, reasoning: None }), Finished { choice: 0, reason: "word" }]
            Terminator []
            Perhaps [Failed { kind: Some("server_error") }]
            Perhaps [Failed { kind: Some("server_error") }]
            Unknown []
        "#]]
        .assert_eq(&log);
    }
}
