//! The other view of the same inference. Where client and server run on one node both are tapped, and each gives a span. Whichever is
//! finished last links to the other.
//!
//! Two views are of one inference when one is the client's and the other the server's, the server's lies within the client's in time (both are
//! stamped by one clock), and they share the caller's span (`traceparent`), the API's id of the response, or (in
//! HTTP/1, where one follows the other) both ends of the connection.

use std::collections::VecDeque;
use std::net::SocketAddr;

use rustc_hash::FxHashMap;
use std::hash::{BuildHasher as _, Hash};
use tokengauge_core::inference::{Inference, Vantage};

/// Views that are remembered.
const REMEMBERED: usize = 4_096;
/// What the two taps may differ in, nanoseconds: a packet is stamped by the kernel, a call to a TLS library when it returns.
const SLACK: u64 = 5_000_000;

/// A span of another view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Other {
    /// Its trace.
    pub trace_id: u128,
    /// Its id.
    pub span_id: u64,
    /// Whose view it is.
    pub vantage: Vantage,
}

#[derive(Debug)]
struct View {
    other: Other,
    start: u64,
    end: u64,
    keys: [Option<u64>; 3],
}

/// The views of the recent past.
#[derive(Debug, Default)]
pub struct Links {
    /// Newest last; the first has the number `gone`.
    views: VecDeque<View>,
    gone: u64,
    /// The newest view with that key.
    by_key: FxHashMap<u64, u64>,
}

impl Links {
    /// The other view of `i`, if it was here already; remembers `i` for the one that may come.
    pub fn find(&mut self, i: &Inference) -> Option<Other> {
        if i.vantage == Vantage::Unknown {
            return None;
        }
        let keys = keys(i);
        let view = View {
            other: Other { trace_id: i.trace.trace_id, span_id: i.trace.span_id, vantage: i.vantage },
            start: i.timing.start.unix_nanos(),
            end: i.timing.end.unix_nanos(),
            keys,
        };
        let found = keys.iter().flatten().find_map(|key| {
            let place = usize::try_from(self.by_key.get(key)?.checked_sub(self.gone)?).ok()?;
            self.views.get(place).filter(|other| same(other, &view)).map(|v| v.other)
        });
        // The other side has found its match; nothing else will.
        if found.is_none() {
            self.remember(view);
        }
        found
    }

    fn remember(&mut self, view: View) {
        if self.views.len() >= REMEMBERED
            && let Some(old) = self.views.pop_front()
        {
            for key in old.keys.into_iter().flatten() {
                if self.by_key.get(&key) == Some(&self.gone) {
                    self.by_key.remove(&key);
                }
            }
            self.gone += 1;
        }
        let number = self.gone + self.views.len() as u64;
        self.by_key.extend(view.keys.into_iter().flatten().map(|key| (key, number)));
        self.views.push_back(view);
    }
}

fn same(a: &View, b: &View) -> bool {
    let (client, server) = match (a.other.vantage, b.other.vantage) {
        (Vantage::Client, Vantage::Server) => (a, b),
        (Vantage::Server, Vantage::Client) => (b, a),
        _ => return false,
    };
    // What both have said and said differently tells them apart, whatever else they share.
    let differ = |a: &Option<u64>, b: &Option<u64>| a.is_some() && b.is_some() && a != b;
    let [a_trace, a_id, _] = &a.keys;
    let [b_trace, b_id, _] = &b.keys;
    server.start + SLACK >= client.start && server.start <= client.end + SLACK && !differ(a_trace, b_trace) && !differ(a_id, b_id)
}

