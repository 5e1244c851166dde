//! Every variable of OpenTelemetry's specification and what it does here: one list, from which the README's table is made.
//!
//! Source: open-telemetry/opentelemetry-specification, `configuration/sdk-environment-variables.md`, `protocol/exporter.md` and
//! `metrics/sdk_exporters/otlp.md`. What none of them lists is none of ours.

use std::fmt::Write as _;

/// What a variable does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// What the specification says; the text says what that is here, where something is to be said.
    Honoured(&'static str),
    /// Nothing, for this reason.
    Ignored(&'static str),
}

use Effect::{Honoured, Ignored};

/// A variable of the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Its name. `{SIGNAL}` stands for `METRICS` and `TRACES`.
    pub name: &'static str,
    /// What it does.
    pub effect: Effect,
}

const LOGS: &str = "the agent exports no logs";
const PROFILES: &str = "the agent exports no profiles";

macro_rules! variables {
    ($($name:literal $effect:expr;)*) => {
        /// All of them, in the specification's order.
        pub const ALL: &[Variable] = &[$(Variable { name: $name, effect: $effect }),*];
    };
}

variables! {
    "OTEL_SDK_DISABLED" Honoured("no OTLP at all");
    "OTEL_ENTITIES" Ignored("in development; resource attributes say the same");
    "OTEL_RESOURCE_ATTRIBUTES" Honoured("goes over our own `service.*` and `host.name`");
    "OTEL_SERVICE_NAME" Honoured("goes over the one in `OTEL_RESOURCE_ATTRIBUTES`");
    "OTEL_LOG_LEVEL" Ignored("`log` and `RUST_LOG` say more: a filter per module");
    "OTEL_PROPAGATORS" Ignored("an observer propagates nothing; it reads `traceparent`");
    "OTEL_TRACES_SAMPLER" Honoured("`always_on`, `always_off`, `traceidratio` and their `parentbased_` forms; what failed, was slow or cancelled is kept all the same (`otlp.spans.keep`), except with `always_off`. `jaeger_remote` and `xray` ask a service for rates and count as the default");
    "OTEL_TRACES_SAMPLER_ARG" Honoured("the ratio");
    "OTEL_BSP_SCHEDULE_DELAY" Honoured("looked at with each inference and once a second");
    "OTEL_BSP_EXPORT_TIMEOUT" Honoured("bounds one attempt; what was not delivered then waits for the next");
    "OTEL_BSP_MAX_QUEUE_SIZE" Honoured("spans in memory. Not set, `otlp.queue.memory_bytes` is the bound: an outage needs more than 2,048");
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" Honoured("and never more than 2 MiB in one request");
    "OTEL_BLRP_SCHEDULE_DELAY" Ignored(LOGS);
    "OTEL_BLRP_EXPORT_TIMEOUT" Ignored(LOGS);
    "OTEL_BLRP_MAX_QUEUE_SIZE" Ignored(LOGS);
    "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE" Ignored(LOGS);
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT" Honoured("of spans; metrics are exempt by the specification");
    "OTEL_ATTRIBUTE_COUNT_LIMIT" Honoured("of spans, events and links");
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT" Honoured("");
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" Honoured("the most important attributes come first");
    "OTEL_SPAN_EVENT_COUNT_LIMIT" Honoured("");
    "OTEL_SPAN_LINK_COUNT_LIMIT" Honoured("");
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT" Honoured("");
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT" Honoured("");
    "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT" Ignored(LOGS);
    "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT" Ignored(LOGS);
    "OTEL_EXPORTER_ZIPKIN_ENDPOINT" Ignored("deprecated; Zipkin takes OTLP through a Collector");
    "OTEL_EXPORTER_ZIPKIN_TIMEOUT" Ignored("deprecated; Zipkin takes OTLP through a Collector");
    "OTEL_EXPORTER_PROMETHEUS_HOST" Ignored("the address stands in the configuration file, with TLS and token");
    "OTEL_EXPORTER_PROMETHEUS_PORT" Ignored("the address stands in the configuration file, with TLS and token");
    "OTEL_TRACES_EXPORTER" Honoured("`otlp` (the default once an endpoint is known) and `none`");
    "OTEL_METRICS_EXPORTER" Honoured("`otlp` (the default once an endpoint is known) and `none`");
    "OTEL_LOGS_EXPORTER" Ignored(LOGS);
    "OTEL_METRICS_EXEMPLAR_FILTER" Honoured("`trace_based` (the default), `always_on`, `always_off`");
    "OTEL_METRIC_EXPORT_INTERVAL" Honoured("");
    "OTEL_METRIC_EXPORT_TIMEOUT" Honoured("bounds one attempt; what was not delivered then waits for the next");
    "OTEL_CONFIG_FILE" Ignored("the agent has a file of its own, which an SDK's schema could not express");
    "OTEL_EXPORTER_OTLP_ENDPOINT" Honoured("without a scheme it is gRPC's");
    "OTEL_EXPORTER_OTLP_{SIGNAL}_ENDPOINT" Honoured("the whole address, no path is added");
    "OTEL_EXPORTER_OTLP_INSECURE" Honoured("of an address without a scheme");
    "OTEL_EXPORTER_OTLP_{SIGNAL}_INSECURE" Honoured("of an address without a scheme");
    "OTEL_EXPORTER_OTLP_CERTIFICATE" Honoured("beside the usual authorities");
    "OTEL_EXPORTER_OTLP_{SIGNAL}_CERTIFICATE" Honoured("");
    "OTEL_EXPORTER_OTLP_CLIENT_KEY" Honoured("");
    "OTEL_EXPORTER_OTLP_{SIGNAL}_CLIENT_KEY" Honoured("");
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE" Honoured("");
    "OTEL_EXPORTER_OTLP_{SIGNAL}_CLIENT_CERTIFICATE" Honoured("");
    "OTEL_EXPORTER_OTLP_HEADERS" Honoured("percent-decoded; shown nowhere");
    "OTEL_EXPORTER_OTLP_{SIGNAL}_HEADERS" Honoured("in the place of the common ones");
    "OTEL_EXPORTER_OTLP_COMPRESSION" Honoured("`gzip`, `none`, and `zstd`, which the specification does not know");
    "OTEL_EXPORTER_OTLP_{SIGNAL}_COMPRESSION" Honoured("");
    "OTEL_EXPORTER_OTLP_TIMEOUT" Honoured("0 means an hour");
    "OTEL_EXPORTER_OTLP_{SIGNAL}_TIMEOUT" Honoured("");
    "OTEL_EXPORTER_OTLP_PROTOCOL" Honoured("`grpc`, `http/protobuf`, `http/json`. Not set, port 4317 is gRPC and everything else `http/protobuf`");
    "OTEL_EXPORTER_OTLP_{SIGNAL}_PROTOCOL" Honoured("");
    "OTEL_EXPORTER_OTLP_LOGS_*" Ignored(LOGS);
    "OTEL_EXPORTER_OTLP_PROFILES_*" Ignored(PROFILES);
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE" Honoured("`cumulative`, `delta`, `lowmemory`");
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION" Honoured("for all; without it those of the conventions have their prescribed bounds and ours are exponential");
    "OTEL_SEMCONV_STABILITY_OPT_IN" Honoured("`gen_ai_latest_experimental`, and with `/dup` both generations of names");
}

/// Those whose values are whole numbers, to complain about others.
pub const NUMBERS: &[&str] = &[
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_METRIC_EXPORT_TIMEOUT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
];

/// The table for the README.
pub fn markdown() -> String {
    let mut text = "| variable | | |\n|---|---|---|\n".to_owned();
    for v in ALL {
        let (sign, what) = match v.effect {
            Honoured(what) => ("honoured", what),
            Ignored(why) => ("no", why),
        };
        let _ = writeln!(text, "| `{}` | {sign} | {what} |", v.name);
    }
    text
}

#[cfg(test)]
#[path = "variables_tests.rs"]
mod tests;
