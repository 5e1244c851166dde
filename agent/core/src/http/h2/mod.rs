//! HTTP/2 (RFC 9113).

pub mod frame;
pub mod hpack;
pub mod huffman;
mod seek;
