//! Engines behind a router that speaks gRPC to them and does the tokenizing: SGLang's scheduler
//! (sgl-project/sglang@04052833:sgl-model-gateway/src/proto/sglang_scheduler.proto), vLLM's engine
//! (vllm-project/vllm@0cdf3ea6:vllm/grpc/vllm_engine.proto, lightseekorg/smg@1ca10c20:crates/grpc_client/proto/vllm_engine.proto) and
//! TensorRT-LLM's (lightseekorg/smg@7abbb1e2:crates/grpc_client/proto/trtllm_service.proto).
//!
//! All three send chunks with the ids of new tokens, which are counted one by one, and at last a message that completes a choice.
//! They disagree in field numbers, and so do versions of one of them; and in whether a chunk's count is cumulative (SGLang) or not
//! (vLLM), and whether the last message repeats the last chunk (vLLM) or stands in its place (SGLang).

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Count, Flag, IsThere, Number};
use super::protobuf::{Fields, Malformed, Value};
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// Choices whose tokens are counted.
const MAX_CHOICES: usize = 128;

/// An engine's interface.
#[derive(Debug)]
pub struct Engine(&'static Spec);

/// What differs between engines.
#[derive(Debug)]
struct Spec {
    about: About,
    request: RequestFields,
    chunk: Numbers,
    complete: Numbers,
    /// The finish reason: a string that a chunk has not at this place.
    reason: u32,
    /// Whether newer versions have no request id, and the chunk in its place.
    bare: bool,
}

/// Field numbers of a request. Where there are several, the first that is there with the right type counts.
#[derive(Debug)]
struct RequestFields {
    sampling: &'static [u32],
    stream: &'static [u32],
    /// In the request itself, or 0.
    max_tokens: u32,
    /// In the sampling parameters.
    temperature: u32,
    top_p: u32,
    sampled_max_tokens: u32,
    n: u32,
}

/// Field numbers of a chunk or of the message that completes a choice. The tokens' ids are field 1.
#[derive(Debug)]
struct Numbers {
    prompt: u32,
    completion: u32,
    cached: u32,
    index: &'static [u32],
}

/// SGLang's scheduler.
pub static SGLANG: Engine = Engine(&Spec {
    about: About {
        api: "sglang.scheduler",
        doc: "SGLang's scheduler over gRPC, behind its router: exact tokens for each chunk",
        paths: &["/sglang.grpc.scheduler.SglangScheduler/Generate"],
        operation: Operation::TextCompletion,
    },
    request: RequestFields { sampling: &[4], stream: &[17], max_tokens: 0, temperature: 1, top_p: 2, sampled_max_tokens: 8, n: 17 },
    chunk: Numbers { prompt: 2, completion: 3, cached: 4, index: &[8] },
    complete: Numbers { prompt: 3, completion: 4, cached: 5, index: &[11] },
    reason: 2,
    bare: false,
});

/// vLLM's engine.
pub static VLLM: Engine = Engine(&Spec {
    about: About {
        api: "vllm.engine",
        doc: "vLLM's engine over gRPC, behind a router: exact tokens for each chunk",
        paths: &["/vllm.grpc.engine.VllmEngine/Generate"],
        operation: Operation::TextCompletion,
    },
    request: RequestFields { sampling: &[4, 3], stream: &[5, 4], max_tokens: 0, temperature: 1, top_p: 2, sampled_max_tokens: 8, n: 15 },
    chunk: Numbers { prompt: 2, completion: 3, cached: 4, index: &[7] },
    complete: Numbers { prompt: 3, completion: 4, cached: 5, index: &[8, 9] },
    reason: 2,
    bare: true,
});

/// TensorRT-LLM's service.
pub static TENSORRT_LLM: Engine = Engine(&Spec {
    about: About {
        api: "tensorrt_llm.service",
        doc: "TensorRT-LLM over gRPC, behind a router: exact tokens for each chunk",
        paths: &["/trtllm.TrtllmService/Generate"],
        operation: Operation::TextCompletion,
    },
    request: RequestFields { sampling: &[3], stream: &[6], max_tokens: 5, temperature: 9, top_p: 4, sampled_max_tokens: 0, n: 2 },
    chunk: Numbers { prompt: 3, completion: 4, cached: 5, index: &[2] },
    complete: Numbers { prompt: 5, completion: 6, cached: 7, index: &[2] },
    reason: 3,
    bare: false,
});

impl Dialect for Engine {
    fn about(&self) -> &'static About {
        &self.0.about
    }

    fn probe(&self, head: &RequestHead) -> Match {
        match head.method {
            Method::Post if self.0.about.paths.contains(&&*head.path) => Match::Certain,
            _ => Match::No,
        }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.text_input.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(EngineReader { spec: self.0, named: false, chunked: None, tokens: Vec::new(), short: false })
    }

    fn counts_by_choice(&self) -> bool {
        true
    }

    fn asked(&self, message: &[u8]) -> Option<Asked> {
        let fields: Vec<(u32, Value<'_>)> = Fields::of(message).collect::<Result<_, _>>().ok()?;
        let r = &self.0.request;
        let stream = r.stream.iter().find_map(|n| fields.iter().find(|(number, _)| number == n)?.1.integer());
        let sampling = r.sampling.iter().find_map(|n| fields.iter().find(|(number, _)| number == n)?.1.bytes());
        // What has its type's zero is not sent.
        let mut asked = Asked { text_input: IsThere(true), stream: Flag(Some(stream.is_some_and(|s| s != 0))), ..Asked::default() };
        let count = |value: Value<'_>| Count(value.integer().filter(|n| *n > 0));
        for (number, value) in sampling.into_iter().flat_map(|s| Fields::of(s).flatten()) {
            match number {
                n if n == r.temperature => asked.temperature = Number(value.float()),
                n if n == r.top_p => asked.top_p = Number(value.float()),
                n if n == r.sampled_max_tokens => asked.max_tokens = count(value),
                n if n == r.n => asked.n = count(value),
                _ => {}
            }
        }
        if let Some((_, value)) = fields.iter().find(|(number, _)| *number == r.max_tokens) {
            asked.max_tokens = count(*value);
        }
        Some(asked)
    }
}

/// Reads messages.
#[derive(Debug)]
struct EngineReader {
    spec: &'static Spec,
    /// Whether the answer's id was told.
    named: bool,
    /// Whether a chunk was read, once anything was.
    chunked: Option<bool>,
    /// Tokens of each choice.
    tokens: Vec<u64>,
    /// Chunks may be missing in `tokens`.
    short: bool,
}

/// What a chunk or the last message of a choice says.
#[derive(Default)]
struct Said<'a> {
    ids: u64,
    prompt: u64,
    completion: u64,
    cached: u64,
    index: usize,
    is_end: bool,
    reason: Option<&'a str>,
}

