//! Pages that arrive torn or corrupt: an owned one, a shared one, and a locked one.
//!
//! A wrong page is read again as often as a writer may be in the way, and then reported. A lock that was
//! taken for it is given back.

use std::cell::Cell;
use std::rc::Rc;

use pando_cache::Swip;
use pando_fabric::{GlobalAddr, PageBuf};
use pando_rt::block_on;

use pando_cache::NodeShape;

use super::*;
use crate::descent::read::{self, TORN_READS};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::header::{ADDR, IDS, KIND};
use crate::shared::locked;
use crate::testing::{BOUNDARY, Client, find, is_unlocked, key, two_servers, value};
use crate::testing::{Scripted, scripted};

/// A way to damage bytes, and the reason that is reported for it.
type Damage = (fn(&PageBuf), &'static str);

const DAMAGES: [Damage; 4] = [
    (|page| page.set(KIND, page.get(KIND) ^ 1 << 48), "not a node"),
    (|page| page.set(KIND, page.get(KIND) ^ 3 << 8), "a node of another layout"),
    (|page| page.set(ADDR, page.get(ADDR) + 256), "a node that belongs elsewhere"),
    (|page| page.set(IDS, page.get(IDS) + 1), "a node of another index"),
];

/// A key of the first compute server, next to the boundary.
const OWN: u64 = BOUNDARY - 1;

/// Damages the next `times` READs of `node`; returns the number of damaged READs.
fn tear(ep: &Scripted, node: GlobalAddr, times: u32, damage: fn(&PageBuf)) -> Rc<Cell<u32>> {
    let torn = Rc::new(Cell::new(0));
    let count = Rc::clone(&torn);
    ep.tear(move |at, page| {
        if at == node && count.get() < times {
            count.set(count.get() + 1);
            damage(page);
        }
    });
    torn
}

/// Address of the leaf of `OWN`, which is not cached.
fn missing_leaf(client: &Client<'_, crate::layout::fixed::FixedLayout>) -> GlobalAddr {
    let (tree, ctx) = client.server(0);
    let (above, _) = find(tree, ctx, &key(OWN), 1);
    let (words, bytes) = (above.frame.words(), key(OWN));
    let index = tree.layout.child_index(words, tree.layout.key(&bytes).expect("a key"));
    let swip = Swip::from_raw(header::get(words, tree.layout.child_word(words, index)));
    swip.global().expect("it is not cached")
}

fn is_corrupt<T>(outcome: Result<T>, node: GlobalAddr, why: &str) -> bool {
    matches!(outcome, Err(DexError::Corrupt { addr, reason }) if addr == node && reason == why)
}

fn failure<T>(attempt: Attempt<T>) -> Result<T> {
    attempt.map_err(|retry| match retry {
        Retry::Failed(error) => error,
        Retry::Restart | Retry::Crowded(_) => panic!("nobody is in the way"),
    })
}

#[test]
fn an_own_page_that_is_corrupt_is_reported_and_a_torn_one_read_again() {
    for (damage, reason) in DAMAGES {
        let cluster = two_servers();
        let client = scripted(&cluster);
        let leaf = missing_leaf(&client);
        let torn = tear(client.ep.as_type(), leaf, u32::MAX, damage);
        assert!(is_corrupt(client.get(&key(OWN)), leaf, reason), "{reason}");
        assert_eq!(torn.get(), TORN_READS + 1, "{reason}");
        let torn = tear(client.ep.as_type(), leaf, TORN_READS, damage);
        assert_eq!(client.get(&key(OWN)).expect("whole at last"), Some(value(OWN)));
        assert_eq!(torn.get(), TORN_READS, "{reason}");
    }
}

#[test]
fn a_shared_page_that_is_corrupt_is_reported_and_a_torn_one_read_again() {
    for (damage, reason) in DAMAGES {
        let cluster = two_servers();
        let client = scripted(&cluster);
        let (tree, ctx) = client.server(0);
        let node = tree.config.root;
        let read = || {
            let view = tree.view(ctx);
            failure(block_on(ctx.ep, read::read_shared(tree, ctx, node, &view)))
        };
        let torn = tear(client.ep.as_type(), node, u32::MAX, damage);
        assert!(is_corrupt(read(), node, reason), "{reason}");
        assert_eq!(torn.get(), TORN_READS + 1, "{reason}");
        tear(client.ep.as_type(), node, TORN_READS, damage);
        let page = read().expect("whole at last");
        assert!(header::has(page.words(), header::SHARED));
    }
}

#[test]
fn a_locked_page_that_is_corrupt_is_reported_and_unlocked() {
    for (damage, reason) in DAMAGES {
        let cluster = two_servers();
        let client = scripted(&cluster);
        let (tree, ctx) = client.server(0);
        let node = tree.config.root;
        let lock = || failure(block_on(ctx.ep, locked::lock_node(tree, ctx, node)));
        tear(client.ep.as_type(), node, u32::MAX, damage);
        assert!(is_corrupt(lock(), node, reason), "{reason}");
        assert!(is_unlocked(&client.ep, node) && !tree.pool.has_left_locks(), "{reason}");
        tear(client.ep.as_type(), node, TORN_READS, damage);
        let locked = lock().expect("whole at last");
        assert!(locked.is_shared && !is_unlocked(&client.ep, node));
        block_on(ctx.ep, locked::unlock_unchanged(tree, ctx, locked)).expect("unlocked");
    }
}
