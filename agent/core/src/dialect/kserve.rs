//! The inference protocol of KServe and Triton over gRPC (triton-inference-server/common@02b8e9f3:protobuf/grpc_service.proto), as far as
//! language models speak it: vLLM's and TensorRT-LLM's backends for Triton, which take `text_input` or ids and give `text_output`
//! or ids. Most models that are served so write no text; a request is known by the names of its tensors.
//!
//! Counts of tokens come where they were asked for (triton-inference-server/vllm_backend@00aa413b:docs/additional_outputs.md):
//! `num_output_tokens` counts one response. TensorRT-LLM has an output of that name, of another type and undocumented: not read.

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Count, IsThere, Short};
use super::protobuf::{Fields, Malformed, Value};
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// Tensors by which a request to a language model is known: vLLM's backend and TensorRT-LLM's ensemble; TensorRT-LLM itself.
const PROMPTS: [&str; 2] = ["text_input", "input_ids"];
/// An input that only a generating model has, beside ids.
const GENERATES: [&str; 2] = ["request_output_len", "text_input"];
/// Outputs that are generated: text, ids.
const OUTPUTS: [&str; 2] = ["text_output", "output_ids"];
/// Tensors of one message that are looked at.
const MAX_TENSORS: usize = 64;

/// `ModelInfer` and `ModelStreamInfer`.
#[derive(Debug)]
pub struct Infer;

impl Infer {
    const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
}

impl Dialect for Infer {
    fn about(&self) -> &'static About {
        &About {
            api: "kserve.model_infer",
            doc: "KServe's and Triton's inference over gRPC, where a language model is asked",
            paths: &["/inference.GRPCInferenceService/ModelInfer", Self::STREAM],
            operation: Operation::TextCompletion,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        match head.method {
            Method::Post if self.about().paths.contains(&&*head.path) => Match::Maybe,
            _ => Match::No,
        }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.text_input.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(InferReader::default())
    }

    fn streams(&self, head: &RequestHead, _asked: &Asked) -> Option<bool> {
        Some(&*head.path == Self::STREAM)
    }

    fn asked(&self, message: &[u8]) -> Option<Asked> {
        let mut asked = Asked::default();
        let (mut prompt, mut generates, mut bound, mut tensors, mut raw) = (false, false, None, 0, 0);
        Fields::of(message)
            .each(|number, value| match (number, value) {
                (1, value) => asked.model = Short(value.text().and_then(Name::new)),
                (5, Value::Bytes(tensor)) => {
                    let name = Fields::of(tensor).flatten().find(|f| f.0 == 1).and_then(|f| f.1.text()).unwrap_or_default();
                    prompt |= PROMPTS.contains(&name);
                    generates |= GENERATES.contains(&name);
                    if matches!(name, "max_tokens" | "request_output_len") {
                        bound = Some(tensors);
                    }
                    tensors += 1;
                }
                // The contents of the tensors, in their order.
                (7, Value::Bytes(content)) => {
                    if bound == Some(raw) {
                        asked.max_tokens = Count(little_endian(content));
                    }
                    raw += 1;
                }
                _ => {}
            })
            .ok()?;
        asked.text_input = IsThere(prompt && generates);
        Some(asked)
    }
}

/// The first number of a tensor of 32-bit integers.
fn little_endian(content: &[u8]) -> Option<u64> {
    content.first_chunk().map(|n| u64::from(u32::from_le_bytes(*n)))
}

/// The first of the strings of a tensor: each has its length before it.
fn string(content: &[u8]) -> Option<&[u8]> {
    let (length, rest) = content.split_first_chunk()?;
    rest.get(..usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

/// Reads messages.
#[derive(Debug, Default)]
struct InferReader {
    started: bool,
    output: Option<u64>,
    /// Counts may be missing in `output`.
    short: bool,
}

/// What a `ModelInferResponse` says.
#[derive(Default)]
struct Said<'a> {
    model: Option<&'a str>,
    id: Option<&'a str>,
    last: bool,
    tensors: Vec<Tensor<'a>>,
    contents: Vec<&'a [u8]>,
}

/// An output.
#[derive(Clone, Copy, Default)]
struct Tensor<'a> {
    name: &'a str,
    kind: &'a str,
    /// `InferTensorContents`, where the content is not raw.
    content: Option<&'a [u8]>,
}

