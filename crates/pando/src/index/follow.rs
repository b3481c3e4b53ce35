//! Boundaries between compute servers of different processes (DEX §4).
//!
//! No process can make another one give keys up. So a boundary is moved by the process that gives keys, and the catalog is
//! the only channel:
//!
//! 1. A process that wants a boundary moved says so in its notice in the attach table (`shared/owners.rs`).
//! 2. The process that is to give keys notices that at its next look ([`Index::follow`]). It writes them back, leaves them, and enters
//!    the new boundary into the catalog by one WRITE. If it dies before, the keys are its own, and its heir's; after that, they are the
//!    other process's.
//! 3. The other process finds at its next look that the catalog gives it more keys than it has, and takes them over. Until then nobody
//!    executes operations on them; clients wait.
//!
//! So whatever fails, the catalog says whose the keys are: a process that has fewer takes them over, or takes them back.

use pando_dex::layout::Layout;
use pando_dex::{Ctx, DexError, KeyRange, Tree, begin_leave, flush_side_by_side, take_over};
use pando_pool::{IndexRecord, PoolError};
use pando_rt::block_on;

use super::repartition::{FLUSH_SHARES, check_key, plan};
use super::{Index, move_record};
use crate::error::{Error, Result};
use crate::layout::with_layout;
use crate::local::Servers;
use crate::local::servers::with_ctx;
use crate::place::AnyEndpoint;
use crate::shared::{PartitionOwner, Shared, Wish};

/// What [`Index::follow`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Followed {
    /// Boundaries beside other processes that were moved.
    pub boundaries: usize,
    /// Nodes and long values that were moved to other memory servers.
    pub nodes: u64,
}

impl Index {
    /// Makes the moves that are due: gives keys away for which another process has [asked](crate::Cluster::ask_to_move_boundary),
    /// takes over those that the catalog gives to this process, leaves memory servers that are
    /// [drained](crate::Cluster::drain_memory_server), and [spreads](crate::Cluster::spread_indexes) over all of them if that is wished.
    /// It also takes over what processes with logs had leased that died, once their indexes have heirs.
    /// Compute servers call it again and again; it costs a look at the catalog, at the attach table and at the membership of the pool. Moves between memory
    /// servers take long; they end early once `goes_on` returns `false`.
    ///
    /// # Errors
    /// Errors of the fabric; a further call goes on. Keys on their way have no owner until it succeeds.
    pub fn follow(&self, goes_on: &dyn Fn() -> bool) -> Result<Followed> {
        self.shared.writable()?;
        let _moving = self.data.begin_move()?;
        let servers = self.data.servers()?;
        self.shared.with_endpoint(|ep| {
            let mut boundaries = self.take_what_is_ours(ep, &servers)?;
            let attached = block_on(ep, self.shared.pool.processes(ep))?;
            for wish in self.shared.wishes(&attached, self.name()) {
                boundaries += usize::from(self.fulfil(ep, &servers, &wish)?);
            }
            for dead in attached.iter().filter(|other| !other.is_alive && other.keeps_bitmaps) {
                // If that fails, it is done at a later look.
                let _ = block_on(ep, self.shared.pool.reclaim(ep, dead.slot));
            }
            let wishes = self.shared.spread_wishes(&attached, self.name());
            Ok(Followed { boundaries, nodes: self.place_anew(ep, &servers, wishes, goes_on)? })
        })
    }

