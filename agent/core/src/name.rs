//! Short strings from the wire that may leave a reader: a model's name, an id, a finish reason. Never text.

use std::fmt;

/// Longest name kept, in bytes. Longer ones are cut at a character boundary: a name that long is an attack on cardinality.
pub const MAX_NAME: usize = 160;

/// A bounded, printable string from the wire. Cheap to move, one allocation to make.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<str>);

impl Name {
    /// Takes `text` without control characters and without white space around it, cut to [`MAX_NAME`] bytes; `None` when nothing is left. The
    /// name of a name is that name.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim_matches(|c: char| c.is_whitespace() || c.is_control());
        if text.is_empty() {
            return None;
        }
        if text.len() <= MAX_NAME && !text.chars().any(char::is_control) {
            return Some(Self(text.into()));
        }
        let mut kept = String::new();
        for c in text.chars().filter(|c| !c.is_control()) {
            if kept.len() + c.len_utf8() > MAX_NAME {
                break;
            }
            kept.push(c);
        }
        // Where it was cut.
        kept.truncate(kept.trim_end().len());
        (!kept.is_empty()).then(|| Self(kept.into()))
    }

    /// As [`Name::new`], for a value of low cardinality (an error's type or code): at most 64 bytes and no white space, so
    /// that a message which a server put in the wrong place does not pass.
    pub fn class(text: &str) -> Option<Self> {
        let ok = text.len() <= 64 && !text.contains(char::is_whitespace);
        ok.then(|| Self::new(text)).flatten()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        assert!(Name::new("").is_none());
        assert!(Name::new(" \n").is_none());
        assert!(Name::new("\u{1} \u{1}").is_none());
        let cut = Name::new(&format!("{} b", "a".repeat(MAX_NAME - 1))).unwrap();
        assert_eq!(cut.as_str().len(), MAX_NAME - 1);
        assert_eq!(Name::new("gpt-4o").unwrap().as_str(), "gpt-4o");
        assert_eq!(Name::new("a\u{1b}[31mb").unwrap().as_str(), "a[31mb");
        assert!(Name::new(&"ä".repeat(500)).unwrap().as_str().len() <= MAX_NAME);
        assert_eq!(Name::class("rate limit exceeded, please wait"), None);
        assert_eq!(Name::class("overloaded_error").unwrap().as_str(), "overloaded_error");
    }
}
