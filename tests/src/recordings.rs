//! Recordings of real services.
