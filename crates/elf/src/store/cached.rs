//! Selective caching (DAPD 2022 §4.2): lists of the top levels and lists that a policy chooses are read in DRAM.
//!
//! Static levels alone are shared by threads. A dynamic cache changes with every reading and belongs to one
//! thread: a `Linear<Cached<..>>` with one can move to another thread, but cannot be shared. With both, levels
//! that are copied never ask the cache (the paper's split cache).

use std::cell::{Ref, RefCell};
use std::ops::{Deref, Range};
use std::sync::Arc;

use zerocopy::little_endian::U32;

use super::levels::Levels;
use super::meter::{Meter, NoMeter, Part, Space, report};
use crate::caching::{Cache, CacheOptions, ListId, Original, Policy, Slot};
use crate::error::Result;
use crate::layout::{Access, Array, Linear};

/// A dynamic cache as a store sees it.
pub trait ListCache {
    /// Whether it can hold a list at all.
    const IS_DYNAMIC: bool;

    /// As [`Cache::read`].
    fn read(&self, list: ListId, original: &impl Original) -> Option<Slot>;

    /// As [`Cache::words`].
    fn words(&self, slot: Slot, list: ListId) -> Option<Ref<'_, [U32]>>;

    /// Number of cached lists.
    fn lists(&self) -> usize;
}

/// No dynamic cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCache;

impl ListCache for NoCache {
    const IS_DYNAMIC: bool = false;

    fn read(&self, _list: ListId, _original: &impl Original) -> Option<Slot> {
        None
    }

    fn words(&self, _slot: Slot, _list: ListId) -> Option<Ref<'_, [U32]>> {
        None
    }

    fn lists(&self) -> usize {
        0
    }
}

impl<P: Policy> ListCache for RefCell<Cache<P>> {
    const IS_DYNAMIC: bool = true;

    #[inline]
    fn read(&self, list: ListId, original: &impl Original) -> Option<Slot> {
        self.borrow_mut().read(list, original)
    }

    #[inline]
    fn words(&self, slot: Slot, list: ListId) -> Option<Ref<'_, [U32]>> {
        Ref::filter_map(self.borrow(), |cache| cache.words(slot, list)).ok()
    }

    fn lists(&self) -> usize {
        self.borrow().len()
    }
}

/// A persistent image, static levels, and a dynamic cache.
#[derive(Clone, Debug)]
pub struct Cached<B, C = NoCache, M = NoMeter> {
    persistent: B,
    levels: Arc<Levels>,
    cache: C,
    meter: M,
}

/// Where a list is read.
#[derive(Clone, Copy, Debug)]
pub enum CachedPlace {
    /// In the static levels.
    Levels,
    /// In this slot of the cache, as long as it is there.
    Cache { slot: Slot, list: usize },
    /// In the image.
    Image,
}

/// Words of a list in one of these places.
#[derive(Debug)]
pub enum CachedWords<'a> {
    Fixed(&'a [U32]),
    Cache(Ref<'a, [U32]>),
}

impl Deref for CachedWords<'_> {
    type Target = [U32];

    #[inline]
    fn deref(&self) -> &[U32] {
        match self {
            Self::Fixed(words) => words,
            Self::Cache(words) => words,
        }
    }
}

/// A list of `level` at word `at`.
struct InImage<'a> {
    array: Array<'a>,
    level: usize,
    at: usize,
}

impl Original for InImage<'_> {
    fn words(&self) -> &[U32] {
        self.array.list(self.level, self.at)
    }

    fn count_rows(&self) -> u64 {
        self.array.rows_below(self.level, self.at, |_, _| ())
    }
}

impl<B: AsRef<[u8]>, C: ListCache, M: Meter> Access for Cached<B, C, M> {
    type Place = CachedPlace;
    type Words<'a>
        = CachedWords<'a>
    where
        Self: 'a;

    fn image(&self) -> &[u8] {
        self.persistent.as_ref()
    }

    #[inline]
    fn enter(&self, array: Array<'_>, level: usize, at: usize) -> CachedPlace {
        if level < self.levels.depth() {
            return CachedPlace::Levels;
        }
        if !C::IS_DYNAMIC {
            return CachedPlace::Image;
        }
        let list = ListId(at as u64);
        if M::IS_ACTIVE {
            self.meter.probe(list, self.cache.lists());
        }
        let slot = self.cache.read(list, &InImage { array, level, at });
        slot.map_or(CachedPlace::Image, |slot| CachedPlace::Cache { slot, list: at })
    }

    #[inline]
    fn list<'a>(&'a self, array: Array<'a>, place: CachedPlace, at: usize) -> CachedWords<'a> {
        match place {
            CachedPlace::Levels => CachedWords::Fixed(self.levels.from(at)),
            CachedPlace::Image => CachedWords::Fixed(&array.words[at..]),
            CachedPlace::Cache { slot, list } => match self.cache.words(slot, ListId(list as u64)) {
                Some(words) => CachedWords::Cache(Ref::map(words, |words| &words[at - list..])),
                // It was evicted while the walk was below it.
                None => CachedWords::Fixed(&array.words[at..]),
            },
        }
    }

    #[inline]
    fn touched_list(&self, place: CachedPlace, words: Range<usize>) {
        report(&self.meter, Part::List, words, || match place {
            CachedPlace::Levels => Space::Levels,
            CachedPlace::Cache { slot, list } if self.cache.words(slot, ListId(list as u64)).is_some() => {
                Space::Cache
            }
            _ => Space::Persistent,
        });
    }

    #[inline]
    fn touched_mono_list(&self, words: Range<usize>) {
        report(&self.meter, Part::MonoList, words, || Space::Persistent);
    }
}

impl<B: AsRef<[u8]>> Linear<B> {
    /// Copies the lists of the first `depth` levels to DRAM and reads them there: none if `depth` is 0, all from the
    /// number of columns on. Clones share the copies. Fails if there is no memory for them.
    pub fn with_levels(self, depth: usize) -> Result<Linear<Cached<B>>> {
        let levels = Arc::new(Levels::copy(&self, depth)?);
        Ok(self.through(|persistent| Cached { persistent, levels, cache: NoCache, meter: NoMeter }))
    }
}

impl<B: AsRef<[u8]>, M: Meter> Linear<Cached<B, NoCache, M>> {
    /// Reads lists that are not in the static levels through a cache, which is empty at first.
    pub fn with_cache<P: Policy>(
        self,
        options: CacheOptions,
        policy: P,
    ) -> Linear<Cached<B, RefCell<Cache<P>>, M>> {
        let cache = RefCell::new(Cache::new(options, policy));
        self.through(|Cached { persistent, levels, meter, .. }| Cached { persistent, levels, cache, meter })
    }

    /// Reports all accesses to `meter` from now on.
    pub fn with_meter<N: Meter>(self, meter: N) -> Linear<Cached<B, NoCache, N>> {
        self.through(|Cached { persistent, levels, cache, .. }| Cached { persistent, levels, cache, meter })
    }
}

impl<B, C, M> Cached<B, C, M> {
    /// The static levels.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }
}

impl<B, P, M> Cached<B, RefCell<Cache<P>>, M> {
    /// The dynamic cache.
    pub fn cache(&self) -> Ref<'_, Cache<P>> {
        self.cache.borrow()
    }
}
