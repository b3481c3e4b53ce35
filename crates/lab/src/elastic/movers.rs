//! Threads that move keys: one thread executes moves, planned ones or a balancer's, and helpers share its
//! flushing.
//!
//! They are threads of the compute server that keys leave first, and perform no operations. The duration of a
//! move is from its start until the new owner has the keys.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use pando_dex::balancer::{Balancer, BalancerConfig};
use pando_dex::layout::Layout;
use pando_dex::{DexError, Flushed, KeyRange, Leaving, Party, flush_side_by_side, move_keys};
use pando_fabric::{Endpoint, Nanos};

use super::clients::Ground;
use super::{MoveFigures, PlannedMove};
use crate::under_test::dex::Dex;
use crate::under_test::{Client, SimPort};

/// Time that a helper waits before it checks again for work.
const HELPER_NS: Nanos = 5_000;

/// State shared by the mover and its helpers.
pub(super) struct Work<'d, L> {
    /// The compute server that is being flushed, and its leaving keys.
    leaving: RefCell<Option<(usize, Arc<Leaving<'d, L>>)>>,
    /// Number of helpers that flush at present.
    busy: Cell<usize>,
    helped: RefCell<Flushed>,
    pub moves: RefCell<Vec<MoveFigures>>,
    pub failure: RefCell<Option<String>>,
}

impl<L> Default for Work<'_, L> {
    fn default() -> Self {
        Self {
            leaving: RefCell::default(),
            busy: Cell::default(),
            helped: RefCell::default(),
            moves: RefCell::default(),
            failure: RefCell::default(),
        }
    }
}

/// The mover, or a helper.
pub(super) struct Mover<'c, 'd, L: Layout> {
    pub ground: &'c Ground<'c>,
    pub work: &'c Work<'d, L>,
    pub dex: &'d Dex<L>,
    pub client: Client<'c, Dex<L>, SimPort>,
}

impl<'d, L: Layout> Mover<'_, 'd, L> {
    /// Flushes a share of each move.
    pub async fn help(&self) {
        while !self.ground.is_over(&self.client.port.ep) {
            Endpoint::sleep_until(&self.client.port.ep, self.client.port.ep.now() + HELPER_NS).await;
            let leaving = self.work.leaving.borrow().clone();
            let Some((from, leaving)) = leaving else { continue };
            self.work.busy.set(self.work.busy.get() + 1);
            // After an error of the helper, the mover writes the remaining nodes.
            if let Ok(flushed) = leaving.flush_share(self.client.server(from).1).await {
                *self.work.helped.borrow_mut() += flushed;
            }
            drop(leaving);
            self.work.busy.set(self.work.busy.get() - 1);
            while self.work.leaving.borrow().is_some() {
                Endpoint::sleep_until(&self.client.port.ep, self.client.port.ep.now() + HELPER_NS).await;
            }
        }
    }

    /// Executes the planned moves.
    pub async fn follow_plan(&self) {
        for step in &self.ground.spec.moves {
            Endpoint::sleep_until(&self.client.port.ep, self.ground.began + step.at_ns).await;
            if let Err(error) = self.planned(step).await {
                self.work.failure.borrow_mut().get_or_insert(error.to_string());
            }
        }
    }

    async fn planned(&self, step: &PlannedMove) -> Result<(), DexError> {
        let table = self.client.own.router.routes().table();
        let own = table
            .range_of(step.from)
            .ok_or(DexError::Routes("the compute server has no keys to give away"))?;
        let keys = &self.ground.keys;
        // Keys are dense: their integers are twice the numbers of their records.
        let number = |key: &[u8]| keys.decode(key).unwrap_or(0) / 2;
        let low = own.low.as_deref().map_or(0, number);
        let high = own.high.as_deref().map_or(keys.records(), number);
        let cut = high - ((high - low) as f64 * step.part) as u64;
        let low = if step.part >= 1.0 {
            own.low.clone()
        } else {
            Some(keys.encode_vec(pando_workload::loaded_key(cut)))
        };
        self.make(step.from, step.to, KeyRange { low, high: own.high }).await
    }

    /// Checks the load at intervals of `every` and moves boundaries.
    pub async fn balance(&self, every: Nanos) {
        let mut balancer = Balancer::new(BalancerConfig::default());
        let routes = self.client.own.router.routes();
        while !self.ground.is_over(&self.client.port.ep) {
            Endpoint::sleep_until(&self.client.port.ep, self.client.port.ep.now() + every).await;
            for step in balancer.observe(routes.table().boundaries(), &routes.take_load()) {
                let table = routes.table();
                let (below, above) = (table.owners()[step.boundary], table.owners()[step.boundary + 1]);
                let old = table.boundaries()[step.boundary].clone();
                let (from, to, range) = match step.to < old {
                    true => (below, above, KeyRange { low: Some(step.to), high: Some(old) }),
                    false => (above, below, KeyRange { low: Some(old), high: Some(step.to) }),
                };
                if let Err(error) = self.make(from, to, range).await {
                    self.work.failure.borrow_mut().get_or_insert(error.to_string());
                }
            }
        }
    }

    async fn make(&self, from: usize, to: usize, range: KeyRange) -> Result<(), DexError> {
        let party = |server: usize| {
            let (tree, ctx) = (&self.dex.trees()[server], self.client.server(server).1);
            Party { server, tree, ctx }
        };
        let ctx = party(from).ctx;
        let has_helpers = !self.ground.spec.moves.is_empty();
        let flush = async |leaving: Arc<Leaving<'d, L>>| {
            if !has_helpers {
                return flush_side_by_side(&leaving, ctx, self.ground.spec.flush_workers).await;
            }
            // Helpers flush shares while `leaving` is set. Wait for them before the sum of all shares.
            *self.work.leaving.borrow_mut() = Some((from, Arc::clone(&leaving)));
            let mine = leaving.flush_share(ctx).await;
            *self.work.leaving.borrow_mut() = None;
            while self.work.busy.get() > 0 {
                Endpoint::sleep_until(&self.client.port.ep, self.client.port.ep.now() + HELPER_NS).await;
            }
            let mut flushed = mine?;
            flushed += self.work.helped.take();
            Ok(flushed)
        };
        let moved = move_keys(
            self.client.own.router.routes(),
            party(from),
            party(to),
            range,
            flush,
            async |_| Ok(()),
        )
        .await?;
        let since = |at: Nanos| at - self.ground.began;
        self.work.moves.borrow_mut().push(MoveFigures {
            from,
            to,
            began_ns: since(moved.began),
            written_ns: since(moved.written),
            ended_ns: since(moved.ended),
            nodes_written: moved.flushed.nodes_written,
            bytes_written: moved.flushed.bytes_written,
        });
        Ok(())
    }
}
