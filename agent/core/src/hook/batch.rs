//! Batches of events as they come through the Unix socket: a length (32 bits, little-endian), then so many bytes of Protobuf
//! (`agent/hook/tokengauge_hook.proto`), and so on.
//!
//! Read in place, without a copy of the message's own and without a place on the heap for each event. Fields that are not known are left out,
//! as Protobuf wants it; of fields that come twice the last one counts.

use super::VERSION;
use super::event::{Counts, Event, ModelName, RequestId, Source, Stamp, TraceIds};
use super::raw::{Bad, finish_of, kind_of};
use crate::stream::Timestamp;

/// Most bytes of one message. Whoever announces more is not ours.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Two clocks are one when a batch was under way for no longer than this.
const SAME_CLOCK_NS: i64 = 2_000_000_000;

/// Cuts what a connection brings into messages.
#[derive(Debug, Default)]
pub struct Frames {
    /// The begin of a message whose end has not come, with its length in front.
    rest: Vec<u8>,
}

/// A length that no message has: the connection cannot be read any further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

impl Frames {
    /// Takes the next bytes and says every whole message.
    ///
    /// # Errors
    /// At a length beyond [`MAX_MESSAGE`]; what was whole before it has been said.
    pub fn push(&mut self, mut bytes: &[u8], message: &mut dyn FnMut(&[u8])) -> Result<(), TooLong> {
        while !self.rest.is_empty() && !bytes.is_empty() {
            let wanted = match self.rest.first_chunk() {
                None => 4,
                Some(length) => 4 + length_of(*length)?,
            };
            let (more, behind) = bytes.split_at(bytes.len().min(wanted - self.rest.len()));
            self.rest.extend_from_slice(more);
            bytes = behind;
            if let Some((length, body)) = self.rest.split_first_chunk()
                && body.len() == length_of(*length)?
            {
                message(body);
                self.rest.clear();
            }
        }
        // What is whole as it came is read where it is.
        while let Some((length, behind)) = bytes.split_first_chunk() {
            let Some((body, behind)) = behind.split_at_checked(length_of(*length)?) else { break };
            message(body);
            bytes = behind;
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    /// Whether a message is begun and not ended.
    pub fn is_within(&self) -> bool {
        !self.rest.is_empty()
    }
}

fn length_of(length: [u8; 4]) -> Result<usize, TooLong> {
    let length = usize::try_from(u32::from_le_bytes(length)).map_err(|_| TooLong)?;
    if length > MAX_MESSAGE { Err(TooLong) } else { Ok(length) }
}

/// The clock of one connection's sender beside ours.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// The least that a batch seemed to be under way, in nanoseconds: the difference of the clocks and the shortest delay.
    least: Option<i64>,
}

impl Clock {
    /// What is to be added to the sender's stamps, and what they are then. Both arguments are nanoseconds: `now` of our monotonic clock,
    /// `sent` of the sender's.
    pub fn shift(&mut self, now: u64, sent: u64) -> (i64, Stamp) {
        let seemed = i128::from(now) - i128::from(sent);
        let seemed = i64::try_from(seemed).unwrap_or(if seemed < 0 { i64::MIN } else { i64::MAX });
        let least = self.least.map_or(seemed, |least| least.min(seemed));
        self.least = Some(least);
        // Containers of one machine share its monotonic clock unless they have a time namespace of their own.
        if (0..SAME_CLOCK_NS).contains(&least) { (0, Stamp::Server) } else { (least, Stamp::Shifted) }
    }
}

/// When a message came, and from whom.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    /// Now, in nanoseconds of the monotonic clock.
    pub now: u64,
    /// What makes Unix time of it.
    pub unix_offset: u64,
    /// From whom.
    pub source: Source,
}

/// What stands in a batch beside its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    /// Events that the sender has dropped since it began, because nobody took them in time.
    pub dropped: u64,
}

/// Reads one message: says every event of it, or why it is none.
///
/// # Errors
/// When it is no batch of ours.
pub fn read(message: &[u8], came: Came, clock: &mut Clock, event: &mut dyn FnMut(Result<Event, Bad>)) -> Result<Head, Bad> {
    let (mut version, mut sent, mut head) = (0, 0, Head::default());
    for field in Fields(message) {
        match field? {
            (1, Value::Integer(v)) => version = v,
            (2, Value::Integer(v)) => sent = v,
            (3, Value::Integer(v)) => head.dropped = v,
            _ => {}
        }
    }
    if version != u64::from(VERSION) {
        return Err(Bad::Version);
    }
    let placed = clock.shift(came.now, sent);
    for field in Fields(message) {
        if let (4, Value::Bytes(bytes)) = field? {
            event(one(bytes, sent, placed, came));
        }
    }
    Ok(head)
}

