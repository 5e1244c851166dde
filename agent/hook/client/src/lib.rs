//! Sends events to tokengauge's Unix socket, where the tap symbol cannot be reached (another mount namespace's agent, a kernel without eBPF).
//! The contract is `agent/hook/README.md`; the events are those of [`tokengauge_tap`].
//!
//! A server never waits: [`Client::tell`] puts the event into a bounded queue and returns. A thread sends what is there, in batches, connects
//! again when the agent was away, and drops the oldest events when nobody takes them; how many is told to the agent with the next batch.
//!
//! ```no_run
//! use tokengauge_hook::{Client, Event, Kind};
//!
//! let client = Client::new("/run/tokengauge/hook.sock");
//! let mut request = Event::of("chatcmpl-1").model("llama-3.1-8b");
//! client.tell(&mut request, Kind::Received);
//! ```

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use tokengauge_tap::{Event, Finish, Kind};

pub mod message;

/// Events that may wait. One is 416 bytes.
pub const QUEUE: usize = 8_192;

/// Most events of one batch: it stays below the agent's bound for messages even when each has texts of full length.
const BATCH: usize = 128;

/// How long events are gathered before they are sent.
const GATHER: Duration = Duration::from_millis(5);

/// How long a batch may take to be written; then the connection is given up.
const WRITE_WITHIN: Duration = Duration::from_millis(500);

/// How long the thread waits before it connects again, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What is to be sent: when it happened, and what.
type Told = (u64, Event);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Told>,
    dropped: u64,
    sent: u64,
    ended: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Shared {
    /// A lock that is held for no longer than it takes to move a few events.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to the agent. Clones are the same one; the thread ends when the last of them is dropped.
#[derive(Clone)]
pub struct Client(Arc<Owner>);

struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.more.notify_one();
    }
}

/// What became of the events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Handed to the system.
    pub sent: u64,
    /// Dropped, because they could not be sent in time.
    pub dropped: u64,
    /// Waiting.
    pub waiting: u64,
}

impl Client {
    /// A client that sends to the socket at `path`, as soon as there is one. Nothing fails here: where no thread can be had, events are
    /// dropped and counted.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let waiting = VecDeque::with_capacity(QUEUE);
        let shared = Arc::new(Shared { queue: Mutex::new(Queue { waiting, ..Queue::default() }), more: Condvar::new() });
        let (path, inner) = (path.into(), Arc::clone(&shared));
        let _ = std::thread::Builder::new().name("tokengauge-hook".into()).spawn(move || Sender { path, shared: inner }.run());
        Self(Arc::new(Owner(shared)))
    }

    /// Tells that this happened, now.
    pub fn tell(&self, event: &mut Event, kind: Kind) {
        event.prepare(kind);
        self.push(*event);
        event.done();
    }

    /// Tells that so many tokens more are there.
    pub fn tokens(&self, event: &mut Event, tokens: u32) {
        event.prepare_tokens(tokens);
        self.push(*event);
        event.done();
    }

    /// Tells that the request ended, and with how many tokens.
    pub fn finished(&self, event: &mut Event, why: Finish, output_tokens: u32) {
        event.prepare_finished(why, output_tokens);
        self.push(*event);
        event.done();
    }

    fn push(&self, event: Event) {
        let at = monotonic();
        let Shared { more, .. } = &*self.0.0;
        let mut queue = self.0.0.lock();
        if queue.waiting.len() >= QUEUE {
            queue.waiting.pop_front();
            queue.dropped += 1;
        }
        queue.waiting.push_back((at, event));
        // The thread gathers for a while: it need not be woken for each event.
        if queue.waiting.len() == 1 {
            drop(queue);
            more.notify_one();
        }
    }

    /// What became of the events so far.
    pub fn counts(&self) -> Counts {
        let queue = self.0.0.lock();
        Counts { sent: queue.sent, dropped: queue.dropped, waiting: queue.waiting.len() as u64 }
    }
}

/// The thread.
struct Sender {
    path: PathBuf,
    shared: Arc<Shared>,
}

impl Sender {
    fn run(self) {
        let (mut stream, mut pause) = (None, AGAIN.0);
        loop {
            if !self.wait() {
                return;
            }
            if stream.is_none() {
                match self.connect() {
                    Ok(new) => (stream, pause) = (Some(new), AGAIN.0),
                    Err(_) => {
                        if self.sleep(pause) {
                            return;
                        }
                        pause = (pause * 2).min(AGAIN.1);
                        continue;
                    }
                }
            }
            let (batch, dropped) = self.take();
            let bytes = message::batch(&batch, monotonic(), dropped);
            let sent = stream.as_mut().is_some_and(|stream| stream.write_all(&bytes).is_ok());
            let mut queue = self.shared.lock();
            if sent {
                queue.sent += batch.len() as u64;
            } else {
                // The agent is gone, or it did not read in time: what of the batch arrived is not known.
                queue.dropped += batch.len() as u64;
                stream = None;
            }
        }
    }

    /// Waits for something to send; false at the end, when nothing is left.
    fn wait(&self) -> bool {
        let mut queue = self.shared.lock();
        while queue.waiting.is_empty() {
            if queue.ended {
                return false;
            }
            queue = self.shared.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if !queue.ended && queue.waiting.len() < BATCH {
            drop(queue);
            std::thread::sleep(GATHER);
        }
        true
    }

    /// Sleeps; whether the end has come.
    fn sleep(&self, at_most: Duration) -> bool {
        let queue = self.shared.lock();
        let waited = self.shared.more.wait_timeout_while(queue, at_most, |q| !q.ended);
        waited.map_or_else(|e| e.into_inner().0.ended, |(q, _)| q.ended)
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.path)?;
        stream.set_write_timeout(Some(WRITE_WITHIN))?;
        Ok(stream)
    }

    fn take(&self) -> (Vec<Told>, u64) {
        let mut queue = self.shared.lock();
        let n = queue.waiting.len().min(BATCH);
        (queue.waiting.drain(..n).collect(), queue.dropped)
    }
}

/// Now, in nanoseconds of CLOCK_MONOTONIC.
#[allow(unsafe_code)]
fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live `timespec` to write to; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
