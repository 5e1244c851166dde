//! Header blocks of one direction, parted by 0xfe; the first byte of each says what goes before it. A decoder that came later, or lost its
//! table, says of each field what one says that saw them all, or that it does not know it.
#![no_main]
use std::borrow::Cow;

use libfuzzer_sys::fuzz_target;
use tokengauge_core::http::h2::hpack::{Decoder, Field, MAX_LIST, MAX_TABLE};

type Fields = Vec<Option<(Vec<u8>, Vec<u8>)>>;

fn all<'a>(_: &[u8], value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    Some(Cow::Borrowed(value))
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Option<Fields> {
    let mut fields = Fields::new();
    let read = decoder.decode(block, &mut |field| {
        fields.push(match field {
            Field::Known(name, value) => Some((name.to_vec(), value.to_vec())),
            Field::Unknown => None,
        });
    });
    // Entries of 32 bytes and more: their texts, and what each costs us.
    assert!(decoder.buffered() <= 8 * MAX_TABLE);
    read.is_ok().then_some(fields)
}

fuzz_target!(|data: &[u8]| {
    let (mut sure, mut late) = (Decoder::new(all), Decoder::new(all));
    for block in data.split(|b| *b == 0xfe) {
        let Some((how, block)) = block.split_first() else { continue };
        match how {
            b'l' => late.lose(),
            b'a' => [&mut sure, &mut late].into_iter().for_each(|d| d.allow(u32::from(block.first().copied().unwrap_or(0)) << 8)),
            _ => {}
        }
        let Some(whole) = decode(&mut sure, block) else { return };
        let Some(part) = decode(&mut late, block) else { panic!("the later one cannot read it") };
        let size: usize = whole.iter().flatten().map(|(n, v)| n.len() + v.len() + 32).sum();
        if size < MAX_LIST / 2 {
            assert_eq!(whole.len(), part.len());
        }
        for (whole, part) in whole.iter().zip(part).filter(|(_, part)| part.is_some()) {
            assert_eq!(*whole, part);
        }
    }
});
