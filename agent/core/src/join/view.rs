//! What of an inference is compared with its other views. Small, so that thousands can wait.

use std::net::SocketAddr;
use std::time::Duration;

use super::engine::{Figures, Source};
use super::split::Whole;
use super::{SLACK, caller_key, hash, id_key, trace_key};
use crate::inference::{Inference, Outcome, Vantage};

/// One view of one request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct View {
    /// Whose view it is.
    pub vantage: Vantage,
    /// The wire format: a proxy may translate, a wire does not.
    pub api: &'static str,
    /// The tapped process.
    pub pid: Option<u32>,
    /// The client's end.
    pub client: Option<SocketAddr>,
    /// The server's end.
    pub server: Option<SocketAddr>,
    /// First byte of the request, nanoseconds.
    pub start: u64,
    /// End, nanoseconds.
    pub end: u64,
    /// What is taken apart, and how long it was, nanoseconds; `None` where it was not measured.
    pub reach: Option<u64>,
    /// Of what `reach` is.
    pub whole: Whole,
    /// Last byte of the request, nanoseconds since `start`.
    pub sent: Option<u64>,
    /// From `reach` to the end of the answer, nanoseconds.
    pub rest: Option<u64>,
    /// What the engine says in the answer itself.
    pub told: Option<Figures>,
    /// Whether the engine does nothing before its prefill but wait, so that what its server's view has beyond it is waiting (llama.cpp).
    pub waits_only: bool,
    /// By what it is known.
    pub keys: Keys,
}

/// By what a request is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keys {
    /// Both ends of the connection, and the stream of HTTP/2.
    pub wire: Option<u64>,
    /// The caller's span.
    pub caller: Option<u64>,
    /// The trace.
    pub trace: Option<u64>,
    /// The API's id of the response, `x-request-id` of the request, and that of the response.
    pub ids: [Option<u64>; 3],
}

impl Keys {
    /// Whether one of the ids is the other's, in whatever place.
    fn share_id(&self, other: &Self) -> bool {
        self.ids.iter().flatten().any(|id| other.ids.contains(&Some(*id)))
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl View {
    /// Of an inference; `None` of what is only sent again.
    pub fn of(i: &Inference) -> Option<Self> {
        if !i.operation.is_inference() {
            return None;
        }
        let t = &i.timing;
        let duration = t.duration.ok().map(nanos);
        // An answer that is no stream has one instant only. What failed took no time of an engine.
        let (whole, reach) = match i.is_stream() {
            true => (Whole::Ttft, t.ttft.ok().map(nanos)),
            false => (Whole::Duration, duration.filter(|_| i.outcome == Outcome::Completed)),
        };
        // Several at once on one connection are told apart by their streams.
        let one_at_a_time = i.protocol.starts_with("http/1");
        let stream = if one_at_a_time { 0 } else { i.exchange };
        let multiplexed = i.protocol == "http/2" && i.exchange > 0;
        let wire = i.client.zip(i.server).filter(|_| one_at_a_time || multiplexed).map(|ends| hash(0, (ends, stream)));
        let ids = [&i.response.id, &i.request.id, &i.response.request_id];
        Some(Self {
            vantage: i.vantage,
            api: i.api,
            pid: i.process.as_ref().map(|p| p.pid),
            client: i.client,
            server: i.server,
            start: t.start.unix_nanos(),
            end: t.end.unix_nanos().max(t.start.unix_nanos()),
            reach,
            whole,
            sent: t.request_sent.map(nanos),
            rest: duration.zip(reach).map(|(all, reach)| all.saturating_sub(reach)),
            told: i.server_timing.as_ref().map(Figures::of).filter(|f| *f != Figures::default()),
            waits_only: i.provider == Some("llama_cpp"),
            keys: Keys {
                wire,
                caller: i.request.traceparent.map(|t| caller_key(t.trace_id, t.span_id)),
                trace: i.request.traceparent.map(|t| trace_key(t.trace_id)),
                ids: ids.map(|id| id.as_ref().and_then(|id| id_key(id.as_str()))),
            },
        })
    }

    /// The instant at which `reach` ends.
    fn reached(&self) -> u64 {
        self.start.saturating_add(self.reach.unwrap_or(self.end - self.start))
    }

    /// Place in a wire, from the client to the server.
    pub(super) const fn place(&self) -> usize {
        match self.vantage {
            Vantage::Client => 0,
            Vantage::Unknown => 1,
            Vantage::Server => 2,
        }
    }

    /// Whether both are of one exchange on one wire, seen at different places of it.
    pub(super) fn same_wire(&self, other: &Self) -> bool {
        let (near, far) = if self.place() < other.place() { (self, other) } else { (other, self) };
        // What both have said and said differently tells them apart, whatever else they share.
        let differ = |a: Option<u64>, b: Option<u64>| a.is_some() && b.is_some() && a != b;
        let (a, b) = (&near.keys, &far.keys);
        let distinct = differ(a.caller, b.caller) || (0..3).any(|n| differ(a.ids[n], b.ids[n])) || near.api != far.api;
        let in_time = far.start + SLACK >= near.start && far.start <= near.end + SLACK;
        let shared = a.wire.is_some() && a.wire == b.wire || a.caller.is_some() && a.caller == b.caller || a.share_id(b);
        near.place() != far.place() && !distinct && in_time && shared && near.one_wire_with(far)
    }

    /// Both ends of the connection, where they are known: of one that was there before the tap they are not.
    fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.client.zip(self.server)
    }

    /// Addresses are translated at one end at most; where neither is the same there is something in between.
    fn one_wire_with(&self, other: &Self) -> bool {
        matches!((self.ends(), other.ends()), (Some((c, s)), Some((oc, os))) if c == oc || s == os)
    }

    /// Whether `inner` is what a proxy asked for in answering this. `known` says that both share more than a trace.
    pub(super) fn has_inside(&self, inner: &Self, known: bool) -> bool {
        let in_time = inner.start + SLACK >= self.start && inner.start <= self.reached() && inner.reached() <= self.reached() + SLACK;
        // Whoever answers and whoever asks for it is one process, where both are known.
        let pids = (self.vantage, self.pid, inner.vantage, inner.pid);
        let one_process = matches!(pids, (Vantage::Server, Some(a), Vantage::Client, Some(b)) if a == b);
        let beyond = match (self.ends(), inner.ends()) {
            (Some((c, s)), Some((ic, is))) => c != ic && s != is,
            // It may be one wire all the same: then only what cannot be seen the other way round.
            _ => one_process || self.place() < inner.place(),
        };
        beyond && in_time && (known || one_process)
    }

    /// Whether both are known by the same id or the same caller.
    pub(super) fn shares_name(&self, other: &Self) -> bool {
        self.keys.share_id(&other.keys) || self.keys.caller.is_some() && self.keys.caller == other.keys.caller
    }

    /// What the engine says in the answer, as an engine's view.
    pub(super) fn answer(&self) -> Option<(Source, Figures)> {
        self.told.map(|f| (Source::Answer, f))
    }
}
