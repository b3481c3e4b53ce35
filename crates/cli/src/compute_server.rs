//! `pando compute-server`: a process that owns partitions of an index.
//!
//! It attaches to the pool of the memory servers, takes free partitions, and executes operations on their
//! keys for clients of its operation port (`docs/operations.md`). On termination it writes its cache back,
//! gives the partitions up and ends with status 0. `daemon.rs` has the parts common to daemons.

use std::io::{Write, stdout};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use pando::backup::{Backup, BackupOptions, Destination};
use pando::{Cluster, Config, Durability, Error, Followed, Index, OpenOptions, Ownership};
use pando_lab::units::{parse_nanos, parse_size};
use pando_server::{OperationConfig, OperationCounts, OperationServer, compute_server_metrics};

use crate::args::{AccessArgs, parse_durability};
use crate::daemon::{Daemon, DaemonArgs, check_listening, check_secrets};
use crate::failure::Failure;
use crate::pool;

/// Time in which clients learn that the server ends.
const LEAVING: Duration = Duration::from_millis(100);
/// Time after which a standby looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two looks at what other processes want to give or to have.
const FOLLOW: Duration = Duration::from_millis(200);

#[derive(Args, Debug)]
pub struct ComputeServerArgs {
    /// The memory servers: HOST:PORT of any of them, after verbs:// if they offer RDMA; or a pool in files
    #[arg(long, value_name = "ADDR,..|POOL")]
    memory: String,
    /// The index
    #[arg(long, value_name = "NAME")]
    index: String,
    /// The partitions to own, counted from 0 [default: all]
    #[arg(long, value_name = "I,..", value_delimiter = ',')]
    partition: Vec<usize>,
    /// Bytes of cache for each partition
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    cache: u64,
    /// Where to listen for operations: HOST:PORT; port 0 is any that is free
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7150")]
    listen: String,
    /// HOST:PORT at which others reach that, told to all who come to the pool [default: where it listens]
    #[arg(long, value_name = "ADDR")]
    announce: Option<String>,
    /// What survives the end of this process, as for other commands: off, process, group:TIME or immediate
    #[arg(long, value_name = "WHAT", default_value = "off", value_parser = parse_durability)]
    durability: Durability,
    /// While another process owns the partitions, wait until it gives them up or dies, and take them over
    #[arg(long)]
    standby: bool,
    /// Make a backup of the pool from time to time, in a directory or at s3://BUCKET/PREFIX; the pool must have no other index
    #[arg(long, value_name = "DESTINATION", requires = "backup_every")]
    backup_to: Option<Destination>,
    /// Time between two of these backups
    #[arg(long, value_name = "TIME", requires = "backup_to", value_parser = parse_nanos)]
    backup_every: Option<u64>,
    /// Threads that execute operations
    #[arg(long, value_name = "N", default_value = "1")]
    threads: usize,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

impl ComputeServerArgs {
    fn config(&self) -> Result<Config, Failure> {
        let place = place(&self.memory);
        let config = pool::at(Path::new(&place), pool::access(&self.access)?)?;
        Ok(config.cache(self.cache).durability(self.durability))
    }

    /// Where backups go, and the time between two of them.
    fn backups(&self) -> Result<Option<Backups>, Failure> {
        match (&self.backup_to, self.backup_every) {
            (Some(_), _) if self.durability == Durability::Off => Err(Failure::bad_input(
                "backups while operations run need a log: --durability process, group:TIME or immediate",
            )),
            (Some(to), Some(every)) => {
                Ok(Some(Backups { to: to.clone(), every: Duration::from_nanos(every) }))
            }
            _ => Ok(None),
        }
    }

