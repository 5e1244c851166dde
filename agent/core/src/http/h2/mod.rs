//! HTTP/2 (RFC 9113), from the bytes of a connection to exchanges: frames of each direction, their header blocks, streams.

pub mod block;
mod fields;
pub mod frame;
mod half;
pub mod hpack;
pub mod huffman;
mod seek;
pub mod session;
pub mod wire;
