//! Content codings as streams: each piece of a body is inflated as far as its bytes allow, so that an event's instant is the one
//! of the bytes that completed it. Output goes through one fixed buffer: a bomb costs time until its bound, never memory.

mod brotli;
mod inflate;
mod zstd;

use self::brotli::Brotli;
use self::inflate::{Inflate, Stop};
use self::zstd::Zstd;
use crate::anomaly::Anomaly;
use crate::http::head::Coding;

/// Bytes of state that zlib's inflater holds.
pub const INFLATE_BYTES: usize = 40 << 10;
/// Bytes of output at a time, where a library writes them.
const BUFFER: usize = 8 << 10;
/// Output beyond this must not exceed [`MAX_RATIO`] times the input.
pub const FREE_OUTPUT: u64 = 16 << 20;
/// No text that a model writes compresses better than this.
pub const MAX_RATIO: u64 = 200;

/// Undoes a content coding.
#[derive(Debug)]
pub struct Decoder {
    coding: Coding,
    inner: Inner,
    input: u64,
    output: u64,
}

#[derive(Debug)]
enum Inner {
    Gzip {
        header: Header,
        inflate: Inflate,
        /// Bytes of the checksum and the length that are to come behind the stream. TCP has checksums, and what is read must make sense.
        trailer: u8,
    },
    /// `deflate`, before its first two bytes say whether it is zlib or raw.
    Deflate {
        first: Option<u8>,
    },
    Inflate(Inflate),
    Brotli(Brotli, Box<[u8; BUFFER]>),
    Zstd(Zstd, Box<[u8; BUFFER]>),
    /// The stream ended as it should; what follows is none of it.
    Ended,
    Broken,
}

/// What one call of a library's inflater did.
struct Step {
    /// Bytes of input that were used.
    used: usize,
    /// Bytes of output that were made.
    made: usize,
    /// Whether the stream ended.
    ended: bool,
}

/// A library's inflater.
trait Library {
    /// Inflates as much of `input` as there is room for in `output`. When room is left, the input gives no more than that.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Anomaly>;
}

/// Bytes that went in and came out.
#[derive(Debug)]
struct Scale<'d> {
    input: u64,
    output: &'d mut u64,
}

impl Scale<'_> {
    /// So many bytes came out.
    fn made(&mut self, count: usize) -> Result<(), Anomaly> {
        *self.output += count as u64;
        let bomb = *self.output > FREE_OUTPUT && *self.output / MAX_RATIO > self.input;
        if bomb { Err(Anomaly::DecompressionBomb) } else { Ok(()) }
    }
}

impl Decoder {
    /// A decoder for `coding`; `None` when it is not supported.
    pub fn new(coding: Coding) -> Option<Self> {
        let buffer = || Box::new([0; BUFFER]);
        let inner = match coding {
            Coding::Gzip => Inner::Gzip { header: Header::default(), inflate: Inflate::default(), trailer: 0 },
            Coding::Deflate => Inner::Deflate { first: None },
            Coding::Brotli => Inner::Brotli(Brotli::new(), buffer()),
            Coding::Zstd => Inner::Zstd(Zstd::new()?, buffer()),
            Coding::Unsupported(_) => return None,
        };
        Some(Self { coding, inner, input: 0, output: 0 })
    }

    /// Takes the decoder out of its place: what stays is one that reads nothing.
    pub fn take(&mut self) -> Self {
        let left = Self { inner: Inner::Broken, ..*self };
        std::mem::replace(self, left)
    }

    /// Bytes of memory that are held.
    #[inline]
    pub fn buffered(&self) -> usize {
        match &self.inner {
            Inner::Gzip { inflate, .. } | Inner::Inflate(inflate) => inflate.buffered(),
            Inner::Brotli(brotli, _) => BUFFER + brotli.buffered(),
            Inner::Zstd(zstd, _) => BUFFER + zstd.buffered(),
            Inner::Deflate { .. } | Inner::Ended | Inner::Broken => 0,
        }
    }

    /// What comes next is another body of the same coding.
    pub fn restart(&mut self) {
        if let Inner::Gzip { header, inflate, trailer } = &mut self.inner {
            (*header, *trailer) = (Header::default(), 0);
            inflate.restart();
        } else if let Some(fresh) = Self::new(self.coding) {
            self.inner = fresh.inner;
        }
        (self.input, self.output) = (0, 0);
    }

    /// Bytes are missing: nothing after them can be inflated.
    pub fn break_off(&mut self) {
        self.inner = Inner::Broken;
    }

