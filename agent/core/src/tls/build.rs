//! Builders of TLS conversations, for tests and fuzz targets (feature `testing`): records as both ends would send them, and the key log.
//!
//! Nothing is agreed on: the secrets are made up, as the stage never sees how they came about.

use crate::tcp::build::Who;

use super::handshake::RETRY;
use super::keys::{Hash, Opener, Secret, Suite, updated};
use super::record::{ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, HANDSHAKE};

/// What is special about a handshake.
#[derive(Clone, Copy, Default, Debug)]
pub struct Special<'a> {
    /// TLS 1.3: the server asks for another client hello first.
    pub retry: bool,
    /// TLS 1.3: the client sends this as early data, and whether the server accepts it.
    pub early: Option<(&'a [u8], bool)>,
    /// Handshake bytes per record; all at once when 0.
    pub pieces: usize,
    /// The length of the certificates.
    pub certificates: usize,
}

#[derive(Debug, Default)]
struct Side {
    key: Option<Opener>,
    secret: Option<Secret>,
    seq: u64,
}

/// A conversation over TLS.
#[derive(Debug)]
pub struct Talk {
    number: u16,
    suite: Suite,
    seed: u8,
    sides: [Side; 2],
    /// The key log of what was agreed on before.
    before: String,
    /// What was sent so far: one write of one side each.
    pub sent: Vec<(Who, Vec<u8>)>,
    /// What the application said, per side.
    pub said: [Vec<u8>; 2],
}

impl Talk {
    /// A conversation under cipher suite `number`; `seed` makes its randoms and secrets. `None` when the suite is not read.
    pub fn new(number: u16, seed: u8) -> Option<Self> {
        let suite = Suite::from_number(number)?;
        Some(Self { number, suite, seed, sides: Default::default(), before: String::new(), sent: Vec::new(), said: Default::default() })
    }

    fn secret(&self, which: u8) -> Secret {
        let len = if self.suite.hash == Hash::Sha256 && self.suite.tls13 { 32 } else { 48 };
        let bytes: Vec<u8> = (0..len).map(|n| self.seed.wrapping_mul(31).wrapping_add(which.wrapping_mul(7)) ^ n).collect();
        Secret::new(&bytes).unwrap_or_else(|| unreachable!())
    }

    fn randoms(&self) -> ([u8; 32], [u8; 32]) {
        ([self.seed; 32], [self.seed ^ 0xff; 32])
    }

    /// The key log of the conversation.
    pub fn key_log(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let random = hex(&self.randoms().0);
        let labels: &[(&str, u8)] = if self.suite.tls13 {
            &[
                ("CLIENT_EARLY_TRAFFIC_SECRET", 0),
                ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", 1),
                ("SERVER_HANDSHAKE_TRAFFIC_SECRET", 2),
                ("CLIENT_TRAFFIC_SECRET_0", 3),
                ("SERVER_TRAFFIC_SECRET_0", 4),
            ]
        } else {
            &[("CLIENT_RANDOM", 5)]
        };
        let lines = labels.iter().map(|(label, n)| format!("{label} {random} {}\n", hex(self.secret(*n).as_bytes())));
        self.before.clone() + &lines.collect::<String>()
    }

    fn key(&mut self, who: Who, which: u8) {
        let secret = self.secret(which);
        let (client, server) = self.randoms();
        let key = if self.suite.tls13 {
            Opener::tls13(self.suite, &secret)
        } else {
            Opener::tls12(self.suite, &secret, &client, &server, who == Who::Server)
        };
        self.sides[who as usize] = Side { key, secret: Some(secret), seq: 0 };
    }

    /// A record, protected if there is a key, as bytes.
    fn record(&mut self, who: Who, kind: u8, plain: &[u8], padding: usize) -> Vec<u8> {
        let side = &mut self.sides[who as usize];
        let Some(key) = side.key.as_ref() else {
            return [&[kind, 3, 3, (plain.len() >> 8) as u8, plain.len() as u8], plain].concat();
        };
        let record = key.seal(side.seq, kind, plain, padding).unwrap_or_default();
        side.seq += 1;
        record
    }

    fn send(&mut self, who: Who, records: Vec<u8>) {
        self.sent.push((who, records));
    }

