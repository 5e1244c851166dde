//! Keeps the watch going, and looks for names elsewhere while it does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use tokio::sync::mpsc::Receiver;

use super::api::{Api, ApiError, connect};
use super::watch::{Watch, of_kubelet};
use super::{Mode, Shared, questions};
use crate::clock::now;
use crate::enrich::book::Question;

/// The first wait after a failure; it doubles up to the last.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LAST_WAIT: Duration = Duration::from_secs(30);

/// A watch that lasted so long was a good one.
const LASTS: Duration = Duration::from_secs(5);

/// A right that was denied is asked for again after this: somebody may have given it.
const DENIED_WAIT: Duration = Duration::from_secs(60);

/// How long the API may be silent before the kubelet is asked.
const SILENT: Duration = Duration::from_secs(10);

/// How often the kubelet is asked, and how often at most when a name is missed.
const KUBELET_EVERY: Duration = Duration::from_secs(10);
const KUBELET_AT_MOST: Duration = Duration::from_secs(1);

/// A kubelet that denied, or did not answer, is asked again after this.
const KUBELET_AGAIN: Duration = Duration::from_secs(60);

/// A watch that cannot be resumed so often lists anew: a server with an older state (restored from a backup) never comes to that place.
const RESUMES: u32 = 5;

/// The thread's function. It ends with the process.
pub fn run(shared: Arc<Shared>, asked: Receiver<Question>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("no names of pods: {error}");
            shared.set_mode(Mode::Cgroup);
            return;
        }
    };
    runtime.block_on(Supervisor::new(shared).run(asked));
}

struct Supervisor {
    shared: Arc<Shared>,
    /// The API's configuration: the kubelet takes the same token.
    config: Option<kube::Config>,
    kubelet: Option<Api>,
    kubelet_asked: Option<Instant>,
    kubelet_failed: Option<Instant>,
    /// What was said already, so that it is said once each time it begins.
    said: FxHashSet<String>,
}

