//! State of a split that is visible to other threads.
//!
//! The split happens under latches. The hook runs when the layout is asked to insert the new separator:
//! whatever is unlatched then is open to every thread.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::testing::{Asked, Hooked, when_asked};
use crate::testing::{all_are_there, behind, find, fixed, key, loaded, value};

/// A hot node to which no parent points would be cooled as an unswizzled one, and its parent would then point
/// to a frame that belongs to another node.
#[test]
fn a_new_node_is_latched_until_its_parent_points_to_it() {
    let cluster = Rc::new(loaded(Hooked(fixed()), &[], 1, |_| ()));
    let client = cluster.client(3);
    let (tree, ctx) = client.server(0);
    find(tree, ctx, &key(20), 0);
    let seen = Rc::new(Cell::new(None));
    let (others, open) = (Rc::clone(&cluster), Rc::clone(&seen));
    when_asked(Asked::InnerInsert, 1, move || {
        let (cache, layout) = (&others.trees[0].cache, others.trees[0].layout);
        let is_open = |id| {
            let frame = cache.frame(pando_cache::FrameId(id));
            let is_leaf = header::level(frame.words()) == 0;
            let state = frame.optimistic().map(|version| version.state());
            let slot = frame.parent().and_then(|above| cache.frame(above).slot_of(layout, frame.id()));
            is_leaf && state == Ok(FrameState::Hot) && slot.is_none()
        };
        open.set(Some((0..cache.frames() as u32).filter(|&id| is_open(id)).count()));
    });
    for n in 1..10 {
        assert!(client.insert(&behind(20, n), &value(n)).expect("no error"));
    }
    assert_eq!(seen.get(), Some(0));
    all_are_there(&cluster);
}
