//! Triton's generate extension for language models (vLLM and TensorRT-LLM back ends): `text_output`, in pieces or all of it so far,
//! by back end and request; how it grows tells which. There is no usage, no finish reason and no terminator but the stream's end.

use serde::Deserialize;

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead};
use crate::inference::Operation;
use crate::name::Name;

use super::body::{Asked, ErrorField, Word, object};
use super::growth::Growth;
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// `POST /v2/models/{model}/generate_stream`, `…/generate`.
#[derive(Debug)]
pub struct Generate;

impl Dialect for Generate {
    fn about(&self) -> &'static About {
        &About {
            api: "triton.generate",
            doc: "Triton's generate extension (vLLM and TensorRT-LLM back ends)",
            paths: &["/v2/models/{model}/generate_stream", "/v2/models/{model}/generate"],
            operation: Operation::TextCompletion,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let path = head.path.trim_end_matches('/');
        let own = head.method == Method::Post
            && path.contains("/v2/models/")
            && (path.ends_with("/generate_stream") || path.ends_with("/generate"));
        // Models that are none of language are asked in the same way.
        if own { Match::Likely } else { Match::No }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        // The names of the inputs are the model's.
        asked.text_input.0 || asked.prompt.0 || asked.text.0 || asked.input.0 || asked.inputs.0 || asked.query.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(GenerateReader::default())
    }

    fn model(&self, head: &RequestHead) -> Option<Name> {
        let rest = head.path.split("/v2/models/").nth(1)?;
        Name::new(rest.split('/').next()?)
    }

    fn streams(&self, head: &RequestHead, _asked: &Asked) -> Option<bool> {
        Some(head.path.trim_end_matches('/').ends_with("/generate_stream"))
    }

    fn provider(&self) -> Option<&'static str> {
        Some("triton")
    }

    fn ends_with_body(&self) -> bool {
        true
    }
}

/// An event of a stream, or a whole answer.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow)]
    model_name: Word<'a>,
    #[serde(borrow)]
    text_output: Word<'a>,
    error: ErrorField,
}

#[derive(Debug, Default)]
struct GenerateReader {
    started: bool,
    growth: Growth,
}

impl Reader for GenerateReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        self.answer(frame.data.trim_ascii(), out)
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        let Some(event) = object::<Event<'_>>(body) else { return FrameKind::BadJson };
        if event.error.is {
            out.push(LlmEvent::Failed { kind: event.error.kind });
            return FrameKind::Perhaps;
        }
        let Some(text) = &event.text_output.0 else { return FrameKind::Unknown };
        if let Some(model) = event.model_name.text().filter(|_| !self.started).and_then(Name::new) {
            self.started = true;
            out.push(LlmEvent::Started { id: None, model: Some(model) });
        }
        out.extend(self.growth.is_new(text).then_some(LlmEvent::Delta { choice: 0, kind: Output::Text }));
        FrameKind::Event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_errors_and_other_models() {
        let mut reader = GenerateReader::default();
        let mut read = |data: &str| {
            let mut out = Vec::new();
            (reader.frame(Frame { data: data.as_bytes(), ..Frame::default() }, &mut out), out.len())
        };
        assert_eq!(read(r#"{"model_name":"m","model_version":"1","text_output":"a"}"#), (FrameKind::Event, 2));
        assert_eq!(read(r#"{"model_name":"m","text_output":"b"}"#), (FrameKind::Event, 1));
        assert_eq!(read(r#"{"model_name":"m","text_output":""}"#), (FrameKind::Event, 0));
        assert_eq!(read(r#"{"error":"out of memory"}"#), (FrameKind::Perhaps, 1));
        assert_eq!(read(r#"{"model_name":"m","score":0.5}"#), (FrameKind::Unknown, 0));
    }
}
