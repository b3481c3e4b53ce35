//! One process's view of a pool: formatting, attaching, detaching.
//!
//! All metadata lies in the regions of the memory servers and is changed only by one-sided verbs, so no
//! processor of a memory server is needed. A [`Pool`] adds what this process may keep in DRAM: bitmaps of the
//! chunks that it leases, and a possibly outdated copy of the chunk descriptors. All workers of the process
//! share it; each call uses the endpoint of its worker.
//!
//! Dropping the future of a call may leave a lease or a lock behind; [`Pool::detach`] then leaves the pool
//! marked as not cleanly closed.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_fabric::defect::defect;
use pando_fabric::{
    Endpoint, FabricError, GlobalAddr, Growing, MAX_SERVERS, MemoryServerId, Nanos, RegionInfo,
};

use crate::arena::Arena;
use crate::attach::{self, AttachEntry, AttachMode, AttachOptions, IsAlive};
use crate::classes::{CLASSES, class_of};
use crate::defect::Defect;
use crate::error::{PoolError, Result};
use crate::io::{read_words, write_words, write_zeros};
use crate::layout::{
    CATALOG_HEAD_AT, CATALOG_LOCK_AT, Descriptor, FREES_BY_OTHERS_AT, Geometry, STATE_AT, SUPERBLOCK_WORDS,
    Superblock,
};
use crate::lock::LeftLocks;
use crate::process::{AttachSlot, MAX_ATTACHED, ProcessIdentity};
use crate::states::Membership;

/// Options for formatting a pool.
#[derive(Clone)]
pub struct PoolOptions {
    /// Size of a chunk in bytes, a power of two from 16 KiB on; by default about a thousandth of each region.
    pub chunk_size: Option<u64>,
    /// Maximum number of attached processes; each takes 64 bytes.
    pub max_attached: usize,
    /// Formats regions that already hold a pool.
    pub overwrite: bool,
    /// Attach options of the formatting process.
    pub attach: AttachOptions,
}

impl PoolOptions {
    pub fn new(attach: AttachOptions) -> Self {
        Self { chunk_size: None, max_attached: 128, overwrite: false, attach }
    }

    /// For a pool in the memory of one process.
    pub fn embedded() -> Self {
        Self::new(AttachOptions::embedded())
    }

    pub fn chunk_size(mut self, bytes: u64) -> Self {
        self.chunk_size = Some(bytes);
        self
    }

    pub fn max_attached(mut self, processes: usize) -> Self {
        self.max_attached = processes;
        self
    }

    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }
}

/// A pool that this process is attached to. Clones share one attachment.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub pool_id: u64,
    pub max_attached: usize,
    pub mode: AttachMode,
    /// Number of servers with which the pool was formatted.
    pub formatted_servers: usize,
    /// Servers may join at any time; see `membership.rs`.
    pub servers: Growing<Server>,
    /// Epoch of the membership, as last read.
    pub epoch: AtomicU64,
    /// Set while a worker updates the view of the membership.
    pub learning: AtomicBool,
    /// One more than the number of the server that a failed `add_server` may have joined; 0 for none.
    pub joining: AtomicU32,
    pub is_alive: IsAlive,
    pub wait_ns_max: Nanos,
    pub verbs_take: Nanos,
    process: ProcessIdentity,
    /// `None` in modes without an attach slot.
    entry: Option<AttachEntry>,
    /// Bitmaps of leased chunks are stored; see `reclaim.rs`.
    pub keeps_bitmaps: bool,
    detached: AtomicBool,
    /// Chunks leased so far; determines when loads are refreshed.
    pub leases: AtomicU32,
    pub stray_frees: StrayFrees,
    pub left_locks: LeftLocks,
    /// Number of locks taken over from dead processes.
    pub locks_taken_over: AtomicU64,
}

/// Frees by other processes of blocks that were free already.
#[derive(Default)]
pub(crate) struct StrayFrees {
    pub count: AtomicU64,
    pub last: AtomicU64,
}

