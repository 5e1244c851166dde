use super::*;

fn at(second: u64) -> Timestamp {
    Timestamp::from_unix_nanos(second * 1_000_000_000)
}

fn store(limit: usize) -> Store {
    Store::new(Shape { limit, exponential: false }, at(1))
}

fn set(store: &mut Store, model: &str) -> Set {
    store
        .sets
        .of(vec![(Cow::Borrowed(attr::REQUEST_MODEL), Value::Text(model.into())), (Cow::Borrowed(attr::VANTAGE), Value::Word("client"))])
}

fn table<'a>(store: &'a mut Store, metric: &Metric) -> &'a mut Table {
    &mut store.tables_mut()[metric.index]
}

#[test]
fn beyond_the_bound_there_is_one_series_and_the_total_is_right() {
    let mut store = store(10);
    for i in 0..1_000 {
        let set = set(&mut store, &format!("m{i}"));
        store.add(&metric::REQUESTS, &set, 2, at(2));
        if let Some(d) = store.distribution(&metric::TIME_TO_FIRST_TOKEN, &set, at(2)) {
            d.record(0.5);
        }
    }
    for m in [&metric::REQUESTS, &metric::TIME_TO_FIRST_TOKEN] {
        let points = table(&mut store, m).points().to_vec();
        assert_eq!(points.len(), 10);
        let last = &points[9];
        assert_eq!(last.set.get(attr::OVERFLOW), Some(&Value::Flag(true)));
        assert_eq!(last.set.get(attr::VANTAGE), Some(&Value::Word("client")));
        let total: u64 = points
            .iter()
            .map(|p| match &p.data {
                Data::Sum(n) => *n,
                Data::Distribution(d) => d.count() * 2,
                Data::Level(_) => 0,
            })
            .sum();
        assert_eq!(total, 2_000, "{}", m.name);
    }
    assert_eq!(store.overflown(), 2 * 991);
    store.sweep(at(0));
    assert!(store.sets.len() <= 12, "{}", store.sets.len());
}

#[test]
fn idle_series_go_only_when_there_is_little_room() {
    let mut store = store(8);
    let sets: Vec<_> = (0..6).map(|i| set(&mut store, &format!("m{i}"))).collect();
    sets.iter().take(5).for_each(|s| store.add(&metric::REQUESTS, s, 1, at(2)));
    assert!(!store.sweep(at(100)), "five of eight");
    store.add(&metric::REQUESTS, &sets[5], 1, at(200));
    assert!(store.sweep(at(100)));
    let table = table(&mut store, &metric::REQUESTS);
    assert_eq!((table.points().len(), table.gone().len(), table.gone().len()), (1, 5, 0));
    // What comes back begins anew, and has not ended.
    store.add(&metric::REQUESTS, &sets[0], 7, at(300));
    let table = self::table(&mut store, &metric::REQUESTS);
    assert_eq!((table.points()[1].start, &table.points()[1].data), (at(300), &Data::Sum(7)));
}

#[test]
fn what_is_observed_lasts_as_long_as_it_is_told() {
    let mut store = store(8);
    store.observe(at(2), |tell| {
        tell(&metric::SLO_BURN_RATE, &[("a", "1")], Told::Value(1.5));
        tell(&metric::SLO_BURN_RATE, &[("a", "2")], Told::Value(2.5));
        tell(&metric::SLO_BURN_RATE, &[("a", "3")], Told::Value(f64::NAN));
        tell(&metric::SLO_BURN_RATE, &[("a", "4")], Told::Histogram(&[], &[1], 1.0));
        tell(&metric::ENGINE_TTFT, &[], Told::Histogram(&[0.1, 1.0], &[1, 2, 3], 9.0));
    });
    assert_eq!(table(&mut store, &metric::SLO_BURN_RATE).points().len(), 2);
    let Data::Distribution(d) = &table(&mut store, &metric::ENGINE_TTFT).points()[0].data else { panic!() };
    assert_eq!((d.count(), d.bounds(), d.counts(), d.sum()), (6, &[0.1, 1.0][..], &[1, 2, 3][..], 9.0));
    store.observe(at(3), |tell| tell(&metric::SLO_BURN_RATE, &[("a", "2")], Told::Value(3.5)));
    let table = table(&mut store, &metric::SLO_BURN_RATE);
    assert_eq!((table.points()[0].start, &table.points()[0].data), (at(1), &Data::Level(3.5)));
    assert_eq!(table.gone().iter().map(|s| s.get("a").unwrap().label().into_owned()).collect::<Vec<_>>(), ["1"]);
}

#[test]
fn deltas_add_up_and_their_times_join() {
    let mut store = store(8);
    let set = set(&mut store, "m");
    store.add(&metric::REQUESTS, &set, 0, at(5));
    let take = |store: &mut Store, now| table(store, &metric::REQUESTS).points_mut()[0].delta(at(now));
    assert_eq!(take(&mut store, 10), Some((at(5), Data::Sum(0))), "told once though it is 0");
    assert_eq!(take(&mut store, 20), None);
    store.add(&metric::REQUESTS, &set, 3, at(25));
    assert_eq!(take(&mut store, 30), Some((at(10), Data::Sum(3))));
    store.add(&metric::REQUESTS, &set, 4, at(35));
    assert_eq!(take(&mut store, 40), Some((at(30), Data::Sum(4))));
    let record = |store: &mut Store, v: f64| store.distribution(&metric::MAX_STALL, &set, at(50)).unwrap().record(v);
    record(&mut store, 1.0);
    let take = |store: &mut Store, now| match table(store, &metric::MAX_STALL).points_mut()[0].delta(at(now)) {
        Some((since, Data::Distribution(d))) => Some((since, d.count(), d.sum())),
        _ => None,
    };
    assert_eq!(take(&mut store, 60), Some((at(50), 1, 1.0)));
    record(&mut store, 2.0);
    record(&mut store, 3.0);
    assert_eq!(take(&mut store, 70), Some((at(60), 2, 5.0)));
}
