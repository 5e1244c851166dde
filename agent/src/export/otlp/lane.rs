//! One signal's way to its receiver: what waits, what is under way, and what becomes of it.
//!
//! ```text
//! carry ─► inbox (memory, bounded) ─► under way (a few at once) ─► receiver
//!              │  receiver down or slow        │ to be tried again
//!              └──────────► disk (bounded) ◄───┘     ── drained at a bounded rate once the receiver is back
//! ```
//!
//! While the receiver answers nothing touches the disk. After a failure that may be repeated the lane is *down*: what comes is written to disk,
//! and one request at a time tries whether the receiver is back, after a time that doubles, with jitter so that the agents of a cluster do not
//! come all at once. Then the disk is emptied, oldest first, while what is new goes out directly. Metrics keep their order, one request at a
//! time: a store of time series refuses what is older than what it has.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::client::{Client, Failure, Reply};
use super::delivery::{Loss, Part};
use super::disk::{Place, Queue};
use super::inbox::Shared;
use super::parcel::Parcel;

/// A receiver's `Retry-After` is obeyed up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);
/// Between two attempts to write to a disk that failed, and to use a folder that could not be opened.
const DISK_AGAIN: Duration = Duration::from_secs(1);
const OPEN_AGAIN: Duration = Duration::from_secs(10);
/// Between two synchronisations of what is on disk.
const SYNC: Duration = Duration::from_secs(10);
/// What is left of a shutdown's time to write to disk what was not delivered.
const LAST: Duration = Duration::from_millis(300);

/// The receiver does not take anything.
#[derive(Debug)]
struct Down {
    /// The next attempt.
    until: Instant,
    attempts: u32,
    /// The receiver itself said until when.
    told: bool,
}

/// A request under way.
#[derive(Debug)]
struct Flight {
    parcel: Parcel,
    /// Its place on disk, where that is where it came from.
    place: Option<Place>,
    began: Instant,
    /// It tries whether the receiver is back.
    probe: bool,
}

/// One signal's delivery. It runs on a thread of its own.
pub struct Lane {
    shared: Arc<Shared>,
    client: Arc<Client>,
    queue: Option<Queue>,
    /// When a disk that failed may be tried again.
    disk_from: Instant,
    sync_at: Instant,
    tasks: JoinSet<Result<Reply, Failure>>,
    flights: HashMap<Id, Flight>,
    down: Option<Down>,
    /// When the next request of what has waited may go.
    next_old: Instant,
    /// What waits in memory has waited since the receiver was down.
    recovering: bool,
    /// When the last reading was made that is kept although newer ones came, Unix nanoseconds.
    kept: Option<u64>,
    partial: String,
    random: u64,
}

impl Lane {
    /// A lane from `shared` to the receiver of `client`.
    pub fn new(shared: Arc<Shared>, client: Client) -> Self {
        let now = Instant::now();
        Self {
            shared,
            client: Arc::new(client),
            queue: None,
            disk_from: now,
            sync_at: now + SYNC,
            tasks: JoinSet::new(),
            flights: HashMap::new(),
            down: None,
            next_old: now,
            recovering: false,
            kept: None,
            partial: String::new(),
            random: std::collections::hash_map::RandomState::new().build_hasher().finish() | 1,
        }
    }

    /// Until it is told to stop.
    pub async fn run(mut self) {
        let stop = loop {
            if let Some(stop) = self.shared.stopped() {
                break stop;
            }
            let now = Instant::now();
            self.open(now);
            self.put_away(now);
            let wake = self.launch(now, true);
            self.publish(now);
            // Also without any event: a disk may have room again, a folder may be free.
            self.event(wake.unwrap_or(now + OPEN_AGAIN).min(now + OPEN_AGAIN)).await;
        };
        self.finish(stop).await;
    }

    /// Waits for an answer, for something new, or for `wake`.
    async fn event(&mut self, wake: Instant) {
        tokio::select! {
            biased;
            Some(done) = self.tasks.join_next_with_id() => match done {
                Ok((id, result)) => self.settle(id, result),
                Err(error) => self.settle(error.id(), Err(Failure::Again { after: None, what: error.to_string(), timed_out: false })),
            },
            () = self.shared.wake.notified() => {}
            () = sleep_until(wake) => {}
        }
    }

    fn open(&mut self, now: Instant) {
        let Some((folder, bounds)) = &self.shared.policy.disk else { return };
        if self.queue.is_some() || now < self.disk_from {
            return;
        }
        match Queue::open(folder, *bounds) {
            Ok((queue, damage)) => {
                let (signal, items) = (self.shared.signal.name(), queue.items());
                if let Some(damage) = damage {
                    tracing::warn!(signal, "{damage}");
                }
                if items > 0 {
                    tracing::info!(signal, items, "goes on with what waits on disk");
                }
                self.queue = Some(queue);
                self.shared.delivery.say(self.shared.signal, Part::Disk, None);
            }
            Err(error) => self.disk_failed(error.to_string(), now + OPEN_AGAIN),
        }
    }

