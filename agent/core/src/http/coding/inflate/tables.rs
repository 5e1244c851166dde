//! The codes of a block (RFC 1951 §3.2): what stands for a literal or a length, and what for a distance.
//!
//! A short code is found by one look at the next bits. Longer ones, which are rare, are read bit by bit, as their canonical order allows.

use crate::anomaly::Anomaly;

/// Longest code, in bits.
const LONGEST: usize = 15;
/// Symbols for literals and lengths, and for distances.
const LITERALS: usize = 288;
const DISTANCES: usize = 32;
/// Codes of so many bits are looked up at once.
const LITERAL_BITS: u32 = 9;
const DISTANCE_BITS: u32 = 7;

/// What a code stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A byte; of a code of code lengths, its symbol.
    Literal,
    /// A length or a distance, to which bits may be added.
    Base,
    /// The end of the block.
    End,
    /// Nothing.
    Bad,
}

/// What the next bits mean: how many belong to the code (bits 0..4), the kind (4..8), how many more are added (8..16), the value (16..32).
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry(u32);

/// No code begins so.
const BAD: Entry = Entry::new(1, Kind::Bad, 0, 0);

impl Entry {
    const fn new(length: u32, kind: Kind, more: u32, value: u16) -> Self {
        Self(length | (kind as u32) << 4 | more << 8 | (value as u32) << 16)
    }

    /// The bits of the code. 0: it is longer than those that are looked up.
    #[inline]
    pub(super) const fn length(self) -> u32 {
        self.0 & 15
    }

    #[inline]
    pub(super) const fn kind(self) -> Kind {
        match self.0 >> 4 & 15 {
            0 => Kind::Literal,
            1 => Kind::Base,
            2 => Kind::End,
            _ => Kind::Bad,
        }
    }

    #[inline]
    pub(super) const fn value(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The value, with what stands in `bits` behind the first `used`; and how many bits are used then.
    #[inline]
    pub(super) const fn with(self, bits: u64, used: u32) -> (usize, u32) {
        let more = self.0 >> 8 & 0xff;
        let added = bits >> used & ((1 << more) - 1);
        ((self.0 >> 16) as usize + added as usize, used + more)
    }

    /// What the symbol of a code of literals and lengths stands for (RFC 1951 §3.2.5).
    const fn literal(symbol: u16, length: u32) -> Self {
        match symbol {
            0..=255 => Self::new(length, Kind::Literal, 0, symbol),
            256 => Self::new(length, Kind::End, 0, 0),
            257..=264 => Self::new(length, Kind::Base, 0, symbol - 254),
            265..=284 => {
                let more = (symbol - 261) as u32 / 4;
                Self::new(length, Kind::Base, more, 3 + ((4 + (symbol - 265) % 4) << more))
            }
            285 => Self::new(length, Kind::Base, 0, 258),
            _ => Self::new(length, Kind::Bad, 0, 0),
        }
    }

    const fn distance(symbol: u16, length: u32) -> Self {
        match symbol {
            0..=3 => Self::new(length, Kind::Base, 0, symbol + 1),
            4..=29 => {
                let more = symbol as u32 / 2 - 1;
                Self::new(length, Kind::Base, more, 1 + ((2 + symbol % 2) << more))
            }
            _ => Self::new(length, Kind::Bad, 0, 0),
        }
    }
}

/// What symbols stand for.
#[derive(Clone, Copy)]
enum Of {
    Literals,
    Distances,
    Lengths,
}

impl Of {
    const fn entry(self, symbol: u16, length: u32) -> Entry {
        match self {
            Self::Literals => Entry::literal(symbol, length),
            Self::Distances => Entry::distance(symbol, length),
            Self::Lengths => Entry::new(length, Kind::Literal, 0, symbol),
        }
    }
}

/// A prefix code: `ENTRIES` is two to the power of the bits that are looked up.
#[derive(Debug)]
struct Code<const ENTRIES: usize, const SYMBOLS: usize> {
    entries: [Entry; ENTRIES],
    /// How many codes there are of each length, and the symbols in the order of their codes.
    count: [u16; LONGEST + 1],
    symbols: [u16; SYMBOLS],
}

impl<const ENTRIES: usize, const SYMBOLS: usize> Code<ENTRIES, SYMBOLS> {
    const EMPTY: Self = Self { entries: [BAD; ENTRIES], count: [0; LONGEST + 1], symbols: [0; SYMBOLS] };

