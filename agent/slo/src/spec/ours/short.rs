//! The short form: ten objectives on one screen.
//!
//! Scalars mean what they mean in OpenSLO (YAML 1.1), so nothing changes by `convert`; but where a text is expected, what YAML 1.1 reads
//! as a boolean or a number (`y`, `on`, `1_0`) is refused with the advice to quote it, and a key that stands twice is refused.

use std::collections::BTreeMap;

use super::alerting::{self, Choice, Windows};
use super::limit::{Goal, goal, round};
use super::presets::{PRESETS, find};
use super::sli::needs_prices;
use super::tables::{SHORT, SHORT_DOCUMENT};
use super::{select, sli};
use crate::model::{Budgeting, CalendarUnit, GroupBy, Objective, Policy, Price, Selector, Sli, SliKind, Slo, Source, Window};
use crate::spec::duration::{human, scan, shorthand_s};
use crate::spec::openslo::values::{civil, is_dns_label, is_label_key, is_time_zone};
use crate::spec::problem::{Class, Problems};
use crate::spec::read::{Manner, join, read};
use crate::spec::shape::{Ty, nearest};
use crate::yaml::{Node, Pos, Value};

/// Reads a document of the short form; the objectives that are right.
pub fn document(node: &mut Node, windows: &[Windows], problems: &mut Problems<'_>) -> Vec<Slo> {
    // A list is told from a map by itself: an error inside names the right path.
    read(node, &Ty::Object(&SHORT_DOCUMENT), "", Manner::Ours, problems);
    let Some(slos) = node.get("slos") else { return Vec::new() };
    let shape = problems.list.len();
    let services: Vec<(&Node, String)> = match &slos.value {
        Value::List(items) => items.iter().enumerate().map(|(i, n)| (n, format!("slos[{i}]"))).collect(),
        _ => vec![(slos, "slos".into())],
    };
    let found = services.iter().flat_map(|(node, path)| service(node, path, windows, problems)).collect();
    problems.tell_once(0, shape);
    found
}

/// What an item may leave to its service.
#[derive(Clone)]
struct Shared {
    window: Window,
    selector: Selector,
    policy: Policy,
    prices: Vec<Price>,
    group_by: Option<GroupBy>,
    alerting: Choice,
    budgeting: Budgeting,
    slice_window_s: u64,
    slice_target: f64,
}

fn shared(node: &Node, path: &str, above: Option<&Shared>, problems: &mut Problems<'_>) -> Shared {
    let mut shared = above.cloned().unwrap_or(Shared {
        window: Window::Rolling { seconds: 30 * 86_400 },
        selector: Selector::default(),
        policy: Policy::default(),
        prices: Vec::new(),
        group_by: None,
        alerting: Choice::default(),
        budgeting: Budgeting::Occurrences,
        slice_window_s: 60,
        slice_target: 0.95,
    });
    let at = |key: &str| node.get(key).map(|n| (n, join(path, key)));
    if let Some((n, p)) = at("window")
        && let Some(found) = window(n, &p, problems)
    {
        shared.window = found;
    }
    if let Some((n, p)) = at("when") {
        // What an item says about a dimension replaces what the service says about it.
        let own = select::selector(n, &p, problems);
        shared.selector.matches.retain(|(d, _)| own.matches.iter().all(|(o, _)| o != d));
        shared.selector.matches.extend(own.matches);
        shared.selector.matches.sort_by_key(|(d, _)| *d);
        shared.selector.stream = own.stream.or(shared.selector.stream);
        if own.input_tokens_min.is_some() || own.input_tokens_max.is_some() {
            (shared.selector.input_tokens_min, shared.selector.input_tokens_max) = (own.input_tokens_min, own.input_tokens_max);
        }
    }
    if let Some((n, _)) = at("policy") {
        shared.policy = select::policy(n);
    }
    if let Some((n, p)) = at("prices") {
        shared.prices = select::prices(n, &p, problems);
    }
    if let Some((n, p)) = at("groupBy") {
        shared.group_by = select::group_by(n, &p, problems);
    }
    if let Some((n, p)) = at("alerting") {
        shared.alerting = alerting::short_form(n, &p, problems).or(&shared.alerting);
    }
    match node.get("budgeting").and_then(Node::text) {
        Some("timeslices") => shared.budgeting = Budgeting::Timeslices,
        Some("ratioTimeslices") => shared.budgeting = Budgeting::RatioTimeslices,
        Some(_) => shared.budgeting = Budgeting::Occurrences,
        None => {}
    }
    if let Some((n, p)) = at("sliceWindow") {
        match n.text().and_then(shorthand_s).filter(|s| *s > 0) {
            Some(s) => shared.slice_window_s = s,
            None => problems.error(Class::Meaning, n.pos, &p, format!("expected a time such as `1m`, found {}", n.found())),
        }
    }
    if let Some((n, p)) = at("sliceTarget") {
        match n.number().filter(|t| *t > 0.0 && *t <= 1.0) {
            Some(t) => shared.slice_target = t,
            None => problems.error(Class::Meaning, n.pos, &p, format!("must be above 0 and at most 1, found {}", n.found())),
        }
    }
    shared
}

