//! What `run` is to do: the configuration file, with the environment and the flags on top of it.
//!
//! The file is YAML. An unknown key is an error that names the file, the line, the path and the nearest right key: a
//! misspelt setting that is silently ignored is worse than none.

use std::path::{Path, PathBuf};

use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::semconv::Profile;

use crate::cli::RunArgs;
use crate::engine;
use crate::export::jsonl::rotation::Rotate;
use crate::export::{metrics, otlp};
use crate::{hook, serve, tenant};

/// Everything that can be configured.
#[derive(Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where bytes come from.
    pub taps: Taps,
    /// The generation of the GenAI conventions that metrics and spans speak.
    pub semconv: Option<Semconv>,
    /// Which series there are, whoever takes them.
    pub metrics: metrics::Config,
    /// OTLP metrics and spans.
    pub otlp: otlp::Config,
    /// Records as JSON lines.
    pub jsonl: Option<Jsonl>,
    /// Inference servers whose own metrics are read.
    pub engines: engine::Config,
    /// What inference servers tell of their own requests, by the tap symbol and by a Unix socket.
    pub hook: hook::Config,
    /// How the views of one request are put together: its client's, its server's, both sides of a proxy, its engine's.
    pub join: crate::join::Config,
    /// Spans that inference servers emit of themselves, received to be joined with what the wire shows. Off without it.
    pub otlp_in: Option<crate::otlp_in::Config>,
    /// Service level objectives.
    pub slo: Option<crate::slo::live::Config>,
    /// The agent's own pages: health, readiness, metrics for Prometheus. Off without it.
    pub http: Option<serve::Config>,
    /// Names of pods and workloads for both ends of a connection.
    pub kubernetes: crate::enrich::config::Config,
    /// Who asks, as a keyed hash: of records, spans and objectives, and of metrics where that is asked for. Off without it.
    pub tenant: Option<tenant::Config>,
    /// What the agent logs about itself (tracing-subscriber's filter syntax).
    pub log: Option<String>,
}

/// `semconv`: which names of the GenAI conventions are used.
#[derive(Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Semconv {
    /// Those of v1.41, and the counters of tokens that came after them.
    V1_41,
    /// Those of `semantic-conventions-genai`, October 2026.
    Main,
    /// Both at once.
    Both,
}

impl Semconv {
    /// What is spoken: as `OTEL_SEMCONV_STABILITY_OPT_IN` says, else as the configuration says, else v1.41.
    pub fn profile(configured: Option<Self>, env: otlp::Env<'_>) -> Profile {
        let said = env("OTEL_SEMCONV_STABILITY_OPT_IN").and_then(|list| Profile::opted_in(&list));
        said.unwrap_or(match configured {
            None | Some(Self::V1_41) => Profile::V1_41,
            Some(Self::Main) => Profile::Main,
            Some(Self::Both) => Profile::Both,
        })
    }
}

/// `taps`.
#[derive(Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Taps {
    /// eBPF on TLS libraries.
    pub tls: Tls,
    /// Live packet captures.
    pub pcap: Vec<Pcap>,
}

/// `taps.tls`.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// Whether to tap at all.
    pub enabled: bool,
    /// Only these processes; empty: all.
    pub pids: Vec<u32>,
    /// Only processes whose command name matches one of these; empty: all.
    pub include: Vec<String>,
    /// Not processes whose command name matches one of these.
    pub exclude: Vec<String>,
    /// Size of the kernel's ring buffer.
    pub ring_mib: u32,
}

impl Default for Tls {
    fn default() -> Self {
        Self { enabled: true, pids: Vec::new(), include: Vec::new(), exclude: Vec::new(), ring_mib: 32 }
    }
}

/// `taps.pcap[]`.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Pcap {
    /// The interface, e.g. `lo` or `eth0`; `any` is all of them.
    pub interface: String,
    /// pcap-filter(7).
    #[serde(default)]
    pub filter: Option<String>,
    /// Size of the kernel's capture buffer.
    #[serde(default = "default_buffer_mib")]
    pub buffer_mib: u32,
    /// Bytes kept of each packet.
    #[serde(default = "default_snaplen")]
    pub snaplen: u32,
}

impl Pcap {
    /// A capture on `interface` of what passes `filter`, with the usual buffers.
    pub fn new(interface: &str, filter: &str) -> Self {
        Self { interface: interface.into(), filter: Some(filter.into()), buffer_mib: default_buffer_mib(), snaplen: default_snaplen() }
    }
}

const fn default_buffer_mib() -> u32 {
    32
}

const fn default_snaplen() -> u32 {
    // Offloads join segments to packets of up to 64 KiB and more.
    262_144
}

