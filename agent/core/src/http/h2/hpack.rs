//! Header compression of HTTP/2 (RFC 7541): the decoder of one direction.
//!
//! Our own, since no crate does what an onlooker needs: `hpack` has been left since 2016, its copy `loona-hpack` and `httlib-hpack` yield
//! owned pairs of every field, credentials included, the decoders of `h2` and `hyper` are not public, and none of them can go on
//! when a part of the stream was not seen. Here
//!
//! * only what the caller asks for is copied ([`Keep`]): of any other entry of the dynamic table the size is all that is held, so
//!   no credential is;
//! * a table of which a part is unknown (the connection was joined in its middle, or a hole hid a header block) still serves static
//!   and literal fields and everything that was inserted since ([`Decoder::lose`]);
//! * the table is bounded by what the peer's SETTINGS allow and by [`MAX_TABLE`], a block's output by [`MAX_LIST`].

use std::borrow::Cow;
use std::collections::VecDeque;

use super::huffman;

/// Entries of more than so many bytes together, by RFC 7541's measure, are forgotten from the old end, whatever SETTINGS allow.
pub const MAX_TABLE: usize = 64 << 10;
/// Bytes of fields, by RFC 7541's measure, that one block may yield. What is beyond is read but not told.
pub const MAX_LIST: usize = 256 << 10;
/// The size of a table before SETTINGS say otherwise (RFC 9113 §6.5.2).
pub const DEFAULT_TABLE: u32 = 4096;
/// What an entry costs beside its bytes (RFC 7541 §4.1).
const OVERHEAD: usize = 32;

/// Says of a field whether it is looked at, and what of its value is told and may be held in the table.
pub trait Keep {
    /// `None` of a field that is not looked at, whatever its value.
    fn keep<'a>(&self, name: &[u8], value: &'a [u8]) -> Option<Cow<'a, [u8]>>;
}

/// [`Keep`] as a function.
pub type Kept = for<'a> fn(&[u8], &'a [u8]) -> Option<Cow<'a, [u8]>>;

impl Keep for Kept {
    fn keep<'a>(&self, name: &[u8], value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        self(name, value)
    }
}

/// A field of a header block that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field<'a> {
    /// Name and value.
    Known(&'a [u8], &'a [u8]),
    /// It refers to an entry that was not seen.
    Unknown,
}

/// Why a header block cannot be read. After it the table is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadBlock {
    /// It ends within a field.
    CutOff,
    /// An integer beyond all bounds.
    Integer,
    /// A string whose Huffman code is none.
    Huffman,
    /// An index of no entry.
    Index,
    /// A size update behind a field, or beyond what SETTINGS allow.
    SizeUpdate,
}

/// The decoder of one direction.
#[derive(Debug)]
pub struct Decoder<K = Kept> {
    /// What is told and held. What was held before it changed stays as it is.
    pub keep: K,
    /// Newest first.
    entries: VecDeque<Entry>,
    /// The sum of the entries' sizes; where a name is unseen, less than the truth.
    size: usize,
    /// Bytes of text that the entries hold.
    held: usize,
    /// The size that the encoder chose.
    capacity: usize,
    /// The size that it may choose.
    limit: usize,
    /// Whether `capacity` is the encoder's, so that what falls out here has fallen out there.
    exact: bool,
    /// Whether there are entries behind the known ones.
    more: bool,
}

/// An entry of the dynamic table.
#[derive(Debug)]
struct Entry {
    size: u32,
    /// The name's length; `None` when the name was not seen.
    name: Option<u32>,
    /// Name and what is kept of the value, if the field is looked at.
    text: Option<Box<[u8]>>,
}

/// What an index or a name stands for.
#[derive(Clone, Copy)]
enum Found<'a> {
    Field(&'a [u8], &'a [u8]),
    /// A field that is not looked at; the length of its name.
    Passed(usize),
    Unseen,
}

impl Decoder {
    /// A decoder at the beginning of a connection, which yields what `keep` wants.
    pub fn new(keep: Kept) -> Self {
        Self::keeping(keep)
    }
}

