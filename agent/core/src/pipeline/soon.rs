//! Memory that will be needed is asked for together.

use super::lane::Lane;
use super::{Pipeline, Stage, Tag};
use crate::stream::ConnId;

/// Connections that [`Pipeline::soon`] looks at together.
pub const SOON: usize = 16;

impl Pipeline {
    /// Asks for the memory that the next bytes of these connections will need, at most [`SOON`] of them; changes nothing.
    ///
    /// With thousands of connections at once each of them is out of the cache when its turn comes, behind a chain of six pointers. A tap
    /// that has several packets at hand can wait for all of them together: one loop for each link of the chain, short enough that the
    /// processor works at all connections at once. One loop over the connections that follows each chain to its end gains nothing.
    ///
    /// Where a tag is known there is a lane, and the chain has two links.
    pub fn soon(&self, ids: &[(ConnId, Tag)]) {
        let mut lanes = [None; SOON];
        let mut all = 0;
        let mut rest = 0;
        for (lane, (_, tag)) in lanes.iter_mut().zip(ids) {
            *lane = self.lanes.get(*tag);
            all ^= lane.map_or(0, Lane::touch);
            rest += usize::from(*tag == 0);
        }
        let (mut decoders, mut coded) = ([None; SOON], false);
        for (decoder, lane) in decoders.iter_mut().zip(lanes.iter().flatten()) {
            all ^= u64::from(lane.shape().touch());
            *decoder = self.lanes.decoder(lane);
            coded |= decoder.is_some();
        }
        if coded {
            let mut windows: [&[u8]; SOON] = [&[]; SOON];
            for (window, decoder) in windows.iter_mut().zip(decoders.iter().flatten()) {
                *window = decoder.near();
            }
            for window in windows {
                all ^= window.iter().step_by(64).fold(0, |all, byte| all ^ u64::from(*byte));
            }
        }
        std::hint::black_box(all);
        if rest > 0 {
            self.soon_without_lane(ids);
        }
    }

    fn soon_without_lane(&self, ids: &[(ConnId, Tag)]) {
        let mut conns = [None; SOON];
        let mut calls = [None; SOON];
        let mut shapes = [None; SOON];
        let mut all = 0;
        for (conn, (id, _)) in conns.iter_mut().zip(ids.iter().filter(|(_, tag)| *tag == 0)) {
            *conn = self.conns.get(id);
        }
        let mut https = [None; SOON];
        for (http, conn) in https.iter_mut().zip(conns.iter().flatten()) {
            // Of many streams on one connection it is not known which one comes.
            if let Stage::Http(found) = &conn.stage
                && !found.session.is_shared()
            {
                *http = Some(found);
            }
        }
        for (call, http) in calls.iter_mut().zip(https.iter().flatten()) {
            all ^= http.session.touch();
            *call = http.calls.only();
        }
        for (shape, call) in shapes.iter_mut().zip(calls.iter().flatten()) {
            all ^= call.touch();
            *shape = call.shape();
        }
        for shape in shapes.iter().flatten() {
            all ^= u64::from(shape.touch());
        }
        std::hint::black_box(all);
    }
}
