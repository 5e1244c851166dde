//! The Prometheus text format 0.0.4 and OpenMetrics text, line by line, as the bytes come.
//!
//! Sources: prometheus.io/docs/instrumenting/exposition_formats (text format, with the quoted names of 2024) and OpenMetrics 1.0. What
//! a line of `# TYPE` or `# HELP` says is not needed: who exports what stands in [`figures`](super::figures). Nothing is kept but one
//! line, and a bad one costs itself only: it is counted, and the first is named by its number.
//!
//! Own, because the crates at hand do not fit: `prometheus-parse` (0.2.5, of 2023) takes a whole text and leaves bad lines out
//! silently, `openmetrics-parser` (0.5) refuses a text for one bad line and is under the LGPL.

use std::borrow::Cow;

/// Longest line that is read; longer ones are bad. The longest that servers write are a few hundred bytes.
pub const MAX_LINE: usize = 16 * 1024;

/// Most lines of one text; what is behind them is not read.
pub const MAX_LINES: u64 = 200_000;

/// What is wrong with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// It is longer than [`MAX_LINE`].
    TooLong,
    /// It is not UTF-8.
    Utf8,
    /// It has no name where one belongs, or a name with other characters than names have.
    Name,
    /// Its labels are no labels, or do not end.
    Labels,
    /// It has no value, or one that is no number.
    Value,
    /// What follows the value is neither a time stamp nor an exemplar.
    Rest,
    /// It stands behind `# EOF`.
    AfterEnd,
}

impl Bad {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLong => "too long",
            Self::Utf8 => "not UTF-8",
            Self::Name => "no name of a metric",
            Self::Labels => "bad labels",
            Self::Value => "no number",
            Self::Rest => "more than a value and a time stamp",
            Self::AfterEnd => "behind # EOF",
        }
    }
}

/// One sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample<'a> {
    /// The name as it stands there. A quoted one that has escapes keeps them.
    pub name: &'a str,
    /// Its labels.
    pub labels: Labels<'a>,
    /// The value; may be NaN or infinite.
    pub value: f64,
}

/// The labels of a sample, between its braces, known to be well formed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Labels<'a>(&'a str);

impl<'a> Labels<'a> {
    /// Name and value of each.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            loop {
                rest = rest.trim_start_matches([' ', '\t', ',']);
                let (name, tail) = label_name(rest)?;
                let tail = blank(tail);
                let Some(tail) = tail.strip_prefix('=') else {
                    // The name of the metric itself, quoted.
                    rest = tail;
                    continue;
                };
                let (value, tail) = quoted(blank(tail))?;
                rest = tail;
                return Some((name, unescaped(value)));
            }
        })
    }

    /// The value of one label.
    pub fn get(self, name: &str) -> Option<Cow<'a, str>> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}

/// What was read of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Lines, comments included.
    pub lines: u64,
    /// Samples.
    pub samples: u64,
    /// Lines that are neither.
    pub bad: u64,
    /// Number, from 1, and fault of the first bad line.
    pub first_bad: Option<(u64, Bad)>,
    /// Whether there were more than [`MAX_LINES`].
    pub too_many: bool,
    /// Whether `# EOF` was read, with which a text of OpenMetrics ends.
    pub ended: bool,
}

/// Reads one text.
#[derive(Debug, Default)]
pub struct Reader {
    /// A line that is not complete yet.
    line: Vec<u8>,
    /// Whether the rest of the line is thrown away.
    too_long: bool,
    counts: Counts,
}

