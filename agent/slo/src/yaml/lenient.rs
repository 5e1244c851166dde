//! What libyaml takes and YAML 1.2 does not: inside of brackets, braces and quotes it does not care how lines are indented, and a tab may
//! stand behind a colon. A text that the parser refuses is written anew with such lines far to the right, and read again.

/// How far: further than anything that they could belong to.
const FAR: usize = 160;

/// A text, and its lines (from 1, in order) whose columns are [`FAR`] too large.
pub struct Lenient {
    /// The text.
    pub text: String,
    lines: Vec<usize>,
}

impl Lenient {
    /// The column that a place has in the text as it was written.
    pub fn column(&self, line: usize, column: usize) -> usize {
        if self.lines.binary_search(&line).is_ok() { column.saturating_sub(FAR).max(1) } else { column }
    }

    /// Rewrites a text; `None` when nothing in it would change.
    pub fn new(text: &str) -> Option<Self> {
        let (mut out, mut lines, mut scan) = (String::with_capacity(text.len()), Vec::new(), Scan::default());
        for (i, line) in text.split_inclusive('\n').enumerate() {
            if (scan.flow > 0 || scan.quote.is_some()) && !line.trim().is_empty() {
                lines.push(i + 1);
                let rest = line.trim_start_matches([' ', '\t']);
                out.push_str(&" ".repeat(line.len() - rest.len() + FAR));
                scan.line(rest, 0, &mut out);
            } else {
                scan.line(line, line.len() - line.trim_start_matches(' ').len(), &mut out);
            }
        }
        (out != text).then_some(Self { text: out, lines })
    }
}

/// Lines (from 1) that a tab indents outside of brackets, braces, quotes and blocks of text.
pub fn tabs_that_indent(text: &str) -> Vec<usize> {
    let (mut lines, mut scan, mut out) = (Vec::new(), Scan::default(), String::new());
    if !text.contains('\t') {
        return lines;
    }
    for (i, line) in text.split_inclusive('\n').enumerate() {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let free = scan.flow == 0 && scan.quote.is_none() && scan.block.is_none_or(|parent| indent <= parent);
        if free && line[indent..].starts_with('\t') {
            lines.push(i + 1);
        }
        out.clear();
        scan.line(line, indent, &mut out);
    }
    lines
}

/// Where a line stands: in quotes, in brackets, in a block of text.
#[derive(Default)]
struct Scan {
    quote: Option<char>,
    flow: usize,
    /// Indentation of the line that began a block of text, which lasts while lines are indented more.
    block: Option<usize>,
}

impl Scan {
    /// Copies a line and learns from it.
    fn line(&mut self, line: &str, indent: usize, out: &mut String) {
        if let Some(parent) = self.block {
            if line.trim().is_empty() || indent > parent {
                out.push_str(line);
                return;
            }
            self.block = None;
        }
        let mut token = true;
        let mut last = ' ';
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            let next = chars.peek().copied().unwrap_or('\n');
            let mut written = c;
            match (self.quote, c) {
                (Some('"'), '\\') => {
                    out.push(c);
                    written = chars.next().unwrap_or('\n');
                }
                (Some('\''), '\'') if next == '\'' => {
                    out.push(c);
                    chars.next();
                }
                (Some(q), c) if q == c => (self.quote, token) = (None, false),
                (Some(_), _) => {}
                (None, '#') if last.is_whitespace() => {
                    out.push(c);
                    out.extend(chars);
                    return;
                }
                (None, '\t') if last == ':' && self.flow == 0 => written = ' ',
                (None, c) if c.is_whitespace() => {}
                (None, '"' | '\'') if token => self.quote = Some(c),
                (None, '[' | '{') if token || self.flow > 0 => (self.flow, token) = (self.flow + 1, true),
                (None, ']' | '}') if self.flow > 0 => (self.flow, token) = (self.flow - 1, false),
                (None, ',') if self.flow > 0 => token = true,
                (None, ':') if next.is_whitespace() => token = true,
                (None, '-' | '?') if token && next.is_whitespace() => {}
                (None, '|' | '>') if token && self.flow == 0 => {
                    self.block = Some(indent);
                    out.push(c);
                    out.extend(chars);
                    return;
                }
                // An anchor or a tag is not the value yet.
                (None, '&' | '!') if token => {
                    out.push(c);
                    while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                        out.push(c);
                    }
                    last = 'x';
                    continue;
                }
                (None, _) => token = false,
            }
            out.push(written);
            last = c;
        }
    }
}
