use super::*;
use expect_test::{Expect, expect};
use proptest::prelude::*;

fn everything<'a>(_: &[u8], value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    Some(Cow::Borrowed(value))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

fn shown(field: Field<'_>) -> String {
    match field {
        Field::Known(name, value) => format!("{}: {}\n", String::from_utf8_lossy(name), String::from_utf8_lossy(value)),
        Field::Unknown => "?\n".into(),
    }
}

fn step(decoder: &mut Decoder, block: &[u8]) -> String {
    let mut log = String::new();
    if let Err(why) = decoder.decode(block, &mut |f| log.push_str(&shown(f))) {
        log.push_str(&format!("{why:?}\n"));
        decoder.lose();
    }
    log.push_str(&format!("= {} bytes, {} entries\n", decoder.size, decoder.entries.len()));
    log
}

fn check(decoder: &mut Decoder, blocks: &[&str], want: Expect) {
    let log: String = blocks.iter().map(|b| step(decoder, &unhex(b))).collect();
    want.assert_eq(&log);
}

/// A table of 256 bytes, as the examples of responses have it.
fn small() -> Decoder {
    let mut decoder = Decoder::new(everything);
    decoder.resize(256);
    decoder
}

#[test]
fn appendix_c1_integers() {
    for (bytes, prefix, want) in [(&[10][..], 5, 10), (&[31, 154, 10], 5, 1337), (&[42], 8, 42)] {
        let mut input = bytes;
        assert_eq!((integer(&mut input, prefix), input), (Ok(want), &[][..]));
    }
    for (bytes, why) in [
        (&[31][..], BadBlock::CutOff),
        (&[31, 0x80], BadBlock::CutOff),
        (&[31, 0xff, 0xff, 0xff, 0xff, 0x7f], BadBlock::Integer),
        (&[31, 0x80, 0x80, 0x80, 0x80, 0x80, 0], BadBlock::Integer),
    ] {
        assert_eq!(integer(&mut &*bytes, 5), Err(why));
    }
}

