//! The location of a pool: concrete fabrics, creating and finding pools, and the identity of this process.
//!
//! Besides `memory_server.rs`, only this module names the concrete fabrics. A pool in files is created and
//! replaced under the lock of the directory around it, and attached to under the lock of its first file. So
//! if several processes come at once, one creates the pool and the others find it complete. Memory servers
//! elsewhere have one lock for both. A process is identified by its pid, its start time and the boot of its
//! host, or by the number under which memory servers elsewhere know it.

mod endpoint;
mod find_servers;
mod wrong_servers;

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pando_fabric::{
    Endpoint, Fabric, FabricError, GlobalAddr, Handlers, MemoryServerId, OffloadPolicy, RegionInfo,
    RequestHandler,
};
use pando_fabric_local::{
    ExclusiveLock, HugePages, LocalConfig, LocalFabric, ShmConfig, ShmFabric, process_alive, this_process,
};
use pando_fabric_net::{MemoryServerFound, TcpConfig, TcpFabric, TcpLock, View};
#[cfg(feature = "verbs")]
use pando_fabric_verbs::VerbsFabric;
use pando_fabric_verbs::VerbsOptions;
use pando_log::Lease;
use pando_pool::{AttachMode, AttachOptions, IsAlive, Pool, PoolError, PoolOptions, ProcessIdentity};
use pando_replica::Replicated;
use pando_rt::block_on;

use crate::copies::CopyProgress;
use crate::error::{Error, Result};
use crate::options::{Config, Create, Place};
pub(crate) use endpoint::AnyEndpoint;
use find_servers::Found;
use wrong_servers::Wrong;

/// The fabric of a cluster.
pub(crate) enum AnyFabric {
    Local(LocalFabric),
    Shm(ShmFabric),
    Tcp(TcpFabric),
    #[cfg(feature = "verbs")]
    Verbs(VerbsFabric),
}

/// A lock that keeps other processes from attaching while it lives.
#[expect(dead_code, reason = "they do so by being there")]
pub(crate) enum AnyLock {
    Shm(ExclusiveLock),
    Tcp(Box<TcpLock>),
}

