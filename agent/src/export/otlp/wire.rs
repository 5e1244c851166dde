//! Attributes of OTLP, written as Protobuf. Lengths are counted before anything is written, so a message is written once, in one piece of memory.

pub use crate::export::wire::{bytes, field_len, fixed32, fixed64, head, uint, varint, varint_len};

/// A value of an attribute (`AnyValue`).
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// `string_value`.
    Text(&'a str),
    /// `bool_value`.
    Bool(bool),
    /// `int_value`.
    Int(i64),
    /// `double_value`.
    Double(f64),
    /// `array_value` of strings.
    Texts(&'a [&'a str]),
}

impl Value<'_> {
    /// Bytes of the `AnyValue`, texts cut to `longest` letters.
    fn len(&self, longest: usize) -> usize {
        match self {
            Self::Text(text) => field_len(1, cut(text, longest).len()),
            Self::Bool(_) => 2,
            Self::Int(n) => 1 + varint_len(*n as u64),
            Self::Double(_) => 9,
            Self::Texts(texts) => field_len(5, array_len(texts, longest)),
        }
    }

    fn write(&self, out: &mut Vec<u8>, longest: usize) {
        match self {
            Self::Text(text) => bytes(out, 1, cut(text, longest).as_bytes()),
            Self::Bool(is) => uint(out, 2, u64::from(*is)),
            Self::Int(n) => uint(out, 3, *n as u64),
            Self::Double(x) => fixed64(out, 4, x.to_bits()),
            Self::Texts(texts) => {
                head(out, 5, array_len(texts, longest));
                for text in *texts {
                    let text = cut(text, longest);
                    head(out, 1, field_len(1, text.len()));
                    bytes(out, 1, text.as_bytes());
                }
            }
        }
    }
}

fn array_len(texts: &[&str], longest: usize) -> usize {
    texts.iter().map(|t| field_len(1, field_len(1, cut(t, longest).len()))).sum()
}

/// The first `longest` letters.
fn cut(text: &str, longest: usize) -> &str {
    if text.len() <= longest {
        return text;
    }
    let end = text.char_indices().nth(longest).map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or(text)
}

/// A `KeyValue` as field `field`; texts are cut to `longest` letters.
pub fn attribute(out: &mut Vec<u8>, field: u32, key: &str, value: &Value<'_>, longest: usize) {
    let value_len = value.len(longest);
    head(out, field, field_len(1, key.len()) + field_len(2, value_len));
    bytes(out, 1, key.as_bytes());
    head(out, 2, value_len);
    value.write(out, longest);
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
    use prost::Message as _;

    use super::*;

    fn read(value: &Value<'_>, longest: usize) -> any_value::Value {
        #[derive(Clone, PartialEq, prost::Message)]
        struct Outer {
            #[prost(message, optional, tag = "300")]
            inner: Option<KeyValue>,
        }
        let mut out = Vec::new();
        attribute(&mut out, 300, "a.key", value, longest);
        let inner = Outer::decode(out.as_slice()).unwrap().inner.unwrap();
        assert_eq!(inner.key, "a.key");
        inner.value.unwrap().value.unwrap()
    }

    #[test]
    fn every_value_is_read_as_it_was_written() {
        use any_value::Value as V;
        assert_eq!(read(&Value::Text(&"x".repeat(300)), usize::MAX), V::StringValue("x".repeat(300)));
        assert_eq!(read(&Value::Bool(true), 0), V::BoolValue(true));
        for n in [0, 1, 127, 128, i64::MAX, -1] {
            assert_eq!(read(&Value::Int(n), 0), V::IntValue(n));
        }
        assert_eq!(read(&Value::Double(0.25), 0), V::DoubleValue(0.25));
        let V::ArrayValue(array) = read(&Value::Texts(&["stop", "length"]), 3) else { panic!() };
        let texts: Vec<_> = array.values.into_iter().map(|AnyValue { value, .. }| value.unwrap()).collect();
        assert_eq!(texts, [V::StringValue("sto".into()), V::StringValue("len".into())]);
    }

    #[test]
    fn letters_are_counted_and_not_bytes() {
        assert_eq!((cut("äöü", 2), cut("äöü", 3), cut("abc", 0), cut("äöü", 5)), ("äö", "äöü", "", "äöü"));
    }
}
