//! The engine: requests in, the state of every objective out.
//!
//! A request is decided once per indicator and costs a few additions. An evaluation costs one look into a ring per window. Objectives
//! that share an indicator share its counts, so a changed target keeps its history.
//!
//! **Time** is an argument. `at` is when a request ended, in nanoseconds since the Unix epoch by the wall clock. Inside, time only goes
//! on: what comes late is counted now. When the wall clock is set, the caller says so ([`Engine::clock_stepped`]): windows go on as
//! if nothing had happened, because no time has passed; only calendar periods follow the new time of day.

mod adopt;

use crate::alert::Alerts;
use crate::book::{Book, Owner, Page};
use crate::composite::{Composite, Now};
use crate::decide::decide;
use crate::groups::Groups;
use crate::identity;
use crate::loaded::{Eyes, Loaded};
use crate::model::{Slo, Verdict};
use crate::request::Request;
use crate::ring::{Geometry, Ring, SECOND};
use crate::select::selects;
use crate::series::{Series, SliceRule};
use crate::status::Status;
use crate::window::{Frame, WindowError};

/// An SLO cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{slo}: {why}")]
pub struct EngineError {
    /// Its name.
    pub slo: String,
    /// What is wrong with its window.
    pub why: WindowError,
}

/// One objective.
struct Target {
    slo: usize,
    objective: usize,
    page: usize,
    alerts: Vec<Alerts>,
}

/// Decides, counts, and says how things stand.
pub struct Engine {
    slos: Vec<Loaded>,
    targets: Vec<Target>,
    /// What each page of the book is of: the SLO, and the objective whose indicator it is; `None`: the SLO's composite.
    owners: Vec<(usize, Option<usize>)>,
    book: Book,
    blind: bool,
    statuses: Vec<Status>,
    /// The verdict of each page on the request at hand, for composites.
    verdicts: Vec<Option<Verdict>>,
    changed: bool,
}

