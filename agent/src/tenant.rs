//! `tenant`: which header fields of requests say who asks, and the key that makes hashes of what they say.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::tenant::{Hasher, Key, MAX_FIELDS, MIN_KEY, Tenant, Tenants};

use crate::clock::now;

/// Most bytes of a key.
const MAX_KEY: u64 = 4_096;

/// How often the file of the key is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// `tenant` of the configuration: who asks, as a keyed hash. Without it nobody is named.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Header fields that name the tenant, the first that a request has counts: e.g. `x-tenant-id`, `openai-organization`, `openai-project`, `x-api-key`, `authorization` (of
    /// which the token counts, of AWS' signatures the id of the access key).
    pub headers: Vec<String>,
    /// A file with the key of the hash (HMAC-SHA256), 16 bytes or more, line ends aside; who has it can try out names. A changed file holds from two
    /// seconds later on, and gives every tenant another hash.
    pub key_file: PathBuf,
    /// Whether tenants are an attribute of metrics as well (`tokengauge.tenant`), as many as `metrics.values` allows, the others as `_OTHER`.
    #[serde(default)]
    pub metrics: bool,
}

impl Config {
    /// Whether the fields make sense; the key below `tenant`, and what is wrong. The file is not looked at.
    ///
    /// # Errors
    /// When there is no field, too many, or one that no header has.
    pub fn check(&self) -> Result<(), (String, String)> {
        headers(&self.headers).map_err(|(n, what)| (n.map_or("headers".to_owned(), |n| format!("headers[{n}]")), what))
    }
}

/// Whether these can be names of header fields; which is not, and why.
fn headers(all: &[String]) -> Result<(), (Option<usize>, String)> {
    if all.is_empty() || all.len() > MAX_FIELDS {
        return Err((None, format!("has {} header fields, expected 1 to {MAX_FIELDS}", all.len())));
    }
    // RFC 9110 §5.6.2.
    let token = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
    match all.iter().position(|name| !token(name)) {
        Some(n) => Err((Some(n), format!("`{}` cannot be the name of a header field", all[n]))),
        None => Ok(()),
    }
}

/// Why tenants cannot be named.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KeyError(String);

/// Those whom the fields `headers` name, hashed with the key in a file; and the file, to be looked at from time to time.
///
/// # Errors
/// When a field cannot be one, or the file holds no key.
pub fn open(fields: &[String], file: &Path) -> Result<(Arc<Tenants>, KeyFile), KeyError> {
    headers(fields).map_err(|(_, what)| KeyError(what))?;
    let key = read(file)?;
    let current = Arc::new(Current(RwLock::new(key)));
    let tenants = Tenants::new(fields.iter().map(String::as_str), Box::new(Shared(Arc::clone(&current))));
    Ok((Arc::new(tenants), KeyFile { path: file.to_owned(), current, looked: now(), trouble: Trouble::default() }))
}

fn read(path: &Path) -> Result<Key, KeyError> {
    let wrong = |what: String| KeyError(format!("{}: {what}", path.display()));
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| wrong(e.to_string()))?;
    file.take(MAX_KEY + 1).read_to_end(&mut bytes).map_err(|e| wrong(e.to_string()))?;
    if bytes.len() as u64 > MAX_KEY {
        return Err(wrong(format!("is longer than {MAX_KEY} bytes: that is no key")));
    }
    let end = bytes.iter().rposition(|b| !matches!(b, b'\r' | b'\n')).map_or(0, |n| n + 1);
    bytes.truncate(end);
    Key::new(&bytes).ok_or_else(|| wrong(format!("holds {end} bytes, a key needs at least {MIN_KEY}")))
}

/// The key that counts now.
#[derive(Debug)]
struct Current(RwLock<Key>);

impl Current {
    fn hash(&self, name: &[u8]) -> Tenant {
        self.0.read().unwrap_or_else(PoisonError::into_inner).hash(name)
    }
}

#[derive(Debug)]
struct Shared(Arc<Current>);

