//! Measures, limits and goals as text: `ttft p95 <= 300ms + 0.5ms/token`. Errors know the character that they are about.

use crate::decimal::decimal;
use crate::model::{Clause, Limit, Measure, Op, SliKind};
use crate::spec::duration::{plain_number, seconds};
use crate::spec::shape::nearest;

/// What is wrong with a text, and at which of its characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextError {
    /// Characters before it.
    pub offset: usize,
    /// What was expected and what was found.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Every measure and its name.
pub const MEASURES: [(&str, Measure); 8] = [
    ("ttft", Measure::Ttft),
    ("ttfa", Measure::Ttfa),
    ("tpot", Measure::Tpot),
    ("inter_chunk_gap", Measure::InterChunkMax),
    ("max_stall", Measure::MaxStall),
    ("duration", Measure::Duration),
    ("output_speed", Measure::OutputSpeed),
    ("cost", Measure::Cost),
];

/// Other names of the trade, and ours.
const SYNONYMS: [(&str, &str); 12] = [
    ("itl", "tpot"),
    ("inter_token_latency", "tpot"),
    ("time_per_output_token", "tpot"),
    ("time_to_first_token", "ttft"),
    ("e2e", "duration"),
    ("e2el", "duration"),
    ("latency", "duration"),
    ("request_latency", "duration"),
    ("tps", "output_speed"),
    ("tokens_per_second", "output_speed"),
    ("stall", "max_stall"),
    ("success", "availability"),
];

impl Measure {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        MEASURES.iter().find(|(_, m)| *m == self).map_or("", |(name, _)| name)
    }

    /// Whether more is better.
    pub fn is_floor(self) -> bool {
        self == Self::OutputSpeed
    }

    /// Whether it is in seconds.
    pub fn is_time(self) -> bool {
        !matches!(self, Self::OutputSpeed | Self::Cost)
    }
}

/// The measure of a name.
pub fn measure(name: &str) -> Result<Measure, TextError> {
    match MEASURES.iter().find(|(n, _)| *n == name) {
        Some((_, measure)) => Ok(*measure),
        None => Err(unknown(name, 0)),
    }
}

fn unknown(name: &str, offset: usize) -> TextError {
    let names = MEASURES.iter().map(|(n, _)| *n).chain(["availability", "goodput"]);
    let synonym = SYNONYMS.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, ours)| *ours);
    let hint = synonym.or_else(|| nearest(name, names)).map(|n| format!("did you mean `{n}`?"));
    let message = "expected ttft, ttfa, tpot, inter_chunk_gap, max_stall, duration, output_speed, cost, availability or goodput";
    TextError { offset, message: format!("{message}, found `{name}`"), hint }
}

/// A limit of a measure: `800ms`, `20`, `20 tok/s`, `300ms + 0.5ms/token`.
pub fn limit(measure: Measure, text: &str) -> Result<Limit, TextError> {
    let mut parser = Parser::new(text);
    let limit = parser.limit(measure)?;
    parser.end()?;
    Ok(limit)
}

/// A goal as it is parsed.
#[derive(Clone, PartialEq, Debug)]
pub struct Goal {
    /// What is asked of a request.
    pub kind: SliKind,
    /// The share of requests that must be good.
    pub target: f64,
    /// The percentile that it was written with: `95` in `p95`.
    pub percentile: Option<f64>,
}

/// Parses a goal.
///
/// `availability >= 99.9%` · `ttft p95 <= 800ms` · `ttft <= 800ms for 95%` · `output_speed >= 20 for 95%` ·
/// `goodput{ttft<=800ms, tpot<=50ms} >= 99%`
pub fn goal(text: &str) -> Result<Goal, TextError> {
    let mut p = Parser::new(text);
    let at = p.at;
    let name = p.word();
    let goal = match name.as_str() {
        "" => return p.expected("a measure such as `ttft`"),
        "availability" => {
            p.at_least()?;
            Goal { kind: SliKind::Availability, target: p.percent()?, percentile: None }
        }
        "goodput" => {
            let clauses = p.clauses()?;
            p.at_least()?;
            Goal { kind: SliKind::Goodput(clauses), target: p.percent()?, percentile: None }
        }
        name => {
            let Some((_, measure)) = MEASURES.iter().find(|(n, _)| *n == name) else { return Err(unknown(name, at)) };
            p.measured(*measure)?
        }
    };
    p.end()?;
    Ok(goal)
}

struct Parser {
    text: Vec<char>,
    at: usize,
}

