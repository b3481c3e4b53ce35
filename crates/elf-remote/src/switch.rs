//! The change of a record by which a new image or table becomes current.
//!
//! The record of the index is entered or replaced; the catalog does this by the WRITE of one word (docs/pool.md),
//! so a writer that stops anywhere leaves the old state or the new one. The blocks that only the old one used
//! rest, and are freed after the grace. If the catalog cannot tell whether the change took effect, the blocks of
//! both stay allocated until its record says so.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::{Due, IndexRecord, IndexSpec, Pool, PoolError};

use crate::defect::Defect;
use crate::error::{RemoteError, Result};
use crate::limbo::{Batch, Block, Limbo};
use crate::manifest::{Kind, Root, SYSTEM, Stamped};

/// A change of the record whose outcome is not known.
struct Undecided {
    /// Version that the record has if it took effect.
    version: u64,
    /// `None` if the record was to be entered.
    id: Option<u32>,
    stamp: u64,
    new: Batch,
    old: Batch,
}

/// Whether a change of the record took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Published,
    NotPublished,
    /// Others have changed the record since, and may have freed what it led to.
    Unknown,
}

/// Result of a change of the record.
pub(crate) enum Switched {
    /// The version that leads to the new state.
    To(u64),
    /// Another writer was faster; the blocks of what was to be published.
    Stale(Batch),
}

/// What a writer has replaced, or failed to, and has not freed yet.
pub(crate) struct Switcher {
    pub pool: Pool,
    pub name: String,
    grace_ns: u64,
    pub limbo: Limbo,
    undecided: Mutex<Vec<Undecided>>,
}

impl Switcher {
    pub fn new(pool: Pool, name: String, grace_ns: u64) -> Self {
        Self { pool, name, grace_ns, limbo: Limbo::default(), undecided: Mutex::default() }
    }

    /// Replaces `record` by one that leads to `target`. The blocks of both states are taken care of, except if
    /// the record is stale: `old` are those that only the former state used.
    pub async fn switch<E: Endpoint>(
        &self,
        ep: &E,
        record: IndexRecord,
        kind: Kind,
        target: Stamped,
        new: Batch,
        old: Batch,
    ) -> Result<Switched> {
        let layout = Root { kind, target: Some(target) }.encode();
        let changed = IndexRecord { root: target.value.addr, layout, ..record };
        let (version, stamp) = (changed.version + 1, target.stamp);
        // If the future is dropped from here on, the outcome is not known.
        let undecided = Undecided { version, id: Some(changed.id), stamp, new, old };
        let deciding = Deciding { switcher: self, undecided: Some(undecided) };
        match self.pool.update_index(ep, &changed).await {
            Ok(_) => {
                self.retire(ep, deciding.decided().old);
                Ok(Switched::To(version))
            }
            Err(PoolError::StaleRecord { .. }) => Ok(Switched::Stale(deciding.decided().new)),
            Err(error) => self.failed(ep, deciding, error).await.map(|()| Switched::To(version)),
        }
    }

    /// Enters the record of an index that leads to `target`; returns its version.
    ///
    /// # Errors
    /// [`PoolError::IndexExists`] and other errors of the catalog, after which the blocks in `new` are free.
    pub async fn enter<E: Endpoint>(
        &self,
        ep: &E,
        kind: Kind,
        target: Stamped,
        node_size: u32,
        new: Batch,
    ) -> Result<u64> {
        let spec = spec(&self.name, Root { kind, target: Some(target) }, node_size);
        let old = Batch::default();
        let undecided = Undecided { version: 0, id: None, stamp: target.stamp, new, old };
        let deciding = Deciding { switcher: self, undecided: Some(undecided) };
        match self.pool.create_index(ep, spec).await {
            Ok(record) => {
                deciding.decided();
                Ok(record.version)
            }
            Err(error) => {
                self.failed(ep, deciding, error).await?;
                Ok(self.pool.open_index(ep, &self.name).await?.version)
            }
        }
    }

    /// Finds out whether a change took effect that ended in `error`. Succeeds if it did.
    async fn failed<E: Endpoint>(&self, ep: &E, deciding: Deciding<'_>, error: PoolError) -> Result<()> {
        if defect(Defect::EarlyFree) {
            return self.discard(ep, deciding.decided().new, error.into()).await;
        }
        let PoolError::CatalogUnknown { error } = error else {
            return self.discard(ep, deciding.decided().new, error.into()).await;
        };
        let stamp = deciding.undecided.as_ref().map(|change| change.stamp);
        drop(deciding);
        let fates = self.decide(ep).await.unwrap_or_default();
        let fate = fates.into_iter().find(|decided| Some(decided.0) == stamp).map(|decided| decided.1);
        match fate.unwrap_or(Fate::Unknown) {
            Fate::Published => Ok(()),
            Fate::NotPublished => Err(PoolError::CatalogUnchanged { error }.into()),
            Fate::Unknown => Err(PoolError::CatalogUnknown { error }.into()),
        }
    }

