//! `slo convert`: the short form as OpenSLO v1.

use std::io::Write;

use tokengauge_slo::convert as openslo;
use tokengauge_slo::spec::Level;

use super::{Input, SloError};
use crate::cli::SloConvertArgs;

/// Converts what was named; nothing when any of it is refused.
pub fn convert(args: &SloConvertArgs, out: &mut impl Write) -> Result<bool, SloError> {
    let input = Input::read(&args.files)?;
    if input.files.is_empty() {
        return Err(SloError::Nothing);
    }
    let loaded = input.load(false);
    for problem in loaded.problems.iter().filter(|p| p.level == Level::Error) {
        eprintln!("{problem}");
    }
    if loaded.refused() {
        return Ok(false);
    }
    let rest = loaded.slos.len() + loaded.others.len() - loaded.short.len();
    if rest > 0 {
        eprintln!("tokengauge: {rest} of the objectives are OpenSLO already and are left out");
    }
    out.write_all(openslo::convert(&loaded).as_bytes())?;
    Ok(true)
}
