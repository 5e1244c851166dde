//! Over which time a budget is spent: the last so many seconds, or a period of the calendar in its time zone.
//!
//! The zones are those that the crate `jiff` carries with it: the same everywhere, and no file is read.

use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp};

use crate::model::{CalendarUnit, Window};

/// Why a window cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The zone is not in the IANA database.
    #[error("unknown time zone `{0}`: expected a name of the IANA database, as in `Europe/Berlin`")]
    Zone(String),
    /// Not `YYYY-MM-DD hh:mm:ss`.
    #[error("`{0}` is no time: expected `YYYY-MM-DD hh:mm:ss`")]
    Start(String),
    /// No time at all.
    #[error("a window of no length")]
    Empty,
}

/// Periods that begin at the calendar's bounds.
#[derive(Clone, Debug)]
pub struct Calendar {
    zone: TimeZone,
    start: DateTime,
    count: i64,
    unit: CalendarUnit,
}

/// A window, ready for use.
#[derive(Clone, Debug)]
pub enum Frame {
    /// The last so many seconds.
    Rolling(u64),
    /// The period that an instant lies in.
    Calendar(Calendar),
}

impl Frame {
    /// Checks a window.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(window: &Window) -> Result<Self, WindowError> {
        match window {
            Window::Rolling { seconds: 0 } | Window::Calendar { count: 0, .. } => Err(WindowError::Empty),
            Window::Rolling { seconds } => Ok(Self::Rolling(*seconds)),
            Window::Calendar { count, unit, start, time_zone } => {
                let zone = TimeZoneDatabase::bundled().get(time_zone).map_err(|_| WindowError::Zone(time_zone.clone()))?;
                let start = DateTime::strptime("%Y-%m-%d %H:%M:%S", start).map_err(|_| WindowError::Start(start.clone()))?;
                Ok(Self::Calendar(Calendar { zone, start, count: i64::from(*count), unit: *unit }))
            }
        }
    }

    /// The longest that it can be, in seconds.
    pub fn longest_s(&self) -> u64 {
        match self {
            Self::Rolling(seconds) => *seconds,
            Self::Calendar(c) => c.count.unsigned_abs() * seconds(c.unit).1,
        }
    }
}

/// The usual and the longest length of a unit, in seconds: a civil day may have 25 hours (27 in history).
const fn seconds(unit: CalendarUnit) -> (u64, u64) {
    const DAY: u64 = 86_400;
    match unit {
        CalendarUnit::Minute => (60, 60),
        CalendarUnit::Hour => (3_600, 3_600),
        CalendarUnit::Day => (DAY, DAY + 3 * 3_600),
        CalendarUnit::Week => (7 * DAY, 7 * DAY + 3 * 3_600),
        CalendarUnit::Month => (30 * DAY, 31 * DAY + 3 * 3_600),
        CalendarUnit::Quarter => (91 * DAY, 92 * DAY + 3 * 3_600),
        CalendarUnit::Year => (365 * DAY, 366 * DAY + 3 * 3_600),
    }
}

impl Calendar {
    /// The period that `unix_s` lies in, as Unix seconds: after its start, up to its end. Before the first period they go back in
    /// the same steps.
    pub fn period(&self, unix_s: i64) -> (i64, i64) {
        let (usual, _) = seconds(self.unit);
        let step = self.count.saturating_mul(usual as i64).max(1);
        let mut n = (unix_s - self.begin(0)).div_euclid(step);
        // The estimate is off by the irregularity of the calendar: at most a few units in a century.
        while self.begin(n) >= unix_s {
            n -= 1;
        }
        while self.begin(n + 1) < unix_s {
            n += 1;
        }
        (self.begin(n), self.begin(n + 1))
    }

    /// When the `n`th period begins. Counted from the first start each time, so that a period that began on a 31st does so again.
    fn begin(&self, n: i64) -> i64 {
        let units = n.saturating_mul(self.count);
        let first = || instant(&self.zone, self.start);
        let civil = match self.unit {
            // These are lengths of time, not of the calendar.
            CalendarUnit::Minute => return first() + units * 60,
            CalendarUnit::Hour => return first() + units * 3_600,
            CalendarUnit::Day => Span::new().try_days(units),
            CalendarUnit::Week => Span::new().try_weeks(units),
            CalendarUnit::Month => Span::new().try_months(units),
            CalendarUnit::Quarter => Span::new().try_months(units.saturating_mul(3)),
            CalendarUnit::Year => Span::new().try_years(units),
        };
        let bound = if units < 0 { DateTime::MIN } else { DateTime::MAX };
        instant(&self.zone, civil.and_then(|span| self.start.checked_add(span)).unwrap_or(bound))
    }
}

/// The instant of a civil time: a time that a change of clocks leaves out is as much later, one that comes twice is the first.
fn instant(zone: &TimeZone, civil: DateTime) -> i64 {
    let ends = if civil.year() < 0 { Timestamp::MIN } else { Timestamp::MAX };
    zone.to_timestamp(civil).unwrap_or(ends).as_second()
}

