//! Messages of Gemini Live as they are written, and what is output in them.

use serde::Deserialize;

use crate::dialect::body::{Count, Few, Flag, IsThere, Object, Text, Word, object};
use crate::dialect::{FrameKind, LlmEvent, Output, Reader};
use crate::framing::Frame;
use crate::inference::Usage;
use crate::name::Name;

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServerMessage<'a> {
    #[serde(borrow, alias = "server_content")]
    pub(super) server_content: Object<Content<'a>>,
    #[serde(borrow, alias = "tool_call")]
    pub(super) tool_call: Object<ToolCall<'a>>,
    #[serde(alias = "usage_metadata")]
    pub(super) usage_metadata: Object<Counts>,
    #[serde(borrow, alias = "voice_activity_detection_signal")]
    pub(super) voice_activity_detection_signal: Object<Signal<'a>>,
    #[serde(borrow, alias = "voice_activity")]
    pub(super) voice_activity: Object<Signal<'a>>,
    #[serde(alias = "setup_complete")]
    pub(super) setup_complete: IsThere,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Content<'a> {
    #[serde(borrow, alias = "model_turn")]
    pub(super) model_turn: Object<ModelTurn<'a>>,
    #[serde(borrow, alias = "output_transcription")]
    pub(super) output_transcription: Object<Transcription<'a>>,
    #[serde(alias = "turn_complete")]
    pub(super) turn_complete: Flag,
    #[serde(alias = "generation_complete")]
    pub(super) generation_complete: Flag,
    pub(super) interrupted: Flag,
    #[serde(borrow, alias = "turn_complete_reason")]
    pub(super) turn_complete_reason: Word<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ModelTurn<'a> {
    #[serde(borrow)]
    pub(super) parts: Option<Few<Part<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Part<'a> {
    #[serde(borrow)]
    pub(super) text: Text<'a>,
    pub(super) thought: Flag,
    #[serde(borrow, alias = "inline_data")]
    pub(super) inline_data: Object<Blob<'a>>,
    #[serde(borrow, alias = "executable_code")]
    pub(super) executable_code: Object<Code<'a>>,
    #[serde(borrow, alias = "function_call")]
    pub(super) function_call: Object<Function<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Blob<'a> {
    #[serde(borrow)]
    pub(super) data: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Code<'a> {
    #[serde(borrow)]
    pub(super) code: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Function<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    #[serde(borrow)]
    pub(super) args: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Transcription<'a> {
    #[serde(borrow)]
    pub(super) text: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ToolCall<'a> {
    #[serde(borrow, alias = "function_calls")]
    pub(super) function_calls: Option<Few<Function<'a>>>,
}

/// The end of speech: `vadSignalType: VAD_SIGNAL_TYPE_EOS`, `voiceActivityType: ACTIVITY_END`.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Signal<'a> {
    #[serde(borrow, alias = "vad_signal_type")]
    pub(super) vad_signal_type: Word<'a>,
    #[serde(borrow, alias = "voice_activity_type")]
    pub(super) voice_activity_type: Word<'a>,
}

