//! The memory servers of a pool: usage, adding and draining servers.
//!
//! Servers are added and drained while operations run. A new server receives parts of indexes as they grow,
//! or of all indexes when they are [spread](Cluster::spread_indexes). A draining server takes no new blocks
//! and its blocks move to others; drained, it keeps its number and need not be there. The first server cannot
//! be drained: it has the pool's tables and the roots.
//!
//! What other processes own, they move at their next look ([`crate::Index::follow`]). This process waits for that.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use pando_dex::Drained;
use pando_elf_remote::{RemoteError, is_elf};
use pando_fabric::{Endpoint, FabricError, MemoryServerId};
use pando_fabric_net::random_nonzero;
use pando_pool::{IndexRecord, PoolError, ServerState, ServerUsage};
use pando_rt::block_on;

use super::roots::{Unmoved, move_open_root, move_root};
use crate::cluster::Cluster;
use crate::copies::CopyProgress;
use crate::error::{Error, Result};
use crate::index::OpenIndexes;
use crate::local::open::open;
use crate::local::{IndexData, Servers};
use crate::options::{OpenOptions, Ownership};
use crate::place::AnyEndpoint;
use crate::shared::{OwnedKeys, PartitionOwner, Shared, Spread, lock};

const MOVING: &str = "moving nodes between memory servers";
const ADDING: &str = "adding a memory server";
const DRAINING: &str = "draining a memory server";
const SPREADING: &str = "spreading indexes";
/// Pause between two looks at what other processes have done.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest time in which nothing moves while a memory server joins others that have copies: they wait for each other for leases.
const JOINING: Duration = Duration::from_secs(60);

/// Progress of [`Cluster::drain_memory_server`], and its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainProgress {
    /// Nodes moved to other memory servers.
    pub nodes: u64,
    /// Long values moved to other memory servers.
    pub values: u64,
    /// Blocks allocated on the server when the drain began; 0 until that is known. Does not include memory
    /// that other processes lease.
    pub blocks: u64,
}

/// Whether a wait goes on: an error if the caller had it stop.
type GoesOn<'c> = &'c mut dyn FnMut() -> Result<()>;

fn go_on(what: &'static str, flow: ControlFlow<()>) -> Result<()> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Stopped { what }),
    }
}

/// An index being worked on: open in this process already, or opened for this work.
enum Worked<'r> {
    Open(&'r IndexData),
    Passing(Box<Servers>),
}

impl Worked<'_> {
    fn with<T>(&self, work: impl FnOnce(&Servers) -> Result<T>) -> Result<T> {
        match self {
            Self::Open(data) => {
                // A move of keys meanwhile could make the work miss them.
                let _still = data.begin_move()?;
                work(&*data.servers()?)
            }
            Self::Passing(servers) => work(servers),
        }
    }
}

impl Cluster {
    /// `host:port` of each memory server that this process reaches, named or found, in the order of their
    /// numbers; none for a pool of files or in memory. Servers that joined after the pool was opened are
    /// missing until this process has to do with them.
    pub fn memory_server_addresses(&self) -> Vec<String> {
        self.shared.fabric.addresses()
    }

