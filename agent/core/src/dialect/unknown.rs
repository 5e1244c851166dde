//! Streams that nobody claims and that look like a language model's: a request with something like a prompt, and an answer of JSON
//! events in which one text grows, or comes in pieces that join up. They are measured and counted, never guessed into a provider,
//! and what they say of tokens is not believed.
//!
//! It must not fire on other streams: tickers have no text, log lines and chat messages are whole and do not join, GraphQL and SQL
//! are no prose. The text that is followed is the first one that comes; the stream counts as a model's only when that very text
//! proves it, so that no earlier message is mistaken for a first token.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::framing::Frame;
use crate::http::head::{MediaType, Method, RequestHead};
use crate::inference::Operation;

use super::body::{Asked, ErrorField, object};
use super::growth::Growth;
use super::{About, Dialect, FrameKind, LlmEvent, Match, Output, Reader};

/// Names of fields that hold generated text, in the APIs that are known and in many a home-made one.
const TEXTS: [&str; 20] = [
    "text",
    "content",
    "delta",
    "token",
    "answer",
    "completion",
    "generated_text",
    "generation",
    "output",
    "output_text",
    "outputText",
    "text_output",
    "response",
    "reply",
    "chunk",
    "piece",
    "reasoning",
    "reasoning_content",
    "thinking",
    "thought",
];
/// The first of them that hold reasoning.
const REASONING: usize = 16;
/// How deep such a field may lie.
const DEPTH: u32 = 6;
/// Events in which the text must have proved itself.
const PATIENCE: u32 = 256;
/// Pieces of text, and joints among them, that make an answer in pieces.
const PIECES: u32 = 3;
const JOINTS: u32 = 2;
/// Pieces are short on average: longer ones are messages.
const PIECE: u64 = 48;

/// Any `POST` of JSON with something like a prompt.
#[derive(Debug)]
pub struct Unknown;

impl Dialect for Unknown {
    fn about(&self) -> &'static About {
        &About {
            api: "unknown",
            doc: "JSON streams of no known API that look like a language model's: timing and events, no tokens",
            paths: &["…"],
            operation: Operation::TextCompletion,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        let json = matches!(head.media, MediaType::Json | MediaType::Missing);
        // A target that was not seen (HTTP/2) may be any API's.
        if head.method == Method::Post && json && !head.path.is_empty() { Match::Maybe } else { Match::No }
    }

    fn confirms(&self, a: &Asked) -> bool {
        let prompts = [a.input, a.inputs, a.text, a.message, a.question, a.text_input];
        a.messages.0 || a.contents.0 || a.query.0 || a.prompt.0 || prompts.iter().any(|p| p.0)
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(UnknownReader::default())
    }

    fn ends_with_body(&self) -> bool {
        true
    }
}

#[derive(Debug, Default)]
struct UnknownReader {
    events: u32,
    /// The field that is followed.
    field: Option<usize>,
    growth: Growth,
    pieces: u32,
    joints: u32,
    bytes: u64,
    /// Whether the last piece ended with a space.
    spaced: bool,
    known: bool,
}

impl Reader for UnknownReader {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<LlmEvent>) -> FrameKind {
        let data = frame.data.trim_ascii();
        if data.starts_with(b"[DONE]") {
            return FrameKind::Terminator;
        }
        self.events = self.events.saturating_add(1);
        if !self.known && self.events > PATIENCE || !data.starts_with(b"{") {
            return FrameKind::Unknown;
        }
        let mut new = None;
        let mut seen = false;
        let mut see = |field: usize, text: &str| {
            if seen || text.is_empty() || self.field.is_some_and(|f| f != field) {
                return;
            }
            seen = true;
            self.field = Some(field);
            if self.growth.is_new(text) {
                let joins = self.spaced || text.starts_with(|c: char| c.is_whitespace() || c.is_ascii_punctuation() || is_unspaced(c));
                self.joints += u32::from(self.pieces > 0 && joins);
                self.pieces += 1;
                self.bytes += text.len() as u64;
                self.spaced = text.ends_with(char::is_whitespace);
                new = Some(if field >= REASONING { Output::Reasoning } else { Output::Text });
            }
        };
        let scan = Scan { field: None, depth: DEPTH, see: &mut see };
        let mut json = serde_json::Deserializer::from_slice(data);
        if scan.deserialize(&mut json).and_then(|()| json.end()).is_err() {
            return FrameKind::BadJson;
        }
        out.extend(new.map(|kind| LlmEvent::Delta { choice: 0, kind }));
        let joined = self.pieces >= PIECES && self.joints >= JOINTS && self.bytes <= PIECE * u64::from(self.pieces);
        self.known |= self.growth.is_whole() || self.growth.is_pieces() && joined;
        if self.known {
            #[derive(serde::Deserialize, Default)]
            #[serde(default)]
            struct Failed {
                error: ErrorField,
            }
            if new.is_none()
                && let Some(failed) = object::<Failed>(data).filter(|f| f.error.is || frame.name == b"error")
            {
                out.push(LlmEvent::Failed { kind: failed.error.kind });
            }
            return FrameKind::Event;
        }
        if self.field.is_some() { FrameKind::Perhaps } else { FrameKind::Unknown }
    }

    /// An answer that is no stream has nothing that tells it from any other.
    fn answer(&mut self, _: &[u8], _: &mut Vec<LlmEvent>) -> FrameKind {
        FrameKind::Unknown
    }
}

