//! Manual pages, from the definitions of the command line.

use std::io::Write;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::cli::Cli;

/// Writes `tokengauge.1` and a page for each command (`tokengauge-slo-validate.1` …) into a folder, which is made; the names of the files.
///
/// # Errors
/// When that cannot be written.
pub fn write_all(folder: &Path) -> std::io::Result<Vec<String>> {
    std::fs::create_dir_all(folder)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut written = Vec::new();
    below(&command, "", folder, &mut written)?;
    Ok(written)
}

/// Writes the page of the whole program.
///
/// # Errors
/// When that cannot be written.
pub fn write_main(out: &mut dyn Write) -> std::io::Result<()> {
    page(Cli::command(), out)
}

fn below(command: &Command, parent: &str, folder: &Path, written: &mut Vec<String>) -> std::io::Result<()> {
    let name = if parent.is_empty() { command.get_name().to_owned() } else { format!("{parent}-{}", command.get_name()) };
    let file = format!("{name}.1");
    let mut out = Vec::new();
    page(command.clone().display_name(name.clone()), &mut out)?;
    std::fs::write(folder.join(&file), out)?;
    written.push(file);
    command.get_subcommands().filter(|c| !c.is_hide_set()).try_for_each(|c| below(c, &name, folder, written))
}

fn page(command: Command, out: &mut dyn Write) -> std::io::Result<()> {
    // No date: the same sources make the same bytes.
    Man::new(command).manual("tokengauge").source(concat!("tokengauge ", env!("CARGO_PKG_VERSION"))).render(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_for_each_command_and_the_same_each_time() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = write_all(one.path()).unwrap();
        assert_eq!(write_all(two.path()).unwrap(), names);
        for name in ["tokengauge.1", "tokengauge-run.1", "tokengauge-slo.1", "tokengauge-slo-validate.1", "tokengauge-doctor.1"] {
            assert!(names.iter().any(|n| n == name), "{name} of {names:?}");
        }
        for name in &names {
            let text = std::fs::read_to_string(one.path().join(name)).unwrap();
            assert_eq!(text, std::fs::read_to_string(two.path().join(name)).unwrap());
            assert!(text.contains(".TH ") && text.contains(".SH NAME"), "{name}");
        }
        let run = std::fs::read_to_string(one.path().join("tokengauge-run.1")).unwrap();
        assert!(
            run.contains("TOKENGAUGE_HTTP_LISTEN") && run.contains("OTEL_EXPORTER_OTLP_ENDPOINT"),
            "the page of run names its variables"
        );
    }
}
