//! SLO files from the disk: files as they are named, folders with everything in them that can be one.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokengauge_slo::spec::{Loaded, Options, load_with};
use tokengauge_slo::yaml::MAX_BYTES;

/// Deepest folder below a named one.
const MAX_DEPTH: usize = 16;
/// Most files and folders that are watched for changes.
const MAX_WATCHED: usize = 10_000;

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

    /// As [`Input::read`]; it is an error when there is nothing.
    pub fn some(paths: &[PathBuf]) -> Result<Self, super::SloError> {
        let input = Self::read(paths)?;
        if input.files.is_empty() { Err(super::SloError::Nothing) } else { Ok(input) }
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
        for path in entries(folder).map_err(|error| InputError { path: folder.display().to_string(), error })? {
            if path.is_dir() && depth < MAX_DEPTH {
                self.walk(&path, depth + 1)?;
            } else if path.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e == *known)) && path.is_file() {
                self.file(&path)?;
            }
        }
        Ok(())
    }
}

/// What is in a folder, sorted; nothing hidden.
fn entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let hidden = |path: &Path| path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
    let all = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let mut paths: Vec<_> = all.into_iter().filter(|path| !hidden(path)).collect();
    paths.sort();
    Ok(paths)
}

/// What tells that a file has changed: name, length, time and inode.
pub type Fingerprint = (String, u64, Option<SystemTime>, u64);

/// Of everything that [`Input::read`] may read, through links: a ConfigMap is changed by turning a link.
pub fn fingerprints(paths: &[PathBuf]) -> Vec<Fingerprint> {
    let mut all = Vec::new();
    let mut left: Vec<(PathBuf, usize)> = paths.iter().map(|p| (p.clone(), 0)).collect();
    while let Some((path, depth)) = left.pop() {
        let Ok(meta) = std::fs::metadata(&path) else {
            all.push((path.display().to_string(), 0, None, 0));
            continue;
        };
        all.push((path.display().to_string(), meta.len(), meta.modified().ok(), meta.ino()));
        if meta.is_dir() && depth < MAX_DEPTH && all.len() < MAX_WATCHED {
            left.extend(entries(&path).unwrap_or_default().into_iter().map(|p| (p, depth + 1)));
        }
    }
    all.sort();
    all
}

/// A file's bytes, as many as are looked at: the reader says that it is too long.
fn bounded(path: &Path, file: impl std::io::Read) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| InputError { path: path.display().to_string(), error })?;
    Ok(bytes)
}
