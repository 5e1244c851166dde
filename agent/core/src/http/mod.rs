//! HTTP as it is found on a connection: messages with their instants, nothing of what they mean.

pub mod coding;
pub mod detect;
pub mod event;
pub mod h1;
pub mod h2;
pub mod head;
pub mod session;
mod target;
