//! What happens to a connection as a whole, whatever it carries.

use super::*;

impl Stage {
    pub(super) fn buffered(&self) -> usize {
        match self {
            Self::Detecting(detecting) => detecting.buffered(),
            Self::Http(http) => http.buffered(),
            Self::Socket(socket) => socket.buffered(),
        }
    }

    /// The connection or one half of it ended. `both`: the other half had ended before.
    pub(super) fn close(&mut self, sink: &mut Sink<'_>, at: Timestamp, end: End, both: bool) {
        match self {
            Self::Detecting { .. } => {}
            Self::Http(http) => http.run(sink, at, |session, out| {
                // Of a server that was done before it was asked, the session knows nothing yet.
                let server = session.requests().flip();
                let first = if both && end == End::Finished(server.flip()) { End::Finished(server) } else { end };
                session.close(first, out);
            }),
            Self::Socket(socket) => sink.socket(socket, |socket, desk| socket.close(end, at, desk)),
        }
    }

    /// Bytes of one direction are missing.
    pub(super) fn gap(&mut self, sink: &mut Sink<'_>, dir: Direction, at: Timestamp, len: Option<u64>) {
        sink.lost = len;
        match self {
            Self::Http(http) => http.run(sink, at, |session, out| session.gap(dir, at, len, out)),
            Self::Socket(socket) => sink.socket(socket, |socket, desk| socket.gap(dir, at, len, desk)),
            Self::Detecting(detecting) => detecting.gap(sink, dir, at, len),
        }
    }
}
