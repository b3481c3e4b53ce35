//! A memory server as a process of its own: memory of this host, offered over a network to compute servers
//! elsewhere.
//!
//! Its memory ends with the process, or is a file that outlives it. The server executes one-sided verbs, and
//! calls that compute servers offload: operations below a node of DEX (§6), searches of an Elf. It knows nothing else
//! of indexes.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pando_fabric::{Fabric, MemoryServerId};
use pando_fabric_local::{
    ExclusiveLock, HugePages, LocalConfig, LocalFabric, ServedRegion, ShmConfig, ShmFabric,
};
use pando_fabric_net::{
    MemberCondition, MemoryServerFound, OtherWay, OutsideRegister, RegisterAddress, Secret, ServerConfig,
    ServerCounts, TcpServer, random_nonzero,
};
use pando_fabric_verbs::VerbsOptions;

use crate::error::{Error, Result};
use crate::options::{Access, check_count};
use crate::place::handlers;

/// Shortest time after which a process counts as dead.
const GRACE_MIN: Duration = Duration::from_millis(100);

/// Shortest lease of a memory server.
const LEASE_MIN: Duration = Duration::from_millis(50);

/// Largest number of threads of a memory server.
const CORES_MAX: usize = 256;

/// Kind of memory that a memory server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Memory of the process; ends with it.
    Anonymous,
    /// Memory of the process in huge pages reserved by the system. All of them are taken at the start.
    HugePages,
    /// A file, which is created if it does not exist, on any file system: a disk, tmpfs, hugetlbfs,
    /// persistent memory. Or a whole device: device-DAX (`/dev/dax0.0`) or a block device.
    File(PathBuf),
}

/// Options of a [`MemoryServer`].
///
/// ```
/// use pando::{Access, Cluster, Config, Create, IndexOptions, MemoryServer, MemoryServerConfig};
///
/// let server = MemoryServer::start(&MemoryServerConfig::new("127.0.0.1:0").size(64 << 20).secret("known to us alone"))?;
/// let addresses = [server.addr().to_string()];
/// let access = Access::default().secret("known to us alone");
/// let cluster = Cluster::open(Config::tcp(addresses).access(access).create(Create::New))?;
/// cluster.create_index("trees", &IndexOptions::bytes())?.session()?.put(b"aspen", b"a tree")?;
/// cluster.close()?;
/// assert!(server.counts().writes > 0);
/// # Ok::<(), pando::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryServerConfig {
    listen: String,
    size: u64,
    backing: Backing,
    huge_pages: bool,
    cores: usize,
    clients_max: usize,
    strangers_max: usize,
    grace: Duration,
    lease: Duration,
    copy_rate: u64,
    register: Option<RegisterAddress>,
    secret: Secret,
    verbs: Option<VerbsOptions>,
}

impl MemoryServerConfig {
    /// A server that listens at `listen`, `host:port`; with port 0, at any free port.
    pub fn new(listen: impl Into<String>) -> Self {
        Self {
            listen: listen.into(),
            size: 1 << 30,
            backing: Backing::Anonymous,
            huge_pages: true,
            cores: 1,
            clients_max: 4096,
            strangers_max: 256,
            grace: Duration::from_secs(10),
            lease: Duration::from_secs(1),
            copy_rate: 256 << 20,
            register: None,
            secret: Secret::default(),
            verbs: None,
        }
    }

    /// Bytes of memory; 1 GiB. An existing file and a device keep their sizes.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Kind of memory; [`Backing::Anonymous`].
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// Asks for huge pages, but never requires them; `true`.
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Threads that execute verbs and calls, 1 to 256; 1.
    pub fn cores(mut self, cores: usize) -> Self {
        self.cores = cores;
        self
    }

    /// Lets clients reach the memory by RDMA with this device, and in no other way. All of the memory is
    /// pinned then, and it cannot be a file. Starting is an error unless this crate was built with the
    /// feature `verbs`.
    pub fn verbs(mut self, options: VerbsOptions) -> Self {
        self.verbs = Some(options);
        self
    }

    /// Largest number of simultaneous connections of clients; 4096. Each endpoint of a compute server has
    /// one.
    pub fn clients_max(mut self, connections: usize) -> Self {
        self.clients_max = connections;
        self
    }

