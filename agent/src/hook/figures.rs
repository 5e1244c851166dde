//! Timings of each request as its engine told them, added up under the names that engines' own figures have.
//!
//! A server that is scraped as well counts the same requests in histograms of its own. Whatever it tells itself is left to it, quantity by
//! quantity, so that no request stands twice under one name (`engine`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tokengauge_core::engine::figures::Quantity;
use tokengauge_core::hook::book::{Book, Counted, End, Request, Said};
use tokengauge_core::hook::event::{Event, Source};
use tokengauge_core::join::Engine;
use tokengauge_core::name::Name;
use tokengauge_core::semconv::{GAP, LATENCY, OTHER, attr, metric};

use super::HookSink;
use crate::clock::{now, wall};
use crate::engine::{Engines, Place};
use crate::export::metrics::names::Models;
use crate::export::observe::{Observe, Tell, TellHistogram};
use crate::join as joining;

/// Most sets of labels.
const MAX_SERIES: usize = 512;

/// Processes whose server is remembered.
const MAX_KNOWN: usize = 4_096;

/// How long it is remembered which server a process belongs to, and what that tells itself.
const REMEMBERED: Duration = Duration::from_secs(5);

/// What is added up, with its bounds.
const QUANTITIES: [(Quantity, &[f64]); 8] = [
    (Quantity::Ttft, &LATENCY),
    (Quantity::Queue, &LATENCY),
    (Quantity::Prefill, &LATENCY),
    (Quantity::Decode, &LATENCY),
    (Quantity::Inference, &LATENCY),
    (Quantity::EndToEnd, &LATENCY),
    (Quantity::Itl, &GAP),
    (Quantity::Tpot, &GAP),
];

/// The figures. It takes events, and metrics observe it.
pub struct Figures(Mutex<State>);

struct State {
    book: Book,
    sums: Sums,
}

/// Sums by labels, and what is needed to know the labels.
struct Sums {
    models: Models,
    engines: Option<Engines>,
    known: FxHashMap<u32, (Instant, Option<Arc<Place>>)>,
    series: BTreeMap<Labels, Series>,
    /// Where single requests are joined with what the wire shows of them.
    joining: Option<joining::Engines>,
}

/// What a series is of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Labels {
    /// Kind, address and port of the server, where it is one of those that are known.
    server: Option<(&'static str, String, String)>,
    model: Option<Arc<str>>,
    engine: Option<u32>,
}

/// One histogram for each of [`QUANTITIES`], made when there is something to count.
type Series = [Option<Sum>; QUANTITIES.len()];

#[derive(Clone, Debug, PartialEq)]
struct Sum {
    counts: Vec<u64>,
    sum: f64,
}

impl Figures {
    /// Nothing yet. `engines` are the servers that are scraped, where some are.
    pub fn new(models: Models, engines: Option<Engines>) -> Self {
        let sums = Sums { models, engines, known: FxHashMap::default(), series: BTreeMap::new(), joining: None };
        Self(Mutex::new(State { book: Book::default(), sums }))
    }