    /// Inflates `bytes` into `out`, piece by piece.
    ///
    /// # Errors
    /// Once, when the bytes are not what the coding prescribes or expand beyond all measure; later bytes are ignored.
    pub fn push(&mut self, bytes: &[u8], out: &mut impl FnMut(&[u8])) -> Result<(), Anomaly> {
        let done = self.run(bytes, out);
        if done.is_err() {
            self.inner = Inner::Broken;
        }
        done
    }

    fn run(&mut self, mut bytes: &[u8], out: &mut impl FnMut(&[u8])) -> Result<(), Anomaly> {
        self.input += bytes.len() as u64;
        let Self { inner, input, output, .. } = self;
        let mut scale = Scale { input: *input, output };
        loop {
            match inner {
                Inner::Ended | Inner::Broken => return Ok(()),
                Inner::Deflate { first } => {
                    let Some((byte, rest)) = bytes.split_first() else { return Ok(()) };
                    let Some(cmf) = *first else {
                        *first = Some(*byte);
                        bytes = rest;
                        continue;
                    };
                    let mut inflate = Inflate::default();
                    // RFC 1950 §2.2: method 8, and the two bytes are a multiple of 31.
                    if cmf & 0x0f == 8 && (u16::from(cmf) << 8 | u16::from(*byte)).is_multiple_of(31) {
                        // A window of 32 KiB at most, and no dictionary.
                        if cmf > 0x7f || byte & 0x20 != 0 {
                            return Err(Anomaly::BadCoding);
                        }
                        bytes = rest;
                    } else {
                        // It holds no whole symbol.
                        inflate.step(&mut &[cmf][..])?;
                    }
                    *inner = Inner::Inflate(inflate);
                }
                Inner::Gzip { header, inflate, trailer } => {
                    if !header.push(&mut bytes)? {
                        return Ok(());
                    }
                    if *trailer > 0 {
                        let n = bytes.len().min(usize::from(*trailer));
                        bytes = &bytes[n..];
                        *trailer -= n as u8;
                        if *trailer > 0 {
                            return Ok(());
                        }
                        // Another member may follow (RFC 1952 §2.2).
                        *header = Header::default();
                        inflate.restart();
                        continue;
                    }
                    if !steps(inflate, &mut bytes, &mut scale, out)? {
                        return Ok(());
                    }
                    *trailer = TRAILER - inflate.surplus();
                }
                Inner::Inflate(inflate) => {
                    if !steps(inflate, &mut bytes, &mut scale, out)? {
                        return Ok(());
                    }
                    *inner = Inner::Ended;
                }
                Inner::Brotli(brotli, buffer) => {
                    if !run(brotli, &mut bytes, &mut buffer[..], &mut scale, out)? {
                        return Ok(());
                    }
                    *inner = Inner::Ended;
                }
                Inner::Zstd(zstd, buffer) => {
                    // Frames follow each other until the body ends (RFC 8878 §3).
                    run(zstd, &mut bytes, &mut buffer[..], &mut scale, out)?;
                    return Ok(());
                }
            }
        }
    }

    /// Whether [`Decoder::piece`] may be used: gzip, within its stream.
    pub fn is_within(&self) -> bool {
        matches!(&self.inner, Inner::Gzip { header: Header { done: true, .. }, trailer: 0, .. })
    }

    /// Inflates what `bytes` begin with, and takes it off: as much as lies in one piece, which is mostly all of it. What was made is
    /// [`Decoder::text`]. What is left is for [`Decoder::push`], and be it nothing. Returns whether that is needed.
    ///
    /// # Errors
    /// As [`Decoder::push`].
    #[inline]
    pub fn piece(&mut self, bytes: &mut &[u8]) -> Result<bool, Anomaly> {
        let Inner::Gzip { inflate, trailer, .. } = &mut self.inner else { return Ok(true) };
        let before = bytes.len();
        let done = inflate.step(bytes).and_then(|stop| {
            self.input += (before - bytes.len()) as u64;
            Scale { input: self.input, output: &mut self.output }.made(inflate.text().len())?;
            if stop == Stop::End {
                *trailer = TRAILER - inflate.surplus();
            }
            Ok(stop != Stop::Input)
        });
        if done.is_err() {
            self.inner = Inner::Broken;
        }
        done
    }

    /// What the last [`Decoder::piece`] made.
    #[inline]
    pub fn text(&self) -> &[u8] {
        if let Inner::Gzip { inflate, .. } = &self.inner { inflate.text() } else { &[] }
    }

