//! What a record says of itself in other words: who was seen, why it failed.

use super::{Inference, Outcome, Reason, Vantage};
use crate::workload::Workload;

impl Inference {
    /// Whether the answer is known to be a stream.
    pub fn is_stream(&self) -> bool {
        self.stream == Some(true)
    }

    /// Who serves it, where a name is needed.
    pub fn provider_or_other(&self) -> &'static str {
        self.provider.unwrap_or(crate::semconv::PROVIDER_OTHER)
    }

    /// Who was observed: the end at which it was seen. Seen from in between, that is the server, where it is known, else the client.
    pub fn observed(&self) -> Option<&Workload> {
        match self.vantage {
            Vantage::Client => self.client_workload.as_deref(),
            Vantage::Server => self.server_workload.as_deref(),
            Vantage::Unknown => self.server_workload.as_deref().or(self.client_workload.as_deref()),
        }
    }

    /// Who was at the other end of [`Inference::observed`].
    pub fn peer(&self) -> Option<&Workload> {
        match self.vantage {
            Vantage::Client => self.server_workload.as_deref(),
            Vantage::Server => self.client_workload.as_deref(),
            Vantage::Unknown => self.server_workload.as_ref().and(self.client_workload.as_deref()),
        }
    }

    /// `error.type`: the provider's own code, else how it ended; a client that left is named, since it was no success either.
    pub fn error_type(&self) -> Option<&str> {
        match (&self.error, self.outcome) {
            (Some(e), _) => Some(e.kind.as_str()),
            (None, Outcome::Cancelled) => Some(Reason::ClientCancelled.as_str()),
            (None, Outcome::Failed) => Some(crate::semconv::OTHER),
            (None, _) => None,
        }
    }
}
