//! SLO files of teams: ConfigMaps with a label, in any namespace, kept as files in a folder that the engine reads like every other.
//!
//! A file on disk and not a message: the engine sees one kind of source, and what was in force stays so while the API server is away and over a
//! restart. ConfigMaps are listed every half minute, from the API server's cache; they change seldom, and a watch of each node would be one more
//! connection to it. One team cannot break another's objectives: a ConfigMap that is wrong by itself or clashes with one before it (by namespace
//! and name) is left as it was, said in the log and counted among the broken files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokengauge_slo::spec::ours::alerting::PREFIX;
use tokengauge_slo::spec::{Level, Options, load_with};

use super::files::Input;
use crate::enrich::kubernetes::api::{Api, connect};

/// `slo.config_maps`.
#[derive(Deserialize, schemars::JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which ConfigMaps: a label selector. Keys that end in `.yaml`, `.yml` or `.json` are files.
    pub selector: String,
    /// Only these namespaces; none: all, which the service account must be allowed to list.
    pub namespaces: Vec<String>,
    /// Where they are kept; what else is in it is removed.
    pub directory: PathBuf,
    /// Seconds between two looks.
    pub every_s: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            selector: format!("{PREFIX}slo=true"),
            namespaces: Vec::new(),
            directory: PathBuf::from("/var/lib/tokengauge/slo-configmaps"),
            every_s: 30.0,
        }
    }
}

impl Config {
    /// What is wrong with a value, and its key.
    ///
    /// # Errors
    /// The key below `slo.config_maps`, and what is wrong there.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.selector.trim().is_empty() {
            return Err(("selector", "is empty: it would take every ConfigMap".into()));
        }
        if let Some(odd) = self.namespaces.iter().find(|n| !is_name(n)) {
            return Err(("namespaces", format!("`{odd}` is no name of a namespace")));
        }
        if !(1.0..=86_400.0).contains(&self.every_s) {
            return Err(("every_s", format!("{} is not between 1 and 86400", self.every_s)));
        }
        Ok(())
    }

    fn paths(&self) -> Vec<String> {
        // Version 0: from the API server's memory, however old by seconds.
        let query = format!("configmaps?resourceVersion=0&labelSelector={}", encoded(&self.selector));
        match self.namespaces.as_slice() {
            [] => vec![format!("/api/v1/{query}")],
            some => some.iter().map(|n| format!("/api/v1/namespaces/{n}/{query}")).collect(),
        }
    }
}

/// Most ConfigMaps, and most bytes of one: what the API server allows (1 MiB) with room for JSON's escapes.
const MAX_MAPS: usize = 1_000;
const MAX_BYTES: usize = 1 << 20;

/// `v1.ConfigMapList`, as far as it is read.
#[derive(Deserialize, Default)]
#[serde(default)]
struct List {
    items: Vec<ConfigMap>,
}

/// `v1.ConfigMap`, as far as it is read.
#[derive(Deserialize, Default, Clone)]
#[serde(default)]
struct ConfigMap {
    metadata: Metadata,
    data: BTreeMap<String, String>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
}

/// The files of one ConfigMap, by key; ConfigMaps by namespace and name.
type Keys = BTreeMap<String, String>;
type Maps = BTreeMap<(String, String), Keys>;

/// What is wrong now with what teams wrote, or with asking for it.
pub type Troubles = Arc<Mutex<Vec<String>>>;

/// Starts looking, for as long as the process lives. `own` are the agent's own files, which teams' may refer to and must not clash with.
pub fn start(config: &Config, own: &[PathBuf]) -> Troubles {
    let troubles = Troubles::default();
    let (config, own, theirs) = (config.clone(), own.to_vec(), Arc::clone(&troubles));
    if let Err(error) = std::fs::create_dir_all(&config.directory) {
        say(&troubles, vec![format!("{}: {error}", config.directory.display())]);
    }
    let thread = std::thread::Builder::new().name("slo-configmaps".into()).spawn(move || look(&config, &own, &theirs));
    if let Err(error) = thread {
        say(&troubles, vec![format!("no SLO files of ConfigMaps: the system gives no thread: {error}")]);
    }
    troubles
}

