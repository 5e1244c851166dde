//! Gemini and Vertex: `generateContent`, `streamGenerateContent` and embeddings (`wire.md` §7).
//!
//! A stream is SSE with `alt=sse`, else a JSON array in pieces; its end is the bracket or the end of the body, never a `finishReason`
//! (some servers put one on every chunk). Every chunk carries usage, cumulative: candidates do not include thoughts, our output
//! does. Enums may be integers. Thoughts are summaries by the vendor's documentation; thought signatures and results of
//! executed code are no output. A blocked prompt has no candidate at all: its `blockReason` is the finish reason.

use serde::Deserialize;

use crate::framing::{Frame, Framing};
use crate::http::head::{Method, RequestHead, percent_decoded};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Class, Count, ErrorField, Few, Flag, IsThere, Object, Text, Word, object};
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST …/models/{model}:generateContent` and `:streamGenerateContent`.
#[derive(Debug)]
pub struct Generate;
/// `POST …/models/{model}:embedContent`, `:batchEmbedContents`, and Vertex' `:predict` of an embedding model.
#[derive(Debug)]
pub struct Embed;

/// The method behind the last colon of a path: Google's custom methods (AIP-136).
pub(super) fn custom_method(head: &RequestHead) -> Option<&str> {
    let path = head.path.trim_end_matches('/');
    let (before, method) = path.rsplit_once(':').or_else(|| path.rsplit_once("%3A")).or_else(|| path.rsplit_once("%3a"))?;
    (head.method == Method::Post && !before.is_empty() && !method.contains('/')).then_some(method)
}

/// The model before that colon.
pub(super) fn model_before_method(head: &RequestHead) -> Option<Name> {
    let method = custom_method(head)?;
    let last = head.path.trim_end_matches('/').rsplit('/').next()?;
    let model = percent_decoded(last.strip_suffix(method)?);
    Name::new(model.strip_suffix(':')?)
}

impl Dialect for Generate {
    fn about(&self) -> &'static About {
        &About {
            api: "gemini.generate_content",
            doc: "Gemini and Vertex: content as SSE, as an array in pieces, and whole",
            paths: &["/models/{model}:streamGenerateContent", "/models/{model}:generateContent"],
            operation: Operation::GenerateContent,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let ours = matches!(custom_method(head), Some("generateContent" | "streamGenerateContent"));
        if ours { Match::Certain } else { Match::No }
    }

    fn confirms(&self, _asked: &Asked) -> bool {
        // No other API has such a path.
        true
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(GenerateReader::default())
    }

    fn model(&self, head: &RequestHead) -> Option<Name> {
        model_before_method(head)
    }

    fn streams(&self, head: &RequestHead, _asked: &Asked) -> Option<bool> {
        Some(custom_method(head) == Some("streamGenerateContent"))
    }

    fn framing(&self, head: &RequestHead, _asked: &Asked) -> Option<Framing> {
        (custom_method(head) == Some("streamGenerateContent") && !head.query.alt_sse).then_some(Framing::Array)
    }

    fn finish_is_last(&self) -> bool {
        false
    }
}

impl Dialect for Embed {
    fn about(&self) -> &'static About {
        &About {
            api: "gemini.embed_content",
            doc: "Gemini and Vertex embeddings",
            paths: &["/models/{model}:embedContent", "/models/{model}:batchEmbedContents"],
            operation: Operation::Embeddings,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        match custom_method(head) {
            Some("embedContent" | "batchEmbedContents" | "asyncBatchEmbedContent") => Match::Certain,
            Some("predict") if model_before_method(head).is_some_and(|m| m.as_str().contains("embedding")) => Match::Certain,
            _ => Match::No,
        }
    }

    fn confirms(&self, _asked: &Asked) -> bool {
        // No other API has such a path.
        true
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(EmbedReader)
    }

    fn model(&self, head: &RequestHead) -> Option<Name> {
        model_before_method(head)
    }
}

/// A chunk of a stream, or a whole answer.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Chunk<'a> {
    #[serde(borrow)]
    candidates: Option<Few<Candidate<'a>>>,
    prompt_feedback: Object<Feedback>,
    usage_metadata: Object<UsageField>,
    #[serde(borrow)]
    model_version: Word<'a>,
    #[serde(borrow)]
    response_id: Word<'a>,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Candidate<'a> {
    index: Count,
    #[serde(borrow)]
    content: Object<Content<'a>>,
    finish_reason: Class,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Content<'a> {
    #[serde(borrow)]
    parts: Option<Few<Part<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Part<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    thought: Flag,
    #[serde(borrow)]
    function_call: Object<FunctionCall<'a>>,
    #[serde(borrow)]
    executable_code: Object<Code<'a>>,
    #[serde(borrow)]
    inline_data: Object<Data<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct FunctionCall<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    args: Text<'a>,
    partial_args: Option<Few<Partial<'a>>>,
}

/// A piece of streamed arguments: one of these holds a value.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Partial<'a> {
    #[serde(borrow)]
    string_value: Text<'a>,
    number_value: IsThere,
    bool_value: IsThere,
    null_value: IsThere,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Code<'a> {
    #[serde(borrow)]
    code: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Data<'a> {
    #[serde(borrow)]
    data: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Feedback {
    block_reason: Class,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct UsageField {
    prompt_token_count: Count,
    tool_use_prompt_token_count: Count,
    candidates_token_count: Count,
    thoughts_token_count: Count,
    cached_content_token_count: Count,
}

impl UsageField {
    fn counts(&self) -> Usage {
        let (candidates, thoughts) = (self.candidates_token_count.0, self.thoughts_token_count.0);
        let output = candidates.unwrap_or(0).saturating_add(thoughts.unwrap_or(0));
        Usage {
            input: self.prompt_token_count.0.map(|n| n.saturating_add(self.tool_use_prompt_token_count.0.unwrap_or(0))),
            output: candidates.or(thoughts).map(|_| output),
            cache_read: self.cached_content_token_count.0,
            cache_write: None,
            reasoning: thoughts,
        }
    }
}

#[derive(Debug, Default)]
struct GenerateReader {
    has_id: bool,
    has_model: bool,
}

impl Reader for GenerateReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        let data = frame.data.trim_ascii();
        if data.starts_with(b"[DONE]") {
            return FrameKind::Terminator;
        }
        self.answer(data, out)
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(chunk) = object::<Chunk<'_>>(body) else { return FrameKind::BadJson };
        let id = chunk.response_id.text().filter(|_| !self.has_id).and_then(Name::new);
        let model = chunk.model_version.text().filter(|_| !self.has_model).and_then(Name::new);
        if id.is_some() || model.is_some() {
            self.has_id |= id.is_some();
            self.has_model |= model.is_some();
            out.push(LlmEvent::Started { id, model });
        }
        for (i, candidate) in chunk.candidates.iter().flat_map(Few::iter).enumerate() {
            let index = candidate.index.0.and_then(|n| u32::try_from(n).ok()).unwrap_or(i as u32);
            candidate_events(candidate, index, out);
        }
        let blocked = chunk.prompt_feedback.0.as_ref().and_then(|f| said(&f.block_reason));
        out.extend(blocked.map(|reason| LlmEvent::Finished { choice: 0, reason }));
        out.extend(chunk.usage_metadata.0.as_ref().map(|u| LlmEvent::Usage(u.counts())));
        if chunk.error.is {
            out.push(LlmEvent::Failed { kind: chunk.error.kind.clone() });
        }
        let known = chunk.candidates.is_some() || chunk.prompt_feedback.0.is_some() || chunk.usage_metadata.0.is_some() || chunk.error.is;
        if known { FrameKind::Event } else { FrameKind::Unknown }
    }
}

/// The value of an enum, unless it is its zero.
fn said(class: &Class) -> Option<Name> {
    class.0.clone().filter(|name| name.as_str() != "0" && !name.as_str().ends_with("_UNSPECIFIED"))
}

fn candidate_events(candidate: &Candidate<'_>, choice: u32, out: &mut Vec<LlmEvent>) {
    let (mut thought, mut text, mut tool) = (false, false, false);
    for part in candidate.content.0.iter().flat_map(|c| &c.parts).flat_map(Few::iter) {
        let summary = part.thought.0 == Some(true);
        thought |= part.text.is_text() && summary;
        text |= part.text.is_text() && !summary || part.inline_data.0.as_ref().is_some_and(|d| d.data.is_text());
        tool |= part.executable_code.0.as_ref().is_some_and(|c| c.code.is_text());
        if let Some(call) = &part.function_call.0 {
            if call.name.is_text() {
                out.push(LlmEvent::ToolStart);
            }
            let pieces = call.partial_args.iter().flat_map(Few::iter);
            let piece = |p: &Partial<'_>| p.string_value.is_text() || p.number_value.0 || p.bool_value.0 || p.null_value.0;
            tool |= call.name.is_text() || call.args.is_text() || pieces.into_iter().any(piece);
        }
    }
    let kinds = [(thought, Output::Summary), (text, Output::Text), (tool, Output::Tool)];
    out.extend(kinds.into_iter().filter(|(is, _)| *is).map(|(_, kind)| LlmEvent::Delta { choice, kind }));
    out.extend(said(&candidate.finish_reason).map(|reason| LlmEvent::Finished { choice, reason }));
}

/// An answer with embeddings, as Gemini or as Vertex gives it.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Embeddings {
    embedding: IsThere,
    embeddings: IsThere,
    predictions: Option<Few<Prediction>>,
    usage_metadata: Object<UsageField>,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Prediction {
    embeddings: Object<Embedding>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Embedding {
    statistics: Object<Statistics>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Statistics {
    token_count: Count,
}

#[derive(Debug)]
struct EmbedReader;

impl Reader for EmbedReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        self.answer(frame.data, out)
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(answer) = object::<Embeddings>(body) else { return FrameKind::BadJson };
        let statistics = answer.predictions.iter().flat_map(Few::iter).filter_map(|p| p.embeddings.0.as_ref()?.statistics.0.as_ref());
        let counted = statistics.filter_map(|s| s.token_count.0).reduce(u64::saturating_add);
        let usage = answer.usage_metadata.0.as_ref().map(UsageField::counts);
        let usage = usage.or_else(|| counted.map(|n| Usage { input: Some(n), ..Usage::default() }));
        out.extend(usage.map(LlmEvent::Usage));
        if answer.error.is {
            out.push(LlmEvent::Failed { kind: answer.error.kind.clone() });
        }
        let known = answer.embedding.0 || answer.embeddings.0 || answer.predictions.is_some() || answer.error.is;
        if known { FrameKind::Event } else { FrameKind::Unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::request;
    use expect_test::{Expect, expect};

    fn check(mut reader: impl Reader, frames: &[&str], want: Expect) {
        let mut log = String::new();
        for frame in frames {
            let mut out = Vec::new();
            let kind = reader.frame(Frame { name: b"", data: frame.as_bytes(), error: false }, &mut out);
            log.push_str(&format!("{kind:?} {out:?}\n"));
        }
        want.assert_eq(&log);
    }

    #[test]
    fn chunks_of_every_kind() {
        check(
            GenerateReader::default(),
            &[
                r#"{"candidates":[{"content":{"parts":[{"text":"hm","thought":true}]}}],"usageMetadata":{"promptTokenCount":9,"thoughtsTokenCount":4},"modelVersion":"m","responseId":"r"}"#,
                r#"{"candidates":[{"content":{"parts":[{"text":"a","thought":true},{"text":"b"}]},"finishReason":1,"index":2}],"modelVersion":"m"}"#,
                r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{}}},{"functionCall":{"name":"g"}}]},"finishReason":"STOP"}]}"#,
                r#"{"candidates":[{"content":{"parts":[{"functionCall":{"partialArgs":[{"jsonPath":"$.a","stringValue":""}],"willContinue":true}}]}}]}"#,
                r#"{"candidates":[{"content":{"parts":[{"functionCall":{"partialArgs":[{"jsonPath":"$.a","numberValue":0}]}}]}}]}"#,
                r#"{"candidates":[{"content":{"parts":[{"executableCode":{"language":1,"code":"1+1"}},{"codeExecutionResult":{"outcome":1,"output":"2"}}]}}]}"#,
                r#"{"candidates":[{"content":{"parts":[{"codeExecutionResult":{"outcome":1,"output":"2"}},{"text":"","thoughtSignature":"c2ln"}]},"finishReason":0}]}"#,
                r#"{"candidates":[{"content":{"parts":[{"inlineData":{"mimeType":"audio/L16","data":"AAAA"}}]}}]}"#,
                r#"{"candidates":[{"finishReason":"MAX_TOKENS","content":{}}],"usageMetadata":{"promptTokenCount":9,"toolUsePromptTokenCount":3,"candidatesTokenCount":5,"thoughtsTokenCount":4,"cachedContentTokenCount":2}}"#,
                r#"{"promptFeedback":{"blockReason":"SAFETY","safetyRatings":[]}}"#,
                r#"{"error":{"code":499,"message":"words","status":"CANCELLED"}}"#,
                r#"{"totalTokens":31}"#,
                r#"[{"candidates":[]}]"#,
                "[DONE]",
            ],
            expect![[r#"
                Event [Started { id: Some("r"), model: Some("m") }, Delta { choice: 0, kind: Summary }, Usage(Usage { input: Some(9), output: Some(4), cache_read: None, cache_write: None, reasoning: Some(4) })]
                Event [Delta { choice: 2, kind: Summary }, Delta { choice: 2, kind: Text }, Finished { choice: 2, reason: "1" }]
                Event [ToolStart, ToolStart, Delta { choice: 0, kind: Tool }, Finished { choice: 0, reason: "STOP" }]
                Event []
                Event [Delta { choice: 0, kind: Tool }]
                Event [Delta { choice: 0, kind: Tool }]
                Event []
                Event [Delta { choice: 0, kind: Text }]
                Event [Finished { choice: 0, reason: "MAX_TOKENS" }, Usage(Usage { input: Some(12), output: Some(9), cache_read: Some(2), cache_write: None, reasoning: Some(4) })]
                Event [Finished { choice: 0, reason: "SAFETY" }]
                Event [Failed { kind: Some("CANCELLED") }]
                Unknown []
                BadJson []
                Terminator []
            "#]],
        );
    }

    #[test]
    fn embeddings() {
        check(
            EmbedReader,
            &[
                r#"{"embedding":{"values":[0.1]}}"#,
                r#"{"embeddings":[{"values":[0.1]}],"usageMetadata":{"promptTokenCount":7}}"#,
                r#"{"predictions":[{"embeddings":{"statistics":{"token_count":4}}},{"embeddings":{"statistics":{"token_count":5.0}}}]}"#,
                r#"{"error":{"code":400}}"#,
                r#"{"other":1}"#,
                "7",
            ],
            expect![[r#"
                Event []
                Event [Usage(Usage { input: Some(7), output: None, cache_read: None, cache_write: None, reasoning: None })]
                Event [Usage(Usage { input: Some(9), output: None, cache_read: None, cache_write: None, reasoning: None })]
                Event [Failed { kind: Some("400") }]
                Unknown []
                BadJson []
            "#]],
        );
    }

    #[test]
    fn paths() {
        let head = |path: &str| request(format!("POST {path} HTTP/1.1").as_bytes()).unwrap();
        let stream = head("/v1beta/models/gemini-x:streamGenerateContent?key=secret");
        assert_eq!((Generate.probe(&stream), Generate.framing(&stream, &Asked::default())), (Match::Certain, Some(Framing::Array)));
        assert_eq!(Generate.model(&stream).unwrap().as_str(), "gemini-x");
        let sse = head("/v1/projects/p/locations/l/publishers/google/models/g%401:streamGenerateContent?%24alt=sse");
        assert_eq!((Generate.framing(&sse, &Asked::default()), Generate.streams(&sse, &Asked::default())), (None, Some(true)));
        assert_eq!(Generate.model(&sse).unwrap().as_str(), "g@1");
        let whole = head("/v1/models/m%3AgenerateContent");
        assert_eq!((Generate.probe(&whole), Generate.streams(&whole, &Asked::default())), (Match::Certain, Some(false)));
        assert_eq!(Generate.model(&whole).unwrap().as_str(), "m");
        for other in ["/v1beta/models/m:countTokens", "/v1beta/models/generateContent", "/v1/x:y/z", ":generateContent"] {
            assert_eq!((Generate.probe(&head(other)), Embed.probe(&head(other))), (Match::No, Match::No), "{other}");
        }
        assert_eq!(Embed.probe(&head("/v1beta/models/m:batchEmbedContents")), Match::Certain);
        assert_eq!(Embed.probe(&head("/v1/p/models/text-embedding-5:predict")), Match::Certain);
        assert_eq!(Embed.probe(&head("/v1/p/models/image-5:predict")), Match::No);
    }
}