impl Supervisor {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, config: None, kubelet: None, kubelet_asked: None, kubelet_failed: None, said: FxHashSet::default() }
    }

    async fn run(mut self, asked: Receiver<Question>) {
        let api = loop {
            match self.connect().await {
                Ok(api) => break api,
                Err(what) => {
                    self.warn(&format!("no way to the API: {what}"));
                    self.meanwhile(LAST_WAIT).await;
                }
            }
        };
        tokio::spawn(questions::answer(api.clone(), Arc::clone(&self.shared), asked));
        let settings = self.shared.settings();
        let Some(mut watch) = Watch::new(settings.keep.node.as_deref(), settings.peers) else {
            self.warn("the name of this node is not known, so that its pods cannot be watched: set NODE_NAME (the downward API's spec.nodeName) or kubernetes.node_name");
            loop {
                self.meanwhile(DENIED_WAIT).await;
            }
        };
        self.follow(&api, &mut watch).await;
    }

    /// A client by the pod's service account, or by KUBECONFIG.
    async fn connect(&mut self) -> Result<Api, String> {
        let (api, config) = connect().await?;
        self.config = Some(config);
        Ok(api)
    }

    /// For ever.
    async fn follow(&mut self, api: &Api, watch: &mut Watch) {
        let (mut wait, mut silent, mut resumes) = (FIRST_WAIT, None, 0);
        loop {
            let shared = Arc::clone(&self.shared);
            let (mut opened, began) = (false, now());
            let ended = watch
                .follow(api, &shared, || {
                    opened = true;
                    if shared.set_mode(Mode::Api) {
                        tracing::info!("kubernetes: {} pods are watched", shared.book().pods());
                    }
                })
                .await;
            if opened {
                (silent, resumes) = (None, 0);
                self.said.clear();
            }
            // What lets us in and throws us out again gets no second chance at once.
            let lasted = now().saturating_duration_since(began) >= LASTS;
            if lasted {
                wait = FIRST_WAIT;
            }
            let error = match ended {
                Ok(()) if lasted => continue,
                Ok(()) => {
                    self.pause(&mut wait).await;
                    continue;
                }
                Err(error) => error,
            };
            match error {
                ApiError::Gone(what) => {
                    tracing::info!("kubernetes: {what}; pods are listed anew");
                    self.shared.count(|c| &c.expired);
                    watch.restart();
                    self.pause(&mut wait).await;
                }
                ApiError::Denied(what) => {
                    self.shared.count(|c| &c.denied);
                    self.warn(&format!("the API denies the list or the watch of pods: {what} (the service account needs `list` and `watch` of `pods` in the whole cluster)"));
                    self.degrade().await;
                    self.meanwhile(DENIED_WAIT).await;
                }
                ApiError::Unreachable(what) | ApiError::Odd(what) | ApiError::NotFound(what) => {
                    self.shared.count(|c| &c.failures);
                    let since = *silent.get_or_insert_with(now);
                    resumes += 1;
                    if resumes >= RESUMES && watch.has_place() {
                        watch.restart();
                    }
                    if now().saturating_duration_since(since) >= SILENT {
                        self.warn(&format!("the API does not answer: {what}; what is known of pods stays known"));
                        self.degrade().await;
                    } else {
                        tracing::debug!("kubernetes: {what}; it is tried again");
                    }
                    self.pause(&mut wait).await;
                }
            }
        }
    }

    /// Waits, longer each time; the jitter keeps the nodes of a cluster apart after its API server was away.
    async fn pause(&mut self, wait: &mut Duration) {
        use std::hash::{BuildHasher as _, Hasher as _};
        let random = std::hash::RandomState::new().build_hasher().finish() % 1_000;
        let jittered = wait.mul_f64(0.5 + random as f64 / 1_000.0);
        *wait = (*wait * 2).min(LAST_WAIT);
        if self.shared.mode() == Mode::Api || self.shared.mode() == Mode::Starting {
            tokio::time::sleep(jittered).await;
        } else {
            self.meanwhile(jittered).await;
        }
    }

    /// For so long, names come from the kubelet, if it lets us.
    async fn meanwhile(&mut self, time: Duration) {
        let until = now() + time;
        loop {
            self.degrade().await;
            let left = until.saturating_duration_since(now());
            if left.is_zero() {
                return;
            }
            if self.shared.mode() == Mode::Kubelet {
                let shared = Arc::clone(&self.shared);
                let hurry = async {
                    tokio::time::sleep(KUBELET_AT_MOST).await;
                    shared.hurried().await;
                };
                tokio::select! {
                    () = tokio::time::sleep(left.min(KUBELET_EVERY)) => {}
                    () = hurry => self.kubelet_asked = None,
                }
            } else {
                tokio::time::sleep(left.min(KUBELET_AGAIN)).await;
            }
        }
    }

    /// The next best source: the kubelet, else what cgroups say.
    async fn degrade(&mut self) {
        let since = |at: Option<Instant>| at.map(|at| now().saturating_duration_since(at));
        if since(self.kubelet_failed).is_some_and(|age| age < KUBELET_AGAIN)
            || since(self.kubelet_asked).is_some_and(|age| age < KUBELET_EVERY)
        {
            return;
        }
        self.kubelet_asked = Some(now());
        match self.ask_kubelet().await {
            Ok(()) => {
                self.kubelet_failed = None;
                if self.shared.set_mode(Mode::Kubelet) {
                    tracing::warn!(
                        "kubernetes: degraded: names come from the kubelet: far ends are named as far as they are pods of this node"
                    );
                }
            }
            Err(what) => {
                self.kubelet_failed = Some(now());
                self.shared.count(|c| &c.failures);
                if self.shared.set_mode(Mode::Cgroup) {
                    tracing::warn!("kubernetes: degraded: no names, only the ids in cgroups; the kubelet: {what}");
                }
            }
        }
    }

    async fn ask_kubelet(&mut self) -> Result<(), String> {
        let api = match &self.kubelet {
            Some(api) => api.clone(),
            None => {
                let api = self.kubelet_client()?;
                self.kubelet.insert(api).clone()
            }
        };
        of_kubelet(&api, &self.shared).await.map_err(|error| {
            if matches!(error, ApiError::Denied(_)) {
                self.shared.count(|c| &c.denied);
            }
            error.to_string()
        })
    }

    /// A client of the kubelet.
    fn kubelet_client(&self) -> Result<Api, String> {
        let config = self.config.clone().ok_or("there is no service account to show")?;
        Api::of_kubelet(config, &self.shared.settings().kubelet)
    }

    fn warn(&mut self, what: &str) {
        // One message may differ in a detail each time (a version, a port): its beginning tells whether it is the same.
        let key: String = what.chars().take(40).collect();
        if self.said.insert(key) {
            tracing::warn!("kubernetes: {what}");
        } else {
            tracing::debug!("kubernetes: {what}");
        }
    }
}