/// Replaces what is said to be wrong; the log has what is new.
fn say(troubles: &Troubles, now: Vec<String>) {
    let mut held = troubles.lock().unwrap_or_else(PoisonError::into_inner);
    now.iter().filter(|what| !held.contains(what)).for_each(|what| tracing::error!("{what}"));
    *held = now;
}

fn look(config: &Config, own: &[PathBuf], troubles: &Troubles) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return say(troubles, vec![format!("no SLO files of ConfigMaps: {error}")]),
    };
    let mut server = None;
    loop {
        match runtime.block_on(ask(config, &mut server)) {
            Ok(maps) => say(troubles, take(config, own, maps)),
            Err(what) => say(troubles, vec![format!("SLO files of ConfigMaps: {what}; those that are there stay in force")]),
        }
        std::thread::sleep(Duration::from_secs_f64(config.every_s));
    }
}

/// All ConfigMaps that are meant.
async fn ask(config: &Config, server: &mut Option<Api>) -> Result<Vec<ConfigMap>, String> {
    let server = match server {
        Some(server) => server,
        None => server.insert(connect().await?.0),
    };
    let mut maps = Vec::new();
    for path in config.paths() {
        let list: List = server.get(&path).await.map_err(|error| error.to_string())?;
        maps.extend(list.items);
    }
    Ok(maps)
}

/// Makes the folder what the ConfigMaps are, as far as they are right; what is wrong with the others.
fn take(config: &Config, own: &[PathBuf], maps: Vec<ConfigMap>) -> Vec<String> {
    let kept = kept(&config.directory);
    let own = Input::read(own).map(|input| input.files).unwrap_or_default();
    let (accepted, mut troubles) = accept(&own, maps, &kept);
    if let Err(error) = write(&config.directory, &kept, &accepted) {
        troubles.push(format!("{}: {error}", config.directory.display()));
    }
    troubles
}

/// What may be in force together: each ConfigMap as it is now, else as it was kept, else not at all.
fn accept(own: &[(String, Vec<u8>)], mut maps: Vec<ConfigMap>, kept: &Maps) -> (Maps, Vec<String>) {
    let mut troubles = Vec::new();
    maps.sort_by(|a, b| (&a.metadata.namespace, &a.metadata.name).cmp(&(&b.metadata.namespace, &b.metadata.name)));
    if maps.len() > MAX_MAPS {
        troubles.push(format!("{} ConfigMaps with SLO files: those behind the first {MAX_MAPS} are left out", maps.len()));
        maps.truncate(MAX_MAPS);
    }
    let (mut accepted, mut files) = (Maps::new(), own.to_vec());
    for map in maps {
        let id = (map.metadata.namespace, map.metadata.name);
        if !is_name(&id.0) || !is_name(&id.1) {
            troubles.push(format!("ConfigMap {}/{}: no name that can be a folder's", id.0, id.1));
            continue;
        }
        let wanted: Keys = map.data.into_iter().filter(|(key, _)| is_key(key)).collect();
        let last = kept.get(&id).filter(|last| **last != wanted);
        for (i, keys) in std::iter::once(&wanted).chain(last).enumerate() {
            let before = files.len();
            files.extend(keys.iter().map(|(key, text)| (format!("{}/{}/{key}", id.0, id.1), text.clone().into_bytes())));
            match wrong(&files, keys) {
                None => {
                    accepted.insert(id.clone(), keys.clone());
                    break;
                }
                Some(what) => {
                    files.truncate(before);
                    // Of what was kept nothing is said: it was right when it was taken.
                    if i == 0 {
                        let then = if last.is_some() { "what was read of it before stays in force" } else { "it is left out" };
                        troubles.push(format!("ConfigMap {}/{}: {what}; {then}", id.0, id.1));
                    }
                }
            }
        }
    }
    (accepted, troubles)
}

