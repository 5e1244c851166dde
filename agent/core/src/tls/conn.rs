//! One TLS connection being decrypted: its two directions, and what they tell each other.

use crate::anomaly::Anomaly;
use crate::stream::{Direction, End, GapReason, Timestamp};

use super::half::Half;
use super::handshake::{Message, Messages, ServerHello};
use super::keylog::{KeyLog, Random};
use super::keys::Suite;
use super::record::{ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, HANDSHAKE, HEADER, Hole, Step};
use super::seal::{Context, Epoch, Opened};
use super::shared::{Out, Shared};

/// Early data that is held until the server has accepted it, in bytes.
const MOST_EARLY: usize = 1 << 16;

/// What the client's early data is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Early {
    /// There is none, or the server refused it.
    None,
    /// Nobody knows yet.
    Offered,
    /// It is the beginning of what the client says.
    Accepted,
}

/// A TLS connection.
#[derive(Debug)]
pub(super) struct Conn {
    client: Direction,
    halves: [Half; 2],
    client_random: Option<Random>,
    server: Option<ServerHello>,
    early: Early,
    /// Early data that was opened and may yet be refused.
    held: Vec<(Timestamp, Vec<u8>)>,
    /// When early data came that could not be opened.
    early_lost: Option<Timestamp>,
    counted: bool,
}

/// What a record brought.
enum Brought {
    Nothing,
    /// So many bytes of application data, in `Shared::plain`.
    Data(usize),
    Said(Vec<Message>),
    Alert(u8, u8),
    ChangeCipherSpec,
    GaveUp,
    Unreadable(Anomaly),
}

impl Conn {
    /// A connection in which `client` sends the client hello.
    pub fn new(client: Direction) -> Self {
        Self {
            client,
            halves: Default::default(),
            client_random: None,
            server: None,
            early: Early::None,
            held: Vec::new(),
            early_lost: None,
            counted: false,
        }
    }

    /// Bytes that are held.
    pub fn buffered(&self) -> usize {
        self.halves.iter().map(Half::buffered).sum::<usize>() + self.held.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }

    /// The next bytes of one direction.
    ///
    /// # Errors
    /// Why nothing of the connection can be read.
    pub fn data(&mut self, dir: Direction, at: Timestamp, bytes: &[u8], shared: &mut Shared, out: &mut Out<'_>) -> Result<(), Anomaly> {
        let mut input = bytes;
        while !out.muted && !self.half(dir).finished {
            let Some((at, brought)) = self.record(dir, at, &mut input, shared, out) else { break };
            match brought {
                Brought::Nothing => {}
                Brought::Data(len) => self.application_data(dir, at, len, shared, out),
                Brought::Said(messages) => messages.into_iter().for_each(|m| self.message(dir, m, out)),
                Brought::Alert(level, description) => self.alert(dir, at, level, description, out),
                Brought::ChangeCipherSpec => self.change_cipher_spec(dir),
                Brought::GaveUp => {
                    shared.anomalies.count(Anomaly::TlsOutOfStep);
                    let half = self.half_mut(dir);
                    half.give_up();
                    let (at, reason) = half.hole.take().unwrap_or((at, GapReason::Unreadable));
                    out.gap(dir, at, None, reason);
                }
                Brought::Unreadable(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn half(&self, dir: Direction) -> &Half {
        &self.halves[dir.index()]
    }

    fn half_mut(&mut self, dir: Direction) -> &mut Half {
        &mut self.halves[dir.index()]
    }

    /// The next record and its instant; `None` when the input is used up.
    fn record(
        &mut self,
        dir: Direction,
        now: Timestamp,
        input: &mut &[u8],
        shared: &mut Shared,
        out: &mut Out<'_>,
    ) -> Option<(Timestamp, Brought)> {
        let tls13 = self.tls13();
        let Half { reader, seal, messages, hole, .. } = &mut self.halves[dir.index()];
        let (record, at, found) = match reader.next(input, now, &mut shared.spare) {
            Step::More => return None,
            Step::GaveUp => return Some((now, Brought::GaveUp)),
            Step::Bad => {
                shared.anomalies.count(Anomaly::TlsBadRecord);
                hole.get_or_insert((now, GapReason::Unreadable));
                seal.lose(Some(0));
                return Some((now, lost_messages(messages)));
            }
            Step::Record { record, at, found } => (record, at, found),
        };
        let kind = record.first().copied().unwrap_or_default();
        // In TLS 1.3 the header says whether a record is protected.
        let sealed = match tls13 {
            Some(false) => found || seal.epoch() != Epoch::Clear || kind == APPLICATION_DATA,
            _ => kind == APPLICATION_DATA,
        };
        if !sealed {
            if found {
                reader.reject();
                return Some((at, Brought::Nothing));
            }
            return Some((at, brought(kind, &record[HEADER..], messages, None)));
        }
        let opened = match seal.open_next(record, &mut shared.plain) {
            Some((kind, plain)) => Opened::Plain { kind, plain, lost: false },
            None => {
                let context =
                    match context(&self.client_random, &self.server, self.early, dir != self.client, [&shared.given, &shared.embedded]) {
                        Ok(context) => context,
                        Err(why) => return Some((at, Brought::Unreadable(why))),
                    };
                let before = seal.epoch();
                let opened = seal.find(&context, record, &mut shared.plain);
                if seal.epoch() != before || matches!(seal.epoch(), Epoch::Traffic(_)) {
                    messages.restart();
                }
                opened
            }
        };
        let brought = match opened {
            Opened::Plain { kind, plain, lost } => {
                let (hole_at, reason) = hole.take().unwrap_or((at, GapReason::Unreadable));
                if lost {
                    out.gap(dir, hole_at, None, reason);
                }
                shared.counters.records += 1;
                if !std::mem::replace(&mut self.counted, true) {
                    shared.counters.connections += 1;
                }
                brought(kind, plain, messages, Some(plain.len()))
            }
            // whether it counts as lost, the server decides
            Opened::NoKey if dir == self.client && self.early == Early::Offered && seal.epoch() == Epoch::Clear => {
                if self.early_lost.replace(at).is_none() {
                    shared.anomalies.count(Anomaly::TlsEarlyData);
                }
                Brought::Nothing
            }
            Opened::NoKey => Brought::Nothing,
            Opened::GaveUp => Brought::GaveUp,
            Opened::Failed if found => {
                reader.reject();
                return Some((at, Brought::Nothing));
            }
            Opened::Failed => {
                shared.anomalies.count(Anomaly::TlsBadRecord);
                hole.get_or_insert((at, GapReason::Unreadable));
                lost_messages(messages)
            }
        };
        if found && !matches!(brought, Brought::GaveUp) {
            reader.accept();
        }
        Some((at, brought))
    }

    /// Whether it is TLS 1.3; `None` while the server has not said.
    fn tls13(&self) -> Option<bool> {
        self.server.map(|hello| hello.suite >> 8 == 0x13)
    }

    fn application_data(&mut self, dir: Direction, at: Timestamp, len: usize, shared: &mut Shared, out: &mut Out<'_>) {
        let plain = shared.plain.get(..len).unwrap_or_default();
        let from_client = dir == self.client;
        if from_client && self.half(dir).seal.epoch() == Epoch::Early && self.early == Early::Offered {
            let held: usize = self.held.iter().map(|(_, bytes)| bytes.len()).sum();
            if held + len <= MOST_EARLY {
                self.held.push((at, plain.to_vec()));
                return;
            }
            self.held.clear();
            self.early_lost = Some(at);
            shared.anomalies.count(Anomaly::TlsEarlyData);
            return;
        }
        shared.counters.bytes += len as u64;
        out.data(dir, at, plain);
    }

    fn message(&mut self, dir: Direction, message: Message, out: &mut Out<'_>) {
        let from_client = dir == self.client;
        let tls13 = self.tls13();
        match message {
            Message::ClientHello { random, early } if from_client => {
                self.client_random = Some(random);
                self.early = if early { Early::Offered } else { Early::None };
            }
            Message::ServerHello(hello) if !from_client => self.server = Some(hello),
            Message::Retry if !from_client => {
                self.refuse_early_data();
                let client = self.half_mut(dir.flip());
                if client.seal.epoch() == Epoch::Early {
                    client.seal.enter(Epoch::Clear);
                }
            }
            Message::EncryptedExtensions { early } if !from_client && tls13 == Some(true) && self.early == Early::Offered => {
                if early {
                    self.accept_early_data(out)
                } else {
                    self.refuse_early_data()
                }
            }
            Message::EndOfEarlyData if from_client && self.half(dir).seal.epoch() == Epoch::Early => {
                self.accept_early_data(out);
                self.enter(dir, Epoch::Handshake);
            }
            Message::Finished if self.half(dir).seal.epoch() == Epoch::Handshake => self.enter(dir, Epoch::Traffic(0)),
            Message::KeyUpdate if tls13 != Some(false) => {
                let half = self.half_mut(dir);
                half.seal.update();
                half.messages.restart();
            }
            _ => {}
        }
    }

    fn enter(&mut self, dir: Direction, epoch: Epoch) {
        let half = self.half_mut(dir);
        half.seal.enter(epoch);
        half.messages.restart();
    }

    fn accept_early_data(&mut self, out: &mut Out<'_>) {
        self.early = Early::Accepted;
        let held = std::mem::take(&mut self.held);
        if let Some(at) = self.early_lost.take() {
            out.gap(self.client, at, None, GapReason::Unreadable);
        }
        held.into_iter().for_each(|(at, bytes)| out.data(self.client, at, &bytes));
    }

    fn refuse_early_data(&mut self) {
        (self.early, self.early_lost, self.held) = (Early::None, None, Vec::new());
    }

    fn change_cipher_spec(&mut self, dir: Direction) {
        // TLS 1.3 sends it for the eyes of old middleboxes only (RFC 8446 §D.4)
        if self.tls13() == Some(false) {
            let next = match self.half(dir).seal.epoch() {
                Epoch::Traffic(n) => n.saturating_add(1),
                _ => 0,
            };
            self.enter(dir, Epoch::Traffic(next));
        }
    }

    fn alert(&mut self, dir: Direction, at: Timestamp, level: u8, description: u8, out: &mut Out<'_>) {
        const CLOSE_NOTIFY: u8 = 0;
        const USER_CANCELED: u8 = 90;
        const FATAL: u8 = 2;
        if description == CLOSE_NOTIFY {
            self.finish(dir, at, out);
        } else if description != USER_CANCELED && (level == FATAL || self.tls13() == Some(true)) {
            self.tell_hole(dir, out);
            out.close(at, End::Reset(dir));
            for half in &mut self.halves {
                half.finished = true;
                half.give_up();
            }
        }
    }

    /// Hands on the end of a direction, once.
    fn finish(&mut self, dir: Direction, at: Timestamp, out: &mut Out<'_>) {
        self.tell_hole(dir, out);
        if !std::mem::replace(&mut self.half_mut(dir).finished, true) {
            self.half_mut(dir).give_up();
            out.close(at, End::Finished(dir));
        }
    }

    fn tell_hole(&mut self, dir: Direction, out: &mut Out<'_>) {
        if let Some((at, reason)) = self.half_mut(dir).hole.take() {
            out.gap(dir, at, None, reason);
        }
    }

    /// Bytes of one direction are missing.
    pub fn gap(&mut self, dir: Direction, at: Timestamp, len: Option<u64>, reason: GapReason, out: &mut Out<'_>) {
        let tls13 = self.tls13();
        let Half { reader, seal, messages, hole, finished, .. } = &mut self.halves[dir.index()];
        if *finished {
            return;
        }
        let mut change = false;
        let said = match reader.hole(len) {
            Hole::Nothing | Hole::InLost => Brought::Nothing,
            Hole::Beyond(held) => {
                seal.lose(len.map(|len| len.saturating_add(held as u64)));
                hole.get_or_insert((at, reason));
                lost_messages(messages)
            }
            Hole::InRecord(begun) => {
                let [kind, _, _, a, b] = begun.first_chunk::<HEADER>().copied().unwrap_or_default();
                let body = u64::from(a) << 8 | u64::from(b);
                let epoch = seal.epoch();
                if if tls13 == Some(false) { epoch != Epoch::Clear } else { kind == APPLICATION_DATA } {
                    if epoch == Epoch::Early {
                        self.early_lost = Some(at);
                    } else if matches!(epoch, Epoch::Traffic(_)) && kind == APPLICATION_DATA {
                        // TLS 1.3 hides how much of a record is padding, and whether it is data at all
                        let overhead = seal.overhead().filter(|_| tls13 == Some(false));
                        out.gap(dir, at, overhead.and_then(|n| body.checked_sub(n as u64)), reason);
                    }
                    seal.skip();
                    lost_messages(messages)
                } else {
                    change = kind == CHANGE_CIPHER_SPEC;
                    let mut said = Vec::new();
                    if kind == HANDSHAKE {
                        messages.feed(&begun[HEADER..], &mut |m| said.push(m));
                        messages.lost(&mut |m| said.push(m));
                    }
                    Brought::Said(said)
                }
            }
        };
        if matches!(self.half(dir).seal.epoch(), Epoch::Traffic(_)) {
            self.half_mut(dir).messages.restart();
        }
        if let Brought::Said(messages) = said {
            messages.into_iter().for_each(|m| self.message(dir, m, out));
        }
        if change {
            self.change_cipher_spec(dir);
        }
    }

    /// TCP says how the connection or one half of it ended; whether that was the last word.
    pub fn close(&mut self, at: Timestamp, end: End, out: &mut Out<'_>) -> bool {
        match end {
            End::Finished(dir) => {
                self.half_mut(dir).tcp_finished = true;
                self.finish(dir, at, out);
                self.halves.iter().all(|half| half.tcp_finished)
            }
            _ => {
                [Direction::Forward, Direction::Reverse].into_iter().for_each(|dir| self.tell_hole(dir, out));
                out.close(at, end);
                true
            }
        }
    }
}

/// Tells what a record's plaintext is; `opened` is its length in `Shared::plain`, if that is where it lies.
fn brought(kind: u8, plain: &[u8], messages: &mut Messages, opened: Option<usize>) -> Brought {
    match (kind, plain) {
        (APPLICATION_DATA, _) => opened.map_or(Brought::Nothing, Brought::Data),
        (HANDSHAKE, _) => {
            let mut said = Vec::new();
            messages.feed(plain, &mut |m| said.push(m));
            Brought::Said(said)
        }
        (ALERT, [level, description, ..]) => Brought::Alert(*level, *description),
        (CHANGE_CIPHER_SPEC, _) => Brought::ChangeCipherSpec,
        _ => Brought::Nothing,
    }
}

fn lost_messages(messages: &mut Messages) -> Brought {
    let mut said = Vec::new();
    messages.lost(&mut |m| said.push(m));
    Brought::Said(said)
}

/// What is needed to open a protected record, or why it cannot be had.
fn context<'a>(
    client_random: &'a Option<Random>,
    server: &'a Option<ServerHello>,
    early: Early,
    from_server: bool,
    keys: [&'a KeyLog; 2],
) -> Result<Context<'a>, Anomaly> {
    let client_random = client_random.as_ref().ok_or(Anomaly::TlsMissedStart)?;
    let server = match server {
        Some(hello) if hello.version != 0x303 || hello.compression != 0 => return Err(Anomaly::TlsUnsupported),
        Some(hello) => Some((hello, Suite::from_number(hello.suite).ok_or(Anomaly::TlsUnsupported)?)),
        None => None,
    };
    let secrets = keys.into_iter().find_map(|log| log.get(client_random)).ok_or(Anomaly::TlsNoKey)?;
    let has_traffic = secrets.traffic.iter().all(Option::is_some);
    match server {
        Some((_, Suite { tls13: true, .. })) if !has_traffic => return Err(Anomaly::TlsNoKey),
        Some((_, Suite { tls13: false, .. })) if secrets.master.is_none() => return Err(Anomaly::TlsNoKey),
        // which version it is, the secrets tell; TLS 1.2 also needs the server random
        None if !has_traffic => return Err(Anomaly::TlsMissedStart),
        _ => {}
    }
    Ok(Context { secrets, client_random, server, early: early != Early::None, from_server })
}
