//! What a connection carries is found out by its first bytes, and by frames of HTTP/2 where those were missed.

use super::*;
use crate::http::detect::{Speaks, speaks};
use crate::http::{h1, h2};

/// A connection of which it is not known what it carries.
#[derive(Debug)]
pub(super) struct Detecting {
    /// The first bytes of each direction, with the instant of their first.
    pub(super) first: [Option<(Timestamp, Vec<u8>)>; 2],
    /// Bytes of which nothing could be told.
    pub(super) passed: u64,
    /// Whether nothing was missed so far.
    pub(super) from_start: bool,
    /// HTTP/2 that was joined in its middle, if it is that.
    pub(super) joined: Option<Http>,
}

impl Detecting {
    pub(super) fn buffered(&self) -> usize {
        self.first.iter().flatten().map(|(_, b)| b.capacity()).sum::<usize>() + self.joined.as_ref().map_or(0, Http::buffered)
    }

    pub(super) fn gap(&mut self, sink: &mut Sink<'_>, dir: Direction, at: Timestamp, len: Option<u64>) {
        self.first[dir.index()] = None;
        self.from_start = false;
        if let Some(http) = &mut self.joined {
            http.run(sink, at, |session, out| session.gap(dir, at, len, out));
        }
    }

    /// Takes the next bytes of a direction; the connection's exchanges, once it is known what it carries.
    pub(super) fn data(&mut self, sink: &mut Sink<'_>, dir: Direction, at: Timestamp, bytes: &[u8]) -> Option<Http> {
        let (begun, mut seen) = self.first[dir.index()].take().unwrap_or((at, Vec::new()));
        let held = seen.len();
        // As many bytes as decide: the longest beginning that is known is the HTTP/2 preface.
        seen.extend_from_slice(&bytes[..bytes.len().min(32)]);
        let speaks = speaks(&seen);
        let requests = match speaks {
            Speaks::Request | Speaks::Http2 => dir,
            Speaks::Response | Speaks::Http2Settings => dir.flip(),
            Speaks::Other if self.from_start => {
                sink.mute = Some(Anomaly::NotHttp);
                return None;
            }
            Speaks::NotYet | Speaks::Other => {
                if speaks == Speaks::NotYet {
                    self.first[dir.index()] = Some((begun, seen));
                } else {
                    self.passed += bytes.len() as u64;
                }
                return self.join(sink, dir, at, bytes);
            }
        };
        let whole = self.from_start && (requests == dir || speaks == Speaks::Http2Settings);
        if !whole && speaks != Speaks::Http2 {
            sink.stats.anomalies.count(Anomaly::MissedStart);
        }
        let session = match speaks {
            Speaks::Http2 | Speaks::Http2Settings => Session::H2(Box::new(h2::session::Session::new(requests))),
            // In this direction a message begins here, whatever was missed of the other one.
            _ => {
                let at_start = if requests == dir { [true, self.from_start] } else { [false, true] };
                Session::H1(h1::session::Session::new(requests, at_start))
            }
        };
        let mut http = Http::new(session.naming(sink.tenants.cloned()));
        seen.truncate(held);
        let other = self.first[dir.flip().index()].take();
        for (dir, at, bytes) in [Some((dir, begun, seen)), other.map(|(at, bytes)| (dir.flip(), at, bytes))].into_iter().flatten() {
            if !bytes.is_empty() {
                http.data(sink, dir, at, &bytes);
            }
        }
        http.data(sink, dir, at, bytes);
        Some(http)
    }

    /// Bytes of which nothing can be told may be frames of HTTP/2, if the beginning was missed.
    pub(super) fn join(&mut self, sink: &mut Sink<'_>, dir: Direction, at: Timestamp, bytes: &[u8]) -> Option<Http> {
        if self.from_start {
            return None;
        }
        let session = || Session::H2(Box::new(h2::session::Session::joined())).naming(sink.tenants.cloned());
        let joined = self.joined.get_or_insert_with(|| Http::new(session()));
        joined.data(sink, dir, at, bytes);
        if joined.session.has_footing() {
            sink.stats.anomalies.count(Anomaly::MissedStart);
            return self.joined.take();
        }
        if self.passed > FOOTING {
            sink.mute = Some(Anomaly::NotHttp);
        }
        None
    }
}
