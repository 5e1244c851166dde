//! OpenSLO documents: their shapes and their rules. The verdicts are those of the official Go SDK.

mod alerts;
pub mod other_tables;
pub mod rules;
pub mod tables;
mod v1alpha;
pub mod values;

use super::problem::{Class, Problems};
use super::read::{Manner, read};
use super::shape::{Object, Ty, list, nearest};
use crate::yaml::{Node, Value};
use rules::Version;

/// An OpenSLO object as far as it is known: the version and kind that it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The version.
    pub version: Version,
    /// The kind.
    pub kind: &'static str,
}

/// Checks one object. `None` when it is of no known version and kind; the problems say why.
pub fn check(node: &mut Node, problems: &mut Problems<'_>) -> Option<Known> {
    static HEAD: Object = Object {
        name: "Head",
        doc: "What every object has.",
        fields: &[
            super::shape::must("apiVersion", Ty::Name(&tables::VERSIONS), "the version"),
            super::shape::must("kind", Ty::Name(&tables::KINDS), "the kind"),
            super::shape::may("metadata", Ty::Any, "the name"),
            super::shape::may("spec", Ty::Any, "the contents"),
        ],
    };
    if !matches!(node.value, Value::Map(_)) {
        problems.error(Class::Shape, node.pos, "", format!("expected an object with `apiVersion` and `kind`, found {}", node.found()));
        return None;
    }
    // Keys as the table spells them first: what is unknown is told below, with the table of its kind.
    let mut quiet = Problems::new(problems.file);
    read(node, &Ty::Object(&HEAD), "", Manner::OpenSlo, &mut quiet);
    let version = match node.set("apiVersion") {
        None => {
            problems.error(Class::Shape, node.pos, "apiVersion", format!("is required: {}", list(&tables::VERSIONS)));
            return None;
        }
        Some(n) => match n.text() {
            Some("openslo/v1") => Version::V1,
            Some("openslo/v1alpha") => Version::V1Alpha,
            Some("openslo.com/v2alpha") => Version::V2Alpha,
            text => {
                let hint = nearest(text.unwrap_or_default(), tables::VERSIONS).map(|v| format!("did you mean `{v}`?"));
                let message = format!("expected {}, found {}", list(&tables::VERSIONS), n.found());
                problems.hinted(Class::Shape, n.pos, "apiVersion", message, hint);
                return None;
            }
        },
    };
    let documents: &[(&'static str, &'static Object)] = match version {
        Version::V1 => &tables::V1,
        Version::V1Alpha => &other_tables::V1ALPHA,
        Version::V2Alpha => &other_tables::V2ALPHA,
    };
    let kinds: Vec<&str> = documents.iter().map(|(kind, _)| *kind).collect();
    let found = node.set("kind");
    let Some((kind, table)) = documents.iter().find(|(kind, _)| found.and_then(Node::text) == Some(kind)) else {
        let (pos, text) = found.map_or((node.pos, "nothing".into()), |n| (n.pos, n.found()));
        let hint = found.and_then(Node::text).and_then(|t| nearest(t, kinds.iter().copied())).map(|k| format!("did you mean `{k}`?"));
        problems.hinted(Class::Shape, pos, "kind", format!("expected {}, found {text}", list(&kinds)), hint);
        return None;
    };
    let name = node.get("metadata").and_then(|m| m.get("name")).and_then(Node::text).unwrap_or_default();
    problems.object = if name.is_empty() { (*kind).to_owned() } else { format!("{kind} {name}") };
    let before = problems.list.len();
    read(node, &Ty::Object(table), "", Manner::OpenSlo, problems);
    // The SDK stops at the first thing that it cannot decode. The rules are checked all the same, so that one run tells everything
    // that a run of the SDK after the other would; what the shape has made wrong already is not told twice.
    let shape = problems.list.len();
    rules::check(version, kind, node, problems);
    problems.tell_once(before, shape);
    Some(Known { version, kind })
}
