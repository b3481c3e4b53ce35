//! Testbed of the calibration: an index in the memory of this process, with a cache that holds all of it.
//!
//! It uses the local fabric, whose verbs cost next to nothing, so differences between two runs are due to the
//! compute server alone.

use pando_cache::{CacheConfig, CacheWorker};
use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{Ctx, ScanRange, Tree, TreeConfig};
use pando_fabric::{Endpoint, Fabric, GlobalAddr};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_workload::{KeyCodec, KeySpace, Rng, Scatter, ValueCodec, Zipf, loaded_key};

use super::CalibrateError;
use crate::bench::load::Generated;
use crate::under_test::dex::Assembly;

pub(super) const NODE_SIZE: usize = 1024;
const INDEX: u32 = 1;
/// Leaves are half full, as in the paper.
const FILL: f64 = 0.5;

/// A loaded index that is cached completely.
pub(super) struct Testbed {
    pub layout: FixedLayout,
    pub ep: LocalEndpoint,
    pub tree: Tree<FixedLayout>,
    pub worker: CacheWorker,
    codec: KeyCodec,
    zipf: Zipf,
}

impl Testbed {
    pub fn new(keys: u64) -> Result<Self, CalibrateError> {
        let codec = KeyCodec::new(KeySpace::Dense, 8, keys)?;
        let layout = FixedLayout::new(NODE_SIZE, 8, 8)?;
        let per_leaf = (layout.max_entries() as f64 * FILL) as u64;
        let nodes = (keys / per_leaf + 1) * 11 / 10 + 64;
        let size = (nodes * NODE_SIZE as u64 * 2).next_multiple_of(4096) + (64 << 20);
        let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![size], huge_pages: false })?;
        let ep = fabric.endpoint(1)?;
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded()))?;
        let cache = CacheConfig::new(2 * nodes * NODE_SIZE as u64, NODE_SIZE);
        let config = TreeConfig::new(INDEX, GlobalAddr::NULL);
        let assembly = Assembly { leaf_fill: FILL, ..Assembly::new(&pool, layout, &[], cache, config) };
        let mut trees = block_on(&ep, assembly.trees(&ep, &Generated::new(codec, ValueCodec::new(8), 1)))?;
        let tree = trees.pop().expect("one compute server has all keys");
        let worker = tree.cache().worker();
        let ctx = Ctx { ep: &ep, worker: &worker };
        block_on(&ep, tree.scan(ctx, &ScanRange::all(), |_, _| true))?;
        // The scan may copy leaves without admitting them; lookups admit the rest.
        let mut value = Vec::new();
        for record in (0..keys).step_by(per_leaf as usize / 2) {
            value.clear();
            block_on(&ep, tree.get(ctx, &codec.encode_vec(loaded_key(record)), &mut value))?;
        }
        Ok(Self { layout, ep, tree, worker, codec, zipf: Zipf::new(keys, 0.99)? })
    }

    pub fn ctx(&self) -> Ctx<'_, LocalEndpoint> {
        Ctx { ep: &self.ep, worker: &self.worker }
    }

    /// Draws keys as a skewed workload does.
    pub fn keys(&self, seed: u64, count: usize) -> Vec<[u8; 8]> {
        let mut rng = Rng::new(seed);
        let scatter = Scatter::Hash.over(self.codec.records());
        let mut draw = || {
            let mut key = [0; 8];
            self.codec.encode(loaded_key(scatter.position(self.zipf.draw(&mut rng))), &mut key);
            key
        };
        (0..count).map(|_| draw()).collect()
    }

    /// Makes an empty leaf for address `addr`.
    pub fn leaf_at(&self, addr: GlobalAddr) -> pando_fabric::PageBuf {
        let page = self.ep.buffer(NODE_SIZE);
        page.words().iter().for_each(|word| word.store(0, std::sync::atomic::Ordering::Relaxed));
        let init = pando_dex::layout::NodeInit {
            addr: addr.raw(),
            index_id: INDEX,
            level: 0,
            low: None,
            high: None,
        };
        self.layout.init(page.words(), &init);
        page
    }
}