impl EngineReader {
    /// Reads a chunk, or the message that completes a choice: a finish reason tells it, or its place.
    fn said<'a>(&self, message: &'a [u8], is_end: bool) -> Result<Said<'a>, Malformed> {
        let Spec { reason, chunk, complete, .. } = self.spec;
        let is_reason = |f: (u32, Value<'_>)| f.0 == *reason && f.1.bytes().is_some();
        let is_end = is_end || Fields::of(message).flatten().any(is_reason);
        let numbers = if is_end { complete } else { chunk };
        let mut said = Said { is_end, ..Said::default() };
        let mut index = usize::MAX;
        Fields::of(message).each(|number, value| match value {
            _ if number == 1 => said.ids += value.integers().unwrap_or(0) as u64,
            Value::Bytes(_) if is_end && number == *reason => said.reason = value.text(),
            Value::Varint(n) if number == numbers.prompt => said.prompt = n,
            Value::Varint(n) if number == numbers.completion => said.completion = n,
            Value::Varint(n) if number == numbers.cached => said.cached = n,
            Value::Varint(n) => {
                if let Some(rank) = numbers.index.iter().position(|i| *i == number).filter(|rank| *rank < index) {
                    (index, said.index) = (rank, usize::try_from(n).unwrap_or(usize::MAX));
                }
            }
            _ => {}
        })?;
        Ok(said)
    }

    fn take(&mut self, said: &Said<'_>, out: &mut Vec<LlmEvent>) {
        self.chunked = Some(self.chunked == Some(true) || !said.is_end);
        if said.index >= MAX_CHOICES {
            return;
        }
        if self.tokens.len() <= said.index {
            self.tokens.resize(said.index + 1, 0);
        }
        let choice = said.index as u32;
        let tokens = &mut self.tokens[said.index];
        let before = *tokens;
        // Of the last message only what goes beyond the chunks is new.
        let ids = if said.is_end { 0 } else { said.ids };
        *tokens = tokens.saturating_add(ids).max(said.completion);
        let new = if said.is_end { *tokens > before && !self.short } else { ids > 0 };
        if new {
            out.push(LlmEvent::Delta { choice, kind: Output::Text });
        }
        if let Some(reason) = said.reason.and_then(Name::new) {
            out.push(LlmEvent::Finished { choice, reason });
        }
        let output = self.tokens.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        let some = |n: u64| Some(n).filter(|n| *n > 0);
        out.push(LlmEvent::Usage(Usage {
            input: some(said.prompt),
            output: some(output),
            cache_read: some(said.cached),
            ..Usage::default()
        }));
    }
}

