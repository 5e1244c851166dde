//! The book as bytes, and what changed since, as bytes: what a journal keeps. Versioned; what does not fit is refused as a whole.
//!
//! Numbers are LEB128. Marks are stored as differences to the one before, equal ones as a run, so an idle month costs a few bytes.

mod bytes;

use bytes::{Reader, Writer};

use crate::alert::Alerts;
use crate::book::{Book, Owner, Page, Unseen};
use crate::budget::Totals;
use crate::engine::Engine;
use crate::groups::{Groups, Labels};
use crate::model::{Dimension, Verdict};
use crate::ring::Ring;
use crate::series::{Counters, Period, Series, Slice, SliceRule};

/// The version of both formats.
const VERSION: u64 = 1;

/// These bytes are no book, or none of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a book of objectives of version 1")]
pub struct SnapshotError;

type Read<T> = Result<T, SnapshotError>;

/// What a ring holds, as numbers whose differences are small.
trait Marked: Copy + Default + PartialEq {
    fn put(&self, before: &Self, w: &mut Writer);
    fn get(before: &Self, r: &mut Reader<'_>) -> Read<Self>;
}

impl Marked for Totals {
    fn put(&self, before: &Self, w: &mut Writer) {
        w.number(self.valid.wrapping_sub(before.valid));
        w.number(self.bad.wrapping_sub(before.bad));
        w.number(u64::from(self.excluded.wrapping_sub(before.excluded)));
        w.number(u64::from(self.slices.wrapping_sub(before.slices)));
        w.number(self.bad_slices.to_bits() ^ before.bad_slices.to_bits());
    }

    fn get(before: &Self, r: &mut Reader<'_>) -> Read<Self> {
        let valid = before.valid.wrapping_add(r.number()?);
        let bad = before.bad.wrapping_add(r.number()?);
        let excluded = before.excluded.wrapping_add(r.number()? as u32);
        let slices = before.slices.wrapping_add(r.number()? as u32);
        let bad_slices = f64::from_bits(before.bad_slices.to_bits() ^ r.number()?);
        (bad <= valid && bad_slices.is_finite()).then_some(()).ok_or(SnapshotError)?;
        Ok(Self { valid, bad, excluded, slices, bad_slices })
    }
}

impl Marked for Unseen {
    fn put(&self, before: &Self, w: &mut Writer) {
        w.number(self.lost.wrapping_sub(before.lost));
        w.number(self.blind.wrapping_sub(before.blind));
    }