    /// The code whose symbols have these lengths; `None` when there can be none. One symbol may have all of one bit, or none may have any
    /// (both as zlib has it).
    const fn make(&mut self, lengths: &[u8], of: Of) -> Option<()> {
        (self.entries, self.count) = ([BAD; ENTRIES], [0; LONGEST + 1]);
        let (mut n, mut used) = (0, 0);
        while n < lengths.len() {
            if lengths[n] > 0 {
                self.count[lengths[n] as usize & LONGEST] += 1;
                used += 1;
            }
            n += 1;
        }
        // codes of the next length that are free; where those of a length begin, as codes and as symbols
        let (mut free, mut first, mut place) = (1_i32, [0_u16; LONGEST + 2], [0_u16; LONGEST + 2]);
        let mut length = 1;
        while length <= LONGEST {
            free = free * 2 - self.count[length] as i32;
            if free < 0 {
                return None;
            }
            first[length + 1] = (first[length] + self.count[length]) << 1;
            place[length + 1] = place[length] + self.count[length];
            length += 1;
        }
        if free > 0 && used > 0 && !(used == 1 && self.count[1] == 1 && !matches!(of, Of::Lengths)) {
            return None;
        }
        let mut symbol = 0;
        while symbol < lengths.len() {
            let length = lengths[symbol] as usize & LONGEST;
            if length > 0 {
                self.symbols[place[length] as usize] = symbol as u16;
                place[length] += 1;
                // codes come with their highest bit first
                let code = (first[length].reverse_bits() >> (16 - length)) as usize;
                first[length] += 1;
                let entry = if 1 << length <= ENTRIES { of.entry(symbol as u16, length as u32) } else { Entry(0) };
                let (mut at, step) = (code % ENTRIES, 1 << length);
                while at < ENTRIES {
                    self.entries[at] = entry;
                    at += step;
                }
            }
            symbol += 1;
        }
        Some(())
    }

    /// What the front of `bits` stands for.
    #[inline]
    fn entry(&self, bits: u64, of: Of) -> Entry {
        let entry = self.entries[bits as usize % ENTRIES];
        if entry.length() > 0 { entry } else { self.long(bits, of) }
    }

    /// The same for a code that is longer than those that are looked up.
    #[cold]
    fn long(&self, mut bits: u64, of: Of) -> Entry {
        let (mut code, mut first, mut place) = (0, 0, 0);
        for (length, count) in self.count.iter().enumerate().skip(1) {
            code |= (bits & 1) as usize;
            bits >>= 1;
            let count = usize::from(*count);
            if code < first + count {
                return self.symbols.get(place + code - first).map_or(BAD, |symbol| of.entry(*symbol, length as u32));
            }
            place += count;
            (first, code) = ((first + count) << 1, code << 1);
        }
        BAD
    }
}

/// The codes of a block, and what they are made of while it begins.
#[derive(Debug)]
pub(super) struct Tables {
    literals: Code<{ 1 << LITERAL_BITS }, LITERALS>,
    /// Before these are known, the code of their lengths.
    distances: Code<{ 1 << DISTANCE_BITS }, DISTANCES>,
    /// The lengths of both codes, one after the other; while that code is made, those of the code of lengths.
    lengths: [u8; LITERALS + DISTANCES],
    /// How many of them are known, and how many there will be.
    known: usize,
    all: usize,
    /// How many of them are the literals'.
    of_literals: usize,
}

impl Default for Tables {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// The codes that need not be sent (RFC 1951 §3.2.6).
pub(super) static FIXED: Tables = Tables::fixed();

impl Tables {
    const EMPTY: Self =
        Self { literals: Code::EMPTY, distances: Code::EMPTY, lengths: [0; LITERALS + DISTANCES], known: 0, all: 0, of_literals: 0 };

    const fn fixed() -> Self {
        let mut lengths = [8; LITERALS];
        let mut symbol = 144;
        while symbol < 280 {
            lengths[symbol] = if symbol < 256 { 9 } else { 7 };
            symbol += 1;
        }
        let mut fixed = Self::EMPTY;
        // both are whole: `every_code_of_the_fixed_block`
        let _ = (fixed.literals.make(&lengths, Of::Literals), fixed.distances.make(&[5; DISTANCES], Of::Distances));
        fixed
    }

    /// A block begins that brings lengths for so many codes.
    pub(super) fn begin(&mut self, literals: usize, distances: usize) {
        self.lengths = [0; LITERALS + DISTANCES];
        (self.known, self.all, self.of_literals) = (0, literals + distances, literals);
    }

    /// The length of the code for the symbol of a length.
    pub(super) fn set(&mut self, symbol: u8, length: u8) {
        if let Some(place) = self.lengths.get_mut(usize::from(symbol)) {
            *place = length;
        }
    }

    /// All those of [`Tables::set`] are known.
    pub(super) fn code_lengths(&mut self) -> Result<(), Anomaly> {
        let lengths: [u8; 19] = *self.lengths.first_chunk().ok_or(Anomaly::BadCoding)?;
        self.lengths = [0; LITERALS + DISTANCES];
        self.distances.make(&lengths, Of::Lengths).ok_or(Anomaly::BadCoding)
    }

