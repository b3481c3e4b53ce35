//! A leaf that changes in the middle of a scan.
//!
//! A scan copies a leaf without a latch. The copy counts only if the leaf still has the version at which the
//! scan entered it. Here a writer is in the middle of a change whenever the first copy is made.

use std::cell::RefCell;

use pando_cache::ExclusiveGuard;
use pando_rt::block_on;

use super::*;
use crate::layout::header;
use crate::ownership::scan_range::ScanRange;
use crate::testing::{Asked, Hooked, when_asked};
use crate::testing::{Cluster, KEYS, find, fixed, key, loaded};

thread_local! {
    static LATCHED: RefCell<Option<ExclusiveGuard<'static>>> = const { RefCell::new(None) };
}

/// The hook latches the first leaf of a scan right before it is copied, in the middle of a change.
#[test]
fn a_first_leaf_that_is_being_changed_is_copied_again() {
    // Never dropped: the latch outlives the hooks.
    let cluster: &'static Cluster<Hooked> = Box::leak(Box::new(loaded(Hooked(fixed()), &[], 1, |_| ())));
    let client = cluster.client(3);
    let (tree, (_, ctx)) = (&cluster.trees[0], client.server(0));
    let leaf = find(tree, ctx, &key(20), 0).0.frame;
    let count = header::raw_count(leaf.words());
    when_asked(Asked::Count, 1, move || {
        LATCHED.set(Some(leaf.exclusive().expect("nobody has it latched")));
        header::set_count(leaf.words(), 0);
        // The scan restarts.
        when_asked(Asked::ChildIndex, 1, move || {
            header::set_count(leaf.words(), count);
            LATCHED.set(None);
        });
    });
    let mut found = Vec::new();
    let low = key(20);
    let range = ScanRange { low: Bound::Included(&low), limit: 100, ..ScanRange::all() };
    let scanned = tree.scan(ctx, &range, |key, _| {
        found.push(key.to_vec());
        true
    });
    block_on(ctx.ep, scanned).expect("no error");
    assert!(LATCHED.take().is_none());
    assert_eq!(found, (20..KEYS.min(120)).map(key).collect::<Vec<_>>());
}
