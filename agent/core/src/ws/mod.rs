//! WebSocket connections (RFC 6455) with `permessage-deflate` (RFC 7692): bytes of one direction become messages. Nothing here knows
//! what the messages say.

#[cfg(any(test, feature = "testing"))]
pub mod build;
mod find;
pub mod frame;
mod inflate;
pub mod message;
