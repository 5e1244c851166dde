use super::*;
use crate::http::h2::block::Block;
use expect_test::{Expect, expect};
use proptest::prelude::*;
use std::ops::Range;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn instant(n: usize) -> Timestamp {
    Timestamp::from_unix_nanos(n as u64)
}

fn shown(part: &Part<'_>) -> String {
    let text = |b: &[u8]| b.escape_ascii().to_string();
    match part {
        Part::Headers(Headers { stream, begun, end, block }) => {
            let block = match block {
                Block::Whole(b) => text(b),
                other => format!("{other:?}"),
            };
            let end = if *end { " end" } else { "" };
            format!("{stream}: headers at {} {block}{end}\n", begun.unix_nanos())
        }
        Part::Data(stream, bytes) => format!("{stream}: {}\n", text(bytes)),
        Part::End(stream) => format!("{stream}: end\n"),
        other => format!("{other:?}\n"),
    }
}

/// What `pieces` yield, each at its number; data of one stream in a row is joined.
fn log<'a>(parser: &mut Parser, pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let (mut out, mut running) = (String::new(), None);
    for (n, mut piece) in pieces.enumerate() {
        while let Some(part) = parser.next(instant(n), &mut piece, &|stream| stream == 99) {
            match &part {
                Part::Data(stream, bytes) if running == Some(*stream) => {
                    out.pop();
                    out.push_str(&format!("{}\n", bytes.escape_ascii()));
                }
                _ => out.push_str(&shown(&part)),
            }
            running = if let Part::Data(stream, _) = part { Some(stream) } else { None };
        }
        assert!(piece.is_empty());
    }
    out
}

