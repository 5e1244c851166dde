//! Selectors, policies, prices and groups from their nodes.

use regex::{Regex, RegexBuilder};

use crate::model::{Dimension, GroupBy, Pattern, Policy, Price, Selector, Verdict};
use crate::spec::problem::{Class, Problems};
use crate::spec::read::join;
use crate::yaml::{Node, Value};

/// Most characters of a pattern.
const MAX_PATTERN: usize = 512;
/// Most patterns of one dimension.
const MAX_PATTERNS: usize = 64;
/// Most groups of `groupBy`, and how many without a limit.
const GROUPS: (i128, usize) = (10_000, 100);

/// Which requests count.
pub fn selector(node: &Node, path: &str, problems: &mut Problems<'_>) -> Selector {
    let mut selector = Selector::default();
    for entry in node.entries() {
        let path = join(path, &entry.key);
        match entry.key.as_str() {
            "stream" => selector.stream = entry.value.truth(),
            "inputTokens" => {
                (selector.input_tokens_min, selector.input_tokens_max) = range(&entry.value, &path, problems);
            }
            key => {
                if let Some(dimension) = dimension(key) {
                    let patterns = patterns(&entry.value, &path, problems);
                    selector.matches.push((dimension, patterns));
                }
            }
        }
    }
    selector.matches.sort_by_key(|(dimension, _)| *dimension);
    selector
}

fn dimension(key: &str) -> Option<Dimension> {
    Dimension::ALL.into_iter().find(|d| d.as_str() == key)
}

fn patterns(node: &Node, path: &str, problems: &mut Problems<'_>) -> Vec<Pattern> {
    let items: Vec<&Node> = match &node.value {
        Value::List(items) => items.iter().collect(),
        _ => vec![node],
    };
    if items.is_empty() {
        problems.error(Class::Meaning, node.pos, path, "an empty list matches nothing");
    }
    if items.len() > MAX_PATTERNS {
        problems.error(Class::Meaning, node.pos, path, format!("more than {MAX_PATTERNS} patterns: write one `/a|b|c/`"));
        return Vec::new();
    }
    let mut patterns = Vec::new();
    for item in &items {
        match pattern(item.text().unwrap_or_default()) {
            Ok(pattern) => patterns.push(pattern),
            Err(message) => problems.error(Class::Meaning, item.pos, path, message),
        }
    }
    let nots = patterns.iter().filter(|p| matches!(p, Pattern::Not(_))).count();
    if patterns.len() > 1 && nots > 0 {
        let message = "one of the list must match, so a `!` beside others lets nearly everything in; use one `!/a|b/`";
        problems.error(Class::Meaning, node.pos, path, message);
    }
    patterns
}

/// A value's pattern: exact, glob, `/regex/`, or not (`!`).
pub fn pattern(text: &str) -> Result<Pattern, String> {
    if text.chars().count() > MAX_PATTERN {
        return Err(format!("a pattern of more than {MAX_PATTERN} characters"));
    }
    let compile = |source: &str| RegexBuilder::new(source).size_limit(1 << 20).build().map_err(|e| last_line(&e));
    if let Some(rest) = text.strip_prefix('!') {
        return match pattern(rest)? {
            Pattern::Not(_) => Err(format!("`{text}` negates twice")),
            inner => Ok(Pattern::Not(Box::new(inner))),
        };
    }
    match text.strip_prefix('/').and_then(|t| t.strip_suffix('/')) {
        Some("") => Err("an empty regular expression matches everything".into()),
        Some(source) => compile(source).map(Pattern::Regex),
        None if text.is_empty() => Err("an empty text matches nothing".into()),
        None if text.contains(['*', '?']) => {
            let source: Vec<String> = text
                .chars()
                .map(|c| match c {
                    '*' => ".*".to_owned(),
                    '?' => ".".to_owned(),
                    c => regex::escape(&c.to_string()),
                })
                .collect();
            let regex: Regex = compile(&format!("(?s)^{}$", source.concat()))?;
            Ok(Pattern::Glob(text.into(), regex))
        }
        None => Ok(Pattern::Exact(text.into())),
    }
}

fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    format!("no regular expression: {}", text.lines().last().unwrap_or_default().trim_start_matches("error: "))
}

