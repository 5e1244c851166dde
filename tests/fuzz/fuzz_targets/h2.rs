//! An HTTP/2 connection, from its beginning or joined in its middle: whatever comes, each exchange begins and ends once, and nothing happens in
//! one that is over. The first byte says how it is seen and in which pieces; they change nothing as long as nothing is lost.
#![no_main]
use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use tokengauge_core::anomaly::Anomaly;
use tokengauge_core::http::event::HttpEvent;
use tokengauge_core::http::h2::session::Session;
use tokengauge_core::stream::{Direction, StreamEvent};

/// What came of a connection, and whether its frames had to be looked for.
#[derive(Default)]
struct Seen {
    open: BTreeSet<u64>,
    log: Vec<(u64, String)>,
    lost: bool,
}

impl Seen {
    fn take(&mut self, event: HttpEvent<'_>) {
        let (id, text) = match event {
            HttpEvent::Request { id, head, .. } => {
                assert!(self.open.insert(id));
                (id, format!("{head:?}"))
            }
            HttpEvent::Over { id, how, by, .. } => {
                assert!(self.open.remove(&id));
                self.log.push((id, format!("{how:?} {by:?}")));
                return;
            }
            HttpEvent::Odd(what) => {
                self.lost |= what == Anomaly::BadFrame;
                return;
            }
            HttpEvent::RequestBody { id, bytes } => (id, format!("> {}", bytes.len())),
            HttpEvent::ResponseBody { id, bytes } => (id, format!("< {}", bytes.len())),
            HttpEvent::RequestEnd { id } => (id, "asked".to_owned()),
            HttpEvent::Response { id, head, .. } => (id, format!("{head:?}")),
            HttpEvent::Trailers { id, grpc_status, partial } => (id, format!("{grpc_status:?} {partial}")),
            HttpEvent::Gap { id, .. } => (id, "gap".to_owned()),
            HttpEvent::Upgraded { id, .. } => (id, "upgraded".to_owned()),
        };
        assert!(self.open.contains(&id));
        match (self.log.last_mut(), text.split_at_checked(2)) {
            // Bytes that come together or apart are the same.
            (Some((last, before)), Some((side @ ("> " | "< "), n))) if *last == id && before.starts_with(side) => {
                let sum = before[2..].parse::<usize>().unwrap_or(0) + n.parse::<usize>().unwrap_or(0);
                *before = format!("{side}{sum}");
            }
            _ => self.log.push((id, text)),
        }
    }
}

fn run(joined: bool, size: usize, script: &[u8]) -> Seen {
    let mut session = if joined { Session::joined() } else { Session::new(Direction::Forward) };
    let mut seen = Seen::default();
    tokengauge_fuzz::script(script, |event| match event {
        StreamEvent::Data { dir, at, bytes, .. } => {
            for piece in bytes.chunks(size) {
                // Bytes are given back once: when it was learnt who is the client.
                let rest = session.data(dir, at, piece, &mut |event| seen.take(event));
                assert!(session.data(dir, at, rest, &mut |event| seen.take(event)).is_empty());
            }
        }
        StreamEvent::Gap { dir, at, len, .. } => {
            seen.lost = true;
            session.gap(dir, at, len, &mut |event| seen.take(event));
        }
        StreamEvent::Close { end, .. } => session.close(end, &mut |event| seen.take(event)),
        _ => {}
    });
    assert!(session.buffered() < 1 << 20);
    seen
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, script)) = data.split_first() else { return };
    let joined = how & 1 != 0;
    let whole = run(joined, usize::MAX, script);
    let cut = run(joined, usize::from(how >> 1) % 64 + 1, script);
    // All that is open at the input's end is over with it.
    assert!(whole.open.is_empty() && cut.open.is_empty());
    if !joined && !whole.lost && !cut.lost {
        assert_eq!(whole.log, cut.log);
    }
});
