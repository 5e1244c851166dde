//! The agent: everything of tokengauge that touches the world. `main.rs` is one screen on top of it.

pub mod agent;
pub mod cli;
pub mod config;
pub mod demo;
pub mod dialects;
pub mod doctor;
pub mod driver;
pub mod engine;
pub mod export;
pub mod health;
pub mod keylog;
pub mod log;
pub mod manual;
pub mod profile;
pub mod reference;
pub mod replay;
pub mod run;
pub mod serve;
pub mod slo;
pub mod sources;
pub mod tap;
pub mod testing;
pub mod view;
pub mod vitals;