/// The name of a length of time as alert windows have it: `5m`, `1h`, `3d`, `90s`.
pub fn window_name(seconds: u64) -> String {
    match seconds {
        s if s > 0 && s % 86_400 == 0 => format!("{}d", s / 86_400),
        s if s > 0 && s % 3_600 == 0 => format!("{}h", s / 3_600),
        s if s > 0 && s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

/// The civil time of an instant in UTC, for messages: `2026-11-22 01:43:07`.
pub fn utc(unix_s: i64) -> String {
    Timestamp::from_second(unix_s).unwrap_or(Timestamp::UNIX_EPOCH).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calendar(count: u32, unit: CalendarUnit, start: &str, zone: &str) -> Calendar {
        let window = Window::Calendar { count, unit, start: start.into(), time_zone: zone.into() };
        match Frame::new(&window).unwrap() {
            Frame::Calendar(c) => c,
            Frame::Rolling(_) => unreachable!(),
        }
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    fn period(c: &Calendar, text: &str) -> (String, String) {
        let (from, to) = c.period(at(text));
        (utc(from), utc(to))
    }

    fn pair(a: &str, b: &str) -> (String, String) {
        (a.into(), b.into())
    }

    #[test]
    fn months_have_their_own_lengths_and_ends() {
        let c = calendar(1, CalendarUnit::Month, "2026-01-31 00:00:00", "UTC");
        assert_eq!(period(&c, "2026-02-15T00:00:00Z"), pair("2026-01-31 00:00:00", "2026-02-28 00:00:00"));
        assert_eq!(period(&c, "2026-03-15T00:00:00Z"), pair("2026-02-28 00:00:00", "2026-03-31 00:00:00"));
        assert_eq!(period(&c, "2028-02-29T12:00:00Z"), pair("2028-02-29 00:00:00", "2028-03-31 00:00:00"));
        assert_eq!(period(&c, "2026-01-01T00:00:00Z"), pair("2025-12-31 00:00:00", "2026-01-31 00:00:00"));
    }

    #[test]
    fn a_period_ends_at_its_bound_and_the_next_begins_after_it() {
        let c = calendar(1, CalendarUnit::Month, "2026-01-01 00:00:00", "UTC");
        assert_eq!(period(&c, "2026-02-01T00:00:00Z"), pair("2026-01-01 00:00:00", "2026-02-01 00:00:00"));
        assert_eq!(period(&c, "2026-02-01T00:00:01Z"), pair("2026-02-01 00:00:00", "2026-03-01 00:00:00"));
    }

    #[test]
    fn days_and_weeks_are_civil_over_a_change_of_clocks() {
        let c = calendar(1, CalendarUnit::Day, "2026-01-01 00:00:00", "Europe/Berlin");
        let length = |text| {
            let (from, to) = c.period(at(text));
            (to - from) / 3_600
        };
        assert_eq!([length("2026-03-28T12:00:00Z"), length("2026-03-29T12:00:00Z"), length("2026-10-25T12:00:00Z")], [24, 23, 25]);
        let w = calendar(1, CalendarUnit::Week, "2026-01-05 00:00:00", "America/New_York");
        assert_eq!(period(&w, "2026-03-09T12:00:00Z"), pair("2026-03-09 04:00:00", "2026-03-16 04:00:00"));
        assert_eq!(period(&w, "2026-03-03T12:00:00Z"), pair("2026-03-02 05:00:00", "2026-03-09 04:00:00"));
    }

    #[test]
    fn a_start_that_the_clocks_leave_out_is_later_and_one_that_comes_twice_is_the_first() {
        let c = calendar(1, CalendarUnit::Day, "2026-01-01 02:30:00", "Europe/Berlin");
        assert_eq!(period(&c, "2026-03-29T12:00:00Z").0, "2026-03-29 01:30:00");
        assert_eq!(period(&c, "2026-10-25T12:00:00Z").0, "2026-10-25 00:30:00");
    }

    #[test]
    fn quarters_years_and_hours() {
        let q = calendar(1, CalendarUnit::Quarter, "2026-01-01 00:00:00", "UTC");
        assert_eq!(period(&q, "2026-11-22T00:00:00Z"), pair("2026-10-01 00:00:00", "2027-01-01 00:00:00"));
        let y = calendar(1, CalendarUnit::Year, "2024-02-29 00:00:00", "UTC");
        assert_eq!(period(&y, "2026-11-22T00:00:00Z"), pair("2026-02-28 00:00:00", "2027-02-28 00:00:00"));
        let h = calendar(6, CalendarUnit::Hour, "2026-01-01 00:00:00", "Asia/Kolkata");
        assert_eq!(period(&h, "2026-11-22T00:00:00Z"), pair("2026-11-21 18:30:00", "2026-11-22 00:30:00"));
    }

    #[test]
    fn every_instant_lies_in_one_period() {
        for (unit, count) in [(CalendarUnit::Day, 1), (CalendarUnit::Week, 2), (CalendarUnit::Month, 1), (CalendarUnit::Quarter, 1)] {
            let c = calendar(count, unit, "2026-01-31 02:30:00", "Europe/Berlin");
            let longest = Frame::Calendar(c.clone()).longest_s() as i64;
            let mut t = at("2025-01-01T00:00:00Z");
            for _ in 0..400 {
                let (from, to) = c.period(t);
                assert!(from < t && t <= to && to - from <= longest, "{unit:?} {}", utc(t));
                assert_eq!(c.period(to).1, to);
                t = to + 1;
            }
        }
    }

    #[test]
    fn what_cannot_be_a_window_is_told() {
        let bad = |start: &str, zone: &str| {
            Frame::new(&Window::Calendar { count: 1, unit: CalendarUnit::Day, start: start.into(), time_zone: zone.into() }).unwrap_err()
        };
        assert!(matches!(bad("2026-01-01 00:00:00", "Europe/Bonn"), WindowError::Zone(_)));
        assert!(matches!(bad("yesterday", "UTC"), WindowError::Start(_)));
        assert_eq!(Frame::new(&Window::Rolling { seconds: 0 }).unwrap_err(), WindowError::Empty);
    }

    #[test]
    fn windows_are_named_by_their_largest_unit() {
        assert_eq!([300, 1_800, 3_600, 21_600, 86_400, 259_200, 90].map(window_name), ["5m", "30m", "1h", "6h", "1d", "3d", "90s"]);
    }
}
