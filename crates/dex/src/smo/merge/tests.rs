//! Obstacles to a merge: pins, write-backs, another memory server, and parents that change meanwhile.
//!
//! Most of them come between two steps of one merge. So the tests call the steps: they delay a verb, let
//! another worker in, and check whether the next step notices.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use pando_cache::NodeShape;
use pando_cache::{Expelled, Swip};
use pando_fabric::MemoryServerId;
use pando_rt::block_on;

use super::*;
use crate::audit;
use crate::layout::fixed::FixedLayout;
use crate::smo::cut::Separator;
use crate::smo::split;
use crate::testing::{
    BOUNDARY, Client, KEYS, addr_of, behind, change, find, fixed, key, loaded, one_server, restarts,
    two_servers, value, violations,
};
use crate::testing::{Fate, Verb, script, scripted};

/// The last key of the first compute server.
const OWN: u64 = BOUNDARY - 1;

fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The same node at its current version.
fn again(hop: VersionedNode<'_>) -> VersionedNode<'_> {
    VersionedNode { version: hop.frame.optimistic().expect("nobody has it latched"), ..hop }
}

/// The node of a level, paired with a neighbour.
fn pair<'t>(client: &'t Client<'_, FixedLayout>, bytes: &[u8], level: u8) -> Option<Neighbours<'t>> {
    let (tree, ctx) = client.server(0);
    let (node, parent) = find(tree, ctx, bytes, level);
    let parent = parent.expect("it is not the root");
    let prepared = tree.layout.key(bytes).expect("a key");
    let Ok(pair) = block_on(ctx.ep, neighbours(tree, ctx, node, parent, prepared)) else {
        panic!("nobody is in the way")
    };
    pair
}

#[test]
fn a_node_that_somebody_uses_does_not_vanish() {
    let cluster = one_server();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    assert!(client.put(&key(20), &value(1)).expect("no error"));
    let leaf = find(tree, ctx, &key(20), 0).0;
    let is_unused = || {
        let latched = latch_unused(tree, leaf.frame, again(leaf).version);
        let is_in_the_way = restarts(&latched);
        latched.map(|guard| guard.release_unchanged()).is_ok() && !is_in_the_way
    };
    assert!(is_unused());
    let pinned = leaf.frame.pin(again(leaf).version).expect("it is hot");
    assert!(!is_unused());
    drop(pinned);
    assert!(is_unused());
    script(&client).follow(|verb, _| if verb == Verb::Write { Fate::Waits } else { Fate::Done });
    let mut written = 0;
    let mut flushed = pin!(tree.cache.flush_frame(ctx.worker, ctx.ep, tree.layout, leaf.frame, &mut written));
    assert!(poll(flushed.as_mut()).is_pending() && leaf.frame.is_writing());
    assert!(!is_unused(), "the WRITE would arrive in what the block is used for next");
    script(&client).follow_none();
    assert!(block_on(ctx.ep, flushed).expect("no WRITE fails"));
    assert!(is_unused());
}

#[test]
fn children_that_only_the_flag_of_a_vanishing_node_tells_of_are_counted() {
    let cluster = one_server();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    find(tree, ctx, &key(20), 0);
    let node = find(tree, ctx, &key(20), 1).0;
    change(node, |words| {
        header::set_flag(words, header::WAS_SHARED, true);
        tree.cache.unswizzle_children(node.frame, tree.layout);
    });
    assert!(tree.cache.paths_are_whole());
    let Ok(guard) = latch_unused(tree, node.frame, again(node).version) else { panic!("nobody uses it") };
    assert!(!tree.cache.paths_are_whole());
    // From here on its content belongs to a node without the flag.
    header::set_flag(node.frame.words(), header::WAS_SHARED, false);
    drop(guard);
    assert_eq!(audit::audit_cache(tree), [""; 0]);
}

#[test]
fn a_shared_parent_stays_cached_while_its_lock_is_waited_for() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let bytes = key(OWN);
    let prepared = tree.layout.key(&bytes).expect("a key");
    // Insert until there are two owned leaves below the shared node.
    let mut n = 0;
    let pair = loop {
        if let Some(pair) = pair(&client, &bytes, 0) {
            break pair;
        }
        n += 1;
        assert!(n < 20 && client.insert(&behind(OWN, n), &value(n)).expect("no error"));
    };
    let parent = pair.parent;
    assert!(header::has(parent.frame.words(), header::SHARED));
    let lock = block_on(ctx.ep, tree.pool.lock(ctx.ep, addr_of(parent), ctx.ep.now())).expect("it is free");
    {
        let mut merged = pin!(merge_under_shared(tree, ctx, prepared, pair, parent));
        assert!(poll(merged.as_mut()).is_pending());
        let expelled = tree.cache.expel(ctx.worker, ctx.ep, tree.layout, parent.frame.id(), |_| true);
        let expelled = block_on(ctx.ep, expelled).expect("no WRITE fails");
        assert_eq!(expelled, Expelled::Busy, "an old copy that is admitted now would stay");
    }
    block_on(ctx.ep, lock.unlock(ctx.ep, ctx.ep.now())).expect("unlocked");
}

