//! Nodes that an operation has locked, and their release.
//!
//! An operation holds a node to change it. Bytes are current if they were READ while the node was held, or at
//! the version that was locked. A remote node is written and unlocked by one chain, a local one by a WRITE
//! and a store.

use pando_cache::sync::Word;
use pando_fabric::{Chain, Endpoint, GlobalAddr, Nanos, PageBuf, VerbResult};
use pando_pool::lock::{self, LockedVersion};

use super::Seen;
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, header};
use crate::plain::local_locks::LocalGuard;
use crate::plain::{PlainTree, SeenVersion};

/// A node that this operation may change.
pub(super) struct Held<'t> {
    pub addr: GlobalAddr,
    pub page: PageBuf,
    hold: Hold<'t>,
}

enum Hold<'t> {
    Remote(LockedVersion),
    Local(LocalGuard<'t>),
    /// The lock of another node that the operation holds covers this one too.
    Covered,
}

/// Attempts at the lock of a local node; see [`super::local_locks`].
const SECOND_ATTEMPTS: u32 = 4096;

impl Held<'_> {
    pub fn words(&self) -> &[Word] {
        self.page.words()
    }

    pub fn is_remote(&self) -> bool {
        matches!(self.hold, Hold::Remote(_))
    }
}

impl<L: Layout> PlainTree<L> {
    fn slot(&self) -> Result<pando_pool::AttachSlot> {
        let refused = || DexError::Layout("a pool that is only read cannot be changed".into());
        self.pool.slot().ok_or_else(refused)
    }

    /// Locks a node at the version that was seen; returns it as an error if it is locked or has changed.
    pub(super) async fn hold_seen<E: Endpoint>(
        &self,
        ep: &E,
        seen: Seen,
    ) -> Result<std::result::Result<Held<'_>, Seen>> {
        let hold = match seen.version {
            SeenVersion::Remote(version) => {
                let locked = lock::try_lock_version(ep, seen.addr, self.slot()?, version).await?;
                locked.map(Hold::Remote)
            }
            SeenVersion::Local(version) => self.locks.try_lock(seen.addr, version).map(Hold::Local),
        };
        Ok(match hold {
            Some(hold) => Ok(Held { addr: seen.addr, page: seen.page, hold }),
            None => Err(seen),
        })
    }

    /// Locks the node, waiting for other operations, and READs it.
    pub(super) async fn hold_now<E: Endpoint>(&self, ep: &E, seen: &Seen) -> Attempt<Held<'_>> {
        let hold = match seen.version {
            SeenVersion::Remote(_) => {
                Hold::Remote(lock::lock(ep, seen.addr, self.slot()?, self.deadline(ep)).await?)
            }
            SeenVersion::Local(_) => Hold::Local(self.lock_local(ep, seen.addr).await?),
        };
        self.read_held(ep, seen.addr, hold).await
    }

    /// [`PlainTree::hold_now`] for the child of a node that is held.
    pub(super) async fn hold_child<E: Endpoint>(
        &self,
        ep: &E,
        parent: &Held<'_>,
        child: &Seen,
    ) -> Attempt<Held<'_>> {
        let both_local = matches!((&parent.hold, child.version), (Hold::Local(_), SeenVersion::Local(_)));
        match both_local && self.locks.are_one(parent.addr, child.addr) {
            true => self.read_held(ep, child.addr, Hold::Covered).await,
            false => self.hold_now(ep, child).await,
        }
    }

    async fn lock_local<E: Endpoint>(&self, ep: &E, addr: GlobalAddr) -> Attempt<LocalGuard<'_>> {
        for _ in 0..SECOND_ATTEMPTS {
            let free = self.locks.version(addr);
            if let Some(guard) = free.and_then(|version| self.locks.try_lock(addr, version)) {
                return Ok(guard);
            }
            ep.yield_now().await;
        }
        Err(Retry::Restart)
    }

    async fn read_held<'t, E: Endpoint>(
        &'t self,
        ep: &E,
        addr: GlobalAddr,
        hold: Hold<'t>,
    ) -> Attempt<Held<'t>> {
        let page = ep.buffer(self.layout.node_size());
        let read = async {
            let page = ep.read(addr, page).await?;
            self.check(ep, addr, &page)?;
            Ok::<_, DexError>(page)
        };
        match read.await {
            Ok(page) => Ok(Held { addr, page, hold }),
            Err(error) => {
                if let Hold::Remote(locked) = hold {
                    lock::unlock(ep, addr, locked, self.deadline(ep)).await?;
                }
                Err(error.into())
            }
        }
    }

    /// Latest time a wait starting now may last.
    fn deadline<E: Endpoint>(&self, ep: &E) -> Nanos {
        ep.wait_until(ep.now(), self.config.patience_ns)
    }

    /// Releases a node that was not changed.
    pub(super) async fn release<E: Endpoint>(&self, ep: &E, held: Held<'_>) -> Result<()> {
        if let Hold::Remote(locked) = held.hold {
            lock::unlock(ep, held.addr, locked, self.deadline(ep)).await?;
        }
        ep.recycle(held.page);
        Ok(())
    }

    /// Writes a changed node and releases it.
    pub(super) async fn write_release<E: Endpoint>(&self, ep: &E, held: Held<'_>) -> Result<()> {
        let Held { addr, mut page, hold } = held;
        page.set_window(8..page.len());
        match hold {
            Hold::Remote(locked) => {
                let chain = Chain::new().write(addr.add(8), page).write_word(addr, locked.unlock_word());
                let mut results = ep.submit(chain).await?;
                if let VerbResult::Buf(page) = results.swap_remove(0) {
                    ep.recycle(page);
                }
            }
            Hold::Local(guard) => {
                ep.recycle(ep.write(addr.add(8), page).await?);
                drop(guard);
            }
            Hold::Covered => ep.recycle(ep.write(addr.add(8), page).await?),
        }
        Ok(())
    }

    /// Writes nodes that nothing refers to yet. If that fails, releases the held nodes unchanged.
    pub(super) async fn write_new<'t, E: Endpoint, const HELD: usize>(
        &self,
        ep: &E,
        new: impl IntoIterator<Item = (GlobalAddr, PageBuf)>,
        held: [Held<'t>; HELD],
    ) -> Result<[Held<'t>; HELD]> {
        for (addr, page) in new {
            match ep.write(addr, page).await {
                Ok(page) => ep.recycle(page),
                Err(error) => {
                    for held in held {
                        self.release(ep, held).await?;
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(held)
    }

    /// Records in a node about to be split that it was remote. It stays remote.
    pub(super) fn mark_remote(&self, held: &Held<'_>) {
        if self.config.partitioned && held.is_remote() {
            header::set_flag(held.words(), header::WAS_SHARED, true);
        }
    }
}
