//! Who the two ends of a finished inference are: pod, workload, container.
//!
//! ```text
//! kubernetes thread   API (watch, questions) or kubelet ─► Book ◄─ look-ups ─ Enricher   on the export thread
//! tap                 /proc/PID/cgroup when a process is first seen ─────────────┘
//! ```
//!
//! The end that was tapped is found by its process's cgroup, the other by its address. A look-up is a few hash tables under a lock that nobody holds during I/O, so that
//! neither taps nor the export thread ever wait for the API. What is not in the book yet is asked for, and the record waits for the answer beside the others, `wait_ms` at
//! most (2 s), [`MAX_WAITING`] records at most: a pod's first record mostly ends seconds after its pod was told of, so few wait at all. Who waited in vain once does not wait
//! again for a minute. Records that waited come after those that did not.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tokengauge_core::inference::{Inference, Vantage};
use tokengauge_core::name::Name;
use tokengauge_core::stream::Timestamp;
use tokengauge_core::workload::{Container, Workload};

pub mod book;
pub mod config;
pub mod kubernetes;
pub mod pod;
pub mod procfs;

use book::{Book, Found};
use config::Network;
use kubernetes::Shared;
use pod::Pod;

/// Most records that wait for a name at once; beyond, the one that has waited longest goes on unnamed.
pub const MAX_WAITING: usize = 1_024;

/// How long a container that was waited for in vain is not waited for again.
const MISSED: Duration = Duration::from_secs(60);

/// Most of those.
const MAX_MISSED: usize = 1_024;

/// How often those that wait are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Names the ends of finished inferences, on the export thread.
pub struct Enricher {
    shared: Option<Arc<Shared>>,
    networks: Vec<Network>,
    peers: bool,
    node: Option<Name>,
    wait: Duration,
    waiting: VecDeque<(Instant, Box<Inference>)>,
    missed: FxHashMap<Name, Instant>,
    looked: Option<Instant>,
    /// The state of the book when those that wait were last looked at.
    seen: u64,
}

/// What an end is: who, or whether an answer may come.
struct End {
    who: Option<Arc<Workload>>,
    /// Somebody was asked.
    soon: bool,
}

impl Enricher {
    /// What the configuration asks for: with Kubernetes a thread that watches its API, without it names by cgroup alone.
    pub fn start(config: &config::Config, env: &dyn Fn(&str) -> Option<String>) -> Self {
        Self::new(config, kubernetes::start(config, env))
    }

    /// With names from `shared`.
    pub fn new(config: &config::Config, shared: Option<Arc<Shared>>) -> Self {
        let mut networks = config::private_networks();
        networks.extend(config.networks.iter().filter_map(|text| config::network(text)));
        Self {
            node: shared.as_ref().and_then(|s| s.node()).and_then(Name::new),
            shared,
            networks,
            peers: config.peers != config::Peers::Off,
            wait: config.wait(),
            waiting: VecDeque::new(),
            missed: FxHashMap::default(),
            looked: None,
            seen: 0,
        }
    }

