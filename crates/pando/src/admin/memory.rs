//! The memory servers of a pool: usage, adding and draining servers.
//!
//! Servers are added and drained while operations run. A new server receives parts of indexes as they grow,
//! or of all indexes when they are [spread](Cluster::spread_indexes). A draining server takes no new blocks
//! and its blocks move to others; drained, it remains in the pool as an empty entry. The first server cannot
//! be drained: it has the pool's tables and the roots.

use pando_dex::Tree;
use pando_dex::layout::{Layout, header};
use pando_elf_remote::{RemoteError, is_elf};
use pando_fabric::{Endpoint, FabricError, MemoryServerId};
use pando_pool::lock::unlock_word;
use pando_pool::{IndexRecord, Placement, PoolError, ServerState, ServerUsage};
use pando_rt::block_on;

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::index::OpenIndexes;
use crate::layout::with_layout;
use crate::local::create::{Written, write_root};
use crate::local::open::{open, reopen_trees};
use crate::local::servers::with_ctx;
use crate::local::{IndexData, Servers};
use crate::options::OpenOptions;
use crate::place::AnyEndpoint;
use crate::shared::{Shared, lock};

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
    /// missing.
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
    /// themselves. A pool of files must be a directory.
    ///
    /// ```
    /// use pando::{Cluster, Config};
    ///
    /// let cluster = Cluster::open(Config::embedded().memory(16 << 20))?;
    /// let added = cluster.add_memory_server(16 << 20)?;
    /// assert_eq!(cluster.memory_servers()?.len(), 2);
    /// cluster.drain_memory_server(added, |_| ())?;
    /// # Ok::<(), pando::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Fabric`] for a pool of one plain file, an impossible size, or a lack of space;
    /// [`Error::Pool`] for a size that is too small.
    pub fn add_memory_server(&self, bytes: u64) -> Result<MemoryServerId> {
        let shared = &self.shared;
        shared.writable()?;
        shared.fabric.check_no_copies("adding a memory server")?;
        shared.with_endpoint(|ep| {
            // Excludes other processes that add a server or attach.
            let _lock = shared.fabric.lock_exclusive(shared.config.patience())?;
            block_on(ep, shared.pool.learn(ep))?;
            // A region left by an addition that failed is reused.
            if shared.fabric.regions().len() <= shared.pool.servers() {
                shared.pool.check_joining(bytes, None)?;
                shared.fabric.add_server(bytes, shared.config.huge_pages)?;
            }
            let added = block_on(ep, shared.pool.add_server(ep, None))?;
            // The server has joined, even if its address is not stored: other processes then need it to be
            // named.
            let _ = block_on(ep, shared.pool.set_addresses(ep, &shared.fabric.addresses()));
            Ok(added)
        })
    }

    /// Takes a draining or drained memory server back into use. No index may be open, and no other process
    /// attached.
    ///
    /// # Errors
    /// [`Error::Pool`] if there is no such server; [`Error::IndexesOpen`]; [`Error::NotAlone`].
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
            Ok(block_on(ep, shared.pool.readmit_server(ep, server))?)
        })
    }

    /// Moves everything on a memory server to the others and takes the server out of use, while sessions
    /// continue. Reports to `progress` from time to time. This process must own all partitions of all
    /// indexes, or be able to claim them. No index can be opened or created meanwhile.
    ///
    /// Parts of Elf tables are written again on other servers.
    ///
    /// After a failure the server takes no new blocks and keeps what was not moved. The call may be repeated,
    /// or the server [taken back into use](Cluster::readmit_memory_server).
    ///
    /// # Errors
    /// [`Error::Pool`] for the first memory server, for one that does not exist, and for one that is not
    /// empty in the end because the others are full or because other processes have leases on it;
    /// [`Error::PartitionOwned`] with the process that owns a partition; [`Error::SessionsOpen`] for an index
    /// whose root is on the server, since a root moves only at rest.
    pub fn drain_memory_server(
        &self,
        server: MemoryServerId,
        mut progress: impl FnMut(DrainProgress),
    ) -> Result<DrainProgress> {
        self.drain_with(server, &mut progress)
    }

    /// Compiled in this crate, unlike what is generic.
    fn drain_with(
        &self,
        server: MemoryServerId,
        progress: &mut dyn FnMut(DrainProgress),
    ) -> Result<DrainProgress> {
        let shared = &self.shared;
        shared.writable()?;
        shared.config.check_unlogged("moving nodes between memory servers")?;
        shared.fabric.check_no_copies("draining a memory server")?;
        let registry = lock(&self.registry.open);
        shared.with_endpoint(|ep| {
            if server.0 == 0 {
                return Err(PoolError::HomeServer.into());
            }
            block_on(ep, shared.pool.learn(ep))?;
            let known = || shared.pool.server_state(server).map_err(Error::from);
            if known()? == ServerState::Drained {
                return Ok(DrainProgress::default());
            }
            let worked = self.all_indexes(ep, &registry, |record| record.root.server() == server)?;
            let drained = self.drain_worked(ep, &worked, server, progress);
            let released = release(shared, ep, worked);
            let drained = drained?;
            released?;
            self.drain_tables(ep, server)?;
            block_on(ep, shared.pool.finish_drain(ep, server))?;
            Ok(drained)
        })
    }

    fn drain_worked(
        &self,
        ep: &AnyEndpoint,
        worked: &[Worked<'_>],
        server: MemoryServerId,
        progress: &mut dyn FnMut(DrainProgress),
    ) -> Result<DrainProgress> {
        let pool = &self.shared.pool;
        let usage = block_on(ep, pool.usage(ep))?;
        let blocks = usage.iter().find(|of| of.server == server).map_or(0, |of| of.blocks_allocated);
        block_on(ep, pool.drain_server(ep, server))?;
        let mut done = DrainProgress { blocks, ..DrainProgress::default() };
        for index in worked {
            index.with(|servers| {
                with_layout!(&servers.trees, |trees| {
                    for tree in trees.iter().flatten() {
                        drain_tree(ep, tree, server, &mut done, progress)?;
                    }
                });
                // Moved nodes must be written before the server counts as empty.
                servers.flush(ep)
            })?;
        }
        Ok(done)
    }

    /// Writes the parts of Elf tables that are on a draining server again, elsewhere, and frees them there.
    fn drain_tables(&self, ep: &AnyEndpoint, server: MemoryServerId) -> Result<()> {
        let (shared, tables) = (&self.shared, &self.registry.tables);
        let records = block_on(ep, shared.pool.list_indexes(ep))?;
        for IndexRecord { name, .. } in records.into_iter().filter(is_elf) {
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
    /// balanced, while sessions continue. Reports to `progress` and returns the number of nodes moved.
    /// Indexes that grow do the same by themselves.
    ///
    /// # Errors
    /// [`Error::PartitionOwned`] with the process that owns a partition of an index; errors of operations.
    /// Nodes that were moved stay where they are then.
    pub fn spread_indexes(&self, mut progress: impl FnMut(u64)) -> Result<u64> {
        self.spread_with(&mut progress)
    }

    /// Compiled in this crate, unlike what is generic.
    fn spread_with(&self, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        let shared = &self.shared;
        shared.writable()?;
        shared.config.check_unlogged("moving nodes between memory servers")?;
        let registry = lock(&self.registry.open);
        shared.with_endpoint(|ep| {
            let worked = self.all_indexes(ep, &registry, |_| false)?;
            let mut moved = 0;
            let spread = worked.iter().try_for_each(|index| {
                index.with(|servers| {
                    with_layout!(&servers.trees, |trees| {
                        for tree in trees.iter().flatten() {
                            let before = moved;
                            moved += with_ctx(ep, tree, |ctx| {
                                Ok(block_on(
                                    ep,
                                    pando_dex::spread_all(tree, ctx, |nodes| progress(before + nodes)),
                                )?)
                            })?;
                        }
                    });
                    Ok(())
                })
            });
            let released = release(shared, ep, worked);
            spread.and(released).map(|()| moved)
        })
    }

    /// All indexes of the pool, with the compute servers that this process runs for them. Indexes that it
    /// does not have open are opened as a whole. Roots that `moves_root` selects are moved first.
    fn all_indexes<'r>(
        &self,
        ep: &AnyEndpoint,
        registry: &'r OpenIndexes,
        moves_root: impl Fn(&IndexRecord) -> bool,
    ) -> Result<Vec<Worked<'r>>> {
        let shared = &self.shared;
        let mut worked = Vec::new();
        let mut records = block_on(ep, shared.pool.list_indexes(ep))?;
        records.retain(|record| !is_elf(record));
        records.sort_by(|a, b| a.name.cmp(&b.name));
        let opened = records.into_iter().map(|record| record.name).try_for_each(|name| {
            let index = match registry.get(&name) {
                Some(data) => {
                    if moves_root(&data.servers()?.record) {
                        move_open_root(shared, ep, data)?;
                    }
                    Worked::Open(data)
                }
                None => {
                    let mut servers = open(shared, ep, &name, &OpenOptions::default(), true)?;
                    if moves_root(&servers.record) {
                        servers = move_root(shared, ep, &servers).map_err(|unmoved| match unmoved {
                            Unmoved::AsBefore(error) => error,
                            Unmoved::Unsettled(error) => error.perhaps("moving its root"),
                        })?;
                    }
                    Worked::Passing(Box::new(servers))
                }
            };
            worked.push(index);
            Ok(())
        });
        match opened {
            Ok(()) => Ok(worked),
            Err(error) => {
                // The first error is the one to report.
                let _ = release(shared, ep, worked);
                Err(error)
            }
        }
    }
}

