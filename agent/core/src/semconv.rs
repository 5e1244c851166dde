//! Every name of the OpenTelemetry GenAI conventions, and every name of our own, spelled here and nowhere else.
//!
//! Sources: `open-telemetry/semantic-conventions` v1.41.1, `docs/gen-ai/` (the profile `v1_41`), and `open-telemetry/semantic-conventions-genai`
//! of October 2026 (the profile `main`). All of it is of level *Development*. What the conventions lack stands under `tokengauge.*`; we never
//! invent a `gen_ai.*` name.

pub mod attr;
mod profile;
mod provider;
pub mod workload;

pub use profile::{In, Profile};
pub use provider::{provider_of_host, provider_of_server_header};

/// `gen_ai.provider.name` of a server whose host says nothing: someone speaks a known API.
pub const PROVIDER_OTHER: &str = "_OTHER";

/// The event of a span at the instant of the first token.
pub const EVENT_FIRST_TOKEN: &str = "tokengauge.first_token";

/// Names of spans of the agent itself stand under this scope.
pub const AGENT_SCOPE: &str = "tokengauge.agent";

/// Scope of everything that is measured.
pub const SCOPE: &str = "tokengauge";

/// How a metric is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A histogram.
    Histogram,
    /// A monotonic sum.
    Counter,
    /// A sum that goes up and down.
    UpDownCounter,
    /// A value as it is now; never added up.
    Gauge,
}

/// A metric: its name, how it is recorded, and what it means.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Metric {
    /// The OTLP name.
    pub name: &'static str,
    /// How it is recorded.
    pub kind: Kind,
    /// The UCUM unit.
    pub unit: &'static str,
    /// Bounds of a histogram's buckets.
    pub buckets: &'static [f64],
    /// Under which profiles it is exported.
    pub under: In,
    /// What it means.
    pub doc: &'static str,
    /// Its place in [`metric::ALL`].
    pub index: usize,
}

/// Bucket bounds of durations, prescribed by the conventions.
pub const D14: [f64; 14] = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// Bucket bounds of token counts, prescribed by the conventions.
pub const T14: [f64; 14] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];
/// Bucket bounds of `gen_ai.server.time_to_first_token`, prescribed by the conventions.
pub const SERVER_TTFT: [f64; 16] = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Bucket bounds of `gen_ai.server.time_per_output_token`, prescribed by the conventions.
pub const SERVER_TPOT: [f64; 13] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
/// Our bounds of latencies. A limit of an SLO is exact only where it is a bound, so the round figures that people choose are
/// bounds (200 ms, 300 ms, 500 ms, 1 s, 1.5 s, 2 s, 3 s, 5 s, 10 s …); D14 has none of them. From 1 ms (a cache) to 2 min.
pub const LATENCY: [f64; 27] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0,
    30.0, 60.0, 120.0,
];
/// Our bounds of gaps and times per token: dense from 5 to 100 ms, where models decode; from 0.1 ms (pieces of one burst) to 30 s.
pub const GAP: [f64; 25] = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0,
    2.0, 5.0, 10.0, 30.0,
];
/// Our bounds of tokens per second.
pub const SPEED: [f64; 19] =
    [1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 750.0, 1000.0, 2000.0, 5000.0];

macro_rules! metrics {
    ($($id:ident = $name:literal, $kind:ident, $unit:literal, $buckets:expr, $under:ident, $doc:literal;)*) => {
        /// Places in the list.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "named like the constants")]
        enum Index { $($id),* }
        /// Every metric that is exported.
        pub mod metric {
            use super::*;
            $(#[doc = $doc] pub const $id: Metric = Metric {
                name: $name, kind: Kind::$kind, unit: $unit, buckets: $buckets, under: In::$under, doc: $doc, index: Index::$id as usize,
            };)*
            /// All of them, for tables and tests.
            pub const ALL: &[Metric] = &[$($id),*];
        }
    };
}

