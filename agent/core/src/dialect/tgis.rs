//! TGIS: `fmaas.GenerationService` over gRPC, the interface of IBM's fork of TGI and of vLLM's TGIS adapter
//! (IBM/vllm@5c1b09a4:proto/generation.proto, opendatahub-io/vllm-tgis-adapter@0246523c:src/vllm_tgis_adapter/grpc/grpc_server.py).
//! A stream begins with a message about the input alone; token counts are cumulative.
//!
//! TGI's own `generate.v2` and `generate.v3` lie between its router and its shards: each call is one step of a batch, no inference.

use crate::framing::Frame;
use crate::http::head::{Method, RequestHead};
use crate::inference::{Operation, Usage};
use crate::name::Name;

use super::body::{Asked, Count, IsThere, Number, Short};
use super::protobuf::{Fields, Malformed, Value};
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// Choices whose counts are kept.
const MAX_CHOICES: usize = 128;

/// `Generate` and `GenerateStream`.
#[derive(Debug)]
pub struct Tgis;

impl Tgis {
    const STREAM: &str = "/fmaas.GenerationService/GenerateStream";
}

impl Dialect for Tgis {
    fn about(&self) -> &'static About {
        &About {
            api: "tgis.generate",
            doc: "TGIS over gRPC (IBM's TGI, vLLM's TGIS adapter): one message for each piece of output",
            paths: &["/fmaas.GenerationService/Generate", Self::STREAM],
            operation: Operation::TextCompletion,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        match head.method {
            Method::Post if self.about().paths.contains(&&*head.path) => Match::Certain,
            _ => Match::No,
        }
    }

    fn confirms(&self, asked: &Asked) -> bool {
        asked.text_input.0
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(TgisReader::default())
    }

    fn streams(&self, head: &RequestHead, _asked: &Asked) -> Option<bool> {
        Some(&*head.path == Self::STREAM)
    }

    fn asked(&self, message: &[u8]) -> Option<Asked> {
        let mut asked = Asked { text_input: IsThere(true), ..Asked::default() };
        let params = |asked: &mut Asked, message: &[u8]| {
            for (number, value) in Fields::of(message).flatten() {
                match (number, value) {
                    // SamplingParameters, StoppingCriteria.
                    (2, Value::Bytes(sampling)) => {
                        for (number, value) in Fields::of(sampling).flatten() {
                            match number {
                                1 => asked.temperature = Number(value.float()),
                                3 => asked.top_p = Number(value.float()),
                                _ => {}
                            }
                        }
                    }
                    (3, Value::Bytes(stopping)) => {
                        let most = Fields::of(stopping).flatten().find(|(number, _)| *number == 1);
                        asked.max_tokens = Count(most.and_then(|(_, value)| value.integer()));
                    }
                    _ => {}
                }
            }
        };
        Fields::of(message)
            .each(|number, value| match (number, value) {
                (1, value) => asked.model = Short(value.text().and_then(Name::new)),
                (10, Value::Bytes(message)) => params(&mut asked, message),
                _ => {}
            })
            .ok()?;
        Some(asked)
    }
}

/// Reads messages.
#[derive(Debug, Default)]
struct TgisReader {
    /// Tokens in and out of each choice (of a batch, each prompt).
    counts: Vec<(u64, u64)>,
}

impl TgisReader {
    /// `GenerationResponse`.
    fn response(&mut self, choice: usize, message: &[u8], out: &mut Vec<LlmEvent>) -> Result<(), Malformed> {
        let (mut input, mut output, mut text, mut reason) = (0, 0, false, 0);
        Fields::of(message).each(|number, value| match (number, value) {
            (6, Value::Varint(n)) => input = n,
            (2, Value::Varint(n)) => output = n,
            (4 | 8, Value::Bytes(bytes)) => text |= !bytes.is_empty(),
            (7, Value::Varint(n)) => reason = n,
            _ => {}
        })?;
        if choice >= MAX_CHOICES {
            return Ok(());
        }
        if self.counts.len() <= choice {
            self.counts.resize(choice + 1, (0, 0));
        }
        let counts = &mut self.counts[choice];
        *counts = (counts.0.max(input), counts.1.max(output));
        let choice = choice as u32;
        // A text without a token is the prompt, sent back because that was asked for.
        if text && output > 0 {
            out.push(LlmEvent::Delta { choice, kind: Output::Text });
        }
        let reasons = ["MAX_TOKENS", "EOS_TOKEN", "CANCELLED", "TIME_LIMIT", "STOP_SEQUENCE", "TOKEN_LIMIT", "ERROR"];
        let name = usize::try_from(reason).ok().and_then(|n| n.checked_sub(1)).and_then(|n| reasons.get(n));
        if reason == 7 {
            out.push(LlmEvent::Failed { kind: Name::new("ERROR") });
        }
        if let Some(reason) = name.and_then(|n| Name::new(n)) {
            out.push(LlmEvent::Finished { choice, reason });
        }
        Ok(())
    }
}

