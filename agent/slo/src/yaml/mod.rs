//! YAML and JSON with a place for every key and value: line, column, and what was written.
//!
//! Scalars mean what they mean to the Go tools that read OpenSLO (YAML 1.1 as `go.yaml.in/yaml/v2` resolves it: `y` and `on` are
//! booleans, `1_0` is ten, `0o7` seven), so that a file has one meaning everywhere; [`Node::written`] keeps the plain text, so that an
//! error can say so. Depth, size and the expansion of aliases are bounded.

mod build;
mod json;
mod lenient;
mod scalar;
mod split;

pub use build::{Document, parse};
pub use json::parse as parse_json;
pub use split::{Part, Shape, split};

use std::fmt;

/// Most bytes of a file.
pub const MAX_BYTES: usize = 4 << 20;
/// Most levels of lists and maps.
pub const MAX_DEPTH: usize = 64;
/// Most values of a document, aliases expanded.
pub const MAX_NODES: usize = 200_000;

/// Most keys of one map.
pub const MAX_KEYS: usize = 4096;

/// A place in a file: line and column, both from 1, columns in characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Pos {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
}

impl Pos {
    /// So many characters to the right.
    pub fn right(self, characters: usize) -> Self {
        Self { line: self.line, column: self.column + characters }
    }
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// How a scalar was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Without quotes.
    Plain,
    /// In single or double quotes.
    Quoted,
    /// As a block (`|`, `>`).
    Block,
}

/// A value and where it stands.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Where it begins.
    pub pos: Pos,
    /// What it is.
    pub value: Value,
    /// Its text before it was resolved, and how it was written. Lists and maps have none.
    pub written: Option<(String, Style)>,
}

/// What a node is, as the Go tools see it once YAML has become JSON.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// `null`, `~`, nothing.
    Null,
    /// `true`; in YAML 1.1 also `yes`, `on`, `y`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// Text.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the file.
    Map(Vec<Entry>),
}

/// One key of a map.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The key, as JSON would have it.
    pub key: String,
    /// Where the key stands.
    pub key_pos: Pos,
    /// Its value.
    pub value: Node,
}

/// What is wrong with a file as such.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("{pos}: {message}")]
pub struct Error {
    /// Where.
    pub pos: Pos,
    /// What, in words.
    pub message: String,
}

impl Node {
    /// A node that no file holds.
    pub fn absent(pos: Pos) -> Self {
        Self { pos, value: Value::Null, written: None }
    }

    /// The value under a key of a map.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|e| &e.value)
    }

    /// As [`get`](Self::get), where `null` is as good as nothing.
    pub fn set(&self, key: &str) -> Option<&Self> {
        self.get(key).filter(|n| n.value != Value::Null)
    }

    /// The entry of a key of a map.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|e| e.key == key)
    }

    /// The entries of a map; none of anything else.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a list; none of anything else.
    pub fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// Its text, when it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Its number, when it is one.
    pub fn number(&self) -> Option<f64> {
        match self.value {
            Value::Int(n) => Some(n as f64),
            Value::Float(n) => Some(n),
            _ => None,
        }
    }

    /// Its truth, when it has one.
    pub fn truth(&self) -> Option<bool> {
        match self.value {
            Value::Bool(b) => Some(b),
            _ => None,
        }
    }

    /// The place of the character at `offset` of its text, as far as that can be told: exactly on one line without escapes.
    pub fn inside(&self, offset: usize) -> Pos {
        match &self.written {
            Some((_, Style::Plain)) => self.pos.right(offset),
            Some((_, Style::Quoted)) => self.pos.right(offset + 1),
            _ => self.pos,
        }
    }

    /// What was found, for an error: the kind and, where it is short, the text.
    pub fn found(&self) -> String {
        let short = |text: &str| text.chars().take(40).collect::<String>() + if text.chars().count() > 40 { "…" } else { "" };
        match (&self.value, &self.written) {
            (Value::Null, Some((text, _))) if !text.is_empty() => format!("null (`{}`)", short(text)),
            (Value::Null, _) => "nothing".into(),
            (Value::Bool(b), Some((text, _))) if text != if *b { "true" } else { "false" } => {
                format!("`{}`, which YAML 1.1 reads as the boolean {b}", short(text))
            }
            (Value::Bool(b), _) => format!("the boolean {b}"),
            (Value::Int(n), Some((text, _))) if *text != n.to_string() => {
                format!("`{}`, which YAML 1.1 reads as the number {n}", short(text))
            }
            (Value::Int(n), _) => format!("the number {n}"),
            (Value::Float(n), _) => format!("the number {n}"),
            (Value::Text(text), _) => format!("{:?}", short(text)),
            (Value::List(items), _) => format!("a list of {}", items.len()),
            (Value::Map(_), _) => "a map".into(),
        }
    }
}

#[cfg(test)]
mod tests;
