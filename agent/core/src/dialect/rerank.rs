//! Rerank: an order of relevance for documents. Cohere's form is spoken by Jina, Voyage, vLLM, SGLang and others; TEI's answer is a
//! bare list. Nothing is generated: what may be counted is the input.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead, ResponseHead};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Count, ErrorField, Few, IsThere, Word, object, objects};
use super::{About, Dialect, FrameKind, LlmEvent, Match, Reader, cohere, tgi};

/// `POST …/rerank` with `documents`.
#[derive(Debug)]
pub struct Cohere;
/// `POST /rerank` with `texts`.
#[derive(Debug)]
pub struct Tei;

impl Dialect for Cohere {
    fn about(&self) -> &'static About {
        &About {
            api: "cohere.rerank",
            doc: "Rerank as Cohere, Jina, Voyage, vLLM and SGLang speak it",
            paths: &["/rerank"],
            operation: Operation::Rerank,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        cohere::probe(head, self.about().paths)
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.query.0 && asked.documents.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(RankReader)
    }
}

impl Dialect for Tei {
    fn about(&self) -> &'static About {
        &About {
            api: "tei.rerank",
            doc: "Rerank of Hugging Face's text-embeddings-inference",
            paths: &["/rerank"],
            operation: Operation::Rerank,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let own = head.method == Method::Post && head.path.trim_end_matches('/').ends_with("/rerank");
        if own { Match::Likely } else { Match::No }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.query.0 && asked.texts.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ListReader)
    }
}

/// An answer: `results` (Voyage: `data`) with indexes and scores.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Ranked<'a> {
    #[serde(borrow)]
    id: Word<'a>,
    #[serde(borrow)]
    model: Word<'a>,
    results: Few<Rank>,
    data: Few<Rank>,
    usage: Few<Counted>,
    meta: Few<Meta>,
    error: ErrorField,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Rank {
    index: Count,
    relevance_score: IsThere,
    score: IsThere,
}

impl Rank {
    fn is(&self) -> bool {
        self.index.0.is_some() && (self.relevance_score.0 || self.score.0)
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Counted {
    prompt_tokens: Count,
    total_tokens: Count,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    billed_units: Few<Billed>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Billed {
    input_tokens: Count,
}

#[derive(Debug)]
struct RankReader;

impl Reader for RankReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        self.answer(frame.data, out)
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(answer) = object::<Ranked<'_>>(body) else { return FrameKind::BadJson };
        if answer.error.is {
            out.push(LlmEvent::Failed { kind: answer.error.kind });
            return FrameKind::Perhaps;
        }
        let counted = answer.usage.first();
        let billed = answer.meta.first().and_then(|m| m.billed_units.first()).and_then(|b| b.input_tokens.0);
        // All tokens of a rerank are input: where only the total is given, it is the input.
        let input = billed.or_else(|| counted.and_then(|c| c.prompt_tokens.0.or(c.total_tokens.0)));
        let ranked = answer.results.iter().chain(answer.data.iter()).all(Rank::is);
        if !ranked || answer.results.is_empty() && answer.data.is_empty() && counted.is_none() && answer.meta.is_empty() {
            return FrameKind::Unknown;
        }
        let (id, model) = (answer.id.text().and_then(Name::new), answer.model.text().and_then(Name::new));
        if id.is_some() || model.is_some() {
            out.push(LlmEvent::Started { id, model });
        }
        out.extend(input.map(|n| LlmEvent::Usage(Usage { input: Some(n), ..Usage::default() })));
        FrameKind::Event
    }
}

/// A bare list of indexes and scores.
#[derive(Debug)]
struct ListReader;

impl Reader for ListReader {
    fn head(&mut self, head: &ResponseHead, out: &mut Vec<LlmEvent>) {
        tgi::from_head(head, out);
    }

    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        self.answer(frame.data, out)
    }

    fn answer(&mut self, body: &[u8], _: &mut Vec<LlmEvent>) -> FrameKind {
        match objects::<Rank>(body) {
            Some(ranks) if body.trim_ascii_start().starts_with(b"[") && ranks.iter().all(Rank::is) => FrameKind::Event,
            Some(_) => FrameKind::Unknown,
            None => FrameKind::BadJson,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> (FrameKind, Vec<LlmEvent>) {
        let mut out = Vec::new();
        (RankReader.answer(body.as_bytes(), &mut out), out)
    }

    #[test]
    fn everybodys_counts() {
        let input = |body: &str| match read(body) {
            (FrameKind::Event, out) => out.iter().find_map(|e| if let LlmEvent::Usage(u) = e { u.input } else { None }),
            (kind, _) => panic!("{kind:?} {body}"),
        };
        assert_eq!(input(r#"{"id":"i","results":[{"index":1,"relevance_score":0.9}],"meta":{"billed_units":{"search_units":1}}}"#), None);
        assert_eq!(input(r#"{"results":[{"index":1,"relevance_score":0.9}],"meta":{"billed_units":{"input_tokens":9}}}"#), Some(9));
        assert_eq!(input(r#"{"model":"m","results":[{"index":0,"relevance_score":1,"document":{}}],"usage":{"total_tokens":7}}"#), Some(7));
        assert_eq!(input(r#"{"object":"list","data":[{"relevance_score":1,"index":0}],"usage":{"total_tokens":5}}"#), Some(5));
        assert_eq!(input(r#"{"results":[],"usage":{"prompt_tokens":3,"total_tokens":4}}"#), Some(3));
        assert_eq!(read(r#"{"results":[{"title":"x"}]}"#).0, FrameKind::Unknown);
        assert_eq!(read("{}").0, FrameKind::Unknown);
    }

    #[test]
    fn a_bare_list() {
        let mut out = Vec::new();
        assert_eq!(ListReader.answer(br#"[{"index":1,"score":0.9},{"index":0,"score":0.1,"text":"t"}]"#, &mut out), FrameKind::Event);
        assert_eq!(ListReader.answer(br#"[{"id":1}]"#, &mut out), FrameKind::Unknown);
        assert_eq!(ListReader.answer(br#"{"index":1,"score":0.9}"#, &mut out), FrameKind::Unknown);
        assert_eq!(ListReader.answer(b"[[0.1]]", &mut out), FrameKind::BadJson);
        assert!(out.is_empty());
    }
}
