//! The calls that are under way on one connection.

use rustc_hash::FxHashMap;

use crate::call::Call;
use crate::http::event::ExchangeId;

/// The calls of a connection, by their exchange. Most connections have one at a time.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Calls {
    first: Option<(ExchangeId, Box<Call>)>,
    more: FxHashMap<ExchangeId, Box<Call>>,
}

impl Calls {
    /// A call begins.
    pub fn insert(&mut self, id: ExchangeId, call: Box<Call>) {
        match &self.first {
            None => self.first = Some((id, call)),
            Some(_) => drop(self.more.insert(id, call)),
        }
    }

    /// The call of an exchange.
    pub fn get(&mut self, id: ExchangeId) -> Option<&mut Call> {
        match &mut self.first {
            Some((first, call)) if *first == id => Some(call),
            _ => self.more.get_mut(&id).map(Box::as_mut),
        }
    }

    /// The call that is under way, where it is the only one, as mostly on HTTP/1.1.
    pub fn only(&self) -> Option<&Call> {
        self.first.as_ref().map(|(_, call)| call.as_ref())
    }

    /// A call is over.
    pub fn remove(&mut self, id: ExchangeId) -> Option<Box<Call>> {
        match self.first.take_if(|(first, _)| *first == id) {
            Some((_, call)) => Some(call),
            None => self.more.remove(&id),
        }
    }

    /// Every call.
    pub fn iter(&self) -> impl Iterator<Item = (ExchangeId, &Call)> {
        let first = self.first.iter().map(|(id, call)| (*id, call.as_ref()));
        first.chain(self.more.iter().map(|(id, call)| (*id, call.as_ref())))
    }

    /// Gives up what only percentiles need.
    pub fn save(&mut self) {
        self.first.iter_mut().map(|(_, call)| call).chain(self.more.values_mut()).for_each(|call| call.forget_gaps());
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.is_empty()
    }
}
