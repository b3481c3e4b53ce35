//! Opening the pool of a command, and closing it in every case.
//!
//! A pool that was not closed is unclean, and the next command refuses it. So commands always end through
//! [`with_cluster`], also when interrupted or when their reader is gone.

use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pando::{
    Access, Cluster, Config, Create, Durability, Index, IndexInfo, OpenOptions, RecoveryProgress, Secret,
    ServerState, ServerUsage, VerbsOptions,
};
use pando_lab::units;
use serde_json::{Value, json};

use crate::args::{AccessArgs, LookArgs, NewPoolArgs, PoolArgs};
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::progress;

/// Time after which a recovery is shown.
const LONG: Duration = Duration::from_secs(1);
/// Minimum size of a new pool; its files are sparse.
const SIZE_MIN: u64 = 1 << 30;

/// Configuration to open an existing pool.
pub fn existing(args: &PoolArgs) -> Result<Config, Failure> {
    let AccessArgs { secret_file, verbs, .. } = &args.access;
    let elsewhere = elsewhere(&args.pool)?;
    let unused = match &elsewhere {
        None if secret_file.is_some() => Some("--secret-file"),
        None | Some(Elsewhere { by_verbs: false, .. }) if *verbs != VerbsOptions::default() => {
            Some("--verbs")
        }
        _ => None,
    };
    match unused {
        Some(option) => Err(Failure::bad_input(format_args!(
            "{option} says how memory servers elsewhere are reached, and the pool {} is not reached so",
            args.pool.display()
        ))),
        None => Ok(at(&args.pool, access(&args.access)?)?.cache(args.cache).durability(args.durability)),
    }
}

/// Configuration of the pool with this name, on this host or on memory servers.
pub fn at(pool: &Path, access: Access) -> Result<Config, Failure> {
    Ok(match elsewhere(pool)? {
        Some(Elsewhere { addresses, by_verbs: false }) => Config::tcp(addresses).access(access),
        Some(Elsewhere { addresses, by_verbs: true }) => Config::verbs(addresses).access(access),
        None => Config::at(pool).access(access),
    })
}

/// Memory servers in other processes.
pub struct Elsewhere {
    pub addresses: Vec<String>,
    /// Whether their memory is accessed by RDMA.
    pub by_verbs: bool,
}

/// Configuration to open an existing pool for reading only, concurrently with other readers.
pub fn looking(args: &PoolArgs, look: &LookArgs) -> Result<Config, Failure> {
    Ok(existing(args)?.read_only(true).read_only_unclean(look.unclean))
}

/// Configuration to open a pool or create it, with room for `data` bytes.
pub fn perhaps_new(args: &PoolArgs, new: &NewPoolArgs, data: u64) -> Result<Config, Failure> {
    let size = new.pool_size.unwrap_or_else(|| data.saturating_mul(8).max(SIZE_MIN));
    let servers = new.memory_servers.unwrap_or(1);
    let config = existing(args)?.create(Create::IfMissing).memory_servers(servers);
    Ok(config.memory(share(size, servers)).replicas(new.replicas.unwrap_or(1)))
}

/// Number of memory servers of a pool that is not there yet.
pub fn new_servers(args: &PoolArgs, new: &NewPoolArgs) -> Result<usize, Failure> {
    match elsewhere(&args.pool)? {
        Some(Elsewhere { addresses, .. }) => Ok(addresses.len()),
        None => Ok(new.memory_servers.unwrap_or(1)),
    }
}

/// Size of each memory server in bytes.
fn share(pool: u64, servers: usize) -> u64 {
    (pool / servers.max(1) as u64).next_multiple_of(1 << 12)
}

/// Opens an existing pool for `work` before anything is created. Refuses options of a new pool that
/// contradict it.
pub fn look<T>(
    args: &PoolArgs,
    new: &NewPoolArgs,
    work: impl FnOnce(&Cluster) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let told = |what: &str, there: String| {
        let pool = args.pool.display();
        Err(Failure::bad_input(format_args!("{what} is for a pool that is made, but {pool} {there}")))
    };
    if let Some(Elsewhere { addresses, .. }) = elsewhere(&args.pool)? {
        if new.pool_size.is_some() {
            return told("--pool-size", "has the memory of its memory servers".to_owned());
        }
        if new.memory_servers.is_some_and(|servers| servers != addresses.len()) {
            return told("--memory-servers", format!("names {}", addresses.len()));
        }
    }
    let Some(cluster) = Cluster::open_if_there(existing(args)?.read_only(true))? else { return Ok(None) };
    let servers = cluster.memory_servers()?;
    if new.memory_servers.is_some_and(|wanted| wanted != servers.len()) {
        return told("--memory-servers", format!("is there already and has {}", servers.len()));
    }
    if let Some(size) = new.pool_size
        && servers.iter().any(|server| server.bytes_total != share(size, servers.len()))
    {
        let there = servers.iter().map(|server| server.bytes_total).sum();
        return told("--pool-size", format!("is there already and has {}", units::size(there)));
    }
    work(&cluster).map(Some)
}

