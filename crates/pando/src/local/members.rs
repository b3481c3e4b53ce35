//! The compute servers of an index as one session uses them: the tree of each, and a worker of its cache.
//!
//! Compute servers are added and removed while sessions are open ([`crate::Index::add_compute_server`]). A
//! session adopts the current ones when it meets an unknown number and every 64 operations, so that it drops
//! the removed ones. An operation keeps its compute server until it is done, whatever its session adopts
//! meanwhile.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_cache::CacheWorker;
use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{Ctx, DexError, Tree};

use super::servers::Servers;
use crate::layout::{ByLayout, map_layout, with_layout};
use crate::place::AnyEndpoint;

/// Operations by a compute server after which a session publishes their number.
const TOLD_EVERY: u64 = 64;

/// Members by the number of the compute server; `None` where the session has no access.
pub(crate) type Members = ByLayout<Places<FixedLayout>, Places<SlottedLayout>>;
pub(crate) type Places<L> = Vec<Option<Rc<Member<L>>>>;

/// A member, found by the number of the compute server.
pub(crate) type Found = ByLayout<Rc<Member<FixedLayout>>, Rc<Member<SlottedLayout>>>;

/// One compute server as one session uses it.
pub(crate) struct Member<L: Layout> {
    pub tree: Arc<Tree<L>>,
    worker: CacheWorker,
    /// Operations that it executed for the session and that are not in `load` yet.
    untold: Cell<u64>,
    load: Arc<AtomicU64>,
}

impl<L: Layout> Member<L> {
    pub fn ctx<'w>(&'w self, ep: &'w AnyEndpoint) -> Ctx<'w, AnyEndpoint> {
        Ctx { ep, worker: &self.worker }
    }

    pub fn worker(&self) -> &CacheWorker {
        &self.worker
    }

    /// Counts operations, unless they were refused because the keys belong to another compute server.
    #[inline]
    pub fn count<T>(&self, operations: u64, done: &pando_dex::Result<T>) {
        if matches!(done, Err(DexError::NotOwned)) {
            return;
        }
        let untold = self.untold.get() + operations;
        self.untold.set(untold);
        if untold >= TOLD_EVERY {
            self.tell();
        }
    }

    fn tell(&self) {
        self.load.fetch_add(self.untold.take(), Relaxed);
    }
}

impl<L: Layout> Drop for Member<L> {
    fn drop(&mut self) {
        self.tell();
        self.tree.cache().retire(&self.worker);
    }
}

impl Members {
    /// Members for all compute servers that this process runs, or for `only` one.
    pub fn new(servers: &Servers, only: Option<usize>) -> Self {
        let mut members = map_layout!(&servers.trees, |_trees| Vec::new());
        members.update(servers, only);
        members
    }

    /// Adopts new compute servers and drops removed ones.
    pub fn update(&mut self, servers: &Servers, only: Option<usize>) {
        match (self, &servers.trees) {
            (Self::Fixed(places), ByLayout::Fixed(trees)) => adapt(places, trees, &servers.loads, only),
            (Self::Slotted(places), ByLayout::Slotted(trees)) => adapt(places, trees, &servers.loads, only),
            _ => unreachable!("an index keeps its layout"),
        }
    }

    /// The compute server of this number; `None` if the session cannot use it.
    #[inline]
    pub fn find(&self, number: usize) -> Option<Found> {
        Some(map_layout!(self, |places| Rc::clone(places.get(number)?.as_ref()?)))
    }

    /// Publishes the operation counts of all members.
    pub fn tell(&self) {
        with_layout!(self, |places| places.iter().flatten().for_each(|member| member.tell()));
    }
}

fn adapt<L: Layout>(
    places: &mut Places<L>,
    trees: &[Option<Arc<Tree<L>>>],
    loads: &[Arc<AtomicU64>],
    only: Option<usize>,
) {
    places.resize_with(trees.len(), || None);
    for (number, ((place, tree), load)) in places.iter_mut().zip(trees).zip(loads).enumerate() {
        let wanted = tree.as_ref().filter(|_| only.is_none_or(|only| only == number));
        if let (Some(member), Some(tree)) = (&place, wanted)
            && Arc::ptr_eq(&member.tree, tree)
        {
            continue;
        }
        *place = wanted.map(|tree| {
            Rc::new(Member {
                tree: Arc::clone(tree),
                worker: tree.cache().worker(),
                untold: Cell::new(0),
                load: Arc::clone(load),
            })
        });
    }
}
