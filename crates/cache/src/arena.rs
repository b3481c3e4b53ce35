//! Memory of all frames: one mapping, type-stable for the life of the cache.
//!
//! An optimistic reader may follow a stale reference into any frame at any time. So frames are never returned
//! to the system, and their words are atomics that may be read while they change. Apart from the vector
//! compares in `rank.rs`, all unsafe code of the cache is here.

#![allow(unsafe_code)]

use crate::error::Result;
use crate::sync::Word;

#[cfg(not(any(loom, shuttle)))]
mod memory {
    use super::*;
    use crate::error::CacheError;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ptr::NonNull;

    /// Anonymous memory, zero until touched; on huge pages where the system offers them.
    pub struct Memory {
        base: NonNull<Word>,
        words: usize,
    }

    // SAFETY: this value owns the mapping and exposes it only as `&[AtomicU64]`, which any thread may use.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub fn zeroed(words: usize) -> Result<Self> {
            let bytes = words * size_of::<Word>();
            let no_memory = |error: rustix::io::Errno| CacheError::NoMemory {
                bytes: bytes as u64,
                reason: error.to_string(),
            };
            // SAFETY: a new private anonymous mapping at an address of the kernel's choice aliases nothing.
            let base = unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    bytes,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            }
            .map_err(no_memory)?;
            // SAFETY: the range is the mapping just made; the advice does not change its contents. Refusal is harmless.
            let _ = unsafe { madvise(base, bytes, Advice::LinuxHugepage) };
            let base = NonNull::new(base.cast()).expect("a successful mapping is not at address 0");
            Ok(Self { base, words })
        }

        #[inline]
        pub fn words(&self) -> &[Word] {
            // SAFETY: the mapping is page-aligned, zero-initialised (a valid AtomicU64), `words` long, and lives as
            // long as `self`.
            unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: `base` and `words` describe the mapping, and no reference outlives `self`.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * size_of::<Word>()) };
        }
    }
}

#[cfg(any(loom, shuttle))]
mod memory {
    use super::*;

    /// Words of the model checker, which only the checker can lay out.
    pub struct Memory(Box<[Word]>);

    impl Memory {
        pub fn zeroed(words: usize) -> Result<Self> {
            Ok(Self((0..words).map(|_| Word::new(0)).collect()))
        }

        pub fn words(&self) -> &[Word] {
            &self.0
        }
    }
}

/// `frames` frames of `1 << shift` words each.
pub struct Arena {
    memory: memory::Memory,
    shift: u32,
    frames: usize,
}

impl Arena {
    /// # Errors
    /// [`crate::CacheError::NoMemory`].
    ///
    /// # Panics
    /// If `node_size` is not a power of two of at least 64 bytes.
    pub fn new(frames: usize, node_size: usize) -> Result<Self> {
        assert!(node_size.is_power_of_two() && node_size >= 64, "node size {node_size}");
        let words = node_size / size_of::<u64>();
        Ok(Self { memory: memory::Memory::zeroed(frames * words)?, shift: words.trailing_zeros(), frames })
    }

    pub fn frames(&self) -> usize {
        self.frames
    }

    /// The words of frame `index`.
    ///
    /// # Panics
    /// If there is no such frame.
    #[inline]
    pub fn words(&self, index: u32) -> &[Word] {
        assert!((index as usize) < self.frames, "frame out of range");
        let start = (index as usize) << self.shift;
        // SAFETY: `index < frames`, so `[start, start + words)` lies inside the `frames << shift` words of the memory.
        unsafe { self.memory.words().get_unchecked(start..start + (1 << self.shift)) }
    }

    /// Prefetches the first `bytes` of frame `index`. Does nothing if there is no such frame.
    #[inline]
    pub fn prefetch(&self, index: u32, bytes: usize) {
        if (index as usize) < self.frames {
            let words = self.words(index);
            let lines = bytes.min(size_of_val(words)).div_ceil(LINE);
            for line in 0..lines {
                prefetch_address(words.as_ptr().wrapping_byte_add(line * LINE));
            }
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches the cache line of `word`.
#[inline]
pub fn prefetch_line(word: &Word) {
    prefetch_address(std::ptr::from_ref(word));
}

#[inline(always)]
fn prefetch_address(word: *const Word) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    // SAFETY: a prefetch of any address is harmless; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(word.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
    let _ = word;
}
