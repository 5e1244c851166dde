use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, Metric, metric::Data};
use prost::Message as _;
use tokengauge_core::semconv::metric;

use super::*;
use crate::export::metrics::Metrics;
use crate::export::observe::Tell;
use crate::export::otlp::carrier::{Carrier, Signal};
use crate::export::otlp::points::{Style, encode};
use crate::export::otlp::push;
use crate::export::otlp::sampling::{Decision, Sampling, Slow};
use crate::export::otlp::settings::Target;
use crate::export::otlp::spans::SpanLimits;
use crate::export::otlp::{Compression, Config, Protocol, batch::Batch};
use crate::testing;
use tokengauge_core::semconv::Profile;

/// What is different when the variable has that value.
fn with<T: PartialEq + std::fmt::Debug>(name: &str, value: &str, of: impl Fn(&dyn Fn(&str) -> Option<String>) -> T) -> (T, T) {
    (of(&|_| None), of(&|n| (n == name).then(|| value.to_owned())))
}

fn target(signal: Signal, env: &dyn Fn(&str) -> Option<String>) -> Target {
    Target::new(&Config::default(), signal, env).unwrap()
}

/// For each honoured variable: that it changes something, and only what it should. What it changes exactly stands in the tests of the
/// modules that read it, and in `agent/tests/otlp.rs`.
#[test]
fn every_honoured_variable_does_something() {
    for variable in ALL.iter().filter(|v| matches!(v.effect, Honoured(_))) {
        if variable.name.contains("{SIGNAL}") {
            for signal in Signal::ALL {
                let other = if signal == Signal::Traces { Signal::Metrics } else { Signal::Traces };
                let name = variable.name.replace("{SIGNAL}", &signal.name().to_uppercase());
                assert!(effective(&name, &variable.name.replace("_{SIGNAL}", ""), signal), "{name}");
                assert!(!effective(&name, &variable.name.replace("_{SIGNAL}", ""), other), "{name} of the other signal");
            }
        } else if variable.name.starts_with("OTEL_EXPORTER_OTLP_") && !variable.name.contains("_METRICS_") {
            assert!(Signal::ALL.into_iter().all(|s| effective(variable.name, variable.name, s)), "{}", variable.name);
        } else {
            assert!(other(variable.name), "{}", variable.name);
        }
    }
}

/// Whether a variable of the exporter, whose common name is `common`, changes what is known of the receiver.
fn effective(name: &str, common: &str, signal: Signal) -> bool {
    let missing = "/nonexistent/file.pem";
    let fails = |value: &str| Target::new(&Config::default(), signal, &|n| (n == name).then(|| value.to_owned())).is_err();
    let changed = |value: &str, of: fn(&Target) -> String| {
        let (before, after) = with(name, value, |env| of(&target(signal, env)));
        before != after
    };
    match common {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => changed("http://other", |t| t.url.clone()),
        "OTEL_EXPORTER_OTLP_INSECURE" => {
            let of = |insecure: Option<&str>| {
                let env = |n: &str| match n {
                    "OTEL_EXPORTER_OTLP_ENDPOINT" => Some("c:4317".to_owned()),
                    n if n == name => insecure.map(str::to_owned),
                    _ => None,
                };
                target(signal, &env).url
            };
            of(None) != of(Some("true"))
        }
        "OTEL_EXPORTER_OTLP_CERTIFICATE" | "OTEL_EXPORTER_OTLP_CLIENT_KEY" | "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE" => fails(missing),
        "OTEL_EXPORTER_OTLP_HEADERS" => changed("a=b", |t| t.headers.len().to_string()),
        "OTEL_EXPORTER_OTLP_COMPRESSION" => changed("gzip", |t| (t.compression == Compression::Gzip).to_string()),
        "OTEL_EXPORTER_OTLP_TIMEOUT" => changed("17", |t| format!("{:?}", t.timeout)),
        "OTEL_EXPORTER_OTLP_PROTOCOL" => changed("grpc", |t| (t.protocol == Protocol::Grpc).to_string()),
        other => panic!("{other} has no test"),
    }
}

