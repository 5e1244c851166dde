//! HTTP/2 (RFC 9113).

pub mod hpack;
pub mod huffman;
