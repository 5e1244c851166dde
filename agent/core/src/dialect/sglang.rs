//! SGLang's own `/generate` (`wire.md` §2): `text` is all of the output so far, or the piece that is new, by a switch of the server;
//! how it grows tells which. `meta_info` stands in every event and counts the tokens so far, so the first event's own are known.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead};
use crate::inference::{Operation, ServerTiming, Usage};
use crate::name::Name;

use super::body::{Asked, Class, Count, ErrorField, Few, Length, Number, Word, object, objects};
use super::growth::Growth;
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// Choices that are told apart.
const MAX_CHOICES: usize = 128;

/// `POST /generate`.
#[derive(Debug)]
pub struct Generate;

impl Dialect for Generate {
    fn about(&self) -> &'static About {
        &About {
            api: "sglang.generate",
            doc: "SGLang, native: text so far or in pieces",
            paths: &["/generate"],
            operation: Operation::TextCompletion,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let path = head.path.trim_end_matches('/');
        let own =
            head.method == Method::Post && path.ends_with("/generate") && !path.contains("/v2/models/") && !path.ends_with("/api/generate");
        if own { Match::Likely } else { Match::No }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.text.0 || asked.input_ids.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(GenerateReader::default())
    }

    fn counts_by_choice(&self) -> bool {
        true
    }

    fn provider(&self) -> Option<&'static str> {
        Some("sglang")
    }
}

/// An event of a stream, or (one of) the answers.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow)]
    text: Word<'a>,
    /// Tokens instead of text, or beside it (`return_token_ids`, `skip_tokenizer_init`).
    output_ids: Length,
    index: Count,
    #[serde(borrow)]
    meta_info: Few<Meta<'a>>,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta<'a> {
    #[serde(borrow)]
    id: Word<'a>,
    prompt_tokens: Count,
    completion_tokens: Count,
    cached_tokens: Count,
    e2e_latency: Number,
    finish_reason: Few<Finish<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Finish<'a> {
    #[serde(borrow)]
    r#type: Word<'a>,
    status_code: Class,
    err_type: Class,
}

/// One of several answers to a request.
#[derive(Debug, Default)]
struct Choice {
    index: u64,
    growth: Growth,
    /// Its tokens so far.
    tokens: Option<u64>,
}

#[derive(Debug, Default)]
struct GenerateReader {
    started: bool,
    choices: Vec<Choice>,
}

impl Reader for GenerateReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        let data = frame.data.trim_ascii();
        if data.starts_with(b"[DONE]") {
            return FrameKind::Terminator;
        }
        object::<Event<'_>>(data).map_or(FrameKind::BadJson, |event| self.event(&event, 0, out))
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(events) = objects::<Event<'_>>(body) else { return FrameKind::BadJson };
        let mut kind = FrameKind::Unknown;
        for (n, event) in events.iter().enumerate() {
            kind = self.event(event, n as u64, out);
            if kind == FrameKind::Unknown {
                break;
            }
        }
        kind
    }
}