impl AnyFabric {
    pub fn endpoint(&self, seed: u64) -> Result<AnyEndpoint> {
        Ok(match self {
            Self::Local(fabric) => AnyEndpoint::Local(fabric.endpoint(seed)?),
            Self::Shm(fabric) => AnyEndpoint::Local(fabric.endpoint(seed)?),
            Self::Tcp(fabric) => {
                let ep = fabric.endpoint(seed)?;
                AnyEndpoint::Tcp(Box::new(match fabric.views() {
                    Some(views) => Replicated::new(ep, views),
                    None => Replicated::single(ep),
                }))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(fabric) => AnyEndpoint::Verbs(Box::new(fabric.endpoint(seed)?)),
        })
    }

    /// Connections to memory servers elsewhere.
    fn connections(&self) -> Option<&TcpFabric> {
        match self {
            Self::Local(_) | Self::Shm(_) => None,
            Self::Tcp(fabric) => Some(fabric),
            #[cfg(feature = "verbs")]
            Self::Verbs(fabric) => Some(fabric.control()),
        }
    }

    /// Whether the memory servers are a group that has copies of their memory.
    pub fn has_copies(&self) -> bool {
        self.connections().is_some_and(|connections| connections.view().is_some())
    }

    /// The newest view of memory servers that have copies of each other's memory.
    pub fn view(&self) -> Option<Arc<View>> {
        self.connections()?.view()
    }

    /// Addresses of memory servers elsewhere, in the order of their numbers.
    pub fn addresses(&self) -> Vec<String> {
        self.connections().map(TcpFabric::addresses).unwrap_or_default()
    }

    /// Writes changes to the files, if there are any.
    pub fn flush(&self) -> Result<()> {
        if let Self::Shm(fabric) = self {
            return Ok(fabric.flush()?);
        }
        if self.connections().is_none() {
            return Ok(());
        }
        let ep = self.endpoint(0)?;
        for region in ep.regions() {
            block_on(&ep, ep.persist(GlobalAddr::new(region.server, 0), region.len))?;
        }
        Ok(())
    }

    /// Sets the handler of calls. Memory servers elsewhere have handlers of their own.
    fn set_handler(&self, handler: Arc<dyn RequestHandler>, threads: usize) -> Result<()> {
        let set = match self {
            Self::Local(fabric) => fabric.set_handler(handler, threads),
            Self::Shm(fabric) => fabric.set_handler(handler, threads),
            _ => Ok(()),
        };
        Ok(set?)
    }

    pub fn regions(&self) -> &[RegionInfo] {
        match self {
            Self::Local(fabric) => fabric.regions(),
            Self::Shm(fabric) => fabric.regions(),
            Self::Tcp(fabric) => fabric.regions(),
            #[cfg(feature = "verbs")]
            Self::Verbs(fabric) => fabric.regions(),
        }
    }

    /// Creates the region of one more memory server, which belongs to no pool yet.
    pub fn add_server(&self, bytes: u64, huge_pages: bool) -> Result<()> {
        let huge_pages = if huge_pages { HugePages::WhenOffered } else { HugePages::Never };
        match self {
            Self::Local(fabric) => fabric.add_server(bytes)?,
            Self::Shm(fabric) => fabric.add_server(bytes, huge_pages)?,
            elsewhere => return Err(needs_address(elsewhere.regions().len())),
        };
        Ok(())
    }

    /// Has the memory server whose address `config` names after those of this group join it, if there is one.
    ///
    /// # Errors
    /// If there is none, and no other one is about to join; if it belongs to a pool, or does not fit.
    pub fn join_group(&self, config: &Config) -> Result<()> {
        let (Some(connections), Place::Tcp(addresses)) = (self.connections(), &config.place) else {
            return Ok(());
        };
        let Some(view) = connections.view() else { return Ok(()) };
        match addresses.iter().find(|address| view.server_at(address).is_none()) {
            None if view.servers().len() > view.volumes_in_use() => Ok(()),
            None => Err(needs_address(view.servers().len())),
            Some(address) if find_servers::look(config, address, 0)?.0.is_some() => {
                let reason = format!("the memory server at {address} belongs to a pool already");
                Err(Error::InvalidOption(reason))
            }
            Some(address) => Ok(connections.join_group(address)?),
        }
    }

    /// Epoch of the view, and how far its servers have filled copies: what moves while one joins.
    pub fn moves_of_group(&self, config: &Config) -> (u64, CopyProgress) {
        let Some(view) = self.view() else { return (0, CopyProgress::default()) };
        let access = &config.access;
        let fills_at = |address| {
            let found = MemoryServerFound::at(address, &access.secret, access.of_verb()).ok()?;
            Some(found.condition.member?.fills)
        };
        let fills = view.servers().iter().filter_map(|server| fills_at(server.address())).flatten();
        let sum = fills.fold(CopyProgress::default(), |sum, fill| CopyProgress {
            whole: sum.whole + fill.whole,
            bytes: sum.bytes + fill.bytes,
        });
        (view.epoch(), sum)
    }

    /// Whether memory servers are found that join while the pool is open.
    pub fn finds_joining(&self) -> bool {
        match self {
            Self::Local(_) | Self::Shm(_) | Self::Tcp(_) => true,
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => false,
        }
    }

    /// Prepares a drained memory server elsewhere for use.
    pub fn take_back(&self, server: MemoryServerId) -> Result<()> {
        match self.connections() {
            Some(connections) if !self.has_copies() => Ok(connections.take_back(server)?),
            _ => Ok(()),
        }
    }

    /// Longest time after which a verb takes effect that failed, or whose future was dropped.
    pub fn verbs_take_ns(&self) -> u64 {
        self.connections().map_or(0, |connections| connections.deadline().as_nanos() as u64)
    }

    /// Tells whether other processes take this one for alive. `None` if they look themselves, on this host.
    pub fn lease(&self) -> Option<Box<dyn Fn() -> Lease + Send + Sync>> {
        let connections = self.connections()?.clone();
        Some(Box::new(move || match connections.holds_lease() {
            true => Lease::Held,
            false if connections.is_given_up() => Lease::Lost,
            false => Lease::Late,
        }))
    }

    /// Locks out processes that attach. Waits for those that are attaching, up to `patience` if the memory
    /// servers are elsewhere.
    pub fn lock_exclusive(&self, patience: Duration) -> Result<Option<AnyLock>> {
        if let Self::Shm(fabric) = self {
            return Ok(Some(AnyLock::Shm(fabric.lock_exclusive()?)));
        }
        let lock = self.connections().map(|connections| connections.lock_exclusive(patience)).transpose()?;
        Ok(lock.map(|lock| AnyLock::Tcp(Box::new(lock))))
    }
}

fn needs_address(servers: usize) -> Error {
    Error::InvalidOption(format!(
        "start one more memory server first, and name its address after those of the pool's {servers}"
    ))
}

/// Whether a pool may exist where `config` says. Always true for memory servers elsewhere, which must be
/// asked.
pub(crate) fn may_be_there(config: &Config) -> bool {
    match &config.place {
        Place::Embedded => false,
        Place::At(path) => ShmFabric::exists(path),
        Place::Tcp(_) | Place::Verbs(_) => true,
    }
}

/// What memory servers execute for compute servers.
pub(crate) fn handlers() -> Arc<dyn RequestHandler> {
    let nodes: Arc<dyn RequestHandler> = Arc::new(pando_dex::MemorySide::default());
    let images: Arc<dyn RequestHandler> = Arc::new(pando_elf_remote::MemorySide::default());
    Arc::new(Handlers(vec![(pando_dex::MemorySide::OP, nodes), (pando_elf_remote::MemorySide::OP, images)]))
}

/// Opens or creates the pool that `config` names and attaches to it. Memory servers in this process execute
/// what is offloaded.
pub(crate) fn open(config: &Config, seed: u64) -> Result<(AnyFabric, Pool)> {
    let (fabric, pool) = open_pool(config, seed)?;
    if config.offload != OffloadPolicy::Never && fabric.has_copies() {
        let ep = fabric.endpoint(seed)?;
        block_on(&ep, pool.detach(&ep))?;
        let text =
            "memory servers with copies execute no operations: the pool must be opened without offloading";
        return Err(Error::InvalidOption(text.to_owned()));
    }
    if config.offload != OffloadPolicy::Never && config.mode() == AttachMode::ReadWrite {
        fabric.set_handler(handlers(), config.memory_cores)?;
    }
    Ok((fabric, pool))
}

fn open_pool(config: &Config, seed: u64) -> Result<(AnyFabric, Pool)> {
    match &config.place {
        Place::Embedded => {
            let server_sizes = vec![config.memory; config.memory_servers];
            let fabric = LocalFabric::new(LocalConfig { server_sizes, huge_pages: config.huge_pages })?;
            let ep = fabric.endpoint(seed)?;
            let attach = config.waiting(AttachOptions::embedded());
            let pool = block_on(&ep, Pool::create(&ep, PoolOptions::new(attach)))?;
            Ok((AnyFabric::Local(fabric), pool))
        }
        Place::At(path) => {
            let (fabric, pool) = open_at(config, path, seed).map_err(|error| at_path(path, error))?;
            Ok((AnyFabric::Shm(fabric), pool))
        }
        Place::Tcp(_) | Place::Verbs(_) => {
            let (fabric, pool) = open_elsewhere(config, seed, |fabric, ep, all_named| {
                attach_elsewhere(config, fabric, ep, seed, all_named)
            })?;
            if let AnyFabric::Tcp(connections) = &fabric {
                connections.find_joining(find_servers::joining(config, pool.id()));
            }
            Ok((fabric, pool))
        }
    }
}

/// Connects to the memory servers elsewhere at these addresses.
fn connect(config: &Config, addresses: &[String]) -> Result<AnyFabric> {
    match &config.place {
        Place::Verbs(_) => connect_verbs(config, &config.access.verbs, addresses),
        _ => Ok(AnyFabric::Tcp(TcpFabric::connect(tcp_config(config, addresses))?)),
    }
}

fn tcp_config(config: &Config, addresses: &[String]) -> TcpConfig {
    let access = &config.access;
    let (secret, deadline) = (access.secret.clone(), access.of_verb());
    TcpConfig { secret, deadline, ..TcpConfig::new(addresses) }
}

#[cfg(feature = "verbs")]
fn connect_verbs(config: &Config, verbs: &VerbsOptions, addresses: &[String]) -> Result<AnyFabric> {
    Ok(AnyFabric::Verbs(VerbsFabric::connect(tcp_config(config, addresses), verbs)?))
}

#[cfg(not(feature = "verbs"))]
fn connect_verbs(_: &Config, _: &VerbsOptions, _: &[String]) -> Result<AnyFabric> {
    Err(Error::without_verbs())
}

/// Opens a pool in the memory of memory servers elsewhere. `attach` is told whether the list of servers that was
/// given is complete.
fn open_elsewhere(
    config: &Config,
    seed: u64,
    attach: impl Fn(&AnyFabric, &AnyEndpoint, bool) -> Result<Pool>,
) -> Result<(AnyFabric, Pool)> {
    let (name, addresses) = match &config.place {
        Place::Tcp(addresses) => ("tcp", addresses),
        Place::Verbs(addresses) => ("verbs", addresses),
        Place::Embedded | Place::At(_) => unreachable!("these are no addresses"),
    };
    if addresses.iter().any(String::is_empty) {
        return Err(Error::InvalidOption("the address of a memory server is empty".to_owned()));
    }
    attach_to_all(config, addresses, seed, attach)
        .map_err(|error| at_path(Path::new(&format!("{name}://{}", addresses.join(","))), error))
}

/// Attaches to the servers at `addresses`. If these are only some servers of an existing pool, or all of them in
/// another order, finds the complete list. Servers that are drained need not answer.
fn attach_to_all(
    config: &Config,
    addresses: &[String],
    seed: u64,
    attach: impl Fn(&AnyFabric, &AnyEndpoint, bool) -> Result<Pool>,
) -> Result<(AnyFabric, Pool)> {
    match connect(config, addresses) {
        Ok(fabric) => attach_or_find(config, fabric, addresses, seed, attach),
        Err(error) => match without_silent(config, addresses, seed, &error) {
            Some((fabric, rest)) => {
                attach_or_find(config, fabric, &rest, seed, attach).map_err(|found| match found {
                    // Those that do not answer are needed.
                    Error::WrongServers(_) | Error::Fabric(_) | Error::Pool(PoolError::NoRegion { .. }) => {
                        error
                    }
                    Error::Pool(why) if wrong_servers::may_be_why(&why) => error,
                    found => found,
                })
            }
            None => Err(error),
        },
    }
}

/// The servers at `addresses` without the address of those that do not answer, if there is a pool. One of them was the reason for
/// `error`.
fn without_silent(
    config: &Config,
    addresses: &[String],
    seed: u64,
    error: &Error,
) -> Option<(AnyFabric, Vec<String>)> {
    if !may_be_part(config) {
        return None;
    }
    let was_asked = |address: &str| match error {
        Error::Fabric(FabricError::System { path, .. }) => path.strip_prefix("tcp://") == Some(address),
        _ => false,
    };
    let look = |address: &String| match was_asked(address) {
        true => None,
        false => find_servers::look(config, address, seed).ok(),
    };
    let looks: Vec<_> = addresses.iter().map(look).collect();
    let has_pool = looks.iter().flatten().any(|(place, _)| place.is_some());
    let is_silent = |look: &Option<_>| look.is_none();
    if !has_pool || !looks.iter().any(is_silent) {
        return None;
    }
    // The others keep their places. Memory server 0 is always there, so without the first one the list is in another order.
    let keeps_places = !is_silent(&looks[0]);
    let rest = addresses.iter().zip(&looks).filter_map(|(address, look)| match is_silent(look) {
        false => Some(address.clone()),
        true => keeps_places.then(String::new),
    });
    let rest: Vec<String> = rest.collect();
    Some((connect(config, &rest).ok()?, rest))
}

fn attach_or_find(
    config: &Config,
    fabric: AnyFabric,
    addresses: &[String],
    seed: u64,
    attach: impl Fn(&AnyFabric, &AnyEndpoint, bool) -> Result<Pool>,
) -> Result<(AnyFabric, Pool)> {
    // 1. Attach to the servers named.
    let ep = fabric.endpoint(seed)?;
    let (servers, opened) = match attach(&fabric, &ep, true) {
        // A server that is named twice would be taken for one that may join.
        Ok(pool) if ep.regions().len() > pool.servers() && !fabric.has_copies() => {
            (Some(pool.servers()), Ok(pool))
        }
        Err(Error::Pool(error)) if wrong_servers::may_be_why(&error) => match &error {
            PoolError::WrongServers { pool, .. } => (Some(*pool), Err(error)),
            _ => (None, Err(error)),
        },
        opened => return Ok((fabric, opened?)),
    };
    // 2. Diagnose the list. If it is correct, the pool is the right one.
    let drained = |at| opened.as_ref().is_ok_and(|pool| pool.has_drained(MemoryServerId(at as u16)));
    let places = wrong_servers::places(&ep, drained);
    let wrong =
        places.as_ref().ok().and_then(|places| wrong_servers::diagnosis(addresses, places, servers, drained));
    let refused = match opened {
        Ok(pool) if places.is_ok() && wrong.is_none() => return Ok((fabric, pool)),
        Ok(pool) => block_on(&ep, pool.detach(&ep)).map(|()| None)?,
        Err(error) => Some(Error::Pool(error)),
    };
    let places = places?;
    // 3. Search for servers that were not named.
    let found = match wrong {
        Some(Wrong::Contradictory(_)) => Found::default(),
        _ if !may_be_part(config) => Found::default(),
        _ => find_servers::find(config, &ep, addresses, &places, seed)?,
    };
    // 4. Attach to the complete list.
    if let Some(whole) = found.whole.filter(|whole| whole != addresses) {
        let fabric = connect(config, &whole)?;
        let ep = fabric.endpoint(seed)?;
        match attach(&fabric, &ep, whole.len() == addresses.len()) {
            Err(Error::Pool(error)) if wrong_servers::may_be_why(&error) => {}
            opened => return Ok((fabric, opened?)),
        }
    }
    Err(match (wrong, refused) {
        // The server that is there instead says more than the number that is missing.
        (None, Some(error)) | (_, Some(error @ Error::Pool(PoolError::NotAPool { .. }))) => error,
        (wrong, _) => {
            let sentence = wrong.as_ref().map_or("", Wrong::sentence);
            Error::WrongServers([&[sentence.to_owned()], &found.missed[..]].concat().join("; "))
        }
    })
}

/// Whether the servers named may be only some of those of the pool. The list of a new pool must be complete.
fn may_be_part(config: &Config) -> bool {
    matches!(config.create, Create::Never | Create::IfMissing)
}

/// Attaches. If `all_named` and the pool is opened for writing, stores the servers' addresses in the pool.
fn attach_elsewhere(
    config: &Config,
    fabric: &AnyFabric,
    ep: &AnyEndpoint,
    seed: u64,
    all_named: bool,
) -> Result<Pool> {
    let Some(connections) = fabric.connections() else { unreachable!("memory servers elsewhere") };
    let options = attach_options_elsewhere(config, connections);
    let is_alive = Arc::clone(&options.is_alive);
    let attach = |mode| attach(ep, options.clone().mode(mode));
    if config.mode() != AttachMode::ReadWrite {
        let pool = attach(config.mode()).or_else(|early| {
            if !is_half_made(&early) {
                return Err(Error::from(early));
            }
            // No process creates the pool while this lock is held.
            let _lock = fabric.lock_exclusive(config.patience())?;
            Ok(attach(config.mode())?)
        });
        return pool;
    }
    let make = |overwrite: bool| {
        // A group is formed only if there is no pool, or nobody uses the one that is there.
        if !overwrite && !matches!(attach(AttachMode::ReadOnlyUnclean), Err(PoolError::NotAPool { .. })) {
            return Ok(block_on(ep, Pool::create(ep, PoolOptions::new(options.clone())))?);
        }
        if config.replicas > 1 || fabric.has_copies() {
            connections.form_group(config.replicas as u16)?;
        }
        let ep = &fabric.endpoint(seed)?;
        Ok::<_, Error>(block_on(
            ep,
            Pool::create(ep, PoolOptions::new(options.clone()).overwrite(overwrite)),
        )?)
    };
    let lock = fabric.lock_exclusive(config.patience())?;
    let pool = match config.create {
        Create::Never => attach(AttachMode::ReadWrite)?,
        Create::New => make(false)?,
        Create::IfMissing => match attach(AttachMode::ReadWrite) {
            Err(PoolError::NotAPool { server: MemoryServerId(0) }) => make(false)?,
            attached => attached?,
        },
        Create::Replace => {
            // Processes can be attached only to a complete pool.
            if let Ok(pool) = attach(AttachMode::ReadOnlyUnclean) {
                check_unused(ep, &pool, &is_alive)?;
            }
            make(true)?
        }
    };
    if all_named {
        // The addresses are for other processes; the next one to attach stores them if this fails.
        let ep = &fabric.endpoint(seed)?;
        let _ = block_on(ep, pool.set_addresses(ep, &connections.addresses()));
    }
    drop(lock);
    Ok(pool)
}

/// Checks that no living process is attached, so that the pool may be replaced.
fn check_unused<E: Endpoint>(ep: &E, pool: &Pool, is_alive: &IsAlive) -> Result<()> {
    match block_on(ep, pool.attached(ep))?.iter().find(|(_, process)| is_alive(process)) {
        Some(&(_, process)) => Err(Error::NotAlone { what: "replacing a pool", process }),
        None => Ok(()),
    }
}

/// Adds the path of the pool to an error that does not contain it.
fn at_path(path: &Path, error: Error) -> Error {
    match error {
        Error::Pool(PoolError::NotClosedCleanly { process }) => {
            Error::NotClosedCleanly { path: path.to_owned(), process }
        }
        Error::Fabric(FabricError::Open { .. } | FabricError::System { .. }) | Error::InvalidOption(_) => {
            error
        }
        error => Error::CannotOpen { path: path.to_owned(), error: Box::new(error) },
    }
}

fn open_at(config: &Config, path: &Path, seed: u64) -> Result<(ShmFabric, Pool)> {
    let may_be_there = match config.create {
        Create::Never => true,
        Create::IfMissing => ShmFabric::exists(path),
        Create::New | Create::Replace => false,
    };
    let early = match may_be_there.then(|| attach_at(config, path, seed)) {
        // Another process may be creating the pool at this moment.
        Some(Err(error)) if may_be_half_made(&error) => Some(error),
        Some(attached) => return attached,
        None => None,
    };
    // While this lock is held, only one process creates a pool, none removes what another is creating, and no
    // pool is incomplete.
    let _lock = ShmFabric::lock_place(path).map_err(|error| early.unwrap_or_else(|| error.into()))?;
    match config.create {
        Create::Never => attach_at(config, path, seed),
        Create::IfMissing if ShmFabric::exists(path) => attach_at(config, path, seed),
        Create::IfMissing | Create::New => make_at(config, path, seed),
        Create::Replace => {
            remove_replaceable(path, seed)?;
            make_at(config, path, seed)
        }
    }
}

/// Whether a pool that another process is creating may cause this error.
fn may_be_half_made(error: &Error) -> bool {
    match error {
        Error::Fabric(FabricError::Open { .. }) => true,
        Error::Pool(error) => is_half_made(error),
        _ => false,
    }
}

/// As [`may_be_half_made`], for errors of its regions.
fn is_half_made(error: &PoolError) -> bool {
    matches!(
        error,
        PoolError::NotAPool { .. }
            | PoolError::CutShort { .. }
            | PoolError::DamagedSuperblock { .. }
            | PoolError::ForeignRegion { .. }
            | PoolError::WrongServers { .. }
    )
}

/// Attaches. A process that detached and ended between two steps of that seems to have died; a second attempt
/// shows which it was.
fn attach<E: Endpoint>(ep: &E, options: AttachOptions) -> Result<Pool, PoolError> {
    match block_on(ep, Pool::attach(ep, options.clone())) {
        Err(PoolError::NotClosedCleanly { .. }) => block_on(ep, Pool::attach(ep, options)),
        attached => attached,
    }
}

fn attach_options_elsewhere(config: &Config, connections: &TcpFabric) -> AttachOptions {
    let knows = connections.clone();
    let is_alive: IsAlive = Arc::new(move |process: &ProcessIdentity| knows.is_alive(process.start_time));
    // The memory servers' number for this process tells it from the others.
    let (pid, _) = this_process();
    let process = ProcessIdentity { pid, start_time: connections.process(), host: 0 };
    config.waiting(AttachOptions::new(process, is_alive))
}

fn attach_options(config: &Config) -> AttachOptions {
    let host = host_and_boot();
    let (pid, start_time) = this_process();
    // A process of another boot is dead. A pool in files is used by one host only.
    let is_alive = move |process: &ProcessIdentity| {
        process.host == host && process_alive(process.pid, process.start_time)
    };
    config.waiting(AttachOptions::new(ProcessIdentity { pid, start_time, host }, Arc::new(is_alive)))
}

/// The boot of this host as a number; 0 if the kernel does not report it.
fn host_and_boot() -> u64 {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // FNV-1a, because the hash must be the same in all versions of this program.
    boot.iter().fold(0, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn attach_at(config: &Config, path: &Path, seed: u64) -> Result<(ShmFabric, Pool)> {
    let changes = config.mode() == AttachMode::ReadWrite;
    let fabric = ShmFabric::open(path, !changes)?;
    let ep = fabric.endpoint(seed)?;
    let _lock = if changes { Some(fabric.lock_exclusive()?) } else { None };
    let pool =
        attach(&ep, attach_options(config).mode(config.mode())).map_err(|error| missing(path, error))?;
    Ok((fabric, pool))
}

/// Names the file that is missing.
fn missing(path: &Path, error: PoolError) -> Error {
    match error {
        PoolError::NoRegion { server } => ShmFabric::missing(path, server).into(),
        error => error.into(),
    }
}

/// Attaches for repair to the pool that `config` describes; `None` if it is in use.
pub(crate) fn open_for_repair(config: &Config, seed: u64) -> Result<Option<(AnyFabric, Pool, AnyLock)>> {
    let lock = RefCell::new(None);
    let attach = |fabric: &AnyFabric, ep: &AnyEndpoint, _| {
        // One lock at a time.
        drop(lock.take());
        *lock.borrow_mut() = fabric.lock_exclusive(config.patience())?;
        let options = match fabric.connections() {
            Some(connections) => attach_options_elsewhere(config, connections),
            None => attach_options(config),
        };
        let attached = attach(ep, options.mode(AttachMode::Repair));
        match &config.place {
            Place::At(path) => attached.map_err(|error| missing(path, error)),
            _ => Ok(attached?),
        }
    };
    let attached = match &config.place {
        Place::Embedded => return Ok(None),
        Place::At(path) => {
            let fabric = AnyFabric::Shm(ShmFabric::open(path, false)?);
            let ep = fabric.endpoint(seed)?;
            attach(&fabric, &ep, true).map(|pool| (fabric, pool))
        }
        Place::Tcp(_) | Place::Verbs(_) => open_elsewhere(config, seed, attach),
    };
    match attached {
        Err(error) if error.is_in_use() => Ok(None),
        attached => {
            let ((fabric, pool), lock) = (attached?, lock.take());
            Ok(Some((fabric, pool, lock.expect("it is not embedded"))))
        }
    }
}

fn make_at(config: &Config, path: &Path, seed: u64) -> Result<(ShmFabric, Pool)> {
    let huge_pages = if config.huge_pages { HugePages::WhenOffered } else { HugePages::Never };
    let (servers, bytes_per_server) = (config.memory_servers, config.memory);
    let made_directory = !path.is_dir();
    let fabric = ShmFabric::create(path, ShmConfig { servers, bytes_per_server, huge_pages })?;
    let made = (|| {
        let _lock = fabric.lock_exclusive()?;
        let ep = fabric.endpoint(seed)?;
        Ok(block_on(&ep, Pool::create(&ep, PoolOptions::new(attach_options(config))))?)
    })();
    match made {
        Ok(pool) => Ok((fabric, pool)),
        Err(error) => {
            // Remains would hinder the next attempt. A failure to remove them is less important than the
            // error.
            let _ = remove_files(path);
            if made_directory {
                let _ = fs::remove_dir(path);
            }
            Err(error)
        }
    }
}

/// Removes the pool at `path`, if there is one. Refuses if a living process uses it.
fn remove_replaceable(path: &Path, seed: u64) -> Result<()> {
    if !ShmFabric::exists(path) {
        return Ok(());
    }
    let refused =
        |reason: String| Err(Error::InvalidOption(format!("{} is not replaced: {reason}", path.display())));
    let fabric = match ShmFabric::open(path, true) {
        Ok(fabric) => fabric,
        // Files of memory servers are recognised by their names; a plain file may be anything.
        Err(_) if path.is_dir() => return remove_files(path),
        Err(error) => return refused(format!("{error}; remove it first if it is not needed")),
    };
    let ep = fabric.endpoint(seed)?;
    let options = attach_options(&Config::at(path));
    let is_alive = options.is_alive.clone();
    let looking = block_on(&ep, Pool::attach(&ep, options.mode(AttachMode::ReadOnlyUnclean)));
    match looking {
        Err(PoolError::NotAPool { .. }) if !path.is_dir() => {
            refused("it holds no pool; remove it first if it is not needed".to_owned())
        }
        // No process can be attached to an incomplete pool.
        Err(
            PoolError::NotAPool { .. }
            | PoolError::CutShort { .. }
            | PoolError::VersionMismatch { .. }
            | PoolError::DamagedSuperblock { .. }
            | PoolError::ForeignRegion { .. }
            | PoolError::NoRegion { .. }
            | PoolError::WrongServers { .. },
        ) => remove_files(path),
        Err(error) => Err(error.into()),
        Ok(pool) => {
            check_unused(&ep, &pool, &is_alive)?;
            remove_files(path)
        }
    }
}

/// Removes the files of a pool's memory servers. Other files in its directory stay.
fn remove_files(path: &Path) -> Result<()> {
    let failed = |path: &Path, error: std::io::Error| {
        let reason = format!("cannot be removed: {error}");
        Error::Fabric(FabricError::System { path: path.display().to_string(), reason })
    };
    if !path.is_dir() {
        return fs::remove_file(path).map_err(|error| failed(path, error));
    }
    for entry in fs::read_dir(path).map_err(|error| failed(path, error))? {
        let file = entry.map_err(|error| failed(path, error))?;
        let name = file.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("server-")?.strip_suffix(".pando"));
        if number.is_some_and(|number| number.parse::<usize>().is_ok()) {
            fs::remove_file(file.path()).map_err(|error| failed(&file.path(), error))?;
        }
    }
    Ok(())
}
