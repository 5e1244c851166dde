//! Numbers as text.

/// A number without what binary fractions add to it, to at most so many decimals (at least one): 1 − 0.999 is `0.001`.
pub fn decimal(number: f64, places: usize) -> String {
    let text = format!("{number:.places$}", places = places.max(1));
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".into(),
        text => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_zeros_go() {
        let of = [(1.0 - 0.999, 12), (100.0, 3), (0.0, 6), (-0.000_01, 3), (-1.5, 3), (14.4, 0)].map(|(n, p)| decimal(n, p));
        assert_eq!(of, ["0.001", "100", "0", "0", "-1.5", "14.4"]);
    }
}
