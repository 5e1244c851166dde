//! What inference servers tell of their own requests (`agent/hook/README.md`): events come by the tap symbol and by the Unix socket, and
//! go to every [`HookSink`].
//!
//! ```text
//! tap     the ring of the kernel's program ─┐
//!                                           ├─► HookSink: figures, and whoever else was given
//! socket  connections ─ batches ────────────┘
//! ```
//!
//! A thread each; neither waits for the other, nor a server for either.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::hook::event::{Event, Source, Via};
use tokengauge_core::hook::raw::Bad;
use tokengauge_core::semconv::{attr, metric};
use tokengauge_ebpf_common::Counters as Kernel;

use crate::export::observe::{Observe, Tell};
use crate::tap::{StopFlag, TapError};

pub mod figures;
pub mod place;
pub mod socket;
pub mod tap;

use socket::Listening;
use tap::HookTap;

/// Takes events. It is called from the threads that read rings and sockets: it must be quick and must not wait for anything slow.
pub trait HookSink: Send + Sync {
    /// Events of one source or of several, each source's in their order.
    fn take(&self, events: &[Event]);

    /// Events of this source were lost before those that come now. At the tap symbol nobody knows whose: the source has no process.
    fn lost(&self, source: Source) {
        let _ = source;
    }

    /// A source is gone: its process ended, its connection was closed. Nothing more comes of it; what is open there never ends.
    fn gone(&self, source: Source);
}

/// Several sinks, one after the other.
pub struct All(pub Vec<Arc<dyn HookSink>>);

impl HookSink for All {
    fn take(&self, events: &[Event]) {
        self.0.iter().for_each(|sink| sink.take(events));
    }

    fn lost(&self, source: Source) {
        self.0.iter().for_each(|sink| sink.lost(source));
    }

    fn gone(&self, source: Source) {
        self.0.iter().for_each(|sink| sink.gone(source));
    }
}

/// `hook` in the configuration file.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether processes that have the tap symbol are listened to; when not said, as TLS libraries are.
    pub tap: Option<bool>,
    /// Size of the tap symbol's ring buffer, MiB; a power of two.
    pub ring_mib: u32,
    /// The Unix socket to listen on; none when not said. Its folder must exist.
    pub socket: Option<PathBuf>,
    /// Users whose processes may send to the socket; when none is named, root and the agent's own.
    pub uids: Vec<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self { tap: None, ring_mib: 4, socket: None, uids: Vec::new() }
    }
}

impl Config {
    /// Whether the values make sense; the message names the key below `hook`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        if !self.ring_mib.is_power_of_two() || self.ring_mib > 1024 {
            return Err(format!("ring_mib: {} is no power of two up to 1024", self.ring_mib));
        }
        // sun_path has room for 108 bytes, the last one a zero.
        if let Some(path) = &self.socket
            && !(1..=107).contains(&path.as_os_str().len())
        {
            return Err(format!("socket: `{}` is not between 1 and 107 bytes long", path.display()));
        }
        Ok(())
    }

    /// Users who may send.
    fn allowed(&self) -> Vec<u32> {
        if !self.uids.is_empty() {
            return self.uids.clone();
        }
        use std::os::unix::fs::MetadataExt as _;
        let own = std::fs::metadata("/proc/self").map(|m| m.uid()).ok();
        std::iter::once(0).chain(own.filter(|uid| *uid != 0)).collect()
    }
}

/// What may become of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connection {
    /// It was let in.
    Accepted,
    /// Its peer's user may not.
    WrongUser,
    /// There were too many.
    TooMany,
    /// It ended within a message, or could not be read any further.
    Broken,
}

const CONNECTIONS: [&str; 4] = ["accepted", "refused_user", "refused_too_many", "broken"];

/// What was counted, from the beginning.
#[derive(Debug, Default)]
pub struct Counters {
    taken: [AtomicU64; 2],
    bad: [[AtomicU64; Bad::ALL.len()]; 2],
    sources: [AtomicU64; 2],
    connections: [AtomicU64; 4],
    dropped_by_server: AtomicU64,
    ring_full: AtomicU64,
    unreadable: AtomicU64,
    too_short: AtomicU64,
    unknown_version: AtomicU64,
    attached: AtomicU64,
    refused: AtomicU64,
}