impl Parser {
    fn new(text: &str) -> Self {
        let mut p = Self { text: text.chars().collect(), at: 0 };
        p.blank();
        p
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn blank(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn take(&mut self, one: impl Fn(char) -> bool) -> String {
        let from = self.at;
        while self.peek().is_some_and(&one) {
            self.at += 1;
        }
        let taken = self.text[from..self.at].iter().collect();
        self.blank();
        taken
    }

    fn word(&mut self) -> String {
        self.take(|c| c.is_alphanumeric() || c == '_')
    }

    fn expected<T>(&self, what: &str) -> Result<T, TextError> {
        let rest: String = self.text[self.at..].iter().take(20).collect();
        let found = if rest.is_empty() { "the end".into() } else { format!("`{rest}`") };
        Err(TextError { offset: self.at, message: format!("expected {what}, found {found}"), hint: None })
    }

    fn error<T>(&self, offset: usize, message: impl Into<String>, hint: &str) -> Result<T, TextError> {
        Err(TextError { offset, message: message.into(), hint: (!hint.is_empty()).then(|| hint.into()) })
    }

    fn end(&self) -> Result<(), TextError> {
        if self.at < self.text.len() { self.expected("the end") } else { Ok(()) }
    }

    fn op(&mut self) -> Result<Op, TextError> {
        let at = self.at;
        match self.take(|c| "<>=≤≥!".contains(c)).as_str() {
            "<=" | "≤" => Ok(Op::Le),
            "<" => Ok(Op::Lt),
            ">=" | "≥" => Ok(Op::Ge),
            ">" => Ok(Op::Gt),
            _ => {
                self.at = at;
                self.expected("`<=`, `<`, `>=` or `>`")
            }
        }
    }

    fn at_least(&mut self) -> Result<(), TextError> {
        let at = self.at;
        match self.op()? {
            Op::Ge => Ok(()),
            _ => self.error(at, "a share of requests is a floor: expected `>=`", "write `>= 99%`"),
        }
    }

    /// `99.9%`: from 0 to below 100.
    fn percent(&mut self) -> Result<f64, TextError> {
        let at = self.at;
        let text = self.take(|c| c.is_ascii_digit() || c == '.');
        let Some(number) = plain_number(&text) else { return self.expected("a share such as `99.9%`") };
        if self.peek() != Some('%') {
            let hint = if number < 1.0 { format!("write `{}%`", round(number * 100.0)) } else { format!("write `{text}%`") };
            return self.error(self.at, format!("expected `%` behind {text}"), &hint);
        }
        self.at += 1;
        self.blank();
        if number >= 100.0 {
            return self.error(
                at,
                format!("a share must be below 100 %, found {text} %"),
                "100 % leaves no error budget: nothing could ever fail",
            );
        }
        Ok(from_percent(number))
    }

    /// What stands behind a measure: `p95 <= 800ms`, or `<= 800ms for 95%`.
    fn measured(&mut self, measure: Measure) -> Result<Goal, TextError> {
        let from = self.at;
        let mut percentile = None;
        if self.peek().is_some_and(char::is_alphabetic) {
            let word = self.take(|c| c.is_alphanumeric() || c == '.');
            percentile = match word.as_str() {
                "median" => Some(50.0),
                "mean" | "avg" | "average" => {
                    return self.error(
                        from,
                        format!("`{word}` is no objective"),
                        "a mean hides the slow requests; use a percentile such as p95",
                    );
                }
                _ => match word.strip_prefix(['p', 'P']).and_then(plain_number) {
                    Some(p) if p > 0.0 && p < 100.0 => Some(p),
                    Some(_) => return self.error(from, format!("a percentile is above 0 and below 100, found {word}"), ""),
                    None => {
                        self.at = from;
                        return self.expected("a percentile such as `p95`, or `<=`");
                    }
                },
            };
        }
        let (op_at, op) = (self.at, self.op()?);
        let floor = matches!(op, Op::Ge | Op::Gt);
        if floor != measure.is_floor() {
            let hint = if floor { "write `<=`" } else { "write `>=`" };
            let what = if floor { "a ceiling" } else { "a floor" };
            return self.error(op_at, format!("a limit on {} is {what}", measure.name()), hint);
        }
        let limit = self.limit(measure)?;
        let kind = SliKind::Limit(Clause { measure, op, limit });
        let target = match (percentile, self.peek()) {
            // p95 <= x: 95 % of the requests are at most x. p5 >= x: 95 % are at least x.
            (Some(p), None) if floor && p > 50.0 => {
                let message = format!("p{} >= asks only the fastest {} % of requests for it", round(p), round(100.0 - p));
                let hint = format!("write `for {}%` behind the limit, or p{}", round(p), round(100.0 - p));
                return self.error(from, message, &hint);
            }
            (Some(p), None) => from_percent(if floor { 100.0 - p } else { p }),
            (None, Some('f')) => {
                let at = self.at;
                if self.word() != "for" {
                    self.at = at;
                    return self.expected("`for` and a share of requests");
                }
                self.percent()?
            }
            (Some(_), _) => return self.expected("the end"),
            (None, _) => {
                return self.error(
                    from,
                    "how many requests must keep the limit?",
                    "write a percentile (`p95 <= …`) or a share (`… for 95%`)",
                );
            }
        };
        Ok(Goal { kind, target, percentile })
    }

    fn clauses(&mut self) -> Result<Vec<Clause>, TextError> {
        if self.peek() != Some('{') {
            return self.expected("`{` and the limits that a good request keeps");
        }
        self.at += 1;
        self.blank();
        let mut clauses: Vec<Clause> = Vec::new();
        loop {
            let at = self.at;
            let name = self.word();
            let Some((_, measure)) = MEASURES.iter().find(|(n, _)| *n == name) else {
                return if name.is_empty() { self.expected("a measure such as `ttft`") } else { Err(unknown(&name, at)) };
            };
            let (op_at, op) = (self.at, self.op()?);
            if matches!(op, Op::Ge | Op::Gt) != measure.is_floor() {
                let right = if measure.is_floor() { "write `>=`" } else { "write `<=`" };
                return self.error(op_at, format!("the wrong direction for a limit on {name}"), right);
            }
            if clauses.iter().any(|c| c.measure == *measure) {
                return self.error(at, format!("`{name}` is limited twice"), "");
            }
            let limit = self.limit(*measure)?;
            clauses.push(Clause { measure: *measure, op, limit });
            match self.peek() {
                Some(',') => {
                    self.at += 1;
                    self.blank();
                }
                Some('}') => {
                    self.at += 1;
                    self.blank();
                    return Ok(clauses);
                }
                _ => return self.expected("`,` or `}`"),
            }
        }
    }

    fn limit(&mut self, measure: Measure) -> Result<Limit, TextError> {
        let base = self.quantity(measure, false)?;
        if self.peek() != Some('+') {
            return Ok(Limit::Fixed(base));
        }
        let at = self.at;
        if !measure.is_time() {
            return self.error(at, format!("a limit on {} cannot depend on the prompt", measure.name()), "");
        }
        self.at += 1;
        self.blank();
        let per_token = self.quantity(measure, true)?;
        Ok(Limit::PerInputToken { base, per_token })
    }

    /// A number and its unit, in the measure's own unit; behind a `+` it is for each token.
    fn quantity(&mut self, measure: Measure, per_token: bool) -> Result<f64, TextError> {
        let at = self.at;
        let number = self.take(|c| c.is_ascii_digit() || c == '.');
        let Some(plain) = plain_number(&number) else {
            return self.expected(if measure.is_time() { "a limit such as `800ms`" } else { "a limit such as `20`" });
        };
        let unit = self.take(|c| c.is_alphabetic());
        // `for` is the next word, no unit.
        let unit = if unit == "for" {
            self.at = (at..self.at).rev().find(|i| self.text[*i] == 'f').unwrap_or(at);
            String::new()
        } else {
            unit
        };
        if !measure.is_time() {
            let per_second = measure == Measure::OutputSpeed && matches!(unit.as_str(), "tok" | "tokens") && self.peek() == Some('/');
            if per_second {
                self.at += 1;
                if self.word() != "s" {
                    return self.expected("`s`");
                }
            } else if !unit.is_empty() {
                return self.error(at, format!("{} has no unit `{unit}`", measure.name()), "write the plain number");
            }
            return if plain > 0.0 { Ok(plain) } else { self.error(at, "a limit must be above 0", "") };
        }
        if unit.is_empty() {
            return self.error(at, format!("{number} of what?"), &format!("write `{number}ms` or `{number}s`"));
        }
        let Some(value) = seconds(&format!("{number}{unit}")) else {
            return self.error(at, format!("no unit of time `{unit}`"), "us, ms, s, m, h");
        };
        if per_token {
            if self.peek() != Some('/') {
                return self.expected("`/token`");
            }
            self.at += 1;
            if !matches!(self.word().as_str(), "token" | "tok") {
                return self.expected("`token`");
            }
        }
        if value > 0.0 || per_token { Ok(value) } else { self.error(at, "a limit must be above 0", "") }
    }
}

/// A share from a percentage, as the double nearest to its decimal: 99.9 is 0.999, not 0.9990000000000001.
pub fn from_percent(percent: f64) -> f64 {
    // Two more decimals are exact as long as the text has at most 15 digits.
    format!("{percent}e-2").parse().unwrap_or(percent / 100.0)
}

/// A number without what binary fractions add to it.
pub fn round(number: f64) -> String {
    decimal(number, 6)
}
