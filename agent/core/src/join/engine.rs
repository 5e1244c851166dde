//! What an engine says of one request, whichever way it says it. Only intervals leave here: an engine's clock may be another host's.

use super::{caller_key, id_key, trace_key};
use crate::hook::book::Request;
use crate::inference::ServerTiming;

/// How an engine's figures came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Source {
    /// By the hook: events at their instants.
    Hook,
    /// By its own spans.
    Otlp,
    /// In the answer itself.
    Answer,
}

impl Source {
    /// Every source, the best first.
    pub const ALL: [Self; 3] = [Self::Hook, Self::Otlp, Self::Answer];

    /// The value of `tokengauge.split.source`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hook => "hook",
            Self::Otlp => "otlp",
            Self::Answer => "answer",
        }
    }
}

/// How long the phases of one request took in the engine, nanoseconds. What it does not tell is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// From queued to scheduled.
    pub queue: Option<u64>,
    /// Loading the model.
    pub load: Option<u64>,
    /// From scheduled to the first token.
    pub prefill: Option<u64>,
    /// From the first to the last token.
    pub decode: Option<u64>,
    /// From the request's arrival in the engine to the first token.
    pub ttft: Option<u64>,
}

/// The longest that is believed of a phase: a day.
const LONGEST_S: f64 = 86_400.0;

/// Seconds as nanoseconds; `None` of what is no length of time.
pub fn nanos(seconds: Option<f64>) -> Option<u64> {
    seconds.filter(|s| (0.0..=LONGEST_S).contains(s)).map(|s| (s * 1e9).round() as u64)
}

impl Figures {
    /// Of what stands in an answer (servers.md §4).
    pub fn of(t: &ServerTiming) -> Self {
        let (queue, prefill, ttft) = (nanos(t.queue), nanos(t.prefill), nanos(t.ttft));
        let told = Self { queue, load: nanos(t.load), prefill, decode: nanos(t.decode), ttft };
        // vLLM counts its TTFT from where the request was scheduled, which is its prefill, and says the queue beside it. Nobody else tells
        // these two and no prefill.
        match (queue, prefill, ttft) {
            (Some(queue), None, Some(ttft)) => Self { prefill: Some(ttft), ttft: queue.checked_add(ttft), ..told },
            _ => told,
        }
        .completed()
    }

    /// With the TTFT, where the phases before the first token are all told.
    pub fn completed(self) -> Self {
        let phases = self.queue.zip(self.prefill).map(|(q, p)| q.saturating_add(p).saturating_add(self.load.unwrap_or(0)));
        Self { ttft: self.ttft.or(phases), ..self }
    }

    /// How many of the phases before the first token are told.
    pub(super) fn phases(&self) -> usize {
        [self.queue, self.load, self.prefill].iter().flatten().count()
    }
}

/// An engine's view of one request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Engine {
    /// How it came.
    pub source: Source,
    /// What it says.
    pub figures: Figures,
    /// Generated tokens by its count.
    pub tokens: Option<u64>,
    /// Speculative decoding: tokens that were drafted, and those of them that were accepted.
    pub speculated: Option<(u32, u32)>,
    /// The caller's span, as [`super::caller_key`] makes a key of it.
    pub caller: Option<u64>,
    /// The trace, as [`super::trace_key`] makes a key of it.
    pub trace: Option<u64>,
    /// The ids by which the engine knows it, as [`super::id_key`] makes keys of them.
    pub ids: [Option<u64>; 2],
}

impl Engine {
    /// Of a request that a hook told.
    pub fn of_hook(r: &Request) -> Self {
        let nanos = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let queue = r.queue().filter(|_| r.queued.is_some()).map(nanos);
        let figures =
            Figures { queue, load: None, prefill: r.prefill().map(nanos), decode: r.decode().map(nanos), ttft: r.ttft().map(nanos) };
        Self {
            source: Source::Hook,
            figures: figures.completed(),
            tokens: r.output_tokens().map(u64::from),
            speculated: r.speculated,
            caller: r.trace.filter(|t| t.span_id != 0).map(|t| caller_key(t.trace_id, t.span_id)),
            trace: r.trace.map(|t| trace_key(t.trace_id)),
            ids: [id_key(r.id.as_str()), None],
        }
    }

