//! Prints what the TLS tap sees: one line for each event, never the bytes themselves.
//!
//! ```text
//! cargo run -p tokengauge --example tls_watch [SECONDS]
//! ```
use std::time::Duration;

use tokengauge::tap::tls::{TlsOptions, TlsTap, selftest};
use tokengauge::tap::{Sink, StopFlag, Tap as _};
use tokengauge_core::stream::{StreamEvent, Timestamp, Verdict};

struct Print;
impl Sink for Print {
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
        match event {
            StreamEvent::Data { conn, dir, at, bytes } => println!("{at:?} {} {dir:?} {} bytes", conn.0, bytes.len()),
            other => println!("{other:?}"),
        }
        Verdict::Watch
    }
    fn tick(&mut self, _: Timestamp) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |n| n.parse())?;
    println!("{:#?}", selftest::self_test());
    for library in selftest::libraries() {
        println!("{} ({} processes)", library.file, library.users);
        for place in library.places {
            println!("  {:24} +{:#x} {:12} {}", place.functions.join(", "), place.into, place.instruction, place.cost.as_str());
        }
    }
    let stop = StopFlag::default();
    let flag = stop.clone();
    let tap = Box::new(TlsTap::new(TlsOptions::default()));
    let counters = tap.counters();
    let thread = std::thread::spawn(move || tap.run(&mut Print, &flag));
    std::thread::sleep(Duration::from_secs(seconds));
    stop.stop();
    thread.join().map_err(|_| "the tap panicked")??;
    println!("{counters:#?}");
    Ok(())
}