    /// The memory that [`Decoder::piece`] will most likely need.
    #[inline]
    pub fn near(&self) -> &[u8] {
        if let Inner::Gzip { inflate, .. } = &self.inner { inflate.near() } else { &[] }
    }
}

/// Bytes behind a gzip stream (RFC 1952 §2.3.1): more than an inflater takes too many.
const TRAILER: u8 = 8;

/// Inflates until the input is used up (false) or the stream ends (true).
fn steps(inflate: &mut Inflate, bytes: &mut &[u8], scale: &mut Scale<'_>, out: &mut impl FnMut(&[u8])) -> Result<bool, Anomaly> {
    loop {
        let stop = inflate.step(bytes)?;
        scale.made(inflate.text().len())?;
        if !inflate.text().is_empty() {
            out(inflate.text());
        }
        match stop {
            Stop::Input => return Ok(false),
            Stop::End => return Ok(true),
            Stop::Window => {}
        }
    }
}

/// The same with a library.
fn run(
    inflate: &mut dyn Library,
    bytes: &mut &[u8],
    buffer: &mut [u8],
    scale: &mut Scale<'_>,
    out: &mut impl FnMut(&[u8]),
) -> Result<bool, Anomaly> {
    loop {
        let step = inflate.step(bytes, buffer)?;
        *bytes = &bytes[step.used..];
        scale.made(step.made)?;
        if step.made > 0 {
            out(&buffer[..step.made]);
        }
        if step.ended {
            return Ok(true);
        }
        if step.made < buffer.len() && (bytes.is_empty() || step.used == 0) {
            return Ok(false);
        }
    }
}

/// A gzip member's header (RFC 1952 §2.3), skipped byte by byte.
#[derive(Debug, Default)]
struct Header {
    at: u8,
    flags: u8,
    extra: u16,
    done: bool,
    part: u8,
}

impl Header {
    /// Whether the header is complete; takes its bytes off the front of `bytes`.
    fn push(&mut self, bytes: &mut &[u8]) -> Result<bool, Anomaly> {
        while !self.done {
            // Parts in order: the fixed ten bytes, extra length, extra, name, comment, checksum.
            let present = match self.part {
                0 => true,
                1 | 2 => self.flags & 4 != 0,
                3 => self.flags & 8 != 0,
                4 => self.flags & 16 != 0,
                5 => self.flags & 2 != 0,
                _ => {
                    self.done = true;
                    break;
                }
            };
            if !present || self.part == 2 && self.extra == 0 {
                self.next_part();
                continue;
            }
            let Some((&byte, rest)) = bytes.split_first() else { return Ok(false) };
            *bytes = rest;
            let ended = match self.part {
                0 => {
                    let fits = match self.at {
                        0 => byte == 0x1f,
                        1 => byte == 0x8b,
                        2 => byte == 8,
                        _ => true,
                    };
                    if !fits {
                        return Err(Anomaly::BadCoding);
                    }
                    if self.at == 3 {
                        self.flags = byte;
                    }
                    self.at == 9
                }
                1 => {
                    self.extra |= u16::from(byte) << (8 * self.at);
                    self.at == 1
                }
                2 => {
                    self.extra -= 1;
                    self.extra == 0
                }
                3 | 4 => byte == 0,
                _ => self.at == 1,
            };
            if ended {
                self.next_part();
            } else if self.part != 3 && self.part != 4 {
                self.at = self.at.saturating_add(1);
            }
        }
        Ok(true)
    }

