//! Range and partial match: several disjoint intervals on any subset of the columns (fact sheet §4).
//!
//! The walk is depth first, which yields rows in preorder. Columns without a condition let all entries pass.
//! The caller may stop the walk by the work it has done so far. A stopped walk can go on from its [`Path`], also
//! as tasks of several threads (`divided`).

use crate::defect::{Defect, defect};
use crate::layout::{ElfLayout, Step, Work};
use crate::predicate::Filter;
use crate::sink::Sink;

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// All matching rows were found.
    Complete,
    /// The caller stopped it; the sink has a part of the result.
    Stopped,
}

/// Where a walk is: what it has not visited yet.
#[derive(Debug)]
pub(crate) struct Path<C, F> {
    /// Lists from level 0 down, each without the entries that were passed.
    pub(crate) lists: Vec<C>,
    /// A leaf is taken when the next one is found, so that its memory has arrived by then.
    pub(crate) held: Option<F>,
}

impl<C, F: Copy> Path<C, F> {
    /// The beginning of a walk.
    pub(crate) fn root<L: ElfLayout<Cursor = C, Leaf = F>>(layout: &L) -> Self {
        Self { lists: vec![layout.root()], held: None }
    }

    /// The path of a walk through parts of the tree that are still to be given.
    pub(crate) fn empty() -> Self {
        Self { lists: Vec::new(), held: None }
    }

    /// Walks on through the lists as long as `proceed` agrees with the work done. A leaf may be held at the end.
    #[inline]
    pub(crate) fn walk<L: ElfLayout<Cursor = C, Leaf = F>, S: Sink>(
        &mut self,
        layout: &L,
        filter: &Filter,
        sink: &mut S,
        work: &mut Work,
        mut proceed: impl FnMut(&Work) -> bool,
    ) -> Walk {
        while let Some(list) = self.lists.last_mut() {
            work.steps += 1;
            match layout.step(list, filter) {
                Step::Down(below) => self.lists.push(below),
                Step::Take(leaf) => self.meet(layout, filter, leaf, sink, work),
                Step::End => {
                    self.lists.pop();
                }
            }
            if !proceed(work) {
                return Walk::Stopped;
            }
        }
        Walk::Complete
    }

    /// Holds a leaf and takes the one before.
    #[inline]
    pub(crate) fn meet<L: ElfLayout<Cursor = C, Leaf = F>, S: Sink>(
        &mut self,
        layout: &L,
        filter: &Filter,
        leaf: F,
        sink: &mut S,
        work: &mut Work,
    ) {
        layout.fetch(leaf, filter, S::READS_IDS);
        if let Some(before) = self.held.replace(leaf) {
            take(layout, before, filter, sink, work);
        }
        work.position = layout.end(leaf);
        let rows = layout.rows(leaf);
        if layout.is_compared(leaf, filter) {
            work.compared += rows;
            work.steps += layout.chain(leaf, filter);
        } else {
            work.pending = rows;
        }
    }

    /// Takes the leaf that is held.
    pub(crate) fn finish<L: ElfLayout<Cursor = C, Leaf = F>, S: Sink>(
        &mut self,
        layout: &L,
        filter: &Filter,
        sink: &mut S,
        work: &mut Work,
    ) {
        if let Some(last) = self.held.take().filter(|_| !defect(Defect::LostLeaf)) {
            take(layout, last, filter, sink, work);
        }
    }
}

/// Gives `sink` the rows that match `filter`, as long as `proceed` agrees with the work done.
pub fn range<L: ElfLayout, S: Sink>(
    layout: &L,
    filter: &Filter,
    sink: &mut S,
    proceed: impl FnMut(&Work) -> bool,
) -> (Walk, Work) {
    let mut work = Work::default();
    if filter.is_empty() {
        return (Walk::Complete, work);
    }
    let mut path = Path::root(layout);
    let walk = path.walk(layout, filter, sink, &mut work, proceed);
    if walk == Walk::Complete {
        path.finish(layout, filter, sink, &mut work);
    }
    (walk, work)
}

fn take<L: ElfLayout, S: Sink>(layout: &L, leaf: L::Leaf, filter: &Filter, sink: &mut S, work: &mut Work) {
    work.comparisons.add(layout.take(leaf, filter, sink));
    let found = sink.found();
    if work.pending == 0 {
        work.found_by_comparison += found - work.found;
    }
    (work.found, work.pending) = (found, 0);
}
