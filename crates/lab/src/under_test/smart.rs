//! SMART and ART as peers.
//!
//! Each compute server has its own view of the same nodes, with a cache of its size. Keys are divided among
//! the views when these are opened, or not at all. Unlinked blocks wait for all compute servers, so audits
//! count them, too.

use std::ops::Bound;

use pando::{CacheCounts, KeyRange, ScanRange, SmoCounts};
use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::Pool;
use pando_smart::{CreateOptions, Partition, Result, Smart, SmartConfig};

use super::Audited;
use super::dex::INDEX;
use super::peers::{Blocks, Entry, PeerTree, operations_of};
use crate::spec::{BenchSpec, SmartSetup};

/// How an index is made and used.
pub struct Parameters {
    pub options: CreateOptions,
    pub config: SmartConfig,
}

/// Parameters for a benchmark.
pub(crate) fn config(setup: SmartSetup, spec: &BenchSpec) -> Parameters {
    let Parameters { options, config } = configured(setup, INDEX);
    let options = CreateOptions { users_max: spec.compute_servers.max(64), ..options };
    Parameters { options, config: SmartConfig { cache_bytes: spec.cache_bytes, ..config } }
}

/// Parameters of the techniques, with default sizes. The anchor is known only after the index is made.
pub(crate) fn configured(setup: SmartSetup, index_id: u32) -> Parameters {
    let SmartSetup { techniques, node_room, cache_policy, .. } = setup;
    let options = CreateOptions { node_room, ..CreateOptions::new(index_id, techniques) };
    let config = SmartConfig {
        cache_policy,
        late_followers_unsound: setup.late_followers_unsound,
        cached_absence_unsound: setup.cached_absence_unsound,
        ..SmartConfig::new(GlobalAddr::NULL, techniques)
    };
    Parameters { options, config }
}

impl PeerTree for Smart {
    type Error = pando_smart::SmartError;
    type Config = Parameters;

    async fn open_all<E: Endpoint>(
        parameters: &Parameters,
        ep: &E,
        pool: &Pool,
        servers: usize,
        ranges: Option<&[KeyRange]>,
    ) -> Result<Vec<Self>> {
        let Parameters { options, config } = parameters;
        let anchor = Smart::create(ep, pool, options).await?;
        let mut trees = Vec::with_capacity(servers);
        for server in 0..servers {
            let partition = ranges.map(|ranges| {
                let KeyRange { low, high } = ranges[server].clone();
                Partition {
                    low: low.map_or(Bound::Unbounded, Bound::Included),
                    high: high.map_or(Bound::Unbounded, Bound::Excluded),
                }
            });
            let config = SmartConfig { anchor, partition, ..config.clone() };
            trees.push(Smart::open(ep, pool.clone(), config).await?);
        }
        Ok(trees)
    }

    async fn load<E: Endpoint>(
        &self,
        _: &BenchSpec,
        ep: &E,
        entries: impl Iterator<Item = Entry>,
    ) -> Result<u64> {
        self.bulk_load(ep, entries).await
    }

    operations_of!(Smart);

    async fn scan<E: Endpoint>(
        &self,
        ep: &E,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        Smart::scan(self, ep, (range.low, range.high), range.limit, visit).await
    }

    /// Leaves are never cached. A descent that begins at a cached node counts as a hit of inner nodes.
    fn cache_counts(&self) -> CacheCounts {
        let counts = Smart::cache_counts(self);
        CacheCounts {
            inner_accesses: counts.hits + counts.misses,
            inner_misses: counts.misses,
            admissions: counts.admissions,
            evictions: counts.evictions,
            ..CacheCounts::default()
        }
    }

    /// All 0: SMART does not count structure changes.
    fn smo_counts(&self) -> SmoCounts {
        SmoCounts::default()
    }

    async fn audit_all<E: Endpoint>(trees: &[Self], ep: &E) -> Result<(Audited, Blocks)> {
        let found = trees[0].audit(ep).await?;
        let mut blocks = found.blocks;
        blocks.extend(trees.iter().flat_map(Smart::limbo));
        let audited = Audited {
            violation_count: found.violations.len() as u64,
            violations: found.violations,
            entries: found.entries,
            leaves: found.entries + found.leaves_gone,
            inner_nodes: found.inner_nodes,
            height: found.height,
            // A leaf has exactly the size of its entry.
            leaf_fullness: 1.0,
        };
        Ok((audited, blocks))
    }

    async fn close_all<E: Endpoint>(trees: Vec<Self>, ep: &E) -> Result<Blocks> {
        for tree in &trees {
            tree.reclaim(ep).await?;
        }
        // Blocks that are still in limbo are freed only together with the index.
        let (_, blocks) = Self::audit_all(&trees, ep).await?;
        for tree in &trees {
            tree.park(ep).await?;
        }
        Ok(blocks)
    }
}
