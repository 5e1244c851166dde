//! One direction of a connection: its frames, and the table of its header fields.

use super::block::Block;
use super::fields::{Head, Looked};
use super::frame::{Begins, Parser};
use super::hpack::Decoder;
use crate::anomaly::Anomaly;
use crate::http::event::HttpEvent;
use crate::tenant::Tenants;
use std::sync::Arc;

/// One direction.
#[derive(Debug)]
pub(super) struct Half {
    pub frames: Parser,
    pub fields: Decoder<Looked>,
    /// Whether fields that refer to unseen ones were counted.
    counted: bool,
}

impl Half {
    /// A direction whose next byte is what `begins` says.
    pub fn new(begins: Begins) -> Self {
        let mut fields = Decoder::keeping(Looked::default());
        if begins == Begins::Anywhere {
            fields.lose();
        }
        Self { frames: Parser::new(begins), fields, counted: false }
    }

    /// Says of requests whose they are.
    pub fn naming(&mut self, tenants: Option<&Arc<Tenants>>) {
        self.fields.keep = Looked(tenants.cloned());
    }

    /// Reads a header block.
    pub fn read(&mut self, block: Block<'_>, out: &mut dyn FnMut(HttpEvent<'_>)) -> Head {
        let mut head = Head::default();
        let tenants = self.fields.keep.0.clone();
        let read = match &block {
            Block::Whole(bytes) => self.fields.decode(bytes, &mut |f| head.take(f, tenants.as_deref())).map_err(|_| Some(Anomaly::BadHead)),
            Block::Lost => Err(None),
            Block::Bad(why) => Err(Some(*why)),
        };
        if let Err(why) = read {
            self.fields.lose();
            head.unread = true;
            if let Some(why) = why {
                out(HttpEvent::Odd(why));
            }
        }
        if head.unknown && !std::mem::replace(&mut self.counted, true) {
            out(HttpEvent::Odd(Anomaly::UnknownFields));
        }
        head
    }
}