/// `jsonl`.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Jsonl {
    /// The file to append to; `-` is standard output. It is opened anew by SIGHUP, and when it was moved away.
    pub path: PathBuf,
    /// When a new file begins, and what becomes of the old ones; never without it.
    #[serde(default)]
    pub rotate: Option<Rotate>,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no YAML of the right shape.
    #[error("{path}:{line}:{column}: {what}{hint}")]
    Shape {
        /// The file.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Path within the file, and what is wrong there.
        what: String,
        /// The nearest right key, in words.
        hint: String,
    },
    /// A value is of the right type and still wrong.
    #[error("{origin}: {key}: {what}")]
    Value {
        /// The file, or `command line`.
        origin: String,
        /// Path of the key.
        key: String,
        /// What is wrong.
        what: String,
    },
}

impl Config {
    /// The configuration of a `run`: file, then environment, then flags.
    ///
    /// # Errors
    /// When the file cannot be read, or something in it is wrong.
    pub fn load(args: &RunArgs) -> Result<Self, ConfigError> {
        let (mut config, origin) = match &args.config {
            Some(path) => (Self::read(path)?, path.display().to_string()),
            None => (Self::default(), "command line".to_owned()),
        };
        config.apply(args);
        config.check(&origin)?;
        Ok(config)
    }

    /// What one file says, checked; neither the environment nor flags come into it.
    ///
    /// # Errors
    /// When the file cannot be read, or something in it is wrong.
    pub fn of_file(path: &Path) -> Result<Self, ConfigError> {
        let config = Self::read(path)?;
        config.check(&path.display().to_string())?;
        Ok(config)
    }

    fn read(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Io { path: name.clone(), source })?;
        Self::parse(&text, &name)
    }

    /// Parses the text of a file called `path`.
    ///
    /// # Errors
    /// When it is no YAML, or has unknown keys or wrong types.
    pub fn parse(text: &str, path: &str) -> Result<Self, ConfigError> {
        if text.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        serde_norway::from_str(text).map_err(|error| {
            let (line, column) = error.location().map_or((1, 1), |l| (l.line(), l.column()));
            let full = error.to_string();
            let what = full.rsplit_once(" at line ").map_or(full.as_str(), |(what, _)| what).to_owned();
            let hint = nearest(&what).map(|key| format!(" (did you mean `{key}`?)")).unwrap_or_default();
            ConfigError::Shape { path: path.to_owned(), line, column, what, hint }
        })
    }

    fn apply(&mut self, args: &RunArgs) {
        if args.no_tls {
            self.taps.tls.enabled = false;
        }
        if !args.pids.is_empty() {
            self.taps.tls.pids.clone_from(&args.pids);
        }
        if !args.interfaces.is_empty() {
            let pcap = |interface: &String| Pcap {
                interface: interface.clone(),
                filter: args.filter.clone(),
                buffer_mib: default_buffer_mib(),
                snaplen: default_snaplen(),
            };
            self.taps.pcap = args.interfaces.iter().map(pcap).collect();
        }
        if let Some(path) = &args.jsonl {
            let rotate = self.jsonl.take().and_then(|j| j.rotate);
            self.jsonl = Some(Jsonl { path: path.clone(), rotate });
        }
        if let Some(listen) = &args.http_listen {
            self.http.get_or_insert_default().listen.clone_from(listen);
        }
        if let Some(endpoint) = &args.otlp_endpoint {
            self.otlp.endpoint = Some(endpoint.clone());
            self.otlp.endpoint_wins = true;
        }
        if let Some(log) = &args.log {
            self.log = Some(log.clone());
        }
    }

    fn check(&self, origin: &str) -> Result<(), ConfigError> {
        let wrong = |key: String, what: String| Err(ConfigError::Value { origin: origin.to_owned(), key, what });
        for (list, patterns) in [("include", &self.taps.tls.include), ("exclude", &self.taps.tls.exclude)] {
            for (i, pattern) in patterns.iter().enumerate() {
                if let Err(error) = Regex::new(pattern) {
                    let what = error.to_string().lines().last().unwrap_or_default().trim().to_owned();
                    return wrong(format!("taps.tls.{list}[{i}]"), format!("`{pattern}` is no regular expression: {what}"));
                }
            }
        }
        if !self.taps.tls.ring_mib.is_power_of_two() || self.taps.tls.ring_mib > 1024 {
            return wrong("taps.tls.ring_mib".into(), format!("{} is no power of two up to 1024", self.taps.tls.ring_mib));
        }
        for (i, pcap) in self.taps.pcap.iter().enumerate() {
            if pcap.interface.is_empty() {
                return wrong(format!("taps.pcap[{i}].interface"), "is empty".into());
            }
            if !(1..=2_048).contains(&pcap.buffer_mib) {
                return wrong(format!("taps.pcap[{i}].buffer_mib"), format!("{} is not between 1 and 2048", pcap.buffer_mib));
            }
            if !(64..=1 << 20).contains(&pcap.snaplen) {
                return wrong(format!("taps.pcap[{i}].snaplen"), format!("{} is not between 64 and 1048576", pcap.snaplen));
            }
        }
        if !self.taps.tls.enabled && self.taps.pcap.is_empty() {
            return wrong("taps".into(), "TLS tapping is off and there is no interface: nothing to watch".into());
        }
        if self.slo.as_ref().is_some_and(|s| s.files.is_empty() && s.config_maps.is_none()) {
            return wrong("slo.files".into(), "is empty: expected files or folders with objectives".into());
        }
        if let Some(Err((key, what))) = self.tenant.as_ref().map(tenant::Config::check) {
            return wrong(format!("tenant.{key}"), what);
        }
        if let Err((key, what)) = self.kubernetes.check() {
            return wrong(format!("kubernetes.{key}"), what);
        }
        if let Some(Err((key, what))) = self.slo.as_ref().and_then(|s| s.config_maps.as_ref()).map(crate::slo::teams::Config::check) {
            return wrong(format!("slo.config_maps.{key}"), what);
        }
        if let Some(Jsonl { path, rotate: Some(rotate) }) = &self.jsonl {
            if path == Path::new("-") {
                return wrong("jsonl.rotate".into(), "standard output cannot be rotated".into());
            }
            if let Err(what) = rotate.check() {
                return wrong("jsonl.rotate".into(), what);
            }
        }
        if let Some(Err(what)) = self.http.as_ref().map(serve::Config::check) {
            return wrong("http".into(), what);
        }
        if let Err(what) = self.metrics.check() {
            return wrong("metrics".into(), what);
        }
        if let Err(what) = self.join.check() {
            return wrong("join".into(), what);
        }
        if let Some(Err(what)) = self.otlp_in.as_ref().map(crate::otlp_in::Config::check) {
            return wrong("otlp_in".into(), what);
        }
        if let Err(what) = self.hook.check() {
            return wrong("hook".into(), what);
        }
        if let Err(what) = self.engines.check() {
            return wrong("engines".into(), what);
        }
        if let Err(what) = self.otlp.check() {
            return wrong("otlp".into(), what);
        }
        Ok(())
    }
}

