//! `pando status`: reachability of a cluster's servers, attached processes, and owners of partitions.
//!
//! The command changes nothing, and works on pools that are in use or unclean. If a memory server is not
//! reachable, it reports which one and why, shows the rest, and ends with status 1. It also ends with status
//! 1 if a process died while attached: its unwritten changes are lost, possibly with all of its partitions,
//! except those of indexes with logs. The same if memory that should have copies lacks some.

mod say;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use pando::remote::{Client, ClientConfig};
use pando::{
    Access, Cluster, Config, Copies, Create, IndexInfo, MemoryServerFound, Partition, PartitionOwner,
    Process, ServerUsage, memory_server_at,
};

use crate::args::{AccessArgs, PoolArgs};
use crate::failure::Failure;
use crate::{output, pool};

/// Default time within which a memory server must answer.
const DEADLINE: Duration = Duration::from_secs(2);

#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// Write the status as JSON to a file, or to standard output
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

/// A memory server with what it says, or the reason why it is not reachable.
struct Reached {
    address: String,
    found: Result<MemoryServerFound, String>,
}

/// An index with its partitions.
struct OneIndex {
    info: IndexInfo,
    partitions: Vec<Partition>,
    /// Bytes of its log that an heir of its owners would have to redo, if they tell.
    log_used: Option<u64>,
}

/// State of the pool.
struct Inside {
    /// Addresses of its memory servers, named or found; none for a pool in files, and an empty one for a drained server that is
    /// not there.
    addresses: Vec<String>,
    servers: Vec<ServerUsage>,
    copies: Option<Copies>,
    attached: Vec<Process>,
    indexes: Vec<OneIndex>,
}

impl Inside {
    /// Whether nothing can have been lost by processes that died.
    fn is_owned(&self) -> bool {
        let is_lost = |partition: &Partition| matches!(partition.owner, PartitionOwner::Lost(_));
        let has_lost = |index: &OneIndex| index.partitions.iter().any(is_lost);
        self.attached.iter().all(|process| process.is_alive) && !self.indexes.iter().any(has_lost)
    }

    /// Number of the memory server at `address`.
    fn place(&self, address: &str) -> Option<usize> {
        self.addresses.iter().position(|known| known == address)
    }

    /// Whether that is so, and all copies are there that should be.
    fn is_well(&self) -> bool {
        self.is_owned() && self.copies.as_ref().is_none_or(|copies| copies.lacking().is_empty())
    }
}

struct Status {
    pool: PathBuf,
    /// Empty for a pool in files.
    reached: Vec<Reached>,
    /// The state of the pool, or the reason why it is not known.
    inside: Result<Inside, String>,
}

pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let access = quick(&args.pool.access)?;
    let mut reached = match pool::elsewhere(&args.pool.pool)? {
        Some(servers) => reach(&servers.addresses, &access),
        None => Vec::new(),
    };
    let is_missing = |server: &Reached| server.found.is_err();
    // The pool does without those that are missing where others have copies, and if they are drained.
    let inside =
        look(pool::existing(&args.pool)?, &access).map_err(|error| match reached.iter().any(is_missing) {
            false => error,
            true => "not all memory servers can be reached".to_owned(),
        });
    if let Ok(inside) = &inside {
        reached.retain(|server| !is_missing(server) || inside.place(&server.address).is_some());
        let is_asked = |address: &&String| reached.iter().any(|server| server.address == **address);
        let others = inside.addresses.iter().filter(|address| !address.is_empty() && !is_asked(address));
        reached.extend(reach(&others.cloned().collect::<Vec<_>>(), &access));
        reached.sort_by_key(|server| inside.place(&server.address));
    }
    let is_reached = !reached.iter().any(is_missing);
    let status = Status { pool: args.pool.pool.clone(), reached, inside };
    output::tell(args.json.as_deref(), || say::document(&status), || say::text(&status))?;
    match &status.inside {
        Ok(inside) if is_reached && inside.is_well() => Ok(()),
        _ => Err(Failure::Told),
    }
}

/// Access with a short default deadline.
fn quick(args: &AccessArgs) -> Result<Access, Failure> {
    let access = pool::access(args)?;
    Ok(if args.deadline.is_some() { access } else { access.deadline(DEADLINE) })
}

/// Asks all memory servers in parallel.
fn reach(addresses: &[String], access: &Access) -> Vec<Reached> {
    let ask = |address: &String| {
        let found = memory_server_at(address, access).map_err(|error| error.to_string());
        Reached { address: address.clone(), found }
    };
    thread::scope(|scope| {
        let asked: Vec<_> = addresses.iter().map(|address| scope.spawn(move || ask(address))).collect();
        asked.into_iter().map(|thread| thread.join().expect("asking does not panic")).collect()
    })
}

fn look(config: Config, access: &Access) -> Result<Inside, String> {
    let config = config.create(Create::Never).read_only_unclean(true);
    let look = |cluster: &Cluster| {
        let partitioned = |info: IndexInfo| {
            let partitions = cluster.partitions(&info.name)?;
            let log_used = info.log_bytes.and_then(|_| log_used(&info.name, &partitions, access));
            Ok::<_, pando::Error>(OneIndex { info, partitions, log_used })
        };
        let indexes = cluster.indexes()?.into_iter().map(partitioned).collect::<Result<_, _>>()?;
        let (addresses, attached) = (cluster.memory_server_addresses(), cluster.processes()?);
        let stats = cluster.stats()?;
        Ok(Inside { addresses, servers: stats.pool, copies: stats.copies, attached, indexes })
    };
    let cluster = Cluster::open(config).map_err(|error| error.to_string())?;
    let looked = match look(&cluster) {
        // A process that detached and ended between the reads appears dead, so read again.
        Ok(inside) if !inside.is_owned() => look(&cluster),
        looked => looked,
    };
    let looked = looked.map_err(|error: pando::Error| error.to_string());
    // Nothing was changed, so an error of closing loses nothing.
    let _ = cluster.close();
    looked
}

/// Bytes of an index's log that are in use, as far as its owners have operation ports and answer.
fn log_used(index: &str, partitions: &[Partition], access: &Access) -> Option<u64> {
    let mut owners: Vec<&str> =
        partitions.iter().filter_map(|partition| partition.owner.address(index)).collect();
    owners.sort_unstable();
    owners.dedup();
    let used = owners.into_iter().map(|owner| {
        let client = Client::connect(ClientConfig::new([owner]).access(access.clone())).ok()?;
        Some(client.describe().ok()?.log?.used_bytes)
    });
    used.collect::<Option<Vec<_>>>().filter(|used| !used.is_empty()).map(|used| used.into_iter().sum())
}
