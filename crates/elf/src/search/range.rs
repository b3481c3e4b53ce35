//! Range and partial match: several disjoint intervals on any subset of the columns (fact sheet §4).
//!
//! The walk is depth first, which yields rows in preorder. Columns without a condition let all entries pass.
//! The caller may stop the walk by the work it has done so far.

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
    // A leaf is taken when the next one is found, so that its memory has arrived by then.
    let mut held = None;
    while let Some(list) = lists.last_mut() {
        work.steps += 1;
        match layout.step(list, filter) {
            Step::Down(below) => lists.push(below),
            Step::Take(leaf) => {
                layout.fetch(leaf, filter);
                if let Some(before) = held.replace(leaf) {
                    take(layout, before, filter, sink, &mut work);
                }
                let compared = layout.compared(leaf, filter);
                work.position = layout.end(leaf);
                let rows = layout.rows(leaf);
                if compared > 0 {
                    work.compared += rows;
                    work.compared_bytes += rows * compared;
                    work.steps += layout.chain(leaf, filter);
                } else {
                    work.pending = rows;
                }
            }
            Step::End => {
                lists.pop();
            }
        }
        if !proceed(&work) {
            return (Walk::Stopped, work);
        }
    }
    if let Some(last) = held {
        take(layout, last, filter, sink, &mut work);
    }
    (Walk::Complete, work)
}

fn take<L: ElfLayout, S: Sink>(layout: &L, leaf: L::Leaf, filter: &Filter, sink: &mut S, work: &mut Work) {
    layout.take(leaf, filter, sink);
    let found = sink.found();
    if work.pending == 0 {
        work.found_by_comparison += found - work.found;
    }
    (work.found, work.pending) = (found, 0);
}
