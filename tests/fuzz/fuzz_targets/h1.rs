//! One direction of HTTP/1, in pieces, with holes at the bytes 0xfe.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::http::h1::{MAX_HEAD, Parser, Part, Role};

fuzz_target!(|data: &[u8]| {
    let Some((&first, _)) = data.split_first() else { return };
    let Some((_, pieces)) = tokengauge_fuzz::pieces(data) else { return };
    let mut parser = Parser::new(if first & 0x80 == 0 { Role::Responses } else { Role::Requests }, first & 0x40 == 0);
    for mut piece in pieces {
        if piece[0] == 0xfe {
            parser.hole(piece.get(1).map(|n| u64::from(*n)));
        }
        let mut given = piece.len();
        while let Some(part) = parser.next(&mut piece) {
            if let Part::Body(bytes) = part {
                given = given.checked_sub(bytes.len()).unwrap();
            }
        }
        assert!(piece.is_empty() && parser.buffered() <= 4 * MAX_HEAD);
    }
    parser.close();
});
