//! A compute server's way to memory servers over TCP.
//!
//! [`TcpFabric`] knows the memory servers by their addresses, in the order of their numbers, and asks each once for the size
//! of its region. An endpoint has a connection of its own to each server that it uses. Every wait has a deadline; a server
//! that does not answer in time costs its connections, and is tried again by whoever needs it next.

mod endpoint;
mod keeper;
mod link;
mod verbs;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pando_fabric::{Fabric, FabricError, MAX_SERVERS, MemoryServerId, Nanos, RegionInfo, Result};

use crate::connect::{self, Destination};
use crate::handshake::{LinkId, Protocol};
use crate::secret::Secret;
pub use endpoint::{TcpEndpoint, end_call};
use keeper::Keeper;
pub use keeper::{TcpLock, wait_for};

/// How to reach the memory servers of a pool.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// `host:port` of memory servers 0, 1, ...
    pub addresses: Vec<String>,
    /// What clients and servers share.
    pub secret: Secret,
    /// How long a verb may wait for its answer, and a connection for being made; 5 s. Shorter for a verb whose operation's
    /// time ends before ([`Endpoint::wait_until`](pando_fabric::Endpoint::wait_until)).
    pub deadline: Duration,
}

impl TcpConfig {
    pub fn new(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let addresses = addresses.into_iter().map(Into::into).collect();
        Self { addresses, secret: Secret::default(), deadline: Duration::from_secs(5) }
    }
}

/// A memory server as all endpoints of this process know it.
struct Server {
    number: MemoryServerId,
    destination: Destination,
    region_len: u64,
    body_max: u32,
    incarnation: u64,
    /// Connections to it that were made so far.
    made: AtomicUsize,
    /// Connections that broke while verbs were under way that may have taken effect, in this order.
    broken: Mutex<Vec<u64>>,
    /// How many these are, and how many of them the server is known to have been told of.
    broken_count: AtomicUsize,
    fenced_count: AtomicUsize,
}

impl Server {
    /// To be called before anybody is told that a verb may have taken effect: no verb that this process sends later is
    /// executed before a late one of connection `link`.
    fn add_broken(&self, link: u64) {
        let mut broken = self.broken();
        broken.push(link);
        self.broken_count.store(broken.len(), Release);
    }

    /// Connections that broke and that somebody who knows `known` of them must fence off before it goes on.
    #[inline]
    fn broken_since(&self, known: usize) -> Option<Vec<u64>> {
        (self.broken_count.load(Acquire) > known).then(|| self.broken()[known..].to_vec())
    }

    /// The first `count` broken connections are fenced off.
    fn add_fenced(&self, count: usize) {
        self.fenced_count.fetch_max(count, Release);
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

struct Shared {
    servers: Vec<Server>,
    infos: Vec<RegionInfo>,
    secret: Secret,
    deadline: Duration,
    /// This process, to memory servers.
    process: u64,
    links: AtomicU64,
    started: Instant,
}

impl Shared {
    fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos
    }

    fn deadline_ns(&self) -> Nanos {
        self.deadline.as_nanos() as Nanos
    }

    /// The name of a new connection.
    fn new_link(&self) -> LinkId {
        LinkId { process: self.process, link: 1 + self.links.fetch_add(1, Relaxed) }
    }
}

/// Memory servers on other hosts, or in other processes. Clones share what they know.
///
/// To memory server 0 this process is there while any clone is, whether it has endpoints or not.
#[derive(Clone)]
pub struct TcpFabric {
    shared: Arc<Shared>,
    _keeper: Arc<Keeper>,
}

impl TcpFabric {
    /// Connects to each memory server once.
    ///
    /// # Errors
    /// `Open` if there are no addresses or too many, one is none, or a server refuses this client; `System` if one cannot be
    /// reached.
    pub fn connect(config: TcpConfig) -> Result<Self> {
        let TcpConfig { addresses, secret, deadline } = config;
        let open_error = |reason: String| FabricError::Open { path: "tcp".to_owned(), reason };
        if !(1..=MAX_SERVERS).contains(&addresses.len()) {
            let count = addresses.len();
            return Err(open_error(format!("{count} memory servers are not between 1 and {MAX_SERVERS}")));
        }
        let process = random_nonzero();
        let links = AtomicU64::new(0);
        let mut servers = Vec::with_capacity(addresses.len());
        for (number, address) in (0..).zip(addresses) {
            let destination = Destination { address: address.into(), protocol: Protocol::VERBS, number };
            let id = LinkId { process, link: 1 + links.fetch_add(1, Relaxed) };
            let (_, welcomed) = connect::connect(&destination, id, &secret, deadline)
                .map_err(|error| error.when_opening(&destination))?;
            servers.push(Server {
                number: MemoryServerId(number),
                destination,
                region_len: welcomed.region_len,
                body_max: welcomed.body_max,
                incarnation: welcomed.incarnation,
                made: AtomicUsize::new(0),
                broken: Mutex::default(),
                broken_count: AtomicUsize::new(0),
                fenced_count: AtomicUsize::new(0),
            });
        }
        let info = |server: &Server| RegionInfo { server: server.number, len: server.region_len };
        let infos = servers.iter().map(info).collect();
        let started = Instant::now();
        let shared = Arc::new(Shared { servers, infos, secret, deadline, process, links, started });
        let keeper = Keeper::start(TcpEndpoint::new(Arc::clone(&shared), 0))?;
        Ok(Self { shared, _keeper: Arc::new(keeper) })
    }

