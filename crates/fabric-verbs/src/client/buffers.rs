//! Buffers of one endpoint in memory registered with its device.
//!
//! Buffers come from arenas, one set for each length, so that verbs move them without a copy. An endpoint
//! registers a bounded number of bytes. A buffer beyond the bound, or a very long one, is ordinary memory,
//! and its bytes are copied.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Arena, Buffers, PageBuf, Result, WORD};

use crate::device::Device;

/// Maximum length of a registered buffer, and length of an arena, in bytes.
pub(super) const BLOCK_MAX: usize = 256 << 10;
const BLOCKS_MAX: usize = 1024;
/// Maximum bytes registered for ordinary buffers.
const REGISTERED_MAX: usize = 64 << 20;

pub(super) struct RegisteredBuffers {
    device: Arc<Device>,
    kept: Buffers,
    arenas: RefCell<Vec<Arc<Arena>>>,
    registered: Cell<usize>,
}

impl RegisteredBuffers {
    pub fn new(device: Arc<Device>) -> Self {
        Self { device, kept: Buffers::default(), arenas: RefCell::default(), registered: Cell::new(0) }
    }

    /// A buffer of `len` bytes, registered if possible.
    #[inline]
    pub fn take(&self, len: usize) -> PageBuf {
        self.kept.take_kept(len).unwrap_or_else(|| self.make(len))
    }

    #[inline]
    pub fn put(&self, buffer: PageBuf) {
        self.kept.put(buffer);
    }

    /// The device's key for the memory of a buffer.
    #[inline]
    pub fn key(&self, buffer: &PageBuf) -> Option<u32> {
        buffer.key(self.device.id)
    }

    /// A registered buffer with a window of `len` bytes. Its length is rounded up to a common one for reuse.
    ///
    /// # Errors
    /// `System` if the device takes no more memory.
    pub fn bounce(&self, len: usize) -> Result<PageBuf> {
        let class = if len <= BLOCK_MAX { len.next_power_of_two().max(WORD) } else { len };
        let buffer = self.take(class);
        let registered = match self.key(&buffer) {
            Some(_) => buffer,
            None => self.device.arena(class, 1)?.take().expect("a new arena has a block"),
        };
        Ok(registered.with_window(0..len))
    }

    #[cold]
    fn make(&self, len: usize) -> PageBuf {
        self.lend(len).unwrap_or_else(|| PageBuf::zeroed(len))
    }

    fn lend(&self, len: usize) -> Option<PageBuf> {
        if len == 0 || len > BLOCK_MAX {
            return None;
        }
        let mut arenas = self.arenas.borrow_mut();
        let mut fitting = arenas.iter().filter(|arena| arena.block_len() == len);
        if let Some(buffer) = fitting.find_map(Arena::take) {
            return Some(buffer);
        }
        let blocks = (BLOCK_MAX / len).min(BLOCKS_MAX);
        let registered = self.registered.get() + blocks * len;
        if registered > REGISTERED_MAX {
            return None;
        }
        // A later request for registered memory reports the error.
        let arena = self.device.arena(len, blocks).ok()?;
        self.registered.set(registered);
        let buffer = arena.take();
        arenas.push(arena);
        buffer
    }
}

/// Copies the window of `from` into that of `to`.
pub(super) fn copy(from: &PageBuf, to: &PageBuf) {
    for (from, to) in from.window_words().iter().zip(to.window_words()) {
        to.store(from.load(Relaxed), Relaxed);
    }
}
