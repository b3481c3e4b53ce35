//! `pando status`: reachability of a cluster's servers, attached processes, and owners of partitions.
//!
//! The command changes nothing, and works on pools that are in use or unclean. If a memory server is not
//! reachable, it reports which one and why, shows the rest, and ends with status 1. It also ends with status
//! 1 if a process died while attached: its unwritten changes are lost, possibly with all of its partitions,
//! except those of indexes with logs.

use std::fmt::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use pando::{
    Access, Cluster, Config, Create, IndexInfo, Partition, PartitionOwner, Process, ServerUsage,
    memory_server_size,
};
use pando_lab::units;
use serde_json::{Value, json};

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

/// A memory server with its size in bytes, or the reason why it is not reachable.
struct Reached {
    address: String,
    size: Result<u64, String>,
}

/// State of the pool.
struct Inside {
    /// Addresses of its memory servers, named or found; empty for a pool in files.
    addresses: Vec<String>,
    servers: Vec<ServerUsage>,
    attached: Vec<Process>,
    indexes: Vec<(IndexInfo, Vec<Partition>)>,
}

impl Inside {
    /// Whether nothing can have been lost.
    fn is_well(&self) -> bool {
        let is_lost = |partition: &Partition| matches!(partition.owner, PartitionOwner::Lost(_));
        let has_lost = |(_, partitions): &(IndexInfo, Vec<Partition>)| partitions.iter().any(is_lost);
        self.attached.iter().all(|process| process.is_alive) && !self.indexes.iter().any(has_lost)
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
    let missing = |reached: &[Reached]| reached.iter().filter(|server| server.size.is_err()).count();
    let inside = match missing(&reached) {
        0 => look(pool::existing(&args.pool)?),
        _ => Err("not all memory servers can be reached".to_owned()),
    };
    if let Ok(Inside { addresses, .. }) = &inside {
        let place = |address: &String| addresses.iter().position(|known| known == address);
        let is_asked = |address: &String| reached.iter().any(|server| server.address == *address);
        let others: Vec<String> = addresses.iter().filter(|address| !is_asked(address)).cloned().collect();
        reached.extend(reach(&others, &access));
        reached.sort_by_key(|server| place(&server.address));
    }
    let missing = missing(&reached);
    let status = Status { pool: args.pool.pool.clone(), reached, inside };
    output::tell(args.json.as_deref(), || document(&status), || text(&status))?;
    match (missing, &status.inside) {
        (0, Ok(inside)) if inside.is_well() => Ok(()),
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
        let size = memory_server_size(address, access).map_err(|error| error.to_string());
        Reached { address: address.clone(), size }
    };
    thread::scope(|scope| {
        let asked: Vec<_> = addresses.iter().map(|address| scope.spawn(move || ask(address))).collect();
        asked.into_iter().map(|thread| thread.join().expect("asking does not panic")).collect()
    })
}

fn look(config: Config) -> Result<Inside, String> {
    let config = config.create(Create::Never).read_only_unclean(true);
    let look = |cluster: &Cluster| {
        let partitioned = |info: IndexInfo| {
            let partitions = cluster.partitions(&info.name)?;
            Ok::<_, pando::Error>((info, partitions))
        };
        let indexes = cluster.indexes()?.into_iter().map(partitioned).collect::<Result<_, _>>()?;
        let (addresses, attached) = (cluster.memory_server_addresses(), cluster.processes()?);
        Ok(Inside { addresses, servers: cluster.stats()?.pool, attached, indexes })
    };
    let cluster = Cluster::open(config).map_err(|error| error.to_string())?;
    let looked = match look(&cluster) {
        // A process that detached and ended between the reads appears dead, so read again.
        Ok(inside) if !inside.is_well() => look(&cluster),
        looked => looked,
    };
    let looked = looked.map_err(|error: pando::Error| error.to_string());
    // Nothing was changed, so an error of closing loses nothing.
    let _ = cluster.close();
    looked
}

fn process(process: &Process) -> String {
    let dead = if process.is_alive { "" } else { " (DEAD: it ended without closing the pool)" };
    format!("{}{dead}", process.identity)
}

fn owner(owner: &PartitionOwner, index: &IndexInfo) -> String {
    match owner {
        PartitionOwner::Lost(process) if index.log_bytes.is_some() => {
            format!("{} (DEAD: whoever opens the index next takes it over)", process.identity)
        }
        PartitionOwner::Lost(process) => format!("LOST with {}", process.identity),
        owner => owner.process().map_or("nobody".to_owned(), |process| process.identity.to_string()),
    }
}

fn text(status: &Status) -> String {
    let mut text = format!("pool {}\n", status.pool.display());
    let mut line = |line: String| writeln!(text, "{line}").expect("writing to a string does not fail");
    for (number, Reached { address, size }) in status.reached.iter().enumerate() {
        line(match size {
            Ok(size) => format!("  memory server {number} at {address}: {}", units::size(*size)),
            Err(reason) => format!("  memory server {number} at {address}: CANNOT BE REACHED: {reason}"),
        });
    }
    let inside = match &status.inside {
        Ok(inside) => inside,
        Err(reason) => {
            line(format!("  nothing is known of what is in it: {reason}"));
            return text;
        }
    };
    line(String::new());
    text.push_str(&pool::table(&inside.servers));
    let attached: Vec<String> = inside.attached.iter().map(process).collect();
    let attached = if attached.is_empty() { "nobody".to_owned() } else { attached.join(", ") };
    writeln!(text, "\nattached: {attached}").expect("writing to a string does not fail");
    for (index, partitions) in &inside.indexes {
        let owners = partitions.iter().enumerate();
        let owners =
            owners.map(|(number, partition)| format!("{number}: {}", owner(&partition.owner, index)));
        let owners = owners.collect::<Vec<_>>().join(", ");
        let log = index.log_bytes.map_or(String::new(), |bytes| format!(", log {}", units::size(bytes)));
        writeln!(text, "index {}: {}{log}; owners of partitions {owners}", index.name, index.layout)
            .expect("writing to a string does not fail");
    }
    if inside.indexes.is_empty() {
        text.push_str("no indexes\n");
    }
    text
}

fn document(status: &Status) -> Value {
    let reached: Vec<Value> = status
        .reached
        .iter()
        .map(|Reached { address, size }| match size {
            Ok(size) => json!({ "address": address, "reached": true, "bytes": size }),
            Err(reason) => json!({ "address": address, "reached": false, "reason": reason }),
        })
        .collect();
    let mut document = json!({ "pool": status.pool.to_string_lossy(), "memory_servers": reached });
    match &status.inside {
        Err(reason) => document["reason"] = json!(reason),
        Ok(inside) => {
            let pid = |process: &Process| process.identity.pid;
            let indexes = inside.indexes.iter().map(|(index, partitions)| {
                let owners: Vec<Option<u32>> =
                    partitions.iter().map(|partition| partition.owner.process().map(pid)).collect();
                let is_lost = |(number, partition): (usize, &Partition)| {
                    let is_lost = matches!(partition.owner, PartitionOwner::Lost(_));
                    (is_lost && index.log_bytes.is_none()).then_some(number)
                };
                let lost: Vec<usize> = partitions.iter().enumerate().filter_map(is_lost).collect();
                json!({
                    "name": index.name,
                    "layout": index.layout.to_string(),
                    "owners": owners,
                    "lost": lost,
                    "log_bytes": index.log_bytes,
                })
            });
            document["servers"] = inside.servers.iter().map(pool::server_document).collect();
            document["attached"] = inside.attached.iter().map(pid).collect();
            document["dead"] = inside.attached.iter().filter(|process| !process.is_alive).map(pid).collect();
            document["indexes"] = indexes.collect();
        }
    }
    document
}
