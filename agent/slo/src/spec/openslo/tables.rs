//! The shapes of OpenSLO's objects, as the structs of its Go SDK have them. What must be there is the business of the rules, so no
//! field here is required for the reader; `must` marks what the schema asks for.

use crate::spec::shape::{Field, Object, Ty, may, must};

/// `apiVersion`s that the SDK knows.
pub const VERSIONS: [&str; 3] = ["openslo/v1alpha", "openslo/v1", "openslo.com/v2alpha"];
/// Kinds that it knows.
pub const KINDS: [&str; 7] = ["SLO", "SLI", "DataSource", "Service", "AlertPolicy", "AlertCondition", "AlertNotificationTarget"];

const API_VERSION: Field = must("apiVersion", Ty::Name(&VERSIONS), "the version of the specification");
const KIND: Field = must("kind", Ty::Name(&KINDS), "what the document defines");
const DESCRIPTION: Field = may("description", Ty::Text, "at most 1050 characters");
const METADATA: Field = must("metadata", Ty::Object(&META), "name, labels and annotations");

static META: Object = Object {
    name: "Metadata",
    doc: "Name, labels and annotations of an object.",
    fields: &[
        must("name", Ty::Text, "an RFC 1123 label of at most 63 characters"),
        may("displayName", Ty::Text, "at most 63 characters"),
        may("labels", Ty::Labels, "labels; they are copied to the rules"),
        may("annotations", Ty::Texts, "annotations; those of `tokengauge.io/` choose the alerting"),
    ],
};

macro_rules! document {
    ($name:ident, $kind:literal, $spec:ident, $doc:literal) => {
        #[doc = $doc]
        pub static $name: Object =
            Object { name: $kind, doc: $doc, fields: &[API_VERSION, KIND, METADATA, must("spec", Ty::Object(&$spec), "what it defines")] };
    };
}

document!(SLO, "SLO", SLO_SPEC, "A service level objective.");
document!(SLI, "SLI", SLI_SPEC, "A service level indicator, to be referred to.");
document!(SERVICE, "Service", SERVICE_SPEC, "A service that objectives belong to.");
document!(DATA_SOURCE, "DataSource", DATA_SOURCE_SPEC, "Where a metric comes from.");
document!(ALERT_POLICY, "AlertPolicy", ALERT_POLICY_SPEC, "When somebody is told, and who.");
document!(ALERT_CONDITION, "AlertCondition", ALERT_CONDITION_SPEC, "A burn rate that is too high.");
document!(TARGET, "AlertNotificationTarget", TARGET_SPEC, "Who is told.");

static SERVICE_SPEC: Object = Object { name: "ServiceSpec", doc: "A service.", fields: &[DESCRIPTION] };

static SLO_SPEC: Object = Object {
    name: "SLOSpec",
    doc: "A service level objective: an indicator, a window, and targets.",
    fields: &[
        DESCRIPTION,
        must("service", Ty::Text, "the service that it belongs to"),
        may("indicator", Ty::Object(&INDICATOR), "the indicator, inline"),
        may("indicatorRef", Ty::Text, "the name of an SLI"),
        must("budgetingMethod", Ty::Text, "`Occurrences`, `Timeslices` or `RatioTimeslices`"),
        must("timeWindow", Ty::List(&Ty::Object(&TIME_WINDOW)), "exactly one window"),
        must("objectives", Ty::List(&Ty::Object(&OBJECTIVE)), "the targets"),
        may("alertPolicies", Ty::List(&Ty::Object(&SLO_ALERT_POLICY)), "alert policies, inline or `alertPolicyRef`"),
    ],
};

static INDICATOR: Object =
    Object { name: "Indicator", doc: "An inline indicator.", fields: &[METADATA, must("spec", Ty::Object(&SLI_SPEC), "what is measured")] };

static OBJECTIVE: Object = Object {
    name: "Objective",
    doc: "One target.",
    fields: &[
        may("displayName", Ty::Text, "its name"),
        may("op", Ty::Text, "`lte`, `gte`, `lt` or `gt`, with a threshold metric"),
        may("value", Ty::Number, "the threshold, with a threshold metric"),
        may("target", Ty::Number, "the share of good events, from 0 to below 1"),
        may("targetPercent", Ty::Number, "the same in percent, from 0 to below 100"),
        may("timeSliceTarget", Ty::Number, "the share that makes a slice good, with Timeslices"),
        may("timeSliceWindow", Ty::Shorthand, "the length of a slice, with the two slice methods"),
        may("indicator", Ty::Object(&INDICATOR), "its own indicator, in a composite"),
        may("indicatorRef", Ty::Text, "the name of its SLI, in a composite"),
        may("compositeWeight", Ty::Number, "its weight in a composite, above 0"),
    ],
};

static TIME_WINDOW: Object = Object {
    name: "TimeWindow",
    doc: "Over which time the budget is spent.",
    fields: &[
        must("duration", Ty::Shorthand, "its length: `30d`, `1M`"),
        may("isRolling", Ty::Bool, "whether it rolls; otherwise `calendar` must be there"),
        may("calendar", Ty::Object(&CALENDAR), "when periods begin"),
    ],
};

static CALENDAR: Object = Object {
    name: "Calendar",
    doc: "When the periods of a calendar window begin.",
    fields: &[
        must("startTime", Ty::Text, "`YYYY-MM-DD hh:mm:ss` in the time zone"),
        must("timeZone", Ty::Text, "the name of an IANA time zone"),
    ],
};

