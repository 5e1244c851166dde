//! TLS connections of a capture, decrypted with logged secrets: ciphertext events in, plaintext events out.
//!
//! ```text
//! StreamEvent ─ Decrypt { record::Reader ─ seal::Seal ─ handshake::Messages } ─ StreamEvent
//! ```
//!
//! Whoever owns an end of a connection can have its secrets written to a file (`SSLKEYLOGFILE`); with them a capture taken by `tcpdump`
//! becomes readable. [`keylog`] reads that file, [`decrypt`] is the stage between the assembler and the pipeline. TLS 1.3 and the AEAD
//! suites of TLS 1.2 are read ([`keys::Suite`]); anything else is counted and muted.
//!
//! What the stage promises: a piece of plaintext has the instant of the bytes that completed its record. A record that was not
//! captured whole is lost, and said so by a gap at its place; the records after it are found again by their headers, and the sequence
//! number of the first of them by trying: an AEAD tag fits one only. Certificates and handshakes are not verified: the stage
//! watches, it does not trust.
//!
//! The primitives are `ring`'s; the record layer is ours. Secrets are in no output, no log and no `Debug` text.

#[cfg(any(test, feature = "testing"))]
pub mod build;
mod conn;
pub mod decrypt;
mod half;
pub mod handshake;
pub mod keylog;
pub mod keys;
pub mod record;
pub mod seal;
mod shared;

pub use decrypt::{Counters, Decrypt};
pub use keylog::{BadLine, KeyLog};
