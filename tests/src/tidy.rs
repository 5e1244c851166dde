//! House rules that the compiler cannot hold: the invariants of ARCHITECTURE.md, by reading sources and manifests. Each rule carries
//! a sample that breaks it, so that no rule can rot into one that finds nothing.

use std::collections::BTreeMap;
use std::path::Path;

/// Paths, relative to the root, and texts.
pub type Tree = BTreeMap<String, String>;

/// One rule.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What breaks it: complaints, one for each place.
    pub check: fn(&Tree) -> Vec<String>,
    /// A tree of one file that breaks it.
    pub bad: (&'static str, &'static str),
}

/// Every rule, in the order of the invariants.
pub const RULES: [Rule; 18] = [
    Rule {
        name: "1: the core depends on nothing that touches the world",
        check: core_manifest,
        bad: ("agent/core/Cargo.toml", "[dependencies]\ntokio = \"1\"\n"),
    },
    Rule {
        name: "1: the core has no clock, no I/O, no async, no threads",
        check: core_world,
        bad: ("agent/core/src/x.rs", "use std::time::Instant;"),
    },
    Rule { name: "1: the core forbids unsafe code", check: core_unsafe, bad: ("agent/core/src/lib.rs", "//! No attribute.") },
    Rule { name: "2: the kernel side parses no protocol", check: kernel_parses, bad: ("ebpf/src/x.rs", "fn http_head() {}") },
    Rule { name: "3: a tap knows no HTTP", check: taps, bad: ("agent/src/tap/x.rs", "use tokengauge_core::http::head;") },
    Rule {
        name: "3: packets and framers know no LLM",
        check: framers,
        bad: ("agent/core/src/framing/x.rs", "use crate::dialect::Reader;"),
    },
    Rule { name: "3: a dialect knows no time", check: dialects, bad: ("agent/core/src/dialect/x.rs", "fn f(at: Timestamp) {}") },
    Rule {
        name: "3: an exporter knows no timeline",
        check: exporters,
        bad: ("agent/src/export/x.rs", "use tokengauge_core::timeline::Timeline;"),
    },
    Rule {
        name: "6: a record has no field for text",
        check: record_text,
        bad: ("agent/core/src/inference.rs", "pub struct Inference {\n    pub prompt: Option<String>,\n}"),
    },
    Rule {
        name: "6: what leaves a reader has no field for text",
        check: event_text,
        bad: ("agent/core/src/dialect/mod.rs", "pub enum LlmEvent {\n    Delta { text: String },\n}"),
    },
    Rule {
        name: "8: core types are not Serialize",
        check: serialize,
        bad: ("agent/core/src/x.rs", "#[derive(Clone, Serialize)]\nstruct X;"),
    },
    Rule { name: "9: anyhow in main only", check: one_error_type, bad: ("agent/src/run.rs", "use anyhow::Result;") },
    Rule {
        name: "names of the conventions and our own stand in semconv",
        check: names,
        bad: ("agent/src/x.rs", "const X: &str = \"gen_ai.system\";"),
    },
    Rule {
        name: "every dialect has a flow",
        check: flows_exist,
        bad: ("agent/core/src/dialect/x.rs", "&About {\n            api: \"x.chat\",\n"),
    },
    Rule { name: "every flow has what it measures to, and the reverse", check: flows_paired, bad: ("tests/fixtures/x/a.flow", "") },
    Rule { name: "nothing is left undone", check: undone, bad: ("agent/src/x.rs", concat!("fn f() { to", "do!() }")) },
    Rule { name: "files stay under 450 lines without their tests", check: sizes, bad: ("agent/src/x.rs", LONG) },
    Rule { name: "the top of the tree holds what belongs there", check: top, bad: ("notes/x.txt", "") },
];

/// What the core may depend on: none of it does I/O.
const PURE: [&str; 11] = [
    "serde",
    "serde_json",
    "memchr",
    "flate2",
    "brotli-decompressor",
    "zstd-safe",
    "crc32fast",
    "base64",
    "ring",
    "rustc-hash",
    "thiserror",
];