impl<'a> Said<'a> {
    fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut said = Self::default();
        Fields::of(message).each(|number, value| match (number, value) {
            (1, value) => said.model = value.text(),
            (3, value) => said.id = value.text(),
            (4, Value::Bytes(entry)) => said.last |= is_last(entry),
            (5, Value::Bytes(tensor)) if said.tensors.len() < MAX_TENSORS => {
                let mut found = Tensor::default();
                for (number, value) in Fields::of(tensor).flatten() {
                    match number {
                        1 => found.name = value.text().unwrap_or_default(),
                        2 => found.kind = value.text().unwrap_or_default(),
                        5 => found.content = value.bytes(),
                        _ => {}
                    }
                }
                said.tensors.push(found);
            }
            (6, Value::Bytes(content)) if said.contents.len() < MAX_TENSORS => said.contents.push(content),
            _ => {}
        })?;
        Ok(said)
    }

    /// The outputs with their contents: raw, or the strings and integers of `InferTensorContents`.
    fn outputs(&self) -> impl Iterator<Item = (Tensor<'a>, Content<'a>)> + '_ {
        self.tensors.iter().enumerate().map(|(n, tensor)| {
            let content = match (tensor.content, self.contents.get(n)) {
                (Some(typed), _) => Content::Typed(typed),
                (None, raw) => Content::Raw(raw.copied().unwrap_or_default()),
            };
            (*tensor, content)
        })
    }
}

/// A tensor's content.
#[derive(Clone, Copy)]
enum Content<'a> {
    Raw(&'a [u8]),
    Typed(&'a [u8]),
}

impl<'a> Content<'a> {
    /// The first string.
    fn string(self) -> Option<&'a [u8]> {
        match self {
            Self::Raw(raw) => string(raw),
            // bytes_contents.
            Self::Typed(typed) => Fields::of(typed).flatten().find(|f| f.0 == 8).and_then(|f| f.1.bytes()),
        }
    }

    /// The first integer.
    fn integer(self) -> Option<u64> {
        match self {
            Self::Raw(raw) => little_endian(raw),
            // uint_contents, packed or not.
            Self::Typed(typed) => match Fields::of(typed).flatten().find(|f| f.0 == 4)?.1 {
                Value::Varint(n) => Some(n),
                Value::Bytes(packed) => Fields::varints(packed).next(),
                _ => None,
            },
        }
    }

    fn is_empty(self) -> bool {
        matches!(self, Self::Raw([]) | Self::Typed([]))
    }
}

/// Whether an entry of a response's parameters is `triton_final_response: true`.
fn is_last(entry: &[u8]) -> bool {
    let mut parts = [None; 3];
    for (number, value) in Fields::of(entry).flatten() {
        if let Some(part) = parts.get_mut(number as usize) {
            *part = value.bytes();
        }
    }
    // InferParameter: bool_param is field 1.
    let value = parts[2].and_then(|p| Fields::of(p).flatten().find(|f| f.0 == 1)).and_then(|f| f.1.integer());
    parts[1] == Some(b"triton_final_response") && value == Some(1)
}

impl InferReader {
    fn response(&mut self, message: &[u8], out: &mut Vec<LlmEvent>) -> Result<FrameKind, Malformed> {
        let said = Said::read(message)?;
        let known = said.tensors.iter().any(|t| OUTPUTS.contains(&t.name));
        if !known {
            // Triton ends a stream with a response that has no outputs; what has others is not ours.
            return Ok(match (said.last, said.tensors.is_empty()) {
                (true, true) => FrameKind::Terminator,
                _ => FrameKind::Unknown,
            });
        }
        if !self.started {
            self.started = true;
            let name = |text: Option<&str>| text.and_then(Name::new);
            out.push(LlmEvent::Started { id: name(said.id), model: name(said.model) });
        }
        let mut usage = Usage::default();
        for (tensor, content) in said.outputs() {
            match (tensor.name, tensor.kind) {
                ("text_output", _) if content.string().is_some_and(|text| !text.is_empty()) => {
                    out.push(LlmEvent::Delta { choice: 0, kind: Output::Text });
                }
                ("output_ids", _) if !content.is_empty() => out.push(LlmEvent::Delta { choice: 0, kind: Output::Text }),
                ("finish_reason", "BYTES") => {
                    let reason = content.string().and_then(|r| std::str::from_utf8(r).ok()).filter(|r| *r != "None").and_then(Name::new);
                    out.extend(reason.map(|reason| LlmEvent::Finished { choice: 0, reason }));
                }
                ("num_input_tokens", "UINT32") => usage.input = content.integer(),
                ("num_output_tokens", "UINT32") => {
                    let more = content.integer().unwrap_or(0);
                    self.output = Some(self.output.unwrap_or(0).saturating_add(more));
                    usage.output = self.output.filter(|_| !self.short);
                }
                _ => {}
            }
        }
        if usage != Usage::default() {
            out.push(LlmEvent::Usage(usage));
        }
        Ok(if said.last { FrameKind::Last } else { FrameKind::Event })
    }
}