impl<K: Keep + Clone> Decoder<K> {
    /// A decoder at the beginning of a connection, which yields what `keep` wants.
    ///
    /// `keep` is asked with an empty value first: what it does not want is not decoded.
    pub fn keeping(keep: K) -> Self {
        let capacity = DEFAULT_TABLE as usize;
        Self { keep, entries: VecDeque::new(), size: 0, held: 0, capacity, limit: capacity, exact: true, more: false }
    }

    /// Blocks of this direction were not seen: what is in the table is unknown, and how large it may be.
    pub fn lose(&mut self) {
        *self = Self { capacity: MAX_TABLE, limit: u32::MAX as usize, exact: false, more: true, ..Self::keeping(self.keep.clone()) };
    }

    /// Takes SETTINGS_HEADER_TABLE_SIZE of the side that reads these blocks. A smaller one than before changes nothing: the encoder
    /// may use the larger one until it has acknowledged, and then says so itself.
    pub fn allow(&mut self, size: u32) {
        self.limit = self.limit.max(size as usize);
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.held + self.entries.capacity() * size_of::<Entry>()
    }

    /// Decodes a whole header block.
    ///
    /// # Errors
    /// When it cannot be read; then [`Self::lose`] must follow, since what it would have inserted is unknown.
    pub fn decode(&mut self, block: &[u8], out: &mut dyn FnMut(Field<'_>)) -> Result<(), BadBlock> {
        let (mut input, mut room, mut begun) = (block, MAX_LIST, false);
        let (mut name_buffer, mut value_buffer) = (Vec::new(), Vec::new());
        while let Some(&first) = input.first() {
            if first & 0xe0 == 0x20 {
                // A size update stands before all fields (RFC 7541 §4.2).
                let size = integer(&mut input, 5)?;
                if begun || size > self.limit {
                    return Err(BadBlock::SizeUpdate);
                }
                self.resize(size);
                continue;
            }
            begun = true;
            if first & 0x80 != 0 {
                let index = integer(&mut input, 7)?;
                self.find(index)?.tell(&mut room, out);
                continue;
            }
            let insert = first & 0x40 != 0;
            let index = integer(&mut input, if insert { 6 } else { 4 })?;
            let name = match index {
                0 => Found::Field(text(&mut input)?.decoded(&mut name_buffer)?, &[]),
                _ => self.find(index)?,
            };
            let value = text(&mut input)?;
            let entry = match name {
                Found::Field(name, _) if self.keep.keep(name, &[]).is_some() => {
                    let value = value.decoded(&mut value_buffer)?;
                    let kept = self.keep.keep(name, value).unwrap_or_default();
                    Found::Field(name, &kept).tell(&mut room, out);
                    Entry::new(Some(name.len()), value.len(), insert.then(|| [name, &kept].concat().into()))
                }
                Found::Field(name, _) => Entry::new(Some(name.len()), value.len()?, None),
                Found::Passed(name) => Entry::new(Some(name), value.len()?, None),
                Found::Unseen => {
                    Found::Unseen.tell(&mut room, out);
                    Entry::new(None, value.len()?, None)
                }
            };
            if insert {
                self.insert(entry);
            }
        }
        Ok(())
    }

    fn find(&self, index: usize) -> Result<Found<'_>, BadBlock> {
        let Some(nth) = index.checked_sub(1) else { return Err(BadBlock::Index) };
        if let Some((name, value)) = STATIC.get(nth) {
            return Ok(Found::Field(name.as_bytes(), value.as_bytes()));
        }
        match self.entries.get(nth - STATIC.len()) {
            Some(Entry { name: None, .. }) => Ok(Found::Unseen),
            Some(Entry { name: Some(n), text: Some(text), .. }) => {
                let (name, value) = text.split_at(*n as usize);
                Ok(Found::Field(name, value))
            }
            Some(Entry { name: Some(n), text: None, .. }) => Ok(Found::Passed(*n as usize)),
            None if self.more => Ok(Found::Unseen),
            None => Err(BadBlock::Index),
        }
    }

