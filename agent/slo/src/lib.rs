//! Service level objectives: from a YAML file to a page that is right.
//!
//! `spec` (files) ─► [`model::Slo`] ─► engine: each finished request is decided once (`decide`), counted in rings of buckets, and the
//! alert state of each objective follows from them. There is no clock, no I/O, no thread and no `unsafe` here: time is an argument.
#![forbid(unsafe_code)]

pub mod convert;
pub mod explain;
pub mod model;
pub mod rules;
pub mod schema;
pub mod spec;
pub mod yaml;
