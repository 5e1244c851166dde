//! Service level objectives: from a YAML file to a page that is right.
//!
//! `spec` (files) ─► [`model::Slo`] ─► engine: each finished request is decided once (`decide`), counted in rings of buckets, and the
//! alert state of each objective follows from them. There is no clock, no I/O, no thread and no `unsafe` here: time is an argument.
#![forbid(unsafe_code)]

pub mod alert;
pub mod book;
pub mod budget;
pub mod composite;
pub mod convert;
pub mod decide;
pub mod decimal;
pub mod engine;
pub mod exact;
pub mod explain;
pub mod groups;
pub mod identity;
pub mod loaded;
pub mod model;
pub mod request;
pub mod ring;
pub mod rules;
pub mod scenario;
pub mod schema;
pub mod select;
pub mod series;
pub mod snapshot;
pub mod spec;
pub mod status;
pub mod window;
pub mod yaml;
