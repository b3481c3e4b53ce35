//! Memory servers that join a pool and leave it while it is in use.
//!
//! Who belongs to the pool stands on memory server 0: how many servers joined since it was formatted, two bits of state
//! for each, and an epoch that every change raises last. All changes are made under the catalog lock.
//!
//! ```text
//!     add_server            drain_server               finish_drain
//!  ──────────────▶ Active ──────────────▶ Draining ───────────────▶ Drained
//!                    ▲                                                 │
//!                    └───────────────── readmit_server ────────────────┘
//! ```
//! - A process learns of a change when it next leases a chunk, when it comes upon a server that it does not know, or when
//!   it is told to look ([`Pool::learn`]). Until then it may allocate in chunks that it leases already.
//! - Who leases a chunk looks at the epoch after the swap that leases it. So once a server is draining, whoever leases there gives
//!   back without having allocated; and what was leased before stands in the descriptors, which `finish_drain` reads.
//! - On a server that is not active no block is handed out, so what was freed there keeps its bytes until the server is
//!   readmitted.

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, RegionInfo};

use crate::defect::Defect;
use crate::error::{PoolError, Result};
use crate::io::{read_words, until_answered};
use crate::layout::{EPOCH_AT, Geometry, JOINED_AT, STATES_AT, STATES_MAX, Superblock};
use crate::pool::{Pool, Server, format_region, is_of_another_pool, no_space, read_superblock};

/// Whether a memory server takes new blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    /// It does.
    Active = 0,
    /// It does not, and what is there is to be moved elsewhere.
    Draining = 1,
    /// It does not, and holds nothing.
    Drained = 2,
}

/// States that one word holds.
const PER_WORD: usize = 32;

impl ServerState {
    fn from_bits(bits: u64) -> Option<Self> {
        match bits & 3 {
            0 => Some(Self::Active),
            1 => Some(Self::Draining),
            2 => Some(Self::Drained),
            _ => None,
        }
    }
}

impl Server {
    pub fn state(&self) -> ServerState {
        ServerState::from_bits(u64::from(self.state.load(Acquire))).expect("only states are stored")
    }

    /// Whether new blocks may go there.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.state.load(Relaxed) == ServerState::Active as u8
    }

    pub fn check_active(&self) -> Result<()> {
        if self.is_active() { Ok(()) } else { Err(PoolError::Draining { server: self.id() }) }
    }
}

impl Pool {
    /// Whether `server` takes new blocks, as far as this process knows.
    ///
    /// # Errors
    /// [`PoolError::UnknownServer`].
    pub fn server_state(&self, server: MemoryServerId) -> Result<ServerState> {
        Ok(self.server(server)?.state())
    }

    /// Whether new blocks may go to `server`, as far as this process knows.
    #[inline]
    pub fn is_active(&self, server: MemoryServerId) -> bool {
        self.server(server).is_ok_and(Server::is_active)
    }

    /// The memory servers that take new blocks, as far as this process knows.
    pub fn active_servers(&self) -> Vec<MemoryServerId> {
        self.inner.servers.iter().filter(|server| server.is_active()).map(Server::id).collect()
    }

    /// Looks whether memory servers joined or changed their state since this process last looked; whether any did.
    ///
    /// # Errors
    /// Those of verbs; a server that joined and cannot be reached or holds no region of this pool.
    pub async fn learn<E: Endpoint>(&self, ep: &E) -> Result<bool> {
        let known = self.inner.epoch.load(Acquire);
        if ep.read_word(at(EPOCH_AT)).await? == known {
            return Ok(false);
        }
        // One at a time, so that nobody stores states that are older than the epoch.
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
        let membership = read_words(ep, at(EPOCH_AT), 2).await?;
        let (epoch, joined) = (membership[0], membership[1]);
        let count = self.inner.formatted_servers + joined as usize;
        for number in self.servers()..count {
            let superblock = self.superblock_of(ep, number).await?;
            let server = Server::new(superblock.geometry);
            self.look(ep, &server).await?;
            self.inner.servers.push(server).map_err(|server| PoolError::NoRegion { server: server.id() })?;
        }
        let words = read_words(ep, at(STATES_AT), self.servers().div_ceil(PER_WORD)).await?;
        for (number, server) in self.inner.servers.iter().enumerate() {
            let bits = words[number / PER_WORD] >> (2 * (number % PER_WORD));
            let corrupt =
                || PoolError::Corrupt { addr: state_word(number), reason: "this is no state of a server" };
            server.state.store(ServerState::from_bits(bits).ok_or_else(corrupt)? as u8, Release);
        }
        self.inner.epoch.store(epoch, Release);
        Ok(())
    }

