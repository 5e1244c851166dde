//! Where a connection's events end up: records, counts, and the verdict on the connection.

use super::*;

/// What a connection's events flow into.
pub(super) struct Sink<'a> {
    pub(super) info: &'a ConnInfo,
    pub(super) conn: ConnId,
    pub(super) seed: u64,
    /// How many bytes the hole at hand is long, where that is known.
    pub(super) lost: Option<u64>,
    pub(super) tenants: Option<&'a Arc<Tenants>>,
    pub(super) stats: &'a mut PipelineStats,
    pub(super) events: &'a mut Vec<LlmEvent>,
    pub(super) out: &'a mut Vec<Inference>,
    pub(super) others: &'a mut Option<u32>,
    pub(super) mute: Option<Anomaly>,
}

impl Sink<'_> {
    /// Lets a conversation work, and counts the turns that are over with it.
    pub(super) fn socket(&mut self, socket: &mut Socket, step: impl FnOnce(&mut Socket, &mut Desk<'_>)) {
        let before = self.out.len();
        let PipelineStats { anomalies, events: frames, .. } = &mut *self.stats;
        let scratch = Scratch { events: &mut *self.events, anomalies, frames };
        step(socket, &mut Desk { info: self.info, identity: [self.seed, self.conn.0], lost: self.lost, scratch, out: &mut *self.out });
        let turns = (self.out.len() - before) as u64;
        self.stats.exchanges += turns;
        self.stats.inferences += turns;
        if turns > 0 {
            *self.others = None;
        }
        if socket.is_unknown() {
            self.mute = Some(Anomaly::Upgraded);
        }
        if socket.skipped() > FOOTING {
            self.mute = Some(Anomaly::MissedStart);
        }
    }

    pub(super) fn over(&mut self, done: Option<Inference>, how: Over) {
        match done {
            Some(inference) => {
                self.stats.inferences += 1;
                *self.others = None;
                self.out.push(inference);
            }
            None => {
                self.stats.non_llm += 1;
                if let Some(n) = self.others {
                    *n += 1;
                    if *n >= PATIENCE && how == Over::Complete {
                        self.mute = Some(Anomaly::NotLlm);
                    }
                }
            }
        }
    }
}
