//! An index of compute servers elsewhere, for processes that are no compute servers.
//!
//! A compute server listens at its *operation port* (`pando_server::OperationServer`). A [`Client`] knows the
//! ports of the compute servers that together own an index, and sends every operation to the one that owns
//! its key. It has no cache, is not attached to the pool, and may come and go at any time.
//! `docs/operations.md` has the protocol and its guarantees.
//!
//! A client that knows only the memory servers finds the compute servers through them: [`Client::find`].
//!
//! ```no_run
//! use pando::Access;
//! use pando::remote::{Client, ClientConfig};
//!
//! let access = Access::default().secret("known to us alone");
//! let client = Client::connect(ClientConfig::new(["compute-0:7400", "compute-1:7400"]).access(access))?;
//! let trees = client.open_index("trees")?;
//! let session = trees.session();
//! session.put(b"aspen", b"Populus tremuloides")?;
//! let mut batch = session.batch();
//! batch.get(b"aspen").get(b"oak");
//! for answer in batch.run() {
//!     println!("{:?}", answer?);
//! }
//! # Ok::<(), pando::Error>(())
//! ```

mod batch;
mod find;
mod link;
mod routes;
mod session;
#[doc(hidden)]
pub mod wire;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pando_dex::KeyRange;
use pando_fabric_net::{Destination, LinkId, Protocol, connect, random_nonzero};

use crate::error::{Error, Result};
pub use crate::error::{ErrorCode, RemoteError};
use crate::layout::IndexLayout;
use crate::options::Access;
use crate::shared::lock;
pub use batch::{Answer, Batch};
use find::Finder;
pub use find::Service;
use routes::Claims;
pub use session::RemoteSession;
pub use wire::Described;
use wire::Opened;

/// Addresses of compute servers, and access to them.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    addresses: Vec<String>,
    access: Access,
}

impl ClientConfig {
    /// Operation ports of all compute servers, `host:port` each, in any order.
    pub fn new(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { addresses: addresses.into_iter().map(Into::into).collect(), access: Access::default() }
    }

    /// Secret and deadline. The deadline also limits the search for the owner of a key.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
}

struct Shared {
    /// Servers may be added at any time.
    servers: Mutex<Vec<Destination>>,
    /// Finds more servers; `None` for a client that was given their addresses.
    finder: Option<Finder>,
    access: Access,
    /// Identifies this client to compute servers.
    process: u64,
    links: AtomicU64,
}

impl Shared {
    fn servers(&self) -> Vec<Destination> {
        lock(&self.servers).clone()
    }

    /// Searches for more compute servers; returns whether there are any.
    fn look_again(&self) -> bool {
        let found = self.finder.as_ref().map(Finder::look_again).unwrap_or_default();
        let mut servers = lock(&self.servers);
        let before = servers.len();
        for address in found {
            if servers.iter().all(|server| *server.address != *address) {
                servers.push(destination(address));
            }
        }
        servers.len() > before
    }

    fn new_link(&self) -> LinkId {
        LinkId { process: self.process, link: 1 + self.links.fetch_add(1, Ordering::Relaxed) }
    }
}

