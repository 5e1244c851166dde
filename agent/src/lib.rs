//! The agent: everything of tokengauge that touches the world. `main.rs` is one screen on top of it.

pub mod tap;
