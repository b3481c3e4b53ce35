//! Bulk loads in which each verb in turn loses its answer.
//!
//! The index has all entries or none, and all blocks to which its root leads stay allocated.

use std::cell::Cell;
use std::sync::Arc;

use pando_cache::{Cache, CacheConfig};
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{BulkLoad, Ctx, Tree, TreeConfig};
use pando_fabric::{
    Chain, DynEndpoint, Endpoint, EndpointState, Fabric, FabricError, GlobalAddr, MemoryServerId, Nanos,
    PageBuf, RegionInfo, Result, VerbResult,
};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_pool::{Placement, Pool, PoolOptions};
use pando_rt::block_on;

const NODE: usize = 256;
const KEYS: u64 = 120;

/// An endpoint whose changes all take effect, although one of them gets no answer.
struct Lossy {
    inner: LocalEndpoint,
    changes: Cell<u64>,
    lost: Cell<u64>,
    /// Whether READs fail after the lost answer.
    cut: Cell<bool>,
    is_cut: Cell<bool>,
}

impl Lossy {
    fn changed(&self, at: GlobalAddr) -> Result<()> {
        self.changes.set(self.changes.get() + 1);
        if self.changes.get() == self.lost.get() {
            self.is_cut.set(self.cut.get());
            return Err(FabricError::TimedOut(at.server()));
        }
        Ok(())
    }

    fn readable(&self, at: GlobalAddr) -> Result<()> {
        let reason = "cut".to_owned();
        if self.is_cut.get() {
            Err(FabricError::NotConnected { server: at.server(), reason })
        } else {
            Ok(())
        }
    }
}

impl Endpoint for Lossy {
    fn state(&self) -> &EndpointState {
        self.inner.state()
    }
    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        self.readable(at)?;
        self.inner.read(at, into).await
    }
    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        let buf = self.inner.write(at, from).await?;
        self.changed(at).map(|()| buf)
    }
    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        self.readable(at)?;
        self.inner.read_word(at).await
    }
    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.inner.write_word(at, value).await?;
        self.changed(at)
    }
    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        let word = self.inner.compare_swap(at, expected, new).await?;
        self.changed(at).map(|()| word)
    }
    async fn masked_compare_swap(&self, at: GlobalAddr, a: u64, b: u64, c: u64, d: u64) -> Result<u64> {
        let word = self.inner.masked_compare_swap(at, a, b, c, d).await?;
        self.changed(at).map(|()| word)
    }
    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        let word = self.inner.fetch_add(at, add).await?;
        self.changed(at).map(|()| word)
    }
    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        let at = chain.verbs().first().map(|verb| verb.at());
        let done = self.inner.submit(chain).await?;
        at.map_or(Ok(()), |at| self.changed(at)).map(|()| done)
    }
    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        self.inner.call_bytes(server, op, body).await
    }
    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.inner.reserve(at, len).await
    }
    fn regions(&self) -> &[RegionInfo] {
        self.inner.regions()
    }
    fn now(&self) -> Nanos {
        self.inner.now()
    }
}

/// Loads with answer number `lost` lost, and checks the index; returns whether an answer was lost at all.
fn load_losing(lost: u64, cut: bool) -> bool {
    let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![8 << 20], huge_pages: false });
    let inner = fabric.expect("memory").endpoint(1).expect("an endpoint");
    let ep = &DynEndpoint::new(Lossy {
        inner,
        changes: Cell::new(0),
        lost: Cell::new(u64::MAX),
        cut: Cell::new(cut),
        is_cut: Cell::new(false),
    });
    let lossy: &Lossy = ep.as_type();
    let layout = FixedLayout::new(NODE, 8, 8).expect("sizes").with_fanout_limit(5);
    let pool = block_on(ep, Pool::create(ep, PoolOptions::embedded())).expect("a pool");
    let root = block_on(ep, Tree::create(ep, &pool, layout, 7, &[])).expect("room");
    let entries: Vec<_> = (0..KEYS).map(|k| (k.to_be_bytes(), k.to_be_bytes())).collect();
    let load = BulkLoad::new(layout, pool.clone(), 7, 3, &[]);
    let slice = block_on(ep, load.load_slice(ep, &entries.as_slice(), 0..KEYS, 1, 0)).expect("room");
    lossy.changes.set(0);
    lossy.lost.set(lost);
    let done = block_on(ep, load.finish(ep, vec![slice], root));
    let was_lost = lossy.changes.get() >= lost;
    lossy.lost.set(u64::MAX);
    lossy.is_cut.set(false);
    // Fill the freed blocks with other content.
    for _ in 0..200 {
        let at = block_on(ep, pool.alloc(ep, Placement::LeastLoaded, NODE as u64)).expect("room");
        let buf = ep.buffer(NODE);
        (0..NODE / 8).for_each(|word| buf.set(word, 0xabab));
        block_on(ep, ep.write(at, buf)).expect("no faults any more");
    }
    let cache = Arc::new(Cache::new(&CacheConfig::new(1000 * NODE as u64, NODE)).expect("memory"));
    let worker = cache.worker();
    let ctx = Ctx { ep, worker: &worker };
    let config = TreeConfig::new(7, root);
    let tree = block_on(ep, Tree::open(ctx, Arc::clone(&cache), pool, layout, config)).expect("a tree");
    let found = entries
        .iter()
        .filter(|(key, _)| block_on(ep, tree.get(ctx, key, &mut Vec::new())).expect("every node is its own"));
    let found = found.count() as u64;
    match &done {
        Ok(loaded) => assert_eq!((*loaded, found), (KEYS, KEYS)),
        Err(error) if error.may_have_taken_effect() => assert!([0, KEYS].contains(&found), "{found}"),
        Err(_) => assert_eq!(found, 0, "it says that nothing happened: {done:?}"),
    }
    was_lost
}

#[test]
fn a_lost_answer_frees_nothing_that_is_linked() {
    for cut in [false, true] {
        let mut lost = 1;
        while load_losing(lost, cut) {
            lost += 1;
        }
        assert!(lost > 1, "finishing changes something");
    }
}
