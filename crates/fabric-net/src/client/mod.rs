//! A compute server's access to memory servers over TCP.
//!
//! [`TcpFabric`] knows the memory servers by their addresses, in the order of their numbers, and asks each
//! once for the size of its region. An endpoint has its own connection to each server that it uses. Every
//! wait has a deadline. A server that does not answer in time loses its connections; the next verb to it
//! connects again.

mod endpoint;
mod keeper;
mod link;
mod open;
mod verbs;
mod views;

use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pando_fabric::{Fabric, Growing, MemoryServerId, Nanos, RegionInfo, Result};
use pando_member::{View, VolumeId};
use pando_replica::Views;

use crate::connect::Destination;
use crate::handshake::LinkId;
use crate::secret::Secret;
pub use endpoint::{TcpEndpoint, count_call};
use keeper::Keeper;
pub use keeper::{TcpLock, wait_for};
pub use open::MemoryServerFound;
use views::{Group, Watcher};

/// Configuration of access to the memory servers of a pool.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// `host:port` of memory servers 0, 1, ...; empty for one after the first that is not there, and not in use.
    pub addresses: Vec<String>,
    /// Secret shared by clients and servers.
    pub secret: Secret,
    /// Longest time for the answer to a verb, and for making a connection; 5 s. A verb whose operation has
    /// less time left waits for less ([`Endpoint::wait_until`](pando_fabric::Endpoint::wait_until)).
    pub deadline: Duration,
}

impl TcpConfig {
    pub fn new(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let addresses = addresses.into_iter().map(Into::into).collect();
        Self { addresses, secret: Secret::default(), deadline: Duration::from_secs(5) }
    }
}

/// State of a memory server, shared by all endpoints of this process.
struct Server {
    number: MemoryServerId,
    destination: Destination,
    region_len: u64,
    body_max: u32,
    incarnation: u64,
    /// Number of connections made so far.
    made: AtomicUsize,
    /// Connections that broke with verbs in flight that may have taken effect, in order.
    broken: Mutex<Vec<u64>>,
    /// Length of `broken`, and the number of its first entries that the server is known to have fenced off.
    broken_count: AtomicUsize,
    fenced_count: AtomicUsize,
    is_in_use: AtomicBool,
}

impl Server {
    /// Must be called before a caller learns that a verb may have taken effect: later verbs of this process
    /// are then executed after any late verb of connection `link`.
    fn add_broken(&self, link: u64) {
        let mut broken = self.broken();
        broken.push(link);
        self.broken_count.store(broken.len(), Release);
    }

    /// Broken connections after the first `known`, which must be fenced off before the next verb is sent.
    #[inline]
    fn broken_since(&self, known: usize) -> Option<Vec<u64>> {
        (self.broken_count.load(Acquire) > known).then(|| self.broken()[known..].to_vec())
    }

    /// Records that the first `count` broken connections are fenced off.
    fn add_fenced(&self, count: usize) {
        self.fenced_count.fetch_max(count, Release);
    }

    #[inline]
    fn is_in_use(&self) -> bool {
        self.is_in_use.load(Relaxed)
    }

    /// Whether there is an address at which it may be.
    fn is_known(&self) -> bool {
        !self.destination.address.is_empty()
    }

    fn made(&self) -> usize {
        self.made.load(Relaxed)
    }

    fn fenced(&self) -> usize {
        self.fenced_count.load(Acquire)
    }

    fn broken(&self) -> MutexGuard<'_, Vec<u64>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A view that verbs belong to.
struct Entered {
    epoch: u64,
    /// The view, encoded.
    bytes: Arc<[u8]>,
}

/// Address of the memory server of a number, which joined a moment ago, if the pool tells; the address is that of the server
/// before it.
pub type Finder = Box<dyn Fn(usize, &str) -> Option<String> + Send + Sync>;

struct Shared {
    servers: Growing<Server>,
    /// The regions after each addition; the last list is current.
    infos: Growing<Vec<RegionInfo>>,
    /// Finds memory servers that join. One thread looks at a time.
    finder: OnceLock<Finder>,
    finding: Mutex<()>,
    secret: Secret,
    deadline: Duration,
    /// Number of this process for memory servers.
    process: u64,
    links: AtomicU64,
    started: Instant,
    /// Time up to which no other process takes this one for dead.
    leased_until: AtomicU64,
    /// A memory server said that this process was taken for dead.
    is_given_up: AtomicBool,
    /// The servers as a group, if their memory has copies.
    group: OnceLock<Arc<Group>>,
}

impl Shared {
    fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos
    }

    fn regions(&self) -> &[RegionInfo] {
        &self.infos[self.infos.len() - 1]
    }

    fn deadline_ns(&self) -> Nanos {
        self.deadline.as_nanos() as Nanos
    }

    /// The server that knows which processes live.
    fn home(&self) -> MemoryServerId {
        let primary = self.group.get().and_then(|group| group.view().primary(VolumeId(0)));
        primary.map_or(MemoryServerId(0), |copy| copy.server)
    }

    /// The servers that serve: all that are in use, or those in the view.
    fn serving(&self) -> Vec<MemoryServerId> {
        match self.group.get() {
            Some(group) => group.view().members().collect(),
            None => {
                let in_use = self.servers.iter().filter(|server| server.is_in_use());
                in_use.map(|server| server.number).collect()
            }
        }
    }

