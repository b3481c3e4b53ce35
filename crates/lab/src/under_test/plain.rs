//! The tree at the start of DEX's ablation, on a cluster of the laboratory: all accesses are remote (DEX
//! §2.2, §8.3).
//!
//! Each compute server has a view of the tree; a thread has no state. Operations on keys of other compute
//! servers use those servers' views.

use std::ops::Bound;

use pando::{KeyRange, ScanRange, SmoCounts, SortedSource};
use pando_dex::layout::Layout;
use pando_dex::plain::{PlainConfig, PlainTree};
use pando_dex::{DexError, partition_of};
use pando_fabric::Endpoint;
use pando_pool::Pool;
use pando_rt::block_on;

use super::dex::{Assembly, INDEX};
use super::{Audited, Client, Connect, SimPort, SystemCounts, SystemUnderTest};
use crate::spec::{BenchError, BenchSpec};

/// A tree without a cache, with all its compute servers.
pub struct Plain<L> {
    boundaries: Vec<Vec<u8>>,
    trees: Vec<PlainTree<L>>,
}

impl<L: Layout> Plain<L> {
    /// Loads a new index with sorted entries, in leaves that end at `boundaries` as in DEX. With
    /// `partitioned`, nodes that one compute server owns need no remote synchronisation.
    ///
    /// # Errors
    /// A full pool; nodes of impossible sizes; errors of the fabric.
    pub async fn load<E: Endpoint>(
        spec: &BenchSpec,
        partitioned: bool,
        ep: &E,
        pool: Pool,
        layout: L,
        boundaries: Vec<Vec<u8>>,
        source: &dyn SortedSource,
    ) -> pando::Result<Self> {
        let root = Assembly::of(spec, &pool, layout, &boundaries).load(ep, source).await?;
        let trees = KeyRange::from_boundaries(&boundaries).into_iter().map(|range| {
            let subtree_level = spec.subtree_level;
            let config = PlainConfig { range, partitioned, subtree_level, ..PlainConfig::new(INDEX, root) };
            PlainTree::new(pool.clone(), layout, config)
        });
        Ok(Self { trees: trees.collect(), boundaries })
    }
}

impl<L> Plain<L> {
    fn tree(&self, key: &[u8]) -> &PlainTree<L> {
        &self.trees[partition_of(&self.boundaries, key)]
    }
}

impl<L: Layout> SystemUnderTest<SimPort> for Plain<L> {
    type Error = DexError;
    type Thread = ();

    fn begin_thread(&self, _: usize) {}

    async fn get(at: Client<'_, Self, SimPort>, key: &[u8], out: &mut Vec<u8>) -> Result<bool, DexError> {
        at.system.tree(key).get(&at.port.ep, key, out).await
    }

    async fn put(at: Client<'_, Self, SimPort>, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        at.system.tree(key).put(&at.port.ep, key, value).await
    }

    async fn update(at: Client<'_, Self, SimPort>, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        at.system.tree(key).update(&at.port.ep, key, value).await
    }

    /// Scans one partition after the other, since each view knows its own nodes.
    async fn scan(
        at: Client<'_, Self, SimPort>,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, DexError> {
        let plain = at.system;
        let first = match range.low {
            Bound::Unbounded => 0,
            Bound::Included(low) | Bound::Excluded(low) => partition_of(&plain.boundaries, low),
        };
        let (mut entries, mut low, mut enough) = (0, range.low, false);
        for (number, tree) in plain.trees.iter().enumerate().skip(first) {
            let boundary = plain.boundaries.get(number);
            let beyond = boundary.is_none_or(|boundary| match range.high {
                Bound::Unbounded => false,
                Bound::Included(high) => high < boundary.as_slice(),
                Bound::Excluded(high) => high <= boundary.as_slice(),
            });
            let high = match boundary {
                Some(boundary) if !beyond => Bound::Excluded(boundary.as_slice()),
                _ => range.high,
            };
            let part = ScanRange { low, high, limit: range.limit - entries, reverse: range.reverse };
            entries += tree
                .scan(&at.port.ep, &part, |key, value| {
                    enough = !visit(key, value);
                    !enough
                })
                .await?;
            match boundary {
                Some(boundary) if !beyond && !enough && entries < range.limit => {
                    low = Bound::Included(boundary);
                }
                _ => break,
            }
        }
        Ok(entries)
    }

    fn counts(&self) -> Result<SystemCounts, BenchError> {
        let splits = self.trees.iter().map(PlainTree::splits).sum();
        let smo = SmoCounts { splits, ..SmoCounts::default() };
        Ok(SystemCounts { smo, ..SystemCounts::default() })
    }

    fn audit(&self, connect: &Connect<'_, SimPort>) -> Result<Audited, BenchError> {
        let ep = &connect()?.ep;
        let found = block_on(ep, self.trees[0].audit(ep)).map_err(pando::Error::from)?;
        Ok(Audited {
            violation_count: found.violations.len() as u64,
            violations: found.violations,
            entries: found.entries,
            leaves: found.leaves,
            inner_nodes: found.inner_nodes,
            height: found.height,
            leaf_fullness: found.leaf_fullness,
        })
    }
}
