//! What an answer said of itself so far, whatever carried it.

use crate::dialect::LlmEvent;
use crate::inference::{ServerTiming, Usage};
use crate::name::Name;

/// Finish reasons kept of one answer.
const MAX_FINISHED: usize = 128;

/// What the dialect said so far.
#[derive(Debug, Default)]
pub struct Facts {
    /// The API's id of the response.
    pub id: Option<Name>,
    /// The model as the server gives it.
    pub model: Option<Name>,
    /// Why each choice ended.
    pub finished: Vec<(u32, Name)>,
    /// Tokens by the provider's count.
    pub usage: Option<Box<Usage>>,
    /// An error inside the answer, and its type where it has one.
    pub failed: Option<Option<Name>>,
    /// Whether the client took the inference back, by a word of its API.
    pub cancelled: bool,
    /// What the server says about its own time.
    pub server: Option<Box<ServerTiming>>,
    /// Whether the answer is one of the dialect's.
    pub recognised: bool,
    /// Whether there was an answer of another form.
    pub foreign: bool,
    /// How many events were shown to other dialects.
    pub tries: u32,
    /// Whether something could not be read at all.
    pub unread: bool,
    /// Whether the protocol that carries the answer says that it ended as it should (`grpc-status: 0`).
    pub ended_well: bool,
    /// Whether events came behind the terminator.
    pub went_on: bool,
    /// Whether bytes are missing behind the last finish reason.
    pub hole_since_finish: bool,
    /// Whether `usage` is the last word: it came with the finish reasons or behind them.
    pub usage_settled: bool,
    /// Whether bytes are missing behind `usage`.
    pub hole_since_usage: bool,
}

impl Facts {
    /// Takes what a dialect says.
    pub fn take(&mut self, event: LlmEvent) {
        match event {
            LlmEvent::Started { id, model } => {
                self.id = self.id.take().or(id);
                self.model = self.model.take().or(model);
            }
            LlmEvent::Usage(usage) => {
                let known = self.usage.get_or_insert_default();
                **known = Usage {
                    input: usage.input.or(known.input),
                    output: usage.output.or(known.output),
                    cache_read: usage.cache_read.or(known.cache_read),
                    cache_write: usage.cache_write.or(known.cache_write),
                    reasoning: usage.reasoning.or(known.reasoning),
                };
            }
            LlmEvent::Finished { choice, reason } => {
                self.hole_since_finish = false;
                let room = self.finished.len() < MAX_FINISHED;
                match self.finished.iter_mut().find(|(c, _)| *c == choice) {
                    Some((_, old)) => *old = reason,
                    None if room => self.finished.push((choice, reason)),
                    None => {}
                }
            }
            LlmEvent::Failed { kind } => {
                let known = self.failed.take().flatten();
                self.failed = Some(known.or(kind));
            }
            LlmEvent::Server(timing) => {
                let old = self.server.take().unwrap_or_default();
                self.server = Some(Box::new(ServerTiming {
                    queue: timing.queue.or(old.queue),
                    prefill: timing.prefill.or(old.prefill),
                    ttft: timing.ttft.or(old.ttft),
                    tpot: timing.tpot.or(old.tpot),
                    decode: timing.decode.or(old.decode),
                    total: timing.total.or(old.total),
                    load: timing.load.or(old.load),
                }));
            }
            LlmEvent::Cancelled => self.cancelled = true,
            LlmEvent::Delta { .. } | LlmEvent::ToolStart | LlmEvent::Tokens(_) => {}
        }
    }
}
