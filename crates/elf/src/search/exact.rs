//! Exact match: one value per column (fact sheet §4).
//!
//! Each list is searched for its value; where the lists end, the remaining values are compared. All rows with
//! these values are results, in the order of their row ids.

use crate::layout::{ElfLayout, Found};
use crate::sink::Sink;

/// Gives `sink` the rows whose value at level `l` is `codes[l]`; none if there is not one code per level.
pub fn exact<L: ElfLayout, S: Sink>(layout: &L, codes: &[u32], sink: &mut S) {
    if codes.len() != layout.order().len() {
        return;
    }
    let mut list = layout.root();
    for &code in codes {
        match layout.find(&list, code) {
            Some(Found::List(below)) => list = below,
            Some(Found::Leaf(leaf)) => return layout.take_equal(leaf, codes, sink),
            None => return,
        }
    }
}
