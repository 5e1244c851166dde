//! Every way the wire can surprise us, named once and counted. An anomaly is never an error: the parser emits what it
//! understood and goes on (invariant 4).

/// A surprise of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Anomaly {
    /// A connection's bytes are not HTTP; it is muted.
    NotHttp,
    /// A connection carried only HTTP that is no LLM traffic; it is muted.
    NotLlm,
    /// A connection or a response was joined in its middle: what went before could not be seen.
    MissedStart,
    /// A header block exceeds its bound (64 KiB); a connection of HTTP/1.1 is muted.
    HeadTooLong,
    /// A request line, status line or header cannot be read.
    BadHead,
    /// A chunk size, or what follows a chunk, is malformed.
    BadChunk,
    /// What stands where a frame of HTTP/2 should is none, or its flags contradict its length.
    BadFrame,
    /// The target of a request to a model was not seen (HTTP/2), and what else was seen does not say which API it is: there is no
    /// record of it.
    UnknownApi,
    /// Header fields of HTTP/2 refer to others that were not seen. Counted once per connection and direction.
    UnknownFields,
    /// A response for which no request was seen.
    OrphanResponse,
    /// More requests are waiting for their responses than the bound (256 on HTTP/1.1, 131,072 streams of HTTP/2).
    PipelineTooDeep,
    /// The body has a content coding that is not supported.
    UnknownCoding,
    /// Compressed bytes cannot be inflated.
    BadCoding,
    /// Compressed bytes expand beyond all measure.
    DecompressionBomb,
    /// One event of a stream exceeds its bound (1 MiB); it is skipped.
    EventTooLong,
    /// A line of an event stream belongs to no field, or bytes of an array to no element.
    StrayLine,
    /// A checksum of an AWS event-stream message is wrong; the framer looks for the next message.
    BadChecksum,
    /// The head of a message (AWS event-stream, gRPC, a WebSocket frame) is impossible.
    BadMessage,
    /// A stream of gRPC carried several requests: as one exchange they cannot be measured, and there is no record of it.
    SeveralRequests,
    /// Behind a hole nothing tells where the next event begins; the rest of the body is skipped.
    FramingLost,
    /// An event or a body is not the JSON, or the Protobuf, that its API prescribes.
    BadJson,
    /// An event is valid JSON of no known form.
    UnknownEvent,
    /// A JSON body exceeds what is kept of it (64 KiB after its texts were cut).
    BodyTooLong,
    /// A response to a known API is neither a stream nor JSON.
    UnknownBody,
    /// Events came after the API's terminator.
    AfterTerminator,
    /// The bound on buffered bytes was reached; the connection was let go.
    BufferBound,
    /// The connection changed to a protocol that is not measured (HTTP/2, WebSocket, CONNECT); it is muted.
    Upgraded,
    /// The secrets of a TLS connection are in no key log; it is muted.
    TlsNoKey,
    /// A TLS connection was joined in its middle, or its hellos were lost: it cannot be decrypted and is muted.
    TlsMissedStart,
    /// A TLS connection has a version or cipher suite that is not decrypted (before 1.2, CBC, CCM); it is muted.
    TlsUnsupported,
    /// What should be a TLS record is none, or no key opens it.
    TlsBadRecord,
    /// No TLS record of a direction was found any more after a loss; the direction is given up.
    TlsOutOfStep,
    /// Early data of a TLS 1.3 connection could not be decrypted.
    TlsEarlyData,
    /// A key log within a capture has lines that cannot be read.
    TlsBadKeyLog,
}

impl Anomaly {
    /// Every anomaly, in the order of its number.
    pub const ALL: [Self; 34] = [
        Self::NotHttp,
        Self::NotLlm,
        Self::MissedStart,
        Self::HeadTooLong,
        Self::BadHead,
        Self::BadChunk,
        Self::BadFrame,
        Self::UnknownApi,
        Self::UnknownFields,
        Self::OrphanResponse,
        Self::PipelineTooDeep,
        Self::UnknownCoding,
        Self::BadCoding,
        Self::DecompressionBomb,
        Self::EventTooLong,
        Self::StrayLine,
        Self::BadChecksum,
        Self::BadMessage,
        Self::SeveralRequests,
        Self::FramingLost,
        Self::BadJson,
        Self::UnknownEvent,
        Self::BodyTooLong,
        Self::UnknownBody,
        Self::AfterTerminator,
        Self::BufferBound,
        Self::Upgraded,
        Self::TlsNoKey,
        Self::TlsMissedStart,
        Self::TlsUnsupported,
        Self::TlsBadRecord,
        Self::TlsOutOfStep,
        Self::TlsEarlyData,
        Self::TlsBadKeyLog,
    ];

    /// The name in metrics and statistics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotHttp => "not_http",
            Self::NotLlm => "not_llm",
            Self::MissedStart => "missed_start",
            Self::HeadTooLong => "head_too_long",
            Self::BadHead => "bad_head",
            Self::BadChunk => "bad_chunk",
            Self::BadFrame => "bad_frame",
            Self::UnknownApi => "unknown_api",
            Self::UnknownFields => "unknown_fields",
            Self::OrphanResponse => "orphan_response",
            Self::PipelineTooDeep => "pipeline_too_deep",
            Self::UnknownCoding => "unknown_coding",
            Self::BadCoding => "bad_coding",
            Self::DecompressionBomb => "decompression_bomb",
            Self::EventTooLong => "event_too_long",
            Self::StrayLine => "stray_line",
            Self::BadChecksum => "bad_checksum",
            Self::BadMessage => "bad_message",
            Self::SeveralRequests => "several_requests",
            Self::FramingLost => "framing_lost",
            Self::BadJson => "bad_json",
            Self::UnknownEvent => "unknown_event",
            Self::BodyTooLong => "body_too_long",
            Self::UnknownBody => "unknown_body",
            Self::AfterTerminator => "after_terminator",
            Self::BufferBound => "buffer_bound",
            Self::Upgraded => "upgraded",
            Self::TlsNoKey => "tls_no_key",
            Self::TlsMissedStart => "tls_missed_start",
            Self::TlsUnsupported => "tls_unsupported",
            Self::TlsBadRecord => "tls_bad_record",
            Self::TlsOutOfStep => "tls_out_of_step",
            Self::TlsEarlyData => "tls_early_data",
            Self::TlsBadKeyLog => "tls_bad_key_log",
        }
    }
}

/// How often each anomaly was met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anomalies([u64; Anomaly::ALL.len()]);

// Not derived: the standard library has it for arrays of up to 32.
impl Default for Anomalies {
    fn default() -> Self {
        Self([0; Anomaly::ALL.len()])
    }
}

impl Anomalies {
    /// Counts one.
    pub fn count(&mut self, what: Anomaly) {
        self.0[what as usize] += 1;
    }

    /// How often `what` was met.
    pub fn of(&self, what: Anomaly) -> u64 {
        self.0[what as usize]
    }

    /// Those that were met, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Anomaly, u64)> + '_ {
        Anomaly::ALL.into_iter().map(|a| (a, self.of(a))).filter(|(_, n)| *n > 0)
    }

    /// Adds the counts of another table.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_anomaly_is_in_its_place_and_has_a_name_of_its_own() {
        for (i, a) in Anomaly::ALL.into_iter().enumerate() {
            assert_eq!(a as usize, i);
            assert_eq!(Anomaly::ALL.iter().filter(|b| b.as_str() == a.as_str()).count(), 1, "{}", a.as_str());
        }
    }
}
