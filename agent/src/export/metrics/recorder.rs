//! What one finished inference is in metrics: the GenAI conventions' under the chosen profile, and our own figures under `tokengauge.*`.
//!
//! The `gen_ai.client.*` metrics are fed by what was seen at a client or in between, `gen_ai.server.*` only by what was seen at a server, and
//! our own carry `tokengauge.vantage`: an inference that is seen from both sides is never counted twice in one series.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use tokengauge_core::inference::{Inference, Operation, Outcome, Reason, Vantage};
use tokengauge_core::semconv::{Metric, OTHER, Profile, attr, metric};
use tokengauge_core::stats::Store;
use tokengauge_core::stats::sets::{Attribute, Set, Value};
use tokengauge_core::stats::top::Top;
use tokengauge_core::stream::Timestamp;
use tokengauge_core::workload::attributes::{self, Dimension};

use super::names::Models;
use crate::export::otlp::Env;
use crate::export::record::reason;

/// Every label set of `tokengauge.requests` that a series may come to have. They are written as 0 from the start: a counter that first
/// appears with 1 loses that 1 to `rate`.
const ENDS: [(Outcome, Option<Reason>); 9] = [
    (Outcome::Completed, None),
    (Outcome::Completed, Some(Reason::NoOutput)),
    (Outcome::Failed, Some(Reason::HttpError)),
    (Outcome::Failed, Some(Reason::StreamError)),
    (Outcome::Failed, Some(Reason::ServerClosed)),
    (Outcome::Failed, Some(Reason::Timeout)),
    (Outcome::Cancelled, Some(Reason::ClientCancelled)),
    (Outcome::Truncated, Some(Reason::Truncated)),
    (Outcome::Lost, Some(Reason::CaptureGap)),
];

/// Which measurements are remembered as exemplars: `OTEL_METRICS_EXEMPLAR_FILTER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Exemplars {
    /// Those whose span is exported.
    #[default]
    TraceBased,
    /// All.
    AlwaysOn,
    /// None.
    AlwaysOff,
}

impl Exemplars {
    /// As the environment says; an unknown word is the default.
    pub fn from_env(env: Env<'_>) -> Self {
        match env("OTEL_METRICS_EXEMPLAR_FILTER").as_deref() {
            Some("always_on") => Self::AlwaysOn,
            Some("always_off") => Self::AlwaysOff,
            _ => Self::TraceBased,
        }
    }

    /// Whether a measurement whose span is exported, or is not, is remembered.
    pub(super) const fn takes(self, sampled: bool) -> bool {
        match self {
            Self::AlwaysOn => true,
            Self::AlwaysOff => false,
            Self::TraceBased => sampled,
        }
    }
}

/// The sets of attributes of requests that are alike.
struct Alike {
    /// Of the conventions' metrics.
    common: Set,
    /// Of our own.
    own: Set,
    input: Set,
    output: Set,
    modality: Set,
    errors: Vec<(Value, Set)>,
    ends: Vec<((Outcome, Option<Reason>), Set)>,
}

/// Sets of requests that are remembered; more are made anew.
const REMEMBERED: usize = 4_096;

/// Makes points of inferences.
pub struct Recorder {
    /// Every series.
    pub store: Store,
    /// The generation of the conventions.
    pub profile: Profile,
    pub(super) exemplars: Exemplars,
    pub(super) values: Values,
    alike: FxHashMap<Vec<Attribute>, Alike>,
    scratch: Vec<Attribute>,
}

/// The values that attributes may have.
pub(super) struct Values {
    models: Models,
    tops: FxHashMap<&'static str, Top>,
    limit: usize,
    /// What of both ends is grouped by.
    ends: Vec<Dimension>,
    /// Whether tenants are told apart.
    tenants: bool,
}

impl Values {
    /// A value as an attribute: itself, or `_OTHER` where there is no room for it.
    fn text(&mut self, name: &'static str, value: &str, now: Timestamp) -> Attribute {
        let top = self.tops.entry(name).or_insert_with(|| Top::new(self.limit));
        // Spelled in one way, or there would be two series that look alike.
        let admitted = if value == OTHER { None } else { top.admit(value, now) };
        (Cow::Borrowed(name), admitted.map_or(Value::Word(OTHER), Value::Text))
    }

