//! Whether the agent is alive and whether it is ready: what `/healthz` and `/readyz` say.
//!
//! Every thread that must make progress has a [`Part`] and gives a sign of life several times a second, an atomic store. Nothing here asks a
//! thread anything: who is stuck cannot answer, so it is the silence that tells.

use crate::clock::now;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A thread that gave no sign of life for so long is stuck: `/healthz` fails, and whoever supervises the agent may restart it.
pub const STUCK_AFTER: Duration = Duration::from_secs(30);

/// A thread that has not begun its work after so long is stuck as well.
pub const STARTED_AFTER: Duration = Duration::from_secs(120);

/// A thread that gave no sign of life for so long is not at work: `/readyz` fails.
pub const SILENT_AFTER: Duration = Duration::from_secs(5);

const STARTING: u8 = 0;
const WORKING: u8 = 1;
const ENDED: u8 = 2;
const FAILED: u8 = 3;

/// A thread that must make progress.
#[derive(Debug)]
pub struct Part {
    name: String,
    began: Instant,
    /// Milliseconds from `began` to the last sign of life.
    beat: AtomicU64,
    state: AtomicU8,
    problem: OnceLock<String>,
    /// What it may be stuck in, by number; 0 is nothing in particular.
    steps: Vec<&'static str>,
    step: AtomicUsize,
}

