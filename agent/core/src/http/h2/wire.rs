//! A frame's header, and what its fields may be (RFC 9113 §4.1, §6).

/// The connection preface of a client (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's header.
pub const HEADER: usize = 9;

/// Longest frame of a type that is not known: the longest that any peer must take (RFC 9113 §4.2).
const LONGEST_UNKNOWN: u32 = 1 << 14;

/// Frame types (RFC 9113 §6).
pub(super) mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub(super) mod flag {
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 0x20;
}

/// A frame's header (RFC 9113 §4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub length: u32,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl Header {
    pub fn read(bytes: [u8; HEADER]) -> Self {
        let [a, b, c, kind, flags, d, e, f, g] = bytes;
        Self { length: u32::from_be_bytes([0, a, b, c]), kind, flags, stream: u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff }
    }

    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether a peer may send it at all (RFC 9113 §6: everything else is a connection error).
    pub fn is_valid(self) -> bool {
        match self.kind {
            kind::DATA | kind::HEADERS | kind::CONTINUATION => self.stream != 0,
            kind::PUSH_PROMISE => self.stream != 0 && self.length >= 4,
            kind::RST_STREAM => self.stream != 0 && self.length == 4,
            kind::SETTINGS => self.stream == 0 && self.length.is_multiple_of(6),
            kind::PING => self.stream == 0 && self.length == 8,
            kind::GOAWAY => self.stream == 0 && self.length >= 8,
            kind::WINDOW_UPDATE => self.length == 4,
            // An extension may say what it likes, but none says so much: rather it is no frame at all.
            _ => self.length <= LONGEST_UNKNOWN,
        }
    }
}
