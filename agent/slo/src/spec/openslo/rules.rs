//! The rules of OpenSLO's Go SDK (OpenSLO/go-sdk@ae145da1, `Validate` of v1, v1alpha and v2alpha), on documents whose shape is right.
//! Where the SDK is stricter or laxer than the specification's text, this is the SDK: the verdicts must be the same.

use super::super::duration::{UNITS, scan};
use super::super::problem::{Class, Problems};
use super::super::read::join;
use super::super::shape::list;
use super::values::{
    ANNOTATION_KEY, ANNOTATION_LENGTH, LABEL_VALUE, is_date_time, is_dns_label, is_label_key, is_qualified, is_time_zone, matches,
};
use crate::yaml::{Node, Pos, Value};

/// A version of the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// `openslo/v1`
    V1,
    /// `openslo/v1alpha`
    V1Alpha,
    /// `openslo.com/v2alpha`
    V2Alpha,
}

/// Checks a document of a version and kind.
pub fn check(version: Version, kind: &str, document: &Node, problems: &mut Problems<'_>) {
    let mut rules = Rules { version, problems };
    rules.metadata(document, "");
    let spec = Part::of(document, "", "spec");
    match (kind, version) {
        ("SLO", Version::V1Alpha) => rules.slo_v1alpha(&spec),
        ("SLO", _) => rules.slo(&spec),
        ("SLI", _) => rules.sli(&spec),
        ("DataSource", _) => rules.data_source(&spec),
        ("AlertPolicy", _) => rules.alert_policy(&spec),
        ("AlertCondition", _) => rules.alert_condition(&spec),
        ("AlertNotificationTarget", _) => rules.target(&spec),
        _ => rules.description(&spec),
    }
}

/// A node, whether it is there, and its path.
pub struct Part<'a> {
    /// It, when it is there and not null.
    pub node: Option<&'a Node>,
    /// Where it is, or what should hold it.
    pub pos: Pos,
    /// Its path.
    pub path: String,
}

impl<'a> Part<'a> {
    /// The value of a key of `parent`.
    pub fn of(parent: &'a Node, path: &str, key: &str) -> Self {
        let node = parent.set(key);
        Self { node, pos: node.map_or(parent.pos, |n| n.pos), path: join(path, key) }
    }

    /// The value of a key of this one.
    pub fn at(&self, key: &str) -> Self {
        let node = self.node.and_then(|n| n.set(key));
        Self { node, pos: node.map_or(self.pos, |n| n.pos), path: join(&self.path, key) }
    }

    /// Whether the key is written at all, be its value null.
    pub fn has(&self, key: &str) -> bool {
        self.node.is_some_and(|n| n.get(key).is_some())
    }

    /// Its text; empty when it is not there.
    pub fn text(&self) -> &'a str {
        self.node.and_then(Node::text).unwrap_or_default()
    }

    /// Its number.
    pub fn number(&self) -> Option<f64> {
        self.node.and_then(Node::number)
    }

    /// Its items.
    pub fn items(&self) -> Vec<Part<'a>> {
        let items = self.node.map(Node::items).unwrap_or_default();
        let part = |(i, n): (usize, &'a Node)| Part {
            node: (n.value != Value::Null).then_some(n),
            pos: n.pos,
            path: format!("{}[{i}]", self.path),
        };
        items.iter().enumerate().map(part).collect()
    }
}

pub(super) const OPERATORS: [&str; 4] = ["gt", "lt", "gte", "lte"];
pub(super) const METHODS: [&str; 3] = ["Occurrences", "Timeslices", "RatioTimeslices"];

/// The rules, and where what breaks them is put.
pub(super) struct Rules<'p, 'f> {
    pub(super) version: Version,
    problems: &'p mut Problems<'f>,
}

impl Rules<'_, '_> {
    pub(super) fn error(&mut self, part: &Part<'_>, message: impl Into<String>) {
        self.problems.error(Class::Rule, part.pos, &part.path, message);
    }

    pub(super) fn required(&mut self, part: &Part<'_>) -> bool {
        if part.node.is_none() {
            self.error(part, "is required, but is not there");
        }
        part.node.is_some()
    }

    pub(super) fn required_text(&mut self, part: &Part<'_>) -> bool {
        if part.text().is_empty() {
            self.error(part, "is required, but is empty");
        }
        !part.text().is_empty()
    }