/// This process's state for one memory server.
pub(crate) struct Server {
    pub geometry: Geometry,
    /// A `ServerState`, as last read.
    pub state: AtomicU8,
    /// Descriptor words as last seen; hints only.
    pub seen: Box<[AtomicU64]>,
    /// Place of each leased chunk in its arena: `(class << 32 | place) + 1`, 0 for chunks not leased by this
    /// process. Changed only under the latch of the arena of that class.
    pub held: Box<[AtomicU64]>,
    pub arenas: Box<[Mutex<Arena>]>,
    /// Set while a worker leases a chunk: one at a time, so that the others wait instead of leasing one each.
    pub leasing: AtomicBool,
    /// Until this time bitmaps may still be stored by verbs that were cut off.
    pub rests_until: AtomicU64,
    /// Chunks of which this process may hold an unused lease because a verb failed, with the descriptor that
    /// each must get. Settled before anything else is leased.
    pub unsettled: Mutex<Vec<(u32, u64)>>,
    /// Bytes allocated in chunks that this process leases.
    pub own_bytes: AtomicI64,
    /// Bytes in use elsewhere, as last seen.
    pub other_bytes: AtomicU64,
    /// Value of the counter of frees by others at the last harvest.
    pub frees_seen: AtomicU64,
}

impl Server {
    pub fn new(geometry: Geometry) -> Self {
        let words = || (0..geometry.chunks).map(|_| AtomicU64::new(0)).collect();
        Self {
            geometry,
            state: AtomicU8::new(0),
            seen: words(),
            held: words(),
            arenas: (0..CLASSES).map(|_| Mutex::new(Arena::default())).collect(),
            leasing: AtomicBool::new(false),
            rests_until: AtomicU64::new(0),
            unsettled: Mutex::new(Vec::new()),
            own_bytes: AtomicI64::new(0),
            other_bytes: AtomicU64::new(0),
            frees_seen: AtomicU64::new(0),
        }
    }

    pub fn id(&self) -> MemoryServerId {
        self.geometry.server
    }

    #[inline]
    pub fn arena(&self, class: u8) -> MutexGuard<'_, Arena> {
        self.arenas[class as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Class and place in its arena of a chunk that this process leases.
    #[inline]
    pub fn held(&self, chunk: u32) -> Option<(u8, u32)> {
        let held = self.held[chunk as usize].load(Relaxed).checked_sub(1)?;
        Some(((held >> 32) as u8, held as u32))
    }

    /// Whether this process leases chunks there.
    pub fn holds_chunks(&self) -> bool {
        (0..CLASSES as u8).any(|class| self.arena(class).iter().next().is_some())
    }

    pub fn set_held(&self, chunk: u32, place: Option<(u8, u32)>) {
        let word = place.map_or(0, |(class, place)| (u64::from(class) << 32 | u64::from(place)) + 1);
        self.held[chunk as usize].store(word, Relaxed);
    }

    /// Bytes in use, as far as this process knows.
    pub fn load(&self) -> u64 {
        self.other_bytes.load(Relaxed).saturating_add_signed(self.own_bytes.load(Relaxed))
    }

    /// Size class for `size` bytes.
    #[inline]
    pub fn class_of(&self, size: u64) -> Result<u8> {
        class_of(size)
            .filter(|_| size <= self.geometry.max_block())
            .ok_or_else(|| PoolError::BlockTooLarge { size, max: self.geometry.max_block() })
    }
}

impl Pool {
    /// Formats the regions of `ep` as a pool and attaches to it.
    ///
    /// # Errors
    /// [`PoolError::PoolExists`] unless `options` allow overwriting; [`PoolError::RegionTooSmall`],
    /// [`PoolError::InvalidOptions`], [`PoolError::NoSpaceForTables`]; errors of [`Pool::attach`].
    pub async fn create<E: Endpoint>(ep: &E, options: PoolOptions) -> Result<Self> {
        let superblocks = plan(ep, &options)?;
        if !options.overwrite && holds_a_pool(ep).await? {
            return Err(PoolError::PoolExists);
        }
        for superblock in superblocks.iter().rev() {
            format_region(ep, superblock)
                .await
                .map_err(|error| no_space(error, superblock.geometry.server))?;
        }
        Self::attach(ep, options.attach).await
    }

