//! Events of the YAML parser become a tree: aliases are expanded, merge keys merged, scalars resolved, all within bounds.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::lenient::{Lenient, tabs_that_indent};
use super::scalar::{key_of, resolve};
use super::{Entry, Error, MAX_BYTES, MAX_DEPTH, MAX_KEYS, MAX_NODES, Node, Pos, Style, Value};

/// A document.
#[derive(Clone, PartialEq, Debug)]
pub struct Document {
    /// Its value; null when there is nothing but comments.
    pub root: Node,
    /// Keys that stand twice in one map (the later value holds): the key, where it stands again, and where it stood first.
    pub twice: Vec<(String, Pos, Pos)>,
}

/// Reads the first document of a text; what follows it is not looked at, as Go does not.
pub fn parse(text: &str, lines_before: usize) -> Result<Document, Error> {
    let start = Pos { line: lines_before + 1, column: 1 };
    if text.len() > MAX_BYTES {
        return fail(start, format!("more than {MAX_BYTES} bytes"));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // A document's end before its beginning: skipped by YAML 1.2, refused by libyaml.
    let first = text.lines().enumerate().find(|(_, l)| !l.trim().is_empty() && !l.trim_start().starts_with('#'));
    if let Some((line, _)) = first.filter(|(_, l)| l.trim_end() == "..." || l.starts_with("... ")) {
        return fail(Pos { line: line + 1 + lines_before, column: 1 }, "the end of a document (`...`) before its beginning");
    }
    let parsed = document(text, None, text, lines_before);
    match &parsed {
        Err(_) => match Lenient::new(text) {
            // What is wrong all the same is told of the text as it was written.
            Some(lenient) => document(&lenient.text, Some(&lenient), text, lines_before).or(parsed),
            None => parsed,
        },
        Ok(_) => parsed,
    }
}

fn document(text: &str, lenient: Option<&Lenient>, written: &str, lines_before: usize) -> Result<Document, Error> {
    let column = |line: usize, column: usize| lenient.map_or(column, |l| l.column(line, column));
    let at = |span: Span| {
        let (line, col) = (span.start.line(), span.start.col() + 1);
        Pos { line: line + lines_before, column: column(line, col) }
    };
    let mut builder = Builder::default();
    let mut last = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|e| {
            let mark = e.marker();
            Error { pos: Pos { line: mark.line() + lines_before, column: mark.col() + 1 }, message: e.info().to_owned() }
        })?;
        last = last.max(span.end.line());
        match event {
            Event::DocumentEnd | Event::StreamEnd => break,
            event => builder.event(event, at(span))?,
        }
    }
    // YAML 1.2 takes some lines that begin with a tab, libyaml none but those inside of quotes, blocks, brackets and braces.
    if let Some(line) = tabs_that_indent(written).into_iter().next().filter(|line| *line <= last) {
        return fail(Pos { line: line + lines_before, column: 1 }, "a tab cannot indent");
    }
    let root = builder.root.unwrap_or_else(|| Node::absent(Pos { line: lines_before + 1, column: 1 }));
    Ok(Document { root, twice: builder.twice })
}

#[derive(Default)]
struct Builder {
    root: Option<Node>,
    open: Vec<Frame>,
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    twice: Vec<(String, Pos, Pos)>,
}

/// A list or a map that is being read.
struct Frame {
    pos: Pos,
    anchor: usize,
    /// Values in it and below.
    size: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, key: Option<Key> },
}

