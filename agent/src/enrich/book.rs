//! Who is who, as of now: pods by uid, container and address, far ends that were asked for, and what the API said of owners. Bounded everywhere, no I/O, no clock.
//!
//! A pod that vanished is kept a little while, so that a record that ends late is named; its address is its own until another pod has it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use tokengauge_core::name::Name;
use tokengauge_core::workload::{Container, Owner, Workload};

use super::pod::{Above, Pod};

/// How long a pod that is gone is kept.
pub const LINGER: Duration = Duration::from_secs(300);

/// How long a pod that gave up its address may still use it.
const LEAVING: Duration = Duration::from_secs(5);

/// Most pods that are gone and still kept.
const MAX_GONE: usize = 1_000;

/// Far ends that are remembered.
const MAX_PEERS: usize = 4_096;

/// Owners that are remembered.
const MAX_OWNERS: usize = 4_096;

/// How long an answer about a far end counts, and how old it may be when it is asked for again behind the scenes.
const PEER_FRESH: Duration = Duration::from_secs(60);
const PEER_RENEW: Duration = Duration::from_secs(30);

/// How long "nobody has this address" counts: a pod may get it at any time.
const NOBODY_FRESH: Duration = Duration::from_secs(15);

/// How long an answer counts while the API cannot be reached: without it, hardly any address changes hands.
const PEER_STALE: Duration = Duration::from_secs(600);

/// An unanswered question is asked again after this.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// An owner of which the API would not, or could not, tell is asked for again after this.
const OWNER_AGAIN: Duration = Duration::from_secs(60);

/// What a look-up says.
#[derive(Clone, PartialEq, Debug)]
pub enum Found {
    /// This one.
    Is(Arc<Workload>),
    /// Nobody that is known.
    Nobody,
    /// Somebody is being asked.
    Asked,
}

/// What is to be asked of the API.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Question {
    /// Whose is this address?
    Address(IpAddr),
    /// What owns this owner?
    Owner(Above),
}

/// An answer about a far end.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// It is this one.
    Is(Arc<Workload>),
    /// It is nobody's.
    Nobody,
    /// The API did not answer.
    Failed,
}

#[derive(Debug, Default)]
struct Peer {
    /// The last answer that was one, and when it came.
    answer: Option<(Instant, Option<Arc<Workload>>)>,
    /// When it was asked for, until it is answered.
    asked: Option<Instant>,
    /// Whether the last question failed.
    failed: bool,
    used: Option<Instant>,
}

/// What was counted since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Pods that were left out because there were too many.
    pub over_bound: u64,
    /// Questions that were not asked because there were too many.
    pub not_asked: u64,
    /// Questions that were asked.
    pub asked: u64,
    /// Questions that were not answered.
    pub failed: u64,
}

/// Who is who.
#[derive(Debug)]
pub struct Book {
    pods: FxHashMap<Name, Arc<Pod>>,
    containers: FxHashMap<Name, Arc<Pod>>,
    mirrors: FxHashMap<Name, Arc<Pod>>,
    ips: FxHashMap<IpAddr, Arc<Pod>>,
    gone: FxHashMap<Name, Instant>,
    gone_order: VecDeque<(Instant, Name)>,
    /// When a pod gave up its addresses: it ended, or is gone.
    released: FxHashMap<Name, Instant>,
    peers: FxHashMap<IpAddr, Peer>,
    owners: FxHashMap<Name, Option<Owner>>,
    /// When, and whether the answer was none.
    owners_asked: FxHashMap<Name, (Instant, bool)>,
    limit: usize,
    /// What was counted.
    pub counts: Counts,
}

impl Book {
    /// A book of at most `limit` pods.
    pub fn new(limit: usize) -> Self {
        Self {
            pods: FxHashMap::default(),
            containers: FxHashMap::default(),
            mirrors: FxHashMap::default(),
            ips: FxHashMap::default(),
            gone: FxHashMap::default(),
            gone_order: VecDeque::new(),
            released: FxHashMap::default(),
            peers: FxHashMap::default(),
            owners: FxHashMap::default(),
            owners_asked: FxHashMap::default(),
            limit,
            counts: Counts::default(),
        }
    }

    /// Pods that exist.
    pub fn pods(&self) -> usize {
        self.pods.len().saturating_sub(self.gone.len())
    }

