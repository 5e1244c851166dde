//! DEFLATE (RFC 1951) as a stream, for bodies that come in many small pieces: a server that compresses a stream of events flushes after each of
//! them, so a piece is twenty bytes that become three hundred.
//!
//! The text is made where it is needed again: what one step made is a slice of the window, so nothing is copied from a window to an output
//! and back. The window begins small and becomes a ring of 32 KiB when the stream is long enough. Of the input nothing is kept but the bits of a
//! symbol that is not whole yet: at most 48 of them belong together (a length, a distance and what is added to both), so a step stops
//! between two symbols, or between two bytes of a copy where the ring begins anew.
//!
//! # What it gave
//! On the bench's compressed capture zlib-rs took 1,400 instructions for a piece, most of them to begin and to end a call, and a stream's state (7 KB), window
//! and output lay in two dozen cache lines; this takes about 600, and half of the lines. What remains is waiting for the window's memory: it is the oldest of the
//! ring that is written next. The properties below compare with zlib-rs, whole and in pieces, what is right and what is damaged.

mod tables;

use crate::anomaly::Anomaly;
use tables::{FIXED, Kind, Tables};

/// The farthest that a copy may reach back (RFC 1951 §3.2.5).
const WINDOW: usize = 32 << 10;
/// What the window is at the beginning.
const SMALL: usize = 4 << 10;
/// Bits of the longest symbol: a length of 15 bits with 5 more, a distance of 15 bits with 13 more.
const SYMBOL: u32 = 48;
/// The order in which lengths of code lengths come (RFC 1951 §3.2.7).
const ORDER: [u8; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Why a step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The input is used up, and gives no more than this.
    Input,
    /// The window begins anew: there may be more.
    Window,
    /// The stream has ended. What is left of the input is none of it.
    End,
}

/// A stream of raw DEFLATE.
#[derive(Debug)]
pub struct Inflate {
    window: Vec<u8>,
    /// Where the next byte goes.
    at: usize,
    /// Where what the last step made begins.
    from: usize,
    /// Whether the ring has begun anew: before that there is nothing behind `at`.
    round: bool,
    /// Bits of the input that belong to no symbol yet, the next one lowest, and how many. Those above are 0.
    bits: u64,
    held: u32,
    state: State,
    /// Whether this block is the last one.
    last: bool,
    /// Those of the last block that brought its own.
    tables: Option<Box<Tables>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Before a block's first three bits.
    Block,
    /// Before the lengths of a block that is not compressed.
    StoredHead,
    /// So many bytes of it are left.
    Stored(u16),
    /// Before the three counts of a block with codes of its own.
    Counts,
    /// Before the length of a code of code lengths: which one, of how many.
    CodeLengths(u8, u8),
    /// Before the length of a code.
    Lengths,
    /// Before a symbol; whether the codes are the fixed ones.
    Symbols { fixed: bool },
    /// So many bytes are left to be copied from so far back.
    Copy { fixed: bool, distance: u16, left: u16 },
    /// The end.
    Ended,
}

impl Default for Inflate {
    fn default() -> Self {
        Self { window: Vec::new(), at: 0, from: 0, round: false, bits: 0, held: 0, state: State::Block, last: false, tables: None }
    }
}

impl Inflate {
    /// Bytes of memory that are held.
    #[inline]
    pub fn buffered(&self) -> usize {
        self.window.len() + if self.tables.is_some() { size_of::<Tables>() } else { 0 }
    }

    /// What comes next is another stream.
    pub fn restart(&mut self) {
        let (window, tables) = (std::mem::take(&mut self.window), self.tables.take());
        *self = Self { window, tables, ..Self::default() };
    }

    /// What the last step made.
    #[inline]
    pub fn text(&self) -> &[u8] {
        self.window.get(self.from..self.at).unwrap_or_default()
    }

    /// The memory that the next step will most likely need: what the last one made, and as much behind it.
    #[inline]
    pub fn near(&self) -> &[u8] {
        let end = (2 * self.at - self.from + 64).min(self.window.len());
        self.window.get(self.from..end).unwrap_or_default()
    }

