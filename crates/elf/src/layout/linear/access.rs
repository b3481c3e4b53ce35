//! Where a search reads the words of a linear image: the seam between the layout and the stores.
//!
//! A search enters a list when it follows a pointer to it, then reads its words, in several parts if it goes down
//! between them. MonoLists are read from the image. Plain bytes are the simple case: every list is read where
//! it stands, and nothing of this remains in the compiled search. Only there does an exact match look for its value
//! in the middle of a list; the stores reproduce the published search, which reads a list from its beginning.

use std::fmt::Debug;
use std::ops::{Deref, Range};

use zerocopy::little_endian::U32;

use super::array::Array;

/// An image, and where each of its lists is read.
pub trait Access {
    /// Where the words of one list are.
    type Place: Copy + Debug + Send;
    /// Words that are being read.
    type Words<'a>: Deref<Target = [U32]>
    where
        Self: 'a;

    /// Whether all lists are read where they stand in the image.
    const IS_IN_PLACE: bool = false;

    /// The whole image.
    fn image(&self) -> &[u8];

    /// Chooses the place of the list of `level` to which a pointer with the word `at` leads.
    fn enter(&self, array: Array<'_>, level: usize, at: usize) -> Self::Place;

    /// Words of the list at `place` from `at` on; what follows the list may follow. `at` counts from where the
    /// pointer's word does.
    fn list<'a>(&'a self, array: Array<'a>, place: Self::Place, at: usize) -> Self::Words<'a>;

    /// The given words of the list at a place were read.
    #[inline]
    fn touched_list(&self, _place: Self::Place, _words: Range<usize>) {}

    /// The given words of a MonoList were read in the image.
    #[inline]
    fn touched_mono_list(&self, _words: Range<usize>) {}
}

impl<B: AsRef<[u8]>> Access for B {
    type Place = ();
    type Words<'a>
        = &'a [U32]
    where
        Self: 'a;

    const IS_IN_PLACE: bool = true;

    #[inline]
    fn image(&self) -> &[u8] {
        self.as_ref()
    }

    #[inline]
    fn enter(&self, _array: Array<'_>, _level: usize, _at: usize) {}

    #[inline]
    fn list<'a>(&'a self, array: Array<'a>, (): (), at: usize) -> &'a [U32] {
        &array.words[at..]
    }
}
