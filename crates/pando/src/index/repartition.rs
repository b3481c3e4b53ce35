//! Moves of keys between compute servers during use (DEX §4): boundaries move, compute servers are added and
//! removed.
//!
//! This process must run all compute servers that take part: another process would have to write its cache
//! back and give the keys up first, and there is no channel to ask for that. Sessions learn the new
//! boundaries when a compute server refuses a key; operations on keys that are moving wait. The catalog has
//! the new boundary before the new owner begins, and leaves end at both boundaries, so that the pool can be
//! opened with either.
//!
//! - An index has one move at a time, and none while it is at rest or its memory is moved.
//! - Other processes may change the boundaries between their own partitions in the catalog at the same time.
//!   So a move writes only its own difference to the catalog, not the whole table of this process.
//! - Sessions find an added compute server before it has keys, and a removed one until it has none.

use pando_dex::balancer::Balancer;
use pando_dex::layout::Layout;
use pando_dex::{Ctx, KeyRange, Party, RoutingTable, flush_side_by_side, move_keys};
use pando_rt::block_on;

use super::{Index, move_record};
use crate::error::{Error, Result};
use crate::layout::with_layout;
use crate::local::Servers;
use crate::options::MAX_COMPUTE_SERVERS;
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Shares of a write-back in flight at once.
pub(super) const FLUSH_SHARES: usize = 4;

impl Index {
    /// Moves the boundary between partitions `boundary` and `boundary + 1`, as numbered by
    /// [`Index::boundaries`], to another key, while sessions stay open. The keys in between are written back
    /// and change their owner. Operations on them wait; all others continue. The call waits for other moves,
    /// and for memory that is being moved.
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
    /// [`Error::InvalidOption`] for a boundary that does not exist, or a key that is not between the adjacent
    /// boundaries; [`Error::OnOtherSide`] if another process runs one of the two compute servers;
    /// [`Error::Busy`] during exclusive work, for instance a bulk load; [`Error::ReadOnly`]; errors of the
    /// fabric, after which the boundary is where it was. If the new owner fails midway and that cannot be
    /// undone, operations on these keys fail until the same move succeeds.
    pub fn move_boundary(&self, boundary: usize, to: &[u8]) -> Result<()> {
        self.shared.writable()?;
        let _moving = self.data.begin_move()?;
        self.move_boundary_alone(boundary, to)
    }

    /// [`Index::move_boundary`] for a caller that may move keys ([`crate::local::IndexData::begin_move`]).
    pub(super) fn move_boundary_alone(&self, boundary: usize, to: &[u8]) -> Result<()> {
        let servers = self.data.servers()?;
        let table = servers.routes.table();
        let (from, into, range) = plan(&table, boundary, to)?;
        check_key(&servers, to)?;
        for partition in [from, into] {
            self.check_runs("moving a boundary", &servers, &table, partition)?;
        }
        if range.is_empty() {
            return Ok(());
        }
        self.hand_over(&servers, table.owners()[from], table.owners()[into], range)
    }

