//! Protobuf messages as text, for flows: fields by number, one behind the other.
//!
//! ```text
//! 1:"text" 2:7 3:{1:0.5 2:[1 300]} 6:b"\x01\x00"
//! ```
//!
//! A string, an integer, a message, a `float`, a packed list, bytes.

/// The message that `text` writes.
///
/// # Errors
/// Where it cannot be read.
pub fn message(text: &str) -> Result<Vec<u8>, String> {
    let mut rest = text.trim();
    let out = fields(&mut rest)?;
    if rest.is_empty() { Ok(out) } else { Err(format!("cannot read {rest:?}")) }
}

fn fields(rest: &mut &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    loop {
        *rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with('}') {
            return Ok(out);
        }
        let (number, value) = rest.split_once(':').ok_or_else(|| format!("no field begins at {rest:?}"))?;
        let number: u64 = number.parse().map_err(|_| format!("{number:?} is no field number"))?;
        *rest = value;
        let mut bytes = |value: &[u8]| {
            varint(&mut out, number << 3 | 2);
            varint(&mut out, value.len() as u64);
            out.extend_from_slice(value);
        };
        match value.as_bytes().first() {
            Some(b'"') => bytes(&quoted(rest)?),
            Some(b'b') => {
                *rest = &value[1..];
                bytes(&quoted(rest)?);
            }
            Some(b'{') => {
                *rest = &value[1..];
                let inner = fields(rest)?;
                *rest = rest.strip_prefix('}').ok_or("a message ends with }")?;
                bytes(&inner);
            }
            Some(b'[') => {
                let (list, after) = value[1..].split_once(']').ok_or("a list ends with ]")?;
                *rest = after;
                let mut packed = Vec::new();
                for word in list.split_whitespace() {
                    varint(&mut packed, word.parse().map_err(|_| format!("{word:?} is no integer"))?);
                }
                bytes(&packed);
            }
            _ => {
                let end = value.find([' ', '}']).unwrap_or(value.len());
                let (word, after) = value.split_at(end);
                *rest = after;
                if word.contains('.') {
                    varint(&mut out, number << 3 | 5);
                    out.extend(word.parse::<f32>().map_err(|_| format!("{word:?} is no float"))?.to_le_bytes());
                } else {
                    varint(&mut out, number << 3);
                    varint(&mut out, word.parse().map_err(|_| format!("{word:?} is no integer"))?);
                }
            }
        }
    }
}

/// A quoted text, with the escapes of flows.
fn quoted(rest: &mut &str) -> Result<Vec<u8>, String> {
    let text = rest.strip_prefix('"').ok_or("a text begins with a quote")?;
    let (text, after) = text.split_once('"').ok_or("a text ends with a quote")?;
    *rest = after;
    crate::flow::unescape(text)
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n > 0x7f {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

#[cfg(test)]
mod tests {
    use super::message;

    #[test]
    fn every_kind_of_field() {
        assert_eq!(
            message(r#"1:"ab" 2:300 3:{1:1 2:{}} 4:[1 300] 5:0.5 6:b"\x00""#).unwrap(),
            [0x0a, 2, b'a', b'b', 0x10, 0xac, 2, 0x1a, 4, 8, 1, 0x12, 0, 0x22, 3, 1, 0xac, 2, 0x2d, 0, 0, 0, 0x3f, 0x32, 1, 0]
        );
        assert_eq!(message("").unwrap(), [0u8; 0]);
        for bad in ["1", "x:1", "1:{", "1:\"a", "1:[1", "1:y", "1:1}"] {
            assert!(message(bad).is_err(), "{bad}");
        }
    }
}