    fn resize(&mut self, size: usize) {
        self.capacity = size;
        self.exact = size <= MAX_TABLE;
        self.evict(size.min(MAX_TABLE));
    }

    fn insert(&mut self, entry: Entry) {
        let size = entry.size as usize;
        // One that is larger than the table empties it (RFC 7541 §4.4).
        self.evict(self.capacity.min(MAX_TABLE).saturating_sub(size));
        if size <= self.capacity.min(MAX_TABLE) {
            self.size += size;
            self.held += entry.text.as_ref().map_or(0, |t| t.len());
            self.entries.push_front(entry);
        } else {
            self.more |= size <= self.capacity;
        }
    }

    /// Lets the oldest go until `most` bytes are left.
    fn evict(&mut self, most: usize) {
        while self.size > most
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size as usize;
            self.held -= oldest.text.map_or(0, |t| t.len());
            self.more |= !self.exact;
        }
        if self.exact && self.size + OVERHEAD > most {
            // There is no room for an unseen one.
            self.more = false;
        }
    }
}

impl Entry {
    fn new(name: Option<usize>, value: usize, text: Option<Box<[u8]>>) -> Self {
        let size = name.unwrap_or(0) + value + OVERHEAD;
        let fits = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self { size: fits(size), name: name.map(fits), text }
    }
}

impl Found<'_> {
    /// Yields a field, as long as there is room.
    fn tell(self, room: &mut usize, out: &mut dyn FnMut(Field<'_>)) {
        let (field, size) = match self {
            Self::Field(name, value) => (Field::Known(name, value), name.len() + value.len() + OVERHEAD),
            Self::Unseen => (Field::Unknown, OVERHEAD),
            Self::Passed(_) => return,
        };
        if let Some(left) = room.checked_sub(size) {
            *room = left;
            out(field);
        } else {
            *room = 0;
        }
    }
}

/// An integer with a prefix of `prefix` bits (RFC 7541 §5.1).
fn integer(input: &mut &[u8], prefix: u32) -> Result<usize, BadBlock> {
    let (first, mut rest) = input.split_first().ok_or(BadBlock::CutOff)?;
    let most = (1u64 << prefix) - 1;
    let mut value = u64::from(*first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (byte, tail) = rest.split_first().ok_or(BadBlock::CutOff)?;
            rest = tail;
            // Five bytes hold whatever 32 bits can say.
            if shift > 28 {
                return Err(BadBlock::Integer);
            }
            value += u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *input = rest;
    u32::try_from(value).map(|v| v as usize).map_err(|_| BadBlock::Integer)
}

/// A string as it is in the block.
#[derive(Clone, Copy)]
struct Coded<'a> {
    bytes: &'a [u8],
    huffman: bool,
}

/// A string literal (RFC 7541 §5.2).
fn text<'a>(input: &mut &'a [u8]) -> Result<Coded<'a>, BadBlock> {
    let huffman = input.first().ok_or(BadBlock::CutOff)? & 0x80 != 0;
    let len = integer(input, 7)?;
    let (bytes, rest) = input.split_at_checked(len).ok_or(BadBlock::CutOff)?;
    *input = rest;
    Ok(Coded { bytes, huffman })
}

impl<'a> Coded<'a> {
    /// The string; `buffer` holds it where it must be decoded.
    fn decoded<'b>(self, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], BadBlock>
    where
        'a: 'b,
    {
        if !self.huffman {
            return Ok(self.bytes);
        }
        buffer.clear();
        huffman::decode(self.bytes, |b| buffer.push(b)).map_err(|_| BadBlock::Huffman)?;
        Ok(buffer)
    }

    /// Its length when decoded.
    fn len(self) -> Result<usize, BadBlock> {
        if !self.huffman {
            return Ok(self.bytes.len());
        }
        let mut len = 0;
        huffman::decode(self.bytes, |_| len += 1).map_err(|_| BadBlock::Huffman)?;
        Ok(len)
    }
}

/// The static table (RFC 7541 Appendix A).
pub const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests;