    /// A pod as it is now.
    pub fn put(&mut self, mut pod: Pod, now: Instant) {
        if let Some(top) = pod.above.as_ref().and_then(|above| self.owners.get(&above.uid)) {
            pod = pod.owned_by(top.as_ref());
        }
        if !pod.ips.is_empty() {
            self.released.remove(&pod.uid);
        }
        match self.pods.get(&pod.uid).cloned() {
            Some(before) => {
                if pod.ips.is_empty() && !pod.host_network && !before.ips.is_empty() {
                    // It has ended. Its address leads to it until another pod has it: its last records come now.
                    self.released.entry(pod.uid.clone()).or_insert(now);
                    pod.ips = before.ips.iter().filter(|ip| self.ips.get(ip).is_some_and(|p| p.uid == pod.uid)).copied().collect();
                }
                self.unlink(&before, Some(&pod));
            }
            // What is gone makes room first.
            None if self.pods.len() >= self.limit && !self.drop_oldest() => {
                self.counts.over_bound += 1;
                return;
            }
            None => {}
        }
        self.gone.remove(&pod.uid);
        let pod = Arc::new(pod);
        for ip in &pod.ips {
            self.ips.insert(*ip, Arc::clone(&pod));
            // Whoever had that address before: it is a pod of ours now.
            self.peers.remove(ip);
        }
        for (id, _) in &pod.containers {
            self.containers.insert(id.clone(), Arc::clone(&pod));
        }
        if let Some(hash) = &pod.mirrors {
            self.mirrors.insert(hash.clone(), Arc::clone(&pod));
        }
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// Forgets the pod that has been gone longest; whether there was one.
    fn drop_oldest(&mut self) -> bool {
        while let Some((at, uid)) = self.gone_order.pop_front() {
            // One that came back is not gone; left again, it stands further behind.
            if self.gone.get(&uid) == Some(&at) {
                self.forget(&uid);
                return true;
            }
        }
        false
    }

    /// A pod that is no more.
    pub fn gone(&mut self, uid: &Name, now: Instant) {
        if !self.pods.contains_key(uid) || self.gone.contains_key(uid) {
            return;
        }
        self.gone.insert(uid.clone(), now);
        self.released.entry(uid.clone()).or_insert(now);
        self.gone_order.push_back((now, uid.clone()));
        self.expire(now);
    }

    /// Whoever is not among these is no more: the end of a list, of all pods or of those of a node.
    pub fn only(&mut self, uids: &FxHashSet<Name>, node: Option<&str>, now: Instant) {
        let meant = |pod: &Pod| node.is_none_or(|node| pod.workload.node.as_ref().is_some_and(|n| n.as_str() == node));
        let gone = self.pods.iter().filter(|(uid, pod)| !uids.contains(*uid) && !self.gone.contains_key(*uid) && meant(pod));
        let gone: Vec<Name> = gone.map(|(uid, _)| uid.clone()).collect();
        gone.iter().for_each(|uid| self.gone(uid, now));
    }

    /// Forgets what was kept long enough.
    pub fn expire(&mut self, now: Instant) {
        while self.gone_order.front().is_some_and(|(at, uid)| {
            let back = self.gone.get(uid) != Some(at);
            back || now.saturating_duration_since(*at) > LINGER || self.gone.len() > MAX_GONE
        }) {
            if let Some((at, uid)) = self.gone_order.pop_front()
                && self.gone.get(&uid) == Some(&at)
            {
                self.forget(&uid);
            }
        }
    }

    fn forget(&mut self, uid: &Name) {
        self.gone.remove(uid);
        self.released.remove(uid);
        if let Some(pod) = self.pods.remove(uid) {
            self.unlink(&pod, None);
        }
    }

    /// Takes what leads to a pod out of the indices, unless it leads to another by now or will lead to `next`.
    fn unlink(&mut self, pod: &Pod, next: Option<&Pod>) {
        for ip in pod.ips.iter().filter(|ip| next.is_none_or(|n| !n.ips.contains(ip))) {
            if self.ips.get(ip).is_some_and(|p| p.uid == pod.uid) {
                self.ips.remove(ip);
            }
        }
        let stays = |id: &Name| next.is_some_and(|n| n.containers.iter().any(|(other, _)| other == id));
        for (id, _) in pod.containers.iter().filter(|(id, _)| !stays(id)) {
            self.containers.remove(id);
        }
        if let Some(hash) = pod.mirrors.as_ref().filter(|hash| next.is_none_or(|n| n.mirrors.as_ref() != Some(*hash))) {
            self.mirrors.remove(hash);
        }
    }

    /// The pod of a container.
    pub fn pod_of(&self, container: &Container) -> Option<&Arc<Pod>> {
        let by_id = container.id.as_ref().and_then(|id| self.containers.get(id));
        let by_uid = || container.pod_uid.as_ref().and_then(|uid| self.pods.get(uid).or_else(|| self.mirrors.get(uid)));
        by_id.or_else(by_uid)
    }

    /// The pod of an address, for what began at `began`, and whether that is settled: of one that gave it up shortly before (a pod that is
    /// deleted by force runs on until the kubelet ends it), the address may be another's of which the API tells any moment; later it is.
    pub fn pod_at(&self, ip: IpAddr, began: Instant) -> Option<(&Arc<Pod>, bool)> {
        let pod = self.ips.get(&ip)?;
        match self.released.get(&pod.uid) {
            None => Some((pod, true)),
            Some(at) if began <= *at => Some((pod, true)),
            Some(at) => (began.saturating_duration_since(*at) <= LEAVING).then_some((pod, false)),
        }
    }

    /// Who has an address that no watched pod has, and what to ask for that.
    pub fn peer(&mut self, ip: IpAddr, now: Instant) -> (Found, Option<Question>) {
        if !self.peers.contains_key(&ip) && self.peers.len() >= MAX_PEERS {
            self.peers.retain(|_, peer| peer.used.is_some_and(|at| now.saturating_duration_since(at) < PEER_STALE));
            if self.peers.len() >= MAX_PEERS {
                self.counts.not_asked += 1;
                return (Found::Nobody, None);
            }
        }
        let peer = self.peers.entry(ip).or_default();
        peer.used = Some(now);
        let since = |at: Instant| now.saturating_duration_since(at);
        let age = peer.answer.as_ref().map(|(at, _)| since(*at));
        let known = peer.answer.as_ref().and_then(|(_, who)| who.clone());
        let fresh = if known.is_some() { PEER_FRESH } else { NOBODY_FRESH };
        let pending = peer.asked.is_some_and(|at| since(at) < ASK_AGAIN);
        let renew = age.is_none_or(|age| age > PEER_RENEW || age > fresh);
        let question = (renew && !pending).then(|| {
            peer.asked = Some(now);
            Question::Address(ip)
        });
        let waits = peer.asked.is_some() && !peer.failed;
        let found = match (known, age) {
            (Some(who), Some(age)) if age <= fresh || peer.failed && age <= PEER_STALE => Found::Is(who),
            (None, Some(age)) if age <= fresh => Found::Nobody,
            _ if waits => Found::Asked,
            _ => Found::Nobody,
        };
        (found, question)
    }

    /// What the API says of a far end.
    pub fn answer(&mut self, ip: IpAddr, answer: Answer, now: Instant) {
        let Some(peer) = self.peers.get_mut(&ip) else { return };
        peer.failed = answer == Answer::Failed;
        match answer {
            Answer::Is(who) => peer.answer = Some((now, Some(who))),
            Answer::Nobody => peer.answer = Some((now, None)),
            // Asked again when `ASK_AGAIN` is over.
            Answer::Failed => {
                self.counts.failed += 1;
                return;
            }
        }
        peer.asked = None;
    }

    /// What to ask for what owns a pod's owner, and whether an answer may come soon.
    pub fn owner(&mut self, above: &Above, now: Instant) -> (bool, Option<Question>) {
        let since = |at: Instant| now.saturating_duration_since(at);
        match self.owners_asked.get(&above.uid) {
            Some((at, true)) if since(*at) < OWNER_AGAIN => return (false, None),
            Some((at, false)) if since(*at) < ASK_AGAIN => return (true, None),
            _ => {}
        }
        if self.owners_asked.len() >= MAX_OWNERS {
            self.owners_asked.clear();
        }
        self.owners_asked.insert(above.uid.clone(), (now, false));
        (true, Some(Question::Owner(above.clone())))
    }

    /// What the API says of an owner's owner: `Some(None)` is "nobody", `None` no answer. Every pod that it owns has the new name from now on.
    pub fn answer_owner(&mut self, above: &Above, top: Option<Option<Owner>>, now: Instant) {
        let Some(top) = top else {
            self.counts.failed += 1;
            self.owners_asked.insert(above.uid.clone(), (now, true));
            return;
        };
        self.owners_asked.remove(&above.uid);
        if self.owners.len() >= MAX_OWNERS {
            self.owners.clear();
        }
        self.owners.insert(above.uid.clone(), top);
        let owned = |p: &&Arc<Pod>| p.above.as_ref().is_some_and(|a| a.uid == above.uid);
        let pods: Vec<Arc<Pod>> = self.pods.values().filter(owned).cloned().collect();
        for pod in pods {
            let gone = self.gone.get(&pod.uid).copied();
            self.put((*pod).clone(), now);
            if let Some(at) = gone {
                self.gone.insert(pod.uid.clone(), at);
            }
        }
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
