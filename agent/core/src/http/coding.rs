//! Content codings as streams: each piece of a body is inflated as far as its bytes allow, so that an event's instant is the one
//! of the bytes that completed it. Output goes through one fixed buffer: a bomb costs time until its bound, never memory.

use flate2::{Decompress, FlushDecompress, Status};

use crate::anomaly::Anomaly;
use crate::http::head::Coding;

/// Bytes of state that one inflater holds, for the account of buffered bytes.
pub const STATE_BYTES: usize = 48 << 10;
/// Output beyond this must not exceed [`MAX_RATIO`] times the input.
const FREE_OUTPUT: u64 = 16 << 20;
/// No text that a model writes compresses better than this.
const MAX_RATIO: u64 = 200;

/// Undoes a content coding.
#[derive(Debug)]
pub struct Decoder {
    coding: Coding,
    inner: Inner,
    input: u64,
    output: u64,
    buffer: Box<[u8; 8192]>,
}

#[derive(Debug)]
enum Inner {
    Gzip {
        header: Header,
        inflate: Decompress,
        trailer: u8,
    },
    /// `deflate`, before its first two bytes say whether it is zlib or raw.
    Deflate {
        first: Option<u8>,
    },
    Inflate(Decompress),
    Broken,
}

impl Decoder {
    /// A decoder for `coding`; `None` when it is not supported.
    pub fn new(coding: Coding) -> Option<Self> {
        let inner = match coding {
            Coding::Gzip => Inner::Gzip { header: Header::default(), inflate: Decompress::new(false), trailer: 0 },
            Coding::Deflate => Inner::Deflate { first: None },
            Coding::Unsupported(_) => return None,
        };
        Some(Self { coding, inner, input: 0, output: 0, buffer: Box::new([0; 8192]) })
    }

    /// What comes next is another body of the same coding.
    pub fn restart(&mut self) {
        match &mut self.inner {
            Inner::Gzip { header, inflate, trailer } => {
                (*header, *trailer) = (Header::default(), 0);
                inflate.reset(false);
            }
            Inner::Deflate { .. } | Inner::Inflate(_) | Inner::Broken => {
                if let Some(fresh) = Self::new(self.coding) {
                    self.inner = fresh.inner;
                }
            }
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
    pub fn push(&mut self, mut bytes: &[u8], out: &mut impl FnMut(&[u8])) -> Result<(), Anomaly> {
        self.input += bytes.len() as u64;
        loop {
            match &mut self.inner {
                Inner::Broken => return Ok(()),
                Inner::Deflate { first } => {
                    let Some((byte, rest)) = bytes.split_first() else { return Ok(()) };
                    let Some(cmf) = *first else {
                        *first = Some(*byte);
                        bytes = rest;
                        continue;
                    };
                    // RFC 1950 §2.2: method 8, and the two bytes are a multiple of 31.
                    let zlib = cmf & 0x0f == 8 && (u16::from(cmf) << 8 | u16::from(*byte)).is_multiple_of(31);
                    let mut inflate = Decompress::new(zlib);
                    // The first byte gives no output in either form.
                    if inflate.decompress(&[cmf], &mut self.buffer[..], FlushDecompress::None).is_err() {
                        self.inner = Inner::Broken;
                        return Err(Anomaly::BadCoding);
                    }
                    self.inner = Inner::Inflate(inflate);
                }
                Inner::Gzip { header, inflate, trailer } => {
                    match header.push(&mut bytes) {
                        Ok(true) => {}
                        Ok(false) => return Ok(()),
                        Err(()) => {
                            self.inner = Inner::Broken;
                            return Err(Anomaly::BadCoding);
                        }
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
                        inflate.reset(false);
                        continue;
                    }
                    match run(inflate, &mut bytes, &mut self.buffer[..], &mut self.output, self.input, out) {
                        Ok(true) => *trailer = 8,
                        Ok(false) => return Ok(()),
                        Err(what) => {
                            self.inner = Inner::Broken;
                            return Err(what);
                        }
                    }
                }
                Inner::Inflate(inflate) => {
                    return match run(inflate, &mut bytes, &mut self.buffer[..], &mut self.output, self.input, out) {
                        Ok(_) => Ok(()),
                        Err(what) => {
                            self.inner = Inner::Broken;
                            Err(what)
                        }
                    };
                }
            }
        }
    }
}

/// Inflates until the input is used up (false) or the stream ends (true).
fn run(
    inflate: &mut Decompress,
    bytes: &mut &[u8],
    buffer: &mut [u8],
    total: &mut u64,
    input: u64,
    out: &mut impl FnMut(&[u8]),
) -> Result<bool, Anomaly> {
    loop {
        let (before_in, before_out) = (inflate.total_in(), inflate.total_out());
        let status = inflate.decompress(bytes, buffer, FlushDecompress::None).map_err(|_| Anomaly::BadCoding)?;
        let used = (inflate.total_in() - before_in) as usize;
        let made = (inflate.total_out() - before_out) as usize;
        *bytes = &bytes[used..];
        *total += made as u64;
        if *total > FREE_OUTPUT && *total / MAX_RATIO > input {
            return Err(Anomaly::DecompressionBomb);
        }
        if made > 0 {
            out(&buffer[..made]);
        }
        if status == Status::StreamEnd {
            return Ok(true);
        }
        if made < buffer.len() && (bytes.is_empty() || used == 0) {
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
    fn push(&mut self, bytes: &mut &[u8]) -> Result<bool, ()> {
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
                        return Err(());
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
            assert_eq!(inflate(coding, bytes, size), (want.to_vec(), Ok(())), "pieces of {size}");
        }
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
    }

    #[test]
    fn what_is_flushed_can_be_read_at_once() {
        let mut gz = GzEncoder::new(Vec::new(), Compression::default());
        let mut decoder = Decoder::new(Coding::Gzip).unwrap();
        let mut sent = 0;
        for i in 0..100 {
            let event = format!("data: {{\"n\":{i}}}\n\n");
            gz.write_all(event.as_bytes()).unwrap();
            gz.flush().unwrap();
            let bytes = gz.get_ref()[sent..].to_vec();
            sent += bytes.len();
            let mut got = Vec::new();
            decoder.push(&bytes, &mut |b| got.extend_from_slice(b)).unwrap();
            assert_eq!(got, event.as_bytes());
        }
    }

    #[test]
    fn garbage_and_bombs() {
        assert_eq!(inflate(Coding::Gzip, b"not gzip", 3).1, Err(Anomaly::BadCoding));
        assert_eq!(inflate(Coding::Deflate, &[0xff; 40], 3).1, Err(Anomaly::BadCoding));
        let mut gz = GzEncoder::new(Vec::new(), Compression::best());
        let zeros = vec![0u8; 1 << 20];
        for _ in 0..64 {
            gz.write_all(&zeros).unwrap();
        }
        let bomb = gz.finish().unwrap();
        let mut decoder = Decoder::new(Coding::Gzip).unwrap();
        let mut made = 0;
        assert_eq!(decoder.push(&bomb, &mut |b| made += b.len()), Err(Anomaly::DecompressionBomb));
        assert!(made as u64 <= FREE_OUTPUT + 8192);
        assert_eq!(decoder.push(&bomb, &mut |_| made += 1), Ok(()));
    }
}