    /// What tells one series of all metrics from another, the vantage of our own and the place of the conventions' aside. **Whatever else is
    /// to be grouped by is added here**, by [`Values::text`], which bounds it.
    pub(super) fn dimensions(&mut self, i: &Inference, now: Timestamp, out: &mut Vec<Attribute>) {
        let word = |name, value| (Cow::Borrowed(name), Value::Word(value));
        out.push(word(attr::OPERATION_NAME, i.operation.as_str()));
        out.push(word(attr::PROVIDER_NAME, i.provider_or_other()));
        for (name, model) in [(attr::REQUEST_MODEL, &i.request.model), (attr::RESPONSE_MODEL, &i.response.model)] {
            if let Some(model) = model {
                let model = self.models.of(model);
                out.push(self.text(name, &model, now));
            }
        }
        if let Some(tenant) = i.request.tenant.filter(|_| self.tenants) {
            out.push(self.text(attr::TENANT, tenant.as_str(), now));
        }
        let ends = std::mem::take(&mut self.ends);
        attributes::of_point(i, &ends, |name, value| out.push(self.text(name, value.as_str(), now)));
        self.ends = ends;
    }

    /// Where the request went: of the conventions' metrics.
    fn place(&mut self, i: &Inference, now: Timestamp, out: &mut Vec<Attribute>) {
        match (&i.host, i.server) {
            (Some(host), _) => out.push(self.text(attr::SERVER_ADDRESS, host.as_str(), now)),
            (None, Some(server)) => out.push(self.text(attr::SERVER_ADDRESS, &server.ip().to_string(), now)),
            (None, None) => return,
        }
        out.extend(i.server.map(|s| (Cow::Borrowed(attr::SERVER_PORT), Value::Int(s.port().into()))));
    }
}

impl Recorder {
    /// Records into `store`; `values` is how many values an attribute may have.
    pub fn new(store: Store, profile: Profile, exemplars: Exemplars, models: Models, values: usize) -> Self {
        let values = Values { models, tops: FxHashMap::default(), limit: values, ends: Vec::new(), tenants: false };
        Self { store, profile, exemplars, values, alike: FxHashMap::default(), scratch: Vec::new() }
    }

    /// Groups by these of both ends as well.
    pub fn group_by(&mut self, ends: Vec<Dimension>) {
        self.values.ends = ends;
    }

    /// Tells tenants apart as well.
    pub fn by_tenant(&mut self) {
        self.values.tenants = true;
    }

    /// How often a value became `_OTHER`, by attribute, and how often a series was shared for lack of room.
    pub fn overflows(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self.values.tops.iter().map(|(name, top)| (*name, top.refused())).collect();
        all.push(("series", self.store.overflown()));
        all
    }

    /// Where there is little room, lets go of what was idle since `before`.
    pub fn sweep(&mut self, before: Timestamp) {
        self.values.tops.values_mut().for_each(|top| top.sweep(before));
        if self.store.sweep(before) {
            self.alike.clear();
            self.store.sets.sweep();
        }
    }

    /// Records one finished inference. Undefined is not zero: what was not measured leaves no sample, and neither does an existing
    /// response that is sent again.
    pub fn record(&mut self, i: &Inference, now: Timestamp, sampled: bool) {
        if !i.operation.is_inference() {
            return;
        }
        let Self { store, profile, exemplars, values, alike, scratch, .. } = self;
        scratch.clear();
        values.dimensions(i, now, scratch);
        scratch.push((Cow::Borrowed(attr::VANTAGE), Value::Word(i.vantage.as_str())));
        let own = scratch.len();
        values.place(i, now, scratch);
        if !alike.contains_key(scratch.as_slice()) {
            if alike.len() >= REMEMBERED {
                alike.clear();
                store.sets.sweep();
            }
            alike.insert(scratch.clone(), sets(store, scratch, own));
        }
        let Some(alike) = alike.get_mut(scratch.as_slice()) else { return };
        let point_to = exemplars.takes(sampled);
        if alike.ends.is_empty() {
            initialise(store, alike, now);
        }
        // v1.41.1 allows error.type on the durations only, `main` on the tokens of an operation as well.
        let failed = match i.error_type() {
            None => alike.common.clone(),
            Some(error) => {
                let (name, value) = values.text(attr::ERROR_TYPE, error, now);
                let known = alike.errors.iter().find(|(v, _)| *v == value).map(|(_, set)| set.clone());
                known.unwrap_or_else(|| {
                    let mut all = alike.common.attributes().to_vec();
                    all.push((name, value.clone()));
                    let set = store.sets.of(all);
                    alike.errors.push((value, set.clone()));
                    set
                })
            }
        };
        let mut one = One { store, profile: *profile, i, now, point_to };
        one.conventions(alike, &failed);
        one.own(alike);
    }
}