/// Addresses of the operation ports, if `pool` names compute servers.
pub fn compute_servers(pool: &Path) -> Result<Option<Vec<String>>, Failure> {
    let text = pool.to_string_lossy();
    let Some(rest) = text.strip_prefix("ops://") else { return Ok(None) };
    addresses(rest, "compute server").map(Some)
}

/// Splits a list of addresses of servers.
fn addresses(list: &str, server: &str) -> Result<Vec<String>, Failure> {
    let addresses: Vec<String> = list.split(',').map(str::to_owned).collect();
    match addresses.iter().find(|address| !address.contains(':')) {
        Some(address) => Err(Failure::bad_input(format_args!(
            "`{address}` is no address of a {server}; it looks like HOST:PORT"
        ))),
        None => Ok(addresses),
    }
}

/// The memory servers, if the pool is not in files.
pub fn elsewhere(pool: &Path) -> Result<Option<Elsewhere>, Failure> {
    let text = pool.to_string_lossy();
    if text == "local" {
        return Err(Failure::bad_input(
            "a local pool ends with its process, so only bench can use one; name a file or a directory",
        ));
    }
    match text.split_once("://") {
        None => Ok(None),
        Some((fabric @ ("tcp" | "verbs"), rest)) => {
            let addresses = addresses(rest, "memory server")?;
            Ok(Some(Elsewhere { addresses, by_verbs: fabric == "verbs" }))
        }
        Some(("ops", _)) => Err(Failure::bad_input(
            "this needs the pool itself: name its memory servers (tcp://HOST:PORT,..), not compute servers",
        )),
        Some((fabric, _)) => Err(Failure::bad_input(format_args!(
            "pools over `{fabric}` are not built yet; there are files, directories, tcp://HOST:PORT and \
             verbs://HOST:PORT"
        ))),
    }
}

/// Access to memory servers in other processes.
pub fn access(args: &AccessArgs) -> Result<Access, Failure> {
    let access = Access::default().secret(secret(args.secret_file.as_deref())?).verbs(args.verbs.clone());
    let access = match &args.operation_secret_file {
        Some(file) => access.operation_secret(secret(Some(file.as_path()))?),
        None => access,
    };
    Ok(match args.deadline {
        Some(deadline) => access.deadline(Duration::from_nanos(deadline)),
        None => access,
    })
}

/// Reads the secret from a file; without a file it is empty.
pub fn secret(file: Option<&Path>) -> Result<Secret, Failure> {
    file.map(Secret::from_file).transpose().map(Option::unwrap_or_default).map_err(Failure::bad_input)
}

/// Opens the pool. Shows how far a recovery is if it takes long, and says what it did.
///
/// A reader changes nothing, and so is refused in a pool whose process was killed. Where the indexes have logs, the
/// pool is recovered first, whatever it is opened for.
fn open(config: Config) -> Result<Cluster, Failure> {
    let (begun, bar) = (Instant::now(), Arc::<OnceLock<ProgressBar>>::default());
    let shown = Arc::clone(&bar);
    let report = move |recovery| {
        let (what, done, total) = match recovery {
            RecoveryProgress::Pages { done, total } => ("pages", done, total),
            RecoveryProgress::Indexes { done, total } => ("indexes", done, total),
            _ => return,
        };
        if begun.elapsed() >= LONG {
            let bar = shown.get_or_init(|| progress::bar(what, total));
            bar.set_message(what);
            bar.set_length(total);
            bar.set_position(done);
        }
    };
    let open = |config: Config| -> pando::Result<Cluster> {
        let opened = Cluster::open(config);
        if let Some(bar) = bar.get() {
            bar.finish_and_clear();
        }
        if let Some(recovery) = opened.as_ref().ok().and_then(Cluster::recovery) {
            eprintln!("{recovery}");
        }
        opened
    };
    let config = config.on_recovery(report);
    let refused = match open(config.clone()) {
        Err(refused @ pando::Error::NotClosedCleanly { .. }) => refused,
        opened => return Ok(opened?),
    };
    match open(writing(&config)) {
        Ok(recovered) => recovered.close()?,
        Err(_) => return Err(refused.into()),
    }
    Ok(open(config)?)
}

