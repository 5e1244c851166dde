//! The README's tables about SLO files, from the tables that the reader goes by.

use tokengauge_slo::spec::ours::presets::PRESETS;
use tokengauge_slo::spec::ours::tables::{POLICY, SOURCE, WHEN};
use tokengauge_slo::spec::shape::Object;

fn table(object: &Object) -> String {
    let mut out = String::from("| Key | Value | Meaning |\n|---|---|---|\n");
    for field in object.fields {
        let must = if field.required { " (must be there)" } else { "" };
        out += &format!("| `{}` | {} | {}{must} |\n", field.key, field.ty.expected().replace('|', "\\|"), field.doc);
    }
    out
}

/// The keys of our metric source.
pub fn spec_markdown() -> String {
    table(&SOURCE)
}

/// The keys of `when`, and of `policy`.
pub fn selectors_markdown() -> String {
    table(&WHEN) + "\n" + &table(&POLICY)
}

/// The forms of a goal.
pub fn goals_markdown() -> String {
    let rows = [
        ("`availability >= 99.9%`", "99.9 % of requests are answered"),
        ("`ttft p95 <= 800ms`", "95 % of requests have their first token within 800 ms"),
        ("`duration <= 30s for 95%`", "the same with the share spelled out"),
        ("`output_speed >= 20 for 95%`", "95 % of answers come with at least 20 tokens per second"),
        ("`ttft p95 <= 300ms + 0.5ms/token`", "the limit grows with the prompt"),
        ("`goodput{ttft<=800ms, tpot<=50ms} >= 99%`", "99 % of requests keep every limit, each by itself"),
        ("`cost p99 <= 0.05`", "99 % of requests cost at most that, by `prices`"),
    ];
    let mut out = String::from("| Goal | Promise |\n|---|---|\n");
    for (goal, promise) in rows {
        out += &format!("| {goal} | {promise} |\n");
    }
    out
}

/// The presets.
pub fn presets_markdown() -> String {
    let mut out = String::from("| Preset | Goals | From |\n|---|---|---|\n");
    for preset in PRESETS {
        let goals: Vec<String> = preset.goals.iter().map(|g| format!("`{g}`")).collect();
        out += &format!("| `{}` | {} | {} |\n", preset.name, goals.join(", "), preset.doc);
    }
    out
}
