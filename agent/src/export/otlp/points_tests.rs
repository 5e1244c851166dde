use std::borrow::Cow;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::metrics::v1::{Metric as Read, metric::Data as Form, number_data_point};
use prost::Message as _;
use tokengauge_core::semconv::metric;
use tokengauge_core::stats::store::{Shape, Told};

use super::*;

fn at(second: u64) -> Timestamp {
    Timestamp::from_unix_nanos(second * 1_000_000_000)
}

fn set(store: &mut Store, model: &str) -> Set {
    store.sets.of(vec![(Cow::Borrowed("model"), Value::Text(model.into())), (Cow::Borrowed("port"), Value::Int(-1))])
}

fn read(store: &mut Store, style: Style, now: u64) -> Vec<Read> {
    let mut all = Vec::new();
    encode(store, Profile::V1_41, style, &[], at(now), &mut |request, items| {
        assert!(request.len() < LARGEST && items > 0);
        let request = ExportMetricsServiceRequest::decode(request.as_slice()).unwrap();
        let scope = &request.resource_metrics[0].scope_metrics[0];
        assert_eq!((scope.scope.as_ref().unwrap().name.as_str(), scope.schema_url.as_str()), ("tokengauge", Profile::V1_41.schema_url()));
        all.extend(scope.metrics.clone());
    });
    all
}

fn one<'a>(all: &'a [Read], m: &Metric) -> &'a Form {
    let found: Vec<_> = all.iter().filter(|r| r.name == m.name).collect();
    assert_eq!((found.len(), found[0].unit.as_str(), found[0].description.as_str()), (1, m.unit, m.doc));
    found[0].data.as_ref().unwrap()
}

fn sample() -> Store {
    let mut store = Store::new(Shape::default(), at(1));
    let set = set(&mut store, "m");
    store.add(&metric::REQUESTS, &set, 3, at(5));
    for m in [&metric::TIME_TO_FIRST_TOKEN, &metric::SERVER_TIME_TO_FIRST_TOKEN] {
        let d = store.distribution(m, &set, at(6)).unwrap();
        [0.0, 0.25, 0.5].iter().for_each(|v| d.record(*v));
        d.exemplify(0.5, at(4), 0xaa, 0xbb);
    }
    store.observe(at(7), |tell| {
        tell(&metric::IN_FLIGHT, &[], Told::Value(2.0));
        tell(&metric::SLO_COVERAGE, &[("a", "b")], Told::Value(0.5));
        tell(&metric::ANOMALIES, &[], Told::Value(9.0));
    });
    store
}

#[test]
fn what_a_receiver_reads() {
    let mut store = sample();
    let all = read(&mut store, Style::default(), 10);
    let Form::Sum(sum) = one(&all, &metric::REQUESTS) else { panic!() };
    let point = &sum.data_points[0];
    assert_eq!((sum.is_monotonic, sum.aggregation_temporality), (true, 2));
    assert_eq!(point.value, Some(number_data_point::Value::AsInt(3)));
    assert_eq!((point.start_time_unix_nano, point.time_unix_nano, point.flags), (5_000_000_000, 10_000_000_000, 0));
    let attributes: Vec<_> = point.attributes.iter().map(|a| (a.key.as_str(), a.value.clone().unwrap().value.unwrap())).collect();
    assert_eq!(attributes, [("model", Any::StringValue("m".into())), ("port", Any::IntValue(-1))]);
    let Form::ExponentialHistogram(own) = one(&all, &metric::TIME_TO_FIRST_TOKEN) else { panic!() };
    let point = &own.data_points[0];
    assert_eq!((point.count, point.sum, point.zero_count, point.scale), (3, Some(0.75), 1, 7));
    let positive = point.positive.as_ref().unwrap();
    // 0.25 and 0.5 are upper bounds of their buckets.
    assert_eq!((positive.offset, positive.bucket_counts.len(), positive.bucket_counts.iter().sum::<u64>()), (-257, 129, 2));
    assert_eq!((point.min, point.max), (Some(0.0), Some(0.5)));
    let exemplar = &point.exemplars[0];
    assert_eq!(
        (exemplar.time_unix_nano, exemplar.span_id[7], exemplar.trace_id[15], exemplar.trace_id.len()),
        (4_000_000_000, 0xbb, 0xaa, 16)
    );
    let Form::Histogram(theirs) = one(&all, &metric::SERVER_TIME_TO_FIRST_TOKEN) else { panic!() };
    let point = &theirs.data_points[0];
    assert_eq!(point.explicit_bounds, semconv::SERVER_TTFT);
    assert_eq!((point.bucket_counts[0], point.bucket_counts[8], point.bucket_counts[9], point.bucket_counts.len()), (1, 1, 1, 17));
    let Form::Sum(level) = one(&all, &metric::IN_FLIGHT) else { panic!() };
    assert_eq!((level.is_monotonic, level.data_points[0].value), (false, Some(number_data_point::Value::AsInt(2))));
    let Form::Gauge(gauge) = one(&all, &metric::SLO_COVERAGE) else { panic!() };
    assert_eq!(gauge.data_points[0].value, Some(number_data_point::Value::AsDouble(0.5)));
    assert_eq!(gauge.data_points[0].start_time_unix_nano, 1_000_000_000);
    // Exemplars are told once.
    let Form::ExponentialHistogram(again) = one(&read(&mut store, Style::default(), 20), &metric::TIME_TO_FIRST_TOKEN).clone() else {
        panic!()
    };
    assert!(again.data_points[0].exemplars.is_empty());
}