    fn disk_failed(&mut self, what: String, again: Instant) {
        self.disk_from = again;
        self.shared.delivery.disk_failed(self.shared.signal);
        self.shared.delivery.say(self.shared.signal, Part::Disk, Some(what));
    }

    /// Moves what cannot go out soon out of the way: superseded readings away, the rest to disk, or smaller.
    fn put_away(&mut self, now: Instant) {
        if self.down.is_none() && !self.shared.pressed() {
            return;
        }
        self.shared.thin(&mut self.kept);
        let Some(queue) = self.queue.as_mut().filter(|_| now >= self.disk_from) else { return self.shared.shrink() };
        let mut failed = None;
        loop {
            let Some(parcel) = self.shared.pop_settled() else { break };
            match queue.push(&parcel, wall()) {
                Ok(()) => self.shared.gone(&parcel),
                Err(error) => {
                    self.shared.unpop(parcel);
                    failed = Some(error);
                    break;
                }
            }
        }
        match failed {
            Some(error) => self.disk_failed(error.to_string(), now + DISK_AGAIN),
            None => _ = self.shared.delivery.say(self.shared.signal, Part::Disk, None),
        }
    }

    /// Starts what may go; when to look again.
    fn launch(&mut self, now: Instant, old: bool) -> Option<Instant> {
        loop {
            let policy = &self.shared.policy;
            let limit = if self.down.is_some() { 1 } else { policy.concurrent };
            if self.flights.len() >= limit {
                return None;
            }
            if let Some(down) = self.down.as_ref().filter(|d| now < d.until) {
                return Some(down.until);
            }
            let probe = self.down.is_some();
            let mut wake = None;
            if old && let Some(queue) = self.queue.as_mut().filter(|q| q.waits()) {
                if probe || now >= self.next_old {
                    if let Some((place, parcel)) = queue.take(wall()) {
                        self.next_old = now + policy.pace;
                        self.start(Flight { parcel, place: Some(place), began: now, probe });
                        continue;
                    }
                } else if policy.ordered {
                    return Some(self.next_old);
                } else {
                    wake = Some(self.next_old);
                }
            }
            if self.recovering && !probe && now < self.next_old {
                return Some(self.next_old);
            }
            let Some(parcel) = self.shared.pop() else {
                self.recovering = false;
                return wake;
            };
            if self.recovering {
                self.next_old = now + policy.pace;
            }
            self.start(Flight { parcel, place: None, began: now, probe });
        }
    }

    fn start(&mut self, flight: Flight) {
        let Some(request) = flight.parcel.plain() else {
            self.shared.delivery.lose(self.shared.signal, Loss::Damaged, flight.parcel.items.into());
            self.leave(flight);
            return;
        };
        let client = Arc::clone(&self.client);
        let id = self.tasks.spawn(async move { client.send(request).await }).id();
        self.flights.insert(id, flight);
    }

