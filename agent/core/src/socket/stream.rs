//! What a conversation is told of the stream that carries it (RFC 8441).

use super::*;

impl Socket {
    /// The same on a stream of a connection that has others: its turns have ids of their own.
    pub fn on_stream(self, stream: u64) -> Self {
        Self { ids: TURN_IDS.wrapping_mul(stream.wrapping_add(1)), ..self }
    }

    /// The client has ended its half of the stream.
    pub fn asked_all(&mut self, at: Timestamp, desk: &mut Desk<'_>) {
        self.prove(desk);
        self.leave(Side::Request, Left { at, by: EndedBy::EndStream, code: None }, desk);
    }

    /// The stream is over.
    pub fn stream_over(&mut self, at: Timestamp, how: Over, by: EndedBy, desk: &mut Desk<'_>) {
        // That the transport is complete says nothing of a turn.
        let how = if how == Over::Complete { Over::ServerClosed } else { how };
        self.ended(at, how, by, desk);
        self.doubt(desk);
    }
}