    pub(super) fn one_of(&mut self, part: &Part<'_>, words: &[&str]) {
        if !words.contains(&part.text()) {
            let hint = super::super::shape::nearest(part.text(), words.iter().copied()).map(|w| format!("did you mean `{w}`?"));
            let message = format!("must be {}, found {:?}", list(words), part.text());
            self.problems.hinted(Class::Rule, part.pos, &part.path, message, hint);
        }
    }

    pub(super) fn length(&mut self, part: &Part<'_>, most: usize) {
        let length = part.text().chars().count();
        if length > most {
            self.error(part, format!("must have at most {most} characters, has {length}"));
        }
    }

    pub(super) fn dns_label(&mut self, part: &Part<'_>) {
        if !is_dns_label(part.text()) {
            self.error(
                part,
                format!(
                    "must be an RFC 1123 label (at most 63 of a-z, 0-9 and `-`, beginning and ending with a letter or digit), found {:?}",
                    part.text()
                ),
            );
        }
    }

    pub(super) fn duration(&mut self, part: &Part<'_>) {
        let Some((value, unit)) = scan(part.text()) else {
            self.error(part, "is required, but is empty");
            return;
        };
        let units = if self.version == Version::V2Alpha { &UNITS[..4] } else { &UNITS[..] };
        if !units.iter().any(|(name, _)| *name == unit) {
            let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
            self.error(part, format!("must have a unit of {}, found {unit:?}", list(&names)));
        }
        if value < 0 {
            self.error(part, format!("must not be negative, found {value}"));
        }
    }

    /// Exactly one (or at most one) of two to three keys.
    pub(super) fn exclusive(&mut self, part: &Part<'_>, required: bool, keys: &[(&str, bool)]) -> bool {
        let there: Vec<&str> = keys.iter().filter(|(_, there)| *there).map(|(key, _)| *key).collect();
        let names: Vec<&str> = keys.iter().map(|(key, _)| *key).collect();
        if there.len() > 1 {
            self.error(part, format!("only one of {} may be there, found {}", list(&names), there.join(" and ")));
            return false;
        }
        if required && there.is_empty() {
            self.error(part, format!("one of {} must be there, found none", list(&names)));
            return false;
        }
        true
    }

    pub(super) fn description(&mut self, spec: &Part<'_>) {
        self.length(&spec.at("description"), 1050);
    }

    pub(super) fn metadata(&mut self, holder: &Node, path: &str) {
        let meta = Part::of(holder, path, "metadata");
        if !self.required(&meta) {
            return;
        }
        let name = meta.at("name");
        if self.required_text(&name) {
            self.dns_label(&name);
        }
        if self.version != Version::V2Alpha {
            self.length(&meta.at("displayName"), 63);
        }
        let labels = meta.at("labels");
        for entry in labels.node.map(Node::entries).unwrap_or_default() {
            let part = Part { node: Some(&entry.value), pos: entry.key_pos, path: join(&labels.path, &entry.key) };
            if self.version == Version::V2Alpha {
                if !is_qualified(&entry.key) {
                    self.error(
                        &part,
                        format!("the key must be a qualified name such as `team` or `example.org/team`, found {:?}", entry.key),
                    );
                } else if !matches(&LABEL_VALUE, entry.value.text().unwrap_or_default()) {
                    self.error(&part, format!("must be at most 63 of a-z, 0-9, `-`, `_` and `.`, found {}", entry.value.found()));
                }
            } else if !is_label_key(&entry.key) {
                self.error(&part, format!("the key must be at most 63 letters, digits, `-`, `_` and `.`, found {:?}", entry.key));
            }
        }
        let annotations = meta.at("annotations");
        for entry in annotations.node.map(Node::entries).unwrap_or_default() {
            let right = if self.version == Version::V2Alpha {
                is_qualified(&entry.key)
            } else {
                matches(&ANNOTATION_LENGTH, &entry.key) && matches(&ANNOTATION_KEY, &entry.key)
            };
            if !right {
                let part = Part { node: None, pos: entry.key_pos, path: join(&annotations.path, &entry.key) };
                self.error(&part, format!("the key must be like `my-key` or `my-domain.org/my-key`, found {:?}", entry.key));
            }
        }
    }

