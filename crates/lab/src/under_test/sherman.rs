//! Sherman, FG+ and FG as peers.
//!
//! Each compute server has its own view of the same nodes. Keys and values have the sizes of the workload,
//! and the index cache the size of a compute server's cache. With the technique `on-chip`, the lock tables
//! lie in the memory of NICs.

use pando::{CacheCounts, KeyRange, ScanRange, SmoCounts};
use pando_fabric::Endpoint;
use pando_pool::Pool;
use pando_sherman::{Config, Fill, LockPlace, Options, OwnKeys, Result, Shape, Sherman};

use super::Audited;
use super::dex::INDEX;
use super::peers::{Blocks, Entry, PeerTree, operations_of};
use crate::spec::{BenchError, BenchSpec, ShermanSetup};

/// How an index is made and used.
pub struct Parameters {
    pub shape: Shape,
    pub config: Config,
}

/// Parameters for a benchmark.
///
/// # Errors
/// Nodes without room for entries of these sizes.
pub(crate) fn config(setup: ShermanSetup, spec: &BenchSpec) -> std::result::Result<Parameters, BenchError> {
    let index_cache = setup.options.index_cache.map(|_| spec.cache_bytes);
    let options = Options { index_cache, ..setup.options };
    let shape = Shape::new(spec.key_size, spec.value_size, spec.node_size, &options);
    let config = Config { read_ahead: spec.read_ahead, ..Config::new(INDEX, options) };
    Ok(Parameters { shape: shape.map_err(BenchError::index)?, config })
}

impl PeerTree for Sherman {
    type Error = pando_sherman::ShermanError;
    type Config = Parameters;

    async fn open_all<E: Endpoint>(
        parameters: &Parameters,
        ep: &E,
        pool: &Pool,
        servers: usize,
        ranges: Option<&[KeyRange]>,
    ) -> Result<Vec<Self>> {
        let Parameters { shape, config } = parameters;
        let anchor = Sherman::create(ep, pool, shape, config).await?;
        let mut trees = Vec::with_capacity(servers);
        for server in 0..servers {
            let own = ranges.map(|ranges| {
                let KeyRange { low, high } = ranges[server].clone();
                OwnKeys { low, high }
            });
            let config = Config { own, ..config.clone() };
            trees.push(Sherman::open(ep, pool.clone(), anchor, *shape, config).await?);
        }
        Ok(trees)
    }

    async fn load<E: Endpoint>(
        &self,
        spec: &BenchSpec,
        ep: &E,
        entries: impl Iterator<Item = Entry>,
    ) -> Result<u64> {
        Sherman::load(self, ep, Fill { leaf: spec.fill, inner: spec.inner_fill }, entries).await
    }

    operations_of!(Sherman);

    async fn scan<E: Endpoint>(
        &self,
        ep: &E,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        let ScanRange { low, high, limit, .. } = *range;
        Sherman::scan(self, ep, &pando_sherman::ScanRange { low, high, limit }, visit).await
    }

    /// All 0: the index cache has no counters.
    fn cache_counts(&self) -> CacheCounts {
        CacheCounts::default()
    }

    fn on_chip(&self) -> Blocks {
        match self.config().options.locks {
            LockPlace::Table { on_chip: true, .. } => self.lock_tables().collect(),
            _ => Blocks::new(),
        }
    }

    fn smo_counts(&self) -> SmoCounts {
        let counts = self.counts();
        SmoCounts { splits: counts.splits, merges: counts.merges, ..SmoCounts::default() }
    }

    async fn audit_all<E: Endpoint>(trees: &[Self], ep: &E) -> Result<(Audited, Blocks)> {
        let found = trees[0].audit(ep).await?;
        let node_size = trees[0].shape().node_size() as u64;
        let mut blocks = found.blocks;
        for tree in &trees[1..] {
            blocks.extend(tree.free_list().into_iter().map(|addr| (addr, node_size)));
        }
        let audited = Audited {
            violation_count: found.violations.len() as u64,
            violations: found.violations,
            entries: found.entries,
            leaves: found.leaves,
            inner_nodes: found.inner_nodes,
            height: found.height,
            leaf_fullness: found.leaf_fullness,
        };
        Ok((audited, blocks))
    }

    async fn close_all<E: Endpoint>(trees: Vec<Self>, ep: &E) -> Result<Blocks> {
        let (_, blocks) = Self::audit_all(&trees, ep).await?;
        for tree in &trees {
            tree.close(ep).await?;
        }
        Ok(blocks)
    }
}