impl Engine {
    /// An engine for `slos` that has counted nothing, at `now`. Every series without groups exists from the start, at 0.
    ///
    /// # Errors
    /// When a calendar window has no such zone or start.
    pub fn new(slos: Vec<Slo>, now: u64) -> Result<Self, EngineError> {
        let ready = |slo| Loaded::new(slo).map_err(|(slo, why)| EngineError { slo, why });
        let slos = slos.into_iter().map(ready).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of(slos, now))
    }

    /// An engine without SLOs.
    pub fn none(now: u64) -> Self {
        Self::of(Vec::new(), now)
    }

    fn of(slos: Vec<Loaded>, now: u64) -> Self {
        let geometry = widest(&slos);
        let book = Book { now, offset: 0, unseen: Ring::new(&geometry, now), pages: Vec::new(), alerts: Vec::new() };
        let mut new = Self {
            slos,
            targets: Vec::new(),
            owners: Vec::new(),
            book,
            blind: false,
            statuses: Vec::new(),
            verdicts: Vec::new(),
            changed: true,
        };
        new.index();
        new
    }

    fn index(&mut self) {
        for (slo, loaded) in self.slos.iter().enumerate() {
            for (objective, o) in loaded.slo.objectives.iter().enumerate() {
                let rule = SliceRule::of(loaded.slo.budgeting, o);
                let key = identity::key(&loaded.slo, &o.sli, rule);
                let page = self.book.pages.iter().position(|p| p.key == key).unwrap_or_else(|| {
                    let groups = Groups::new(loaded.slo.group_by.as_ref());
                    self.book.pages.push(Page { key, groups, series: Vec::new(), rule });
                    self.owners.push((slo, Some(objective)));
                    self.book.pages.len() - 1
                });
                self.targets.push(Target { slo, objective, page, alerts: Vec::new() });
            }
        }
        for (slo, loaded) in self.slos.iter_mut().enumerate().filter(|(_, l)| l.slo.composite) {
            loaded.composite = Some(Composite::new(self.book.pages.len()));
            let groups = Groups::new(loaded.slo.group_by.as_ref());
            self.book.pages.push(Page { key: identity::composite_key(&loaded.slo), groups, series: Vec::new(), rule: None });
            self.owners.push((slo, None));
        }
        self.verdicts = vec![None; self.book.pages.len()];
        self.open_series();
    }

    /// Makes the series that groups without one need.
    fn open_series(&mut self) {
        let (now, offset) = (self.book.now, self.book.offset);
        for (page, (slo, _)) in self.book.pages.iter_mut().zip(&self.owners) {
            let Some(loaded) = self.slos.get(*slo) else { continue };
            while page.series.len() < page.groups.labels().len() {
                let mut series = Series::new(&loaded.geometry, page.rule, now);
                series.settle(&loaded.frame, offset, now);
                page.series.push(series);
            }
        }
    }

    /// The SLOs that it counts for; [`Status::slo`] is a place in them.
    pub fn slo(&self, at: usize) -> Option<&Slo> {
        self.slos.get(at).map(|l| &l.slo)
    }

    /// How many SLOs.
    pub fn len(&self) -> usize {
        self.slos.len()
    }

    /// Whether there is no SLO.
    pub fn is_empty(&self) -> bool {
        self.slos.is_empty()
    }

    /// Everything counted so far, with the alerts as they stand.
    pub fn book(&self) -> Book {
        Book { alerts: self.alert_states().map(|(o, a)| (o, a.clone())).collect(), ..self.book.clone() }
    }

    /// What has been counted, without the alerts: to be read, not kept.
    pub fn pages(&self) -> &[Page] {
        &self.book.pages
    }

    /// What was not seen so far.
    pub fn unseen(&self) -> crate::book::Unseen {
        self.book.unseen.total
    }

    /// The engine's own time, nanoseconds, and its offset to the wall clock.
    pub fn time(&self) -> (u64, i64) {
        (self.book.now, self.book.offset)
    }

    /// Each objective's alerts.
    pub fn alert_states(&self) -> impl Iterator<Item = (Owner, &Alerts)> + '_ {
        let of_targets = self.targets.iter().flat_map(|t| {
            let loaded = self.slos.get(t.slo);
            let labels = self.book.pages.get(t.page).map_or(&[][..], |p| p.groups.labels());
            t.alerts.iter().zip(labels).filter_map(move |(alerts, group)| {
                let slo = &loaded?.slo;
                let objective = Some(slo.objectives.get(t.objective)?.name.clone());
                Some((Owner { slo: slo.name.clone(), objective, group: group.clone() }, alerts))
            })
        });
        let of_composites = self.slos.iter().flat_map(|l| {
            let page = |c: &Composite| self.book.pages.get(c.page);
            l.composite
                .iter()
                .filter_map(move |c| Some((c, page(c)?)))
                .flat_map(|(c, page)| c.states(page))
                .map(|(group, alerts)| (Owner { slo: l.slo.name.clone(), objective: None, group: group.clone() }, alerts))
        });
        of_targets.chain(of_composites)
    }

    fn wall(&self) -> u64 {
        u64::try_from((i128::from(self.book.now) + i128::from(self.book.offset)).max(0)).unwrap_or(u64::MAX)
    }

    /// The wall clock was set by so many nanoseconds (its new time less what it would have been).
    pub fn clock_stepped(&mut self, by: i64) {
        self.book.offset = self.book.offset.saturating_add(by);
        let (now, offset) = (self.book.now, self.book.offset);
        for (page, (slo, _)) in self.book.pages.iter_mut().zip(&self.owners) {
            if let Some(loaded) = self.slos.get(*slo) {
                page.series.iter_mut().for_each(|s| s.settle(&loaded.frame, offset, now));
            }
        }
    }

    /// The engine's own instant of a wall-clock one; never before what it has reached.
    fn tick(&self, wall: u64) -> u64 {
        let tick = i128::from(wall) - i128::from(self.book.offset);
        u64::try_from(tick.max(0)).unwrap_or(u64::MAX).max(self.book.now)
    }

    /// Whether anything can be seen, from `at` on. What was said before holds until then.
    pub fn set_blind(&mut self, blind: bool, at: u64) {
        let tick = self.tick(at);
        self.pass(tick);
        self.blind = blind;
    }

    /// So many requests were lost before they could be decided: nobody knows of which SLO, so they lower the coverage of each.
    pub fn lost(&mut self, requests: u64, at: u64) {
        let tick = self.tick(at);
        self.pass(tick);
        self.book.unseen.total.lost += requests;
    }

    /// Time passes up to `tick`.
    fn pass(&mut self, tick: u64) {
        let from = self.book.now;
        if self.blind {
            self.pass_blind(from, tick);
        } else {
            self.book.unseen.mark(tick);
        }
        self.book.now = tick;
    }

    /// Time passes in which nothing is seen. Bounds are marked as it passes, at most a ring's worth of them.
    fn pass_blind(&mut self, from: u64, to: u64) {
        const STEPS: u64 = 4_096;
        let step = (to.saturating_sub(from) / STEPS).max(SECOND);
        let mut at = from;
        while at < to {
            let next = ((at / step + 1) * step).min(to);
            self.book.unseen.total.blind += next - at;
            self.book.unseen.mark(next);
            at = next;
        }
    }

    /// A request that ended at `at`.
    pub fn observe(&mut self, request: &Request<'_>, at: u64) {
        self.observe_many(request, 1, at);
    }

    /// So many requests that are all alike and ended at `at`.
    pub fn observe_many(&mut self, request: &Request<'_>, n: u64, at: u64) {
        let tick = self.tick(at);
        let (offset, mut opened) = (self.book.offset, false);
        for ((page, (slo, objective)), verdict) in self.book.pages.iter_mut().zip(&self.owners).zip(&mut self.verdicts) {
            *verdict = None;
            let Some(loaded) = self.slos.get(*slo) else { continue };
            let Some(o) = objective.and_then(|o| loaded.slo.objectives.get(o)) else { continue };
            if !selects(&o.sli.selector, request) {
                continue;
            }
            let decided = decide(&o.sli, request);
            *verdict = Some(decided);
            let place = page.groups.place(request);
            if place >= page.series.len() {
                let mut series = Series::new(&loaded.geometry, page.rule, tick.saturating_sub(1));
                series.settle(&loaded.frame, offset, tick);
                page.series.push(series);
                opened = true;
            }
            if let Some(series) = page.series.get_mut(place) {
                series.add(decided, n, tick);
                if series.unsettled() && matches!(loaded.frame, Frame::Calendar(_)) {
                    series.settle(&loaded.frame, offset, tick);
                }
            }
        }
        self.changed |= opened;
        self.observe_composites(request, n, tick);
        if tick > self.book.now {
            self.pass(tick);
        }
    }

    /// Whether the request that was observed last broke an objective.
    pub fn last_broke(&self) -> bool {
        self.verdicts.contains(&Some(Verdict::Bad))
    }

    fn observe_composites(&mut self, request: &Request<'_>, n: u64, tick: u64) {
        let offset = self.book.offset;
        for (at, loaded) in self.slos.iter_mut().enumerate() {
            let Some(composite) = &mut loaded.composite else { continue };
            let Some(page) = self.book.pages.get_mut(composite.page) else { continue };
            for target in self.targets.iter().filter(|t| t.slo == at) {
                let Some(verdict) = self.verdicts.get(target.page).copied().flatten() else { continue };
                let place = page.groups.place(request);
                if place >= page.series.len() {
                    let mut series = Series::new(&loaded.geometry, None, tick.saturating_sub(1));
                    series.settle(&loaded.frame, offset, tick);
                    page.series.push(series);
                    self.changed = true;
                }
                composite.observe(&loaded.slo, page, place, target.objective, (verdict, n), tick);
                settle(page, &loaded.frame, offset, tick);
            }
        }
    }

    /// How every objective and group stands at `now`. Every request that ended up to then has been observed.
    pub fn evaluate(&mut self, now: u64) -> &[Status] {
        let tick = self.tick(now);
        self.pass(tick);
        for (page, (slo, objective)) in self.book.pages.iter_mut().zip(&self.owners) {
            let Some(loaded) = self.slos.get_mut(*slo) else { continue };
            if let (None, Some(composite)) = (objective, &mut loaded.composite) {
                (0..page.series.len()).for_each(|place| composite.close(&loaded.slo, page, place, tick));
            }
            page.series.iter_mut().for_each(|s| s.advance(tick));
            settle(page, &loaded.frame, self.book.offset, tick);
        }
        if self.changed {
            self.changed = false;
            self.statuses.clear();
        }
        let mut at = 0;
        let eyes = Eyes { unseen: &self.book.unseen, blind: self.blind, tick };
        for target in &mut self.targets {
            let (Some(loaded), Some(page)) = (self.slos.get(target.slo), self.book.pages.get(target.page)) else { continue };
            target.alerts.resize(page.series.len().max(target.alerts.len()), Alerts::default());
            for ((labels, series), alerts) in page.groups.labels().iter().zip(&page.series).zip(&mut target.alerts) {
                if self.statuses.len() == at {
                    self.statuses.push(loaded.empty(target.slo, Some(target.objective), labels));
                }
                if let Some(status) = self.statuses.get_mut(at) {
                    loaded.tell(status, target.objective, series, alerts, &eyes);
                }
                at += 1;
            }
        }
        for (number, loaded) in self.slos.iter_mut().enumerate() {
            let Some(mut composite) = loaded.composite.take() else { continue };
            let Some(page) = self.book.pages.get(composite.page) else { continue };
            for (place, (labels, own)) in page.groups.labels().iter().zip(&page.series).enumerate() {
                if self.statuses.len() == at {
                    self.statuses.push(loaded.empty(number, None, labels));
                }
                let Some(status) = self.statuses.get_mut(at) else { continue };
                at += 1;
                let part = |t: &Target| {
                    let page = self.book.pages.get(t.page)?;
                    page.series.get(page.groups.find(labels)?)
                };
                let parts: Vec<_> = self.targets.iter().filter(|t| t.slo == number).map(|t| (t.objective, part(t))).collect();
                loaded.look(status, own, &eyes);
                let base = |s: &Series| loaded.base(s, tick);
                let now = Now { tick, base: &base, rate_window: loaded.rate_window, window_s: loaded.frame.longest_s() };
                composite.tell(&loaded.slo, place, status, own, &parts, &now);
            }
            loaded.composite = Some(composite);
        }
        &self.statuses
    }

    /// How things stood at the last evaluation.
    pub fn statuses(&self) -> &[Status] {
        &self.statuses
    }
}

/// Puts the calendar periods of a page in their places, where one has ended.
fn settle(page: &mut Page, frame: &Frame, offset: i64, tick: u64) {
    if matches!(frame, Frame::Calendar(_)) {
        page.series.iter_mut().filter(|s| s.unsettled()).for_each(|s| s.settle(frame, offset, tick));
    }
}

/// A geometry that holds every window.
fn widest(slos: &[Loaded]) -> Geometry {
    let longest = |f: fn(&Loaded) -> u64| slos.iter().map(f).max().unwrap_or(3_600);
    Geometry::new(longest(|l| l.windows.last().copied().unwrap_or(0)), longest(|l| l.frame.longest_s()))
}
