//! The protection of one direction: which key, which sequence number.
//!
//! In order, the next record is under the current key and has the next number: one try. When that fails, something was lost (or
//! the reader never had a key for a part of the handshake), and later numbers and the keys that may come next are tried, as many as
//! the loss can hide and a budget allows. A tag of 128 bits fits by chance never.

use super::handshake::ServerHello;
use super::keylog::{Random, Secrets};
use super::keys::{Opener, Secret, Suite, TAG, updated};
use super::record::HEADER;

/// Most records that are believed to be missing before one.
const MOST_MISSING: u64 = 1024;
/// Bytes that are tried without success, each try counted with [`TRY`] more: 16 MiB cost some ten milliseconds.
const BUDGET: usize = 16 << 20;
/// The part of them that is spent on one record: what is taken for one may be none.
const BUDGET_OF_ONE: usize = BUDGET / 4;
/// What a try costs beside its bytes.
const TRY: usize = 256;
/// Records in a row that no key opens before a direction is given up.
const MOST_FAILURES: u32 = 16;

/// Under what a direction's records are. TLS 1.2 knows the first and the last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Epoch {
    /// Nothing.
    Clear,
    /// The client's early traffic secret.
    Early,
    /// A handshake traffic secret.
    Handshake,
    /// Traffic keys, after so many key updates (TLS 1.2: renegotiations).
    Traffic(u32),
}

/// What both directions said so far, and whose secrets are known.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The connection's secrets.
    pub secrets: &'a Secrets,
    /// The client random.
    pub client_random: &'a Random,
    /// The server's choice; `None` when its hello was not captured.
    pub server: Option<(&'a ServerHello, Suite)>,
    /// Whether the client said that early data follows.
    pub early: bool,
    /// Whether the records are the server's.
    pub from_server: bool,
}

impl Context<'_> {
    fn tls13(&self) -> bool {
        self.server.is_none_or(|(_, suite)| suite.tls13)
    }

    /// The suites that it may be.
    fn suites(&self) -> impl Iterator<Item = Suite> {
        let known = self.server.map(|(_, suite)| suite);
        let any = if known.is_none() { &Suite::TLS13[..] } else { &[] };
        known.into_iter().chain(any.iter().filter_map(|n| Suite::from_number(*n)))
    }

    fn secret(&self, epoch: Epoch) -> Option<&Secret> {
        let who = usize::from(self.from_server);
        match epoch {
            Epoch::Clear | Epoch::Traffic(1..) => None,
            Epoch::Early => self.secrets.early.as_ref().filter(|_| !self.from_server),
            Epoch::Handshake => self.secrets.handshake[who].as_ref(),
            Epoch::Traffic(0) => self.secrets.traffic[who].as_ref(),
        }
    }
}

/// A key, and in TLS 1.3 the secret from which the next one follows.
#[derive(Debug)]
struct Key {
    opener: Opener,
    then: Option<(Suite, Secret)>,
}

impl Key {
    fn tls13(suite: Suite, secret: &Secret) -> Option<Self> {
        Some(Self { opener: Opener::tls13(suite, secret)?, then: Some((suite, secret.clone())) })
    }

    fn updated(&self) -> Option<Self> {
        let (suite, secret) = self.then.as_ref()?;
        Self::tls13(*suite, &updated(suite.hash, secret)?)
    }
}

/// What became of a protected record.
#[derive(PartialEq, Eq, Debug)]
pub enum Opened<'a> {
    /// It was opened.
    Plain {
        /// The content type.
        kind: u8,
        /// The plaintext.
        plain: &'a [u8],
        /// Whether application data may have been lost since the record before it.
        lost: bool,
    },
    /// There is no key for this part of the connection. It is no loss.
    NoKey,
    /// No key fits.
    Failed,
    /// No key fits, and none will be tried any more.
    GaveUp,
}

/// The protection of one direction.
#[derive(Debug)]
pub struct Seal {
    epoch: Epoch,
    key: Option<Box<Key>>,
    /// The number of the next record.
    seq: u64,
    /// How many records may be missing before the next one.
    missing: u64,
    failures: u32,
    spent: usize,
}

impl Default for Seal {
    fn default() -> Self {
        Self { epoch: Epoch::Clear, key: None, seq: 0, missing: 0, failures: 0, spent: 0 }
    }
}

impl Seal {
    /// Under what the next record should be.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The bytes of a record's body that are not plaintext, if the key is known.
    pub fn overhead(&self) -> Option<usize> {
        self.key.as_ref().map(|key| key.opener.form().overhead())
    }

    /// From here on records are under the keys of `epoch`.
    pub fn enter(&mut self, epoch: Epoch) {
        let key = match (self.epoch, epoch) {
            (Epoch::Traffic(old), Epoch::Traffic(new)) if new > old => self.key.as_ref().and_then(|key| key.updated()),
            _ => None,
        };
        *self = Self { epoch, key: key.map(Box::new), spent: self.spent, ..Self::default() };
    }

    /// The key changes to the next of its kind.
    pub fn update(&mut self) {
        if let Epoch::Traffic(n) = self.epoch {
            self.enter(Epoch::Traffic(n.saturating_add(1)));
        }
    }

    /// One protected record is lost, and nothing else.
    pub fn skip(&mut self) {
        if self.epoch == Epoch::Clear {
            self.missing = (self.missing + 1).min(MOST_MISSING);
        } else {
            self.seq = self.seq.saturating_add(1);
        }
    }

