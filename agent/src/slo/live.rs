//! The engine in a running agent: requests from the export thread, files that may change, a journal, and how things stand.
//!
//! It is an exporter among others, so it has the export thread's time: a decision costs some hundred nanoseconds, and once a second
//! everything is evaluated, appended to the journal and published.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokengauge_core::inference::Inference;
use tokengauge_core::stats::Snapshot;
use tokengauge_slo::engine::Engine;
use tokengauge_slo::model::Slo;
use tokengauge_slo::request::Request;
use tokengauge_slo::series::Counters;
use tokengauge_slo::snapshot::{Told, encode};

use super::clock::{self, Clock};
use super::files::{Fingerprint, Input, fingerprints};
use super::journal::{Journal, JournalError, beside};
use super::teams;
use super::view::{Key, View, key, view};
use crate::export::{ExportError, Exporter};
use crate::vitals::EXPORT_QUEUE_FULL;

/// `slo` of the configuration.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Files, and folders with everything in them that ends in `.yaml`, `.yml` or `.json`.
    #[serde(default)]
    pub files: Vec<PathBuf>,
    /// In a pod: ConfigMaps with SLO files, in any namespace.
    #[serde(default)]
    pub config_maps: Option<teams::Config>,
    /// Where budgets survive a restart; the file for `slo status` stands beside it.
    #[serde(default = "default_journal")]
    pub journal: PathBuf,
}

/// The usual place of the journal.
pub fn default_journal() -> PathBuf {
    PathBuf::from("/var/lib/tokengauge/slo.journal")
}

/// The file for `slo status` beside a journal.
pub fn status_path(journal: &Path) -> PathBuf {
    beside(journal, "status.json")
}

/// How often files are looked at, the status file is written, and a trouble that lasts is said again: in evaluations, so seconds.
const LOOK_EVERY: u64 = 2;
const WRITE_EVERY: u64 = 2;
const SAY_EVERY: u64 = 60;

/// What a running agent says of its objectives: the content of the file for `slo status`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
pub struct Standing {
    /// 1.
    pub version: u32,
    /// When it was written, Unix seconds.
    pub at_unix: u64,
    /// The agent's process.
    pub pid: u32,
    /// The files and folders that were named.
    pub files: Vec<String>,
    /// When the files that are in force were read, Unix seconds.
    pub loaded_unix: u64,
    /// How often files were refused since the start.
    pub refused: u64,
    /// What is wrong with the files as they are now; what was read before stays in force.
    pub broken: Vec<String>,
    /// Why budgets would not survive a restart now.
    pub journal_trouble: Option<String>,
    /// What was wrong with the journal at the start.
    pub journal_damage: Option<String>,
    /// Every objective and group.
    pub objectives: Vec<View>,
}

/// Where exporters and others find how things stand.
pub type Shared = Arc<Mutex<Standing>>;

/// The objectives of a running agent.
pub struct Live {
    engine: Engine,
    journal: Option<Journal>,
    journal_path: PathBuf,
    told: Told,
    paths: Vec<PathBuf>,
    seen: Vec<Fingerprint>,
    reload: Arc<AtomicBool>,
    /// What is wrong with the files; with what teams wrote.
    broken: Vec<String>,
    teams: Option<teams::Troubles>,
    clock: Clock,
    lost: u64,
    base: HashMap<Key, Counters>,
    shared: Shared,
    /// The span of the last inference that broke an objective.
    broke: Arc<AtomicU64>,
    /// Whether anything is seen.
    sight: Option<Box<dyn Fn() -> bool + Send>>,
    blind: bool,
    evaluations: u64,
    said: HashMap<&'static str, String>,
}

impl Live {
    /// Reads the files and the journal. What is wrong with either is said in the log and in [`Standing`]; the agent runs all the same.
    /// `reload` asks for the files to be read again.
    pub fn start(config: &Config, reload: Arc<AtomicBool>) -> Self {
        let (wall, boot) = clock::now();
        let mut standing = Standing {
            version: 1,
            pid: std::process::id(),
            files: config.files.iter().map(|p| p.display().to_string()).collect(),
            loaded_unix: wall / 1_000_000_000,
            ..Standing::default()
        };
        let mut paths = config.files.clone();
        let teams = config.config_maps.as_ref().map(|maps| {
            paths.push(maps.directory.clone());
            teams::start(maps, &config.files)
        });
        let read = read(&paths);
        let seen = read.fingerprints;
        standing.broken = read.problems;
        let mut engine = Engine::new(read.slos, wall).unwrap_or_else(|error| {
            standing.broken.push(error.to_string());
            Engine::none(wall)
        });
        standing.broken.iter().for_each(|what| tracing::error!("SLO files: {what}"));
        standing.refused = u64::from(!standing.broken.is_empty());
        let journal = match Journal::open(&config.journal) {
            Ok((journal, found)) => {
                if let Some(damage) = found.damage {
                    tracing::error!("{damage}");
                    standing.journal_damage = Some(damage);
                }
                if let Some(book) = found.book {
                    engine.adopt(book, wall);
                }
                Some(journal)
            }
            Err(error) => {
                standing.journal_trouble = Some(trouble(&error));
                tracing::error!("{error}: budgets are kept in memory only");
                None
            }
        };
        let mut live = Self {
            told: Told::all(&engine),
            engine,
            journal,
            journal_path: config.journal.clone(),
            paths,
            broken: standing.broken.clone(),
            teams,
            seen,
            reload,
            clock: Clock::new(wall, boot),
            lost: 0,
            base: HashMap::new(),
            shared: Arc::new(Mutex::new(standing)),
            broke: Arc::default(),
            sight: None,
            blind: false,
            evaluations: 0,
            said: HashMap::new(),
        };
        live.engine.evaluate(wall);
        live.rebase(&HashMap::new());
        live.keep();
        live.publish(wall, true);
        live
    }

