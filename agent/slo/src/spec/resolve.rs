//! Objects that are right become objectives: references are followed, indicators and alert policies compiled.

use std::collections::{BTreeMap, HashMap};

use super::duration::shorthand_s;
use super::openslo::rules::{Part, Version};
use super::openslo::values::civil;
use super::ours::alerting::{self, Windows};
use super::ours::limit::{from_percent, round};
use super::ours::sli::{Indicator, Threshold, indicator};
use super::ours::{alerting::Choice, short};
use super::problem::{Class, Problems};
use super::shape::nearest;
use super::{Loaded, Object, Options, Other, What};
use crate::model::{AlertRow, Budgeting, Objective, Op, Severity, Slo, Source, Window};
use crate::yaml::{Node, Pos, Value};

/// The type of a metric source that is ours.
pub const OURS: &str = "tokengauge";

/// Compiles objects into `loaded`.
pub fn resolve(mut objects: Vec<Object>, windows: &[Windows], options: Options, loaded: &mut Loaded) {
    let mut slos = Vec::new();
    for object in objects.iter_mut().filter(|o| matches!(o.what, What::Short)) {
        let name = loaded.files[object.file].name.clone();
        let mut problems = Problems::new(&name);
        slos.append(&mut short::document(&mut object.node, windows, &mut problems));
        loaded.problems.append(&mut problems.list);
    }
    loaded.short = slos.iter().map(|s: &Slo| s.name.clone()).collect();
    let registry = Registry::new(&objects);
    for object in &objects {
        let What::OpenSlo(known) = object.what else { continue };
        if known.kind != "SLO" {
            continue;
        }
        let file = loaded.files[object.file].name.clone();
        let name = name_of(&object.node).to_owned();
        let mut problems = Problems::new(&file);
        problems.object = format!("SLO {name}");
        let resolver = Resolver { registry: &registry, windows, options };
        let outcome =
            if known.version == Version::V1 { resolver.slo(&object.node, &mut problems) } else { Err("another version of OpenSLO".into()) };
        match outcome {
            Ok(Some(slo)) if !problems.refused() => slos.push(slo),
            Ok(_) => {}
            Err(source) => loaded.others.push(Other { name, source, file: file.clone(), line: object.node.pos.line }),
        }
        loaded.problems.append(&mut problems.list);
    }
    // Names are identities: of budgets, of series, of rules.
    let mut seen: HashMap<String, Source> = HashMap::new();
    for slo in slos {
        if let Some(first) = seen.get(&slo.name) {
            let mut problems = Problems::new(&slo.source.file);
            problems.object = format!("SLO {}", slo.name);
            let pos = Pos { line: slo.source.line, column: 1 };
            let message = format!("there is an objective of this name already, in {}:{}", first.file, first.line);
            problems.error(Class::Meaning, pos, "metadata.name", message);
            loaded.problems.append(&mut problems.list);
        } else {
            seen.insert(slo.name.clone(), slo.source.clone());
            loaded.slos.push(slo);
        }
    }
}

fn name_of(node: &Node) -> &str {
    node.get("metadata").and_then(|m| m.get("name")).and_then(Node::text).unwrap_or_default()
}

/// Every object by kind and name.
struct Registry<'a>(BTreeMap<(&'static str, &'a str), &'a Node>);

impl<'a> Registry<'a> {
    fn new(objects: &'a [Object]) -> Self {
        let known = objects.iter().filter_map(|o| match o.what {
            What::OpenSlo(known) if known.version == Version::V1 => Some(((known.kind, name_of(&o.node)), &o.node)),
            _ => None,
        });
        Self(known.collect())
    }

    fn find(&self, kind: &'static str, name: &str) -> Option<&'a Node> {
        self.0.get(&(kind, name)).copied()
    }

    fn names(&self, kind: &'static str) -> impl Iterator<Item = &'a str> {
        self.0.keys().filter(move |(k, _)| *k == kind).map(|(_, name)| *name)
    }
}

/// Whose an indicator is.
enum Whose {
    Ours,
    Theirs(String),
    Mixed(String),
}

struct Resolver<'a> {
    registry: &'a Registry<'a>,
    windows: &'a [Windows],
    options: Options,
}

impl<'a> Resolver<'a> {
    /// Says that something is missing: a warning, or an error of what is ours.
    fn missing(&self, part: &Part<'_>, kind: &'static str, ours: bool, problems: &mut Problems<'_>) {
        let name = part.text();
        let message = format!("no {kind} named {name:?} in the files");
        if self.options.strict_refs && ours {
            let hint = nearest(name, self.registry.names(kind)).map(|n| format!("did you mean `{n}`?"));
            problems.hinted(Class::Reference, part.pos, &part.path, message, hint);
        } else {
            problems.warning(Class::Reference, part.pos, &part.path, message);
        }
    }