    pub(super) fn slo(&mut self, spec: &Part<'_>) {
        if !self.required(spec) {
            return;
        }
        let (inline, by_ref) = if self.version == Version::V1 { ("indicator", "indicatorRef") } else { ("sli", "sliRef") };
        let objectives = spec.at("objectives").items();
        let has = |part: &Part<'_>| part.at(inline).node.is_some() || part.at(by_ref).node.is_some();
        let composite = objectives.iter().any(has);
        match (composite, has(spec)) {
            (false, false) => {
                self.error(spec, format!("needs `{inline}` or `{by_ref}`, here or (for a composite) in its objectives; found none"));
            }
            (true, true) => {
                self.error(spec, format!("may have `{inline}` or `{by_ref}` here or (for a composite) in its objectives, not in both"));
            }
            _ => {}
        }
        self.indicator(spec, inline, by_ref);
        self.description(spec);
        let service = spec.at(if self.version == Version::V1 { "service" } else { "serviceRef" });
        self.required_text(&service);
        let method = spec.at("budgetingMethod");
        if self.required_text(&method) {
            self.one_of(&method, &METHODS);
        }
        let window = spec.at("timeWindow");
        let windows = window.items();
        if windows.len() != 1 {
            self.error(&window, format!("must hold exactly one window, found {}", windows.len()));
        }
        for window in &windows {
            self.window(window);
        }
        for policy in spec.at("alertPolicies").items() {
            self.inline_or_ref(&policy, "alertPolicyRef", "AlertPolicy", Self::alert_policy);
        }
        let metric = spec.at(inline).at("spec");
        let (ratio, threshold) = (metric.at("ratioMetric").node.is_some(), metric.at("thresholdMetric").node.is_some());
        for objective in &objectives {
            self.objective(objective, method.text(), ratio, threshold);
            if composite {
                self.indicator(objective, inline, by_ref);
                let weight = objective.at("compositeWeight");
                if weight.number().is_some_and(|w| w <= 0.0) {
                    self.error(&weight, format!("must be above 0, found {}", weight.number().unwrap_or_default()));
                }
            }
        }
    }

    pub(super) fn objective(&mut self, objective: &Part<'_>, method: &str, ratio: bool, threshold: bool) {
        let (target, percent) = (objective.at("target"), objective.at("targetPercent"));
        self.exclusive(objective, true, &[("target", target.node.is_some()), ("targetPercent", percent.node.is_some())]);
        for (part, most) in [(&target, 1.0), (&percent, 100.0)] {
            if let Some(n) = part.number().filter(|n| !(0.0..most).contains(n)) {
                let hint = match () {
                    () if most == 1.0 && (1.0..=100.0).contains(&n) => {
                        Some(format!("{n} percent is `targetPercent: {n}` or `target: {}`", n / 100.0))
                    }
                    () if n == most => Some("a target of 100 % leaves no error budget".into()),
                    () => None,
                };
                let hint = if n == most { Some("a target of 100 % leaves no error budget".into()) } else { hint };
                self.problems.hinted(Class::Rule, part.pos, &part.path, format!("must be from 0 to below {most}, found {n}"), hint);
            }
        }
        let (op, value) = (objective.at("op"), objective.at("value"));
        if ratio {
            if value.node.is_some() {
                self.error(&value, "is forbidden with a ratio metric: only a threshold metric is compared");
            }
            if !op.text().is_empty() {
                self.error(&op, "is forbidden with a ratio metric: only a threshold metric is compared");
            }
        }
        if threshold {
            self.required(&value);
            if self.required_text(&op) {
                self.one_of(&op, &OPERATORS);
            }
        }
        if method == "Timeslices" {
            let target = objective.at("timeSliceTarget");
            if self.required(&target)
                && let Some(n) = target.number().filter(|n| *n <= 0.0 || *n > 1.0)
            {
                self.error(&target, format!("must be above 0 and at most 1, found {n}"));
            }
        }
        if method == "Timeslices" || method == "RatioTimeslices" {
            let window = objective.at("timeSliceWindow");
            if self.required(&window) {
                self.duration(&window);
            }
        }
    }