impl Reader for TgisReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        // `BatchedGenerationResponse` has only field 1, which a `GenerationResponse` has not.
        let mut batch = Vec::new();
        let mut single = frame.data.is_empty();
        let read = Fields::of(frame.data).each(|number, value| match (number, value) {
            (1, Value::Bytes(response)) => batch.push(response),
            (2 | 4 | 6..=11, _) => single = true,
            _ => {}
        });
        let read = read.and_then(|()| match single {
            true => self.response(0, frame.data, out),
            false => batch.iter().enumerate().try_for_each(|(n, response)| self.response(n, response, out)),
        });
        if read.is_err() {
            return FrameKind::BadJson;
        }
        if !single && batch.is_empty() {
            return FrameKind::Unknown;
        }
        let sum = |of: fn(&(u64, u64)) -> u64| Some(self.counts.iter().map(of).sum()).filter(|n| *n > 0);
        out.push(LlmEvent::Usage(Usage { input: sum(|c| c.0), output: sum(|c| c.1), ..Usage::default() }));
        FrameKind::Event
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

    #[test]
    fn a_stream_and_a_batch() {
        let say = |count: u64, text: &str| Message::default().int(2, count).bytes(4, text);
        let stream = [
            Message::default().int(6, 9).bytes(4, "the prompt, sent back"),
            Message::default(),
            say(1, "a"),
            say(2, ""),
            say(4, "bc").bytes(8, Message::default().bytes(2, "b")),
            say(5, "").int(7, 2),
        ];
        expect![[r#"
            Event usage 9 - -
            Event usage 9 - -
            Event delta 0, usage 9 1 -
            Event usage 9 2 -
            Event delta 0, usage 9 4 -
            Event finished 0 "EOS_TOKEN", usage 9 5 -
        "#]]
        .assert_eq(&read(&mut TgisReader::default(), &stream));
        let of = |input: u64, output: u64, reason: u64| say(output, "text").int(6, input).int(7, reason);
        let batch = Message::default().bytes(1, of(3, 5, 1)).bytes(1, of(4, 6, 5));
        let odd = [batch, Message::default().int(7, 7), Message(vec![0x0b]), Message::default().int(20, 1)];
        expect![[r#"
            Event delta 0, finished 0 "MAX_TOKENS", delta 1, finished 1 "STOP_SEQUENCE", usage 7 11 -
            Event failed Some("ERROR"), finished 0 "ERROR", usage 7 11 -
            BadJson 
            Unknown 
        "#]]
        .assert_eq(&read(&mut TgisReader::default(), &odd));
    }

    #[test]
    fn what_is_asked_for() {
        let params =
            Message::default().bytes(2, Message::default().float(1, 0.7).int(2, 5).float(3, 0.9)).bytes(3, Message::default().int(1, 64));
        let request = Message::default().bytes(1, "m-1").bytes(3, Message::default().bytes(2, "prompt")).bytes(10, params);
        let asked = Tgis.asked(&request.0).unwrap();
        assert!(Tgis.confirms(&asked));
        let model = asked.model.0.as_ref().map(Name::as_str);
        assert_eq!((model, asked.temperature.0, asked.top_p.0, asked.max_tokens.0), (Some("m-1"), Some(0.7), Some(0.9), Some(64)));
        assert_eq!(Tgis.asked(&[0x0b]), None);
    }
}