    /// Inflates what `input` begins with, and takes it off. What was made is [`Inflate::text`].
    ///
    /// # Errors
    /// When the bytes are none of DEFLATE's.
    #[inline]
    pub fn step(&mut self, input: &mut &[u8]) -> Result<Stop, Anomaly> {
        if self.at == WINDOW {
            (self.at, self.round) = (0, true);
        }
        self.from = self.at;
        if self.state == State::Block
            && let Some(stop) = self.flushed(input)?
        {
            return Ok(stop);
        }
        loop {
            let stop = match self.state {
                State::Symbols { fixed: true } => self.symbols(&FIXED, input)?,
                State::Symbols { fixed: false } => match self.tables.take() {
                    Some(tables) => {
                        let stop = self.symbols(&tables, input);
                        self.tables = Some(tables);
                        stop?
                    }
                    None => return Err(Anomaly::BadCoding),
                },
                _ => self.between(input)?,
            };
            match stop {
                None => {}
                Some(Stop::Window) if self.window.len() < WINDOW => self.grow(),
                Some(stop) => return Ok(stop),
            }
        }
    }

    /// What nearly every piece of a flushed stream is, without going from state to state: a block of fixed codes, which is not the last one, and
    /// the empty one that a flush leaves behind it. `None`: it is something else, as far as it was not read.
    #[inline]
    fn flushed(&mut self, input: &mut &[u8]) -> Result<Option<Stop>, Anomaly> {
        self.refill(input);
        // three bits: not the last one, fixed codes
        if self.held < 3 || self.bits & 7 != 2 {
            return Ok(None);
        }
        (self.bits, self.held, self.last) = (self.bits >> 3, self.held - 3, false);
        self.state = State::Symbols { fixed: true };
        match self.symbols(&FIXED, input)? {
            None => {}
            Some(Stop::Window) if self.window.len() < WINDOW => {
                self.grow();
                return Ok(None);
            }
            stop => return Ok(stop),
        }
        self.refill(input);
        // three bits and those up to the next byte, all 0; no length, and that length's complement
        let head = 3 + self.held.wrapping_sub(3) % 8;
        if self.held < head + 32 || self.bits & ((1 << (head + 32)) - 1) != 0xffff_0000 << head {
            return Ok(None);
        }
        (self.bits, self.held) = (self.bits >> (head + 32), self.held - head - 32);
        Ok((self.held == 0 && input.is_empty()).then_some(Stop::Input))
    }

    /// The window is full for the first time, or has none.
    #[cold]
    fn grow(&mut self) {
        let len = if self.window.is_empty() { SMALL } else { WINDOW };
        self.window.reserve_exact(len - self.window.len());
        self.window.resize(len, 0);
    }

    #[inline]
    fn refill(&mut self, input: &mut &[u8]) {
        (self.bits, self.held) = more(self.bits, self.held, input);
    }

    /// Takes so many bits, at most 32, if there are as many.
    #[inline]
    fn take(&mut self, count: u32, input: &mut &[u8]) -> Option<u32> {
        if self.held < count {
            self.refill(input);
            if self.held < count {
                return None;
            }
        }
        let bits = (self.bits & ((1 << count) - 1)) as u32;
        (self.bits, self.held) = (self.bits >> count, self.held - count);
        Some(bits)
    }

    /// Behind the end of the stream: how many bytes were taken that are none of it.
    #[inline]
    pub const fn surplus(&self) -> u8 {
        // at most 7
        (self.held / 8) as u8
    }

