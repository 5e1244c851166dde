//! What happens on a connection, whatever version of HTTP it speaks.

use crate::anomaly::Anomaly;
use crate::http::head::{RequestHead, ResponseHead};
use crate::stream::{End, Timestamp};

/// Which exchange of its connection, counted from 0.
pub type ExchangeId = u64;

/// What happens on a connection. `id` says to which exchange it belongs.
#[derive(PartialEq, Debug)]
#[allow(missing_docs, reason = "the fields say what they are; the variants say the rest")]
pub enum HttpEvent<'a> {
    /// A request's head is complete; its first byte came at `begun`.
    Request { id: ExchangeId, begun: Timestamp, head: RequestHead },
    /// Bytes of a request's body.
    RequestBody { id: ExchangeId, bytes: &'a [u8] },
    /// A request is complete.
    RequestEnd { id: ExchangeId },
    /// A final response's head is complete; its first byte came at `begun`.
    Response { id: ExchangeId, begun: Timestamp, head: ResponseHead },
    /// Bytes of a response's body.
    ResponseBody { id: ExchangeId, bytes: &'a [u8] },
    /// Bytes of an exchange are missing; `missing`: how many of its body, where it is known and nothing else is missing.
    Gap { id: ExchangeId, of: Side, body_goes_on: bool, missing: Option<u64> },
    /// What a response's trailers say: the status of gRPC. `partial`: there are fields that cannot be known.
    Trailers { id: ExchangeId, grpc_status: Option<u32>, partial: bool },
    /// An exchange is over, since `at` where it was known only later. Each exchange ends exactly once; on HTTP/1.1 in the order of the
    /// requests.
    Over { id: ExchangeId, how: Over, by: EndedBy, at: Option<Timestamp> },
    /// A surprise.
    Odd(Anomaly),
    /// The request `id` was answered by a change of protocol: what follows on the connection is not HTTP any more. The exchange is
    /// over with it, and no `Over` follows.
    Upgraded { id: ExchangeId, head: ResponseHead },
}

/// A side of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The request.
    Request,
    /// The response.
    Response,
}

/// How an exchange ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// The response ended as its framing says.
    Complete,
    /// The server closed first.
    ServerClosed,
    /// The server reset the connection.
    ServerReset,
    /// The client closed or reset first.
    ClientClosed,
    /// Neither did for the idle limit.
    Timeout,
    /// Our bounds.
    Evicted,
    /// The input or the agent ended.
    InputEnded,
    /// Its end is lost in a capture gap.
    Lost,
}

/// What ended an exchange, as the wire says it. The first of them counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EndedBy {
    /// The API's own terminator (`[DONE]`, `message_stop`, …).
    Terminator,
    /// The framing of an HTTP/1.1 message.
    Message,
    /// END_STREAM of HTTP/2.
    EndStream,
    /// RST_STREAM of HTTP/2.
    StreamReset,
    /// GOAWAY of HTTP/2: the server will not answer this stream.
    Goaway,
    /// A close frame of a WebSocket.
    CloseFrame,
    /// The connection was closed in order (FIN, close_notify).
    Fin,
    /// The connection was reset.
    Reset,
    /// The tapped process let go of the connection.
    Released,
    /// Nothing moved for the idle limit.
    Idle,
    /// Our bounds.
    Evicted,
    /// The input or the agent ended.
    Input,
    /// Its end is lost in a capture gap.
    Lost,
}

impl EndedBy {
    /// The record's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Terminator => "terminator",
            Self::Message => "message",
            Self::EndStream => "end_stream",
            Self::StreamReset => "rst_stream",
            Self::Goaway => "goaway",
            Self::CloseFrame => "close_frame",
            Self::Fin => "fin",
            Self::Reset => "rst",
            Self::Released => "released",
            Self::Idle => "idle",
            Self::Evicted => "evicted",
            Self::Input => "input_end",
            Self::Lost => "capture_gap",
        }
    }
}

impl From<End> for EndedBy {
    fn from(end: End) -> Self {
        match end {
            End::Finished(_) => Self::Fin,
            End::Reset(_) => Self::Reset,
            End::Released | End::Abandoned => Self::Released,
            End::Idle => Self::Idle,
            End::Evicted => Self::Evicted,
            End::InputEnded => Self::Input,
        }
    }
}

/// The name of a gRPC status code (<https://grpc.io/docs/guides/status-codes/>).
pub fn grpc_code(code: u32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    usize::try_from(code).ok().and_then(|n| NAMES.get(n).copied()).unwrap_or("UNKNOWN")
}
