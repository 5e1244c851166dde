//! `slo validate`: every problem with its place; exit 0 when nothing is refused.

use std::io::Write;

use serde::Serialize;
use tokengauge_slo::spec::{Level, Loaded, Problem};

use super::{Input, SloError};
use crate::cli::{SloFormat, SloValidateArgs};

#[derive(Serialize)]
struct Report<'a> {
    valid: bool,
    files: Vec<FileReport<'a>>,
    slos: Vec<SloReport<'a>>,
    not_ours: Vec<OtherReport<'a>>,
}

#[derive(Serialize)]
struct FileReport<'a> {
    file: &'a str,
    valid: bool,
    objects: &'a [String],
    errors: Vec<ProblemReport<'a>>,
    warnings: Vec<ProblemReport<'a>>,
}

#[derive(Serialize)]
struct ProblemReport<'a> {
    line: usize,
    column: usize,
    class: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    object: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

#[derive(Serialize)]
struct SloReport<'a> {
    name: &'a str,
    service: &'a str,
    objectives: Vec<&'a str>,
    file: &'a str,
    line: usize,
    adapted: &'a [String],
}

#[derive(Serialize)]
struct OtherReport<'a> {
    name: &'a str,
    source: &'a str,
    file: &'a str,
    line: usize,
}

/// Validates what was named.
pub fn validate(args: &SloValidateArgs, out: &mut impl Write) -> Result<bool, SloError> {
    let loaded = Input::some(&args.files)?.load(args.strict_refs);
    match args.format {
        SloFormat::Text => text(&loaded, out)?,
        SloFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, &report(&loaded)).map_err(std::io::Error::from)?;
            out.write_all(b"\n")?;
        }
    }
    Ok(!loaded.refused())
}

fn text(loaded: &Loaded, out: &mut impl Write) -> std::io::Result<()> {
    for problem in &loaded.problems {
        writeln!(out, "{problem}")?;
    }
    for slo in &loaded.slos {
        for note in &slo.alerting.adapted {
            writeln!(out, "{}:{}: note: SLO {}: {note}", slo.source.file, slo.source.line, slo.name)?;
        }
    }
    for other in &loaded.others {
        writeln!(
            out,
            "{}:{}: note: SLO {} is not ours (metric source: {}): accepted, and not measured here",
            other.file, other.line, other.name, other.source
        )?;
    }
    let count = |level: Level| loaded.problems.iter().filter(|p| p.level == level).count();
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    let many = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    writeln!(
        out,
        "{}: {}, {}: {} of ours, {} of other tools",
        if errors == 0 { "valid" } else { "refused" },
        many(errors, "error"),
        many(warnings, "warning"),
        many(loaded.slos.len(), "objective"),
        loaded.others.len(),
    )
}

fn report(loaded: &Loaded) -> Report<'_> {
    let files = loaded.files.iter().map(|file| {
        let of = |level: Level| -> Vec<ProblemReport<'_>> {
            loaded.problems.iter().filter(|p| p.file == file.name && p.level == level).map(one).collect()
        };
        let errors = of(Level::Error);
        FileReport { file: &file.name, valid: errors.is_empty(), objects: &file.objects, errors, warnings: of(Level::Warning) }
    });
    Report {
        valid: !loaded.refused(),
        files: files.collect(),
        slos: loaded
            .slos
            .iter()
            .map(|s| SloReport {
                name: &s.name,
                service: &s.service,
                objectives: s.objectives.iter().map(|o| o.name.as_str()).collect(),
                file: &s.source.file,
                line: s.source.line,
                adapted: &s.alerting.adapted,
            })
            .collect(),
        not_ours: loaded.others.iter().map(|o| OtherReport { name: &o.name, source: &o.source, file: &o.file, line: o.line }).collect(),
    }
}

fn one(p: &Problem) -> ProblemReport<'_> {
    ProblemReport {
        line: p.pos.line,
        column: p.pos.column,
        class: p.class.as_str(),
        object: &p.object,
        path: &p.path,
        message: &p.message,
        hint: p.hint.as_deref(),
    }
}
