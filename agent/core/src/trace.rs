//! Identity of spans, and the W3C trace context that a request carries.

/// A W3C trace context (`traceparent`, <https://www.w3.org/TR/trace-context/>).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceParent {
    /// The trace.
    pub trace_id: u128,
    /// The caller's span.
    pub span_id: u64,
    /// The flags; bit 0: sampled.
    pub flags: u8,
}

impl TraceParent {
    /// Reads the header's value; `None` when it is not valid (all-zero ids are not).
    pub fn parse(value: &str) -> Option<Self> {
        let value = value.trim();
        let mut parts = value.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !hex(version, 2) || version == "ff" || !hex(trace, 32) || !hex(span, 16) || !hex(flags, 2) {
            return None;
        }
        if version == "00" && parts.next().is_some() {
            return None;
        }
        let found = Self {
            trace_id: u128::from_str_radix(trace, 16).ok()?,
            span_id: u64::from_str_radix(span, 16).ok()?,
            flags: u8::from_str_radix(flags, 16).ok()?,
        };
        (found.trace_id != 0 && found.span_id != 0).then_some(found)
    }
}

/// The identity of an inference's span. Deterministic: the same input and seed give the same ids.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Trace {
    /// That of the `traceparent`, else one of our own.
    pub trace_id: u128,
    /// Our span.
    pub span_id: u64,
    /// The caller's span, when a `traceparent` was seen.
    pub parent: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent() {
        let ok = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!((ok.trace_id >> 120, ok.span_id, ok.flags), (0x4b, 0x00f0_67aa_0ba9_02b7, 1));
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
        assert!(TraceParent::parse("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some());
    }
}
