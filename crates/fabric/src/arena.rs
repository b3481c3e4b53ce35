//! Memory that a device was told of once, lent as buffers of one length.
//!
//! A NIC moves bytes only into and out of memory that was registered with it, which costs far too much to be done per
//! verb. So an [`Arena`] is registered as a whole and divided into blocks; a [`PageBuf`] of one of them is like any other,
//! but has a key by which the device knows it. A block goes back when its buffer is dropped, wherever that is, and the
//! arena lasts until its last block is back and nobody holds it any more.

use std::any::Any;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{PageBuf, WORD};

/// What a device says of memory that it was told of.
pub struct Registration {
    /// Which device, among those of this process.
    pub device: u64,
    /// The device's name for the memory.
    pub key: u32,
    /// Has the device forget the memory when it is dropped.
    pub guard: Box<dyn Any + Send + Sync>,
}

/// Registered blocks of one length. See the module documentation.
pub struct Arena {
    // Dropped in this order: the device forgets the memory before it goes.
    registration: Registration,
    words: Box<[AtomicU64]>,
    block_words: usize,
    /// Numbers of the blocks that nobody has.
    free: Mutex<Vec<usize>>,
}

impl Arena {
    /// `blocks` zeroed blocks of `block_len` bytes each, which `register` makes known to a device.
    ///
    /// # Errors
    /// Those of `register`.
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

    /// A buffer of a block that nobody has, if there is one. Its content may be anything.
    pub fn take(self: &Arc<Self>) -> Option<PageBuf> {
        let number = self.free().pop()?;
        Some(PageBuf::of_block(Block { arena: Arc::clone(self), number }))
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

/// One block of an arena, while a buffer has it.
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

    /// The device's name for the memory, if it is device `device`.
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
