//! Helpers for unit tests of the tree: a small cluster, an endpoint whose verbs follow a script, and a layout
//! with hooks, by which a test can let other workers run between any two accesses to a node.
//!
//! The index has four levels of tiny nodes. With two compute servers, the lowest shared node is right above
//! the leaves.

use pando_cache::FrameState;
use pando_cache::sync::Word;
use pando_fabric::{DynEndpoint, Endpoint, Fabric, GlobalAddr};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_rt::block_on;

pub use self::common::{Client, Cluster, Entries};
pub use self::hooked::{Asked, Hooked, when_asked};
pub use self::scripted::{Fate, Scripted, Verb};
use crate::TreeConfig;
use crate::descent::walk;
use crate::error::{Attempt, Retry};
use crate::layout::fixed::FixedLayout;
use crate::layout::{Layout, header};
use crate::tree::{Ctx, Tree, VersionedNode};

#[allow(dead_code, unused_imports, reason = "tests from outside use the rest")]
#[path = "../tests/it/common/mod.rs"]
mod common;
mod hooked;
mod scripted;

pub const KEYS: u64 = 300;
/// The first key of the second compute server.
pub const BOUNDARY: u64 = 148;
/// Keys of a full leaf, and separators of a full inner node.
pub const FANOUT: usize = 5;
const NODE: u64 = 256;

pub fn fixed() -> FixedLayout {
    FixedLayout::new(NODE as usize, 8, 8).expect("a layout").with_fanout_limit(FANOUT)
}

pub fn key(k: u64) -> Vec<u8> {
    (k << 16).to_be_bytes().to_vec()
}

/// The `n`-th key behind key `k`.
pub fn behind(k: u64, n: u64) -> Vec<u8> {
    (k << 16 | n).to_be_bytes().to_vec()
}

pub fn value(n: u64) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

/// A loaded index with one compute server per partition, whose caches can hold all of it.
pub fn loaded<L: Layout>(
    layout: L,
    boundaries: &[Vec<u8>],
    servers: usize,
    tune: impl Fn(&mut TreeConfig),
) -> Cluster<L> {
    let entries: Entries = (0..KEYS).map(|k| (key(k), value(k))).collect();
    let config = LocalConfig { server_sizes: vec![8 << 20; servers], huge_pages: false };
    let fabric = LocalFabric::new(config).expect("a fabric");
    Cluster::tuned_on(fabric, layout, boundaries, &entries, 0.8, |cache| cache.bytes = 1000 * NODE, tune)
}

/// Two compute servers on one memory server.
pub fn two_servers() -> Cluster<FixedLayout> {
    loaded(fixed(), &[key(BOUNDARY)], 1, |_| ())
}

/// One compute server.
pub fn one_server() -> Cluster<FixedLayout> {
    loaded(fixed(), &[], 1, |_| ())
}

/// A client with a scripted endpoint.
pub fn scripted<L: Layout>(cluster: &Cluster<L>) -> Client<'_, L> {
    cluster.client_of(Scripted::new(cluster.fabric.endpoint(3).expect("an endpoint")))
}

/// The endpoint of a client that [`scripted`] made.
pub fn script<'c, L: Layout>(client: &'c Client<'_, L>) -> &'c Scripted {
    client.ep.as_type()
}

pub fn addr_of(hop: VersionedNode<'_>) -> GlobalAddr {
    GlobalAddr::from_raw(hop.frame.addr()).expect("a frame's own address is not swizzled")
}

/// The node of `level` on the path to a key, and its parent, both in the cache.
pub fn find<'t, L: Layout>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, DynEndpoint>,
    key: &[u8],
    level: u8,
) -> (VersionedNode<'t>, Option<VersionedNode<'t>>) {
    let key = tree.layout.key(key).expect("a key");
    let tries = 100;
    let found = (0..tries).find_map(|_| block_on(ctx.ep, walk::walk_to(tree, ctx, key, level)).ok());
    found.expect("nobody is in the way")
}

/// Whether an attempt restarts.
pub fn restarts<T>(attempt: &Attempt<T>) -> bool {
    matches!(attempt, Err(Retry::Restart))
}

/// Changes a cached node as its owner does.
pub fn change(hop: VersionedNode<'_>, change: impl FnOnce(&[Word])) {
    let guard = hop.frame.exclusive().expect("nobody has it latched");
    assert_eq!(guard.state(), FrameState::Hot);
    change(hop.frame.words());
    drop(guard);
}

/// Word `word` of a node in remote memory.
pub fn remote_word(ep: &DynEndpoint, node: GlobalAddr, word: usize) -> u64 {
    block_on(ep, ep.read_word(node.add(8 * word as u64))).expect("read")
}

pub fn set_remote_word(ep: &DynEndpoint, node: GlobalAddr, word: usize, value: u64) {
    block_on(ep, ep.write_word(node.add(8 * word as u64), value)).expect("written");
}

pub fn is_unlocked(ep: &DynEndpoint, node: GlobalAddr) -> bool {
    remote_word(ep, node, header::LOCK) >> 63 == 0
}

/// Violations that an audit of all compute servers finds, except leaks.
pub fn violations<L: Layout>(cluster: &Cluster<L>) -> Vec<String> {
    let ep = DynEndpoint::new(cluster.fabric.endpoint(99).expect("an endpoint"));
    let trees: Vec<_> = cluster.trees.iter().collect();
    block_on(&ep, crate::audit::audit(&ep, &trees)).expect("an audit").violations
}

/// Checks that all loaded keys have their values, with a client that is new to the index.
pub fn all_are_there<L: Layout>(cluster: &Cluster<L>) {
    let client = cluster.client(77);
    for k in 0..KEYS {
        assert_eq!(client.get(&key(k)).expect("no error"), Some(value(k)), "key {k}");
    }
}
