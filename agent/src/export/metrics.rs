//! Metrics, whoever takes them: what is recorded of each inference, what parts of the agent say of themselves, in one store from which OTLP
//! and Prometheus are written. So both have the same figures.
//!
//! [`recorder`] makes points of an inference; [`names`] makes series of model names; [`vitals`] and [`objectives`] are observed when
//! metrics are collected.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokengauge_core::inference::Inference;
use tokengauge_core::semconv::{Profile, attr, metric};
use tokengauge_core::stats::store::{DEFAULT_LIMIT, Shape, Told};
use tokengauge_core::stats::{Snapshot, Store};
use tokengauge_core::stream::Timestamp;
use tokengauge_core::workload::attributes::Dimension;

use super::observe::{Observe, Tell};
use super::otlp::Env;
use super::{ExportError, Exporter};
use crate::clock::wall;
use crate::join::Found;

pub mod names;
pub mod objectives;
pub mod recorder;
mod splits;
pub mod vitals;

use names::Models;
use recorder::{Exemplars, Recorder};
use vitals::Vitals;

/// `metrics` in the configuration file: what becomes a series, whoever takes it.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Series of one metric at most; what is beyond shares one with `otel.metric.overflow`.
    pub limit: usize,
    /// Values of one attribute at most; the others become `_OTHER`.
    pub values: usize,
    /// Whether models keep their dates, versions and ids.
    pub exact_models: bool,
    /// Rules for names of models, applied before the usual ones.
    pub models: Vec<ModelRule>,
}

/// `metrics.models[]`.
#[derive(Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ModelRule {
    /// A regular expression; whatever it matches of a name is replaced.
    #[serde(rename = "match")]
    pub matches: String,
    /// By this; `$1` is the first group.
    pub replace: String,
}

impl Default for Config {
    fn default() -> Self {
        Self { limit: DEFAULT_LIMIT, values: 200, exact_models: false, models: Vec::new() }
    }
}

impl Config {
    /// Whether the values make sense; the message names the key below `metrics`.
    ///
    /// # Errors
    /// With the key and what is wrong with its value.
    pub fn check(&self) -> Result<(), String> {
        for (key, value) in [("limit", self.limit), ("values", self.values)] {
            if !(8..=1_000_000).contains(&value) {
                return Err(format!("{key}: {value} is not between 8 and 1000000"));
            }
        }
        Models::new(self).map(drop)
    }
}

/// How long a series must have been idle to go when there is little room.
const IDLE: Duration = Duration::from_secs(15 * 60);

/// All series of the agent. Clones are the same ones.
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<Inner>>);

struct Inner {
    recorder: Recorder,
    observers: Vec<Box<dyn Observe>>,
}

impl Metrics {
    /// No series yet. The process begins now.
    ///
    /// # Errors
    /// When a rule for names is no regular expression; the message names its key below `metrics`.
    pub fn new(config: &Config, profile: Profile, env: Env<'_>) -> Result<Self, String> {
        let histograms = env("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION").unwrap_or_default();
        let shape = Shape { limit: config.limit, exponential: histograms.eq_ignore_ascii_case("base2_exponential_bucket_histogram") };
        let recorder = Recorder::new(Store::new(shape, wall()), profile, Exemplars::from_env(env), Models::new(config)?, config.values);
        Ok(Self(Arc::new(Mutex::new(Inner { recorder, observers: Vec::new() }))))
    }

    /// Groups by these of both ends of a connection as well, from now on.
    pub fn group_by(&self, ends: Vec<Dimension>) {
        self.lock().recorder.group_by(ends);
    }

    /// Tells tenants apart as well, from now on.
    pub fn by_tenant(&self) {
        self.lock().recorder.by_tenant();
    }

    /// Adds something that is asked at each collection. It must not use these [`Metrics`] when it is.
    pub fn watch(&self, observer: impl Observe + 'static) {
        self.lock().observers.push(Box::new(observer));
    }

    /// Records one finished inference, whose span is exported or not.
    pub fn record(&self, inference: &Inference, sampled: bool) {
        self.lock().recorder.record(inference, wall(), sampled);
    }

    /// Records what was found with one.
    pub fn found(&self, inference: &Inference, found: &Found<'_>, sampled: bool) {
        if let Some(split) = found.split {
            self.lock().recorder.split(inference, split, found.engine, wall(), sampled);
        }
    }

    /// Asks every observer, lets go of what ended, and gives all series to `read`, with the instant of the collection.
    pub fn collect<R>(&self, read: impl FnOnce(&mut Store, Timestamp) -> R) -> R {
        let time = wall();
        let mut inner = self.lock();
        let Inner { recorder, observers } = &mut *inner;
        recorder.sweep(Timestamp::from_unix_nanos(time.unix_nanos().saturating_sub(IDLE.as_nanos() as u64)));
        let overflows = recorder.overflows();
        let held = recorder.store.len();
        recorder.store.observe(time, |tell| {
            let told = |n: u64| Told::Value(n as f64);
            overflows.iter().for_each(|(attribute, n)| tell(&metric::EXPORT_OVERFLOWS, &[(attr::ATTRIBUTE, attribute)], told(*n)));
            tell(&metric::EXPORT_SERIES, &[], told(held as u64));
            for o in observers {
                o.observe(&mut |m, attributes, value| tell(m, attributes, Told::Value(value)));
                o.histograms(&mut |m, attributes, bounds, counts, sum| tell(m, attributes, Told::Histogram(bounds, counts, sum)));
            }
        });
        read(&mut recorder.store, time)
    }

    /// The generation of the conventions that is spoken.
    pub fn profile(&self) -> Profile {
        self.lock().recorder.profile
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What feeds [`Metrics`] in a running agent, on the export thread: an exporter of its own, or part of one that decides about spans.
pub struct Recording {
    metrics: Metrics,
    vitals: Arc<Mutex<Vitals>>,
}

impl Recording {
    /// Feeds these.
    pub fn new(metrics: &Metrics) -> Self {
        let vitals = Arc::new(Mutex::new(Vitals::default()));
        let observed = Arc::clone(&vitals);
        metrics.watch(move |tell: &mut Tell<'_>| observed.lock().unwrap_or_else(PoisonError::into_inner).observe(tell));
        Self { metrics: metrics.clone(), vitals }
    }

    /// Records one finished inference, whose span is exported or not: decides whether exemplars may point to it.
    pub fn record(&self, inference: &Inference, sampled: bool) {
        self.metrics.record(inference, sampled);
    }

    /// Records what was found with one that was recorded.
    pub fn found(&self, inference: &Inference, found: &Found<'_>, sampled: bool) {
        self.metrics.found(inference, found, sampled);
    }
}

impl Exporter for Recording {
    fn name(&self) -> &'static str {
        "metrics"
    }

    fn inference(&mut self, inference: &Inference) {
        // We export no spans; the caller may.
        self.record(inference, inference.request.traceparent.is_some_and(|t| t.flags & 1 == 1));
    }

    fn settled(&mut self, inference: &Inference, found: &Found<'_>) {
        self.found(inference, found, inference.request.traceparent.is_some_and(|t| t.flags & 1 == 1));
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.vitals.lock().unwrap_or_else(PoisonError::into_inner).publish(snapshot);
    }

    fn flush(&mut self, _: Duration) -> Result<(), ExportError> {
        Ok(())
    }

    fn shutdown(&mut self, _: Duration) -> Result<(), ExportError> {
        Ok(())
    }
}
