//! Content codings by their names (RFC 9110 §8.4.1) and by how a body begins.

/// A content coding that changes how a body is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// `gzip`, `x-gzip`.
    Gzip,
    /// `deflate`: zlib, or raw as some senders do.
    Deflate,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
    /// One that is not supported, by its name where it is a registered one.
    Unsupported(&'static str),
}

impl Coding {
    /// Codings on top of each other: nobody does that to an answer.
    pub(super) const SEVERAL: Self = Self::Unsupported("several");

    /// The coding of a body of which no field tells it, by its first byte. No text of ours begins so; brotli's cannot be told.
    pub const fn by_first(byte: u8) -> Option<Self> {
        match byte {
            0x1f => Some(Self::Gzip),
            0x78 => Some(Self::Deflate),
            0x28 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The coding's registered name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
            Self::Unsupported(name) => name,
        }
    }
}

/// Reads `Content-Encoding`.
pub(super) fn coding(value: &[u8]) -> Option<Coding> {
    let mut found = None;
    for name in value.split(|b| *b == b',').map(|n| n.trim_ascii().to_ascii_lowercase()) {
        let this = match name.as_slice() {
            b"" | b"identity" => continue,
            b"gzip" | b"x-gzip" => Coding::Gzip,
            b"deflate" => Coding::Deflate,
            b"br" => Coding::Brotli,
            b"zstd" => Coding::Zstd,
            _ => Coding::Unsupported("other"),
        };
        found = Some(if found.is_some() { Coding::SEVERAL } else { this });
    }
    found
}
