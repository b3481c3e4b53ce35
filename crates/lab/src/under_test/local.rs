//! A B+-tree that is not distributed, on one compute server of a cluster of the laboratory (DEX §8.3, Figure 11).
//!
//! It uses no memory server and no verb; its threads pay for what they compute and for the latches that they contend for,
//! by the same model as DEX's.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando::{CacheCounts, ScanRange, SmoCounts, SortedSource, VerbCounts};
use pando_dex::DexError;
use pando_dex::layout::Layout;
use pando_fabric::{Endpoint, Nanos, Work};

use super::local_tree::{LocalTree, Write, Written};
use super::{Audited, IndexClient, PlacedIndex};
use crate::bench::{BenchError, BenchSpec};

/// The tree, as all threads of its server share it.
pub struct Local<L> {
    tree: Mutex<LocalTree<L>>,
}

impl<L: Layout> Local<L> {
    /// Loads a new tree with sorted entries.
    ///
    /// # Errors
    /// Keys and values that the layout does not hold inside of leaves.
    pub fn load(spec: &BenchSpec, layout: L, source: &impl SortedSource) -> pando::Result<Self> {
        let tree = LocalTree::load(layout, source, (spec.fill, spec.inner_fill))?;
        Ok(Self { tree: Mutex::new(tree) })
    }

    fn tree(&self) -> MutexGuard<'_, LocalTree<L>> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Layout> PlacedIndex for Local<L> {
    type Thread = ();
    type Client<'c, E: Endpoint + 'c>
        = LocalClient<'c, L, E>
    where
        L: 'c;

    fn begin_thread(&self, _: usize) {}

    fn end_thread(&self, (): ()) {}

    fn client<'c, E: Endpoint>(&'c self, ep: &'c E, (): &'c ()) -> LocalClient<'c, L, E> {
        LocalClient { local: self, ep }
    }

    fn cache_counts(&self) -> CacheCounts {
        CacheCounts::default()
    }

    fn smo_counts(&self) -> SmoCounts {
        SmoCounts { splits: self.tree().splits, ..SmoCounts::default() }
    }

    async fn audit<E: Endpoint>(&self, _: &E) -> Result<Audited, BenchError> {
        let tree = self.tree();
        let found = tree.audit();
        Ok(Audited {
            violation_count: found.violations.len() as u64,
            violations: found.violations,
            entries: found.entries,
            leaves: found.leaves,
            inner_nodes: found.inner_nodes,
            height: tree.height(),
            leaf_fullness: found.fullness,
        })
    }
}

/// One thread's access.
pub struct LocalClient<'c, L, E> {
    local: &'c Local<L>,
    ep: &'c E,
}

impl<L, E> Clone for LocalClient<'_, L, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, E> Copy for LocalClient<'_, L, E> {}

impl<L: Layout, E: Endpoint> LocalClient<'_, L, E> {
    fn write(&self, key: &[u8], write: Write<'_>) -> Result<Written, DexError> {
        self.local.tree().write(key, write, |work: Work| self.ep.charge(work))
    }
}

impl<L: Layout, E: Endpoint> IndexClient for LocalClient<'_, L, E> {
    type Error = DexError;
    type Answers = Vec<Option<Vec<u8>>>;

    const CLOCK_IS_FREE: bool = true;

    async fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, DexError> {
        self.local.tree().get(key, out, |work: Work| self.ep.charge(work))
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        Ok(self.write(key, Write::Put(value))?.existed)
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        Ok(self.write(key, Write::Update(value))?.changed)
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        Ok(self.write(key, Write::Insert(value))?.changed)
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, DexError> {
        Ok(self.write(key, Write::Remove)?.changed)
    }

    async fn scan(
        &self,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, DexError> {
        self.local.tree().scan(range, visit, |work: Work| self.ep.charge(work))
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
