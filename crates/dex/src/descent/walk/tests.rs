//! Checks of a page during a walk: that it is the right node, and whether it is owned or shared.
//!
//! Ascending and descending scans stop at the same fences. A key on a fence belongs to the node above it for
//! the former, and to the node below it for the latter. The fences of a child show whether an old copy of a
//! shared parent was right about it.

use pando_rt::block_on;

use super::*;
use crate::descent::miss;
use crate::layout::header;
use crate::layout::{Side, Toward};
use crate::testing::{BOUNDARY, addr_of, find, key, scripted, two_servers};

#[test]
fn a_key_on_a_fence_is_above_the_node_before_it_and_below_that_behind_it() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let leaf = find(tree, ctx, &key(20), 0).0;
    let words = leaf.frame.words();
    let ends = [Side::Low, Side::High].map(|side| {
        let mut end = Vec::new();
        assert!(tree.layout.append_fence(words, side, &mut end));
        end
    });
    let covers = |end: usize, toward| {
        tree.node(words).covers(Target::new(tree.layout.key(&ends[end]).expect("a key"), toward))
    };
    assert_eq!([0, 1].map(|end| covers(end, Toward::Key)), [true, false]);
    assert_eq!([0, 1].map(|end| covers(end, Toward::Below)), [false, true]);
    let inside = tree.layout.key(&key(21)).map(|key| tree.node(words).covers(Target::below(key))).ok();
    assert_eq!(inside, Some(true));
}

/// An old copy of a shared parent may call a child owned whose fences cross a boundary by now.
#[test]
fn a_page_that_turns_out_to_be_shared_is_read_as_such() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let bytes = key(BOUNDARY - 1);
    let (node, parent) = find(tree, ctx, &bytes, 1);
    let (parent, addr) = (parent.expect("it is not the root"), addr_of(node));
    assert!(header::has(node.frame.words(), header::SHARED));
    let words = parent.frame.words();
    let index = tree.layout.child_index(words, tree.layout.key(&bytes).expect("a key"));
    let slot = Slot { parent, index, addr };
    let view = tree.view(ctx);
    let read = || block_on(ctx.ep, miss::read_child(tree, ctx, slot, &view, 1, false));
    let Ok(page) = read() else { panic!("nobody has it locked") };
    assert!(header::has(page.words(), header::SHARED));
    // The lock holder is changing the node.
    let lock = block_on(ctx.ep, tree.pool.lock(ctx.ep, addr, ctx.ep.now())).expect("it is free");
    assert!(read().is_err());
    block_on(ctx.ep, lock.unlock(ctx.ep, ctx.ep.now())).expect("unlocked");
}