    /// Attaches to the pool in the regions of `ep`.
    ///
    /// # Errors
    /// Depending on the regions: [`PoolError::NotAPool`], [`PoolError::CutShort`],
    /// [`PoolError::VersionMismatch`], [`PoolError::DamagedSuperblock`], [`PoolError::WrongServers`],
    /// [`PoolError::ForeignRegion`]. Depending on the attached processes: [`PoolError::NotClosedCleanly`],
    /// [`PoolError::InUse`], [`PoolError::BeingRepaired`], [`PoolError::AttachTableFull`].
    pub async fn attach<E: Endpoint>(ep: &E, options: AttachOptions) -> Result<Self> {
        let superblocks = read_superblocks(ep).await?;
        let AttachOptions { process, mode, is_alive, wait_ns_max, verbs_take_ns, keeps_bitmaps } =
            options.clone();
        let places = superblocks[0].max_attached;
        let entry = match mode {
            AttachMode::ReadOnlyUnclean => None,
            AttachMode::ReadOnly => {
                let deadline = ep.wait_until(ep.now(), wait_ns_max);
                attach::judge_table(ep, places, None, mode, &is_alive, deadline).await?;
                None
            }
            _ => Some(claim(ep, places, &options).await?),
        };
        let pool = Self {
            inner: Arc::new(Inner {
                pool_id: superblocks[0].pool_id,
                max_attached: places,
                mode,
                formatted_servers: superblocks[0].servers,
                servers: Growing::new(
                    superblocks.iter().map(|superblock| Server::new(superblock.geometry)).collect(),
                ),
                // Not known yet: the states are read below.
                epoch: AtomicU64::new(u64::MAX),
                learning: AtomicBool::new(false),
                joining: AtomicU32::new(0),
                is_alive,
                wait_ns_max,
                verbs_take: verbs_take_ns.unwrap_or(wait_ns_max),
                process,
                entry,
                keeps_bitmaps,
                detached: AtomicBool::new(false),
                leases: AtomicU32::new(0),
                stray_frees: StrayFrees::default(),
                left_locks: LeftLocks::default(),
                locks_taken_over: AtomicU64::new(0),
            }),
        };
        let looked = async {
            pool.learn(ep).await?;
            pool.refresh_loads(ep).await
        };
        match looked.await {
            Ok(()) => Ok(pool),
            Err(error) => {
                if let Some(entry) = &pool.inner.entry {
                    let _ = attach::clear_entry(ep, entry, pool.deadline(ep)).await;
                }
                Err(error)
            }
        }
    }

    /// Ends this process's attachment cleanly: gives back locks, partitions and chunk leases, writes
    /// allocation bitmaps, persists all regions, and only then clears the entry in the attach table. So a
    /// crash of the machine leaves either a pool that is seen to be unclean or one with everything in it. No
    /// other call may be in progress; later ones fail. A second call does nothing.
    ///
    /// # Errors
    /// [`PoolError::LocksLeftBehind`] if left locks cannot be given back within twice `wait_ns_max`;
    /// [`PoolError::LeasesLeftBehind`] if the future of an earlier call was dropped; errors of verbs, after
    /// which it may be called again.
    pub async fn detach<E: Endpoint>(&self, ep: &E) -> Result<()> {
        if self.inner.detached.load(Relaxed) {
            return Ok(());
        }
        if self.inner.mode == AttachMode::ReadWrite {
            self.give_back_all_locks(ep).await?;
            self.set_notice(ep, &[]).await?;
            self.release_all_partitions(ep).await?;
            // The last change may have left the catalog lock, which the next process in this attach slot
            // would take for its own.
            self.give_back_all_locks(ep).await?;
        }
        self.inner.detached.store(true, Relaxed);
        let left = self.leave(ep).await;
        self.inner.detached.store(left.is_ok(), Relaxed);
        left
    }

    /// Waits until left locks have rested for the longest time a verb may take, and gives them back.
    async fn give_back_all_locks<E: Endpoint>(&self, ep: &E) -> Result<()> {
        // Twice the usual time: a slow verb may delay giving back.
        let deadline = ep.now().saturating_add(self.inner.wait_ns_max.saturating_mul(2));
        loop {
            self.give_back_left_locks(ep).await?;
            let locks = self.inner.left_locks.count();
            if locks == 0 || defect(Defect::DetachOwing) {
                return Ok(());
            }
            if ep.now() >= deadline {
                return Err(PoolError::LocksLeftBehind { process: self.process(), locks });
            }
            ep.yield_now().await;
        }
    }

    async fn leave<E: Endpoint>(&self, ep: &E) -> Result<()> {
        if self.inner.mode == AttachMode::ReadWrite {
            self.release_all_chunks(ep).await?;
        }
        let Some(entry) = &self.inner.entry else { return Ok(()) };
        for region in ep.regions().iter().filter(|region| !self.has_drained(region.server)) {
            ep.persist(GlobalAddr::new(region.server, 0), region.len).await?;
        }
        attach::clear_entry(ep, entry, self.deadline(ep)).await?;
        attach::persist_entry(ep, entry).await
    }

