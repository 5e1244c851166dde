//! How objectives stand, as metrics.
//!
//! Counters begin at 0 with the process, as its start time says; so they add up over nodes and restarts, which ratios do not.

use std::sync::PoisonError;

use tokengauge_core::semconv::{attr, metric};

use crate::export::observe::{Observe, Tell};
use crate::slo::live::Shared;
use crate::slo::view::{Alert, View};

/// What observes them.
pub struct Objectives(pub Shared);

impl Observe for Objectives {
    fn observe(&self, tell: &mut Tell<'_>) {
        let standing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        standing.objectives.iter().for_each(|v| objective(v, tell));
        tell(&metric::SLO_FILES_PROBLEMS, &[], standing.broken.len() as f64);
        tell(&metric::SLO_JOURNAL_FAILING, &[], f64::from(u8::from(standing.journal_trouble.is_some())));
    }
}

fn objective(v: &View, tell: &mut Tell<'_>) {
    // Everything that rules group by.
    let groups: Vec<_> = v.group.iter().map(|(key, value)| (format!("{}{key}", attr::SLO_GROUP_PREFIX), value)).collect();
    let mut attributes =
        vec![(attr::SLO_NAME, v.slo.as_str()), (attr::SLO_SERVICE, v.service.as_str()), (attr::SLO_OBJECTIVE_NAME, v.objective.as_str())];
    attributes.extend(groups.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    // A composite's counts are those of its parts: they are there already.
    if !v.composite {
        let counts = &v.since_start;
        tell(&metric::SLO_VALID, &attributes, counts.valid as f64);
        tell(&metric::SLO_GOOD, &attributes, counts.good as f64);
        tell(&metric::SLO_EXCLUDED, &attributes, counts.excluded as f64);
        tell(&metric::SLO_NOT_APPLICABLE, &attributes, counts.not_applicable as f64);
    }
    tell(&metric::SLO_OBJECTIVE, &attributes, v.target);
    tell(&metric::SLO_COVERAGE, &attributes, v.coverage);
    for (m, value) in [(&metric::SLO_BUDGET_REMAINING, v.error_budget_remaining), (&metric::SLO_TIME_TO_EXHAUSTION, v.time_to_exhaustion_s)]
    {
        if let Some(value) = value {
            tell(m, &attributes, value);
        }
    }
    let mut with = |m, key, value: &str, figure| {
        let all: Vec<_> = attributes.iter().copied().chain([(key, value)]).collect();
        tell(m, &all, figure);
    };
    for (window, rate) in &v.burn_rate {
        if let Some(rate) = rate {
            with(&metric::SLO_BURN_RATE, attr::SLO_WINDOW, window, *rate);
        }
    }
    for (severity, alert) in ["page", "ticket"].into_iter().zip(v.alerts) {
        let state = match alert {
            _ if v.blind() => 3.0,
            Alert::Quiet => 0.0,
            Alert::Pending => 1.0,
            Alert::Firing => 2.0,
        };
        with(&metric::SLO_ALERT_STATE, attr::SLO_SEVERITY, severity, state);
    }
}