    fn ownership(&self) -> Ownership {
        match &self.partition[..] {
            [] => Ownership::default(),
            some => Ownership::Partitions(some.to_vec()),
        }
    }
}

/// Converts `--memory` into the form of `--pool`. Text that can only be a path, or names an existing one, is
/// a pool in files.
fn place(text: &str) -> String {
    let is_path = text.contains('/') || !text.contains(':') || Path::new(text).exists();
    match text.contains("://") || is_path {
        true => text.to_owned(),
        false => format!("tcp://{text}"),
    }
}

/// Counts of the operation port, once there is one.
type Port = OnceLock<Box<dyn Fn() -> OperationCounts + Send + Sync>>;

pub fn run(args: &ComputeServerArgs) -> Result<(), Failure> {
    let backups = args.backups()?;
    let daemon = args.daemon.begin()?;
    let secret = pool::secret(args.access.operation_secret_file.as_deref())?;
    check_secrets(&pool::secret(args.access.secret_file.as_deref())?, &secret, args.daemon.insecure)?;
    check_listening(&args.listen, &secret, "--operation-secret-file", args.daemon.insecure)?;
    pool::with_cluster(args.config()?, |cluster| {
        let port = Arc::new(Port::new());
        let (asked, of_port) = (Cluster::clone(cluster), Arc::clone(&port));
        let page = move || {
            let counts = of_port.get().map(|counts| counts());
            let stats = asked.stats().map_err(|error| error.to_string())?;
            Ok(compute_server_metrics(&stats, counts.as_ref()))
        };
        let (http, metrics) = args.daemon.serve(page)?;
        let Some(index) = open(args, cluster, &daemon, &metrics)? else { return Ok(()) };
        if let Some(recovery) = index.recovery() {
            tracing::warn!("the last owner of index {} died: {recovery}", index.name());
        }
        let listener = TcpListener::bind(&args.listen).map_err(|error| {
            Failure::failed(format_args!("{} cannot be listened at: {error}", args.listen))
        })?;
        let DaemonArgs { clients_max, strangers_max, .. } = args.daemon;
        let threads = args.threads;
        let config =
            OperationConfig { secret, threads, clients_max, strangers_max, ..OperationConfig::default() };
        let server = OperationServer::start(listener, index.clone(), config).map_err(Failure::failed)?;
        // Nobody else sets it.
        let _ = port.set(Box::new(server.counter()));
        let partitions = match &args.partition[..] {
            [] => "all partitions".to_owned(),
            some => format!("partition {}", some.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
        };
        let at = server.addr();
        announce(args, &index, at)?;
        // The reader may be gone.
        let _ = writeln!(stdout(), "compute server: {partitions} of index {} at {at}{metrics}", index.name());
        thread::scope(|scope| {
            if let Some(backups) = &backups {
                scope.spawn(|| backups.make(cluster, &index, &daemon));
            }
            follow(&index, &daemon);
        });
        tracing::info!("stopping: what is cached is written back");
        let withdrawn = index.withdraw();
        server.leave(LEAVING);
        drop((http, server));
        Ok(withdrawn?)
    })
}

/// Backups that are made from time to time.
struct Backups {
    to: Destination,
    every: Duration,
}

impl Backups {
    /// Makes backups until the daemon is to stop.
    fn make(&self, cluster: &Cluster, index: &Index, daemon: &Daemon) {
        let goes_on = || !daemon.is_to_stop();
        let mut next = Instant::now() + self.every;
        while goes_on() {
            if Instant::now() < next {
                thread::sleep(LOOK.min(next.saturating_duration_since(Instant::now())));
                continue;
            }
            match self.one(cluster, index, &goes_on) {
                Ok(made) => {
                    tracing::info!("backup {}: {} entries, {} bytes", made.id, made.entries(), made.bytes());
                }
                Err(_) if !goes_on() => tracing::info!("the backup under way was stopped"),
                Err(error) => tracing::error!("no backup was made: {error}"),
            }
            // A backup that takes longer than that is followed by a pause as well.
            next = Instant::now() + self.every;
        }
    }

    /// # Errors
    /// If the pool has other indexes, which other processes may want; those of [`Cluster::backup`].
    fn one(&self, cluster: &Cluster, index: &Index, goes_on: &dyn Fn() -> bool) -> Result<Backup, Error> {
        let others: Vec<_> = cluster.index_names()?.into_iter().filter(|name| name != index.name()).collect();
        if !others.is_empty() {
            let text = format!("the pool has other indexes than {}: {}", index.name(), others.join(", "));
            return Err(Error::InvalidOption(text));
        }
        let options = BackupOptions { goes_on: Some(goes_on), ..BackupOptions::default() };
        cluster.backup(&self.to, &options)
    }
}

/// Gives keys to other compute servers, takes keys from them, and leaves memory servers, as the catalog and other processes
/// want it, until the daemon is to stop.
fn follow(index: &Index, daemon: &Daemon) {
    let mut told = String::new();
    while !daemon.is_to_stop() {
        thread::sleep(FOLLOW);
        let failed = match index.follow(&|| !daemon.is_to_stop()) {
            Ok(Followed { boundaries, nodes, .. }) => {
                if boundaries > 0 {
                    tracing::info!("{boundaries} boundaries beside other processes moved");
                }
                if nodes > 0 {
                    tracing::info!("{nodes} nodes and long values moved to other memory servers");
                }
                String::new()
            }
            Err(error) => error.to_string(),
        };
        if failed != told && !failed.is_empty() {
            tracing::warn!(
                "keys or nodes may be on their way to or from another process or memory server: {failed}"
            );
        }
        told = failed;
    }
}

/// Opens the index. A standby waits for its owner, and tells where its `metrics` are; `None` if it is told to stop meanwhile.
fn open(
    args: &ComputeServerArgs,
    cluster: &Cluster,
    daemon: &Daemon,
    metrics: &str,
) -> Result<Option<Index>, Failure> {
    let wait = if args.standby { LOOK } else { Duration::ZERO };
    let options = OpenOptions::default().own(args.ownership()).wait(wait);
    let mut told = false;
    loop {
        match cluster.open_index_with(&args.index, &options) {
            Err(error @ Error::PartitionOwned { .. }) if args.standby => {
                if !told {
                    tracing::info!("standing by{metrics}: {error}");
                    told = true;
                }
                if daemon.is_to_stop() {
                    return Ok(None);
                }
            }
            opened => return Ok(Some(opened?)),
        }
    }
}

/// Announces the operation port in the pool.
fn announce(args: &ComputeServerArgs, index: &Index, at: SocketAddr) -> Result<(), Failure> {
    match &args.announce {
        Some(address) => Ok(index.announce(address)?),
        None if at.ip().is_unspecified() => {
            tracing::warn!("{at} is no address for others; name one by --announce, or clients must be told");
            Ok(())
        }
        None => Ok(index.announce(&at.to_string())?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_files_or_addresses() {
        for path in ["trees.pando", "./trees.pando", "/mnt/trees", "pools/a:1"] {
            assert_eq!(place(path), path);
        }
        assert_eq!(place("10.0.0.1:7100,10.0.0.2:7100"), "tcp://10.0.0.1:7100,10.0.0.2:7100");
        assert_eq!(place("host:7100"), "tcp://host:7100");
        assert_eq!(place("[::1]:7100"), "tcp://[::1]:7100");
        for whole in ["tcp://host:7100", "verbs://host:7100"] {
            assert_eq!(place(whole), whole);
        }
    }
}
