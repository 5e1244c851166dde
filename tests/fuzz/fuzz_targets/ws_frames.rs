//! One direction of a WebSocket, whole and cut: the same messages, and nothing that grows.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::anomaly::Anomaly;
use tokengauge_core::stream::Timestamp;
use tokengauge_core::ws::frame::Role;
use tokengauge_core::ws::message::{Event, Messages};

fn run<'a>(role: Role, deflate: Option<bool>, pieces: impl Iterator<Item = &'a [u8]>, hole: usize) -> Vec<String> {
    let (mut messages, mut log) = (Messages::new(role, deflate), Vec::new());
    let mut see = |event: Event<'_>| {
        log.push(match event {
            // A message in one piece is not reduced, and so never too long.
            Event::Message { bytes, .. } => format!("message {bytes}"),
            Event::Lost => "lost".to_owned(),
            Event::Close(code) => format!("close {code:?}"),
            Event::Odd(Anomaly::EventTooLong) => return,
            Event::Odd(what) => what.as_str().to_owned(),
        });
    };
    for (n, piece) in pieces.enumerate() {
        if n > 0 && n == hole {
            messages.hole(Some(3), &mut see);
        }
        messages.push(Timestamp::default(), piece, &mut see);
        assert!(messages.buffered() < 256 << 10);
    }
    log
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, rest)) = data.split_first() else { return };
    let role = if how & 1 == 0 { Role::Client } else { Role::Server };
    let deflate = [None, Some(true), Some(false)][usize::from(how >> 1) % 3];
    let Some((_, pieces)) = tokengauge_fuzz::pieces(rest) else { return };
    let whole = run(role, deflate, std::iter::once(&rest[1..]), 0);
    let cut = run(role, deflate, pieces.clone(), 0);
    let kinds = |log: &[String]| log.iter().filter(|l| !l.starts_with("message") && *l != "lost").cloned().collect::<Vec<_>>();
    assert_eq!(kinds(&whole), kinds(&cut));
    assert_eq!(whole.len(), cut.len());
    run(role, deflate, pieces, usize::from(how));
});
