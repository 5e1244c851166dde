//! Cipher suites, the derivation of record keys from logged secrets, and opening a record with them.
//!
//! TLS 1.2: RFC 5246 §5 and §6.3 (PRF, key block), RFC 5288 (GCM), RFC 7905 (ChaCha20). TLS 1.3: RFC 8446 §5.2, §5.3, §7.1 to §7.3.

use std::fmt;

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::{hkdf, hmac};

use super::record::HEADER;

/// The length of every suite's tag in bytes.
pub const TAG: usize = 16;

/// A logged or derived secret of at most 48 bytes. Its `Debug` text does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    bytes: [u8; 48],
    len: u8,
}

impl Secret {
    /// A copy of `secret`, if it is not longer than any that TLS uses.
    pub fn new(secret: &[u8]) -> Option<Self> {
        let mut bytes = [0; 48];
        bytes.get_mut(..secret.len())?.copy_from_slice(secret);
        Some(Self { bytes, len: secret.len() as u8 })
    }

    /// The secret.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.len)
    }
}

/// An AEAD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cipher {
    /// AES-128 in Galois/counter mode.
    Aes128Gcm,
    /// AES-256 in Galois/counter mode.
    Aes256Gcm,
    /// ChaCha20 with Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// The hash of a suite's key schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
}

impl Hash {
    /// The length of its output in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }
}

/// What a cipher suite's number stands for, as far as it matters to a reader of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suite {
    /// The AEAD.
    pub cipher: Cipher,
    /// The hash of the key schedule.
    pub hash: Hash,
    /// Whether it is a suite of TLS 1.3. Each suite belongs to one version only.
    pub tls13: bool,
}

impl Suite {
    /// The suites of TLS 1.3 that are read.
    pub const TLS13: [u16; 3] = [0x1301, 0x1302, 0x1303];

    /// The suite of an IANA number; `None` for CBC, CCM, RC4 and whatever else is not read. How the keys were agreed on (RSA, DHE,
    /// ECDHE, PSK) does not matter to one who has the secrets.
    pub const fn from_number(number: u16) -> Option<Self> {
        let (cipher, tls13) = match number {
            0x1301 => (Cipher::Aes128Gcm, true),
            0x1302 => (Cipher::Aes256Gcm, true),
            0x1303 => (Cipher::ChaCha20Poly1305, true),
            // RSA, DHE_RSA, DH_RSA, DHE_DSS, DH_DSS, DH_anon (RFC 5288); PSK, DHE_PSK, RSA_PSK (RFC 5487)
            0x009c..=0x00ad if number.is_multiple_of(2) => (Cipher::Aes128Gcm, false),
            0x009c..=0x00ad => (Cipher::Aes256Gcm, false),
            // ECDHE and ECDH with ECDSA and RSA (RFC 5289)
            0xc02b..=0xc032 if number.is_multiple_of(2) => (Cipher::Aes256Gcm, false),
            0xc02b..=0xc032 => (Cipher::Aes128Gcm, false),
            // ECDHE_PSK (RFC 8442)
            0xd001 => (Cipher::Aes128Gcm, false),
            0xd002 => (Cipher::Aes256Gcm, false),
            // RFC 7905
            0xcca8..=0xccae => (Cipher::ChaCha20Poly1305, false),
            _ => return None,
        };
        let hash = if matches!(cipher, Cipher::Aes256Gcm) { Hash::Sha384 } else { Hash::Sha256 };
        Some(Self { cipher, hash, tls13 })
    }
}

/// Opens the records of one direction under one key.
pub struct Opener {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    form: Form,
}

/// How nonce and additional data are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// TLS 1.3.
    Tls13,
    /// TLS 1.2, GCM: eight bytes of the nonce stand before the ciphertext.
    Gcm12,
    /// TLS 1.2, ChaCha20.
    ChaCha12,
}

impl Form {
    /// How many bytes of a record's body are not plaintext; in TLS 1.3 the type and the padding come on top.
    pub const fn overhead(self) -> usize {
        match self {
            Self::Gcm12 => 8 + TAG,
            Self::Tls13 | Self::ChaCha12 => TAG,
        }
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({:?})", self.form)
    }
}

