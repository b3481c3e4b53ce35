//! Shared nodes and operations with stale knowledge: an address from before a move, a copy from before a
//! change, a view from before a boundary moved. Also a writer that fails between two unlocks.
//!
//! The first compute server does the work, the key is its last one, and the node is the lowest shared one.

use std::cell::RefCell;
use std::rc::Rc;

use pando_cache::Swip;
use pando_fabric::{DynEndpoint, GlobalAddr};
use pando_rt::block_on;

use super::*;
use crate::descent::{optimistic, read, refresh};
use crate::layout::{Side, header};
use crate::node::Target;
use crate::placement::relocate;
use crate::shared::{locked, parent};
use crate::testing::{Asked, Hooked, when_asked};
use crate::testing::{
    BOUNDARY, Client, addr_of, all_are_there, behind, change, find, fixed, is_unlocked, key, loaded,
    remote_word, restarts, set_remote_word, two_servers, violations,
};
use crate::testing::{Fate, Verb, script, scripted};
use crate::tree::new_node;

/// The last key of the first compute server.
const OWN: u64 = BOUNDARY - 1;

/// The level of the lowest shared node.
const LEVEL: u8 = 1;

/// Addresses of the lowest shared node and its parent.
fn place<L: Layout>(tree: &Tree<L>, ctx: Ctx<'_, DynEndpoint>) -> (GlobalAddr, GlobalAddr) {
    let (node, parent) = find(tree, ctx, &key(OWN), LEVEL);
    let parent = parent.expect("it is not the root");
    let is_shared = |hop: VersionedNode<'_>| header::has(hop.frame.words(), header::SHARED);
    assert!(is_shared(node) && is_shared(parent));
    (addr_of(node), addr_of(parent))
}

#[test]
fn who_remembers_where_a_shared_node_was_finds_that_it_moved() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let bytes = key(OWN);
    let prepared = tree.layout.key(&bytes).expect("a key");
    let leaf = addr_of(find(tree, ctx, &bytes, 0).0);
    let (old, above) = place(tree, ctx);
    // The other compute server gets copies, which will become stale.
    client.get(&key(BOUNDARY)).expect("no error");
    let Ok(new) = block_on(ctx.ep, new_node::new_node(tree, ctx, LEVEL, old)) else {
        panic!("there is room")
    };
    let to = new.addr();
    assert!(block_on(ctx.ep, relocate::move_shared(tree, ctx, prepared, old, LEVEL, above, new)).is_ok());
    let says_moved = |node| remote_word(ctx.ep, node, header::KIND) & header::MOVED != 0;
    assert!(says_moved(old) && !says_moved(to));

    assert!(restarts(&block_on(ctx.ep, parent::lock_parent(tree, ctx, old, prepared, leaf, 0))));
    assert!(is_unlocked(ctx.ep, old));
    let parent = find(tree, ctx, &bytes, LEVEL).1.expect("it is not the root");
    let enter = |node| optimistic::enter_listed(tree, parent, Swip::addr(node), prepared, |_| ()).is_some();
    assert!(tree.cache.table().frame_of(old).is_some(), "a copy of what was left behind is cached");
    assert!(enter(to) && !enter(old));

    for n in 1..20 {
        assert!(client.insert(&behind(BOUNDARY, n), &[7; 8]).expect("no error"));
    }
    assert!(cluster.trees[1].smo_counts()[0] > 0, "a leaf was split below the node that moved");
    all_are_there(&cluster);
    assert_eq!(violations(&cluster), [""; 0]);
}

#[test]
fn what_is_left_behind_of_a_node_is_not_split() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let bytes = key(OWN);
    let prepared = tree.layout.key(&bytes).expect("a key");
    let (node, above) = place(tree, ctx);
    let lock = || block_on(ctx.ep, parent::lock_both(tree, ctx, prepared, node, LEVEL, above));
    let Ok(locked) = lock() else { panic!("nothing moved") };
    block_on(ctx.ep, locked::unlock_seen(tree, ctx, locked)).expect("unlocked");
    let kind = remote_word(ctx.ep, node, header::KIND);
    set_remote_word(ctx.ep, node, header::KIND, kind | header::MOVED);
    assert!(restarts(&lock()));
    assert!(is_unlocked(ctx.ep, node) && is_unlocked(ctx.ep, above));
}