    /// Largest number of simultaneous connections whose clients have not authenticated yet; 256. They do not
    /// count as clients. One more closes the oldest of them.
    pub fn strangers_max(mut self, connections: usize) -> Self {
        self.strangers_max = connections;
        self
    }

    /// Time after which a process that sends nothing counts as dead, so that others may take over what it owns; 10 s. A
    /// process without connections counts as dead after a fifth of it. From 100 ms on; choose more than the longest pause of a
    /// host or the network.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Time for which a memory server of a pool with copies may serve after it was in contact with most of the others; and
    /// after which they go on without one that does not answer; 1 s, from 50 ms on. The same for all servers of a pool.
    /// What a lost server served is served again after at most three times this time.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Most bytes in a second that the server reads from others to fill its copies of their memory; 256 MiB.
    pub fn copy_rate(mut self, bytes: u64) -> Self {
        self.copy_rate = bytes;
        self
    }

    /// Register outside the memory servers that has the view of a pool with copies: a key of etcd. The same for all servers
    /// of a pool; two suffice then. None: the servers hold it together, and more than half of them must answer each other.
    pub fn register(mut self, address: RegisterAddress) -> Self {
        self.register = Some(address);
        self
    }

    /// Secret that clients must present, at least 16 bytes; none.
    pub fn secret(mut self, secret: impl Into<Secret>) -> Self {
        self.secret = secret.into();
        self
    }
}

/// A running memory server. It serves until it is dropped.
#[derive(Debug)]
pub struct MemoryServer {
    server: TcpServer,
    region: ServedRegion,
    /// Keeps other processes from serving the same file.
    _lock: Option<ExclusiveLock>,
}

impl MemoryServer {
    /// Starts a memory server.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for an option out of its bounds; [`Error::Fabric`] for an address that cannot
    /// be listened at, for memory or a file that is not available, and for a register that does not answer or has the view
    /// of another pool than the file.
    pub fn start(config: &MemoryServerConfig) -> Result<Self> {
        check_count(config.cores, "cores", CORES_MAX)?;
        if config.grace < GRACE_MIN {
            let text = format!("a grace of {:?} is shorter than {GRACE_MIN:?}", config.grace);
            return Err(Error::InvalidOption(text));
        }
        if config.lease < LEASE_MIN {
            let text = format!("a lease of {:?} is shorter than {LEASE_MIN:?}", config.lease);
            return Err(Error::InvalidOption(text));
        }
        config.secret.check().map_err(|error| Error::InvalidOption(error.to_string()))?;
        if config.register.is_some() && config.verbs.is_some() {
            let text =
                "memory that is reached by RDMA has no copies, so there is nothing for a register".to_owned();
            return Err(Error::InvalidOption(text));
        }
        let listener =
            TcpListener::bind(&config.listen).map_err(|error| listening(&config.listen, &error))?;
        let register = config.register.as_ref().map(OutsideRegister::open).transpose()?;
        let (region, lock, incarnation) = memory(config)?;
        let settings = ServerConfig {
            secret: config.secret.clone(),
            threads: config.cores,
            clients_max: config.clients_max,
            strangers_max: config.strangers_max,
            grace: config.grace,
            incarnation,
            fences: beside(&config.backing, "fences"),
            lease: config.lease,
            copy_rate: config.copy_rate,
            acceptor: beside(&config.backing, "acceptor"),
            register,
            may_have_copies: !matches!(&config.backing, Backing::File(path) if ShmFabric::is_device(path)),
            other_way: config
                .verbs
                .as_ref()
                .map(|options| offer(&region, options, config.cores))
                .transpose()?,
            ..ServerConfig::default()
        };
        let server = TcpServer::start(listener, region.clone(), Some(handlers()), settings)
            .map_err(|error| listening(&config.listen, &error))?;
        Ok(Self { server, region, _lock: lock })
    }

    /// Address at which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Bytes of its memory.
    pub fn size(&self) -> u64 {
        self.region.bytes()
    }

    /// Counts since the start.
    pub fn counts(&self) -> ServerCounts {
        self.server.counts()
    }