    fn next_part(&mut self) {
        self.part += 1;
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use std::io::Write;
    use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

    fn inflate(coding: Coding, bytes: &[u8], size: usize) -> (Vec<u8>, Result<(), Anomaly>) {
        let mut decoder = Decoder::new(coding).unwrap();
        let mut text = Vec::new();
        for piece in bytes.chunks(size.max(1)) {
            if let Err(e) = decoder.push(piece, &mut |b| text.extend_from_slice(b)) {
                return (text, Err(e));
            }
        }
        (text, Ok(()))
    }

    fn check(coding: Coding, bytes: &[u8], want: &[u8]) {
        for size in (1..=64).chain([usize::MAX]) {
            assert_eq!(inflate(coding, bytes, size), (want.to_vec(), Ok(())), "{} in pieces of {size}", coding.as_str());
        }
        // What was cut off is a beginning, not an error.
        for cut in 0..bytes.len() {
            let (text, done) = inflate(coding, &bytes[..cut], usize::MAX);
            assert!(done.is_ok() && want.starts_with(&text), "{} cut at {cut}", coding.as_str());
        }
    }

    fn brotli(quality: u32, window: u32) -> brotli_encoder::CompressorWriter<Vec<u8>> {
        brotli_encoder::CompressorWriter::new(Vec::new(), 4096, quality, window)
    }

    /// A zstd encoder: `write` and `flush` as the others.
    struct Zstandard(CCtx<'static>, Vec<u8>);

    impl Zstandard {
        fn new(level: i32, window: Option<u32>) -> Self {
            let mut context = CCtx::create();
            context.set_parameter(CParameter::CompressionLevel(level)).unwrap();
            context.set_parameter(CParameter::ChecksumFlag(true)).unwrap();
            if let Some(log) = window {
                context.set_parameter(CParameter::WindowLog(log)).unwrap();
            }
            Self(context, Vec::new())
        }

        fn write(&mut self, text: &[u8], how: zstd_safe::zstd_sys::ZSTD_EndDirective) {
            let mut from = InBuffer::around(text);
            let mut room = vec![0; 1 << 16];
            loop {
                let mut to = OutBuffer::around(room.as_mut_slice());
                let left = self.0.compress_stream2(&mut to, &mut from, how).unwrap();
                self.1.extend_from_slice(to.as_slice());
                if left == 0 && from.pos() == text.len() {
                    return;
                }
            }
        }
    }

    fn zstandard(level: i32, text: &[u8]) -> Vec<u8> {
        let mut z = Zstandard::new(level, None);
        z.write(text, zstd_safe::zstd_sys::ZSTD_EndDirective::ZSTD_e_end);
        z.1
    }

    #[test]
    fn every_form_of_every_coding() {
        let text = b"data: {\"a\":1}\n\n".repeat(50);
        let mut gz = flate2::GzBuilder::new().filename("n").comment("c").extra(b"xyz".to_vec()).write(Vec::new(), Compression::fast());
        gz.write_all(&text).unwrap();
        let mut one = gz.finish().unwrap();
        check(Coding::Gzip, &one, &text);
        let mut second = GzEncoder::new(Vec::new(), Compression::fast());
        second.write_all(b"more").unwrap();
        one.extend(second.finish().unwrap());
        check(Coding::Gzip, &one, &[&text[..], b"more"].concat());
        let mut z = ZlibEncoder::new(Vec::new(), Compression::fast());
        z.write_all(&text).unwrap();
        check(Coding::Deflate, &z.finish().unwrap(), &text);
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::fast());
        raw.write_all(&text).unwrap();
        check(Coding::Deflate, &raw.finish().unwrap(), &text);
        for (quality, window) in [(1, 10), (5, 22), (11, 24)] {
            let mut br = brotli(quality, window);
            br.write_all(&text).unwrap();
            check(Coding::Brotli, &br.into_inner(), &text);
        }
        for level in [-1, 3, 19] {
            // A frame, one that is to be skipped, another frame.
            let frames = [&zstandard(level, &text)[..], b"\x50\x2a\x4d\x18\x03\0\0\0abc", &zstandard(level, b"more")].concat();
            check(Coding::Zstd, &frames, &[&text[..], b"more"].concat());
        }
    }

    #[test]
    fn what_is_flushed_can_be_read_at_once() {
        let mut gz = GzEncoder::new(Vec::new(), Compression::default());
        let mut z = ZlibEncoder::new(Vec::new(), Compression::default());
        let (mut fast, mut best) = (brotli(1, 18), brotli(11, 24));
        let mut zstd = Zstandard::new(3, Some(23));
        let codings = [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Brotli, Coding::Zstd];
        let mut decoders = codings.map(|c| (Decoder::new(c).unwrap(), Decoder::new(c).unwrap()));
        let mut sent = [0; 5];
        for i in 0..300 {
            let event = format!("data: {{\"n\":{i},\"delta\":\"{}\"}}\n\n", "word ".repeat(i % 7));
            for encoder in [&mut gz as &mut dyn Write, &mut z, &mut fast, &mut best] {
                encoder.write_all(event.as_bytes()).unwrap();
                encoder.flush().unwrap();
            }
            zstd.write(event.as_bytes(), zstd_safe::zstd_sys::ZSTD_EndDirective::ZSTD_e_flush);
            let all = [gz.get_ref(), z.get_ref(), fast.get_ref(), best.get_ref(), &zstd.1];
            for (n, (whole, cut)) in decoders.iter_mut().enumerate() {
                let bytes = &all[n][sent[n]..];
                sent[n] = all[n].len();
                let (mut a, mut b) = (Vec::new(), Vec::new());
                whole.push(bytes, &mut |t| a.extend_from_slice(t)).unwrap();
                for byte in bytes {
                    cut.push(&[*byte], &mut |t| b.extend_from_slice(t)).unwrap();
                }
                assert_eq!((a.as_slice(), b.as_slice()), (event.as_bytes(), event.as_bytes()), "{} {n}", codings[n].as_str());
            }
        }
        // A stream of 20 kB takes no megabytes, whatever window it announces.
        for ((decoder, _), coding) in decoders.iter().zip(codings) {
            let held = decoder.buffered();
            assert!((16 << 10..400 << 10).contains(&held), "{} {held}", coding.as_str());
        }
    }

    #[test]
    fn another_body_may_follow() {
        let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
        gz.write_all(b"text").unwrap();
        let mut z = ZlibEncoder::new(Vec::new(), Compression::fast());
        z.write_all(b"text").unwrap();
        let mut br = brotli(5, 22);
        br.write_all(b"text").unwrap();
        let bodies = [
            (Coding::Gzip, gz.finish().unwrap()),
            (Coding::Deflate, z.finish().unwrap()),
            (Coding::Brotli, br.into_inner()),
            (Coding::Zstd, zstandard(3, b"text")),
        ];
        for (coding, body) in bodies {
            let mut decoder = Decoder::new(coding).unwrap();
            for broken in [&body[..0], &body[..body.len() / 2], b"\xff\xff\xff\xff\xff"] {
                let _ = decoder.push(broken, &mut |_| {});
                decoder.restart();
                let mut text = Vec::new();
                assert_eq!(decoder.push(&body, &mut |b| text.extend_from_slice(b)), Ok(()));
                assert_eq!(text, b"text", "{}", coding.as_str());
                decoder.restart();
            }
        }
    }

    #[test]
    fn garbage_and_windows_without_measure() {
        assert_eq!(inflate(Coding::Gzip, b"not gzip", 3).1, Err(Anomaly::BadCoding));
        assert_eq!(inflate(Coding::Deflate, &[0xff; 40], 3).1, Err(Anomaly::BadCoding));
        assert_eq!(inflate(Coding::Brotli, &[0xff; 40], 3).1, Err(Anomaly::BadCoding));
        assert_eq!(inflate(Coding::Zstd, b"not zstd", 3).1, Err(Anomaly::BadCoding));
        assert_eq!(inflate(Coding::Zstd, &[&zstandard(3, b"a")[..], b"rest"].concat(), 3).1, Err(Anomaly::BadCoding));
        // The large window extension of brotli: 0x11, then the window's size.
        assert_eq!(inflate(Coding::Brotli, &[0x11, 0x1e, 0, 0], 1).1, Err(Anomaly::BadCoding));
        for (log, ok) in [(23, true), (24, false)] {
            let mut z = Zstandard::new(3, Some(log));
            z.write(b"text", zstd_safe::zstd_sys::ZSTD_EndDirective::ZSTD_e_flush);
            assert_eq!(inflate(Coding::Zstd, &z.1, 1).1.is_ok(), ok, "window 2^{log}");
        }
    }

    #[test]
    fn bombs() {
        let zeros = vec![0u8; 1 << 20];
        let mut gz = GzEncoder::new(Vec::new(), Compression::best());
        let mut br = brotli(5, 22);
        for _ in 0..64 {
            gz.write_all(&zeros).unwrap();
            br.write_all(&zeros).unwrap();
        }
        let bombs =
            [(Coding::Gzip, gz.finish().unwrap()), (Coding::Brotli, br.into_inner()), (Coding::Zstd, zstandard(3, &vec![0; 64 << 20]))];
        for (coding, bomb) in bombs {
            let mut decoder = Decoder::new(coding).unwrap();
            let mut made = 0;
            assert_eq!(decoder.push(&bomb, &mut |b| made += b.len()), Err(Anomaly::DecompressionBomb), "{}", coding.as_str());
            assert!(made as u64 <= FREE_OUTPUT + (32 << 10));
            assert_eq!(decoder.push(&bomb, &mut |_| made += 1), Ok(()));
            assert!(decoder.buffered() <= BUFFER, "{}", coding.as_str());
        }
    }
}
