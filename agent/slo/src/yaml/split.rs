//! Where one document ends and the next begins, as OpenSLO's Go SDK sees it: it cuts the text at lines that begin with `---` before
//! any YAML is read, and tells by the first character whether a document is a list of objects or one.

/// A stretch of a file that is read by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part<'a> {
    /// Its text.
    pub text: &'a str,
    /// Lines of the file before it.
    pub lines_before: usize,
    /// What it is read as.
    pub shape: Shape,
}

/// What a part is read as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A list of objects.
    List,
    /// One object.
    Object,
}

/// The parts of a file that hold anything.
pub fn split(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let (mut rest, mut lines) = (text, 0);
    while !rest.is_empty() {
        let Some(at) = rest.find("\n---") else {
            push(&mut parts, rest, lines);
            break;
        };
        let after = &rest[at + 4..];
        match after.find('\n') {
            Some(end) => {
                push(&mut parts, &rest[..at], lines);
                let next = at + 4 + end + 1;
                lines += rest[..next].matches('\n').count();
                rest = &rest[next..];
            }
            None if after.is_empty() => {
                push(&mut parts, &rest[..at], lines);
                break;
            }
            // Go's scanner waits for the end of the separator's line, finds none, and drops what it holds. Nobody wants that:
            // what stands before the separator is read.
            None => {
                push(&mut parts, &rest[..at], lines);
                break;
            }
        }
    }
    parts
}

fn push<'a>(parts: &mut Vec<Part<'a>>, text: &'a str, lines_before: usize) {
    if !text.trim().is_empty() {
        parts.push(Part { text, lines_before, shape: shape(text) });
    }
}

fn shape(text: &str) -> Shape {
    for line in text.lines() {
        let line = line.trim();
        match line.as_bytes().first() {
            None | Some(b'#') => {}
            Some(b'-') if line == "---" => {}
            Some(b'[' | b'-') => return Shape::List,
            Some(_) => return Shape::Object,
        }
    }
    Shape::Object
}