impl Reader {
    /// Takes the next bytes; `each` gets every sample that is complete.
    pub fn push(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Sample<'_>)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (head, tail) = bytes.split_at(end);
            bytes = tail.get(1..).unwrap_or_default();
            if self.line.is_empty() && !self.too_long && head.len() <= MAX_LINE {
                self.line(head, each);
            } else {
                self.keep(head);
                self.flush(each);
            }
        }
        self.keep(bytes);
    }

    /// The end of the text; a last line without line end counts.
    pub fn finish(mut self, each: &mut dyn FnMut(Sample<'_>)) -> Counts {
        if !self.line.is_empty() || self.too_long {
            self.flush(each);
        }
        self.counts
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.too_long || self.line.len() + bytes.len() > MAX_LINE {
            self.line.clear();
            self.too_long = true;
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn flush(&mut self, each: &mut dyn FnMut(Sample<'_>)) {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.too_long) {
            self.counts.too_many |= self.counts.lines >= MAX_LINES;
            if !self.counts.too_many {
                self.counts.lines += 1;
                self.bad(Bad::TooLong);
            }
        } else {
            self.line(&line, each);
        }
        self.line = line;
        self.line.clear();
    }

    fn bad(&mut self, what: Bad) {
        self.counts.bad += 1;
        self.counts.first_bad.get_or_insert((self.counts.lines, what));
    }

    fn line(&mut self, line: &[u8], each: &mut dyn FnMut(Sample<'_>)) {
        if self.counts.lines >= MAX_LINES {
            self.counts.too_many = true;
            return;
        }
        self.counts.lines += 1;
        match std::str::from_utf8(line).map_err(|_| Bad::Utf8).and_then(parse) {
            Ok(Line::Sample(_)) | Err(_) if self.counts.ended => self.bad(Bad::AfterEnd),
            Ok(Line::Sample(sample)) => {
                self.counts.samples += 1;
                each(sample);
            }
            Ok(Line::End) => self.counts.ended = true,
            Ok(Line::Other) => {}
            Err(what) => self.bad(what),
        }
    }
}

enum Line<'a> {
    Sample(Sample<'a>),
    /// `# EOF`.
    End,
    /// A comment, a description, or nothing.
    Other,
}

fn parse(line: &str) -> Result<Line<'_>, Bad> {
    let line = line.trim_matches([' ', '\t', '\r']);
    if line.is_empty() || line.starts_with('#') {
        return Ok(if line == "# EOF" { Line::End } else { Line::Other });
    }
    let (mut name, rest) = plain_name(line);
    let rest = blank(rest);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => {
            let (end, quoted_name) = labels_end(inner)?;
            if let Some(quoted_name) = quoted_name {
                if !name.is_empty() {
                    return Err(Bad::Name);
                }
                name = quoted_name;
            }
            let (labels, rest) = inner.split_at(end);
            (labels, rest.get(1..).unwrap_or_default())
        }
        None => ("", rest),
    };
    if name.is_empty() {
        return Err(Bad::Name);
    }
    let mut fields = blank(rest).splitn(2, [' ', '\t']);
    let value: f64 = fields.next().unwrap_or_default().parse().map_err(|_| Bad::Value)?;
    let rest = blank(fields.next().unwrap_or_default());
    if !rest.is_empty() && !rest.starts_with('#') {
        // Milliseconds in the one format, seconds in the other; not used either way.
        let (stamp, tail) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        let tail = blank(tail);
        if stamp.parse::<f64>().is_err() || !(tail.is_empty() || tail.starts_with('#')) {
            return Err(Bad::Rest);
        }
    }
    Ok(Line::Sample(Sample { name, labels: Labels(labels), value }))
}

fn blank(text: &str) -> &str {
    text.trim_start_matches([' ', '\t'])
}

/// The name at the beginning, empty when there is none, and what follows.
fn plain_name(text: &str) -> (&str, &str) {
    let fits = |(i, b): (usize, u8)| b.is_ascii_alphabetic() || b == b'_' || b == b':' || (i > 0 && b.is_ascii_digit());
    let end = text.bytes().enumerate().position(|at| !fits(at)).unwrap_or(text.len());
    // A name ends where white space or labels begin; anything else belongs to no name.
    match text.as_bytes().get(end) {
        None | Some(b' ' | b'\t' | b'{') => text.split_at(end),
        Some(_) => ("", text),
    }
}

fn label_name(text: &str) -> Option<(&str, &str)> {
    if text.starts_with('"') {
        return quoted(text);
    }
    let end = text.bytes().position(|b| !(b.is_ascii_alphanumeric() || b == b'_')).unwrap_or(text.len());
    (end > 0 && !text.starts_with(|c: char| c.is_ascii_digit())).then(|| text.split_at(end))
}

/// What stands between the quotes at the beginning, escapes and all, and what follows them.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', inner.as_bytes().get(from..)?)?;
        if inner.as_bytes().get(at) == Some(&b'"') {
            return Some((inner.get(..at)?, inner.get(at + 1..)?));
        }
        // A backslash takes the character behind it along.
        from = at + 2;
    }
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let (mut out, mut chars) = (String::with_capacity(value.len()), value.chars());
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, false) => out.push(c),
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some(c @ ('"' | '\\')) => out.push(c),
                // Anything else stays as it is.
                Some(c) => out.extend(['\\', c]),
                None => out.push('\\'),
            },
        }
    }
    Cow::Owned(out)
}

