//! Protobuf messages as they lie on the wire (<https://protobuf.dev/programming-guides/encoding/>): fields by their numbers, in order,
//! borrowed. A dialect asks for the few that it knows; a generated decoder would copy every text to throw it away.

/// A field's value, by its wire type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'a> {
    /// Integers, booleans, enumerations.
    Varint(u64),
    /// `fixed64`, `double`.
    Fixed64(u64),
    /// `fixed32`, `float`.
    Fixed32(u32),
    /// Strings, bytes, messages, packed lists.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The value of an integer field.
    pub fn integer(self) -> Option<u64> {
        if let Self::Varint(n) = self { Some(n) } else { None }
    }

    /// The value of a string, bytes or message field.
    pub fn bytes(self) -> Option<&'a [u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// The value of a string field.
    pub fn text(self) -> Option<&'a str> {
        self.bytes().and_then(|b| std::str::from_utf8(b).ok())
    }

    /// The finite value of a `float` or `double` field. A `float` gives the number that its sender wrote down: 0.7, not
    /// 0.699999988.
    pub fn float(self) -> Option<f64> {
        let value = match self {
            Self::Fixed32(bits) => f32::from_bits(bits).to_string().parse().ok()?,
            Self::Fixed64(bits) => f64::from_bits(bits),
            _ => return None,
        };
        Some(value).filter(|v: &f64| v.is_finite())
    }

    /// How many integers a repeated field's entry holds: one, or a packed list of them. `None` when it is neither.
    pub fn integers(self) -> Option<usize> {
        match self {
            Self::Varint(_) => Some(1),
            // Each ends with a byte whose top bit is clear.
            Self::Bytes(packed) if packed.last().is_none_or(|b| b & 0x80 == 0) => Some(packed.iter().filter(|b| **b & 0x80 == 0).count()),
            _ => None,
        }
    }
}

/// The bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// The fields of a message, one by one. Behind the first that is malformed, or whose end is missing, there are none.
#[derive(Clone, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of `message`.
    pub fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// Calls `see` with the number and value of each field.
    ///
    /// # Errors
    /// When the bytes are no message.
    pub fn each(self, mut see: impl FnMut(u32, Value<'a>)) -> Result<(), Malformed> {
        for field in self {
            let (number, value) = field?;
            see(number, value);
        }
        Ok(())
    }

    /// The integers of a packed list.
    pub fn varints(packed: &'a [u8]) -> impl Iterator<Item = u64> + 'a {
        let mut list = Self(packed);
        std::iter::from_fn(move || list.varint())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for (n, byte) in self.0.iter().enumerate().take(10) {
            // The tenth byte holds the topmost bit; what is beyond 64 bits is dropped, as every decoder does.
            value |= u64::from(byte & 0x7f) << (7 * n);
            if byte & 0x80 == 0 {
                self.0 = &self.0[n + 1..];
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(part)
    }

    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|n| (1..1 << 29).contains(n))?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(len)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            // Groups are older than proto3.
            _ => return None,
        };
        Some((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(Malformed))
    }
}

#[cfg(test)]
pub(crate) mod build {
    //! Messages for tests, and what readers say of them.

    use crate::dialect::{LlmEvent, Reader};
    use crate::framing::Frame;

    /// What a reader says of messages, a line for each.
    pub fn read(reader: &mut dyn Reader, messages: &[Message]) -> String {
        let mut text = String::new();
        for message in messages {
            let mut out = Vec::new();
            let kind = reader.frame(Frame { data: &message.0, ..Frame::default() }, &mut out);
            text.push_str(&format!("{kind:?} {}\n", out.iter().map(show).collect::<Vec<_>>().join(", ")));
        }
        text
    }

    fn show(event: &LlmEvent) -> String {
        let count = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
        match event {
            LlmEvent::Started { id, model } => format!("started {id:?} {model:?}"),
            LlmEvent::Delta { choice, .. } => format!("delta {choice}"),
            LlmEvent::Usage(u) => format!("usage {} {} {}", count(u.input), count(u.output), count(u.cache_read)),
            LlmEvent::Finished { choice, reason } => format!("finished {choice} {reason:?}"),
            LlmEvent::Failed { kind } => format!("failed {kind:?}"),
            other => format!("{other:?}"),
        }
    }

    /// A message under construction.
    #[derive(Clone, Default)]
    pub struct Message(pub Vec<u8>);

    impl Message {
        fn varint(&mut self, mut n: u64) {
            while n > 0x7f {
                self.0.push(n as u8 | 0x80);
                n >>= 7;
            }
            self.0.push(n as u8);
        }

        /// With an integer field.
        pub fn int(mut self, number: u32, value: u64) -> Self {
            self.varint(u64::from(number) << 3);
            self.varint(value);
            self
        }

        /// With a string, bytes or message field.
        pub fn bytes(mut self, number: u32, value: impl AsRef<[u8]>) -> Self {
            self.varint(u64::from(number) << 3 | 2);
            self.varint(value.as_ref().len() as u64);
            self.0.extend_from_slice(value.as_ref());
            self
        }

        /// With a `float` field.
        pub fn float(mut self, number: u32, value: f32) -> Self {
            self.varint(u64::from(number) << 3 | 5);
            self.0.extend(value.to_le_bytes());
            self
        }

        /// With a packed list.
        pub fn packed(self, number: u32, values: &[u64]) -> Self {
            let mut list = Self::default();
            values.iter().for_each(|v| list.varint(*v));
            self.bytes(number, list)
        }
    }

    impl AsRef<[u8]> for Message {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::build::Message;
    use super::*;

    #[test]
    fn every_wire_type() {
        let mut message = Message::default().int(1, 300).int(16, u64::MAX).bytes(2, "text").float(3, 0.5).packed(4, &[1, 300, 0]);
        message.0.extend([5 << 3 | 1]);
        message.0.extend(2.5f64.to_le_bytes());
        let fields: Vec<_> = Fields::of(&message.0).map(Result::unwrap).collect();
        assert_eq!(fields.iter().map(|f| f.0).collect::<Vec<_>>(), [1, 16, 2, 3, 4, 5]);
        assert_eq!((fields[0].1.integer(), fields[1].1.integer()), (Some(300), Some(u64::MAX)));
        assert_eq!((fields[2].1.text(), fields[2].1.integer()), (Some("text"), None));
        assert_eq!((fields[3].1.float(), fields[5].1.float()), (Some(0.5), Some(2.5)));
        assert_eq!((fields[4].1.integers(), fields[0].1.integers(), fields[3].1.integers()), (Some(3), Some(1), None));
        assert_eq!(Value::Bytes(&[0x80]).integers(), None);
        assert_eq!((Value::Fixed32(0.7f32.to_bits()).float(), Value::Fixed64(f64::NAN.to_bits()).float()), (Some(0.7), None));
    }

    #[test]
    fn what_is_cut_off_or_none_of_it() {
        let message = Message::default().int(1, 300).bytes(2, "text").float(3, 0.5);
        for cut in 0..message.0.len() {
            let whole = [0, 3, 9].contains(&cut);
            assert_eq!(Fields::of(&message.0[..cut]).all(|f| f.is_ok()), whole, "cut at {cut}");
        }
        // A group, an unknown wire type, field 0, a varint without end, a length beyond all bytes.
        for bad in [
            &[0x0b][..],
            &[0x0f],
            &[0x00, 0x00],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(Fields::of(bad).each(|_, _| {}), Err(Malformed), "{bad:?}");
            assert_eq!(Fields::of(bad).count(), 1);
        }
    }
}
