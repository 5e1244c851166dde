//! eBPF on TLS libraries.