/// The first thing that is wrong with all of these together, the last of which are new.
fn wrong(files: &[(String, Vec<u8>)], new: &Keys) -> Option<String> {
    let bytes: usize = new.values().map(String::len).sum();
    if bytes > MAX_BYTES {
        return Some(format!("{bytes} bytes, at most {MAX_BYTES}"));
    }
    let loaded = load_with(files, Options { strict_refs: true });
    loaded.problems.iter().find(|p| p.level == Level::Error).map(ToString::to_string)
}

/// What the folder holds.
fn kept(directory: &Path) -> Maps {
    let mut maps = Maps::new();
    for (namespace, folder) in folders(directory) {
        for (name, folder) in folders(&folder) {
            let keys: Keys = names(&folder)
                .into_iter()
                .filter(|(key, path)| is_key(key) && path.is_file())
                .filter_map(|(key, path)| Some((key, std::fs::read_to_string(path).ok()?)))
                .collect();
            maps.insert((namespace.clone(), name), keys);
        }
    }
    maps
}

fn names(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect()
}

fn folders(folder: &Path) -> Vec<(String, PathBuf)> {
    names(folder).into_iter().filter(|(name, path)| is_name(name) && path.is_dir()).collect()
}

/// Makes the folder what was accepted. Each file is replaced whole; the engine looks a second or two later and reads all of them.
fn write(directory: &Path, kept: &Maps, accepted: &Maps) -> std::io::Result<()> {
    for (id @ (namespace, name), keys) in kept {
        let folder = directory.join(namespace).join(name);
        match accepted.get(id) {
            None => std::fs::remove_dir_all(&folder)?,
            Some(new) => {
                for key in keys.keys().filter(|key| !new.contains_key(*key)) {
                    std::fs::remove_file(folder.join(key))?;
                }
            }
        }
    }
    for (id @ (namespace, name), keys) in accepted {
        let folder = directory.join(namespace).join(name);
        std::fs::create_dir_all(&folder)?;
        for (key, text) in keys {
            if kept.get(id).and_then(|old| old.get(key)) != Some(text) {
                // Hidden until it is whole: what begins with a dot is not read.
                let new = folder.join(format!(".{key}"));
                std::fs::write(&new, text)?;
                std::fs::rename(&new, folder.join(key))?;
            }
        }
    }
    Ok(())
}

/// RFC 1123's names, as Kubernetes has them: no path leads out of the folder by one.
fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    !name.is_empty() && name.len() <= 253 && name.chars().all(good) && !name.starts_with(['-', '.'])
}

/// A key that is an SLO file.
fn is_key(key: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = [".yaml", ".yml", ".json"].iter().any(|end| key.ends_with(end));
    ends && key.len() <= 253 && !key.starts_with('.') && key.chars().all(good)
}

