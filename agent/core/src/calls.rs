//! The calls that are under way on one connection.

use rustc_hash::FxHashMap;

use crate::call::Call;
use crate::http::coding::Decoder;
use crate::http::event::ExchangeId;
use crate::stream::Timestamp;

/// The calls of a connection, by their exchange. Most connections have one at a time.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Calls {
    first: Option<(ExchangeId, Counted)>,
    /// The others: mostly none, on HTTP/2 many.
    more: Option<Box<FxHashMap<ExchangeId, Counted>>>,
    buffered: usize,
}

/// A call, and what it had buffered when that was last counted.
#[derive(Debug)]
struct Counted {
    call: Box<Call>,
    buffered: usize,
}

impl Calls {
    /// A call begins.
    pub fn insert(&mut self, id: ExchangeId, call: Box<Call>) {
        let counted = Counted { buffered: call.buffered(), call };
        self.buffered += counted.buffered;
        match &self.first {
            None => self.first = Some((id, counted)),
            Some(_) => drop(self.more.get_or_insert_default().insert(id, counted)),
        }
    }

    #[inline]
    fn counted(&mut self, id: ExchangeId) -> Option<&mut Counted> {
        match &mut self.first {
            Some((first, counted)) if *first == id => Some(counted),
            _ => self.more.as_mut()?.get_mut(&id),
        }
    }

    /// Lets `step` work on the call of an exchange, if there is one.
    pub fn with(&mut self, id: ExchangeId, step: impl FnOnce(&mut Call)) {
        let Some(counted) = self.counted(id) else { return };
        step(&mut counted.call);
        let (now, before) = (counted.call.buffered(), counted.buffered);
        counted.buffered = now;
        self.buffered = self.buffered + now - before;
    }

    /// Lets the call of an exchange take a whole event, as [`Call::event`] does.
    #[inline]
    pub fn event(&mut self, id: ExchangeId, at: Timestamp, bytes: &[u8], frames: &mut u64) -> Option<usize> {
        let counted = self.counted(id)?;
        let more = counted.call.event(at, bytes, frames)?;
        counted.buffered += more;
        self.buffered += more;
        Some(more)
    }

    /// Lets the call of an exchange take what [`Call::again`] takes. Returns by how much more is buffered.
    #[inline]
    pub fn again(&mut self, id: ExchangeId, step: impl FnOnce(&mut Call) -> usize) -> usize {
        let Some(counted) = self.counted(id) else { return 0 };
        let more = step(&mut counted.call);
        counted.buffered += more;
        self.buffered += more;
        more
    }

    /// What undoes the coding of an exchange's response, as [`Call::lend`] gives it. What it holds is still counted here.
    pub fn lend(&mut self, id: ExchangeId) -> Option<Decoder> {
        self.counted(id)?.call.lend()
    }

    /// Takes back what was lent.
    pub fn give_back(&mut self, id: ExchangeId, decoder: Decoder) {
        if let Some(counted) = self.counted(id) {
            counted.call.give_back(decoder);
        }
    }

    /// The call of an exchange.
    #[inline]
    pub fn get(&self, id: ExchangeId) -> Option<&Call> {
        let counted = match &self.first {
            Some((first, counted)) if *first == id => Some(counted),
            _ => self.more.as_ref()?.get(&id),
        };
        counted.map(|counted| counted.call.as_ref())
    }

    /// The call that is under way, where it is the only one, as mostly on HTTP/1.1.
    pub fn only(&self) -> Option<&Call> {
        self.first.as_ref().map(|(_, counted)| counted.call.as_ref())
    }

    /// A call is over.
    pub fn remove(&mut self, id: ExchangeId) -> Option<Box<Call>> {
        let counted = match self.first.take_if(|(first, _)| *first == id) {
            Some((_, counted)) => counted,
            None => self.more.as_mut()?.remove(&id)?,
        };
        self.buffered -= counted.buffered;
        Some(counted.call)
    }

    /// A call is over, if `is` holds of it.
    pub fn remove_if(&mut self, id: ExchangeId, is: impl FnOnce(&Call) -> bool) -> Option<Box<Call>> {
        let is = self.counted(id).is_some_and(|counted| is(&counted.call));
        if is { self.remove(id) } else { None }
    }

    /// Every call.
    pub fn iter(&self) -> impl Iterator<Item = (ExchangeId, &Call)> {
        let first = self.first.iter().map(|(id, counted)| (*id, counted.call.as_ref()));
        first.chain(self.more.iter().flat_map(|more| more.iter()).map(|(id, counted)| (*id, counted.call.as_ref())))
    }

    /// Bytes that all of them have buffered.
    pub fn buffered(&self) -> usize {
        self.buffered
    }

    /// Gives up what only percentiles need.
    pub fn save(&mut self) {
        self.buffered = 0;
        for counted in self.first.iter_mut().map(|(_, counted)| counted).chain(self.more.iter_mut().flat_map(|more| more.values_mut())) {
            counted.call.forget_gaps();
            counted.buffered = counted.call.buffered();
            self.buffered += counted.buffered;
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.as_ref().is_none_or(|more| more.is_empty())
    }
}
