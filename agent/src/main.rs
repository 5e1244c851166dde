//! `tokengauge`: parse, run, exit code.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory as _;
use tokengauge::cli::{Cli, Command};
use tokengauge::run::{self, RunError};
use tokengauge::{demo, dialects, doctor, replay, slo, sources};

fn main() -> ExitCode {
    match command(Cli::from_process().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tokengauge: {error:#}");
            error.downcast_ref::<RunError>().map_or(1, RunError::exit_code).into()
        }
    }
}

/// Whether all went well.
fn command(command: Command) -> Result<bool> {
    match command {
        Command::Replay(args) => Ok(replay::replay(&args, &mut sources::file)?),
        Command::Run(args) => Ok(run::run(&args)?),
        Command::Demo(args) => Ok(demo::demo(&args)?),
        Command::Doctor(args) => Ok(doctor::doctor(args.json)),
        Command::Dialects(args) => {
            print!("{}", dialects::list(args.format));
            Ok(true)
        }
        Command::Slo(command) => Ok(slo::slo(&command)?),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tokengauge", &mut std::io::stdout());
            Ok(true)
        }
    }
}
