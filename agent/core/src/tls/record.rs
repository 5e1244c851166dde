//! One direction of a TLS connection, cut into records.
//!
//! Pulled, not pushed: [`Reader::next`] takes from the input what the next record needs. A record that lies whole in the input is handed
//! on where it lies; others are put together in a buffer, which is lent by the caller and given back, so that an idle connection
//! holds none.
//!
//! A hole within a record costs that record, for its header says where the next one begins. After any other hole the reader looks
//! for a header and hands on what may be a record: whoever has the keys says whether it is one.

use crate::stream::Timestamp;

/// The length of a record's header: type, version, length.
pub const HEADER: usize = 5;

/// The longest body: TLS 1.2 allows 2¹⁴ + 2048 bytes (RFC 5246 §6.2.3), TLS 1.3 less.
pub const MAX_BODY: usize = (1 << 14) + 2048;

/// Bytes that are searched for a record after a hole. The next header is at most one record away.
const SEARCHED: usize = 1 << 16;

/// Change of cipher spec.
pub const CHANGE_CIPHER_SPEC: u8 = 20;
/// Alert.
pub const ALERT: u8 = 21;
/// Handshake.
pub const HANDSHAKE: u8 = 22;
/// Application data; in TLS 1.3 everything that is protected.
pub const APPLICATION_DATA: u8 = 23;
/// Heartbeat.
const HEARTBEAT: u8 = 24;

/// Buffers that are not in use, to be lent to readers.
#[derive(Debug, Default)]
pub struct Spare(Vec<Vec<u8>>);

impl Spare {
    fn lend(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < 16 && buffer.capacity() <= 1 << 17 {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

/// What the input begins with.
#[derive(PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// A record, header included.
    Record {
        /// Its bytes.
        record: &'a [u8],
        /// The instant of the bytes that completed it.
        at: Timestamp,
        /// Whether it only looks like one: the caller must say [`Reader::accept`] or [`Reader::reject`].
        found: bool,
    },
    /// What is there is no record: the reader searches from here on. Said once.
    Bad,
    /// No record was found in all the bytes that are searched: the direction is given up. Said once.
    GaveUp,
    /// The input is used up.
    More,
}

/// What a hole hit.
#[derive(PartialEq, Eq, Debug)]
pub enum Hole<'a> {
    /// One record, and nothing behind it.
    InRecord(
        /// What was captured of it before the hole, the header at least.
        &'a [u8],
    ),
    /// The rest of a record that was lost before.
    InLost,
    /// More than can be told; so many bytes of a record before it are useless as well.
    Beyond(usize),
    /// A direction that was given up.
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Records,
    /// So many bytes belong to a record that is lost.
    Skip(usize),
    /// Searching; so many bytes were looked at.
    Search(usize),
    GivenUp,
}

/// Cuts one direction into records.
#[derive(Debug)]
pub struct Reader {
    mode: Mode,
    buffer: Vec<u8>,
    /// What of the buffer was consumed.
    pos: usize,
    /// While searching: where in the buffer each piece ended, and when it came.
    pieces: Vec<(usize, Timestamp)>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { mode: Mode::Records, buffer: Vec::new(), pos: 0, pieces: Vec::new() }
    }
}

/// The length of the body that a header announces, if it is one.
fn body_of(header: &[u8; HEADER]) -> Option<usize> {
    let [kind, 3, 0..=4, a, b] = *header else { return None };
    let len = usize::from(a) << 8 | usize::from(b);
    (matches!(kind, CHANGE_CIPHER_SPEC..=HEARTBEAT) && len <= MAX_BODY).then_some(len)
}

/// Whether the first bytes of a direction may be a record's: `None` when they are too few to tell. Six bytes decide.
pub fn looks_like_tls(bytes: &[u8]) -> Option<bool> {
    let may = |at: usize, ok: fn(u8) -> bool| bytes.get(at).is_none_or(|b| ok(*b));
    if !(may(0, |b| (20..=23).contains(&b)) && may(1, |b| b == 3) && may(2, |b| b <= 4)) {
        return Some(false);
    }
    let header = bytes.first_chunk::<HEADER>()?;
    bytes.get(HEADER)?;
    Some(body_of(header).is_some_and(|len| len > 0))
}

