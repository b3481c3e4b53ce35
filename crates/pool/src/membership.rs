//! Memory servers that join or leave a pool in use.
//!
//! Memory server 0 stores the membership (`states.rs`): the number of servers that joined since the pool was formatted, two
//! bits of state per server, and an epoch that every change raises last. All changes are made under the
//! catalog lock.
//!
//! ```text
//!     add_server            drain_server               finish_drain
//!  ──────────────▶ Active ──────────────▶ Draining ───────────────▶ Drained
//!                    ▲                                                 │
//!                    └───────────────── readmit_server ────────────────┘
//! ```
//! - A process learns of a change when it next leases a chunk, when it meets an unknown server, or by
//!   [`Pool::learn`]. Until then it may allocate in chunks that it already leases.
//! - A process that leases a chunk reads the epoch after the swap that leases it. So once a server is
//!   draining, a new lease there is given back without an allocation; earlier leases are in the descriptors,
//!   which `finish_drain` reads.
//! - On a draining server no block is allocated, so freed blocks keep their bytes.
//! - A drained server is used no more, and need not be there. A process that attaches later asks it for nothing but
//!   its superblock, if it answers. It is formatted anew when it is readmitted.

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, RegionInfo};

use crate::defect::Defect;
use crate::error::{PoolError, Result};
use crate::io::{until_answered, write_word_surely};
use crate::layout::{
    Descriptor, EPOCH_AT, Geometry, JOINED_AT, LARGEST_AT, STATES_AT, STATES_MAX, Superblock,
};
use crate::pool::{
    Inner, Pool, Server, format_region, is_of_another_pool, no_space, read_superblock_of, superblock_beside,
};
use crate::process::AttachSlot;
use crate::states::{Membership, ServerState, state_word};

/// Number of memory servers of the pool whose memory server 0 is reached as that of `home`, and those of them that are drained and
/// need not be there.
///
/// # Errors
/// Errors of verbs; [`PoolError::Corrupt`], and errors of a superblock that is not that of a pool.
pub async fn drained_servers<E: Endpoint>(ep: &E, home: RegionInfo) -> Result<(usize, Vec<usize>)> {
    let superblock = read_superblock_of(ep, home, MemoryServerId(0)).await?;
    let membership = Membership::read(ep, home.server, superblock.servers).await?;
    let mut drained = Vec::new();
    for number in 0..membership.servers {
        if membership.largest_if_drained(number)?.is_some() {
            drained.push(number);
        }
    }
    Ok((membership.servers, drained))
}

impl Server {
    pub fn state(&self) -> ServerState {
        ServerState::from_bits(u64::from(self.state.load(Acquire))).expect("only states are stored")
    }

    /// Whether this server takes new blocks.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.state.load(Relaxed) == ServerState::Active as u8
    }

    #[inline]
    pub fn is_drained(&self) -> bool {
        self.state.load(Relaxed) == ServerState::Drained as u8
    }

    pub fn check_active(&self) -> Result<()> {
        if self.is_active() { Ok(()) } else { Err(PoolError::Draining { server: self.id() }) }
    }
}

impl Pool {
    /// State of `server`, as far as this process knows.
    ///
    /// # Errors
    /// [`PoolError::UnknownServer`].
    pub fn server_state(&self, server: MemoryServerId) -> Result<ServerState> {
        Ok(self.server(server)?.state())
    }

    /// Whether `server` takes new blocks, as far as this process knows.
    #[inline]
    pub fn is_active(&self, server: MemoryServerId) -> bool {
        self.server(server).is_ok_and(Server::is_active)
    }

    /// Whether `server` is drained, and need not be there, as far as this process knows.
    #[inline]
    pub fn has_drained(&self, server: MemoryServerId) -> bool {
        self.server(server).is_ok_and(Server::is_drained)
    }

    /// Memory servers that hold blocks or may get some, as far as this process knows.
    pub(crate) fn servers_in_use(&self) -> impl Iterator<Item = &Server> {
        self.inner.servers.iter().filter(|server| !server.is_drained())
    }

