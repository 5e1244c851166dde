//! The part of tokengauge that does not touch the world: bytes with instants in, measured inferences out.
//!
//! There is no clock, no I/O, no thread and no `unsafe` here (ARCHITECTURE.md, invariant 1): time is an argument.
#![forbid(unsafe_code)]

pub mod anomaly;
pub mod call;
pub mod calls;
pub mod dialect;
pub mod engine;
pub mod facts;
pub mod framing;
pub mod gaps;
pub mod hook;
pub mod http;
pub mod inference;
pub mod join;
pub mod measure;
pub mod name;
pub mod pipeline;
pub mod request;
pub mod semconv;
pub mod socket;
pub mod stats;
pub mod stream;
pub mod tcp;
pub mod tenant;
pub mod timeline;
pub mod tls;
pub mod trace;
pub mod workload;
pub mod ws;