/// Whether a character is of a script that is written without spaces.
fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c), 0x0e00..=0x0eff | 0x1000..=0x109f | 0x3040..=0x30ff | 0x3400..=0x9fff | 0xf900..=0xfaff | 0xff00..=0xffef)
}

/// Walks through a value and shows each string under one of the names; keeps nothing.
struct Scan<'s> {
    field: Option<usize>,
    depth: u32,
    see: &'s mut dyn FnMut(usize, &str),
}

impl<'de> DeserializeSeed<'de> for Scan<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scan<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if let Some(field) = self.field {
            (self.see)(field, text);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some(depth) = self.depth.checked_sub(1) else {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        while list.next_element_seed(Scan { field: self.field, depth, see: &mut *self.see })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match self.depth.checked_sub(1) {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(depth) => {
                    let field = TEXTS.iter().position(|t| *t == key);
                    map.next_value_seed(Scan { field, depth, see: &mut *self.see })?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At which event a stream is known, if it is; and the events with output.
    fn known(frames: &[&str]) -> (Option<usize>, usize) {
        let mut reader = UnknownReader::default();
        let (mut at, mut deltas) = (None, 0);
        for (n, frame) in frames.iter().enumerate() {
            let mut out = Vec::new();
            let kind = reader.frame(Frame { data: frame.as_bytes(), ..Frame::default() }, &mut out);
            assert!(out.iter().all(|e| !matches!(e, LlmEvent::Usage(_) | LlmEvent::Tokens(_))));
            deltas += out.len();
            if kind == FrameKind::Event {
                at.get_or_insert(n);
            }
        }
        (at, deltas)
    }

    #[test]
    fn pieces_that_join_and_texts_that_grow() {
        assert_eq!(
            known(&[r#"{"t":{"answer":"Hel"}}"#, r#"{"t":{"answer":"lo"}}"#, r#"{"t":{"answer":" you"}}"#, r#"{"t":{"answer":"!"}}"#]),
            (Some(3), 4)
        );
        assert_eq!(known(&[r#"{"text":"a"}"#, r#"{"text":"a b"}"#, r#"{"text":"a b c"}"#, r#"{"text":"a b c"}"#]), (Some(2), 3));
        assert_eq!(
            known(&[
                r#"{"out":[{"content":[{"text":"你"}]}]}"#,
                r#"{"out":[{"content":[{"text":"好"}]}]}"#,
                r#"{"out":[{"content":[{"text":"吗"}]}]}"#
            ]),
            (Some(2), 3)
        );
        assert_eq!(
            known(&[r#"{"thinking":"hm "}"#, r#"{"thinking":"so "}"#, r#"{"thinking":"x"}"#, r#"{"error":{"type":"t"}}"#]),
            (Some(2), 4)
        );
    }

    #[test]
    fn other_streams() {
        let ticker: Vec<String> =
            (0..20).map(|n| format!(r#"{{"symbol":"ACME","price":{n}.5,"time":"2024-01-01T00:00:{n:02}Z"}}"#)).collect();
        let logs: Vec<String> = (0..20)
            .map(|n| {
                format!(r#"{{"ts":{n},"level":"info","text":"GET /index/{n} took {n} ms and returned 200","content":"  at line {n}"}}"#)
            })
            .collect();
        let chat: Vec<String> =
            (0..20).map(|n| format!(r#"{{"data":{{"messageAdded":{{"id":{n},"content":"message number {n}"}}}}}}"#)).collect();
        let same: Vec<String> = (0..20).map(|n| format!(r#"{{"progress":{n},"response":"pending"}}"#)).collect();
        let list: Vec<String> = (0..20).map(|n| format!(r#"["text"," {n}"]"#)).collect();
        let rows: Vec<String> = (0..20).map(|n| format!(r#"{{"id":{n},"name":"row {n}"}}"#)).collect();
        for stream in [ticker, logs, chat, same, list, rows] {
            let frames: Vec<&str> = stream.iter().map(String::as_str).collect();
            assert_eq!(known(&frames).0, None, "{}", frames[0]);
        }
    }
}