impl GenerateReader {
    fn event(&mut self, event: &Event<'_>, place: u64, out: &mut Vec<LlmEvent>) -> FrameKind {
        if event.error.is {
            out.push(LlmEvent::Failed { kind: event.error.kind.clone() });
            return FrameKind::Perhaps;
        }
        let Some(meta) = event.meta_info.first() else { return FrameKind::Unknown };
        if event.text.0.is_none() && event.output_ids.0.is_none() {
            return FrameKind::Unknown;
        }
        if let Some(id) = meta.id.text().filter(|_| !self.started).and_then(Name::new) {
            self.started = true;
            out.push(LlmEvent::Started { id: Some(id), model: None });
        }
        let index = event.index.0.unwrap_or(place);
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let room = self.choices.len() < MAX_CHOICES;
        let choice = match self.choices.iter().position(|c| c.index == index) {
            Some(n) => self.choices.get_mut(n),
            None if room => {
                self.choices.push(Choice { index, ..Choice::default() });
                self.choices.last_mut()
            }
            None => None,
        };
        if let Some(choice) = choice {
            let counted = meta.completion_tokens.0;
            let new = match &event.text.0 {
                Some(text) => choice.growth.is_new(text),
                // Ids only: there is output where there are more of them.
                None => event.output_ids.0 > Some(0) && (counted.is_none() || counted > choice.tokens),
            };
            choice.tokens = counted.or(choice.tokens);
            out.extend(new.then_some(LlmEvent::Delta { choice: number, kind: Output::Text }));
        }
        // Each choice counts its own output.
        let output = self.choices.iter().filter_map(|c| c.tokens).reduce(u64::saturating_add);
        out.push(LlmEvent::Usage(Usage { input: meta.prompt_tokens.0, output, cache_read: meta.cached_tokens.0, ..Usage::default() }));
        if let Some(finish) = meta.finish_reason.first() {
            let failed = finish.err_type.0.clone().or_else(|| finish.status_code.0.clone());
            out.extend(failed.map(|kind| LlmEvent::Failed { kind: Some(kind) }));
            out.extend(finish.r#type.text().and_then(Name::new).map(|reason| LlmEvent::Finished { choice: number, reason }));
            if let Some(total) = meta.e2e_latency.0.filter(|s| *s >= 0.0) {
                out.push(LlmEvent::Server(ServerTiming { total: Some(total), ..ServerTiming::default() }));
            }
        }
        FrameKind::Event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deltas(texts: &[(&str, u64)]) -> Vec<usize> {
        let mut reader = GenerateReader::default();
        let mut read = |(text, n): &(&str, u64)| {
            let data = serde_json::json!({"text": text, "meta_info": {"id": "i", "prompt_tokens": 3, "completion_tokens": n, "finish_reason": null}});
            let mut out = Vec::new();
            let data = data.to_string();
            assert_eq!(reader.frame(Frame { data: data.as_bytes(), ..Frame::default() }, &mut out), FrameKind::Event);
            assert!(out.contains(&LlmEvent::Usage(Usage { input: Some(3), output: Some(*n), ..Usage::default() })));
            out.iter().filter(|e| matches!(e, LlmEvent::Delta { .. })).count()
        };
        texts.iter().map(&mut read).collect()
    }

    #[test]
    fn all_so_far_or_pieces() {
        assert_eq!(deltas(&[("a", 1), ("ab", 2), ("ab", 3), ("ab c\n", 5), ("ab c\n", 5)]), [1, 1, 0, 1, 0]);
        assert_eq!(deltas(&[("a", 1), ("b", 2), ("b", 3), ("", 3)]), [1, 1, 1, 0]);
    }

    #[test]
    fn several_answers_errors_and_the_end() {
        let mut reader = GenerateReader::default();
        let mut out = Vec::new();
        let body = r#"[{"text":"a","meta_info":{"id":"i","prompt_tokens":3,"completion_tokens":4,"finish_reason":{"type":"length","length":4},"e2e_latency":0.5}},
            {"text":"b","meta_info":{"prompt_tokens":3,"completion_tokens":5,"finish_reason":{"type":"abort","status_code":400,"err_type":"BadRequestError"}}}]"#;
        assert_eq!(reader.answer(body.as_bytes(), &mut out), FrameKind::Event);
        let usage = out.iter().rev().find_map(|e| if let LlmEvent::Usage(u) = e { u.output } else { None });
        assert_eq!(usage, Some(9));
        assert!(out.contains(&LlmEvent::Failed { kind: Name::new("BadRequestError") }));
        assert!(out.contains(&LlmEvent::Finished { choice: 0, reason: Name::new("length").unwrap() }));
        out.clear();
        assert_eq!(reader.frame(Frame { data: b"[DONE]", ..Frame::default() }, &mut out), FrameKind::Terminator);
        assert_eq!(reader.frame(Frame { data: br#"{"error":{"message":"m"}}"#, ..Frame::default() }, &mut out), FrameKind::Perhaps);
        assert_eq!(reader.frame(Frame { data: br#"{"text":"x"}"#, ..Frame::default() }, &mut out), FrameKind::Unknown);
        assert_eq!(out, [LlmEvent::Failed { kind: None }]);
    }
}
