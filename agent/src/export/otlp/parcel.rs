//! A request on its way: encoded, with what must be known of it while it waits.

use bytes::Bytes;

/// One encoded request.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Protobuf, as it is or packed.
    data: Data,
    /// Spans or data points in it.
    pub items: u32,
    /// When it was handed over, Unix nanoseconds.
    pub at: u64,
    /// Which reading of cumulative metrics it belongs to; `None`: it is not expendable.
    pub reading: Option<u64>,
}

#[derive(Clone, Debug)]
enum Data {
    Plain(Bytes),
    Packed(Bytes),
}

/// What was packed must not unpack to more than this.
const LARGEST: usize = 256 << 20;
/// zstd's fastest ordinary level: a tenth of the size for spans, at some hundred megabytes a second.
const LEVEL: i32 = 1;

impl Parcel {
    /// A parcel of a plain request.
    pub fn new(request: Vec<u8>, items: u32, at: u64, reading: Option<u64>) -> Self {
        Self { data: Data::Plain(request.into()), items, at, reading }
    }

    /// A parcel of what [`pack`] made.
    pub fn packed(data: Vec<u8>, items: u32, at: u64) -> Self {
        Self { data: Data::Packed(data.into()), items, at, reading: None }
    }

    /// Bytes that it takes in memory.
    pub fn size(&self) -> usize {
        match &self.data {
            Data::Plain(data) | Data::Packed(data) => data.len(),
        }
    }

    /// The request as a receiver wants it; `None` when what was packed is damaged.
    pub fn plain(&self) -> Option<Bytes> {
        match &self.data {
            Data::Plain(data) => Some(data.clone()),
            Data::Packed(data) => unpack(data).map(Bytes::from),
        }
    }

    /// The request packed, as it waits.
    pub fn to_packed(&self) -> Bytes {
        match &self.data {
            Data::Packed(data) => data.clone(),
            Data::Plain(data) => pack(data).unwrap_or_default().into(),
        }
    }

    /// Packs it, because it will wait for long.
    pub fn shrink(&mut self) {
        if let Data::Plain(data) = &self.data
            && let Ok(packed) = pack(data)
        {
            self.data = Data::Packed(packed.into());
        }
    }
}

/// Compresses by zstd.
///
/// # Errors
/// In zstd's words; there is no input that it does not take.
pub fn pack(plain: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut packed = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
    zstd_safe::compress(&mut packed, plain, LEVEL).map_err(zstd_safe::get_error_name)?;
    packed.shrink_to_fit();
    Ok(packed)
}

fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let len = zstd_safe::get_frame_content_size(packed).ok()??;
    let len = usize::try_from(len).ok().filter(|n| *n <= LARGEST)?;
    let mut plain = Vec::with_capacity(len);
    zstd_safe::decompress(&mut plain, packed).ok()?;
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_the_same_again() {
        let request: Vec<u8> = (0..50_000_u32).flat_map(|n| (n / 100).to_le_bytes()).collect();
        let mut parcel = Parcel::new(request.clone(), 7, 1, None);
        parcel.shrink();
        assert!(parcel.size() < request.len() / 5, "{}", parcel.size());
        assert_eq!(parcel.plain().unwrap(), request);
        let again = Parcel::packed(parcel.to_packed().to_vec(), 7, 1);
        assert_eq!(again.plain().unwrap(), request);
        assert_eq!(Parcel::new(Vec::new(), 0, 0, None).to_packed().len(), Parcel::packed(pack(&[]).unwrap(), 0, 0).size());
    }

    #[test]
    fn damage_is_seen_and_no_promise_is_believed() {
        let packed = pack(&[1; 1000]).unwrap();
        assert!(Parcel::packed(packed[..packed.len() - 2].to_vec(), 1, 0).plain().is_none());
        assert!(Parcel::packed(b"something else".to_vec(), 1, 0).plain().is_none());
        // A frame header that promises a terabyte.
        let promise = [&[0x28, 0xb5, 0x2f, 0xfd, 0b1110_0000][..], &(1_u64 << 40).to_le_bytes()].concat();
        assert!(Parcel::packed(promise, 1, 0).plain().is_none());
    }
}