impl Reader for InferReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        // `ModelStreamInferResponse` is an error's text and the response as field 2; `ModelInfer` answers with the response itself,
        // whose fields 1 and 2 are the model's name and version.
        let (mut error, mut inner, mut whole) = (false, None, false);
        let read = Fields::of(frame.data).each(|number, value| match (number, value) {
            (1, Value::Bytes(text)) => error = !text.is_empty(),
            (2, value) => inner = value.bytes(),
            (3..=6, _) => whole = true,
            _ => {}
        });
        let read = read.and_then(|()| match (whole, inner) {
            (true, _) => self.response(frame.data, out),
            (false, Some(response)) if !error => self.response(response, out),
            (false, _) if error => {
                out.push(LlmEvent::Failed { kind: None });
                Ok(FrameKind::Event)
            }
            _ => Ok(FrameKind::Unknown),
        });
        read.unwrap_or(FrameKind::BadJson)
    }

    fn hole(&mut self) {
        self.short = true;
    }

    fn answer(&mut self, _body: &[u8], _out: &mut Vec<LlmEvent>) -> FrameKind {
        FrameKind::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::build::{Message, read};
    use super::*;
    use expect_test::expect;

    fn tensor(name: &str, kind: &str) -> Message {
        Message::default().bytes(1, name).bytes(2, kind).packed(3, &[1])
    }

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
    }

    fn last() -> Message {
        Message::default().bytes(1, "triton_final_response").bytes(2, Message::default().int(1, 1))
    }

    fn response() -> Message {
        Message::default().bytes(1, "vllm_model").bytes(2, "1").bytes(3, "r-1")
    }

    #[test]
    fn a_stream_of_texts_with_their_counts() {
        let stream = |m: Message| Message::default().bytes(2, m);
        let say = |t: &str, n: u32| {
            let outputs = response().bytes(5, tensor("text_output", "BYTES")).bytes(5, tensor("num_output_tokens", "UINT32"));
            outputs.bytes(5, tensor("num_input_tokens", "UINT32")).bytes(6, text(t)).bytes(6, n.to_le_bytes()).bytes(6, 7u32.to_le_bytes())
        };
        let reason = response().bytes(5, tensor("finish_reason", "BYTES")).bytes(5, tensor("text_output", "BYTES"));
        let messages = [
            stream(say("a", 1)),
            stream(say("bc", 2)),
            stream(say("", 1)),
            stream(reason.bytes(6, text("stop")).bytes(6, text("d"))),
            stream(response().bytes(4, last())),
        ];
        expect![[r#"
            Event started Some("r-1") Some("vllm_model"), delta 0, usage 7 1 -
            Event delta 0, usage 7 3 -
            Event usage 7 4 -
            Event finished 0 "stop", delta 0
            Terminator 
        "#]]
        .assert_eq(&read(&mut InferReader::default(), &messages));
    }

    #[test]
    fn other_outputs_and_errors() {
        let typed = tensor("text_output", "BYTES").bytes(5, Message::default().bytes(8, "text"));
        let ids = response().bytes(5, tensor("output_ids", "INT32")).bytes(6, [1, 0, 0, 0]);
        let messages = [
            response().bytes(5, typed),
            ids.bytes(4, last()),
            response().bytes(5, tensor("probabilities", "FP32")).bytes(6, [0; 8]),
            Message::default().bytes(1, "no such model"),
            Message::default(),
            Message(vec![0x0b]),
            Message::default().bytes(2, [0x0b]),
        ];
        expect![[r#"
            Event started Some("r-1") Some("vllm_model"), delta 0
            Last delta 0
            Unknown 
            Event failed None
            Unknown 
            BadJson 
            BadJson 
        "#]]
        .assert_eq(&read(&mut InferReader::default(), &messages));
    }

    #[test]
    fn only_requests_to_language_models_are_ours() {
        let request = |names: &[&str]| names.iter().fold(Message::default().bytes(1, "m"), |m, n| m.bytes(5, tensor(n, "BYTES")));
        let ours = |names: &[&str]| Infer.confirms(&Infer.asked(&request(names).0).unwrap());
        assert!(ours(&["text_input", "stream"]) && ours(&["input_ids", "input_lengths", "request_output_len"]));
        assert!(!ours(&["image"]) && !ours(&["input_ids", "attention_mask"]) && !ours(&[]));
        let bounded = request(&["text_input", "max_tokens"]).bytes(7, text("prompt")).bytes(7, 64u32.to_le_bytes());
        let asked = Infer.asked(&bounded.0).unwrap();
        assert_eq!((asked.model.0.unwrap().as_str(), asked.max_tokens.0), ("m", Some(64)));
        assert_eq!(Infer.asked(&[0x0b]), None);
    }
}
