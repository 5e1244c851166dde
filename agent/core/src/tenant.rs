//! Who asks, as a keyed hash (`record.md`, `request.tenant`): which fields of a request's head name the tenant, and what of them goes on.
//!
//! The clear value is hashed while the head is read; no type behind the parsers has a place for it. Without the key nobody can tell
//! whether a guessed name is one of them, and with another key every tenant has another name.

use std::fmt;

use ring::hmac;

/// Fewest bytes of a key: what is shorter can be tried out.
pub const MIN_KEY: usize = 16;
/// Most fields that may name the tenant.
pub const MAX_FIELDS: usize = 16;

/// A tenant: the first 64 bits of HMAC-SHA256 of its name, as 16 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant([u8; 16]);

impl Tenant {
    /// The tenant with this hash.
    pub fn new(hash: [u8; 8]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b'0'; 16];
        for (two, byte) in text.chunks_exact_mut(2).zip(hash) {
            two.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        Self(text)
    }

    /// Reads what [`Tenant::as_str`] gave.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: [u8; 16] = text.try_into().ok()?;
        text.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).then_some(Self(text))
    }

    /// Its digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Makes a tenant of its name.
pub trait Hasher: fmt::Debug + Send + Sync {
    /// The tenant of this name.
    fn hash(&self, name: &[u8]) -> Tenant;
}

/// A secret key.
pub struct Key(hmac::Key);

impl Key {
    /// A key of these bytes; `None` when there are fewer than [`MIN_KEY`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= MIN_KEY).then(|| Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Hasher for Key {
    fn hash(&self, name: &[u8]) -> Tenant {
        let tag = hmac::sign(&self.0, name);
        let mut hash = [0; 8];
        hash.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        Tenant::new(hash)
    }
}

/// Which fields name the tenant, in the order of preference, and who hashes.
#[derive(Debug)]
pub struct Tenants {
    fields: Vec<Box<str>>,
    hasher: Box<dyn Hasher>,
}

impl Tenants {
    /// The first of `fields` that a request has names its tenant; of more than [`MAX_FIELDS`] the rest is left out.
    pub fn new<'a>(fields: impl IntoIterator<Item = &'a str>, hasher: Box<dyn Hasher>) -> Self {
        Self { fields: fields.into_iter().take(MAX_FIELDS).map(|f| f.to_ascii_lowercase().into()).collect(), hasher }
    }

    /// How far behind the first a field stands in the order; `None` when it does not name the tenant.
    pub fn rank(&self, field: &[u8]) -> Option<u8> {
        self.fields.iter().position(|f| f.as_bytes().eq_ignore_ascii_case(field)).and_then(|n| u8::try_from(n).ok())
    }

    /// The tenant that the value of a field names.
    pub fn tenant(&self, field: &[u8], value: &[u8]) -> Option<Tenant> {
        name(field, value).map(|name| self.hasher.hash(name))
    }
}

/// What of a field's value stays the same from request to request of one tenant.
fn name<'a>(field: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let value = value.trim_ascii();
    let is = |n: &str| field.eq_ignore_ascii_case(n.as_bytes());
    let name = if is("authorization") || is("proxy-authorization") { credential(value)? } else { value };
    (!name.is_empty()).then_some(name)
}

/// The part of `Authorization` that says who it is (RFC 9110 §11.6.2): the token or the user with password, so that a key is the same tenant in this
/// field as in `x-api-key`; of AWS' signatures, which are others each time, the id of the access key.
fn credential(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at(memchr::memchr(b' ', value)?);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") || scheme.eq_ignore_ascii_case(b"basic") {
        return Some(rest);
    }
    if !scheme.starts_with(b"AWS4-") {
        return None;
    }
    let scope = rest.split(|b| *b == b',').find_map(|part| part.trim_ascii().strip_prefix(b"Credential="))?;
    scope.split(|b| *b == b'/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf %s NAME | openssl dgst -sha256 -hmac 0123456789abcdef | cut -c1-16`.
    #[test]
    fn the_hash_is_what_openssl_makes_of_it() {
        let key = Key::new(b"0123456789abcdef").unwrap();
        assert_eq!(key.hash(b"acme").as_str(), "42dd7a21e34198f4");
        assert_eq!(key.hash(b"").as_str(), "496dc93fa2d26eae");
        assert_ne!(Key::new(b"0123456789abcdeF").unwrap().hash(b"acme"), key.hash(b"acme"));
        assert!(Key::new(b"0123456789abcde").is_none());
        // RFC 4231, test case 2 has a key of four bytes, case 3 one of twenty.
        assert_eq!(Key::new(&[0xaa; 20]).unwrap().hash(&[0xdd; 50]).as_str(), "773ea91e36800e46");
    }

    #[test]
    fn a_tenant_is_sixteen_digits() {
        let tenant = Tenant::new([0, 1, 0x2f, 0xa0, 0xff, 7, 8, 9]);
        assert_eq!((tenant.as_str(), Tenant::parse(b"00012fa0ff070809")), ("00012fa0ff070809", Some(tenant)));
        for bad in ["", "00012fa0ff07080", "00012fa0ff0708091", "00012FA0ff070809", "00012ga0ff070809"] {
            assert_eq!(Tenant::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_key_is_one_tenant_in_whatever_field() {
        for (field, value, want) in [
            ("x-tenant-id", " acme ", Some("acme")),
            ("x-tenant-id", " ", None),
            ("x-api-key", "sk-1", Some("sk-1")),
            ("authorization", "Bearer sk-1", Some("sk-1")),
            ("Authorization", "bearer   sk-1", Some("sk-1")),
            ("authorization", "Basic dTpw", Some("dTpw")),
            ("authorization", "Bearer", None),
            ("authorization", "Bearer ", None),
            ("authorization", "Digest username=\"u\", response=\"x\"", None),
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=AKIAX/20260101/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=ab",
                Some("AKIAX"),
            ),
            ("authorization", "AWS4-HMAC-SHA256 SignedHeaders=host, Signature=ab", None),
        ] {
            assert_eq!(name(field.as_bytes(), value.as_bytes()), want.map(str::as_bytes), "{field}: {value}");
        }
    }

    #[test]
    fn fields_are_told_apart_by_their_order() {
        let key = Key::new(&[7; 16]).unwrap();
        let tenants = Tenants::new(["X-Tenant-Id", "authorization"], Box::new(key));
        assert_eq!((tenants.rank(b"x-tenant-ID"), tenants.rank(b"Authorization"), tenants.rank(b"x-tenant")), (Some(0), Some(1), None));
        let shown = format!("{tenants:?}");
        assert!(!shown.contains('7'), "{shown}");
    }
}
