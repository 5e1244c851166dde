//! A stream allocates nothing per chunk: not in the assembler, not in the pipeline. Counted by the allocator itself.
#![allow(clippy::unwrap_used, reason = "helpers of a test, which may panic")]
#![allow(unsafe_code, reason = "an allocator has no safe form")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokengauge_core::inference::Inference;
use tokengauge_core::pipeline::{Options, Pipeline};
use tokengauge_core::stream::Timestamp;
use tokengauge_core::tcp::build::{Conversation, Packet, Who};
use tokengauge_core::tcp::{Assembler, Limits};

/// Counts what its thread allocates.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// A call of the allocator after which so many more bytes are held; a request of memory or not.
fn count(request: bool, bytes: i64) {
    // At the end of a thread its count is gone.
    let _ = COUNT.try_with(|n| n.set(n.get() + u64::from(request)));
    let _ = HELD.try_with(|n| n.set(n.get() + bytes));
}

/// What glibc's allocator takes for so many bytes: eight more, in steps of sixteen.
fn taken(size: usize) -> i64 {
    (size + 8).next_multiple_of(16).max(32) as i64
}

// SAFETY: everything is the system allocator's; the counter allocates nothing
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(true, taken(layout.size()));
        // SAFETY: as the caller promised
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(false, -taken(layout.size()));
        // SAFETY: as the caller promised
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(true, taken(size) - taken(layout.size()));
        // SAFETY: as the caller promised
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CHUNKS: usize = 4000;

/// One streamed answer of `CHUNKS` chunks; every `padded`th differs from its neighbours in more than its text. `gzip`: compressed, and flushed
/// after each of them.
fn stream(padded: usize, segment: usize, gzip: bool) -> Vec<(Timestamp, Packet)> {
    let start = Timestamp::from_unix_nanos(1_700_000_000_000_000_000);
    let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    let request = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let coding = if gzip { "Content-Encoding: gzip\r\n" } else { "" };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{coding}Transfer-Encoding: chunked\r\n\r\n");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let mut chunk = |data: &str| {
        let mut data = format!("data: {data}\n\n").into_bytes();
        if gzip {
            encoder.write_all(&data).unwrap();
            encoder.flush().unwrap();
            data = std::mem::take(encoder.get_mut());
        }
        [format!("{:x}\r\n", data.len()).as_bytes(), &data, b"\r\n"].concat()
    };
    let mut talk = Conversation::new("10.0.0.2:40000".parse().unwrap(), "10.0.0.1:80".parse().unwrap(), start)
        .segment(segment)
        .say(Duration::from_millis(1), Who::Client, request)
        .say(Duration::from_millis(100), Who::Server, head);
    for n in 0..CHUNKS {
        let (padding, text) = ("p".repeat(n * 7 % 30), format!("w{}", n % 97));
        let more = if n % padded == 0 { format!(r#","obfuscation":"{padding}""#) } else { String::new() };
        let data =
            format!(r#"{{"id":"c","model":"m","choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]{more}}}"#);
        talk = talk.say(Duration::from_millis(120 + 10 * n as u64), Who::Server, chunk(&data));
    }
    let end =
        [chunk(r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#), chunk("[DONE]"), b"0\r\n\r\n".to_vec()].concat();
    talk.say(Duration::from_millis(130 + 10 * CHUNKS as u64), Who::Server, end).packets()
}

/// The inferences, and how much the chunks in the middle allocated: from the hundredth to the last but hundred.
fn measure(packets: &[(Timestamp, Packet)]) -> (Vec<Inference>, u64) {
    let (mut assembler, mut pipeline) = (Assembler::new(Limits::default()), Pipeline::new(Options::default()));
    let (mut out, mut allocated) = (Vec::new(), 0);
    for (n, (at, packet)) in packets.iter().enumerate() {
        let before = COUNT.with(Cell::get);
        assembler.push(*at, &packet.segment(), &mut |event| pipeline.push(event, &mut out));
        if (100..packets.len() - 100).contains(&n) {
            allocated += COUNT.with(Cell::get) - before;
        }
    }
    let end = packets.last().unwrap().0;
    assembler.finish(end, &mut |event| pipeline.push(event, &mut out));
    (out, allocated)
}

#[test]
fn a_chunk_allocates_nothing() {
    // What remains is the list of gaps, which doubles now and then.
    for (padded, gzip) in [(usize::MAX, false), (1, false), (usize::MAX, true), (1, true)] {
        let (out, allocated) = measure(&stream(padded, 60_000, gzip));
        assert_eq!((out.len(), out[0].chunks.generated as usize), (1, CHUNKS));
        assert!(allocated <= 8, "{allocated} allocations in {CHUNKS} chunks, padded {padded}, gzip {gzip}");
    }
}

/// 250 MB are to hold 100,000 streams that are open: 2,329 bytes each when this was written, 2,450 with the tables at their largest.
#[test]
fn an_open_stream_takes_little() {
    let mut packets = stream(usize::MAX, 60_000, false);
    // three of the handshake, the request, the head, two events
    packets.truncate(7);
    let (mut assembler, mut pipeline) = (Assembler::new(Limits::default()), Pipeline::new(Options::default()));
    let mut out = Vec::new();
    let mut open = |from: u16, count: u16| {
        for n in from..from + count {
            for (at, packet) in &packets {
                let mut segment = packet.segment();
                let client = if segment.source.port == 80 { &mut segment.destination } else { &mut segment.source };
                client.port = n;
                assembler.push(*at, &segment, &mut |event| pipeline.push(event, &mut out));
            }
        }
    };
    open(1000, 1000);
    let before = HELD.with(Cell::get);
    // Tables that were full at a power of two are not full again here.
    open(3000, 1000);
    let each = (HELD.with(Cell::get) - before) / 1000;
    assert_eq!((pipeline.stats().in_flight, pipeline.stats().events), (2000, 4000));
    assert!(each <= 2400, "{each} bytes for each stream");
}

#[test]
fn whole_or_in_pieces_the_same_is_measured() {
    for padded in [usize::MAX, 1, 3] {
        let (whole, _) = measure(&stream(padded, 60_000, false));
        for segment in [1, 7, 64, 100] {
            let (pieces, _) = measure(&stream(padded, segment, false));
            assert_eq!(pieces.len(), 1);
            let (a, b) = (&whole[0], &pieces[0]);
            assert_eq!((a.chunks, a.outcome, &a.response), (b.chunks, b.outcome, &b.response), "padded {padded}, segments of {segment}");
            assert_eq!(a.timing.gaps.count(), b.timing.gaps.count());
        }
    }
}
