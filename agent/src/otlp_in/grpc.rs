//! What of gRPC a receiver of one unary call needs: a message in its frame, and a status in trailers. A server made of `tonic` would decode the
//! message and lose its bytes, which are to go on untouched.

use std::io::Read as _;

use flate2::read::GzDecoder;

/// Bytes of a request's body that are taken; what receivers of gRPC take by default.
pub const MAX_BODY: usize = 4 << 20;

/// Bytes that it may grow to when it is inflated.
pub const MAX_INFLATED: usize = 16 << 20;

/// The call that is taken.
pub const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Statuses (<https://grpc.io/docs/guides/status-codes/>).
pub mod status {
    /// Well.
    pub const OK: &str = "0";
    /// The message is none.
    pub const INVALID_ARGUMENT: &str = "3";
    /// Too large, or too many.
    pub const RESOURCE_EXHAUSTED: &str = "8";
    /// No such call.
    pub const UNIMPLEMENTED: &str = "12";
    /// Come again.
    pub const UNAVAILABLE: &str = "14";
}

/// Why there is no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// Not a frame of one message, or not in a coding that is known.
    Frame,
    /// Larger than it may be.
    TooLarge,
}

/// The one message of a body: a byte that says whether it is compressed, four of its length, itself.
///
/// # Errors
/// When it is none.
pub fn message(body: &[u8], coding: Option<&str>) -> Result<Vec<u8>, Bad> {
    let (head, rest) = body.split_first_chunk::<5>().ok_or(Bad::Frame)?;
    let [compressed, len @ ..] = *head;
    if usize::try_from(u32::from_be_bytes(len)) != Ok(rest.len()) {
        return Err(Bad::Frame);
    }
    match (compressed, coding) {
        (0, _) => Ok(rest.to_vec()),
        (1, Some("gzip")) => inflate(rest),
        _ => Err(Bad::Frame),
    }
}

/// What gzip made small.
///
/// # Errors
/// When it is no gzip, or too large.
pub fn inflate(bytes: &[u8]) -> Result<Vec<u8>, Bad> {
    let mut out = Vec::new();
    let read = GzDecoder::new(bytes).take(MAX_INFLATED as u64 + 1).read_to_end(&mut out);
    match read {
        Ok(n) if n > MAX_INFLATED => Err(Bad::TooLarge),
        Ok(_) => Ok(out),
        Err(_) => Err(Bad::Frame),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use proptest::prelude::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    fn frame(compressed: u8, message: &[u8]) -> Vec<u8> {
        [&[compressed][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    #[test]
    fn a_message_comes_out_of_its_frame() {
        assert_eq!(message(&frame(0, b"abc"), None), Ok(b"abc".to_vec()));
        assert_eq!(message(&frame(0, b""), Some("gzip")), Ok(Vec::new()));
        assert_eq!(message(&frame(1, &gzip(b"abc")), Some("gzip")), Ok(b"abc".to_vec()));
        for bad in
            [&b""[..], b"\0\0\0\0", &frame(0, b"abc")[..7], &[frame(0, b"a"), frame(0, b"b")].concat(), &frame(2, b"a"), &frame(1, b"a")]
        {
            assert_eq!(message(bad, Some("gzip")), Err(Bad::Frame), "{bad:?}");
        }
        assert_eq!(message(&frame(1, &gzip(b"abc")), Some("zstd")), Err(Bad::Frame));
        assert_eq!(message(&frame(1, &gzip(&vec![0; MAX_INFLATED + 1])), Some("gzip")), Err(Bad::TooLarge));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let read = message(&body, Some("gzip"));
            prop_assert!(read.is_err() || body.len() >= 5);
        }
    }
}