metrics! {
    CLIENT_OPERATION_DURATION = "gen_ai.client.operation.duration", Histogram, "s", &D14, Old,
        "GenAI operation duration.";
    CLIENT_TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk", Histogram, "s", &D14, Old,
        "Time to receive the first chunk of a streamed response, whatever it holds.";
    CLIENT_TIME_PER_OUTPUT_CHUNK = "gen_ai.client.operation.time_per_output_chunk", Histogram, "s", &D14, Old,
        "Time per output chunk: one observation per chunk after the first.";
    CLIENT_TOKEN_USAGE = "gen_ai.client.token.usage", Histogram, "{token}", &T14, Old,
        "Number of input and output tokens used, by the provider's count.";
    CLIENT_INFERENCE_DURATION = "gen_ai.client.inference.duration", Histogram, "s", &D14, New,
        "GenAI inference duration.";
    CLIENT_INFERENCE_TIME_TO_FIRST_CHUNK = "gen_ai.client.inference.time_to_first_chunk", Histogram, "s", &D14, New,
        "Time to receive the first chunk of a streamed response, whatever it holds.";
    CLIENT_INFERENCE_TIME_PER_OUTPUT_CHUNK = "gen_ai.client.inference.time_per_output_chunk", Histogram, "s", &D14, New,
        "Time per output chunk: one observation per chunk after the first.";
    CLIENT_INPUT_TOKENS = "gen_ai.client.inference.usage.input_tokens", Counter, "{token}", &[], Always,
        "Input tokens, cached ones included, by the provider's count; 0 where it gave none.";
    CLIENT_OUTPUT_TOKENS = "gen_ai.client.inference.usage.output_tokens", Counter, "{token}", &[], Always,
        "Output tokens, reasoning included, by the provider's count; 0 where it gave none.";
    CLIENT_CACHE_READ_TOKENS = "gen_ai.client.inference.usage.cache_read.input_tokens", Counter, "{token}", &[], Always,
        "Input tokens read from a cache. Part of the input tokens: never to be added to them.";
    CLIENT_CACHE_WRITE_TOKENS = "gen_ai.client.inference.usage.cache_write.input_tokens", Counter, "{token}", &[], Always,
        "Input tokens written to a cache. Part of the input tokens: never to be added to them.";
    CLIENT_REASONING_TOKENS = "gen_ai.client.inference.usage.reasoning.output_tokens", Counter, "{token}", &[], Always,
        "Output tokens spent on reasoning. Part of the output tokens: never to be added to them.";
    CLIENT_OPERATION_INPUT_TOKENS = "gen_ai.client.inference.operation.input_tokens", Histogram, "{token}", &T14, New,
        "Input tokens of one inference: for percentiles, never for sums.";
    CLIENT_OPERATION_OUTPUT_TOKENS = "gen_ai.client.inference.operation.output_tokens", Histogram, "{token}", &T14, New,
        "Output tokens of one inference: for percentiles, never for sums.";
    SERVER_REQUEST_DURATION = "gen_ai.server.request.duration", Histogram, "s", &D14, Always,
        "Server request duration, seen at the server.";
    SERVER_TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token", Histogram, "s", &SERVER_TTFT, Always,
        "Time to generate the first token of successful responses, seen at the server.";
    SERVER_TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token", Histogram, "s", &SERVER_TPOT, Always,
        "(duration - time to first token) / (output tokens - 1) of successful responses, seen at the server.";
    TIME_TO_FIRST_TOKEN = "tokengauge.time_to_first_token", Histogram, "s", &LATENCY, Always,
        "From the request's first byte to the first generated output: text, reasoning or tool call.";
    TIME_TO_FIRST_ANSWER = "tokengauge.time_to_first_answer", Histogram, "s", &LATENCY, Always,
        "From the request's first byte to the first output that is not reasoning.";
    TIME_PER_OUTPUT_TOKEN = "tokengauge.time_per_output_token", Histogram, "s", &GAP, Always,
        "(last - first generated output) / (output tokens - 1), by the provider's count of tokens; one value per stream.";
    INTER_CHUNK_GAP = "tokengauge.inter_chunk_gap", Histogram, "s", &GAP, Always,
        "Silence between consecutive arrivals of generated output; chunks that share an instant are one arrival.";
    MAX_STALL = "tokengauge.max_stall", Histogram, "s", &LATENCY, Always,
        "Longest silence of a stream from the first to the last generated output.";
    OUTPUT_SPEED = "tokengauge.output_speed", Histogram, "{token}/s", &SPEED, Always,
        "Output tokens per second as one user sees them: 1 / time per output token.";
    REQUESTS = "tokengauge.requests", Counter, "{request}", &[], Always,
        "Finished inferences by outcome and reason.";
    INPUT_TOKENS = "tokengauge.input_tokens", Counter, "{token}", &[], Always,
        "Input tokens by the provider's count.";
    OUTPUT_TOKENS = "tokengauge.output_tokens", Counter, "{token}", &[], Always,
        "Output tokens by the provider's count.";
    IN_FLIGHT = "tokengauge.in_flight", UpDownCounter, "{request}", &[], Always,
        "Inferences that are running.";
    ANOMALIES = "tokengauge.anomalies", Counter, "{anomaly}", &[], Always,
        "Surprises of the wire, by name.";
    CAPTURE_PACKETS = "tokengauge.capture.packets", Counter, "{packet}", &[], Always,
        "Packets captured.";
    CAPTURE_RECORDS = "tokengauge.capture.records", Counter, "{record}", &[], Always,
        "Records received from the kernel programs.";
    CAPTURE_BYTES = "tokengauge.capture.bytes", Counter, "By", &[], Always,
        "Payload bytes that reached the parsers.";
    CAPTURE_CONNECTIONS = "tokengauge.capture.connections", Counter, "{connection}", &[], Always,
        "Connections seen.";
    CAPTURE_OPEN_CONNECTIONS = "tokengauge.capture.open_connections", UpDownCounter, "{connection}", &[], Always,
        "Connections that are open and watched.";
    CAPTURE_EXCHANGES = "tokengauge.capture.exchanges", Counter, "{exchange}", &[], Always,
        "HTTP exchanges, LLM traffic or not.";
    CAPTURE_NON_LLM = "tokengauge.capture.non_llm_exchanges", Counter, "{exchange}", &[], Always,
        "HTTP exchanges that are no LLM traffic.";
    CAPTURE_EVENTS = "tokengauge.capture.events", Counter, "{event}", &[], Always,
        "Events of streamed answers.";
    CAPTURE_GAPS = "tokengauge.capture.gaps", Counter, "{gap}", &[], Always,
        "Capture gaps by reason. Nothing is measured across one.";
    CAPTURE_DROPS = "tokengauge.capture.drops", Counter, "{record}", &[], Always,
        "Records and inferences lost inside the agent, by reason.";
    CAPTURE_DROPPED_BYTES = "tokengauge.capture.dropped", Counter, "By", &[], Always,
        "Bytes in lost records, where their number is known, by reason.";
    CAPTURE_ATTACHES = "tokengauge.capture.attaches", Counter, "{attach}", &[], Always,
        "Attempts to attach to a library, by result.";
    CAPTURE_OTHER = "tokengauge.capture.other", Counter, "{event}", &[], Always,
        "Further counters of the taps, by name.";
    KUBERNETES_MODE = "tokengauge.kubernetes.mode", Gauge, "{state}", &[], Always,
        "Where names of pods come from: 1 for the source in force, 0 for the others. Degraded unless it is `api`.";
    KUBERNETES_PODS = "tokengauge.kubernetes.pods", UpDownCounter, "{pod}", &[], Always,
        "Pods that are known.";
    KUBERNETES_RECORDS = "tokengauge.kubernetes.records", Counter, "{record}", &[], Always,
        "Records with a name for at least one end, without any, and those that waited for one.";
    KUBERNETES_EVENTS = "tokengauge.kubernetes.events", Counter, "{event}", &[], Always,
        "What was asked of the Kubernetes API and what came of it, by name.";
    EXPORT_DROPS = "tokengauge.export.drops", Counter, "{item}", &[], Always,
        "Spans and metric batches that could not be delivered, by signal and reason.";
    SLO_VALID = "tokengauge.slo.events.valid", Counter, "{request}", &[], Always,
        "Requests that count for an objective, good or bad. With .good it adds up over nodes, which ratios do not.";
    SLO_GOOD = "tokengauge.slo.events.good", Counter, "{request}", &[], Always,
        "Requests that count for an objective and were good.";
    SLO_EXCLUDED = "tokengauge.slo.events.excluded", Counter, "{request}", &[], Always,
        "Requests that capture could not see well enough to judge. They lower the coverage.";
    SLO_NOT_APPLICABLE = "tokengauge.slo.events.not_applicable", Counter, "{request}", &[], Always,
        "Requests that the selector takes and the indicator cannot judge, such as a TTFT of an answer that is no stream.";
    SLO_OBJECTIVE = "tokengauge.slo.objective", Gauge, "1", &[], Always,
        "The target: the share of valid requests that must be good. Its presence is the sign that an agent watches this objective.";
    SLO_BUDGET_REMAINING = "tokengauge.slo.error_budget.remaining", Gauge, "1", &[], Always,
        "The share of the error budget that is left over the SLO's window, on this node; negative when it is overspent.";
    SLO_BURN_RATE = "tokengauge.slo.burn_rate", Gauge, "1", &[], Always,
        "Error ratio over the window divided by the budget, on this node: 1 spends exactly the budget.";
    SLO_TIME_TO_EXHAUSTION = "tokengauge.slo.time_to_exhaustion", Gauge, "s", &[], Always,
        "Until the budget of this node is spent at the present rate; absent while nothing burns.";
    SLO_COVERAGE = "tokengauge.slo.coverage", Gauge, "1", &[], Always,
        "The share of what should have been judged that could be, on this node.";
    SLO_ALERT_STATE = "tokengauge.slo.alert.state", Gauge, "{state}", &[], Always,
        "By severity, on this node: 0 quiet, 1 pending, 2 firing, 3 frozen because too little is seen.";
    SLO_FILES_PROBLEMS = "tokengauge.slo.files.problems", Gauge, "{problem}", &[], Always,
        "What is wrong with the SLO files as they are now. Unless it is 0, what was read before stays in force.";
    SLO_JOURNAL_FAILING = "tokengauge.slo.journal.failing", Gauge, "{state}", &[], Always,
        "1 while the journal cannot be written, so that budgets would not survive a restart; else 0.";
}

