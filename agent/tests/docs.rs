//! The README's generated tables are those that the code makes. `UPDATE_EXPECT=1` rewrites them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use tokengauge::cli::ListFormat;
use tokengauge::slo;

fn check(name: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let start = text.find(&open).unwrap() + open.len();
    let end = start + text[start..].find(&close).unwrap();
    if text[start..end] == *table {
        return;
    }
    assert!(
        std::env::var_os("UPDATE_EXPECT").is_some(),
        "the README's table of {name} is stale: UPDATE_EXPECT=1 cargo test -p tokengauge --test docs"
    );
    std::fs::write(&path, [&text[..start], table, &text[end..]].concat()).unwrap();
}

#[test]
fn tables_of_the_readme_are_fresh() {
    // One test, because all rewrite one file.
    check("dialects", &tokengauge::dialects::list(ListFormat::Markdown));
    check("metrics", &tokengauge_core::semconv::metrics_markdown());
    check("config", &tokengauge::reference::markdown());
    check("troubleshooting", &tokengauge::doctor::checks::markdown());
    check("slo-goals", &slo::goals_markdown());
    check("slo-spec", &slo::spec_markdown());
    check("slo-selectors", &slo::selectors_markdown());
    check("slo-presets", &slo::presets_markdown());
}
