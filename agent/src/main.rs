//! `tokengauge`: parse, run, exit code.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use tokengauge::cli::{Cli, Command, ConfigCommand, DoctorArgs, RunArgs};
use tokengauge::run::{self, RunError};
use tokengauge::{demo, dialects, doctor, manual, reference, replay, slo, sources, tenant};

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
        Command::Replay(args) => {
            let opened = args.tenant_key.as_ref().map(|key| tenant::open(&args.tenant_headers, key));
            let tenants = opened.transpose().map_err(RunError::from)?.map(|(tenants, _)| tenants);
            Ok(replay::replay(&args, tenants, &mut sources::file)?)
        }
        Command::Run(args) => Ok(run::run(&args)?),
        Command::Demo(args) => Ok(demo::demo(&args)?),
        Command::Doctor(DoctorArgs { json, config, otlp_endpoint }) => {
            Ok(doctor::doctor(json, &RunArgs { config, otlp_endpoint, ..RunArgs::default() }))
        }
        Command::Dialects(args) => {
            print!("{}", dialects::list(args.format));
            Ok(true)
        }
        Command::Slo(command) => Ok(slo::slo(&command)?),
        Command::Config(ConfigCommand::Check { files }) => {
            reference::check(&files).map_err(RunError::from)?;
            Ok(true)
        }
        Command::Config(ConfigCommand::Schema) => {
            print!("{}", reference::schema_text());
            Ok(true)
        }
        Command::Config(ConfigCommand::Reference) => {
            print!("{}", reference::markdown());
            Ok(true)
        }
        Command::Man { out: Some(folder) } => {
            manual::write_all(&folder).with_context(|| folder.display().to_string())?;
            Ok(true)
        }
        Command::Man { out: None } => {
            manual::write_main(&mut std::io::stdout())?;
            Ok(true)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tokengauge", &mut std::io::stdout());
            Ok(true)
        }
    }
}
