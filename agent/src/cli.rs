//! The command line. Flags win over the environment, the environment wins over the configuration file.

use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

const ABOUT: &str = "Measures LLM traffic from outside: time to first token, gaps between chunks, tokens per second, outcomes.

tokengauge watches TLS libraries by eBPF, or packets, and sees every streamed chunk at the instant it happened. Nothing is \
proxied, no SDK is needed, no prompt or answer text is kept.";

const AFTER: &str = "Exit codes:
  0  all went well
  1  something could not be read, tapped or written; what was read is still printed
  2  wrong usage or configuration

Start with `tokengauge demo`, then `sudo tokengauge run`.";

const AFTER_RUN: &str = "Without configuration it taps every TLS library that it knows, by eBPF, and says on standard error what it sees. \
SIGTERM or SIGINT end it cleanly within 5 seconds: open inferences are written as `truncated`, exporters flush. A second signal \
ends it at once.

OTLP is exported when one of these says so:
  OTEL_EXPORTER_OTLP_ENDPOINT, also _METRICS_ENDPOINT and _TRACES_ENDPOINT
  OTEL_METRICS_EXPORTER=otlp, OTEL_TRACES_EXPORTER=otlp (`none` switches a signal off)
  --otlp-endpoint, or `otlp: {endpoint: …}` in the configuration file
Without a protocol, port 4317 means gRPC and everything else http/protobuf. These hold as well:
  OTEL_EXPORTER_OTLP_PROTOCOL, _HEADERS, _TIMEOUT, _COMPRESSION, _CERTIFICATE, _CLIENT_CERTIFICATE,
  _CLIENT_KEY, each also for one signal; OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
  OTEL_METRIC_EXPORT_INTERVAL, OTEL_TRACES_SAMPLER, OTEL_BSP_*, OTEL_SDK_DISABLED

Exit codes:
  0  stopped by a signal
  1  a tap could not start or failed, or a file could not be written
  2  wrong usage or configuration
  130, 143  a second SIGINT or SIGTERM";

/// The whole command line.
#[derive(Parser, Debug)]
#[command(name = "tokengauge", version, about = ABOUT.split_once("\n\n").map_or(ABOUT, |(first, _)| first), long_about = ABOUT, after_help = AFTER, max_term_width = 120)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the process's arguments. A variable that is set to nothing is not set, as with `OTEL_*`: charts and unit files
    /// write such ones.
    pub fn from_process() -> Self {
        let not_set = |arg: clap::Arg| match arg.get_env() {
            Some(name) if std::env::var_os(name).is_some_and(|v| v.is_empty()) => arg.env(Resettable::Reset),
            _ => arg,
        };
        let command = Self::command().mut_subcommand("run", |run| run.mut_args(not_set)).mut_subcommand("doctor", |d| d.mut_args(not_set));
        let matches = command.get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measures what capture files (pcap, pcapng) hold.
    Replay(ReplayArgs),
    /// Watches this machine until it is told to stop.
    #[command(after_help = AFTER_RUN)]
    Run(RunArgs),
    /// Shows it at work: a local server, a client, and what tokengauge sees of them.
    Demo(DemoArgs),
    /// Says what tokengauge can do on this machine, and tries it on itself.
    Doctor(DoctorArgs),
    /// Lists the APIs that are understood.
    Dialects(DialectsArgs),
    /// Service level objectives: checks, explains and converts their files.
    #[command(subcommand)]
    Slo(SloCommand),
    /// The configuration file: checks it, and says what can stand in it.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Prints the manual page, or writes those of all commands.
    Man {
        /// Writes a page for each command into this folder.
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
    },
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// `replay`.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes:\n  0  every file was read to its end\n  1  a file could not be read or is cut short; what was read is printed\n  2  wrong usage"
)]
pub struct ReplayArgs {
    /// Capture files, read one after the other; `-` is standard input.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Decrypts TLS connections with the secrets in this file (what `SSLKEYLOGFILE` makes clients and servers write); may be repeated.
    /// Secrets inside a pcapng file are used without it.
    #[arg(long = "keylog", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub keylogs: Vec<PathBuf>,
    /// A header field that names the tenant, e.g. `x-tenant-id` or `authorization`; may be repeated, the first that a request has counts. Records hold a hash of what
    /// it says.
    #[arg(long = "tenant-header", value_name = "NAME", requires = "tenant_key")]
    pub tenant_headers: Vec<String>,
    /// A file with the key of that hash (HMAC-SHA256), at least 16 bytes.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tenant_headers")]
    pub tenant_key: Option<PathBuf>,
    /// What to print on standard output.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Writes the closing statistics as JSON to this file instead of standard error.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub stats: Option<PathBuf>,
    /// Threads that share a file's connections; 0 is one for each core. What is printed is the same with any number. Pipes are read
    /// by one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: u32,
}