    /// Brings the outer boundaries of this process's compute servers in line with the catalog. Those between them are moved by this
    /// process alone.
    fn take_what_is_ours(&self, ep: &AnyEndpoint, servers: &Servers) -> Result<usize> {
        let record = self.shared.record(ep, self.name())?;
        let mine: Vec<bool> = record.owners.iter().map(|owner| *owner == self.shared.pool.slot()).collect();
        let due = runs(&record.boundaries, &mine);
        let table = servers.routes.table();
        let is_run: Vec<bool> = table.owners().iter().map(|&number| servers.runs(number)).collect();
        let mut taken = 0;
        for own in runs(table.boundaries(), &is_run) {
            let Some(due) = due.iter().find(|due| meet(&due.keys, &own.keys)) else { continue };
            let [lowest, highest] = [own.first, own.last].map(|partition| table.owners()[partition]);
            // What an interrupted call has given away.
            let beside = [own.first.checked_sub(1), Some(own.last + 1)];
            for (gone, beside) in beyond(&own.keys, &due.keys).into_iter().zip(beside) {
                if let (Some(gone), Some(&neighbour)) =
                    (gone, beside.and_then(|beside| table.owners().get(beside)))
                {
                    servers.routes.transfer(&gone, neighbour)?;
                }
            }
            let [low, high] = [lowest, highest].map(|number| {
                with_layout!(&servers.trees, |trees| {
                    trees[number].as_ref().map_or_else(KeyRange::none, |tree| tree.range())
                })
            });
            let has = KeyRange { low: low.low, high: high.high };
            for (range, number) in beyond(&due.keys, &has).into_iter().zip([lowest, highest]) {
                let Some(range) = range else { continue };
                self.take(ep, servers, number, range)?;
                taken += 1;
            }
        }
        Ok(taken)
    }

    /// Takes keys over for a compute server, from another process.
    fn take(&self, ep: &AnyEndpoint, servers: &Servers, number: usize, range: KeyRange) -> Result<()> {
        with_layout!(&servers.trees, |trees| {
            let tree = trees[number].as_ref().ok_or(Error::Closed)?;
            with_ctx(ep, tree, |ctx| Ok(block_on(ep, take_over(tree, ctx, range.clone()))?))?;
        });
        route_to(servers, &range, number)
    }

    /// Gives keys away, if this process has those of the wish. Returns whether it did.
    fn fulfil(&self, ep: &AnyEndpoint, servers: &Servers, wish: &Wish) -> Result<bool> {
        let table = servers.routes.table();
        let Some(boundary) = table.boundaries().iter().position(|boundary| *boundary == wish.from) else {
            return Ok(false);
        };
        // A wish is no more than that: it may be old, or wrong.
        let Ok((from, into, range)) = plan(&table, boundary, &wish.to) else { return Ok(false) };
        if check_key(servers, &wish.to).is_err() {
            return Ok(false);
        }
        let [giver, taker] = [from, into].map(|partition| table.owners()[partition]);
        if !servers.runs(giver) {
            return Ok(false);
        }
        if servers.runs(taker) {
            self.move_boundary_alone(boundary, &wish.to)?;
            return Ok(true);
        }
        let partitions = self.shared.partitions(ep, self.name())?;
        let is_there = |end: &Option<Vec<u8>>| end.as_ref() == Some(&wish.from);
        let beside = partitions.iter().find(|found| match into > from {
            true => is_there(&found.keys.low),
            false => is_there(&found.keys.high),
        });
        // The keys would have no owner.
        if !beside.is_some_and(|found| matches!(found.owner, PartitionOwner::Process(_))) {
            return Ok(false);
        }
        with_layout!(&servers.trees, |trees| {
            let tree = trees[giver].as_ref().ok_or(Error::Closed)?;
            with_ctx(ep, tree, |ctx| block_on(ep, give(&self.shared, tree, ctx, wish, &range)))?;
        });
        servers.routes.transfer(&range, taker)?;
        Ok(true)
    }
}

/// Writes the keys of `range` back, leaves them, and enters the new boundary.
async fn give<L: Layout>(
    shared: &Shared,
    tree: &Tree<L>,
    ctx: Ctx<'_, AnyEndpoint>,
    wish: &Wish,
    range: &KeyRange,
) -> Result<()> {
    let own = tree.range();
    let keep = own.without(range).filter(|keep| !keep.is_empty());
    let keep = keep.ok_or(DexError::WrongRange("are not an end of the keys of one compute server"))?;
    let leaving = begin_leave(tree, ctx, keep).await?;
    let left = async {
        flush_side_by_side(&leaving, ctx, FLUSH_SHARES).await?;
        leaving.finish(ctx).await
    };
    if let Err(error) = left.await {
        // The keys are its own again, even if this fails.
        let _ = leaving.abandon(ctx).await;
        return Err(error.into());
    }
    match enter(shared, ctx.ep, wish).await {
        Ok(()) => Ok(()),
        Err(error) => {
            // If the catalog has the new boundary nevertheless, the next look finds that.
            if !matches!(error, DexError::Pool(PoolError::CatalogUnknown { .. })) {
                let _ = leaving.abandon(ctx).await;
            }
            Err(error.into())
        }
    }
}

