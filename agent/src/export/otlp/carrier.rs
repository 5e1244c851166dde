//! The seam between what makes OTLP requests and what brings them to a receiver.

use super::transport::Signal;

/// Takes encoded requests and is responsible for them from then on: compression, transport, retries, waiting on disk, counting drops.
pub trait Carrier: Send {
    /// Takes one encoded `Export…ServiceRequest` of `items` data points or spans. Never blocks and never fails: what cannot be kept is
    /// dropped and counted behind this seam.
    fn carry(&mut self, signal: Signal, request: Vec<u8>, items: u32);
}
