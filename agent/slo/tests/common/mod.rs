//! SLOs made by hand, and the slowest possible way to count.
#![allow(dead_code, missing_docs, reason = "each test takes what it needs")]

use std::collections::BTreeMap;

use tokengauge_core::inference::{Outcome, Reason};
use tokengauge_slo::model::*;
use tokengauge_slo::request::Request;

pub const SECOND: u64 = 1_000_000_000;
pub const MINUTE: u64 = 60 * SECOND;
pub const HOUR: u64 = 60 * MINUTE;
pub const DAY: u64 = 24 * HOUR;

/// Sloth's and the SRE workbook's table for 30 days.
pub fn sloth() -> Alerting {
    let row = |severity, short_s, long_s, factor| AlertRow { severity, short_s, long_s, factor, for_s: 0 };
    Alerting {
        rows: vec![
            row(Severity::Page, 300, 3_600, 14.4),
            row(Severity::Page, 1_800, 21_600, 6.0),
            row(Severity::Ticket, 7_200, 86_400, 3.0),
            row(Severity::Ticket, 21_600, 259_200, 1.0),
        ],
        min_events: 0,
        min_bad_events: 0,
        coverage_floor: 0.9,
        adapted: Vec::new(),
        runbook_url: None,
    }
}

pub fn objective(name: &str, target: f64) -> Objective {
    let sli = Sli { selector: Selector::default(), kind: SliKind::Availability, policy: Policy::default(), prices: Vec::new() };
    Objective { name: name.into(), target, sli, weight: 1.0, time_slice_target: None, time_slice_window_s: None }
}

/// Availability of 99.9 % over 30 days.
pub fn slo() -> Slo {
    Slo {
        name: "answers".into(),
        display_name: None,
        description: None,
        service: "gateway".into(),
        labels: BTreeMap::new(),
        window: Window::Rolling { seconds: 30 * 86_400 },
        budgeting: Budgeting::Occurrences,
        objectives: vec![objective("99.9%", 0.999)],
        composite: false,
        group_by: None,
        alerting: sloth(),
        source: Source::default(),
    }
}

pub fn request(verdict: Verdict) -> Request<'static> {
    match verdict {
        Verdict::Good => Request::plain(),
        Verdict::Bad => Request { outcome: Outcome::Failed, status: Some(500), ttft: Err(Reason::HttpError), ..Request::plain() },
        Verdict::NotApplicable => Request { outcome: Outcome::Failed, status: Some(400), ..Request::plain() },
        Verdict::Excluded => Request { outcome: Outcome::Lost, status: None, ..Request::plain() },
    }
}

/// Events one by one: what a window holds is what a filter finds.
#[derive(Default, Clone)]
pub struct Slow {
    pub events: Vec<(u64, Verdict)>,
}

impl Slow {
    /// Valid, bad and excluded after `from`, up to `to`.
    pub fn counts(&self, from: u64, to: u64) -> (u64, u64, u64) {
        let within = |v: &[Verdict]| self.events.iter().filter(|(t, e)| *t > from && *t <= to && v.contains(e)).count() as u64;
        (within(&[Verdict::Good, Verdict::Bad]), within(&[Verdict::Bad]), within(&[Verdict::Excluded]))
    }

    /// Burn rate after `from`, up to `to`.
    pub fn burn(&self, from: u64, to: u64, target: f64) -> Option<f64> {
        let (valid, bad, _) = self.counts(from, to);
        (valid > 0).then(|| bad as f64 / valid as f64 / (1.0 - target))
    }

    /// Slices that ended after `from`, up to `to`: how many had events, and how bad they were together.
    pub fn slices(&self, from: u64, to: u64, length: u64, target: Option<f64>) -> (u64, f64) {
        let (mut n, mut sum) = (0, 0.0);
        let mut ends: Vec<u64> = self.events.iter().map(|(t, _)| t.div_ceil(length) * length).filter(|e| *e > from && *e <= to).collect();
        ends.dedup();
        for end in ends {
            let (valid, bad, _) = self.counts(end - length, end);
            if valid > 0 {
                let good = (valid - bad) as f64 / valid as f64;
                n += 1;
                sum += target.map_or(bad as f64 / valid as f64, |t| if good < t { 1.0 } else { 0.0 });
            }
        }
        (n, sum)
    }
}

pub fn close(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0),
        _ => false,
    }
}
