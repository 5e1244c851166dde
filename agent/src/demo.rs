//! `tokengauge demo`: the main job on real traffic, without configuration. A small provider and a few clients (Python's standard
//! library, embedded) talk over TLS on loopback; the agent watches both from outside; at the end stands what they wrote down
//! themselves beside what was measured.
//!
//! It takes the best tap that the machine allows and says which and why: eBPF on the two processes' TLS library; else packets on
//! loopback, with the pair speaking plain HTTP, since packets show no TLS; else a shipped capture of the same pair.

mod pair;
mod truth;

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use tokengauge_core::inference::Inference;

use crate::agent::Running;
use crate::cli::DemoArgs;
use crate::driver::Source;
use crate::tap::pcap::Share;
use crate::tap::{StopFlag, TapError};
use crate::view::table;
use crate::{config, run, sources};
use pair::{Folder, Pair};

/// Requests of one round: every model several times, the slow ones included.
const ROUND: u32 = 40;
/// How long taps may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(15);
/// The shipped capture: a round of the same pair over plain HTTP, and what both wrote down.
const SAMPLE: &[u8] = include_bytes!("demo/sample.pcap");
const SAMPLE_TRUTH: &str = include_str!("demo/sample.truth.jsonl");

/// Why the demo could not be given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The provider or the clients could not be started.
    #[error("{0}")]
    Pair(String),
    /// No tap at all could start.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The system gives no thread, folder or signals.
    #[error("cannot start")]
    System(#[from] std::io::Error),
}

/// Runs the demo; the result is whether figures were measured and agree with the truth.
///
/// # Errors
/// When it could not be given in any form.
pub fn demo(args: &DemoArgs) -> Result<bool, DemoError> {
    let stop = StopFlag::default();
    run::signals(&stop)?;
    let folder = Folder::new()?;
    for way in [Way::Ebpf, Way::Packets] {
        match live(way, args, &folder, &stop) {
            Ok(good) => return Ok(good),
            Err(Refused(why)) if !stop.is_set() => println!("{} is not possible here: {why}\n", way.name()),
            Err(_) => return Ok(false),
        }
    }
    sample(&folder)
}

/// How live traffic can be tapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Ebpf,
    Packets,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Ebpf => "tapping TLS by eBPF",
            Self::Packets => "capturing packets on loopback",
        }
    }
}

/// Why a way is closed.
struct Refused(String);

impl<E: std::error::Error> From<E> for Refused {
    fn from(e: E) -> Self {
        Self(e.to_string())
    }
}

fn live(way: Way, args: &DemoArgs, folder: &Folder, stop: &StopFlag) -> Result<bool, Refused> {
    let mut pair = Pair::start(folder, way == Way::Packets, args.once.then_some(ROUND))?;
    let source = match way {
        Way::Ebpf => sources::tls(&config::Tls { pids: pair.pids().to_vec(), ..config::Tls::default() })?,
        Way::Packets => sources::live(&config::Pcap::new("lo", &format!("tcp port {}", pair.port)))?,
    };
    let (records, finished) = mpsc::channel();
    let running = start(source, records)?;
    println!("watching a provider (pid {}) and its clients (pid {}) by {}", pair.pids()[0], pair.pids()[1], way.name());
    println!("{}", if args.once { "one round, about 20 s" } else { "until Ctrl-C" });
    pair.go()?;
    let screen = Screen::new();
    while !stop.is_set() && !pair.clients_ended() {
        std::thread::sleep(Duration::from_millis(250));
        screen.draw(&running, false);
    }
    // What is under way when the clients have read their last byte is still being measured.
    std::thread::sleep(Duration::from_millis(500));
    pair.end();
    screen.draw(&running, true);
    let ended = running.stop();
    println!("\n{}", ended.report.sentence());
    let truth = truth::read(&folder.truth()).map_err(|e| Refused(e.to_string()))?;
    Ok(compare(&truth, &finished.try_iter().collect::<Vec<_>>()))
}

/// Starts the agent on one tap and waits until it is at work. It has a stop flag of its own: at Ctrl-C the pair ends first, then
/// the tap.
fn start(source: Source, records: mpsc::Sender<Inference>) -> Result<Running, Refused> {
    let running = Running::builder().source(source).on_inference(move |i| drop(records.send(i.clone()))).start()?;
    let mut waited = Duration::ZERO;
    while !running.ready() && waited < READY_WITHIN {
        std::thread::sleep(Duration::from_millis(50));
        waited += Duration::from_millis(50);
    }
    let failed = running.failed_taps().0 > 0;
    if failed || !running.ready() {
        let ended = running.stop();
        let why = ended.errors.into_iter().next().unwrap_or_else(|| "the tap did not get ready".to_owned());
        return Err(Refused(why));
    }
    Ok(running)
}

/// The last resort: a capture of an earlier round.
fn sample(folder: &Folder) -> Result<bool, DemoError> {
    println!("replaying a shipped capture of the same provider and clients");
    let path = folder.file("sample.pcap");
    std::fs::write(&path, SAMPLE)?;
    let truth = folder.truth();
    std::fs::write(&truth, SAMPLE_TRUTH)?;
    replayed(&path, &truth)
}

fn replayed(capture: &Path, truth: &Path) -> Result<bool, DemoError> {
    let (records, finished) = mpsc::channel();
    let source = sources::file(capture, Share::ALL)?;
    let running = Running::builder().source(source).on_inference(move |i| drop(records.send(i.clone()))).start()?;
    let ended = running.wait(Duration::from_secs(60));
    Screen::new().draw(&running, true);
    if let Some(ended) = ended {
        println!("\n{}", ended.report.sentence());
    }
    let truth = truth::read(truth)?;
    Ok(compare(&truth, &finished.try_iter().collect::<Vec<_>>()))
}

fn compare(truth: &[truth::Answer], measured: &[Inference]) -> bool {
    let verdict = truth::compare(truth, measured);
    println!("\n{verdict}");
    verdict.good()
}

/// The live table: redrawn in place on a terminal, printed once elsewhere.
struct Screen {
    terminal: bool,
}

impl Screen {
    fn new() -> Self {
        Self { terminal: std::io::stdout().is_terminal() }
    }

    fn draw(&self, running: &Running, last: bool) {
        if !self.terminal && !last {
            return;
        }
        let table = table::render(&running.snapshot());
        let mut out = std::io::stdout().lock();
        // Save and restore the cursor's row by counting lines: works in every terminal that knows ANSI.
        let up = if self.terminal && !last { format!("\x1b[{}A", table.lines().count() + 1) } else { String::new() };
        let clear = if self.terminal { "\x1b[0J" } else { "" };
        let _ = write!(out, "{clear}\n{table}{up}");
        let _ = out.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_capture_measures_to_its_truth() {
        let folder = Folder::new().unwrap();
        assert!(sample(&folder).unwrap());
    }
}