impl Part {
    /// A sign of life.
    pub fn beat(&self) {
        self.beat.store(self.elapsed(), Ordering::Relaxed);
        // Whoever has ended does not come back to work by a late sign.
        let _ = self.state.compare_exchange(STARTING, WORKING, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// It now does step `number` of those that it was registered with, from 1; 0 is none.
    pub fn doing(&self, number: usize) {
        self.step.store(number, Ordering::Relaxed);
    }

    /// It came to its end, with what went wrong.
    pub fn end(&self, problem: Option<String>) {
        let state = if problem.is_some() { FAILED } else { ENDED };
        if let Some(what) = problem {
            let _ = self.problem.set(what);
        }
        self.state.store(state, Ordering::Release);
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(now().saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    fn line(&self, at: u64, patience: Duration) -> Line {
        let silent = Duration::from_millis(at.saturating_sub(self.beat.load(Ordering::Relaxed)));
        let step = self.step.load(Ordering::Relaxed).checked_sub(1).and_then(|n| self.steps.get(n));
        let within = step.map(|s| format!(", in {s}")).unwrap_or_default();
        let (level, text) = match self.state.load(Ordering::Acquire) {
            ENDED => (Level::Bad, "ended".to_owned()),
            FAILED => (Level::Bad, self.problem.get().map_or_else(|| "failed".to_owned(), |p| format!("failed: {p}"))),
            STARTING if silent < STARTED_AFTER => (Level::Starting, format!("starting for {} s", silent.as_secs())),
            _ if silent >= patience => (Level::Bad, format!("no sign of life for {} s{within}", silent.as_secs())),
            _ => (Level::Good, "at work".to_owned()),
        };
        Line { name: self.name.clone(), level, text }
    }
}

/// Says of a thread that panicked that it did.
pub struct Watched(Arc<Part>);

impl Watched {
    /// Hold it as long as the thread of `part` works.
    pub fn over(part: &Arc<Part>) -> Self {
        Self(Arc::clone(part))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(Some("panicked".to_owned()));
        }
    }
}

/// How one thing stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// As it should be.
    Good,
    /// On its way.
    Starting,
    /// Something is wrong, and the agent does its work all the same.
    Degraded,
    /// Not at work.
    Bad,
}

/// One thing and how it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// What.
    pub name: String,
    /// How well.
    pub level: Level,
    /// In words.
    pub text: String,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Yes or no.
    pub good: bool,
    /// Why.
    pub lines: Vec<Line>,
}

impl Verdict {
    /// As text: one line for each thing, and the answer in the last.
    pub fn text(&self, yes: &str, no: &str) -> String {
        let mut out = String::new();
        for Line { name, level, text } in &self.lines {
            let sign = match level {
                Level::Good => '+',
                Level::Starting | Level::Bad => '-',
                Level::Degraded => '!',
            };
            let _ = writeln!(out, "[{sign}] {name}: {text}");
        }
        out + if self.good { yes } else { no } + "\n"
    }
}

/// Says how something stands that is no thread: files, a connection, a library.
pub type Condition = Box<dyn Fn() -> (Level, String) + Send + Sync>;

/// What must live and work in this agent.
pub struct Health {
    began: Instant,
    parts: RwLock<Vec<Arc<Part>>>,
    conditions: RwLock<Vec<(&'static str, Condition)>>,
    stopping: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        Self { began: now(), parts: RwLock::default(), conditions: RwLock::default(), stopping: AtomicBool::new(false) }
    }
}

impl Health {
    /// A thread that begins now; `steps` are what it may later say that it does.
    pub fn part(&self, name: impl Into<String>, steps: Vec<&'static str>) -> Arc<Part> {
        let part = Arc::new(Part {
            name: name.into(),
            began: self.began,
            beat: AtomicU64::new(self.elapsed()),
            state: AtomicU8::new(STARTING),
            problem: OnceLock::new(),
            steps,
            step: AtomicUsize::new(0),
        });
        self.parts.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&part));
        part
    }

    /// Something else that readiness depends on. It is asked with each request and must not wait for anything.
    pub fn condition(&self, name: &'static str, condition: impl Fn() -> (Level, String) + Send + Sync + 'static) {
        self.conditions.write().unwrap_or_else(PoisonError::into_inner).push((name, Box::new(condition)));
    }

    /// The agent was told to stop: it is not ready any more.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether every thread makes progress. A tap that failed or ended is not stuck: it says so in [`Health::ready`].
    pub fn alive(&self) -> Verdict {
        self.alive_at(self.elapsed())
    }

    /// What [`Health::alive`] will say if nothing gives a sign of life for so long.
    pub fn alive_in(&self, later: Duration) -> Verdict {
        self.alive_at(self.elapsed() + u64::try_from(later.as_millis()).unwrap_or(u64::MAX))
    }

    /// What [`Health::ready`] will say if nothing gives a sign of life for so long.
    pub fn ready_in(&self, later: Duration) -> Verdict {
        self.ready_at(self.elapsed() + u64::try_from(later.as_millis()).unwrap_or(u64::MAX))
    }

    fn alive_at(&self, at: u64) -> Verdict {
        let lines = self.lines(at, STUCK_AFTER);
        let parts = self.parts.read().unwrap_or_else(PoisonError::into_inner);
        let over = |part: &Part| matches!(part.state.load(Ordering::Acquire), ENDED | FAILED);
        let good = parts.iter().zip(&lines).all(|(part, line)| line.level != Level::Bad || over(part));
        Verdict { good, lines }
    }

    /// Whether every tap captures, what they find is taken, and the configuration is in force.
    pub fn ready(&self) -> Verdict {
        self.ready_at(self.elapsed())
    }

    fn ready_at(&self, at: u64) -> Verdict {
        let mut lines = self.lines(at, SILENT_AFTER);
        if lines.is_empty() {
            lines.push(Line { name: "agent".into(), level: Level::Starting, text: "no tap has begun".into() });
        }
        for (name, condition) in self.conditions.read().unwrap_or_else(PoisonError::into_inner).iter() {
            let (level, text) = condition();
            lines.push(Line { name: (*name).to_owned(), level, text });
        }
        if self.stopping.load(Ordering::Relaxed) {
            lines.push(Line { name: "agent".into(), level: Level::Bad, text: "stopping".into() });
        }
        let good = lines.iter().all(|l| matches!(l.level, Level::Good | Level::Degraded));
        Verdict { good, lines }
    }

    /// How every thread stands, with the patience of readiness.
    pub fn parts(&self) -> Vec<Line> {
        self.lines(self.elapsed(), SILENT_AFTER)
    }

    fn lines(&self, at: u64, patience: Duration) -> Vec<Line> {
        self.parts.read().unwrap_or_else(PoisonError::into_inner).iter().map(|p| p.line(at, patience)).collect()
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(now().saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn after(seconds: u64) -> u64 {
        seconds * 1_000
    }

    #[test]
    fn silence_tells() {
        let health = Health::default();
        assert!(!health.ready_at(0).good, "without a tap nothing is ready");
        let (tap, export) = (health.part("tap x", vec![]), health.part("export", vec!["jsonl", "otlp"]));
        assert!(!health.ready_at(0).good, "a tap that starts is not ready");
        assert!(health.alive_at(after(119)).good && !health.alive_at(after(121)).good, "a start may take a while, not for ever");
        tap.beat();
        export.beat();
        assert!(health.ready_at(after(4)).good && health.alive_at(after(4)).good);
        export.doing(2);
        let verdict = health.ready_at(after(6));
        assert!(!verdict.good);
        expect![[r#"
            [-] tap x: no sign of life for 6 s
            [-] export: no sign of life for 6 s, in otlp
            not ready
        "#]]
        .assert_eq(&verdict.text("ready", "not ready"));
        assert!(health.alive_at(after(6)).good, "not yet stuck");
        assert!(!health.alive_at(after(31)).good);
    }

    #[test]
    fn what_failed_is_not_ready_and_not_stuck() {
        let health = Health::default();
        let (one, two) = (health.part("tap one", vec![]), health.part("tap two", vec![]));
        one.beat();
        two.beat();
        two.end(Some("cannot capture on eth7: no such device".into()));
        two.beat();
        assert!(health.alive_at(after(1)).good);
        let verdict = health.ready_at(after(1));
        assert_eq!((verdict.good, verdict.lines[1].text.as_str()), (false, "failed: cannot capture on eth7: no such device"));
        one.end(None);
        assert!(health.alive_at(after(60)).good);
    }

    #[test]
    fn conditions_decide_and_degrade() {
        let health = Health::default();
        health.part("tap", vec![]).beat();
        let broken = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&broken);
        health.condition("SLO files", move || match seen.load(Ordering::Relaxed) {
            false => (Level::Good, "in force".into()),
            true => (Level::Degraded, "x.yaml:1:1: no".into()),
        });
        assert!(health.ready_at(0).good);
        broken.store(true, Ordering::Relaxed);
        let verdict = health.ready_at(0);
        assert!(verdict.good && verdict.text("ready", "not ready").contains("[!] SLO files: x.yaml:1:1: no"));
        health.condition("library", || (Level::Bad, "refused".into()));
        assert!(!health.ready_at(0).good && health.alive_at(0).good);
        health.stop();
        assert!(health.ready_at(0).text("ready", "not ready").ends_with("[-] agent: stopping\nnot ready\n"));
    }
}