fn range(node: &Node, path: &str, problems: &mut Problems<'_>) -> (Option<u64>, Option<u64>) {
    let whole = |key: &str| node.get(key).and_then(Node::number).map(|n| n.max(0.0) as u64);
    let (min, max) = match &node.value {
        Value::Map(_) => (whole("min"), whole("max")),
        _ => match parse_range(node.text().unwrap_or_default()) {
            Some(range) => range,
            None => {
                let message = format!("expected a range of input tokens such as `401-1000`, `64001+`, `<= 400`, found {}", node.found());
                problems.error(Class::Meaning, node.pos, path, message);
                (None, None)
            }
        },
    };
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        problems.error(Class::Meaning, node.pos, path, format!("from {min} to {max} is no range"));
    }
    (min, max)
}

fn parse_range(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let number = |s: &str| s.trim().parse::<u64>().ok();
    let text = text.trim();
    if let Some(rest) = text.strip_prefix("<=") {
        return Some((None, Some(number(rest)?)));
    }
    if let Some(rest) = text.strip_prefix(">=") {
        return Some((Some(number(rest)?), None));
    }
    if let Some(rest) = text.strip_suffix('+') {
        return Some((Some(number(rest)?), None));
    }
    let (min, max) = text.split_once('-')?;
    Some((Some(number(min)?), Some(number(max)?)))
}

/// How outcomes count.
pub fn policy(node: &Node) -> Policy {
    let default = Policy::default();
    let verdict = |key: &str, default: Verdict| match node.get(key).and_then(Node::text) {
        Some("good") => Verdict::Good,
        Some("bad") => Verdict::Bad,
        Some("ignore") => Verdict::NotApplicable,
        _ => default,
    };
    Policy {
        rate_limited: verdict("rateLimited", default.rate_limited),
        client_error: verdict("clientErrors", default.client_error),
        refused: verdict("refused", default.refused),
        cancelled: verdict("cancelled", default.cancelled),
        no_output: verdict("noOutput", default.no_output),
    }
}

/// What tokens cost.
pub fn prices(node: &Node, path: &str, problems: &mut Problems<'_>) -> Vec<Price> {
    let mut prices = Vec::new();
    for (i, item) in node.items().iter().enumerate() {
        let path = format!("{path}[{i}]");
        let mut number = |key: &str| {
            let node = item.get(key)?;
            let n = node.number()?;
            if n < 0.0 {
                problems.error(Class::Meaning, node.pos, &join(&path, key), format!("a price is not negative, found {n}"));
            }
            Some(n)
        };
        let (input, cached_input, output) = (number("input"), number("cachedInput"), number("output"));
        let Some(model) = item.get("model") else { continue };
        match (pattern(model.text().unwrap_or_default()), input, output) {
            (Ok(model), Some(input), Some(output)) => prices.push(Price { model, input, cached_input, output }),
            (Err(message), ..) => problems.error(Class::Meaning, model.pos, &join(&path, "model"), message),
            _ => {}
        }
    }
    prices
}

/// One budget for each value.
pub fn group_by(node: &Node, path: &str, problems: &mut Problems<'_>) -> Option<GroupBy> {
    let (list, limit) = match &node.value {
        Value::List(_) => (Some(node), None),
        _ => (node.get("by"), node.get("limit")),
    };
    let by: Vec<Dimension> = list?.items().iter().filter_map(|n| dimension(n.text()?)).collect();
    let mut unique = by.clone();
    unique.sort();
    unique.dedup();
    if by.is_empty() || unique.len() != by.len() {
        problems.error(Class::Meaning, node.pos, path, "must name dimensions, each once");
        return None;
    }
    let limit = match limit.map(|n| (&n.value, n.pos)) {
        None => GROUPS.1,
        Some((Value::Int(n), _)) if (1..=GROUPS.0).contains(n) => usize::try_from(*n).unwrap_or(GROUPS.1),
        Some((_, pos)) => {
            problems.error(Class::Meaning, pos, &join(path, "limit"), format!("must be from 1 to {}", GROUPS.0));
            GROUPS.1
        }
    };
    Some(GroupBy { by, limit })
}