fn one(bytes: &[u8], sent: u64, (shift, stamp): (i64, Stamp), came: Came) -> Result<Event, Bad> {
    let (mut at, mut kind, mut request, mut model, mut trace_id, mut span_id) = (0, 0, &[][..], &[][..], 0, 0);
    let (mut engine, mut finish, mut counts) = (None, None, Counts::default());
    for field in Fields(bytes) {
        let number = |v: u64| Some(u32::try_from(v).unwrap_or(u32::MAX));
        match field? {
            (1, Value::Integer(v)) => at = v,
            (2, Value::Integer(v)) => kind = u32::try_from(v).unwrap_or(u32::MAX),
            (3, Value::Bytes(v)) => request = v,
            (4, Value::Bytes(v)) => model = v,
            (5, Value::Integer(v)) => counts.new = number(v),
            (6, Value::Integer(v)) => counts.prompt = number(v),
            (7, Value::Integer(v)) => counts.cached = number(v),
            (8, Value::Integer(v)) => counts.output = number(v),
            (9, Value::Integer(v)) => counts.chunk_bytes = number(v),
            (10, Value::Integer(v)) => engine = number(v),
            (11, Value::Integer(v)) => finish = number(v).map(finish_of),
            (12, Value::Integer(v)) => counts.drafted = number(v),
            (13, Value::Integer(v)) => counts.accepted = number(v),
            (14, Value::Integer(v)) => counts.batch = number(v),
            (15, Value::Bytes(v)) => trace_id = v.try_into().map_or(0, u128::from_be_bytes),
            (16, Value::Bytes(v)) => span_id = v.try_into().map_or(0, u64::from_be_bytes),
            _ => {}
        }
    }
    // An event cannot have happened after it was sent, nor after it came.
    let at = if at == 0 { sent } else { at.min(sent) };
    let at = at.saturating_add_signed(shift).min(came.now);
    Ok(Event {
        at: Timestamp::from_unix_nanos(at.saturating_add(came.unix_offset)),
        stamp,
        source: came.source,
        kind: kind_of(kind, counts.new)?,
        request: RequestId::new(request).ok_or(Bad::Request)?,
        model: ModelName::new(model),
        trace: TraceIds::new(trace_id, span_id),
        engine,
        finish,
        counts,
    })
}

/// A field's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
    /// Of a fixed width: none of our fields is.
    Fixed,
}

