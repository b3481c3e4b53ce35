//! The tree that DEX's ablation begins with, on a cluster of the laboratory: every access is remote (DEX §2.2, §8.3).
//!
//! A view of the tree for each compute server; a thread has nothing of its own. Keys of other compute servers are served by
//! those servers' views, as everywhere in the laboratory.

use std::ops::Bound;

use pando::{CacheCounts, KeyRange, ScanRange, SmoCounts, SortedSource, VerbCounts};
use pando_dex::layout::Layout;
use pando_dex::plain::{PlainConfig, PlainTree};
use pando_dex::{DexError, partition_of};
use pando_fabric::{Endpoint, Nanos};
use pando_pool::Pool;

use super::dex::{INDEX, load_nodes};
use super::{Audited, IndexClient, PlacedIndex};
use crate::bench::{BenchError, BenchSpec};

/// A tree without a cache, with all its compute servers.
pub struct Plain<L> {
    boundaries: Vec<Vec<u8>>,
    trees: Vec<PlainTree<L>>,
}

impl<L: Layout> Plain<L> {
    /// Loads a new index with sorted entries, in leaves that end at `boundaries` as DEX's do. With `partitioned`, nodes that
    /// one compute server owns go without remote synchronisation.
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
        source: &impl SortedSource,
    ) -> pando::Result<Self> {
        let root = load_nodes(spec, ep, &pool, layout, &boundaries, source).await?;
        let trees = KeyRange::from_boundaries(&boundaries).into_iter().map(|range| {
            let subtree_level = spec.subtree_level;
            let config = PlainConfig { range, partitioned, subtree_level, ..PlainConfig::new(INDEX, root) };
            PlainTree::new(pool.clone(), layout, config)
        });
        Ok(Self { trees: trees.collect(), boundaries })
    }
}

impl<L: Layout> PlacedIndex for Plain<L> {
    type Thread = ();
    type Client<'c, E: Endpoint + 'c>
        = PlainClient<'c, L, E>
    where
        L: 'c;

    fn begin_thread(&self, _: usize) {}

    fn end_thread(&self, (): ()) {}

    fn client<'c, E: Endpoint>(&'c self, ep: &'c E, (): &'c ()) -> PlainClient<'c, L, E> {
        PlainClient { plain: self, ep }
    }

    fn cache_counts(&self) -> CacheCounts {
        CacheCounts::default()
    }

    fn smo_counts(&self) -> SmoCounts {
        let splits = self.trees.iter().map(PlainTree::splits).sum();
        SmoCounts { splits, ..SmoCounts::default() }
    }

    async fn audit<E: Endpoint>(&self, ep: &E) -> Result<Audited, BenchError> {
        let found = self.trees[0].audit(ep).await.map_err(pando::Error::from)?;
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

/// One thread's access to all compute servers.
pub struct PlainClient<'c, L, E> {
    plain: &'c Plain<L>,
    ep: &'c E,
}

impl<L, E> Clone for PlainClient<'_, L, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, E> Copy for PlainClient<'_, L, E> {}

impl<'c, L: Layout, E: Endpoint> PlainClient<'c, L, E> {
    fn tree(&self, key: &[u8]) -> &'c PlainTree<L> {
        &self.plain.trees[partition_of(&self.plain.boundaries, key)]
    }
}

impl<L: Layout, E: Endpoint> IndexClient for PlainClient<'_, L, E> {
    type Error = DexError;
    type Answers = Vec<Option<Vec<u8>>>;

    const CLOCK_IS_FREE: bool = true;

    async fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, DexError> {
        self.tree(key).get(self.ep, key, out).await
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        self.tree(key).put(self.ep, key, value).await
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        self.tree(key).update(self.ep, key, value).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        self.tree(key).insert(self.ep, key, value).await
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, DexError> {
        self.tree(key).remove(self.ep, key).await
    }

    /// One partition after the other: the view of each knows which nodes are its own.
    async fn scan(
        &self,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, DexError> {
        let first = match range.low {
            Bound::Unbounded => 0,
            Bound::Included(low) | Bound::Excluded(low) => partition_of(&self.plain.boundaries, low),
        };
        let (mut entries, mut low, mut enough) = (0, range.low, false);
        for (number, tree) in self.plain.trees.iter().enumerate().skip(first) {
            let boundary = self.plain.boundaries.get(number);
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
                .scan(self.ep, &part, |key, value| {
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

    async fn multi_get(&self, keys: &[&[u8]], answers: &mut Self::Answers) -> Result<(), DexError> {
        super::get_each(self, keys, answers).await
    }

    fn answer(answers: &Self::Answers, i: usize) -> Option<&[u8]> {
        answers[i].as_deref()
    }

    async fn pace(&self) {
        self.ep.pace().await;
    }

    fn now(&self) -> Nanos {
        self.ep.now()
    }

    fn verbs(&self) -> VerbCounts {
        self.ep.counters().snapshot()
    }
}
