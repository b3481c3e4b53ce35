//! Buffers that verbs read into and write from.
//!
//! A [`PageBuf`] stores its words on the heap, or in a block of registered memory ([`Arena`]). Only verbs on
//! a device need to know which.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::WORD;
use crate::arena::{Arena, Block};

/// An owned, word-aligned buffer. A verb takes it by value and gives it back on completion. A NIC that still
/// writes after the future was dropped therefore writes into memory without another user.
///
/// Its words are relaxed atomics, so that the code that searches a page is the same for a private buffer and
/// for a cache frame that other threads may be changing. Verbs move the *window*, by default the whole buffer
/// ([`PageBuf::set_window`]).
pub struct PageBuf {
    words: Words,
    window: Range<usize>,
}

/// Storage of a buffer's words.
enum Words {
    Own(Box<[AtomicU64]>),
    Block(Block),
}

impl Arena {
    /// Takes a free block as a buffer; `None` if there is none. Its content is unspecified.
    pub fn take(self: &Arc<Self>) -> Option<PageBuf> {
        let block = self.take_block()?;
        let window = 0..block.words().len();
        Some(PageBuf { words: Words::Block(block), window })
    }
}

impl PageBuf {
    /// Creates a buffer of `len` zero bytes.
    ///
    /// # Panics
    /// If `len` is not a multiple of 8.
    pub fn zeroed(len: usize) -> Self {
        assert!(len.is_multiple_of(WORD), "buffer length {len} is not a multiple of 8");
        let words: Box<[AtomicU64]> = (0..len / WORD).map(|_| AtomicU64::new(0)).collect();
        let window = 0..words.len();
        Self { words: Words::Own(words), window }
    }

    /// Key by which device `device` knows the memory of this buffer; `None` if it is not registered there.
    #[inline]
    pub fn key(&self, device: u64) -> Option<u32> {
        match &self.words {
            Words::Own(_) => None,
            Words::Block(block) => block.key(device),
        }
    }

    /// Length of the whole buffer in bytes.
    pub fn len(&self) -> usize {
        self.words().len() * WORD
    }

    pub fn is_empty(&self) -> bool {
        self.words().is_empty()
    }

    /// All words, regardless of the window.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        match &self.words {
            Words::Own(words) => words,
            Words::Block(block) => block.words(),
        }
    }

    /// Words of the window.
    #[inline]
    pub fn window_words(&self) -> &[AtomicU64] {
        &self.words()[self.window.clone()]
    }

    /// Offset of the window in bytes.
    #[inline]
    pub fn window_start(&self) -> usize {
        self.window.start * WORD
    }

    /// Length of the window in bytes.
    #[inline]
    pub fn window_len(&self) -> usize {
        self.window.len() * WORD
    }

    /// Limits the following verbs to the bytes of `range`.
    ///
    /// # Panics
    /// If `range` leaves the buffer or its ends are not multiples of 8.
    pub fn set_window(&mut self, range: Range<usize>) {
        assert!(
            range.start.is_multiple_of(WORD) && range.end.is_multiple_of(WORD) && range.start <= range.end,
            "window {range:?} is not word-aligned"
        );
        assert!(range.end <= self.len(), "window {range:?} leaves a buffer of {} bytes", self.len());
        self.window = range.start / WORD..range.end / WORD;
    }

    /// [`PageBuf::set_window`], by value.
    pub fn with_window(mut self, range: Range<usize>) -> Self {
        self.set_window(range);
        self
    }

    #[inline]
    pub fn get(&self, word: usize) -> u64 {
        self.words()[word].load(Relaxed)
    }

    #[inline]
    pub fn set(&self, word: usize, value: u64) {
        self.words()[word].store(value, Relaxed);
    }

    /// Copies `bytes` to the front of the buffer; the last word is padded with zeros.
    ///
    /// # Panics
    /// If `bytes` is longer than the buffer.
    pub fn copy_from_bytes(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len(), "{} bytes do not fit into {}", bytes.len(), self.len());
        for (word, chunk) in self.words().iter().zip(bytes.chunks(WORD)) {
            let mut le = [0; WORD];
            le[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(le), Relaxed);
        }
    }

    /// Appends the first `len` bytes of the buffer to `out`.
    ///
    /// # Panics
    /// If the buffer is shorter than `len`.
    pub fn append_bytes_to(&self, len: usize, out: &mut Vec<u8>) {
        assert!(len <= self.len(), "{len} bytes asked of a buffer of {}", self.len());
        let end = out.len() + len;
        for word in &self.words()[..len.div_ceil(WORD)] {
            out.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        out.truncate(end);
    }
}

impl std::fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageBuf").field("len", &self.len()).field("window", &self.window).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_are_padded() {
        let mut buf = PageBuf::zeroed(24);
        buf.set(1, u64::MAX);
        buf.copy_from_bytes(b"hello world");
        assert_eq!(buf.get(1), u64::from_le_bytes(*b"rld\0\0\0\0\0"));
        let mut out = vec![1];
        buf.append_bytes_to(11, &mut out);
        assert_eq!(out, b"\x01hello world");
    }

    #[test]
    fn the_window_is_what_verbs_move() {
        let buf = PageBuf::zeroed(64).with_window(8..24);
        assert_eq!((buf.window_len(), buf.window_words().len(), buf.words().len()), (16, 2, 8));
    }
}