    /// The handshake.
    #[must_use]
    pub fn handshake(mut self, special: &Special<'_>) -> Self {
        let (client_random, server_random) = self.randoms();
        let pieces = if special.pieces == 0 { 1 << 14 } else { special.pieces };
        let early = special.early.is_some();
        let client_hello = |early: bool| {
            let extensions: &[u8] = if early { &[0, 10, 0, 1, 5, 0, 42, 0, 0] } else { &[0, 10, 0, 1, 5] };
            let tail = [&[2, 8, 8, 0, 2, 0x13, 1, 1, 0, 0, extensions.len() as u8], extensions].concat();
            message(1, &[&[3, 3], &client_random[..], &tail].concat())
        };
        let server_hello = |random: &[u8]| {
            let [a, b] = self.number.to_be_bytes();
            message(2, &[&[3, 3], random, &[2, 8, 8, a, b, 0]].concat())
        };
        let (first, second) = (client_hello(early), client_hello(false));
        let (retry, hello) = (server_hello(&RETRY), server_hello(&server_random));
        let certificates = message(11, &vec![42; special.certificates]);
        let ccs = [CHANGE_CIPHER_SPEC, 3, 3, 0, 1, 1];
        let mut out = self.in_pieces(Who::Client, &first, pieces);
        if let Some((data, accepted)) = special.early {
            out.extend(ccs);
            self.key(Who::Client, 0);
            out.extend(self.record(Who::Client, APPLICATION_DATA, data, 0));
            if accepted {
                self.said[0].extend(data);
            }
        }
        self.send(Who::Client, out);
        if special.retry {
            let mut out = self.in_pieces(Who::Server, &retry, pieces);
            out.extend(ccs);
            self.send(Who::Server, out);
            self.sides[0].key = None;
            let out = self.in_pieces(Who::Client, &second, pieces);
            self.send(Who::Client, out);
        }
        let mut out = self.in_pieces(Who::Server, &hello, pieces);
        if self.suite.tls13 {
            out.extend(ccs);
            self.key(Who::Server, 2);
            let accepted = special.early.is_some_and(|(_, accepted)| accepted);
            let extensions: &[u8] = if accepted { &[0, 4, 0, 42, 0, 0] } else { &[0, 0] };
            let flight = [message(8, extensions), certificates, message(15, &[1; 70]), message(20, &[2; 32])].concat();
            out.extend(self.in_pieces(Who::Server, &flight, pieces));
            self.send(Who::Server, out);
            self.key(Who::Server, 4);
            let mut out = Vec::new();
            if accepted {
                out = self.record(Who::Client, HANDSHAKE, &message(5, &[]), 0);
            } else {
                out.extend(ccs);
            }
            self.key(Who::Client, 1);
            out.extend(self.record(Who::Client, HANDSHAKE, &message(20, &[3; 32]), 0));
            self.send(Who::Client, out);
            self.key(Who::Client, 3);
        } else {
            out.extend(self.in_pieces(Who::Server, &[certificates, message(14, &[])].concat(), pieces));
            self.send(Who::Server, out);
            for who in [Who::Client, Who::Server] {
                let mut out = if who == Who::Client { self.in_pieces(who, &message(16, &[4; 66]), pieces) } else { Vec::new() };
                out.extend(self.record(who, CHANGE_CIPHER_SPEC, &[1], 0));
                self.key(who, 5);
                out.extend(self.record(who, HANDSHAKE, &message(20, &[5; 12]), 0));
                self.send(who, out);
            }
        }
        self
    }

    /// TLS 1.2: another handshake, under the keys of the one before.
    #[must_use]
    pub fn renegotiate(mut self, seed: u8) -> Self {
        self.before = self.key_log();
        self.seed = seed;
        self.handshake(&Special { certificates: 500, ..Special::default() })
    }

    fn in_pieces(&mut self, who: Who, messages: &[u8], size: usize) -> Vec<u8> {
        messages.chunks(size).flat_map(|piece| self.record(who, HANDSHAKE, piece, 0)).collect()
    }

    /// Application data in one record, with `padding` (TLS 1.3).
    #[must_use]
    pub fn say(mut self, who: Who, bytes: &[u8], padding: usize) -> Self {
        let record = self.record(who, APPLICATION_DATA, bytes, padding);
        self.said[who as usize].extend(bytes);
        self.send(who, record);
        self
    }

    /// A key update of one side (TLS 1.3).
    #[must_use]
    pub fn update(mut self, who: Who) -> Self {
        let record = self.record(who, HANDSHAKE, &message(24, &[0]), 0);
        self.send(who, record);
        let side = &mut self.sides[who as usize];
        let next = side.secret.as_ref().and_then(|secret| updated(self.suite.hash, secret));
        side.key = next.as_ref().and_then(|secret| Opener::tls13(self.suite, secret));
        (side.secret, side.seq) = (next, 0);
        self
    }

    /// A session ticket.
    #[must_use]
    pub fn ticket(mut self) -> Self {
        let record = self.record(Who::Server, HANDSHAKE, &message(4, &[6; 180]), 0);
        self.send(Who::Server, record);
        self
    }

    /// An alert: 1, 0 is a close_notify.
    #[must_use]
    pub fn alert(mut self, who: Who, level: u8, description: u8) -> Self {
        let record = self.record(who, ALERT, &[level, description], 0);
        self.send(who, record);
        self
    }

    /// Puts what was sent since write `first` into one.
    #[must_use]
    pub fn together(mut self, first: usize) -> Self {
        let rest = self.sent.split_off(first.min(self.sent.len()));
        let who = rest.first().map(|(who, _)| *who);
        self.sent.extend(who.map(|who| (who, rest.into_iter().flat_map(|(_, bytes)| bytes).collect())));
        self
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, (body.len() >> 16) as u8, (body.len() >> 8) as u8, body.len() as u8], body].concat()
}
