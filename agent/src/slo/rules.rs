//! `slo rules`: Prometheus rules of the objectives, as a file or as a `PrometheusRule` object, and promtool's tests of them.

use std::io::Write;
use std::path::Path;

use serde::Serialize;
use tokengauge_slo::rules::{self, RuleFile, promtool};

use super::{SloError, load};
use crate::cli::{RulesFormat, SloRulesArgs};

/// The object that the Prometheus operator reads.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PrometheusRule<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata<'a>,
    spec: &'a RuleFile,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    labels: std::collections::BTreeMap<&'static str, &'static str>,
}

/// Writes the rules of what was named; nothing when any of it is refused.
pub fn rules(args: &SloRulesArgs, out: &mut impl Write) -> Result<bool, SloError> {
    let loaded = load(&args.files)?;
    if loaded.refused() {
        return Ok(false);
    }
    let file = rules::rules(&loaded.slos);
    let text = match args.format {
        RulesFormat::Prometheus => yaml(&file),
        RulesFormat::Operator => yaml(&PrometheusRule {
            api_version: "monitoring.coreos.com/v1",
            kind: "PrometheusRule",
            metadata: Metadata { name: &args.name, labels: [("app.kubernetes.io/name", "tokengauge")].into() },
            spec: &file,
        }),
    };
    match &args.output {
        Some(path) => write(path, &text)?,
        None => out.write_all(text.as_bytes())?,
    }
    if let Some(path) = &args.tests {
        let rule_file = args.output.as_deref().and_then(Path::file_name).map_or_else(|| "rules.yml".into(), |f| f.to_string_lossy());
        write(path, &yaml(&promtool::tests(&loaded.slos, &rule_file)))?;
    }
    Ok(true)
}

fn yaml(what: &impl Serialize) -> String {
    serde_norway::to_string(what).unwrap_or_default()
}

fn write(path: &Path, text: &str) -> Result<(), SloError> {
    std::fs::write(path, text).map_err(|source| SloError::Output { path: path.display().to_string(), source })
}