    /// An indicator, where one is given at all.
    pub(super) fn indicator(&mut self, holder: &Part<'_>, inline: &str, by_ref: &str) {
        let (indicator, reference) = (holder.at(inline), holder.at(by_ref));
        if indicator.node.is_none() && reference.node.is_none() {
            return;
        }
        if !self.exclusive(holder, true, &[(inline, indicator.node.is_some()), (by_ref, reference.node.is_some())]) {
            return;
        }
        if let Some(node) = indicator.node {
            self.metadata(node, &indicator.path);
            self.sli(&indicator.at("spec"));
        } else {
            self.dns_label(&reference);
        }
    }

    pub(super) fn window(&mut self, window: &Part<'_>) {
        let calendar = window.at("calendar");
        let rolling = window.at("isRolling").node.and_then(Node::truth).unwrap_or_default();
        match (rolling, calendar.node.is_some()) {
            (true, true) => self.error(window, "`calendar` cannot be there when `isRolling` is true"),
            (false, false) => self.error(window, "`calendar` must be there when `isRolling` is false or absent"),
            _ => {}
        }
        let duration = window.at("duration");
        if self.required_text(&duration) {
            self.duration(&duration);
        }
        self.calendar(&calendar);
    }

    pub(super) fn calendar(&mut self, calendar: &Part<'_>) {
        if calendar.node.is_none() {
            return;
        }
        let start = calendar.at("startTime");
        if !is_date_time(start.text()) {
            self.error(&start, format!("must be a date and time like `2026-01-31 00:00:00`, found {:?}", start.text()));
        }
        let zone = calendar.at("timeZone");
        if !is_time_zone(zone.text()) {
            self.error(&zone, format!("must be an IANA time zone like `UTC` or `Europe/Warsaw`, found {:?}", zone.text()));
        }
    }

    pub(super) fn sli(&mut self, spec: &Part<'_>) {
        self.description(spec);
        let (threshold, ratio) = (spec.at("thresholdMetric"), spec.at("ratioMetric"));
        self.exclusive(spec, true, &[("thresholdMetric", threshold.node.is_some()), ("ratioMetric", ratio.node.is_some())]);
        if threshold.node.is_some() {
            self.metric(&threshold);
        }
        if ratio.node.is_some() {
            self.ratio(&ratio);
        }
    }

    pub(super) fn ratio(&mut self, ratio: &Part<'_>) {
        let [good, bad, total, raw] = ["good", "bad", "total", "raw"].map(|key| ratio.at(key));
        let there = |part: &Part<'_>| part.node.is_some();
        if !self.exclusive(ratio, true, &[("total", there(&total)), ("raw", there(&raw))])
            || !self.exclusive(ratio, false, &[("raw", there(&raw)), ("good", there(&good)), ("bad", there(&bad))])
        {
            return;
        }
        if there(&total) {
            if !there(&good) && !there(&bad) {
                self.error(ratio, "one of `good` or `bad` must be there beside `total`, found none");
                return;
            }
            for part in [&total, &good, &bad].into_iter().filter(|p| there(p)) {
                self.metric(part);
            }
        }
        if there(&raw) {
            self.metric(&raw);
            let kind = ratio.at("rawType");
            if self.required_text(&kind) {
                self.one_of(&kind, &["success", "failure"]);
            }
        }
    }

    pub(super) fn metric(&mut self, metric: &Part<'_>) {
        if self.version == Version::V2Alpha {
            let (reference, inline) = (metric.at("dataSourceRef"), metric.at("dataSourceSpec"));
            let named = !reference.text().is_empty();
            self.exclusive(metric, true, &[("dataSourceRef", named), ("dataSourceSpec", inline.node.is_some())]);
            if named {
                self.dns_label(&reference);
            }
            if inline.node.is_some() {
                self.data_source(&inline);
            }
            return;
        }
        let source = metric.at("metricSource");
        let reference = source.at("metricSourceRef");
        if !reference.text().is_empty() {
            self.dns_label(&reference);
        }
        let spec = source.at("spec");
        if self.required(&spec) && spec.node.is_some_and(|n| n.entries().is_empty()) {
            self.error(&spec, "must not be empty");
        }
    }

    pub(super) fn data_source(&mut self, spec: &Part<'_>) {
        self.description(spec);
        self.required_text(&spec.at("type"));
        // Raw JSON to the SDK, to which `null` is something as well.
        if !spec.has("connectionDetails") {
            self.error(&spec.at("connectionDetails"), "is required, but is not there");
        }
    }
}