/// Files that may be longer, and why.
const LONG_FILES: [(&str, &str); 3] = [
    (
        "agent/core/src/dialect/openai.rs",
        "adding a dialect is one file: its wire structs, with one line for each server's peculiarity, are in it",
    ),
    ("agent/core/src/http/h2/session.rs", "what each frame does to a stream, to the connection and to what is lost is one state machine"),
    ("agent/core/src/tcp/conn.rs", "what a hole is and when it is given up is one state machine"),
];

/// Most lines of a file.
const MAX_LINES: usize = 450;

/// What stands at the top.
const TOP: [&str; 12] = [
    "Cargo.toml",
    "Cargo.lock",
    "agent",
    "ebpf",
    "collector-config",
    "tests",
    "helm",
    "README.md",
    "ARCHITECTURE.md",
    "Makefile",
    "LICENSE",
    "clippy.toml",
];

const LONG: &str = {
    const LINES: [u8; 460] = [b'\n'; 460];
    match std::str::from_utf8(&LINES) {
        Ok(text) => text,
        Err(_) => "",
    }
};

/// Reads the repository: every text file that belongs to it.
pub fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    walk(root, root, &mut tree);
    tree
}

fn walk(root: &Path, dir: &Path, tree: &mut Tree) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            // What tools leave behind, and what is no text.
            if !matches!(name.as_str(), "target" | ".git" | "node_modules" | "corpus" | "artifacts" | "__pycache__" | ".venv") {
                walk(root, &path, tree);
            }
        } else {
            let relative = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            tree.insert(relative, std::fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// A Rust file without its tests, comments and, where `literals` is false, without what stands in string literals.
fn code(text: &str, literals: bool) -> String {
    let mut out = String::new();
    let mut test = false;
    for line in text.lines() {
        // Tests come last; a `mod tests;` of its own file ends nothing.
        test |= line.starts_with("mod tests {") || line.starts_with("#[cfg(test)]\nmod tests {");
        if test {
            break;
        }
        let (mut quoted, mut escaped, mut last) = (false, false, ' ');
        for c in line.chars() {
            if quoted {
                let end = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                if end || literals {
                    out.push(c);
                }
                quoted = !end;
            } else if c == '/' && last == '/' {
                out.pop();
                break;
            } else {
                // A quote in a character literal opens nothing.
                quoted = c == '"' && last != '\'' && last != '\\';
                out.push(c);
            }
            last = c;
        }
        out.push('\n');
    }
    out
}

/// Whether `word` stands in `text` with nothing of a name on either side.
fn has(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let (first, last) = (word.chars().next().is_some_and(part), word.chars().last().is_some_and(part));
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(part);
        let behind = text[at + word.len()..].chars().next().is_some_and(part);
        !(first && before || last && behind)
    })
}

/// Complaints about `words` in the code of the Rust files below `folder`.
fn forbid(tree: &Tree, folder: &str, words: &[&str]) -> Vec<String> {
    let files = tree.iter().filter(|(path, _)| path.starts_with(folder) && path.ends_with(".rs") && !path.ends_with("/tests.rs"));
    let found = |(path, text): (&String, &String)| {
        let code = code(text, false);
        words.iter().filter(|w| has(&code, w)).map(|w| format!("{path}: {w}")).collect::<Vec<_>>()
    };
    files.flat_map(found).collect()
}

fn core_manifest(tree: &Tree) -> Vec<String> {
    let Some(text) = tree.get("agent/core/Cargo.toml") else { return Vec::new() };
    let section = text.split("\n[").map(|s| s.trim_start_matches('[')).find(|s| s.starts_with("dependencies]"));
    let lines = section.unwrap_or_default().lines().skip(1).map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let crates = lines.map(|l| l.split([' ', '=', '.']).next().unwrap_or_default());
    let mut bad: Vec<String> = crates.filter(|c| !PURE.contains(c)).map(|c| format!("agent/core/Cargo.toml: {c}")).collect();
    if text.contains("[target.") || text.contains("build-dependencies") {
        bad.push("agent/core/Cargo.toml: dependencies elsewhere".into());
    }
    bad
}

fn core_world(tree: &Tree) -> Vec<String> {
    let words = [
        "Instant",
        "SystemTime",
        "std::fs",
        "std::process",
        "std::thread",
        "std::env",
        "std::io",
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "async",
        "await",
        "unsafe",
        "println!",
        "eprintln!",
        "thread_local!",
        "static mut",
        "extern",
    ];
    forbid(tree, "agent/core/src/", &words)
}