    /// Adds a compute server, which takes over the keys from `from` up to the next boundary, while sessions
    /// stay open. Returns its number. Its cache has the size of the other ones. This process must run the
    /// compute server that has these keys. The best `from` halves the load of that one; [`Index::balance`]
    /// can move the boundary later.
    ///
    /// The numbers of partitions behind the new one grow by 1; other processes see that when they open the
    /// index.
    ///
    /// ```
    /// use pando::{Cluster, Config, IndexOptions};
    ///
    /// let cluster = Cluster::open(Config::embedded())?;
    /// let index = cluster.create_index("birds", &IndexOptions::bytes())?;
    /// let session = index.session()?;
    /// session.put(b"owl", b"night")?;
    /// let added = index.add_compute_server(b"m")?;
    /// assert_eq!(index.range_of(added)?.low.as_deref(), Some(&b"m"[..]));
    /// assert_eq!(session.get(b"owl")?.as_deref(), Some(&b"night"[..]));
    /// index.remove_compute_server(added)?;
    /// assert_eq!((session.iter().count(), index.compute_servers()?), (1, 1));
    /// # Ok::<(), pando::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for the first key of a partition, and for more compute servers than
    /// [`MAX_COMPUTE_SERVERS`]; [`Error::OnOtherSide`] if another process has the keys; [`Error::Cache`]
    /// without memory for another cache; errors of [`Index::move_boundary`]. No compute server is added then.
    pub fn add_compute_server(&self, from: &[u8]) -> Result<usize> {
        const WHAT: &str = "adding a compute server";
        self.shared.writable()?;
        let _moving = self.data.begin_move()?;
        let servers = self.data.servers()?;
        let table = servers.routes.table();
        let partition = table.partition_of(from);
        check_key(&servers, from)?;
        self.check_runs(WHAT, &servers, &table, partition)?;
        let KeyRange { low, high } = table.range(partition);
        if from.is_empty() || low.as_deref() == Some(from) {
            return Err(Error::InvalidOption(
                "a compute server can be added at a key within a partition only, not where one begins"
                    .to_owned(),
            ));
        }
        let running = table.owners().iter().filter(|&&number| servers.runs(number)).count();
        if running >= MAX_COMPUTE_SERVERS {
            return Err(Error::InvalidOption(format!(
                "this process runs {running} compute servers of index {:?}, which is as many as it can",
                self.name()
            )));
        }
        let (servers, number) = match spare(&servers, &table) {
            // A compute server whose addition failed midway continues from there.
            Some(number) => (servers, number),
            None => {
                let (grown, number) = self.shared.with_endpoint(|ep| servers.grown(&self.shared, ep))?;
                self.data.replace(grown);
                (self.data.servers()?, number)
            }
        };
        let range = KeyRange { low: Some(from.to_vec()), high };
        let added = self.hand_over(&servers, table.owners()[partition], number, range);
        if added.is_err() && !is_taking_over(&servers, number) {
            self.data.replace(servers.without(number));
        }
        added.map(|()| number)
    }

    /// Removes a compute server that this process runs, while sessions stay open. Its keys go to the compute
    /// server below it or, if this process does not run that one, to the one above. The memory of its cache
    /// is freed when no session refers to it any more, at the latest after 64 further operations of each
    /// session. [`Index::add_compute_server`] has an example.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if this compute server does not exist, or is the only one;
    /// [`Error::OnOtherSide`] if another process runs it, or both adjacent ones; errors of
    /// [`Index::move_boundary`]. The compute server remains then.
    pub fn remove_compute_server(&self, number: usize) -> Result<()> {
        const WHAT: &str = "removing a compute server";
        self.shared.writable()?;
        let _moving = self.data.begin_move()?;
        let servers = self.data.servers()?;
        let table = servers.routes.table();
        let range = servers.range_of(number)?;
        let partition = table.partition_owned_by(number).expect("it has a range");
        self.check_runs(WHAT, &servers, &table, partition)?;
        let [below, above] = [partition.checked_sub(1), Some(partition + 1)];
        let beside = [below, above.filter(|&above| above < table.owners().len())];
        let mut beside = beside.into_iter().flatten().peekable();
        let Some(&nearest) = beside.peek() else {
            return Err(Error::InvalidOption(format!(
                "compute server {number} is the only one of index {:?} and cannot be removed",
                self.name()
            )));
        };
        let heir = beside.map(|partition| table.owners()[partition]).find(|&heir| servers.runs(heir));
        let Some(heir) = heir else {
            return self.check_runs(WHAT, &servers, &table, nearest);
        };
        self.hand_over(&servers, number, heir, range)?;
        self.data.replace(servers.without(number));
        Ok(())
    }

    /// Moves boundaries as the load of the compute servers since the last call requires; returns how many.
    /// Call it from time to time, always with the same balancer. This process must own all partitions.
    ///
    /// # Errors
    /// Errors of [`Index::move_boundary`]; [`Error::NotAllOwned`].
    pub fn balance(&self, balancer: &mut Balancer) -> Result<usize> {
        self.shared.writable()?;
        let _moving = self.data.begin_move()?;
        let servers = self.data.servers()?;
        servers.check_runs_all("balancing")?;
        let moves = balancer.observe(&servers.boundaries(), &servers.routes.take_load());
        for step in &moves {
            self.move_boundary_alone(step.boundary, &step.to)?;
        }
        Ok(moves.len())
    }

