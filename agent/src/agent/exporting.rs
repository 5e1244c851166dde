//! The export thread: takes finished inferences, has them named where a name can be had, and hands them to every exporter.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokengauge_core::inference::Inference;
use tokengauge_core::stats::{Aggregator, Snapshot};

use super::{Event, Failures, STOP_WITHIN, TAPS_WITHIN, lock};
use crate::clock::{now, wall};
use crate::enrich::Enricher;
use crate::export::Exporter;
use crate::health::Part;
use crate::join::{Found, Joining};
use crate::tap::StopFlag;
use crate::vitals::Vitals;

/// The export thread.
pub(super) struct Exporting {
    pub(super) part: Arc<Part>,
    pub(super) inbox: Receiver<Event>,
    pub(super) enricher: Option<Enricher>,
    pub(super) joining: Joining,
    /// Inferences that have waited for a name.
    #[expect(clippy::vec_box, reason = "they come boxed through the queue, and go on as they are")]
    pub(super) ready: Vec<Box<Inference>>,
    pub(super) taps: Vec<JoinHandle<()>>,
    pub(super) exporters: Vec<Box<dyn Exporter>>,
    pub(super) all: Arc<Mutex<Aggregator>>,
    pub(super) vitals: Arc<Vitals>,
    pub(super) failed: Arc<Failures>,
    pub(super) stop: StopFlag,
    pub(super) every: Duration,
}

impl Exporting {
    /// Until every tap has ended, or was told to and did not; what could not be delivered.
    pub(super) fn run(mut self) -> Vec<String> {
        let (mut shown, mut stopped, mut undelivered) = (now(), None, Vec::new());
        let mut live = self.taps.len();
        while live > 0 {
            match self.inbox.recv_timeout(self.every.min(Duration::from_millis(50))) {
                Ok(event) => live -= usize::from(self.take(event)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.part.beat();
            let time = now();
            self.named(time);
            self.settle(|joining, settled| joining.due(time, settled));
            if time.duration_since(shown) >= self.every {
                shown = time;
                self.show();
            }
            if self.stop.is_set() && self.taps.iter().all(JoinHandle::is_finished) {
                break;
            }
            if self.stop.is_set() && time.duration_since(*stopped.get_or_insert(time)) > TAPS_WITHIN {
                undelivered.push(format!("{live} of {} taps did not stop in time", self.taps.len()));
                break;
            }
        }
        let deadline = stopped.unwrap_or_else(now) + STOP_WITHIN - Duration::from_millis(200);
        while let Ok(event) = self.inbox.try_recv() {
            self.take(event);
        }
        if let Some(enricher) = &mut self.enricher {
            let rest = enricher.rest(now(), wall());
            rest.into_iter().for_each(|inference| self.hand_out(inference));
        }
        self.settle(|joining, settled| joining.rest(now(), settled));
        for tap in self.taps.drain(..).filter(JoinHandle::is_finished) {
            if tap.join().is_err() {
                self.failed.add("a tap panicked".to_owned());
                undelivered.push("a tap panicked".to_owned());
            }
        }
        self.show();
        for exporter in &mut self.exporters {
            if let Err(error) = exporter.shutdown(deadline.saturating_duration_since(now())) {
                undelivered.push(error.to_string());
            }
        }
        undelivered
    }

    /// Whether it was a tap's last.
    fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Inference(inference) => {
                self.vitals.count_taken();
                let named = match &mut self.enricher {
                    Some(enricher) => enricher.push(inference, now(), wall()),
                    None => Some(inference),
                };
                if let Some(inference) = named {
                    self.hand_out(inference);
                }
                false
            }
            Event::TapEnded { name, result } => {
                match result {
                    Ok(()) => tracing::debug!(tap = name, "tap ended"),
                    Err(error) => {
                        tracing::error!(tap = name, "{error}");
                        self.failed.add(error.to_string());
                    }
                }
                true
            }
        }
    }

    /// Hands out what has waited for a name.
    fn named(&mut self, time: Instant) {
        let Some(enricher) = &mut self.enricher else { return };
        let mut ready = std::mem::take(&mut self.ready);
        enricher.due(time, wall(), &mut ready);
        ready.drain(..).for_each(|inference| self.hand_out(inference));
        self.ready = ready;
    }

    fn hand_out(&mut self, inference: Box<Inference>) {
        lock(&self.all).add(&inference);
        self.each(|e| e.inference(&inference));
        self.settle(|joining, settled| joining.push(inference, now(), settled));
    }

    /// Hands out what is known of inferences that wait no longer for other views.
    fn settle(&mut self, step: impl FnOnce(&mut Joining, &mut dyn FnMut(&Inference, &Found<'_>))) {
        let Self { joining, exporters, part, .. } = self;
        step(joining, &mut |inference, found| each(exporters, part, |e| e.settled(inference, found)));
    }

    /// Exporters have series of their own; a copy of all of these each second would cost more than everything else here.
    fn show(&mut self) {
        let mut snapshot = Snapshot { at: wall(), ..Snapshot::default() };
        self.vitals.fill(&mut snapshot);
        self.each(|e| e.snapshot(&snapshot));
    }

    /// Something with each exporter. Who is stuck is known by name.
    fn each(&mut self, f: impl FnMut(&mut Box<dyn Exporter>)) {
        each(&mut self.exporters, &self.part, f);
    }
}

fn each(exporters: &mut [Box<dyn Exporter>], part: &Part, mut f: impl FnMut(&mut Box<dyn Exporter>)) {
    for (n, exporter) in exporters.iter_mut().enumerate() {
        part.doing(n + 1);
        f(exporter);
    }
    part.doing(0);
}
