//! Names by the Kubernetes API: pods of this node by a watch, far ends and owners by questions, the kubelet or nothing where the API is denied.
//!
//! What the service account needs at least (the chart's ClusterRole; a role cannot be narrowed to one node's objects):
//!
//! | group | resource | verbs | for what; without it |
//! |---|---|---|---|
//! | `""` | `pods` | `list`, `watch` | pods of this node by a watch, pods by address by a list; without: `kubelet` or `cgroup` |
//! | `""` | `services` | `list` | services by cluster address; without: they stay unnamed |
//! | `apps` | `replicasets` | `get` | owners that the names do not tell, e.g. Rollouts; without: the ReplicaSet is the workload |
//! | `batch` | `jobs` | `get` | likewise; without: the Job is the workload |
//! | `""` | `nodes/pods` | `get` | the kubelet's list, from Kubernetes 1.33 on (before: `nodes/proxy`, which also lets its holder run commands in pods: not worth it) |
//!
//! No secrets, no configuration maps, no writing. The watch is one connection for each node, filtered by the server (`spec.nodeName`); it goes on where it
//! broke off (`resourceVersion`, bookmarks), and lists anew only when the server has forgotten that place (410 Gone).
//!
//! | mode | names come from | when |
//! |---|---|---|
//! | `api` | the watch | it is allowed and the API server answers |
//! | `kubelet` | the kubelet's own list of its pods, every 10 s or when a name is missed | the API denies, or has not answered for 10 s |
//! | `cgroup` | the process's cgroup: uid of the pod and id of the container, no names | the kubelet does not answer either |
//!
//! What was known stays known in each of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokengauge_core::semconv::{attr, metric};
use tokio::sync::{Notify, mpsc};

use super::book::{Book, Question};
use super::config::{Config, Enabled, Kubelet, Peers, is_node_name};
use super::pod::Keep;
use crate::clock::now;
use crate::export::observe::Tell;

pub mod api;
pub mod questions;
pub mod supervisor;
pub mod watch;

/// Questions that may wait to be asked.
const QUESTIONS: usize = 256;

/// Where names of pods come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Nowhere yet: the agent has just begun.
    Starting,
    /// A watch of the Kubernetes API: as it should be.
    Api,
    /// The kubelet's list of its node's pods.
    Kubelet,
    /// Cgroups: ids, no names.
    Cgroup,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Starting, Self::Api, Self::Kubelet, Self::Cgroup];

    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Api => "api",
            Self::Kubelet => "kubelet",
            Self::Cgroup => "cgroup",
        }
    }
}

/// What is counted since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Records of which at least one end was named.
    pub named: AtomicU64,
    /// Records of which neither was.
    pub unnamed: AtomicU64,
    /// Records that waited for a name.
    pub waited: AtomicU64,
    /// Those of them that waited in vain.
    pub in_vain: AtomicU64,
    /// Lists of pods that were read whole.
    pub lists: AtomicU64,
    /// Watches that were begun or resumed.
    pub watches: AtomicU64,
    /// Events of watches.
    pub events: AtomicU64,
    /// Events that could not be read.
    pub odd_events: AtomicU64,
    /// Requests that failed: no answer, or one that is none.
    pub failures: AtomicU64,
    /// Requests that were denied.
    pub denied: AtomicU64,
    /// Places in a watch that the server had forgotten.
    pub expired: AtomicU64,
    /// Lists of the kubelet.
    pub kubelet_lists: AtomicU64,
}

impl Counts {
    /// Each with its name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        [
            ("named", &self.named),
            ("unnamed", &self.unnamed),
            ("waited", &self.waited),
            ("waited_in_vain", &self.in_vain),
            ("lists", &self.lists),
            ("watches", &self.watches),
            ("events", &self.events),
            ("odd_events", &self.odd_events),
            ("failures", &self.failures),
            ("denied", &self.denied),
            ("expired", &self.expired),
            ("kubelet_lists", &self.kubelet_lists),
        ]
        .into_iter()
        .map(|(name, n)| (name, n.load(Ordering::Relaxed)))
    }
}

/// What the thread that talks to the API and the export thread share.
#[derive(Debug)]
pub struct Shared {
    book: Mutex<Book>,
    mode: Mutex<Mode>,
    questions: mpsc::Sender<Question>,
    /// A name was missed: the kubelet's list may have it by now.
    hurry: Notify,
    /// How often the book changed.
    pub changes: AtomicU64,
    /// What was counted.
    pub counts: Counts,
    settings: Settings,
}

/// What the thread works by.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What is kept of pods; the node among it.
    pub keep: Keep,
    /// How far ends are found.
    pub peers: Peers,
    /// The kubelet's address.
    pub kubelet: Kubelet,
    /// Most pods.
    pub max_pods: usize,
}

impl Settings {
    /// From the configuration and the environment.
    pub fn new(config: &Config, env: &dyn Fn(&str) -> Option<String>) -> Self {
        let set = |name| env(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let node = config.node_name.clone().or_else(|| set("NODE_NAME")).or_else(|| set("K8S_NODE_NAME")).filter(|n| is_node_name(n));
        let mut kubelet = config.kubelet.clone();
        kubelet.endpoint = kubelet.endpoint.or_else(|| {
            let host = set("HOST_IP").or_else(|| node.clone())?;
            // An IPv6 address stands in brackets (RFC 3986 §3.2.2).
            Some(if host.contains(':') { format!("https://[{host}]:10250") } else { format!("https://{host}:10250") })
        });
        Self {
            keep: Keep { labels: config.labels.clone(), annotations: config.annotations.clone(), node },
            peers: config.peers,
            kubelet,
            max_pods: config.max_pods,
        }
    }
}

impl Shared {
    /// With nothing known yet; what is asked comes out at the other end.
    pub fn new(settings: Settings) -> (Arc<Self>, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let shared = Self {
            book: Mutex::new(Book::new(settings.max_pods)),
            mode: Mutex::new(Mode::Starting),
            questions,
            hurry: Notify::new(),
            changes: AtomicU64::new(0),
            counts: Counts::default(),
            settings,
        };
        (Arc::new(shared), asked)
    }

