//! `tokengauge replay`: capture files in, records or a table out. Deterministic: the same files give the same records, with any
//! number of threads. One thread is the default: a replay often runs beside something that matters more.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokengauge_core::inference::Inference;
use tokengauge_core::pipeline::{Options, PipelineStats};
use tokengauge_core::stats::Aggregator;
use tokengauge_core::tenant::Tenants;
use tokengauge_core::tls::KeyLog;

use crate::cli::{Format, ReplayArgs};
use crate::clock::now;
use crate::driver::{Driver, Progress, Source};
use crate::export::ExportError;
use crate::export::jsonl::JsonLines;
use crate::keylog;
use crate::tap::pcap::Share;
use crate::tap::{StopFlag, TapError};
use crate::view::table;
use crate::vitals::{self, Report, Vitals};

mod heap;
mod shares;

/// Opens a capture file, or a share of one.
pub type Open<'a> = dyn FnMut(&Path, Share) -> Result<Source, TapError> + 'a;

/// Reads the files one after the other and prints what they hold; `tenants` says whose requests are. The result is whether all of them were read to their end.
///
/// # Errors
/// When the output or the statistics cannot be written. What is wrong with an input is said on standard error instead, and
/// what was read of it is still printed.
pub fn replay(args: &ReplayArgs, tenants: Option<Arc<Tenants>>, open: &mut Open<'_>) -> Result<bool, ExportError> {
    let began = now();
    heap::large_pages();
    let out = JsonLines::new(io::stdout().lock(), "-");
    let mut job = Job { out: (args.format == Format::Jsonl).then_some(out), all: Aggregator::default() };
    let (mut total, mut failed, vitals) = (PipelineStats::default(), 0, Vitals::default());
    let stop = StopFlag::default();
    let (keys, mut whole) = keylog::read(&args.keylogs);
    let known = Known { keys, tenants };
    for error in &whole {
        eprintln!("tokengauge: {error}");
    }
    whole.retain(|error| error.is_failure());
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1)),
        given => given.min(MAX_THREADS),
    };
    for (number, path) in args.files.iter().enumerate() {
        let number = number as u64;
        let shared = threads > 1 && std::fs::metadata(path).is_ok_and(|file| file.is_file());
        let result = if shared {
            shares::replay(open, path, (number, threads), &known, &mut job, &vitals, &stop)
        } else {
            replay_one(open, path, number, &known, &mut job, &vitals, &stop)
        };
        match result {
            Ok((stats, result)) => {
                vitals::add(&mut total, &stats);
                if let Err(error) = result {
                    failed += 1;
                    eprintln!("tokengauge: {error}");
                }
            }
            Err(error) => {
                failed += 1;
                eprintln!("tokengauge: {error}");
            }
        }
        if stop.is_set() {
            break;
        }
    }
    match &mut job.out {
        Some(out) => out.finish()?,
        None => {
            let text = table::render(&job.all.snapshot());
            match io::stdout().lock().write_all(text.as_bytes()) {
                Err(source) if source.kind() != io::ErrorKind::BrokenPipe => return Err(ExportError::Io { path: "-".into(), source }),
                _ => {}
            }
        }
    }
    let report = Report {
        inputs: args.files.len() as u64,
        failed_inputs: failed,
        wall_s: now().duration_since(began).as_secs_f64(),
        ..Report::new(&total, &vitals.counters())
    };
    match &args.stats {
        Some(path) => write_stats(path, &report)?,
        None if args.format == Format::Jsonl => eprintln!("{}", report.json()),
        None => eprintln!("{}", report.sentence()),
    }
    Ok(failed == 0 && whole.is_empty())
}

/// Writes a report to a file.
///
/// # Errors
/// When the file cannot be written.
pub fn write_stats(path: &Path, report: &Report) -> Result<(), ExportError> {
    std::fs::write(path, report.json() + "\n").map_err(|source| ExportError::Io { path: path.display().to_string(), source })
}

/// Each thread reads every packet's header: beyond so many there is nothing to gain.
const MAX_THREADS: u32 = 64;

type Read = (PipelineStats, Result<(), TapError>);

/// What is known beside the capture.
struct Known {
    /// Secrets of TLS connections.
    keys: Option<Arc<KeyLog>>,
    /// Who says whose requests are.
    tenants: Option<Arc<Tenants>>,
}

fn replay_one(
    open: &mut Open<'_>,
    path: &Path,
    number: u64,
    known: &Known,
    job: &mut Job<'_>,
    vitals: &Vitals,
    stop: &StopFlag,
) -> Result<Read, TapError> {
    let Source { name, tap, counters, progress } = open(path, Share::ALL)?;
    vitals.register(counters);
    let bar = progress_bar(path, &name);
    // Ids are made of the seed: files of one run must not share them.
    let options = Options { seed: number, ..Options::default() };
    let on_file = OnFile { job, stop, bar: &bar, progress };
    let mut driver = Driver::new(options, on_file).decrypting(known.keys.clone()).naming(known.tenants.clone());
    let result = tap.run(&mut driver, stop);
    if let Some(counters) = driver.decrypted() {
        vitals.register(keylog::probe(counters));
    }
    let (stats, _) = driver.finish();
    bar.finish_and_clear();
    Ok((stats, result))
}

/// A bar on standard error for files that take a while, when someone looks.
fn progress_bar(path: &Path, name: &str) -> ProgressBar {
    let long = 64 << 20;
    let size = std::fs::metadata(path).map_or(0, |m| m.len());
    if size < long || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}") {
        bar.set_style(style);
    }
    bar.with_message(name.to_owned())
}

struct Job<'a> {
    out: Option<JsonLines<io::StdoutLock<'a>>>,
    all: Aggregator,
}

struct OnFile<'a, 'b> {
    job: &'a mut Job<'b>,
    stop: &'a StopFlag,
    bar: &'a ProgressBar,
    progress: Option<Arc<AtomicU64>>,
}

impl Progress for OnFile<'_, '_> {
    fn inference(&mut self, inference: Inference) {
        match &mut self.job.out {
            Some(out) => {
                out.write(&inference);
                if out.is_closed() {
                    self.stop.stop();
                }
            }
            None => self.job.all.add(&inference),
        }
    }

    fn tick(&mut self, _stats: &dyn Fn() -> PipelineStats) {
        if let Some(read) = &self.progress
            && !self.bar.is_hidden()
        {
            self.bar.set_position(read.load(Ordering::Relaxed));
        }
    }
}
