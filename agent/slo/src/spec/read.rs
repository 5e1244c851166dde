//! The strict reader: does a value have the shape that its table says? Every difference is told, each with its place.
//!
//! Two manners. OpenSLO documents are read as Go's `encoding/json` decodes them with unknown fields refused: keys match whatever
//! their case, `null` is as good as nothing, the last of two equal keys holds. What is ours is read to the letter.

use super::problem::{Class, Problems};
use super::shape::{Object, Ty, list};
use crate::yaml::{Entry, Node, Pos, Value};

/// How strictly names and nothings are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// As OpenSLO's SDK.
    OpenSlo,
    /// To the letter.
    Ours,
}

/// Checks `node` against `ty`; spells keys as the table does, so that what comes later need not care.
pub fn read(node: &mut Node, ty: &Ty, path: &str, manner: Manner, problems: &mut Problems<'_>) {
    if node.value == Value::Null && manner == Manner::OpenSlo {
        return;
    }
    match ty {
        Ty::Any => {}
        Ty::Object(object) => map(node, object, path, manner, problems),
        Ty::List(inner) => match &mut node.value {
            Value::List(items) => {
                for (i, item) in items.iter_mut().enumerate() {
                    read(item, inner, &format!("{path}[{i}]"), manner, problems);
                }
            }
            _ => wrong(node, ty, path, problems),
        },
        Ty::Keyed(form, inner) => match &mut node.value {
            Value::Map(entries) => {
                for entry in entries {
                    read(&mut entry.value, inner, &join(path, &entry.key), manner, problems);
                }
            }
            _ => {
                let message = format!("expected a map from {} to {}, found {}", form.what, inner.expected(), node.found());
                problems.error(Class::Shape, node.pos, path, message);
            }
        },
        Ty::Either(types) => {
            let kind = |ty: &&Ty| match (&node.value, ty) {
                (Value::Map(_), Ty::Object(_) | Ty::Keyed(..) | Ty::AnyMap | Ty::Texts | Ty::Labels) | (Value::List(_), Ty::List(_)) => {
                    true
                }
                (Value::Bool(_), Ty::Bool) => true,
                (Value::Int(_) | Value::Float(_), Ty::Number | Ty::Integer) => true,
                (Value::Map(_) | Value::List(_), _) => false,
                (_, Ty::Text | Ty::Word(_) | Ty::Form(_)) => true,
                _ => false,
            };
            match types.iter().find(kind) {
                Some(ty) => read(node, ty, path, manner, problems),
                None => wrong(node, ty, path, problems),
            }
        }
        Ty::Labels | Ty::Texts => {
            if !matches!(node.value, Value::Map(_)) {
                return wrong(node, ty, path, problems);
            }
            for Entry { key, value, .. } in node.entries() {
                let path = join(path, key);
                match &value.value {
                    Value::Text(_) => {}
                    Value::Null if manner == Manner::OpenSlo => {}
                    Value::List(items) if matches!(ty, Ty::Labels) => {
                        for (i, item) in items.iter().enumerate().filter(|(_, n)| !matches!(n.value, Value::Text(_) | Value::Null)) {
                            wrong(item, &Ty::Text, &format!("{path}[{i}]"), problems);
                        }
                    }
                    _ => wrong(value, &Ty::Text, &path, problems),
                }
            }
        }
        Ty::AnyMap => {
            if !matches!(node.value, Value::Map(_)) {
                wrong(node, ty, path, problems);
            }
        }
        scalar => {
            if !fits(node, scalar) {
                wrong(node, scalar, path, problems);
            }
        }
    }
}

fn fits(node: &Node, ty: &Ty) -> bool {
    match (ty, &node.value) {
        (Ty::Text, Value::Text(_)) | (Ty::Bool, Value::Bool(_)) | (Ty::Number, Value::Int(_) | Value::Float(_)) => true,
        // Go writes 1.0 as 1 and 1e3 as 1000 before it reads them as whole numbers.
        (Ty::Integer, Value::Int(n)) => i64::try_from(*n).is_ok(),
        (Ty::Integer, Value::Float(n)) => n.fract() == 0.0 && n.abs() < 1e15,
        (Ty::Word(words) | Ty::Name(words), Value::Text(text)) => words.contains(&text.as_str()),
        (Ty::Form(_), Value::Text(_)) => true,
        (Ty::Form(form), Value::Int(_) | Value::Float(_)) => form.number,
        (Ty::Shorthand, Value::Text(text)) => text.is_empty() || super::duration::scan(text).is_some(),
        _ => false,
    }
}

