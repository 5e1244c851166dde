//! A capture file, or standard input, as a tap.
//!
//! Everything is read into one reused buffer that fits in a core's cache. Against mapping the file, which was tried, the kernel's copy (40 ms of
//! CPU for 236 MB) costs what the page faults cost, and leaves the bytes in the cache: a replay takes 15 % less time, and a file that is cut
//! while it is read kills nobody. Frames are handed on in batches (see [`super::BATCH`]).

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokengauge_core::stream::TapKind;
use tokengauge_core::tcp::Limits;

use crate::tap::{Sink, StopFlag, Tap, TapError};

use super::blocks::Reader;
use super::format::{Bad, Format, Step};
use super::{Batch, Driver, Frame, PcapStats, Share};

/// Large enough that system calls do not matter, small enough to stay in a core's cache beside the connections.
const BUFFER: usize = 1 << 17;

/// Reads one capture file.
pub struct FileTap {
    path: String,
    input: Input,
    size: Option<u64>,
    limits: Limits,
    share: Share,
    stats: PcapStats,
    consumed: Arc<AtomicU64>,
}

enum Input {
    Stream(Box<dyn Read + Send>),
    File(File),
    Shared(Reader),
}

/// How far the reading is.
#[derive(Default)]
struct Place {
    format: Format,
    /// Where the next byte lies in the file.
    offset: u64,
    /// Bytes from there on that nobody wants.
    skip: usize,
    /// The bytes at hand are too few: so many are needed at least.
    needed: usize,
}

impl FileTap {
    /// Opens a pcap or pcapng file; `-` is standard input. Its content is looked at by [`Tap::run`].
    ///
    /// # Errors
    /// [`TapError::Io`] when it cannot be opened.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, TapError> {
        if path.as_os_str() == "-" {
            return Ok(Self::from_reader("standard input", Box::new(std::io::stdin()), limits));
        }
        let name = path.display().to_string();
        let io = |source| TapError::Io { path: name.clone(), source };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let size = metadata.is_file().then_some(metadata.len());
        Ok(Self { size, ..Self::new(&name, Input::File(file), limits) })
    }

    /// Reads a capture from anywhere; `name` stands for it in messages.
    pub fn from_reader(name: &str, input: Box<dyn Read + Send>, limits: Limits) -> Self {
        Self::new(name, Input::Stream(input), limits)
    }

    fn new(name: &str, input: Input, limits: Limits) -> Self {
        let (stats, consumed) = (PcapStats::default(), Arc::default());
        Self { path: name.into(), input, size: None, limits, share: Share::ALL, stats, consumed }
    }

    /// Takes only a part of the connections; other taps that read the same file take the others. What is no segment is counted by
    /// the first of them.
    #[must_use]
    pub fn sharing(self, share: Share) -> Self {
        let shared = share.blocks.clone().map(|blocks| Input::Shared(Reader::new(blocks)));
        Self { share, input: shared.unwrap_or(self.input), ..self }
    }

    /// The size of the file in bytes, where it has one: what [`FileTap::progress`] will reach.
    pub const fn size(&self) -> Option<u64> {
        self.size
    }

    /// Bytes consumed so far, for a progress bar.
    pub fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.consumed)
    }

    /// Counters that go on counting while the tap runs.
    pub fn stats(&self) -> PcapStats {
        self.stats.clone()
    }
}

impl Tap for FileTap {
    fn kind(&self) -> TapKind {
        TapKind::Pcap
    }

    fn run(mut self: Box<Self>, sink: &mut dyn Sink, stop: &StopFlag) -> Result<(), TapError> {
        let mut driver = Driver::new(self.limits, sink, self.stats.clone());
        driver.share = self.share.clone();
        let result = self.read(&mut driver, stop);
        driver.finish();
        result
    }
}

impl FileTap {
    fn read(&mut self, driver: &mut Driver<'_>, stop: &StopFlag) -> Result<(), TapError> {
        let mut place = Place::default();
        // Whoever returns lets go of the input: nobody waits for it.
        match std::mem::replace(&mut self.input, Input::Stream(Box::new(std::io::empty()))) {
            Input::Stream(mut input) => self.read_stream(&mut input, &mut place, driver, stop),
            Input::File(mut file) => self.read_stream(&mut file, &mut place, driver, stop),
            Input::Shared(mut reader) => self.read_shared(&mut reader, &mut place, driver, stop),
        }
    }