/// What two views of one inference share: the caller's span, the response's id, the ends of the connection.
fn keys(i: &Inference) -> [Option<u64>; 3] {
    let hasher = rustc_hash::FxBuildHasher;
    let of = |kind: u8, what: &dyn Fn() -> Option<u64>| what().map(|h| hasher.hash_one((kind, h)));
    let hash = |x: &dyn Fn(&mut rustc_hash::FxHasher)| {
        use std::hash::Hasher as _;
        let mut state = hasher.build_hasher();
        x(&mut state);
        state.finish()
    };
    let ends = |client: SocketAddr, server: SocketAddr| hash(&|s| (client, server).hash(s));
    [
        of(0, &|| i.request.traceparent.map(|t| hash(&|s| (t.trace_id, t.span_id).hash(s)))),
        of(1, &|| i.response.id.as_ref().map(|id| hash(&|s| id.as_str().hash(s)))),
        // Several at once on one connection are told apart by nothing but the above.
        of(2, &|| Some(ends(i.client?, i.server?)).filter(|_| i.protocol.starts_with("http/1"))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use tokengauge_core::name::Name;
    use tokengauge_core::stream::Timestamp;

    fn view(n: u64, vantage: Vantage, start_ms: u64) -> Inference {
        let mut i = testing::inference();
        i.vantage = vantage;
        i.response.id = None;
        i.trace.span_id = n;
        i.timing.start = Timestamp::from_unix_nanos(testing::START + start_ms * 1_000_000);
        i.timing.end = Timestamp::from_unix_nanos(testing::START + (start_ms + 100) * 1_000_000);
        i
    }

    fn found(links: &mut Links, i: &Inference) -> Option<u64> {
        links.find(i).map(|o| o.span_id)
    }

    #[test]
    fn the_second_view_finds_the_first_by_connection_and_time() {
        let mut links = Links::default();
        assert_eq!(found(&mut links, &view(1, Vantage::Server, 2)), None);
        assert_eq!(found(&mut links, &view(2, Vantage::Client, 0)), Some(1));
        // The next request on the same connection.
        assert_eq!(found(&mut links, &view(3, Vantage::Client, 500)), None);
        assert_eq!(found(&mut links, &view(4, Vantage::Server, 502)), Some(3));
        // One whose other view was never seen is nobody else's.
        assert_eq!(found(&mut links, &view(5, Vantage::Client, 900)), None);
        assert_eq!(found(&mut links, &view(6, Vantage::Server, 1_500)), None);
    }

    #[test]
    fn views_through_a_proxy_share_an_id_or_a_traceparent() {
        let mut links = Links::default();
        let other_ends = |mut i: Inference| {
            (i.client, i.server) = ("10.9.9.9:1".parse().ok(), "10.9.9.8:2".parse().ok());
            i
        };
        let with_id = |mut i: Inference| {
            i.response.id = Name::new("chatcmpl-77");
            i
        };
        assert_eq!(found(&mut links, &with_id(view(1, Vantage::Server, 1))), None);
        assert_eq!(found(&mut links, &other_ends(view(2, Vantage::Client, 0))), None);
        assert_eq!(found(&mut links, &with_id(other_ends(view(3, Vantage::Client, 0)))), Some(1));
        let traced = |mut i: Inference| {
            i.request.traceparent = Some(tokengauge_core::inference::TraceParent { trace_id: 5, span_id: 6, flags: 1 });
            i
        };
        assert_eq!(found(&mut links, &traced(view(4, Vantage::Client, 900))), None);
        assert_eq!(found(&mut links, &traced(other_ends(view(5, Vantage::Server, 901)))), Some(4));
    }

    #[test]
    fn neighbours_on_one_connection_are_not_confused() {
        let mut links = Links::default();
        let with_id = |mut i: Inference, id: &str| {
            (i.response.id, i.protocol) = (Name::new(id), "http/2");
            i
        };
        assert_eq!(found(&mut links, &with_id(view(1, Vantage::Client, 0), "a")), None);
        assert_eq!(found(&mut links, &with_id(view(2, Vantage::Client, 0), "b")), None);
        assert_eq!(found(&mut links, &with_id(view(3, Vantage::Server, 1), "a")), Some(1));
        assert_eq!(found(&mut links, &with_id(view(4, Vantage::Server, 1), "c")), None);
        let mut nameless = view(5, Vantage::Server, 1);
        nameless.protocol = "http/2";
        assert_eq!(found(&mut links, &nameless), None);
        // Pipelined or mixed up on HTTP/1: the ids decide.
        let mut a = view(6, Vantage::Client, 0);
        a.response.id = Name::new("x");
        let mut b = view(7, Vantage::Server, 0);
        b.response.id = Name::new("y");
        assert_eq!((found(&mut links, &a), found(&mut links, &b)), (None, None));
    }

    #[test]
    fn the_same_side_twice_and_no_side_are_no_pair() {
        let mut links = Links::default();
        assert_eq!(found(&mut links, &view(1, Vantage::Client, 0)), None);
        assert_eq!(found(&mut links, &view(2, Vantage::Client, 0)), None);
        assert_eq!(found(&mut links, &view(3, Vantage::Unknown, 0)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut links = Links::default();
        for n in 0..3 * REMEMBERED as u64 {
            let mut i = view(n, Vantage::Client, 0);
            i.client = Some(SocketAddr::from(([10, 1, (n >> 8) as u8, n as u8], (n >> 16) as u16)));
            links.find(&i);
        }
        assert_eq!(links.views.len(), REMEMBERED);
        assert!(links.by_key.len() <= REMEMBERED, "{}", links.by_key.len());
        let mut last = view(9, Vantage::Server, 1);
        let n = 3 * REMEMBERED as u64 - 1;
        last.client = Some(SocketAddr::from(([10, 1, (n >> 8) as u8, n as u8], (n >> 16) as u16)));
        assert_eq!(found(&mut links, &last), Some(n));
    }
}
