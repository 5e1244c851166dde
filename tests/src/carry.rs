//! Flows carried as TCP packets.
