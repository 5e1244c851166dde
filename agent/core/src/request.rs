//! A request's body while it is read: reduced to what a dialect asks of it, whatever it is written in.

use crate::anomaly::Anomaly;
use crate::dialect::Dialect;
use crate::dialect::body::{Asked, object};
use crate::framing::json;
use crate::framing::protobuf;
use crate::http::head::{MediaType, RequestHead};

/// Containers of a request that are looked into: the request itself and what stands right in it.
const DEPTH: usize = 2;

/// A request's body.
#[derive(Debug)]
pub enum RequestBody {
    /// One JSON value.
    Json(json::Skeleton),
    /// Messages of gRPC.
    Messages(protobuf::Skeleton),
}

impl RequestBody {
    /// The body of a request with this head, at its beginning.
    pub fn new(head: &RequestHead) -> Self {
        match head.media {
            MediaType::Grpc => Self::Messages(protobuf::Skeleton::new(head.message_coding)),
            _ => Self::Json(json::Skeleton::new(DEPTH)),
        }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        match self {
            Self::Json(skeleton) => skeleton.buffered(),
            Self::Messages(skeleton) => skeleton.buffered(),
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Json(skeleton) => skeleton.push(bytes),
            Self::Messages(skeleton) => skeleton.push(bytes),
        }
    }

    /// Bytes are missing.
    pub fn hole(&mut self) {
        match self {
            Self::Json(skeleton) => skeleton.hole(),
            Self::Messages(skeleton) => skeleton.hole(),
        }
    }

    /// Whether it is known what is asked for, though more of the body may follow: a client that streams its requests ends them when it
    /// has its answers.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Messages(skeleton) if skeleton.is_complete())
    }

    /// Whether it asks more than once.
    pub fn is_several(&self) -> bool {
        matches!(self, Self::Messages(skeleton) if skeleton.messages() > 1)
    }

    /// What it asks for.
    ///
    /// # Errors
    /// What keeps it from being read.
    pub fn asked(&self, dialect: Option<&dyn Dialect>) -> Result<Asked, Anomaly> {
        match self {
            Self::Json(skeleton) => skeleton.finish().and_then(|body| object(body).ok_or(Anomaly::BadJson)),
            Self::Messages(skeleton) => {
                let message = skeleton.finish()?;
                dialect.and_then(|d| d.asked(message)).ok_or(Anomaly::BadMessage)
            }
        }
    }
}
