//! `slo explain`: objectives in plain words and numbers.

use std::io::Write;

use tokengauge_slo::explain::{self as words, presets};

use super::{SloError, load};
use crate::cli::SloExplainArgs;

/// Explains what was named; problems go to standard error.
pub fn explain(args: &SloExplainArgs, out: &mut impl Write) -> Result<bool, SloError> {
    if args.presets {
        out.write_all(presets().as_bytes())?;
        if args.files.is_empty() {
            return Ok(true);
        }
    }
    let loaded = load(&args.files)?;
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