impl Opener {
    /// From a traffic secret of TLS 1.3. `None` when its length is not the hash's.
    pub fn tls13(suite: Suite, secret: &Secret) -> Option<Self> {
        let algorithm = suite.cipher.algorithm();
        let (mut key, mut iv) = ([0; 32], [0; NONCE_LEN]);
        let key = key.get_mut(..algorithm.key_len())?;
        expand_label(suite.hash, secret, b"key", key)?;
        expand_label(suite.hash, secret, b"iv", &mut iv)?;
        Some(Self { key: LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?), iv, form: Form::Tls13 })
    }

    /// From a master secret of TLS 1.2 and the randoms; `server` says whose records.
    pub fn tls12(suite: Suite, master: &Secret, client_random: &[u8; 32], server_random: &[u8; 32], server: bool) -> Option<Self> {
        let algorithm = suite.cipher.algorithm();
        let form = if suite.cipher == Cipher::ChaCha20Poly1305 { Form::ChaCha12 } else { Form::Gcm12 };
        let (key_len, iv_len) = (algorithm.key_len(), if form == Form::Gcm12 { 4 } else { NONCE_LEN });
        // client key, server key, client iv, server iv; AEADs have no MAC keys
        let mut block = [0; 2 * (32 + NONCE_LEN)];
        let block = block.get_mut(..2 * (key_len + iv_len))?;
        prf(suite.hash, master.as_bytes(), b"key expansion", &[server_random, client_random], block);
        let (keys, ivs) = block.split_at(2 * key_len);
        let who = usize::from(server);
        let mut iv = [0; NONCE_LEN];
        iv.get_mut(..iv_len)?.copy_from_slice(ivs.get(who * iv_len..)?.get(..iv_len)?);
        let key = keys.get(who * key_len..)?.get(..key_len)?;
        Some(Self { key: LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?), iv, form })
    }

    /// How nonce and additional data are made.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// Opens a whole record (header included) with sequence number `seq`: its content type and its plaintext, which is in `into`.
    /// `None` when the tag does not fit.
    pub fn open<'a>(&self, seq: u64, record: &[u8], into: &'a mut Vec<u8>) -> Option<(u8, &'a [u8])> {
        let (header, body) = record.split_first_chunk::<HEADER>()?;
        let kind = header[0];
        let explicit = self.form.overhead() - TAG;
        let (nonce_part, sealed) = body.split_at_checked(explicit)?;
        let (ciphertext, tag) = sealed.split_last_chunk::<TAG>()?;
        let mut nonce = self.iv;
        if explicit > 0 {
            nonce.get_mut(4..)?.copy_from_slice(nonce_part);
        } else {
            nonce.iter_mut().skip(4).zip(seq.to_be_bytes()).for_each(|(n, s)| *n ^= s);
        }
        into.clear();
        into.extend_from_slice(ciphertext);
        let (nonce, tag) = (Nonce::assume_unique_for_key(nonce), Tag::from(*tag));
        let plain = if self.form == Form::Tls13 {
            self.key.open_in_place_separate_tag(nonce, Aad::from(header), tag, into, 0..)
        } else {
            let mut data = [0; 13];
            data[..8].copy_from_slice(&seq.to_be_bytes());
            data[8..11].copy_from_slice(&header[..3]);
            data[11..].copy_from_slice(&(ciphertext.len() as u16).to_be_bytes());
            self.key.open_in_place_separate_tag(nonce, Aad::from(data), tag, into, 0..)
        };
        let plain: &[u8] = plain.ok()?;
        if self.form != Form::Tls13 {
            return Some((kind, plain));
        }
        // padding is zeros; the last byte before it is the type
        let end = plain.iter().rposition(|b| *b != 0)?;
        Some((plain[end], &plain[..end]))
    }

    /// Seals a record, for tests: the reverse of [`Opener::open`]. TLS 1.3 gets `padding` zeros.
    #[cfg(any(test, feature = "testing"))]
    pub fn seal(&self, seq: u64, kind: u8, plain: &[u8], padding: usize) -> Option<Vec<u8>> {
        let mut inner = plain.to_vec();
        if self.form == Form::Tls13 {
            inner.push(kind);
            inner.resize(inner.len() + padding, 0);
        }
        let outer = if self.form == Form::Tls13 { 23 } else { kind };
        let len = (inner.len() + self.form.overhead()) as u16;
        let header = [outer, 3, 3, (len >> 8) as u8, len as u8];
        let mut nonce = self.iv;
        let explicit = seq.wrapping_mul(3).to_be_bytes();
        if self.form == Form::Gcm12 {
            nonce.get_mut(4..)?.copy_from_slice(&explicit);
        } else {
            nonce.iter_mut().skip(4).zip(seq.to_be_bytes()).for_each(|(n, s)| *n ^= s);
        }
        let data = [&seq.to_be_bytes()[..], &header[..3], &(inner.len() as u16).to_be_bytes()].concat();
        let data = if self.form == Form::Tls13 { header.to_vec() } else { data };
        self.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(data), &mut inner).ok()?;
        let explicit = if self.form == Form::Gcm12 { &explicit[..] } else { &[] };
        Some([&header[..], explicit, &inner].concat())
    }
}