#[test]
fn a_node_that_is_not_meant_is_not_entered() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let bytes = [key(OWN), key(0)];
    let [own, elsewhere] = [&bytes[0], &bytes[1]].map(|bytes| tree.layout.key(bytes).expect("a key"));
    let leaf = find(tree, ctx, &key(OWN), 0).0;
    let (node, above) = find(tree, ctx, &key(OWN), LEVEL);
    let above = above.expect("it is not the root");
    let enter =
        |parent, child, key| optimistic::enter_listed(tree, parent, Swip::addr(addr_of(child)), key, |_| ());
    assert!(enter(above, node, own).is_some() && enter(node, leaf, own).is_some());
    assert!(enter(above, node, elsewhere).is_none(), "it does not cover the key");
    assert!(enter(above, leaf, own).is_none(), "it is of another level");
    let cooled = block_on(ctx.ep, tree.cache.cool(ctx.worker, ctx.ep, tree.layout, leaf.frame.id()));
    cooled.expect("no WRITE fails");
    assert!(enter(node, leaf, own).is_none(), "it is cooling, and must be made hot before it is changed");
}

#[test]
fn a_node_whose_own_copy_is_ahead_is_not_changed_under_its_lock() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let bytes = key(OWN);
    let prepared = tree.layout.key(&bytes).expect("a key");
    let leaf = addr_of(find(tree, ctx, &bytes, 0).0);
    let (node, above) = place(tree, ctx);
    let (hop, root) = (find(tree, ctx, &bytes, LEVEL).0, tree.root_node().expect("nobody has it latched"));
    for hop in [hop, root] {
        change(hop, |words| header::set_flag(words, header::SHARED, false));
    }
    for addr in [node, tree.config.root] {
        let Ok(locked) = block_on(ctx.ep, locked::lock_node(tree, ctx, addr)) else {
            panic!("nobody has it")
        };
        assert!(!locked.is_shared);
        block_on(ctx.ep, locked::unlock_unchanged(tree, ctx, locked)).expect("unlocked");
    }
    assert!(restarts(&block_on(ctx.ep, parent::lock_parent(tree, ctx, node, prepared, leaf, 0))));
    assert!(restarts(&block_on(ctx.ep, parent::lock_both(tree, ctx, prepared, node, LEVEL, above))));
    let kind = remote_word(ctx.ep, tree.config.root, header::KIND);
    let pending = Pending { key: &bytes, value_len: 0, rising: false };
    assert!(restarts(&block_on(ctx.ep, grow_shared_root(tree, ctx, pending))));
    assert_eq!(remote_word(ctx.ep, tree.config.root, header::KIND), kind, "the root is as it was");
    assert!([node, above, tree.config.root].iter().all(|&node| is_unlocked(ctx.ep, node)));
}

#[test]
fn a_copy_only_gets_newer_and_stays_shared_as_long_as_it_is() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let (node, _) = place(tree, ctx);
    let hop = find(tree, ctx, &key(OWN), LEVEL).0;
    let words = hop.frame.words();
    let view = tree.view(ctx);
    let read = block_on(ctx.ep, read::read_shared(tree, ctx, node, &view));
    let Ok(page) = read else { panic!("nobody has it locked") };
    let version = header::get(words, header::REMOTE_VERSION);
    let install = |version, count: usize| {
        page.set(header::REMOTE_VERSION, version);
        header::set_count(page.words(), count);
        block_on(ctx.ep, refresh::install(tree, ctx, node, &page)).expect("nobody has it latched");
        (
            header::get(words, header::REMOTE_VERSION),
            header::raw_count(words),
            header::has(words, header::SHARED),
        )
    };
    assert_eq!(install(version + 2, 2), (version + 2, 2, true));
    assert_eq!(install(version + 1, 1), (version + 2, 2, true), "an older one");
    // Judged by an earlier view, in which this compute server owned it.
    header::set_flag(page.words(), header::SHARED, false);
    assert_eq!(install(version + 3, 1), (version + 3, 1, true));
    change(hop, |words| header::set_flag(words, header::SHARED, false));
    assert_eq!(install(version + 4, 2), (version + 3, 1, false), "an own copy is ahead");
}

/// Fills the lowest shared node, below a parent with room, and returns the addresses of both.
fn fill<L: Layout>(client: &Client<'_, L>) -> (GlobalAddr, GlobalAddr) {
    let (tree, ctx) = client.server(0);
    let has_room = |hop: VersionedNode<'_>| tree.layout.has_room(hop.frame.words(), &key(OWN), 0);
    for n in 1.. {
        let (node, above) = find(tree, ctx, &key(OWN), LEVEL);
        if !has_room(node) && above.is_some_and(has_room) {
            break;
        }
        assert!(n < 1000, "the node of the own keys fills up");
        client.insert(&behind(OWN, n), &[7; 8]).expect("no error");
    }
    place(tree, ctx)
}

