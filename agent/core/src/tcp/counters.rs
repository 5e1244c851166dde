//! What the assembler and the packet reader counted: cumulative, named, nothing dropped without a number.

use crate::stream::GapReason;

use super::packet::Skip;

/// Cumulative counts of one capture.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Frames seen, skipped ones included.
    pub packets: u64,
    /// Captured payload bytes of TCP segments, copies included.
    pub payload_bytes: u64,
    /// Payload bytes handed on in order.
    pub delivered_bytes: u64,
    /// Segments that brought nothing new: retransmissions, or packets captured twice.
    pub retransmitted: u64,
    /// Keep-alive probes (RFC 9293 section 3.8.4): at most one byte, just before the next sequence number.
    pub keep_alives: u64,
    /// Segments that were partly old.
    pub overlaps: u64,
    /// Segments that came before an earlier one.
    pub out_of_order: u64,
    /// Segments and resets whose sequence number cannot belong to the connection.
    pub out_of_window: u64,
    /// Segments of connections that had ended, or that were never opened: nothing is made of them.
    pub strays: u64,
    /// Connections of which a first segment was seen.
    pub connections: u64,
    /// Connections that were joined midway.
    pub midstream: u64,
    /// Connections that ended with a reset.
    pub resets: u64,
    /// New connections on the addresses and ports of one whose end was not seen.
    pub reused: u64,
    /// Connections let go because nothing moved for the idle limit.
    pub idle: u64,
    /// Connections let go because there were too many.
    pub evicted: u64,
    /// Connections muted by the sink.
    pub muted: u64,
    /// Gaps by reason, as in [`GapReason::ALL`].
    pub gaps: [u64; GapReason::ALL.len()],
    /// Bytes in these gaps, where their number is known.
    pub gap_bytes: u64,
    /// Frames that are not TCP segments, as in [`Skip::ALL`].
    pub skipped: [u64; Skip::ALL.len()],
}

impl Counters {
    /// Counts a frame that is not a segment.
    pub fn skip(&mut self, reason: Skip) {
        self.packets += 1;
        self.skipped[reason as usize] += 1;
    }

    /// Gaps of one reason.
    pub const fn gaps_by(&self, reason: GapReason) -> u64 {
        self.gaps[reason as usize]
    }

    /// Frames skipped for one reason.
    pub const fn skipped_by(&self, reason: Skip) -> u64 {
        self.skipped[reason as usize]
    }

    /// Every counter with its name in statistics: `packets`, …, `gap_packet_lost`, …, `skipped_not_ip`, ….
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let plain = [
            ("packets", self.packets),
            ("payload_bytes", self.payload_bytes),
            ("delivered_bytes", self.delivered_bytes),
            ("retransmitted", self.retransmitted),
            ("keep_alives", self.keep_alives),
            ("overlaps", self.overlaps),
            ("out_of_order", self.out_of_order),
            ("out_of_window", self.out_of_window),
            ("strays", self.strays),
            ("connections", self.connections),
            ("midstream", self.midstream),
            ("resets", self.resets),
            ("reused", self.reused),
            ("idle", self.idle),
            ("evicted", self.evicted),
            ("muted", self.muted),
            ("gap_bytes", self.gap_bytes),
        ];
        plain.into_iter().chain(GAP_NAMES.into_iter().zip(self.gaps)).chain(SKIP_NAMES.into_iter().zip(self.skipped))
    }

    /// Adds the counts of another capture, for totals over several files.
    pub fn add(&mut self, other: &Self) {
        let Self {
            packets,
            payload_bytes,
            delivered_bytes,
            retransmitted,
            keep_alives,
            overlaps,
            out_of_order,
            out_of_window,
            strays,
            connections,
            midstream,
            resets,
            reused,
            idle,
            evicted,
            muted,
            gaps,
            gap_bytes,
            skipped,
        } = self;
        for (mine, theirs) in [
            (packets, other.packets),
            (payload_bytes, other.payload_bytes),
            (delivered_bytes, other.delivered_bytes),
            (retransmitted, other.retransmitted),
            (keep_alives, other.keep_alives),
            (overlaps, other.overlaps),
            (out_of_order, other.out_of_order),
            (out_of_window, other.out_of_window),
            (strays, other.strays),
            (connections, other.connections),
            (midstream, other.midstream),
            (resets, other.resets),
            (reused, other.reused),
            (idle, other.idle),
            (evicted, other.evicted),
            (muted, other.muted),
            (gap_bytes, other.gap_bytes),
        ] {
            *mine += theirs;
        }
        for (mine, theirs) in gaps.iter_mut().zip(other.gaps).chain(skipped.iter_mut().zip(other.skipped)) {
            *mine += theirs;
        }
    }
}

const GAP_NAMES: [&str; GapReason::ALL.len()] =
    ["gap_packet_lost", "gap_snaplen", "gap_ring_full", "gap_too_long", "gap_unreadable", "gap_bound"];
const SKIP_NAMES: [&str; Skip::ALL.len()] =
    ["skipped_unsupported_link", "skipped_not_ip", "skipped_not_tcp", "skipped_fragment", "skipped_truncated", "skipped_malformed"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_reasons_and_unique() {
        for (name, reason) in GAP_NAMES.iter().zip(GapReason::ALL) {
            assert_eq!(*name, format!("gap_{}", reason.as_str()));
        }
        for (name, reason) in SKIP_NAMES.iter().zip(Skip::ALL) {
            assert_eq!(*name, format!("skipped_{}", reason.as_str()));
        }
        let names: std::collections::BTreeSet<_> = Counters::default().iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), Counters::default().iter().count());
    }

    #[test]
    fn adding_twice_doubles_every_counter() {
        let mut one = Counters { packets: 3, gap_bytes: 7, resets: 1, ..Counters::default() };
        one.skip(Skip::NotTcp);
        one.gaps[1] = 5;
        let mut two = one;
        two.add(&one);
        assert!(one.iter().zip(two.iter()).all(|((_, a), (_, b))| 2 * a == b));
    }
}
