//! Static caching: the lists of the first levels in DRAM, copied when an image is opened (DAPD 2022 §4.2).
//!
//! Lists stand level by level. Pointers between them are rewritten to their places in the copy, so that the
//! level alone decides where a list is read and nothing is looked up; the paper finds copies in a hash
//! table and names such *swizzling* as an idea. Pointers to MonoLists and to deeper lists stay as they are.
//! The copy never changes, and threads share it.

use std::collections::VecDeque;

use zerocopy::little_endian::U32;

use super::reserve;
use crate::error::Result;
use crate::layout::{Access, Array, Linear, write_list_pointer};

/// Copies of the lists of levels 0 to `depth - 1`.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    depth: usize,
    lists: usize,
    words: Vec<U32>,
}

/// A list that is not copied yet.
struct Waiting {
    level: usize,
    at: usize,
    /// Word of the copy where its pointer belongs; the list of level 0 has none.
    hole: Option<usize>,
}

impl Levels {
    /// Copies the lists of the first `depth` levels of `linear`; none if `depth` is 0, all from the number of columns
    /// on. Fails if there is no memory for them.
    pub(super) fn copy<A: Access>(linear: &Linear<A>, depth: usize) -> Result<Self> {
        let mut levels = Self { depth, ..Self::default() };
        let mut waiting = VecDeque::new();
        if depth > 0 {
            waiting.push_back(Waiting { level: 0, at: 0, hole: None });
        }
        while let Some(next) = waiting.pop_front() {
            levels.append(linear.array(), &next, &mut waiting)?;
        }
        Ok(levels)
    }

    fn append(&mut self, array: Array<'_>, list: &Waiting, waiting: &mut VecDeque<Waiting>) -> Result<()> {
        let words = array.list(list.level, list.at);
        let at = self.words.len();
        reserve(&mut self.words, words.len())?;
        self.words.extend_from_slice(words);
        self.lists += 1;
        if let Some(hole) = list.hole {
            write_list_pointer(&mut self.words[hole..hole + array.pointer_words], at);
        }
        if list.level + 1 < self.depth {
            let lists = array.entries(list.level, list.at).filter(|(_, pointer)| !pointer.is_mono);
            waiting.extend(lists.map(|(pointer_at, pointer)| Waiting {
                level: list.level + 1,
                at: pointer.at,
                hole: Some(at + pointer_at - list.at),
            }));
        }
        Ok(())
    }

    /// Number of levels whose lists are here.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Number of lists.
    pub fn lists(&self) -> usize {
        self.lists
    }

    /// Size of all copies in bytes.
    pub fn bytes(&self) -> u64 {
        size_of_val(self.words.as_slice()) as u64
    }

    /// Words of the list at word `at`, and those behind it.
    #[inline]
    pub(super) fn from(&self, at: usize) -> &[U32] {
        &self.words[at..]
    }
}