/// A client of compute servers elsewhere. Clones are the same client; any number of threads may use them.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// Connects once to each compute server. It suffices that one can be reached; the others may come later.
    ///
    /// # Errors
    /// [`Error::InvalidOption`]; [`Error::Remote`] if no compute server can be reached, or if one rejects
    /// this client.
    pub fn connect(config: ClientConfig) -> Result<Self> {
        Self::connect_by(config, None)
    }

    fn connect_by(config: ClientConfig, finder: Option<Finder>) -> Result<Self> {
        let ClientConfig { addresses, access } = config;
        if addresses.is_empty() {
            return Err(Error::InvalidOption("there is no compute server to connect to".to_owned()));
        }
        access.check()?;
        let servers = Mutex::new(addresses.into_iter().map(destination).collect());
        let (process, links) = (random_nonzero(), AtomicU64::new(0));
        let shared = Shared { servers, finder, access, process, links };
        let (mut failed, mut is_connected) = (None, false);
        for server in &shared.servers() {
            match connect(server, shared.new_link(), shared.access.of_operations(), shared.access.deadline) {
                Ok(_) => is_connected = true,
                Err(error) if error.is_final() => return Err(link::not_connected(server, &error).into()),
                Err(error) => failed = failed.or(Some(link::not_connected(server, &error))),
            }
        }
        match failed {
            Some(error) if !is_connected => Err(error.into()),
            _ => Ok(Self { shared: Arc::new(shared) }),
        }
    }

    /// Description of the index that the compute servers serve, from the first one that answers.
    ///
    /// # Errors
    /// [`Error::Remote`], that of the first one, if none answers.
    pub fn describe(&self) -> Result<Described> {
        let access = &self.shared.access;
        let dial = link::Dial { secret: access.of_operations(), index: "", patience: access.deadline };
        let mut failed = None;
        for server in self.shared.servers() {
            match link::Link::new(server, self.shared.new_link()).describe(&dial) {
                Ok(described) => return Ok(described),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.expect("a client has a server at least").into())
    }

    /// Opens an index. Compute servers that do not know it or cannot be reached are asked again for keys that
    /// they own.
    ///
    /// # Errors
    /// [`Error::Remote`] if no compute server knows the index or can be reached, or if their layouts of it
    /// differ.
    pub fn open_index(&self, name: &str) -> Result<RemoteIndex> {
        let shared = IndexShared {
            client: Arc::clone(&self.shared),
            name: name.to_owned(),
            known: Mutex::default(),
            version: AtomicU64::new(0),
        };
        let index = RemoteIndex { shared: Arc::new(shared) };
        index.session().inner().open()?;
        Ok(index)
    }
}

fn destination(address: String) -> Destination {
    Destination { address: address.into(), protocol: Protocol::OPERATIONS, number: 0 }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses = self.shared.servers().into_iter().map(|server| server.address);
        f.debug_tuple("Client").field(&addresses.collect::<Vec<_>>()).finish()
    }
}

/// Knowledge about an index, shared by its sessions.
#[derive(Default)]
struct Known {
    layout: Option<IndexLayout>,
    claims: Arc<Claims>,
}

struct IndexShared {
    client: Arc<Shared>,
    name: String,
    known: Mutex<Known>,
    /// Grows whenever `known` changes.
    version: AtomicU64,
}

impl IndexShared {
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn claims(&self) -> Arc<Claims> {
        Arc::clone(&lock(&self.known).claims)
    }

    /// Adopts what server `number` says.
    fn learn(&self, number: usize, address: &Arc<str>, opened: &Opened) -> Result<(), RemoteError> {
        let mut known = lock(&self.known);
        match known.layout {
            Some(layout) if layout != opened.layout => {
                let (server, found) = (Arc::clone(address), opened.layout);
                let reason =
                    format!("its index {:?} holds {found}, and not {layout} as the others", self.name);
                return Err(RemoteError::Rejected { server, reason });
            }
            _ => known.layout = Some(opened.layout),
        }
        known.claims = Arc::new(known.claims.with(number, opened));
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// An index of compute servers elsewhere. Clones are the same index; any number of threads may use them. Each
/// thread opens a [`RemoteSession`] for its operations.
#[derive(Clone)]
pub struct RemoteIndex {
    shared: Arc<IndexShared>,
}

impl RemoteIndex {
    /// Name of the index.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Form of the keys and values.
    pub fn layout(&self) -> IndexLayout {
        lock(&self.shared.known).layout.expect("it is learnt before an index is handed out")
    }

    /// Key ranges that compute servers claim to own, with their addresses. The latest claims come first.
    pub fn owners(&self) -> Vec<(KeyRange, String)> {
        let servers = self.shared.client.servers();
        let claims = self.shared.claims();
        let owner =
            |(range, number): &(KeyRange, usize)| (range.clone(), servers[*number].address.to_string());
        claims.ranges().iter().map(owner).collect()
    }

    /// Opens a session for the calling thread. Its connections are made when they are needed.
    pub fn session(&self) -> RemoteSession {
        RemoteSession::new(self)
    }
}

impl std::fmt::Debug for RemoteIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteIndex").field("name", &self.name()).finish_non_exhaustive()
    }
}
