//! What becomes of a split in metrics: a histogram for each part, and the tokens of both sides where the engine counted them.

use std::borrow::Cow;

use tokengauge_core::inference::{Inference, Outcome};
use tokengauge_core::join::{Engine, Split};
use tokengauge_core::semconv::{Metric, attr, metric};
use tokengauge_core::stats::sets::{Attribute, Set, Value};
use tokengauge_core::stream::Timestamp;

use super::recorder::Recorder;

/// The source of a queue that nobody told.
const DERIVED: &str = "derived";

impl Recorder {
    /// Records where the time of one request went. A part that nobody saw leaves no sample.
    pub fn split(&mut self, i: &Inference, s: &Split, engine: Option<&Engine>, now: Timestamp, sampled: bool) {
        let mut attributes: Vec<Attribute> = Vec::new();
        self.values.dimensions(i, now, &mut attributes);
        let word = |name, value| (Cow::Borrowed(name), Value::Word(value));
        attributes.push(word(attr::VANTAGE, i.vantage.as_str()));
        attributes.push(word(attr::SPLIT_WHOLE, s.whole.as_str()));
        let wire = self.store.sets.of(attributes);
        let source = s.source.map(|source| source.as_str());
        let told = source.map_or_else(|| wire.clone(), |source| self.store.sets.with(&wire, attr::SPLIT_SOURCE, Value::Word(source)));
        let queue = match s.queue_derived {
            true => self.store.sets.with(&wire, attr::SPLIT_SOURCE, Value::Word(DERIVED)),
            false => told.clone(),
        };
        let point_to = self.exemplars.takes(sampled);
        let mut put = |m: &'static Metric, set: &Set, part: Option<u64>| {
            let Some(seconds) = part.map(|ns| ns as f64 / 1e9) else { return };
            let Some(distribution) = self.store.distribution(m, set, now) else { return };
            distribution.record(seconds);
            if point_to {
                distribution.exemplify(seconds, i.timing.end, i.trace.trace_id, i.trace.span_id);
            }
        };
        put(&metric::SPLIT_NETWORK, &wire, s.network);
        put(&metric::SPLIT_PROXY, &wire, s.proxy);
        put(&metric::SPLIT_QUEUE, &queue, s.queue);
        put(&metric::SPLIT_LOAD, &told, s.load);
        put(&metric::SPLIT_PREFILL, &told, s.prefill);
        put(&metric::SPLIT_DECODE, &told, s.decode);
        put(&metric::SPLIT_ENGINE_TTFT, &told, s.engine_ttft);
        put(&metric::SPLIT_UNATTRIBUTED, &wire, Some(s.unattributed));
        let Some(engine) = engine else { return };
        // What was cut off has tokens that never reached the wire.
        let whole = i.outcome == Outcome::Completed && i.gaps == 0;
        let on_wire = i.usage.and_then(|u| u.output).filter(|_| whole);
        let mut add = |m: &'static Metric, n: Option<u64>| n.into_iter().for_each(|n| self.store.add(m, &told, n, now));
        add(&metric::JOIN_ENGINE_TOKENS, engine.tokens.filter(|_| on_wire.is_some()));
        add(&metric::JOIN_WIRE_TOKENS, on_wire.filter(|_| engine.tokens.is_some()));
        add(&metric::JOIN_DRAFTED, engine.speculated.map(|(drafted, _)| drafted.into()));
        add(&metric::JOIN_ACCEPTED, engine.speculated.map(|(_, accepted)| accepted.into()));
    }
}
