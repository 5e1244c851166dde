use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::super::build::{Special, Talk};
use super::*;
use crate::stream::{ConnInfo, GapReason, Side, TapKind};
use crate::tcp::build::Who;

const CONN: ConnId = ConnId(7);
const SUITES: [u16; 6] = [0x1301, 0x1302, 0x1303, 0xc02f, 0xc030, 0xcca8];

fn at(n: u64) -> Timestamp {
    Timestamp::from_unix_nanos(n)
}

fn dir(who: Who) -> Direction {
    if who == Who::Client { Direction::Forward } else { Direction::Reverse }
}

fn open(from_start: bool) -> StreamEvent<'static> {
    let info = ConnInfo { tap: TapKind::Pcap, side: Side::Middle, endpoints: None, process: None, from_start };
    StreamEvent::Open { conn: CONN, at: at(0), info }
}

/// What came out.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
struct Got {
    data: [Vec<u8>; 2],
    /// (direction, instant, bytes of its direction up to there)
    pieces: Vec<(Direction, u64, usize)>,
    gaps: Vec<(Direction, Option<u64>, usize)>,
    ends: Vec<End>,
    muted: bool,
}

impl Got {
    fn take(&mut self, event: &StreamEvent<'_>) -> Verdict {
        match event {
            StreamEvent::Data { dir, bytes, at, .. } => {
                self.data[dir.index()].extend_from_slice(bytes);
                self.pieces.push((*dir, at.unix_nanos(), self.data[dir.index()].len()));
            }
            StreamEvent::Gap { dir, len, .. } => self.gaps.push((*dir, *len, self.data[dir.index()].len())),
            StreamEvent::Close { end, .. } => self.ends.push(*end),
            StreamEvent::Open { .. } | StreamEvent::Identified { .. } => {}
        }
        Verdict::Watch
    }
}

struct Run {
    stage: Decrypt,
    got: Got,
    now: u64,
}

impl Run {
    fn new(log: &str) -> Self {
        let mut keys = KeyLog::new();
        keys.read(log.as_bytes()).unwrap();
        let mut run = Self { stage: Decrypt::new(keys.into()), got: Got::default(), now: 0 };
        run.push(open(true));
        run
    }

    fn push(&mut self, event: StreamEvent<'_>) {
        let got = &mut self.got;
        let verdict = self.stage.push(event, &mut |event| got.take(&event));
        self.got.muted |= verdict == Verdict::Mute;
    }

    fn data(&mut self, who: Who, bytes: &[u8]) {
        self.now += 1;
        self.push(StreamEvent::Data { conn: CONN, dir: dir(who), at: at(self.now), bytes });
    }

    fn gap(&mut self, who: Who, len: Option<u64>) {
        self.now += 1;
        self.push(StreamEvent::Gap { conn: CONN, dir: dir(who), at: at(self.now), len, reason: GapReason::PacketLost });
    }

    fn close(&mut self, end: End) {
        self.now += 1;
        self.push(StreamEvent::Close { conn: CONN, at: at(self.now), end });
    }

    fn anomalies(&self) -> String {
        self.stage.anomalies().iter().map(|(a, n)| format!("{} {n} ", a.as_str())).collect()
    }
}

fn whole(talk: &Talk, size: usize) -> Run {
    let mut run = Run::new(&talk.key_log());
    for (who, bytes) in &talk.sent {
        bytes.chunks(size).for_each(|piece| run.data(*who, piece));
    }
    run
}

/// A conversation with everything in it.
fn long(number: u16, special: &Special<'_>) -> Talk {
    let talk = Talk::new(number, 3).unwrap().handshake(special);
    let tls13 = number >> 8 == 0x13;
    let update = |talk: Talk, who: Who| if tls13 { talk.update(who) } else { talk };
    let talk = if tls13 { talk.ticket().ticket() } else { talk };
    let talk = talk.say(Who::Client, b"POST / HTTP/1.1\r\n\r\n", 0).say(Who::Server, &[b'a'; 300], 0);
    let talk = update(update(talk, Who::Server), Who::Server).say(Who::Server, b"after two updates", 9).say(Who::Server, b"", 0);
    let first = talk.sent.len();
    let talk = talk.say(Who::Server, b"several ", 0).say(Who::Server, b"in one ", 100).say(Who::Server, &[b's'; 16000], 0).together(first);
    update(talk, Who::Client).say(Who::Client, b"and more", 0).alert(Who::Client, 1, 0).alert(Who::Server, 1, 0)
}

