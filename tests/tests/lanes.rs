//! The short way of a stream's events (`pipeline/lane.rs`) against the long one: a chunk in pieces is never taken by a lane, and measures the
//! same. What interrupts a stream of events that are alike, whenever it comes, changes nothing else. So with bodies that are compressed.
#![allow(clippy::unwrap_used, reason = "helpers of a test, which may panic")]

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tokengauge_core::inference::Inference;
use tokengauge_core::pipeline::{Options, Pipeline, PipelineStats};
use tokengauge_core::stream::{ConnId, ConnInfo, Direction, End, GapReason, Side, StreamEvent, TapKind, Timestamp};

/// What the server sends, or what happens to it.
#[derive(Clone, Debug)]
enum Step {
    /// Events of one piece of text each, in chunks that come together.
    Say(Vec<&'static str>),
    /// An event of another form.
    Other(&'static str),
    /// Two events in one chunk.
    Together,
    /// A chunk of the given bytes.
    Raw(&'static str),
    /// So many bytes are missing; the next chunk begins behind them.
    Gap,
    /// Time passes and is noticed.
    Tick,
    /// Another request on the connection, while the answer comes.
    Ask,
}

const REQUEST: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 69\r\n\r\n{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}";
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const HEAD_OF_GZIP: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n";

fn event(text: &str) -> String {
    format!(r#"data: {{"id":"c","model":"m","choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#) + "\n\n"
}

/// How a server writes its body: compressed, and flushed after each chunk, or as it is.
struct Coder(Option<GzEncoder<Vec<u8>>>);

impl Coder {
    fn new(gzip: bool) -> Self {
        Self(gzip.then(|| GzEncoder::new(Vec::new(), Compression::fast())))
    }

    /// A chunk.
    fn chunk(&mut self, data: &str) -> Vec<u8> {
        let data = match &mut self.0 {
            None => data.as_bytes().to_vec(),
            Some(gzip) => {
                gzip.write_all(data.as_bytes()).unwrap();
                gzip.flush().unwrap();
                std::mem::take(gzip.get_mut())
            }
        };
        [format!("{:x}\r\n", data.len()).as_bytes(), &data, b"\r\n"].concat()
    }

    /// The last chunk, and the end of the body.
    fn end(mut self, data: &str) -> Vec<u8> {
        let mut all = self.chunk(data);
        if let Some(gzip) = self.0 {
            let trailer = gzip.finish().unwrap();
            all.extend([format!("{:x}\r\n", trailer.len()).as_bytes(), &trailer, b"\r\n"].concat());
        }
        [&all[..], b"0\r\n\r\n"].concat()
    }
}

impl Step {
    /// The text of the chunks.
    fn chunks(&self) -> Vec<String> {
        let one = match self {
            Self::Say(texts) => return texts.iter().map(|text| event(text)).collect(),
            Self::Other(delta) => format!("data: {{\"id\":\"c\",\"choices\":[{{\"index\":0,\"delta\":{{{delta}}}}}]}}\n\n"),
            Self::Together => event("a") + &event("b"),
            Self::Raw(text) => (*text).to_owned(),
            Self::Gap | Self::Tick | Self::Ask => return Vec::new(),
        };
        vec![one]
    }
}

/// Behind a gap a chunk is found by its size line, which must be in one piece: chunks come without their last byte, and then that.
const ALL_BUT_ONE: usize = usize::MAX;

/// Runs the steps, each so many nanoseconds after the last; `cut` is the length of the pieces in which bytes come, 0 for whole ones, whose tag is
/// kept; `gzip` whether the body is compressed.
fn run(steps: &[(i64, Step)], cut: usize, gzip: bool) -> (Vec<Inference>, PipelineStats) {
    let mut coder = Coder::new(gzip);
    let mut pipeline = Pipeline::new(Options { idle: Duration::from_secs(60), ..Options::default() });
    let (mut out, mut tag, conn) = (Vec::new(), 0, ConnId(7));
    let mut now = 1_700_000_000_000_000_000_i64;
    let instant = |now: i64| Timestamp::from_unix_nanos(now.unsigned_abs());
    let info = ConnInfo { tap: TapKind::Pcap, side: Side::Middle, endpoints: None, process: None, from_start: true };
    let _ = pipeline.push(StreamEvent::Open { conn, at: instant(now), info }, &mut out);
    let mut send = |pipeline: &mut Pipeline, now: i64, dir, bytes: &[u8], out: &mut Vec<Inference>| {
        if cut == 0 {
            let mut none = 0;
            let tag = if dir == Direction::Reverse { &mut tag } else { &mut none };
            let _ = pipeline.tagged(tag, conn, dir, instant(now), bytes, out);
        } else {
            let pieces = if cut == ALL_BUT_ONE { bytes.chunks(bytes.len().max(2) - 1) } else { bytes.chunks(cut) };
            for piece in pieces {
                let _ = pipeline.push(StreamEvent::Data { conn, dir, at: instant(now), bytes: piece }, out);
            }
        }
    };
    send(&mut pipeline, now, Direction::Forward, REQUEST.as_bytes(), &mut out);
    now += 100_000_000;
    send(&mut pipeline, now, Direction::Reverse, if gzip { HEAD_OF_GZIP } else { HEAD }.as_bytes(), &mut out);
    for (after, step) in steps {
        now += after;
        match step {
            Step::Gap => {
                let gap = StreamEvent::Gap { conn, dir: Direction::Reverse, at: instant(now), len: None, reason: GapReason::PacketLost };
                let _ = pipeline.push(gap, &mut out);
            }
            Step::Tick => pipeline.tick(instant(now), &mut out),
            Step::Ask => send(&mut pipeline, now, Direction::Forward, REQUEST.as_bytes(), &mut out),
            step => {
                let chunks: Vec<_> = step.chunks().iter().map(|text| coder.chunk(text)).collect();
                if cut == 0 {
                    send(&mut pipeline, now, Direction::Reverse, &chunks.concat(), &mut out);
                } else {
                    chunks.iter().for_each(|chunk| send(&mut pipeline, now, Direction::Reverse, chunk, &mut out));
                }
            }
        }
    }
    let end = coder.end("data: {\"choices\":[],\"usage\":{\"completion_tokens\":9}}\n\ndata: [DONE]\n\n");
    send(&mut pipeline, now + 1, Direction::Reverse, &end, &mut out);
    for dir in [Direction::Forward, Direction::Reverse] {
        let _ = pipeline.push(StreamEvent::Close { conn, at: instant(now + 2), end: End::Finished(dir) }, &mut out);
    }
    (out, pipeline.stats())
}

fn step() -> impl Strategy<Value = Step> {
    let text = prop::sample::select(vec!["a", " token", "é", "\\n", "\\u0041", "a longer piece of text, in one", "\u{1f600}"]);
    prop_oneof![
        30 => prop::collection::vec(text, 1..4).prop_map(Step::Say),
        2 => prop::sample::select(vec!["", r#""role":"assistant""#, r#""reasoning_content":"hm""#, r#""content":"x","refusal":"y""#]).prop_map(Step::Other),
        1 => Just(Step::Together),
        1 => prop::sample::select(vec![": ping\n\n", "data: {}\n\n", "data: x\n\n", "event: e\ndata: {\"choices\":[]}\n\n"]).prop_map(Step::Raw),
        1 => Just(Step::Gap),
        1 => Just(Step::Tick),
        1 => Just(Step::Ask),
    ]
}

/// Mostly some milliseconds; now and then nothing, a step back, or more than what fits in 32 bits of nanoseconds.
fn pause() -> impl Strategy<Value = i64> {
    prop_oneof![20 => 0..30_000_000_i64, 2 => Just(0), 1 => Just(-5_000_000), 1 => 4_000_000_000..6_000_000_000_i64]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_lane_changes_nothing(steps in prop::collection::vec((pause(), step()), 1..120), cut in 1_usize..64, gzip: bool) {
        let (whole, stats) = run(&steps, 0, gzip);
        let holes = steps.iter().any(|(_, step)| matches!(step, Step::Gap));
        let (pieces, other) = run(&steps, if holes { ALL_BUT_ONE } else { cut }, gzip);
        prop_assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
        prop_assert_eq!(stats, other);
    }
}

#[test]
fn most_events_go_the_short_way() {
    let steps: Vec<_> = (0..1000).map(|_| (10_000_000, Step::Say(vec!["word"]))).collect();
    for gzip in [false, true] {
        let (whole, stats) = run(&steps, 0, gzip);
        assert_eq!((whole.len(), whole[0].chunks.generated, whole[0].timing.gaps.count(), stats.events), (1, 1000, 999, 1001));
        assert_eq!(format!("{:?}", run(&steps, 5, gzip).0), format!("{whole:?}"));
    }
}