    /// Identity of a new connection.
    fn new_link(&self) -> LinkId {
        LinkId { process: self.process, link: 1 + self.links.fetch_add(1, Relaxed) }
    }
}

/// Memory servers on other hosts or in other processes. Clones share their state.
///
/// For memory server 0 this process is present while any clone lives, with or without endpoints.
#[derive(Clone)]
pub struct TcpFabric {
    shared: Arc<Shared>,
    _keeper: Arc<Keeper>,
    watcher: Arc<Mutex<Option<Watcher>>>,
}

impl TcpFabric {
    /// Connects to each memory server once. If one of them says that they are a group, whose memory has copies, connects to
    /// the servers of the group, and those that are not in the view need not answer.
    ///
    /// # Errors
    /// `Open` if there are no addresses or too many, one is invalid, or a server rejects this client;
    /// `System` if one cannot be reached.
    pub fn connect(config: TcpConfig) -> Result<Self> {
        open::connect(config)
    }

    /// Has memory servers found that join the pool while it is open, when a verb goes to one. The first finder stays. Those of
    /// a group are found by its views.
    pub fn find_joining(&self, finder: Finder) {
        let _ = self.shared.finder.set(finder);
    }

    /// The copies of the servers' memory, if they are a group.
    pub fn views(&self) -> Option<Arc<dyn Views>> {
        self.shared.group.get().map(|group| Arc::clone(group) as Arc<dyn Views>)
    }

    /// Takes a decided view of the group, if it is newer than the known one.
    pub(crate) fn learn_view(&self, view: View) {
        if let Some(group) = self.shared.group.get() {
            group.learn(view);
        }
    }

    /// The newest view of the group that is known.
    pub fn view(&self) -> Option<Arc<View>> {
        self.shared.group.get().map(|group| group.view())
    }

    /// Number by which memory servers know this process.
    pub fn process(&self) -> u64 {
        self.shared.process
    }

    /// Whether no other process can have taken this one for dead. `false` for a moment after the start, and while memory
    /// server 0 does not answer.
    pub fn holds_lease(&self) -> bool {
        self.shared.now() < self.shared.leased_until.load(Relaxed)
    }

    /// Whether this process was taken for dead, and stays so.
    pub fn is_given_up(&self) -> bool {
        self.shared.is_given_up.load(Relaxed)
    }

    /// Has a memory server that is not in use fence off all processes that were given up for dead, since nobody did so there
    /// meanwhile. It may be used then ([`Endpoint::set_in_use`](pando_fabric::Endpoint::set_in_use)). Nothing happens if it was not
    /// there when this process looked for it.
    ///
    /// # Errors
    /// As for verbs if it or memory server 0 does not answer.
    pub fn take_back(&self, server: MemoryServerId) -> Result<()> {
        open::take_back(&self.shared, server)
    }

    /// `host:port` of each memory server, in the order of their numbers; empty for one that is not there.
    pub fn addresses(&self) -> Vec<String> {
        self.shared.servers.iter().map(|server| server.destination.address.to_string()).collect()
    }

    /// Longest time for the answer to a verb.
    pub fn deadline(&self) -> Duration {
        self.shared.deadline
    }

    /// Maximum bytes of a call to `server` or of its reply; 0 for an unknown server.
    pub fn body_max(&self, server: MemoryServerId) -> u32 {
        self.shared.servers.get(usize::from(server.0)).map_or(0, |server| server.body_max)
    }

    /// Must be called before a caller learns that a verb to `server` may have taken effect that was not sent
    /// over a connection ([`TcpEndpoint::pair`]). Late verbs over the way that belongs to connection `link`
    /// are then not executed after later requests of this process. Has no effect for an unknown server.
    pub fn give_up(&self, server: MemoryServerId, link: u64) {
        if let Some(server) = self.shared.servers.get(usize::from(server.0)) {
            server.add_broken(link);
        }
    }

    /// Number of connections to `server` given up so far. Before sending a verb another way, a client must
    /// have completed a [`TcpEndpoint::ping`] that began after the latest one.
    #[inline]
    pub fn given_up(&self, server: MemoryServerId) -> usize {
        self.shared.servers.get(usize::from(server.0)).map_or(0, |server| server.broken_count.load(Acquire))
    }
}

impl Fabric for TcpFabric {
    type Endpoint = TcpEndpoint;

    /// Connections are made when they are needed.
    fn endpoint(&self, seed: u64) -> Result<TcpEndpoint> {
        Ok(TcpEndpoint::new(Arc::clone(&self.shared), seed))
    }

    fn regions(&self) -> &[RegionInfo] {
        self.shared.regions()
    }
}

impl std::fmt::Debug for TcpFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses = self.shared.servers.iter().map(|server| &server.destination.address);
        f.debug_tuple("TcpFabric").field(&addresses.collect::<Vec<_>>()).finish()
    }
}

/// A connection after its handshake, for tests.
#[cfg(test)]
pub(crate) fn connect_raw(
    to: std::net::SocketAddr,
    id: LinkId,
    secret: &Secret,
) -> Result<std::net::TcpStream, impl std::error::Error + use<>> {
    let destination =
        Destination { address: to.to_string().into(), protocol: crate::Protocol::VERBS, number: 0 };
    crate::connect::connect(&destination, id, secret, Duration::from_secs(20)).map(|(stream, _)| stream)
}
