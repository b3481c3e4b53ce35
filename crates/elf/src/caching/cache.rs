//! The container: copies of lists in slots, found through a hash table, under a limit of number and size.
//!
//! A reader keeps the slot and the number of its list, and asks for the words at each step. If the list was
//! evicted in the meantime, which happens while a walk is below it, the reader continues in the image. So a
//! cache never holds more than its capacity, and readers hold no memory.

use zerocopy::little_endian::U32;

use super::table::Table;
use super::{ListId, Newcomer, Policy, Slot};

/// Size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Most lists, at most 2^32 - 2.
    pub lists: usize,
    /// Most bytes of all copies together; their administration takes about 70 bytes for each list in addition.
    /// Default: no limit.
    pub bytes: Option<u64>,
    /// Parts of the hash table, 1 to 65,536; other numbers count as the nearest of these. Default: 16.
    pub partitions: usize,
}

impl CacheOptions {
    /// Up to `lists` lists of any size.
    pub fn lists(lists: usize) -> Self {
        Self { lists, bytes: None, partitions: 16 }
    }
}

/// What a cache has done. Each miss is an insertion or a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    pub hits: u64,
    pub misses: u64,
    pub insertions: u64,
    pub evictions: u64,
    /// Lists that were read and not cached.
    pub refused: u64,
}

/// A list in its image.
pub trait Original {
    /// All its words.
    fn words(&self) -> &[U32];

    /// Counts the rows below it.
    fn count_rows(&self) -> u64;
}

/// A copy; a free slot has none.
#[derive(Clone, Debug)]
struct Copied {
    list: Option<ListId>,
    words: Box<[U32]>,
}

/// Copies of the lists that the policy `P` chooses.
#[derive(Clone, Debug)]
pub struct Cache<P> {
    table: Table,
    slots: Vec<Copied>,
    free: Vec<Slot>,
    /// Bytes of all copies.
    bytes: u64,
    options: CacheOptions,
    policy: P,
    counters: CacheCounters,
    /// Lists that make room for a newcomer; empty between operations.
    leaving: Vec<Slot>,
}

impl<P: Policy> Cache<P> {
    /// An empty cache.
    pub fn new(options: CacheOptions, policy: P) -> Self {
        let options = CacheOptions { lists: options.lists.min(u32::MAX as usize - 1), ..options };
        let table = Table::new(options.partitions);
        let (slots, free, leaving) = (Vec::new(), Vec::new(), Vec::new());
        Self { table, slots, free, bytes: 0, options, policy, counters: CacheCounters::default(), leaving }
    }

    /// Reads `list`: finds its copy, or copies `original` if the policy admits it. `None` if there is no copy.
    pub fn read(&mut self, list: ListId, original: &impl Original) -> Option<Slot> {
        self.find(list).or_else(|| self.offer(list, original))
    }

    /// Finds the copy of a list that is read.
    pub fn find(&mut self, list: ListId) -> Option<Slot> {
        let slot = self.table.get(list)?;
        self.counters.hits += 1;
        self.policy.hit(slot);
        Some(slot)
    }

    /// Copies `original`, which was read and is not cached, if the policy admits it. `None` if there is no copy.
    pub fn offer(&mut self, list: ListId, original: &impl Original) -> Option<Slot> {
        if let Some(slot) = self.table.get(list) {
            return Some(slot);
        }
        self.counters.misses += 1;
        let admitted = self.admit(list, original);
        if admitted.is_none() {
            self.counters.refused += 1;
        }
        admitted
    }

    fn admit(&mut self, list: ListId, original: &impl Original) -> Option<Slot> {
        if self.options.lists == 0 || !self.policy.nominates(list) {
            return None;
        }
        // The end of a list is found by reading it, which only a limit of bytes needs before the decision.
        let bytes = self.options.bytes.map_or(0, |_| size_of_val(original.words()) as u64);
        let newcomer = Newcomer { list, count_rows: &|| original.count_rows() };
        if !self.make_room(bytes, &newcomer) {
            return None;
        }
        let words: Box<[U32]> = original.words().into();
        self.bytes += size_of_val(&*words) as u64;
        let copied = Copied { list: Some(list), words };
        let slot = self.free.pop().unwrap_or(self.slots.len() as Slot);
        match self.slots.get_mut(slot as usize) {
            Some(free) => *free = copied,
            None => self.slots.push(copied),
        }
        self.table.insert(list, slot);
        self.policy.insert(slot, &newcomer);
        self.counters.insertions += 1;
        Some(slot)
    }

    /// Evicts lists until `newcomer` fits, or none if it is refused.
    fn make_room(&mut self, bytes: u64, newcomer: &Newcomer<'_>) -> bool {
        let limit = self.options.bytes.unwrap_or(u64::MAX);
        if bytes > limit {
            return false;
        }
        let (mut lists_left, mut bytes_left) = (self.len(), self.bytes);
        while lists_left >= self.options.lists || bytes_left > limit - bytes {
            let Some(slot) = self.policy.evict(newcomer) else {
                self.leaving.drain(..).rev().for_each(|slot| self.policy.restore(slot));
                return false;
            };
            lists_left -= 1;
            bytes_left -= size_of_val(&*self.slots[slot as usize].words) as u64;
            self.leaving.push(slot);
        }
        for slot in self.leaving.drain(..) {
            let left =
                std::mem::replace(&mut self.slots[slot as usize], Copied { list: None, words: [].into() });
            if let Some(list) = left.list {
                self.table.remove(list);
            }
            self.free.push(slot);
            self.counters.evictions += 1;
        }
        self.bytes = bytes_left;
        true
    }

    /// The words of `list`, which [`read`](Self::read) found in `slot`; `None` if it has left the cache since.
    #[inline]
    pub fn words(&self, slot: Slot, list: ListId) -> Option<&[U32]> {
        let copied = self.slots.get(slot as usize)?;
        (copied.list == Some(list)).then_some(&copied.words)
    }

    /// Number of cached lists.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The cached lists, in no particular order.
    pub fn lists(&self) -> impl Iterator<Item = ListId> {
        self.slots.iter().filter_map(|copied| copied.list)
    }

    pub fn counters(&self) -> CacheCounters {
        self.counters
    }
}