impl Counters {
    fn taken(&self, via: Via, n: u64) {
        if let Some(counter) = self.taken.get(via as usize) {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn bad(&self, via: Via, why: Bad, n: u64) {
        if let Some(counter) = self.bad.get(via as usize).and_then(|all| all.get(why as usize)) {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn sources(&self, via: Via, n: usize) {
        if let Some(counter) = self.sources.get(via as usize) {
            counter.store(n as u64, Ordering::Relaxed);
        }
    }

    fn connection(&self, what: Connection) {
        if let Some(counter) = self.connections.get(what as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn dropped_by_server(&self, n: u64) {
        self.dropped_by_server.fetch_add(n, Ordering::Relaxed);
    }

    fn kernel(&self, kernel: &Kernel) {
        self.ring_full.store(kernel.ring_full, Ordering::Relaxed);
        self.unreadable.store(kernel.unreadable, Ordering::Relaxed);
        self.too_short.store(kernel.hook_too_short, Ordering::Relaxed);
        self.unknown_version.store(kernel.hook_unknown_version, Ordering::Relaxed);
    }
}

/// The counters as metrics; of a way that is not used, none.
struct Told {
    counters: Arc<Counters>,
    tap: bool,
    socket: bool,
}

impl Observe for Told {
    fn observe(&self, tell: &mut Tell<'_>) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        for via in [(self.tap, Via::Tap), (self.socket, Via::Socket)].into_iter().filter_map(|(used, via)| used.then_some(via)) {
            let at = via as usize;
            let way = (attr::HOOK_VIA, via.as_str());
            let mut events = vec![("taken", c.taken.get(at).map_or(0, of))];
            for (why, n) in Bad::ALL.iter().zip(c.bad.get(at).into_iter().flatten()) {
                // The kernel side sorts some out before they are copied.
                let sorted_out = match (via, why) {
                    (Via::Tap, Bad::TooShort) => of(&c.too_short),
                    (Via::Tap, Bad::Version) => of(&c.unknown_version),
                    _ => 0,
                };
                events.push((why.as_str(), of(n) + sorted_out));
            }
            match via {
                Via::Tap => events.extend([("ring_full", of(&c.ring_full)), ("unreadable", of(&c.unreadable))]),
                Via::Socket => events.push(("dropped_by_server", of(&c.dropped_by_server))),
            }
            for (result, n) in events {
                tell(&metric::HOOK_EVENTS, &[way, (attr::RESULT, result)], n as f64);
            }
            tell(&metric::HOOK_SOURCES, &[way], c.sources.get(at).map_or(0, of) as f64);
        }
        if self.tap {
            tell(&metric::HOOK_ATTACHES, &[(attr::RESULT, "attached")], of(&c.attached) as f64);
            tell(&metric::HOOK_ATTACHES, &[(attr::RESULT, "refused")], of(&c.refused) as f64);
        }
        if self.socket {
            for (result, n) in CONNECTIONS.iter().zip(&c.connections) {
                tell(&metric::HOOK_CONNECTIONS, &[(attr::RESULT, result)], of(n) as f64);
            }
        }
    }
}

/// Why the hook could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The socket cannot be listened on.
    #[error("hook.socket: {path}: {source}")]
    Socket {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The kernel refused the program for the tap symbol, which was asked for.
    #[error("hook.tap: {0}")]
    Tap(#[source] TapError),
    /// The system gives no thread.
    #[error("hook: {0}")]
    Thread(#[from] std::io::Error),
}

/// The running hook. Its threads end with the stop flag; dropping it takes the socket away.
pub struct Hook {
    socket: Option<PathBuf>,
    told: Option<Told>,
}

impl Hook {
    /// Begins to listen. `tls` says whether TLS libraries are tapped, in processes `pids` only unless that is empty.
    ///
    /// # Errors
    /// When something that was asked for by the configuration cannot be had.
    pub fn start(config: &Config, tls: bool, pids: &[u32], sink: &Arc<dyn HookSink>, stop: &StopFlag) -> Result<Self, HookError> {
        let counters = Arc::<Counters>::default();
        let mut told = Told { counters: Arc::clone(&counters), tap: false, socket: config.socket.is_some() };
        if config.tap.unwrap_or(tls) {
            let options = tap::Options { pids: pids.to_vec(), ring_bytes: config.ring_mib << 20 };
            match HookTap::load(&options, Arc::clone(&counters)) {
                Ok(tap) => {
                    let (sink, stop) = (Arc::clone(sink), stop.clone());
                    std::thread::Builder::new().name("hook-tap".into()).spawn(move || tap.run(&*sink, &stop))?;
                    told.tap = true;
                }
                Err(why) if config.tap.is_some() => return Err(HookError::Tap(why)),
                Err(why) => tracing::info!(%why, "servers' tap symbols are not listened to"),
            }
        }
        if let Some(path) = &config.socket {
            let failed = |source| HookError::Socket { path: path.clone(), source };
            let listener = socket::bind(path).map_err(failed)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let listening = Arc::new(Listening::new(config.allowed(), Arc::clone(sink), counters));
            std::thread::Builder::new().name("hook-socket".into()).spawn(move || {
                if let Err(why) = runtime.block_on(listening.run(listener)) {
                    tracing::error!(%why, "the hook's socket is not listened to any more");
                }
            })?;
            tracing::info!(path = %path.display(), "the hook's socket is open");
        }
        Ok(Self { socket: config.socket.clone(), told: Some(told) })
    }

    /// The hook's own counters, for metrics; once.
    pub fn counters(&mut self) -> impl Observe + use<> {
        self.told.take().unwrap_or(Told { counters: Arc::default(), tap: false, socket: false })
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
