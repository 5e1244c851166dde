//! The shapes of what is ours: the spec of a metric source, the short form, and Sloth's `AlertWindows`.

use crate::model::Dimension;
use crate::spec::shape::{Field, Form, Object, Ty, may, must};

/// The indicators.
pub const SLIS: [&str; 10] =
    ["ttft", "ttfa", "tpot", "inter_chunk_gap", "max_stall", "duration", "output_speed", "availability", "goodput", "cost"];
/// What a policy can say.
pub const VERDICTS: [&str; 3] = ["good", "bad", "ignore"];
/// What can be grouped by.
pub const DIMENSIONS: [&str; Dimension::ALL.len()] = {
    let mut names = [""; Dimension::ALL.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = Dimension::ALL[i].as_str();
        i += 1;
    }
    names
};

/// A limit.
pub static LIMIT: Form = Form {
    what: "a limit",
    pattern: r"^\s*[0-9.]+\s*(us|µs|ms|s|m|min|h|tok/s)?(\s*\+\s*[0-9.]+\s*(us|µs|ms|s)\s*/\s*token)?\s*$",
    example: "800ms",
    number: true,
};
/// A time.
pub static TIME: Form = Form { what: "a time", pattern: r"^\s*[0-9.]+\s*(us|µs|ms|s|m|min|h|d)\s*$", example: "800ms", number: false };
/// A bound of input tokens.
pub static TOKENS: Form = Form { what: "input tokens", pattern: r"^([0-9]+|more)$", example: "4000", number: true };
/// A measure, as a key.
pub static MEASURE: Form = Form {
    what: "a measure",
    pattern: r"^(ttft|ttfa|tpot|inter_chunk_gap|max_stall|duration|output_speed|cost)$",
    example: "ttft",
    number: false,
};
/// A range of input tokens.
pub static RANGE: Form = Form {
    what: "a range of input tokens",
    pattern: r"^\s*([0-9]+\s*-\s*[0-9]+|[0-9]+\+|(<=|>=)\s*[0-9]+)\s*$",
    example: "401-1000",
    number: false,
};
/// A goal of the short form.
pub static GOAL: Form = Form { what: "a goal", pattern: r"^\s*[a-z_]+.*(<=|>=|<|>).*$", example: "ttft p95 <= 800ms", number: false };
/// A window of the short form.
pub static WINDOW: Form = Form { what: "a window", pattern: r"^[1-9][0-9]*[mhdwMQY]$", example: "30d", number: false };
/// A row of an alert table.
pub static ROW: Form = Form {
    what: "an alert row",
    pattern: r"^\s*(page|ticket)\s+[0-9]+[mhdw]\s*/\s*[0-9]+[mhdw]\s+[0-9.]+x?(\s+for\s+[0-9]+[mhdw])?\s*$",
    example: "page 5m/1h 14.4x",
    number: false,
};

static LIMIT_PARTS: Object = Object {
    name: "Limit",
    doc: "A limit that depends on the length of the prompt.",
    fields: &[
        may("base", Ty::Form(&TIME), "for an empty prompt, with `perInputToken`"),
        may("perInputToken", Ty::Form(&TIME), "for each input token more"),
        may("byInputTokens", Ty::Keyed(&TOKENS, &Ty::Form(&LIMIT)), "limits by the prompt's length: up to so many tokens, and `more`"),
    ],
};
const ANY_LIMIT: Ty = Ty::Either(&[Ty::Form(&LIMIT), Ty::Object(&LIMIT_PARTS)]);

const MAX: Field = may("max", ANY_LIMIT, "good up to this");
const MIN: Field = may("min", ANY_LIMIT, "good from this on");
const BELOW: Field = may("below", ANY_LIMIT, "good below this");
const ABOVE: Field = may("above", ANY_LIMIT, "good above this");

static BOUND: Object = Object { name: "Bound", doc: "A limit and its direction.", fields: &[MAX, MIN, BELOW, ABOVE] };

const PATTERNS: Ty = Ty::Either(&[Ty::Text, Ty::List(&Ty::Text)]);

static INPUT_TOKENS: Object = Object {
    name: "InputTokens",
    doc: "How long prompts are.",
    fields: &[may("min", Ty::Integer, "at least so many tokens"), may("max", Ty::Integer, "at most so many tokens")],
};

