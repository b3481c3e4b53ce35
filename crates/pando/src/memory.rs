//! The memory servers of a pool: how full they are, more of them, and fewer.
//!
//! Both happen while operations run. What a memory server that joins takes over are parts of indexes that grow, or of all of
//! them when they are [spread](Cluster::spread_indexes). One that is drained takes nothing new, gives up what it has, and then
//! stays as an empty place in the pool. The first one cannot be drained: it has the pool's tables and the roots.

use crate::endpoint::AnyEndpoint;
use pando_dex::Tree;
use pando_dex::layout::{Layout, header};
use pando_fabric::{Endpoint, FabricError, MemoryServerId};
use pando_pool::lock::unlock_word;
use pando_pool::{IndexRecord, Placement, PoolError, ServerState, ServerUsage};
use pando_rt::block_on;

use crate::cluster::{Cluster, Shared, lock};
use crate::error::{Error, Result};
use crate::index::IndexData;
use crate::options::OpenOptions;
use crate::servers::{self, Servers, Written, with_ctx, with_trees};

/// How far [`Cluster::drain_memory_server`] is, and what it did in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainProgress {
    /// Nodes moved to other memory servers.
    pub nodes: u64,
    /// Long values put elsewhere.
    pub values: u64,
    /// Blocks that were there when it began; 0 until that is known. Of memory that other processes lease it has none.
    pub blocks: u64,
}

/// An index that is worked on: open in this process anyway, or only for this.
enum Worked<'r> {
    Open(&'r IndexData),
    Passing(Box<Servers>),
}

impl Worked<'_> {
    fn with<T>(&self, work: impl FnOnce(&Servers) -> Result<T>) -> Result<T> {
        match self {
            Self::Open(data) => {
                // Keys that changed hands meanwhile might be left out.
                let _still = data.begin_move()?;
                work(&*data.servers()?)
            }
            Self::Passing(servers) => work(servers),
        }
    }
}

impl Cluster {
    /// `host:port` of each memory server that this process reaches, in the order of their numbers, whether it was named or found;
    /// none for a pool of files or in memory. One that joined since the pool was opened is not there.
    pub fn memory_server_addresses(&self) -> Vec<String> {
        self.shared.fabric.addresses()
    }