    fn get(before: &Self, r: &mut Reader<'_>) -> Read<Self> {
        Ok(Self { lost: before.lost.wrapping_add(r.number()?), blind: before.blind.wrapping_add(r.number()?) })
    }
}

fn put_ring<T: Marked>(ring: &Ring<T>, w: &mut Writer) {
    ring.total.put(&T::default(), w);
    w.number(ring.born());
    w.number(ring.levels().count() as u64);
    for (resolution, keep, newest, marks) in ring.levels() {
        w.number(resolution);
        w.number(keep as u64);
        w.number(newest);
        w.number(marks.len() as u64);
        let (mut before, mut same) = (T::default(), 0);
        for mark in marks {
            if mark == before {
                same += 1;
                continue;
            }
            w.number(same);
            mark.put(&before, w);
            (before, same) = (mark, 0);
        }
        w.number(same);
    }
}

fn get_ring<T: Marked>(r: &mut Reader<'_>) -> Read<Ring<T>> {
    let total = T::get(&T::default(), r)?;
    let born = r.number()?;
    let mut levels = Vec::new();
    for _ in 0..r.count()?.min(16) {
        let (resolution, keep, newest, n) = (r.number()?, r.count()?, r.number()?, r.count()?);
        let (mut marks, mut before) = (Vec::new(), T::default());
        loop {
            let same = r.count()?;
            if same > n - marks.len() {
                return Err(SnapshotError);
            }
            marks.extend(std::iter::repeat_n(before, same));
            if marks.len() == n {
                break;
            }
            before = T::get(&before, r)?;
            marks.push(before);
        }
        levels.push((resolution, keep, newest, marks));
    }
    Ring::from_levels(total, born, levels).ok_or(SnapshotError)
}

fn put_rule(rule: Option<SliceRule>, w: &mut Writer) {
    w.option(rule.map(|r| r.length));
    if let Some(rule) = rule {
        w.float(rule.target.unwrap_or(-1.0));
    }
}

fn get_rule(r: &mut Reader<'_>) -> Read<Option<SliceRule>> {
    let Some(length) = r.option()? else { return Ok(None) };
    let target = r.float()?;
    (length > 0).then_some(Some(SliceRule { length, target: (target >= 0.0).then_some(target) })).ok_or(SnapshotError)
}

fn put_series(s: &Series, w: &mut Writer) {
    put_ring(&s.ring, w);
    let Counters { good, bad, excluded, not_applicable } = s.counters;
    [good, bad, excluded, not_applicable].into_iter().for_each(|n| w.number(n));
    if let Some(slice) = &s.slice {
        w.number(slice.end);
        w.number(slice.valid);
        w.number(slice.bad);
    }
    w.number(u64::from(s.period.is_some()));
    if let Some(p) = &s.period {
        w.signed(p.start_s);
        w.signed(p.end_s);
        w.number(p.end);
        p.base.put(&Totals::default(), w);
    }
}

fn get_series(rule: Option<SliceRule>, now: u64, r: &mut Reader<'_>) -> Read<Series> {
    let ring = get_ring(r)?;
    let counters = Counters { good: r.number()?, bad: r.number()?, excluded: r.number()?, not_applicable: r.number()? };
    let slice = match rule {
        Some(rule) => {
            let slice = Slice { rule, end: r.number()?, valid: r.number()?, bad: r.number()? };
            (slice.bad <= slice.valid && slice.end > 0).then_some(Some(slice)).ok_or(SnapshotError)?
        }
        None => None,
    };
    let period = match r.number()? {
        0 => None,
        _ => Some(Period { start_s: r.signed()?, end_s: r.signed()?, end: r.number()?, base: Totals::get(&Totals::default(), r)? }),
    };
    Ok(Series::from_parts(ring, counters, slice, period, now))
}

fn put_alerts(owner: &Owner, alerts: &Alerts, w: &mut Writer) {
    w.text(&owner.slo);
    w.number(u64::from(owner.objective.is_some()));
    if let Some(objective) = &owner.objective {
        w.text(objective);
    }
    w.labels(&owner.group);
    alerts.firing.iter().for_each(|f| w.option(*f));
    w.number(alerts.held.len() as u64);
    alerts.held.iter().for_each(|h| w.option(*h));
}

fn get_alerts(r: &mut Reader<'_>) -> Read<(Owner, Alerts)> {
    let slo = r.text()?.to_owned();
    let objective = if r.number()? == 0 { None } else { Some(r.text()?.to_owned()) };
    let owner = Owner { slo, objective, group: r.labels()? };
    let firing = [r.option()?, r.option()?];
    let held = (0..r.count()?).map(|_| r.option()).collect::<Read<_>>()?;
    Ok((owner, Alerts { firing, held }))
}

/// Everything counted.
pub fn encode(book: &Book) -> Vec<u8> {
    let mut w = Writer(Vec::new());
    w.number(VERSION);
    w.number(book.now);
    w.signed(book.offset);
    put_ring(&book.unseen, &mut w);
    w.number(book.pages.len() as u64);
    for page in &book.pages {
        w.text(&page.key);
        put_rule(page.rule, &mut w);
        w.number(page.groups.limit() as u64);
        w.number(page.groups.by().len() as u64);
        for dimension in page.groups.by() {
            w.text(dimension.as_str());
        }
        w.number(page.series.len() as u64);
        for (labels, series) in page.groups.labels().iter().zip(&page.series) {
            w.labels(labels);
            put_series(series, &mut w);
        }
    }
    w.number(book.alerts.len() as u64);
    book.alerts.iter().for_each(|(owner, alerts)| put_alerts(owner, alerts, &mut w));
    w.0
}

/// A book from what [`encode`] gave.
///
/// # Errors
/// When it is none.
pub fn decode(bytes: &[u8]) -> Result<Book, SnapshotError> {
    let r = &mut Reader(bytes);
    if r.number()? != VERSION {
        return Err(SnapshotError);
    }
    let (now, offset, unseen) = (r.number()?, r.signed()?, get_ring(r)?);
    let mut pages = Vec::new();
    for _ in 0..r.count()? {
        let key = r.text()?.to_owned();
        let rule = get_rule(r)?;
        let limit = r.count()?;
        let dimension = |r: &mut Reader<'_>| {
            let name = r.text()?;
            Dimension::ALL.into_iter().find(|d| d.as_str() == name).ok_or(SnapshotError)
        };
        let by = (0..r.count()?).map(|_| dimension(r)).collect::<Read<Vec<_>>>()?;
        let mut page = Page { key, groups: Groups::with(by, limit), series: Vec::new(), rule };
        for _ in 0..r.count()? {
            let labels = r.labels()?;
            open(&mut page, &labels)?;
            page.series.push(get_series(rule, now, r)?);
        }
        pages.push(page);
    }
    let alerts = (0..r.count()?).map(|_| get_alerts(r)).collect::<Read<_>>()?;
    r.0.is_empty().then_some(Book { now, offset, unseen, pages, alerts }).ok_or(SnapshotError)
}

/// The next group of a page; it must be a new one.
fn open(page: &mut Page, labels: &Labels) -> Read<()> {
    if labels.len() != page.groups.by().len() {
        return Err(SnapshotError);
    }
    let values: Vec<&str> = labels.iter().map(|l| &**l).collect();
    (page.groups.find_or_add(&values) == page.series.len()).then_some(()).ok_or(SnapshotError)
}

