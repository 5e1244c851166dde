//! Hugging Face's text-generation-inference in its own tongue, and text-embeddings-inference (`wire.md` §2).
//!
//! One event is one token. Special tokens are no output; the last event repeats the whole text in `generated_text`, with the prompt
//! where `return_full_text` was asked for. Nothing terminates the stream but its end; that event is as good.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead, ResponseHead};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Class, Count, ErrorField, Few, Flag, IsList, Length, Word};
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST /generate_stream`, `/generate`, `/`.
#[derive(Debug)]
pub struct Generate;
/// `POST /embed`.
#[derive(Debug)]
pub struct Embed;

impl Dialect for Generate {
    fn about(&self) -> &'static About {
        &About {
            api: "tgi.generate",
            doc: "Hugging Face text-generation-inference, native",
            paths: &["/generate_stream", "/generate", "/invocations", "/"],
            operation: Operation::TextCompletion,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let path = head.path.trim_end_matches('/');
        match head.method {
            // Triton's.
            Method::Post if path.contains("/v2/models/") => Match::No,
            Method::Post if path.ends_with("/generate_stream") || path.ends_with("/generate") => Match::Likely,
            // `inputs` and the answer decide.
            Method::Post if path.is_empty() || path.ends_with("/invocations") || path.contains("/models/") => Match::Maybe,
            _ => Match::No,
        }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.inputs.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(GenerateReader)
    }

    fn streams(&self, head: &RequestHead, asked: &Asked) -> Option<bool> {
        Some(head.path.ends_with("/generate_stream") || asked.stream.0 == Some(true) && !head.path.ends_with("/generate"))
    }

    fn provider(&self) -> Option<&'static str> {
        Some("hugging_face")
    }
}

impl Dialect for Embed {
    fn about(&self) -> &'static About {
        &About {
            api: "tei.embed",
            doc: "Embeddings of Hugging Face's text-embeddings-inference, native",
            paths: &["/embed", "/embed_all", "/embed_sparse"],
            operation: Operation::Embeddings,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let path = head.path.trim_end_matches('/');
        let own = head.method == Method::Post && self.about().paths.iter().any(|p| path.ends_with(p));
        if own { Match::Likely } else { Match::No }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.inputs.0 && asked.model.0.is_none()
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(EmbedReader)
    }

    fn provider(&self) -> Option<&'static str> {
        Some("hugging_face")
    }
}

/// What the head of an answer says about tokens and times.
pub(super) fn from_head(head: &ResponseHead, out: &mut Vec<LlmEvent>) {
    if let Some((input, output)) = head.tokens.as_deref().copied() {
        out.push(LlmEvent::Usage(Usage { input, output, ..Usage::default() }));
    }
    if let Some(timing) = head.timing.as_deref() {
        out.push(LlmEvent::Server(*timing));
    }
}

/// An event of a stream, or a whole answer.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow)]
    token: Few<Token<'a>>,
    #[serde(borrow)]
    generated_text: Word<'a>,
    #[serde(borrow)]
    details: Few<Details<'a>>,
    error: ErrorField,
    error_type: Class,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Token<'a> {
    #[serde(borrow)]
    text: Word<'a>,
    special: Flag,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details<'a> {
    #[serde(borrow)]
    finish_reason: Word<'a>,
    generated_tokens: Count,
    input_length: Count,
    /// The prompt's tokens, where they were asked for.
    prefill: Length,
}

impl Event<'_> {
    fn end(&self, out: &mut Vec<LlmEvent>) {
        for details in self.details.iter() {
            let input = details.input_length.0.or(details.prefill.0.filter(|n| *n > 0));
            out.push(LlmEvent::Usage(Usage { input, output: details.generated_tokens.0, ..Usage::default() }));
            out.extend(details.finish_reason.text().and_then(Name::new).map(|reason| LlmEvent::Finished { choice: 0, reason }));
        }
    }
}

#[derive(Debug)]
struct GenerateReader;

impl Reader for GenerateReader {
    fn head(&mut self, head: &ResponseHead, out: &mut Vec<LlmEvent>) {
        from_head(head, out);
    }

    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(event) = super::body::object::<Event<'_>>(frame.data.trim_ascii()) else { return FrameKind::BadJson };
        if event.error.is {
            out.push(LlmEvent::Failed { kind: event.error_type.0.or(event.error.kind) });
            return FrameKind::Perhaps;
        }
        let last = event.generated_text.0.is_some() || !event.details.is_empty();
        if event.token.is_empty() && !last {
            return FrameKind::Unknown;
        }
        for token in event.token.iter() {
            out.push(LlmEvent::Tokens(1));
            if token.text.text().is_some() && token.special.0 != Some(true) {
                out.push(LlmEvent::Delta { choice: 0, kind: Output::Text });
            }
        }
        event.end(out);
        if last { FrameKind::Last } else { FrameKind::Event }
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        // `/` answers with a list.
        let Some(answers) = super::body::objects::<Event<'_>>(body) else { return FrameKind::BadJson };
        let Some(answer) = answers.first() else { return FrameKind::Unknown };
        if answer.error.is {
            out.push(LlmEvent::Failed { kind: answer.error_type.0.clone().or_else(|| answer.error.kind.clone()) });
            return FrameKind::Perhaps;
        }
        let Some(text) = &answer.generated_text.0 else { return FrameKind::Unknown };
        out.extend((!text.is_empty()).then_some(LlmEvent::Delta { choice: 0, kind: Output::Text }));
        answer.end(out);
        FrameKind::Event
    }
}

/// A list of embeddings.
#[derive(Debug)]
struct EmbedReader;

impl Reader for EmbedReader {
    fn head(&mut self, head: &ResponseHead, out: &mut Vec<LlmEvent>) {
        from_head(head, out);
    }

    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        self.answer(frame.data, out)
    }

    fn answer(&mut self, body: &[u8], _: &mut Vec<LlmEvent>) -> FrameKind {
        match serde_json::from_slice::<Vec<IsList>>(body) {
            Ok(lists) if lists.iter().all(|l| l.0) => FrameKind::Event,
            Ok(_) => FrameKind::Unknown,
            Err(_) => FrameKind::BadJson,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_stream() {
        let mut log = String::new();
        for frame in [
            r#"{"index":1,"token":{"id":1,"text":" a","logprob":-0.1,"special":false},"generated_text":null,"details":null}"#,
            r#"{"index":2,"token":{"id":2,"text":"</s>","special":true},"generated_text":"prompt a","details":{"finish_reason":"eos_token","generated_tokens":2,"input_length":5}}"#,
            r#"{"token":{"id":3,"text":"b","special":false},"generated_text":"","details":null}"#,
            r#"{"error":"Request failed during generation","error_type":"generation"}"#,
            r#"{"choices":[]}"#,
        ] {
            let mut out = Vec::new();
            let kind = GenerateReader.frame(Frame { data: frame.as_bytes(), ..Frame::default() }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        expect![[r#"
            Event [Tokens(1), Delta { choice: 0, kind: Text }]
            Last [Tokens(1), Usage(Usage { input: Some(5), output: Some(2), cache_read: None, cache_write: None, reasoning: None }), Finished { choice: 0, reason: "eos_token" }]
            Last [Tokens(1), Delta { choice: 0, kind: Text }]
            Perhaps [Failed { kind: Some("generation") }]
            Unknown []
        "#]]
        .assert_eq(&log);
    }

    #[test]
    fn whole_answers() {
        let read = |body: &str| {
            let mut out = Vec::new();
            let kind = GenerateReader.answer(body.as_bytes(), &mut out);
            (kind, out.len())
        };
        assert_eq!(read(r#"[{"generated_text":"x"}]"#), (FrameKind::Event, 1));
        assert_eq!(
            read(r#"{"generated_text":"","details":{"finish_reason":"length","generated_tokens":1,"prefill":[{}]}}"#),
            (FrameKind::Event, 2)
        );
        assert_eq!(read(r#"[{"label":"x","score":1}]"#), (FrameKind::Unknown, 0));
        assert_eq!(read("[[0.1]]"), (FrameKind::BadJson, 0));
        assert_eq!(EmbedReader.answer(b"[[0.1,2],[3]]", &mut Vec::new()), FrameKind::Event);
        assert_eq!(EmbedReader.answer(b"[1]", &mut Vec::new()), FrameKind::Unknown);
    }
}
