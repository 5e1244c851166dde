//! A file that several taps read side by side, each of them all of it: what one of them has read the others need not read again.
//!
//! The file is read in blocks, each by the first tap that comes to it, and kept until the last one is done with it. So the kernel's copy is
//! made once, however many threads there are, and a thread that is ahead waits when it is [`AHEAD`] blocks in front of the slowest. Between two
//! blocks there is one lock; within a block there is none.
//!
//! # What it gave
//! With two threads that each read the file for themselves a third of what the second one cost was the second copy.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of a block: a few hundred packets for each turn of the lock, and not too much for the caches.
const SIZE: usize = 1 << 18;
/// Blocks that are kept at a time.
const AHEAD: usize = 8;

/// A file in blocks.
#[derive(Debug)]
pub struct Blocks {
    file: File,
    size: usize,
    state: Mutex<State>,
    /// A block was read, or is no longer needed.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The number of the first block that is kept.
    first: u64,
    kept: VecDeque<Slot>,
    /// Who reads and has not left.
    readers: usize,
    /// Where blocks lay that nobody needs any more.
    spare: Vec<Vec<u8>>,
    /// The last block, once it was read.
    last: Option<u64>,
    failed: Option<(ErrorKind, String)>,
}

#[derive(Debug)]
struct Slot {
    /// `None` while somebody reads it.
    block: Option<Arc<Vec<u8>>>,
    /// Readers that are not done with it.
    left: usize,
}

/// One of those that read all blocks. Whoever stops early drops it.
#[derive(Debug)]
pub struct Reader {
    blocks: Arc<Blocks>,
    next: u64,
    at_hand: Option<Arc<Vec<u8>>>,
}

impl Blocks {
    /// Opens a file; its readers are made before any of them reads.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        Ok(Arc::new(Self::new(File::open(path)?, SIZE)))
    }

    pub(super) fn new(file: File, size: usize) -> Self {
        let state = State { first: 0, kept: VecDeque::new(), readers: 0, spare: Vec::new(), last: None, failed: None };
        Self { file, size, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Block `number`, for one who is done with all before it.
    fn block(&self, number: u64) -> Result<Option<Arc<Vec<u8>>>> {
        let mut state = self.lock();
        loop {
            if let Some((kind, what)) = &state.failed {
                return Err(Error::new(*kind, what.clone()));
            }
            if state.last.is_some_and(|last| number > last) {
                return Ok(None);
            }
            let Some(place) = state.place(number) else { return Err(Error::other("a reader came too late")) };
            match state.kept.get(place) {
                Some(Slot { block: Some(block), .. }) => return Ok(Some(Arc::clone(block))),
                None if place == state.kept.len() && place < AHEAD => {
                    let left = state.readers;
                    state.kept.push_back(Slot { block: None, left });
                    let buffer = state.spare.pop().unwrap_or_default();
                    drop(state);
                    let read = self.read(number, buffer);
                    state = self.lock();
                    match read {
                        Ok(block) => {
                            if block.len() < self.size {
                                state.last = Some(number);
                            }
                            // Nobody is done with it, so it is there.
                            if let Some(slot) = state.place(number).and_then(|place| state.kept.get_mut(place)) {
                                slot.block = Some(Arc::new(block));
                            }
                        }
                        Err(error) => state.failed = Some((error.kind(), error.to_string())),
                    }
                    self.changed.notify_all();
                }
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn read(&self, number: u64, mut buffer: Vec<u8>) -> Result<Vec<u8>> {
        buffer.resize(self.size, 0);
        let (begin, mut filled) = (number * self.size as u64, 0);
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], begin + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        buffer.truncate(filled);
        Ok(buffer)
    }

    /// One reader is done with the blocks from `number` on: with that one only, or, when it leaves, with all that will come.
    fn done(&self, number: u64, leaves: bool) {
        let mut state = self.lock();
        let Some(place) = state.place(number) else { return };
        let count = if leaves { usize::MAX } else { 1 };
        state.kept.iter_mut().skip(place).take(count).for_each(|slot| slot.left -= 1);
        state.readers -= usize::from(leaves);
        while let Some(slot) = state.kept.pop_front_if(|slot| slot.left == 0 && slot.block.is_some()) {
            state.first += 1;
            if let Some(buffer) = slot.block.and_then(Arc::into_inner) {
                state.spare.push(buffer);
            }
        }
        self.changed.notify_all();
    }
}

impl State {
    /// Where block `number` stands among those that are kept, or will.
    fn place(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).and_then(|place| usize::try_from(place).ok())
    }
}

impl Reader {
    /// One of the readers.
    pub fn new(blocks: Arc<Blocks>) -> Self {
        blocks.lock().readers += 1;
        Self { blocks, next: 0, at_hand: None }
    }

    /// The next block; `None` at the end of the file.
    ///
    /// # Errors
    /// When it cannot be read, for every reader alike.
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.at_hand.take().is_some() {
            self.blocks.done(self.next - 1, false);
        }
        self.at_hand = self.blocks.block(self.next)?;
        self.next += u64::from(self.at_hand.is_some());
        Ok(self.at_hand.as_ref().map(|block| block.as_slice()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let number = self.next - u64::from(self.at_hand.take().is_some());
        self.blocks.done(number, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn blocks(content: &[u8], size: usize) -> Arc<Blocks> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        Arc::new(Blocks::new(file, size))
    }

    #[test]
    fn everyone_reads_all_of_it() {
        let content: Vec<u8> = (0..100_000_u32).map(|n| ((n * 31) >> 3) as u8).collect();
        for (len, size) in [(0, 10), (9, 10), (10, 10), (100_000, 1000), (99_999, 777)] {
            let all = blocks(&content[..len], size);
            let readers: Vec<_> = (0..4).map(|_| Reader::new(Arc::clone(&all))).collect();
            std::thread::scope(|scope| {
                for (n, mut reader) in readers.into_iter().enumerate() {
                    let content = &content[..len];
                    scope.spawn(move || {
                        let mut got = Vec::new();
                        while let Some(block) = reader.next().unwrap() {
                            got.extend_from_slice(block);
                            // The last one stops in the middle, and holds up nobody.
                            if n == 3 && got.len() > len / 2 {
                                return;
                            }
                        }
                        assert!(got == content);
                        assert!(reader.next().unwrap().is_none());
                    });
                }
            });
            let state = all.lock();
            assert!(state.readers == 0 && state.kept.is_empty() && state.spare.len() <= AHEAD, "{state:?}");
        }
    }

    #[test]
    fn who_is_ahead_waits() {
        let all = blocks(&[7; 1000], 10);
        let (mut slow, mut fast) = (Reader::new(Arc::clone(&all)), Reader::new(Arc::clone(&all)));
        for _ in 0..AHEAD {
            assert_eq!(fast.next().unwrap(), Some(&[7; 10][..]));
        }
        assert_eq!(all.lock().kept.len(), AHEAD);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| fast.next().unwrap().is_some());
            assert!(slow.next().unwrap().is_some() && slow.next().unwrap().is_some());
            assert!(waits.join().unwrap());
        });
        assert!(all.lock().kept.len() <= AHEAD);
    }

    #[test]
    fn an_error_is_everybodys() {
        let directory = Arc::new(Blocks::new(File::open("/").unwrap(), 10));
        let (mut one, mut other) = (Reader::new(Arc::clone(&directory)), Reader::new(directory));
        assert_eq!(one.next().unwrap_err().kind(), other.next().unwrap_err().kind());
    }
}
