//! How fast captures are read and put in order, with a sink that only counts: `pcap_floor FILE…`. CPU seconds come from `time`.

use std::path::Path;

use tokengauge::tap::pcap::FileTap;
use tokengauge::tap::{Sink, StopFlag, Tap};
use tokengauge_core::stream::{StreamEvent, Timestamp, Verdict};
use tokengauge_core::tcp::Limits;

#[derive(Default, Debug)]
struct Count {
    opens: u64,
    chunks: u64,
    bytes: u64,
    gaps: u64,
    closes: u64,
}

impl Sink for Count {
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
        match event {
            StreamEvent::Open { .. } => self.opens += 1,
            StreamEvent::Data { bytes, .. } => {
                self.chunks += 1;
                self.bytes += bytes.len() as u64;
            }
            StreamEvent::Gap { .. } => self.gaps += 1,
            StreamEvent::Close { .. } => self.closes += 1,
            StreamEvent::Identified { .. } => {}
        }
        Verdict::Watch
    }

    fn tick(&mut self, _: Timestamp) {}
}

fn main() {
    for path in std::env::args().skip(1) {
        let mut count = Count::default();
        let tap = FileTap::open(Path::new(&path), Limits::default());
        let result = tap.map(|tap| (tap.stats(), Box::new(tap).run(&mut count, &StopFlag::default())));
        match result {
            Ok((stats, result)) => {
                println!("{path}: {count:?} {result:?}");
                for (name, value) in stats.snapshot().tcp.iter().filter(|(_, value)| *value > 0) {
                    println!("  {name} {value}");
                }
            }
            Err(error) => println!("{error}"),
        }
    }
}
