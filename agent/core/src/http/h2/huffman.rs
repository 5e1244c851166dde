//! The Huffman code of HPACK (RFC 7541 §5.2 and Appendix B).
//!
//! The code is canonical: of two symbols the shorter code, and among equals the smaller symbol, comes first. So the lengths are all
//! there is to write down; the tables are made from them when this is compiled.

/// Bits of each symbol's code; the last one is EOS.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, //
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, //
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, //
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, //
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, //
    30,
];
const EOS: u16 = 256;
const LONGEST: usize = 30;
/// Codes of up to so many bits are found by one look.
const SHORT: usize = 8;

/// Encoded bytes that decode to nothing: a code that is cut off, padding that is none, EOS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadCode;

struct Tables {
    /// Symbol and length by the first 8 bits; length 0 where the code is longer.
    short: [(u8, u8); 1 << SHORT],
    /// The first code of each length.
    first: [u32; LONGEST + 1],
    /// How many codes of each length there are.
    count: [u16; LONGEST + 1],
    /// Where the symbols of each length begin in `sorted`.
    offset: [u16; LONGEST + 1],
    /// Symbols in the order of their codes.
    sorted: [u16; 257],
    /// The code of each symbol.
    #[cfg(any(test, feature = "testing"))]
    codes: [u32; 257],
}

static TABLES: Tables = tables();

const fn tables() -> Tables {
    let mut t = Tables {
        short: [(0, 0); 1 << SHORT],
        first: [0; LONGEST + 1],
        count: [0; LONGEST + 1],
        offset: [0; LONGEST + 1],
        sorted: [0; 257],
        #[cfg(any(test, feature = "testing"))]
        codes: [0; 257],
    };
    let (mut code, mut n, mut len) = (0u32, 0, 1);
    while len <= LONGEST {
        code <<= 1;
        t.first[len] = code;
        t.offset[len] = n as u16;
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as usize == len {
                t.sorted[n] = symbol as u16;
                #[cfg(any(test, feature = "testing"))]
                {
                    t.codes[symbol] = code;
                }
                if len <= SHORT {
                    let begin = (code as usize) << (SHORT - len);
                    let mut i = 0;
                    while i < 1 << (SHORT - len) {
                        t.short[begin + i] = (symbol as u8, len as u8);
                        i += 1;
                    }
                }
                code += 1;
                n += 1;
                t.count[len] += 1;
            }
            symbol += 1;
        }
        len += 1;
    }
    t
}

/// The symbol at the front of `window`, and its length.
fn symbol(window: u32) -> (u16, u32) {
    let (symbol, len) = TABLES.short[(window >> 24) as usize];
    if len > 0 {
        return (symbol.into(), len.into());
    }
    for len in SHORT + 1..=LONGEST {
        let nth = (window >> (32 - len)).wrapping_sub(TABLES.first[len]);
        if nth < TABLES.count[len].into() {
            return (TABLES.sorted[usize::from(TABLES.offset[len]) + nth as usize], len as u32);
        }
    }
    // Not reached: the code is complete.
    (EOS, LONGEST as u32)
}

/// Decodes `code`, byte by byte.
///
/// # Errors
/// When it is not a whole number of codes with less than a byte of padding, all ones (RFC 7541 §5.2).
pub fn decode(code: &[u8], mut out: impl FnMut(u8)) -> Result<(), BadCode> {
    let mut input = code.iter();
    let (mut held, mut bits) = (0u64, 0u32);
    loop {
        while bits <= 32 {
            let Some(byte) = input.next() else { break };
            held = held << 8 | u64::from(*byte);
            bits += 8;
        }
        if bits == 0 {
            return Ok(());
        }
        // Ones behind the end: padding then looks like the beginning of EOS.
        let window = (held << (64 - bits) | (u64::MAX >> bits)) >> 32;
        let (symbol, len) = symbol(window as u32);
        if len > bits {
            let ones = (1u64 << bits) - 1;
            return if bits < 8 && held & ones == ones { Ok(()) } else { Err(BadCode) };
        }
        if symbol >= EOS {
            return Err(BadCode);
        }
        out(symbol as u8);
        bits -= len;
        held &= (1 << bits) - 1;
    }
}

/// Encodes `text`.
#[cfg(any(test, feature = "testing"))]
pub fn encode(text: &[u8]) -> Vec<u8> {
    let (mut out, mut held, mut bits) = (Vec::new(), 0u64, 0u32);
    for byte in text {
        let len = u32::from(LENGTHS[usize::from(*byte)]);
        held = held << len | u64::from(TABLES.codes[usize::from(*byte)]);
        bits += len;
        while bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
        }
        held &= (1 << bits) - 1;
    }
    if bits > 0 {
        out.push((held << (8 - bits)) as u8 | (0xff >> bits));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(code: &[u8]) -> Result<Vec<u8>, BadCode> {
        let mut out = Vec::new();
        decode(code, |b| out.push(b)).map(|()| out)
    }

    #[test]
    fn the_code_is_complete() {
        let sum: u64 = LENGTHS.iter().map(|l| 1u64 << (LONGEST - usize::from(*l))).sum();
        assert_eq!(sum, 1 << LONGEST);
        // Corners of Appendix B.
        for (symbol, code) in
            [(b'0', 0), (b'a', 3), (b' ', 0x14), (b'z', 0x7b), (b'&', 0xf8), (0, 0x1ff8), (b'\\', 0x7fff0), (10, 0x3fff_fffc)]
        {
            assert_eq!(TABLES.codes[usize::from(symbol)], code, "{symbol}");
        }
        assert_eq!(TABLES.codes[256], 0x3fff_ffff);
    }

    #[test]
    fn padding_is_less_than_a_byte_of_ones() {
        // `a` is 00011.
        assert_eq!(decoded(&[0b0001_1111]), Ok(b"a".to_vec()));
        assert_eq!(decoded(&[]), Ok(Vec::new()));
        for bad in [&[0b0001_1000][..], &[0b0001_1110], &[0b0001_1111, 0xff], &[0xff], &[0xff, 0xff, 0xff, 0xff], &[0xfe]] {
            assert_eq!(decoded(bad), Err(BadCode), "{bad:x?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text: Vec<u8>) {
            prop_assert_eq!(decoded(&encode(&text)), Ok(text));
        }

        #[test]
        fn whatever_decodes_was_encoded_so(code: Vec<u8>) {
            if let Ok(text) = decoded(&code) {
                prop_assert_eq!(encode(&text), code);
            }
        }
    }
}
