//! Stores without a cache: an image in place with a meter, and full copies in DRAM (DAPD 2022 §4.1, §5.4).
//!
//! The hybrid Elf answers queries at the speed of DRAM for twice the space. Dual access needs the same space and
//! reads MonoLists from persistent memory all the same: it is a baseline, the most that caching all lists could
//! achieve without the costs of a hash table.

use std::ops::Range;

use zerocopy::little_endian::U32;

use super::meter::{Meter, NoMeter, Part, Space, report};
use super::reserve;
use crate::error::Result;
use crate::layout::{Access, Array, Linear};

/// An image read in place, all of it in one space.
#[derive(Clone, Debug)]
pub struct Metered<B, M> {
    bytes: B,
    space: Space,
    meter: M,
}

impl<B: AsRef<[u8]>, M: Meter> Access for Metered<B, M> {
    type Place = ();
    type Words<'a>
        = &'a [U32]
    where
        Self: 'a;

    fn image(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    fn enter(&self, _array: Array<'_>, _level: usize, _at: usize) {}

    fn list<'a>(&'a self, array: Array<'a>, (): (), at: usize) -> &'a [U32] {
        &array.words[at..]
    }

    fn touched_list(&self, (): (), words: Range<usize>) {
        report(&self.meter, Part::List, words, || self.space);
    }

    fn touched_mono_list(&self, words: Range<usize>) {
        report(&self.meter, Part::MonoList, words, || self.space);
    }
}

/// A persistent image and its copy in DRAM, which is the one that is read.
#[derive(Clone, Debug)]
pub struct Hybrid<B> {
    persistent: B,
    copy: Vec<u8>,
}

impl<B> Hybrid<B> {
    /// Gives up the copy.
    pub fn into_persistent(self) -> B {
        self.persistent
    }
}

impl<B> AsRef<[u8]> for Hybrid<B> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.copy
    }
}

/// A persistent image and a copy of it in DRAM, from which lists are read.
#[derive(Clone, Debug)]
pub struct DualAccess<B, M = NoMeter> {
    persistent: B,
    copy: Vec<U32>,
    meter: M,
}

impl<B: AsRef<[u8]>, M: Meter> Access for DualAccess<B, M> {
    type Place = ();
    type Words<'a>
        = &'a [U32]
    where
        Self: 'a;

    fn image(&self) -> &[u8] {
        self.persistent.as_ref()
    }

    fn enter(&self, _array: Array<'_>, _level: usize, _at: usize) {}

    fn list<'a>(&'a self, _array: Array<'a>, (): (), at: usize) -> &'a [U32] {
        &self.copy[at..]
    }

    fn touched_list(&self, (): (), words: Range<usize>) {
        report(&self.meter, Part::List, words, || Space::Dram);
    }

    fn touched_mono_list(&self, words: Range<usize>) {
        report(&self.meter, Part::MonoList, words, || Space::Persistent);
    }
}

impl<B: AsRef<[u8]>> Linear<B> {
    /// Reports all accesses to `meter`, as to an image in `space`.
    pub fn metered<M: Meter>(self, space: Space, meter: M) -> Linear<Metered<B, M>> {
        self.through(|bytes| Metered { bytes, space, meter })
    }

    /// Copies the image to DRAM and reads the copy from now on. Fails if there is no memory for it.
    pub fn hybrid(self) -> Result<Linear<Hybrid<B>>> {
        let copy = copied(self.access().as_ref())?;
        Ok(self.through(|persistent| Hybrid { persistent, copy }))
    }

    /// Copies the image to DRAM and reads lists from the copy, MonoLists from the original. Fails if there is no
    /// memory for it.
    pub fn dual_access<M: Meter>(self, meter: M) -> Result<Linear<DualAccess<B, M>>> {
        let copy = copied(self.array().words)?;
        Ok(self.through(|persistent| DualAccess { persistent, copy, meter }))
    }
}

fn copied<T: Copy>(items: &[T]) -> Result<Vec<T>> {
    let mut copy = Vec::new();
    reserve(&mut copy, items.len())?;
    copy.extend_from_slice(items);
    Ok(copy)
}
