//! What was found with an inference: where its time went as attributes of its span, and its engine's phases as spans below.

use std::time::Duration;

use tokengauge_core::inference::Inference;
use tokengauge_core::join::Whole;
use tokengauge_core::semconv::{Metric, attr, metric, span};

use super::{Attributes, KNOWS_REMOTE, Maker, SAMPLED, field};
use crate::export::otlp::wire::{self, Value};
use crate::join::Found;

const KIND_INTERNAL: u64 = 1;

/// A phase of an engine's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Waiting.
    Queue,
    /// Loading the model.
    Load,
    /// Reading the prompt.
    Prefill,
    /// Generating.
    Decode,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Queue, Self::Load, Self::Prefill, Self::Decode];
}

impl Maker {
    /// The encoded span of one of the engine's phases, below the span of the view that is nearest to the engine. Only their lengths are known:
    /// they are put before the first token there (before the end, where the answer is no stream), in their order, and `decode` behind it.
    pub fn phase(&mut self, i: &Inference, phase: Phase, found: &Found<'_>) -> Option<&[u8]> {
        let s = found.phases.filter(|_| self.phases)?;
        let t = &i.timing;
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let first = match s.whole {
            Whole::Ttft => t.start.unix_nanos().saturating_add(nanos(t.ttft.ok()?)),
            Whole::Duration => t.end.unix_nanos().saturating_sub(s.decode.unwrap_or(0)),
        };
        let [queue, load, prefill] = [s.queue, s.load, s.prefill].map(|part| part.unwrap_or(0));
        let (length, until, name) = match phase {
            Phase::Queue => (s.queue?, first.saturating_sub(prefill).saturating_sub(load), span::QUEUE),
            Phase::Load => (s.load?, first.saturating_sub(prefill), span::LOAD),
            Phase::Prefill => (s.prefill?, first, span::PREFILL),
            Phase::Decode => (s.decode?, first.saturating_add(s.decode?), span::DECODE),
        };
        debug_assert!(queue + load + prefill <= s.total);
        let out = &mut self.span;
        out.clear();
        wire::bytes(out, field::TRACE_ID, &i.trace.trace_id.to_be_bytes());
        // Made of the request's own id, so that the same input gives the same spans.
        let id = i.trace.span_id.wrapping_add(phase as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1);
        wire::bytes(out, field::SPAN_ID, &id.to_be_bytes());
        wire::bytes(out, field::PARENT_SPAN_ID, &i.trace.span_id.to_be_bytes());
        wire::bytes(out, field::NAME, name.as_bytes());
        wire::uint(out, field::KIND, KIND_INTERNAL);
        wire::fixed64(out, field::START, until.saturating_sub(length));
        wire::fixed64(out, field::END, until);
        let mut a = Attributes { out, field: field::ATTRIBUTES, left: self.limits.attributes, longest: self.limits.value_len, dropped: 0 };
        a.text(attr::SPLIT_SOURCE, s.source.map(|source| source.as_str()).filter(|_| !s.queue_derived || !matches!(phase, Phase::Queue)));
        a.put(attr::SPLIT_QUEUE_DERIVED, (s.queue_derived && matches!(phase, Phase::Queue)).then_some(Value::Bool(true)));
        wire::fixed32(&mut self.span, field::FLAGS, SAMPLED | KNOWS_REMOTE);
        Some(&self.span)
    }
}

/// Where the time of a request went.
pub(super) fn split(a: &mut Attributes<'_>, found: &Found<'_>) {
    let Some(s) = found.split else { return };
    let mut seconds = |m: &Metric, part: Option<u64>| a.double(m.name, part.map(|ns| ns as f64 / 1e9));
    seconds(&metric::SPLIT_NETWORK, s.network);
    seconds(&metric::SPLIT_PROXY, s.proxy);
    seconds(&metric::SPLIT_QUEUE, s.queue);
    seconds(&metric::SPLIT_LOAD, s.load);
    seconds(&metric::SPLIT_PREFILL, s.prefill);
    seconds(&metric::SPLIT_UNATTRIBUTED, Some(s.unattributed));
    seconds(&metric::SPLIT_DECODE, s.decode);
    seconds(&metric::SPLIT_ENGINE_TTFT, s.engine_ttft);
    a.text(attr::SPLIT_WHOLE, Some(s.whole.as_str()));
    a.text(attr::SPLIT_SOURCE, s.source.map(|source| source.as_str()));
    a.put(attr::SPLIT_QUEUE_DERIVED, s.queue_derived.then_some(Value::Bool(true)));
    a.count(attr::SPLIT_HOPS, Some(found.hops as u64).filter(|n| *n > 1));
}