static SLO_ALERT_POLICY: Object = Object {
    name: "SLOAlertPolicy",
    doc: "An alert policy, inline or by name.",
    fields: &[
        may("alertPolicyRef", Ty::Text, "the name of an AlertPolicy"),
        may("kind", Ty::Name(&KINDS), "`AlertPolicy`, inline"),
        may("metadata", Ty::Object(&META), "its metadata, inline"),
        may("spec", Ty::Object(&ALERT_POLICY_SPEC), "what it says, inline"),
    ],
};

static SLI_SPEC: Object = Object {
    name: "SLISpec",
    doc: "What is measured.",
    fields: &[
        DESCRIPTION,
        may("thresholdMetric", Ty::Object(&METRIC), "a value that objectives compare"),
        may("ratioMetric", Ty::Object(&RATIO), "good or bad events, and all of them"),
    ],
};

static RATIO: Object = Object {
    name: "RatioMetric",
    doc: "Good (or bad) and total events, or a ratio as it is.",
    fields: &[
        may("counter", Ty::Bool, "whether the metrics only grow"),
        may("good", Ty::Object(&METRIC), "the good events"),
        may("bad", Ty::Object(&METRIC), "the bad events"),
        may("total", Ty::Object(&METRIC), "all events"),
        may("rawType", Ty::Text, "`success` or `failure`, with raw"),
        may("raw", Ty::Object(&METRIC), "a ratio"),
    ],
};

static METRIC: Object =
    Object { name: "Metric", doc: "A metric.", fields: &[must("metricSource", Ty::Object(&METRIC_SOURCE), "where it comes from")] };

static METRIC_SOURCE: Object = Object {
    name: "MetricSource",
    doc: "Where a metric comes from.",
    fields: &[
        may("metricSourceRef", Ty::Text, "the name of a DataSource"),
        may("type", Ty::Text, "`tokengauge` for ours"),
        must("spec", Ty::AnyMap, "what the source needs to know"),
    ],
};

static DATA_SOURCE_SPEC: Object = Object {
    name: "DataSourceSpec",
    doc: "How a data source is reached.",
    fields: &[DESCRIPTION, must("type", Ty::Text, "what it is"), must("connectionDetails", Ty::Any, "what it needs to know")],
};

static ALERT_POLICY_SPEC: Object = Object {
    name: "AlertPolicySpec",
    doc: "When somebody is told, and who.",
    fields: &[
        DESCRIPTION,
        may("alertWhenNoData", Ty::Bool, "whether no data alerts"),
        may("alertWhenBreaching", Ty::Bool, "whether a breach alerts"),
        may("alertWhenResolved", Ty::Bool, "whether its end is told"),
        must("conditions", Ty::List(&Ty::Object(&POLICY_CONDITION)), "exactly one condition"),
        must("notificationTargets", Ty::List(&Ty::Object(&POLICY_TARGET)), "who is told; at least one"),
    ],
};

static POLICY_CONDITION: Object = Object {
    name: "PolicyCondition",
    doc: "A condition, inline or by name.",
    fields: &[
        may("conditionRef", Ty::Text, "the name of an AlertCondition"),
        may("kind", Ty::Name(&KINDS), "`AlertCondition`, inline"),
        may("metadata", Ty::Object(&META), "its metadata, inline"),
        may("spec", Ty::Object(&ALERT_CONDITION_SPEC), "what it says, inline"),
    ],
};

static POLICY_TARGET: Object = Object {
    name: "PolicyTarget",
    doc: "A notification target, inline or by name.",
    fields: &[
        may("targetRef", Ty::Text, "the name of an AlertNotificationTarget"),
        may("kind", Ty::Name(&KINDS), "`AlertNotificationTarget`, inline"),
        may("metadata", Ty::Object(&META), "its metadata, inline"),
        may("spec", Ty::Object(&TARGET_SPEC), "what it says, inline"),
    ],
};

static ALERT_CONDITION_SPEC: Object = Object {
    name: "AlertConditionSpec",
    doc: "A burn rate that is too high.",
    fields: &[
        must("severity", Ty::Text, "how urgent: `page` and `critical` page, everything else opens a ticket"),
        must("condition", Ty::Object(&CONDITION), "the burn rate and how long"),
        DESCRIPTION,
    ],
};

static CONDITION: Object = Object {
    name: "Condition",
    doc: "A burn rate over one window.",
    fields: &[
        must("kind", Ty::Text, "`burnrate`"),
        must("op", Ty::Text, "`gte` or `gt`"),
        must("threshold", Ty::Number, "the burn rate"),
        must("lookbackWindow", Ty::Shorthand, "over which time"),
        may("alertAfter", Ty::Shorthand, "how long it must hold"),
    ],
};

static TARGET_SPEC: Object = Object {
    name: "AlertNotificationTargetSpec",
    doc: "Who is told.",
    fields: &[must("target", Ty::Text, "`email`, `slack` …"), DESCRIPTION],
};

/// The documents of version 1, by kind.
pub static V1: [(&str, &Object); 7] = [
    ("SLO", &SLO),
    ("SLI", &SLI),
    ("DataSource", &DATA_SOURCE),
    ("Service", &SERVICE),
    ("AlertPolicy", &ALERT_POLICY),
    ("AlertCondition", &ALERT_CONDITION),
    ("AlertNotificationTarget", &TARGET),
];