/// Where the labels end (the closing brace's place), and the metric's name when it stands among them, quoted.
fn labels_end(inner: &str) -> Result<(usize, Option<&str>), Bad> {
    let (mut rest, mut name, mut first) = (inner, None, true);
    loop {
        rest = blank(rest);
        if rest.starts_with('}') {
            return Ok((inner.len() - rest.len(), name));
        }
        let was_quoted = rest.starts_with('"');
        let (label, tail) = label_name(rest).ok_or(Bad::Labels)?;
        let tail = blank(tail);
        rest = match tail.strip_prefix('=') {
            Some(value) => quoted(blank(value)).ok_or(Bad::Labels)?.1,
            None if was_quoted && first => {
                name = Some(label);
                tail
            }
            None => return Err(Bad::Labels),
        };
        first = false;
        rest = blank(rest);
        match rest.strip_prefix(',') {
            Some(tail) => rest = tail,
            None if rest.starts_with('}') => {}
            None => return Err(Bad::Labels),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One line as it was understood.
    fn shown(sample: Sample<'_>) -> String {
        let labels: Vec<_> = sample.labels.iter().map(|(n, v)| format!("{n}={v:?}")).collect();
        format!("{} {{{}}} {}", sample.name, labels.join(","), sample.value)
    }

    fn read(text: &[u8], piece: usize) -> (Vec<String>, Counts) {
        let (mut reader, mut found) = (Reader::default(), Vec::new());
        for part in text.chunks(piece.max(1)) {
            reader.push(part, &mut |s| found.push(shown(s)));
        }
        let counts = reader.finish(&mut |s| found.push(shown(s)));
        (found, counts)
    }

    fn one(line: &str) -> Result<String, Bad> {
        let (found, counts) = read(line.as_bytes(), usize::MAX);
        match counts.first_bad {
            Some((_, bad)) => Err(bad),
            None => Ok(found.concat()),
        }
    }

    #[test]
    fn lines_that_servers_write() {
        for (line, want) in [
            ("vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1.0", "vllm:num_requests_running {engine=\"0\",model_name=\"m\"} 1"),
            ("llamacpp:prompt_tokens_total 19", "llamacpp:prompt_tokens_total {} 19"),
            ("a_bucket{le=\"+Inf\",} 3", "a_bucket {le=\"+Inf\"} 3"),
            ("a{} NaN", "a {} NaN"),
            ("  a\t{ x = \"y\" , z=\"\" }\t+Inf  1700000000000 \r", "a {x=\"y\",z=\"\"} inf"),
            ("a{x=\"q\\\"b\\\\s\\nl\\t}\"} 1", "a {x=\"q\\\"b\\\\s\\nl\\\\t}\"} 1"),
            // OpenMetrics: seconds and an exemplar.
            ("a_bucket{le=\"1\"} 7 1.7e9 # {trace_id=\"x\"} 0.5 1.7e9", "a_bucket {le=\"1\"} 7"),
            ("a_total 7 # {trace_id=\"x\"} 0.5", "a_total {} 7"),
            // Quoted names (Prometheus 3).
            ("{\"a.b\",x=\"y\",\"l l\"=\"z\"} 1", "a.b {x=\"y\",l l=\"z\"} 1"),
            ("# TYPE a counter", ""),
            ("#", ""),
            ("", ""),
        ] {
            assert_eq!(one(line).as_deref(), Ok(want), "{line}");
        }
    }

    #[test]
    fn bad_lines() {
        for (line, want) in [
            ("<html><body>404</body></html>", Bad::Name),
            ("{\"error\":{\"code\":501}}", Bad::Labels),
            ("9a 1", Bad::Name),
            ("a-b 1", Bad::Name),
            ("{x=\"y\"} 1", Bad::Name),
            ("a{\"b\"} 1", Bad::Name),
            ("a{x=\"y\" 1", Bad::Labels),
            ("a{x=y} 1", Bad::Labels),
            ("a{x} 1", Bad::Labels),
            ("a{x=\"y\" z=\"w\"} 1", Bad::Labels),
            ("a{x=\"y", Bad::Labels),
            ("a{x=\"y\\", Bad::Labels),
            ("a", Bad::Value),
            ("a{}", Bad::Value),
            ("a one", Bad::Value),
            ("a 0x1p3", Bad::Value),
            ("a 1 2 3", Bad::Rest),
            ("a 1 then", Bad::Rest),
        ] {
            assert_eq!(one(line), Err(want), "{line}");
        }
    }

    #[test]
    fn a_bad_line_costs_itself_only_and_is_named() {
        let mut text = b"a 1\nb two\n\xff\xfe 3\n".to_vec();
        text.extend(std::iter::repeat_n(b'x', MAX_LINE + 1));
        text.extend(b" 1\nc 4\n# EOF\nd 5\n");
        let (found, counts) = read(&text, usize::MAX);
        assert_eq!(found, ["a {} 1", "c {} 4"]);
        let want = Counts { lines: 7, samples: 2, bad: 4, first_bad: Some((2, Bad::Value)), too_many: false, ended: true };
        assert_eq!(counts, want);
    }

    #[test]
    fn lines_are_bounded() {
        let text = "a 1\n".repeat(usize::try_from(MAX_LINES).unwrap() + 5);
        let (found, counts) = read(text.as_bytes(), usize::MAX);
        assert_eq!((found.len() as u64, counts.lines, counts.too_many), (MAX_LINES, MAX_LINES, true));
    }

    proptest! {
        #[test]
        fn whole_is_cut_into_pieces(text in "([a-c{}\"=,\\\\#0-9. \n\t]|EOF|# |ä){0,200}", piece in 1_usize..64) {
            prop_assert_eq!(read(text.as_bytes(), piece), read(text.as_bytes(), usize::MAX));
        }

        #[test]
        fn what_is_written_is_read(
            name in "[a-z_:][a-z0-9_:]{0,20}",
            labels in proptest::collection::btree_map("[a-z_][a-z0-9_]{0,8}", "\\PC{0,12}|[\\\\\"\n]{0,6}", 0..4),
            value in proptest::num::f64::ANY,
        ) {
            let escaped = |v: &str| v.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let inner: Vec<_> = labels.iter().map(|(n, v)| format!("{n}=\"{}\"", escaped(v))).collect();
            let text = format!("{name}{{{}}} {value:?}\n", inner.join(","));
            let (mut reader, mut seen) = (Reader::default(), 0);
            reader.push(text.as_bytes(), &mut |sample| {
                seen += 1;
                let read: std::collections::BTreeMap<_, _> =
                    sample.labels.iter().map(|(n, v)| (n.to_owned(), v.into_owned())).collect();
                assert_eq!(sample.name, name);
                assert_eq!(read, labels);
                assert!(sample.value == value || sample.value.is_nan() && value.is_nan());
            });
            prop_assert_eq!(seen, 1, "{}", text);
        }
    }
}