const SPECIALS: [Special<'static>; 7] = [
    Special { retry: false, early: None, pieces: 0, certificates: 1000 },
    Special { retry: false, early: None, pieces: 7, certificates: 300 },
    Special { retry: true, early: None, pieces: 0, certificates: 5000 },
    Special { retry: false, early: Some((b"GET /early", true)), pieces: 0, certificates: 0 },
    Special { retry: false, early: Some((b"GET /early", false)), pieces: 50, certificates: 0 },
    Special { retry: true, early: Some((b"GET /early", false)), pieces: 0, certificates: 0 },
    Special { retry: false, early: None, pieces: 0, certificates: 40_000 },
];

#[test]
fn what_was_said_comes_out() {
    for number in SUITES {
        for special in &SPECIALS {
            if (special.retry || special.early.is_some()) && number >> 8 != 0x13 {
                continue;
            }
            let special =
                if number >> 8 == 0x13 && special.certificates > 16_000 { Special { pieces: 9000, ..*special } } else { *special };
            let special = if special.certificates > 16_000 { Special { pieces: 9000, ..special } } else { special };
            let talk = long(number, &special);
            for size in [1, 5, 33, 1448, 1 << 20] {
                let run = whole(&talk, size);
                assert!(run.got.data == talk.said, "{number:04x} {special:?} {size}: {:?}", run.got.data.each_ref().map(Vec::len));
                assert_eq!(run.got.ends, [End::Finished(Direction::Forward), End::Finished(Direction::Reverse)]);
                assert_eq!((run.anomalies(), &run.got.gaps[..], run.got.muted), (String::new(), &[][..], false));
                assert_eq!(run.stage.counters().connections, 1);
                assert_eq!(run.stage.buffered, 0);
            }
        }
    }
}

#[test]
fn tls_1_2_may_agree_again() {
    for number in [0xc02f, 0xc030, 0xcca8] {
        let talk =
            Talk::new(number, 3).unwrap().handshake(&Special::default()).say(Who::Client, b"before", 0).say(Who::Server, b"first", 0);
        let talk = talk.renegotiate(4).say(Who::Client, b" and after", 0).say(Who::Server, b" and last", 0);
        for size in [1, 40, 1 << 20] {
            let run = whole(&talk, size);
            assert!(run.got.data == talk.said, "{number:04x} {size}");
            assert_eq!((run.anomalies(), &run.got.gaps[..]), (String::new(), &[][..]));
        }
    }
}

#[test]
fn a_piece_has_the_instant_of_the_bytes_that_completed_its_record() {
    let talk = Talk::new(0x1301, 1).unwrap().handshake(&Special::default()).say(Who::Server, &[1; 10], 0).say(Who::Server, &[2; 20], 0);
    let mut run = whole(&talk, 1 << 20);
    let begin = run.now;
    assert_eq!(run.got.pieces, [(Direction::Reverse, begin - 1, 10), (Direction::Reverse, begin, 30)]);
    let mut again = talk.say(Who::Server, &[3; 30], 0).say(Who::Server, &[4; 40], 0);
    let (_, last) = again.sent.pop().unwrap();
    let (_, first) = again.sent.pop().unwrap();
    run.data(Who::Server, &first[..3]);
    run.data(Who::Server, &first[3..20]);
    run.data(Who::Server, &[&first[20..], &last[..4]].concat());
    run.data(Who::Server, &last[4..]);
    assert_eq!(run.got.pieces[2..], [(Direction::Reverse, begin + 3, 60), (Direction::Reverse, begin + 4, 100)]);
}

