//! What an inference server exports: a text in pieces is the text, and a server that says the same twice has counted nothing between.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::engine::book::Book;
use tokengauge_core::engine::gather::{Gather, MAX_SERIES, Reading, Value};
use tokengauge_core::engine::text::{Counts, Reader};

fn read(text: &[u8], piece: usize) -> (Reading, Counts) {
    let (mut reader, mut gather) = (Reader::default(), Gather::default());
    for part in text.chunks(piece) {
        reader.push(part, &mut |s| gather.sample(s));
    }
    let counts = reader.finish(&mut |s| gather.sample(s));
    (gather.finish(), counts)
}

fuzz_target!(|data: &[u8]| {
    let Some((piece, text)) = data.split_first() else { return };
    let (reading, counts) = read(text, text.len().max(1));
    assert_eq!(read(text, usize::from(*piece % 64) + 1), (reading.clone(), counts));
    assert!(counts.samples + counts.bad <= counts.lines);
    assert_eq!(counts.first_bad.is_some(), counts.bad > 0);
    assert!(reading.series.len() <= MAX_SERIES);
    for value in reading.series.values() {
        match value {
            Value::Level(v) => assert!(v.is_finite()),
            Value::Total(v) => assert!(*v >= 0.0),
            Value::Histogram(h) => {
                assert_eq!(h.counts.len(), h.bounds.len() + 1);
                assert!(h.bounds.is_sorted_by(|a, b| a < b));
            }
        }
    }
    let mut book = Book::default();
    book.read(reading.clone(), false);
    book.read(reading.clone(), false);
    for (_, value) in book.figures() {
        match value {
            Value::Level(_) => {}
            Value::Total(v) => assert_eq!(*v, 0.0),
            Value::Histogram(h) => assert_eq!((h.count(), h.sum), (0, 0.0)),
        }
    }
    book.read(reading, true);
});