impl Signal<'_> {
    pub(super) fn ends(&self) -> bool {
        [&self.vad_signal_type, &self.voice_activity_type]
            .iter()
            .any(|w| w.text().is_some_and(|t| t.ends_with("EOS") || t.ends_with("END")))
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Counts {
    #[serde(alias = "prompt_token_count")]
    pub(super) prompt_token_count: Count,
    #[serde(alias = "tool_use_prompt_token_count")]
    pub(super) tool_use_prompt_token_count: Count,
    #[serde(alias = "cached_content_token_count")]
    pub(super) cached_content_token_count: Count,
    #[serde(alias = "response_token_count")]
    pub(super) response_token_count: Count,
    #[serde(alias = "candidates_token_count")]
    pub(super) candidates_token_count: Count,
    #[serde(alias = "thoughts_token_count")]
    pub(super) thoughts_token_count: Count,
}

impl Counts {
    /// Totals as the conventions want them: the prompt with what tools put into it, the answer with its thoughts.
    fn usage(&self) -> Usage {
        let sum = |a: Count, b: Count| a.0.map(|a| a.saturating_add(b.0.unwrap_or(0)));
        let answer = Count(self.response_token_count.0.or(self.candidates_token_count.0));
        Usage {
            input: sum(self.prompt_token_count, self.tool_use_prompt_token_count),
            output: sum(answer, self.thoughts_token_count).or(self.thoughts_token_count.0),
            cache_read: self.cached_content_token_count.0,
            cache_write: None,
            reasoning: self.thoughts_token_count.0,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientMessage<'a> {
    #[serde(borrow)]
    pub(super) setup: Object<Setup<'a>>,
    #[serde(alias = "client_content")]
    pub(super) client_content: Object<ClientContent>,
    #[serde(borrow, alias = "realtime_input")]
    pub(super) realtime_input: Object<RealtimeInput<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Setup<'a> {
    #[serde(borrow)]
    pub(super) model: Word<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientContent {
    #[serde(alias = "turn_complete")]
    pub(super) turn_complete: Flag,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RealtimeInput<'a> {
    #[serde(borrow)]
    pub(super) text: Text<'a>,
    #[serde(alias = "activity_end")]
    pub(super) activity_end: IsThere,
    #[serde(alias = "audio_stream_end")]
    pub(super) audio_stream_end: Flag,
}

/// Reads a message of the server, whatever turn it belongs to.
#[derive(Debug, Default)]
pub(super) struct LiveReader;

impl Reader for LiveReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        match object::<ServerMessage<'_>>(frame.data) {
            Some(message) => message.read(out),
            None => FrameKind::BadJson,
        }
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<LlmEvent>) -> FrameKind {
        self.frame(Frame { name: b"", data: body, error: false }, out)
    }
}

impl ServerMessage<'_> {
    pub(super) fn read(&self, out: &mut Vec<LlmEvent>) -> FrameKind {
        let mut kind = FrameKind::Unknown;
        if let Some(content) = &self.server_content.0 {
            kind = if content.turn_complete.0 == Some(true) { FrameKind::Last } else { FrameKind::Event };
            content.read(out);
        }
        if let Some(call) = &self.tool_call.0 {
            kind = FrameKind::Event;
            for function in call.function_calls.iter().flat_map(Few::iter) {
                function.read(out);
            }
        }
        if let Some(counts) = &self.usage_metadata.0 {
            out.push(LlmEvent::Usage(counts.usage()));
            if kind == FrameKind::Unknown {
                kind = FrameKind::KeepAlive;
            }
        }
        kind
    }
}

impl Content<'_> {
    pub(super) fn read(&self, out: &mut Vec<LlmEvent>) {
        for part in self.model_turn.0.iter().filter_map(|t| t.parts.as_ref()).flat_map(Few::iter) {
            let thought = part.thought.0 == Some(true);
            if part.text.is_text() {
                let kind = if thought { Output::Summary } else { Output::Text };
                out.push(LlmEvent::Delta { choice: 0, kind });
            }
            if part.inline_data.0.as_ref().is_some_and(|b| b.data.is_text()) {
                out.push(LlmEvent::Delta { choice: 0, kind: Output::Text });
            }
            if part.executable_code.0.as_ref().is_some_and(|c| c.code.is_text()) {
                out.push(LlmEvent::Delta { choice: 0, kind: Output::Tool });
            }
            if let Some(function) = &part.function_call.0 {
                function.read(out);
            }
        }
        if self.output_transcription.0.as_ref().is_some_and(|t| t.text.is_text()) {
            out.push(LlmEvent::Delta { choice: 0, kind: Output::Text });
        }
        if self.interrupted.0 == Some(true) {
            out.push(LlmEvent::Cancelled);
        }
        if let Some(reason) = self.turn_complete_reason.text().and_then(Name::new) {
            out.push(LlmEvent::Finished { choice: 0, reason });
        }
    }

    /// Whether this is of a turn of the model, and not only of what the user said.
    pub(super) fn answers(&self) -> bool {
        self.model_turn.0.is_some()
            || self.output_transcription.0.is_some()
            || [self.turn_complete, self.generation_complete, self.interrupted].iter().any(|f| f.0 == Some(true))
    }
}

impl Function<'_> {
    pub(super) fn read(&self, out: &mut Vec<LlmEvent>) {
        if self.name.is_text() {
            out.push(LlmEvent::ToolStart);
        }
        if self.name.is_text() || self.args.is_text() {
            out.push(LlmEvent::Delta { choice: 0, kind: Output::Tool });
        }
    }
}