/// Enters the new boundary, between the same owners as before.
async fn enter(shared: &Shared, ep: &AnyEndpoint, wish: &Wish) -> Result<(), DexError> {
    let stale = || PoolError::StaleRecord { name: wish.index.clone() };
    let change = async |record: &mut IndexRecord| {
        let at = record.boundaries.iter().position(|boundary| *boundary == wish.from).ok_or_else(stale)?;
        record.boundaries[at] = wish.to.clone();
        Ok(())
    };
    move_record::change_record(shared, ep, &wish.index, change).await
}

/// Adjacent partitions, from the first to the last.
struct Run {
    keys: KeyRange,
    first: usize,
    last: usize,
}

/// The longest runs of partitions that are so.
fn runs(boundaries: &[Vec<u8>], is_so: &[bool]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (partition, keys) in KeyRange::from_boundaries(boundaries).into_iter().enumerate() {
        if !is_so[partition] {
            continue;
        }
        match runs.last_mut().filter(|run| run.last + 1 == partition) {
            Some(run) => (run.keys.high, run.last) = (keys.high, partition),
            None => runs.push(Run { keys, first: partition, last: partition }),
        }
    }
    runs
}

/// Whether some key is in both.
fn meet(one: &KeyRange, other: &KeyRange) -> bool {
    !one.is_apart_from(other.low.as_deref(), other.high.as_deref())
}

/// The parts of `all` below and above `part`.
fn beyond(all: &KeyRange, part: &KeyRange) -> [Option<KeyRange>; 2] {
    let has_below = part.low > all.low;
    let has_above = part.high.is_some() && (all.high.is_none() || part.high < all.high);
    [
        has_below.then(|| KeyRange { low: all.low.clone(), high: part.low.clone() }),
        has_above.then(|| KeyRange { low: part.high.clone(), high: all.high.clone() }),
    ]
}

/// Routes the keys of `range` to compute server `number`, although this process may know them as those of several others.
fn route_to(servers: &Servers, range: &KeyRange, number: usize) -> Result<()> {
    loop {
        let table = servers.routes.table();
        let parts = KeyRange::from_boundaries(table.boundaries()).into_iter().zip(table.owners());
        let part = parts.filter(|(_, owner)| **owner != number).find_map(|(known, _)| {
            let low = range.low.clone().max(known.low);
            let high = [&range.high, &known.high].into_iter().flatten().min().cloned();
            let part = KeyRange { low, high };
            (!part.is_empty()).then_some(part)
        });
        match part {
            Some(part) => servers.routes.transfer(&part, number)?,
            None => return Ok(()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(low: &str, high: &str) -> KeyRange {
        let end = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
        KeyRange { low: end(low), high: end(high) }
    }

    #[test]
    fn what_is_beyond_is_below_and_above() {
        assert_eq!(beyond(&keys("", ""), &keys("c", "m")), [Some(keys("", "c")), Some(keys("m", ""))]);
        assert_eq!(beyond(&keys("b", "n"), &keys("c", "n")), [Some(keys("b", "c")), None]);
        assert_eq!(beyond(&keys("b", "n"), &keys("", "")), [None, None]);
        assert_eq!(beyond(&keys("b", ""), &keys("b", "n")), [None, Some(keys("n", ""))]);
    }

    #[test]
    fn runs_are_of_adjacent_partitions() {
        let boundaries: Vec<Vec<u8>> = [b"c", b"f", b"k"].map(|key| key.to_vec()).to_vec();
        let found = runs(&boundaries, &[true, true, false, true]);
        let found: Vec<_> = found.into_iter().map(|run| (run.keys, run.first, run.last)).collect();
        assert_eq!(found, [(keys("", "f"), 0, 1), (keys("k", ""), 3, 3)]);
        assert!(meet(&keys("", "f"), &keys("c", "k")) && !meet(&keys("", "f"), &keys("f", "")));
    }
}