/// Selectors.
pub static WHEN: Object = Object {
    name: "When",
    doc: "Which requests count. Values are exact, globs (`gpt-4o*`), regular expressions (`/^gpt-(4o|5)/`), or not (`!gpt-4`); of a list one must match.",
    fields: &[
        may("provider", PATTERNS, "`gen_ai.provider.name`"),
        may("model", PATTERNS, "the model as answered, else as asked for"),
        may("operation", PATTERNS, "`chat`, `embeddings` …"),
        may("namespace", PATTERNS, "Kubernetes namespace"),
        may("workload", PATTERNS, "Kubernetes workload, or the process's name"),
        may("tenant", PATTERNS, "keyed hash of the tenant"),
        may("server", PATTERNS, "host that the request names, else the server's address"),
        may("vantage", PATTERNS, "`client` or `server`: which side was watched"),
        may("stream", Ty::Bool, "only streamed, or only not streamed"),
        may("inputTokens", Ty::Either(&[Ty::Form(&RANGE), Ty::Object(&INPUT_TOKENS)]), "how long prompts are"),
    ],
};

/// How outcomes count.
pub static POLICY: Object = Object {
    name: "Policy",
    doc: "How outcomes count that are neither plain success nor plain failure.",
    fields: &[
        may("rateLimited", Ty::Word(&VERDICTS), "status 429; bad by default"),
        may("clientErrors", Ty::Word(&VERDICTS), "other statuses from 400 to 499; ignored by default"),
        may("refused", Ty::Word(&VERDICTS), "the model refused or a filter did; good by default"),
        may("cancelled", Ty::Word(&VERDICTS), "the client went first; ignored by default"),
        may("noOutput", Ty::Word(&VERDICTS), "properly finished with nothing generated; good by default"),
    ],
};

static PRICE: Object = Object {
    name: "Price",
    doc: "What a million tokens of a model cost; the first that matches is taken.",
    fields: &[
        must("model", Ty::Text, "the models that it holds for, as in `when`"),
        must("input", Ty::Number, "input tokens that were not read from a cache"),
        may("cachedInput", Ty::Number, "input tokens read from a cache; as `input` when absent"),
        must("output", Ty::Number, "output tokens"),
    ],
};

static GROUP_BY: Object = Object {
    name: "GroupBy",
    doc: "One budget for each value.",
    fields: &[
        must("by", Ty::List(&Ty::Word(&DIMENSIONS)), "by which dimensions"),
        may("limit", Ty::Integer, "at most so many groups (100); what comes later shares one, the overflow"),
    ],
};

const F_WHEN: Field = may("when", Ty::Object(&WHEN), "which requests count; all without it");
const F_POLICY: Field = may("policy", Ty::Object(&POLICY), "how 429, refusals, cancelled requests … count");
const PRICES: Ty = Ty::List(&Ty::Object(&PRICE));
const F_PRICES: Field = may("prices", PRICES, "what tokens cost, for `cost`");
const GROUPS: Ty = Ty::Either(&[Ty::List(&Ty::Word(&DIMENSIONS)), Ty::Object(&GROUP_BY)]);
const F_GROUP: Field = may("groupBy", GROUPS, "one budget for each value of these dimensions");

/// The spec of a metric source of type `tokengauge`.
pub static SOURCE: Object = Object {
    name: "TokengaugeSource",
    doc: "An indicator that tokengauge measures on each request: `metricSource: {type: tokengauge, spec: …}`.",
    fields: &[
        must("sli", Ty::Word(&SLIS), "what is measured"),
        MAX,
        MIN,
        BELOW,
        ABOVE,
        may(
            "limits",
            Ty::Keyed(&MEASURE, &Ty::Either(&[Ty::Form(&LIMIT), Ty::Object(&BOUND)])),
            "with `goodput`: limits that all hold on the same request",
        ),
        may("unit", Ty::Word(&["s", "ms"]), "of an objective's `value`, with a threshold metric; seconds by default"),
        F_WHEN,
        F_POLICY,
        F_PRICES,
        F_GROUP,
    ],
};

static ALERTING: Object = Object {
    name: "Alerting",
    doc: "When to page and when to open a ticket.",
    fields: &[
        may("table", Ty::Word(&["google", "pyrra", "none"]), "which table of windows and factors; `google` by default"),
        may("rows", Ty::List(&Ty::Form(&ROW)), "a table of one's own: severity, short/long window, factor, and how long it must hold"),
        may("minEvents", Ty::Integer, "fewer valid events than this in the long window never alert (3)"),
        may("minBadEvents", Ty::Integer, "fewer bad events than this in the long window never alert (3)"),
        may("coverageFloor", Ty::Number, "below this share of traffic seen, alerts freeze (0.9)"),
        may("runbook", Ty::Text, "a page for whoever is woken"),
    ],
};