#[test]
fn appendix_c2_single_fields() {
    let log: String = [
        "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
        "040c 2f73 616d 706c 652f 7061 7468",
        "1008 7061 7373 776f 7264 0673 6563 7265 74",
        "82",
    ]
    .iter()
    .map(|b| step(&mut Decoder::new(everything), &unhex(b)))
    .collect();
    expect![[r#"
        custom-key: custom-header
        = 55 bytes, 1 entries
        :path: /sample/path
        = 0 bytes, 0 entries
        password: secret
        = 0 bytes, 0 entries
        :method: GET
        = 0 bytes, 0 entries
    "#]]
    .assert_eq(&log);
}

fn requests() -> Expect {
    expect![[r#"
        :method: GET
        :scheme: http
        :path: /
        :authority: www.example.com
        = 57 bytes, 1 entries
        :method: GET
        :scheme: http
        :path: /
        :authority: www.example.com
        cache-control: no-cache
        = 110 bytes, 2 entries
        :method: GET
        :scheme: https
        :path: /index.html
        :authority: www.example.com
        custom-key: custom-value
        = 164 bytes, 3 entries
    "#]]
}

#[test]
fn appendix_c3_requests() {
    let blocks = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    check(&mut Decoder::new(everything), &blocks, requests());
}

#[test]
fn appendix_c4_requests_in_huffman_code() {
    let blocks = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    check(&mut Decoder::new(everything), &blocks, requests());
}

fn responses() -> Expect {
    expect![[r#"
        :status: 302
        cache-control: private
        date: Mon, 21 Oct 2013 20:13:21 GMT
        location: https://www.example.com
        = 222 bytes, 4 entries
        :status: 307
        cache-control: private
        date: Mon, 21 Oct 2013 20:13:21 GMT
        location: https://www.example.com
        = 222 bytes, 4 entries
        :status: 200
        cache-control: private
        date: Mon, 21 Oct 2013 20:13:22 GMT
        location: https://www.example.com
        content-encoding: gzip
        set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1
        = 215 bytes, 3 entries
    "#]]
}

#[test]
fn appendix_c5_responses() {
    let blocks = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e 1768 \
         7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d 4153 \
         444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e \
         3d31",
    ];
    check(&mut small(), &blocks, responses());
}

#[test]
fn appendix_c6_responses_in_huffman_code() {
    let blocks = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 \
         e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b \
         3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    check(&mut small(), &blocks, responses());
}

#[test]
fn what_cannot_be_read() {
    for (block, why) in [
        ("80", BadBlock::Index),
        ("be", BadBlock::Index),
        ("7e01 61", BadBlock::Index),
        ("ffff ffff ff7f", BadBlock::Integer),
        ("82 20", BadBlock::SizeUpdate),
        ("3fe2 1f", BadBlock::SizeUpdate),
        ("40", BadBlock::CutOff),
        ("4001", BadBlock::CutOff),
        ("4001 61", BadBlock::CutOff),
        ("0081 fe01 61", BadBlock::Huffman),
        ("4001 6181 18", BadBlock::Huffman),
        ("4017 61", BadBlock::CutOff),
    ] {
        assert_eq!(Decoder::new(everything).decode(&unhex(block), &mut |_| ()), Err(why), "{block}");
    }
}

#[test]
fn sizes_follow_the_settings() {
    let mut decoder = Decoder::new(everything);
    // One field in, the table to 0 and back, nothing left.
    check(
        &mut decoder,
        &["4001 6101 62", "20 3fe1 1f 4001 6301 64", "be", "bf"],
        expect![[r#"
            a: b
            = 34 bytes, 1 entries
            c: d
            = 34 bytes, 1 entries
            c: d
            = 34 bytes, 1 entries
            Index
            = 0 bytes, 0 entries
        "#]],
    );
    let mut decoder = Decoder::new(everything);
    decoder.allow(1 << 20);
    decoder.allow(0);
    assert_eq!(decoder.decode(&unhex("3fe1 ff3f"), &mut |_| ()), Ok(()));
    assert_eq!((decoder.capacity, decoder.exact), (1 << 20, false));
}

#[test]
fn an_entry_that_does_not_fit_empties_the_table() {
    let mut decoder = Decoder::new(everything);
    let mut block = unhex("3f11 4001 6101 62 4001 63 1e");
    block.extend([b'x'; 30]);
    check(
        &mut decoder,
        &[&block.iter().map(|b| format!("{b:02x}")).collect::<String>()],
        expect![[r#"
        a: b
        c: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
        = 0 bytes, 0 entries
    "#]],
    );
}

#[test]
fn after_a_loss_only_what_came_since_is_known() {
    let mut decoder = Decoder::new(everything);
    decoder.lose();
    check(
        &mut decoder,
        &[
            // Static fields and literals are known, the old entries are not.
            "82 0401 2f be 7f01 01 62",
            // A name that was not seen, inserted with a value: unknown still. Then one that is known, and the ones behind it.
            "4001 6301 64 bf c0 be",
            // The encoder says how large its table is, and it is full: behind the known ones is nothing now.
            "3f00 4001 6501 66 bf",
        ],
        expect![[r#"
            :method: GET
            :path: /
            ?
            ?
            = 33 bytes, 1 entries
            c: d
            ?
            ?
            c: d
            = 67 bytes, 2 entries
            e: f
            Index
            = 0 bytes, 0 entries
        "#]],
    );
}

#[test]
fn nothing_is_held_of_what_is_not_looked_at() {
    fn keep<'a>(name: &[u8], value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        (name == b":path").then(|| Cow::Owned(value.split(|b| *b == b'?').next().unwrap().to_vec()))
    }
    let mut decoder = Decoder::new(keep);
    let mut block = unhex("44 06");
    block.extend(b"/a?k=1");
    // `authorization` is entry 23 of the static table.
    block.extend(unhex("57 0a"));
    block.extend(b"Bearer abc");
    // What is told is what is held.
    assert_eq!(step(&mut decoder, &block), ":path: /a\n= 98 bytes, 2 entries\n");
    assert_eq!(step(&mut decoder, &unhex("bf be")), ":path: /a\n= 98 bytes, 2 entries\n");
    // A name by reference, which is not looked at either.
    assert_eq!(step(&mut decoder, &unhex("7e 01 78")), "= 144 bytes, 3 entries\n");
    let held: Vec<u8> = decoder.entries.iter().filter_map(|e| e.text.clone()).flatten().collect();
    assert_eq!(held, b":path/a");
    assert!(decoder.buffered() >= held.len());
}

#[test]
fn bounds() {
    let mut decoder = Decoder::new(everything);
    decoder.allow(u32::MAX);
    let mut huge = unhex("3fe1 ffff ff07");
    for n in 0..40_000u32 {
        huge.extend([0x40, 4]);
        huge.extend(n.to_be_bytes());
        huge.push(0);
    }
    let mut told = 0;
    assert_eq!(decoder.decode(&huge, &mut |_| told += 1), Ok(()));
    assert!(decoder.size <= MAX_TABLE && decoder.buffered() < 3 * MAX_TABLE && decoder.more);
    assert_eq!(told, MAX_LIST / 36);
    // What fell out by our bound is unknown, not wrong.
    assert_eq!(step(&mut decoder, &unhex("ffff 7f")), format!("?\n= {} bytes, {} entries\n", decoder.size, decoder.entries.len()));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(blocks: Vec<Vec<u8>>, lost: bool) {
        let mut decoder = Decoder::new(everything);
        if lost {
            decoder.lose();
        }
        for block in blocks {
            let _ = step(&mut decoder, &block);
            prop_assert_eq!(decoder.size, decoder.entries.iter().map(|e| e.size as usize).sum::<usize>());
            prop_assert!(decoder.size <= MAX_TABLE);
        }
    }
}
