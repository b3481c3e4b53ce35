//! A leaf that changes in the middle of a lookup.
//!
//! A reader of a cached leaf holds no latch. Its result counts only if the leaf still has the version at
//! which the reader entered it. The hook runs the other worker inside the reader's search, so every run has
//! the same outcome.

use std::rc::Rc;

use pando_rt::block_on;

use super::*;
use crate::testing::{Asked, Hooked, when_asked};
use crate::testing::{addr_of, behind, find, fixed, key, loaded, value};

#[test]
fn a_key_that_moves_to_another_leaf_during_a_lookup_is_found() {
    let cluster = Rc::new(loaded(Hooked(fixed()), &[], 1, |_| ()));
    let client = cluster.client(3);
    let (tree, ctx) = client.server(0);
    let leaf = |k| addr_of(find(tree, ctx, &key(k), 0).0);
    // The last key of its leaf.
    let k = (20..).find(|&k| leaf(k) != leaf(k + 1)).expect("leaves end somewhere");
    let before = leaf(k);
    let others = Rc::clone(&cluster);
    when_asked(Asked::Find, 0, move || {
        let client = others.client(5);
        for n in 1..5 {
            assert!(client.insert(&behind(k - 1, n), &value(n)).expect("no error"));
        }
    });
    let (bytes, mut out) = (key(k), Vec::new());
    let get = tree.get_later(ctx, &bytes, ResumePoint::default(), &mut out);
    let found = block_on(ctx.ep, get).expect("no error");
    assert_eq!((found, out), (true, value(k)));
    assert_ne!(leaf(k), before, "it moved");
}
