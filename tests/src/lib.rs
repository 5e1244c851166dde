//! Shared pieces of the tests that cross packages: the `.flow` format, what it measures to, and what may be said after a loss.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a library of tests: a broken fixture must stop the test")]

pub mod carry;
pub mod figures;
pub mod flow;
pub mod h2;
pub mod protobuf;
pub mod recordings;
pub mod tidy;
pub mod wire_ws;

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Every file below `dir` whose name ends with `suffix`, in order of path.
pub fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return found };
    for path in entries.map(|e| e.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, suffix));
        } else if path.to_string_lossy().ends_with(suffix) {
            found.push(path);
        }
    }
    found.sort();
    found
}