fn check(begins: Begins, bytes: &[u8], want: Expect) {
    let whole = log(&mut Parser::new(begins), std::iter::once(bytes));
    want.assert_eq(&whole);
    for size in 1..=64 {
        let cut = log(&mut Parser::new(begins), bytes.chunks(size));
        let timeless = |text: &str| text.lines().map(|l| l.split(" at ").next().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(timeless(&cut), timeless(&whole), "pieces of {size}");
    }
}

#[test]
fn frames_of_every_kind() {
    let bytes = [
        PREFACE.to_vec(),
        frame(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 16, 0, 0, 4, 0, 0, 1, 0, 0, 1, 0, 0, 32, 0]),
        frame(kind::SETTINGS, flag::ACK, 0, b""),
        frame(kind::WINDOW_UPDATE, 0, 0, b"\0\0\x01\0"),
        frame(kind::HEADERS, flag::END_HEADERS, 1, b"block"),
        frame(kind::PRIORITY, 0, 3, b"12345"),
        frame(kind::HEADERS, flag::END_HEADERS | flag::PADDED | flag::PRIORITY | flag::END_STREAM, 3, b"\x0312345padded\0\0\0"),
        frame(kind::DATA, 0, 1, b"one"),
        frame(kind::DATA, 0, 1, b""),
        frame(kind::DATA, flag::PADDED, 1, b"\x02 two\0\0"),
        frame(kind::DATA, flag::PADDED, 1, b"\x03\0\0\0"),
        frame(kind::DATA, flag::PADDED, 1, b"\0"),
        frame(77, 0xff, 5, b"unknown"),
        frame(kind::PING, 0, 0, b"12345678"),
        frame(kind::DATA, flag::END_STREAM | flag::PADDED, 1, b"\x01 three\0"),
        frame(kind::PUSH_PROMISE, 0, 3, b"\0\0\0\x02pro"),
        frame(kind::CONTINUATION, flag::END_HEADERS, 3, b"mised"),
        frame(kind::HEADERS, flag::END_STREAM, 5, b"a"),
        frame(kind::CONTINUATION, 0, 5, b""),
        frame(kind::CONTINUATION, 0, 5, b"b"),
        frame(kind::CONTINUATION, flag::END_HEADERS, 5, b"c"),
        frame(kind::RST_STREAM, 0, 7, b"\0\0\0\x08"),
        frame(kind::GOAWAY, 0, 0, b"\0\0\0\x07\0\0\0\0bye"),
        frame(kind::DATA, flag::END_STREAM, 9, b""),
    ];
    check(
        Begins::WithPreface,
        &bytes.concat(),
        expect![[r#"
            TableSize(8192)
            1: headers at 0 block
            3: headers at 0 padded end
            1: one two three
            1: end
            2: headers at 0 promised
            5: headers at 0 abc end
            Reset(7)
            Goaway(7)
            9: end
        "#]],
    );
}

#[test]
fn a_block_begins_with_the_first_byte_of_its_frame() {
    let block = [frame(kind::HEADERS, 0, 1, b"ab"), frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"cd")].concat();
    let pieces = [&frame(kind::PING, 0, 0, b"12345678")[..], &block[..1], &block[1..10], &block[10..]];
    assert_eq!(log(&mut Parser::new(Begins::WithFrame), pieces.into_iter()), "1: headers at 1 abcd\n");
}

#[test]
fn what_is_no_frame() {
    let good = [frame(kind::HEADERS, flag::END_HEADERS, 1, b"x"), frame(kind::PING, 0, 0, b"12345678")].concat();
    for bad in [
        frame(kind::DATA, 0, 0, b"x"),
        frame(kind::HEADERS, 0, 0, b"x"),
        frame(kind::RST_STREAM, 0, 1, b"123"),
        frame(kind::SETTINGS, 0, 1, b""),
        frame(kind::SETTINGS, 0, 0, b"12345"),
        frame(kind::PING, 0, 0, b"1"),
        frame(kind::GOAWAY, 0, 0, b"1"),
        frame(kind::WINDOW_UPDATE, 0, 0, b"1"),
        frame(kind::PUSH_PROMISE, 0, 1, b"1"),
    ] {
        let mut parser = Parser::new(Begins::WithFrame);
        let got = log(&mut parser, [&bad[..], &good].into_iter());
        assert_eq!(got, "Lost\n1: headers at 1 x\n", "{bad:x?}");
    }
    let mut parser = Parser::new(Begins::WithPreface);
    assert_eq!(log(&mut parser, [&b"PRI * HTTP/1.1\r\n"[..], &good].into_iter()), "Lost\n1: headers at 1 x\n");
    let odd = [
        frame(kind::DATA, flag::PADDED, 1, b"\x09abc"),
        // Padding without room, a continuation without beginning, a block that is interrupted.
        frame(kind::HEADERS, flag::PADDED | flag::END_HEADERS, 1, b"\x09abc"),
        frame(kind::HEADERS, flag::PRIORITY | flag::END_HEADERS, 1, b"1234"),
        frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"x"),
        frame(kind::HEADERS, 0, 3, b"x"),
        frame(kind::HEADERS, flag::END_HEADERS, 5, b"y"),
    ];
    check(
        Begins::WithFrame,
        &odd.concat(),
        expect![[r#"
            Odd(BadFrame)
            1: headers at 0 Bad(BadFrame)
            1: headers at 0 Bad(BadFrame)
            BlockMissed
            3: headers at 0 Bad(BadFrame)
            5: headers at 0 y
        "#]],
    );
}

#[test]
fn blocks_are_bounded() {
    let part = vec![b'x'; 16384];
    let mut endless = frame(kind::HEADERS, 0, 1, &part);
    for _ in 0..64 {
        endless.extend(frame(kind::CONTINUATION, 0, 1, &part));
    }
    let mut parser = Parser::new(Begins::WithFrame);
    for piece in endless.chunks(1000) {
        assert_eq!(log(&mut parser, std::iter::once(piece)), "");
        assert!(parser.buffered() <= 4 * MAX_BLOCK);
    }
    let end = frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"");
    assert_eq!(log(&mut parser, std::iter::once(&end[..])), "1: headers at 0 Bad(HeadTooLong)\n");
    let huge = frame(kind::HEADERS, flag::END_HEADERS, 3, &vec![0; 1 << 20]);
    assert_eq!(log(&mut parser, huge.chunks(4000)), "3: headers at 0 Bad(HeadTooLong)\n");
    assert!(parser.buffered() <= 4 * MAX_BLOCK);
}

/// Loses bytes `from..to` of one direction.
fn holed(bytes: &[u8], from: usize, to: usize, told: bool) -> (String, Hole) {
    let mut parser = Parser::new(Begins::WithFrame);
    let mut got = log(&mut parser, std::iter::once(&bytes[..from]));
    let hole = parser.hole(told.then_some((to - from) as u64));
    got.push_str(&format!("{hole:?}\n"));
    got.push_str(&log(&mut parser, std::iter::once(&bytes[to..])));
    (got, hole)
}

#[test]
fn holes_within_frames() {
    let data = [frame(kind::DATA, flag::END_STREAM | flag::PADDED, 1, b"\x02abcdef\0\0"), frame(kind::DATA, 0, 3, b"x")].concat();
    assert_eq!(holed(&data, 12, 14, true).0, "1: ab\nInData { stream: 1, missing: Some(2) }\n1: ef\n1: end\n3: x\n");
    // To the end of the frame, into the padding, and the pad length itself.
    assert_eq!(holed(&data, 12, 18, true).0, "1: ab\nInData { stream: 1, missing: Some(4) }\n1: end\n3: x\n");
    assert_eq!(holed(&data, 12, 17, true).0, "1: ab\nInData { stream: 1, missing: Some(4) }\n1: end\n3: x\n");
    assert_eq!(holed(&data, 9, 11, true).0, "InData { stream: 1, missing: None }\n1: end\n3: x\n");
    assert_eq!(holed(&data, 16, 17, true).0, "1: abcdef\nInFrame\n1: end\n3: x\n");
    // The end of the stream as well: when it came is not known.
    assert_eq!(holed(&data, 16, 18, true).0, "1: abcdef\nInData { stream: 1, missing: Some(0) }\n1: end\n3: x\n");
    let heads = [frame(kind::HEADERS, flag::END_STREAM, 1, b"abcdef"), frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"gh")].concat();
    assert_eq!(holed(&heads, 10, 12, true).0, "InFrame\n1: headers at 0 Lost end\n");
    assert_eq!(holed(&heads, 25, 26, true).0, "InFrame\n1: headers at 0 Lost end\n");
    let settings = frame(kind::SETTINGS, 0, 0, b"\0\x01\0\0\0\0");
    assert_eq!(holed(&settings, 9, 15, true).0, "InFrame\nTableSize(4294967295)\n");
    let reset = [frame(kind::RST_STREAM, 0, 1, b"\0\0\0\0"), frame(kind::GOAWAY, 0, 0, b"12345678")].concat();
    assert_eq!(holed(&reset, 10, 11, true).0, "InFrame\nReset(1)\nGoaway(825373492)\n");
}

