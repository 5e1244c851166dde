//! Packets in, ordered stream events out.
//!
//! [`packet`] reads one frame of a capture into a [`Segment`](packet::Segment) that borrows its payload, or says why it is not one;
//! [`assembler`] puts segments in order and yields [`StreamEvent`](crate::stream::StreamEvent)s. The in-order path copies and
//! allocates nothing: one header walk, one table look-up, and the payload is handed on where the tap read it.
//!
//! What this is not: a TCP stack. It sees traffic from the side, so it verifies no checksums (network cards fill them in later),
//! answers nothing, and believes data when it first sees it: a later copy with other content changes nothing. Tunnels (GRE, VXLAN,
//! IP in IP, PPPoE, MPLS) are not opened, and of IP fragments only the first is read.

pub mod assembler;
#[cfg(any(test, feature = "testing"))]
pub mod build;
mod conn;
pub mod counters;
mod key;
mod limits;
pub mod packet;
mod reorder;
mod table;

pub use assembler::Assembler;
pub use counters::Counters;
pub use key::{Route, Seen};
pub use limits::Limits;
pub use packet::{LinkType, Segment, Skip};