    /// Lets blocks to which nothing leads any more rest for the grace.
    pub fn retire<E: Endpoint>(&self, ep: &E, old: Batch) {
        if !defect(Defect::LostBlocks) {
            self.limbo.rest(old, Due::At(ep.now().saturating_add(self.grace_ns)));
        }
    }

    /// Frees what was not published, none of whose verbs is in flight.
    pub async fn discard<T, E: Endpoint>(&self, ep: &E, batch: Batch, error: RemoteError) -> Result<T> {
        self.limbo.rest(batch, Due::Now);
        let _ = self.limbo.reclaim(ep, &self.pool).await;
        Err(error)
    }

    /// Frees what is due. Finds out which changes took effect, where that was not known.
    pub async fn reclaim<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.decide(ep).await?;
        self.limbo.reclaim(ep, &self.pool).await
    }

    /// Finds out which changes took effect; returns their stamps.
    async fn decide<E: Endpoint>(&self, ep: &E) -> Result<Vec<(u64, Fate)>> {
        // Changes that become undecided from here on are not judged by what the catalog says now.
        let stamps: Vec<u64> = self.undecided().iter().map(|change| change.stamp).collect();
        if stamps.is_empty() {
            return Ok(Vec::new());
        }
        let record = match self.pool.open_index(ep, &self.name).await {
            Err(PoolError::UnknownIndex { .. }) => None,
            record => Some(record?),
        };
        let judged = |change: &mut Undecided| stamps.contains(&change.stamp);
        let undecided: Vec<_> = self.undecided().extract_if(.., judged).collect();
        let mut fates = Vec::new();
        for undecided in undecided {
            let fate = fate(&undecided, record.as_ref());
            let Undecided { stamp, new, old, .. } = undecided;
            fates.push((stamp, fate));
            match fate {
                Fate::Published => self.retire(ep, old),
                Fate::NotPublished => self.limbo.rest(new, Due::Now),
                Fate::Unknown => [new, old].into_iter().for_each(|batch| self.limbo.doubt(batch)),
            }
        }
        Ok(fates)
    }

    /// Waits until everything that was replaced is free, as long as `patience_ns`; returns how much is not.
    pub async fn settle<E: Endpoint>(&self, ep: &E, patience_ns: u64) -> Result<usize> {
        let deadline = ep.now().saturating_add(patience_ns);
        loop {
            self.reclaim(ep).await?;
            let left = self.limbo.resting() + self.undecided().len();
            if left == 0 || ep.now() >= deadline {
                return Ok(left);
            }
            ep.yield_now().await;
        }
    }

    /// Blocks, with their sizes, that were given up, because they may be in use or free already.
    pub fn doubtful(&self) -> Vec<Block> {
        self.limbo.doubtful()
    }

    fn undecided(&self) -> MutexGuard<'_, Vec<Undecided>> {
        self.undecided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Entry of the catalog for an Elf.
pub(crate) fn spec(name: &str, root: Root, node_size: u32) -> IndexSpec {
    IndexSpec {
        name: name.to_owned(),
        system: SYSTEM,
        node_size,
        subtree_level: 0,
        root: root.target.map_or(GlobalAddr::NULL, |target| target.value.addr),
        layout: root.encode(),
        boundaries: Vec::new(),
    }
}

/// A change of the record that is in progress. Dropped, its outcome is not known.
struct Deciding<'s> {
    switcher: &'s Switcher,
    undecided: Option<Undecided>,
}

impl Deciding<'_> {
    fn decided(mut self) -> Undecided {
        self.undecided.take().expect("only this consuming method takes it")
    }
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        self.switcher.undecided().extend(self.undecided.take());
    }
}

/// What the present record says of a change whose outcome was not known.
fn fate(change: &Undecided, record: Option<&IndexRecord>) -> Fate {
    let same = |record: &&IndexRecord| change.id.is_none_or(|id| id == record.id);
    let Some(record) = record.filter(same) else { return Fate::Unknown };
    let stamp = Root::decode(&record.layout).and_then(|root| root.target).map(|target| target.stamp);
    match record.version {
        version if change.id.is_some() && version < change.version => Fate::NotPublished,
        _ if stamp == Some(change.stamp) => Fate::Published,
        version if change.id.is_some() && version == change.version => Fate::NotPublished,
        _ => Fate::Unknown,
    }
}