fn core_unsafe(tree: &Tree) -> Vec<String> {
    let Some(lib) = tree.get("agent/core/src/lib.rs") else { return Vec::new() };
    let holds = lib.lines().any(|l| l == "#![forbid(unsafe_code)]");
    if holds { Vec::new() } else { vec!["agent/core/src/lib.rs: no forbid(unsafe_code)".into()] }
}

fn kernel_parses(tree: &Tree) -> Vec<String> {
    let files = tree.iter().filter(|(path, _)| path.starts_with("ebpf/src/"));
    let found = |(path, text): (&String, &String)| {
        let code = code(text, true).to_lowercase();
        ["http", "json", "sse", "post "]
            .into_iter()
            .filter(|w| code.contains(w) && (*w != "sse" || has(&code, w)))
            .map(|w| format!("{path}: {w}"))
            .collect::<Vec<_>>()
    };
    files.flat_map(found).collect()
}

fn taps(tree: &Tree) -> Vec<String> {
    forbid(tree, "agent/src/tap/", &["http", "dialect", "framing", "Inference", "timeline"])
}

fn framers(tree: &Tree) -> Vec<String> {
    let words = ["dialect", "LlmEvent", "timeline", "Timeline"];
    ["framing/", "http/", "tcp/", "ws/", "stream.rs"].iter().flat_map(|f| forbid(tree, &format!("agent/core/src/{f}"), &words)).collect()
}

fn dialects(tree: &Tree) -> Vec<String> {
    forbid(tree, "agent/core/src/dialect/", &["Timestamp", "timeline", "Timeline", "Duration", "stream::", "SocketAddr", "ConnId"])
}

fn exporters(tree: &Tree) -> Vec<String> {
    ["export/", "view/"]
        .iter()
        .flat_map(|f| forbid(tree, &format!("agent/src/{f}"), &["timeline", "Timeline", "pipeline", "http::head"]))
        .collect()
}

/// Complaints about types that can hold text, between `from` and the end of that item.
fn texts(path: &str, item: &str) -> Vec<String> {
    ["String", "Box<str>", "Vec<u8>", "Cow", "Value", "Text"]
        .into_iter()
        .filter(|t| item.lines().any(|l| l.contains(": ") && has(l.split_once(": ").map_or("", |(_, ty)| ty), t)))
        .map(|t| format!("{path}: {t}"))
        .collect()
}

fn record_text(tree: &Tree) -> Vec<String> {
    ["agent/core/src/inference.rs", "agent/core/src/timeline.rs", "agent/core/src/stats/snapshot.rs"]
        .into_iter()
        .filter_map(|path| tree.get(path).map(|text| (path, code(text, false))))
        .flat_map(|(path, code)| {
            // Fields only: lines of a struct, not of a function.
            let fields: String = code
                .lines()
                .filter(|l| l.starts_with("    ") && !l.starts_with("     ") && !l.contains("fn ") && !l.contains("let "))
                .collect::<Vec<_>>()
                .join("\n");
            texts(path, &fields)
        })
        .collect()
}

fn event_text(tree: &Tree) -> Vec<String> {
    let path = "agent/core/src/dialect/mod.rs";
    let Some(text) = tree.get(path) else { return Vec::new() };
    let code = code(text, false);
    let item = code.split("pub enum LlmEvent").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap_or_default().to_owned();
    texts(path, &item)
}

fn serialize(tree: &Tree) -> Vec<String> {
    forbid(tree, "agent/core/src/", &["Serialize"])
}

fn one_error_type(tree: &Tree) -> Vec<String> {
    let mut bad = forbid(tree, "", &["anyhow"]);
    bad.retain(|b| !b.starts_with("agent/src/main.rs:") && !b.starts_with("tests/fuzz/"));
    bad
}