/// The sets of requests with these attributes, of which the first `own` are those of our metrics.
fn sets(store: &mut Store, attributes: &[Attribute], own: usize) -> Alike {
    let (ours, place) = attributes.split_at(own);
    let conventions = ours.iter().filter(|(name, _)| name != attr::VANTAGE).chain(place).cloned().collect();
    let common = store.sets.of(conventions);
    let mut with = |name, word| store.sets.with(&common, name, Value::Word(word));
    let (input, output) = (with(attr::TOKEN_TYPE, "input"), with(attr::TOKEN_TYPE, "output"));
    // Providers give no split by kind of content.
    let modality = with(attr::TOKEN_MODALITY, "unknown");
    Alike { own: store.sets.of(ours.to_vec()), common, input, output, modality, errors: Vec::new(), ends: Vec::new() }
}

/// Counters at 0, from the first moment.
fn initialise(store: &mut Store, alike: &mut Alike, now: Timestamp) {
    if store.has_room(&metric::REQUESTS) {
        for end in ENDS {
            let set = alike.end(store, end);
            store.add(&metric::REQUESTS, &set, 0, now);
        }
    }
    for m in [&metric::INPUT_TOKENS, &metric::OUTPUT_TOKENS] {
        store.add(m, &alike.own, 0, now);
    }
}

impl Alike {
    /// The set of requests that ended so.
    fn end(&mut self, store: &mut Store, end: (Outcome, Option<Reason>)) -> Set {
        if let Some((_, set)) = self.ends.iter().find(|(e, _)| *e == end) {
            return set.clone();
        }
        let mut all = self.own.attributes().to_vec();
        all.push((Cow::Borrowed(attr::OUTCOME), Value::Word(end.0.as_str())));
        all.extend(end.1.map(|r| (Cow::Borrowed(attr::REASON), Value::Word(r.as_str()))));
        let set = store.sets.of(all);
        self.ends.push((end, set.clone()));
        set
    }
}

/// One inference on its way into the store.
struct One<'a> {
    store: &'a mut Store,
    profile: Profile,
    i: &'a Inference,
    now: Timestamp,
    point_to: bool,
}

