//! A B+-tree that is not distributed, on one compute server of a cluster of the laboratory (DEX §8.3, Figure
//! 11).
//!
//! It uses no memory server and no verb. Its threads are charged for computing and for contended latches by
//! the same model as DEX's.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando::{ScanRange, SmoCounts, SortedSource};
use pando_dex::DexError;
use pando_dex::layout::Layout;
use pando_fabric::Endpoint;

use super::local_tree::{LocalTree, Write};
use super::{Audited, Client, Connect, SimPort, SystemCounts, SystemUnderTest};
use crate::spec::{BenchError, BenchSpec};

/// The tree, shared by all threads of the compute server.
pub struct Local<L> {
    tree: Mutex<LocalTree<L>>,
}

impl<L: Layout> Local<L> {
    /// Loads a new tree with sorted entries.
    ///
    /// # Errors
    /// Keys and values that the layout cannot store in leaves.
    pub fn load(spec: &BenchSpec, layout: L, source: &dyn SortedSource) -> pando::Result<Self> {
        let tree = LocalTree::load(layout, source, spec.fill, spec.inner_fill)?;
        Ok(Self { tree: Mutex::new(tree) })
    }

    fn tree(&self) -> MutexGuard<'_, LocalTree<L>> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Layout> SystemUnderTest<SimPort> for Local<L> {
    type Error = DexError;
    type Thread = ();

    fn begin_thread(&self, _: usize) {}

    async fn get(at: Client<'_, Self, SimPort>, key: &[u8], out: &mut Vec<u8>) -> Result<bool, DexError> {
        at.system.tree().get(key, out, |work| at.port.ep.charge(work))
    }

    async fn put(at: Client<'_, Self, SimPort>, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        at.system.tree().write(key, value, Write::Put, |work| at.port.ep.charge(work))
    }

    async fn update(at: Client<'_, Self, SimPort>, key: &[u8], value: &[u8]) -> Result<bool, DexError> {
        at.system.tree().write(key, value, Write::Update, |work| at.port.ep.charge(work))
    }

    async fn scan(
        at: Client<'_, Self, SimPort>,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, DexError> {
        at.system.tree().scan(range, visit, |work| at.port.ep.charge(work))
    }

    fn counts(&self) -> Result<SystemCounts, BenchError> {
        let smo = SmoCounts { splits: self.tree().splits, ..SmoCounts::default() };
        Ok(SystemCounts { smo, ..SystemCounts::default() })
    }

    fn audit(&self, _: &Connect<'_, SimPort>) -> Result<Audited, BenchError> {
        Ok(self.tree().audit())
    }
}