    /// An indicator's spec, inline or referred to, and the problem-free path to it.
    fn indicator(&self, holder: &Part<'a>) -> Result<Option<Part<'a>>, Part<'a>> {
        let (inline, reference) = (holder.at("indicator"), holder.at("indicatorRef"));
        if inline.node.is_some() {
            return Ok(Some(inline.at("spec")));
        }
        if reference.node.is_none() {
            return Ok(None);
        }
        match self.registry.find("SLI", reference.text()) {
            Some(sli) => Ok(Some(Part::of(sli, "", "spec"))),
            None => Err(reference),
        }
    }

    fn whose(&self, spec: &Part<'a>) -> Whose {
        let ratio = spec.at("ratioMetric");
        let metrics = [spec.at("thresholdMetric"), ratio.at("good"), ratio.at("bad"), ratio.at("total"), ratio.at("raw")];
        let sources: Vec<String> = metrics.iter().filter(|m| m.node.is_some()).map(|m| self.source_type(&m.at("metricSource"))).collect();
        let ours = sources.iter().filter(|s| *s == OURS).count();
        let other = sources.iter().find(|s| *s != OURS).cloned();
        match (ours, other) {
            (0, other) => Whose::Theirs(other.unwrap_or_default()),
            (_, Some(other)) => Whose::Mixed(other),
            _ => Whose::Ours,
        }
    }

    fn source_type(&self, source: &Part<'a>) -> String {
        let said = source.at("type").text();
        if !said.is_empty() {
            return said.to_owned();
        }
        let referred = self.registry.find("DataSource", source.at("metricSourceRef").text());
        let kind = referred.and_then(|d| d.get("spec")).and_then(|s| s.get("type")).and_then(Node::text);
        kind.unwrap_or("a metric source without type").to_owned()
    }

    /// The objective of an SLO document; `Err` says whose it is, when it is not ours.
    fn slo(&self, node: &'a Node, problems: &mut Problems<'_>) -> Result<Option<Slo>, String> {
        let spec = Part::of(node, "", "spec");
        let parts = spec.at("objectives").items();
        let mut specs = Vec::new();
        for holder in std::iter::once(&spec).chain(&parts) {
            match self.indicator(holder) {
                Ok(found) => specs.push(found),
                Err(reference) => {
                    self.missing(&reference, "SLI", true, problems);
                    return Err(format!("unknown: the SLI {:?} is not in the files", reference.text()));
                }
            }
        }
        let mut ours = false;
        for indicator in specs.iter().flatten() {
            match self.whose(indicator) {
                Whose::Ours => ours = true,
                Whose::Theirs(_) if ours => {
                    problems.error(
                        Class::Meaning,
                        indicator.pos,
                        &indicator.path,
                        "a composite of ours and others cannot be computed here",
                    );
                    return Ok(None);
                }
                Whose::Theirs(source) => {
                    let near = source.eq_ignore_ascii_case(OURS) || nearest(&source, [OURS]).is_some();
                    if near {
                        let message = format!("{source:?} is not `{OURS}`: this objective is taken to be another tool's");
                        problems.warning(Class::Meaning, indicator.pos, &indicator.path, message);
                    }
                    return Err(source);
                }
                Whose::Mixed(other) => {
                    let message = format!("metric sources of `{OURS}` and {other:?} cannot be put into one ratio");
                    problems.error(Class::Meaning, indicator.pos, &indicator.path, message);
                    return Ok(None);
                }
            }
        }
        Ok(self.ours(node, &spec, &parts, specs, problems))
    }