    fn check_runs(
        &self,
        what: &'static str,
        servers: &Servers,
        table: &RoutingTable,
        partition: usize,
    ) -> Result<()> {
        if servers.runs(table.owners()[partition]) {
            return Ok(());
        }
        // The low key identifies the partition in the catalog, whose partitions may be numbered differently.
        let low = table.range(partition).low;
        let partition_of =
            |boundaries: &[Vec<u8>]| low.as_deref().map_or(0, |low| pando_dex::partition_of(boundaries, low));
        self.shared.with_endpoint(|ep| {
            let (partition, owner) = block_on(ep, self.shared.owner(ep, self.name(), partition_of))?;
            Err(Error::OnOtherSide { what, index: self.name().to_owned(), partition, owner })
        })
    }

    /// Moves the keys of `range` between two compute servers of this process.
    fn hand_over(&self, servers: &Servers, from: usize, into: usize, range: KeyRange) -> Result<()> {
        self.shared.with_endpoint(|ep| {
            with_layout!(&servers.trees, |trees| {
                let (Some(Some(source)), Some(Some(target))) = (trees.get(from), trees.get(into)) else {
                    return Err(Error::Closed);
                };
                let (leaver, taker) = (source.cache().worker(), target.cache().worker());
                let leaving = Party { server: from, tree: source, ctx: Ctx { ep, worker: &leaver } };
                let taking = Party { server: into, tree: target, ctx: Ctx { ep, worker: &taker } };
                let moved = hand_over(&self.shared, ep, servers, leaving, taking, range);
                source.cache().retire(&leaver);
                target.cache().retire(&taker);
                moved
            })
        })
    }
}

/// The key of a boundary that is to be moved.
pub(crate) fn place_of<'b>(boundaries: &'b [Vec<u8>], boundary: usize, to: &[u8]) -> Result<&'b [u8]> {
    let Some(from) = boundaries.get(boundary) else {
        return Err(Error::InvalidOption(format!(
            "there is no boundary {boundary}: the index has {}, numbered from 0",
            boundaries.len()
        )));
    };
    let is_above = boundary.checked_sub(1).is_none_or(|below| boundaries[below].as_slice() < to);
    let is_below = boundaries.get(boundary + 1).is_none_or(|above| to < above.as_slice());
    match is_above && is_below && !to.is_empty() {
        true => Ok(from),
        false => Err(Error::InvalidOption(
            "a boundary can be moved to a key between the two boundaries beside it only".to_owned(),
        )),
    }
}

/// The partitions that give and take keys if a boundary moves, and these keys.
pub(super) fn plan(table: &RoutingTable, boundary: usize, to: &[u8]) -> Result<(usize, usize, KeyRange)> {
    let old = place_of(table.boundaries(), boundary, to)?;
    let (to, old) = (to.to_vec(), old.to_vec());
    Ok(match to < old {
        true => (boundary, boundary + 1, KeyRange { low: Some(to), high: Some(old) }),
        false => (boundary + 1, boundary, KeyRange { low: Some(old), high: Some(to) }),
    })
}

/// Checks that `key` is valid in the index's layout.
///
/// # Errors
/// The error of the layout.
pub(super) fn check_key(servers: &Servers, key: &[u8]) -> Result<()> {
    with_layout!(servers.node_layout()?, |layout| Ok(layout.key(key).map(drop)?))
}

/// A compute server without keys.
fn spare(servers: &Servers, table: &RoutingTable) -> Option<usize> {
    let is_spare = |&number: &usize| servers.runs(number) && table.partition_owned_by(number).is_none();
    (0..servers.loads.len()).find(is_spare)
}

fn is_taking_over(servers: &Servers, number: usize) -> bool {
    with_layout!(&servers.trees, |trees| trees[number]
        .as_ref()
        .is_some_and(|tree| pando_dex::is_taking_over(tree)))
}

fn hand_over<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    servers: &Servers,
    from: Party<'_, '_, L, AnyEndpoint>,
    into: Party<'_, '_, L, AnyEndpoint>,
    range: KeyRange,
) -> Result<()> {
    let old = servers.routes.table();
    let new = old.transferred(&range, into.server)?;
    let ctx = from.ctx;
    let record = async |table: &RoutingTable| {
        let other = if table == &new { &*old } else { &new };
        move_record::enter(shared, ep, servers, table, other).await
    };
    let moved = move_keys(
        &servers.routes,
        from,
        into,
        range,
        async |leaving| flush_side_by_side(&leaving, ctx, FLUSH_SHARES).await,
        record,
    );
    Ok(block_on(ep, moved).map(drop)?)
}