fn drain_tree<L: Layout>(
    ep: &AnyEndpoint,
    tree: &Tree<L>,
    server: MemoryServerId,
    done: &mut DrainProgress,
    progress: &mut dyn FnMut(DrainProgress),
) -> Result<()> {
    let before = *done;
    let mut add = |drained: pando_dex::Drained| {
        let (nodes, values) = (before.nodes + drained.nodes, before.values + drained.values);
        *done = DrainProgress { nodes, values, ..before };
        progress(*done);
    };
    let drained = with_ctx(ep, tree, |ctx| Ok(block_on(ep, pando_dex::drain(tree, ctx, server, &mut add))?))?;
    add(drained);
    Ok(())
}

/// Closes the indexes that were opened for one piece of work.
fn release(shared: &Shared, ep: &AnyEndpoint, worked: Vec<Worked<'_>>) -> Result<()> {
    let mut done = Ok(());
    for index in worked {
        let Worked::Passing(servers) = index else { continue };
        let released = servers.flush(ep).and_then(|()| {
            let all: Vec<usize> = (0..=servers.boundaries().len()).collect();
            block_on(ep, shared.pool.release_partitions(ep, &servers.record.name, &all))?;
            Ok(())
        });
        if let Err(error) = released {
            // Some changes may not have been written.
            done = shared.losing_on_error(|| done.and(Err(error)));
        }
    }
    done
}