    /// The superblock of a server that joined.
    async fn superblock_of<E: Endpoint>(&self, ep: &E, number: usize) -> Result<Superblock> {
        let region = region_of(ep, number).await?;
        let superblock = read_superblock(ep, region).await?;
        self.check_own(&superblock, number + 1)?;
        Ok(superblock)
    }

    fn check_own(&self, superblock: &Superblock, servers: usize) -> Result<()> {
        let server = superblock.geometry.server;
        if superblock.pool_id != self.id() {
            let reason = "its pool id differs from that of server 0";
            return Err(PoolError::ForeignRegion { server, reason });
        }
        if superblock.servers != servers {
            let reason = "it joined the pool in another place";
            return Err(PoolError::ForeignRegion { server, reason });
        }
        Ok(())
    }

    /// Formats the next region of `ep` that is no part of the pool yet, and takes it into use; its number. Its chunks are
    /// `chunk_size` bytes, by default as long as those of server 0. What fails leaves the pool as it was, and the region to
    /// the next try.
    ///
    /// # Errors
    /// [`PoolError::NoRegion`] if the fabric has no further region (also if a try of which nobody knows joined it), [`PoolError::PoolExists`] if another pool is in it,
    /// [`PoolError::RegionTooSmall`], [`PoolError::InvalidOptions`], [`PoolError::NoSpaceForTables`]; those of the catalog
    /// lock.
    pub async fn add_server<E: Endpoint>(&self, ep: &E, chunk_size: Option<u64>) -> Result<MemoryServerId> {
        self.change_catalog(ep, async || {
            if let Some(joined) = self.unannounced(ep).await? {
                return Ok(joined);
            }
            let number = self.servers();
            let region = region_of(ep, number).await?;
            let superblock = self.plan_joining(region, chunk_size)?;
            // What a try left behind that failed is of this pool.
            if is_of_another_pool(ep, region, self.id()).await? {
                return Err(PoolError::PoolExists);
            }
            format_region(ep, &superblock).await.map_err(|error| no_space(error, region.server))?;
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

    /// The server that joined by an earlier try of this process, which failed. Others may have learnt of it meanwhile, and use it; so may
    /// they of one that another process did not tell of. The catalog lock is held; all servers are known afterwards.
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

    /// Whether a region of `bytes` could join, before there is one.
    ///
    /// # Errors
    /// Those of [`Pool::add_server`] for its size.
    pub fn check_joining(&self, bytes: u64, chunk_size: Option<u64>) -> Result<()> {
        let server = MemoryServerId(self.servers() as u16);
        self.plan_joining(RegionInfo { server, len: bytes }, chunk_size).map(drop)
    }

    fn plan_joining(&self, region: RegionInfo, chunk_size: Option<u64>) -> Result<Superblock> {
        let chunk_size = chunk_size.unwrap_or(self.inner.servers[0].geometry.chunk_size);
        let geometry = Geometry::plan(region, Some(chunk_size), self.inner.max_attached)?;
        // Long values are cut by the largest block that every server has.
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

    /// Has nobody put anything new on `server` from now on. What is there stays until it is moved, and so does the state, also
    /// when the pool is closed. Does nothing if it is draining or drained already.
    ///
    /// # Errors
    /// [`PoolError::HomeServer`], [`PoolError::UnknownServer`]; those of the catalog lock.
    pub async fn drain_server<E: Endpoint>(&self, ep: &E, server: MemoryServerId) -> Result<()> {
        if server.0 == 0 {
            return Err(PoolError::HomeServer);
        }
        let number = usize::from(server.0);
        self.change_catalog(ep, async || {
            self.learn(ep).await?;
            // A try that failed may have stored the state without telling anybody.
            if self.server(server)?.state() == ServerState::Drained {
                return Ok(());
            }
            self.set_state(ep, number, ServerState::Draining).await?;
            self.publish_membership(ep).await
        })
        .await?;
        self.leave_inactive(ep).await
    }

    /// Declares `server` drained, if nothing is allocated or leased there. Blocks of the catalog are moved away first.
    ///
    /// # Errors
    /// [`PoolError::NotDraining`]; [`PoolError::NotEmpty`] with what is left: it goes on draining then.
    pub async fn finish_drain<E: Endpoint>(&self, ep: &E, server: MemoryServerId) -> Result<()> {
        self.learn(ep).await?;
        match self.server(server)?.state() {
            ServerState::Active => return Err(PoolError::NotDraining { server }),
            ServerState::Drained => return Ok(()),
            ServerState::Draining => {}
        }
        self.vacate_catalog(ep, server).await?;
        self.leave_inactive(ep).await?;
        self.change_catalog(ep, async || {
            // Whoever leases there from now on knows of the drain, though who began it failed before telling of it.
            self.publish_membership(ep).await?;
            let usage = self.usage_of(ep, self.server(server)?).await?;
            if usage.bytes_in_chunks > 0 {
                return Err(PoolError::NotEmpty {
                    server,
                    bytes: usage.bytes_allocated,
                    leased: usage.chunks_leased_by_others,
                });
            }
            self.set_state(ep, usize::from(server.0), ServerState::Drained).await?;
            self.publish_membership(ep).await
        })
        .await
    }

    /// Takes a server into use again that was drained, or is draining. Nobody may have an index open meanwhile, in any
    /// process: what was moved away may be remembered by its old address until then.
    ///
    /// # Errors
    /// [`PoolError::UnknownServer`]; those of the catalog lock.
    pub async fn readmit_server<E: Endpoint>(&self, ep: &E, server: MemoryServerId) -> Result<()> {
        self.change_catalog(ep, async || {
            self.learn(ep).await?;
            // Also if it seems to be active: a try that failed may have stored that without telling anybody.
            self.server(server)?;
            self.set_state(ep, usize::from(server.0), ServerState::Active).await?;
            self.publish_membership(ep).await
        })
        .await
    }

    /// Stores the state of a server. The catalog lock is held, so nobody else changes a state.
    async fn set_state<E: Endpoint>(&self, ep: &E, number: usize, state: ServerState) -> Result<()> {
        let word_at = state_word(number);
        if number >= STATES_MAX {
            let reason =
                format!("only the first {STATES_MAX} memory servers can join or leave a pool in use");
            return Err(PoolError::InvalidOptions { reason });
        }
        let (word, shift) = (ep.read_word(word_at).await?, 2 * (number % PER_WORD));
        let word = word & !(3 << shift) | (state as u64) << shift;
        until_answered(ep, self.deadline(ep), async || Ok(ep.write_word(word_at, word).await?)).await
    }

    /// Makes a change of the membership last and known.
    async fn publish_membership<E: Endpoint>(&self, ep: &E) -> Result<()> {
        ep.persist(at(EPOCH_AT), STATES_AT - EPOCH_AT + (STATES_MAX / 4) as u64).await?;
        // Raised twice it is another one all the same.
        until_answered(ep, self.deadline(ep), async || Ok(ep.fetch_add(at(EPOCH_AT), 1).await?)).await?;
        self.learn(ep).await.map(drop)
    }

    /// Gives back all chunks that this process leases on servers that take nothing new. Their blocks can still be freed.
    ///
    /// # Errors
    /// Those of verbs, after which it may be called again.
    pub async fn leave_inactive<E: Endpoint>(&self, ep: &E) -> Result<()> {
        if self.writer_slot().is_err() {
            return Ok(());
        }
        for server in self.inner.servers.iter().filter(|server| !server.is_active()) {
            if server.holds_chunks() {
                let _leasing = self.begin_leasing(ep, server).await?;
                self.release_chunks_of(ep, server).await?;
            }
        }
        Ok(())
    }
}

/// Somebody else may learn when it goes.
struct Learning<'a>(&'a AtomicBool);

impl Drop for Learning<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(0), offset)
}

fn state_word(number: usize) -> GlobalAddr {
    at(STATES_AT + (number / PER_WORD * 8) as u64)
}

/// The region of server `number`, which others may have added a moment ago.
async fn region_of<E: Endpoint>(ep: &E, number: usize) -> Result<RegionInfo> {
    let server = MemoryServerId(number as u16);
    // An endpoint that does not know the server yet finds out when it is asked for something there.
    if ep.regions().len() <= number && ep.read_word(GlobalAddr::new(server, 0)).await.is_err() {
        return Err(PoolError::NoRegion { server });
    }
    ep.regions().get(number).copied().ok_or(PoolError::NoRegion { server })
}