/// What `replay` prints.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One row per model.
    Table,
    /// One JSON object per inference (record version 1), in order of completion.
    Jsonl,
}

/// `run`.
#[derive(Args, Debug, Default)]
pub struct RunArgs {
    /// Configuration file (YAML).
    #[arg(long, value_name = "FILE", env = "TOKENGAUGE_CONFIG", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Appends one record per finished inference to this file; `-` is standard output.
    #[arg(long, value_name = "FILE|-", env = "TOKENGAUGE_JSONL", value_hint = ValueHint::FilePath)]
    pub jsonl: Option<PathBuf>,
    /// Does not tap TLS libraries.
    #[arg(long, env = "TOKENGAUGE_NO_TLS", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub no_tls: bool,
    /// Taps only this process; may be repeated.
    #[arg(long = "pid", value_name = "PID", env = "TOKENGAUGE_PIDS", value_delimiter = ',')]
    pub pids: Vec<u32>,
    /// Also captures packets on this interface (unencrypted HTTP); may be repeated.
    #[arg(long = "interface", short = 'i', value_name = "IF", env = "TOKENGAUGE_INTERFACES", value_delimiter = ',')]
    pub interfaces: Vec<String>,
    /// Capture filter (pcap-filter(7)) for the interfaces given by `--interface`.
    #[arg(long, value_name = "EXPR", env = "TOKENGAUGE_FILTER", requires = "interfaces")]
    pub filter: Option<String>,
    /// Exports OTLP to this endpoint, e.g. `http://collector:4317`.
    #[arg(long, value_name = "URL", env = "TOKENGAUGE_OTLP_ENDPOINT", value_hint = ValueHint::Url)]
    pub otlp_endpoint: Option<String>,
    /// Serves `/healthz`, `/readyz` and `/metrics` at this address and port, e.g. `127.0.0.1:9464`; a port alone is on loopback.
    #[arg(long, value_name = "ADDRESS:PORT", env = "TOKENGAUGE_HTTP_LISTEN")]
    pub http_listen: Option<String>,
    /// Writes the closing statistics as JSON to this file.
    #[arg(long, value_name = "FILE", env = "TOKENGAUGE_STATS", value_hint = ValueHint::FilePath)]
    pub stats: Option<PathBuf>,
    /// What the agent logs about itself, e.g. `info` or `tokengauge=debug`.
    #[arg(long, value_name = "FILTER", env = "TOKENGAUGE_LOG")]
    pub log: Option<String>,
    /// Says every inference on standard error, also when that is no terminal.
    #[arg(long, short, env = "TOKENGAUGE_VERBOSE", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub verbose: bool,
    /// Checks the configuration, prints it as it would be used, and ends.
    #[arg(long)]
    pub check: bool,
}

/// `demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Ends after the first round, with exit code 0 when every figure was right.
    #[arg(long)]
    pub once: bool,
}

