//! Captured packets, live and from files.
