//! What waits in memory for one signal's [`super::lane`], bounded: fed by whoever makes requests, emptied by the lane.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::carrier::Signal;
use super::delivery::{Delivery, Loss};
use super::disk::Bounds;
use super::parcel::Parcel;

/// How a lane behaves.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Requests that may be under way at once.
    pub concurrent: usize,
    /// Whether requests must arrive in the order in which they were made.
    pub ordered: bool,
    /// Bytes that may wait in memory.
    pub memory_bytes: usize,
    /// Items that may wait in memory, where that is bounded too.
    pub max_items: Option<u64>,
    /// Distance of the readings of cumulative metrics that are kept while they cannot be delivered.
    pub readings: Duration,
    /// Time between two requests from what has waited.
    pub pace: Duration,
    /// First and longest time between two attempts.
    pub retry: (Duration, Duration),
    /// The folder for what waits, and its bounds.
    pub disk: Option<(PathBuf, Bounds)>,
}

/// What a lane and those who feed it share.
#[derive(Debug)]
pub struct Shared {
    /// The lane's signal.
    pub signal: Signal,
    /// How its lane behaves.
    pub policy: Policy,
    inbox: Mutex<Inbox>,
    /// Wakes the lane: there is something new.
    pub wake: Notify,
    /// What is counted.
    pub delivery: Arc<Delivery>,
}

/// What waits.
#[derive(Debug, Default)]
struct Inbox {
    parcels: VecDeque<Parcel>,
    bytes: usize,
    items: u64,
    /// Readings so far; 0 before the first.
    reading: u64,
    /// When everything must have ended.
    stop: Option<Instant>,
}

impl Inbox {
    fn pop(&mut self) -> Option<Parcel> {
        let parcel = self.parcels.pop_front()?;
        self.bytes -= parcel.size();
        self.items -= u64::from(parcel.items);
        Some(parcel)
    }

    fn add(&mut self, parcel: &Parcel) {
        self.bytes += parcel.size();
        self.items += u64::from(parcel.items);
    }
}

impl Shared {
    /// What a lane of `signal` is fed through.
    pub fn new(signal: Signal, policy: Policy, delivery: Arc<Delivery>) -> Self {
        Self { signal, policy, inbox: Mutex::default(), wake: Notify::new(), delivery }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request that was made at `at`, Unix nanoseconds. When too much waits the oldest goes.
    pub fn put(&self, request: Vec<u8>, items: u32, at: u64) {
        let mut inbox = self.lock();
        let reading = Some(inbox.reading).filter(|n| *n > 0);
        let parcel = Parcel::new(request, items, at, reading);
        self.delivery.hold(self.signal, items.into(), parcel.size());
        inbox.add(&parcel);
        inbox.parcels.push_back(parcel);
        self.trim(&mut inbox);
        drop(inbox);
        self.wake.notify_one();
    }

    /// What comes from here on is a new reading of everything cumulative.
    pub fn reading(&self) {
        self.lock().reading += 1;
    }

    /// Says that everything must have ended by then.
    pub fn stop(&self, by: Instant) {
        self.lock().stop = Some(by);
        self.wake.notify_one();
    }

    fn trim(&self, inbox: &mut Inbox) {
        let over = |inbox: &Inbox| inbox.bytes > self.policy.memory_bytes || self.policy.max_items.is_some_and(|n| inbox.items > n);
        while inbox.parcels.len() > 1 && over(inbox) {
            if let Some(parcel) = inbox.pop() {
                self.gone(&parcel);
                self.delivery.lose(self.signal, Loss::QueueFull, parcel.items.into());
            }
        }
    }

    /// A parcel waits in memory no longer.
    pub fn gone(&self, parcel: &Parcel) {
        self.delivery.release(self.signal, parcel.items.into(), parcel.size());
    }

    /// The oldest parcel.
    pub fn pop(&self) -> Option<Parcel> {
        self.lock().pop()
    }

    /// The oldest parcel, unless a newer reading may make it expendable yet.
    pub fn pop_settled(&self) -> Option<Parcel> {
        let mut inbox = self.lock();
        inbox.parcels.front().is_some_and(|p| p.reading.is_none()).then(|| inbox.pop()).flatten()
    }

    /// Whether nothing waits here.
    pub fn is_empty(&self) -> bool {
        self.lock().parcels.is_empty()
    }

    /// When everything must have ended, once that is known.
    pub fn stopped(&self) -> Option<Instant> {
        self.lock().stop
    }

    /// Packs everything, because it will wait for long.
    pub fn shrink(&self) {
        let mut inbox = self.lock();
        let before = inbox.bytes;
        inbox.parcels.iter_mut().for_each(Parcel::shrink);
        inbox.bytes = inbox.parcels.iter().map(Parcel::size).sum();
        let less = before.saturating_sub(inbox.bytes);
        drop(inbox);
        self.delivery.release(self.signal, 0, less);
    }

    /// Puts a parcel back where it came from.
    pub fn unpop(&self, parcel: Parcel) {
        let mut inbox = self.lock();
        inbox.add(&parcel);
        inbox.parcels.push_front(parcel);
        self.trim(&mut inbox);
    }

    /// Whether much waits: the receiver is slower than what comes.
    pub fn pressed(&self) -> bool {
        self.lock().bytes > self.policy.memory_bytes / 2
    }

    /// Of readings that a newer one has followed, keeps one in so much time. What is kept is expendable no longer. `kept` is when the last one was
    /// made that was kept, Unix nanoseconds.
    pub fn thin(&self, kept: &mut Option<u64>) {
        let every = u64::try_from(self.policy.readings.as_nanos()).unwrap_or(u64::MAX);
        let mut inbox = self.lock();
        let (newest, mut deciding) = (inbox.reading, None);
        if inbox.parcels.iter().all(|p| p.reading.is_none_or(|r| r == newest)) {
            return;
        }
        let (all, mut superseded) = (std::mem::take(&mut inbox.parcels), Vec::new());
        for mut parcel in all {
            if let Some(reading) = parcel.reading.filter(|r| *r != newest) {
                let keep = match deciding {
                    Some((of, keep)) if of == reading => keep,
                    _ => kept.is_none_or(|kept| parcel.at.saturating_sub(kept) >= every),
                };
                deciding = Some((reading, keep));
                if !keep {
                    superseded.push(parcel);
                    continue;
                }
                *kept = Some(parcel.at);
                parcel.reading = None;
            }
            inbox.parcels.push_back(parcel);
        }
        for parcel in &superseded {
            inbox.bytes -= parcel.size();
            inbox.items -= u64::from(parcel.items);
        }
        drop(inbox);
        for parcel in superseded {
            self.gone(&parcel);
            self.delivery.lose(self.signal, Loss::Superseded, parcel.items.into());
        }
    }
}