    /// Whether nothing says whose it is.
    pub const fn is_nameless(&self) -> bool {
        self.caller.is_none() && self.trace.is_none() && self.ids[0].is_none() && self.ids[1].is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::book::{Book, Said};
    use crate::hook::event::{Counts, Event, Kind, RequestId, Source as Teller, Stamp, TraceIds, Via};
    use crate::stream::Timestamp;

    #[test]
    fn a_request_that_a_hook_told_is_an_engines_view() {
        let event = |ms: u64, kind: Kind| Event {
            at: Timestamp::from_unix_nanos(1_700_000_000_000_000_000 + ms * 1_000_000),
            stamp: Stamp::Kernel,
            source: Teller { via: Via::Tap, pid: 7, connection: 0 },
            request: RequestId::new(b"chatcmpl-0123456789").unwrap(),
            kind,
            model: None,
            trace: TraceIds::new(9, 4),
            engine: None,
            finish: None,
            counts: Counts { drafted: Some(3), accepted: Some(2), ..Counts::default() },
        };
        let told = |life: &[(u64, Kind)]| {
            let (mut book, mut all) = (Book::default(), Vec::new());
            for (ms, kind) in life {
                book.take(&event(*ms, *kind), &mut |said| {
                    if let Said::Ended(request, _) = said {
                        all.push(Engine::of_hook(request));
                    }
                });
            }
            all.pop().unwrap()
        };
        let life = [Kind::Received, Kind::Queued, Kind::Scheduled, Kind::FirstToken, Kind::Tokens(3), Kind::Finished];
        let e = told(&[0, 5, 25, 55, 85, 86].into_iter().zip(life).collect::<Vec<_>>());
        let ms = [e.figures.queue, e.figures.prefill, e.figures.decode, e.figures.ttft].map(|n| n.map(|n| n / 1_000_000));
        assert_eq!((ms, e.tokens), ([Some(20), Some(30), Some(30), Some(55)], Some(4)));
        assert_eq!((e.ids[0], e.caller, e.trace), (id_key("0123456789"), Some(caller_key(9, 4)), Some(trace_key(9))));
        assert!(e.speculated.is_some_and(|(drafted, accepted)| drafted > accepted && accepted > 0));
        // Without the event of a queue, what lies before scheduling is the tokeniser's as well: no queue.
        let e = told(&[(0, Kind::Received), (25, Kind::Scheduled), (55, Kind::FirstToken), (56, Kind::Finished)]);
        assert_eq!((e.figures.queue, e.figures.prefill, e.figures.ttft), (None, Some(30_000_000), Some(55_000_000)));
    }

    #[test]
    fn what_is_no_length_of_time_is_nothing() {
        for odd in [-0.001, f64::NAN, f64::INFINITY, 1e9] {
            assert_eq!(nanos(Some(odd)), None);
        }
        assert_eq!(nanos(Some(0.0105)), Some(10_500_000));
    }

    #[test]
    fn ttft_is_counted_from_where_the_server_counts_it() {
        let of = |t: ServerTiming| Figures::of(&t);
        // vLLM: 20 ms of queue, 30 ms from scheduled to the first token.
        let vllm = of(ServerTiming { queue: Some(0.02), ttft: Some(0.03), ..ServerTiming::default() });
        assert_eq!((vllm.prefill, vllm.ttft), (Some(30_000_000), Some(50_000_000)));
        // Groq: all phases.
        let groq = of(ServerTiming { queue: Some(0.02), prefill: Some(0.01), ..ServerTiming::default() });
        assert_eq!(groq.ttft, Some(30_000_000));
        // llama.cpp: no queue, so no TTFT. Bedrock: a TTFT and nothing else.
        assert_eq!(of(ServerTiming { prefill: Some(0.01), ..ServerTiming::default() }).ttft, None);
        let bedrock = of(ServerTiming { ttft: Some(0.3), ..ServerTiming::default() });
        assert_eq!((bedrock.prefill, bedrock.ttft), (None, Some(300_000_000)));
    }
}
