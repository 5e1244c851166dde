//! `slo convert`: the short form as OpenSLO v1.

use std::io::Write;

use tokengauge_slo::convert as openslo;

use super::{SloError, load};
use crate::cli::SloConvertArgs;

/// Converts what was named; nothing when any of it is refused.
pub fn convert(args: &SloConvertArgs, out: &mut impl Write) -> Result<bool, SloError> {
    let loaded = load(&args.files)?;
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
