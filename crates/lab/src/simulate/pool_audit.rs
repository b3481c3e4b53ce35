//! Check that each block of the catalog, a tree or a process is allocated and has one owner.
//!
//! This holds at any time: a block is linked after its allocation and freed after it was unlinked. So a
//! process checks it soon after each failure, at one moment of the simulation, by an endpoint outside of
//! time. It leaves out trees of other processes, which may be loading them, and blocks in chunks that others
//! lease.

use std::sync::Arc;

use pando_cache::{Cache, CacheConfig};
use pando_dex::audit::{Report, audit};
use pando_dex::layout::Layout;
use pando_dex::{Ctx, Tree, TreeConfig};
use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::{AttachMode, IndexRecord, Pool, Result as PoolResult};
use pando_rt::block_on;
use pando_sim::SimEndpoint;

use super::cluster::ClusterError;
use super::pool_case::layout;
use super::pool_process::Process;

/// Addresses and bytes of used blocks.
pub type Used = Vec<(GlobalAddr, u64)>;

/// Blocks that are used twice, or used and free, as far as `pool` can tell.
pub async fn twice_or_free<E: Endpoint>(ep: &E, pool: &Pool, mut used: Used) -> PoolResult<Vec<String>> {
    used.sort_unstable();
    let twice = used.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    let mut wrong: Vec<_> = twice.map(|pair| format!("the block at {} is used twice", pair[0].0)).collect();
    for (addr, bytes) in used {
        if pool.is_allocated(ep, addr, bytes).await? == Some(false) {
            wrong.push(format!("the block at {addr} is used, and is free"));
        }
    }
    Ok(wrong)
}

/// Walks an index that is not being changed.
pub async fn walk(ep: &SimEndpoint, pool: &Pool, record: &IndexRecord) -> Result<Report, ClusterError> {
    let (_, layout) = layout();
    let cache = Arc::new(Cache::new(&CacheConfig::new(64 << 10, layout.node_size()))?);
    let worker = cache.worker();
    let mut config = TreeConfig::new(record.id, record.root);
    config.subtree_level = record.subtree_level;
    let tree =
        Tree::open(Ctx { ep, worker: &worker }, Arc::clone(&cache), pool.clone(), layout, config).await?;
    Ok(audit(ep, &[&tree]).await?)
}

impl Process<'_> {
    /// Checks all that this process can see, if every memory server answers and the catalog is not being
    /// changed.
    pub(super) fn look_around(&self, pool: &Pool) {
        let ep = self.world.fabric.direct(0);
        let answers = |server| block_on(&ep, ep.read_word(GlobalAddr::new(server, 0))).is_ok();
        if !ep.regions().iter().all(|region| answers(region.server))
            || !matches!(block_on(&ep, pool.catalog_version(&ep)), Ok(Some(_)))
        {
            return;
        }
        self.doubts.set(self.world.doubts.get());
        let wrong = |what: String| self.world.wrong(format!("process {} looked around: {what}", self.number));
        match block_on(&ep, self.look_at_all(&ep, pool)) {
            Ok(found) => found.into_iter().for_each(wrong),
            Err(error) => wrong(error.to_string()),
        }
    }

    async fn look_at_all(&self, ep: &SimEndpoint, pool: &Pool) -> Result<Vec<String>, ClusterError> {
        // With a separate attachment, so that the process itself learns nothing.
        let options = self.world.attach_options(self.pid.get()).mode(AttachMode::ReadOnlyUnclean);
        let looking = Pool::attach(ep, options).await?;
        let (mut used, mut wrong) = (Used::new(), Vec::new());
        looking.visit_catalog_blocks(ep, |addr, bytes| used.push((addr, bytes))).await?;
        for record in looking.list_indexes(ep).await? {
            if !record.root.is_null() && self.has_index(&record.name) {
                let report = walk(ep, &looking, &record).await?;
                used.extend(report.blocks.iter());
                wrong.extend(self.compare_entries(&record, &report));
            }
        }
        let held = self.world.held.borrow().clone();
        let taken = used.iter().filter(|(addr, _)| held.contains_key(addr));
        wrong.extend(taken.map(|(addr, _)| format!("the block at {addr} is used, and was handed out")));
        used.extend(self.blocks());
        for (value, _) in self.values() {
            looking.visit_value_blocks(ep, value, |addr, bytes| used.push((addr, bytes))).await?;
        }
        wrong.extend(twice_or_free(ep, pool, used).await?);
        Ok(wrong)
    }

    /// Violations of an index, and a mismatch between its number of entries and the numbers that this process
    /// knows as possible.
    pub(super) fn compare_entries(&self, record: &IndexRecord, report: &Report) -> Vec<String> {
        let mut wrong: Vec<_> = report.violations.first().cloned().into_iter().collect();
        if let Some(entries) = self.known.borrow_mut().entries.get_mut(&record.root.raw()) {
            wrong.extend(entries.see(report.entries).err().map(|what| format!("entries: {what}")));
        }
        wrong.iter_mut().for_each(|what| *what = format!("index {:?}: {what}", record.name));
        wrong
    }
}
