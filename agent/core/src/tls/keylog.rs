//! The key-log format: what `SSLKEYLOGFILE` makes NSS, OpenSSL, curl, Python, Go and browsers write, and what a pcapng file embeds.
//!
//! One secret per line: label, client random, secret, both in hexadecimal (RFC 9850). Secrets are found by the client random.

use std::collections::BTreeMap;
use std::fmt;

use super::keys::Secret;

/// A client random: what a connection's secrets are filed under.
pub type Random = [u8; 32];

/// Connections whose secrets are kept; what comes after them is counted.
const MOST: usize = 1 << 18;

/// The secrets of one connection.
#[derive(Clone, Default, Debug)]
pub struct Secrets {
    /// TLS 1.2: the master secret.
    pub master: Option<Secret>,
    /// TLS 1.3: of the client's early data.
    pub early: Option<Secret>,
    /// TLS 1.3: of the handshake, the client's and the server's.
    pub handshake: [Option<Secret>; 2],
    /// TLS 1.3: of the data before any key update, the client's and the server's.
    pub traffic: [Option<Secret>; 2],
}

/// A line that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for BadLine {}

/// Everything that key logs said.
#[derive(Clone, Default)]
pub struct KeyLog {
    /// Ordered, not hashed: whoever wrote the file chose the randoms.
    connections: BTreeMap<Random, Box<Secrets>>,
    counts: Counts,
}

/// What was met in key logs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Secrets that can be used; repetitions count.
    pub secrets: u64,
    /// Lines with other labels: exporter secrets, QUIC, later generations of traffic secrets (they follow from the first), RSA.
    pub ignored: u64,
    /// Lines that cannot be read.
    pub bad: u64,
    /// Secrets of connections beyond the bound (262,144 connections).
    pub beyond: u64,
}

impl fmt::Debug for KeyLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLog").field("connections", &self.connections.len()).field("counts", &self.counts).finish()
    }
}

enum Place {
    Master,
    Early,
    Handshake(usize),
    Traffic(usize),
}

impl KeyLog {
    /// A log without secrets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no connection can be decrypted.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Connections of which something is known.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// What was met so far.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The secrets of the connection with this client random.
    pub fn get(&self, random: &Random) -> Option<&Secrets> {
        self.connections.get(random).map(Box::as_ref)
    }

    /// Takes the lines of a key log. Other labels, comments and repetitions are no errors, and neither is a last line without
    /// its end: logs are read while they are written.
    ///
    /// # Errors
    /// The first line that cannot be read; all others were taken.
    pub fn read(&mut self, text: &[u8]) -> Result<(), BadLine> {
        let mut first = Ok(());
        for (number, line) in text.split_inclusive(|b| *b == b'\n').enumerate() {
            let whole = line.ends_with(b"\n");
            match self.line(line.trim_ascii()) {
                Err(what) if whole => {
                    self.counts.bad += 1;
                    first = first.and(Err(BadLine { line: number + 1, what }));
                }
                _ => {}
            }
        }
        first
    }

    fn line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(());
        }
        let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty());
        let (label, random, secret, rest) = (words.next(), words.next(), words.next(), words.next());
        let label = label.unwrap_or_default();
        if !label.iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_') {
            return Err("not a line of a key log: it begins with no label");
        }
        let place = match label {
            b"CLIENT_RANDOM" => Place::Master,
            b"CLIENT_EARLY_TRAFFIC_SECRET" => Place::Early,
            b"CLIENT_HANDSHAKE_TRAFFIC_SECRET" => Place::Handshake(0),
            b"SERVER_HANDSHAKE_TRAFFIC_SECRET" => Place::Handshake(1),
            b"CLIENT_TRAFFIC_SECRET_0" => Place::Traffic(0),
            b"SERVER_TRAFFIC_SECRET_0" => Place::Traffic(1),
            _ => {
                self.counts.ignored += 1;
                return Ok(());
            }
        };
        let (Some(random), Some(secret), None) = (random, secret, rest) else {
            return Err("a label, a client random and a secret are expected, with a space between them");
        };
        let mut key = Random::default();
        if hex(random, &mut key) != Some(key.len()) {
            return Err("the client random is not 64 hexadecimal digits");
        }
        let mut bytes = [0; 48];
        let secret = match (hex(secret, &mut bytes), &place) {
            (Some(48), _) => Secret::new(&bytes),
            (Some(32), Place::Early | Place::Handshake(_) | Place::Traffic(_)) => Secret::new(&bytes[..32]),
            (_, Place::Master) => return Err("the master secret is not 96 hexadecimal digits"),
            _ => return Err("the secret is neither 64 nor 96 hexadecimal digits"),
        };
        if self.connections.len() >= MOST && !self.connections.contains_key(&key) {
            self.counts.beyond += 1;
            return Ok(());
        }
        self.counts.secrets += 1;
        let of = self.connections.entry(key).or_default();
        let slot = match place {
            Place::Master => &mut of.master,
            Place::Early => &mut of.early,
            Place::Handshake(who) => &mut of.handshake[who],
            Place::Traffic(who) => &mut of.traffic[who],
        };
        *slot = secret;
        Ok(())
    }
}

