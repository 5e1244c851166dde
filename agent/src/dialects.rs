//! `tokengauge dialects`: the registry of the core, as a list.

use serde::Serialize;
use tokengauge_core::dialect::{About, DIALECTS};

use crate::cli::ListFormat;

#[derive(Serialize)]
struct Row {
    api: &'static str,
    operation: &'static str,
    paths: &'static [&'static str],
    doc: &'static str,
}

fn rows() -> Vec<Row> {
    let row = |a: &About| Row { api: a.api, operation: a.operation.as_str(), paths: a.paths, doc: a.doc };
    DIALECTS.iter().map(|d| row(d.about())).collect()
}

/// The list in the given form, with a line end at its end.
pub fn list(format: ListFormat) -> String {
    let rows = rows();
    match format {
        ListFormat::Json => serde_json::to_string_pretty(&rows).unwrap_or_default() + "\n",
        ListFormat::Markdown => {
            let mut out = String::from("| API | Operation | Recognised by | What it is |\n|---|---|---|---|\n");
            for r in rows {
                let paths: Vec<_> = r.paths.iter().map(|p| format!("`{p}`")).collect();
                out += &format!("| `{}` | `{}` | {} | {} |\n", r.api, r.operation, paths.join(", "), r.doc);
            }
            out
        }
        ListFormat::Table => {
            let width = rows.iter().map(|r| r.api.len()).max().unwrap_or_default();
            rows.iter().map(|r| format!("{:width$}  {}\n{:width$}  {}\n", r.api, r.doc, "", r.paths.join("  "))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_is_listed_in_every_form() {
        for format in [ListFormat::Table, ListFormat::Markdown, ListFormat::Json] {
            let text = list(format);
            assert!(DIALECTS.iter().all(|d| text.contains(d.about().api)), "{text}");
        }
    }
}