#[test]
fn parts_of_subtrees_on_two_memory_servers_stay_apart() {
    let cluster = loaded(fixed(), &[], 2, |config| config.subtree_level = 1);
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let found = pair(&client, &key(20), 1).expect("a neighbour");
    let may_merge = || {
        let [left, right, parent] = [found.left, found.right, found.parent].map(again);
        let pair = Neighbours { left, right, parent, separator: found.separator };
        let Ok(may) = may_merge(tree, &tree.view(ctx), &pair, parent, 1) else {
            panic!("nobody changes them")
        };
        may
    };
    let (here, offset) = (addr_of(found.left).server(), addr_of(found.right).offset());
    let put_on = |server| {
        let addr = GlobalAddr::new(server, offset);
        change(found.right, |words| header::set(words, header::ADDR, addr.raw()));
    };
    put_on(here);
    assert!(!may_merge(), "they are too full");
    for hop in [found.left, found.right] {
        change(hop, |words| header::set_count(words, 1));
    }
    assert!(may_merge());
    put_on(MemoryServerId(1 - here.0));
    assert!(!may_merge());
    put_on(here);
    change(found.right, |words| header::set_flag(words, header::SHARED, true));
    assert!(!may_merge());
}

#[test]
fn a_neighbour_is_one_on_either_side() {
    let cluster = one_server();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let first = pair(&client, &key(0), 0).expect("the one to the right");
    assert_eq!(addr_of(first.left), addr_of(find(tree, ctx, &key(0), 0).0));
    let last = pair(&client, &key(KEYS - 1), 0).expect("the one to the left");
    assert_eq!(addr_of(last.right), addr_of(find(tree, ctx, &key(KEYS - 1), 0).0));
}

/// While the left neighbour is READ, the parent is split between the two. The old word of the node still lies
/// behind the last child of the left half.
#[test]
fn a_neighbour_that_a_split_took_away_meanwhile_is_none() {
    let cluster = one_server();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let mut n = 0;
    let parent = loop {
        let parent = find(tree, ctx, &key(0), 1).0;
        if !tree.layout.has_room(parent.frame.words(), &key(0), 0) {
            break parent;
        }
        n += 1;
        assert!(n < 100 && client.insert(&behind(0, n), &value(n)).is_ok(), "it fills up");
    };
    let words = parent.frame.words();
    let last = tree.layout.count(words);
    let mut bytes = Vec::new();
    tree.layout.append_key(words, last - 1, &mut bytes);
    let prepared = tree.layout.key(&bytes).expect("a key");
    let node = find(tree, ctx, &bytes, 0).0;
    let parent = again(parent);
    assert_eq!(header::get(words, tree.layout.child_word(words, last)), Swip::hot(node.frame.id()).raw());

    script(&client).follow(|verb, _| if verb == Verb::Read { Fate::Waits } else { Fate::Done });
    let mut neighbours = pin!(neighbours(tree, ctx, node, parent, prepared));
    assert!(poll(neighbours.as_mut()).is_pending(), "the left one is not cached");
    let other = cluster.client(5);
    let (_, others) = other.server(0);
    // Nodes above may have to be split first.
    for _ in 0..4 {
        let rising = Separator { key: bytes.iter().map(|_| 0xff).collect(), rising: true };
        if tree.layout.count(words) == last {
            let split = split::make_room_from(tree, others, prepared, 1, Some(rising), 0, Purpose::Operation);
            block_on(others.ep, split).expect("there is room");
        }
    }
    assert_eq!(tree.layout.count(words), last - 1, "the node is the first child of a new parent");
    script(&client).follow_none();
    assert!(restarts(&block_on(ctx.ep, neighbours)));
    assert_eq!(violations(&cluster), [""; 0]);
}

#[test]
fn a_root_that_was_shared_still_says_so_when_it_gets_lower() {
    let cluster = one_server();
    let client = scripted(&cluster);
    let (tree, _) = client.server(0);
    let root = tree.root_node().expect("nobody has it latched");
    change(root, |words| header::set_flag(words, header::WAS_SHARED, true));
    let height = tree.height();
    for k in 0..KEYS {
        assert!(client.remove(&key(k)).expect("no error"));
    }
    assert!(tree.height() < height);
    assert!(header::has(root.frame.words(), header::WAS_SHARED), "others may know its lock word");
}