impl Reader for EngineReader {
    fn hole(&mut self) {
        self.short = true;
    }

    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        let mut parts = [None; 5];
        let read = Fields::of(frame.data).each(|number, value| {
            if let (Some(part), Value::Bytes(bytes)) = (parts.get_mut(number as usize), value) {
                *part = Some(bytes);
            }
        });
        let [_, first, second, third, fourth] = parts;
        if let (Some(id), false, true) = (first, self.named, second.or(third).or(fourth).is_some()) {
            self.named = true;
            let id = std::str::from_utf8(id).ok().and_then(Name::new);
            out.extend(id.map(|id| LlmEvent::Started { id: Some(id), model: None }));
        }
        let (message, is_end) = match (third, fourth, second, first) {
            (Some(complete), ..) => (complete, true),
            (None, Some(error), ..) => {
                let code = Fields::of(error).flatten().find(|(number, _)| *number == 2).and_then(|(_, value)| value.text());
                out.push(LlmEvent::Failed { kind: code.and_then(Name::class) });
                return FrameKind::Event;
            }
            (None, None, Some(chunk), _) => (chunk, false),
            (None, None, None, Some(chunk)) if self.spec.bare => (chunk, false),
            _ if read.is_ok() => return FrameKind::Unknown,
            _ => return FrameKind::BadJson,
        };
        match read.and_then(|()| self.said(message, is_end)) {
            Ok(said) => self.take(&said, out),
            Err(Malformed) => return FrameKind::BadJson,
        }
        FrameKind::Event
    }

    fn streams(&self) -> Option<bool> {
        // A last message alone may be all that is left of many.
        self.chunked.filter(|chunked| *chunked || !self.short)
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

    fn response(of: u32, part: Message) -> Message {
        Message::default().bytes(1, "r-1").bytes(of, part)
    }

    #[test]
    fn sglang_counts_on_and_ends_with_what_is_new() {
        let chunk = |ids: &[u64], total: u64| response(2, Message::default().packed(1, ids).int(2, 7).int(3, total).int(4, 5));
        let end = |ids: &[u64], total: u64| response(3, Message::default().packed(1, ids).bytes(2, "stop").int(3, 7).int(4, total));
        let stream = [chunk(&[1], 1), chunk(&[2, 300], 3), chunk(&[], 3), end(&[4], 4)];
        expect![[r#"
            Event started Some("r-1") None, delta 0, usage 7 1 5
            Event delta 0, usage 7 3 5
            Event usage 7 3 5
            Event delta 0, finished 0 "stop", usage 7 4 -
        "#]]
        .assert_eq(&read(&mut *SGLANG.reader(), &stream));
        let two = |index: u64, total: u64| {
            response(3, Message::default().packed(1, &[1; 5]).bytes(2, "length").int(3, 7).int(4, total).int(11, index))
        };
        let odd = [
            two(0, 5),
            two(1, 6),
            response(4, Message::default().bytes(1, "some text").bytes(2, "500")),
            Message::default().bytes(1, "r-1"),
            Message(vec![0x0b]),
            response(2, Message(vec![0x0b])),
        ];
        expect![[r#"
            Event started Some("r-1") None, delta 0, finished 0 "length", usage 7 5 -
            Event delta 1, finished 1 "length", usage 7 11 -
            Event failed Some("500")
            Unknown 
            BadJson 
            BadJson 
        "#]]
        .assert_eq(&read(&mut *SGLANG.reader(), &odd));
    }

    #[test]
    fn vllm_counts_each_chunk_and_repeats_the_last() {
        let chunk = |ids: &[u64]| Message::default().packed(1, ids).int(2, 7).int(3, ids.len() as u64).int(7, 1);
        let end = |index: u32| Message::default().packed(1, &[9]).bytes(2, "stop").int(3, 7).int(4, 1).int(index, 1);
        let older = [response(2, chunk(&[1, 2])), response(2, chunk(&[9])), response(3, end(9))];
        expect![[r#"
            Event started Some("r-1") None, delta 1, usage 7 2 -
            Event delta 1, usage 7 3 -
            Event finished 1 "stop", usage 7 3 -
        "#]]
        .assert_eq(&read(&mut *VLLM.reader(), &older));
        // No id, and the parts one field earlier.
        let bare = |number: u32, part: Message| Message::default().bytes(number, part);
        let newer = [bare(1, chunk(&[1, 2])), bare(1, chunk(&[9])), bare(2, end(8))];
        expect![[r#"
            Event delta 1, usage 7 2 -
            Event delta 1, usage 7 3 -
            Event finished 1 "stop", usage 7 3 -
        "#]]
        .assert_eq(&read(&mut *VLLM.reader(), &newer));
    }

    #[test]
    fn tensorrt_llm_has_other_numbers() {
        let chunk = |ids: &[u64], total: u64| response(2, Message::default().packed(1, ids).int(3, 7).int(4, total));
        let end = Message::default().packed(1, &[1, 2, 3]).bytes(3, "stop").int(5, 7).int(6, 3).int(7, 2);
        expect![[r#"
            Event started Some("r-1") None, delta 0, usage 7 1 -
            Event delta 0, usage 7 3 -
            Event finished 0 "stop", usage 7 3 2
        "#]]
        .assert_eq(&read(&mut *TENSORRT_LLM.reader(), &[chunk(&[1], 1), chunk(&[2, 3], 3), response(3, end)]));
    }

    #[test]
    fn what_is_asked_for() {
        let asked = |engine: &Engine, request: Message| {
            let asked = engine.asked(&request.0).unwrap();
            assert!(engine.confirms(&asked));
            (asked.stream.0, asked.temperature.0, asked.max_tokens.0, asked.n.0)
        };
        let prompt = || Message::default().bytes(1, "r-1").bytes(2, Message::default().bytes(1, "text").packed(2, &[1, 2]));
        let sampling = |n: u32| Message::default().float(1, 0.5).float(2, 0.9).int(8, 64).int(n, 2);
        let want = (Some(true), Some(0.5), Some(64), Some(2));
        assert_eq!(asked(&SGLANG, prompt().bytes(4, sampling(17)).int(17, 1)), want);
        assert_eq!(asked(&VLLM, prompt().bytes(4, sampling(15)).int(5, 1)), want);
        // The first version of vLLM's.
        assert_eq!(asked(&VLLM, prompt().bytes(3, sampling(15)).int(4, 1)), want);
        assert_eq!(asked(&TENSORRT_LLM, prompt().bytes(3, Message::default().int(2, 2).float(9, 0.5)).int(5, 64).int(6, 1)), want);
        assert_eq!(asked(&VLLM, prompt()), (Some(false), None, None, None));
        assert_eq!(VLLM.asked(&[0x0b]), None);
    }
}