    /// The memory servers: their states, and how full they are.
    ///
    /// # Errors
    /// Those of the fabric.
    pub fn memory_servers(&self) -> Result<Vec<ServerUsage>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| Ok(block_on(ep, self.shared.pool.usage(ep))?))
    }

    /// Takes one more memory server of `bytes` into use; its number. Other processes learn of it by themselves. A pool of files
    /// must be a directory.
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
    /// [`Error::Fabric`] for a pool of one plain file, an impossible size, or a lack of space; [`Error::Pool`] for a size that
    /// is too small.
    pub fn add_memory_server(&self, bytes: u64) -> Result<MemoryServerId> {
        let shared = &self.shared;
        shared.writable()?;
        shared.with_endpoint(|ep| {
            // Others may be adding one too, or be about to attach.
            let _lock = shared.fabric.lock_exclusive(shared.config.patience())?;
            block_on(ep, shared.pool.learn(ep))?;
            // What is left of an addition that failed is used.
            if shared.fabric.regions().len() <= shared.pool.servers() {
                shared.pool.check_joining(bytes, None)?;
                shared.fabric.add_server(bytes, shared.config.huge_pages)?;
            }
            let added = block_on(ep, shared.pool.add_server(ep, None))?;
            // It has joined, whether others find it or have to be told.
            let _ = block_on(ep, shared.pool.set_addresses(ep, &shared.fabric.addresses()));
            Ok(added)
        })
    }

    /// Takes a memory server into use again that is draining or drained. No index may be open, and no other process
    /// attached.
    ///
    /// # Errors
    /// [`Error::Pool`] if there is no such server; [`Error::IndexesOpen`]; [`Error::NotAlone`].
    pub fn readmit_memory_server(&self, server: MemoryServerId) -> Result<()> {
        const WHAT: &str = "taking a memory server into use again";
        let shared = &self.shared;
        shared.writable()?;
        let registry = lock(&shared.registry);
        if let Some(name) = registry.keys().next() {
            return Err(Error::IndexesOpen { what: WHAT, index: name.clone() });
        }
        let _lock = shared.fabric.lock_exclusive(shared.config.patience())?;
        shared.with_endpoint(|ep| {
            shared.check_alone(ep, WHAT)?;
            Ok(block_on(ep, shared.pool.readmit_server(ep, server))?)
        })
    }

    /// Moves all that is on a memory server to the others, while sessions go on, and takes it out of use; `progress` is told now
    /// and then how far that is. This process must own all partitions of all indexes or be able to. Indexes can neither be
    /// opened nor made meanwhile.
    ///
    /// If it fails, the server takes nothing new and keeps what could not be moved; it may be called again, or the server
    /// [taken into use](Cluster::readmit_memory_server) again.
    ///
    /// # Errors
    /// [`Error::Pool`] for the first memory server, one that is not there, and one that is not empty in the end, since the others
    /// are full or other processes have leases there; [`Error::PartitionOwned`] with the process that owns a partition;
    /// [`Error::SessionsOpen`] for an index whose root is there, which is at rest when that moves.
    pub fn drain_memory_server(
        &self,
        server: MemoryServerId,
        mut progress: impl FnMut(DrainProgress),
    ) -> Result<DrainProgress> {
        let shared = &self.shared;
        shared.writable()?;
        let registry = lock(&shared.registry);
        let drained = shared.with_endpoint(|ep| {
            if server.0 == 0 {
                return Err(PoolError::HomeServer.into());
            }
            block_on(ep, shared.pool.learn(ep))?;
            let known = || shared.pool.server_state(server).map_err(Error::from);
            if known()? == ServerState::Drained {
                return Ok(DrainProgress::default());
            }
            let worked = self.all_indexes(ep, &registry, |record| record.root.server() == server)?;
            let drained = self.drain_worked(ep, &worked, server, &mut progress);
            let released = release(shared, ep, worked);
            let drained = drained?;
            released?;
            block_on(ep, shared.pool.finish_drain(ep, server))?;
            Ok(drained)
        });
        drop(registry);
        drained
    }

    fn drain_worked(
        &self,
        ep: &AnyEndpoint,
        worked: &[Worked<'_>],
        server: MemoryServerId,
        progress: &mut impl FnMut(DrainProgress),
    ) -> Result<DrainProgress> {
        let pool = &self.shared.pool;
        let usage = block_on(ep, pool.usage(ep))?;
        let blocks = usage.iter().find(|of| of.server == server).map_or(0, |of| of.blocks_allocated);
        block_on(ep, pool.drain_server(ep, server))?;
        let mut done = DrainProgress { blocks, ..DrainProgress::default() };
        for index in worked {
            index.with(|servers| {
                with_trees!(servers, |trees| {
                    for tree in trees.iter().flatten() {
                        drain_tree(ep, tree, server, &mut done, progress)?;
                    }
                });
                // What was moved is written before the server that had it counts as empty.
                servers.flush(ep)
            })?;
        }
        Ok(done)
    }

    /// Moves parts of indexes from memory servers that hold more than others to those, until they are even enough; the nodes
    /// that were moved. Indexes that grow do that by themselves. Sessions go on meanwhile.
    ///
    /// # Errors
    /// [`Error::PartitionOwned`] with the process that owns a partition of an index; those of operations. What was moved
    /// stays moved.
    pub fn spread_indexes(&self, mut progress: impl FnMut(u64)) -> Result<u64> {
        let shared = &self.shared;
        shared.writable()?;
        let registry = lock(&shared.registry);
        shared.with_endpoint(|ep| {
            let worked = self.all_indexes(ep, &registry, |_| false)?;
            let mut moved = 0;
            let spread = worked.iter().try_for_each(|index| {
                index.with(|servers| {
                    with_trees!(servers, |trees| {
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

    /// All indexes of the pool with the compute servers that this process runs for them; those that it does not have open
    /// are opened whole. The roots of those for which `moves_root` says so are moved first.
    fn all_indexes<'r>(
        &self,
        ep: &AnyEndpoint,
        registry: &'r std::collections::BTreeMap<String, std::sync::Arc<IndexData>>,
        moves_root: impl Fn(&IndexRecord) -> bool,
    ) -> Result<Vec<Worked<'r>>> {
        let shared = &self.shared;
        let mut worked = Vec::new();
        let opened = shared.names(ep)?.into_iter().try_for_each(|name| {
            let index = match registry.get(&name) {
                Some(data) => {
                    if moves_root(&data.servers()?.record) {
                        move_open_root(shared, ep, data)?;
                    }
                    Worked::Open(data)
                }
                None => {
                    let mut servers = servers::open(shared, ep, &name, &OpenOptions::default(), true)?;
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
    progress: &mut impl FnMut(DrainProgress),
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
            // Something that was changed may not have been written.
            done = shared.losing_on_error(|| done.and(Err(error)));
        }
    }
    done
}

/// Moves the root of an index that is open, but at rest.
fn move_open_root(shared: &Shared, ep: &AnyEndpoint, data: &IndexData) -> Result<()> {
    const WHAT: &str = "moving its root to another memory server";
    let _alone = data.exclusive(WHAT)?;
    let servers = data.servers()?;
    servers.check_runs_all(WHAT)?;
    match move_root(shared, ep, &servers) {
        Ok(moved) => data.replace(moved),
        Err(Unmoved::AsBefore(error)) => return Err(error),
        // The old ones must not write to the old root any more.
        Err(Unmoved::Unsettled(error)) => {
            data.unsettle(WHAT, &error);
            return Err(error.perhaps(WHAT));
        }
    }
    Ok(())
}

/// Why a root was not moved, or cannot be used where it is.
enum Unmoved {
    AsBefore(Error),
    /// It may be at either place.
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

/// Moves the root of an index, all of which this process has and nobody uses; its compute servers with the new one.
fn move_root(shared: &Shared, ep: &AnyEndpoint, servers: &Servers) -> Result<Servers, Unmoved> {
    servers.flush(ep)?;
    let node_size = u64::from(servers.record.node_size);
    let mut record = shared.record(ep, &servers.record.name)?;
    let old = record.root;
    let home = Placement::Prefer(MemoryServerId(0));
    let new = match block_on(ep, shared.pool.alloc(ep, home, node_size))? {
        // Anywhere but there.
        full if full.server() == old.server() => {
            block_on(ep, shared.pool.free(ep, full, node_size))?;
            return Err(PoolError::PoolFull { server: MemoryServerId(0), size: node_size }.into());
        }
        new => new,
    };
    let moved = block_on(ep, async {
        let page = ep.read(old, ep.buffer(node_size as usize)).await?;
        // Versions go on from where they are.
        header::set(page.words(), header::LOCK, unlock_word(header::get(page.words(), header::LOCK)));
        header::set(page.words(), header::ADDR, new.raw());
        ep.recycle(ep.write(new, page).await?);
        Ok::<_, FabricError>(())
    });
    record.root = new;
    let written = match moved {
        Ok(()) => servers::write_root(shared, ep, &record),
        Err(error) => Written::No(error.into()),
    };
    let record = match written {
        Written::Yes(record) => record,
        Written::No(error) => {
            // Nothing leads there. If it cannot be freed now it is left to an audit.
            let _ = block_on(ep, shared.pool.free(ep, new, node_size));
            return Err(Unmoved::AsBefore(error));
        }
        Written::Perhaps(error) => return Err(Unmoved::Unsettled(error)),
    };
    let reopened = servers::reopen_trees(shared, ep, record, servers).map_err(Unmoved::Unsettled)?;
    let freed = block_on(ep, shared.pool.free(ep, old, node_size));
    freed.map_err(|error| Unmoved::Unsettled(error.into()))?;
    Ok(reopened)
}