/// The name that a metric has in Prometheus under the translator's default strategy (`UnderscoreEscapingWithSuffixes`).
pub fn prometheus_name(metric: &Metric) -> String {
    let mut name = metric.name.replace('.', "_");
    let (unit, per) = metric.unit.split_once('/').map_or((metric.unit, None), |(unit, per)| (unit, Some(per)));
    let word = |unit: &str| match unit {
        "s" => Some("seconds"),
        "By" => Some("bytes"),
        _ => None,
    };
    if let Some(word) = word(unit)
        && !name.ends_with(word)
    {
        name = format!("{name}_{word}");
    }
    if per == Some("s") {
        name += "_per_second";
    }
    match metric.kind {
        Kind::Counter => name += "_total",
        Kind::Gauge if metric.unit == "1" => name += "_ratio",
        _ => {}
    }
    name
}

/// The exported metrics as a Markdown table, as it stands in the README.
pub fn metrics_markdown() -> String {
    let mut out = String::from("| Metric | Instrument | Unit | In Prometheus | Profiles | Meaning |\n|---|---|---|---|---|---|\n");
    for m in metric::ALL {
        let profiles: Vec<_> = Profile::ALL.iter().filter(|p| p.has(m.under)).map(|p| p.as_str()).collect();
        let profiles = if m.under == In::Always { "all".to_owned() } else { profiles.join(", ") };
        out += &format!("| `{}` | {:?} | `{}` | `{}` | {profiles} | {} |\n", m.name, m.kind, m.unit, prometheus_name(m), m.doc);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_obey_the_translators_rules() {
        let mut names = std::collections::BTreeSet::new();
        for m in metric::ALL {
            let dotted = m.name.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(dotted && !m.name.ends_with("total") && !m.name.contains("second"), "{}", m.name);
            assert!(m.name.starts_with("gen_ai.") || m.name.starts_with("tokengauge."), "{}", m.name);
            let rate = ["rate", "per_s", "throughput"].iter().any(|w| m.name.contains(w));
            assert!(!(rate && m.unit.contains('/')), "{}: a rate word and a rate unit", m.name);
            let unit = m.unit == "s" || m.unit == "By" || m.unit.starts_with('{') || m.unit == "1" && m.kind == Kind::Gauge;
            assert!(unit, "{}: {}", m.name, m.unit);
            assert_eq!(m.kind == Kind::Histogram, !m.buckets.is_empty(), "{}", m.name);
            assert!(m.buckets.is_sorted_by(|a, b| a < b), "{}: bounds", m.name);
            let name = prometheus_name(m);
            let words: Vec<_> = name.split('_').collect();
            assert!(words.windows(2).all(|w| w[0] != w[1]), "{name} doubles a word");
            assert!(names.insert(name), "{} collides", m.name);
        }
        // Suffixes of a histogram's series must not be another metric's name either.
        for m in metric::ALL.iter().filter(|m| m.kind == Kind::Histogram) {
            for suffix in ["_bucket", "_count", "_sum"] {
                assert!(!names.contains(&(prometheus_name(m) + suffix)));
            }
        }
    }

    #[test]
    fn names_as_measured_with_the_translator() {
        let of = |m: &Metric| prometheus_name(m);
        assert_eq!(of(&metric::SERVER_TIME_TO_FIRST_TOKEN), "gen_ai_server_time_to_first_token_seconds");
        assert_eq!(of(&metric::CLIENT_TOKEN_USAGE), "gen_ai_client_token_usage");
        assert_eq!(of(&metric::REQUESTS), "tokengauge_requests_total");
        assert_eq!(of(&metric::OUTPUT_SPEED), "tokengauge_output_speed_per_second");
        assert_eq!(of(&metric::CAPTURE_BYTES), "tokengauge_capture_bytes_total");
    }
}
