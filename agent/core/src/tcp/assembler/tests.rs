//! Scripts for what must happen, and a model for what must never happen.

use std::fmt::Write as _;
use std::time::Duration;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::stream::Direction;
use crate::tcp::build::{Conversation, Fault, Packet, Who};

fn ms(ms: u64) -> Timestamp {
    Timestamp::from_unix_nanos(ms * 1_000_000)
}

/// What happened, one event per word; instants in milliseconds.
#[derive(Default)]
struct Log(String);

impl Log {
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
        let arrow = |dir| if dir == Direction::Forward { '>' } else { '<' };
        let at = |at: Timestamp| at.unix_nanos() as f64 / 1e6;
        match event {
            StreamEvent::Open { at: t, info, .. } => {
                let local = info.endpoints.unwrap().local.port();
                writeln!(self.0, "{} open {local}{}", at(t), if info.from_start { "" } else { " midstream" })
            }
            StreamEvent::Data { dir, at: t, bytes, .. } => writeln!(self.0, "{} {} {}", at(t), arrow(dir), String::from_utf8_lossy(bytes)),
            StreamEvent::Gap { dir, at: t, len, reason, .. } => {
                writeln!(self.0, "{} {} gap {:?} {}", at(t), arrow(dir), len, reason.as_str())
            }
            StreamEvent::Close { at: t, end, .. } => writeln!(self.0, "{} close {end:?}", at(t)),
            StreamEvent::Identified { .. } => Ok(()),
        }
        .unwrap();
        Verdict::Watch
    }
}

/// A script: one packet per line, `MS > FLAGS SEQ ACK PAYLOAD`; `-` stands for no payload, `!n` behind it for n bytes cut off; `MS tick`.
/// Sequence numbers count from the wrap-around.
fn run(script: &str, limits: Limits) -> (String, Assembler) {
    let mut assembler = Assembler::new(limits);
    let mut log = Log::default();
    let mut now = ms(0);
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        now = ms(words[0].parse().unwrap());
        if words[1] == "tick" {
            assembler.tick(now, &mut |event| log.event(event));
            continue;
        }
        let (client, server) = ("10.0.0.9:40000".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
        let (source, destination) = if words[1] == ">" { (client, server) } else { (server, client) };
        let flags = words[2].chars().fold(0, |flags, c| {
            flags
                | match c {
                    'S' => SYN,
                    'F' => FIN,
                    'R' => RST,
                    'A' => ACK,
                    _ => 0,
                }
        });
        let number = |word: &str| word.parse::<i64>().unwrap() as u32;
        let payload = words.get(5).filter(|word| **word != "-").map_or(Vec::new(), |word| word.as_bytes().to_vec());
        let missing = words.get(6).map_or(0, |word| word[1..].parse().unwrap());
        let packet = Packet { source, destination, seq: number(words[3]), ack: number(words[4]), flags, payload };
        assembler.push(now, &Segment { missing, ..packet.segment() }, &mut |event| log.event(event));
    }
    assembler.finish(now, &mut |event| log.event(event));
    assert_eq!(assembler.buffered(), 0, "memory charged for what waits was not given back");
    (log.0, assembler)
}

fn check(script: &str, expected: Expect) -> Assembler {
    let (log, assembler) = run(script, Limits::default());
    expected.assert_eq(&log);
    assembler
}

const OPENING: &str = "0 > S -3 0\n1 < SA -5 -2\n2 > A -2 -4\n";