/// The fields of a Protobuf message (<https://protobuf.dev/programming-guides/encoding/>), one after the other; after an error, no more.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Bad>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field().ok_or(Bad::Message);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|n| *n != 0)?;
        let value = match key & 7 {
            0 => Value::Integer(self.varint()?),
            1 => self.bytes(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => self.bytes(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some((number, value))
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, behind) = self.0.split_at_checked(length)?;
        self.0 = behind;
        Some(bytes)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, behind) = self.0.split_first()?;
            self.0 = behind;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit left.
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Kind, Via};
    use super::*;
    use proptest::prelude::*;

    const SOURCE: Source = Source { via: Via::Socket, pid: 7, connection: 1 };

    fn varint(mut v: u64, out: &mut Vec<u8>) {
        while v >= 0x80 {
            out.push(v as u8 | 0x80);
            v >>= 7;
        }
        out.push(v as u8);
    }

    fn integer(number: u64, v: u64, out: &mut Vec<u8>) {
        varint(number << 3, out);
        varint(v, out);
    }

    fn bytes(number: u64, v: &[u8], out: &mut Vec<u8>) {
        varint(number << 3 | 2, out);
        varint(v.len() as u64, out);
        out.extend(v);
    }

    fn event(at: u64, kind: u64, request: &str, tokens: Option<u64>) -> Vec<u8> {
        let mut out = Vec::new();
        integer(1, at, &mut out);
        integer(2, kind, &mut out);
        bytes(3, request.as_bytes(), &mut out);
        if let Some(n) = tokens {
            integer(5, n, &mut out);
        }
        out
    }

    fn batch(version: u64, sent: u64, events: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        events.iter().for_each(|e| bytes(4, e, &mut out)); // out of order: Protobuf allows it
        integer(1, version, &mut out);
        integer(2, sent, &mut out);
        integer(3, 9, &mut out);
        integer(99, 1, &mut out); // of a later version
        out
    }

    fn came(now: u64) -> Came {
        Came { now, unix_offset: 1_000_000_000_000, source: SOURCE }
    }

    fn told(message: &[u8], now: u64) -> (Result<Head, Bad>, Vec<Result<Event, Bad>>) {
        let mut events = Vec::new();
        let head = read(message, came(now), &mut Clock::default(), &mut |e| events.push(e));
        (head, events)
    }

    #[test]
    fn a_batch_is_read() {
        let mut full = event(500, 5, "req-1", Some(3));
        bytes(4, b"llama", &mut full);
        for (number, v) in [(6, 11), (7, 12), (8, 13), (9, 14), (10, 0), (11, 2), (12, 15), (13, 16), (14, 17)] {
            integer(number, v, &mut full);
        }
        bytes(15, &1_u128.to_be_bytes(), &mut full);
        bytes(16, &2_u64.to_be_bytes(), &mut full);
        let (head, events) = told(&batch(1, 900, &[full, event(901, 1, "req-2", None)]), 1_000);
        assert_eq!(head, Ok(Head { dropped: 9 }));
        let first = events[0].unwrap();
        assert_eq!((first.kind, first.stamp, first.at.unix_nanos()), (Kind::Tokens(3), Stamp::Server, 1_000_000_000_500));
        assert_eq!((first.model.unwrap().as_str(), first.engine, first.trace), ("llama", Some(0), TraceIds::new(1, 2)));
        let want = Counts {
            new: Some(3),
            prompt: Some(11),
            cached: Some(12),
            output: Some(13),
            chunk_bytes: Some(14),
            drafted: Some(15),
            accepted: Some(16),
            batch: Some(17),
        };
        assert_eq!((first.counts, first.finish), (want, Some(finish_of(2))));
        // Not after it was sent; and what was not told is absent.
        let second = events[1].unwrap();
        assert_eq!((second.at.unix_nanos(), second.counts, second.engine), (1_000_000_000_900, Counts::default(), None));
    }

    #[test]
    fn events_that_are_none_are_named_and_the_others_are_taken() {
        let (head, events) = told(
            &batch(1, 900, &[event(1, 1, "", None), event(1, 77, "a", None), event(1, 5, "a", None), vec![0xff], event(1, 1, "a", None)]),
            900,
        );
        assert!(head.is_ok());
        let told: Vec<_> = events.into_iter().map(|e| e.map(|e| e.kind)).collect();
        assert_eq!(told, [Err(Bad::Request), Err(Bad::Kind), Err(Bad::Tokens), Err(Bad::Message), Ok(Kind::Received)]);
    }

    #[test]
    fn messages_that_are_none_are_named() {
        assert_eq!(told(&batch(2, 900, &[event(1, 1, "a", None)]), 900), (Err(Bad::Version), vec![]));
        assert_eq!(told(b"", 900), (Err(Bad::Version), vec![]));
        assert_eq!(told(b"GET / HTTP/1.1\r\n", 900).0, Err(Bad::Message));
        let whole = batch(1, 900, &[event(1, 1, "a", None)]);
        for cut in 0..whole.len() {
            let _ = told(&whole[..cut], 900);
        }
        // A varint of eleven bytes, and one beyond 64 bits.
        assert_eq!(told(&[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], 900).0, Err(Bad::Message));
        assert_eq!(told(&[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], 900).0, Err(Bad::Message));
    }

    #[test]
    fn a_clock_of_its_own_is_shifted_by_the_shortest_delay() {
        let mut clock = Clock::default();
        assert_eq!(clock.shift(10_000_000_000, 9_999_000_000), (0, Stamp::Server));
        // A batch that waited long changes nothing.
        assert_eq!(clock.shift(50_000_000_000, 20_000_000_000), (0, Stamp::Server));
        let mut ahead = Clock::default();
        assert_eq!(ahead.shift(1_000, 5_000_000), (-4_999_000, Stamp::Shifted));
        assert_eq!(ahead.shift(3_000, 5_001_000), (-4_999_000, Stamp::Shifted));
        let mut behind = Clock::default();
        assert_eq!(behind.shift(9_000_000_000, 5), (8_999_999_995, Stamp::Shifted));
        assert_eq!(Clock::default().shift(0, u64::MAX), (i64::MIN, Stamp::Shifted));
        // Whatever a sender says, nothing happened later than now.
        let (_, events) = told(&batch(1, u64::MAX, &[event(u64::MAX, 1, "a", None)]), 900);
        assert_eq!(events[0].unwrap().at.unix_nanos(), 1_000_000_000_900);
    }

    #[test]
    fn a_length_beyond_the_bound_ends_it() {
        let mut frames = Frames::default();
        let mut said = 0;
        let bytes = [&2_u32.to_le_bytes()[..], b"ok", &(MAX_MESSAGE as u32 + 1).to_le_bytes()].concat();
        assert_eq!(frames.push(&bytes, &mut |_| said += 1), Err(TooLong));
        assert_eq!(said, 1);
        let mut frames = Frames::default();
        assert_eq!(frames.push(b"\xff\xff\xff", &mut |_| {}), Ok(()));
        assert!(frames.is_within());
        assert_eq!(frames.push(b"\xff\xff", &mut |_| {}), Err(TooLong));
    }

    proptest! {
        #[test]
        fn whole_or_in_pieces(messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8), piece in 1_usize..64) {
            let mut bytes = Vec::new();
            for message in &messages {
                bytes.extend((message.len() as u32).to_le_bytes());
                bytes.extend(message);
            }
            for size in [piece, bytes.len().max(1)] {
                let (mut frames, mut said) = (Frames::default(), Vec::new());
                for part in bytes.chunks(size) {
                    prop_assert_eq!(frames.push(part, &mut |m| said.push(m.to_vec())), Ok(()));
                }
                prop_assert_eq!(&said, &messages);
                prop_assert!(!frames.is_within());
            }
        }

        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let (_, events) = told(&bytes, 1_000);
            prop_assert!(events.len() <= bytes.len());
            let mut ours = vec![8, 1];
            ours.extend(bytes);
            let _ = told(&ours, 1_000);
        }
    }
}
