//! OpenAI Realtime (`wire.md` §2, §8): a conversation on a WebSocket, by voice or text, as OpenAI, Azure and xAI speak it; names of
//! events as they are now and as they were in the beta.
//!
//! One record per response. It begins with the first byte of the client's `response.create`, or, where the user's voice asked, when the
//! server had committed it (`input_audio_buffer.committed`). Audio, its transcript, text and arguments of functions are output; the
//! transcript of the user's own voice is none. The status of the response is its finish reason; one that was `cancelled` (by
//! `response.cancel`, or because the user spoke up) has the outcome `cancelled`: the client went first.

use crate::http::head::{RequestHead, Upgrade};
use crate::inference::Operation;

use super::body::Asked;
use super::conversation::Conversation;
use super::responses::EventReader;
use super::turns::{Kind, Turns};
use super::{About, Dialect, Match, Reader};

/// `GET …/realtime`, upgraded.
#[derive(Debug)]
pub struct Realtime;

impl Dialect for Realtime {
    fn about(&self) -> &'static About {
        &About {
            api: "openai.realtime",
            doc: "OpenAI Realtime on a WebSocket, and compatible servers (Azure, xAI, …): one record per response",
            paths: &["/v1/realtime", "/openai/realtime"],
            operation: Operation::Chat,
        }
    }

    fn probe(&self, head: &RequestHead) -> Match {
        match head.upgrade {
            Some(Upgrade::WebSocket) if head.path.trim_end_matches('/').ends_with("/realtime") => Match::Certain,
            Some(Upgrade::WebSocket) => Match::Maybe,
            _ => Match::No,
        }
    }

    fn confirms(&self, _asked: &Asked) -> bool {
        false
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(EventReader::default())
    }

    fn conversation(&self) -> Option<Box<dyn Conversation>> {
        Some(Box::new(Turns::new(Kind::Realtime)))
    }
}