fn names(tree: &Tree) -> Vec<String> {
    let ours = |path: &str| {
        (path.starts_with("agent/src/") || path.starts_with("agent/core/src/") || path.starts_with("ebpf/")) && path.ends_with(".rs")
    };
    let files = tree.iter().filter(|(path, _)| ours(path) && !path.starts_with("agent/core/src/semconv"));
    let found = |(path, text): (&String, &String)| {
        let code = code(text, true);
        // A name, not a file: `tokengauge.` and a lower-case word.
        ["\"gen_ai.", "\"tokengauge."]
            .into_iter()
            .flat_map(|prefix| {
                code.match_indices(prefix).map(|(at, _)| code[at..].split('"').nth(1).unwrap_or_default().to_owned()).collect::<Vec<_>>()
            })
            .filter(|name| !name.ends_with(".o") && !name.ends_with(".yaml") && !name.ends_with(".toml"))
            .map(|name| format!("{path}: {name}"))
            .collect::<Vec<_>>()
    };
    files.flat_map(found).collect()
}

fn flows_exist(tree: &Tree) -> Vec<String> {
    let files = tree.iter().filter(|(path, _)| path.starts_with("agent/core/src/dialect/"));
    let apis = files.flat_map(|(_, text)| {
        let code = code(text, true);
        code.split("api: \"").skip(1).filter_map(|rest| rest.split('"').next().map(str::to_owned)).collect::<Vec<_>>()
    });
    let has_flow = |api: &str| tree.keys().any(|p| p.starts_with(&format!("tests/fixtures/{api}/")) && p.ends_with(".flow"));
    apis.filter(|api| !has_flow(api)).map(|api| format!("{api}: no tests/fixtures/{api}/*.flow")).collect()
}

fn flows_paired(tree: &Tree) -> Vec<String> {
    let fixtures = tree.keys().filter(|p| p.starts_with("tests/fixtures/"));
    let other =
        |p: &str| p.strip_suffix(".flow").map(|s| format!("{s}.expect")).or_else(|| p.strip_suffix(".expect").map(|s| format!("{s}.flow")));
    fixtures.filter_map(|p| other(p).filter(|o| !tree.contains_key(o)).map(|o| format!("{p}: no {o}"))).collect()
}

/// A test that another test starts as its child process is not left out.
const CHILD: &str = concat!("#[ig", "nore = \"started by");

fn undone(tree: &Tree) -> Vec<String> {
    let words = [
        concat!("to", "do!"),
        concat!("unimple", "mented!"),
        concat!("#[ig", "nore"),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ];
    let kinds = [".rs", ".toml", ".sh", ".py", ".yaml", ".c", ".md", ".mjs", "Makefile"];
    let files = tree.iter().filter(|(path, _)| kinds.iter().any(|k| path.ends_with(k)));
    files
        .flat_map(|(path, text)| {
            words.iter().filter(|w| has(&text.replace(CHILD, ""), w)).map(|w| format!("{path}: {w}")).collect::<Vec<_>>()
        })
        .collect()
}

fn sizes(tree: &Tree) -> Vec<String> {
    let is_ours =
        |path: &str| path.ends_with(".rs") && !path.ends_with("/tests.rs") && (path.contains("/src/") || path.starts_with("ebpf/"));
    let files = tree.iter().filter(|(path, _)| is_ours(path) && !path.starts_with("tests/"));
    files
        .filter_map(|(path, text)| {
            let lines = text.lines().take_while(|l| !l.starts_with("mod tests {")).count();
            let excused = LONG_FILES.iter().any(|(name, _)| name == path);
            match (lines > MAX_LINES, excused) {
                (true, false) => Some(format!("{path}: {lines} lines")),
                (false, true) => Some(format!("{path}: {lines} lines, no exception needed")),
                _ => None,
            }
        })
        .collect()
}

fn top(tree: &Tree) -> Vec<String> {
    let mut entries: Vec<&str> = tree.keys().map(|p| p.split('/').next().unwrap_or(p)).collect();
    entries.dedup();
    entries.into_iter().filter(|e| !TOP.contains(e) && !e.starts_with('.')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_without_comments_literals_and_tests() {
        let text =
            "//! http\nlet a = \"http // x\"; // http\nlet q = '\"'; let b = \"z\\\"http\";\n#[cfg(test)]\nmod tests {\n    http\n}\n";
        assert_eq!(code(text, false), "\nlet a = \"\"; \nlet q = '\"'; let b = \"\";\n#[cfg(test)]\n");
        assert!(code(text, true).contains("http // x"));
        assert!(has("use x::Serialize;", "Serialize") && !has("use x::Deserialize;", "Serialize") && !has("Serializer", "Serialize"));
    }
}
