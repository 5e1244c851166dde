use super::*;
use crate::http::h2::wire::{PREFACE, flag, kind};
use expect_test::{Expect, expect};

const CLIENT: Direction = Direction::Forward;
const SERVER: Direction = Direction::Reverse;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Literals that are inserted into the table.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |t: &str| [&[t.len() as u8], t.as_bytes()].concat();
    fields.iter().flat_map(|(n, v)| [vec![0x40], text(n), text(v)].concat()).collect()
}

fn ask(stream: u32, path: &str) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS, stream, &block(&[(":method", "POST"), (":path", path), (":authority", "h.test:8")]))
}

fn answer(stream: u32, status: &str) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS, stream, &block(&[(":status", status), ("content-type", "text/event-stream")]))
}

fn data(stream: u32, end: bool, bytes: &[u8]) -> Vec<u8> {
    frame(kind::DATA, u8::from(end), stream, bytes)
}

fn reset(stream: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])
}

enum Step {
    Client(Vec<u8>),
    Server(Vec<u8>),
    Gap(Direction, Option<u64>),
    Close(End),
    Expire,
    GiveUp(ExchangeId),
}
use Step::{Client, Close, Expire, Gap, GiveUp, Server};

fn shown(event: HttpEvent<'_>) -> String {
    match event {
        HttpEvent::Request { id, begun, head } => {
            let host = head.host.as_ref().map_or("-", |h| h.as_str());
            format!("{id}: {:?} {:?} of {host} at {}\n", head.method, head.path, begun.unix_nanos())
        }
        HttpEvent::RequestBody { id, bytes } => format!("{id}: > {}\n", bytes.escape_ascii()),
        HttpEvent::RequestEnd { id } => format!("{id}: asked\n"),
        HttpEvent::Response { id, begun, head } => format!("{id}: {} {:?} at {}\n", head.status, head.media, begun.unix_nanos()),
        HttpEvent::ResponseBody { id, bytes } => format!("{id}: < {}\n", bytes.escape_ascii()),
        HttpEvent::Gap { id, of, body_goes_on, .. } => format!("{id}: gap in {of:?}, goes on: {body_goes_on}\n"),
        HttpEvent::Trailers { id, grpc_status, .. } => format!("{id}: trailers {grpc_status:?}\n"),
        HttpEvent::Over { id, how, by, at } => {
            let since = at.map_or(String::new(), |at| format!(" since {}", at.unix_nanos()));
            format!("{id}: {how:?} by {}{since}\n", by.as_str())
        }
        HttpEvent::Odd(what) => format!("odd {}\n", what.as_str()),
        HttpEvent::Upgraded { id, .. } => format!("{id}: upgraded\n"),
    }
}

fn run(session: &mut Session, steps: Vec<Step>, size: usize) -> String {
    let mut log = String::new();
    for (n, step) in steps.into_iter().enumerate() {
        let at = Timestamp::from_unix_nanos(n as u64);
        let out = &mut |e: HttpEvent<'_>| log.push_str(&shown(e));
        let feed = |session: &mut Session, dir, bytes: &[u8], out: &mut dyn FnMut(HttpEvent<'_>)| {
            for mut piece in bytes.chunks(size) {
                while !piece.is_empty() {
                    piece = session.data(dir, at, piece, out);
                }
            }
        };
        match step {
            Client(bytes) => feed(session, CLIENT, &bytes, out),
            Server(bytes) => feed(session, SERVER, &bytes, out),
            Gap(dir, len) => session.gap(dir, at, len, out),
            Close(end) => session.close(end, out),
            Expire => session.expire(at.plus(Duration::from_nanos(10)), Duration::from_nanos(12), out),
            GiveUp(id) => session.give_up(id, out),
        }
    }
    log
}

fn check(steps: Vec<Step>, want: Expect) {
    want.assert_eq(&run(&mut Session::new(CLIENT), steps, usize::MAX));
}

fn hello() -> Vec<Step> {
    let settings = frame(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 32, 0]);
    vec![Client([PREFACE.to_vec(), settings.clone()].concat()), Server(settings)]
}

fn after_hello(steps: Vec<Step>) -> Vec<Step> {
    hello().into_iter().chain(steps).collect()
}

