//! Finding the compute servers of an index through its pool: the catalog has the processes that own it, and
//! they announce the addresses of their operation ports ([`crate::Index::announce`]).
//!
//! The pool is opened for inspection, briefly: the client owns nothing, excludes no process, and leaves
//! nothing behind if it is killed. Such a client searches again when no compute server it knows owns a key,
//! so compute servers may come, go and change their addresses.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{Client, ClientConfig, RemoteError, RemoteIndex};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::options::Config;
use crate::shared::{Partition, PartitionOwner, lock};

/// Shortest time between two searches.
const PAUSE: Duration = Duration::from_millis(200);

/// Access to an index.
#[derive(Clone, Debug)]
pub enum Service {
    /// Through its compute servers, whose processes own the keys.
    Remote(RemoteIndex),
    /// No process owns any of it: a process that opens the pool can own all of it.
    Nobody,
}

/// Repeats the search for compute servers.
pub(super) struct Finder {
    config: Config,
    index: String,
    /// Whether the index has a log, so that a compute server that is gone may have an heir.
    has_log: bool,
    /// Time of the last search, and the error of a partition without an operation port.
    last: Mutex<(Option<Instant>, Option<String>)>,
}

impl Finder {
    /// Operation ports that are announced now; none within a short time after the last search.
    pub fn look_again(&self) -> Vec<String> {
        {
            let mut last = lock(&self.last);
            if last.0.is_some_and(|last| last.elapsed() < PAUSE) {
                return Vec::new();
            }
            last.0 = Some(Instant::now());
        }
        let looked = partitions_of(&self.config, &self.index);
        let missing = match &looked {
            Ok(partitions) => unserved(&self.index, partitions).next().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        lock(&self.last).1 = missing;
        looked.map_or(Vec::new(), |partitions| addresses(&self.index, &partitions))
    }

    /// Whether it makes sense to wait for another compute server in place of one that is gone.
    pub fn awaits_heirs(&self) -> bool {
        self.has_log
    }

    /// Reason why some keys may have no compute server that can be reached.
    pub fn missing(&self) -> Option<String> {
        lock(&self.last).1.clone()
    }
}

fn partitions_of(config: &Config, index: &str) -> Result<Vec<Partition>> {
    looked(config, |cluster| cluster.partitions(index))
}

fn has_log(config: &Config, index: &str) -> Result<bool> {
    looked(config, |cluster| Ok(cluster.index_info(index)?.log_bytes.is_some()))
}

fn looked<T>(config: &Config, look: impl FnOnce(&Cluster) -> Result<T>) -> Result<T> {
    let cluster = Cluster::open(config.clone())?;
    let seen = look(&cluster);
    cluster.close()?;
    seen
}

/// Whether the keys of an index with a log may have an heir soon. Nobody waits to inherit from a process that served
/// no clients.
fn may_be_inherited(error: &Error) -> bool {
    match error {
        Error::NotServed { is_lost, owner, .. } => {
            *is_lost && owner.as_ref().is_some_and(|owner| owner.address.is_some())
        }
        Error::Remote(error) => matches!(error, RemoteError::NotConnected { .. }),
        _ => false,
    }
}

fn addresses(index: &str, partitions: &[Partition]) -> Vec<String> {
    let announced = partitions.iter().filter_map(|partition| partition.owner.address(index));
    let mut addresses: Vec<String> = announced.map(str::to_owned).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Errors for the partitions without an operation port; those that have an owner come first.
fn unserved(index: &str, partitions: &[Partition]) -> impl Iterator<Item = Error> {
    let unserved = partitions.iter().enumerate().filter(|(_, found)| found.owner.address(index).is_none());
    let (owned, free): (Vec<_>, Vec<_>) = unserved.partition(|(_, found)| found.owner.process().is_some());
    owned.into_iter().chain(free).map(|(partition, found)| Error::NotServed {
        index: index.to_owned(),
        partition,
        owner: found.owner.process().map(|process| process.owner(index)),
        is_lost: matches!(found.owner, PartitionOwner::Lost(_)),
    })
}

impl Client {
    /// Finds the compute servers of an index through the pool that `config` names, and opens the index there. If the
    /// index has a log and its owner, a compute server, is gone, waits for an heir, up to the deadline.
    ///
    /// ```no_run
    /// use pando::Config;
    /// use pando::remote::{Client, Service};
    ///
    /// let config = Config::tcp(["memory-0:7100", "memory-1:7100"]);
    /// match Client::find(&config, "trees")? {
    ///     Service::Remote(trees) => println!("{:?}", trees.session().get(b"aspen")?),
    ///     Service::Nobody => println!("no process has it open"),
    /// }
    /// # Ok::<(), pando::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownIndex`]; [`Error::NotServed`] if processes own the index and none announces an
    /// operation port; errors of opening the pool for inspection, of [`Client::connect`] and of
    /// [`Client::open_index`].
    pub fn find(config: &Config, index: &str) -> Result<Service> {
        let config = config.clone().for_looking();
        let until = Instant::now() + config.access.deadline;
        let mut awaits_heir = false;
        loop {
            let error = match Self::find_now(&config, index) {
                Err(error) if Instant::now() < until => error,
                found => return found,
            };
            // An heir owns the keys before it serves them.
            awaits_heir &= matches!(error, Error::NotServed { .. });
            awaits_heir = awaits_heir || may_be_inherited(&error) && has_log(&config, index)?;
            if !awaits_heir {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn find_now(config: &Config, index: &str) -> Result<Service> {
        let (partitions, has_log) = looked(config, |cluster| {
            Ok((cluster.partitions(index)?, cluster.index_info(index)?.log_bytes.is_some()))
        })?;
        if partitions.iter().all(|partition| partition.owner == PartitionOwner::Nobody) {
            return Ok(Service::Nobody);
        }
        let addresses = addresses(index, &partitions);
        let missing = match unserved(index, &partitions).next() {
            Some(error) if addresses.is_empty() => return Err(error),
            missing => missing.map(|error| error.to_string()),
        };
        let access = config.access.clone();
        let last = Mutex::new((None, missing));
        let finder = Finder { config: config.clone(), index: index.to_owned(), has_log, last };
        let client = Self::connect_by(ClientConfig::new(addresses).access(access), Some(finder))?;
        Ok(Service::Remote(client.open_index(index)?))
    }
}
