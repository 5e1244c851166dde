//! Durations: OpenSLO's shorthand as its Go SDK scans it, and our own (`800ms`, `2s`).

use crate::decimal::decimal;

/// OpenSLO's units, and seconds in each (a month is 30 days, a quarter 90, a year 365).
pub const UNITS: [(&str, u64); 7] =
    [("m", 60), ("h", 3600), ("d", 86_400), ("w", 604_800), ("M", 2_592_000), ("Q", 7_776_000), ("Y", 31_536_000)];

/// What `fmt.Sscanf(text, "%d%s")` takes: blanks, a sign, digits, blanks, a word; whatever follows is not looked at. So `30 d` and
/// `30d of rain` are thirty days, and `30days` is thirty of an unknown unit.
pub fn scan(text: &str) -> Option<(i64, &str)> {
    let blank = |c: char| c != '\n' && c.is_whitespace();
    let rest = text.trim_start_matches(blank);
    let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    let len = digits.bytes().take_while(u8::is_ascii_digit).count();
    let sign = rest.len() - digits.len();
    let value = rest.get(..sign + len)?.parse::<i64>().ok().filter(|_| len > 0)?;
    let word = digits.get(len..)?.trim_start_matches(blank);
    let word = &word[..word.find(char::is_whitespace).unwrap_or(word.len())];
    (!word.is_empty()).then_some((value, word))
}

/// The shorthand in seconds, when it means any.
pub fn shorthand_s(text: &str) -> Option<u64> {
    let (value, unit) = scan(text)?;
    let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
    u64::try_from(value).ok()?.checked_mul(*seconds)
}

/// Seconds in shorthand: the largest unit up to a week that divides them.
pub fn to_shorthand(seconds: u64) -> String {
    for (unit, size) in [("w", 604_800), ("d", 86_400), ("h", 3600)] {
        // 30d reads better than what weeks cannot express anyway; 1d better than 24h.
        if seconds >= size && seconds.is_multiple_of(size) && !(unit == "w" && seconds < 2 * size) {
            return format!("{}{unit}", seconds / size);
        }
    }
    format!("{}m", seconds / 60)
}

/// Our own durations in seconds: a number and `us`, `ms`, `s`, `m` or `min`, `h`, `d`.
pub fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_alphabetic())?;
    let scale: f64 = match &text[unit_at..] {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    let number = plain_number(text[..unit_at].trim_end())?;
    // Milliseconds as a quotient: 800ms is the double nearest to 0.8.
    Some(if scale < 1.0 { number / (1.0 / scale).round() } else { number * scale })
}

/// A decimal number without exponent, sign or underscore.
pub fn plain_number(text: &str) -> Option<f64> {
    let digits = text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().any(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Seconds for people: `800ms`, `2s`, `1m30s`, `2h`, `30d`.
pub fn human(seconds: f64) -> String {
    let rounded = |n: f64| decimal(n, 3);
    if seconds < 0.001 {
        return format!("{}us", rounded(seconds * 1e6));
    }
    if seconds < 1.0 {
        return format!("{}ms", rounded(seconds * 1e3));
    }
    if seconds < 60.0 {
        return format!("{}s", rounded(seconds));
    }
    let whole = seconds.round() as u64;
    let parts = [(whole / 86_400, "d"), (whole / 3600 % 24, "h"), (whole / 60 % 60, "m"), (whole % 60, "s")];
    let shown: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).take(2).map(|(n, unit)| format!("{n}{unit}")).collect();
    shown.concat()
}