/// A key whose value has not come yet.
enum Key {
    Named(String, Pos),
    Merge,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, pos: Pos) -> Result<(), Error> {
        match event {
            Event::Alias(id) => {
                let Some((node, size)) = self.anchors.get(&id) else {
                    return fail(pos, "this alias stands inside what it names");
                };
                let (node, size) = (node.clone(), *size);
                self.nodes += size;
                self.value(node, size, 0, false)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let value = match (tag.as_deref(), plain) {
                    (None, true) => resolve(None, &text),
                    (None, false) => Ok(Value::Text(text.to_string())),
                    (Some(tag), _) if tag.is_yaml_core_schema() => resolve(Some(&tag.suffix), &text),
                    (Some(_), _) => Ok(Value::Text(text.to_string())),
                };
                let value = value.or_else(|message| fail(pos, message))?;
                if matches!(value, Value::Float(n) if !n.is_finite()) {
                    return fail(pos, format!("`{text}` is no number that can be used here"));
                }
                let merge = text == "<<" && (plain && tag.is_none() || tag.as_deref().is_some_and(is_merge));
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
                    ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
                };
                self.value(Node { pos, value, written: Some((text.into_owned(), style)) }, 1, anchor, merge)
            }
            Event::SequenceStart(anchor, _) => self.open(pos, anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, _) => self.open(pos, anchor, Content::Map { entries: Vec::new(), key: None }),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(frame) = self.open.pop() else { return Ok(()) };
                let value = match frame.content {
                    Content::List(items) => Value::List(items),
                    Content::Map { entries, .. } => Value::Map(entries),
                };
                self.value(Node { pos: frame.pos, value, written: None }, frame.size, frame.anchor, false)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, pos: Pos, anchor: usize, content: Content) -> Result<(), Error> {
        if self.open.len() >= MAX_DEPTH {
            return fail(pos, format!("nested deeper than {MAX_DEPTH} levels"));
        }
        self.open.push(Frame { pos, anchor, size: 1, content });
        Ok(())
    }

    /// Takes a finished value: as item, key, value of a key, or as the whole document.
    fn value(&mut self, node: Node, size: usize, anchor: usize, merge: bool) -> Result<(), Error> {
        // Each value counts once where it is written and again wherever an alias repeats it.
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return fail(node.pos, format!("more than {MAX_NODES} values, aliases expanded"));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
        let pos = node.pos;
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        frame.size += size;
        match &mut frame.content {
            Content::List(items) => items.push(node),
            Content::Map { entries, key } => match key.take() {
                None if merge => *key = Some(Key::Merge),
                None => match key_of(&node.value) {
                    Some(text) => *key = Some(Key::Named(text, pos)),
                    None => return fail(pos, format!("a key must be a text, found {}", node.found())),
                },
                Some(Key::Named(text, key_pos)) => {
                    if entries.len() >= MAX_KEYS {
                        return fail(key_pos, format!("more than {MAX_KEYS} keys in a map"));
                    }
                    if let Some(old) = put(entries, Entry { key: text.clone(), key_pos, value: node }) {
                        self.twice.push((text, key_pos, old));
                    }
                }
                Some(Key::Merge) => {
                    let maps = match node.value {
                        Value::Map(map) => vec![map],
                        // Earlier ones take precedence, so they come last.
                        Value::List(items) => {
                            let maps = items.into_iter().rev().map(|n| match n.value {
                                Value::Map(map) => Ok(map),
                                _ => fail(n.pos, "`<<` needs a map or a list of maps"),
                            });
                            maps.collect::<Result<_, _>>()?
                        }
                        _ => return fail(pos, "`<<` needs a map or a list of maps"),
                    };
                    for entry in maps.into_iter().flatten() {
                        if entries.len() >= MAX_KEYS {
                            return fail(pos, format!("more than {MAX_KEYS} keys in a map"));
                        }
                        put(entries, entry);
                    }
                }
            },
        }
        Ok(())
    }
}

/// Puts an entry into a map; the place of the one that it replaces.
fn put(entries: &mut Vec<Entry>, entry: Entry) -> Option<Pos> {
    match entries.iter_mut().find(|e| e.key == entry.key) {
        Some(old) => Some(std::mem::replace(old, entry).key_pos),
        None => {
            entries.push(entry);
            None
        }
    }
}

fn is_merge(tag: &Tag) -> bool {
    tag.is_yaml_core_schema() && tag.suffix == "merge"
}

fn fail<T>(pos: Pos, message: impl Into<String>) -> Result<T, Error> {
    Err(Error { pos, message: message.into() })
}