/// The key nearest to the unknown one that a serde message names: "unknown field `a`, expected one of `b`, `c`".
fn nearest(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("unknown field `")?;
    let (unknown, expected) = rest.split_once('`')?;
    expected
        .split('`')
        .skip(1)
        .step_by(2)
        .map(|key| (distance(unknown, key), key))
        .min()
        .filter(|(far, key)| *far <= (key.len() / 2).max(2))
        .map(|(_, key)| key)
}

/// Edits (insert, delete, replace) from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, above) in b.iter().zip(row.iter_mut().skip(1)) {
            let cost = (diagonal + usize::from(x != *y)).min(left + 1).min(*above + 1);
            diagonal = std::mem::replace(above, cost);
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, String> {
        let config = Config::parse(text, "x.yaml").map_err(|e| e.to_string())?;
        config.check("x.yaml").map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn a_full_file() {
        let text = "
taps:
  tls: {enabled: true, pids: [1, 2], include: ['^python'], exclude: [curl], ring_mib: 64}
  pcap:
    - {interface: eth0, filter: tcp port 8000, buffer_mib: 64, snaplen: 65535}
    - {interface: lo}
otlp:
  endpoint: http://collector:4317
  protocol: grpc
  headers: {authorization: Bearer x}
  interval_s: 10
jsonl: {path: /var/log/tokengauge.jsonl, rotate: {size_mib: 10, age_h: 24, keep: 3, keep_mib: 100, compress: gzip}}
http: {listen: '0.0.0.0:9464', metrics: true, tls: {certificate: a, key: b}, bearer_token_file: c}
log: tokengauge=debug
";
        let config = check(text).unwrap();
        assert_eq!(config.taps.pcap[1], Pcap { interface: "lo".into(), filter: None, buffer_mib: 32, snaplen: 262_144 });
        assert_eq!(config.taps.tls.ring_mib, 64);
        assert_eq!(check("# nothing\n").unwrap(), Config::default());
    }

    #[test]
    fn errors_say_where_and_what() {
        for (text, want) in [
            (
                "taps:\n  tls:\n    enabld: true\n",
                "x.yaml:3:5: taps.tls: unknown field `enabld`, expected one of `enabled`, `pids`, `include`, `exclude`, `ring_mib` (did you mean `enabled`?)",
            ),
            ("taps: {pcapp: []}\n", "x.yaml:1:8: taps: unknown field `pcapp`, expected `tls` or `pcap` (did you mean `pcap`?)"),
            ("taps:\n  tls: {ring_mib: big}\n", "x.yaml:2:19: taps.tls.ring_mib: invalid type: string \"big\", expected u32"),
            ("taps: {tls: {include: ['(']}}\n", "x.yaml: taps.tls.include[0]: `(` is no regular expression: error: unclosed group"),
            (
                "metrics: {models: [{match: '(', replace: x}]}\n",
                "x.yaml: metrics: models[0].match: `(` is no regular expression: error: unclosed group",
            ),
            ("metrics: {limit: 1}\n", "x.yaml: metrics: limit: 1 is not between 8 and 1000000"),
            (
                "engines: {endpoints: [{url: 'http://a', kind: gpt}]}\n",
                "x.yaml: engines: endpoints[0].kind: `gpt` is none of vllm, sglang, tensorrt-llm, tgi, llama.cpp, triton",
            ),
            ("engines: {endpoints: [{url: 'http://a', kind: ollama}]}\n", "x.yaml: engines: endpoints[0].kind: ollama has no metrics"),
            (
                "engines: {endpoints: [{url: 'gpu-1:8000'}]}\n",
                "x.yaml: engines: endpoints[0].url: `gpu-1:8000` does not begin with http:// or https://",
            ),
            (
                "engines: {endpoints: [{url: 'http://u:p@a'}]}\n",
                "x.yaml: engines: endpoints[0].url: has credentials; put them into bearer_token_file",
            ),
            ("join: {wait_s: 99}\n", "x.yaml: join: wait_s: 99 is not between 0 and 60"),
            (
                "otlp_in: {listen: '0.0.0.0:4317'}\n",
                "x.yaml: otlp_in: listen: `0.0.0.0:4317` is not on loopback: whoever reaches it could say anything of any request",
            ),
            ("otlp_in: {listen: 'unix:x'}\n", "x.yaml: otlp_in: listen: `x` is no absolute path"),
            ("hook: {ring_mib: 3}\n", "x.yaml: hook: ring_mib: 3 is no power of two up to 1024"),
            ("engines: {interval_s: 0}\n", "x.yaml: engines: interval_s: 0 is not between 0.1 and 3600"),
            ("taps: {tls: {enabled: false}}\n", "x.yaml: taps: TLS tapping is off and there is no interface: nothing to watch"),
            ("taps: {pcap: [{interface: lo, snaplen: 1}]}\n", "x.yaml: taps.pcap[0].snaplen: 1 is not between 64 and 1048576"),
            ("http: {listen: everywhere}\n", "x.yaml: http: listen: `everywhere` is no address and port such as 127.0.0.1:9464"),
            ("jsonl: {path: x, rotate: {keep: 0}}\n", "x.yaml: jsonl.rotate: keep: 0 is not between 1 and 10000"),
            ("jsonl: {path: '-', rotate: {}}\n", "x.yaml: jsonl.rotate: standard output cannot be rotated"),
            (
                "otlp: {protocol: http}\n",
                "x.yaml:1:18: otlp.protocol: unknown variant `http`, expected one of `grpc`, `http/protobuf`, `http/json`",
            ),
            ("kubernetes: {wait_ms: 40000}\n", "x.yaml: kubernetes.wait_ms: 40000 is more than 30000"),
        ] {
            assert_eq!(check(text).unwrap_err(), want);
        }
    }

    #[test]
    fn flags_win() {
        let mut config = Config::parse("jsonl: {path: a, rotate: {keep: 2}}\ntaps: {pcap: [{interface: eth0}]}\n", "x.yaml").unwrap();
        let args = RunArgs {
            http_listen: Some("1234".into()),
            jsonl: Some("b".into()),
            interfaces: vec!["lo".into()],
            no_tls: true,
            ..RunArgs::default()
        };
        config.apply(&args);
        assert_eq!(config.jsonl, Some(Jsonl { path: "b".into(), rotate: Some(Rotate { keep: 2, ..Rotate::default() }) }));
        assert_eq!(config.http.as_ref().unwrap().listen, "1234");
        assert_eq!((config.taps.tls.enabled, config.taps.pcap[0].interface.as_str()), (false, "lo"));
    }

    #[test]
    fn distances() {
        assert_eq!((distance("kitten", "sitting"), distance("", "ab"), distance("ab", "ab")), (3, 2, 0));
    }
}