#[test]
fn framing_is_found_again() {
    let (a, b) = (frame(kind::DATA, 0, 1, b"a"), frame(kind::DATA, 0, 1, b"bb"));
    let two = [frame(kind::DATA, 0, 1, &[b'x'; 50]), a.clone(), b.clone()].concat();
    // From the first frame's middle, its length unknown; one frame's end is a piece's end.
    assert_eq!(holed(&two, 20, 30, false).0, "1: xxxxxxxxxxx\nFramingLost\n1: abb\n");
    assert_eq!(holed(&two, 5, 65, false).0, "FramingLost\n1: bb\n");
    // A frame of an open stream needs no other; one of an unknown one whose end is not there does.
    let long = |stream| frame(kind::DATA, 0, stream, &[b'y'; 300]);
    for (stream, want) in [(99, "99: yyy"), (7, "")] {
        let mut parser = Parser::new(Begins::Anywhere);
        let got = log(&mut parser, [&b"\0\0\0"[..], &long(stream)[..12]].into_iter());
        assert_eq!(got.trim_end(), want);
    }
    // Then what stands behind it decides, however it is cut.
    let bytes = [b"rest of something\0".to_vec(), long(7), frame(kind::HEADERS, flag::END_HEADERS, 9, b"h"), a].concat();
    for size in 1..=64 {
        let got = log(&mut Parser::new(Begins::Anywhere), bytes.chunks(size));
        assert!(got.starts_with("9: headers at ") && got.ends_with(" h\n1: a\n"), "{size}: {got}");
    }
    // The header's first byte tells the instant, although it was not known to be one then.
    let head = frame(kind::HEADERS, flag::END_HEADERS, 99, b"h");
    let mut parser = Parser::new(Begins::Anywhere);
    assert_eq!(log(&mut parser, [&b"zz\0"[..], &b"zz"[..], &head[..3], &head[3..7], &head[7..]].into_iter()), "99: headers at 2 h\n");
}