    /// Random number of the pool, chosen when it was formatted.
    pub fn id(&self) -> u64 {
        self.inner.pool_id
    }

    /// This process's attach slot, which lock words and partitions name. `None` in modes without one.
    pub fn slot(&self) -> Option<AttachSlot> {
        self.inner.entry.as_ref().map(|entry| entry.slot)
    }

    pub fn process(&self) -> ProcessIdentity {
        self.inner.process
    }

    pub fn mode(&self) -> AttachMode {
        self.inner.mode
    }

    /// Number of memory servers that this process knows, in any state; they are numbered from 0.
    pub fn servers(&self) -> usize {
        self.inner.servers.len()
    }

    /// Size of a chunk of `server` in bytes.
    ///
    /// # Errors
    /// [`PoolError::UnknownServer`].
    pub fn chunk_size(&self, server: MemoryServerId) -> Result<u64> {
        Ok(self.server(server)?.geometry.chunk_size)
    }

    /// Attached processes by slot.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn attached<E: Endpoint>(&self, ep: &E) -> Result<Vec<(AttachSlot, ProcessIdentity)>> {
        let entries = attach::read_table(ep, self.inner.max_attached).await?;
        Ok(entries.iter().map(|entry| (entry.slot, entry.process)).collect())
    }

    #[inline]
    pub(crate) fn server(&self, server: MemoryServerId) -> Result<&Server> {
        let servers = &self.inner.servers;
        servers.get(server.0 as usize).ok_or(PoolError::UnknownServer { server, servers: servers.len() })
    }

    /// This process's attach slot, if it may change the pool.
    pub(crate) fn writer_slot(&self) -> Result<AttachSlot> {
        if self.inner.detached.load(Relaxed) {
            return Err(PoolError::Detached);
        }
        match (&self.inner.entry, self.inner.mode) {
            (Some(entry), AttachMode::ReadWrite) => Ok(entry.slot),
            _ => Err(PoolError::ReadOnly),
        }
    }

    /// This process's attach slot, if it may repair the pool.
    pub(crate) fn repair_slot(&self) -> Result<AttachSlot> {
        match (&self.inner.entry, self.inner.mode) {
            (Some(entry), AttachMode::Repair) => Ok(entry.slot),
            _ => Err(PoolError::NotInRepair),
        }
    }

    /// Longest time that a verb takes, in nanoseconds. A verb whose future was dropped is over after that.
    pub fn verbs_take(&self) -> Nanos {
        self.inner.verbs_take
    }

    pub(crate) fn deadline<E: Endpoint>(&self, ep: &E) -> Nanos {
        ep.wait_until(ep.now(), self.inner.wait_ns_max)
    }

    pub(crate) fn catalog_lock(&self) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(0), CATALOG_LOCK_AT)
    }

    pub(crate) fn catalog_head(&self) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(0), CATALOG_HEAD_AT)
    }

    /// The process in attach slot `slot`.
    ///
    /// # Errors
    /// [`PoolError::NotClosedCleanly`] if it died.
    pub(crate) async fn live_process<E: Endpoint>(
        &self,
        ep: &E,
        slot: AttachSlot,
    ) -> Result<Option<ProcessIdentity>> {
        match attach::read_entry(ep, self.inner.max_attached, slot).await? {
            Some(entry) if Some(slot) == self.slot() || entry.is_alive(&self.inner.is_alive) => {
                Ok(Some(entry.process))
            }
            Some(entry) => Err(PoolError::NotClosedCleanly { process: entry.process }),
            None => Ok(None),
        }
    }
}

/// Converts a lack of memory behind metadata.
pub(crate) fn no_space(error: PoolError, server: MemoryServerId) -> PoolError {
    match error {
        PoolError::Fabric(FabricError::NoSpace { len, reason, .. }) => {
            PoolError::NoSpaceForTables { server, size: len, reason }
        }
        other => other,
    }
}

/// The regions, which must be numbered from 0 without gaps.
fn regions_of<E: Endpoint>(ep: &E) -> Result<&[RegionInfo]> {
    let regions = ep.regions();
    let dense = regions.iter().enumerate().all(|(at, region)| region.server.0 as usize == at);
    if regions.is_empty() || !dense {
        let reason = "memory servers must be numbered from 0 without gaps".to_owned();
        return Err(PoolError::InvalidOptions { reason });
    }
    Ok(regions)
}

