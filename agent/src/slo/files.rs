//! SLO files from the disk: files as they are named, folders with everything in them that can be one.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use tokengauge_slo::spec::{Loaded, Options, load_with};
use tokengauge_slo::yaml::MAX_BYTES;

/// Deepest folder below a named one.
const MAX_DEPTH: usize = 16;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct InputError {
    path: String,
    error: std::io::Error,
}

/// Files and their bytes.
#[derive(Debug, Default)]
pub struct Input {
    /// Names, as they are shown, and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// Whether a folder was among what was named: then everything is supposed to be there.
    pub folder: bool,
}

impl Input {
    /// Reads files, folders (`*.yaml`, `*.yml`, `*.json`, also below, nothing hidden) and `-`, standard input.
    pub fn read(paths: &[PathBuf]) -> Result<Self, InputError> {
        let mut input = Self::default();
        for path in paths {
            if path.as_os_str() == "-" {
                let bytes = bounded(path, std::io::stdin().lock())?;
                input.files.push(("<stdin>".into(), bytes));
            } else if path.is_dir() {
                input.folder = true;
                input.walk(path, 0)?;
            } else {
                input.file(path)?;
            }
        }
        Ok(input)
    }

    /// Loads them. References must be resolved in a folder, or where that is asked for.
    pub fn load(&self, strict_refs: bool) -> Loaded {
        load_with(&self.files, Options { strict_refs: strict_refs || self.folder })
    }

    fn file(&mut self, path: &Path) -> Result<(), InputError> {
        let file = std::fs::File::open(path).map_err(|error| InputError { path: path.display().to_string(), error })?;
        let bytes = bounded(path, file)?;
        self.files.push((path.display().to_string(), bytes));
        Ok(())
    }

    fn walk(&mut self, folder: &Path, depth: usize) -> Result<(), InputError> {
        let wrong = |error| InputError { path: folder.display().to_string(), error };
        let entries = std::fs::read_dir(folder).map_err(wrong)?.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let mut paths: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
        paths.sort();
        for path in paths {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if name.starts_with('.') {
                continue;
            }
            if path.is_dir() && depth < MAX_DEPTH {
                self.walk(&path, depth + 1)?;
            } else if [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end)) && path.is_file() {
                self.file(&path)?;
            }
        }
        Ok(())
    }
}

/// A file's bytes, as many as are looked at: the reader says that it is too long.
fn bounded(path: &Path, file: impl std::io::Read) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| InputError { path: path.display().to_string(), error })?;
    Ok(bytes)
}
