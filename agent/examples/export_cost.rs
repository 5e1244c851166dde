//! What a span costs: processor time of this thread per inference, from the record to the finished request. `export_cost [SPANS]`
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a tool of the tests")]

use std::time::Instant;

use tokengauge::export::otlp::batch::Batch;
use tokengauge::export::otlp::carrier::{Carrier, Signal};
use tokengauge::export::otlp::spans::{Maker, SpansConfig};
use tokengauge::join::Found;
use tokengauge::testing;
use tokengauge_core::semconv::Profile;

#[derive(Default)]
struct Taken(u64, u64, u64);
impl Carrier for Taken {
    fn carry(&mut self, _: Signal, request: Vec<u8>, items: u32) {
        (self.0, self.1, self.2) = (self.0 + u64::from(items), self.1 + request.len() as u64, self.2 + 1);
    }
}

/// Processor time of this thread in seconds.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn main() {
    let spans: u64 = std::env::args().nth(1).map_or(500_000, |n| n.parse().unwrap());
    let resource = opentelemetry_sdk::Resource::builder_empty().build();
    let (mut maker, mut batch) =
        (Maker::new(&SpansConfig::default(), Profile::V1_41, &|_| None), Batch::new(&resource, Profile::V1_41, &|_| None));
    let (mut taken, mut i) = (Taken::default(), testing::inference());
    let mut run = |n: u64, taken: &mut Taken| {
        for span in 0..n {
            (i.trace.span_id, i.trace.trace_id) = (span + 1, u128::from(span) << 64 | 7);
            let span = maker.span(&i, None, &Found::default());
            batch.add(span, Instant::now(), taken);
        }
    };
    run(spans / 10, &mut taken);
    let (before, first) = (cpu(), taken.0);
    run(spans, &mut taken);
    let per = (cpu() - before) / (taken.0 - first) as f64 * 1e6;
    println!(r#"{{"us_per_span": {per:.3}, "bytes_per_span": {}, "requests": {}}}"#, taken.1 / taken.0, taken.2);
}
