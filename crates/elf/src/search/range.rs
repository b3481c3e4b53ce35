//! Range and partial match: several disjoint intervals on any subset of the columns (fact sheet §4).
//!
//! The walk is depth first, which yields rows in preorder. Columns without a condition let all entries pass.
//! The caller may stop the walk by the work it has done so far.

use crate::layout::{ElfLayout, Step};
use crate::predicate::Filter;
use crate::sink::Sink;

/// What a walk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Steps through lists, and levels passed from the end of a list to the last condition.
    pub steps: u64,
    /// Rows of leaves that were compared with conditions.
    pub compared: u64,
    /// Rows that were found.
    pub found: u64,
    /// Rows of the last leaf, if they are about to be taken without a comparison.
    pub pending: u64,
    /// [`ElfLayout::end`] of the last leaf, 0 before the first one.
    pub position: u64,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// All matching rows were found.
    Complete,
    /// The caller stopped it; the sink has a part of the result.
    Stopped,
}

/// Gives `sink` the rows that match `filter`, as long as `proceed` agrees with the work done.
pub fn range<L: ElfLayout, S: Sink>(
    layout: &L,
    filter: &Filter,
    sink: &mut S,
    mut proceed: impl FnMut(&Work) -> bool,
) -> (Walk, Work) {
    let mut work = Work::default();
    if filter.is_empty() {
        return (Walk::Complete, work);
    }
    let mut lists = vec![layout.root()];
    while let Some(list) = lists.last_mut() {
        work.steps += 1;
        match layout.step(list, filter) {
            Step::Down(below) => lists.push(below),
            Step::Take(leaf) => {
                let compared = layout.compared(leaf, filter);
                work.compared += compared;
                work.position = layout.end(leaf);
                if compared > 0 {
                    work.steps += layout.chain(leaf, filter);
                } else {
                    work.pending = layout.rows(leaf);
                }
                // Before the leaf is taken, which may be large.
                if !proceed(&work) {
                    return (Walk::Stopped, work);
                }
                layout.take(leaf, filter, sink);
                (work.found, work.pending) = (sink.found(), 0);
            }
            Step::End => {
                lists.pop();
            }
        }
        if !proceed(&work) {
            return (Walk::Stopped, work);
        }
    }
    (Walk::Complete, work)
}
