//! What an inference server tells of its own requests, by the hook (`agent/hook/README.md`): the events, as the agent knows them.
//!
//! ```text
//! tap symbol (uprobe) ─ raw ─┐
//!                            ├─► Event ─► whoever joins them with the wire, Book (timings of each request)
//! Unix socket (Protobuf) ────┘
//! ```
//!
//! Pure, as everything here: who reads rings and sockets is the agent.

pub mod batch;
pub mod book;
pub mod event;
pub mod raw;

/// The version of the contract: of the structure behind the tap symbol (`tokengauge_tap_v1`), and of the batches on the socket. Both carry
/// events of one meaning, so they have one number. What is only added (fields at an end, new kinds, new bits) does not change it.
pub const VERSION: u16 = 1;
