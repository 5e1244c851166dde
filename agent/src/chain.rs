//! Errors in one line.

use std::error::Error;

/// The most characters of it: servers put whole pages into their errors.
const MOST: usize = 500;

/// An error with its causes, "transport error" alone helps nobody; what a cause says again is said once.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    let end = text.char_indices().map(|(at, _)| at).nth(MOST).unwrap_or(text.len());
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow() {
        let error = anyhow::anyhow!("no such file").context("ca.pem").context("TLS");
        assert_eq!(chain(error.as_ref()), "TLS: ca.pem: no such file");
    }

    #[test]
    fn what_is_said_again_is_said_once_and_in_bounds() {
        let error = anyhow::anyhow!("no route").context("ca.pem: no route");
        assert_eq!(chain(error.as_ref()), "ca.pem: no route");
        assert_eq!(chain(anyhow::anyhow!("é".repeat(2 * MOST)).as_ref()).chars().count(), MOST);
    }
}