/// Moves the root of an index that is open but at rest.
fn move_open_root(shared: &Shared, ep: &AnyEndpoint, data: &IndexData) -> Result<()> {
    const WHAT: &str = "moving its root to another memory server";
    let _alone = data.exclusive(WHAT)?;
    let servers = data.servers()?;
    servers.check_runs_all(WHAT)?;
    match move_root(shared, ep, &servers) {
        Ok(moved) => data.replace(moved),
        Err(Unmoved::AsBefore(error)) => return Err(error),
        // The old compute servers must not write to the old root any more.
        Err(Unmoved::Unsettled(error)) => {
            data.unsettle(WHAT, &error);
            return Err(error.perhaps(WHAT));
        }
    }
    Ok(())
}

/// Failure to move a root.
enum Unmoved {
    AsBefore(Error),
    /// The root may be at either address.
    Unsettled(Error),
}

impl From<Error> for Unmoved {
    fn from(error: Error) -> Self {
        Self::AsBefore(error)
    }
}

impl From<PoolError> for Unmoved {
    fn from(error: PoolError) -> Self {
        Self::AsBefore(error.into())
    }
}

/// Moves the root of an index that this process owns entirely and that is at rest; returns its compute
/// servers with the new root.
fn move_root(shared: &Shared, ep: &AnyEndpoint, servers: &Servers) -> Result<Servers, Unmoved> {
    servers.flush(ep)?;
    let node_size = u64::from(servers.record.node_size);
    let mut record = shared.record(ep, &servers.record.name)?;
    let old = record.root;
    // 1. Allocate a block on another server, preferably the first one.
    let home = Placement::Prefer(MemoryServerId(0));
    let new = match block_on(ep, shared.pool.alloc(ep, home, node_size))? {
        // The block must not be on the server of the old root.
        full if full.server() == old.server() => {
            block_on(ep, shared.pool.free(ep, full, node_size))?;
            return Err(PoolError::PoolFull { server: MemoryServerId(0), size: node_size }.into());
        }
        new => new,
    };
    // 2. Copy the root, with its new address and an unlocked lock word.
    let moved = block_on(ep, async {
        let page = ep.read(old, ep.buffer(node_size as usize)).await?;
        // The version continues from the old root's.
        header::set(page.words(), header::LOCK, unlock_word(header::get(page.words(), header::LOCK)));
        header::set(page.words(), header::ADDR, new.raw());
        ep.recycle(ep.write(new, page).await?);
        Ok::<_, FabricError>(())
    });
    // 3. Enter the new root into the catalog.
    record.root = new;
    let written = match moved {
        Ok(()) => write_root(shared, ep, &record),
        Err(error) => Written::No(error.into()),
    };
    let record = match written {
        Written::Yes(record) => record,
        Written::No(error) => {
            // No record refers to the block. If it cannot be freed now, an audit finds it.
            let _ = block_on(ep, shared.pool.free(ep, new, node_size));
            return Err(Unmoved::AsBefore(error));
        }
        Written::Perhaps(error) => return Err(Unmoved::Unsettled(error)),
    };
    // 4. Open the trees at the new root, and free the old one.
    let reopened = reopen_trees(shared, ep, record, servers).map_err(Unmoved::Unsettled)?;
    let freed = block_on(ep, shared.pool.free(ep, old, node_size));
    freed.map_err(|error| Unmoved::Unsettled(error.into()))?;
    Ok(reopened)
}