impl Hasher for Shared {
    fn hash(&self, name: &[u8]) -> Tenant {
        self.0.hash(name)
    }
}

/// What is wrong with the file of the key, if anything is: then the key that was read last counts.
pub type Trouble = Arc<Mutex<Option<String>>>;

/// The file of a key.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    current: Arc<Current>,
    looked: Instant,
    trouble: Trouble,
}

impl KeyFile {
    /// What is wrong with it, for others to read.
    pub fn trouble(&self) -> Trouble {
        Arc::clone(&self.trouble)
    }

    /// Looks at it when it is time to.
    pub fn tick(&mut self) {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.look();
        }
    }

    fn look(&mut self) {
        self.looked = now();
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match read(&self.path) {
            Ok(key) => {
                *trouble = None;
                // Keys are not compared, what they make of a name is.
                if key.hash(b"") != self.current.hash(b"") {
                    *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = key;
                    tracing::info!("the key of tenants has changed: each has another hash from now on");
                }
            }
            Err(KeyError(what)) => {
                if trouble.as_ref() != Some(&what) {
                    tracing::error!("{what}; the key of tenants stays what it was");
                }
                *trouble = Some(what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_a_key_or_it_is_said_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let fields = ["x-tenant-id".to_owned()];
        let opened = || open(&fields, &path).map(|(tenants, _)| tenants.tenant(b"x-tenant-id", b"acme").unwrap());
        assert!(opened().unwrap_err().to_string().ends_with("No such file or directory (os error 2)"));
        for (bytes, want) in [
            (b"fifteen bytes..\n".to_vec(), "key: holds 15 bytes, a key needs at least 16"),
            (Vec::new(), "key: holds 0 bytes, a key needs at least 16"),
            (vec![b'x'; 5_000], "key: is longer than 4096 bytes: that is no key"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let said = opened().unwrap_err().to_string();
            assert!(said.ends_with(want), "{said}");
        }
        std::fs::write(&path, "0123456789abcdef\r\n").unwrap();
        assert_eq!(opened().unwrap().as_str(), "42dd7a21e34198f4");
        std::fs::write(&path, "0123456789abcdef").unwrap();
        assert_eq!(opened().unwrap().as_str(), "42dd7a21e34198f4");
    }

    #[test]
    fn a_changed_key_counts_and_a_broken_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "0123456789abcdef").unwrap();
        let (tenants, mut file) = open(&["x-tenant-id".to_owned()], &path).unwrap();
        let trouble = file.trouble();
        let said = || trouble.lock().unwrap().clone();
        let acme = || tenants.tenant(b"x-tenant-id", b"acme").unwrap();
        let first = acme();
        std::fs::write(&path, "short").unwrap();
        file.look();
        assert_eq!(acme(), first);
        assert!(said().unwrap().ends_with("holds 5 bytes, a key needs at least 16"));
        std::fs::write(&path, "another key, long enough").unwrap();
        file.tick();
        assert_eq!(acme(), first, "not before its time");
        file.look();
        assert_ne!(acme(), first);
        assert_eq!(said(), None);
    }

    #[test]
    fn fields_that_cannot_be_are_refused() {
        let config =
            |fields: &[&str]| Config { headers: fields.iter().map(|f| (*f).to_owned()).collect(), key_file: "key".into(), metrics: false };
        assert_eq!(config(&["x-tenant-id", "authorization"]).check(), Ok(()));
        for (fields, key, what) in [
            (&[][..], "headers", "has 0 header fields, expected 1 to 16"),
            (&["a"; 17], "headers", "has 17 header fields, expected 1 to 16"),
            (&["a", "x tenant"], "headers[1]", "`x tenant` cannot be the name of a header field"),
            (&[":path"], "headers[0]", "`:path` cannot be the name of a header field"),
            (&[""], "headers[0]", "`` cannot be the name of a header field"),
        ] {
            assert_eq!(config(fields).check(), Err((key.into(), what.into())));
        }
    }
}
