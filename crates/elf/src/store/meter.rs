//! What a store reports of its accesses to memory, so that a model of the memory can be put behind it.
//!
//! A touch names words in one of several spaces, since copies of lists are elsewhere than their originals. The
//! default is [`NoMeter`], which leaves no trace in the compiled search.

use std::ops::Range;

use crate::caching::ListId;

/// A piece of memory with its own word addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The array of the image on persistent memory.
    Persistent,
    /// The array of an image, or of a full copy, in DRAM.
    Dram,
    /// The lists of the top levels in DRAM, one after the other.
    Levels,
    /// Lists of a dynamic cache in DRAM. A copy has the addresses of its original.
    Cache,
}

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    List,
    MonoList,
}

/// Words that were read one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    pub space: Space,
    pub part: Part,
    /// Word addresses in `space`; a word has 4 bytes.
    pub words: Range<u64>,
}

/// Receives the accesses of one store. Stores of several threads share it only if it is `Sync`.
pub trait Meter {
    /// Whether it listens at all; what to report is not computed otherwise.
    const IS_ACTIVE: bool = true;

    /// Words were read.
    fn touch(&self, touch: Touch);

    /// The hash table of a cache that holds `cached` lists was searched for `list`.
    fn probe(&self, list: ListId, cached: usize);
}

/// Ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMeter;

impl Meter for NoMeter {
    const IS_ACTIVE: bool = false;

    fn touch(&self, _touch: Touch) {}

    fn probe(&self, _list: ListId, _cached: usize) {}
}

impl<M: Meter> Meter for &M {
    const IS_ACTIVE: bool = M::IS_ACTIVE;

    fn touch(&self, touch: Touch) {
        (**self).touch(touch);
    }

    fn probe(&self, list: ListId, cached: usize) {
        (**self).probe(list, cached);
    }
}

/// Reports words, if there are any, to `meter`. The space is asked for only if it listens.
#[inline]
pub(super) fn report<M: Meter>(meter: &M, part: Part, words: Range<usize>, space: impl FnOnce() -> Space) {
    if M::IS_ACTIVE && !words.is_empty() {
        meter.touch(Touch { space: space(), part, words: words.start as u64..words.end as u64 });
    }
}
