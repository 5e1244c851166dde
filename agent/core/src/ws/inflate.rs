//! `permessage-deflate` (RFC 7692): each message's payload is raw deflate without its last four bytes; the window goes on from one
//! message to the next unless the sender said that it does not.

use flate2::{Decompress, FlushDecompress, Status};

use crate::anomaly::Anomaly;
use crate::http::coding::{FREE_OUTPUT, INFLATE_BYTES, MAX_RATIO};

/// What a sender leaves off each message (RFC 7692 §7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Inflates the messages of one direction.
#[derive(Debug)]
pub struct Inflater {
    /// Made for the first compressed message.
    state: Option<Box<(Decompress, [u8; 8192])>>,
    takeover: bool,
    /// What went before is missing: nothing that leans on it can be read.
    broken: bool,
    input: u64,
    output: u64,
}

impl Inflater {
    /// An inflater; `takeover`: whether a message may lean on those before it.
    pub fn new(takeover: bool) -> Self {
        Self { state: None, takeover, broken: false, input: 0, output: 0 }
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        if self.state.is_some() { INFLATE_BYTES } else { 0 }
    }

    /// A message begins. Whether it can be read.
    pub fn begin(&mut self) -> bool {
        (self.input, self.output) = (0, 0);
        if !self.takeover {
            self.broken = false;
            if let Some(state) = &mut self.state {
                state.0.reset(false);
            }
        }
        !self.broken
    }

    /// A message cannot be read: neither can those that lean on it.
    pub fn break_off(&mut self) {
        self.broken = true;
        self.state = None;
    }

    /// Whether no message will ever be readable again.
    pub fn is_broken(&self) -> bool {
        self.broken && self.takeover
    }

    /// Takes bytes of a message.
    ///
    /// # Errors
    /// When they cannot be inflated or expand beyond all measure; later ones of the message are ignored.
    pub fn push(&mut self, bytes: &[u8], out: &mut impl FnMut(&[u8])) -> Result<(), Anomaly> {
        if self.broken {
            return Ok(());
        }
        let done = self.inflate(bytes, out);
        if done.is_err() {
            self.break_off();
        }
        done
    }

    /// The message ended.
    ///
    /// # Errors
    /// As [`Inflater::push`].
    pub fn end(&mut self, out: &mut impl FnMut(&[u8])) -> Result<(), Anomaly> {
        self.push(&TAIL, out)
    }

    fn inflate(&mut self, mut bytes: &[u8], out: &mut impl FnMut(&[u8])) -> Result<(), Anomaly> {
        let (inflate, buffer) = &mut **self.state.get_or_insert_with(|| Box::new((Decompress::new(false), [0; 8192])));
        self.input += bytes.len() as u64;
        loop {
            let (before_in, before_out) = (inflate.total_in(), inflate.total_out());
            let status = inflate.decompress(bytes, buffer, FlushDecompress::None).map_err(|_| Anomaly::BadCoding)?;
            let used = (inflate.total_in() - before_in) as usize;
            let made = (inflate.total_out() - before_out) as usize;
            bytes = &bytes[used..];
            self.output += made as u64;
            if self.output > FREE_OUTPUT && self.output / MAX_RATIO > self.input {
                return Err(Anomaly::DecompressionBomb);
            }
            if made > 0 {
                out(&buffer[..made]);
            }
            if status == Status::StreamEnd {
                // A last block inside a message (RFC 7692 §7.2.3.4): a stream of its own follows, if only the empty one that is left off.
                inflate.reset(false);
                if bytes.is_empty() {
                    return Ok(());
                }
                continue;
            }
            if made < buffer.len() && (bytes.is_empty() || used == 0) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compress, Compression, FlushCompress};

    fn read(inflater: &mut Inflater, payload: &[u8], size: usize) -> Result<String, Anomaly> {
        let mut out = Vec::new();
        inflater.begin();
        for piece in payload.chunks(size) {
            inflater.push(piece, &mut |b| out.extend_from_slice(b))?;
        }
        inflater.end(&mut |b| out.extend_from_slice(b))?;
        Ok(String::from_utf8(out).unwrap())
    }

    /// RFC 7692 §7.2.3: one message, shared window, no compression, a last block, two blocks.
    #[test]
    fn the_examples_of_the_rfc() {
        let one = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        for size in 1..8 {
            let mut i = Inflater::new(true);
            assert_eq!(read(&mut i, &one, size).unwrap(), "Hello");
            assert_eq!(read(&mut i, &[0xf2, 0x00, 0x11, 0x00, 0x00], size).unwrap(), "Hello");
            assert_eq!(read(&mut i, &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00], size).unwrap(), "Hello");
            assert_eq!(read(&mut i, &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00], size).unwrap(), "Hello");
            let two = [0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
            assert_eq!(read(&mut i, &two, size).unwrap(), "Hello");
            let mut i = Inflater::new(false);
            assert_eq!(read(&mut i, &one, size).unwrap(), "Hello");
            assert_eq!(read(&mut i, &one, size).unwrap(), "Hello");
            // A message that leans on one before it, though it was agreed that none does.
            assert_eq!(read(&mut i, &[0xf2, 0x00, 0x11, 0x00, 0x00], size), Err(Anomaly::BadCoding));
            assert_eq!(read(&mut i, &one, size).unwrap(), "Hello");
        }
    }

    #[test]
    fn a_message_that_is_missing_breaks_those_that_lean_on_it() {
        let one = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let mut i = Inflater::new(true);
        i.break_off();
        assert!(!i.begin() && i.is_broken() && i.buffered() == 0);
        assert_eq!(read(&mut i, &one, 9).unwrap(), "");
        let mut i = Inflater::new(false);
        i.break_off();
        assert!(i.begin() && !i.is_broken());
    }

    #[test]
    fn bombs_are_defused() {
        let mut deflate = Compress::new(Compression::best(), false);
        let zeros = vec![0; 32 << 20];
        let mut bomb = Vec::with_capacity(1 << 20);
        deflate.compress_vec(&zeros, &mut bomb, FlushCompress::Sync).unwrap();
        let (mut i, mut made) = (Inflater::new(true), 0);
        assert!(i.begin());
        assert_eq!(i.push(&bomb, &mut |b| made += b.len() as u64), Err(Anomaly::DecompressionBomb));
        assert!(made <= FREE_OUTPUT + 8192 && i.is_broken());
    }
}
