//! The part of the allocator in DRAM: bitmaps of the chunks that this process leases, by size class.
//!
//! Everything here is synchronous and runs under the latch of one (memory server, size class), which is never held
//! across an await. Invariants: `free` counts the clear bits of a chunk; a chunk with a clear bit is listed in
//! `partial` exactly once; `empty` counts the chunks without a set bit that are not being given back.

/// The bitmap of a leased chunk that is to be stored.
pub(crate) struct Unstored {
    pub chunk: u32,
    pub bits: Vec<u64>,
    /// Number of the last change in it.
    pub change: u64,
}

/// Allocation bitmap of one leased chunk. Bits beyond its last block are always set.
#[derive(Debug)]
pub(crate) struct LocalChunk {
    /// Number of the chunk on its server.
    pub chunk: u32,
    blocks: u32,
    free: u32,
    bits: Vec<u64>,
    /// No word before this one has a clear bit.
    first_clear: usize,
    /// Number of changes so far, and of those that the stored bitmap has.
    changes: u64,
    stored: u64,
}

impl LocalChunk {
    /// Creates a chunk whose allocated blocks are `bits`; bits beyond `blocks` are ignored.
    pub fn new(chunk: u32, blocks: u32, mut bits: Vec<u64>) -> Self {
        bits.resize(blocks.div_ceil(64) as usize, 0);
        if let (Some(last), tail @ 1..) = (bits.last_mut(), blocks % 64) {
            *last |= !0 << tail;
        }
        let free = bits.iter().map(|word| word.count_zeros()).sum();
        Self { chunk, blocks, free, bits, first_clear: 0, changes: 0, stored: 0 }
    }

    pub fn free_blocks(&self) -> u32 {
        self.free
    }

    pub fn allocated_blocks(&self) -> u32 {
        self.blocks - self.free
    }

    pub fn is_empty(&self) -> bool {
        self.free == self.blocks
    }

    /// The allocated blocks in the form stored in the pool.
    pub fn stored_bits(&self) -> Vec<u64> {
        let mut bits = self.bits.clone();
        if let (Some(last), tail @ 1..) = (bits.last_mut(), self.blocks % 64) {
            *last &= !(!0 << tail);
        }
        bits
    }

    pub fn is_unstored(&self) -> bool {
        self.changes != self.stored
    }

    /// The bitmap, if it changed since it was stored.
    pub fn unstored(&self) -> Option<Unstored> {
        let Self { chunk, changes, .. } = *self;
        self.is_unstored().then(|| Unstored { chunk, bits: self.stored_bits(), change: changes })
    }

    fn is_allocated(&self, block: u32) -> bool {
        self.bits[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    fn alloc(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        while self.bits[self.first_clear] == !0 {
            self.first_clear += 1;
        }
        let word = &mut self.bits[self.first_clear];
        let bit = word.trailing_ones();
        *word |= 1 << bit;
        self.free -= 1;
        self.changes += 1;
        Some(self.first_clear as u32 * 64 + bit)
    }

    /// The first run of `want` free blocks, or else the longest run, as first block and length.
    fn find_run(&self, want: u32) -> (u32, u32) {
        let (mut best, mut block) = ((0, 0), self.first_clear as u32 * 64);
        while block < self.blocks {
            let start = self.next_with(block, false);
            if start >= self.blocks {
                break;
            }
            let end = self.next_with(start, true).min(start.saturating_add(want)).min(self.blocks);
            if end - start > best.1 {
                best = (start, end - start);
            }
            if best.1 >= want {
                break;
            }
            block = end;
        }
        best
    }

    /// First block from `block` on whose bit is `set`; beyond the last word if there is none.
    fn next_with(&self, block: u32, set: bool) -> u32 {
        let flip = if set { 0 } else { !0 };
        let mut index = (block / 64) as usize;
        let mut word = (self.bits[index] ^ flip) & (!0 << (block % 64));
        while word == 0 {
            index += 1;
            match self.bits.get(index) {
                Some(bits) => word = bits ^ flip,
                None => return index as u32 * 64,
            }
        }
        index as u32 * 64 + word.trailing_zeros()
    }

    fn take_run(&mut self, first: u32, count: u32) {
        for block in first..first + count {
            self.bits[(block / 64) as usize] |= 1 << (block % 64);
        }
        self.free -= count;
        self.changes += 1;
    }

    /// Frees the block; returns whether it was allocated.
    pub fn free(&mut self, block: u32) -> bool {
        if block >= self.blocks || !self.is_allocated(block) {
            return false;
        }
        let word = (block / 64) as usize;
        self.bits[word] &= !(1 << (block % 64));
        self.free += 1;
        self.changes += 1;
        self.first_clear = self.first_clear.min(word);
        true
    }

    /// Frees the blocks of `taken`, bits of word `word`. Returns the first of them that was not allocated, if
    /// any.
    pub fn free_word(&mut self, word: usize, mut taken: u64) -> Option<u32> {
        let mut stray = None;
        while taken != 0 {
            let block = word as u32 * 64 + taken.trailing_zeros();
            taken &= taken - 1;
            if !self.free(block) {
                stray = stray.or(Some(block));
            }
        }
        stray
    }
}

/// Result of freeing a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The block is free now; `surplus` if the arena has a wholly free chunk besides another one with room.
    Done { surplus: bool },
    /// The block was free already.
    NotAllocated,
}

/// Leased chunks of one size class on one memory server.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    chunks: Vec<Option<LocalChunk>>,
    vacant: Vec<u32>,
    partial: Vec<u32>,
    empty: u32,
}

