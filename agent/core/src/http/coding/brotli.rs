//! `br` (RFC 7932). What a large window extension would need (up to 1 GiB) is refused; the format's own windows end at 16 MiB.

use brotli_decompressor::{Allocator, BrotliDecompressStream, BrotliResult, BrotliState, HuffmanCode, SliceWrapper, SliceWrapperMut};

use super::{Library, Step};
use crate::anomaly::Anomaly;

/// A brotli stream.
pub struct Brotli(Box<BrotliState<Heap, Heap, Heap>>);

impl Brotli {
    /// A stream at its beginning.
    pub fn new() -> Self {
        Self(Box::new(BrotliState::new_strict(Heap::default(), Heap::default(), Heap::default())))
    }

    /// Bytes that are held. The ring buffer grows with what it holds, up to the window that the stream asks for.
    pub fn buffered(&self) -> usize {
        size_of_val(&*self.0) + self.0.alloc_u8.0 + self.0.alloc_u32.0 + self.0.alloc_hc.0
    }
}

impl Library for Brotli {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Anomaly> {
        let (mut left, mut used, mut room, mut made, mut total) = (input.len(), 0, output.len(), 0, 0);
        let result = BrotliDecompressStream(&mut left, &mut used, input, &mut room, &mut made, output, &mut total, &mut self.0);
        match result {
            BrotliResult::ResultFailure => Err(Anomaly::BadCoding),
            other => Ok(Step { used, made, ended: matches!(other, BrotliResult::ResultSuccess) }),
        }
    }
}

impl std::fmt::Debug for Brotli {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Brotli").field("buffered", &self.buffered()).finish()
    }
}

/// The global heap, with an account of the bytes that are in use.
#[derive(Default)]
pub struct Heap(usize);

/// What [`Heap`] gives.
pub struct Cells<T>(Vec<T>);

impl<T> Default for Cells<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> SliceWrapper<T> for Cells<T> {
    fn slice(&self) -> &[T] {
        &self.0
    }
}

impl<T> SliceWrapperMut<T> for Cells<T> {
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

macro_rules! heap {
    ($($t:ty),*) => {$(
        impl Allocator<$t> for Heap {
            type AllocatedMemory = Cells<$t>;

            fn alloc_cell(&mut self, len: usize) -> Cells<$t> {
                self.0 += len * size_of::<$t>();
                Cells(vec![<$t>::default(); len])
            }

            fn free_cell(&mut self, cells: Cells<$t>) {
                self.0 -= cells.0.len() * size_of::<$t>();
            }
        }
    )*};
}

heap!(u8, u32, HuffmanCode);
