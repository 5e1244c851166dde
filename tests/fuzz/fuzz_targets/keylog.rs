//! A key log: whatever its lines are, the whole gives what its lines give.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::tls::KeyLog;

fuzz_target!(|data: &[u8]| {
    let mut whole = KeyLog::new();
    let result = whole.read(data);
    let mut lines = KeyLog::new();
    let mut first = None;
    for (n, line) in data.split_inclusive(|b| *b == b'\n').enumerate() {
        if let Err(bad) = lines.read(line) {
            assert_eq!(bad.line, 1);
            first.get_or_insert((n + 1, bad.what));
        }
    }
    assert_eq!(first, result.err().map(|bad| (bad.line, bad.what)));
    assert_eq!((lines.len(), lines.counts()), (whole.len(), whole.counts()));
    assert_eq!(first.is_some(), whole.counts().bad > 0);
});