#[test]
fn concurrent_streams() {
    let steps = || {
        after_hello(vec![
            Client([ask(1, "/a"), data(1, false, b"x"), ask(3, "/b")].concat()),
            Server([answer(3, "103"), answer(3, "200"), data(3, false, b"b1")].concat()),
            Client([data(3, true, b"y"), data(1, true, b"")].concat()),
            Server([answer(1, "200"), data(1, false, b"a1"), data(3, false, b"b2"), data(1, false, b"a2")].concat()),
            Server([data(3, true, b"b3"), data(1, false, b"a3"), data(3, false, b"late")].concat()),
            // Trailers end the other one.
            Server(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block(&[("grpc-status", "8")]))),
            // An answer that ends before its request, and one that is trailers only.
            Client([ask(5, "/c"), ask(7, "/d")].concat()),
            Server(data(5, true, b"no head")),
            Server(frame(
                kind::HEADERS,
                flag::END_HEADERS | flag::END_STREAM,
                7,
                &block(&[(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "13")]),
            )),
            Client(data(7, true, b"rest")),
        ])
    };
    check(
        steps(),
        expect![[r#"
            1: Post "/a" of h.test at 2
            1: > x
            3: Post "/b" of h.test at 2
            3: 200 EventStream at 3
            3: < b1
            3: > y
            3: asked
            1: asked
            1: 200 EventStream at 5
            1: < a1
            3: < b2
            1: < a2
            3: < b3
            3: Complete by end_stream
            1: < a3
            1: trailers Some(8)
            1: Complete by end_stream
            5: Post "/c" of h.test at 8
            7: Post "/d" of h.test at 8
            5: Lost by capture_gap
            7: 200 Grpc at 10
            7: trailers Some(13)
            7: Complete by end_stream
        "#]],
    );
    // Without what depends on where bodies are cut.
    let ends = |log: &str| log.lines().filter(|l| !l.contains(": > ") && !l.contains(": < ")).map(str::to_owned).collect::<Vec<_>>();
    let whole = run(&mut Session::new(CLIENT), steps(), usize::MAX);
    for size in 1..=64 {
        assert_eq!(ends(&run(&mut Session::new(CLIENT), steps(), size)), ends(&whole), "pieces of {size}");
    }
}

#[test]
fn how_streams_end() {
    check(
        after_hello(vec![
            Client([ask(1, "/1"), ask(3, "/3"), ask(5, "/5"), ask(7, "/7"), ask(9, "/9"), ask(11, "/11"), ask(13, "/13")].concat()),
            Server([answer(1, "200"), answer(3, "200"), answer(5, "200")].concat()),
            Client(reset(1)),
            Server(reset(3)),
            // A reset behind the end is no failure.
            Server([data(5, true, b""), reset(5)].concat()),
            Client(reset(7)),
            GiveUp(9),
            Server(frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 11, 0, 0, 0, 0])),
            Client([ask(15, "/15"), frame(kind::GOAWAY, 0, 0, &[0; 8])].concat()),
            Close(End::Finished(CLIENT)),
            Close(End::Finished(SERVER)),
            Client(ask(17, "/17")),
        ]),
        expect![[r#"
            1: Post "/1" of h.test at 2
            3: Post "/3" of h.test at 2
            5: Post "/5" of h.test at 2
            7: Post "/7" of h.test at 2
            9: Post "/9" of h.test at 2
            11: Post "/11" of h.test at 2
            13: Post "/13" of h.test at 2
            1: 200 EventStream at 3
            3: 200 EventStream at 3
            5: 200 EventStream at 3
            1: ClientClosed by rst_stream since 4
            3: ServerReset by rst_stream
            5: Complete by end_stream
            9: Complete by terminator
            7: ClientClosed by rst_stream since 7
            13: ServerClosed by goaway
            15: Post "/15" of h.test at 10
            15: ServerClosed by goaway
            11: ClientClosed by fin
        "#]],
    );
    for (ends, want) in [
        (vec![End::Finished(CLIENT), End::Finished(SERVER)], "ClientClosed by fin"),
        (vec![End::Finished(SERVER)], "ServerClosed by fin"),
        (vec![End::Reset(CLIENT)], "ClientClosed by rst"),
        (vec![End::Reset(SERVER)], "ServerReset by rst"),
        (vec![End::Finished(CLIENT), End::Reset(SERVER)], "ClientClosed by rst"),
        (vec![End::Released], "ClientClosed by released"),
        (vec![End::Abandoned], "ClientClosed by released"),
        (vec![End::Idle], "Timeout by idle"),
        (vec![End::Evicted], "Evicted by evicted"),
        (vec![End::InputEnded], "InputEnded by input_end"),
        (vec![End::Finished(CLIENT), End::InputEnded], "ClientClosed by input_end"),
    ] {
        let steps = after_hello([Client(ask(1, "/"))].into_iter().chain(ends.iter().map(|e| Close(*e))).collect());
        let log = run(&mut Session::new(CLIENT), steps, usize::MAX);
        assert_eq!(log.lines().last(), Some(&*format!("1: {want}")), "{ends:?}");
    }
}

#[test]
fn a_silent_stream_ends_though_others_go_on() {
    check(
        after_hello(vec![
            Client([ask(1, "/1"), ask(3, "/3"), ask(5, "/5")].concat()),
            Server([answer(1, "200"), answer(3, "200"), data(3, false, b"x")].concat()),
            Server(data(1, false, b"y")),
            Server(data(3, false, b"z")),
            Expire,
            Server(data(1, true, b"late")),
        ]),
        expect![[r#"
            1: Post "/1" of h.test at 2
            3: Post "/3" of h.test at 2
            5: Post "/5" of h.test at 2
            1: 200 EventStream at 3
            3: 200 EventStream at 3
            3: < x
            1: < y
            3: < z
            1: Timeout by idle
            5: Timeout by idle
        "#]],
    );
}

#[test]
fn gaps() {
    check(
        after_hello(vec![
            Client([ask(1, "/1"), data(1, true, b"q"), ask(3, "/3")].concat()),
            Server([answer(1, "200"), answer(3, "200"), data(1, false, b"abcdef")[..12].to_vec()].concat()),
            // Within data: of one stream, and no more.
            Gap(SERVER, Some(2)),
            Server(b"f".to_vec()),
            // Within what nobody reads.
            Server(frame(kind::PING, 0, 0, b"12345678")[..12].to_vec()),
            Gap(SERVER, Some(5)),
            // Between frames: of all.
            Gap(SERVER, Some(100)),
            Server([data(3, false, b"known"), data(1, true, b"")].concat()),
            // Of the requests: one is complete.
            Client(data(3, false, b"r")),
            Gap(CLIENT, None),
            Client([ask(7, "/7"), frame(kind::HEADERS, 5, 9, &[0x83, 0xbe, 0xc7])].concat()),
            Server([answer(5, "200"), answer(7, "200"), data(9, false, b"no head")].concat()),
            Close(End::Finished(SERVER)),
        ]),
        expect![[r#"
            1: Post "/1" of h.test at 2
            1: > q
            1: asked
            3: Post "/3" of h.test at 2
            1: 200 EventStream at 3
            3: 200 EventStream at 3
            1: < abc
            1: gap in Response, goes on: true
            1: < f
            1: gap in Response, goes on: false
            3: gap in Response, goes on: false
            3: < known
            1: Complete by end_stream
            3: > r
            3: gap in Request, goes on: false
            7: Post "/7" of h.test at 12
            odd unknown_fields
            9: Post "" of h.test at 12
            9: asked
            odd orphan_response
            7: 200 EventStream at 13
            3: Lost by fin
            7: ServerClosed by fin
            9: ServerClosed by fin
        "#]],
    );
}

#[test]
fn a_header_block_in_a_hole() {
    let lost = frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block(&[(":method", "POST"), (":path", "/lost")]));
    check(
        after_hello(vec![
            Client(lost[..10].to_vec()),
            Gap(CLIENT, Some(lost.len() as u64 - 10)),
            Client(ask(3, "/3")),
            Server([answer(1, "200"), data(1, true, b"x")].concat()),
            Server([answer(3, "200")[..12].to_vec()].concat()),
            Gap(SERVER, Some(answer(3, "200").len() as u64 - 12)),
            Server(data(3, true, b"x")),
        ]),
        expect![[r#"
            1: Post "" of - at 2
            1: asked
            3: Post "/3" of h.test at 4
            1: 200 EventStream at 5
            1: < x
            1: Complete by end_stream
            3: gap in Response, goes on: false
            3: Lost by capture_gap
        "#]],
    );
}

#[test]
fn a_response_before_its_request_was_not_seen() {
    check(
        after_hello(vec![
            Gap(CLIENT, None),
            Server([answer(1, "200"), data(1, false, b"missed")].concat()),
            Client([ask(1, "/1"), data(1, true, b""), ask(3, "/3"), data(3, true, b"")].concat()),
            Server([data(1, true, b"x"), answer(3, "200"), data(3, true, b"y")].concat()),
        ]),
        expect![[r#"
            odd orphan_response
            1: Post "/1" of h.test at 4
            1: gap in Response, goes on: false
            1: asked
            3: Post "/3" of h.test at 4
            3: asked
            1: Lost by capture_gap
            3: 200 EventStream at 5
            3: < y
            3: Complete by end_stream
        "#]],
    );
}

#[test]
fn what_was_held_back_behind_a_hole_still_counts() {
    let mut session = Session::new(CLIENT);
    let mut log = run(&mut session, after_hello(vec![Client(ask(1, "/1")), Server(answer(1, "200"))]), usize::MAX);
    let at = Timestamp::from_unix_nanos;
    let mut out = |e: HttpEvent<'_>| log.push_str(&shown(e));
    // The client leaves, then the tap hands on what it had held back, then what came later.
    session.data(CLIENT, at(50), &reset(1), &mut out);
    session.gap(SERVER, at(40), Some(9), &mut out);
    session.data(SERVER, at(40), &data(1, false, b"before"), &mut out);
    session.data(SERVER, at(60), &data(1, false, b"behind"), &mut out);
    // Nothing more comes: after a while it is over all the same.
    session.data(CLIENT, at(70), &[ask(3, "/3"), reset(3), reset(3), data(3, false, b"x")].concat(), &mut out);
    session.expire(at(80), Duration::from_secs(600), &mut out);
    session.expire(at(80).plus(HELD_BACK), Duration::from_secs(600), &mut out);
    expect![[r#"
        1: Post "/1" of h.test at 2
        1: 200 EventStream at 3
        1: gap in Response, goes on: false
        1: < before
        1: ClientClosed by rst_stream since 50
        3: Post "/3" of h.test at 70
        3: ClientClosed by rst_stream since 70
    "#]]
    .assert_eq(&log);
}

#[test]
fn joined_in_the_middle() {
    let steps = |client_first: bool| {
        // What is left of a frame, then one that ends where the piece does.
        let down = Server([b"rest of some data\n\n".to_vec(), data(1, false, b"old"), answer(3, "200"), data(3, true, b"x")].concat());
        let up = Client(
            [
                frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]),
                // Names that stand in the static table or were inserted since are known.
                frame(
                    kind::HEADERS,
                    flag::END_HEADERS,
                    5,
                    &[&[0x83, 0xd0][..], &block(&[("anthropic-version", "x"), (":path", "/v1/messages")])].concat(),
                ),
                frame(kind::HEADERS, flag::END_HEADERS, 7, &[0x83, 0xbe, 0xbf, 0xd2]),
            ]
            .concat(),
        );
        let then = vec![Client(data(5, true, b"q")), Server([answer(5, "200"), data(5, true, b"y")].concat()), Close(End::Reset(SERVER))];
        let begin = if client_first { vec![up, down] } else { vec![down, up] };
        begin.into_iter().chain(then).collect::<Vec<_>>()
    };
    let run = |client_first| {
        let mut session = Session::joined();
        let log = run(&mut session, steps(client_first), usize::MAX);
        assert_eq!((session.requests(), session.sure), (CLIENT, true));
        log
    };
    expect![[r#"
        odd orphan_response
        odd unknown_fields
        5: Post "/v1/messages" of - at 1
        7: Post "/v1/messages" of - at 1
        5: > q
        5: asked
        5: 200 EventStream at 3
        5: < y
        5: Complete by end_stream
        7: ServerReset by rst
    "#]]
    .assert_eq(&run(false));
    let mut sorted = [run(true), run(false)].map(|log| log.lines().filter(|l| !l.contains(" at ")).map(str::to_owned).collect::<Vec<_>>());
    sorted.iter_mut().for_each(|l| l.sort());
    assert_eq!(sorted[0], sorted[1]);
    // A tap on the server's side.
    let mut session = Session::joined();
    let bytes = [answer(3, "200"), data(3, true, b"x")].concat();
    let rest = session.data(Direction::Forward, Timestamp::default(), &bytes, &mut |_| ());
    assert_eq!((session.requests(), rest), (Direction::Reverse, &data(3, true, b"x")[..]));
}

#[test]
fn upgraded_from_http_1() {
    let mut session = Session::upgraded(CLIENT, 4);
    let log = run(
        &mut session,
        vec![
            Server([frame(kind::SETTINGS, 0, 0, b""), answer(1, "200"), data(1, true, b"x")].concat()),
            Client([PREFACE.to_vec(), frame(kind::SETTINGS, 0, 0, b""), ask(3, "/3")].concat()),
            Server(answer(3, "200")),
            GiveUp(6),
        ],
        usize::MAX,
    );
    expect![[r#"
        4: 200 EventStream at 0
        4: < x
        4: Complete by end_stream
        6: Post "/3" of h.test at 1
        6: 200 EventStream at 2
        6: Complete by terminator
    "#]]
    .assert_eq(&log);
}

#[test]
fn hostile_peers() {
    let mut session = Session::new(CLIENT);
    let mut odd = 0;
    let mut begun = 0;
    let mut see = |e: HttpEvent<'_>| match e {
        HttpEvent::Odd(Anomaly::PipelineTooDeep) => odd += 1,
        HttpEvent::Request { .. } => begun += 1,
        _ => {}
    };
    session.data(CLIENT, Timestamp::default(), PREFACE, &mut see);
    for n in 0..MAX_STREAMS as u32 + 10 {
        session.data(CLIENT, Timestamp::default(), &frame(kind::HEADERS, flag::END_HEADERS, 2 * n + 1, &[0x83, 0x84]), &mut see);
    }
    assert_eq!((begun, odd), (MAX_STREAMS, 10));
    assert!(session.buffered() < 64 * MAX_STREAMS);
    let mut over = 0;
    session.close(End::Idle, &mut |e| over += usize::from(matches!(e, HttpEvent::Over { .. })));
    assert_eq!(over, MAX_STREAMS);
    check(
        after_hello(vec![
            // A push, a block that is none, a frame that is none.
            Server(frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &[&[0, 0, 0, 2][..], &block(&[(":path", "/pushed")])].concat())),
            Server([answer(2, "200"), data(2, true, b"pushed")].concat()),
            Client([frame(kind::HEADERS, flag::END_HEADERS, 1, &[0x83, 0x84, 0x80]), ask(3, "/3")].concat()),
            Client([data(0, false, b"x"), ask(5, "/5"), ask(7, "/7")].concat()),
            Server(answer(99, "200")),
        ]),
        expect![[r#"
            odd bad_head
            1: Post "/" of - at 4
            3: Post "/3" of h.test at 4
            odd bad_frame
            1: gap in Request, goes on: false
            3: gap in Request, goes on: false
            5: Post "/5" of h.test at 5
            7: Post "/7" of h.test at 5
            odd orphan_response
        "#]],
    );
}

#[test]
fn a_client_that_has_what_was_promised_may_leave_without_the_end() {
    let promised = |stream, length: &str| {
        let fields = [(":status", "200"), ("content-type", "application/json"), ("content-length", length)];
        frame(kind::HEADERS, flag::END_HEADERS, stream, &block(&fields))
    };
    check(
        after_hello(vec![
            Client([ask(1, "/whole"), ask(3, "/part"), ask(5, "/left")].concat()),
            Server([promised(1, "6"), promised(3, "6"), promised(5, "0")].concat()),
            Server([data(1, false, b"{\"a\""), data(3, false, b"{\"a\""), data(1, false, b":1")].concat()),
            Client(reset(5)),
            Close(End::Finished(CLIENT)),
            Close(End::Released),
        ]),
        expect![[r#"
            1: Post "/whole" of h.test at 2
            3: Post "/part" of h.test at 2
            5: Post "/left" of h.test at 2
            1: 200 Json at 3
            3: 200 Json at 3
            5: 200 Json at 3
            1: < {\"a\"
            3: < {\"a\"
            1: < :1
            5: Complete by rst_stream since 5
            1: Complete by released
            3: ClientClosed by released
        "#]],
    );
}

#[test]
fn a_request_is_whole_with_its_last_promised_byte() {
    let asks = block(&[(":method", "POST"), (":path", "/v1/chat/completions"), (":authority", "h.test"), ("content-length", "7")]);
    let ask = || Client(frame(kind::HEADERS, flag::END_HEADERS, 1, &asks));
    // The server has it all and answers; the client says the end in a frame of its own, later.
    check(
        after_hello(vec![
            ask(),
            Client(data(1, false, b"{\"a\"")),
            Client(data(1, false, b":1}")),
            Server(answer(1, "400")),
            Client(data(1, true, b"")),
            Server(data(1, true, b"no")),
        ]),
        expect![[r#"
            1: Post "/v1/chat/completions" of h.test at 2
            1: > {\"a\"
            1: > :1}
            1: asked
            1: 400 EventStream at 5
            1: < no
            1: Complete by end_stream
        "#]],
    );
    // More than was promised is no part of it, as little as when it comes in a frame of its own (found by fuzzing).
    check(
        after_hello(vec![ask(), Client(data(1, false, b"{\"a\":1}and more")), Server(answer(1, "400")), Server(data(1, true, b"no"))]),
        expect![[r#"
            1: Post "/v1/chat/completions" of h.test at 2
            1: > {\"a\":1}
            1: asked
            1: 400 EventStream at 4
            1: < no
            1: Complete by end_stream
        "#]],
    );
    // A hole may have hidden some of it: only the end tells.
    check(
        after_hello(vec![
            ask(),
            Client(data(1, false, b"{\"a\"")[..9].to_vec()),
            Gap(CLIENT, Some(4)),
            Client(data(1, false, b":1}")),
            Client(data(1, true, b"")),
            Server(answer(1, "400")),
            Server(data(1, true, b"no")),
        ]),
        expect![[r#"
            1: Post "/v1/chat/completions" of h.test at 2
            1: gap in Request, goes on: true
            1: > :1}
            1: asked
            1: 400 EventStream at 7
            1: < no
            1: Complete by end_stream
        "#]],
    );
}

/// A client refers to its credential in the table from the second request on: there is its hash, and nothing else.
#[test]
fn a_tenant_is_known_by_reference_and_its_name_is_not_held() {
    use crate::tenant::{Key, Tenants};
    let fields = [(":method", "POST"), (":path", "/a"), ("authorization", "Bearer sk-secret"), ("x-team", "violet")];
    let whole = |stream| frame(kind::HEADERS, flag::END_HEADERS, stream, &block(&fields));
    // The four entries of the first request, newest first: 62 is `x-team`, 65 `:method`.
    let referring = |stream, indices: &[u8]| frame(kind::HEADERS, flag::END_HEADERS, stream, indices);
    for (order, joined) in [(["authorization", "x-team"], false), (["x-team", "authorization"], false), (["authorization", "x-team"], true)]
    {
        let key = || Key::new(b"0123456789abcdef").unwrap();
        let tenants = Arc::new(Tenants::new(order, Box::new(key())));
        let mut session = if joined { Session::joined() } else { Session::new(CLIENT) };
        session.naming(Some(&tenants));
        let mut told = Vec::new();
        let mut steps = if joined { vec![] } else { hello() };
        steps.extend([Client(whole(1)), Client(referring(3, &[0xc1, 0xc0, 0xbf, 0xbe])), Client(referring(5, &[0xc1, 0xc0, 0xbe]))]);
        for step in steps {
            let (Client(bytes) | Server(bytes)) = &step else { continue };
            let dir = if matches!(step, Client(_)) { CLIENT } else { SERVER };
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                rest = session.data(dir, Timestamp::default(), rest, &mut |e| {
                    if let HttpEvent::Request { head, .. } = e {
                        told.push(head.tenant);
                    }
                });
            }
        }
        let of = |name: &str| Some(crate::tenant::Hasher::hash(&key(), name.as_bytes()));
        let first = if order[0] == "x-team" { of("violet") } else { of("sk-secret") };
        assert_eq!(told, [first, first, of("violet")], "{order:?} {joined}");
        let all = format!("{session:?}");
        for secret in ["sk-secret", "violet"] {
            let bytes = secret.bytes().map(|b| b.to_string()).collect::<Vec<_>>().join(", ");
            assert!(!all.contains(&bytes) && !all.contains(secret), "{secret} in {all}");
        }
    }
}