    /// Tells of each request that ended to `joining` as well.
    pub fn joined(self, joining: joining::Engines) -> Self {
        self.lock().sums.joining = Some(joining);
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HookSink for Figures {
    fn take(&self, events: &[Event]) {
        let mut state = self.lock();
        let State { book, sums } = &mut *state;
        events.iter().for_each(|event| book.take(event, &mut |said| sums.hear(said)));
    }

    fn lost(&self, source: Source) {
        self.lock().book.lost(source);
    }

    fn gone(&self, source: Source) {
        let mut state = self.lock();
        let State { book, sums } = &mut *state;
        book.gone(source, &mut |said| sums.hear(said));
    }
}

impl Sums {
    fn hear(&mut self, said: Said<'_>) {
        if let (Said::Ended(request, End::Finished | End::Cancelled), Some(joining)) = (said, &self.joining) {
            joining.tell(Engine::of_hook(request));
        }
        match said {
            Said::Step(request, interval) => self.add(request, &[(Quantity::Itl, Some(interval))]),
            // Of a request that was let go or cancelled nothing is known of its end, and engines' own histograms count finished ones.
            Said::Ended(request, End::Finished) => self.add(
                request,
                &[
                    (Quantity::Ttft, request.ttft()),
                    (Quantity::Queue, request.queue()),
                    (Quantity::Prefill, request.prefill()),
                    (Quantity::Decode, request.decode()),
                    (Quantity::Inference, request.inference()),
                    (Quantity::EndToEnd, request.end_to_end()),
                    (Quantity::Tpot, request.time_per_output_token()),
                ],
            ),
            Said::Ended(..) => {}
        }
    }

    fn add(&mut self, request: &Request, all: &[(Quantity, Option<Duration>)]) {
        let place = self.place(request.source.pid);
        let told = |is: Quantity| place.as_ref().is_some_and(|p| p.tells.contains(&is));
        if all.iter().all(|(is, value)| value.is_none() || told(*is)) {
            return;
        }
        let model = request.model.and_then(|m| m.to_name()).map(|name: Name| self.models.of(&name));
        let server = place.as_ref().map(|p| (p.kind, p.address.clone(), p.port.clone()));
        let mut labels = Labels { server, model, engine: request.engine };
        if self.series.len() >= MAX_SERIES && !self.series.contains_key(&labels) {
            labels = Labels { model: Some(OTHER.into()), ..Labels::default() };
        }
        let series = self.series.entry(labels).or_default();
        for (is, value) in all {
            let (Some(value), Some(at)) = (value, QUANTITIES.iter().position(|(q, _)| q == is)) else { continue };
            if let (false, Some(slot), Some((_, bounds))) = (told(*is), series.get_mut(at), QUANTITIES.get(at)) {
                slot.get_or_insert_with(|| Sum { counts: vec![0; bounds.len() + 1], sum: 0.0 }).add(bounds, value.as_secs_f64());
            }
        }
    }

    /// The server that a process belongs to, where it is one that is known.
    fn place(&mut self, pid: u32) -> Option<Arc<Place>> {
        let engines = self.engines.as_ref()?;
        let time = now();
        if let Some((asked, place)) = self.known.get(&pid)
            && time.saturating_duration_since(*asked) < REMEMBERED
        {
            return place.clone();
        }
        let place = engines.place_of(pid).map(Arc::new);
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(pid, (time, place.clone()));
        place
    }
}

impl Sum {
    fn add(&mut self, bounds: &[f64], value: f64) {
        if let Some(count) = self.counts.get_mut(bounds.partition_point(|b| *b < value)) {
            *count += 1;
            self.sum += value;
        }
    }
}

impl Observe for Arc<Figures> {
    fn observe(&self, tell: &mut Tell<'_>) {
        let mut state = self.lock();
        let State { book, sums } = &mut *state;
        book.tick(wall(), &mut |said| sums.hear(said));
        tell(&metric::HOOK_OPEN, &[], book.open() as f64);
        let Counted { ended, twice, late } = book.counted();
        for (end, n) in End::ALL.iter().zip(ended) {
            tell(&metric::HOOK_REQUESTS, &[(attr::RESULT, end.as_str())], *n as f64);
        }
        for (result, n) in [("told_twice", twice), ("late", late)] {
            tell(&metric::HOOK_UNUSED, &[(attr::RESULT, result)], *n as f64);
        }
    }

    fn histograms(&self, tell: &mut TellHistogram<'_>) {
        for (labels, series) in &self.lock().sums.series {
            let engine = labels.engine.map(|n| n.to_string());
            let mut attributes: Vec<(&str, &str)> = Vec::new();
            if let Some((kind, address, port)) = &labels.server {
                attributes.extend([(attr::SERVER_ADDRESS, address.as_str()), (attr::SERVER_PORT, port.as_str()), (attr::ENGINE, *kind)]);
            }
            attributes.extend(labels.model.as_deref().map(|m| (attr::RESPONSE_MODEL, m)));
            attributes.extend(engine.as_deref().map(|e| (attr::ENGINE_RANK, e)));
            for ((is, bounds), sum) in QUANTITIES.iter().zip(series) {
                if let Some(Sum { counts, sum }) = sum {
                    tell(is.metric(), &attributes, bounds, counts, *sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokengauge_core::hook::event::{Counts, Kind, ModelName, RequestId, Stamp, Via};

    fn event(ms: u64, id: &str, kind: Kind) -> Event {
        Event {
            // Not long ago, or the book would let it go.
            at: wall().plus(Duration::from_millis(ms)),
            stamp: Stamp::Kernel,
            source: Source { via: Via::Tap, pid: 4_000_000_000, connection: 0 },
            request: RequestId::new(id.as_bytes()).unwrap(),
            kind,
            model: ModelName::new(b"llama-3.1-8b"),
            trace: None,
            engine: Some(1),
            finish: None,
            counts: Counts::default(),
        }
    }

    fn after(start: &Event, ms: u64, kind: Kind) -> Event {
        Event { at: start.at.plus(Duration::from_millis(ms)), kind, ..*start }
    }

    fn life(figures: &Figures, id: &str) {
        let start = event(0, id, Kind::Received);
        figures.take(&[start]);
        let rest = [(10, Kind::Scheduled), (40, Kind::FirstToken), (60, Kind::Tokens(3)), (61, Kind::Finished)];
        rest.into_iter().for_each(|(ms, kind)| figures.take(&[after(&start, ms, kind)]));
    }

    fn told(figures: &Arc<Figures>) -> Vec<String> {
        let mut all = Vec::new();
        figures.histograms(&mut |metric, attributes, bounds, counts, sum| {
            assert_eq!(counts.len(), bounds.len() + 1);
            let labels: Vec<_> = attributes.iter().map(|(_, v)| *v).collect();
            all.push(format!("{} [{}] {} {sum:.3}", metric.name, labels.join(" "), counts.iter().sum::<u64>()));
        });
        all
    }

    #[test]
    fn finished_requests_are_added_up() {
        let figures = Arc::new(Figures::new(Models::new(&Default::default()).unwrap(), None));
        life(&figures, "a");
        life(&figures, "b");
        let labels = "[llama-3.1-8b 1]";
        assert_eq!(
            told(&figures),
            [
                format!("tokengauge.engine.time_to_first_token {labels} 2 0.080"),
                format!("tokengauge.engine.queue_time {labels} 2 0.020"),
                format!("tokengauge.engine.prefill_time {labels} 2 0.060"),
                format!("tokengauge.engine.decode_time {labels} 2 0.040"),
                format!("tokengauge.engine.inference_time {labels} 2 0.100"),
                format!("tokengauge.engine.request_time {labels} 2 0.122"),
                format!("tokengauge.engine.inter_token_latency {labels} 2 0.040"),
                format!("tokengauge.engine.time_per_output_token {labels} 2 0.013"),
            ]
        );
        let mut said = BTreeMap::new();
        figures.observe(&mut |metric, attributes, value| {
            let of = attributes.first().map(|(_, v)| *v).unwrap_or_default();
            assert!(said.insert(format!("{} {of}", metric.name), value).is_none());
        });
        assert_eq!((said["tokengauge.hook.requests finished"], said["tokengauge.hook.requests.open "]), (2.0, 0.0));
    }

    #[test]
    fn what_a_server_tells_itself_is_left_to_it() {
        let figures = Arc::new(Figures::new(Models::new(&Default::default()).unwrap(), None));
        let tells = vec![Quantity::Ttft, Quantity::Queue, Quantity::Itl];
        let place = Place { kind: "vllm", address: "10.0.0.1".into(), port: "8000".into(), tells };
        {
            let mut state = figures.lock();
            state.sums.engines = Some(Engines::empty(Models::new(&Default::default()).unwrap()));
            state.sums.known.insert(4_000_000_000, (now() + Duration::from_secs(60), Some(Arc::new(place))));
        }
        life(&figures, "a");
        let names: Vec<String> = told(&figures).iter().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect();
        let want = ["prefill_time", "decode_time", "inference_time", "request_time", "time_per_output_token"];
        assert_eq!(names, want.map(|name| format!("tokengauge.engine.{name}")));
        assert!(told(&figures)[0].contains("[10.0.0.1 8000 vllm llama-3.1-8b 1]"));
    }

    #[test]
    fn series_are_bounded() {
        let figures = Arc::new(Figures::new(Models::new(&Default::default()).unwrap(), None));
        for i in 0..MAX_SERIES as u32 + 20 {
            let mut start = event(0, &format!("r{i}"), Kind::Received);
            start.engine = Some(i);
            figures.take(&[start, after(&start, 1_000, Kind::Finished)]);
        }
        let state = figures.lock();
        assert_eq!(state.sums.series.len(), MAX_SERIES + 1);
        let other = state.sums.series.keys().find(|l| l.model.as_deref() == Some(OTHER));
        assert!(other.is_some());
    }
}