/// Every write as a segment, one of them not captured: what comes out is a part of what was said, and what is missing is behind a gap.
#[test]
fn whatever_is_lost_is_said() {
    for number in SUITES {
        let special = Special { certificates: 2500, ..Special::default() };
        let talk = long(number, &special);
        let mut segments: Vec<(Who, &[u8])> = talk.sent.iter().flat_map(|(who, b)| b.chunks(700).map(|c| (*who, c))).collect();
        segments.pop();
        for lost in 0..segments.len() {
            for known in [true, false] {
                let mut run = Run::new(&talk.key_log());
                for (n, (who, bytes)) in segments.iter().enumerate() {
                    if n == lost {
                        run.gap(*who, known.then_some(bytes.len() as u64));
                    } else {
                        run.data(*who, bytes);
                    }
                }
                run.close(End::InputEnded);
                // without the client hello nothing can be read, nor without TLS 1.2's server hello
                assert!(!run.got.muted || lost == 0 || number >> 8 != 0x13 && lost == 1, "{number:04x} {lost}: muted");
                check_loss(&format!("{number:04x} {lost} {known}"), &talk, &run);
            }
        }
    }
}

/// What came out is what was said but for what gaps admit.
fn check_loss(what: &str, talk: &Talk, run: &Run) {
    for side in [Direction::Forward, Direction::Reverse] {
        let (said, got) = (&talk.said[side.index()], &run.got.data[side.index()]);
        let gaps: Vec<_> = run.got.gaps.iter().filter(|g| g.0 == side).collect();
        // let go, or not even recognised
        if run.got.muted || run.stage.counters().connections == 0 {
            continue;
        }
        if gaps.is_empty() {
            assert!(said == got, "{what} {side:?}: {} of {} bytes without a gap; {}", got.len(), said.len(), run.anomalies());
            continue;
        }
        // the pieces between the gaps stand in what was said, in order
        let mut rest = &said[..];
        let mut begin = 0;
        for (n, end) in gaps.iter().map(|g| g.2).chain([got.len()]).enumerate() {
            let piece = &got[begin..end];
            let at = if piece.is_empty() { Some(0) } else { rest.windows(piece.len()).position(|w| w == piece) };
            let Some(at) = at.filter(|at| n > 0 || *at == 0) else { panic!("{what}: {side:?} was not said: {:?}", piece.len()) };
            if let Some(len) = n.checked_sub(1).and_then(|n| gaps[n].1) {
                assert!(rest[len as usize..].starts_with(piece), "{what}: the gap's length is wrong");
            }
            rest = &rest[at + piece.len()..];
            begin = end;
        }
    }
}

#[test]
fn the_stream_goes_on_behind_a_loss() {
    for number in SUITES {
        let mut talk = Talk::new(number, 3).unwrap().handshake(&Special::default());
        let ready = talk.sent.len();
        for n in 0..100u8 {
            talk = talk.say(Who::Server, &[n; 150], 0);
        }
        let stream: Vec<u8> = talk.sent[ready..].iter().flat_map(|(_, b)| b.clone()).collect();
        let record = talk.sent[ready].1.len();
        // (begin and end of the hole, bytes of plaintext that come out)
        for (begin, end, lost) in [
            (record, 2 * record, 1),
            (record + 5, 2 * record, 1),
            (record + 3, 2 * record, 1),
            (record + 5, 2 * record + 1, 2),
            (record, 41 * record + 7, 41),
            (0, record, 1),
            (10, 60 * record + 30, 61),
        ] {
            let mut run = Run::new(&talk.key_log());
            talk.sent[..ready].iter().for_each(|(who, b)| run.data(*who, b));
            stream[..begin].chunks(100).for_each(|piece| run.data(Who::Server, piece));
            run.gap(Who::Server, Some((end - begin) as u64));
            stream[end..].chunks(100).for_each(|piece| run.data(Who::Server, piece));
            assert_eq!(run.got.data[1].len(), (100 - lost) * 150, "{number:04x} {begin} {end}");
            assert!(run.got.data[1].ends_with(&[99; 150]));
            // the length is known when the header of the one record was seen, and TLS 1.2 hides nothing
            let len = (number >> 8 != 0x13 && begin % record >= 5 && lost == 1).then_some(150);
            assert_eq!(run.got.gaps, [(Direction::Reverse, len, begin / record * 150)], "{number:04x} {begin} {end}");
            assert_eq!(run.anomalies(), "");
        }
    }
}