/// The traffic secret after a key update (RFC 8446 §7.2).
pub fn updated(hash: Hash, secret: &Secret) -> Option<Secret> {
    let mut next = [0; 48];
    let next = next.get_mut(..hash.size())?;
    expand_label(hash, secret, b"traffic upd", next)?;
    Secret::new(next)
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 §7.1). `None` when the secret's length is not the hash's.
fn expand_label(hash: Hash, secret: &Secret, label: &[u8], out: &mut [u8]) -> Option<()> {
    if secret.as_bytes().len() != hash.size() {
        return None;
    }
    let algorithm = match hash {
        Hash::Sha256 => hkdf::HKDF_SHA256,
        Hash::Sha384 => hkdf::HKDF_SHA384,
    };
    let length = (out.len() as u16).to_be_bytes();
    let label_length = [(b"tls13 ".len() + label.len()) as u8];
    let info: [&[u8]; 5] = [&length, &label_length, b"tls13 ", label, &[0]];
    hkdf::Prk::new_less_safe(algorithm, secret.as_bytes()).expand(&info, Length(out.len())).ok()?.fill(out).ok()
}

/// The PRF of TLS 1.2 (RFC 5246 §5).
fn prf(hash: Hash, secret: &[u8], label: &[u8], seeds: &[&[u8]], out: &mut [u8]) {
    let algorithm = match hash {
        Hash::Sha256 => hmac::HMAC_SHA256,
        Hash::Sha384 => hmac::HMAC_SHA384,
    };
    let key = hmac::Key::new(algorithm, secret);
    let feed = |context: &mut hmac::Context| {
        context.update(label);
        seeds.iter().for_each(|seed| context.update(seed));
    };
    let mut context = hmac::Context::with_key(&key);
    feed(&mut context);
    let mut a = context.sign();
    for piece in out.chunks_mut(hash.size()) {
        let mut context = hmac::Context::with_key(&key);
        context.update(a.as_ref());
        feed(&mut context);
        piece.iter_mut().zip(context.sign().as_ref()).for_each(|(to, from)| *to = *from);
        a = hmac::sign(&key, a.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
    }

    fn secret(hex: &str) -> Secret {
        Secret::new(&bytes(hex)).unwrap()
    }

    #[test]
    fn record_keys_of_rfc_8448_section_3() {
        let server = secret("b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38");
        let client = secret("b3eddb126e067f35a780b3abf45e2d8f3b1a950738f52e9600746a0e27a55a21");
        for (secret, key, iv) in [
            (&server, "3fce516009c21727d0f2e4e86ee403bc", "5d313eb2671276ee13000b30"),
            (&client, "dbfaa693d1762c5b666af5d950258d01", "5bd3c71b836e0b76bb73265f"),
        ] {
            let (mut k, mut i) = ([0; 16], [0; 12]);
            expand_label(Hash::Sha256, secret, b"key", &mut k).unwrap();
            expand_label(Hash::Sha256, secret, b"iv", &mut i).unwrap();
            assert_eq!((k.to_vec(), i.to_vec()), (bytes(key), bytes(iv)));
        }
        assert!(expand_label(Hash::Sha384, &server, b"key", &mut [0; 32]).is_none());
    }

    #[test]
    fn records_of_rfc_8448_section_3() {
        let suite = Suite::from_number(0x1301).unwrap();
        let client = secret("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
        let server = secret("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
        let data: Vec<u8> = (0..50).collect();
        let mut into = Vec::new();
        for (secret, seq, record, kind, plain) in [
            (
                &client,
                0,
                "17 03 03 00 43 a2 3f 70 54 b6 2c 94 d0 af fa fe 82 28 ba 55 cb ef ac ea 42 f9 14 aa 66 bc ab 3f 2b 98 19 a8 a5 b4 6b 39 5b d5
                 4a 9a 20 44 1e 2b 62 97 4e 1f 5a 62 92 a2 97 70 14 bd 1e 3d ea e6 3a ee bb 21 69 49 15 e4",
                23,
                &data[..],
            ),
            (
                &server,
                1,
                "17 03 03 00 43 2e 93 7e 11 ef 4a c7 40 e5 38 ad 36 00 5f c4 a4 69 32 fc 32 25 d0 5f 82 aa 1b 36 e3 0e fa f9 7d 90 e6 df fc 60
                 2d cb 50 1a 59 a8 fc c4 9c 4b f2 e5 f0 a2 1c 00 47 c2 ab f3 32 54 0d d0 32 e1 67 c2 95 5d",
                23,
                &data[..],
            ),
            (&client, 1, "17 03 03 00 13 c9 87 27 60 65 56 66 b7 4d 7f f1 15 3e fd 6d b6 d0 b0 e3", 21, &[1, 0]),
            (&server, 2, "17 03 03 00 13 b5 8f d6 71 66 eb f5 99 d2 47 20 cf be 7e fa 7a 88 64 a9", 21, &[1, 0]),
        ] {
            let opener = Opener::tls13(suite, secret).unwrap();
            assert_eq!(opener.open(seq, &bytes(record), &mut into), Some((kind, plain)));
            assert_eq!(opener.open(seq + 1, &bytes(record), &mut into), None);
            assert_eq!(opener.seal(seq, kind, plain, 0).unwrap(), bytes(record));
        }
    }

    /// The vectors of the P_hash that the authors of TLS 1.2 published for SHA-256 and SHA-384 (IETF TLS list, 2009).
    #[test]
    fn the_prf_of_tls_1_2() {
        for (hash, key, seed, want) in [
            (
                Hash::Sha256,
                "9bbe436ba940f017b17652849a71db35",
                "a0ba9f936cda311827a6f796ffd5198c",
                "e3f229ba727be17b8d122620557cd453c2aab21d07c3d495329b52d4e61edb5a6b301791e90d35c9c9a46b4e14baf9af0fa022f7077def17
                 abfd3797c0564bab4fbc91666e9def9b97fce34f796789baa48082d122ee42c5a72e5a5110fff70187347b66",
            ),
            (
                Hash::Sha384,
                "b80b733d6ceefcdc71566ea48e5567df",
                "cd665cf6a8447dd6ff8b27555edb7465",
                "7b0c18e9ced410ed1804f2cfa34a336a1c14dffb4900bb5fd7942107e81c83cde9ca0faa60be9fe34f82b1233c9146a0e534cb400fed2700
                 884f9dc236f80edd8bfa961144c9e8d792eca722a7b32fc3d416d473ebc2c5fd4abfdad05d9184259b5bf8cd4d90fa0d31e2dec479e4f1a2
                 6066f2eea9a69236a3e52655c9e9aee691c8f3a26854308d5eaa3be85e0990703d73e56f",
            ),
        ] {
            let (want, seed) = (bytes(want), bytes(seed));
            let mut out = vec![0; want.len()];
            prf(hash, &bytes(key), b"test label", &[&seed[..5], &seed[5..]], &mut out);
            assert_eq!(out, want);
        }
    }

    /// Against Python's `hmac`: RFC 8448 holds no key update.
    #[test]
    fn the_next_traffic_secret() {
        let of = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
        let next = updated(Hash::Sha256, &secret(of)).unwrap();
        assert_eq!(next, secret("51921b8aa3001976eb401d0a4319a8516416a6c56001a357e5d162031e84f916"));
        let next = updated(Hash::Sha384, &secret(&format!("{of}{}", &of[..32]))).unwrap();
        assert_eq!(next, secret("1c5072514f2fa5b6ab37e875bad379d8a80e19548c066ead167ccc8c82126441c72928c0a685f0a683cdf4391af91230"));
    }

    #[test]
    fn suites() {
        let of = |n| Suite::from_number(n).map(|s| (s.cipher, s.hash, s.tls13));
        assert_eq!(of(0x1302), Some((Cipher::Aes256Gcm, Hash::Sha384, true)));
        assert_eq!(of(0x009c), Some((Cipher::Aes128Gcm, Hash::Sha256, false))); // RSA_WITH_AES_128_GCM_SHA256
        assert_eq!(of(0x009f), Some((Cipher::Aes256Gcm, Hash::Sha384, false))); // DHE_RSA_WITH_AES_256_GCM_SHA384
        assert_eq!(of(0xc02f), Some((Cipher::Aes128Gcm, Hash::Sha256, false))); // ECDHE_RSA_WITH_AES_128_GCM_SHA256
        assert_eq!(of(0xc02c), Some((Cipher::Aes256Gcm, Hash::Sha384, false))); // ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        assert_eq!(of(0xcca8), Some((Cipher::ChaCha20Poly1305, Hash::Sha256, false)));
        for other in [0, 0x002f, 0xc013, 0x1304, 0xc02a, 0xc033, 0x009b, 0x00ae, 0xcca7, 0xccaf] {
            assert_eq!(of(other), None, "{other:04x}");
        }
    }
}
