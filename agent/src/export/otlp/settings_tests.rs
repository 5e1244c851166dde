use super::*;

fn env<'a>(table: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| table.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
}

fn check(config: &Config, table: &[(&str, &str)], want: (&str, &str)) {
    let env = env(table);
    let got = (endpoint(config, Signal::Traces, &env).0, protocol(config, Signal::Traces, &env).name());
    assert_eq!((got.0.as_str(), got.1), want, "{table:?}");
}

fn target(config: &Config, signal: Signal, table: &[(&str, &str)]) -> Target {
    Target::new(config, signal, &env(table)).unwrap()
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let base = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let none = Config::default();
    check(&none, &[], ("http://localhost:4318", "http/protobuf"));
    check(&none, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], ("http://localhost:4317", "grpc"));
    check(&none, &[(base, "http://c:4317")], ("http://c:4317", "grpc"));
    check(&none, &[(base, "http://c:4317/x")], ("http://c:4317/x", "grpc"));
    check(&none, &[(base, "http://c:4317"), ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")], ("http://c:4317", "http/protobuf"));
    check(&none, &[(base, "http://c"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/v9")], ("http://t/v9", "http/protobuf"));
    let file = Config { endpoint: Some("http://f:4317".into()), ..Config::default() };
    check(&file, &[], ("http://f:4317", "grpc"));
    check(&file, &[(base, "http://c")], ("http://c", "http/protobuf"));
    let flag = Config { endpoint_wins: true, ..file };
    check(&flag, &[(base, "http://c")], ("http://f:4317", "grpc"));
    check(&none, &[(base, "http://c"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")], ("http://c", "http/json"));
}

#[test]
fn an_address_without_a_scheme_means_tls() {
    let none = Config::default();
    check(&none, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317")], ("https://c:4317", "grpc"));
    check(&none, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"), ("OTEL_EXPORTER_OTLP_INSECURE", "true")], ("http://c:4317", "grpc"));
    let both = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"),
        ("OTEL_EXPORTER_OTLP_INSECURE", "true"),
        ("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "false"),
    ];
    check(&none, &both, ("https://c:4317", "grpc"));
}

#[test]
fn a_base_gets_a_path_and_a_signals_own_address_does_not() {
    let none = Config::default();
    let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/otlp/");
    assert_eq!(target(&none, Signal::Traces, &[base]).url, "http://c:4318/otlp/v1/traces");
    let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://p:9090/api/v1/otlp/v1/metrics");
    assert_eq!(target(&none, Signal::Metrics, &[base, own]).url, own.1);
    assert_eq!(target(&none, Signal::Traces, &[base, own]).url, "http://c:4318/otlp/v1/traces");
    let wrong = Target::new(&none, Signal::Traces, &env(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http:// /")]));
    assert!(wrong.unwrap_err().to_string().contains("is no address"));
}

#[test]
fn headers_are_decoded_and_each_layer_covers_the_one_below() {
    let config = Config { headers: [("x-a", "file"), ("x-b", "file")].map(|(k, v)| (k.into(), v.into())).into(), ..Config::default() };
    let common = ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=env, authorization = Bearer%20a%3Db ,nonsense");
    let all = |target: Target| {
        let mut all: Vec<_> = target.headers.iter().map(|(k, v)| format!("{k}: {}", v.to_str().unwrap())).collect();
        all.sort();
        all
    };
    let of = target(&config, Signal::Traces, &[common]);
    assert!(!format!("{of:?}").contains("Bearer"), "credentials are not shown");
    assert_eq!(all(of), ["authorization: Bearer a=b", "x-a: env", "x-b: file"]);
    // A signal's own list stands in the place of the common one.
    let own = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-c=100%");
    assert_eq!(all(target(&config, Signal::Traces, &[common, own])), ["x-a: file", "x-b: file", "x-c: 100%"]);
}

#[test]
fn times_are_milliseconds_and_the_shorter_one_holds() {
    let none = Config::default();
    let of = |signal, table: &[(&str, &str)]| target(&none, signal, table).timeout.as_millis();
    assert_eq!(of(Signal::Traces, &[]), 10_000);
    assert_eq!(of(Signal::Traces, &[("OTEL_EXPORTER_OTLP_TIMEOUT", "2500")]), 2_500);
    assert_eq!(of(Signal::Traces, &[("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"), ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "100")]), 100);
    assert_eq!(of(Signal::Traces, &[("OTEL_BSP_EXPORT_TIMEOUT", "900")]), 900);
    assert_eq!(of(Signal::Metrics, &[("OTEL_BSP_EXPORT_TIMEOUT", "900"), ("OTEL_METRIC_EXPORT_TIMEOUT", "800")]), 800);
    assert_eq!(of(Signal::Metrics, &[("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")]), 60_000);
    assert_eq!(of(Signal::Metrics, &[("OTEL_EXPORTER_OTLP_TIMEOUT", "0")]), 3_600_000);
}

#[test]
fn compression_of_the_environment_wins() {
    let file = Config { compression: Some(Compression::Gzip), ..Config::default() };
    assert_eq!(target(&file, Signal::Traces, &[]).compression, Compression::Gzip);
    assert_eq!(target(&file, Signal::Traces, &[("OTEL_EXPORTER_OTLP_COMPRESSION", "none")]).compression, Compression::None);
    let own = ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "zstd");
    assert_eq!(target(&file, Signal::Metrics, &[("OTEL_EXPORTER_OTLP_COMPRESSION", "none"), own]).compression, Compression::Zstd);
}

#[test]
fn values_that_nobody_understands_are_named() {
    let table = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "thrift"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5s"),
    ];
    assert_eq!(
        ignored(&env(&table)),
        [
            "OTEL_EXPORTER_OTLP_PROTOCOL: `thrift` is none of grpc, http/protobuf, http/json",
            "OTEL_EXPORTER_OTLP_HEADERS: none of the lists of name=value (one item at least is wrong)",
            "OTEL_BSP_SCHEDULE_DELAY: `5s` is none of the whole numbers",
        ]
    );
}

#[test]
fn a_missing_certificate_is_named() {
    let config = Config { certificate: Some("/nonexistent/ca.pem".into()), ..Config::default() };
    let error = Target::new(&config, Signal::Traces, &|_| None).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/ca.pem: "), "{error}");
    let own = [("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/nonexistent/other.pem")];
    let error = Target::new(&config, Signal::Traces, &env(&own)).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/other.pem: "), "{error}");
}

#[test]
fn credentials_in_an_address_are_not_shown() {
    for (url, want) in
        [("http://u:p@c:4318/v1/traces", "http://c:4318/v1/traces"), ("https://c/x@y", "https://c/x@y"), ("http://a@b@c", "http://c")]
    {
        assert_eq!(shown(url), want);
    }
    let config = Config { endpoint: Some("http://user:secret@c:4318".into()), ..Config::default() };
    assert!(super::super::Otlp::describe(&config, &|_| None).contains("metrics to http://c:4318 (http/protobuf)"));
}