    /// Everything but symbols. `None`: another state.
    fn between(&mut self, input: &mut &[u8]) -> Result<Option<Stop>, Anomaly> {
        match self.state {
            State::Block => {
                let Some(head) = self.take(3, input) else { return Ok(Some(Stop::Input)) };
                self.last = head & 1 == 1;
                self.state = match head >> 1 {
                    0 => State::StoredHead,
                    1 => State::Symbols { fixed: true },
                    2 => State::Counts,
                    _ => return Err(Anomaly::BadCoding),
                };
            }
            State::StoredHead => {
                // The bits up to the next byte's beginning go first.
                let odd = self.held % 8;
                (self.bits, self.held) = (self.bits >> odd, self.held - odd);
                let Some(lengths) = self.take(32, input) else { return Ok(Some(Stop::Input)) };
                let (length, complement) = (lengths as u16, (lengths >> 16) as u16);
                if length != !complement {
                    return Err(Anomaly::BadCoding);
                }
                self.state = State::Stored(length);
            }
            State::Stored(0) => return Ok(self.end_of_block()),
            State::Stored(left) => {
                if self.held == 0 && input.is_empty() {
                    return Ok(Some(Stop::Input));
                }
                let room = self.window.get_mut(self.at..).unwrap_or_default();
                if room.is_empty() {
                    return Ok(Some(Stop::Window));
                }
                let mut now = room.len().min(left.into());
                if self.held > 0 {
                    // whole bytes
                    room[0] = self.bits as u8;
                    (self.bits, self.held, now) = (self.bits >> 8, self.held - 8, 1);
                } else {
                    now = now.min(input.len());
                    room[..now].copy_from_slice(&input[..now]);
                    *input = &input[now..];
                }
                self.made(now);
                // now <= left
                self.state = State::Stored(left - now as u16);
            }
            State::Counts => {
                let Some(counts) = self.take(14, input) else { return Ok(Some(Stop::Input)) };
                let (literals, distances) = (257 + (counts & 31), 1 + (counts >> 5 & 31));
                if literals > 286 || distances > 30 {
                    return Err(Anomaly::BadCoding);
                }
                // below 287 and 31
                self.tables.get_or_insert_default().begin(literals as usize, distances as usize);
                self.state = State::CodeLengths(0, 4 + (counts >> 10) as u8);
            }
            State::CodeLengths(at, of) => {
                let Some(tables) = &mut self.tables else { return Err(Anomaly::BadCoding) };
                if at == of {
                    tables.code_lengths()?;
                    self.state = State::Lengths;
                    return Ok(None);
                }
                let Some(length) = self.take(3, input) else { return Ok(Some(Stop::Input)) };
                if let (Some(tables), Some(symbol)) = (&mut self.tables, ORDER.get(usize::from(at))) {
                    // below 8
                    tables.set(*symbol, length as u8);
                }
                self.state = State::CodeLengths(at + 1, of);
            }
            State::Lengths => {
                if self.held < SYMBOL {
                    self.refill(input);
                }
                let Some(tables) = &mut self.tables else { return Err(Anomaly::BadCoding) };
                if tables.is_complete() {
                    tables.build()?;
                    self.state = State::Symbols { fixed: false };
                    return Ok(None);
                }
                let Some(used) = tables.length(self.bits, self.held)? else { return Ok(Some(Stop::Input)) };
                (self.bits, self.held) = (self.bits >> used, self.held - used);
            }
            State::Copy { fixed, distance, left } => {
                let left = self.copy(distance.into(), left.into());
                self.state = match left {
                    0 => State::Symbols { fixed },
                    // less than it was
                    _ => State::Copy { fixed, distance, left: left as u16 },
                };
                return Ok((left > 0).then_some(Stop::Window));
            }
            State::Symbols { .. } => {}
            State::Ended => return Ok(Some(Stop::End)),
        }
        Ok(None)
    }

    /// How far a copy may reach back.
    #[inline]
    const fn reach(&self) -> usize {
        if self.round { WINDOW } else { self.at }
    }

    fn made(&mut self, count: usize) {
        self.at += count;
    }

    fn end_of_block(&mut self) -> Option<Stop> {
        self.state = if self.last { State::Ended } else { State::Block };
        self.last.then_some(Stop::End)
    }

    /// Copies `left` bytes from `distance` back, as many as there is room for. Returns how many are left.
    #[inline]
    fn copy(&mut self, distance: usize, mut left: usize) -> usize {
        let len = self.window.len();
        if distance > self.at {
            // Behind the ring's beginning lies its end.
            let from = self.at + len - distance;
            let now = left.min(len - from);
            self.window.copy_within(from..from + now, self.at);
            self.made(now);
            left -= now;
            if left == 0 {
                return 0;
            }
        }
        let from = self.at - distance;
        while left > 0 && self.at < len {
            // What is copied may be longer than what is there: then it repeats that, and with each turn there is twice as much.
            let now = left.min(len - self.at).min(self.at - from);
            self.window.copy_within(from..from + now, self.at);
            self.made(now);
            left -= now;
        }
        left
    }