#[test]
fn deltas_join_and_levels_stay_totals() {
    let mut store = sample();
    let style = Style { temporality: Temporality::Delta, ..Style::default() };
    let first = read(&mut store, style, 10);
    let Form::Sum(sum) = one(&first, &metric::REQUESTS) else { panic!() };
    assert_eq!((sum.aggregation_temporality, sum.data_points[0].start_time_unix_nano), (1, 5_000_000_000));
    let set = set(&mut store, "m");
    store.distribution(&metric::TIME_TO_FIRST_TOKEN, &set, at(15)).unwrap().record(4.0);
    let second = read(&mut store, style, 20);
    assert!(!second.iter().any(|m| m.name == metric::REQUESTS.name), "nothing came");
    let Form::ExponentialHistogram(h) = one(&second, &metric::TIME_TO_FIRST_TOKEN) else { panic!() };
    let point = &h.data_points[0];
    assert_eq!((h.aggregation_temporality, point.count, point.sum, point.start_time_unix_nano), (1, 1, Some(4.0), 10_000_000_000));
    assert_eq!((point.zero_count, point.positive.as_ref().unwrap().bucket_counts.clone(), point.max), (0, vec![1], None));
    let Form::Sum(level) = one(&second, &metric::IN_FLIGHT) else { panic!() };
    assert_eq!(level.aggregation_temporality, 2);
    // What is observed is a total with lowmemory, what is recorded is not.
    let low = read(&mut sample(), Style { temporality: Temporality::LowMemory, ..Style::default() }, 10);
    let temporality = |m| match one(&low, m) {
        Form::Sum(sum) => sum.aggregation_temporality,
        _ => panic!(),
    };
    assert_eq!((temporality(&metric::REQUESTS), temporality(&metric::ANOMALIES)), (1, 2));
}

#[test]
fn what_ended_is_said_once() {
    let mut store = sample();
    read(&mut store, Style::default(), 10);
    store.observe(at(11), |tell| tell(&metric::IN_FLIGHT, &[], Told::Value(2.0)));
    let all = read(&mut store, Style::default(), 12);
    let Form::Gauge(gauge) = one(&all, &metric::SLO_COVERAGE) else { panic!() };
    assert_eq!((gauge.data_points.len(), gauge.data_points[0].flags, &gauge.data_points[0].value), (1, 1, &None));
    assert_eq!(gauge.data_points[0].attributes[0].key, "a");
    assert!(!read(&mut store, Style::default(), 13).iter().any(|m| m.name == metric::SLO_COVERAGE.name));
    let mut ends = Vec::new();
    encode_end(&mut store, Profile::Main, Style::default(), &[], at(14), &mut |request, _| {
        let request = ExportMetricsServiceRequest::decode(request.as_slice()).unwrap();
        assert_eq!(request.resource_metrics[0].scope_metrics[0].schema_url, Profile::Main.schema_url());
        ends.extend(request.resource_metrics[0].scope_metrics[0].metrics.clone());
    });
    assert_eq!(ends.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), [metric::IN_FLIGHT.name]);
}

#[test]
fn the_form_of_histograms_is_a_matter_of_configuration() {
    for (word, own, theirs) in
        [("", true, false), ("explicit_bucket_histogram", false, false), ("BASE2_EXPONENTIAL_BUCKET_HISTOGRAM", true, true)]
    {
        let env = |name: &str| (name == "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION").then(|| word.to_owned());
        let style = Style::from_env(&env);
        let mut store = Store::new(Shape { exponential: theirs, ..Shape::default() }, at(1));
        let set = set(&mut store, "m");
        for m in [&metric::TIME_TO_FIRST_TOKEN, &metric::SERVER_TIME_TO_FIRST_TOKEN] {
            store.distribution(m, &set, at(2)).unwrap().record(0.5);
        }
        let all = read(&mut store, style, 3);
        let is = |m| matches!(one(&all, m), Form::ExponentialHistogram(_));
        assert_eq!((is(&metric::TIME_TO_FIRST_TOKEN), is(&metric::SERVER_TIME_TO_FIRST_TOKEN)), (own, theirs), "{word}");
    }
}

#[test]
fn requests_are_cut_to_what_receivers_take() {
    let mut store = Store::new(Shape { limit: 100_000, exponential: false }, at(1));
    for i in 0..12_000 {
        let set = set(&mut store, &format!("{i:0>120}"));
        store.distribution(&metric::TIME_TO_FIRST_TOKEN, &set, at(2)).unwrap().record(0.1);
        store.add(&metric::REQUESTS, &set, 1, at(2));
    }
    let all = read(&mut store, Style::default(), 3);
    let (mut sums, mut histograms) = (0, 0);
    for m in &all {
        match m.data.as_ref().unwrap() {
            Form::Sum(s) => sums += s.data_points.len(),
            Form::ExponentialHistogram(h) => histograms += h.data_points.len(),
            _ => panic!(),
        }
    }
    assert_eq!((sums, histograms), (12_000, 12_000));
    assert!(all.len() > 2);
}