#[test]
fn a_split_whose_writer_fails_between_the_unlocks_is_finished() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let (node, above) = fill(&client);
    let bytes = behind(OWN, 0x7fff);
    let prepared = tree.layout.key(&bytes).expect("a key");
    let pending = Pending { key: &bytes, value_len: 0, rising: false };
    let (hop, parent) = find(tree, ctx, &bytes, LEVEL);
    let parent = parent.expect("it is not the root");
    assert!(tree.layout.has_room(parent.frame.words(), &bytes, 0));
    // The parent is written and unlocked; then the memory server is out of reach.
    let unlocked = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&unlocked);
    script(&client).follow(move |verb, at| {
        if !seen.borrow().is_empty() {
            return Fate::NotSent;
        }
        if verb == Verb::Chain {
            seen.borrow_mut().push(at);
            return Fate::Unanswered;
        }
        Fate::Done
    });
    let split = block_on(ctx.ep, split_shared(tree, ctx, prepared, hop, parent, pending));
    assert!(matches!(split, Err(Retry::Failed(_))));
    script(&client).follow_none();
    assert_eq!(*unlocked.borrow(), [above], "who dies here has split the node, and its parent says so");
    assert!(!is_unlocked(ctx.ep, node), "nobody reads the node before it ends where its parent says");
    assert!(tree.pool.has_left_locks());
    block_on(ctx.ep, tree.pool.give_back_left_locks(ctx.ep)).expect("in reach again");
    assert!(is_unlocked(ctx.ep, node) && is_unlocked(ctx.ep, above));

    let page = block_on(ctx.ep, ctx.ep.read(node, ctx.ep.buffer(tree.layout.node_size()))).expect("read");
    let end = tree.node(&page).fence(Side::High);
    let page = block_on(ctx.ep, ctx.ep.read(above, page)).expect("read");
    let separators = (0..tree.layout.count(page.words())).map(|i| {
        let mut separator = Vec::new();
        tree.layout.append_key(page.words(), i, &mut separator);
        separator
    });
    assert!(separators.map(Some).any(|separator| separator == end), "the node ends where its parent says");
    all_are_there(&cluster);
    assert_eq!(violations(&cluster), [""; 0]);
}

#[test]
fn a_shared_parent_is_unlocked_before_the_node_that_was_split() {
    let cluster = two_servers();
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let (node, above) = fill(&client);
    let bytes = behind(OWN, 0x7fff);
    let prepared = tree.layout.key(&bytes).expect("a key");
    let pending = Pending { key: &bytes, value_len: 0, rising: false };
    let (hop, parent) = find(tree, ctx, &bytes, LEVEL);
    let unlocked = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&unlocked);
    script(&client).follow(move |verb, at| {
        if verb == Verb::Chain {
            seen.borrow_mut().push(at);
        }
        Fate::Done
    });
    let parent = parent.expect("it is not the root");
    let split = block_on(ctx.ep, split_shared(tree, ctx, prepared, hop, parent, pending));
    assert!(matches!(split, Ok(Split::Done)));
    assert_eq!(*unlocked.borrow(), [above, node]);
    assert_eq!(violations(&cluster), [""; 0]);
}

#[test]
fn a_refresh_notices_that_an_own_node_changed_under_it() {
    let cluster = Rc::new(loaded(Hooked(fixed()), &[key(BOUNDARY)], 1, |_| ()));
    let client = scripted(&cluster);
    let (tree, ctx) = client.server(0);
    let bytes = key(10);
    let prepared = tree.layout.key(&bytes).expect("a key");
    let own = find(tree, ctx, &bytes, 2).0;
    assert!(!header::has(own.frame.words(), header::SHARED) && header::level(own.frame.words()) == 2);
    let refresh = || block_on(ctx.ep, refresh::refresh(tree, ctx, tree.config.root, Target::of(prepared)));
    assert!(refresh().is_ok());
    let (others, id) = (Rc::clone(&cluster), own.frame.id());
    when_asked(Asked::ChildIndex, 2, move || {
        drop(others.trees[0].cache.frame(id).exclusive().expect("nobody has it latched"));
    });
    assert!(restarts(&refresh()));
}
