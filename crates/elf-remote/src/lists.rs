//! Lists below the cached levels that a policy keeps in DRAM (DAPD 2022 §4.2).
//!
//! What is cached is a *piece of a list* by its place in the image: in the linear layout a whole list, in the columnar
//! layout its values or one kind of its positions. Threads share the cache. The image never changes, so a copy is
//! always right; with another image there is another cache.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_elf::{Cache, CacheOptions, Lfu, ListId, Lla, Lru, Naive, Original, Policy, TwoQueue};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the unit in which copies are kept.
const WORD: u64 = size_of::<u32>() as u64;
/// Bytes of a small list, which bound the number of lists by the bytes of the cache.
const SMALL: u64 = 16;

/// Decides which lists leave a full cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPolicy {
    Naive,
    Lru,
    Lfu,
    TwoQueue,
    /// Least likely accessed: the list with the fewest rows below it.
    Lla,
}

/// A dynamic cache of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListCacheOptions {
    pub policy: ListPolicy,
    /// Most bytes of all copies; their administration takes about 70 bytes for each in addition.
    pub bytes: u64,
}

/// Copies of lists of one image.
pub(crate) struct ListCache(Mutex<Cache<Box<dyn Policy + Send>>>);

impl std::fmt::Debug for ListCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cache = self.lock();
        f.debug_struct("ListCache").field("lists", &cache.len()).field("bytes", &cache.bytes()).finish()
    }
}

/// A list that was READ.
struct Newcomer<'a> {
    words: &'a [U32],
    rows: u64,
}

impl Original for Newcomer<'_> {
    fn words(&self) -> &[U32] {
        self.words
    }

    fn count_rows(&self) -> u64 {
        self.rows
    }
}

impl ListCache {
    pub fn new(options: ListCacheOptions) -> Self {
        let lists = usize::try_from(options.bytes / SMALL).unwrap_or(usize::MAX);
        let policy: Box<dyn Policy + Send> = match options.policy {
            ListPolicy::Naive => Box::new(Naive),
            ListPolicy::Lru => Box::new(Lru::default()),
            ListPolicy::Lfu => Box::new(Lfu::default()),
            ListPolicy::TwoQueue => Box::new(TwoQueue::new(lists)),
            ListPolicy::Lla => Box::new(Lla::counting()),
        };
        let options = CacheOptions { bytes: Some(options.bytes), ..CacheOptions::lists(lists) };
        Self(Mutex::new(Cache::new(options, policy)))
    }

    fn lock(&self) -> MutexGuard<'_, Cache<Box<dyn Policy + Send>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of the image from the word of byte `at` on that are kept together, if there are any.
    pub fn from(&self, at: u64) -> Option<Vec<u8>> {
        let mut cache = self.lock();
        let list = ListId(at / WORD);
        let slot = cache.find(list)?;
        Some(cache.words(slot, list)?.as_bytes().to_vec())
    }

    /// The bytes `range` of the image, if they are kept.
    pub fn get(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        let bytes = self.from(range.start)?;
        let skipped = (range.start % WORD) as usize;
        Some(bytes.get(skipped..skipped + (range.end - range.start) as usize)?.to_vec())
    }

    /// Offers bytes of the image, which begin at byte `at`, a multiple of a word, and are whole words. `rows` is the
    /// number of rows below their list.
    pub fn offer(&self, at: u64, bytes: &[u8], rows: u64) {
        if let Ok(words) = <[U32]>::ref_from_bytes(bytes) {
            self.lock().offer(ListId(at / WORD), &Newcomer { words, rows });
        }
    }

    /// `range`, extended to whole words. Sections of an image are padded, so that these are in it.
    pub fn whole_words(range: &Range<u64>) -> Range<u64> {
        range.start / WORD * WORD..range.end.next_multiple_of(WORD)
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes()
    }
}