impl Arena {
    /// Adds a leased chunk and returns its place.
    pub fn insert(&mut self, chunk: LocalChunk) -> u32 {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() as u32 - 1
        });
        self.empty += u32::from(chunk.is_empty());
        if chunk.free > 0 {
            self.partial.push(place);
        }
        self.chunks[place as usize] = Some(chunk);
        place
    }

    fn chunk_at(&mut self, place: u32) -> &mut LocalChunk {
        self.chunks[place as usize].as_mut().expect("a listed place holds a chunk")
    }

    /// Allocates a block; returns its chunk and number.
    #[inline]
    pub fn alloc(&mut self) -> Option<(u32, u32)> {
        let place = *self.partial.last()?;
        let chunk = self.chunks[place as usize].as_mut().expect("a listed place holds a chunk");
        let was_empty = chunk.is_empty();
        let block = chunk.alloc().expect("a listed chunk has a free block");
        let (number, full) = (chunk.chunk, chunk.free == 0);
        self.empty -= u32::from(was_empty);
        if full {
            self.partial.pop();
        }
        Some((number, block))
    }

    /// Allocates up to `want` consecutive blocks; returns chunk, first block and length.
    pub fn alloc_run(&mut self, want: u32) -> Option<(u32, u32, u32)> {
        /// Chunks searched before a shorter run is accepted.
        const PATIENCE: usize = 8;
        let mut best: Option<(usize, u32, u32)> = None;
        for (at, &place) in self.partial.iter().enumerate().rev().take(PATIENCE) {
            let chunk = self.chunks[place as usize].as_ref().expect("a listed place holds a chunk");
            let (first, count) = chunk.find_run(want);
            if best.is_none_or(|(_, _, most)| count > most) {
                best = Some((at, first, count));
            }
            if count >= want {
                break;
            }
        }
        let (at, first, count) = best.filter(|&(_, _, count)| count > 0)?;
        let place = self.partial[at];
        let chunk = self.chunk_at(place);
        let was_empty = chunk.is_empty();
        chunk.take_run(first, count);
        let (number, full) = (chunk.chunk, chunk.free == 0);
        self.empty -= u32::from(was_empty);
        if full {
            self.partial.remove(at);
        }
        Some((number, first, count))
    }

    /// Notes that the bitmap of the chunk at `place` was stored as it was after this change.
    pub fn note_stored(&mut self, place: u32, change: u64) {
        if let Some(Some(chunk)) = self.chunks.get_mut(place as usize) {
            chunk.stored = change;
        }
    }

    /// Frees block `block` of the chunk at `place`.
    #[inline]
    pub fn free(&mut self, place: u32, block: u32) -> Freed {
        let chunk = self.chunk_at(place);
        let was_full = chunk.free == 0;
        if !chunk.free(block) {
            return Freed::NotAllocated;
        }
        let is_empty = chunk.is_empty();
        self.empty += u32::from(is_empty);
        if was_full {
            self.partial.push(place);
        }
        Freed::Done { surplus: self.has_surplus() }
    }

    /// Frees the blocks of `taken`, bits of word `word`. Returns the number of freed blocks, and a block that
    /// was free already, if any.
    pub fn free_word(&mut self, place: u32, word: usize, taken: u64) -> (u32, Option<u32>) {
        let chunk = self.chunk_at(place);
        let before = chunk.free;
        let (was_full, was_empty) = (before == 0, chunk.is_empty());
        let stray = chunk.free_word(word, taken);
        let (freed, is_empty) = (chunk.free - before, chunk.is_empty());
        self.empty += u32::from(is_empty && !was_empty);
        if was_full && freed > 0 {
            self.partial.push(place);
        }
        (freed, stray)
    }

    pub fn has_room(&self) -> bool {
        !self.partial.is_empty()
    }

    fn has_surplus(&self) -> bool {
        self.empty > 0 && self.partial.len() > 1
    }

    /// Removes a wholly free chunk if another one has free blocks.
    pub fn take_surplus(&mut self) -> Option<LocalChunk> {
        if self.has_surplus() { self.take_empty() } else { None }
    }

    /// Removes a wholly free chunk.
    pub fn take_empty(&mut self) -> Option<LocalChunk> {
        if self.empty == 0 {
            return None;
        }
        let is_empty = |chunks: &[Option<LocalChunk>], place: u32| {
            chunks[place as usize].as_ref().is_some_and(LocalChunk::is_empty)
        };
        let at = self.partial.iter().position(|&place| is_empty(&self.chunks, place))?;
        self.empty -= 1;
        let place = self.partial.remove(at);
        self.vacant.push(place);
        self.chunks[place as usize].take()
    }

    /// Removes any chunk.
    pub fn take_any(&mut self) -> Option<LocalChunk> {
        let place = self.chunks.iter().position(Option::is_some)?;
        let chunk = self.chunks[place].take()?;
        self.partial.retain(|&partial| partial != place as u32);
        self.empty -= u32::from(chunk.is_empty());
        self.vacant.push(place as u32);
        Some(chunk)
    }

    /// All chunks, in any state.
    pub fn iter(&self) -> impl Iterator<Item = &LocalChunk> {
        self.chunks.iter().flatten()
    }

    pub fn get(&self, place: u32) -> Option<&LocalChunk> {
        self.chunks.get(place as usize)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_hands_out_each_block_once() {
        let mut chunk = LocalChunk::new(0, 70, vec![0b101]);
        let mut got: Vec<u32> = std::iter::from_fn(|| chunk.alloc()).collect();
        got.sort_unstable();
        assert_eq!(got, (0..70).filter(|block| ![0, 2].contains(block)).collect::<Vec<_>>());
        assert_eq!(chunk.stored_bits(), vec![!0, 0b11_1111]);
        assert!(chunk.free(69) && !chunk.free(69) && !chunk.free(70) && !chunk.free(1000));
        assert_eq!((chunk.alloc(), chunk.alloc()), (Some(69), None));
    }

    #[test]
    fn runs_are_consecutive_and_the_longest_is_taken_when_none_suffices() {
        let mut arena = Arena::default();
        arena.insert(LocalChunk::new(4, 200, vec![!0, !(0b11 << 5), !0 >> 50, 1]));
        assert_eq!(arena.alloc_run(2), Some((4, 69, 2)));
        assert_eq!(arena.alloc_run(100), Some((4, 142, 50)));
        assert_eq!(arena.alloc_run(100), Some((4, 193, 7)));
        assert_eq!((arena.alloc_run(1), arena.alloc()), (None, None));
    }

    #[test]
    fn empty_chunks_are_given_back_but_the_last() {
        let mut arena = Arena::default();
        let place = arena.insert(LocalChunk::new(1, 2, vec![0]));
        arena.insert(LocalChunk::new(2, 2, vec![0b11]));
        assert!(arena.take_surplus().is_none());
        assert_eq!(arena.alloc(), Some((1, 0)));
        assert!(arena.take_empty().is_none());
        assert_eq!(arena.free(place, 0), Freed::Done { surplus: false });
        assert_eq!(arena.free(place, 0), Freed::NotAllocated);
        arena.insert(LocalChunk::new(3, 2, vec![0]));
        assert_eq!(arena.take_surplus().map(|chunk| chunk.chunk), Some(1));
        assert!(arena.take_surplus().is_none());
        assert_eq!(arena.alloc().map(|(chunk, _)| chunk), Some(3));
    }
}