/// `doctor`.
#[derive(Args, Debug)]
#[command(
    after_help = "It takes the configuration that `run` would take: file, environment, these flags. Each finding that is not well says what to do next.\n\n\
Exit codes:\n  0  nothing that is configured fails; where TLS libraries are to be tapped, an event of the agent's own process was received\n  \
1  something fails; the output says what, and what to do"
)]
pub struct DoctorArgs {
    /// Configuration file (YAML) whose exporters, files and objectives are checked as well.
    #[arg(long, value_name = "FILE", env = "TOKENGAUGE_CONFIG", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The OTLP receiver that is to be reached.
    #[arg(long, value_name = "URL", env = "TOKENGAUGE_OTLP_ENDPOINT", value_hint = ValueHint::Url)]
    pub otlp_endpoint: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// `dialects`.
#[derive(Args, Debug)]
pub struct DialectsArgs {
    /// How to print the list.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    pub format: ListFormat,
}

/// `config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Checks configuration files, and says in a line what each would do.
    #[command(
        after_help = "Exit codes:\n  0  all are right\n  2  one is wrong: the message names file, line, key, and the nearest right key"
    )]
    Check {
        /// Files.
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
    /// Prints the JSON Schema of the configuration file, for editors.
    Schema,
    /// Prints every key with its default and its meaning, in Markdown.
    Reference,
}

/// `slo`.
#[derive(Subcommand, Debug)]
pub enum SloCommand {
    /// Checks SLO files: OpenSLO (verdicts as its official SDK), the short form, Sloth's AlertWindows.
    #[command(after_help = AFTER_VALIDATE)]
    Validate(SloValidateArgs),
    /// Says in plain words and numbers what SLO files promise, and when each alert would fire.
    Explain(SloExplainArgs),
    /// Turns the short form into OpenSLO v1.
    Convert(SloConvertArgs),
    /// Says what objectives would have done on recorded traffic: levels, budgets, burn rates and alerts, step by step.
    #[command(after_help = AFTER_BACKTEST)]
    Backtest(SloBacktestArgs),
    /// Writes Prometheus rules that add up the counters of all agents: burn-rate alerts, Sloth's record names.
    Rules(SloRulesArgs),
    /// Shows how the objectives of the agent on this machine stand: levels, budgets, burn rates, alerts, coverage.
    #[command(after_help = AFTER_STATUS)]
    Status(SloStatusArgs),
    /// Prints the JSON Schema of SLO files, for editors.
    Schema,
}

const AFTER_VALIDATE: &str = "A reference to an object that no file holds is a warning, because it may stand elsewhere; it is an error of \
objectives of ours with --strict-refs and when a folder is given. Objectives for other back ends are accepted and said to be not ours.

Exit codes:
  0  nothing is refused
  1  a file is refused or cannot be read
  2  wrong usage";

const AFTER_BACKTEST: &str =
    "RECORDS are lines of the inference record, version 1: what `replay --format jsonl` and `run` write, or what people make by \
hand, in any order. Only `start_unix_nano` is required; fields that are not needed are ignored.

Every request counts where it ended: start + duration, the start where the duration is unknown. Steps stand at whole multiples of \
--step in Unix time, from the first at or after the first end to the first at or after the last; a window ends at the step and begins, \
exclusively, its length before. Burn rate is bad/valid in the window ÷ (1 − target); `null` where nothing was valid.

Exit codes:
  0  every line was a record
  1  a line was none (named, counted and left out), a file could not be read, or the SLO is refused
  2  wrong usage";

const AFTER_STATUS: &str = "Exit codes:
  0  the agent runs, its SLO files are right and its journal is written; alerts may fire all the same
  1  no agent has written here of late, a file is broken (the last good one stays in force), or budgets would not survive a restart
  2  wrong usage";

/// `slo status`.
#[derive(Args, Debug)]
pub struct SloStatusArgs {
    /// The journal that the agent's configuration names (`slo.journal`); /var/lib/tokengauge/slo.journal by default.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub journal: Option<PathBuf>,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = SloFormat::Text)]
    pub format: SloFormat,
}