/// Percent-encoding of a query's value (RFC 3986 §2.1): everything but unreserved characters.
fn encoded(text: &str) -> String {
    let one = |b: u8| match b {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
        _ => format!("%{b:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(namespace: &str, name: &str, text: &str) -> ConfigMap {
        let data = BTreeMap::from([("slo.yaml".to_owned(), text.to_owned()), ("README.md".to_owned(), "no SLO".to_owned())]);
        ConfigMap { metadata: Metadata { name: name.into(), namespace: namespace.into() }, data }
    }

    fn slo(service: &str, target: &str) -> String {
        format!("slos: {{service: {service}, objectives: [availability >= {target}%]}}\n")
    }

    fn config(directory: &Path) -> Config {
        Config { directory: directory.to_owned(), ..Config::default() }
    }

    #[test]
    fn a_folder_becomes_what_configmaps_are() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        assert_eq!(
            take(&config, &[], vec![map("a", "one", &slo("chat", "99")), map("b", "two", &slo("search", "99"))]),
            Vec::<String>::new()
        );
        let file = dir.path().join("a/one/slo.yaml");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), slo("chat", "99"));
        assert!(!dir.path().join("a/one/README.md").exists());
        // Changed, and another one gone.
        assert_eq!(take(&config, &[], vec![map("a", "one", &slo("chat", "95"))]), Vec::<String>::new());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), slo("chat", "95"));
        assert!(!dir.path().join("b/two").exists());
        assert_eq!(Input::read(&[dir.path().to_owned()]).unwrap().load(true).slos.len(), 1);
    }

    #[test]
    fn one_team_does_not_break_another() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        take(&config, &[], vec![map("a", "one", &slo("chat", "99")), map("b", "two", &slo("search", "99"))]);
        // The first is broken now: it stays as it was, the second changes.
        let troubles =
            take(&config, &[], vec![map("a", "one", "slos: {service: x, objectvies: []}\n"), map("b", "two", &slo("search", "95"))]);
        assert_eq!(troubles.len(), 1);
        assert!(troubles[0].starts_with("ConfigMap a/one: a/one/slo.yaml:1:") && troubles[0].ends_with("stays in force"), "{troubles:?}");
        assert_eq!(std::fs::read_to_string(dir.path().join("a/one/slo.yaml")).unwrap(), slo("chat", "99"));
        assert_eq!(std::fs::read_to_string(dir.path().join("b/two/slo.yaml")).unwrap(), slo("search", "95"));
        // A third that claims a name of the first is left out, and the first is not asked to go.
        let troubles = take(&config, &[], vec![map("a", "one", &slo("chat", "99")), map("c", "three", &slo("chat", "90"))]);
        assert!(troubles[0].starts_with("ConfigMap c/three: ") && troubles[0].ends_with("it is left out"), "{troubles:?}");
        assert!(!dir.path().join("c").exists());
    }

    #[test]
    fn nothing_leads_out_of_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let troubles = take(&config, &[], vec![map("..", "one", &slo("chat", "99")), map("a", "../../b", &slo("search", "99"))]);
        assert_eq!((troubles.len(), names(dir.path()).len()), (2, 0));
        assert!(is_key("a_B-1.yaml") && !is_key(".a.yaml") && !is_key("a/b.yaml") && !is_key("a.txt"));
        let huge = format!("# {}\n{}", "x".repeat(MAX_BYTES), slo("rag", "99"));
        assert!(take(&config, &[], vec![map("a", "huge", &huge)])[0].contains("at most"));
    }

    #[test]
    fn requests_name_namespaces_and_labels() {
        let mut config = Config::default();
        assert_eq!(config.paths(), ["/api/v1/configmaps?resourceVersion=0&labelSelector=tokengauge.io%2Fslo%3Dtrue"]);
        config.namespaces = vec!["a".into(), "b".into()];
        assert_eq!(config.paths()[1], "/api/v1/namespaces/b/configmaps?resourceVersion=0&labelSelector=tokengauge.io%2Fslo%3Dtrue");
        assert!(config.check().is_ok());
        config.namespaces.push("a/b".into());
        assert_eq!(config.check().unwrap_err().0, "namespaces");
        assert_eq!(Config { selector: " ".into(), ..Config::default() }.check().unwrap_err().0, "selector");
    }

    #[test]
    fn configmaps_of_each_namespace_are_asked_for() {
        let url = crate::testing::server(|path| match path.split('/').nth(4) {
            Some("b") => (403, r#"{"kind":"Status","message":"configmaps is forbidden","code":403}"#.to_owned()),
            Some(namespace) => {
                let data = serde_json::json!({"slo.yaml": slo("chat", "99")});
                let map = serde_json::json!({"metadata": {"name": "one", "namespace": namespace}, "data": data});
                (200, serde_json::json!({"items": [map]}).to_string())
            }
            None => (404, "{}".to_owned()),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = |namespaces: &[&str]| {
            let config = Config { namespaces: namespaces.iter().map(|n| (*n).to_owned()).collect(), ..Config::default() };
            runtime.block_on(async {
                let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
                ask(&config, &mut Some(Api::new(kube::Config::new(url.parse().unwrap())).unwrap())).await
            })
        };
        let maps = asked(&["a", "c"]).unwrap();
        assert_eq!(maps.iter().map(|m| m.metadata.namespace.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(maps[0].data["slo.yaml"], slo("chat", "99"));
        assert_eq!(asked(&["a", "b"]).map(|_| ()), Err("403: configmaps is forbidden".to_owned()));
    }
}