    /// What it has to do with Kubernetes, for whoever shows how that is.
    pub fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.clone()
    }

    /// A finished inference, named; `None`: it waits. `wall` is the time of day at `now`.
    pub fn push(&mut self, mut inference: Box<Inference>, now: Instant, wall: Timestamp) -> Option<Box<Inference>> {
        let soon = self.name(&mut inference, now, wall, false);
        if !soon || self.wait.is_zero() {
            return Some(inference);
        }
        self.count(|c| &c.waited);
        self.waiting.push_back((now + self.wait, inference));
        if self.waiting.len() <= MAX_WAITING {
            return None;
        }
        let (_, mut oldest) = self.waiting.pop_front()?;
        self.count(|c| &c.in_vain);
        self.name(&mut oldest, now, wall, true);
        Some(oldest)
    }

    /// Those that have a name now, or have waited long enough.
    pub fn due(&mut self, now: Instant, wall: Timestamp, out: &mut Vec<Box<Inference>>) {
        let Some(shared) = self.shared.as_ref().filter(|_| !self.waiting.is_empty()) else { return };
        if self.looked.is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            return;
        }
        self.looked = Some(now);
        let state = shared.changes.load(Ordering::Acquire);
        let changed = std::mem::replace(&mut self.seen, state) != state;
        for _ in 0..self.waiting.len() {
            let Some((until, mut inference)) = self.waiting.pop_front() else { break };
            let over = now >= until;
            if over {
                self.count(|c| &c.in_vain);
            }
            if (over || changed) && !self.name(&mut inference, now, wall, over) {
                out.push(inference);
            } else {
                self.waiting.push_back((until, inference));
            }
        }
    }

    /// Those that wait still, as they are: the agent ends.
    pub fn rest(&mut self, now: Instant, wall: Timestamp) -> Vec<Box<Inference>> {
        let mut rest: Vec<_> = self.waiting.drain(..).map(|(_, inference)| inference).collect();
        rest.iter_mut().for_each(|inference| {
            self.name(inference, now, wall, true);
        });
        rest
    }

    fn count(&self, which: impl Fn(&kubernetes::Counts) -> &std::sync::atomic::AtomicU64) {
        if let Some(shared) = &self.shared {
            which(&shared.counts).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Fills in who both ends are, as far as it is known; whether more may be known soon.
    fn name(&mut self, i: &mut Inference, now: Instant, wall: Timestamp, last: bool) -> bool {
        let container = i.process.as_ref().and_then(|p| p.container.clone());
        let tapped = i.process.is_some();
        let began = now.checked_sub(wall.since(i.timing.start)).unwrap_or(now);
        let (own_at, far_at) = if i.vantage == Vantage::Server { (i.server, i.client) } else { (i.client, i.server) };
        let Some(shared) = self.shared.clone() else {
            let own = container.map(|c| Arc::new(self.by_cgroup(&c)));
            Self::fill(i, own, None);
            return false;
        };
        let (own, far);
        {
            let mut book = shared.book();
            own = match &container {
                Some(container) => self.by_container(&mut book, &shared, container, now, last),
                // A process of the host has the host's address, which leads to no pod.
                None if tapped => End {
                    who: self.watched(&mut book, &shared, own_at, began, now).map(|(_, end)| end.who).unwrap_or_default(),
                    soon: false,
                },
                None => self.by_address(&mut book, &shared, own_at, began, now),
            };
            let local = far_at.is_some_and(|a| a.ip().to_canonical().is_loopback());
            far = if local {
                // A pod's own network is shared by nobody else. Which of its containers it was is not known.
                let pod = container.as_deref().and_then(|c| book.pod_of(c)).filter(|p| !p.host_network);
                End { who: pod.map(|p| Arc::clone(&p.workload)), soon: false }
            } else {
                self.by_address(&mut book, &shared, far_at, began, now)
            };
        }
        let soon = (own.soon || far.soon) && !last;
        if !soon {
            let named = usize::from(own.who.as_ref().is_some_and(|w| w.pod.is_some())) + usize::from(far.who.is_some());
            self.count(|c| if named > 0 { &c.named } else { &c.unnamed });
        }
        Self::fill(i, own.who, far.who);
        soon
    }

    fn fill(i: &mut Inference, own: Option<Arc<Workload>>, far: Option<Arc<Workload>>) {
        (i.client_workload, i.server_workload) = if i.vantage == Vantage::Server { (far, own) } else { (own, far) };
    }

    /// What the cgroup alone says.
    fn by_cgroup(&self, container: &Container) -> Workload {
        let node = self.node.clone().filter(|_| container.pod_uid.is_some());
        Workload { pod_uid: container.pod_uid.clone(), container_id: container.id.clone(), node, ..Workload::default() }
    }

    /// The pod of a container of this node.
    fn by_container(&mut self, book: &mut Book, shared: &Shared, container: &Container, now: Instant, last: bool) -> End {
        let Some(pod) = book.pod_of(container).cloned() else {
            let Some(key) = container.id.as_ref().or(container.pod_uid.as_ref()) else { return End { who: None, soon: false } };
            if last {
                if self.missed.len() >= MAX_MISSED {
                    self.missed.clear();
                }
                self.missed.insert(key.clone(), now);
            }
            let in_vain = self.missed.get(key).is_some_and(|at| now.saturating_duration_since(*at) < MISSED);
            let soon = !in_vain && shared.may_learn();
            if soon {
                shared.hurry();
            }
            return End { who: Some(Arc::new(self.by_cgroup(container))), soon };
        };
        let soon = Self::owner(book, shared, &pod, now);
        let known = container.id.as_ref().and_then(|id| pod.containers.iter().find(|(other, _)| other == id));
        let who = match known {
            Some((_, workload)) => Arc::clone(workload),
            // The pod's status does not have the container yet.
            None => Arc::new(Workload { container_id: container.id.clone(), ..(*pod.workload).clone() }),
        };
        End { who: Some(who), soon }
    }

    /// Whether the name of what owns the pod's owner may come soon.
    fn owner(book: &mut Book, shared: &Shared, pod: &Pod, now: Instant) -> bool {
        let Some(above) = &pod.above else { return false };
        let (soon, question) = book.owner(above, now);
        if let Some(question) = question {
            shared.ask(book, question);
        }
        soon
    }

    /// A pod that is watched, by its address.
    fn watched(&self, book: &mut Book, shared: &Shared, at: Option<SocketAddr>, began: Instant, now: Instant) -> Option<(IpAddr, End)> {
        let ip = at?.ip().to_canonical();
        let Some((pod, settled)) = book.pod_at(ip, began).map(|(pod, settled)| (Arc::clone(pod), settled)) else {
            return Some((ip, End { who: None, soon: false }));
        };
        let soon = Self::owner(book, shared, &pod, now) || !settled;
        Some((ip, End { who: Some(Arc::clone(&pod.workload)), soon }))
    }

    /// Whoever has an address, in this node or elsewhere in the cluster.
    fn by_address(&self, book: &mut Book, shared: &Shared, at: Option<SocketAddr>, began: Instant, now: Instant) -> End {
        let Some((ip, end)) = self.watched(book, shared, at, began, now) else { return End { who: None, soon: false } };
        if end.who.is_some() || !self.peers || !self.networks.iter().any(|n| n.holds(ip)) {
            return end;
        }
        let (found, question) = book.peer(ip, now);
        if let Some(question) = question {
            shared.ask(book, question);
        }
        match found {
            Found::Is(who) => End { who: Some(who), soon: false },
            Found::Nobody => End { who: None, soon: false },
            Found::Asked => End { who: None, soon: true },
        }
    }
}

#[cfg(test)]
mod tests;
