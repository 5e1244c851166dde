//! A writer of frames, for tests.

use flate2::{Compress, Compression, FlushCompress};

/// A frame whose first byte (FIN, RSV and opcode) is `first`; with a key it is masked.
pub fn frame(first: u8, payload: &[u8], key: Option<[u8; 4]>) -> Vec<u8> {
    let mask = if key.is_some() { 0x80 } else { 0 };
    let mut out = vec![first];
    match payload.len() {
        n @ 0..126 => out.push(mask | n as u8),
        n @ 126..0x1_0000 => {
            out.push(mask | 126);
            out.extend((n as u16).to_be_bytes());
        }
        n => {
            out.push(mask | 127);
            out.extend((n as u64).to_be_bytes());
        }
    }
    let key = key.inspect(|k| out.extend(k)).unwrap_or_default();
    out.extend(payload.iter().zip(key.iter().cycle()).map(|(b, k)| b ^ k));
    out
}

/// Compresses the messages of one direction.
#[derive(Debug)]
pub struct Deflater {
    inner: Compress,
    takeover: bool,
}

impl Deflater {
    /// A deflater; `takeover`: whether a message leans on those before it.
    pub fn new(takeover: bool) -> Self {
        Self { inner: Compress::new(Compression::default(), false), takeover }
    }

    /// A message's payload.
    pub fn message(&mut self, text: &[u8]) -> Vec<u8> {
        if !self.takeover {
            self.inner.reset();
        }
        let mut out = Vec::with_capacity(text.len() + 64);
        let from = self.inner.total_in();
        while (self.inner.total_in() - from) < text.len() as u64 || out.len() == out.capacity() {
            out.reserve(256);
            let done = (self.inner.total_in() - from) as usize;
            // Writing to memory does not fail; what was not taken is seen by the count.
            let _ = self.inner.compress_vec(&text[done..], &mut out, FlushCompress::Sync);
        }
        if out.ends_with(&[0, 0, 0xff, 0xff]) {
            out.truncate(out.len() - 4);
        }
        out
    }
}
