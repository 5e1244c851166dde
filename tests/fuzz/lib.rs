//! What the targets share: how an input is cut into pieces, and what must hold whatever it is.

use tokengauge_core::dialect::conversation::{Conversation, MAX_TURNS, TurnEvent};
use tokengauge_core::dialect::{Dialect, LlmEvent};
use tokengauge_core::framing::Frame;
use tokengauge_core::http::event::Side as Half;
use tokengauge_core::http::head::Coding;
use tokengauge_core::inference::Inference;
use tokengauge_core::stream::{ConnId, ConnInfo, Direction, End, GapReason, Side, StreamEvent, TapKind, Timestamp};

/// Cuts an input into pieces: its first byte says how large they are.
pub fn pieces(data: &[u8]) -> Option<(usize, std::slice::Chunks<'_, u8>)> {
    let (first, rest) = data.split_first()?;
    let size = usize::from(*first % 64) + 1;
    Some((size, rest.chunks(size)))
}

/// What a framer gives for `pieces`, as bytes to compare: a byte [`HOLE`] in them is a hole.
#[macro_export]
macro_rules! frames {
    ($framer:expr, $pieces:expr) => {{
        use tokengauge_core::framing::Unit;
        let (mut framer, mut out) = ($framer, Vec::new());
        let mut see = |unit: Unit<'_>| match unit {
            Unit::Event(frame) => out.extend([b"\x00e", frame.name, b"\x00d", frame.data, &[u8::from(frame.error)]].concat()),
            Unit::KeepAlive => out.push(1),
            Unit::Odd(what) => out.extend([2, what as u8]),
            Unit::End => out.push(3),
        };
        for piece in $pieces {
            for (n, part) in piece.split(|b| *b == $crate::HOLE).enumerate() {
                if n > 0 {
                    framer.hole();
                }
                framer.push(part, &mut see);
            }
        }
        framer.finish(&mut see);
        out
    }};
}

/// The byte that stands for a hole.
pub const HOLE: u8 = 0xfe;

/// The instant of step `n`.
pub fn at(n: u64) -> Timestamp {
    Timestamp::from_unix_nanos(1_700_000_000_000_000_000 + n * 7_000_000)
}

/// The coding that a byte chooses.
pub fn coding(byte: u8) -> Coding {
    match byte % 4 {
        0 => Coding::Gzip,
        1 => Coding::Deflate,
        2 => Coding::Brotli,
        _ => Coding::Zstd,
    }
}

/// Gives a reader events of a stream, one a line (`name {data}`), and checks that what it remembers of one changes nothing at another; then
/// everything as a whole answer.
pub fn reader(dialect: &dyn Dialect, data: &[u8]) {
    let lasting = |events: Vec<LlmEvent>| -> Vec<LlmEvent> {
        events.into_iter().filter(|e| !matches!(e, LlmEvent::Started { .. } | LlmEvent::Usage(_))).collect()
    };
    let mut reader = dialect.reader();
    for line in data.split(|b| *b == b'\n') {
        let (name, data) = line.split_at(line.iter().position(|b| *b == b'{').unwrap_or(0));
        let frame = Frame { name: name.trim_ascii(), data, error: name.starts_with(b"!") };
        let (mut with, mut without) = (Vec::new(), Vec::new());
        assert_eq!(reader.frame(frame, &mut with), dialect.reader().frame(frame, &mut without));
        assert_eq!(lasting(with), lasting(without));
    }
    dialect.reader().answer(data, &mut Vec::new());
}

/// Events of a stream, one a line, to a reader that compares an event with those before it: the same lines give the same again, and
/// nothing is counted that does not stand in the line.
pub fn comparing(dialect: &dyn Dialect, data: &[u8]) {
    let (mut one, mut two) = (dialect.reader(), dialect.reader());
    for line in data.split(|b| *b == b'\n') {
        let (name, data) = line.split_at(line.iter().position(|b| *b == b'{').unwrap_or(0));
        let frame = Frame { name: name.trim_ascii(), data, error: false };
        let (mut first, mut again) = (Vec::new(), Vec::new());
        assert_eq!(one.frame(frame, &mut first), two.frame(frame, &mut again));
        assert_eq!(first, again);
        let deltas = first.iter().filter(|e| matches!(e, LlmEvent::Delta { .. })).count();
        assert!(deltas <= data.len() && (deltas == 0 || data.contains(&b'"')));
    }
    dialect.reader().answer(data, &mut Vec::new());
}

