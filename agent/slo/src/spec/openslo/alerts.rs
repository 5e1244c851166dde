//! Rules of alert policies, conditions and targets.

use super::rules::{OPERATORS, Part, Rules, Version};

impl Rules<'_, '_> {
    /// Something inline or by name: both are objects, so what counts is which keys are written.
    pub(super) fn inline_or_ref(&mut self, part: &Part<'_>, by_ref: &str, kind: &str, inner: fn(&mut Self, &Part<'_>)) {
        let inline = ["kind", "metadata", "spec"].iter().any(|key| part.has(key));
        if !self.exclusive(part, true, &[(by_ref, part.has(by_ref)), ("spec", inline)]) {
            return;
        }
        if inline {
            let found = part.at("kind");
            if self.required_text(&found) && found.text() != kind {
                self.error(&found, format!("must be `{kind}`, found {:?}", found.text()));
            }
            if let Some(node) = part.node {
                self.metadata(node, &part.path);
            }
            let spec = part.at("spec");
            if self.required(&spec) {
                inner(self, &spec);
            }
        } else {
            let reference = part.at(by_ref);
            if self.required_text(&reference) {
                self.dns_label(&reference);
            }
        }
    }

    pub(super) fn alert_policy(&mut self, spec: &Part<'_>) {
        self.description(spec);
        let (conditions, targets) = (spec.at("conditions"), spec.at("notificationTargets"));
        if conditions.items().len() != 1 {
            self.error(&conditions, format!("must hold exactly one condition, found {}", conditions.items().len()));
        }
        for condition in conditions.items() {
            self.inline_or_ref(&condition, "conditionRef", "AlertCondition", Self::alert_condition);
        }
        if targets.items().is_empty() {
            self.error(&targets, "must hold at least one target, found none");
        }
        for target in targets.items() {
            self.inline_or_ref(&target, "targetRef", "AlertNotificationTarget", Self::target);
        }
    }

    pub(super) fn alert_condition(&mut self, spec: &Part<'_>) {
        self.description(spec);
        self.required_text(&spec.at("severity"));
        let condition = spec.at("condition");
        if !self.required(&condition) {
            return;
        }
        let kind = condition.at("kind");
        if self.required_text(&kind) {
            self.one_of(&kind, &["burnrate"]);
        }
        if kind.text() != "burnrate" {
            return;
        }
        let op = condition.at("op");
        if self.required_text(&op) {
            self.one_of(&op, &OPERATORS);
        }
        self.required(&condition.at("threshold"));
        let lookback = condition.at("lookbackWindow");
        if self.required_text(&lookback) {
            self.duration(&lookback);
        }
        let after = condition.at("alertAfter");
        if self.version == Version::V2Alpha {
            self.required_text(&after);
        }
        if after.node.is_some() {
            self.duration(&after);
        }
    }

    pub(super) fn target(&mut self, spec: &Part<'_>) {
        self.required_text(&spec.at("target"));
        self.description(spec);
    }
}