    /// The number by which memory servers know this process.
    pub fn process(&self) -> u64 {
        self.shared.process
    }

    /// `host:port` of each memory server, in the order of their numbers.
    pub fn addresses(&self) -> Vec<String> {
        self.shared.servers.iter().map(|server| server.destination.address.to_string()).collect()
    }

    /// How long a verb may wait for its answer.
    pub fn deadline(&self) -> Duration {
        self.shared.deadline
    }

    /// Bytes that a call to `server`, or its reply, may have; 0 for an unknown one.
    pub fn body_max(&self, server: MemoryServerId) -> u32 {
        self.shared.servers.get(usize::from(server.0)).map_or(0, |server| server.body_max)
    }

    /// To be called before anybody is told that a verb to `server` may have taken effect that went another way than over a
    /// connection ([`TcpEndpoint::pair`]): nothing that comes late over the way that goes with connection `link` is executed
    /// after what this process sends later. For an unknown server it does nothing.
    pub fn give_up(&self, server: MemoryServerId, link: u64) {
        if let Some(server) = self.shared.servers.get(usize::from(server.0)) {
            server.add_broken(link);
        }
    }

    /// How many connections to `server` were given up so far. Who sends what goes another way must have seen a
    /// [`TcpEndpoint::ping`] begin and end since the last one.
    #[inline]
    pub fn given_up(&self, server: MemoryServerId) -> usize {
        self.shared.servers.get(usize::from(server.0)).map_or(0, |server| server.broken_count.load(Acquire))
    }
}

impl Fabric for TcpFabric {
    type Endpoint = TcpEndpoint;

    /// Its connections are made when they are needed.
    fn endpoint(&self, seed: u64) -> Result<TcpEndpoint> {
        Ok(TcpEndpoint::new(Arc::clone(&self.shared), seed))
    }

    fn regions(&self) -> &[RegionInfo] {
        &self.shared.infos
    }
}

impl std::fmt::Debug for TcpFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses = self.shared.servers.iter().map(|server| &server.destination.address);
        f.debug_tuple("TcpFabric").field(&addresses.collect::<Vec<_>>()).finish()
    }
}

/// A name for a process that no other has.
pub fn random_nonzero() -> u64 {
    let nonce = crate::handshake::nonce();
    let (word, _) = nonce.split_first_chunk().expect("a nonce is longer than a word");
    u64::from_le_bytes(*word).max(1)
}

/// A connection that is let in and nothing else.
#[cfg(test)]
pub(crate) fn connect_raw(
    to: std::net::SocketAddr,
    id: LinkId,
    secret: &Secret,
) -> Result<std::net::TcpStream, impl std::error::Error + use<>> {
    let destination = Destination { address: to.to_string().into(), protocol: Protocol::VERBS, number: 0 };
    connect::connect(&destination, id, secret, Duration::from_secs(20)).map(|(stream, _)| stream)
}
