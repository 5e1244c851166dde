//! `tokengauge`: parse, run, exit code.

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser as _};
use tokengauge::cli::{Cli, Command};
use tokengauge::replay;

fn main() -> ExitCode {
    match command(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tokengauge: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all went well.
fn command(command: Command) -> Result<bool> {
    match command {
        Command::Replay(args) => Ok(replay::replay(&args, &mut replay::open)?),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tokengauge", &mut std::io::stdout());
            Ok(true)
        }
        _ => anyhow::bail!("not built yet"),
    }
}
