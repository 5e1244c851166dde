//! Protobuf, written (<https://protobuf.dev/programming-guides/encoding/>): fields into a buffer, by functions for whoever counts lengths before, and
//! by [`Wire`] for whoever nests messages whose length is known when they are written.
//!
//! `prost` encodes trees of owned values: of ten thousand series that is a hundred thousand small allocations per export, and twice the memory.
//! Here the store is written as it stands. The tests read what is written with the types of `opentelemetry-proto`.

/// How a field's value is laid out.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
const FIXED32: u32 = 5;

#[inline]
fn key(out: &mut Vec<u8>, field: u32, kind: u32) {
    varint(out, u64::from(field << 3 | kind));
}

/// Bytes of a number in groups of seven bits.
pub const fn varint_len(n: u64) -> usize {
    let bits = 64 - (n | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// A number in groups of seven bits, without a field.
#[inline]
pub fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// The head of a field of bytes, text or a message, which the caller writes next.
#[inline]
pub fn head(out: &mut Vec<u8>, field: u32, len: usize) {
    key(out, field, LENGTH);
    varint(out, len as u64);
}

/// Bytes of a field of bytes, text or a message, all in all.
pub const fn field_len(field: u32, len: usize) -> usize {
    varint_len((field << 3 | LENGTH) as u64) + varint_len(len as u64) + len
}

/// `bytes`, `string`, or a message that is encoded already.
#[inline]
pub fn bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    head(out, field, bytes.len());
    out.extend_from_slice(bytes);
}

/// `uint32`, `uint64`, `bool` or an enumeration.
#[inline]
pub fn uint(out: &mut Vec<u8>, field: u32, n: u64) {
    key(out, field, VARINT);
    varint(out, n);
}

/// `fixed64`, `sfixed64`, or the bits of a `double`.
#[inline]
pub fn fixed64(out: &mut Vec<u8>, field: u32, n: u64) {
    key(out, field, FIXED64);
    out.extend_from_slice(&n.to_le_bytes());
}

/// `fixed32`.
#[inline]
pub fn fixed32(out: &mut Vec<u8>, field: u32, n: u32) {
    key(out, field, FIXED32);
    out.extend_from_slice(&n.to_le_bytes());
}

/// A buffer with a message in it.
#[derive(Default, Debug)]
pub struct Wire(pub Vec<u8>);

impl Wire {
    /// A number in groups of seven bits, without a field.
    pub fn varint(&mut self, n: u64) {
        varint(&mut self.0, n);
    }

    /// `uint32`, `uint64`, `bool` or an enumeration.
    pub fn uint(&mut self, field: u32, n: u64) {
        uint(&mut self.0, field, n);
    }

    /// `int64`.
    pub fn int(&mut self, field: u32, n: i64) {
        self.uint(field, n as u64);
    }

    /// `sint32` or `sint64`.
    pub fn sint(&mut self, field: u32, n: i64) {
        self.uint(field, zigzag(n));
    }

    /// `fixed64` or `sfixed64`.
    pub fn fixed(&mut self, field: u32, n: u64) {
        fixed64(&mut self.0, field, n);
    }

    /// `double`.
    pub fn double(&mut self, field: u32, x: f64) {
        self.fixed(field, x.to_bits());
    }

    /// `bytes`, `string`, or a message that is encoded already.
    pub fn bytes(&mut self, field: u32, all: &[u8]) {
        bytes(&mut self.0, field, all);
    }

    /// `string`.
    pub fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    /// A message, or a packed field, that `write` writes.
    pub fn nested(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        key(&mut self.0, field, LENGTH);
        self.delimited(write);
    }

    /// What `write` writes, with its length before it.
    pub fn delimited(&mut self, write: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        // One byte is enough for most; what is longer is moved.
        self.0.push(0);
        write(self);
        let length = self.0.len() - start - 1;
        if let Some(first) = self.0.get_mut(start).filter(|_| length < 0x80) {
            *first = length as u8;
            return;
        }
        let mut prefix = Vec::new();
        varint(&mut prefix, length as u64);
        self.0.splice(start..=start, prefix);
    }

    /// Packed `fixed64`.
    pub fn fixed_list(&mut self, field: u32, all: impl ExactSizeIterator<Item = u64>) {
        head(&mut self.0, field, 8 * all.len());
        all.for_each(|n| self.0.extend(n.to_le_bytes()));
    }
}

/// A signed number as an unsigned one that is small when it is.
pub fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_what_is_written() {
        for n in [0, 1, 127, 128, 16_383, 16_384, u64::MAX] {
            let mut out = Vec::new();
            varint(&mut out, n);
            assert_eq!(out.len(), varint_len(n), "{n}");
        }
        for (field, len) in [(1, 0), (15, 127), (16, 128), (300, 70_000)] {
            let mut out = Vec::new();
            bytes(&mut out, field, &vec![b'x'; len]);
            assert_eq!(out.len(), field_len(field, len), "{field} {len}");
        }
    }

    #[test]
    fn as_the_specification_has_it() {
        let mut wire = Wire::default();
        wire.uint(1, 150);
        wire.text(2, "testing");
        wire.nested(3, |w| w.uint(1, 150));
        wire.sint(4, -2);
        assert_eq!(wire.0, b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01\x20\x03");
        assert_eq!([0, -1, 1, i64::MIN].map(zigzag), [0, 1, 2, u64::MAX]);
        let mut long = Wire::default();
        long.nested(1, |w| w.text(1, &"x".repeat(300)));
        assert_eq!((&long.0[..5], long.0.len()), (&[0x0a, 0xaf, 0x02, 0x0a, 0xac][..], 306));
    }
}
