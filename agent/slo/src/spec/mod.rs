//! From files to objectives: OpenSLO, the short form, and Sloth's alert windows, read strictly, checked, resolved.
//!
//! [`load`] takes texts (no I/O here) and gives what the engine runs on ([`Loaded::slos`]), everything that is wrong and where
//! ([`Loaded::problems`]), and what belongs to other tools ([`Loaded::others`]).
//!
//! An unresolved reference is no fault of an object: OpenSLO's SDK validates each by itself, and so a file alone may refer to what
//! stands elsewhere. It is a warning, and with [`Options::strict_refs`] (what `validate` uses for a directory) an error of those
//! objectives that are ours.

pub mod duration;
pub mod openslo;
pub mod ours;
pub mod problem;
pub mod read;
mod resolve;
pub mod shape;

pub use problem::{Class, Level, Problem};

use crate::model::Slo;
use crate::yaml::{self, Node, Pos, Shape, Value};
use openslo::Known;
use openslo::rules::Version;
use ours::alerting::{self, Windows};
use ours::{short, tables};
use problem::Problems;
use read::{Manner, read};
use shape::Ty;

/// Most files at once, and most bytes of all of them.
const MAX_FILES: usize = 10_000;

/// How to load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Whether what an objective of ours refers to must be in the files.
    pub strict_refs: bool,
}

/// What files hold.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The objectives that tokengauge measures. Those with errors are left out.
    pub slos: Vec<Slo>,
    /// Everything that is wrong, in the order of the files and of the places in them.
    pub problems: Vec<Problem>,
    /// Objectives for other back ends: valid, and not ours.
    pub others: Vec<Other>,
    /// Each file and what it holds.
    pub files: Vec<File>,
    /// The names of those objectives that are of the short form.
    pub short: Vec<String>,
}

impl Loaded {
    /// Whether anything was refused.
    pub fn refused(&self) -> bool {
        self.problems.iter().any(|p| p.level == Level::Error)
    }
}

/// A file that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File {
    /// As it was named.
    pub name: String,
    /// Its objects: `openslo/v1 SLO chat-first-token`.
    pub objects: Vec<String>,
}

/// An objective that is not ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Other {
    /// Its name.
    pub name: String,
    /// Whose it is: the type of its metric source, or why that is unknown.
    pub source: String,
    /// The file.
    pub file: String,
    /// The line.
    pub line: usize,
}

/// An object on its way from a file to an objective.
struct Object {
    file: usize,
    node: Node,
    what: What,
}

enum What {
    OpenSlo(Known),
    Short,
}

/// Loads files: names and texts. Names decide how a file is read: `.json` is JSON, everything else YAML.
pub fn load<N: AsRef<str>, T: AsRef<[u8]>>(files: &[(N, T)]) -> Loaded {
    load_with(files, Options::default())
}

/// As [`load`], with options.
pub fn load_with<N: AsRef<str>, T: AsRef<[u8]>>(files: &[(N, T)], options: Options) -> Loaded {
    let mut loaded = Loaded::default();
    let mut objects = Vec::new();
    let mut windows: Vec<Windows> = Vec::new();
    for (i, (name, text)) in files.iter().take(MAX_FILES).enumerate() {
        loaded.files.push(File { name: name.as_ref().to_owned(), objects: Vec::new() });
        let mut problems = Problems::new(name.as_ref());
        let parts = match std::str::from_utf8(text.as_ref()) {
            Ok(text) => parts(name.as_ref(), text, &mut problems),
            Err(e) => {
                let before = String::from_utf8_lossy(&text.as_ref()[..e.valid_up_to()]).into_owned();
                let line = before.matches('\n').count() + 1;
                let column = before.lines().last().map_or(0, |l| l.chars().count()) + 1;
                problems.error(Class::Syntax, Pos { line, column }, "", "this is not UTF-8");
                Vec::new()
            }
        };
        if parts.is_empty() && problems.list.is_empty() {
            problems.warning(Class::Meaning, Pos { line: 1, column: 1 }, "", "nothing is defined here");
        }
        loaded.problems.append(&mut problems.list);
        for (node, twice) in parts {
            object(i, node, &twice, &mut loaded, &mut objects, &mut windows);
        }
    }
    if files.len() > MAX_FILES {
        let mut problems = Problems::new("");
        problems.error(Class::Syntax, Pos::default(), "", format!("more than {MAX_FILES} files"));
        loaded.problems.append(&mut problems.list);
    }
    resolve::resolve(objects, &windows, options, &mut loaded);
    sort(&mut loaded);
    loaded
}

/// Problems in the order of files and places; one that says the same of the same place once.
fn sort(loaded: &mut Loaded) {
    let names: std::collections::HashMap<&str, usize> = loaded.files.iter().enumerate().map(|(i, f)| (f.name.as_str(), i)).collect();
    loaded.problems.sort_by_key(|p| (names.get(p.file.as_str()).copied(), p.pos, p.level));
    loaded.problems.dedup();
}

type Twice = Vec<(String, Pos, Pos)>;

