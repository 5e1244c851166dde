use std::collections::BTreeMap;

use tokengauge_core::inference::Usage;
use tokengauge_core::name::Name;
use tokengauge_core::semconv::Kind;
use tokengauge_core::stats::store::{Data, Shape};

use super::super::Config;
use super::*;
use crate::testing;

fn at(second: u64) -> Timestamp {
    Timestamp::from_unix_nanos(second * 1_000_000_000)
}

fn recorder(profile: Profile, limit: usize, values: usize) -> Recorder {
    let models = Models::new(&Config::default()).unwrap();
    Recorder::new(Store::new(Shape { limit, exponential: false }, at(1)), profile, Exemplars::TraceBased, models, values)
}

/// Labels of each series of a metric, with its count or sum.
fn series(recorder: &Recorder, m: &Metric) -> BTreeMap<String, f64> {
    let labels = |set: &Set| set.attributes().iter().map(|(k, v)| format!("{k}={}", v.label())).collect::<Vec<_>>().join(" ");
    let value = |data: &Data| match data {
        Data::Sum(n) => *n as f64,
        Data::Level(x) => *x,
        Data::Distribution(d) => d.count() as f64,
    };
    recorder.store.tables()[m.index].points().iter().map(|p| (labels(&p.set), value(&p.data))).collect()
}

fn mixed() -> Vec<Inference> {
    let first = testing::inference();
    let server = Inference { vantage: Vantage::Server, ..first.clone() };
    let embedding = Inference { operation: Operation::Embeddings, stream: Some(false), ..first.clone() };
    vec![first, testing::refused(), server, embedding]
}

/// Name, unit and form of every metric of the conventions, as /work's facts (semconv.md §2) have them, with the attributes that may stand on it
/// beside the common ones, by profile. Written anew here: a change in `semconv.rs` must be one of the conventions.
/// Name, unit, kind, attributes, and whether v1.41 and main have it.
type Convention = (&'static str, &'static str, Kind, &'static [&'static str], [bool; 2]);
const CONVENTIONS: &[Convention] = &[
    ("gen_ai.client.operation.duration", "s", Kind::Histogram, &["error.type"], [true, true]),
    ("gen_ai.client.operation.time_to_first_chunk", "s", Kind::Histogram, &[], [true, false]),
    ("gen_ai.client.operation.time_per_output_chunk", "s", Kind::Histogram, &[], [true, false]),
    ("gen_ai.client.token.usage", "{token}", Kind::Histogram, &["gen_ai.token.type"], [true, false]),
    ("gen_ai.server.request.duration", "s", Kind::Histogram, &["error.type"], [true, true]),
    ("gen_ai.server.time_to_first_token", "s", Kind::Histogram, &[], [true, true]),
    ("gen_ai.server.time_per_output_token", "s", Kind::Histogram, &[], [true, true]),
    ("gen_ai.client.inference.duration", "s", Kind::Histogram, &["error.type"], [false, true]),
    ("gen_ai.client.inference.time_to_first_chunk", "s", Kind::Histogram, &[], [false, true]),
    ("gen_ai.client.inference.time_per_output_chunk", "s", Kind::Histogram, &[], [false, true]),
    ("gen_ai.client.inference.usage.input_tokens", "{token}", Kind::Counter, &["gen_ai.token.modality"], [true, true]),
    ("gen_ai.client.inference.usage.output_tokens", "{token}", Kind::Counter, &["gen_ai.token.modality"], [true, true]),
    ("gen_ai.client.inference.usage.cache_read.input_tokens", "{token}", Kind::Counter, &["gen_ai.token.modality"], [true, true]),
    ("gen_ai.client.inference.usage.cache_write.input_tokens", "{token}", Kind::Counter, &["gen_ai.token.modality"], [true, true]),
    ("gen_ai.client.inference.usage.reasoning.output_tokens", "{token}", Kind::Counter, &["gen_ai.token.modality"], [true, true]),
    ("gen_ai.client.inference.operation.input_tokens", "{token}", Kind::Histogram, &["error.type"], [false, true]),
    ("gen_ai.client.inference.operation.output_tokens", "{token}", Kind::Histogram, &["error.type"], [false, true]),
];