impl One<'_> {
    fn put(&mut self, m: &'static Metric, set: &Set, value: Option<f64>) {
        let Some(value) = value.filter(|_| self.profile.has(m.under)) else { return };
        let Some(distribution) = self.store.distribution(m, set, self.now) else { return };
        distribution.record(value);
        if self.point_to {
            let i = self.i;
            distribution.exemplify(value, i.timing.end, i.trace.trace_id, i.trace.span_id);
        }
    }

    /// Every gap of at least so many nanoseconds; the longest is the exemplar.
    fn gaps(&mut self, m: &'static Metric, set: &Set, least: u64) {
        let (i, gaps) = (self.i, &self.i.timing.gaps);
        if gaps.is_empty() || gaps.max() < Some(least) || !self.profile.has(m.under) {
            return;
        }
        let Some(distribution) = self.store.distribution(m, set, self.now) else { return };
        gaps.iter().filter(|g| *g >= least).for_each(|g| distribution.record(g as f64 / 1e9));
        if let Some(longest) = gaps.max().filter(|_| self.point_to) {
            distribution.exemplify(longest as f64 / 1e9, i.timing.end, i.trace.trace_id, i.trace.span_id);
        }
    }

    fn count(&mut self, m: &'static Metric, set: &Set, n: Option<u64>) {
        if let Some(n) = n.filter(|_| self.profile.has(m.under)) {
            self.store.add(m, set, n, self.now);
        }
    }

    fn conventions(&mut self, alike: &Alike, failed: &Set) {
        let (i, t, common) = (self.i, &self.i.timing, &alike.common);
        let duration = t.duration.ok().map(|d| d.as_secs_f64());
        let usage = i.usage.unwrap_or_default();
        if i.vantage == Vantage::Server {
            self.put(&metric::SERVER_REQUEST_DURATION, failed, duration);
            if i.outcome == Outcome::Completed
                && let Ok(ttft) = t.ttft
            {
                self.put(&metric::SERVER_TIME_TO_FIRST_TOKEN, common, Some(ttft.as_secs_f64()));
                // By the conventions' own definition, which counts from the first token to the end of the request.
                let rest = t.duration.ok().map(|d| d.saturating_sub(ttft).as_secs_f64());
                let tpot = rest.zip(usage.output.filter(|n| *n > 1)).map(|(rest, n)| rest / (n - 1) as f64);
                self.put(&metric::SERVER_TIME_PER_OUTPUT_TOKEN, common, tpot);
            }
            return;
        }
        let first = t.first_event.filter(|_| i.is_stream()).map(|d| d.as_secs_f64());
        if self.profile.speaks_v1_41() {
            self.put(&metric::CLIENT_TIME_TO_FIRST_CHUNK, common, first);
            self.gaps(&metric::CLIENT_TIME_PER_OUTPUT_CHUNK, common, 0);
            self.put(&metric::CLIENT_TOKEN_USAGE, &alike.input, usage.input.map(|n| n as f64));
            self.put(&metric::CLIENT_TOKEN_USAGE, &alike.output, usage.output.map(|n| n as f64));
        }
        // `main` calls by this name what a model generates; the others remain operations.
        let inference = !matches!(i.operation, Operation::Embeddings | Operation::Rerank);
        if self.profile.speaks_v1_41() || !inference {
            self.put(&metric::CLIENT_OPERATION_DURATION, failed, duration);
        }
        if !inference {
            return;
        }
        self.put(&metric::CLIENT_INFERENCE_DURATION, failed, duration);
        self.put(&metric::CLIENT_INFERENCE_TIME_TO_FIRST_CHUNK, common, first);
        self.gaps(&metric::CLIENT_INFERENCE_TIME_PER_OUTPUT_CHUNK, common, 0);
        self.put(&metric::CLIENT_OPERATION_INPUT_TOKENS, failed, usage.input.map(|n| n as f64));
        self.put(&metric::CLIENT_OPERATION_OUTPUT_TOKENS, failed, usage.output.map(|n| n as f64));
        // Failed operations are in these with 0, as the conventions want it.
        self.count(&metric::CLIENT_INPUT_TOKENS, &alike.modality, Some(usage.input.unwrap_or(0)));
        self.count(&metric::CLIENT_OUTPUT_TOKENS, &alike.modality, Some(usage.output.unwrap_or(0)));
        self.count(&metric::CLIENT_CACHE_READ_TOKENS, &alike.modality, usage.cache_read);
        self.count(&metric::CLIENT_CACHE_WRITE_TOKENS, &alike.modality, usage.cache_write);
        self.count(&metric::CLIENT_REASONING_TOKENS, &alike.modality, usage.reasoning);
    }

    fn own(&mut self, alike: &mut Alike) {
        let (i, t) = (self.i, &self.i.timing);
        let own = alike.own.clone();
        self.put(&metric::TIME_TO_FIRST_TOKEN, &own, t.ttft.ok().map(|d| d.as_secs_f64()));
        self.put(&metric::TIME_TO_FIRST_ANSWER, &own, t.ttfa.ok().map(|d| d.as_secs_f64()));
        self.put(&metric::TIME_PER_OUTPUT_TOKEN, &own, t.tpot.ok());
        self.put(&metric::MAX_STALL, &own, t.max_stall.ok().map(|d| d.as_secs_f64()));
        self.put(&metric::OUTPUT_SPEED, &own, t.output_tokens_per_s());
        // Chunks that share an instant are one arrival: a gap of zero is no gap here.
        self.gaps(&metric::INTER_CHUNK_GAP, &own, 1);
        let usage = i.usage.unwrap_or_default();
        self.count(&metric::INPUT_TOKENS, &own, usage.input);
        self.count(&metric::OUTPUT_TOKENS, &own, usage.output);
        let end = alike.end(self.store, (i.outcome, reason(i)));
        self.count(&metric::REQUESTS, &end, Some(1));
    }
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