    /// Reads what comes until the end of the input.
    fn read_stream(&self, input: &mut dyn Read, place: &mut Place, driver: &mut Driver<'_>, stop: &StopFlag) -> Result<(), TapError> {
        let mut buffer = vec![0; BUFFER];
        // buffer[begin..end] was read and not consumed; `place` is where `begin` lies in the file
        let (mut begin, mut end) = (0, 0);
        while !stop.is_set() {
            buffer.copy_within(begin..end, 0);
            (begin, end) = (0, end - begin);
            let read = match input.read(&mut buffer[end..]) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => return Err(TapError::Io { path: self.path.clone(), source }),
            };
            end += read;
            begin += self.records(&buffer[begin..end], place, driver)?;
            if read == 0 {
                return self.ended(place, end - begin);
            }
            if place.needed > buffer.len() {
                buffer.resize(place.needed, 0);
            }
        }
        Ok(())
    }

    /// Reads the blocks that others read as well.
    fn read_shared(&self, reader: &mut Reader, place: &mut Place, driver: &mut Driver<'_>, stop: &StopFlag) -> Result<(), TapError> {
        // what is at hand of a record that goes on in the next block
        let mut begun = Vec::new();
        while !stop.is_set() {
            let next = reader.next().map_err(|source| TapError::Io { path: self.path.clone(), source })?;
            let Some(mut block) = next else { return self.ended(place, begun.len()) };
            while !begun.is_empty() && !block.is_empty() {
                let (more, rest) = block.split_at(place.needed.saturating_sub(begun.len()).clamp(1, block.len()));
                begun.extend_from_slice(more);
                block = rest;
                let used = self.records(&begun, place, driver)?;
                begun.drain(..used);
            }
            if !block.is_empty() {
                let used = self.records(block, place, driver)?;
                begun.extend_from_slice(&block[used..]);
            }
        }
        Ok(())
    }

    /// The input has ended, and so many bytes are left.
    fn ended(&self, place: &Place, left: usize) -> Result<(), TapError> {
        let needed = place.needed;
        let what = match (place.offset, left, place.skip) {
            (0, 0, _) => "the file is empty".into(),
            (_, 0, 0) => return Ok(()),
            (_, 0, skip) => format!("the file is cut short: {skip} more bytes belong to its last block"),
            _ => format!("the file is cut short: {left} bytes are left of a record of at least {needed}"),
        };
        Err(self.bad(place.offset, Bad(what)))
    }

    /// Hands on the records that `bytes` begin with. Returns how many bytes were used.
    fn records(&self, bytes: &[u8], place: &mut Place, driver: &mut Driver<'_>) -> Result<usize, TapError> {
        let (mut used, mut bad, mut batch) = (0, None, Batch::new());
        place.needed = 0;
        while used < bytes.len() && bad.is_none() && place.needed == 0 {
            while !batch.is_full() && used < bytes.len() {
                let rest = &bytes[used..];
                if place.skip == 0
                    && let Some((length, at, link, bytes, original)) = place.format.frame(rest)
                {
                    batch.push(Frame { at, link, bytes, original });
                    used += length;
                    continue;
                }
                if place.skip > 0 {
                    let now = place.skip.min(rest.len());
                    (place.skip, used) = (place.skip - now, used + now);
                    continue;
                }
                match place.format.step(rest) {
                    Ok(Step::Frame { used: length, frame, at, link, original }) => {
                        batch.push(Frame { at, link, bytes: &rest[frame], original });
                        used += length;
                    }
                    Ok(Step::Skip(bytes)) => place.skip = bytes,
                    Ok(Step::Secrets { used: length, text }) => {
                        driver.secrets(&rest[text]);
                        used += length;
                    }
                    Ok(Step::Need(bytes)) => {
                        place.needed = bytes;
                        break;
                    }
                    Err(what) => {
                        bad = Some(what);
                        break;
                    }
                }
            }
            driver.frames(&mut batch);
        }
        place.offset += used as u64;
        self.consumed.store(place.offset, Ordering::Relaxed);
        bad.map_or(Ok(used), |what| Err(self.bad(place.offset, what)))
    }

    fn bad(&self, offset: u64, Bad(what): Bad) -> TapError {
        TapError::BadCapture { path: self.path.clone(), offset, what }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokengauge_core::stream::{Direction, StreamEvent, Timestamp, Verdict};
    use tokengauge_core::tcp::LinkType;
    use tokengauge_core::tcp::build::{Conversation, Packet, PcapWriter, Who};

    use super::super::Blocks;
    use super::*;

    /// What came out of a capture.
    #[derive(Default, PartialEq, Eq)]
    struct Got {
        data: [Vec<u8>; 2],
        instants: Vec<Timestamp>,
        gaps: u64,
        opens: u64,
        closes: u64,
        ticks: u64,
    }

    impl std::fmt::Debug for Got {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let Self { data: [a, b], instants, gaps, opens, closes, ticks } = self;
            write!(f, "{} and {} bytes, {gaps} gaps, {opens} opens, {closes} closes, {ticks} ticks, {instants:?}", a.len(), b.len())
        }
    }

    impl Sink for Got {
        fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
            match event {
                StreamEvent::Open { .. } => self.opens += 1,
                StreamEvent::Data { dir, bytes, at, .. } => {
                    self.data[dir.index()].extend_from_slice(bytes);
                    self.instants.push(at);
                }
                StreamEvent::Gap { .. } => self.gaps += 1,
                StreamEvent::Close { .. } => self.closes += 1,
                StreamEvent::Identified { .. } => {}
            }
            Verdict::Watch
        }

        fn tick(&mut self, _: Timestamp) {
            self.ticks += 1;
        }
    }

    /// Hands out a few bytes per call.
    struct Slowly(std::io::Cursor<Vec<u8>>, usize);

    impl Read for Slowly {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let n = into.len().min(self.1);
            self.0.read(&mut into[..n])
        }
    }

    fn read(bytes: &[u8], at_a_time: usize) -> (Got, Result<(), TapError>) {
        let mut got = Got::default();
        let input = Slowly(std::io::Cursor::new(bytes.to_vec()), at_a_time);
        let tap = FileTap::from_reader("x.pcap", Box::new(input), Limits::default());
        let result = Box::new(tap).run(&mut got, &StopFlag::default());
        (got, result)
    }

    const START: Timestamp = Timestamp::from_unix_nanos(1_700_000_000_123_456_000);

    fn packets() -> Vec<(Timestamp, Packet)> {
        Conversation::new("10.0.0.2:40000".parse().unwrap(), "10.0.0.1:80".parse().unwrap(), START)
            .say(Duration::from_millis(1), Who::Client, "GET / HTTP/1.1\r\n\r\n")
            .say(Duration::from_millis(200), Who::Server, vec![b'x'; 3000])
            .say(Duration::from_millis(450), Who::Server, "end")
            .packets()
    }

    fn pcap(nanos: bool, big: bool, snaplen: usize) -> Vec<u8> {
        let mut writer = PcapWriter::with(1, nanos, big, snaplen);
        writer.packets(&packets());
        writer.finish()
    }

    fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
        let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let length = 12 + body.len().next_multiple_of(4);
        let mut out = [word(kind), word(length as u32)].concat();
        out.extend(body);
        out.resize(length - 4, 0);
        out.extend(word(length as u32));
        out
    }

    /// A section with an Ethernet interface in microseconds, an unreadable one, and one of raw IP in 2⁻³⁰ s with an offset of −1000 s; packets take
    /// turns on the first and the third.
    fn section(big: bool, packets: &[(Timestamp, Packet)]) -> Vec<u8> {
        let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let half = |value: u16| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let long = |value: u64| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let head = [&word(0x1a2b_3c4d)[..], &half(1), &half(0), &long(u64::MAX)].concat();
        let mut out = block(big, 0x0a0d_0d0a, &head);
        out.extend(block(big, 1, &[&half(1)[..], &half(0), &word(0)].concat()));
        out.extend(block(big, 1, &[&half(147)[..], &half(0), &word(0)].concat()));
        let options = [&half(9)[..], &half(1), &[0x9e, 0, 0, 0], &half(14), &half(8), &long((-1000i64).cast_unsigned()), &[0; 4]].concat();
        out.extend(block(big, 1, &[&half(101)[..], &half(0), &word(0), &options].concat()));
        out.extend(block(big, 4, b"names that nobody reads"));
        for (n, (at, packet)) in packets.iter().enumerate() {
            let nanos = at.unix_nanos();
            let (interface, ticks, frame) = if n % 2 == 0 {
                (0, nanos / 1000, packet.frame(LinkType::Ethernet))
            } else {
                // rounded up, so that the microsecond survives
                let nanos = u128::from(nanos / 1000 * 1000 + 1_000_000_000_000);
                let ticks = (nanos << 30).div_ceil(1_000_000_000) as u64;
                (2, ticks, packet.ip())
            };
            let length = word(frame.len() as u32);
            let head = [word(interface), word((ticks >> 32) as u32), word(ticks as u32), length, length].concat();
            out.extend(block(big, 6, &[&head[..], &frame, &[0; 3][..(4 - frame.len() % 4) % 4], &[0; 4]].concat()));
            out.extend(block(big, 6, &[&word(1)[..], &[0; 8], &word(2), &word(2), &[1, 2]].concat()));
        }
        out
    }

    fn whole(bytes: &[u8]) -> Got {
        let (got, result) = read(bytes, 1 << 20);
        result.unwrap();
        for at_a_time in [1, 7, 1000] {
            let (again, result) = read(bytes, at_a_time);
            result.unwrap();
            assert_eq!(again, got);
        }
        got
    }

    #[test]
    fn pcap_in_both_byte_orders_and_precisions() {
        let nanos = whole(&pcap(true, false, 65_535));
        assert_eq!((nanos.opens, nanos.closes, nanos.gaps, nanos.ticks), (1, 2, 0, 3));
        assert_eq!((nanos.data[0].len(), nanos.data[1].len()), (18, 3003));
        assert_eq!(nanos.instants[0], START.plus(Duration::from_millis(1)));
        assert_eq!(whole(&pcap(true, true, 65_535)), nanos);
        let micros = whole(&pcap(false, true, 65_535));
        assert_eq!(micros.data, nanos.data);
        assert!(micros.instants.iter().zip(&nanos.instants).all(|(a, b)| a.unix_nanos() == b.unix_nanos() / 1000 * 1000));
    }

    #[test]
    fn pcapng_with_sections_interfaces_and_resolutions() {
        let expected = whole(&pcap(false, false, 65_535));
        for big in [false, true] {
            assert_eq!(whole(&section(big, &packets())), expected);
        }
        let all = packets();
        let (first, second) = all.split_at(4);
        assert_eq!(whole(&[section(true, first), section(false, second)].concat()), expected);
        // simple packets have no instant of their own
        let mut simple = section(false, &all[..1]);
        for (_, packet) in &all[1..] {
            let frame = packet.frame(LinkType::Ethernet);
            simple.extend(block(false, 3, &[&(frame.len() as u32).to_le_bytes()[..], &frame].concat()));
        }
        let got = whole(&simple);
        assert_eq!(got.data, expected.data);
        // the stray frames of the unreadable interface are stamped with their own, early, instant
        assert!(got.instants.iter().all(|at| at.unix_nanos() == 0));
    }

    #[test]
    fn two_that_share_a_file_read_what_one_reads() {
        for file in [pcap(true, false, 65_535), section(true, &packets())] {
            for (len, size) in
                [(file.len(), 1), (file.len(), 16), (file.len(), 1000), (file.len(), 1 << 20), (file.len() - 3, 100), (10, 4)]
            {
                let (alone, end) = read(&file[..len], 1 << 20);
                let mut kept = tempfile::tempfile().unwrap();
                std::io::Write::write_all(&mut kept, &file[..len]).unwrap();
                let blocks = Arc::new(Blocks::new(kept, size));
                let tap = |number| {
                    let share = Share { number, of: 2, blocks: Some(Arc::clone(&blocks)) };
                    FileTap::from_reader("x.pcap", Box::new(std::io::empty()), Limits::default()).sharing(share)
                };
                let run = |tap: FileTap| {
                    let mut got = Got::default();
                    let result = Box::new(tap).run(&mut got, &StopFlag::default());
                    (got, result.map_err(|error| error.to_string()))
                };
                let (one, other) = (tap(0), tap(1));
                let [one, other] = std::thread::scope(|scope| {
                    let running = [scope.spawn(|| run(one)), scope.spawn(|| run(other))];
                    running.map(|thread| thread.join().unwrap())
                });
                let end = end.map_err(|error| error.to_string());
                assert!(one.1 == end && other.1 == end, "{end:?}, {:?}, {:?}, blocks of {size}", one.1, other.1);
                // There is one connection: one of them has it.
                let (has, none) = if one.0.opens > 0 { (one.0, other.0) } else { (other.0, one.0) };
                assert_eq!(has, alone, "blocks of {size}");
                assert_eq!((none.opens, none.data, none.ticks), (0, [vec![], vec![]], alone.ticks));
            }
        }
    }

    #[test]
    fn a_capture_cut_by_its_snapshot_length_has_located_gaps() {
        let got = whole(&pcap(true, false, 54 + 100));
        assert_eq!((got.data[1].len(), got.gaps), (100 + 100 + 100 + 3, 3));
    }

    fn check_bad(bytes: &[u8], expected: &str) {
        let (_, result) = read(bytes, 1 << 20);
        assert_eq!(result.unwrap_err().to_string(), expected);
    }

    #[test]
    fn bad_files_are_named_with_the_place() {
        check_bad(b"", "x.pcap: the file is empty (at byte 0)");
        check_bad(b"\xd4", "x.pcap: the file is cut short: 1 bytes are left of a record of at least 4 (at byte 0)");
        check_bad(b"GET / HTTP/1.1\r\n\r\n", "x.pcap: neither pcap nor pcapng: the file begins with 0x47455420 (at byte 0)");
        check_bad(b"\x1f\x8b\x08\0\0\0\0", "x.pcap: compressed with gzip: decompress it first (at byte 0)");
        let mut good = pcap(true, false, 65_535);
        let length = good.len();
        check_bad(
            &good[..length - 1],
            &format!("x.pcap: the file is cut short: 69 bytes are left of a record of at least 70 (at byte {})", length - 70),
        );
        good[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_le_bytes());
        check_bad(&good, "x.pcap: a packet of 4294967295 bytes is not believable (at byte 24)");
        check_bad(
            &[&pcap(true, false, 0)[..24], &[]].concat()[..20],
            "x.pcap: the file is cut short: 20 bytes are left of a record of at least 24 (at byte 0)",
        );
        let mut ng = section(false, &packets());
        let place = 28;
        ng[place + 16] ^= 1;
        check_bad(&ng, "x.pcap: a block of type 1 claims 20 bytes at its begin and 21 at its end (at byte 28)");
    }

    #[test]
    fn every_prefix_delivers_what_it_holds() {
        for file in [pcap(true, false, 65_535), section(true, &packets())] {
            let all = whole(&file);
            let mut before = 0;
            for n in 0..file.len() {
                let (got, result) = read(&file[..n], 1 << 20);
                let have = got.data[1].len();
                assert!(have >= before && all.data[1].starts_with(&got.data[1]), "{n}");
                before = have;
                match result {
                    Ok(()) => {}
                    Err(TapError::BadCapture { offset, .. }) => assert!(offset as usize <= n),
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(all.data[Direction::Reverse.index()].len(), 3003);
        }
    }

    #[test]
    fn a_missing_file_is_named_and_a_pipe_has_no_size() {
        let error = FileTap::open(Path::new("/nonexistent/x.pcap"), Limits::default()).err().unwrap();
        assert!(error.to_string().starts_with("/nonexistent/x.pcap: "), "{error}");
        let directory = FileTap::open(Path::new("/"), Limits::default()).unwrap();
        assert!(matches!(Box::new(directory).run(&mut Got::default(), &StopFlag::default()), Err(TapError::Io { .. })));
    }

    proptest! {
        #[test]
        fn mutations_never_panic(ng: bool, big: bool, flips in prop::collection::vec((0usize..6000, any::<u8>()), 1..12), chunk in 1usize..5000) {
            let mut file = if ng { section(big, &packets()) } else { pcap(true, big, 65_535) };
            for (at, value) in flips {
                let at = at % file.len();
                file[at] = value;
            }
            let (_, result) = read(&file, chunk);
            if let Err(error) = result {
                prop_assert!(error.to_string().contains("x.pcap: ") && error.to_string().contains("at byte"), "{}", error);
            }
        }
    }
}