/// What may stand on every metric of the conventions.
const COMMON: [&str; 6] =
    ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model", "server.address", "server.port"];

#[test]
fn every_profile_has_the_names_units_and_attributes_of_its_conventions() {
    for profile in Profile::ALL {
        let mut recorder = recorder(profile, 2_000, 200);
        let mut all = mixed();
        all[0].usage = Some(Usage { input: Some(9), output: Some(6), cache_read: Some(1), cache_write: Some(2), reasoning: Some(3) });
        all.iter().for_each(|i| recorder.record(i, at(2), true));
        for table in recorder.store.tables().iter().filter(|t| t.metric.name.starts_with("gen_ai.")) {
            let m = table.metric;
            let (_, unit, kind, own, [old, new]) = *CONVENTIONS.iter().find(|c| c.0 == m.name).unwrap_or_else(|| panic!("{}", m.name));
            assert_eq!((m.unit, m.kind), (unit, kind), "{}", m.name);
            assert_eq!(
                !table.points().is_empty(),
                old && profile.speaks_v1_41() || new && profile.speaks_main(),
                "{} under {}",
                m.name,
                profile.as_str()
            );
            for point in table.points() {
                let names: Vec<_> = point.set.attributes().iter().map(|(name, _)| name.as_ref()).collect();
                assert!(names.iter().all(|n| COMMON.contains(n) || own.contains(n)), "{}: {names:?}", m.name);
                assert!(names.starts_with(&["gen_ai.operation.name"]) || names.contains(&"gen_ai.provider.name"), "{}: {names:?}", m.name);
                assert!(own.iter().all(|n| *n == "error.type" || names.contains(n)), "{}: {names:?}", m.name);
                assert!(!names.contains(&"server.port") || names.contains(&"server.address"), "{}: {names:?}", m.name);
            }
        }
        let told: Vec<_> = recorder.store.tables().iter().filter(|t| !t.points().is_empty()).map(|t| t.metric.name).collect();
        assert!(
            CONVENTIONS.iter().all(|c| told.contains(&c.0) == (c.4[0] && profile.speaks_v1_41() || c.4[1] && profile.speaks_main())),
            "{told:?}"
        );
    }
}

#[test]
fn what_is_measured_on_main() {
    let mut recorder = recorder(Profile::Main, 2_000, 200);
    mixed().iter().for_each(|i| recorder.record(i, at(2), true));
    let durations = series(&recorder, &metric::CLIENT_OPERATION_DURATION);
    assert_eq!(durations.len(), 1, "{durations:?}");
    assert!(durations.keys().all(|k| k.contains("gen_ai.operation.name=embeddings")), "{durations:?}");
    assert_eq!(series(&recorder, &metric::CLIENT_INFERENCE_DURATION).values().sum::<f64>(), 2.0);
    let tokens = series(&recorder, &metric::CLIENT_INPUT_TOKENS);
    // The refused one counts with 0 and names no model that answered.
    assert_eq!(tokens.values().copied().collect::<Vec<_>>(), [9.0, 0.0]);
    assert!(tokens.keys().all(|k| k.contains("gen_ai.token.modality=unknown")), "{tokens:?}");
    assert!(tokens.keys().any(|k| k.contains("gen_ai.response.model=gpt-4o-mini gen_ai.token")), "dates are no series: {tokens:?}");
}

#[test]
fn counters_begin_at_zero() {
    let mut recorder = recorder(Profile::V1_41, 2_000, 200);
    recorder.record(&testing::inference(), at(2), true);
    let requests = series(&recorder, &metric::REQUESTS);
    assert_eq!((requests.len(), requests.values().sum::<f64>()), (ENDS.len(), 1.0));
    assert!(requests.iter().any(|(k, n)| k.contains("tokengauge.outcome=cancelled tokengauge.reason=client_cancelled") && *n == 0.0));
    recorder.record(&Inference { operation: Operation::FetchResponse, ..testing::inference() }, at(2), true);
    assert_eq!(series(&recorder, &metric::REQUESTS), requests, "what is sent again is none");
}