static CALENDAR: Object = Object {
    name: "CalendarWindow",
    doc: "Periods that begin at the calendar's bounds.",
    fields: &[
        must("calendar", Ty::Form(&WINDOW), "the length of a period: `1M`, `1Q`, `1w`"),
        must("start", Ty::Text, "when the first one began: `2026-01-01 00:00:00`"),
        must("timeZone", Ty::Text, "the name of an IANA time zone"),
    ],
};
const WINDOWS: Ty = Ty::Either(&[Ty::Form(&WINDOW), Ty::Object(&CALENDAR)]);
const F_WINDOW: Field = may("window", WINDOWS, "over which time the budget is spent; `30d` by default");
const F_ALERTING: Field = may("alerting", Ty::Object(&ALERTING), "when to page and when to open a ticket");
const F_BUDGETING: Field = may("budgeting", Ty::Word(&["occurrences", "timeslices", "ratioTimeslices"]), "`occurrences` by default");
const F_SLICE_WINDOW: Field = may("sliceWindow", Ty::Form(&WINDOW), "the length of a slice, with the two slice methods; `1m` by default");
const F_SLICE_TARGET: Field = may("sliceTarget", Ty::Number, "the share that makes a slice good, with `timeslices`; 0.95 by default");

static GOAL_ITEM: Object = Object {
    name: "Goal",
    doc: "One objective. What is not said here is taken from above.",
    fields: &[
        may("goal", Ty::Form(&GOAL), "what is promised: `ttft p95 <= 800ms`"),
        may("preset", Ty::Text, "a named set of goals: `mlperf/llama2-70b-interactive`"),
        may("name", Ty::Text, "its name, an RFC 1123 label; made from the goal otherwise"),
        may("description", Ty::Text, "in words"),
        F_WINDOW,
        F_WHEN,
        F_POLICY,
        F_PRICES,
        F_GROUP,
        F_ALERTING,
        F_BUDGETING,
        F_SLICE_WINDOW,
        F_SLICE_TARGET,
    ],
};

/// What stands under `slos:`.
pub static SHORT: Object = Object {
    name: "Short",
    doc: "tokengauge's short form: the objectives of a service.",
    fields: &[
        must("service", Ty::Text, "the service that they belong to, an RFC 1123 label"),
        must("objectives", Ty::List(&Ty::Either(&[Ty::Form(&GOAL), Ty::Object(&GOAL_ITEM)])), "the goals"),
        may("labels", Ty::Texts, "labels; they are copied to the rules"),
        F_WINDOW,
        F_WHEN,
        F_POLICY,
        F_PRICES,
        F_GROUP,
        F_ALERTING,
        F_BUDGETING,
        F_SLICE_WINDOW,
        F_SLICE_TARGET,
    ],
};

/// A document of the short form.
pub static SHORT_DOCUMENT: Object = Object {
    name: "ShortDocument",
    doc: "tokengauge's short form.",
    fields: &[must("slos", Ty::Either(&[Ty::Object(&SHORT), Ty::List(&Ty::Object(&SHORT))]), "one service or several")],
};

static PAIR: Object = Object {
    name: "AlertWindowPair",
    doc: "Two windows and what may be spent in the longer.",
    fields: &[
        must("errorBudgetPercent", Ty::Number, "how much of the period's budget is spent in the long window when it fires"),
        must("shortWindow", Ty::Text, "the short window"),
        must("longWindow", Ty::Text, "the long window"),
    ],
};
static PAIRS: Object = Object {
    name: "AlertWindowPairs",
    doc: "A quick and a slow pair.",
    fields: &[must("quick", Ty::Object(&PAIR), "the quick pair"), must("slow", Ty::Object(&PAIR), "the slow pair")],
};
static WINDOWS_SPEC: Object = Object {
    name: "AlertWindowsSpec",
    doc: "Windows for one period.",
    fields: &[
        must("sloPeriod", Ty::Text, "for objectives over this window"),
        must("page", Ty::Object(&PAIRS), "when to page"),
        must("ticket", Ty::Object(&PAIRS), "when to open a ticket"),
    ],
};

/// Sloth's catalogue of alert windows.
pub static ALERT_WINDOWS: Object = Object {
    name: "AlertWindows",
    doc: "Sloth's alert windows: they replace the default table for objectives over the same period.",
    fields: &[
        must("apiVersion", Ty::Word(&["sloth.slok.dev/v1"]), "Sloth's version"),
        must("kind", Ty::Word(&["AlertWindows"]), "the kind"),
        may("metadata", Ty::AnyMap, "not used"),
        must("spec", Ty::Object(&WINDOWS_SPEC), "the windows"),
    ],
};