    /// The book, for as long as it takes to look something up or to write a page into it.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the book.
    pub fn write(&self, change: impl FnOnce(&mut Book, Instant)) {
        change(&mut self.book(), now());
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The agent's own node.
    pub fn node(&self) -> Option<&str> {
        self.settings.keep.node.as_deref()
    }

    /// What the thread works by.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where names come from now.
    pub fn mode(&self) -> Mode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where names come from now; whether that is new.
    pub fn set_mode(&self, mode: Mode) -> bool {
        let mut held = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        let new = *held != mode;
        *held = mode;
        drop(held);
        if new {
            // Who waits for a name that cannot come any more goes on.
            self.changes.fetch_add(1, Ordering::Release);
        }
        new
    }

    /// Whether a pod that is not known may be known soon.
    pub fn may_learn(&self) -> bool {
        self.mode() != Mode::Cgroup
    }

    /// A name was missed.
    pub fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Waits until a name is missed.
    pub async fn hurried(&self) {
        self.hurry.notified().await;
    }

    /// Asks, unless too much was asked already.
    pub fn ask(&self, book: &mut Book, question: Question) {
        match self.questions.try_send(question) {
            Ok(()) => book.counts.asked += 1,
            Err(_) => book.counts.not_asked += 1,
        }
    }

    /// One more of those.
    pub fn count(&self, which: impl Fn(&Counts) -> &AtomicU64) {
        which(&self.counts).fetch_add(1, Ordering::Relaxed);
    }

    /// Says how it is: the mode as 1 and the others as 0, pods, what was counted.
    pub fn observe(&self, tell: &mut Tell<'_>) {
        let (mode, (pods, book)) = (self.mode(), {
            let book = self.book();
            (book.pods(), book.counts)
        });
        for each in Mode::ALL {
            tell(&metric::KUBERNETES_MODE, &[(attr::MODE, each.as_str())], f64::from(u8::from(each == mode)));
        }
        tell(&metric::KUBERNETES_PODS, &[], pods as f64);
        let (named, rest): (Vec<_>, Vec<_>) = self.counts.all().partition(|(name, _)| RECORDS.contains(name));
        named.iter().for_each(|(name, n)| tell(&metric::KUBERNETES_RECORDS, &[(attr::RESULT, name)], *n as f64));
        let asked = [
            ("questions", book.asked),
            ("questions_failed", book.failed),
            ("questions_not_asked", book.not_asked),
            ("pods_over_bound", book.over_bound),
        ];
        rest.iter().chain(&asked).for_each(|(name, n)| tell(&metric::KUBERNETES_EVENTS, &[(attr::COUNTER, name)], *n as f64));
    }
}

/// What becomes of records; the other counters are of requests.
const RECORDS: [&str; 4] = ["named", "unnamed", "waited", "waited_in_vain"];

/// Starts the thread that talks to the API, where the configuration and the surroundings want one.
pub fn start(config: &Config, env: &dyn Fn(&str) -> Option<String>) -> Option<Arc<Shared>> {
    let wanted = match config.enabled {
        Enabled::Yes => true,
        Enabled::No => false,
        Enabled::Auto => env("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty()),
    };
    if !wanted {
        return None;
    }
    let (shared, asked) = Shared::new(Settings::new(config, env));
    let theirs = Arc::clone(&shared);
    let started = std::thread::Builder::new().name("kubernetes".into()).spawn(move || supervisor::run(theirs, asked));
    if let Err(error) = started {
        tracing::error!("no names of pods: the system gives no thread: {error}");
        shared.set_mode(Mode::Cgroup);
    }
    Some(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_from_the_configuration_then_from_the_environment() {
        let of = |config: &Config, vars: &[(&str, &str)]| {
            let env = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            let settings = Settings::new(config, &env);
            (settings.keep.node, settings.kubelet.endpoint)
        };
        let text = |t: &str| Some(t.to_owned());
        let usual = Config::default();
        assert_eq!(of(&usual, &[]), (None, None));
        assert_eq!(of(&usual, &[("K8S_NODE_NAME", "n1")]), (text("n1"), text("https://n1:10250")));
        assert_eq!(
            of(&usual, &[("NODE_NAME", "n2"), ("K8S_NODE_NAME", "n1"), ("HOST_IP", "fd00::1")]),
            (text("n2"), text("https://[fd00::1]:10250"))
        );
        assert_eq!(of(&usual, &[("NODE_NAME", "n 2")]), (None, None), "what is no node's name would not be what is asked for");
        let set =
            Config { node_name: text("n3"), kubelet: Kubelet { endpoint: text("https://k:1"), ..Kubelet::default() }, ..Config::default() };
        assert_eq!(of(&set, &[("NODE_NAME", "n2"), ("HOST_IP", "10.0.0.1")]), (text("n3"), text("https://k:1")));
    }

    #[test]
    fn it_starts_where_it_is_wanted_only() {
        let nothing = |_: &str| None;
        assert!(start(&Config::default(), &nothing).is_none());
        let in_a_pod = |name: &str| (name == "KUBERNETES_SERVICE_HOST").then(|| "10.96.0.1".to_owned());
        assert!(start(&Config { enabled: Enabled::No, ..Config::default() }, &in_a_pod).is_none());
    }
}
