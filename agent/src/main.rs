//! `tokengauge`: parse, run, exit code.
fn main() {}