    /// What became of a request.
    fn settle(&mut self, id: Id, result: Result<Reply, Failure>) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let (now, signal, delivery) = (Instant::now(), self.shared.signal, Arc::clone(&self.shared.delivery));
        delivery.answered(signal, now.duration_since(flight.began), !matches!(result, Err(Failure::Again { .. })));
        let items = u64::from(flight.parcel.items);
        match result {
            Ok(reply) => {
                let rejected = reply.rejected.min(items);
                delivery.deliver(signal, items - rejected);
                delivery.lose(signal, Loss::Rejected, rejected);
                if !reply.message.is_empty() && reply.message != self.partial {
                    tracing::warn!(signal = signal.name(), rejected, "the receiver says: {}", reply.message);
                    self.partial = reply.message;
                }
                delivery.say(signal, Part::Receiver, None);
                self.up();
                self.leave(flight);
            }
            Err(Failure::Refused { what }) => {
                // The receiver is there; it does not want this.
                delivery.lose(signal, Loss::Refused, items);
                delivery.say(signal, Part::Receiver, Some(format!("{what}: {items} items were dropped")));
                self.up();
                self.leave(flight);
            }
            Err(Failure::Again { after, what, timed_out }) => {
                delivery.say(signal, Part::Receiver, Some(what));
                if timed_out {
                    self.client.reconnect();
                }
                self.fail(now, after, flight.probe);
                match flight.place {
                    None => self.shared.unpop(flight.parcel),
                    Some(place) => {
                        if !self.queue.as_mut().is_some_and(|q| q.back(place)) {
                            delivery.lose(signal, Loss::QueueFull, items);
                        }
                    }
                }
            }
        }
    }

    fn up(&mut self) {
        if self.down.take().is_some() {
            (self.recovering, self.kept) = (true, None);
        }
    }

    /// The receiver takes nothing for now.
    fn fail(&mut self, now: Instant, after: Option<Duration>, probe: bool) {
        let attempts = match &self.down {
            // Others that were under way when the first failed say nothing new.
            Some(down) if !probe => down.attempts,
            Some(down) => down.attempts.saturating_add(1),
            None => 1,
        };
        let (first, longest) = self.shared.policy.retry;
        let wait = first.saturating_mul(1 << (attempts - 1).min(16)).min(longest);
        // Half of it is chance.
        let wait = wait / 2 + wait.mul_f64(self.chance() / 2.0);
        let until = now + after.map_or(wait, |a| a.min(LONGEST_WAIT).max(wait));
        let (until, told) =
            self.down.as_ref().map_or((until, after.is_some()), |d| (until.max(d.until), after.is_some() || d.told && !probe));
        self.down = Some(Down { until, attempts, told });
    }

    /// From 0 to 1 (xorshift64).
    fn chance(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A request is done with, whatever became of it.
    fn leave(&mut self, flight: Flight) {
        match (flight.place, &mut self.queue) {
            (Some(place), Some(queue)) => queue.settle(place),
            _ => self.shared.gone(&flight.parcel),
        }
    }

    fn publish(&mut self, now: Instant) {
        let signal = self.shared.signal;
        let Some(queue) = &mut self.queue else { return };
        let dropped = queue.dropped();
        self.shared.delivery.lose(signal, Loss::QueueFull, dropped.full);
        self.shared.delivery.lose(signal, Loss::Expired, dropped.expired);
        self.shared.delivery.lose(signal, Loss::Damaged, dropped.damaged);
        self.shared.delivery.on_disk(signal, queue.items(), queue.bytes());
        if now >= self.sync_at {
            self.sync_at = now + SYNC;
            if let Err(error) = queue.sync() {
                self.disk_failed(error.to_string(), now + DISK_AGAIN);
            }
        }
    }

    /// Delivers what is in memory as long as there is time; what is left goes to disk, and is lost where there is none.
    async fn finish(mut self, stop: Instant) {
        let until = stop.checked_sub(LAST).unwrap_or(stop);
        let (has_disk, ordered) = (self.queue.is_some(), self.shared.policy.ordered);
        // A receiver that is down, or gets older things first: the disk is for that.
        let keep = has_disk && (self.down.is_some() || (ordered && self.queue.as_ref().is_some_and(Queue::waits)));
        if let Some(down) = self.down.as_mut().filter(|d| !d.told) {
            // A last attempt, unless the receiver asked to be left alone.
            down.until = Instant::now();
        }
        self.recovering = false;
        loop {
            if keep {
                break;
            }
            let now = Instant::now();
            let wake = self.launch(now, false).unwrap_or(until).min(until);
            if now >= until || (self.flights.is_empty() && self.shared.is_empty()) {
                break;
            }
            self.event(wake).await;
        }
        self.tasks.abort_all();
        let mut left: Vec<Parcel> =
            std::mem::take(&mut self.flights).into_values().filter(|f| f.place.is_none()).map(|f| f.parcel).collect();
        left.sort_by_key(|p| p.at);
        left.extend(std::iter::from_fn(|| self.shared.pop()));
        let (mut kept, mut lost) = (0, 0);
        for parcel in left {
            self.shared.gone(&parcel);
            let items = u64::from(parcel.items);
            match self.queue.as_mut().map(|queue| queue.push(&parcel, wall())) {
                Some(Ok(())) => kept += items,
                Some(Err(error)) => {
                    self.shared.delivery.disk_failed(self.shared.signal);
                    self.shared.delivery.say(self.shared.signal, Part::Disk, Some(error.to_string()));
                    lost += items;
                }
                None => lost += items,
            }
        }
        self.shared.delivery.lose(self.shared.signal, Loss::Shutdown, lost);
        self.sync_at = Instant::now();
        self.publish(self.sync_at);
        let waiting = self.queue.as_ref().map_or(0, Queue::items);
        if waiting > 0 {
            tracing::info!(signal = self.shared.signal.name(), items = waiting, new = kept, "wait on disk for the next start");
        }
    }
}

/// What waits on disk outlives the process: its age is by the wall clock, in nanoseconds.
pub(super) fn wall() -> u64 {
    crate::clock::wall().unix_nanos()
}