    /// Number of drained servers, as far as this process knows.
    pub fn drained_servers(&self) -> usize {
        self.inner.servers.iter().filter(|server| server.is_drained()).count()
    }

    /// Memory servers that take new blocks, as far as this process knows.
    pub fn active_servers(&self) -> Vec<MemoryServerId> {
        self.inner.servers.iter().filter(|server| server.is_active()).map(Server::id).collect()
    }

    /// Updates this process's view of the memory servers; returns whether any joined or changed its state.
    ///
    /// # Errors
    /// Errors of verbs, also for a server that joined but cannot be reached or holds no region of this pool.
    pub async fn learn<E: Endpoint>(&self, ep: &E) -> Result<bool> {
        let known = self.inner.epoch.load(Acquire);
        if ep.read_word(at(EPOCH_AT)).await? == known {
            return Ok(false);
        }
        // One worker at a time, so that none stores states older than the epoch.
        let _learning = self.begin_learning(ep).await?;
        self.learn_anew(ep).await?;
        Ok(self.inner.epoch.load(Acquire) != known)
    }

    async fn begin_learning<E: Endpoint>(&self, ep: &E) -> Result<Learning<'_>> {
        let deadline = self.deadline(ep);
        while self.inner.learning.swap(true, Acquire) {
            if ep.now() >= deadline {
                return Err(PoolError::WaitedTooLong {
                    what: "another worker to learn of the memory servers",
                });
            }
            ep.yield_now().await;
        }
        Ok(Learning(&self.inner.learning))
    }

    async fn learn_anew<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let home = MemoryServerId(0);
        let membership = Membership::read(ep, home, self.inner.formatted_servers).await?;
        for number in 0..membership.servers {
            let (state, server) = (membership.state(number)?, MemoryServerId(number as u16));
            // Before a server is asked for whose address only an earlier one knows.
            ep.set_in_use(server, state != ServerState::Drained);
            if number == self.servers() {
                let learnt = self.server_that_joined(ep, number, &membership).await?;
                learnt.state.store(state as u8, Relaxed);
                let known = self.inner.servers.push(learnt);
                known.map_err(|server| PoolError::NoRegion { server: server.id() })?;
            }
            self.inner.servers[number].state.store(state as u8, Release);
        }
        self.inner.epoch.store(membership.epoch, Release);
        Ok(())
    }

    /// A server that joined, with its chunks.
    async fn server_that_joined<E: Endpoint>(
        &self,
        ep: &E,
        number: usize,
        membership: &Membership,
    ) -> Result<Server> {
        if let Some(largest) = membership.largest_if_drained(number)? {
            return Ok(Server::new(Geometry::absent(MemoryServerId(number as u16), largest)));
        }
        let region = region_of(ep, number).await?;
        let server = Server::new(superblock_beside(ep, region, &self.first_superblock()).await?.geometry);
        self.look(ep, &server).await?;
        Ok(server)
    }

    fn first_superblock(&self) -> Superblock {
        let Inner { formatted_servers, pool_id, max_attached, .. } = *self.inner;
        let geometry = self.inner.servers[0].geometry;
        Superblock { geometry, servers: formatted_servers, pool_id, max_attached }
    }

    /// Formats the next region of `ep` that is not part of the pool, and adds it; returns its number. Its
    /// chunks have `chunk_size` bytes, by default the size of those of server 0. An error leaves the pool
    /// unchanged and the region to the next attempt.
    ///
    /// # Errors
    /// [`PoolError::NoRegion`] if the fabric has no further region (also if an unannounced attempt joined
    /// it); [`PoolError::PoolExists`] if it holds another pool; [`PoolError::RegionTooSmall`],
    /// [`PoolError::InvalidOptions`], [`PoolError::NoSpaceForTables`]; errors of the catalog lock.
    pub async fn add_server<E: Endpoint>(&self, ep: &E, chunk_size: Option<u64>) -> Result<MemoryServerId> {
        self.add_server_at(ep, chunk_size, &[]).await
    }

    /// [`Pool::add_server`] where memory servers have addresses: those of all of them, by number, and last that of the one to
    /// add. It is stored before the server is announced, so that processes find the server when they learn of it.
    ///
    /// # Errors
    /// As [`Pool::add_server`].
    pub async fn add_server_at<E: Endpoint>(
        &self,
        ep: &E,
        chunk_size: Option<u64>,
        addresses: &[String],
    ) -> Result<MemoryServerId> {
        self.change_catalog(ep, async || {
            if let Some(joined) = self.unannounced(ep).await? {
                return Ok(joined);
            }
            let number = self.servers();
            let region = region_of(ep, number).await?;
            let superblock = self.plan_joining(region, chunk_size)?;
            // A region left by a failed attempt belongs to this pool.
            if is_of_another_pool(ep, region, self.id()).await? {
                return Err(PoolError::PoolExists);
            }
            format_region(ep, &superblock).await.map_err(|error| no_space(error, region.server))?;
            self.set_addresses_of_joining(ep, number, addresses).await?;
            self.set_state(ep, number, ServerState::Active).await?;
            let joined = (number + 1 - self.inner.formatted_servers) as u64;
            self.inner.joining.store(number as u32 + 1, Relaxed);
            until_answered(ep, self.deadline(ep), async || Ok(ep.write_word(at(JOINED_AT), joined).await?))
                .await?;
            self.publish_membership(ep).await?;
            self.inner.joining.store(0, Relaxed);
            Ok(region.server)
        })
        .await
    }

    /// The server that joined in an earlier, failed attempt of this process. Other processes may have learned
    /// of it and use it, as they may of a server that another process did not announce. The caller holds the
    /// catalog lock; afterwards this process knows all servers.
    async fn unannounced<E: Endpoint>(&self, ep: &E) -> Result<Option<MemoryServerId>> {
        self.learn(ep).await?;
        if defect(Defect::FormatJoined) {
            return Ok(None);
        }
        let known = self.servers();
        let learning = self.begin_learning(ep).await?;
        self.learn_anew(ep).await?;
        drop(learning);
        let servers = self.servers();
        if servers > known {
            self.publish_membership(ep).await?;
        }
        let tried = self.inner.joining.swap(0, Relaxed) as usize;
        Ok((1..=servers).contains(&tried).then(|| MemoryServerId(tried as u16 - 1)))
    }

    /// Checks whether a region of `bytes` could join, before it exists.
    ///
    /// # Errors
    /// Errors of [`Pool::add_server`] that concern its size.
    pub fn check_joining(&self, bytes: u64, chunk_size: Option<u64>) -> Result<()> {
        let server = MemoryServerId(self.servers() as u16);
        self.plan_joining(RegionInfo { server, len: bytes }, chunk_size).map(drop)
    }

    fn plan_joining(&self, region: RegionInfo, chunk_size: Option<u64>) -> Result<Superblock> {
        let chunk_size = chunk_size.unwrap_or(self.inner.servers[0].geometry.chunk_size);
        let geometry = Geometry::plan(region, Some(chunk_size), self.inner.max_attached)?;
        // Long values are cut into pieces of the largest block that every server has.
        if geometry.max_block() < self.max_block() {
            let (largest, needed) = (geometry.max_block(), self.max_block());
            let reason = format!(
                "chunks that hold blocks of {largest} bytes are too small for a pool with blocks of {needed}"
            );
            return Err(PoolError::InvalidOptions { reason });
        }
        let servers = usize::from(region.server.0) + 1;
        Ok(Superblock { geometry, servers, pool_id: self.id(), max_attached: self.inner.max_attached })
    }

    /// Stops all allocation on `server`. Its blocks stay until they are moved, and the state outlives the
    /// processes. Does nothing if the server is draining or drained already.
    ///
    /// # Errors
    /// [`PoolError::HomeServer`], [`PoolError::UnknownServer`]; errors of the catalog lock.
    pub async fn drain_server<E: Endpoint>(&self, ep: &E, server: MemoryServerId) -> Result<()> {
        if server.0 == 0 {
            return Err(PoolError::HomeServer);
        }
        let number = usize::from(server.0);
        self.change_catalog(ep, async || {
            self.learn(ep).await?;
            // A failed attempt may have stored the state without announcing it.
            if self.server(server)?.state() == ServerState::Drained {
                return Ok(());
            }
            self.set_state(ep, number, ServerState::Draining).await?;
            self.publish_membership(ep).await
        })
        .await?;
        self.leave_inactive(ep).await
    }

    /// Declares `server` drained if nothing is allocated or leased there. Blocks of the catalog are moved
    /// away first.
    ///
    /// # Errors
    /// [`PoolError::NotDraining`]; [`PoolError::NotEmpty`] with the remaining blocks, in which case it stays
    /// draining.
    pub async fn finish_drain<E: Endpoint>(&self, ep: &E, server: MemoryServerId) -> Result<()> {
        self.finish_drain_of(ep, server, None).await
    }

    /// As [`finish_drain`](Self::finish_drain), where the caller knows that this process and those in `known` use no block there
    /// any more, and allocate none. What is allocated all the same in chunks that they lease, or that nobody does, belongs to nothing:
    /// processes died that had freed it ([`reclaim`](Self::reclaim)). It stays allocated until it is
    /// [freed](Self::free_left).
    ///
    /// # Errors
    /// [`PoolError::NotDraining`]; [`PoolError::NotEmpty`] if another process leases a chunk there.
    pub async fn finish_drain_with_left<E: Endpoint>(
        &self,
        ep: &E,
        server: MemoryServerId,
        known: &[AttachSlot],
    ) -> Result<()> {
        self.finish_drain_of(ep, server, Some(known)).await
    }

    async fn finish_drain_of<E: Endpoint>(
        &self,
        ep: &E,
        server: MemoryServerId,
        may_leave: Option<&[AttachSlot]>,
    ) -> Result<()> {
        self.learn(ep).await?;
        match self.server(server)?.state() {
            ServerState::Active => return Err(PoolError::NotDraining { server }),
            ServerState::Drained => return self.note_largest_block(ep).await,
            ServerState::Draining => {}
        }
        self.vacate_catalog(ep, server).await?;
        self.leave_inactive(ep).await?;
        self.change_catalog(ep, async || {
            // Announce the drain again, since the process that began it may have failed before that. Any
            // later lease there then sees it.
            self.publish_membership(ep).await?;
            let usage = self.usage_of(ep, self.server(server)?).await?;
            let is_empty = match may_leave {
                None => usage.bytes_in_chunks == 0,
                Some(known) => self.is_leased_by_none_but(ep, server, known).await?,
            };
            if !is_empty {
                return Err(PoolError::NotEmpty {
                    server,
                    bytes: usage.bytes_allocated,
                    leased: usage.chunks_leased_by_others,
                });
            }
            self.note_largest_block(ep).await?;
            self.set_state(ep, usize::from(server.0), ServerState::Drained).await?;
            self.publish_membership(ep).await
        })
        .await
    }

    /// Stores, if that was not done yet, how large the largest block of each server may be. Without the drained one, that would
    /// not be known. It is the same for all processes.
    async fn note_largest_block<E: Endpoint>(&self, ep: &E) -> Result<()> {
        if ep.read_word(at(LARGEST_AT)).await? != 0 {
            return Ok(());
        }
        write_word_surely(ep, at(LARGEST_AT), self.max_block(), self.deadline(ep)).await
    }

    /// Whether this process and those in `known` lease all leased chunks of a server.
    async fn is_leased_by_none_but<E: Endpoint>(
        &self,
        ep: &E,
        server: MemoryServerId,
        known: &[AttachSlot],
    ) -> Result<bool> {
        let mine = self.writer_slot()?;
        let is_known = |of: &Descriptor| match *of {
            Descriptor::Leased { slot, .. } => mine.0 == slot || known.contains(&AttachSlot(slot)),
            Descriptor::Free | Descriptor::Released { .. } => true,
        };
        Ok(self.descriptors(ep, self.server(server)?).await?.iter().all(|(_, of)| is_known(of)))
    }

    /// Makes a drained or draining server active again. No process may have an index open meanwhile, since an
    /// open index may remember moved nodes by their old addresses. A drained server is formatted anew.
    ///
    /// # Errors
    /// [`PoolError::UnknownServer`]; [`PoolError::NotThere`] if it was drained and was not there when this process attached, or
    /// is too small; [`PoolError::PoolExists`] if its memory belongs to another pool now; errors of the catalog lock.
    pub async fn readmit_server<E: Endpoint>(&self, ep: &E, server: MemoryServerId) -> Result<()> {
        self.change_catalog(ep, async || {
            self.learn(ep).await?;
            // Also if it seems active: a failed attempt may have stored that without announcing it.
            if self.server(server)?.is_drained() {
                self.format_drained(ep, server).await?;
            }
            self.set_state(ep, usize::from(server.0), ServerState::Active).await?;
            self.publish_membership(ep).await
        })
        .await
    }

    async fn format_drained<E: Endpoint>(&self, ep: &E, number: MemoryServerId) -> Result<()> {
        let server = self.server(number)?;
        if server.geometry.chunks == 0 {
            return Err(PoolError::NotThere { server: number });
        }
        ep.set_in_use(number, true);
        let region = region_of(ep, usize::from(number.0)).await?;
        if is_of_another_pool(ep, region, self.id()).await? {
            return Err(PoolError::PoolExists);
        }
        let servers = self.inner.formatted_servers.max(usize::from(number.0) + 1);
        let superblock = Superblock { geometry: server.geometry, servers, ..self.first_superblock() };
        format_region(ep, &superblock).await.map_err(|error| no_space(error, number))?;
        server.frees_seen.store(0, Relaxed);
        self.look(ep, server).await
    }

    /// Stores the state of a server. The caller holds the catalog lock, so there is no other writer.
    async fn set_state<E: Endpoint>(&self, ep: &E, number: usize, state: ServerState) -> Result<()> {
        let word_at = state_word(number);
        if number >= STATES_MAX {
            let reason =
                format!("only the first {STATES_MAX} memory servers can join or leave a pool in use");
            return Err(PoolError::InvalidOptions { reason });
        }
        let word = state.put_into(ep.read_word(word_at).await?, number);
        until_answered(ep, self.deadline(ep), async || Ok(ep.write_word(word_at, word).await?)).await
    }

    /// Persists and announces a change of the membership.
    async fn publish_membership<E: Endpoint>(&self, ep: &E) -> Result<()> {
        ep.persist(at(EPOCH_AT), STATES_AT - EPOCH_AT + (STATES_MAX / 4) as u64).await?;
        // Raising the epoch twice does no harm.
        until_answered(ep, self.deadline(ep), async || Ok(ep.fetch_add(at(EPOCH_AT), 1).await?)).await?;
        self.learn(ep).await.map(drop)
    }

    /// Gives back all chunks that this process leases on draining servers. Their blocks can still be freed.
    ///
    /// # Errors
    /// Errors of verbs, after which it may be called again.
    pub async fn leave_inactive<E: Endpoint>(&self, ep: &E) -> Result<()> {
        if self.writer_slot().is_err() {
            return Ok(());
        }
        for server in self.servers_in_use().filter(|server| !server.is_active()) {
            if server.holds_chunks() {
                let _leasing = self.begin_leasing(ep, server).await?;
                self.release_chunks_of(ep, server).await?;
            }
        }
        Ok(())
    }
}

/// The right to update the view of the membership; dropping it lets another worker do so.
struct Learning<'a>(&'a AtomicBool);

impl Drop for Learning<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(0), offset)
}

/// Region of server `number`, which another process may have added a moment ago.
async fn region_of<E: Endpoint>(ep: &E, number: usize) -> Result<RegionInfo> {
    let server = MemoryServerId(number as u16);
    // An endpoint that does not know the server learns of it on the first access.
    if ep.regions().len() <= number && ep.read_word(GlobalAddr::new(server, 0)).await.is_err() {
        return Err(PoolError::NoRegion { server });
    }
    ep.regions().get(number).copied().ok_or(PoolError::NoRegion { server })
}
