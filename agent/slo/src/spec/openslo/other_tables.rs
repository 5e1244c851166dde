//! The shapes of OpenSLO's other two versions: v1alpha, which Sloth reads, and v2alpha, which is not finished.

use super::tables::{KINDS, VERSIONS};
use crate::spec::shape::{Field, Object, Ty, may, must};

const API_VERSION: Field = must("apiVersion", Ty::Name(&VERSIONS), "the version of the specification");
const KIND: Field = must("kind", Ty::Name(&KINDS), "what the document defines");
const DESCRIPTION: Field = may("description", Ty::Text, "at most 1050 characters");

macro_rules! object {
    ($name:ident, $doc:literal, [$($field:expr),* $(,)?]) => {
        static $name: Object = Object { name: stringify!($name), doc: $doc, fields: &[$($field),*] };
    };
}

macro_rules! document {
    ($name:ident, $meta:ident, $spec:ident) => {
        object!(
            $name,
            "An object of another version of OpenSLO.",
            [API_VERSION, KIND, must("metadata", Ty::Object(&$meta), "name"), must("spec", Ty::Object(&$spec), "what it defines")]
        );
    };
}

/// v1alpha, by kind.
pub static V1ALPHA: [(&str, &Object); 2] = [("Service", &A_SERVICE), ("SLO", &A_SLO)];

document!(A_SERVICE, A_META, SERVICE_SPEC);
document!(A_SLO, A_META, A_SLO_SPEC);
object!(A_META, "Name.", [must("name", Ty::Text, "the name"), may("displayName", Ty::Text, "the name for people")]);
object!(SERVICE_SPEC, "A service.", [DESCRIPTION]);
object!(
    A_SLO_SPEC,
    "An objective of v1alpha.",
    [
        must("timeWindows", Ty::List(&Ty::Object(&A_WINDOW)), "one window"),
        must("budgetingMethod", Ty::Text, "the method"),
        DESCRIPTION,
        may("indicator", Ty::Object(&A_INDICATOR), "a threshold metric"),
        must("service", Ty::Text, "the service"),
        must("objectives", Ty::List(&Ty::Object(&A_OBJECTIVE)), "the targets"),
    ]
);
object!(A_INDICATOR, "A threshold metric.", [must("thresholdMetric", Ty::Object(&A_SOURCE), "the metric")]);
object!(
    A_SOURCE,
    "A query.",
    [must("source", Ty::Text, "where"), must("queryType", Ty::Text, "its language"), must("query", Ty::Text, "the query")]
);
object!(
    A_OBJECTIVE,
    "A target.",
    [
        may("displayName", Ty::Text, "its name"),
        must("value", Ty::Number, "the threshold"),
        may("ratioMetrics", Ty::Object(&A_RATIO), "good and total"),
        must("target", Ty::Number, "the share"),
        may("timeSliceTarget", Ty::Number, "the share of a slice"),
        may("op", Ty::Text, "the comparison"),
    ]
);
object!(
    A_RATIO,
    "Good and total.",
    [must("good", Ty::Object(&A_SOURCE), "good"), must("total", Ty::Object(&A_SOURCE), "total"), may("incremental", Ty::Bool, "grows")]
);
object!(
    A_WINDOW,
    "A window.",
    [
        must("unit", Ty::Text, "its unit"),
        must("count", Ty::Integer, "how many"),
        may("isRolling", Ty::Bool, "whether it rolls"),
        may("calendar", Ty::Object(&CALENDAR), "when periods begin"),
    ]
);
object!(CALENDAR, "A calendar.", [must("startTime", Ty::Text, "the start"), must("timeZone", Ty::Text, "the time zone")]);

/// v2alpha, by kind.
pub static V2ALPHA: [(&str, &Object); 7] = [
    ("SLO", &B_SLO),
    ("SLI", &B_SLI),
    ("DataSource", &B_DATA_SOURCE),
    ("Service", &B_SERVICE),
    ("AlertPolicy", &B_ALERT_POLICY),
    ("AlertCondition", &B_ALERT_CONDITION),
    ("AlertNotificationTarget", &B_TARGET),
];