/// A window, rolling or of the calendar.
fn window(node: &Node, path: &str, problems: &mut Problems<'_>) -> Option<Window> {
    if let Some(length) = node.text() {
        return rolling(length, node.pos, path, problems);
    }
    let (length, start, zone) = (node.get("calendar")?, node.get("start")?, node.get("timeZone")?);
    let start_text = start.text().and_then(civil).map(canonical);
    if start_text.is_none() {
        let message = format!("expected a date and time like `2026-01-01 00:00:00`, found {}", start.found());
        problems.error(Class::Meaning, start.pos, &join(path, "start"), message);
    }
    if !zone.text().is_some_and(is_time_zone) {
        let message = format!("expected an IANA time zone like `UTC` or `Europe/Warsaw`, found {}", zone.found());
        problems.error(Class::Meaning, zone.pos, &join(path, "timeZone"), message);
    }
    calendar(length.text()?, start_text?, zone.text()?, length.pos, &join(path, "calendar"), problems)
}

/// `YYYY-MM-DD hh:mm:ss`.
pub fn canonical([year, month, day, hour, minute, second]: [u32; 6]) -> String {
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// The longest window: what fits into the engine's rings.
const MAX_WINDOW_S: u64 = 400 * 86_400;

/// A rolling window of a shorthand.
pub fn rolling(length: &str, pos: Pos, path: &str, problems: &mut Problems<'_>) -> Option<Window> {
    match shorthand_s(length) {
        Some(seconds) if (60..=MAX_WINDOW_S).contains(&seconds) => Some(Window::Rolling { seconds }),
        Some(seconds) => {
            let message = format!("a window is from 1 minute to 400 days, found {}", human(seconds as f64));
            problems.error(Class::Meaning, pos, path, message);
            None
        }
        None => {
            problems.error(Class::Meaning, pos, path, format!("expected a window such as `30d`, `4w`, found {length:?}"));
            None
        }
    }
}

/// A calendar window of a shorthand.
pub fn calendar(length: &str, start: String, zone: &str, pos: Pos, path: &str, problems: &mut Problems<'_>) -> Option<Window> {
    let unit = |name: &str| {
        Some(match name {
            "m" => CalendarUnit::Minute,
            "h" => CalendarUnit::Hour,
            "d" => CalendarUnit::Day,
            "w" => CalendarUnit::Week,
            "M" => CalendarUnit::Month,
            "Q" => CalendarUnit::Quarter,
            "Y" => CalendarUnit::Year,
            _ => return None,
        })
    };
    let found = scan(length).and_then(|(n, name)| Some((u32::try_from(n).ok().filter(|n| *n > 0)?, unit(name)?)));
    let fits = shorthand_s(length).is_some_and(|s| (60..=MAX_WINDOW_S).contains(&s));
    match found {
        Some((count, unit)) if fits => Some(Window::Calendar { count, unit, start, time_zone: zone.to_owned() }),
        _ => {
            let message = format!("a period is from 1 minute to 400 days, such as `1M`, `1Q`, `1w`; found {length:?}");
            problems.error(Class::Meaning, pos, path, message);
            None
        }
    }
}

fn service(node: &Node, path: &str, windows: &[Windows], problems: &mut Problems<'_>) -> Vec<Slo> {
    let service = node.get("service").and_then(Node::text).unwrap_or_default().to_owned();
    if !is_dns_label(&service) {
        let pos = node.get("service").map_or(node.pos, |n| n.pos);
        problems.error(Class::Meaning, pos, &join(path, "service"), format!("must be an RFC 1123 label such as `chat`, found {service:?}"));
    }
    let labels = node.get("labels").map(Node::entries).unwrap_or_default();
    for entry in labels.iter().filter(|e| !is_label_key(&e.key)) {
        let message = format!("the key must be at most 63 letters, digits, `-`, `_` and `.`, found {:?}", entry.key);
        problems.error(Class::Meaning, entry.key_pos, &join(&join(path, "labels"), &entry.key), message);
    }
    let labels: BTreeMap<String, String> = labels.iter().map(|e| (e.key.clone(), e.value.text().unwrap_or_default().to_owned())).collect();
    let above = shared(node, path, None, problems);
    let Some(objectives) = node.get("objectives") else { return Vec::new() };
    if objectives.items().is_empty() {
        problems.error(Class::Meaning, objectives.pos, &join(path, "objectives"), "no objective: what is promised?");
    }
    let mut slos: Vec<Slo> = Vec::new();
    for (i, item) in objectives.items().iter().enumerate() {
        let path = format!("{path}.objectives[{i}]");
        for (goal, suffix, pos) in goals(item, &path, problems) {
            let before = problems.list.len();
            let shared = if matches!(item.value, Value::Map(_)) { shared(item, &path, Some(&above), problems) } else { above.clone() };
            let name = name(item, &service, &goal, &suffix, &path, problems);
            needs_prices(&goal.kind, &shared.prices, pos, &path, problems);
            if let Some(old) = slos.iter().find(|s| s.name == name) {
                let message = format!("a second objective named `{name}` (the first is in line {})", old.source.line);
                problems.hinted(Class::Meaning, item.pos, &path, message, Some("give one of them a `name`".into()));
            }
            let period_s = shared.window.nominal_s();
            if shared.budgeting != Budgeting::Occurrences && shared.slice_window_s > period_s {
                problems.error(Class::Meaning, pos, &path, "a slice longer than the window");
            }
            let alerting = alerting::resolve(&shared.alerting, Vec::new(), windows, period_s, &[goal.target], problems);
            if problems.list.len() > before {
                continue;
            }
            let slices = shared.budgeting != Budgeting::Occurrences;
            let objective = Objective {
                name: format!("{}%", round(goal.target * 100.0)),
                target: goal.target,
                sli: Sli { selector: shared.selector, kind: goal.kind, policy: shared.policy, prices: shared.prices },
                weight: 1.0,
                time_slice_target: (shared.budgeting == Budgeting::Timeslices).then_some(shared.slice_target),
                time_slice_window_s: slices.then_some(shared.slice_window_s),
            };
            slos.push(Slo {
                name,
                display_name: None,
                description: item.get("description").and_then(Node::text).map(str::to_owned),
                service: service.clone(),
                labels: labels.clone(),
                window: shared.window,
                budgeting: shared.budgeting,
                objectives: vec![objective],
                composite: false,
                group_by: shared.group_by,
                alerting,
                source: Source { file: problems.file.to_owned(), line: item.pos.line },
            });
        }
    }
    slos
}

/// The goals of an item: its own, or those of its preset. With each goes what is put behind a given name.
fn goals(item: &Node, path: &str, problems: &mut Problems<'_>) -> Vec<(Goal, String, Pos)> {
    let (text, path) = match (&item.value, item.get("goal"), item.get("preset")) {
        (Value::Map(_), None, Some(preset)) => {
            let name = preset.text().unwrap_or_default();
            let Some(found) = find(name) else {
                let hint = nearest(name, PRESETS.iter().map(|p| p.name)).map(|n| format!("did you mean `{n}`?"));
                let hint = hint.or_else(|| Some("`tokengauge slo explain --presets` lists them".into()));
                problems.hinted(Class::Meaning, preset.pos, &join(path, "preset"), format!("no preset {name:?}"), hint);
                return Vec::new();
            };
            let several = found.goals.len() > 1;
            let each = found.goals.iter().filter_map(|text| goal(text).ok());
            return each
                .map(|g| (g.clone(), if several { format!("-{}", kind_name(&g.kind)) } else { String::new() }, preset.pos))
                .collect();
        }
        (Value::Map(_), Some(goal), None) => (goal, join(path, "goal")),
        (Value::Map(_), ..) => {
            problems.error(Class::Meaning, item.pos, path, "needs either `goal` or `preset`");
            return Vec::new();
        }
        _ => (item, path.to_owned()),
    };
    match goal(text.text().unwrap_or_default()) {
        Ok(goal) => vec![(goal, String::new(), text.pos)],
        Err(error) => {
            problems.hinted(Class::Meaning, text.inside(error.offset), &path, error.message, error.hint);
            Vec::new()
        }
    }
}

fn kind_name(kind: &SliKind) -> String {
    match kind {
        SliKind::Availability => "availability".into(),
        SliKind::Goodput(_) => "goodput".into(),
        SliKind::Limit(clause) => clause.measure.name().replace('_', "-"),
    }
}

/// The name that is given, or one made of service, measure and percentile: `chat-ttft-p95`.
fn name(item: &Node, service: &str, goal: &Goal, suffix: &str, path: &str, problems: &mut Problems<'_>) -> String {
    let given = item.get("name");
    let name = match given.and_then(Node::text) {
        Some(name) => format!("{name}{suffix}"),
        None => {
            let percentile = goal.percentile.map(|p| format!("-p{}", round(p).replace('.', "-"))).unwrap_or_default();
            format!("{service}-{}{percentile}", kind_name(&goal.kind))
        }
    };
    if !is_dns_label(&name) && is_dns_label(service) {
        let (pos, path) = given.map_or((item.pos, path.to_owned()), |n| (n.pos, join(path, "name")));
        problems.error(Class::Meaning, pos, &path, format!("must be an RFC 1123 label of at most 63 characters, found {name:?}"));
    }
    name
}

/// Whether a document is of the short form: it has `slos`, or nothing of OpenSLO and a key near it.
pub fn is_short(node: &Node) -> bool {
    node.get("slos").is_some() && node.get("apiVersion").is_none()
}

/// The table of what stands under `slos:`, for the schema.
pub fn table() -> &'static crate::spec::shape::Object {
    &SHORT
}

/// A limit in a node, for tests and `convert`.
pub use sli::read_limit;