#[test]
fn text_never_looks_like_a_frame() {
    let text = b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n".repeat(100);
    let mut parser = Parser::new(Begins::Anywhere);
    assert_eq!(log(&mut parser, text.chunks(17)), "");
    assert_eq!((parser.skipped(), parser.has_footing()), (text.len() as u64, false));
    parser.deafen();
    assert_eq!(log(&mut parser, std::iter::once(&frame(kind::PING, 0, 0, b"12345678")[..])), "");
}

fn frames(kinds: &'static [u8], streams: Range<u32>) -> impl Strategy<Value = Vec<u8>> {
    let one = (prop::sample::select(kinds), any::<u8>(), streams, proptest::collection::vec(any::<u8>(), 0..40));
    proptest::collection::vec(one, 0..12).prop_map(|all| all.iter().flat_map(|(k, f, s, p)| frame(*k, *f, *s, p)).collect())
}

proptest! {
    /// Whatever is called one whole frame is just that to the parser.
    #[test]
    fn whole_data_is_one_part(
        before in frames(&[0, 1, 9, 10], 1..3), flags in 0u8..2, stream in 0u32..3, data: Vec<u8>, at in 0usize..20, byte: u8, right: bool
    ) {
        let mut bytes = frame(kind::DATA, flags, stream, &data);
        if !right && let Some(b) = bytes.get_mut(at) {
            *b = byte;
        }
        let mut parser = Parser::new(Begins::WithFrame);
        let _ = log(&mut parser, std::iter::once(&before[..]));
        if let Some((stream, data)) = parser.whole_data(&bytes) {
            let mut input = &bytes[..];
            prop_assert_eq!(parser.next(instant(0), &mut input, &|_| false), Some(Part::Data(stream, data)));
            prop_assert_eq!(parser.next(instant(0), &mut input, &|_| false), None);
            prop_assert!(input.is_empty() && matches!(parser.state, State::Header(0)));
        } else {
            prop_assert!(!right || flags != 0 || stream == 0 || data.is_empty() || !before.is_empty());
        }
    }

    #[test]
    fn whole_or_in_pieces(bytes in frames(&[0, 0, 1, 1, 2, 9, 10], 1..6), size in 1usize..64) {
        let timeless = |text: String| text.lines().map(|l| l.replace(char::is_numeric, "")).collect::<Vec<_>>();
        let whole = log(&mut Parser::new(Begins::WithFrame), std::iter::once(&bytes[..]));
        prop_assert_eq!(timeless(log(&mut Parser::new(Begins::WithFrame), bytes.chunks(size))), timeless(whole));
    }

    #[test]
    fn holes_anywhere(bytes in frames(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99], 0..6), from: prop::sample::Index, len in 0usize..60, told: bool) {
        let from = from.index(bytes.len() + 1);
        let to = (from + len).min(bytes.len());
        let _ = holed(&bytes, from, to, told);
    }

    #[test]
    fn any_bytes(bytes: Vec<u8>, size in 1usize..64, seeking: bool) {
        let mut parser = Parser::new(if seeking { Begins::Anywhere } else { Begins::WithPreface });
        let _ = log(&mut parser, bytes.chunks(size));
    }
}
