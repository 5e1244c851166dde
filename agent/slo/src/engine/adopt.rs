//! How an engine goes on with what was counted before: over a restart, and over a change of the files.

use super::{Engine, EngineError, widest};
use crate::alert::Alerts;
use crate::book::{Book, Owner};
use crate::model::Slo;
use crate::series::Series;

impl Engine {
    /// Goes on with what another engine, or an earlier life of this one, has counted. Counts whose indicator is not loaded any more are
    /// dropped. The time between the book's end and `now` (wall clock) was not seen; a wall clock that stands before the book's end
    /// has been set, and no time passes.
    pub fn adopt(&mut self, mut book: Book, now: u64) {
        let wall_then = (i128::from(book.now) + i128::from(book.offset)).max(0);
        let away = i128::from(now) - wall_then;
        if away < 0 {
            book.offset = book.offset.saturating_add(i64::try_from(away).unwrap_or(i64::MIN));
        }
        let away = u64::try_from(away.max(0)).unwrap_or(u64::MAX);
        self.book.offset = book.offset;
        let then = book.now;
        self.book.now = then.saturating_add(away);
        let (tick, offset) = (self.book.now, self.book.offset);
        self.book.unseen = book.unseen.reshaped(&widest(&self.slos), then);
        self.pass_blind(then, tick);
        for (page, (slo, _)) in self.book.pages.iter_mut().zip(&self.owners) {
            let Some(loaded) = self.slos.get(*slo) else { continue };
            if let Some(old) = book.take(&page.key) {
                page.series.clear();
                for (labels, series) in old.groups.labels().iter().zip(old.series) {
                    let values: Vec<&str> = labels.iter().map(|l| &**l).collect();
                    let place = page.groups.find_or_add(&values);
                    if place != page.series.len() {
                        // There is room for fewer groups now; their counts end here.
                        continue;
                    }
                    let ring = series.ring.reshaped(&loaded.geometry, then);
                    let mut series = Series::from_parts(ring, series.counters, series.slice, series.period, then);
                    series.settle(&loaded.frame, offset, then.max(1));
                    series.advance(tick);
                    series.settle(&loaded.frame, offset, tick);
                    page.series.push(series);
                }
            } else {
                for series in &mut page.series {
                    *series = Series::new(&loaded.geometry, page.rule, tick);
                    series.settle(&loaded.frame, offset, tick);
                }
            }
        }
        self.open_series();
        for (owner, alerts) in book.alerts {
            self.adopt_alerts(&owner, alerts);
        }
        self.changed = true;
    }

    fn adopt_alerts(&mut self, owner: &Owner, alerts: Alerts) {
        let Some(at) = self.slos.iter().position(|l| l.slo.name == owner.slo) else { return };
        let Some(loaded) = self.slos.get_mut(at) else { return };
        let named = |o: usize| loaded.slo.objectives.get(o).is_some_and(|o| Some(&o.name) == owner.objective.as_ref());
        let (page, states) = match (&owner.objective, &mut loaded.composite) {
            (None, Some(c)) => (c.page, &mut c.alerts),
            (None, None) => return,
            (Some(_), _) => match self.targets.iter_mut().find(|t| t.slo == at && named(t.objective)) {
                Some(target) => (target.page, &mut target.alerts),
                None => return,
            },
        };
        let Some(place) = self.book.pages.get(page).and_then(|p| p.groups.find(&owner.group)) else { return };
        if states.len() <= place {
            states.resize(place + 1, Alerts::default());
        }
        // Rows that were added or taken away begin anew; what fires goes on firing until the rows say otherwise.
        let held = if alerts.held.len() == loaded.slo.alerting.rows.len() { alerts.held } else { Vec::new() };
        if let Some(mine) = states.get_mut(place) {
            *mine = Alerts { firing: alerts.firing, held };
        }
    }

    /// Other SLOs from `now` on. What is counted alike keeps its history.
    ///
    /// # Errors
    /// As [`Engine::new`]; then nothing has changed.
    pub fn replace(&mut self, slos: Vec<Slo>, now: u64) -> Result<(), EngineError> {
        let wall = now.max(self.wall());
        let mut new = Self::new(slos, wall)?;
        new.blind = self.blind;
        let tick = self.tick(wall);
        self.pass(tick);
        new.adopt(self.book(), self.wall());
        *self = new;
        Ok(())
    }
}
