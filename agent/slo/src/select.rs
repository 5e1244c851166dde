//! Which requests an indicator looks at, and the values that requests are grouped by.

use std::fmt::Write as _;

use crate::model::{Dimension, Selector};
use crate::request::{Address, Request};

/// The value of a dimension that nobody knows, where requests are grouped by it. A selector sees an empty text instead, so that `*`
/// and `!x` match what is not known and `x` does not.
pub const UNKNOWN: &str = "unknown";

/// Bounds of [`Dimension::InputTokens`]: inclusive, with the name of the bucket up to it.
const INPUT_TOKENS: [(u64, &str); 6] =
    [(400, "0-400"), (1_000, "401-1000"), (4_000, "1001-4000"), (16_000, "4001-16000"), (64_000, "16001-64000"), (u64::MAX, "64001+")];

/// The bucket of a number of input tokens.
pub fn input_tokens(tokens: Option<u64>) -> &'static str {
    let bucket = |n| INPUT_TOKENS.iter().find(|(bound, _)| n <= *bound).map(|(_, name)| *name);
    tokens.and_then(bucket).unwrap_or(UNKNOWN)
}

/// Room for the text of an address on the stack.
pub struct Room {
    text: [u8; 48],
    len: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { text: [0; 48], len: 0 }
    }
}

impl std::fmt::Write for Room {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let to = self.text.get_mut(self.len..self.len + s.len()).ok_or(std::fmt::Error)?;
        to.copy_from_slice(s.as_bytes());
        self.len += s.len();
        Ok(())
    }
}

/// The value of `dimension`; `None` when it is not known.
pub fn value<'v>(request: &Request<'v>, dimension: Dimension, room: &'v mut Room) -> Option<&'v str> {
    match dimension {
        Dimension::Provider => request.provider,
        Dimension::Model => request.model,
        Dimension::Operation => request.operation,
        Dimension::Namespace => request.namespace,
        Dimension::Workload => request.workload,
        Dimension::Tenant => request.tenant,
        Dimension::Server => match (request.host, request.address) {
            (Some(host), _) => Some(host),
            (None, Some(Address::Text(text))) => Some(text),
            (None, Some(Address::Socket(address))) => {
                room.len = 0;
                write!(room, "{}", address.ip()).ok()?;
                std::str::from_utf8(room.text.get(..room.len)?).ok()
            }
            (None, None) => None,
        },
        Dimension::Vantage => Some(request.vantage),
        Dimension::Stream => request.stream.map(|s| if s { "true" } else { "false" }),
        Dimension::InputTokens => Some(input_tokens(request.input_tokens)),
    }
}

/// Whether all conditions hold.
pub fn selects(selector: &Selector, request: &Request<'_>) -> bool {
    selector.stream.is_none_or(|wanted| request.stream == Some(wanted))
        && selector.input_tokens_min.is_none_or(|min| request.input_tokens.is_some_and(|n| n >= min))
        && selector.input_tokens_max.is_none_or(|max| request.input_tokens.is_some_and(|n| n <= max))
        && selector.matches.iter().all(|(dimension, patterns)| {
            let mut room = Room::default();
            let value = value(request, *dimension, &mut room).unwrap_or_default();
            patterns.iter().any(|p| p.matches(value))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pattern;

    #[test]
    fn unknown_values_match_only_what_excludes_nothing_of_them() {
        let of = |pattern| Selector { matches: vec![(Dimension::Model, vec![pattern])], ..Selector::default() };
        let (none, some) = (Request::plain(), Request { model: Some("gpt-4o"), ..Request::plain() });
        let exact = || Pattern::Exact("gpt-4o".into());
        assert!(selects(&of(exact()), &some) && !selects(&of(exact()), &none));
        assert!(!selects(&of(Pattern::Not(Box::new(exact()))), &some));
        assert!(selects(&of(Pattern::Not(Box::new(exact()))), &none));
    }

    #[test]
    fn a_server_without_a_host_is_its_address() {
        let request = Request { address: Some(Address::Socket("[2001:db8::1]:443".parse().unwrap())), ..Request::plain() };
        assert_eq!(value(&request, Dimension::Server, &mut Room::default()), Some("2001:db8::1"));
        let request = Request { host: Some("api.openai.com"), ..request };
        assert_eq!(value(&request, Dimension::Server, &mut Room::default()), Some("api.openai.com"));
    }

    #[test]
    fn prompt_lengths_fall_into_buckets() {
        assert_eq!(
            [Some(0), Some(400), Some(401), Some(64_001), None].map(input_tokens),
            ["0-400", "0-400", "401-1000", "64001+", "unknown"]
        );
        let short = Selector { input_tokens_max: Some(400), ..Selector::default() };
        assert!(!selects(&short, &Request::plain()), "a prompt of unknown length is not a short one");
        assert!(selects(&short, &Request { input_tokens: Some(400), ..Request::plain() }));
    }
}
