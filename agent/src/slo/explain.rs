//! `slo explain`: objectives in plain words and numbers.

use std::io::Write;

use tokengauge_slo::explain::{self as words, presets};
use tokengauge_slo::spec::Level;

use super::{Input, SloError};
use crate::cli::SloExplainArgs;

/// Explains what was named; problems go to standard error.
pub fn explain(args: &SloExplainArgs, out: &mut impl Write) -> Result<bool, SloError> {
    if args.presets {
        out.write_all(presets().as_bytes())?;
        if args.files.is_empty() {
            return Ok(true);
        }
    }
    let input = Input::read(&args.files)?;
    if input.files.is_empty() {
        return Err(SloError::Nothing);
    }
    let loaded = input.load(false);
    for problem in loaded.problems.iter().filter(|p| p.level == Level::Error) {
        eprintln!("{problem}");
    }
    for (i, slo) in loaded.slos.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        out.write_all(words::explain(slo, args.requests_per_day).as_bytes())?;
    }
    for other in &loaded.others {
        writeln!(out, "\n{}  ({}:{})\n  not ours: its metric source is {}", other.name, other.file, other.line, other.source)?;
    }
    Ok(!loaded.refused())
}
