//! What ends because time passes and nothing comes.

use std::time::Duration;

use super::{Pipeline, Stage};
use crate::http::event::ExchangeId;
use crate::inference::Inference;
use crate::stream::{ConnId, End, StreamEvent, Timestamp};

/// A client may leave a stream at the API's terminator: that long after it, the exchange is over without the transport's word.
const LINGER: Duration = Duration::from_secs(5);

/// What the passing of time has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Late {
    /// Nothing moves on the connection.
    Connection,
    /// A turn on a socket has ended as its API says.
    Turn,
    /// An exchange has ended as its API says, though not as its transport does.
    Exchange(ExchangeId),
    /// Streams may be silent on a connection that is not.
    Streams,
}

impl Late {
    /// Its place among the others.
    pub const fn kind(self) -> u8 {
        match self {
            Self::Connection => 0,
            Self::Turn => 1,
            Self::Exchange(_) => 2,
            Self::Streams => 3,
        }
    }
}

/// What is to be given up, and on which connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overdue {
    /// What.
    pub what: Late,
    /// Where.
    pub conn: ConnId,
}

impl Pipeline {
    /// What the passing of time has ended, in the order in which it is to be given up.
    pub fn overdue(&mut self, now: Timestamp) -> Vec<Overdue> {
        if now.since(self.last_sweep) < Duration::from_secs(1) {
            return Vec::new();
        }
        self.last_sweep = now;
        let idle = self.options.idle;
        let ended = |t: Timestamp| now.since(t) >= LINGER;
        let mut all = Vec::new();
        for (conn, c) in &self.conns {
            let mut late = |what| all.push(Overdue { what, conn: *conn });
            match &c.stage {
                _ if now.since(self.lanes.last(c)) >= idle => late(Late::Connection),
                Stage::Socket(socket) if socket.has_ended(ended) => late(Late::Turn),
                Stage::Http(http) => {
                    if http.tunnels.has_ended(ended) {
                        late(Late::Turn);
                    }
                    // Exchanges whose API has ended, though their transport has not.
                    let left = http.calls.iter().filter(|(_, call)| call.terminated_at().is_some_and(ended));
                    left.for_each(|(id, _)| late(Late::Exchange(id)));
                    if http.session.is_shared() {
                        late(Late::Streams);
                    }
                }
                _ => {}
            }
        }
        // Not in the order of the table: what comes out must depend on what came in only.
        all.sort_unstable_by_key(|overdue| (overdue.what.kind(), overdue.conn, overdue.what));
        all
    }

    /// Ends what is overdue.
    pub fn give_up(&mut self, overdue: &Overdue, now: Timestamp, out: &mut Vec<Inference>) {
        let Overdue { what, conn } = *overdue;
        if what == Late::Connection {
            let _ = self.push(StreamEvent::Close { conn, at: now, end: End::Idle }, out);
            return;
        }
        let idle = self.options.idle;
        let ended = |t: Timestamp| now.since(t) >= LINGER;
        let at = self.conns.get(&conn).map_or(now, |c| self.lanes.last(c));
        let _ = self.work(conn, at, out, |stage, sink| match (stage, what) {
            (Stage::Socket(socket), Late::Turn) => sink.socket(socket, |socket, desk| socket.give_up(ended, desk)),
            (Stage::Http(http), Late::Turn) => http.tunnels.give_up(ended, sink),
            (Stage::Http(http), Late::Exchange(id)) => http.run(sink, at, |session, out| session.give_up(id, out)),
            (Stage::Http(http), Late::Streams) => http.run(sink, now, |session, out| session.expire(now, idle, out)),
            _ => {}
        });
    }
}