    /// A function that returns [`MemoryServer::counts`] and may outlive the server.
    pub fn counter(&self) -> impl Fn() -> ServerCounts + Send + Sync + 'static {
        self.server.counter()
    }

    /// A function that tells how the server is among those that have copies of each other's memory; `None` without copies. It
    /// may outlive the server.
    pub fn member_condition(&self) -> impl Fn() -> Option<MemberCondition> + Send + Sync + 'static {
        self.server.member_condition()
    }

    /// Stops serving, and writes changes to the file, if there is one.
    ///
    /// # Errors
    /// [`Error::Fabric`] if the device fails.
    pub fn stop(self) -> Result<()> {
        let Self { server, region, _lock } = self;
        server.leave();
        drop(server);
        Ok(region.flush()?)
    }
}

#[cfg(feature = "verbs")]
fn offer(region: &ServedRegion, options: &VerbsOptions, cores: usize) -> Result<Arc<dyn OtherWay>> {
    Ok(Arc::new(pando_fabric_verbs::VerbsOffer::new(region.clone(), options, cores)?))
}

#[cfg(not(feature = "verbs"))]
fn offer(_: &ServedRegion, _: &VerbsOptions, _: usize) -> Result<Arc<dyn OtherWay>> {
    Err(Error::without_verbs())
}

/// What the memory server at `address`, `host:port`, says of itself.
///
/// # Errors
/// [`Error::Fabric`] with the reason if the server cannot be reached, or rejects this process.
pub fn memory_server_at(address: &str, access: &Access) -> Result<MemoryServerFound> {
    Ok(MemoryServerFound::at(address, &access.secret, access.of_verb())?)
}

fn listening(listen: &str, error: &io::Error) -> Error {
    let (path, reason) = (format!("tcp://{listen}"), format!("cannot be listened at: {error}"));
    match error.kind() {
        // What a file keeps of the group, or what the register has.
        io::ErrorKind::InvalidData => {
            pando_fabric::FabricError::Open { path: listen.to_owned(), reason: error.to_string() }.into()
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::AddrNotAvailable => {
            pando_fabric::FabricError::Open { path, reason }.into()
        }
        _ => pando_fabric::FabricError::System { path, reason }.into(),
    }
}

/// File next to the memory of a server of a file, for what must last as long. Memory of the process needs none, and next
/// to a device nothing lasts.
fn beside(backing: &Backing, what: &str) -> Option<PathBuf> {
    let Backing::File(path) = backing else { return None };
    if ShmFabric::is_device(path) {
        return None;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    Some(name.into())
}

/// The memory, the lock that reserves it for this process, and its incarnation: a number that changes
/// whenever the contents are lost.
fn memory(config: &MemoryServerConfig) -> Result<(ServedRegion, Option<ExclusiveLock>, u64)> {
    let first = MemoryServerId(0);
    let path = match &config.backing {
        Backing::Anonymous => {
            let (server_sizes, huge_pages) = (vec![config.size], config.huge_pages);
            let local = LocalFabric::new(LocalConfig { server_sizes, huge_pages })?;
            return Ok((local.served_region(first)?, None, random_nonzero()));
        }
        Backing::HugePages => {
            return Ok((
                LocalFabric::of_huge_pages(config.size)?.served_region(first)?,
                None,
                random_nonzero(),
            ));
        }
        Backing::File(path) => path,
    };
    let huge_pages = if config.huge_pages { HugePages::WhenOffered } else { HugePages::Never };
    let shape = ShmConfig { servers: 1, bytes_per_server: config.size, huge_pages };
    let file = match () {
        () if ShmFabric::is_device(path) => ShmFabric::open_device(path)?,
        () if ShmFabric::exists(path) => ShmFabric::open(path, false)?,
        () => ShmFabric::create(path, shape)?,
    };
    if file.regions().len() != 1 {
        let reason = "a memory server offers one file, and this is a pool of several".to_owned();
        return Err(Error::InvalidOption(format!("{}: {reason}", path.display())));
    }
    let lock = file.lock_exclusive()?;
    // The contents last as long as the file, so its inode number tells. A device may have the same number
    // again much later.
    let found = fs::metadata(path).map_err(|error| listening(&path.display().to_string(), &error))?;
    let incarnation = found.dev().rotate_left(32) ^ found.ino();
    Ok((file.served_region(first)?, Some(lock), incarnation))
}
