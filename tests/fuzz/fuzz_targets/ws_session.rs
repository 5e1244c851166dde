//! Conversations on an upgraded connection, from frames to records. Parts of the input are parted by 0xff; the first byte of each says what
//! it is: a message of a side, raw bytes of a side, a gap, an end.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::pipeline::{Options, Pipeline};
use tokengauge_core::stream::{ConnId, ConnInfo, Direction, End, GapReason, Side, StreamEvent, TapKind};
use tokengauge_core::ws::build::{Deflater, frame};
use tokengauge_fuzz::at;

const PATHS: [&str; 4] = ["/v1/realtime?model=m", "/v1/responses", "/ws/x.BidiGenerateContent", "/somewhere"];

fuzz_target!(|data: &[u8]| {
    let Some((&how, rest)) = data.split_first() else { return };
    let (mut pipeline, mut out) = (Pipeline::new(Options::default()), Vec::new());
    let conn = ConnId(1);
    let info = ConnInfo { tap: TapKind::Pcap, side: Side::Middle, endpoints: None, process: None, from_start: true };
    let _ = pipeline.push(StreamEvent::Open { conn, at: at(0), info }, &mut out);
    let (extension, mut deflate) = match how / 4 % 3 {
        0 => ("", None),
        1 => ("sec-websocket-extensions: permessage-deflate\r\n", Some([Deflater::new(true), Deflater::new(true)])),
        _ => (
            "sec-websocket-extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n",
            Some([Deflater::new(false), Deflater::new(false)]),
        ),
    };
    let ask = format!("GET {} HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", PATHS[usize::from(how % 4)]);
    let answer = format!("HTTP/1.1 101 -\r\nupgrade: websocket\r\n{extension}\r\n");
    for (dir, text) in [(Direction::Forward, ask), (Direction::Reverse, answer)] {
        let _ = pipeline.push(StreamEvent::Data { conn, dir, at: at(1), bytes: text.as_bytes() }, &mut out);
    }
    let mut last = 2;
    for (n, part) in rest.split(|b| *b == 0xff).enumerate() {
        let at = at(n as u64 + 2);
        last = n as u64 + 3;
        let Some((command, text)) = part.split_first() else { continue };
        let dir = if command.is_ascii_uppercase() || matches!(command, b'>' | b'}' | b')') { Direction::Forward } else { Direction::Reverse };
        let key = (dir == Direction::Forward).then_some([1, 2, 3, 4]);
        let event = match command {
            b'>' | b'<' => {
                let coded = deflate.as_mut().map(|d| d[dir.index()].message(text));
                let first = if coded.is_some() { 0xc1 } else { 0x81 };
                let bytes = frame(first, coded.as_deref().unwrap_or(text), key);
                let _ = pipeline.push(StreamEvent::Data { conn, dir, at, bytes: &bytes }, &mut out);
                continue;
            }
            b'}' | b'{' => {
                let bytes = frame(0x81, text, key);
                let _ = pipeline.push(StreamEvent::Data { conn, dir, at, bytes: &bytes }, &mut out);
                continue;
            }
            b'C' | b'c' => {
                let bytes = frame(0x88, text.get(..2).unwrap_or_default(), key);
                let _ = pipeline.push(StreamEvent::Data { conn, dir, at, bytes: &bytes }, &mut out);
                continue;
            }
            b')' | b'(' => StreamEvent::Data { conn, dir, at, bytes: text },
            b'G' | b'g' => StreamEvent::Gap { conn, dir, at, len: text.first().map(|b| u64::from(*b)), reason: GapReason::PacketLost },
            b'F' | b'f' => StreamEvent::Close { conn, at, end: End::Finished(dir) },
            b'R' | b'r' => StreamEvent::Close { conn, at, end: End::Reset(dir) },
            b't' => {
                pipeline.tick(at, &mut out);
                continue;
            }
            _ => continue,
        };
        let _ = pipeline.push(event, &mut out);
    }
    let _ = pipeline.push(StreamEvent::Close { conn, at: at(last), end: End::InputEnded }, &mut out);
    out.iter().for_each(tokengauge_fuzz::check);
    let stats = pipeline.stats();
    assert!(stats.open_connections == 0 && stats.in_flight == 0 && stats.inferences == out.len() as u64);
    assert!(stats.inferences + stats.non_llm <= stats.exchanges);
});
