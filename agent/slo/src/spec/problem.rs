//! What is wrong with a file, and where.

use std::fmt;

use crate::yaml::Pos;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// The file is refused.
    Error,
    /// It is used, but probably not what was meant.
    Warning,
}

/// What sort of problem it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// No YAML or JSON, or beyond a bound.
    Syntax,
    /// A key that is not known or a value of the wrong type: what OpenSLO's SDK calls a decoding error.
    Shape,
    /// A value that OpenSLO's rules forbid.
    Rule,
    /// A reference to something that none of the files holds.
    Reference,
    /// Something in our own part: the spec of a metric source, the short form, alerting.
    Meaning,
}

impl Class {
    /// Its name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::Shape => "shape",
            Self::Rule => "rule",
            Self::Reference => "reference",
            Self::Meaning => "meaning",
        }
    }
}

/// One problem. Its display is what `validate` prints.
#[derive(Clone, PartialEq, Debug)]
pub struct Problem {
    /// How bad.
    pub level: Level,
    /// What sort.
    pub class: Class,
    /// The file, as it was named.
    pub file: String,
    /// Where in it.
    pub pos: Pos,
    /// The object: `SLO chat-first-token`. Empty where there is none.
    pub object: String,
    /// The property: `spec.objectives[0].target`. Empty for the whole document.
    pub path: String,
    /// What was expected and what was found.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Error => "error",
            Level::Warning => "warning",
        };
        write!(f, "{}:{}: {level}: ", self.file, self.pos)?;
        if !self.object.is_empty() {
            write!(f, "{}: ", self.object)?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// Collects the problems of one object.
pub struct Problems<'a> {
    /// The file.
    pub file: &'a str,
    /// The object.
    pub object: String,
    /// What was found so far.
    pub list: Vec<Problem>,
}

/// Most problems that are kept for one object: behind them, more of the same helps nobody.
pub const MAX_PROBLEMS: usize = 100;

impl<'a> Problems<'a> {
    /// None yet.
    pub fn new(file: &'a str) -> Self {
        Self { file, object: String::new(), list: Vec::new() }
    }

    /// An error.
    pub fn error(&mut self, class: Class, pos: Pos, path: &str, message: impl Into<String>) {
        self.push(Level::Error, class, pos, path, message.into(), None);
    }

    /// An error with what to do about it.
    pub fn hinted(&mut self, class: Class, pos: Pos, path: &str, message: impl Into<String>, hint: Option<String>) {
        self.push(Level::Error, class, pos, path, message.into(), hint);
    }

    /// A warning.
    pub fn warning(&mut self, class: Class, pos: Pos, path: &str, message: impl Into<String>) {
        self.push(Level::Warning, class, pos, path, message.into(), None);
    }

    fn push(&mut self, level: Level, class: Class, pos: Pos, path: &str, message: String, hint: Option<String>) {
        if self.list.len() < MAX_PROBLEMS {
            let (file, object, path) = (self.file.to_owned(), self.object.clone(), path.to_owned());
            self.list.push(Problem { level, class, file, pos, object, path, message, hint });
        }
    }

    /// Drops, of what was found after the first `to`, everything about what `from..to` found wrong already: the same place, or below it.
    pub fn tell_once(&mut self, from: usize, to: usize) {
        let wrong: Vec<(Pos, String)> = self.list[from..to].iter().map(|p| (p.pos, p.path.clone())).collect();
        let known = |p: &Problem| wrong.iter().any(|(pos, path)| *pos == p.pos || !path.is_empty() && p.path.starts_with(path.as_str()));
        let mut i = 0;
        self.list.retain(|p| {
            i += 1;
            i <= to || !known(p)
        });
    }

    /// Whether any of them refuses the file.
    pub fn refused(&self) -> bool {
        self.list.iter().any(|p| p.level == Level::Error)
    }
}
