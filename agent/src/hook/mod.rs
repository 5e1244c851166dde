//! What inference servers tell of their own requests (`agent/hook/README.md`): events come by the tap symbol and by the Unix socket, and
//! go to every [`HookSink`].

use tokengauge_core::hook::event::{Event, Source};

/// Takes events. It is called from the threads that read rings and sockets: it must be quick and must not wait for anything slow.
pub trait HookSink: Send + Sync {
    /// Events of one source or of several, each source's in their order.
    fn take(&self, events: &[Event]);

    /// A source is gone: its process ended, its connection was closed. Nothing more comes of it; what is open there never ends.
    fn gone(&self, source: Source);
}