impl Reader {
    /// Takes the next record from `input`, which arrived at `at`, and from what is held.
    pub fn next<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8], at: Timestamp, spare: &mut Spare) -> Step<'a> {
        if self.pos == self.buffer.len() && self.buffer.capacity() > 0 {
            spare.give_back(std::mem::take(&mut self.buffer));
            self.pieces.clear();
            self.pos = 0;
        }
        if let Mode::Skip(left) = self.mode {
            let now = left.min(input.len());
            *input = &input[now..];
            self.mode = if now == left { Mode::Records } else { Mode::Skip(left - now) };
        }
        match self.mode {
            Mode::Records => self.record(input, at, spare),
            Mode::Search(_) => self.search(input, at, spare),
            Mode::Skip(_) => Step::More,
            Mode::GivenUp => {
                *input = &[];
                Step::More
            }
        }
    }

    fn record<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8], at: Timestamp, spare: &mut Spare) -> Step<'a> {
        if self.buffer.is_empty() {
            if input.is_empty() {
                return Step::More;
            }
            if let Some(header) = input.first_chunk::<HEADER>() {
                let Some(body) = body_of(header) else { return self.bad(input, at, spare) };
                if let Some((record, rest)) = input.split_at_checked(HEADER + body) {
                    *input = rest;
                    return Step::Record { record, at, found: false };
                }
            }
            self.buffer = spare.lend();
        }
        if !self.fill(input, HEADER) {
            return Step::More;
        }
        let body = self.buffer[self.pos..].first_chunk::<HEADER>().and_then(body_of);
        let Some(body) = body else { return self.bad(input, at, spare) };
        if !self.fill(input, HEADER + body) {
            return Step::More;
        }
        let begin = self.pos;
        self.pos += HEADER + body;
        let at = self.arrived(self.pos).unwrap_or(at);
        Step::Record { record: &self.buffer[begin..self.pos], at, found: false }
    }

    /// Takes from the input until `wanted` bytes are held; whether they are.
    fn fill(&mut self, input: &mut &[u8], wanted: usize) -> bool {
        let missing = wanted.saturating_sub(self.buffer.len() - self.pos);
        let (now, rest) = input.split_at(missing.min(input.len()));
        self.buffer.extend_from_slice(now);
        *input = rest;
        now.len() == missing
    }

    /// What lies at the front is no record.
    fn bad(&mut self, input: &mut &[u8], at: Timestamp, spare: &mut Spare) -> Step<'static> {
        self.mode = Mode::Search(0);
        self.take_all(input, at, spare);
        self.pos += 1;
        Step::Bad
    }

    fn take_all(&mut self, input: &mut &[u8], at: Timestamp, spare: &mut Spare) {
        if self.buffer.capacity() == 0 {
            self.buffer = spare.lend();
        }
        if self.pos > SEARCHED / 2 {
            self.buffer.drain(..self.pos);
            self.pieces.iter_mut().for_each(|(end, _)| *end = end.saturating_sub(self.pos));
            self.pieces.retain(|(end, _)| *end > 0);
            self.pos = 0;
        }
        self.buffer.extend_from_slice(input);
        if !input.is_empty() {
            self.pieces.push((self.buffer.len(), at));
        }
        *input = &[];
    }

    /// When the byte before `end` came, if that was noted.
    fn arrived(&self, end: usize) -> Option<Timestamp> {
        let n = self.pieces.partition_point(|(piece, _)| *piece < end);
        self.pieces.get(n).map(|(_, at)| *at)
    }

    fn search<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8], at: Timestamp, spare: &mut Spare) -> Step<'a> {
        self.take_all(input, at, spare);
        let Mode::Search(mut seen) = self.mode else { return Step::More };
        while seen <= SEARCHED {
            let Some(header) = self.buffer.get(self.pos..).and_then(<[u8]>::first_chunk::<HEADER>) else {
                self.mode = Mode::Search(seen);
                return Step::More;
            };
            // after the hellos every version says 3.3; a protected record is never empty
            let sound = header[1..3] == [3, 3] && header[0] != HEARTBEAT;
            if let Some(body) = body_of(header).filter(|body| sound && *body > 0) {
                self.mode = Mode::Search(seen);
                let end = self.pos + HEADER + body;
                let arrived = self.arrived(end).unwrap_or(at);
                return match self.buffer.get(self.pos..end) {
                    Some(record) => Step::Record { record, at: arrived, found: true },
                    None => Step::More,
                };
            }
            (self.pos, seen) = (self.pos + 1, seen + 1);
        }
        self.give_up();
        Step::GaveUp
    }

    /// What was found is a record.
    pub fn accept(&mut self) {
        if let Some(body) = self.buffer.get(self.pos..).and_then(<[u8]>::first_chunk).and_then(body_of) {
            self.pos = (self.pos + HEADER + body).min(self.buffer.len());
        }
        self.mode = Mode::Records;
    }

    /// What was found is none: the search goes on behind its first byte.
    pub fn reject(&mut self) {
        if let Mode::Search(seen) = self.mode {
            self.mode = Mode::Search(seen + 1);
            self.pos = (self.pos + 1).min(self.buffer.len());
        }
    }

    /// Bytes are missing here; `None` when nobody knows how many.
    pub fn hole(&mut self, len: Option<u64>) -> Hole<'_> {
        let begin = self.pos;
        let held = self.buffer.len() - begin;
        let missing = len.and_then(|len| usize::try_from(len).ok());
        self.pos = self.buffer.len();
        match (self.mode, missing) {
            (Mode::GivenUp, _) => return Hole::Nothing,
            (Mode::Skip(left), Some(len)) if len <= left => {
                self.mode = if len == left { Mode::Records } else { Mode::Skip(left - len) };
                return Hole::InLost;
            }
            (Mode::Records, Some(len)) => {
                let begun = &self.buffer[begin..];
                if let Some(body) = begun.first_chunk().and_then(body_of)
                    && let Some(left) = (HEADER + body).saturating_sub(held).checked_sub(len)
                {
                    self.mode = if left == 0 { Mode::Records } else { Mode::Skip(left) };
                    return Hole::InRecord(&self.buffer[begin..]);
                }
            }
            _ => {}
        }
        self.mode = Mode::Search(0);
        Hole::Beyond(held)
    }

    /// Nothing more is read.
    pub fn give_up(&mut self) {
        *self = Self { mode: Mode::GivenUp, ..Self::default() };
    }

    /// Bytes that are held.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u64) -> Timestamp {
        Timestamp::from_unix_nanos(n)
    }

    fn record(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind, 3, 3, (body.len() >> 8) as u8, body.len() as u8], body].concat()
    }

    /// Records (kind, length of the body, instant), and `!` for what is bad; records that are found are accepted if their body is ones.
    fn read(reader: &mut Reader, bytes: &[u8], now: u64, log: &mut String) {
        let (mut input, mut spare) = (bytes, Spare::default());
        loop {
            let step = reader.next(&mut input, at(now), &mut spare);
            match step {
                Step::More => break,
                Step::Bad => log.push_str("! "),
                Step::GaveUp => log.push_str("gave up "),
                Step::Record { record, at, found } => {
                    let true_one = record[HEADER..].iter().all(|b| *b == 1);
                    if true_one || !found {
                        log.push_str(&format!("{}:{}@{} ", record[0], record.len() - HEADER, at.unix_nanos()));
                    }
                    if found {
                        if true_one { reader.accept() } else { reader.reject() }
                    }
                }
            }
        }
        assert!(input.is_empty());
    }

    fn pieces(bytes: &[u8], size: usize) -> String {
        let (mut reader, mut log) = (Reader::default(), String::new());
        for (n, piece) in bytes.chunks(size).enumerate() {
            read(&mut reader, piece, n as u64, &mut log);
        }
        log
    }

    #[test]
    fn records_in_pieces_are_the_same_records() {
        let bytes = [record(22, &[1; 100]), record(20, &[1]), record(23, &[]), record(23, &[1; 300]), record(21, &[1; 2])].concat();
        assert_eq!(pieces(&bytes, 1000), "22:100@0 20:1@0 23:0@0 23:300@0 21:2@0 ");
        for size in 1..=64 {
            let mut end = 0;
            let want: String = [(22, 100), (20, 1), (23, 0), (23, 300), (21, 2)]
                .map(|(kind, len)| {
                    end += HEADER + len;
                    format!("{kind}:{len}@{} ", (end - 1) / size)
                })
                .concat();
            assert_eq!(pieces(&bytes, size), want, "{size}");
        }
    }

    #[test]
    fn a_hole_within_a_record_costs_that_record() {
        let bytes = [record(23, &[2; 100]), record(23, &[1; 9])].concat();
        for (begin, end) in [(5, 6), (5, 105), (60, 105), (104, 105), (7, 50)] {
            let (mut reader, mut log) = (Reader::default(), String::new());
            read(&mut reader, &bytes[..begin], 1, &mut log);
            assert_eq!(reader.hole(Some((end - begin) as u64)), Hole::InRecord(&bytes[..begin]));
            read(&mut reader, &bytes[end..], 2, &mut log);
            assert_eq!(log, "23:9@2 ");
            assert_eq!(reader.buffered(), 0);
        }
        let (mut reader, mut log) = (Reader::default(), String::new());
        read(&mut reader, &bytes[..20], 1, &mut log);
        assert_eq!(reader.hole(Some(10)), Hole::InRecord(&bytes[..20]));
        read(&mut reader, &bytes[30..40], 1, &mut log);
        assert_eq!(reader.hole(Some(65)), Hole::InLost);
        read(&mut reader, &bytes[105..], 1, &mut log);
        assert_eq!(log, "23:9@1 ");
    }

    #[test]
    fn a_record_is_found_behind_any_other_hole() {
        let bytes = [record(23, &[2; 100]), record(23, &[2; 50]), record(23, &[1; 30]), record(22, &[1; 9])].concat();
        for (begin, end) in [(0, 5), (0, 104), (3, 104), (50, 110), (50, 120), (105, 106), (105, 160), (100, 160)] {
            for len in [Some((end - begin) as u64), None] {
                let (mut reader, mut log) = (Reader::default(), String::new());
                read(&mut reader, &bytes[..begin], 1, &mut log);
                log.clear();
                assert!(matches!(reader.hole(len), Hole::Beyond(_)), "{begin} {end}");
                for (n, piece) in bytes[end..].chunks(7).enumerate() {
                    read(&mut reader, piece, n as u64, &mut log);
                }
                let piece = |to: usize| (to - 1 - end) / 7;
                assert_eq!(log, format!("23:30@{} 22:9@{} ", piece(195), piece(209)), "{begin} {end}");
            }
        }
    }

    #[test]
    fn a_false_header_delays_nothing_that_came_before() {
        // what looks like the header of 65 bytes hides a true record, which came long before its end
        let bytes = [&[9, 9, 23, 3, 3, 0, 65, 2][..], &record(23, &[1; 10]), &record(23, &[1; 20]), &[2; 40]].concat();
        let (mut reader, mut log) = (Reader::default(), String::new());
        assert_eq!(reader.hole(None), Hole::Beyond(0));
        for (n, piece) in bytes.chunks(12).enumerate() {
            read(&mut reader, piece, n as u64, &mut log);
        }
        assert_eq!(log, "23:10@1 23:20@3 ! ");
    }

    #[test]
    fn nonsense_is_bad_once_and_given_up_in_the_end() {
        let (mut reader, mut log) = (Reader::default(), String::new());
        read(&mut reader, &record(23, &[1; 3]), 0, &mut log);
        for n in 1..200 {
            read(&mut reader, &[7; 1000], n, &mut log);
            assert!(reader.buffered() < 1 << 17);
        }
        read(&mut reader, &record(23, &[1; 3]), 0, &mut log);
        assert_eq!(log, "23:3@0 ! gave up ");
        assert_eq!(reader.hole(Some(1)), Hole::Nothing);
        assert_eq!(reader.buffered(), 0);
    }

    #[test]
    fn the_first_bytes_tell() {
        let hello = [22, 3, 1, 2, 0, 1];
        for n in 0..6 {
            assert_eq!(looks_like_tls(&hello[..n]), None);
        }
        assert_eq!(looks_like_tls(&hello), Some(true));
        assert_eq!(looks_like_tls(&[23, 3, 3, 0x40, 0, 9, 9]), Some(true));
        for other in [&b"GET / HTTP/1.1"[..], b"P", b"\x16\x02", b"\x16\x03\x07", &[22, 3, 1, 0xff, 0xff, 1], &[22, 3, 1, 0, 0, 1], &[24]] {
            assert_eq!(looks_like_tls(other), Some(false), "{other:?}");
        }
    }
}