    /// State and usage of each memory server.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub fn memory_servers(&self) -> Result<Vec<ServerUsage>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| Ok(block_on(ep, self.shared.pool.usage(ep))?))
    }

    /// Adds a memory server of `bytes` to the pool and returns its number. Other processes notice it by
    /// themselves; where memory servers are reached by RDMA, there must be none. A pool of files must be a directory. Where memory
    /// servers have copies of each other's memory, this waits until copies have moved to the new one.
    ///
    /// ```
    /// use pando::{Cluster, Config};
    ///
    /// let cluster = Cluster::open(Config::embedded().memory(16 << 20))?;
    /// let added = cluster.add_memory_server(16 << 20)?;
    /// assert_eq!(cluster.memory_servers()?.len(), 2);
    /// cluster.drain_memory_server(added, |_| std::ops::ControlFlow::Continue(()))?;
    /// # Ok::<(), pando::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Fabric`] for a pool of one plain file, an impossible size, or a lack of space;
    /// [`Error::Pool`] for a size that is too small; [`Error::NotAlone`].
    pub fn add_memory_server(&self, bytes: u64) -> Result<MemoryServerId> {
        self.add_memory_server_with(bytes, |_| ControlFlow::Continue(()))
    }

    /// As [`add_memory_server`](Self::add_memory_server); `progress` is told from time to time how far copies have moved, and may
    /// stop this. The memory servers go on by themselves then, and another call waits for them.
    ///
    /// # Errors
    /// As [`add_memory_server`](Self::add_memory_server); [`Error::Stopped`].
    pub fn add_memory_server_with(
        &self,
        bytes: u64,
        mut progress: impl FnMut(CopyProgress) -> ControlFlow<()>,
    ) -> Result<MemoryServerId> {
        let shared = &self.shared;
        shared.writable()?;
        if shared.fabric.has_copies() {
            self.await_volume(&mut progress)?;
        }
        shared.with_endpoint(|ep| {
            // Excludes other processes that add a server or attach.
            let _lock = shared.fabric.lock_exclusive(shared.config.patience())?;
            if !shared.fabric.finds_joining() {
                shared.check_alone(ep, "adding a memory server that is reached by RDMA")?;
            }
            block_on(ep, shared.pool.learn(ep))?;
            // A region left by an addition that failed is reused.
            if ep.regions().len() <= shared.pool.servers() {
                shared.pool.check_joining(bytes, None)?;
                shared.fabric.add_server(bytes, shared.config.huge_pages)?;
            }
            // The view has those of servers with copies.
            let addresses = if shared.fabric.has_copies() { Vec::new() } else { shared.fabric.addresses() };
            Ok(block_on(ep, shared.pool.add_server_at(ep, None, &addresses))?)
        })
    }

    /// Has one more memory server join those that have copies of each other's memory, and waits until there is a volume that the
    /// pool does not have yet. An attempt that failed may have left one.
    fn await_volume(&self, progress: &mut dyn FnMut(CopyProgress) -> ControlFlow<()>) -> Result<()> {
        let (shared, mut waiting) = (&self.shared, Waiting::new(JOINING.max(self.shared.config.patience())));
        shared.with_endpoint(|ep| Ok(block_on(ep, shared.pool.learn(ep))?))?;
        let has_one =
            || shared.fabric.view().is_some_and(|view| view.volumes_in_use() > shared.pool.servers());
        if !has_one() {
            shared.fabric.join_group(&shared.config)?;
        }
        while !has_one() {
            let moves = shared.fabric.moves_of_group(&shared.config);
            go_on(ADDING, progress(moves.1))?;
            if !waiting.goes_on(moves) {
                let path = "tcp".to_owned();
                let reason = "the memory server joined, but copies do not move to it; `pando pool copies` shows what \
                              is missing, and this can be repeated";
                return Err(FabricError::System { path, reason: reason.to_owned() }.into());
            }
        }
        Ok(())
    }

    /// Takes a draining or drained memory server back into use. No index may be open, and no other process
    /// attached. One that was drained may have lost its memory.
    ///
    /// # Errors
    /// [`Error::Pool`] if there is no such server, or it was not there when the pool was opened; [`Error::IndexesOpen`];
    /// [`Error::NotAlone`].
    pub fn readmit_memory_server(&self, server: MemoryServerId) -> Result<()> {
        const WHAT: &str = "taking a memory server into use again";
        let shared = &self.shared;
        shared.writable()?;
        let registry = lock(&self.registry.open);
        if let Some(name) = registry.keys().next() {
            return Err(Error::IndexesOpen { what: WHAT, index: name.clone() });
        }
        let _lock = shared.fabric.lock_exclusive(shared.config.patience())?;
        shared.with_endpoint(|ep| {
            shared.check_alone(ep, WHAT)?;
            block_on(ep, shared.pool.learn(ep))?;
            if shared.pool.server_state(server)? == ServerState::Drained {
                shared.fabric.take_back(server)?;
            }
            block_on(ep, shared.pool.readmit_server(ep, server))?;
            self.store_addresses(ep);
            Ok(())
        })
    }

    /// Stores the ring of the addresses, as the members are now. The caller keeps other processes from attaching.
    fn store_addresses(&self, ep: &AnyEndpoint) {
        let shared = &self.shared;
        let addresses = if shared.fabric.has_copies() { Vec::new() } else { shared.fabric.addresses() };
        // They are for processes that are told only some of the servers; the next one that is told all stores them if this fails.
        let _ = block_on(ep, shared.pool.set_addresses(ep, &addresses));
    }

    /// Moves everything on a memory server to the others and takes the server out of use, while sessions
    /// continue. Then it may be switched off, and the pool is opened without it. Reports to `progress` from time to time, which may stop this. What other processes own, they move when they
    /// [look](crate::Index::follow), as compute servers do; this process waits as long as something moves within each deadline.
    /// No index can be opened or created in this process meanwhile.
    ///
    /// Parts of Elf tables are written again on other servers.
    ///
    /// After a failure, or if it was stopped, the server takes no new blocks and keeps what was not moved. The call may be repeated,
    /// or the server [taken back into use](Cluster::readmit_memory_server).
    ///
    /// # Errors
    /// [`Error::Pool`] for the first memory server, for one that does not exist, and for one that is not
    /// empty in the end because the others are full or because other processes have leases on it;
    /// [`Error::PartitionOwned`] with a process that owns a partition, if it does not move what it has there, or the index has
    /// its root on the server; [`Error::SessionsOpen`] for an index whose root is on the server, since a root moves
    /// only at rest; [`Error::Stopped`].
    pub fn drain_memory_server(
        &self,
        server: MemoryServerId,
        mut progress: impl FnMut(DrainProgress) -> ControlFlow<()>,
    ) -> Result<DrainProgress> {
        self.drain_with(server, &mut progress)
    }

    /// Compiled in this crate, unlike what is generic.
    fn drain_with(
        &self,
        server: MemoryServerId,
        progress: &mut dyn FnMut(DrainProgress) -> ControlFlow<()>,
    ) -> Result<DrainProgress> {
        let shared = &self.shared;
        shared.writable()?;
        let registry = lock(&self.registry.open);
        shared.with_endpoint(|ep| {
            if server.0 == 0 {
                return Err(PoolError::HomeServer.into());
            }
            block_on(ep, shared.pool.learn(ep))?;
            let known = || shared.pool.server_state(server).map_err(Error::from);
            if known()? == ServerState::Drained {
                block_on(ep, shared.pool.finish_drain(ep, server))?;
                return Ok(DrainProgress::default());
            }
            let before = shared.owned(ep)?;
            let work = self.all_indexes(ep, &registry, |record| record.root.server() == server)?;
            let drained = self.drain_worked(ep, &work.here, server, progress);
            let released = release(shared, ep, work.here);
            let (drained, is_complete) = drained?;
            released?;
            let mut waits = || go_on(DRAINING, progress(drained));
            self.drain_tables(ep, server, &mut waits)?;
            match self.finish_drain(ep, server, work.elsewhere, &mut waits) {
                Err(Error::PartitionOwned { .. } | Error::Pool(PoolError::NotEmpty { .. }))
                    if is_complete && self.leave_to_the_dead(ep, server, &before, &mut waits)? => {}
                finished => finished?,
            }
            if let Ok(_lock) = shared.fabric.lock_exclusive(shared.config.patience()) {
                self.store_addresses(ep);
            }
            Ok(drained)
        })
    }

    /// Declares a server drained, once the owners `elsewhere` have left it.
    fn finish_drain(
        &self,
        ep: &AnyEndpoint,
        server: MemoryServerId,
        elsewhere: Option<Error>,
        waits: GoesOn<'_>,
    ) -> Result<()> {
        let pool = &self.shared.pool;
        let Some(owned) = elsewhere else { return Ok(block_on(ep, pool.finish_drain(ep, server))?) };
        let mut waiting = Waiting::new(self.shared.config.patience());
        loop {
            match block_on(ep, pool.finish_drain(ep, server)) {
                Err(PoolError::NotEmpty { bytes, leased, .. }) if waiting.goes_on((bytes, leased)) => {
                    waits()?
                }
                // They do not look, unless there is no room for the rest.
                Err(PoolError::NotEmpty { .. }) if !waiting.has_seen_changes => return Err(owned),
                ended => return Ok(ended?),
            }
        }
    }

    /// Declares a server drained on which blocks are allocated that processes which died had freed, if all owners say that they
    /// have left it, and no keys have moved since this process left it, when the keys were owned as `before`. Returns whether
    /// that was done.
    ///
    /// Owners are asked twice, and work that began before the first answers has ended before the second ones: until a process
    /// learns of the drain, it may allocate there.
    fn leave_to_the_dead(
        &self,
        ep: &AnyEndpoint,
        server: MemoryServerId,
        before: &[OwnedKeys],
        waits: GoesOn<'_>,
    ) -> Result<bool> {
        let shared = &self.shared;
        // Who changes an Elf table is not asked.
        if !block_on(ep, shared.pool.has_reclaimed(ep))? || before.iter().any(|owned| owned.is_elf) {
            return Ok(false);
        }
        for time in 0..2 {
            let until = Instant::now() + shared.config.patience();
            while time > 0 && Instant::now() < until {
                thread::sleep(PAUSE);
                waits()?;
            }
            let answers = self.ask_owners(ep, Some(server), waits)?;
            if answers.is_none_or(|answers| answers.iter().any(|answer| answer.nodes > 0)) {
                return Ok(false);
            }
        }
        let attached = block_on(ep, shared.pool.processes(ep))?;
        let alive: Vec<_> = attached.iter().filter(|other| other.is_alive).map(|other| other.slot).collect();
        let owners: Vec<_> = before.iter().flat_map(|of| of.owners.iter().copied().flatten()).collect();
        if shared.owned(ep)? != before || owners.iter().any(|owner| !alive.contains(owner)) {
            return Ok(false);
        }
        block_on(ep, shared.pool.finish_drain_with_left(ep, server, &owners))?;
        Ok(true)
    }

    /// Returns also whether there is nothing of these indexes on the server any more.
    fn drain_worked(
        &self,
        ep: &AnyEndpoint,
        worked: &[Worked<'_>],
        server: MemoryServerId,
        progress: &mut dyn FnMut(DrainProgress) -> ControlFlow<()>,
    ) -> Result<(DrainProgress, bool)> {
        let pool = &self.shared.pool;
        let usage = block_on(ep, pool.usage(ep))?;
        let blocks = usage.iter().find(|of| of.server == server).map_or(0, |of| of.blocks_allocated);
        block_on(ep, pool.drain_server(ep, server))?;
        let (mut done, mut is_complete) = (DrainProgress { blocks, ..DrainProgress::default() }, true);
        for index in worked {
            let (before, mut flow) = (done, ControlFlow::Continue(()));
            let mut tell = |more: Drained| {
                let (nodes, values) = (before.nodes + more.nodes, before.values + more.values);
                done = DrainProgress { nodes, values, ..before };
                // Once it was told to stop, it stops.
                if flow.is_continue() {
                    flow = progress(done);
                }
                flow.is_continue()
            };
            let drained = index.with(|servers| servers.drain(&self.shared, ep, server, &mut tell))?;
            tell(drained);
            go_on(DRAINING, flow)?;
            is_complete &= drained.is_complete;
        }
        Ok((done, is_complete))
    }

    /// Writes the parts of Elf tables that are on a draining server again, elsewhere, and frees them there.
    fn drain_tables(&self, ep: &AnyEndpoint, server: MemoryServerId, waits: GoesOn<'_>) -> Result<()> {
        let (shared, tables) = (&self.shared, &self.registry.tables);
        let records = block_on(ep, shared.pool.list_indexes(ep))?;
        for IndexRecord { name, .. } in records.into_iter().filter(is_elf) {
            waits()?;
            let table = tables.get(shared, &name)?;
            match block_on(ep, table.writer.leave(ep, server)) {
                // It was dropped meanwhile.
                Err(RemoteError::Pool(PoolError::UnknownIndex { .. })) => {}
                left => drop(left.map_err(|error| Error::of_elf(&name, error))?),
            }
        }
        tables.settle(ep, shared.config.patience_ns());
        Ok(())
    }

    /// Moves parts of indexes from memory servers that hold more than others to those, until they are
    /// balanced, while sessions continue. Reports to `progress`, which may stop this, and returns the number of nodes moved.
    /// Indexes that grow do the same by themselves. Other processes move what they own when they
    /// [look](crate::Index::follow), as compute servers do; this process waits as long as something moves within each deadline.
    ///
    /// # Errors
    /// [`Error::PartitionOwned`] with a process that owns a partition of an index, if it does not answer; errors of operations;
    /// [`Error::Stopped`]. Nodes that were moved stay where they are then.
    pub fn spread_indexes(&self, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<u64> {
        self.spread_with(&mut progress)
    }

    /// Compiled in this crate, unlike what is generic.
    fn spread_with(&self, progress: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<u64> {
        let shared = &self.shared;
        shared.writable()?;
        let registry = lock(&self.registry.open);
        shared.with_endpoint(|ep| {
            let Work { here, elsewhere } = self.all_indexes(ep, &registry, |_| false)?;
            let mut moved = 0;
            let spread = here.iter().try_for_each(|index| {
                let (before, mut flow) = (moved, ControlFlow::Continue(()));
                let mut tell = |nodes| {
                    flow = progress(before + nodes);
                    flow.is_continue()
                };
                moved += index.with(|servers| servers.spread(ep, &mut tell))?;
                go_on(SPREADING, flow)
            });
            let released = release(shared, ep, here);
            spread.and(released)?;
            let Some(owned) = elsewhere else { return Ok(moved) };
            let mut waits = || go_on(SPREADING, progress(moved));
            let spreads = self.ask_owners(ep, None, &mut waits)?.ok_or(owned)?;
            Ok(moved + spreads.iter().map(|spread| spread.nodes).sum::<u64>())
        })
    }

    /// Has other processes spread what they own, or say whether they have left a server. Returns their answers; `None` if one does
    /// not answer.
    fn ask_owners(
        &self,
        ep: &AnyEndpoint,
        leaves: Option<MemoryServerId>,
        waits: GoesOn<'_>,
    ) -> Result<Option<Vec<Spread>>> {
        let (shared, number) = (&self.shared, random_nonzero());
        shared.set_spread("", Some(Spread { number, nodes: 0, leaves }))?;
        let answers = self.wait_for_answers(ep, number, waits);
        shared.set_spread("", None)?;
        answers
    }

    fn wait_for_answers(
        &self,
        ep: &AnyEndpoint,
        number: u64,
        waits: GoesOn<'_>,
    ) -> Result<Option<Vec<Spread>>> {
        let (shared, mut waiting) = (&self.shared, Waiting::new(self.shared.config.patience()));
        loop {
            let mut spreads = Vec::new();
            for IndexRecord { name, .. } in shared.keyed_indexes(ep)? {
                match shared.spread_by_owners(ep, &name, number) {
                    // It was dropped meanwhile.
                    Err(Error::UnknownIndex { .. }) => {}
                    answered => spreads.extend(answered?),
                }
            }
            if let Some(answers) = spreads.iter().copied().collect() {
                return Ok(Some(answers));
            }
            let usage = block_on(ep, shared.pool.usage(ep))?;
            let answered = spreads.iter().flatten().count() as u64;
            if !waiting.goes_on((usage.iter().map(|of| of.bytes_allocated).collect::<Vec<_>>(), answered)) {
                return Ok(None);
            }
            waits()?;
        }
    }

    /// All indexes of the pool, with the compute servers that this process runs for them. Those that it does not have
    /// open are opened, as far as no other process owns them. Roots that `moves_root` selects are moved first.
    fn all_indexes<'r>(
        &self,
        ep: &AnyEndpoint,
        registry: &'r OpenIndexes,
        moves_root: impl Fn(&IndexRecord) -> bool,
    ) -> Result<Work<'r>> {
        let shared = &self.shared;
        let mut work = Work { here: Vec::new(), elsewhere: None };
        let opened = shared.keyed_indexes(ep)?.into_iter().try_for_each(|record| {
            let name = record.name.clone();
            let partitions = shared.partitions(ep, &name)?;
            let owned = partitions.iter().enumerate().find_map(|(partition, found)| match &found.owner {
                PartitionOwner::Process(process) if !process.is_this => {
                    let (index, owner) = (name.clone(), process.owner(&name));
                    Some(Error::PartitionOwned { index, partition, owner, what: MOVING })
                }
                _ => None,
            });
            if let Some(data) = registry.get(&name) {
                if moves_root(&data.servers()?.record) {
                    move_open_root(shared, ep, data)?;
                }
                work.elsewhere = work.elsewhere.take().or(owned);
                work.here.push(Worked::Open(data));
                return Ok(());
            }
            let mut own = Ownership::All;
            if let Some(owned) = owned {
                if moves_root(&record) {
                    return Err(owned);
                }
                work.elsewhere.get_or_insert(owned);
                let of_nobody = |at: &usize| matches!(partitions[*at].owner, PartitionOwner::Nobody);
                let free: Vec<usize> = (0..partitions.len()).filter(of_nobody).collect();
                if free.is_empty() {
                    return Ok(());
                }
                own = Ownership::Partitions(free);
            }
            let servers = open(shared, ep, &name, &OpenOptions::default().own(own), true)?;
            let servers = match moves_root(&servers.record) {
                false => servers,
                true => move_root(shared, ep, &servers).map_err(|unmoved| match unmoved {
                    Unmoved::AsBefore(error) => error,
                    Unmoved::Unsettled(error) => error.perhaps("moving its root"),
                })?,
            };
            work.here.push(Worked::Passing(Box::new(servers)));
            Ok(())
        });
        match opened {
            Ok(()) => Ok(work),
            Err(error) => {
                // The first error is the one to report.
                let _ = release(shared, ep, work.here);
                Err(error)
            }
        }
    }
}