#[test]
fn a_damaged_record_costs_itself_only() {
    for number in SUITES {
        let mut talk = Talk::new(number, 3).unwrap().handshake(&Special::default());
        for n in 0..5u8 {
            talk = talk.say(Who::Server, &[n; 50], 0);
        }
        let damaged = talk.sent.len() - 3;
        talk.sent[damaged].1[20] ^= 1;
        let run = whole(&talk, 1 << 20);
        assert_eq!(run.got.data[1].len(), 200);
        assert_eq!(run.got.gaps, [(Direction::Reverse, None, 100)]);
        assert_eq!(run.anomalies(), "tls_bad_record 1 ");
        // a damaged header is no header
        talk.sent[damaged].1[20] ^= 1;
        talk.sent[damaged].1[0] ^= 0x80;
        let run = whole(&talk, 1 << 20);
        assert_eq!((run.got.data[1].len(), run.anomalies().as_str()), (200, "tls_bad_record 1 "));
    }
}

/// The story of one connection as text.
fn story(log: &str, from_start: bool, steps: &[(&str, Vec<u8>)], want: Expect) {
    let mut keys = KeyLog::new();
    keys.read(log.as_bytes()).unwrap();
    let mut stage = Decrypt::new(keys.into());
    let mut text = String::new();
    let mut push = |stage: &mut Decrypt, event: StreamEvent<'_>| {
        let verdict = stage.push(event, &mut |event| {
            text.push_str(&match event {
                StreamEvent::Open { .. } => "open\n".into(),
                StreamEvent::Identified { .. } => "identified\n".into(),
                StreamEvent::Data { dir, at, bytes, .. } => {
                    format!("{} {dir:?} {}\n", at.unix_nanos(), String::from_utf8_lossy(&bytes[..bytes.len().min(20)]).escape_debug())
                }
                StreamEvent::Gap { dir, len, .. } => format!("gap {dir:?} {len:?}\n"),
                StreamEvent::Close { end, .. } => format!("{end:?}\n"),
            });
            Verdict::Watch
        });
        if verdict == Verdict::Mute {
            text.push_str("mute\n");
        }
    };
    push(&mut stage, open(from_start));
    for (n, (what, bytes)) in steps.iter().enumerate() {
        let at = at(n as u64 + 1);
        let dir = if what.contains('<') { Direction::Reverse } else { Direction::Forward };
        push(
            &mut stage,
            match &what[..1] {
                "?" => StreamEvent::Gap { conn: CONN, dir, at, len: None, reason: GapReason::PacketLost },
                "f" => StreamEvent::Close { conn: CONN, at, end: End::Finished(dir) },
                "r" => StreamEvent::Close { conn: CONN, at, end: End::Reset(dir) },
                _ => StreamEvent::Data { conn: CONN, dir, at, bytes },
            },
        );
    }
    text.extend(stage.anomalies().iter().map(|(a, n)| format!("{} {n}\n", a.as_str())));
    assert!(stage.conns.is_empty() || !steps.last().unwrap().0.starts_with(['f', 'r']), "the connection is remembered");
    want.assert_eq(&text);
}

fn steps(talk: &Talk) -> Vec<(&'static str, Vec<u8>)> {
    talk.sent.iter().map(|(who, b)| (if *who == Who::Client { ">" } else { "<" }, b.clone())).collect()
}

