//! Where the time went: one figure of the outermost view, taken apart by what the others saw of the same request.
//!
//! Only lengths of time are compared, never instants of different clocks. Every part is taken from what is left of the whole, so the parts
//! never sum to more, and what nobody accounts for is `unattributed`: parsing, tokenising, serialising, and everything that was not seen.

use super::engine::{Figures, Source};
use super::view::View;
use crate::inference::Vantage;

/// What is taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Whole {
    /// The time to the first token of a stream.
    Ttft,
    /// The duration of an answer that is no stream.
    Duration,
}

impl Whole {
    /// The value of `tokengauge.split.whole`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ttft => "time_to_first_token",
            Self::Duration => "duration",
        }
    }
}

/// A figure and its parts, nanoseconds. A part that nobody saw is `None`; the whole is the sum of all that are there (of a stream's TTFT
/// `decode` is no part: it comes behind it).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// Of what.
    pub whole: Whole,
    /// How long it was, as the outermost view has it.
    pub total: u64,
    /// Between two views of one wire.
    pub network: Option<u64>,
    /// Between the two sides of a proxy.
    pub proxy: Option<u64>,
    /// Waiting in the engine.
    pub queue: Option<u64>,
    /// Whether nobody told `queue`: it is what the server's view has beyond the prefill that its engine told, so that the server's parsing
    /// and tokenising are in it.
    pub queue_derived: bool,
    /// Loading the model.
    pub load: Option<u64>,
    /// Reading the prompt.
    pub prefill: Option<u64>,
    /// Generating; of a stream as much of it as fell behind the first token.
    pub decode: Option<u64>,
    /// The rest.
    pub unattributed: u64,
    /// The engine's own TTFT, as it tells it. No part: the sum of some of them.
    pub engine_ttft: Option<u64>,
    /// Who told the engine's parts.
    pub source: Option<Source>,
    /// Whether the views contradict each other: a part was longer than what was left of the whole by more than taps may differ.
    pub contradicts: bool,
}

/// Takes parts from what is left of a whole.
struct Rest {
    left: u64,
    contradicts: bool,
}

impl Rest {
    fn take(&mut self, part: Option<u64>) -> Option<u64> {
        let part = part?;
        self.contradicts |= part > self.left.saturating_add(slack(part));
        let taken = part.min(self.left);
        self.left -= taken;
        Some(taken)
    }
}

/// What a part may be too long by: what taps may differ in, and clocks.
const fn slack(part: u64) -> u64 {
    super::SLACK + part / 50
}

impl Split {
    /// Takes apart what the first of `views` saw, which stand in order from the outermost to the innermost, each with the number of its
    /// wire. `None` when that was not measured, or when nothing is known of its parts.
    pub fn of(views: &[(usize, &View)], engine: Option<(Source, Figures)>) -> Option<Self> {
        let (_, first) = views.first()?;
        let (whole, total) = (first.whole, first.reach?);
        let mut s = Self {
            whole,
            total,
            network: None,
            proxy: None,
            queue: None,
            queue_derived: false,
            load: None,
            prefill: None,
            decode: None,
            unattributed: 0,
            engine_ttft: None,
            source: None,
            contradicts: false,
        };
        let mut rest = Rest { left: total, contradicts: false };
        let mut innermost = first;
        // A view of something else (a proxy that makes a stream of an answer) has no figure to compare.
        let alike = views.iter().filter(|(_, v)| v.whole == whole && v.reach.is_some());
        let alike: Vec<_> = alike.collect();
        for pair in alike.windows(2) {
            let [(outer_wire, outer), (wire, inner)] = pair else { continue };
            let (from, to) = (outer.reach.unwrap_or(0), inner.reach.unwrap_or(0));
            rest.contradicts |= to > from.saturating_add(super::SLACK);
            let between = rest.left.saturating_sub(to);
            innermost = inner;
            if outer_wire == wire {
                s.network = Some(s.network.unwrap_or(0) + between);
            } else if outer.vantage == Vantage::Client && inner.vantage != Vantage::Client || inner.vantage == Vantage::Server {
                // Somewhere between the two is a proxy, and somewhere a network.
                s.unattributed += between;
            } else {
                s.proxy = Some(s.proxy.unwrap_or(0) + between);
            }
            rest.left -= between;
        }
        s.engine(first, innermost, engine, &mut rest);
        s.unattributed += rest.left;
        s.contradicts = rest.contradicts;
        let known = [s.network, s.proxy, s.queue, s.load, s.prefill, s.engine_ttft];
        known.iter().any(Option::is_some).then_some(s)
    }

    fn engine(&mut self, first: &View, innermost: &View, engine: Option<(Source, Figures)>, rest: &mut Rest) {
        let Some((source, told)) = engine else { return };
        self.source = Some(source);
        self.engine_ttft = told.ttft.filter(|_| self.whole == Whole::Ttft);
        self.prefill = rest.take(told.prefill);
        if self.whole == Whole::Duration {
            self.decode = rest.take(told.decode);
        } else if let Some(decode) = told.decode {
            // What came before a proxy let go of the first token is in the whole already.
            self.decode = first.rest.map(|behind| decode.min(behind));
        }
        self.load = rest.take(told.load);
        self.queue = rest.take(told.queue);
        let settled = self.prefill.is_some() && (self.whole == Whole::Ttft || self.decode.is_some());
        if told.queue.is_none() && told.ttft.is_none() && settled && innermost.waits_only && innermost.vantage != Vantage::Client {
            self.queue = innermost.sent.map(|sent| rest.left.saturating_sub(sent));
            self.queue_derived = self.queue.is_some();
            rest.left -= self.queue.unwrap_or(0);
        }
    }

    /// Everything that the whole consists of.
    pub fn parts(&self) -> u64 {
        let decode = self.decode.filter(|_| self.whole == Whole::Duration);
        let known = [self.network, self.proxy, self.queue, self.load, self.prefill, decode];
        known.iter().flatten().fold(self.unattributed, |sum, part| sum.saturating_add(*part))
    }
}
