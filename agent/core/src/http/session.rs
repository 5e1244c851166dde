//! The session of a connection, whatever version of HTTP it speaks.

use std::sync::Arc;
use std::time::Duration;

use crate::http::event::{ExchangeId, HttpEvent};
use crate::http::{h1, h2};
use crate::stream::{Direction, End, Timestamp};
use crate::tenant::Tenants;

/// A connection's exchanges.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the connection's state is boxed as a whole; what every chunk needs of HTTP/1.1 lies in it")]
pub enum Session {
    /// HTTP/1.1: one response after the other.
    H1(h1::session::Session),
    /// HTTP/2: any number of streams.
    H2(Box<h2::session::Session>),
}

impl Session {
    /// Says of requests whose they are.
    #[must_use]
    pub fn naming(mut self, tenants: Option<Arc<Tenants>>) -> Self {
        match &mut self {
            Self::H1(s) => s.naming(tenants),
            Self::H2(s) => s.naming(tenants.as_ref()),
        }
        self
    }

    /// The record's `protocol`.
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::H1(_) => "http/1.1",
            Self::H2(_) => "http/2",
        }
    }

    /// In which direction requests travel.
    pub fn requests(&self) -> Direction {
        match self {
            Self::H1(s) => s.requests(),
            Self::H2(s) => s.requests(),
        }
    }

    /// Whether it is known where messages or frames lie.
    pub fn has_footing(&self) -> bool {
        match self {
            Self::H1(_) => true,
            Self::H2(s) => s.has_footing(),
        }
    }

    /// Whether exchanges share the connection, so that one may be silent while it is not.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::H2(_))
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        match self {
            Self::H1(s) => s.buffered(),
            Self::H2(s) => s.buffered(),
        }
    }

    /// Bytes skipped in both directions since a message was found.
    pub fn skipped(&self) -> u64 {
        match self {
            Self::H1(s) => s.skipped(),
            Self::H2(s) => s.skipped(),
        }
    }

    /// On HTTP/1.1, the exchange whose response's next chunk is due, if one is.
    #[inline]
    pub fn before_chunk(&self) -> Option<ExchangeId> {
        match self {
            Self::H1(s) => s.before_chunk(),
            Self::H2(_) => None,
        }
    }

    /// On HTTP/2, whose body's next part `bytes` are, and that part, if they are just that and nothing follows from them:
    /// [`Session::data`] would yield one [`HttpEvent::ResponseBody`], and need not be called.
    #[inline]
    pub fn whole_part<'a>(&mut self, dir: Direction, at: Timestamp, bytes: &'a [u8]) -> Option<(ExchangeId, &'a [u8])> {
        match self {
            Self::H1(_) => None,
            Self::H2(s) => s.whole_part(dir, at, bytes),
        }
    }

    /// Asks for the memory that [`Session::whole_part`] will need. The result says nothing.
    pub fn touch(&self) -> u64 {
        match self {
            Self::H1(s) => s.touch(),
            Self::H2(s) => s.touch(),
        }
    }

    /// Takes the next bytes of one direction.
    ///
    /// Returns those that are to be taken in another mind: after [`HttpEvent::Upgraded`] all bytes belong to the new protocol; else,
    /// after the protocol has changed to HTTP/2 or the client of a connection was recognised, they are to be given once more.
    pub fn data<'a>(&mut self, dir: Direction, at: Timestamp, bytes: &'a [u8], out: &mut dyn FnMut(HttpEvent<'_>)) -> &'a [u8] {
        match self {
            Self::H1(s) => {
                let rest = s.data(dir, at, bytes, out);
                if let Some(id) = s.became_h2() {
                    let tenants = s.tenants().cloned();
                    *self = Self::H2(Box::new(h2::session::Session::upgraded(s.requests(), id))).naming(tenants);
                }
                rest
            }
            Self::H2(s) => s.data(dir, at, bytes, out),
        }
    }

    /// Bytes of one direction are missing.
    pub fn gap(&mut self, dir: Direction, at: Timestamp, len: Option<u64>, out: &mut dyn FnMut(HttpEvent<'_>)) {
        match self {
            Self::H1(s) => s.gap(dir, len, out),
            Self::H2(s) => s.gap(dir, at, len, out),
        }
    }

    /// The connection or one half of it ended.
    pub fn close(&mut self, end: End, out: &mut dyn FnMut(HttpEvent<'_>)) {
        match self {
            Self::H1(s) => s.close(end, out),
            Self::H2(s) => s.close(end, out),
        }
    }

    /// An exchange's response has reached its API's end, though not its transport's: it is over, if its turn has come.
    pub fn give_up(&mut self, id: ExchangeId, out: &mut dyn FnMut(HttpEvent<'_>)) {
        match self {
            Self::H1(s) => s.give_up(id, out),
            Self::H2(s) => s.give_up(id, out),
        }
    }

    /// Exchanges of which nothing came for `idle` are over, though the connection goes on. On HTTP/1.1 there are none: the tap sees a
    /// silent connection itself.
    pub fn expire(&mut self, now: Timestamp, idle: Duration, out: &mut dyn FnMut(HttpEvent<'_>)) {
        if let Self::H2(s) = self {
            s.expire(now, idle, out);
        }
    }
}