    /// Reads symbols until something else comes. `None`: the block has ended, and it was not the last one.
    #[inline]
    fn symbols(&mut self, codes: &Tables, input: &mut &[u8]) -> Result<Option<Stop>, Anomaly> {
        // In registers, not in memory.
        let (mut bits, mut held) = (self.bits, self.held);
        let stop = loop {
            if held < SYMBOL {
                (bits, held) = more(bits, held, input);
            }
            let entry = codes.literal(bits);
            let used = entry.length();
            if used > held {
                break Some(Stop::Input);
            }
            match entry.kind() {
                Kind::Literal => {
                    let Some(place) = self.window.get_mut(self.at) else { break Some(Stop::Window) };
                    *place = entry.value() as u8;
                    self.at += 1;
                    (bits, held) = (bits >> used, held - used);
                }
                Kind::Base => {
                    let (length, used) = entry.with(bits, used);
                    let entry = codes.distance(bits >> used);
                    let whole = used + entry.length();
                    if whole > held {
                        break Some(Stop::Input);
                    }
                    if entry.kind() != Kind::Base {
                        return Err(Anomaly::BadCoding);
                    }
                    let (distance, used) = entry.with(bits, whole);
                    if used > held {
                        break Some(Stop::Input);
                    }
                    if distance > self.reach() {
                        return Err(Anomaly::BadCoding);
                    }
                    (bits, held) = (bits >> used, held - used);
                    let left = self.copy(distance, length);
                    if left > 0 {
                        let State::Symbols { fixed } = self.state else { return Err(Anomaly::BadCoding) };
                        // at most 32768 and 258
                        self.state = State::Copy { fixed, distance: distance as u16, left: left as u16 };
                        break Some(Stop::Window);
                    }
                }
                Kind::End => {
                    (bits, held) = (bits >> used, held - used);
                    break self.end_of_block();
                }
                Kind::Bad => return Err(Anomaly::BadCoding),
            }
        };
        (self.bits, self.held) = (bits, held);
        Ok(stop)
    }
}