document!(B_SLO, B_META, B_SLO_SPEC);
document!(B_SLI, B_META, B_SLI_SPEC);
document!(B_DATA_SOURCE, B_META, B_SOURCE_SPEC);
document!(B_SERVICE, B_META, SERVICE_SPEC);
document!(B_ALERT_POLICY, B_META, B_POLICY_SPEC);
document!(B_ALERT_CONDITION, B_META, B_CONDITION_SPEC);
document!(B_TARGET, B_META, B_TARGET_SPEC);
object!(
    B_META,
    "Name, labels, annotations.",
    [must("name", Ty::Text, "the name"), may("labels", Ty::Texts, "labels"), may("annotations", Ty::Texts, "annotations")]
);
object!(
    B_SLO_SPEC,
    "An objective of v2alpha.",
    [
        DESCRIPTION,
        must("serviceRef", Ty::Text, "the service"),
        may("sli", Ty::Object(&B_INLINE), "the indicator"),
        may("sliRef", Ty::Text, "its name"),
        must("budgetingMethod", Ty::Text, "the method"),
        must("timeWindow", Ty::List(&Ty::Object(&B_WINDOW)), "one window"),
        must("objectives", Ty::List(&Ty::Object(&B_OBJECTIVE)), "the targets"),
        may("alertPolicies", Ty::List(&Ty::Object(&B_SLO_POLICY)), "alert policies"),
    ]
);
object!(B_INLINE, "An inline indicator.", [must("metadata", Ty::Object(&B_META), "name"), must("spec", Ty::Object(&B_SLI_SPEC), "what")]);
object!(
    B_OBJECTIVE,
    "A target.",
    [
        may("displayName", Ty::Text, "its name"),
        may("op", Ty::Text, "the comparison"),
        may("value", Ty::Number, "the threshold"),
        may("target", Ty::Number, "the share"),
        may("targetPercent", Ty::Number, "in percent"),
        may("timeSliceTarget", Ty::Number, "the share of a slice"),
        may("timeSliceWindow", Ty::Shorthand, "the length of a slice"),
        may("sli", Ty::Object(&B_INLINE), "its indicator"),
        may("sliRef", Ty::Text, "its name"),
        may("compositeWeight", Ty::Number, "its weight"),
    ]
);
object!(
    B_WINDOW,
    "A window.",
    [
        must("duration", Ty::Shorthand, "its length"),
        may("isRolling", Ty::Bool, "whether it rolls"),
        may("calendar", Ty::Object(&CALENDAR), "when periods begin"),
    ]
);
object!(
    B_SLO_POLICY,
    "An alert policy, inline or by name.",
    [
        may("alertPolicyRef", Ty::Text, "by name"),
        may("kind", Ty::Name(&KINDS), "inline"),
        may("metadata", Ty::Object(&B_META), "inline"),
        may("spec", Ty::Object(&B_POLICY_SPEC), "inline"),
    ]
);
object!(
    B_SLI_SPEC,
    "What is measured.",
    [
        DESCRIPTION,
        may("thresholdMetric", Ty::Object(&B_METRIC), "a value"),
        may("ratioMetric", Ty::Object(&B_RATIO), "good or bad, and total"),
    ]
);
object!(
    B_RATIO,
    "Good or bad, and total.",
    [
        may("counter", Ty::Bool, "grows"),
        may("good", Ty::Object(&B_METRIC), "good"),
        may("bad", Ty::Object(&B_METRIC), "bad"),
        may("total", Ty::Object(&B_METRIC), "total"),
        may("rawType", Ty::Text, "success or failure"),
        may("raw", Ty::Object(&B_METRIC), "a ratio"),
    ]
);
object!(
    B_METRIC,
    "A metric.",
    [
        may("dataSourceRef", Ty::Text, "by name"),
        may("dataSourceSpec", Ty::Object(&B_SOURCE_SPEC), "inline"),
        may("spec", Ty::AnyMap, "what it needs to know"),
    ]
);
object!(
    B_SOURCE_SPEC,
    "A data source.",
    [DESCRIPTION, must("type", Ty::Text, "what it is"), must("connectionDetails", Ty::Any, "what it needs to know")]
);
object!(
    B_POLICY_SPEC,
    "An alert policy.",
    [
        DESCRIPTION,
        may("alertWhenNoData", Ty::Bool, "no data alerts"),
        may("alertWhenBreaching", Ty::Bool, "a breach alerts"),
        may("alertWhenResolved", Ty::Bool, "its end is told"),
        must("conditions", Ty::List(&Ty::Object(&B_POLICY_CONDITION)), "one condition"),
        must("notificationTargets", Ty::List(&Ty::Object(&B_POLICY_TARGET)), "who is told"),
    ]
);
object!(
    B_POLICY_CONDITION,
    "A condition, inline or by name.",
    [
        may("conditionRef", Ty::Text, "by name"),
        may("kind", Ty::Name(&KINDS), "inline"),
        may("metadata", Ty::Object(&B_META), "inline"),
        may("spec", Ty::Object(&B_CONDITION_SPEC), "inline"),
    ]
);
object!(
    B_POLICY_TARGET,
    "A target, inline or by name.",
    [
        may("targetRef", Ty::Text, "by name"),
        may("kind", Ty::Name(&KINDS), "inline"),
        may("metadata", Ty::Object(&B_META), "inline"),
        may("spec", Ty::Object(&B_TARGET_SPEC), "inline"),
    ]
);
object!(
    B_CONDITION_SPEC,
    "A condition.",
    [must("severity", Ty::Text, "how urgent"), must("condition", Ty::Object(&B_CONDITION), "the burn rate"), DESCRIPTION]
);
object!(
    B_CONDITION,
    "A burn rate over one window.",
    [
        must("kind", Ty::Text, "burnrate"),
        must("op", Ty::Text, "the comparison"),
        must("threshold", Ty::Number, "the burn rate"),
        must("lookbackWindow", Ty::Shorthand, "over which time"),
        must("alertAfter", Ty::Shorthand, "how long it must hold"),
    ]
);
object!(B_TARGET_SPEC, "Who is told.", [must("target", Ty::Text, "email, slack …"), DESCRIPTION]);
