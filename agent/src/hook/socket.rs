//! The Unix socket: servers send batches, the agent reads them as fast as it can and answers nothing. A server that must wait drops events on
//! its own side and says how many, so that nothing here can slow it down.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokengauge_core::hook::batch::{self, Came, Clock, Frames};
use tokengauge_core::hook::event::{Event, Source, Via};
use tokengauge_core::hook::raw::Bad;
use tokio::net::{UnixListener, UnixStream};

use super::{Connection, Counters, HookSink};
use crate::tap::tls::sys;

/// Most connections at one time.
pub const MAX_CONNECTIONS: usize = 256;

/// Bytes taken of a connection in one go.
const PIECE: usize = 16 * 1024;

/// Opens the socket. One that an agent left behind is taken away; one that somebody listens on is not.
///
/// # Errors
/// When the folder is missing or not writable, something else stands at the path, or another agent listens there.
pub fn bind(path: &Path) -> io::Result<StdListener> {
    let listener = match StdListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
            if !is_socket || std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            StdListener::bind(path)?
        }
        other => other?,
    };
    // Who may send is decided by the peer's user, not by the file's mode.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What all connections share.
pub struct Listening {
    /// Users whose processes may send.
    pub uids: Vec<u32>,
    /// Who gets the events.
    pub sink: Arc<dyn HookSink>,
    /// What was counted.
    pub counters: Arc<Counters>,
    /// Connections so far, and open ones.
    numbers: AtomicU32,
    open: AtomicU32,
    unix_offset: u64,
}

impl Listening {
    /// Of nobody yet.
    pub fn new(uids: Vec<u32>, sink: Arc<dyn HookSink>, counters: Arc<Counters>) -> Self {
        Self { uids, sink, counters, numbers: AtomicU32::new(0), open: AtomicU32::new(0), unix_offset: sys::unix_minus_monotonic() }
    }

    /// Takes connections, without end.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub async fn run(self: Arc<Self>, listener: StdListener) -> io::Result<()> {
        let listener = UnixListener::from_std(listener)?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.admit(stream),
                // No descriptor is left: others may be closed soon.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Lets a connection in, or not: that is counted, and the peer sees its end.
    fn admit(self: &Arc<Self>, stream: UnixStream) {
        let Ok(peer) = stream.peer_cred() else { return self.counters.connection(Connection::Broken) };
        if !self.uids.contains(&peer.uid()) {
            tracing::warn!(uid = peer.uid(), pid = peer.pid(), "a process of a user who may not use the hook");
            return self.counters.connection(Connection::WrongUser);
        }
        if self.open.load(Ordering::Relaxed) as usize >= MAX_CONNECTIONS {
            return self.counters.connection(Connection::TooMany);
        }
        self.counters.connection(Connection::Accepted);
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.counters.sources(Via::Socket, open as usize);
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let (all, source) = (Arc::clone(self), Source { via: Via::Socket, pid, connection: number });
        tokio::spawn(async move {
            if let Some(how) = all.read(&stream, source).await {
                all.counters.connection(how);
            }
            all.sink.gone(source);
            let open = all.open.fetch_sub(1, Ordering::Relaxed) - 1;
            all.counters.sources(Via::Socket, open as usize);
        });
    }

    /// Reads a connection to its end; says what was wrong with that.
    async fn read(&self, stream: &UnixStream, source: Source) -> Option<Connection> {
        let (mut piece, mut frames, mut sender) = (vec![0; PIECE], Frames::default(), Sender::default());
        loop {
            if stream.readable().await.is_err() {
                return Some(Connection::Broken);
            }
            match stream.try_read(&mut piece) {
                Ok(0) => return frames.is_within().then_some(Connection::Broken),
                Ok(n) => {
                    let came = Came { now: sys::monotonic(), unix_offset: self.unix_offset, source };
                    let taken = frames.push(piece.get(..n).unwrap_or_default(), &mut |message| self.message(message, came, &mut sender));
                    if taken.is_err() {
                        self.counters.bad(Via::Socket, Bad::Message, 1);
                        return Some(Connection::Broken);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Some(Connection::Broken),
            }
        }
    }

    fn message(&self, message: &[u8], came: Came, sender: &mut Sender) {
        let Sender { clock, dropped, events } = sender;
        events.clear();
        let counters = &self.counters;
        let head = batch::read(message, came, clock, &mut |event| match event {
            Ok(event) => events.push(event),
            Err(why) => counters.bad(Via::Socket, why, 1),
        });
        match head {
            Ok(head) => {
                let more = head.dropped.saturating_sub(*dropped);
                // What the sender dropped before it reached this agent is a loss of another one's.
                if more > 0 {
                    *dropped = head.dropped;
                    counters.dropped_by_server(more);
                    self.sink.lost(came.source);
                }
            }
            Err(why) => counters.bad(Via::Socket, why, 1),
        }
        if !events.is_empty() {
            counters.taken(Via::Socket, events.len() as u64);
            self.sink.take(events);
        }
    }
}

/// What is kept of one connection's sender.
#[derive(Default)]
struct Sender {
    clock: Clock,
    dropped: u64,
    events: Vec<Event>,
}