/// A script of stream events. A byte `0xff` begins a command: the next byte says which; everything else is bytes of the direction
/// at hand. So the seeds are readable conversations.
pub fn script(data: &[u8], mut push: impl FnMut(StreamEvent<'_>)) {
    let conn = ConnId(1);
    let info = ConnInfo { tap: TapKind::Tls, side: Side::Local, endpoints: None, process: None, from_start: true };
    push(StreamEvent::Open { conn, at: at(0), info });
    let (mut dir, mut n) = (Direction::Forward, 1);
    for (i, part) in data.split(|b| *b == 0xff).enumerate() {
        let bytes = if i == 0 {
            part
        } else {
            let Some((command, rest)) = part.split_first() else { continue };
            let len = rest.first().map(|b| u64::from(*b));
            match command {
                b'>' => dir = Direction::Forward,
                b'<' => dir = Direction::Reverse,
                b'g' => push(StreamEvent::Gap { conn, dir, at: at(n), len, reason: GapReason::PacketLost }),
                b'G' => push(StreamEvent::Gap { conn, dir, at: at(n), len: None, reason: GapReason::RingFull }),
                b'f' => push(StreamEvent::Close { conn, at: at(n), end: End::Finished(dir) }),
                b'r' => push(StreamEvent::Close { conn, at: at(n), end: End::Reset(dir) }),
                b'i' => push(StreamEvent::Close { conn, at: at(n), end: End::Idle }),
                _ => {}
            }
            n += 1;
            rest
        };
        if !bytes.is_empty() {
            push(StreamEvent::Data { conn, dir, at: at(n), bytes });
        }
    }
    push(StreamEvent::Close { conn, at: at(n), end: End::InputEnded });
}

/// What holds for every record.
pub fn check(i: &Inference) {
    let (t, c) = (&i.timing, &i.chunks);
    assert!(c.generated <= c.events && c.reasoning <= c.generated && c.arrivals <= c.generated);
    assert!(t.gaps.count() <= u64::from(c.generated) * 128);
    assert!(t.tpot.is_err() || t.tpot.is_ok_and(|s| s.is_finite() && s >= 0.0) && i.usage.is_some());
    assert!(t.ttft.is_err() || i.is_stream() && c.generated > 0);
    if let (Ok(ttft), Ok(duration)) = (t.ttft, t.duration) {
        assert!(ttft <= duration || t.end < t.start.plus(ttft));
    }
    assert!(i.gaps == 0 || t.duration.is_err());
    assert_eq!(i.error.is_some(), i.outcome == tokengauge_core::inference::Outcome::Failed);
}

/// Holds a conversation: lines that begin with `>` are the client's messages, with `<` the server's; `!` and `?` are messages of theirs
/// that are missing.
pub fn converse(conversation: Option<Box<dyn Conversation>>, data: &[u8]) {
    let mut conversation = conversation.expect("it has one");
    let (mut begun, mut running) = (0, Vec::new());
    let (mut out, mut says) = (Vec::new(), Vec::new());
    for line in data.split(|b| *b == b'\n') {
        let Some((who, text)) = line.split_first() else { continue };
        says.clear();
        match who {
            b'>' => conversation.message(Half::Request, text, &mut out, &mut says),
            b'<' => conversation.message(Half::Response, text, &mut out, &mut says),
            b'!' => conversation.missing(Half::Request, &mut out),
            b'?' => conversation.missing(Half::Response, &mut out),
            _ => continue,
        }
        for event in out.drain(..) {
            match event {
                TurnEvent::Begin(id, _) => {
                    assert_eq!(id, begun);
                    begun += 1;
                    running.push(id);
                }
                TurnEvent::Over(id) | TurnEvent::Lost(id) => {
                    assert!(running.contains(&id));
                    running.retain(|r| *r != id);
                }
                TurnEvent::Event(id, _) | TurnEvent::Aside(id) | TurnEvent::Suspected(id) | TurnEvent::Pardoned(id) => {
                    assert!(running.contains(&id));
                }
                TurnEvent::Mark | TurnEvent::Odd(_) => {}
            }
        }
        assert!(running.len() <= MAX_TURNS + 1);
    }
}
