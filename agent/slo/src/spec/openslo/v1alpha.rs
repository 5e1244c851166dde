//! Rules of v1alpha's objectives.

use super::rules::{METHODS, OPERATORS, Part, Rules};
use crate::yaml::Node;

impl Rules<'_, '_> {
    pub(super) fn slo_v1alpha(&mut self, spec: &Part<'_>) {
        let objectives = spec.at("objectives").items();
        let ratio = objectives.iter().any(|o| o.at("ratioMetrics").node.is_some());
        let indicator = spec.at("indicator");
        if ratio == indicator.node.is_some() {
            self.error(spec, "exactly one of `indicator` and `objectives[*].ratioMetrics` must be there");
            return;
        }
        self.description(spec);
        self.required_text(&spec.at("service"));
        if indicator.node.is_some() {
            self.source(&indicator.at("thresholdMetric"));
        }
        let method = spec.at("budgetingMethod");
        if self.required_text(&method) {
            self.one_of(&method, &METHODS[..2]);
        }
        let windows = spec.at("timeWindows");
        if windows.items().len() != 1 {
            self.error(&windows, format!("must hold exactly one window, found {}", windows.items().len()));
        }
        for window in windows.items() {
            let rolling = window.at("isRolling").node.and_then(Node::truth).unwrap_or_default();
            let calendar = window.at("calendar");
            if rolling == calendar.node.is_some() {
                self.error(&window, "exactly one of `calendar` and `isRolling: true` must be there");
            }
            let unit = window.at("unit");
            if self.required_text(&unit) {
                self.one_of(&unit, &["Second", "Day", "Week", "Month", "Quarter"]);
            }
            let count = window.at("count");
            if count.number().unwrap_or_default() <= 0.0 {
                self.error(&count, "must be above 0");
            }
            self.calendar(&calendar);
        }
        for objective in &objectives {
            self.objective_v1alpha(objective, method.text() == "Timeslices");
        }
    }

    pub(super) fn objective_v1alpha(&mut self, objective: &Part<'_>, slices: bool) {
        self.length(&objective.at("displayName"), 1050);
        let (ratio, op) = (objective.at("ratioMetrics"), objective.at("op"));
        if ratio.node.is_some() {
            self.source(&ratio.at("good"));
            self.source(&ratio.at("total"));
            if !op.text().is_empty() {
                self.error(&op, "is forbidden with ratio metrics");
            }
        } else if self.required_text(&op) {
            self.one_of(&op, &OPERATORS);
        }
        self.required(&objective.at("value"));
        let target = objective.at("target");
        if self.required(&target)
            && let Some(n) = target.number().filter(|n| !(0.0..1.0).contains(n))
        {
            self.error(&target, format!("must be from 0 to below 1, found {n}"));
        }
        let slice = objective.at("timeSliceTarget");
        if slices
            && self.required(&slice)
            && let Some(n) = slice.number().filter(|n| !(0.0..=1.0).contains(n))
        {
            self.error(&slice, format!("must be from 0 to 1, found {n}"));
        }
    }

    pub(super) fn source(&mut self, source: &Part<'_>) {
        for key in ["source", "queryType"] {
            let part = source.at(key);
            if self.required_text(&part) && !part.text().bytes().all(|b| b.is_ascii_alphabetic()) {
                self.error(&part, format!("must be letters only, found {:?}", part.text()));
            }
        }
        let query = source.at("query");
        if self.required_text(&query) && query.text().trim().is_empty() {
            self.error(&query, "must not be blank");
        }
    }
}