/// The indexes of a pool, for work on all of them.
struct Work<'r> {
    /// What this process owns of them.
    here: Vec<Worked<'r>>,
    /// The error that names an owner of other parts, if there is one.
    elsewhere: Option<Error>,
}

/// A wait for other processes that lasts as long as something changes within each `patience`.
struct Waiting<S> {
    patience: Duration,
    seen: Option<S>,
    since: Instant,
    has_seen_changes: bool,
}

impl<S: PartialEq> Waiting<S> {
    fn new(patience: Duration) -> Self {
        Self { patience, seen: None, since: Instant::now(), has_seen_changes: false }
    }

    /// Pauses. Returns `false` if `state` has been the same for too long.
    fn goes_on(&mut self, state: S) -> bool {
        if self.seen.as_ref() != Some(&state) {
            self.has_seen_changes = self.seen.is_some();
            (self.seen, self.since) = (Some(state), Instant::now());
        }
        thread::sleep(PAUSE);
        self.since.elapsed() < self.patience
    }
}

/// Closes the indexes that were opened for one piece of work.
fn release(shared: &Shared, ep: &AnyEndpoint, worked: Vec<Worked<'_>>) -> Result<()> {
    let mut done = Ok(());
    for index in worked {
        let Worked::Passing(servers) = index else { continue };
        let released = servers.flush(ep).and_then(|()| {
            let record = shared.record(ep, &servers.record.name)?;
            let is_mine = |&partition: &usize| record.owners[partition] == shared.pool.slot();
            let mine: Vec<usize> = (0..record.owners.len()).filter(is_mine).collect();
            block_on(ep, shared.pool.release_partitions(ep, &record.name, &mine))?;
            Ok(())
        });
        if let Err(error) = released {
            // Some changes may not have been written.
            done = shared.losing_on_error(|| done.and(Err(error)));
        }
    }
    done
}
