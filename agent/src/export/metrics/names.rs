//! What of a model's name belongs into a metric. Dates, versions, ids of deployments and of accounts make a series of every release and of
//! every customer; spans and records keep the whole name.

use std::sync::Arc;

use regex::Regex;
use rustc_hash::FxHashMap;
use tokengauge_core::name::Name;
use tokengauge_core::semconv::OTHER;

use super::Config;

/// The usual rules, one after the other.
const RULES: &[(&str, &str)] = &[
    // arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-3-haiku-20240307-v1:0; other kinds end in an id of the account's own.
    (r"^arn:(?:[^:]*:){4}(?:foundation-model|inference-profile)/(.+)$", "$1"),
    (r"^arn:(?:[^:]*:){4}([a-z-]+)/.*$", "$1"),
    // projects/p/locations/l/publishers/google/models/gemini-2.0-flash, accounts/fireworks/models/llama-v3p1-8b, models/gemini-2.0-flash
    (r"^(?:projects|publishers|accounts|organizations)/.*/endpoints/[^/]+$", "endpoints"),
    (r"^(?:(?:projects|publishers|accounts|organizations)/.*/)?models/([^/]+)$", "$1"),
    // A file, or a folder of one.
    (r"^/.*?([^/]+)/*$", "$1"),
    // ft:gpt-4o-mini-2024-07-18:organization:name:id
    (r"^ft:([^:]+):.*$", "ft:$1"),
    // claude-3-5-sonnet@20240620, gemini-1.5-pro@002
    (r"@[\w.-]+$", ""),
    // anthropic.claude-v2:1 and anthropic.claude-3-5-sonnet-20241022-v2:0
    (r"(-v\d+):\d+$", "$1"),
    (r"-(?:20\d{6}|20\d\d-\d\d-\d\d)(?:-v\d+)?$", ""),
    // Ids of deployments: a UUID, or sixteen hexadecimal digits and more.
    (r"[-_:/.](?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{16,})$", ""),
    (r"^(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{16,}|\d{10,})$", OTHER),
];

/// Names whose result is remembered.
const REMEMBERED: usize = 4_096;

/// Makes names for series of names of models.
pub struct Models {
    rules: Vec<(Regex, String)>,
    known: FxHashMap<Name, Arc<str>>,
}

impl Models {
    /// The rules of a configuration, then the usual ones.
    ///
    /// # Errors
    /// With the key below `metrics` and what is wrong with the expression.
    pub fn new(config: &Config) -> Result<Self, String> {
        let configured = config.models.iter().map(|r| (r.matches.as_str(), r.replace.as_str()));
        let usual = RULES.iter().copied().filter(|_| !config.exact_models);
        let compile = |(i, (pattern, replace)): (usize, (&str, &str))| match Regex::new(pattern) {
            Ok(regex) => Ok((regex, replace.to_owned())),
            Err(error) => {
                let what = error.to_string().lines().last().unwrap_or_default().trim().to_owned();
                Err(format!("models[{i}].match: `{pattern}` is no regular expression: {what}"))
            }
        };
        let rules = configured.chain(usual).enumerate().map(compile).collect::<Result<_, _>>()?;
        Ok(Self { rules, known: FxHashMap::default() })
    }

    /// The name for series.
    pub fn of(&mut self, model: &Name) -> Arc<str> {
        if let Some(known) = self.known.get(model) {
            return Arc::clone(known);
        }
        let mut name = model.as_str().to_owned();
        for (regex, replace) in &self.rules {
            let new = regex.replace(&name, replace);
            // A rule that leaves nothing is none for this name.
            if new != name && !new.trim().is_empty() {
                name = new.into_owned();
            }
        }
        let name: Arc<str> = name.into();
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(model.clone(), Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::super::ModelRule;
    use super::*;

    fn names(config: &Config, names: &[&str]) -> Vec<String> {
        let mut models = Models::new(config).unwrap();
        names.iter().map(|n| models.of(&Name::new(n).unwrap()).to_string()).collect()
    }

    #[test]
    fn dates_versions_and_ids_go_and_models_stay() {
        for (name, want) in [
            ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
            ("claude-sonnet-4-20250514", "claude-sonnet-4"),
            ("gpt-4o", "gpt-4o"),
            ("mistral-large-2407", "mistral-large-2407"),
            ("claude-3-5-sonnet@20240620", "claude-3-5-sonnet"),
            ("anthropic.claude-v2:1", "anthropic.claude-v2"),
            ("us.anthropic.claude-3-5-sonnet-20241022-v2:0", "us.anthropic.claude-3-5-sonnet"),
            ("arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-3-haiku-20240307-v1:0", "anthropic.claude-3-haiku"),
            ("arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123", "application-inference-profile"),
            (
                "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.meta.llama3-1-8b-instruct-v1:0",
                "us.meta.llama3-1-8b-instruct-v1",
            ),
            ("projects/p/locations/us-central1/publishers/google/models/gemini-2.0-flash-001", "gemini-2.0-flash-001"),
            ("projects/p/locations/us-central1/endpoints/1234567890", "endpoints"),
            ("accounts/fireworks/models/llama-v3p1-8b-instruct", "llama-v3p1-8b-instruct"),
            ("models/gemini-2.0-flash", "gemini-2.0-flash"),
            ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
            ("/models/qwen2-7b.gguf", "qwen2-7b.gguf"),
            ("qwen2:0.5b", "qwen2:0.5b"),
            ("llama3:8b", "llama3:8b"),
            ("ft:gpt-4o-mini-2024-07-18:acme:support:9xYz", "ft:gpt-4o-mini"),
            ("chat-3f2504e0-4f89-11d3-9a0c-0305e82c3301", "chat"),
            ("3f2504e0-4f89-11d3-9a0c-0305e82c3301", "_OTHER"),
        ] {
            assert_eq!(names(&Config::default(), &[name]), [want], "{name}");
        }
    }

    #[test]
    fn rules_of_ones_own_come_first_and_exact_is_exact() {
        let rule = ModelRule { matches: "^acme-(\\w+)-.*$".into(), replace: "acme-$1".into() };
        let config = Config { models: vec![rule], ..Config::default() };
        assert_eq!(names(&config, &["acme-chat-blue-7", "gpt-4o-2024-08-06"]), ["acme-chat", "gpt-4o"]);
        assert_eq!(names(&Config { exact_models: true, ..config }, &["gpt-4o-2024-08-06"]), ["gpt-4o-2024-08-06"]);
        let bad = Config { models: vec![ModelRule { matches: "(".into(), replace: String::new() }], ..Config::default() };
        assert_eq!(bad.check().unwrap_err(), "models[0].match: `(` is no regular expression: error: unclosed group");
    }
}