    /// Whether the lengths of both codes are known.
    pub(super) fn is_complete(&self) -> bool {
        self.known == self.all
    }

    /// Takes what the front of `bits` says of lengths. Returns how many bits that were, unless they are more than `held`.
    pub(super) fn length(&mut self, bits: u64, held: u32) -> Result<Option<u32>, Anomaly> {
        let entry = self.distances.entry(bits, Of::Lengths);
        if entry.length() > held {
            return Ok(None);
        }
        if entry.kind() == Kind::Bad {
            return Err(Anomaly::BadCoding);
        }
        let before = self.known.checked_sub(1).and_then(|n| self.lengths.get(n)).copied();
        let (least, more, value) = match entry.value() {
            16 => (3, 2, before.ok_or(Anomaly::BadCoding)),
            17 => (3, 3, Ok(0)),
            18 => (11, 7, Ok(0)),
            // below 16
            length => (1, 0, Ok(length as u8)),
        };
        let used = entry.length() + more;
        if used > held {
            return Ok(None);
        }
        let times = least + (bits >> entry.length() & ((1 << more) - 1)) as usize;
        let end = self.known + times;
        if end > self.all {
            return Err(Anomaly::BadCoding);
        }
        self.lengths.get_mut(self.known..end).ok_or(Anomaly::BadCoding)?.fill(value?);
        self.known = end;
        Ok(Some(used))
    }

    /// Makes the codes.
    pub(super) fn build(&mut self) -> Result<(), Anomaly> {
        let all = self.lengths.get(..self.all).ok_or(Anomaly::BadCoding)?;
        let (literals, distances) = all.split_at_checked(self.of_literals).ok_or(Anomaly::BadCoding)?;
        // A block without an end could not end.
        let ends = literals.get(256).is_some_and(|length| *length > 0);
        let made = self.literals.make(literals, Of::Literals).and(self.distances.make(distances, Of::Distances));
        made.filter(|()| ends).ok_or(Anomaly::BadCoding)
    }

    /// The literal or length that stands at the front of `bits`.
    #[inline]
    pub(super) fn literal(&self, bits: u64) -> Entry {
        self.literals.entry(bits, Of::Literals)
    }

    /// The distance that stands at the front of `bits`.
    #[inline]
    pub(super) fn distance(&self, bits: u64) -> Entry {
        self.distances.entry(bits, Of::Distances)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_fixed_block() {
        // RFC 1951 §3.2.6: the codes in order, with their highest bit first.
        let code = |bits: u64, length: u32| bits.reverse_bits() >> (64 - length);
        let runs = [(0..144_u64, 8, 0b0011_0000), (144..256, 9, 0b1_1001_0000), (256..280, 7, 0), (280..288, 8, 0b1100_0000)];
        for (symbols, length, first) in runs {
            for symbol in symbols.clone() {
                let entry = FIXED.literal(code(first + symbol - symbols.start, length));
                assert_eq!(entry.0, Entry::literal(symbol as u16, length).0);
            }
        }
        for symbol in 0..32 {
            assert_eq!(FIXED.distance(code(symbol, 5)).0, Entry::distance(symbol as u16, 5).0);
        }
        let ends = |entry: Entry| (entry.with(0, 0).0, entry.with(u64::MAX, 0).0);
        assert_eq!(
            [257, 264, 265, 268, 269, 284, 285].map(|s| ends(Entry::literal(s, 7))).map(|(a, b)| [a, b]),
            [[3, 3], [10, 10], [11, 12], [17, 18], [19, 22], [227, 258], [258, 258]]
        );
        assert_eq!(
            [0, 3, 4, 5, 6, 29].map(|s| ends(Entry::distance(s, 5))).map(|(a, b)| [a, b]),
            [[1, 1], [4, 4], [5, 6], [7, 8], [9, 12], [24577, 32768]]
        );
        assert_eq!([286, 287].map(|s| Entry::literal(s, 8).kind()), [Kind::Bad; 2]);
        assert_eq!([30, 31].map(|s| Entry::distance(s, 5).kind()), [Kind::Bad; 2]);
    }

    #[test]
    fn codes_that_cannot_be() {
        let make = |lengths: &[u8], of| Code::<128, 32>::EMPTY.make_new(lengths, of);
        assert!(
            make(&[1, 1], Of::Distances) && make(&[1, 2, 2], Of::Lengths) && make(&[0, 1], Of::Distances) && make(&[0, 0], Of::Distances)
        );
        assert!(
            !make(&[1, 1, 1], Of::Distances) && !make(&[1, 2], Of::Distances) && !make(&[2], Of::Distances) && !make(&[1], Of::Lengths)
        );
    }

    impl<const E: usize, const S: usize> Code<E, S> {
        fn make_new(mut self, lengths: &[u8], of: Of) -> bool {
            self.make(lengths, of).is_some()
        }
    }
}
