//! The configuration's JSON Schema and its reference, both made from the structs that read it: a key that is not there cannot be configured, and a key that can
//! is there, with the default that the code has.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::config::{Config, ConfigError};

/// The JSON Schema (2020-12) of the configuration file.
pub fn schema() -> Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Config>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".into(), "tokengauge configuration".into());
        root.insert("description".into(), "What `tokengauge run --config` reads.".into());
    }
    schema
}

/// The schema as text.
pub fn schema_text() -> String {
    serde_json::to_string_pretty(&schema()).unwrap_or_default() + "\n"
}

/// Reads and checks configuration files.
///
/// # Errors
/// With the first that is wrong.
pub fn check(files: &[std::path::PathBuf]) -> Result<(), ConfigError> {
    for file in files {
        let config = Config::of_file(file)?;
        println!("{}: {}", file.display(), crate::run::describe(&config));
    }
    Ok(())
}

/// Every key in a Markdown table.
pub fn markdown() -> String {
    let schema = schema();
    let mut out = String::from("| Key | Value | Default | Meaning |\n|---|---|---|---|\n");
    rows(&schema, &schema, "", &mut out, 0);
    out
}

/// The rows of an object's properties. Schemas that hold themselves would have no end: there are none eight deep.
fn rows(root: &Value, object: &Value, path: &str, out: &mut String, depth: usize) {
    let Some(properties) = object.get("properties").and_then(Value::as_object).filter(|_| depth < 8) else { return };
    let required: Vec<&str> = object.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, property) in properties {
        let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let target = resolve(root, property);
        let default = match property.get("default") {
            _ if required.contains(&name.as_str()) => "must be given".to_owned(),
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => format!("`{text}`"),
            Some(Value::Array(all)) if all.is_empty() => "none".to_owned(),
            Some(Value::Object(all)) if all.is_empty() => "none".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        let meaning = description(property).or_else(|| description(target)).unwrap_or_default();
        out.push_str(&format!("| `{key}` | {} | {default} | {meaning} |\n", kind(root, property)));
        if target.get("properties").is_some() {
            rows(root, target, &key, out, depth + 1);
        } else if let Some(items) = target.get("items").map(|i| resolve(root, i)).filter(|i| i.get("properties").is_some()) {
            rows(root, items, &format!("{key}[]"), out, depth + 1);
        } else if let Some(values) = target.get("additionalProperties").map(|v| resolve(root, v)).filter(|v| v.get("properties").is_some())
        {
            rows(root, values, &format!("{key}.*"), out, depth + 1);
        }
    }
}

fn description(schema: &Value) -> Option<String> {
    let text = schema.get("description")?.as_str()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|"))
}

/// What a schema stands for: through references, and through "this or null".
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let mut at = schema;
    for _ in 0..8 {
        if let Some(path) = at.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#')) {
            at = root.pointer(path).unwrap_or(&Value::Null);
        } else if let Some(one) = at.get("anyOf").and_then(Value::as_array).and_then(|all| all.iter().find(|s| !is_null(s))) {
            at = one;
        } else {
            break;
        }
    }
    at
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("null")
}

/// What may be written there, in words.
fn kind(root: &Value, schema: &Value) -> String {
    let target = resolve(root, schema);
    if let Some(words) = choices(target) {
        return words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", ");
    }
    let types: Vec<&str> = match target.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).filter(|t| *t != "null").collect(),
        _ => Vec::new(),
    };
    let of = |one: &str| match one {
        "boolean" => "true or false".to_owned(),
        "integer" => "whole number".to_owned() + &range(target),
        "number" => "number".to_owned() + &range(target),
        "string" => "text".to_owned(),
        "array" => match target.get("items").map(|i| kind(root, i)).as_deref() {
            Some("text") => "list of texts".to_owned(),
            Some("section") => "list of sections".to_owned(),
            Some(what) if what.starts_with("whole number") => "list of whole numbers".to_owned(),
            _ => "list".to_owned(),
        },
        "object" if target.get("properties").is_some() => "section".to_owned(),
        "object" => "map".to_owned(),
        other => other.to_owned(),
    };
    types.into_iter().map(of).collect::<Vec<_>>().join(" or ")
}

fn range(schema: &Value) -> String {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    match (bound("minimum"), bound("maximum")) {
        (Some(from), Some(to)) if !schema.get("format").is_some_and(|f| natural(f, to)) => format!(", {from} to {to}"),
        _ => String::new(),
    }
}

/// Whether the upper bound is only that of the type.
fn natural(format: &Value, to: f64) -> bool {
    matches!((format.as_str(), to as u64), (Some("uint8"), 255) | (Some("uint16"), 65_535))
}

/// The values of an enumeration.
fn choices(schema: &Value) -> Option<Vec<String>> {
    let text = |v: &Value| v.as_str().map(str::to_owned);
    if let Some(all) = schema.get("enum").and_then(Value::as_array) {
        return Some(all.iter().filter_map(text).collect());
    }
    let variants = schema.get("oneOf").and_then(Value::as_array)?;
    let of =
        |variant: &Value| -> Option<Vec<String>> { variant.get("const").and_then(text).map(|one| vec![one]).or_else(|| choices(variant)) };
    let all: Vec<String> = variants.iter().filter_map(of).flatten().collect();
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    fn keys(root: &Value, object: &Value, path: &str, all: &mut Map<String, Value>) {
        for (name, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let key = format!("{path}/{name}");
            keys(root, resolve(root, property), &key, all);
            all.insert(key, property.clone());
        }
    }

    #[test]
    fn every_key_says_what_it_means() {
        let schema = schema();
        let mut all = Map::new();
        keys(&schema, &schema, "", &mut all);
        assert!(all.len() > 30, "{}", all.len());
        for (key, property) in &all {
            assert!(description(property).or_else(|| description(resolve(&schema, property))).is_some(), "{key} has no meaning");
            assert!(!kind(&schema, property).is_empty(), "{key}: {property}");
        }
    }

    #[test]
    fn unknown_keys_are_refused_everywhere() {
        let schema = schema();
        let mut objects = vec![&schema];
        objects.extend(schema.get("$defs").and_then(Value::as_object).into_iter().flat_map(|d| d.values()));
        for object in objects.iter().filter(|o| o.get("properties").is_some()) {
            assert_eq!(object.get("additionalProperties"), Some(&Value::Bool(false)), "{:?}", object.get("properties"));
        }
    }

    #[test]
    fn defaults_are_those_of_the_code() {
        let table = markdown();
        for row in [
            "| `taps.tls.ring_mib` | whole number | `32` | Size of the kernel's ring buffer. |",
            "| `jsonl.path` | text | must be given |",
            "| `jsonl.rotate.compress` | `none`, `gzip`, `zstd` | `zstd` |",
            "| `jsonl.rotate.keep` | whole number, 1 to 10000 | `10` |",
            "| `http.listen` | text | `127.0.0.1:9464` |",
            "| `taps.pcap[].interface` | text | must be given |",
            "| `otlp.endpoint` | text |  |",
        ] {
            assert!(table.contains(row), "{row}\n{table}");
        }
    }
}