#[test]
fn a_whole_conversation_across_the_wrap_around() {
    check(
        &format!("{OPENING}3 > A -2 -4 GET\n9 < A -4 1 hello\n10 > A 1 1\n11 < A 1 1 world\n20 < FA 6 1\n21 > FA 1 7\n22 < A 7 2"),
        expect![[r#"
            3 open 40000
            3 > GET
            9 < hello
            11 < world
            20 close Finished(Reverse)
            21 close Finished(Forward)
        "#]],
    );
}

#[test]
fn reordering_and_overlap_keep_first_copies_and_readable_instants() {
    let assembler = check(
        &format!("{OPENING}3 < A 1 -2 world\n4 < A 2 -2 ORLDs\n5 < A -4 -2 hello\n6 < A -4 -2 hello\n7 < A 5 -2 dsX"),
        expect![[r#"
            5 open 40000
            5 < hello
            5 < world
            5 < s
            7 < X
            7 close InputEnded
        "#]],
    );
    let counters = assembler.counters();
    assert_eq!((counters.out_of_order, counters.retransmitted, counters.overlaps), (2, 1, 2));
}

#[test]
fn a_lost_packet_is_located_once_it_is_acknowledged() {
    // what waited keeps its own arrival: the receiver did not wait
    check(
        &format!("{OPENING}3 < A -4 -2 aa\n4 < A 0 -2 cc\n5 > A -2 2\n6 < A 2 -2 dd\n110 < A 4 -2 ee\n111 < A 6 -2 ff"),
        expect![[r#"
            3 open 40000
            3 < aa
            4 < gap Some(2) packet_lost
            4 < cc
            6 < dd
            110 < ee
            111 < ff
            111 close InputEnded
        "#]],
    );
    // an acknowledgement that was captured before its data proves nothing
    check(
        &format!("{OPENING}3 > A -2 -2\n3 < A -4 -2 aa\n200 < A -2 -2 bb\n201 < A 0 -2 cc"),
        expect![[r#"
            3 open 40000
            3 < aa
            200 < bb
            201 < cc
            201 close InputEnded
        "#]],
    );
    // nothing behind the hole: the acknowledgement alone locates it, at the next tick
    check(
        &format!("{OPENING}3 > A -2 -4 GET\n9 > A 1 6\n150 tick\n160 < A 6 1 rest"),
        expect![[r#"
            3 open 40000
            3 > GET
            9 < gap Some(10) packet_lost
            160 < rest
            160 close InputEnded
        "#]],
    );
}

#[test]
fn a_hole_nobody_acknowledged_waits_for_a_retransmission_but_not_for_ever() {
    check(
        &format!("{OPENING}3 < A 0 -2 cc\n2900 < A -4 -2 aabb"),
        expect![[r#"
            2900 open 40000
            2900 < aabb
            2900 < cc
            2900 close InputEnded
        "#]],
    );
    check(
        &format!("{OPENING}3 < A 0 -2 cc\n3100 tick\n3200 < A -4 -2 aabb"),
        expect![[r#"
            3 open 40000
            3 < gap Some(4) packet_lost
            3 < cc
            3200 close InputEnded
        "#]],
    );
}

#[test]
fn a_hole_is_given_up_when_too_much_waits_behind_it() {
    let limits = Limits { buffered_per_direction: 300, ..Limits::default() };
    let (log, _) = run(&format!("{OPENING}3 < A 0 -2 cc\n4 < A 4 -2 ee\n5 < A 8 -2 gg\n6 < A 12 -2 ii"), limits);
    expect![[r#"
        3 open 40000
        3 < gap Some(4) bound
        3 < cc
        4 < gap Some(2) packet_lost
        4 < ee
        5 < gap Some(2) packet_lost
        5 < gg
        6 < gap Some(2) packet_lost
        6 < ii
        6 close InputEnded
    "#]]
    .assert_eq(&log);
}

#[test]
fn cut_packets_are_located_gaps() {
    check(
        &format!("{OPENING}3 < A -4 -2 aa !2\n4 < A 0 -2 cc !1\n5 < A 5 -2 gg\n6 < A 3 -2 - !2\n7 < A 0 -2 cc !1"),
        expect![[r#"
            3 open 40000
            3 < aa
            3 < gap Some(2) snaplen
            4 < cc
            4 < gap Some(1) snaplen
            6 < gap Some(2) snaplen
            6 < gg
            7 close InputEnded
        "#]],
    );
}

#[test]
fn midstream_takes_the_first_sender_for_local() {
    check(
        "0 < A 100 7\n1 < A 100 7 aa\n2 > A 7 102\n3 > A 7 102 go\n4 < A 102 9 bb\n5 < A 90 9 old",
        expect![[r#"
            1 open 80 midstream
            1 > aa
            3 < go
            4 > bb
            5 close InputEnded
        "#]],
    );
    // a keep-alive probe is the first of its direction, and an older segment comes late
    check(
        "1 < A 100 7 aa\n2 > A 6 102\n3 > A 7 102 go",
        expect![[r#"
            1 open 80 midstream
            1 > aa
            3 < go
            3 close InputEnded
        "#]],
    );
}

#[test]
fn the_answer_to_a_syn_is_not_its_opener() {
    check(
        "1 < SA -5 -2\n2 > A -2 -4\n3 < A -4 -2 220\n4 > A -2 -1 HI",
        expect![[r#"
            3 open 40000
            3 < 220
            4 > HI
            4 close InputEnded
        "#]],
    );
}

#[test]
fn resets_and_ports_used_again() {
    check(
        &format!(
            "{OPENING}3 > A -2 -4 GET\n4 < A 0 1 cc\n5 < RA 2 1\n6 < A 2 1 late\n7 > S -3 0\n500 > S 77 0\n501 > A 78 9 NEW\n600 > S -3 0\n601 > A -2 9 3RD"
        ),
        expect![[r#"
            3 open 40000
            3 > GET
            4 < gap Some(4) packet_lost
            4 < cc
            5 close Reset(Reverse)
            501 open 40000
            501 > NEW
            600 close Released
            601 open 40000
            601 > 3RD
            601 close InputEnded
        "#]],
    );
    // the same sequence number is a late copy at first, and a new connection after a pause
    let assembler = check(
        &format!("{OPENING}3 > A -2 -4 GET\n4 > S -3 0\n5 > RA 1 0\n6 > S -3 0\n300 > S -3 0\n301 > A -2 0 PUT"),
        expect![[r#"
            3 open 40000
            3 > GET
            5 close Reset(Forward)
            301 open 40000
            301 > PUT
            301 close InputEnded
        "#]],
    );
    assert_eq!((assembler.counters().connections, assembler.counters().strays), (2, 2));
}

#[test]
fn keep_alives_scans_and_lost_fins_make_no_events() {
    let assembler = check(
        &format!("{OPENING}3 > A -2 -4 GET\n9 < A -5 1\n10 < A -5 1 x\n11 > A 1 -3\n500 tick\n501 < A -4 1 ok"),
        expect![[r#"
            3 open 40000
            3 > GET
            501 < ok
            501 close InputEnded
        "#]],
    );
    assert_eq!(assembler.counters().keep_alives, 1);
    check("0 > S 1 0\n1 < RA 0 2\n2 > A 5 5\n3 > R 9 9", expect![[""]]);
}

#[test]
fn a_fin_behind_a_hole_waits_for_it() {
    check(
        &format!("{OPENING}3 < A -4 -2 aa\n4 < FA 0 -2\n5 < A -2 -2 bb\n6 > A -2 1"),
        expect![[r#"
            3 open 40000
            3 < aa
            5 < bb
            5 close Finished(Reverse)
            6 close InputEnded
        "#]],
    );
    check(
        &format!("{OPENING}3 < A -4 -2 aa\n4 < FA 0 -2\n5 > A -2 1\n6 > FA -2 1\n200 tick"),
        expect![[r#"
            3 open 40000
            3 < aa
            4 < gap Some(2) packet_lost
            6 close Finished(Reverse)
            6 close Finished(Forward)
        "#]],
    );
}

#[test]
fn a_connection_we_lost_track_of_goes_on_behind_a_gap_of_unknown_length() {
    check(
        &format!("{OPENING}3 < A -4 -2 aa\n4 < A 2000000000 -2 bb\n5 < A 2000000002 -2 cc\n6 < A 2000000004 -2 dd\n7 < A 2000000006 -2 ee"),
        expect![[r#"
            3 open 40000
            3 < aa
            6 < gap None packet_lost
            6 < dd
            7 < ee
            7 close InputEnded
        "#]],
    );
}

#[test]
fn idle_connections_are_let_go() {
    let (log, assembler) = run(&format!("{OPENING}3 > A -2 -4 GET\n599000 tick\n700000 tick"), Limits::default());
    expect![[r#"
        3 open 40000
        3 > GET
        700000 close Idle
    "#]]
    .assert_eq(&log);
    assert_eq!(assembler.remembered(), 0);
}

#[test]
fn a_muted_connection_yields_its_end_only() {
    let packets = Conversation::new("1.2.3.4:5".parse().unwrap(), "1.2.3.4:80".parse().unwrap(), ms(0))
        .say(Duration::from_millis(1), Who::Client, "a")
        .say(Duration::from_millis(2), Who::Server, vec![b'x'; 5000])
        .fault(Fault::Reorder(2))
        .packets();
    let mut assembler = Assembler::new(Limits::default());
    let mut events = 0;
    for (at, packet) in &packets {
        assembler.push(*at, &packet.segment(), &mut |event| {
            events += 1;
            if matches!(event, StreamEvent::Data { .. }) { Verdict::Mute } else { Verdict::Watch }
        });
    }
    assert_eq!(events, 4); // open, data, two ends
    assert_eq!((assembler.counters().muted, assembler.buffered()), (1, 0));
}

#[test]
fn a_million_connections_stay_within_the_bound() {
    let limits = Limits { connections: 10_000, ..Limits::default() };
    let mut assembler = Assembler::new(limits);
    let (mut opens, mut closes) = (0u64, 0u64);
    let mut out = |event: StreamEvent<'_>| {
        match event {
            StreamEvent::Open { .. } => opens += 1,
            StreamEvent::Close { .. } => closes += 1,
            _ => {}
        }
        Verdict::Watch
    };
    for n in 0..1_000_000u32 {
        let at = Timestamp::from_unix_nanos(u64::from(n) * 1000);
        let source = std::net::SocketAddr::from(([10, (n >> 16) as u8, (n >> 8) as u8, n as u8], 4000));
        let destination = "10.255.0.1:80".parse().unwrap();
        let mut packet = Packet { source, destination, seq: n, ack: 0, flags: SYN, payload: Vec::new() };
        assembler.push(at, &packet.segment(), &mut out);
        if n % 2 == 0 {
            packet = Packet { seq: n + 1, flags: ACK, payload: vec![b'x'], ..packet };
            assembler.push(at, &packet.segment(), &mut out);
            // and one byte that waits behind a hole
            packet.seq += 5;
            assembler.push(at, &packet.segment(), &mut out);
        }
        if n % 4096 == 0 {
            assembler.tick(at, &mut out);
        }
    }
    assert_eq!(assembler.remembered(), 10_000);
    assert_eq!(assembler.conns.len(), 10_000);
    assert!(assembler.waiting.len() <= 10_000 && assembler.buffered() <= limits.buffered);
    assembler.finish(ms(2_000_000), &mut out);
    assert_eq!((opens, closes), (500_000, 500_000));
    assert_eq!((assembler.counters().connections, assembler.buffered()), (1_000_000, 0));
    assert!(size_of::<Conn>() <= 144, "{}", size_of::<Conn>());
}

#[test]
fn faults_change_nothing_that_is_read() {
    let body: Vec<u8> = (0..40_000u32).flat_map(u32::to_be_bytes).collect();
    let conversation = |six: bool| {
        let (client, server) = if six { ("[2001:db8::9]:999", "[2001:db8::1]:80") } else { ("9.9.9.9:999", "1.1.1.1:80") };
        Conversation::new(client.parse().unwrap(), server.parse().unwrap(), ms(0))
            .say(Duration::from_millis(1), Who::Client, "GET")
            .say(Duration::from_millis(9), Who::Server, body.clone())
            .segment(977)
    };
    for faults in
        [&[][..], &[Fault::Retransmit(7)], &[Fault::Reorder(3)], &[Fault::Twice], &[Fault::Reorder(2), Fault::Retransmit(3), Fault::Twice]]
    {
        for six in [false, true] {
            let packets = faults.iter().fold(conversation(six), |c, fault| c.fault(*fault)).packets();
            let mut assembler = Assembler::new(Limits::default());
            let mut got = Vec::new();
            let mut ends = 0;
            for (at, packet) in &packets {
                assembler.push(*at, &packet.segment(), &mut |event| {
                    match event {
                        StreamEvent::Data { dir: Direction::Reverse, bytes, .. } => got.extend_from_slice(bytes),
                        StreamEvent::Close { .. } => ends += 1,
                        StreamEvent::Gap { .. } => panic!("a gap without a loss"),
                        _ => {}
                    }
                    Verdict::Watch
                });
            }
            assert!(got == body && ends == 2, "{faults:?}");
        }
    }
}

/// One packet of the model: the bytes `from..from + len` of a stream, seen at a place in the order.
#[derive(Clone, Debug)]
struct Cut {
    dir: bool,
    from: usize,
    len: usize,
}

const STREAM: usize = 600;

fn truth(dir: bool, i: usize) -> u8 {
    (i * 7 + i / 256 + usize::from(dir) * 101) as u8
}

fn cuts() -> impl Strategy<Value = Vec<(Cut, u8)>> {
    let cut = (any::<bool>(), 0..STREAM, 1usize..90).prop_map(|(dir, from, len)| Cut { dir, from, len: len.min(STREAM - from) });
    prop::collection::vec((cut, 0u8..60), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Random pieces of two streams in any order, with any overlap, and with false or true acknowledgements in between: what is
    /// handed on, with gaps counted, is always a run of the truth at the right place; without a loss it is the whole truth; and
    /// every byte has the instant that a slow reassembler gives it.
    #[test]
    fn what_is_handed_on_is_the_truth(cuts in cuts(), whole: bool, start: u32, patience in 1u64..200, bound in 200usize..5000) {
        let ends: [std::net::SocketAddr; 2] = ["10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()];
        let limits = if whole { Limits::default() } else {
            Limits { patience: Duration::from_millis(patience), buffered_per_direction: bound, ..Limits::default() }
        };
        let mut script: Vec<(Cut, Option<usize>)> = Vec::new();
        for (cut, ack) in cuts {
            // an acknowledgement proves a loss; without losses it must stay within what was sent so far
            script.push((cut, (!whole && ack < 20).then_some(usize::from(ack) * 30)));
        }
        if whole {
            for dir in [false, true] {
                for from in (0..STREAM).step_by(50).rev() {
                    script.push((Cut { dir, from, len: 50 }, None));
                }
            }
        }
        let mut assembler = Assembler::new(limits);
        let mut at = ms(1);
        let (mut position, mut got) = ([0usize; 2], [vec![None; STREAM], vec![None; STREAM]]);
        let mut gaps = 0usize;
        let mut out = |event: StreamEvent<'_>| {
            match event {
                StreamEvent::Data { dir, at, bytes, .. } => for byte in bytes {
                    got[dir.index()][position[dir.index()]] = Some((*byte, at));
                    position[dir.index()] += 1;
                },
                StreamEvent::Gap { dir, len, .. } => {
                    gaps += 1;
                    position[dir.index()] += len.unwrap() as usize;
                }
                _ => {}
            }
            Verdict::Watch
        };
        // first seen, and with it readable: the slow model
        let mut seen = [vec![None; STREAM], vec![None; STREAM]];
        for (me, flags) in [(0, SYN), (1, SYN | ACK)] {
            let (seq, ack) = (start.wrapping_sub(1), start);
            let packet = Packet { source: ends[me], destination: ends[1 - me], seq, ack, flags, payload: Vec::new() };
            assembler.push(at, &packet.segment(), &mut out);
        }
        for (cut, ack) in &script {
            at = at.plus(Duration::from_millis(1));
            let me = usize::from(cut.dir);
            let payload: Vec<u8> = (cut.from..cut.from + cut.len).map(|i| truth(cut.dir, i)).collect();
            for slot in &mut seen[me][cut.from..cut.from + cut.len] {
                slot.get_or_insert(at);
            }
            let (seq, ack) = (start.wrapping_add(cut.from as u32), start.wrapping_add(ack.unwrap_or(0) as u32));
            let packet = Packet { source: ends[me], destination: ends[1 - me], seq, ack, flags: ACK, payload };
            assembler.push(at, &packet.segment(), &mut out);
            assembler.tick(at, &mut out);
        }
        assembler.finish(at, &mut out);
        prop_assert_eq!(assembler.buffered(), 0);
        for me in 0..2 {
            let mut readable = ms(0);
            for i in 0..STREAM {
                if let Some((byte, stamp)) = got[me][i] {
                    prop_assert_eq!(byte, truth(me == 1, i), "an invented byte at {}", i);
                    let first = seen[me][i].expect("a byte nobody sent");
                    readable = readable.max(first);
                    prop_assert!(first <= stamp && stamp <= readable, "{:?} is not within {:?}..{:?}", stamp, first, readable);
                    if gaps == 0 {
                        prop_assert_eq!(stamp, readable);
                    }
                } else if whole {
                    prop_assert!(false, "byte {} is missing", i);
                }
            }
        }
        if whole {
            prop_assert_eq!(gaps, 0);
        }
    }
}

/// Found by fuzzing: a second SYN with another sequence number drops what waits behind the first, and its memory with it (`run` checks
/// that nothing is left charged).
#[test]
fn a_second_attempt_gives_back_what_waited_in_the_first() {
    check(
        "0 > S -3 0\n1 > A 40 0 early\n2 > S 500 0\n3 > A 501 0 hello",
        expect![[r#"
        3 open 40000
        3 > hello
        3 close InputEnded
    "#]],
    );
}