#[derive(Default)]
struct Count(Vec<u32>);
impl Carrier for Count {
    fn carry(&mut self, _: Signal, _: Vec<u8>, items: u32) {
        self.0.push(items);
    }
}

#[expect(clippy::disallowed_methods, reason = "any instant will do")]
fn batches(env: &dyn Fn(&str) -> Option<String>) -> Vec<u32> {
    let resource = opentelemetry_sdk::Resource::builder_empty().build();
    let (mut batch, mut count, now) = (Batch::new(&resource, Profile::V1_41, env), Count::default(), std::time::Instant::now());
    (0..10).for_each(|_| batch.add(b"", now, &mut count));
    batch.tick(now + std::time::Duration::from_millis(100), &mut count);
    count.0
}

/// The metrics of one inference, whose span is exported or not, and of a counter that is observed, as a receiver reads them.
fn exported(env: &dyn Fn(&str) -> Option<String>, sampled: bool) -> Vec<Metric> {
    let metrics = Metrics::new(&Default::default(), Profile::V1_41, env).unwrap();
    metrics.watch(|tell: &mut Tell<'_>| tell(&metric::ANOMALIES, &[], 1.0));
    metrics.record(&testing::inference(), sampled);
    let mut all = Vec::new();
    // What is observed was 0 before it was observed first: a delta wants two collections.
    metrics.collect(|_, _| ());
    metrics.collect(|store, now| {
        encode(store, Profile::V1_41, Style::from_env(env), &[], now, &mut |request, _| {
            let request = ExportMetricsServiceRequest::decode(request.as_slice()).unwrap();
            all.extend(request.resource_metrics.into_iter().flat_map(|r| r.scope_metrics).flat_map(|s| s.metrics));
        });
    });
    all
}

fn exemplars(metrics: &[Metric]) -> usize {
    let of = |m: &Metric| match &m.data {
        Some(Data::Histogram(h)) => h.data_points.iter().map(|p| p.exemplars.len()).sum(),
        Some(Data::ExponentialHistogram(h)) => h.data_points.iter().map(|p| p.exemplars.len()).sum(),
        _ => 0,
    };
    metrics.iter().map(of).sum()
}

/// Whether another variable changes what it is there for.
fn other(name: &str) -> bool {
    let differs = |(a, b): (String, String)| a != b;
    let limits = |value: &str| differs(with(name, value, |env| format!("{:?}", SpanLimits::new(env))));
    let endpoint = |env: &dyn Fn(&str) -> Option<String>| {
        let config = Config { endpoint: Some("http://x".into()), ..Config::default() };
        format!("{:?}", Signal::ALL.map(|s| config.wants(s, env)))
    };
    match name {
        "OTEL_SDK_DISABLED" => differs(with(name, "true", endpoint)),
        "OTEL_TRACES_EXPORTER" | "OTEL_METRICS_EXPORTER" => differs(with(name, "none", endpoint)),
        "OTEL_SERVICE_NAME" => differs(with(name, "x", |env| format!("{:?}", super::super::resource(env)).contains("\"x\"").to_string())),
        "OTEL_TRACES_SAMPLER" => differs(with(name, "always_off", |env| {
            format!("{:?}", Sampling::new(None, Slow::default(), env).decide(&testing::inference(), false))
        })),
        "OTEL_TRACES_SAMPLER_ARG" => {
            let of = |arg: &str| {
                let env = |n: &str| Some(if n == name { arg.to_owned() } else { "traceidratio".to_owned() });
                Sampling::new(None, Slow::default(), &env).decide(&testing::inference(), false)
            };
            of("0") == Decision::Dropped && of("1") == Decision::Sampled
        }
        "OTEL_BSP_SCHEDULE_DELAY" => differs(with(name, "50", |env| format!("{:?}", batches(env)))),
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" | "OTEL_BSP_MAX_QUEUE_SIZE" => differs(with(name, "3", |env| format!("{:?}", batches(env)))),
        "OTEL_BSP_EXPORT_TIMEOUT" => differs(with(name, "5", |env| format!("{:?}", target(Signal::Traces, env).timeout))),
        "OTEL_METRIC_EXPORT_TIMEOUT" => differs(with(name, "5", |env| format!("{:?}", target(Signal::Metrics, env).timeout))),
        "OTEL_SEMCONV_STABILITY_OPT_IN" => {
            differs(with(name, "gen_ai_latest_experimental", |env| crate::config::Semconv::profile(None, env).as_str().to_owned()))
        }
        _ if name.ends_with("_LIMIT") => limits("7"),
        "OTEL_RESOURCE_ATTRIBUTES" => {
            let of = |env: &dyn Fn(&str) -> Option<String>| {
                let resource = super::super::resource(env);
                let value = |key: &'static str| resource.get(&opentelemetry::Key::from_static_str(key)).map(|v| v.to_string());
                [value("service.name"), value("zone")]
            };
            let text = |t: &str| Some(t.to_owned());
            with(name, "zone=a%2Cb, service.name = mine", of) == ([text("tokengauge"), None], [text("mine"), text("a,b")])
                // One item that is none, and nothing counts.
                && with(name, "zone=a,b", of).1 == [text("tokengauge"), None]
        }
        "OTEL_METRIC_EXPORT_INTERVAL" => {
            let (before, after) = with(name, "1500", |env| push::interval(Some(20.0), env).as_millis());
            (before, after) == (20_000, 1_500)
        }
        "OTEL_METRICS_EXEMPLAR_FILTER" => {
            // Of an inference whose span is exported, and of one whose span is not.
            let of = |value: &str, sampled| exemplars(&exported(&|n| (n == name).then(|| value.to_owned()), sampled));
            let all = ["", "trace_based", "always_on", "always_off"].map(|value| [true, false].map(|sampled| of(value, sampled) > 0));
            all == [[true, false], [true, false], [true, true], [false, false]]
        }
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE" => {
            let of = |value: &str| {
                let metrics = exported(&|n| (n == name).then(|| value.to_owned()), true);
                let temporality = |m: &str| match metrics.iter().find(|r| r.name == m).and_then(|r| r.data.as_ref()) {
                    Some(Data::Sum(sum)) => sum.aggregation_temporality(),
                    Some(Data::Histogram(h)) => h.aggregation_temporality(),
                    Some(Data::ExponentialHistogram(h)) => h.aggregation_temporality(),
                    other => panic!("{m}: {other:?}"),
                };
                [temporality("tokengauge.requests"), temporality("tokengauge.anomalies"), temporality("gen_ai.client.token.usage")]
            };
            use AggregationTemporality::{Cumulative, Delta};
            let lowmemory = [Delta, Cumulative, Delta];
            ["", "cumulative", "delta", "lowmemory"].map(of) == [[Cumulative; 3], [Cumulative; 3], [Delta; 3], lowmemory]
        }
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION" => {
            let of = |value: &str| {
                let metrics = exported(&|n| (n == name).then(|| value.to_owned()), true);
                let form = |m: &str| match metrics.iter().find(|r| r.name == m).and_then(|r| r.data.as_ref()) {
                    Some(Data::Histogram(_)) => "explicit",
                    Some(Data::ExponentialHistogram(_)) => "exponential",
                    other => panic!("{m}: {other:?}"),
                };
                [form("gen_ai.client.token.usage"), form("tokengauge.time_to_first_token")]
            };
            ["", "explicit_bucket_histogram", "base2_exponential_bucket_histogram"].map(of)
                == [["explicit", "exponential"], ["explicit"; 2], ["exponential"; 2]]
        }
        other => panic!("{other} has no test"),
    }
}

#[test]
fn each_is_listed_once_and_says_something_of_what_it_does_not_do() {
    for v in ALL {
        assert_eq!(ALL.iter().filter(|o| o.name == v.name).count(), 1, "{}", v.name);
        assert!(!matches!(v.effect, Ignored("")), "{}", v.name);
    }
    assert!(NUMBERS.iter().all(|n| ALL.iter().any(|v| v.name == *n && matches!(v.effect, Honoured(_)))));
    assert_eq!(markdown().lines().count(), ALL.len() + 2);
}