/// `slo backtest`.
#[derive(Args, Debug)]
pub struct SloBacktestArgs {
    /// The objectives: a file or a folder; may be repeated.
    #[arg(long = "slo", required = true, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub slos: Vec<PathBuf>,
    /// Files of records; `-` is standard input.
    #[arg(required = true, value_name = "RECORDS", value_hint = ValueHint::FilePath)]
    pub records: Vec<PathBuf>,
    /// How far the steps are apart: 30s, 1m, 1h …
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = step)]
    pub step: u64,
    /// What to print.
    #[arg(long, value_enum, default_value_t = crate::slo::backtest::Format::Table)]
    pub format: crate::slo::backtest::Format,
}

fn step(text: &str) -> Result<u64, String> {
    let seconds = tokengauge_slo::spec::duration::seconds(text).filter(|s| *s >= 1.0 && s.fract() == 0.0 && *s <= 31_536_000.0);
    seconds.map(|s| s as u64).ok_or_else(|| "expected whole seconds, as in 30s, 1m or 1h".to_owned())
}

/// `slo validate`.
#[derive(Args, Debug)]
pub struct SloValidateArgs {
    /// Files, or folders with `*.yaml`, `*.yml` and `*.json`; `-` is standard input.
    #[arg(required = true, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// How to print what was found.
    #[arg(long, value_enum, default_value_t = SloFormat::Text)]
    pub format: SloFormat,
    /// Everything that objectives of ours refer to must be in the files.
    #[arg(long)]
    pub strict_refs: bool,
}

/// `slo rules`.
#[derive(Args, Debug)]
pub struct SloRulesArgs {
    /// Files and folders (`*.yaml`, `*.yml`, `*.json`) with objectives.
    #[arg(required = true, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// What to write.
    #[arg(long, value_enum, default_value_t = RulesFormat::Prometheus)]
    pub format: RulesFormat,
    /// Name of the `PrometheusRule` object.
    #[arg(long, value_name = "NAME", default_value = "tokengauge-slos")]
    pub name: String,
    /// Writes the rules to this file instead of standard output.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Also writes unit tests of the rules, for `promtool test rules`, to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tests: Option<PathBuf>,
}

/// What `slo rules` writes.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum RulesFormat {
    /// A rule file of Prometheus.
    Prometheus,
    /// A `PrometheusRule` object of the Prometheus operator.
    Operator,
}

/// `slo explain`.
#[derive(Args, Debug)]
pub struct SloExplainArgs {
    /// Files or folders.
    #[arg(required_unless_present = "presets", value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// The traffic of each objective, for budgets in requests and for the guards of low traffic.
    #[arg(long, value_name = "N", value_parser = requests)]
    pub requests_per_day: Option<f64>,
    /// Lists the presets of the short form.
    #[arg(long)]
    pub presets: bool,
}

fn requests(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0).ok_or_else(|| "a number above 0".into())
}

/// `slo convert`.
#[derive(Args, Debug)]
pub struct SloConvertArgs {
    /// Files or folders.
    #[arg(required = true, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
}

/// What `slo validate` prints.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SloFormat {
    /// `file:line:column: error: object: property: what was expected and found`.
    Text,
    /// One JSON object.
    Json,
}

/// How to print a list.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListFormat {
    /// Aligned columns.
    Table,
    /// A Markdown table, as in the README.
    Markdown,
    /// A JSON array.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_repeat() {
        let cli = Cli::try_parse_from(["tokengauge", "run", "--pid", "1", "--pid", "2,3", "-i", "lo"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!((run.pids, run.interfaces, run.no_tls), (vec![1, 2, 3], vec!["lo".to_owned()], false));
    }

    #[test]
    fn usage_errors_are_2() {
        for bad in
            [&["tokengauge", "replay"][..], &["tokengauge", "replay", "x", "--format", "xml"], &["tokengauge", "run", "--filter", "tcp"]]
        {
            assert_eq!(Cli::try_parse_from(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
