//! Buffers kept for reuse, one shelf per length.
//!
//! Indexes use few lengths (nodes, words, pieces of long values), so a search through the shelves is cheaper
//! than an allocation. The bytes per shelf and the number of shelves are bounded. A reused buffer has its
//! full window and its old content.

use std::cell::RefCell;

use crate::PageBuf;

/// Maximum bytes of one shelf. Longer buffers are not kept.
const SHELF_BYTES: usize = 1 << 20;
/// Maximum number of lengths kept at a time. A new length beyond it replaces the oldest shelf.
const SHELVES: usize = 16;

#[derive(Default)]
/// Reusable buffers of one endpoint.
pub struct Buffers {
    shelves: RefCell<Vec<Shelf>>,
}

struct Shelf {
    len: usize,
    buffers: Vec<PageBuf>,
}

impl Buffers {
    /// Returns a buffer of `len` bytes with its full window and unspecified content.
    #[inline]
    pub fn take(&self, len: usize) -> PageBuf {
        self.take_kept(len).unwrap_or_else(|| PageBuf::zeroed(len))
    }

    /// [`Buffers::take`], but only if a buffer of this length is kept.
    #[inline]
    pub fn take_kept(&self, len: usize) -> Option<PageBuf> {
        let mut shelves = self.shelves.borrow_mut();
        let shelf = shelves.iter_mut().find(|shelf| shelf.len == len);
        shelf.and_then(|shelf| shelf.buffers.pop())
    }

    /// Keeps a buffer for reuse, or drops it if its shelf is full or its length is not kept.
    #[inline]
    pub fn put(&self, mut buffer: PageBuf) {
        let len = buffer.len();
        if len == 0 || len > SHELF_BYTES {
            return;
        }
        buffer.set_window(0..len);
        let mut shelves = self.shelves.borrow_mut();
        let shelf = match shelves.iter().position(|shelf| shelf.len == len) {
            Some(at) => &mut shelves[at],
            None => new_shelf(&mut shelves, len),
        };
        if shelf.buffers.len() < SHELF_BYTES / len {
            shelf.buffers.push(buffer);
        }
    }
}

#[cold]
fn new_shelf(shelves: &mut Vec<Shelf>, len: usize) -> &mut Shelf {
    if shelves.len() == SHELVES {
        // Evict the oldest shelf: if its length is still in use, it soon returns as the youngest.
        shelves.remove(0);
    }
    shelves.push_mut(Shelf { len, buffers: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_whole() {
        let buffers = Buffers::default();
        let buffer = buffers.take(1024).with_window(8..16);
        buffer.set(3, 77);
        buffers.put(buffer);
        let again = buffers.take(1024);
        assert_eq!((again.get(3), again.window_len()), (77, 1024));
        assert_eq!(buffers.take(1024).get(3), 0);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let buffers = Buffers::default();
        for len in (8..8 * 100).step_by(8) {
            buffers.put(PageBuf::zeroed(len));
        }
        buffers.put(PageBuf::zeroed(SHELF_BYTES + 8));
        for _ in 0..3 {
            buffers.put(PageBuf::zeroed(SHELF_BYTES));
        }
        let shelves = buffers.shelves.borrow();
        assert_eq!(shelves.len(), SHELVES);
        assert!(shelves.iter().all(|shelf| shelf.len * shelf.buffers.len() <= SHELF_BYTES));
        assert_eq!(shelves.last().map(|shelf| shelf.buffers.len()), Some(1));
    }
}
