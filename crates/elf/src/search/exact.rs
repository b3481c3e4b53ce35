//! Exact match: one value per column (fact sheet §4).
//!
//! Each list is searched for its value; where the lists end, the remaining values are compared. All rows with
//! these values are results, in the order of their row ids. What will be read next is asked for at once, and many
//! exact matches take turns, so that each finds its memory in a cache.

use crate::layout::{ElfLayout, Found};
use crate::sink::Sink;

/// Exact matches that take turns. More of them would gain little: a processor fetches a few dozen cache lines at once.
const GROUP: usize = 16;

/// Gives `sink` the rows whose value at level `l` is `codes[l]`; none if there is not one code per level.
pub fn exact<L: ElfLayout, S: Sink>(layout: &L, codes: &[u32], sink: &mut S) {
    if codes.len() != layout.order().len() {
        return;
    }
    let mut list = layout.root();
    for &code in codes {
        layout.fetch_list(&list, code);
        match layout.find(&list, code) {
            Some(Found::List(below)) => list = below,
            Some(Found::Leaf(leaf)) => {
                layout.fetch_equal(leaf, codes);
                if let Some(leaf) = layout.narrow(leaf, codes) {
                    layout.take_equal(leaf, codes, sink);
                }
                return;
            }
            None => return,
        }
    }
}

/// Does what [`exact`] does for each of `queries`, and calls `done` after each.
pub fn exact_many<'q, L: ElfLayout, S: Sink>(
    layout: &L,
    queries: impl Iterator<Item = &'q [u32]>,
    sink: &mut S,
    mut done: impl FnMut(&mut S),
) {
    let mut queries = queries.peekable();
    let mut group = Vec::with_capacity(GROUP);
    while queries.peek().is_some() {
        group.extend(queries.by_ref().take(GROUP).map(|codes| Search::new(layout, codes)));
        while group.iter().any(Search::is_above_leaf) {
            group.iter_mut().for_each(|search| search.descend(layout));
        }
        group.iter_mut().for_each(|search| search.narrow(layout));
        for search in group.drain(..) {
            search.take(layout, sink);
            done(sink);
        }
    }
}

/// An exact match on its way down.
struct Search<'q, L: ElfLayout> {
    /// One code per level.
    codes: &'q [u32],
    /// `None` if no row matches.
    place: Option<Found<L::Cursor, L::Leaf>>,
    level: usize,
}

impl<'q, L: ElfLayout> Search<'q, L> {
    fn new(layout: &L, codes: &'q [u32]) -> Self {
        let is_whole = codes.len() == layout.order().len();
        Self { codes, place: is_whole.then(|| Found::List(layout.root())), level: 0 }
    }

    fn is_above_leaf(&self) -> bool {
        matches!(self.place, Some(Found::List(_)))
    }

    /// Searches a list and asks for what it leads to.
    #[inline]
    fn descend(&mut self, layout: &L) {
        let Some(Found::List(list)) = &self.place else { return };
        self.place = layout.find(list, self.codes[self.level]);
        self.level += 1;
        match &self.place {
            Some(Found::List(below)) => layout.fetch_list(below, self.codes[self.level]),
            Some(Found::Leaf(leaf)) => layout.fetch_equal(*leaf, self.codes),
            None => (),
        }
    }

    #[inline]
    fn narrow(&mut self, layout: &L) {
        if let Some(Found::Leaf(leaf)) = self.place {
            self.place = layout.narrow(leaf, self.codes).map(Found::Leaf);
        }
    }

    #[inline]
    fn take<S: Sink>(self, layout: &L, sink: &mut S) {
        if let Some(Found::Leaf(leaf)) = self.place {
            layout.take_equal(leaf, self.codes, sink);
        }
    }
}
