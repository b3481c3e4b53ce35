//! Memory registered once with a device and lent as buffers of one length.
//!
//! A NIC reads and writes only registered memory, and registration is far too expensive to be done per verb.
//! So an [`Arena`] is registered as a whole and divided into blocks. A [`crate::PageBuf`] over a block is like
//! any other, but carries the key by which the device knows the memory. A block is returned when its buffer is
//! dropped, on any thread. The arena lives until its last block is back and its last handle is dropped.

use std::any::Any;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::WORD;

/// Registration of memory with a device.
pub struct Registration {
    /// Number of the device within this process.
    pub device: u64,
    /// The device's key for the memory.
    pub key: u32,
    /// Deregisters the memory when dropped.
    pub guard: Box<dyn Any + Send + Sync>,
}

/// Registered blocks of one length. See the module documentation.
pub struct Arena {
    // Drop order: the memory is deregistered before it is freed.
    registration: Registration,
    words: Box<[AtomicU64]>,
    block_words: usize,
    /// Numbers of the free blocks.
    free: Mutex<Vec<usize>>,
}

impl Arena {
    /// Creates `blocks` zeroed blocks of `block_len` bytes each; `register` registers them with a device.
    ///
    /// # Errors
    /// Errors of `register`.
    ///
    /// # Panics
    /// If `block_len` is 0 or not a multiple of 8.
    pub fn new<E>(
        block_len: usize,
        blocks: usize,
        register: impl FnOnce(&[AtomicU64]) -> Result<Registration, E>,
    ) -> Result<Arc<Self>, E> {
        assert!(block_len > 0 && block_len.is_multiple_of(WORD), "blocks of {block_len} bytes");
        let block_words = block_len / WORD;
        let words: Box<[AtomicU64]> = (0..block_words * blocks).map(|_| AtomicU64::new(0)).collect();
        let registration = register(&words)?;
        let free = Mutex::new((0..blocks).rev().collect());
        Ok(Arc::new(Self { registration, words, block_words, free }))
    }

    /// Bytes of each block.
    pub fn block_len(&self) -> usize {
        self.block_words * WORD
    }

    /// Takes a free block; `None` if there is none.
    pub(crate) fn take_block(self: &Arc<Self>) -> Option<Block> {
        let number = self.free().pop()?;
        Some(Block { arena: Arc::clone(self), number })
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes in blocks of {})", self.words.len() * WORD, self.block_len())
    }
}

/// One block of an arena, owned by a buffer.
pub(crate) struct Block {
    arena: Arc<Arena>,
    number: usize,
}

impl Block {
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        let len = self.arena.block_words;
        &self.arena.words[self.number * len..][..len]
    }

    /// The device's key for the memory, if it is registered with device `device`.
    #[inline]
    pub fn key(&self, device: u64) -> Option<u32> {
        let registration = &self.arena.registration;
        (registration.device == device).then_some(registration.key)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.free().push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;
    use crate::PageBuf;

    struct Guard(Arc<AtomicBool>);

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }

    #[test]
    fn blocks_come_back_and_the_registration_lasts_as_long_as_they_are_out() {
        let is_gone = Arc::new(AtomicBool::new(false));
        let guard = Box::new(Guard(Arc::clone(&is_gone)));
        let register = |words: &[AtomicU64]| {
            assert_eq!(words.len(), 16);
            Ok::<_, ()>(Registration { device: 7, key: 42, guard })
        };
        let arena = Arena::new(64, 2, register).expect("it is registered");
        let (a, b) = (arena.take().expect("a block"), arena.take().expect("a block"));
        assert!(arena.take().is_none());
        assert_eq!((a.len(), a.key(7), a.key(8), PageBuf::zeroed(64).key(7)), (64, Some(42), None, None));
        a.set(7, 1);
        b.set(0, 2);
        assert_eq!((a.get(7), a.get(0), b.get(0)), (1, 0, 2));
        drop(a);
        let again = arena.take().expect("it came back");
        assert_eq!(again.get(7), 1);
        drop((arena, again));
        assert!(!is_gone.load(SeqCst), "a buffer is still out");
        drop(b);
        assert!(is_gone.load(SeqCst));
    }
}