fn wrong(node: &Node, ty: &Ty, path: &str, problems: &mut Problems<'_>) {
    let hint = match (ty, &node.value, &node.written) {
        (Ty::Word(words) | Ty::Name(words), Value::Text(text), _) => {
            super::shape::nearest(text, words.iter().copied()).map(|w| format!("did you mean `{w}`?"))
        }
        (
            Ty::Text | Ty::Word(_) | Ty::Name(_) | Ty::Form(_) | Ty::Shorthand,
            Value::Bool(_) | Value::Int(_) | Value::Float(_),
            Some((text, _)),
        ) => Some(format!("quote it: \"{text}\"")),
        (Ty::Number | Ty::Integer | Ty::Bool, Value::Text(text), Some((_, crate::yaml::Style::Quoted)))
            if text.parse::<f64>().is_ok() || text == "true" || text == "false" =>
        {
            Some("without the quotes".into())
        }
        _ => None,
    };
    problems.hinted(Class::Shape, node.pos, path, format!("expected {}, found {}", ty.expected(), node.found()), hint);
}

fn map(node: &mut Node, object: &'static Object, path: &str, manner: Manner, problems: &mut Problems<'_>) {
    if !matches!(node.value, Value::Map(_)) {
        return wrong(node, &Ty::Object(object), path, problems);
    }
    let pos = node.pos;
    let Value::Map(entries) = &mut node.value else { return };
    if manner == Manner::OpenSlo {
        spell(entries, object);
    }
    for entry in entries.iter_mut() {
        let at = join(path, &entry.key);
        match object.field(&entry.key) {
            Some(field) => read(&mut entry.value, &field.ty, &at, manner, problems),
            None => unknown(&entry.key, entry.key_pos, &at, object, problems),
        }
    }
    if manner == Manner::Ours {
        for field in object.fields.iter().filter(|f| f.required && !entries.iter().any(|e| e.key == f.key)) {
            problems.error(Class::Shape, pos, path, format!("`{}` is missing: {}", field.key, field.doc));
        }
    }
}

fn unknown(key: &str, pos: Pos, path: &str, object: &Object, problems: &mut Problems<'_>) {
    let hint = match (key, object.nearest(key)) {
        // What YAML 1.1 makes of `y`, `on`, `no` as a key.
        ("true" | "false", _) => Some(format!("YAML 1.1 reads unquoted `y`, `on`, `no` … as {key}")),
        (_, Some(near)) => Some(format!("did you mean `{near}`?")),
        _ => None,
    };
    let known = list(&object.fields.iter().map(|f| f.key).collect::<Vec<_>>());
    problems.hinted(Class::Shape, pos, path, format!("unknown key `{key}`, expected {known}"), hint);
}

/// Gives keys that match a field but for their case the field's spelling. Of several for one field the last in the order of bytes
/// holds, as Go's decoder meets them sorted; maps merge.
fn spell(entries: &mut Vec<Entry>, object: &Object) {
    let exact = |e: &Entry| object.field(&e.key).is_some();
    if entries.iter().all(exact) {
        return;
    }
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    let mut out: Vec<Entry> = Vec::new();
    for mut entry in entries.drain(..) {
        if !exact(&entry)
            && let Some(field) = object.fields.iter().find(|f| fold(f.key) == fold(&entry.key))
        {
            entry.key = field.key.to_owned();
        }
        match out.iter_mut().find(|e| e.key == entry.key) {
            Some(old) => match (&mut old.value.value, entry.value.value) {
                (_, Value::Null) => {}
                (Value::Map(old), Value::Map(new)) => {
                    for e in new {
                        old.retain(|o| o.key != e.key);
                        old.push(e);
                    }
                }
                (_, value) => old.value = Node { value, ..entry.value },
            },
            None => out.push(entry),
        }
    }
    out.sort_by_key(|e| e.key_pos);
    *entries = out;
}

/// How Go compares keys: letters without case, with the two characters outside ASCII that fold into it.
fn fold(key: &str) -> String {
    let one = |c: char| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    key.chars().map(one).collect()
}

/// A path with one more key.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
