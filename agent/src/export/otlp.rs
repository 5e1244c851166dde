//! OTLP metrics and spans.
