//! The instruments of objectives: they read how things stand, once per export.
//!
//! Counters begin at 0 with the process, as its start time says; so they add up over nodes and restarts, which ratios do not.

use std::sync::{Arc, PoisonError};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use tokengauge_core::semconv::{Metric, attr, metric};

use crate::slo::live::{Shared, Standing};
use crate::slo::view::{Alert, View};

/// Registers them.
pub fn observe(meter: &Meter, shared: &Shared) {
    let counter = |m: Metric, of: fn(&View) -> u64| {
        let shared = Arc::clone(shared);
        meter
            .u64_observable_counter(m.name)
            .with_unit(m.unit)
            .with_description(m.doc)
            .with_callback(move |observer| {
                let standing = shared.lock().unwrap_or_else(PoisonError::into_inner);
                // A composite's counts are those of its parts: they are there already.
                standing.objectives.iter().filter(|v| !v.composite).for_each(|v| observer.observe(of(v), &attributes(v)));
            })
            .build()
    };
    counter(metric::SLO_VALID, |v| v.since_start.valid);
    counter(metric::SLO_GOOD, |v| v.since_start.good);
    counter(metric::SLO_EXCLUDED, |v| v.since_start.excluded);
    counter(metric::SLO_NOT_APPLICABLE, |v| v.since_start.not_applicable);
    gauge(meter, shared, metric::SLO_OBJECTIVE, |v, tell| tell(v.target, None));
    gauge(meter, shared, metric::SLO_BUDGET_REMAINING, |v, tell| {
        if let Some(left) = v.error_budget_remaining {
            tell(left, None);
        }
    });
    gauge(meter, shared, metric::SLO_BURN_RATE, |v, tell| {
        for (window, rate) in &v.burn_rate {
            if let Some(rate) = rate {
                tell(*rate, Some(KeyValue::new(attr::SLO_WINDOW, window.clone())));
            }
        }
    });
    gauge(meter, shared, metric::SLO_TIME_TO_EXHAUSTION, |v, tell| {
        if let Some(seconds) = v.time_to_exhaustion_s {
            tell(seconds, None);
        }
    });
    gauge(meter, shared, metric::SLO_COVERAGE, |v, tell| tell(v.coverage, None));
    gauge(meter, shared, metric::SLO_ALERT_STATE, |v, tell| {
        for (severity, alert) in ["page", "ticket"].into_iter().zip(v.alerts) {
            let state = match alert {
                _ if v.blind() => 3.0,
                Alert::Quiet => 0.0,
                Alert::Pending => 1.0,
                Alert::Firing => 2.0,
            };
            tell(state, Some(KeyValue::new(attr::SLO_SEVERITY, severity)));
        }
    });
    whole(meter, shared, metric::SLO_FILES_PROBLEMS, |s| s.broken.len() as f64);
    whole(meter, shared, metric::SLO_JOURNAL_FAILING, |s| f64::from(u8::from(s.journal_trouble.is_some())));
}

/// A gauge of the engine as a whole.
fn whole(meter: &Meter, shared: &Shared, m: Metric, of: fn(&Standing) -> f64) {
    let shared = Arc::clone(shared);
    meter
        .f64_observable_gauge(m.name)
        .with_unit(m.unit)
        .with_description(m.doc)
        .with_callback(move |observer| observer.observe(of(&shared.lock().unwrap_or_else(PoisonError::into_inner)), &[]))
        .build();
}

/// Says a value, with one attribute more.
type Tell<'a> = dyn FnMut(f64, Option<KeyValue>) + 'a;

fn gauge(meter: &Meter, shared: &Shared, m: Metric, say: fn(&View, &mut Tell<'_>)) {
    let shared = Arc::clone(shared);
    meter
        .f64_observable_gauge(m.name)
        .with_unit(m.unit)
        .with_description(m.doc)
        .with_callback(move |observer| {
            let standing = shared.lock().unwrap_or_else(PoisonError::into_inner);
            for v in &standing.objectives {
                let attributes = attributes(v);
                say(v, &mut |value, more| {
                    let all: Vec<KeyValue> = attributes.iter().cloned().chain(more).collect();
                    observer.observe(value, &all);
                });
            }
        })
        .build();
}

/// Everything that rules group by.
fn attributes(v: &View) -> Vec<KeyValue> {
    let mut all = vec![
        KeyValue::new(attr::SLO_NAME, v.slo.clone()),
        KeyValue::new(attr::SLO_SERVICE, v.service.clone()),
        KeyValue::new(attr::SLO_OBJECTIVE_NAME, v.objective.clone()),
    ];
    all.extend(v.group.iter().map(|(k, value)| KeyValue::new(format!("{}{k}", attr::SLO_GROUP_PREFIX), value.clone())));
    all
}