    /// How things stand, for others to read.
    pub fn shared(&self) -> Shared {
        Arc::clone(&self.shared)
    }

    /// The id of the span of the last inference that broke an objective: whoever is fed behind this exporter knows of each inference whether
    /// it is the one.
    pub fn broke(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.broke)
    }

    /// Asks each second whether anything is seen. While nothing is, objectives are blind: nothing burns, fires or resolves, and coverage falls.
    pub fn seeing(&mut self, sight: impl Fn() -> bool + Send + 'static) {
        self.sight = Some(Box::new(sight));
    }

    /// What is exported begins at 0 with each process, with each objective that is new, and with one that counts something else now;
    /// of all others it goes on when files are read again.
    fn rebase(&mut self, before: &HashMap<Key, Counters>) {
        let of = |status| {
            let (key, now) = (key(&self.engine, status)?, status.counters);
            let went_on = |then: &Counters| then.valid() <= now.valid() && then.good <= now.good && then.excluded <= now.excluded;
            let base = self.base.get(&key).filter(|_| before.get(&key).is_none_or(went_on)).copied();
            Some((key, base.unwrap_or(now)))
        };
        self.base = self.engine.statuses().iter().filter_map(of).collect();
    }

    /// What has been counted of each.
    fn counters(&self) -> HashMap<Key, Counters> {
        self.engine.statuses().iter().filter_map(|s| Some((key(&self.engine, s)?, s.counters))).collect()
    }

    /// One second: time, files, evaluation, journal, publication.
    fn tick(&mut self, lost: u64) {
        let (wall, boot) = clock::now();
        if let Some(by) = self.clock.read(wall, boot) {
            tracing::warn!(seconds = by / 1_000_000_000, "the wall clock was set; windows go on, calendar periods follow");
            self.engine.clock_stepped(by);
        }
        let new = lost.saturating_sub(self.lost);
        self.lost = lost;
        if new > 0 {
            self.engine.lost(new, wall);
        }
        let blind = self.sight.as_ref().is_some_and(|sees| !sees());
        self.engine.set_blind(blind, wall);
        match (std::mem::replace(&mut self.blind, blind), blind) {
            (false, true) => tracing::error!("no tap is at work: objectives are blind, their alerts stay as they are"),
            (true, false) => tracing::info!("a tap is at work: objectives are observed again"),
            _ => {}
        }
        self.evaluations += 1;
        let asked = self.reload.swap(false, Ordering::Relaxed);
        if asked || self.evaluations.is_multiple_of(LOOK_EVERY) {
            self.look(wall, asked);
        }
        self.engine.evaluate(wall);
        self.keep();
        self.publish(wall, self.evaluations.is_multiple_of(WRITE_EVERY));
    }

    /// Reads the files again when they have changed, or when it is asked for.
    fn look(&mut self, wall: u64, asked: bool) {
        if !asked && fingerprints(&self.paths) == self.seen {
            return;
        }
        let read = read(&self.paths);
        self.seen = read.fingerprints;
        let mut broken = read.problems;
        let before = self.counters();
        if broken.is_empty()
            && let Err(error) = self.engine.replace(read.slos, wall)
        {
            broken.push(error.to_string());
        }
        let mut standing = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        standing.refused += u64::from(!broken.is_empty());
        broken.iter().for_each(|what| tracing::error!("SLO files: {what}; what was read before stays in force"));
        self.broken = broken;
        if !self.broken.is_empty() {
            return;
        }
        standing.loaded_unix = wall / 1_000_000_000;
        drop(standing);
        tracing::info!(slos = self.engine.len(), "SLO files were read");
        self.engine.evaluate(wall);
        self.rebase(&before);
        if let Some(journal) = &mut self.journal
            && journal.snapshot(&encode(&self.engine.book()))
        {
            self.told = Told::all(&self.engine);
        }
    }

    /// Appends what changed to the journal, or makes it anew.
    fn keep(&mut self) {
        if self.journal.is_none() {
            self.journal = self.retry();
        }
        let Some(journal) = &mut self.journal else { return };
        let before = journal.trouble().map(str::to_owned);
        if journal.wants_snapshot() {
            if journal.snapshot(&encode(&self.engine.book())) {
                self.told = Told::all(&self.engine);
            }
        } else {
            journal.append(&self.told.changes(&self.engine));
        }
        let trouble = journal.trouble().map(str::to_owned);
        match (&before, &trouble) {
            (None, Some(what)) => tracing::error!("{what}: budgets are kept in memory only until it can be written"),
            (Some(_), Some(what)) if self.evaluations.is_multiple_of(SAY_EVERY) => tracing::error!("{what}: still not written"),
            (Some(_), None) => tracing::info!("the journal of objectives is written again, with everything since"),
            _ => {}
        }
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).journal_trouble = trouble;
    }

    /// A journal that could not be opened at the start; what it holds is not read any more, because counting has begun without it.
    fn retry(&self) -> Option<Journal> {
        if !self.evaluations.is_multiple_of(SAY_EVERY) || self.evaluations == 0 {
            return None;
        }
        match Journal::open(&self.journal_path) {
            Ok((journal, found)) if found.book.is_none() => Some(journal),
            Ok(_) => {
                tracing::error!(
                    "{}: holds budgets that were not read at the start; restart to go on with them",
                    self.journal_path.display()
                );
                None
            }
            Err(error) => {
                tracing::error!("{error}: budgets are kept in memory only");
                None
            }
        }
    }

    /// Tells how things stand, and writes the file for `slo status` where it is time to.
    fn publish(&mut self, wall: u64, write: bool) {
        let none = Counters::default();
        let base = |status| key(&self.engine, status).and_then(|key| self.base.get(&key)).copied();
        let of = |status| view(&self.engine, status, base(status).unwrap_or(none));
        let objectives = self.engine.statuses().iter().filter_map(of).collect();
        let mut standing = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        standing.objectives = objectives;
        standing.broken.clone_from(&self.broken);
        if let Some(teams) = &self.teams {
            standing.broken.extend(teams.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        }
        standing.at_unix = wall / 1_000_000_000;
        if !write {
            return;
        }
        let text = serde_json::to_vec(&*standing).unwrap_or_default();
        drop(standing);
        let path = status_path(&self.journal_path);
        let new = beside(&path, "new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path));
        match written {
            Ok(()) => _ = self.said.remove("status"),
            Err(error) => {
                let what = format!("{}: {error}", path.display());
                if self.said.get("status") != Some(&what) {
                    tracing::error!("{what}: `slo status` will say that no agent runs");
                    self.said.insert("status", what);
                }
            }
        }
    }
}

fn trouble(error: &JournalError) -> String {
    format!("{error}: budgets are kept in memory only")
}

/// The objectives of some files, what is wrong with them, and how to tell that they have changed.
struct Files {
    slos: Vec<Slo>,
    problems: Vec<String>,
    fingerprints: Vec<Fingerprint>,
}

fn read(paths: &[PathBuf]) -> Files {
    // Taken before the files are read: what changes meanwhile is read again.
    let fingerprints = fingerprints(paths);
    match Input::read(paths) {
        Ok(input) => {
            let loaded = input.load(false);
            let errors = loaded.problems.iter().filter(|p| p.level == tokengauge_slo::spec::Level::Error);
            Files { problems: errors.map(ToString::to_string).collect(), slos: loaded.slos, fingerprints }
        }
        Err(error) => Files { slos: Vec::new(), problems: vec![error.to_string()], fingerprints },
    }
}

impl Exporter for Live {
    fn name(&self) -> &'static str {
        "slo"
    }

    fn inference(&mut self, inference: &Inference) {
        let Some(request) = Request::of(inference) else { return };
        let t = &inference.timing;
        let end = t.duration.map_or(t.end, |d| t.start.plus(d)).unix_nanos();
        let (wall, _) = clock::now();
        // A tap's clock keeps the offset that it began with: after a step its instants are of another day. It ended just now.
        const LATE: u64 = 5_000_000_000;
        let at = if end > wall || wall - end > LATE { wall } else { end };
        self.engine.observe(&request, at);
        if self.engine.last_broke() {
            self.broke.store(inference.trace.span_id, Ordering::Relaxed);
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        let lost = snapshot.counters.iter().filter(|c| c.name == EXPORT_QUEUE_FULL).map(|c| c.count).sum();
        self.tick(lost);
    }

    fn flush(&mut self, _: Duration) -> Result<(), ExportError> {
        Ok(())
    }

    fn shutdown(&mut self, _: Duration) -> Result<(), ExportError> {
        let (wall, _) = clock::now();
        self.engine.evaluate(wall);
        self.keep();
        self.publish(wall, true);
        let left = self.shared.lock().unwrap_or_else(PoisonError::into_inner).journal_trouble.clone();
        match left {
            None => Ok(()),
            Some(what) => Err(ExportError::Undelivered { what: format!("SLO budgets were not kept: {what}") }),
        }
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
