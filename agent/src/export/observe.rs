//! How any part of the agent adds a metric of its own: it is asked whenever metrics are collected, and says the values as they are then.

use tokengauge_core::semconv::Metric;

/// Takes one value: of which metric (a counter, an up-down counter or a gauge of `semconv::metric`), with which attributes, how much. Of a
/// counter the value is the total since the process began.
pub type Tell<'a> = dyn FnMut(&'static Metric, &[(&str, &str)], f64) + 'a;

/// Takes a histogram that somebody else counts, such as an inference server: upper bounds, counts (one more than bounds), sum; totals so far.
pub type TellHistogram<'a> = dyn FnMut(&'static Metric, &[(&str, &str)], &[f64], &[u64], f64) + 'a;

/// Something that has figures of its own: a queue, a sender, the process.
///
/// It is asked from a thread of the exporters, once per collection. It must be quick and must not block on what an exporter may hold.
pub trait Observe: Send {
    /// Says every value by `tell`. A series that is not told any more ends with a staleness marker; a counter that exists is told as 0
    /// from the start.
    fn observe(&self, tell: &mut Tell<'_>);

    /// Says every histogram, where there are any. They are exported with these bounds and never as exponential ones.
    fn histograms(&self, tell: &mut TellHistogram<'_>) {
        let _ = tell;
    }
}

impl<F: Fn(&mut Tell<'_>) + Send> Observe for F {
    fn observe(&self, tell: &mut Tell<'_>) {
        self(tell);
    }
}
