//! What a scalar means: the rules of `go.yaml.in/yaml/v2` (resolve.go), YAML 1.1 with Go's number syntax.

use super::Value;

/// The meaning of a scalar without a tag, or with one of YAML's own; an error names what does not fit.
pub fn resolve(tag: Option<&str>, text: &str) -> Result<Value, String> {
    let value = match tag {
        Some("str" | "binary") => return Ok(Value::Text(text.into())),
        _ => plain(text),
    };
    match (tag, value) {
        (None, value) => Ok(value),
        (Some("float"), Value::Int(n)) => Ok(Value::Float(n as f64)),
        (Some("bool"), value @ Value::Bool(_))
        | (Some("int"), value @ Value::Int(_))
        | (Some("float"), value @ Value::Float(_))
        | (Some("null"), value @ Value::Null) => Ok(value),
        // Decoded into anything, a timestamp stays the text that it was.
        (Some("timestamp"), Value::Text(text)) if is_date(&text) => Ok(Value::Text(text)),
        (Some(tag @ ("bool" | "int" | "float" | "null" | "timestamp")), _) => Err(format!("`{text}` is no !!{tag}")),
        (Some(_), _) => Ok(Value::Text(text.into())),
    }
}

fn is_date(text: &str) -> bool {
    let mut parts = text.splitn(2, '-');
    parts.next().is_some_and(|y| y.len() == 4 && y.bytes().all(|b| b.is_ascii_digit())) && parts.next().is_some()
}

fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => return Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Value::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let number = match text.as_bytes().first() {
        Some(b'.') => float(text).map(Value::Float),
        Some(b'0'..=b'9' | b'+' | b'-') => {
            let plain: String = text.chars().filter(|c| *c != '_').collect();
            integer(&plain).map(Value::Int).or_else(|| float(&plain).map(Value::Float))
        }
        _ => None,
    };
    number.unwrap_or_else(|| Value::Text(text.into()))
}

/// Go's `ParseInt` and `ParseUint` with base 0, and v2's own binary numbers (whose sign may stand behind the prefix).
fn integer(text: &str) -> Option<i128> {
    let (negative, signed, digits) = match text.as_bytes().first()? {
        b'-' => (true, true, &text[1..]),
        b'+' => (false, true, &text[1..]),
        _ => (false, false, text),
    };
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let (radix, digits) = match lower.as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.bytes().all(|b| char::from(b).is_digit(radix)) {
        return None;
    }
    let n = i128::from_str_radix(digits, radix).ok()?;
    let n = if negative { -n } else { n };
    let fits = i64::try_from(n).is_ok() || (!signed && u64::try_from(n).is_ok());
    fits.then_some(n)
}

/// `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`, and in range.
fn float(text: &str) -> Option<f64> {
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let mantissa = match mantissa.split_once('.') {
        Some(("", after)) => !after.is_empty() && digits(after),
        Some((before, after)) => digits(before) && digits(after),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let exponent = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['-', '+']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    if !mantissa || !exponent {
        return None;
    }
    text.parse::<f64>().ok().filter(|n| n.is_finite())
}

/// A number as a key: what Go's encoder makes of it.
pub fn key_of(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        Value::Bool(b) => Some(b.to_string()),
        // A key beyond int64 is a uint64 to Go, which refuses it.
        Value::Int(n) => i64::try_from(*n).ok().map(|n| n.to_string()),
        Value::Float(n) => Some(n.to_string()),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}