/// Reads hexadecimal digits into the front of `out`; how many bytes they are, if they are that and fit.
fn hex(digits: &[u8], out: &mut [u8]) -> Option<usize> {
    if !digits.len().is_multiple_of(2) || digits.len() / 2 > out.len() {
        return None;
    }
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    for (pair, byte) in digits.chunks_exact(2).zip(out.iter_mut()) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(digits.len() / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANDOM: &str = "cb34ecb1e78163ba1c38c6dacb196a6dffa21a8d9912ec18a2ef6283024dece7";
    const SHORT: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";

    fn read(text: &str) -> (KeyLog, Result<(), BadLine>) {
        let mut log = KeyLog::new();
        let result = log.read(text.as_bytes());
        (log, result)
    }

    #[test]
    fn every_label_finds_its_place() {
        let long = SHORT.repeat(2)[..96].to_uppercase();
        let text = format!(
            "# a comment\r\n\r\nCLIENT_RANDOM {RANDOM} {long}\r\nCLIENT_EARLY_TRAFFIC_SECRET {RANDOM} {SHORT}\n\
             CLIENT_HANDSHAKE_TRAFFIC_SECRET {RANDOM} {long}\nSERVER_HANDSHAKE_TRAFFIC_SECRET {RANDOM} {SHORT}\n\
             CLIENT_TRAFFIC_SECRET_0 {RANDOM}  {SHORT}\nSERVER_TRAFFIC_SECRET_0 {RANDOM} {SHORT}\n\
             CLIENT_TRAFFIC_SECRET_1 {RANDOM} {SHORT}\nEXPORTER_SECRET {RANDOM} {SHORT}\nRSA 0011 22\n\
             SERVER_TRAFFIC_SECRET_0 {RANDOM} {SHORT}\nCLIENT_TRAFFIC_SECRET_0 {RANDOM} 9e40"
        );
        let (log, result) = read(&text);
        assert_eq!(result, Ok(()));
        assert_eq!(*log.counts(), Counts { secrets: 7, ignored: 3, bad: 0, beyond: 0 });
        let mut random = Random::default();
        hex(RANDOM.as_bytes(), &mut random);
        let of = log.get(&random).unwrap();
        let lens = [&of.master, &of.early, &of.handshake[0], &of.handshake[1], &of.traffic[0], &of.traffic[1]];
        assert_eq!(lens.map(|s| s.as_ref().map_or(0, |s| s.as_bytes().len())), [48, 32, 48, 32, 32, 32]);
        assert_eq!(of.traffic[0].as_ref().unwrap().as_bytes()[..4], [0x9e, 0x40, 0x64, 0x6c]);
        assert!(log.get(&[0; 32]).is_none());
        assert_eq!((log.len(), log.is_empty()), (1, false));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_the_rest_is_read() {
        let good = format!("SERVER_TRAFFIC_SECRET_0 {RANDOM} {SHORT}\n");
        for (bad, what) in [
            (format!("CLIENT_RANDOM {RANDOM} {SHORT}"), "the master secret is not 96 hexadecimal digits"),
            (format!("CLIENT_RANDOM {SHORT}"), "a label, a client random and a secret are expected, with a space between them"),
            (
                format!("CLIENT_TRAFFIC_SECRET_0 {RANDOM} {SHORT} x"),
                "a label, a client random and a secret are expected, with a space between them",
            ),
            (format!("CLIENT_TRAFFIC_SECRET_0 {RANDOM} {SHORT}00"), "the secret is neither 64 nor 96 hexadecimal digits"),
            (format!("CLIENT_TRAFFIC_SECRET_0 {} {SHORT}", RANDOM.replace('c', "g")), "the client random is not 64 hexadecimal digits"),
            ("-----BEGIN PRIVATE KEY-----".into(), "not a line of a key log: it begins with no label"),
        ] {
            let (log, result) = read(&format!("# log\n{bad}\n{good}{bad}\n"));
            assert_eq!(result, Err(BadLine { line: 2, what }));
            assert_eq!((log.counts().secrets, log.counts().bad), (1, 2));
        }
        assert_eq!(read("x y\n").1.unwrap_err().to_string(), "line 1: not a line of a key log: it begins with no label");
    }

    #[test]
    fn nothing_shows_a_secret() {
        let (log, _) = read(&format!("SERVER_TRAFFIC_SECRET_0 {RANDOM} {SHORT}\n"));
        let text = format!("{log:?} {:?}", log.connections.values().next());
        assert!(!text.contains("9e") && !text.contains("158") && text.contains("Secret(32 bytes)"), "{text}");
    }
}
