//! The part of tokengauge that does not touch the world: bytes with instants in, measured inferences out.
//!
//! There is no clock, no I/O, no thread and no `unsafe` here (ARCHITECTURE.md, invariant 1): time is an argument.
#![forbid(unsafe_code)]

pub mod stream;
pub mod tcp;