/// The objects of a text.
fn parts(name: &str, text: &str, problems: &mut Problems<'_>) -> Vec<(Node, Twice)> {
    if name.to_ascii_lowercase().ends_with(".json") {
        return match yaml::parse_json(text) {
            Ok(Node { value: Value::List(items), .. }) => items.into_iter().map(|n| (n, Vec::new())).collect(),
            Ok(node) => vec![(node, Vec::new())],
            Err(e) => {
                problems.error(Class::Syntax, e.pos, "", format!("no JSON: {}", e.message));
                Vec::new()
            }
        };
    }
    if text.len() > yaml::MAX_BYTES {
        problems.error(Class::Syntax, Pos { line: 1, column: 1 }, "", format!("more than {} bytes", yaml::MAX_BYTES));
        return Vec::new();
    }
    let mut out = Vec::new();
    for part in yaml::split(text) {
        match yaml::parse(part.text, part.lines_before) {
            Err(e) => problems.error(Class::Syntax, e.pos, "", format!("no YAML: {}", e.message)),
            Ok(document) => match (part.shape, document.root.value) {
                (Shape::List, Value::List(items)) => {
                    let mut twice = document.twice;
                    out.extend(items.into_iter().map(|n| (n, std::mem::take(&mut twice))));
                }
                (Shape::List, Value::Null) => {}
                (Shape::Object, value) => {
                    out.push((Node { value, pos: document.root.pos, written: document.root.written }, document.twice));
                }
                (Shape::List, value) => {
                    let node = Node { value, pos: document.root.pos, written: None };
                    let hint = "a first line like `--- # comment` is taken for the beginning of a list";
                    problems.hinted(
                        Class::Shape,
                        node.pos,
                        "",
                        format!("expected a list of objects, found {}", node.found()),
                        Some(hint.into()),
                    );
                }
            },
        }
    }
    out
}

/// Sorts an object out: whose it is, and whether it is right.
fn object(file: usize, mut node: Node, twice: &Twice, loaded: &mut Loaded, objects: &mut Vec<Object>, windows: &mut Vec<Windows>) {
    let name = loaded.files[file].name.clone();
    let mut problems = Problems::new(&name);
    let version = node.get("apiVersion").and_then(Node::text).unwrap_or_default().to_owned();
    let said = |loaded: &mut Loaded, what: String| loaded.files[file].objects.push(what);
    let is_short = short::is_short(&node);
    for (key, again, first) in twice {
        let message = format!("the key `{key}` stands twice; first in line {}", first.line);
        if is_short || version.starts_with("sloth.") {
            problems.error(Class::Shape, *again, key, message);
        } else {
            // OpenSLO's SDK takes the last one without a word.
            problems.warning(Class::Shape, *again, key, format!("{message}; this one holds"));
        }
    }
    if is_short {
        said(loaded, "short form".into());
        objects.push(Object { file, node, what: What::Short });
    } else if version.starts_with("sloth.slok.dev/") && node.get("kind").and_then(Node::text) == Some("AlertWindows") {
        problems.object = "AlertWindows".into();
        said(loaded, format!("{version} AlertWindows"));
        read(&mut node, &Ty::Object(&tables::ALERT_WINDOWS), "", Manner::Ours, &mut problems);
        if !problems.refused()
            && let Some(found) = alerting::windows(&node, &mut problems)
        {
            if windows.iter().any(|w| w.period_s == found.period_s) {
                problems.error(Class::Meaning, node.pos, "spec.sloPeriod", "there are alert windows for this period already");
            }
            windows.push(found);
        }
    } else if node.get("version").and_then(Node::text).is_some_and(|v| v.starts_with("prometheus/")) && version.is_empty() {
        let pos = node.get("version").map_or(node.pos, |n| n.pos);
        problems.error(
            Class::Shape,
            pos,
            "version",
            "this is a specification of Sloth, not of OpenSLO: Sloth computes it from Prometheus metrics",
        );
    } else if node.value == Value::Null {
        problems.error(Class::Shape, node.pos, "", "a document without an object: nothing but comments");
    } else if let Some(near) = lost_short(&node) {
        problems.hinted(
            Class::Shape,
            near.0,
            "",
            format!("unknown key `{}`", near.1),
            Some("did you mean `slos`, or is `apiVersion` missing?".into()),
        );
    } else if let Some(known) = openslo::check(&mut node, &mut problems) {
        let api = match known.version {
            Version::V1 => "openslo/v1",
            Version::V1Alpha => "openslo/v1alpha",
            Version::V2Alpha => "openslo.com/v2alpha",
        };
        said(loaded, format!("{api} {}", problems.object));
        if !problems.refused() {
            objects.push(Object { file, node, what: What::OpenSlo(known) });
        }
    }
    loaded.problems.append(&mut problems.list);
}

/// A map with neither `apiVersion` nor `kind` whose key is near `slos`.
fn lost_short(node: &Node) -> Option<(Pos, String)> {
    if node.entries().len() != 1 || node.get("apiVersion").is_some() {
        return None;
    }
    let entry = node.entries().first()?;
    shape::nearest(&entry.key, ["slos"]).map(|_| (entry.key_pos, entry.key.clone()))
}

#[cfg(test)]
mod tests;
