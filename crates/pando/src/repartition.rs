//! Moving boundaries between the compute servers of an index while sessions use it (DEX §4).
//!
//! Both compute servers beside a boundary must be run by this process: another process would have to write its cache back
//! and leave first, and there is no channel to ask it to. Sessions learn the new boundaries when a compute server refuses
//! a key; an operation on keys that are on their way waits. The catalog has the new boundary before the new owner begins,
//! and leaves end at both, so that the pool can be opened by either.

use pando_dex::balancer::Balancer;
use pando_dex::layout::Layout;
use pando_dex::{Ctx, DexError, KeyRange, Party, RoutingTable, Tree, flush_side_by_side, move_keys};
use pando_fabric_local::LocalEndpoint;
use pando_rt::block_on;

use crate::cluster::Shared;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::servers::{Servers, with_trees};

/// Shares of writing back that are under way at once.
const FLUSH_SHARES: usize = 4;

impl Index {
    /// Moves the boundary between compute servers `boundary` and `boundary + 1` to another key, while sessions stay open.
    /// The keys in between are written back and change hands; operations on them wait, all others go on.
    ///
    /// ```
    /// use pando::{Cluster, Config, IndexOptions};
    ///
    /// let cluster = Cluster::open(Config::embedded().compute_servers(2))?;
    /// let index = cluster.create_index("birds", &IndexOptions::bytes())?;
    /// let session = index.session()?;
    /// session.put(b"owl", b"night")?;
    /// index.move_boundary(0, b"kite")?;
    /// assert_eq!(index.boundaries()?, [b"kite"]);
    /// assert_eq!(session.get(b"owl")?.as_deref(), Some(&b"night"[..]));
    /// # Ok::<(), pando::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a boundary that there is not, or a key that is not between those beside it;
    /// [`Error::NotAllOwned`] if another process runs one of both compute servers; [`Error::ReadOnly`]; errors of the
    /// fabric, after which the boundary is where it was.
    pub fn move_boundary(&self, boundary: usize, to: &[u8]) -> Result<()> {
        self.shared.check_open()?;
        if self.shared.read_only() {
            return Err(Error::ReadOnly);
        }
        let servers = self.data.servers()?;
        let (from, into, range) = plan(&servers, boundary, to)?;
        if let Some(partition) = [from, into].into_iter().find(|&server| !servers.runs(server)) {
            let index = self.name().to_owned();
            return Err(Error::NotAllOwned {
                what: "moving the boundary between both partitions",
                index,
                partition,
            });
        }
        if range.is_empty() {
            return Ok(());
        }
        self.shared.with_endpoint(|ep| {
            with_trees!(servers, |trees| {
                let (Some(Some(source)), Some(Some(target))) = (trees.get(from), trees.get(into)) else {
                    return Err(Error::Closed);
                };
                hand_over(&self.shared, ep, &servers, [(from, source), (into, target)], range)
            })
        })
    }

    /// Moves boundaries if the load of the compute servers since the last call says so; how many. To be called now and then,
    /// always with the same balancer. All compute servers have to be this process's.
    ///
    /// # Errors
    /// Those of [`Index::move_boundary`].
    pub fn balance(&self, balancer: &mut Balancer) -> Result<usize> {
        let servers = self.data.servers()?;
        servers.check_runs_all("balancing")?;
        let moves = balancer.observe(&servers.boundaries(), &servers.routes.take_load());
        for step in &moves {
            self.move_boundary(step.boundary, &step.to)?;
        }
        Ok(moves.len())
    }
}

/// Who gives which keys to whom.
fn plan(servers: &Servers, boundary: usize, to: &[u8]) -> Result<(usize, usize, KeyRange)> {
    let boundaries = servers.boundaries();
    let Some(old) = boundaries.get(boundary) else {
        return Err(Error::InvalidOption(format!(
            "there is no boundary {boundary}: the index has {}, numbered from 0",
            boundaries.len()
        )));
    };
    let is_above = boundary.checked_sub(1).is_none_or(|below| boundaries[below].as_slice() < to);
    let is_below = boundaries.get(boundary + 1).is_none_or(|above| to < above.as_slice());
    if !is_above || !is_below || to.is_empty() {
        return Err(Error::InvalidOption(
            "a boundary can be moved to a key between the two boundaries beside it only".to_owned(),
        ));
    }
    let (to, old) = (to.to_vec(), old.clone());
    Ok(match to < old {
        true => (boundary, boundary + 1, KeyRange { low: Some(to), high: Some(old) }),
        false => (boundary + 1, boundary, KeyRange { low: Some(old), high: Some(to) }),
    })
}

fn hand_over<L: Layout>(
    shared: &Shared,
    ep: &LocalEndpoint,
    servers: &Servers,
    [(from, source), (into, target)]: [(usize, &Tree<L>); 2],
    range: KeyRange,
) -> Result<()> {
    let (leaver, taker) = (source.cache().worker(), target.cache().worker());
    let (leaver_ctx, taker_ctx) = (Ctx { ep, worker: &leaver }, Ctx { ep, worker: &taker });
    let name = servers.record.name.as_str();
    let record = async |table: &RoutingTable| {
        let mut record = shared.pool.open_index(ep, name).await?;
        record.boundaries = table.boundaries().to_vec();
        shared.pool.update_index(ep, &record).await.map(drop).map_err(DexError::from)
    };
    let moved = block_on(
        ep,
        move_keys(
            &servers.routes,
            Party { server: from, tree: source, ctx: leaver_ctx },
            Party { server: into, tree: target, ctx: taker_ctx },
            range,
            async |leaving| flush_side_by_side(&leaving, leaver_ctx, FLUSH_SHARES).await,
            record,
        ),
    );
    source.cache().retire(&leaver);
    target.cache().retire(&taker);
    Ok(moved.map(drop)?)
}
