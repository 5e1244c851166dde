//! JSON with places. Strict (RFC 8259): what it refuses, Go's `encoding/json` refuses as well.

use super::{Entry, Error, MAX_BYTES, MAX_DEPTH, MAX_KEYS, MAX_NODES, Node, Pos, Style, Value};

/// Reads one JSON text.
pub fn parse(text: &str) -> Result<Node, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error { pos: Pos { line: 1, column: 1 }, message: format!("more than {MAX_BYTES} bytes") });
    }
    let mut reader = Reader { rest: text.chars().peekable(), pos: Pos { line: 1, column: 1 }, nodes: 0 };
    reader.space();
    let node = reader.value(0)?;
    reader.space();
    match reader.peek() {
        None => Ok(node),
        Some(c) => reader.error(format!("expected the end, found `{c}`")),
    }
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    pos: Pos,
    nodes: usize,
}

impl Reader<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        self.pos = if c == '\n' { Pos { line: self.pos.line + 1, column: 1 } } else { self.pos.right(1) };
        Some(c)
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(Error { pos: self.pos, message: message.into() })
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\r' | '\n')) {
            self.next();
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, Error> {
        self.nodes += 1;
        if depth > MAX_DEPTH || self.nodes > MAX_NODES {
            return self.error(format!("nested deeper than {MAX_DEPTH} levels, or more than {MAX_NODES} values"));
        }
        let pos = self.pos;
        let value = match self.peek() {
            Some('{') => Value::Map(self.map(depth)?),
            Some('[') => Value::List(self.list(depth)?),
            Some('"') => {
                let text = self.string()?;
                return Ok(Node { pos, value: Value::Text(text.clone()), written: Some((text, Style::Quoted)) });
            }
            Some('-' | '0'..='9') => return self.number(pos),
            Some('a'..='z') => {
                let mut word = String::new();
                while let Some(c @ 'a'..='z') = self.peek() {
                    word.push(c);
                    self.next();
                }
                match word.as_str() {
                    "true" => Value::Bool(true),
                    "false" => Value::Bool(false),
                    "null" => Value::Null,
                    _ => return Err(Error { pos, message: format!("expected a value, found `{word}`") }),
                }
            }
            Some(c) => return self.error(format!("expected a value, found `{c}`")),
            None => return self.error("expected a value, found the end"),
        };
        Ok(Node { pos, value, written: None })
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Error> {
        self.next();
        let mut entries: Vec<Entry> = Vec::new();
        self.space();
        if self.peek() == Some('}') {
            self.next();
            return Ok(entries);
        }
        loop {
            self.space();
            let key_pos = self.pos;
            if self.peek() != Some('"') {
                return self.error("expected a key in quotes");
            }
            let key = self.string()?;
            self.space();
            if self.next() != Some(':') {
                return Err(Error { pos: self.pos, message: format!("expected `:` behind the key {key:?}") });
            }
            self.space();
            let value = self.value(depth + 1)?;
            // As in Go, the last of several holds.
            entries.retain(|e| e.key != key);
            if entries.len() >= MAX_KEYS {
                return Err(Error { pos: key_pos, message: format!("more than {MAX_KEYS} keys in a map") });
            }
            entries.push(Entry { key, key_pos, value });
            self.space();
            match self.next() {
                Some(',') => {}
                Some('}') => return Ok(entries),
                _ => return self.error("expected `,` or `}`"),
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Error> {
        self.next();
        let mut items = Vec::new();
        self.space();
        if self.peek() == Some(']') {
            self.next();
            return Ok(items);
        }
        loop {
            self.space();
            items.push(self.value(depth + 1)?);
            self.space();
            match self.next() {
                Some(',') => {}
                Some(']') => return Ok(items),
                _ => return self.error("expected `,` or `]`"),
            }
        }
    }

    fn number(&mut self, pos: Pos) -> Result<Node, Error> {
        let mut text = String::new();
        while let Some(c @ ('-' | '+' | '.' | 'e' | 'E' | '0'..='9')) = self.peek() {
            text.push(c);
            self.next();
        }
        let digits = text.strip_prefix('-').unwrap_or(&text);
        let leading = digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit();
        let shape = |b: Option<&u8>| b.is_some_and(u8::is_ascii_digit);
        let dots = digits.split_once('.').is_none_or(|(a, b)| shape(a.as_bytes().last()) && shape(b.as_bytes().first()));
        if leading || !dots || !shape(digits.as_bytes().first()) || !shape(digits.as_bytes().last()) || digits[1..].contains("--") {
            return Err(Error { pos, message: format!("`{text}` is no JSON number") });
        }
        let value = match text.parse::<i64>() {
            Ok(n) => Value::Int(n.into()),
            Err(_) => match text.parse::<f64>() {
                Ok(n) if n.is_finite() => Value::Float(n),
                _ => return Err(Error { pos, message: format!("`{text}` is no JSON number in range") }),
            },
        };
        Ok(Node { pos, value, written: Some((text, Style::Plain)) })
    }

    fn string(&mut self) -> Result<String, Error> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escape()?),
                Some(c) if c < ' ' => return self.error("a control character in a string"),
                Some(c) => text.push(c),
                None => return self.error("a string without an end"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        Ok(match self.next() {
            Some(c @ ('"' | '\\' | '/')) => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                let mut unit = self.hex()?;
                // A pair of surrogates is one character; one alone is replaced, as Go does.
                if (0xd800..0xdc00).contains(&unit) && self.peek() == Some('\\') {
                    self.next();
                    if self.peek() != Some('u') {
                        return self.error("half a character (a surrogate) in a string");
                    }
                    self.next();
                    let low = self.hex()?;
                    unit = if (0xdc00..0xe000).contains(&low) { 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00) } else { 0xfffd };
                }
                char::from_u32(unit).unwrap_or('\u{fffd}')
            }
            _ => return self.error("an unknown escape in a string"),
        })
    }

    fn hex(&mut self) -> Result<u32, Error> {
        let mut unit = 0;
        for _ in 0..4 {
            match self.next().and_then(|c| c.to_digit(16)) {
                Some(digit) => unit = unit * 16 + digit,
                None => return self.error("expected four hexadecimal digits behind `\\u`"),
            }
        }
        Ok(unit)
    }
}