    /// So many bytes are lost, of whatever.
    pub fn lose(&mut self, bytes: Option<u64>) {
        let least = (HEADER + TAG) as u64;
        let records = bytes.map_or(MOST_MISSING, |n| n / least + 2);
        self.missing = self.missing.saturating_add(records).min(MOST_MISSING);
    }

    /// Opens a record if it is the next one under the current key: what nearly all are.
    pub fn open_next<'a>(&mut self, record: &[u8], into: &'a mut Vec<u8>) -> Option<(u8, &'a [u8])> {
        let opened = self.key.as_ref()?.opener.open(self.seq, record, into)?;
        self.seq = self.seq.saturating_add(1);
        (self.missing, self.failures, self.spent) = (0, 0, 0);
        Some(opened)
    }

    /// Opens a record that [`Seal::open_next`] could not.
    pub fn find<'a>(&mut self, context: &Context<'_>, record: &[u8], into: &'a mut Vec<u8>) -> Opened<'a> {
        let mut keyless = false;
        let limit = BUDGET.min(self.spent + BUDGET_OF_ONE);
        for epoch in self.epochs(context).into_iter().flatten() {
            let current = epoch == self.epoch;
            let mut keys = Vec::new();
            if current && self.key.is_some() {
                keys.extend(self.key.take().map(|key| *key));
            } else {
                self.derive(context, epoch, &mut keys);
            }
            keyless |= keys.is_empty();
            let first = if current { self.seq } else { 0 };
            let hit = self.try_numbers(&keys, first, limit, record, into);
            let Some((n, seq)) = hit else {
                if current {
                    self.key = keys.pop().filter(|_| keys.is_empty()).map(Box::new);
                }
                continue;
            };
            let lost = self.lost(context, epoch, first, seq);
            let key = keys.swap_remove(n);
            *self = Self { epoch, seq: seq + 1, ..Self::default() };
            // once more: the tries that failed have destroyed what they worked on
            let opened = key.opener.open(seq, record, into);
            self.key = Some(Box::new(key));
            return opened.map_or(Opened::Failed, |(kind, plain)| Opened::Plain { kind, plain, lost });
        }
        if keyless {
            return Opened::NoKey;
        }
        self.missing = (self.missing + 1).min(MOST_MISSING);
        self.failures += 1;
        if self.failures > MOST_FAILURES || self.spent >= BUDGET { Opened::GaveUp } else { Opened::Failed }
    }

    /// Tries the numbers that are possible with each key: which key, which number.
    fn try_numbers(&mut self, keys: &[Key], first: u64, limit: usize, record: &[u8], into: &mut Vec<u8>) -> Option<(usize, u64)> {
        for (n, key) in keys.iter().enumerate() {
            for seq in first..=first.saturating_add(self.missing) {
                if self.spent >= limit {
                    return None;
                }
                if key.opener.open(seq, record, into).is_some() {
                    return Some((n, seq));
                }
                self.spent += record.len() + TRY;
            }
        }
        None
    }

    /// The current epoch and those that may have begun unseen, in order.
    fn epochs(&self, context: &Context<'_>) -> [Option<Epoch>; 4] {
        let early = (context.early && !context.from_server).then_some(Epoch::Early);
        let traffic = Some(Epoch::Traffic(0));
        match self.epoch {
            Epoch::Traffic(n) if context.tls13() => [Some(self.epoch), Some(Epoch::Traffic(n.saturating_add(1))), None, None],
            Epoch::Traffic(_) => [Some(self.epoch), None, None, None],
            Epoch::Clear if !context.tls13() => [traffic, None, None, None],
            Epoch::Clear => [early, Some(Epoch::Handshake), traffic, None],
            Epoch::Early => [Some(Epoch::Early), Some(Epoch::Handshake), traffic, None],
            Epoch::Handshake => [Some(Epoch::Handshake), traffic, None, None],
        }
    }

    /// The keys that may hold in an epoch: more than one when the server's choice was not captured.
    fn derive(&self, context: &Context<'_>, epoch: Epoch, keys: &mut Vec<Key>) {
        if let (Epoch::Traffic(1..), Some(current)) = (epoch, &self.key) {
            keys.extend(current.updated());
            return;
        }
        match context.server {
            Some((hello, suite)) if !suite.tls13 => {
                let master = context.secrets.master.as_ref();
                let opener = master.and_then(|m| Opener::tls12(suite, m, context.client_random, &hello.random, context.from_server));
                keys.extend(opener.map(|opener| Key { opener, then: None }));
            }
            _ => {
                // early data is under the suite of the ticket, which is the server's choice as well if it accepts the data
                let secret = context.secret(epoch);
                keys.extend(context.suites().filter_map(|suite| Key::tls13(suite, secret?)));
            }
        }
    }

    /// Whether application data may be among what is missing between the record that was expected and the one that was found.
    fn lost(&self, context: &Context<'_>, epoch: Epoch, first: u64, seq: u64) -> bool {
        match (self.epoch, epoch) {
            (Epoch::Traffic(old), Epoch::Traffic(new)) if new > old => true,
            // the first record under the keys of TLS 1.2 is the end of the handshake
            (_, Epoch::Traffic(_)) if !context.tls13() => seq > first.max(1),
            (_, Epoch::Traffic(_) | Epoch::Early) => seq > first,
            _ => false,
        }
    }
}
