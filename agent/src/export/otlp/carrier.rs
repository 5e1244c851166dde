//! Who takes finished OTLP requests away. What makes them (metrics, spans) knows no transport, no queue and no disk; what delivers
//! them knows no metric and no span.

/// What is exported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Signal {
    /// Metrics.
    Metrics,
    /// Spans.
    Traces,
}

impl Signal {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Metrics, Self::Traces];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Traces => "traces",
        }
    }

    /// `OTEL_METRICS_EXPORTER` or `OTEL_TRACES_EXPORTER`.
    pub const fn exporter_variable(self) -> &'static str {
        match self {
            Self::Metrics => "OTEL_METRICS_EXPORTER",
            Self::Traces => "OTEL_TRACES_EXPORTER",
        }
    }

    /// The signal's own variable, e.g. `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`.
    pub fn variable(self, what: &str) -> String {
        format!("OTEL_EXPORTER_OTLP_{}_{what}", self.name().to_uppercase())
    }

    /// The path of OTLP/HTTP below a base address.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Metrics => "/v1/metrics",
            Self::Traces => "/v1/traces",
        }
    }
}

/// Takes encoded requests and sees to it that they arrive. It never blocks: what it cannot hold is dropped, the oldest first, and counted.
pub trait Carrier: Send {
    /// Takes one encoded `ExportMetricsServiceRequest` or `ExportTraceServiceRequest` with so many data points or spans.
    ///
    /// Receivers of gRPC refuse more than 4 MiB in one message by default, so whoever makes requests cuts them below [`LARGEST`].
    fn carry(&mut self, signal: Signal, request: Vec<u8>, items: u32);

    /// Says that what is carried from here on is a new reading of all *cumulative* series, which makes earlier readings that still wait
    /// expendable: in an outage one reading per minute is kept, not one per interval. To be called before each reading, however many
    /// requests it is cut into; never for delta temporality, where every request counts. Without a call everything is kept.
    fn reading(&mut self, signal: Signal) {
        let _ = signal;
    }
}

/// Bytes of a request that should not be exceeded: half of what receivers of gRPC take by default.
pub const LARGEST: usize = 2 << 20;
