use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::time::Instant;

use tokengauge_core::hook::batch::{Came, Clock, Frames, Head, MAX_MESSAGE, read};
use tokengauge_core::hook::event::{self, Source, Via};

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// As the agent reads it.
fn told(bytes: &[u8]) -> (Vec<event::Event>, Head) {
    let (mut events, mut last, mut clock) = (Vec::new(), Head::default(), Clock::default());
    let came = Came { now: monotonic(), unix_offset: 0, source: Source { via: Via::Socket, pid: 1, connection: 1 } };
    let mut frames = Frames::default();
    frames.push(bytes, &mut |message| last = read(message, came, &mut clock, &mut |e| events.push(e.unwrap())).unwrap()).unwrap();
    assert!(!frames.is_within());
    (events, last)
}

#[expect(clippy::disallowed_methods, reason = "how long the test waits")]
fn until(client: &Client, what: impl Fn(Counts) -> bool) {
    let began = Instant::now();
    while !what(client.counts()) {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", client.counts());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_agent_reads_what_is_sent() {
    let folder = folder();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let client = Client::new(&path);
    let mut request = Event::of("chatcmpl-1").model("llama").engine(0).trace([0xab; 16], [0xcd; 8]);
    request.prompt(17);
    client.tell(&mut request, Kind::Received);
    client.tokens(&mut request, 4);
    client.finished(&mut request, Finish::Length, 5);
    let (mut stream, _) = listener.accept().unwrap();
    until(&client, |c| c.sent == 3);
    drop(client);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let (events, head) = told(&bytes);
    assert_eq!((events.len(), head.dropped), (3, 0));
    let kinds: Vec<_> = events.iter().map(|e| (e.kind, e.counts.new, e.counts.prompt, e.counts.output)).collect();
    let want = [
        (event::Kind::Received, None, Some(17), None),
        (event::Kind::Tokens(4), Some(4), Some(17), None),
        (event::Kind::Finished, None, Some(17), Some(5)),
    ];
    assert_eq!(kinds, want);
    for e in &events {
        assert_eq!(
            (e.request.as_str(), e.model.unwrap().as_str(), e.engine, e.stamp),
            ("chatcmpl-1", "llama", Some(0), event::Stamp::Server)
        );
        assert_eq!(e.trace, event::TraceIds::new(u128::from_be_bytes([0xab; 16]), u64::from_be_bytes([0xcd; 8])));
    }
    assert_eq!(events[2].finish, Some(event::Finish::Length));
    assert!(events.is_sorted_by_key(|e| e.at));
}

#[test]
fn nobody_there_costs_events_and_no_time() {
    let folder = folder();
    let client = Client::new(folder.path().join("nobody"));
    let mut request = Event::of("r");
    for _ in 0..QUEUE + 1_000 {
        client.tell(&mut request, Kind::Queued);
    }
    assert_eq!(client.counts(), Counts { sent: 0, dropped: 1_000, waiting: QUEUE as u64 });
    // Somebody comes: what still waits is sent, and how many are missing is told.
    let listener = UnixListener::bind(folder.path().join("nobody")).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    until(&client, |c| c.sent == QUEUE as u64);
    drop(client);
    let (events, head) = told(&reader.join().unwrap());
    assert_eq!((events.len(), head.dropped), (QUEUE, 1_000));
}

#[test]
fn an_agent_that_comes_again_is_found_again() {
    let folder = folder();
    let path = folder.path().join("s");
    let client = Client::new(&path);
    let mut request = Event::of("r");
    for round in 1..=3_u64 {
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        client.tell(&mut request, Kind::Queued);
        let (stream, _) = listener.accept().unwrap();
        until(&client, |c| c.sent == round);
        drop((stream, listener));
        // The next event finds nobody: it is lost with the connection, and counted.
        client.tell(&mut request, Kind::Queued);
        until(&client, |c| c.dropped == round);
    }
}

#[test]
fn the_longest_batch_is_within_the_agents_bound() {
    let long = "x".repeat(500);
    let mut event = Event::of(&long).model(&long).engine(u32::MAX).trace([0xff; 16], [0xff; 8]);
    event.prompt(u32::MAX);
    event.cached(u32::MAX);
    event.batch(u32::MAX);
    event.drafted(u32::MAX, u32::MAX);
    event.chunk(u32::MAX);
    event.prepare_tokens(u32::MAX);
    let bytes = message::batch(&vec![(u64::MAX, event); BATCH], u64::MAX, u64::MAX);
    assert!(bytes.len() <= MAX_MESSAGE, "{}", bytes.len());
    assert_eq!(told(&bytes).0.len(), BATCH);
}
