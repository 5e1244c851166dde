//! `tokengauge slo`: definitions of service level objectives, checked, explained, converted. One file for each command.

pub mod backtest;
pub mod clock;
mod convert;
mod explain;
pub(crate) mod files;
pub mod journal;
pub mod live;
pub mod records;
mod reference;
mod rules;
mod status;
mod validate;
pub mod view;

pub use files::{Input, InputError};
pub use reference::{goals_markdown, presets_markdown, selectors_markdown, spec_markdown};

use std::path::PathBuf;

use tokengauge_slo::spec::Loaded;

use crate::cli::SloCommand;

/// Why a command could not be carried out at all.
#[derive(Debug, thiserror::Error)]
pub enum SloError {
    /// A file or folder cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Nothing was named that could be read.
    #[error("no file given")]
    Nothing,
    /// A backtest failed as a whole.
    #[error(transparent)]
    Backtest(#[from] backtest::BacktestError),
    /// A file cannot be written.
    #[error("{path}: {source}")]
    Output {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Standard output is closed or full.
    #[error("writing: {0}")]
    Write(#[from] std::io::Error),
}

/// Carries a command out; whether all was well. A reader that has seen enough (`| head`) is no failure.
pub fn slo(command: &SloCommand) -> Result<bool, SloError> {
    match carry_out(command) {
        Err(SloError::Write(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(true),
        other => other,
    }
}

/// Loads what was named. Problems go to standard error, but for `validate`, which reports them itself.
fn load(paths: &[PathBuf]) -> Result<Loaded, SloError> {
    let loaded = Input::some(paths)?.load(false);
    loaded.problems.iter().for_each(|problem| eprintln!("tokengauge: {problem}"));
    Ok(loaded)
}

fn carry_out(command: &SloCommand) -> Result<bool, SloError> {
    let mut out = std::io::stdout().lock();
    match command {
        SloCommand::Validate(args) => validate::validate(args, &mut out),
        SloCommand::Explain(args) => explain::explain(args, &mut out),
        SloCommand::Convert(args) => convert::convert(args, &mut out),
        SloCommand::Status(args) => status::status(args, &mut out),
        SloCommand::Backtest(args) => backtest::command(args),
        SloCommand::Rules(args) => rules::rules(args, &mut out),
        SloCommand::Schema => {
            let text = serde_json::to_string_pretty(&tokengauge_slo::schema::schema()).unwrap_or_default();
            std::io::Write::write_all(&mut out, (text + "\n").as_bytes())?;
            Ok(true)
        }
    }
}