    fn ours(
        &self,
        node: &'a Node,
        spec: &Part<'a>,
        parts: &[Part<'a>],
        mut specs: Vec<Option<Part<'a>>>,
        problems: &mut Problems<'_>,
    ) -> Option<Slo> {
        let shared = specs.remove(0);
        let composite = shared.is_none();
        if parts.is_empty() {
            let objectives = spec.at("objectives");
            problems.error(Class::Meaning, objectives.pos, &objectives.path, "an SLO of ours needs at least one objective");
        }
        let budgeting = match spec.at("budgetingMethod").text() {
            "Timeslices" => Budgeting::Timeslices,
            "RatioTimeslices" => Budgeting::RatioTimeslices,
            _ => Budgeting::Occurrences,
        };
        let window = window(&spec.at("timeWindow").items(), problems);
        let mut objectives: Vec<Objective> = Vec::new();
        let mut group_by = None;
        for (part, own) in parts.iter().zip(specs) {
            let Some(indicator_spec) = own.as_ref().or(shared.as_ref()) else {
                problems.error(Class::Meaning, part.pos, &part.path, "a part of a composite needs its own indicator");
                continue;
            };
            self.sources(indicator_spec, problems);
            let Some(Indicator { sli, group_by: groups }) = indicator(indicator_spec, threshold(part), problems) else { continue };
            if !objectives.is_empty() && groups != group_by {
                problems.error(Class::Meaning, part.pos, &part.path, "all objectives of an SLO must have the same `groupBy`");
            }
            group_by = groups;
            objectives.push(objective(part, sli, budgeting, window.as_ref(), &objectives, problems));
        }
        let meta = Part::of(node, "", "metadata");
        let annotations = meta.at("annotations");
        let choice = annotations.node.map(|n| alerting::annotations(n, &annotations.path, problems)).unwrap_or_default();
        let conditions = self.conditions(spec, &choice, problems);
        self.service(&spec.at("service"), problems);
        let window = window?;
        let targets: Vec<f64> = objectives.iter().map(|o| o.target).collect();
        let alerting = alerting::resolve(&choice, conditions, self.windows, window.nominal_s(), &targets, problems);
        let text = |part: Part<'_>| Some(part.text().to_owned()).filter(|t| !t.is_empty());
        Some(Slo {
            name: meta.at("name").text().to_owned(),
            display_name: text(meta.at("displayName")),
            description: text(spec.at("description")),
            service: spec.at("service").text().to_owned(),
            labels: labels(&meta.at("labels")),
            window,
            budgeting,
            objectives,
            composite,
            group_by,
            alerting,
            source: Source { file: problems.file.to_owned(), line: node.pos.line },
        })
    }

    /// Data sources that an indicator refers to.
    fn sources(&self, spec: &Part<'a>, problems: &mut Problems<'_>) {
        let ratio = spec.at("ratioMetric");
        for metric in [spec.at("thresholdMetric"), ratio.at("good"), ratio.at("bad"), ratio.at("total"), ratio.at("raw")] {
            let reference = metric.at("metricSource").at("metricSourceRef");
            if !reference.text().is_empty() && self.registry.find("DataSource", reference.text()).is_none() {
                self.missing(&reference, "DataSource", true, problems);
            }
        }
    }

    /// A service is a name, whether anybody describes it or not; but among descriptions a missing one is probably misspelt.
    fn service(&self, service: &Part<'a>, problems: &mut Problems<'_>) {
        if self.registry.names("Service").next().is_some() && self.registry.find("Service", service.text()).is_none() {
            let near = nearest(service.text(), self.registry.names("Service")).map(|n| format!("; there is `{n}`")).unwrap_or_default();
            problems.warning(
                Class::Reference,
                service.pos,
                &service.path,
                format!("no Service named {:?} in the files{near}", service.text()),
            );
        }
    }

    /// The rows that the SLO's alert policies mean.
    fn conditions(&self, spec: &Part<'a>, choice: &Choice, problems: &mut Problems<'_>) -> Vec<AlertRow> {
        let mut rows = Vec::new();
        for policy in spec.at("alertPolicies").items() {
            let Some(policy) = self.follow(&policy, "alertPolicyRef", "AlertPolicy", problems) else { continue };
            for target in policy.at("notificationTargets").items() {
                self.follow(&target, "targetRef", "AlertNotificationTarget", problems);
            }
            for condition in policy.at("conditions").items() {
                if let Some(spec) = self.follow(&condition, "conditionRef", "AlertCondition", problems)
                    && let Some(row) = row(&spec, problems)
                {
                    rows.push(row);
                }
            }
        }
        if !rows.is_empty() && (choice.table.is_some() || !choice.rows.is_empty()) {
            problems.warning(
                Class::Meaning,
                choice.pos,
                &choice.path,
                "this table is used, and the conditions of the alert policies are not",
            );
        }
        rows
    }

    /// The spec of something inline or referred to.
    fn follow(&self, part: &Part<'a>, by_ref: &str, kind: &'static str, problems: &mut Problems<'_>) -> Option<Part<'a>> {
        let reference = part.at(by_ref);
        if reference.node.is_none() {
            return Some(part.at("spec"));
        }
        let found = self.registry.find(kind, reference.text()).map(|node| Part::of(node, "", "spec"));
        if found.is_none() {
            self.missing(&reference, kind, true, problems);
        }
        found
    }
}

fn threshold(part: &Part<'_>) -> Threshold {
    let op = match part.at("op").text() {
        "lte" => Op::Le,
        "lt" => Op::Lt,
        "gte" => Op::Ge,
        "gt" => Op::Gt,
        _ => return None,
    };
    let value = part.at("value");
    Some((op, value.number()?, value.pos))
}

fn objective(
    part: &Part<'_>,
    sli: crate::model::Sli,
    budgeting: Budgeting,
    window: Option<&Window>,
    before: &[Objective],
    problems: &mut Problems<'_>,
) -> Objective {
    let target = part.at("target").number().or(part.at("targetPercent").number().map(from_percent)).unwrap_or_default();
    let slices = budgeting != Budgeting::Occurrences;
    let slice = part.at("timeSliceWindow");
    let slice_s = slices.then(|| shorthand_s(slice.text())).flatten();
    if let (Some(slice_s), Some(window)) = (slice_s, window)
        && (slice_s < 60 || slice_s > window.nominal_s())
    {
        problems.error(Class::Meaning, slice.pos, &slice.path, "a slice is from a minute to the whole window");
    }
    let given = part.at("displayName").text();
    let base = if given.is_empty() { format!("{}%", round(target * 100.0)) } else { given.to_owned() };
    let mut name = base.clone();
    let mut n = 1;
    while before.iter().any(|o| o.name == name) {
        n += 1;
        name = format!("{base} ({n})");
    }
    Objective {
        name,
        target,
        sli,
        weight: part.at("compositeWeight").number().unwrap_or(1.0),
        time_slice_target: (budgeting == Budgeting::Timeslices).then(|| part.at("timeSliceTarget").number()).flatten(),
        time_slice_window_s: slice_s,
    }
}

fn window(windows: &[Part<'_>], problems: &mut Problems<'_>) -> Option<Window> {
    let window = windows.first()?;
    let duration = window.at("duration");
    let calendar = window.at("calendar");
    if calendar.node.is_none() {
        return short::rolling(duration.text(), duration.pos, &duration.path, problems);
    }
    let start = civil(calendar.at("startTime").text()).map(short::canonical)?;
    short::calendar(duration.text(), start, calendar.at("timeZone").text(), duration.pos, &duration.path, problems)
}

fn labels(part: &Part<'_>) -> BTreeMap<String, String> {
    let value = |node: &Node| match &node.value {
        Value::List(items) => items.iter().filter_map(Node::text).collect::<Vec<_>>().join(","),
        _ => node.text().unwrap_or_default().to_owned(),
    };
    part.node.map(Node::entries).unwrap_or_default().iter().map(|e| (e.key.clone(), value(&e.value))).collect()
}

/// An alert condition as a row: one window, so both are the same.
fn row(spec: &Part<'_>, problems: &mut Problems<'_>) -> Option<AlertRow> {
    let condition = spec.at("condition");
    let (op, threshold) = (condition.at("op"), condition.at("threshold"));
    if !matches!(op.text(), "gt" | "gte") {
        problems.warning(
            Class::Meaning,
            op.pos,
            &op.path,
            format!("a burn rate that is too low ({}) is no reason to alert: not used", op.text()),
        );
        return None;
    }
    let factor = threshold.number().filter(|f| *f > 0.0);
    if factor.is_none() {
        problems.warning(Class::Meaning, threshold.pos, &threshold.path, "a burn rate that is never below this: the condition is not used");
    }
    let lookback = condition.at("lookbackWindow");
    let window_s = shorthand_s(lookback.text()).filter(|s| (60..=90 * 86_400).contains(s));
    if window_s.is_none() {
        problems.warning(
            Class::Meaning,
            lookback.pos,
            &lookback.path,
            "a window from 1 minute to 90 days is possible: the condition is not used",
        );
    }
    let urgent = ["page", "critical", "high", "urgent", "fatal", "emergency", "sev0", "sev1", "p0", "p1"];
    let severity =
        if urgent.contains(&spec.at("severity").text().to_ascii_lowercase().as_str()) { Severity::Page } else { Severity::Ticket };
    let (factor, window_s) = (factor?, window_s?);
    let for_s = shorthand_s(condition.at("alertAfter").text()).unwrap_or_default();
    Some(AlertRow { severity, short_s: window_s, long_s: window_s, factor, for_s })
}
