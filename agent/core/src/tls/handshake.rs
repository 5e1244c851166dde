//! Handshake messages as they lie in records: cut apart, and read as far as decryption needs them.
//!
//! A message may span records and a record may hold several (RFC 8446 §5.1). Of most messages only the type counts; hellos and
//! encrypted extensions are kept, up to a bound, and read. Nothing is verified.

/// Most bytes of a message that are kept: a hello with post-quantum key shares has 2 KiB.
const KEEP: usize = 1 << 14;

/// What SHA-256 makes of "HelloRetryRequest": a server hello with this random is one (RFC 8446 §4.1.3).
pub(super) const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb,
    0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const END_OF_EARLY_DATA: u8 = 5;
const ENCRYPTED_EXTENSIONS: u8 = 8;
const FINISHED: u8 = 20;
const KEY_UPDATE: u8 = 24;
const EARLY_DATA: u16 = 42;

/// A message, or what matters of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A client hello.
    ClientHello {
        /// The client random.
        random: [u8; 32],
        /// Whether early data follows.
        early: bool,
    },
    /// A server hello.
    ServerHello(ServerHello),
    /// The server asks for another client hello.
    Retry,
    /// The server's encrypted extensions.
    EncryptedExtensions {
        /// Whether early data is accepted.
        early: bool,
    },
    /// The client's early data is over.
    EndOfEarlyData,
    /// The handshake is over in this direction.
    Finished,
    /// The next record is under the next key.
    KeyUpdate,
}

/// What a server chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerHello {
    /// The version field; TLS 1.3 says 1.2 here.
    pub version: u16,
    /// The server random.
    pub random: [u8; 32],
    /// The number of the cipher suite.
    pub suite: u16,
    /// The number of the compression method.
    pub compression: u8,
}

/// Cuts the handshake bytes of one direction into messages.
#[derive(Debug, Default)]
pub struct Messages {
    head: [u8; 4],
    have: usize,
    left: usize,
    kept: Vec<u8>,
    deaf: bool,
}

impl Messages {
    /// Takes the handshake bytes of a record.
    pub fn feed(&mut self, mut bytes: &[u8], out: &mut dyn FnMut(Message)) {
        while !self.deaf && !bytes.is_empty() {
            if self.have < self.head.len() {
                let (first, rest) = (bytes[0], &bytes[1..]);
                if let Some(slot) = self.head.get_mut(self.have) {
                    *slot = first;
                }
                (self.have, bytes) = (self.have + 1, rest);
                if self.have == self.head.len() {
                    let [_, a, b, c] = self.head;
                    self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                    self.kept.clear();
                }
            }
            if self.have == self.head.len() {
                let (now, rest) = bytes.split_at(self.left.min(bytes.len()));
                if matches!(self.head[0], CLIENT_HELLO | SERVER_HELLO | ENCRYPTED_EXTENSIONS) {
                    self.kept.extend_from_slice(&now[..now.len().min(KEEP - self.kept.len())]);
                }
                (self.left, bytes) = (self.left - now.len(), rest);
                if self.left == 0 {
                    self.have = 0;
                    if let Some(message) = read(self.head[0], &self.kept) {
                        out(message);
                    }
                    self.kept = Vec::new();
                }
            }
        }
    }

    /// Bytes are missing here: a hello that was begun may have said enough; where the next message begins is not known, until
    /// [`Messages::restart`].
    pub fn lost(&mut self, out: &mut dyn FnMut(Message)) {
        if self.have == self.head.len()
            && let Some(message) = read(self.head[0], &self.kept)
            && matches!(message, Message::ClientHello { .. } | Message::ServerHello(_) | Message::Retry)
        {
            out(message);
        }
        *self = Self { deaf: true, ..Self::default() };
    }

    /// A message begins here.
    pub fn restart(&mut self) {
        *self = Self::default();
    }

    /// Bytes that are held.
    pub fn buffered(&self) -> usize {
        self.kept.len()
    }
}

/// Reads from the front of a body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (now, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(now)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(*self.take(2)?.first_chunk()?))
    }

    fn random(&mut self) -> Option<[u8; 32]> {
        self.take(32)?.first_chunk().copied()
    }

    /// Whether a list of extensions, its length before it, holds `wanted`. As far as it is there.
    fn has_extension(&mut self, wanted: u16) -> Option<bool> {
        self.u16()?;
        while let Some(kind) = self.u16() {
            if kind == wanted {
                return Some(true);
            }
            let len = self.u16()?;
            self.take(len.into())?;
        }
        Some(false)
    }
}