fn plan<E: Endpoint>(ep: &E, options: &PoolOptions) -> Result<Vec<Superblock>> {
    if options.max_attached == 0 || options.max_attached > MAX_ATTACHED {
        let reason =
            format!("{} attached processes are not between 1 and {MAX_ATTACHED}", options.max_attached);
        return Err(PoolError::InvalidOptions { reason });
    }
    let regions = regions_of(ep)?;
    let pool_id = ep.random();
    let superblock = |&region: &RegionInfo| {
        let geometry = Geometry::plan(region, options.chunk_size, options.max_attached)?;
        Ok(Superblock { geometry, servers: regions.len(), pool_id, max_attached: options.max_attached })
    };
    regions.iter().map(superblock).collect()
}

async fn holds_a_pool<E: Endpoint>(ep: &E) -> Result<bool> {
    for &region in regions_of(ep)? {
        let words = read_words(ep, GlobalAddr::new(region.server, 0), SUPERBLOCK_WORDS).await?;
        if words[0] == crate::layout::MAGIC {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Clears the tables of a region and then writes its superblock, so that an interrupted format is not taken
/// for a pool. On server 0 this makes all servers active.
pub(crate) async fn format_region<E: Endpoint>(ep: &E, superblock: &Superblock) -> Result<()> {
    let geometry = &superblock.geometry;
    let start = geometry.at(0);
    ep.reserve(start, geometry.tables_len()).await?;
    write_zeros(ep, start, (geometry.tables_len() / 8) as usize).await?;
    // A crash must not leave a superblock before tables with old contents.
    ep.persist(start, geometry.tables_len()).await?;
    write_words(ep, start, &superblock.encode()).await?;
    ep.write_word(geometry.at(STATE_AT), 1).await?;
    Ok(ep.persist(start, STATE_AT + 8).await?)
}

/// Superblocks of the regions that belong to the pool. Others may be left from a failed addition, or be about
/// to join.
async fn read_superblocks<E: Endpoint>(ep: &E) -> Result<Vec<Superblock>> {
    let regions = regions_of(ep)?;
    let first = read_superblock(ep, regions[0]).await?;
    let membership = Membership::read(ep, regions[0].server, first.servers).await?;
    let (servers, named) = (membership.servers, regions.len());
    let wrong = PoolError::WrongServers { pool: servers, named };
    for number in named..servers {
        if membership.largest_if_drained(number)?.is_none() {
            return Err(wrong);
        }
        ep.set_in_use(MemoryServerId(number as u16), false);
    }
    let regions = regions_of(ep)?;
    if servers > regions.len() {
        return Err(wrong);
    }
    for &region in &regions[servers..] {
        if is_of_another_pool(ep, region, first.pool_id).await? {
            return Err(wrong);
        }
    }
    let mut superblocks = vec![first];
    for (number, &region) in regions.iter().enumerate().take(servers).skip(1) {
        superblocks.push(
            match (membership.largest_if_drained(number)?, superblock_beside(ep, region, &first).await) {
                (_, Ok(superblock)) => superblock,
                // If some were left out, this may be one that is about to join.
                (Some(_), Err(_)) if named < servers && region.len > 0 => return Err(wrong),
                (Some(largest), Err(error)) => superblock_of_drained(region, &first, largest, &error),
                (None, Err(error)) => return Err(error),
            },
        );
    }
    Ok(superblocks)
}

/// Superblock of a memory server of the pool whose first one has the superblock `first`.
pub(crate) async fn superblock_beside<E: Endpoint>(
    ep: &E,
    region: RegionInfo,
    first: &Superblock,
) -> Result<Superblock> {
    let (server, superblock) = (region.server, read_superblock(ep, region).await?);
    if superblock.pool_id != first.pool_id || superblock.max_attached != first.max_attached {
        let reason = "its pool id differs from that of server 0";
        return Err(PoolError::ForeignRegion { server, reason });
    }
    if superblock.servers != first.servers.max(usize::from(server.0) + 1) {
        let reason = "the pool has another number of memory servers";
        return Err(PoolError::ForeignRegion { server, reason });
    }
    Ok(superblock)
}

/// What takes the place of the superblock of a drained server that could not be read. If there is memory in which nothing was
/// written, it will be formatted like this when the server is taken back.
fn superblock_of_drained(
    region: RegionInfo,
    first: &Superblock,
    largest: u64,
    error: &PoolError,
) -> Superblock {
    let is_empty = matches!(error, PoolError::NotAPool { .. } | PoolError::DamagedSuperblock { .. });
    // The largest block of the pool must stay what it is.
    let of_first = first.geometry;
    let chunk_size = if of_first.max_block() == largest { of_first.chunk_size } else { largest };
    let plan = Geometry::plan(region, Some(chunk_size), first.max_attached).ok().filter(|_| is_empty);
    let geometry = plan.unwrap_or_else(|| Geometry::absent(region.server, largest));
    Superblock { geometry, servers: first.servers.max(usize::from(region.server.0) + 1), ..*first }
}

/// Pool and number of the memory server of a region, by its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionPlace {
    /// [`Pool::id`].
    pub pool: u64,
    pub server: usize,
}

/// Pool and server number of the region reached as memory server `region`, which may differ; `None` if it
/// holds no pool.
///
/// # Errors
/// Errors of verbs.
pub async fn place_of_region<E: Endpoint>(ep: &E, region: RegionInfo) -> Result<Option<RegionPlace>> {
    if region.len < STATE_AT {
        return Ok(None);
    }
    let words = read_words(ep, GlobalAddr::new(region.server, 0), SUPERBLOCK_WORDS).await?;
    let (pool, server) = (Superblock::pool_id_of(&words), Superblock::server_of(&words));
    Ok(pool.filter(|_| server < MAX_SERVERS).map(|pool| RegionPlace { pool, server }))
}

/// Whether `region` holds a pool other than `pool_id`, or a part of one.
pub(crate) async fn is_of_another_pool<E: Endpoint>(
    ep: &E,
    region: RegionInfo,
    pool_id: u64,
) -> Result<bool> {
    Ok(place_of_region(ep, region).await?.is_some_and(|found| found.pool != pool_id))
}

pub(crate) async fn read_superblock<E: Endpoint>(ep: &E, region: RegionInfo) -> Result<Superblock> {
    read_superblock_of(ep, region, region.server).await
}

/// Superblock of memory server `number`, which is reached as another one.
pub(crate) async fn read_superblock_of<E: Endpoint>(
    ep: &E,
    region: RegionInfo,
    number: MemoryServerId,
) -> Result<Superblock> {
    let server = region.server;
    if region.len == 0 {
        return Err(PoolError::NoRegion { server });
    }
    if region.len < STATE_AT + 8 {
        return Err(PoolError::NotAPool { server });
    }
    let words = read_words(ep, GlobalAddr::new(server, 0), SUPERBLOCK_WORDS).await?;
    let superblock = Superblock::decode(&words, RegionInfo { server: number, ..region })?;
    if ep.read_word(GlobalAddr::new(server, STATE_AT)).await? != 1 {
        return Err(PoolError::DamagedSuperblock { server, reason: "formatting was not finished" });
    }
    Ok(superblock)
}

/// Claims an entry first and checks the others then, so that of two processes at least one sees the other.
async fn claim<E: Endpoint>(ep: &E, places: usize, options: &AttachOptions) -> Result<AttachEntry> {
    let &AttachOptions { mode, ref is_alive, wait_ns_max, .. } = options;
    let deadline = ep.wait_until(ep.now(), wait_ns_max);
    let mut mine = attach::claim_entry(ep, places, options, deadline).await?;
    let judged = async {
        attach::judge_table(ep, places, Some(mine.slot), mode, is_alive, deadline).await?;
        attach::settle_entry(ep, &mut mine, deadline).await
    };
    match judged.await {
        Ok(()) => Ok(mine),
        Err(error) => {
            let _ = attach::clear_entry(ep, &mine, ep.wait_until(ep.now(), wait_ns_max)).await;
            Err(error)
        }
    }
}

impl Geometry {
    /// Counter of frees by others.
    pub(crate) fn frees_by_others(&self) -> GlobalAddr {
        self.at(FREES_BY_OTHERS_AT)
    }

    /// Decodes descriptor word `word` of chunk `chunk`.
    pub(crate) fn decode(&self, chunk: u32, word: u64) -> Result<Descriptor> {
        Descriptor::decode(word, self.descriptor(chunk), self)
    }
}
