//! A file read by several threads, each of which owns the connections that fall to it by their hash.
//!
//! Every thread looks at the headers of all packets and takes those of its own connections to its own assembler and pipeline: no queue, no hand-over,
//! no lock between packets. (A thread that only reads and distributes would read the same headers, and then be one more link in the chain.) What the
//! kernel copies of the file it copies once for all of them ([`Blocks`]). Time passes alike in all of them, because each sees every packet's stamp; ids are made of frame
//! numbers, which are the same as well. What they yield is merged in the order in which one thread would have yielded it: see [`Order`].
//!
//! Bounds (connections, buffered bytes) hold for each thread; only a capture that reaches them can be read differently.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokengauge_core::inference::Inference;
use tokengauge_core::pipeline::{Options, PipelineStats};

use crate::driver::{Driver, Order, Progress};
use crate::export::record::Writer;
use crate::keylog;
use crate::tap::pcap::{Blocks, Share};
use crate::tap::{StopFlag, TapError};
use crate::vitals::{self, Vitals};

use super::{Job, Known, Open, Read, progress_bar};

/// Results that may wait for those of slower threads.
const AHEAD: usize = 1024;

/// A finished inference, as the output wants it.
enum Done {
    Line(Box<[u8]>),
    Inference(Box<Inference>),
}

/// Reads the file numbered `number` with `threads` threads.
///
/// # Errors
/// When it cannot be opened.
pub(super) fn replay(
    open: &mut Open<'_>,
    path: &Path,
    (number, threads): (u64, u32),
    known: &Known,
    job: &mut Job<'_>,
    vitals: &Vitals,
    stop: &StopFlag,
) -> Result<Read, TapError> {
    let blocks = Blocks::open(path).map_err(|source| TapError::Io { path: path.display().to_string(), source })?;
    let share = |number| Share { number, of: threads, blocks: Some(Arc::clone(&blocks)) };
    let sources: Result<Vec<_>, _> = (0..threads).map(|n| open(path, share(n))).collect();
    let lines = job.out.is_some();
    std::thread::scope(|scope| {
        let (mut bar, mut progress, mut results, mut running) = (None, None, Vec::new(), Vec::new());
        for source in sources? {
            vitals.register(source.counters);
            bar.get_or_insert_with(|| progress_bar(path, &source.name));
            progress = progress.or(source.progress);
            let (send, receive) = sync_channel(AHEAD);
            results.push(receive);
            let (tap, stop, keys, tenants) = (source.tap, stop.clone(), known.keys.clone(), known.tenants.clone());
            running.push(scope.spawn(move || {
                let options = Options { seed: number, ..Options::default() };
                let writer = lines.then(Writer::default);
                let merged = ToMerge { send, writer, order: Order::default() };
                let mut driver = Driver::new(options, merged).decrypting(keys).naming(tenants);
                let result = tap.run(&mut driver, &stop);
                let decrypted = driver.decrypted();
                (driver.finish().0, decrypted, result)
            }));
        }
        for done in Merge::new(results) {
            match (done, &mut job.out) {
                (Done::Line(line), Some(out)) => {
                    out.write_line(&line);
                    if out.is_closed() {
                        stop.stop();
                    }
                }
                (Done::Inference(inference), _) => job.all.add(&inference),
                (Done::Line(_), None) => {}
            }
            if let (Some(bar), Some(read)) = (&bar, &progress)
                && !bar.is_hidden()
            {
                bar.set_position(read.load(std::sync::atomic::Ordering::Relaxed));
            }
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let (mut sum, mut first) = (PipelineStats::default(), Ok(()));
        for thread in running {
            match thread.join() {
                // All of them meet the same error at the same place.
                Ok((stats, decrypted, result)) => {
                    if let Some(counters) = decrypted {
                        vitals.register(keylog::probe(counters));
                    }
                    vitals::add(&mut sum, &stats);
                    first = first.and(result);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok((sum, first))
    })
}

/// One thread's end of the queue.
struct ToMerge {
    send: SyncSender<(Order, Done)>,
    writer: Option<Writer>,
    order: Order,
}

impl Progress for ToMerge {
    fn order(&mut self, order: Order) {
        self.order = order;
    }

    fn inference(&mut self, inference: Inference) {
        let done = match &mut self.writer {
            Some(writer) => Done::Line(writer.line(&inference).into()),
            None => Done::Inference(Box::new(inference)),
        };
        // The other end outlives the threads.
        let _ = self.send.send((self.order, done));
    }

    fn tick(&mut self, _stats: &dyn Fn() -> PipelineStats) {}
}

/// A result and its place.
type Next = (Order, Done);

/// The results of all threads in one order. Each thread's own results are in order; the next one is the least of the first ones, which
/// is known when each thread has one or has ended.
struct Merge {
    queues: Vec<(Option<Next>, Receiver<Next>)>,
}

impl Merge {
    fn new(receivers: Vec<Receiver<(Order, Done)>>) -> Self {
        Self { queues: receivers.into_iter().map(|queue| (queue.recv().ok(), queue)).collect() }
    }
}

impl Iterator for Merge {
    type Item = Done;

    fn next(&mut self) -> Option<Done> {
        let waiting = self.queues.iter_mut().filter(|(first, _)| first.is_some());
        let (first, queue) = waiting.min_by_key(|(first, _)| first.as_ref().map(|(order, _)| *order))?;
        let (_, done) = std::mem::replace(first, queue.recv().ok())?;
        Some(done)
    }
}