fn read(kind: u8, body: &[u8]) -> Option<Message> {
    let mut body = Body(body);
    Some(match kind {
        CLIENT_HELLO => {
            body.u16()?;
            let random = body.random()?;
            // Whatever cannot be read behind the random hides no more than an extension.
            let mut rest = || {
                let session = body.u8()?;
                body.take(session.into())?;
                let suites = body.u16()?;
                body.take(suites.into())?;
                let compressions = body.u8()?;
                body.take(compressions.into())?;
                body.has_extension(EARLY_DATA)
            };
            Message::ClientHello { random, early: rest().unwrap_or(false) }
        }
        SERVER_HELLO => {
            let (version, random) = (body.u16()?, body.random()?);
            if random == RETRY {
                return Some(Message::Retry);
            }
            let session = body.u8()?;
            body.take(session.into())?;
            let suite = body.u16()?;
            Message::ServerHello(ServerHello { version, random, suite, compression: body.u8().unwrap_or(0) })
        }
        ENCRYPTED_EXTENSIONS => Message::EncryptedExtensions { early: body.has_extension(EARLY_DATA).unwrap_or(false) },
        END_OF_EARLY_DATA => Message::EndOfEarlyData,
        FINISHED => Message::Finished,
        KEY_UPDATE => Message::KeyUpdate,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind, 0, (body.len() >> 8) as u8, body.len() as u8], body].concat()
    }

    fn client_hello(extensions: &[u8]) -> Vec<u8> {
        let tail = [&[2, 8, 8, 0, 2, 0x13, 1, 1, 0, 0, extensions.len() as u8], extensions].concat();
        message(1, &[&[3, 3], &[7; 32][..], &tail].concat())
    }

    fn all(bytes: &[u8], size: usize) -> Vec<Message> {
        let (mut messages, mut got) = (Messages::default(), Vec::new());
        bytes.chunks(size).for_each(|piece| messages.feed(piece, &mut |m| got.push(m)));
        assert_eq!(messages.buffered(), 0);
        got
    }

    #[test]
    fn messages_in_pieces() {
        let server = [&[3, 3], &[9; 32][..], &[1, 5, 0x13, 2, 0]].concat();
        let flight = [
            client_hello(&[0, 10, 0, 1, 5, 0, 42, 0, 0]),
            client_hello(&[0, 10, 0, 1, 5]),
            message(2, &server),
            message(2, &[&[3, 3], &RETRY[..], &[0, 0x13, 1, 0]].concat()),
            message(8, &[0, 4, 0, 42, 0, 0]),
            message(8, &[0, 0]),
            message(11, &[42; 3000]),
            message(5, &[]),
            message(20, &[1; 32]),
            message(4, &[1; 100]),
            message(24, &[1]),
        ]
        .concat();
        let hello = ServerHello { version: 0x303, random: [9; 32], suite: 0x1302, compression: 0 };
        let want = [
            Message::ClientHello { random: [7; 32], early: true },
            Message::ClientHello { random: [7; 32], early: false },
            Message::ServerHello(hello),
            Message::Retry,
            Message::EncryptedExtensions { early: true },
            Message::EncryptedExtensions { early: false },
            Message::EndOfEarlyData,
            Message::Finished,
            Message::KeyUpdate,
        ];
        for size in 1..=64 {
            assert_eq!(all(&flight, size), want, "{size}");
        }
        assert_eq!(all(&flight, flight.len()), want);
    }

    #[test]
    fn a_hello_that_is_cut_short_says_what_it_said() {
        let hello = client_hello(&[0, 42, 0, 0]);
        let cut = |at: usize| {
            let (mut messages, mut got) = (Messages::default(), Vec::new());
            messages.feed(&hello[..at], &mut |m| got.push(m));
            messages.lost(&mut |m| got.push(m));
            messages.feed(&hello, &mut |m| got.push(m));
            got
        };
        assert_eq!(cut(20), []);
        assert_eq!(cut(40), [Message::ClientHello { random: [7; 32], early: false }]);
        let mut messages = Messages::default();
        messages.lost(&mut |_| {});
        messages.restart();
        messages.feed(&hello, &mut |m| assert_eq!(m, Message::ClientHello { random: [7; 32], early: true }));
    }

    #[test]
    fn what_is_too_short_is_no_message() {
        for (kind, body) in [(1, &[3, 3, 1][..]), (2, &[3, 3]), (2, &[3; 36])] {
            assert_eq!(all(&message(kind, body), 5), []);
        }
        assert_eq!(all(&message(8, &[]), 5), [Message::EncryptedExtensions { early: false }]);
    }
}
