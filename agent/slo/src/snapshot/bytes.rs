//! Numbers, texts and labels as bytes, and back without trust.

use super::{Read, SnapshotError};
use crate::groups::Labels;
use crate::model::Dimension;

/// Largest count of anything that is believed before it was read.
const MOST: u64 = 1 << 24;

/// Bytes to be.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    /// Small numbers of either sign stay short.
    pub(super) fn signed(&mut self, n: i64) {
        self.number(((n << 1) ^ (n >> 63)) as u64);
    }

    pub(super) fn float(&mut self, x: f64) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn option(&mut self, n: Option<u64>) {
        match n {
            None => self.number(0),
            Some(n) => {
                self.number(1);
                self.number(n);
            }
        }
    }

    pub(super) fn labels(&mut self, labels: &Labels) {
        self.number(labels.len() as u64);
        labels.iter().for_each(|l| self.text(l));
    }
}

/// Bytes that are left to be read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn number(&mut self) -> Read<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(SnapshotError)?;
            self.0 = rest;
            n |= u64::from(byte & 0x7f).checked_shl(shift).ok_or(SnapshotError)?;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(SnapshotError)
    }

    pub(super) fn signed(&mut self) -> Read<i64> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    pub(super) fn count(&mut self) -> Read<usize> {
        let n = self.number()?;
        // Whatever is counted takes a byte at least, or is a run within a bounded ring.
        (n <= MOST).then_some(n as usize).ok_or(SnapshotError)
    }

    pub(super) fn float(&mut self) -> Read<f64> {
        let (bytes, rest) = self.0.split_first_chunk::<8>().ok_or(SnapshotError)?;
        self.0 = rest;
        let x = f64::from_le_bytes(*bytes);
        x.is_finite().then_some(x).ok_or(SnapshotError)
    }

    pub(super) fn text(&mut self) -> Read<&'a str> {
        let len = self.count()?;
        let (text, rest) = self.0.split_at_checked(len).ok_or(SnapshotError)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| SnapshotError)
    }

    pub(super) fn option(&mut self) -> Read<Option<u64>> {
        match self.number()? {
            0 => Ok(None),
            1 => Ok(Some(self.number()?)),
            _ => Err(SnapshotError),
        }
    }

    pub(super) fn labels(&mut self) -> Read<Labels> {
        let n = self.count()?;
        (n <= Dimension::ALL.len()).then_some(()).ok_or(SnapshotError)?;
        (0..n).map(|_| Ok(Box::from(self.text()?))).collect()
    }
}