/// Configuration to write to an existing pool, whose logs stay.
pub fn writing(config: &Config) -> Config {
    config.clone().create(Create::Never).read_only(false).durability(Durability::Process)
}

/// Opens the pool, runs `work`, and closes the pool even if that failed. `work` must not keep anything of the
/// cluster.
pub fn with_cluster<T>(
    config: Config,
    work: impl FnOnce(&Cluster) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let cluster = open(config)?;
    let worked = work(&cluster);
    let closed = cluster.close();
    match (worked, closed) {
        (Ok(result), Ok(())) => Ok(result),
        (Ok(_), Err(error)) => Err(Failure::from(error)),
        (Err(failure), Ok(())) => Err(failure),
        (Err(failure), Err(error)) => {
            Err(failure.with(format_args!("the pool could not be closed: {error}")))
        }
    }
}

/// Runs `look` on a pool to which other live processes are attached, without attaching or excluding others.
/// `None` if there are no others, so that the caller can open the pool alone.
pub fn beside_others<T>(
    config: &Config,
    look: impl FnOnce(&Cluster) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let looking = config.clone().create(Create::Never).read_only_unclean(true);
    with_cluster(looking, |cluster| {
        match cluster.processes()?.iter().any(|process| process.is_alive && !process.is_this) {
            true => look(cluster).map(Some),
            false => Ok(None),
        }
    })
}

/// The result of work on an index; `None` if it failed because the index was dropped meanwhile.
pub fn unless_dropped<T>(
    cluster: &Cluster,
    name: &str,
    result: Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(_) if !cluster.index_names()?.iter().any(|present| present == name) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// [`with_cluster`] with an existing index and its catalog entry.
pub fn with_index<T>(
    config: Config,
    name: &str,
    work: impl FnOnce(&Index, &IndexInfo) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_cluster(config, |cluster| {
        let info = cluster.index_info(name)?;
        let index = cluster.open_index_with(name, &OpenOptions::default())?;
        if let Some(recovery) = index.recovery() {
            eprintln!("{recovery}");
        }
        work(&index, &info)
    })
}

/// Converts an error of `what`, which needs partitions. Their owners cannot execute it for a command yet.
pub fn needs_partitions(what: &str, error: pando::Error) -> Failure {
    match error {
        pando::Error::PartitionOwned { index, partition, owner, .. } => Failure::failed(format_args!(
            "{what} is not possible yet while another process works on the index: partition {partition} of index \
             {index:?} is owned by {owner}; stop it, try again, and start it again"
        )),
        error => error.into(),
    }
}

/// Schema of an index's keys.
pub fn schema_of(info: &IndexInfo) -> Result<KeySchema, Failure> {
    KeySchema::of_description(&info.name, &info.description)
}

/// A table of the memory servers.
pub fn table(servers: &[ServerUsage]) -> String {
    let mut rows = vec![
        ["memory server", "state", "size", "in chunks", "allocated", "blocks", "free chunks"]
            .map(str::to_owned),
    ];
    rows.extend(servers.iter().map(|server| {
        [
            server.server.0.to_string(),
            state(server).to_owned(),
            units::size(server.bytes_total),
            units::size(server.bytes_in_chunks),
            units::size(server.bytes_allocated),
            units::count(server.blocks_allocated),
            units::count(server.chunks_free),
        ]
    }));
    aligned(&rows)
}

/// Rows of a table, indented, with equal widths in each column.
pub fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = (0..row.len())
            .map(|column| {
                let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
                format!("{:>width$}", row[column])
            })
            .collect();
        writeln!(text, "  {}", cells.join("  ")).expect("writing to a string does not fail");
    }
    text
}

fn state(server: &ServerUsage) -> &'static str {
    match server.state {
        ServerState::Active => "active",
        ServerState::Draining => "draining",
        ServerState::Drained => "drained",
    }
}

/// A memory server as a JSON object.
pub fn server_document(server: &ServerUsage) -> Value {
    json!({
        "server": server.server.0,
        "state": state(server),
        "bytes_total": server.bytes_total,
        "bytes_in_chunks": server.bytes_in_chunks,
        "bytes_allocated": server.bytes_allocated,
        "blocks_allocated": server.blocks_allocated,
        "chunks_total": server.chunks_total,
        "chunks_free": server.chunks_free,
        "chunk_size": server.chunk_size,
    })
}