#[test]
fn exemplars_point_to_spans_that_are_exported() {
    for (filter, sampled, want) in [
        (Exemplars::TraceBased, true, 1),
        (Exemplars::TraceBased, false, 0),
        (Exemplars::AlwaysOn, false, 1),
        (Exemplars::AlwaysOff, true, 0),
    ] {
        let mut recorder = recorder(Profile::V1_41, 2_000, 200);
        recorder.exemplars = filter;
        let i = testing::inference();
        recorder.record(&i, at(2), sampled);
        for m in [&metric::TIME_TO_FIRST_TOKEN, &metric::INTER_CHUNK_GAP] {
            let Data::Distribution(d) = &recorder.store.tables()[m.index].points()[0].data else { panic!() };
            assert_eq!(d.exemplars().len(), want, "{filter:?} {sampled}");
            assert!(d.exemplars().iter().all(|e| (e.at, e.trace_id, e.span_id) == (i.timing.end, i.trace.trace_id, i.trace.span_id)));
        }
    }
}

/// What the issue asks for: a flood of 100,000 names of models.
#[test]
fn a_flood_of_names_is_bounded_and_the_totals_are_right() {
    let mut recorder = recorder(Profile::Both, 500, 100);
    let mut i = testing::inference();
    for n in 0..100_000_u32 {
        // Not what a rule would make one of.
        i.request.model = Name::new(&format!("flood-{n}-x"));
        i.response.model = Name::new(&format!("answer-{n}-x"));
        i.host = Name::new(&format!("h{n}.test"));
        recorder.record(&i, at(2), true);
    }
    for m in [&metric::REQUESTS, &metric::TIME_TO_FIRST_TOKEN, &metric::CLIENT_OPERATION_DURATION, &metric::CLIENT_INFERENCE_DURATION] {
        let all = series(&recorder, m);
        assert!(all.len() <= 500, "{}: {}", m.name, all.len());
        assert_eq!(all.values().sum::<f64>(), 100_000.0, "{}", m.name);
    }
    assert_eq!(series(&recorder, &metric::CLIENT_INPUT_TOKENS).values().sum::<f64>(), 900_000.0);
    assert_eq!(series(&recorder, &metric::INTER_CHUNK_GAP).values().sum::<f64>(), 200_000.0);
    let others = recorder.overflows().into_iter().collect::<BTreeMap<_, _>>();
    assert_eq!(others[attr::REQUEST_MODEL], 100_000 - 75);
    recorder.store.sets.sweep();
    assert!(recorder.store.sets.len() < 5_000 && recorder.alike.len() <= REMEMBERED, "{} sets", recorder.store.sets.len());
    // A model that is really used gets its name all the same.
    i.request.model = Name::new("real");
    (0..10).for_each(|_| recorder.record(&i, at(3), true));
    assert!(series(&recorder, &metric::REQUESTS).keys().any(|k| k.contains("gen_ai.request.model=real")));
}

#[test]
fn tenants_are_told_apart_where_that_is_asked_for_and_within_the_bound() {
    use tokengauge_core::tenant::Tenant;
    let mut quiet = recorder(Profile::V1_41, 2_000, 8);
    let mut telling = recorder(Profile::V1_41, 2_000, 8);
    telling.by_tenant();
    for n in 0..100_u8 {
        let mut i = testing::inference();
        i.request.tenant = (n > 0).then(|| Tenant::new([n; 8]));
        [&mut quiet, &mut telling].into_iter().for_each(|r| r.record(&i, at(2), false));
    }
    let of = |recorder: &Recorder| -> Vec<(Option<String>, f64)> {
        let all = series(recorder, &metric::OUTPUT_TOKENS).into_iter();
        let tenant = |labels: String| labels.split(' ').find_map(|l| l.strip_prefix("tokengauge.tenant=").map(str::to_owned));
        all.map(|(labels, n)| (tenant(labels), n)).collect()
    };
    assert_eq!(of(&quiet), [(None, 600.0)]);
    let told = of(&telling);
    assert!(told.contains(&(None, 6.0)) && told.contains(&(Some("0101010101010101".into()), 6.0)), "{told:?}");
    assert!(told.iter().any(|(tenant, n)| tenant.as_deref() == Some(OTHER) && *n > 500.0), "{told:?}");
    assert!(told.len() <= 10, "{told:?}");
    assert_eq!(told.iter().map(|(_, n)| n).sum::<f64>(), 600.0);
}