#[test]
fn what_is_not_tls_passes_untouched() {
    story(
        "",
        true,
        &[(">", b"GET / HTTP/1.1".into()), ("<", b"\x16\x03".into()), ("?<", vec![]), ("f>", vec![]), ("f<", vec![])],
        expect![[r#"
            open
            1 Forward GET / HTTP/1.1
            2 Reverse \u{16}\u{3}
            gap Reverse None
            Finished(Forward)
            Finished(Reverse)
        "#]],
    );
    // what looked like TLS for a moment keeps its instants
    story(
        "",
        true,
        &[(">", b"\x16\x03".into()), ("<", b"\x16".into()), (">", b"\x01\xff\xff!".into()), ("r<", vec![])],
        expect![[r#"
            open
            1 Forward \u{16}\u{3}
            2 Reverse \u{16}
            3 Forward \u{1}��!
            Reset(Reverse)
        "#]],
    );
    story(
        "",
        true,
        &[(">", b"\x16\x03".into()), ("r>", vec![])],
        expect![[r#"
        open
        1 Forward \u{16}\u{3}
        Reset(Forward)
    "#]],
    );
}

#[test]
fn why_a_connection_cannot_be_read() {
    let talk = long(0x1301, &Special::default());
    let mut ended = steps(&talk);
    ended.extend([("f>", vec![]), ("f<", vec![])]);
    story(
        "",
        true,
        &ended,
        expect![[r#"
        open
        Evicted
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        tls_no_key 1
    "#]],
    );
    let log = talk.key_log();
    story(
        &log.replace("SERVER_TRAFFIC", "SERVER_NO"),
        true,
        &ended,
        expect![[r#"
        open
        Evicted
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        tls_no_key 1
    "#]],
    );
    story(
        &log,
        true,
        &ended[3..],
        expect![[r#"
        open
        Evicted
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        tls_missed_start 1
    "#]],
    );
    story(
        &log,
        false,
        &[&[("<", b"the end of a record".to_vec())], &ended[4..]].concat(),
        expect![[r#"
        open
        1 Reverse the end of a record
        Evicted
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        tls_missed_start 1
    "#]],
    );
    // the client hello is missing
    story(
        &log,
        true,
        &[&[("?>", vec![])], &ended[1..]].concat(),
        expect![[r#"
        open
        gap Forward None
        Evicted
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        tls_missed_start 1
    "#]],
    );
    let mut unsupported = ended;
    unsupported[1].1[5 + 4 + 2 + 32 + 3] = 0xc0;
    story(
        &log,
        true,
        &unsupported,
        expect![[r#"
        open
        Evicted
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        mute
        tls_unsupported 1
    "#]],
    );
}

#[test]
fn alerts_and_ends() {
    let talk = |level, description| {
        let talk = Talk::new(0x1301, 9).unwrap().handshake(&Special::default()).say(Who::Client, b"hello", 0);
        talk.alert(Who::Client, level, description)
    };
    let log = talk(1, 0).key_log();
    let rest = [("<", vec![]), ("f>", vec![]), ("f<", vec![])];
    for (level, description, want) in [
        (
            1,
            0,
            expect![[r#"
            open
            4 Forward hello
            Finished(Forward)
            Finished(Reverse)
        "#]],
        ),
        (
            1,
            90,
            expect![[r#"
            open
            4 Forward hello
            Finished(Forward)
            Finished(Reverse)
        "#]],
        ),
        (
            2,
            80,
            expect![[r#"
            open
            4 Forward hello
            Reset(Forward)
        "#]],
        ),
    ] {
        story(&log, true, &[&steps(&talk(level, description))[..], &rest].concat(), want);
    }
}

#[test]
fn keys_that_are_missing_for_a_part() {
    let special = Special { early: Some((b"GET /early", true)), ..Special::default() };
    let talk = Talk::new(0x1303, 9).unwrap().handshake(&special).say(Who::Client, b"hello", 0).say(Who::Server, b"world", 0);
    let log = talk.key_log();
    story(
        &log.replace("HANDSHAKE", "NO"),
        true,
        &steps(&talk),
        expect![[r#"
        open
        1 Forward GET /early
        4 Forward hello
        5 Reverse world
    "#]],
    );
    story(
        &log.replace("EARLY", "NO"),
        true,
        &steps(&talk),
        expect![[r#"
        open
        gap Forward None
        4 Forward hello
        5 Reverse world
        tls_early_data 1
    "#]],
    );
    // the server's choice was not captured: the secrets tell it
    let mut lost = steps(&talk);
    lost[1] = ("?<", vec![]);
    story(
        &log,
        true,
        &lost,
        expect![[r#"
        open
        1 Forward GET /early
        4 Forward hello
        5 Reverse world
    "#]],
    );
    let talk = Talk::new(0x1303, 9).unwrap().handshake(&Special::default()).say(Who::Client, b"hello", 0);
    let mut lost = steps(&talk.say(Who::Server, b"world", 0));
    lost[1] = ("?<", vec![]);
    story(
        &log,
        true,
        &lost,
        expect![[r#"
        open
        4 Forward hello
        5 Reverse world
    "#]],
    );
}

/// The handshake and data of RFC 8448 §3, without the session ticket: it is taken for lost.
#[test]
fn the_trace_of_rfc_8448() {
    const RANDOM: &str = "cb34ecb1e78163ba1c38c6dacb196a6dffa21a8d9912ec18a2ef6283024dece7";
    let log = format!(
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET {RANDOM} b3eddb126e067f35a780b3abf45e2d8f3b1a950738f52e9600746a0e27a55a21\n\
         SERVER_HANDSHAKE_TRAFFIC_SECRET {RANDOM} b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38\n\
         CLIENT_TRAFFIC_SECRET_0 {RANDOM} 9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5\n\
         SERVER_TRAFFIC_SECRET_0 {RANDOM} a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643\n"
    );
    let records = [
        (
            ">",
            "16030100c4010000c00303cb34ecb1e78163ba1c38c6dacb196a6dffa21a8d9912ec18a2ef6283024dece7000006130113031302010000910000000b
             0009000006736572766572ff01000100000a00140012001d0017001800190100010101020103010400230000003300260024001d002099381de560e4
             bd43d23d8e435a7dbafeb3c06e51c13cae4d5413691e529aaf2c002b0003020304000d0020001e040305030603020308040805080604010501060102
             010402050206020202002d00020101001c00024001",
        ),
        (
            "<",
            "160303005a020000560303a6af06a4121860dc5e6e60249cd34c95930c8ac5cb1434dac155772ed3e2692800130100002e00330024001d0020c98288
             76112095fe66762bdbf7c672e156d6cc253b833df1dd69b1b04e751f0f002b00020304",
        ),
        (
            "<",
            "17030302a2d1ff334a56f5bff6594a07cc87b580233f500f45e489e7f33af35edf7869fcf40aa40aa2b8ea73f848a7ca07612ef9f945cb960b406890
             5123ea78b111b429ba9191cd05d2a389280f526134aadc7fc78c4b729df828b5ecf7b13bd9aefb0e57f271585b8ea9bb355c7c79020716cfb9b1183e
             f3ab20e37d57a6b9d7477609aee6e122a4cf51427325250c7d0e509289444c9b3a648f1d71035d2ed65b0e3cdd0cbae8bf2d0b227812cbb360987255
             cc744110c453baa4fcd610928d809810e4b7ed1a8fd991f06aa6248204797e36a6a73b70a2559c09ead686945ba246ab66e5edd8044b4c6de3fcf2a8
             9441ac66272fd8fb330ef8190579b3684596c960bd596eea520a56a8d650f563aad27409960dca63d3e688611ea5e22f4415cf9538d51a200c270342
             72968a264ed6540c84838d89f72c24461aad6d26f59ecaba9acbbb317b66d902f4f292a36ac1b639c637ce343117b659622245317b49eeda0c6258f1
             00d7d961ffb138647e92ea330faeea6dfa31c7a84dc3bd7e1b7a6c7178af36879018e3f252107f243d243dc7339d5684c8b0378bf30244da8c87c843
             f5e56eb4c5e8280a2b48052cf93b16499a66db7cca71e4599426f7d461e66f99882bd89fc50800becca62d6c74116dbd2972fda1fa80f85df881edbe
             5a37668936b335583b599186dc5c6918a396fa48a181d6b6fa4f9d62d513afbb992f2b992f67f8afe67f76913fa388cb5630c8ca01e0c65d11c66a1e
             2ac4c85977b7c7a6999bbf10dc35ae69f5515614636c0b9b68c19ed2e31c0b3b66763038ebba42f3b38edc0399f3a9f23faa63978c317fc9fa66a73f
             60f0504de93b5b845e275592c12335ee340bbc4fddd502784016e4b3be7ef04dda49f4b440a30cb5d2af939828fd4ae3794e44f94df5a631ede42c17
             19bfdabf0253fe5175be898e750edc53370d2b",
        ),
        (">", "170303003575ec4dc238cce60b298044a71e219c56cc77b0517fe9b93c7a4bfc44d87f38f80338ac98fc46deb384bd1caeacab6867d726c40546"),
        ("?<", ""),
        (
            ">",
            "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd
             1e3deae63aeebb21694915e4",
        ),
        (
            "<",
            "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc49c4bf2e5f0a21c0047c2
             abf332540dd032e167c2955d",
        ),
        (">", "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3"),
        ("<", "1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9"),
    ];
    let bytes = |hex: &str| {
        let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks(2).map(|d| (d[0] << 4 | d[1]) as u8).collect::<Vec<u8>>()
    };
    let steps: Vec<_> = records.iter().map(|(what, hex)| (*what, bytes(hex))).collect();
    story(
        &log,
        true,
        &steps,
        expect![[r#"
        open
        6 Forward \0\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}\u{7}\u{8}\t\n\u{b}\u{c}\r\u{e}\u{f}\u{10}\u{11}\u{12}\u{13}
        gap Reverse None
        7 Reverse \0\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}\u{7}\u{8}\t\n\u{b}\u{c}\r\u{e}\u{f}\u{10}\u{11}\u{12}\u{13}
        Finished(Forward)
        Finished(Reverse)
    "#]],
    );
}

#[test]
fn a_mute_from_downstream_ends_it() {
    let talk = long(0x1301, &Special::default());
    let mut stage = Decrypt::default();
    stage.secrets(talk.key_log().as_bytes());
    let (mut seen, mut verdicts) = (0, Vec::new());
    let mut sink = |event: StreamEvent<'_>| {
        let data = matches!(event, StreamEvent::Data { .. });
        seen += u32::from(data);
        if data { Verdict::Mute } else { Verdict::Watch }
    };
    let _ = stage.push(open(true), &mut sink);
    for (who, bytes) in &talk.sent {
        verdicts.push(stage.push(StreamEvent::Data { conn: CONN, dir: dir(*who), at: at(1), bytes }, &mut sink));
    }
    let _ = stage.push(StreamEvent::Close { conn: CONN, at: at(2), end: End::Reset(Direction::Forward) }, &mut sink);
    assert_eq!(seen, 1);
    let first = verdicts.iter().position(|v| *v == Verdict::Mute).unwrap();
    assert!(verdicts[first..].iter().all(|v| *v == Verdict::Mute));
    assert!(stage.conns.is_empty() && stage.buffered == 0);
}

proptest! {
    #[test]
    fn cut_into_any_pieces_it_is_the_same(which in 0..6usize, special in 0..7usize, sizes in prop::collection::vec(1..64usize, 1..40)) {
        let special = SPECIALS[special];
        let special = if SUITES[which] >> 8 == 0x13 { special } else { Special { retry: false, early: None, ..special } };
        let special = Special { pieces: if special.certificates > 16_000 { 9000 } else { special.pieces }, ..special };
        let talk = long(SUITES[which], &special);
        let want = whole(&talk, 1 << 20);
        let mut run = Run::new(&talk.key_log());
        let mut sizes = sizes.iter().cycle();
        for (who, bytes) in &talk.sent {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, later) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
                run.data(*who, piece);
                rest = later;
            }
        }
        prop_assert_eq!(&run.got.data, &want.got.data);
        prop_assert_eq!(&run.got.ends, &want.got.ends);
        prop_assert_eq!(run.anomalies(), "");
    }

    /// Anything may be lost anywhere.
    #[test]
    fn nothing_is_invented(which in 0..6usize, size in 50..2000usize, holes in prop::collection::vec((0..60usize, any::<bool>()), 1..5)) {
        let talk = long(SUITES[which], &Special { certificates: 2500, ..Special::default() });
        let mut run = Run::new(&talk.key_log());
        let segments = talk.sent.iter().flat_map(|(who, b)| b.chunks(size).map(|c| (*who, c)));
        for (n, (who, bytes)) in segments.enumerate() {
            match holes.iter().find(|(at, _)| *at == n) {
                Some((_, known)) => run.gap(who, known.then_some(bytes.len() as u64)),
                None => run.data(who, bytes),
            }
        }
        run.close(End::InputEnded);
        check_loss("", &talk, &run);
    }
}