/// What was last told of a series, so that only what is new is told again.
#[derive(Default)]
pub struct Told {
    series: Vec<Vec<Counters>>,
    alerts: Vec<(Owner, Alerts)>,
    unseen: Unseen,
}

impl Told {
    /// Everything there is has just been told, by [`encode`].
    pub fn all(engine: &Engine) -> Self {
        Self {
            series: engine.pages().iter().map(|p| p.series.iter().map(|s| s.counters).collect()).collect(),
            alerts: engine.alert_states().map(|(o, a)| (o, a.clone())).collect(),
            unseen: engine.unseen(),
        }
    }

    /// What has changed since the last call: small, and it says at least how far time has come.
    pub fn changes(&mut self, engine: &Engine) -> Vec<u8> {
        let mut w = Writer(Vec::new());
        w.number(VERSION);
        let (now, offset) = engine.time();
        w.number(now);
        w.signed(offset);
        let unseen = engine.unseen();
        unseen.put(&self.unseen, &mut w);
        self.unseen = unseen;
        self.series.resize(engine.pages().len(), Vec::new());
        for (number, (page, told)) in engine.pages().iter().zip(&mut self.series).enumerate() {
            for (place, (series, labels)) in page.series.iter().zip(page.groups.labels()).enumerate() {
                if told.len() <= place {
                    told.push(Counters::default());
                    w.number(1);
                    w.number(number as u64);
                    w.labels(labels);
                }
                let Some(before) = told.get_mut(place) else { continue };
                if *before == series.counters {
                    continue;
                }
                w.number(2);
                w.number(number as u64);
                w.number(place as u64);
                let Counters { good, bad, excluded, not_applicable } = series.counters;
                w.number(good - before.good);
                w.number(bad - before.bad);
                w.number(excluded - before.excluded);
                w.number(not_applicable - before.not_applicable);
                // A composite's slices are made of what its parts counted, which is told elsewhere.
                w.number(u64::from(series.ring.total.slices));
                w.float(series.ring.total.bad_slices);
                *before = series.counters;
            }
        }
        for (at, (owner, alerts)) in engine.alert_states().enumerate() {
            let same = self.alerts.get(at).is_some_and(|(o, a)| *o == owner && a == alerts);
            if !same {
                w.number(3);
                put_alerts(&owner, alerts, &mut w);
                let entry = (owner, alerts.clone());
                match self.alerts.get_mut(at) {
                    Some(old) => *old = entry,
                    None => self.alerts.push(entry),
                }
            }
        }
        w.number(0);
        w.0
    }
}

/// Brings a book on by what [`Told::changes`] gave. Events count at the instant of the changes, which come once a second.
///
/// # Errors
/// When they are not changes of this book; it may then have been brought on in part.
pub fn apply(book: &mut Book, bytes: &[u8]) -> Result<(), SnapshotError> {
    let r = &mut Reader(bytes);
    if r.number()? != VERSION {
        return Err(SnapshotError);
    }
    let now = r.number()?.max(book.now);
    (book.now, book.offset) = (now, r.signed()?);
    book.unseen.total = Unseen::get(&book.unseen.total, r)?;
    book.unseen.mark(now);
    loop {
        match r.number()? {
            0 => return r.0.is_empty().then_some(()).ok_or(SnapshotError),
            1 => {
                let page = book.pages.get_mut(r.number()? as usize).ok_or(SnapshotError)?;
                let labels = r.labels()?;
                open(page, &labels)?;
                // Only its ring's levels are needed; the engine that adopts the book gives it its own geometry.
                let like = page.series.first().map(|s| s.ring.geometry());
                let geometry = like.unwrap_or_else(|| book.unseen.geometry());
                page.series.push(Series::new(&geometry, page.rule, now.saturating_sub(1)));
            }
            2 => {
                let page = book.pages.get_mut(r.number()? as usize).ok_or(SnapshotError)?;
                let series = page.series.get_mut(r.number()? as usize).ok_or(SnapshotError)?;
                for verdict in [Verdict::Good, Verdict::Bad, Verdict::Excluded, Verdict::NotApplicable] {
                    let n = r.number()?;
                    if n > 0 {
                        series.add(verdict, n, now);
                    }
                }
                let (slices, bad_slices) = (r.number()? as u32, r.float()?);
                if page.rule.is_none() {
                    (series.ring.total.slices, series.ring.total.bad_slices) = (slices, bad_slices);
                }
            }
            3 => {
                let (owner, alerts) = get_alerts(r)?;
                match book.alerts.iter_mut().find(|(o, _)| *o == owner) {
                    Some((_, old)) => *old = alerts,
                    None => book.alerts.push((owner, alerts)),
                }
            }
            _ => return Err(SnapshotError),
        }
    }
}
