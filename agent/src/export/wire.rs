//! Writes Protobuf into a buffer, field by field (<https://protobuf.dev/programming-guides/encoding/>).
//!
//! `prost` encodes trees of owned values: of ten thousand series that is a hundred thousand small allocations per export, and twice the memory.
//! Here the store is written as it stands. The tests read what is written with the types of `opentelemetry-proto`.

/// A buffer with a message in it.
#[derive(Default, Debug)]
pub struct Wire(pub Vec<u8>);

/// How a field's value is laid out.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

impl Wire {
    fn key(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    /// A number in groups of seven bits, without a field.
    pub fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    /// `uint32`, `uint64`, `bool` or an enumeration.
    pub fn uint(&mut self, field: u32, n: u64) {
        self.key(field, VARINT);
        self.varint(n);
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
        self.key(field, FIXED64);
        self.0.extend(n.to_le_bytes());
    }

    /// `double`.
    pub fn double(&mut self, field: u32, x: f64) {
        self.fixed(field, x.to_bits());
    }

    /// `bytes`, `string`, or a message that is encoded already.
    pub fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// `string`.
    pub fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    /// A message, or a packed field, that `write` writes.
    pub fn nested(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        self.key(field, LENGTH);
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
        let mut prefix = Self::default();
        prefix.varint(length as u64);
        self.0.splice(start..=start, prefix.0);
    }

    /// Packed `fixed64`.
    pub fn fixed_list(&mut self, field: u32, all: impl ExactSizeIterator<Item = u64>) {
        self.key(field, LENGTH);
        self.varint(8 * all.len() as u64);
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