/// `bits`, of which there are `held`, and as many more as there are and have room, taken off the front of `input`.
#[inline]
fn more(mut bits: u64, mut held: u32, input: &mut &[u8]) -> (u64, u32) {
    if let Some(eight) = input.first_chunk() {
        let bytes = (63 - held) / 8;
        bits |= u64::from_le_bytes(*eight) << held;
        held += bytes * 8;
        *input = &input[bytes as usize..];
        return (bits & ((1 << held) - 1), held);
    }
    while held < 56
        && let Some((byte, rest)) = input.split_first()
    {
        bits |= u64::from(*byte) << held;
        held += 8;
        *input = rest;
    }
    (bits, held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
    use proptest::prelude::*;

    /// What comes of `bytes` in pieces, how it stopped, and how many bytes were left over.
    fn ours(bytes: &[u8], size: usize) -> (Vec<u8>, Result<bool, Anomaly>, usize) {
        let (mut inflate, mut text, mut used) = (Inflate::default(), Vec::new(), 0);
        for piece in bytes.chunks(size) {
            let mut rest = piece;
            loop {
                match inflate.step(&mut rest) {
                    Err(what) => return (text, Err(what), 0),
                    Ok(stop) => {
                        text.extend_from_slice(inflate.text());
                        if stop == Stop::End {
                            used += piece.len() - rest.len() - usize::from(inflate.surplus());
                            return (text, Ok(true), bytes.len() - used);
                        }
                        if stop == Stop::Input {
                            assert!(rest.is_empty());
                            break;
                        }
                    }
                }
            }
            used += piece.len();
        }
        (text, Ok(false), 0)
    }

    /// The same by zlib.
    fn theirs(bytes: &[u8]) -> (Vec<u8>, Result<bool, Anomaly>, usize) {
        let (mut inflate, mut text, mut room) = (Decompress::new(false), Vec::new(), vec![0; 1 << 16]);
        loop {
            let (used, made) = (inflate.total_in() as usize, inflate.total_out());
            let Ok(status) = inflate.decompress(&bytes[used..], &mut room, FlushDecompress::None) else {
                return (text, Err(Anomaly::BadCoding), 0);
            };
            let made = (inflate.total_out() - made) as usize;
            text.extend_from_slice(&room[..made]);
            match status {
                Status::StreamEnd => return (text, Ok(true), bytes.len() - inflate.total_in() as usize),
                _ if made < room.len() => return (text, Ok(false), 0),
                _ => {}
            }
        }
    }

    fn same(bytes: &[u8], size: usize) -> Result<(), TestCaseError> {
        let (text, end, left) = theirs(bytes);
        let got = ours(bytes, size);
        prop_assert_eq!(&got.1, &end);
        if end.is_ok() {
            prop_assert_eq!(got.2, left);
            prop_assert!(got.0 == text, "another text");
        }
        Ok(())
    }

    /// Text that repeats itself near and far, compressed in flushed pieces.
    fn compressed(parts: &[(u8, u16, u8)], level: u32, flush: bool) -> (Vec<u8>, Vec<u8>) {
        let (mut deflate, mut text, mut bytes) = (Compress::new(Compression::new(level), false), Vec::new(), Vec::new());
        let mut push = |deflate: &mut Compress, from: &[u8], how| {
            let mut from = from;
            loop {
                let (before, mut room) = (deflate.total_in(), Vec::with_capacity(1 << 16));
                let status = deflate.compress_vec(from, &mut room, how).unwrap();
                from = &from[(deflate.total_in() - before) as usize..];
                bytes.extend_from_slice(&room);
                if status == Status::StreamEnd || from.is_empty() && room.len() < room.capacity() {
                    return;
                }
            }
        };
        for (n, (kind, back, len)) in parts.iter().enumerate() {
            let begin = text.len();
            match kind % 4 {
                // A piece of what was said, near or far.
                0 | 1 if !text.is_empty() => {
                    for _ in 0..usize::from(*len) * 8 {
                        let from = text.len().saturating_sub(1 + usize::from(*back) % 40_000);
                        text.push(text[from]);
                    }
                }
                2 => text.extend(std::iter::repeat_n(*len, usize::from(*back) % 3000)),
                _ => text.extend((0..u32::from(*back)).map(|i| (i.wrapping_mul(2_654_435_761).rotate_left(n as u32 + 9) >> 13) as u8)),
            }
            if flush {
                push(&mut deflate, &text[begin..], FlushCompress::Sync);
            }
        }
        if !flush {
            push(&mut deflate, &text, FlushCompress::None);
        }
        push(&mut deflate, &[], FlushCompress::Finish);
        (text, bytes)
    }

    #[test]
    fn the_window_becomes_a_ring() {
        let parts: Vec<_> = (0..120_u16).map(|n| ((n * 7 % 4) as u8, n * 311, (n % 251) as u8)).collect();
        for (level, flush) in [(0, true), (1, true), (6, false), (9, true)] {
            let (text, bytes) = compressed(&parts, level, flush);
            assert!(text.len() > 5 * WINDOW);
            for size in [1, 7, 64, 5000, usize::MAX] {
                let (got, end, left) = ours(&bytes, size);
                assert!(got == text && end == Ok(true) && left == 0, "level {level}, pieces of {size}");
            }
        }
        let mut inflate = Inflate::default();
        let (text, bytes) = compressed(&parts[..2], 6, true);
        assert_eq!(inflate.step(&mut &bytes[..]), Ok(Stop::End));
        assert!(inflate.text() == text && inflate.buffered() <= SMALL + size_of::<Tables>() && size_of::<Inflate>() <= 96);
    }

    proptest! {
        #[test]
        fn as_zlib_does(
            parts in prop::collection::vec((any::<u8>(), any::<u16>(), any::<u8>()), 0..12),
            level in 0..10_u32,
            flush: bool,
            size in 1..64_usize,
            more in prop::collection::vec(any::<u8>(), 0..12),
        ) {
            let (text, mut bytes) = compressed(&parts, level, flush);
            prop_assert!(ours(&bytes, usize::MAX).0 == text);
            bytes.extend(&more);
            same(&bytes, size)?;
            same(&bytes, usize::MAX)?;
        }

        #[test]
        fn as_zlib_does_with_what_is_damaged(
            parts in prop::collection::vec((any::<u8>(), 0..600_u16, any::<u8>()), 1..6),
            level in 1..10_u32,
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            size in 1..64_usize,
        ) {
            let (_, mut bytes) = compressed(&parts, level, true);
            for (at, value) in flips {
                let at = at.index(bytes.len().min(200));
                bytes[at] = value;
            }
            // Where there is nothing more to come it does not matter when an error is noticed.
            bytes.extend([0; 600]);
            same(&bytes, size)?;
        }

        #[test]
        fn as_zlib_does_with_anything(mut bytes in prop::collection::vec(any::<u8>(), 0..120), size in 1..64_usize) {
            bytes.extend([0; 600]);
            same(&bytes, size)?;
        }
    }
}
