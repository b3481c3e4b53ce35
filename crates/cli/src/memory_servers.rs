//! `pando pool`: lists, adds and drains the memory servers of a pool; `partitions.rs` has the partitions.
//!
//! These commands may run while other processes are attached, unless those own partitions of an index to be
//! moved: an owner cannot be asked to move nodes. The result is one line on standard output.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use pando::{MemoryServerId, ServerState, ServerUsage};
use pando_lab::units::{self, parse_size};
use serde_json::{Value, json};

use crate::args::PoolArgs;
use crate::copies::{self, CopiesArgs};
use crate::failure::Failure;
use crate::partitions::{self, MoveBoundaryArgs, PartitionsArgs};
use crate::signals::Interrupt;
use crate::{output, pool, progress};

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Show the memory servers: their states, and how full they are
    Servers(ServersArgs),
    /// Show which memory server has copies of which memory, and which one is out of use
    Copies(CopiesArgs),
    /// Show the partitions of the indexes: their keys, entries and owners
    Partitions(PartitionsArgs),
    /// Move the boundary between two partitions of an index, also while their compute servers run
    MoveBoundary(MoveBoundaryArgs),
    /// Take one more memory server into use, or one that was drained again
    AddServer(AddServerArgs),
    /// Move all that is on a memory server to the others, and take it out of use, so that it may be switched off
    DrainServer(DrainServerArgs),
    /// Move parts of indexes from full memory servers to empty ones
    Spread(SpreadArgs),
}

#[derive(Args, Debug)]
pub struct ServersArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// Write the table as JSON to a file, or to standard output
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct AddServerArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// Bytes of the memory server; its file is sparse [default: as many as the first has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "again")]
    size: Option<u64>,
    /// Take this memory server into use again, which was drained; its memory may be lost meanwhile
    #[arg(long, value_name = "N")]
    again: Option<u16>,
    /// Move parts of all indexes there
    #[arg(long)]
    spread: bool,
}

#[derive(Args, Debug)]
pub struct DrainServerArgs {
    /// Number of the memory server; the first, 0, cannot be drained
    server: u16,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(Args, Debug)]
pub struct SpreadArgs {
    #[command(flatten)]
    pool: PoolArgs,
}

pub fn run(command: &PoolCommand) -> Result<(), Failure> {
    let is_listening =
        !matches!(command, PoolCommand::Servers(_) | PoolCommand::Copies(_) | PoolCommand::Partitions(_));
    // An interrupt must not end the process before the pool is closed.
    let interrupt = if is_listening { Interrupt::listen()? } else { Interrupt::default() };
    match command {
        PoolCommand::Servers(args) => servers(args),
        PoolCommand::Copies(args) => copies::run(args),
        PoolCommand::Partitions(args) => partitions::run(args),
        PoolCommand::MoveBoundary(args) => say(format_args!("{}", partitions::move_boundary(args)?)),
        PoolCommand::AddServer(args) => add_server(args, &interrupt),
        PoolCommand::DrainServer(args) => drain_server(args, &interrupt),
        PoolCommand::Spread(args) => {
            let moved =
                pool::with_cluster(pool::existing(&args.pool)?, |cluster| spread(cluster, &interrupt))?;
            say(format_args!("{} nodes moved", units::count(moved)))
        }
    }
}

fn servers(args: &ServersArgs) -> Result<(), Failure> {
    let config = pool::existing(&args.pool)?.read_only(true);
    let servers = pool::with_cluster(config, |cluster| Ok(cluster.memory_servers()?))?;
    let document = || document(&args.pool.pool, &servers);
    output::tell(args.json.as_deref(), document, || pool::table(&servers))
}

fn document(path: &Path, servers: &[ServerUsage]) -> Value {
    json!({ "pool": path.to_string_lossy(), "servers": servers.iter().map(pool::server_document).collect::<Vec<_>>() })
}

fn add_server(args: &AddServerArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let config = pool::existing(&args.pool)?;
    let (server, moved) = pool::with_cluster(config, |cluster| {
        let server = match args.again {
            Some(number) => {
                let server = MemoryServerId(number);
                cluster.readmit_memory_server(server)?;
                server
            }
            None => {
                let first = cluster.memory_servers()?.first().map_or(0, |server| server.bytes_total);
                let bar = progress::bytes_bar("copies", 0);
                let added = cluster.add_memory_server_with(args.size.unwrap_or(first), |copies| {
                    bar.set_length(copies.bytes);
                    bar.set_position(copies.whole);
                    interrupt.flow()
                });
                bar.finish_and_clear();
                added?
            }
        };
        let moved = if args.spread { Some(spread(cluster, interrupt)?) } else { None };
        Ok((server, moved))
    })?;
    let moved = moved.map(|nodes| format!("; {} nodes moved", units::count(nodes)));
    say(format_args!("memory server {server} is in use{}", moved.unwrap_or_default()))
}

fn spread(cluster: &pando::Cluster, interrupt: &Interrupt) -> Result<u64, Failure> {
    let bar = progress::bar("spread", 0);
    let moved = cluster.spread_indexes(|nodes| {
        bar.set_position(nodes);
        interrupt.flow()
    });
    bar.finish_and_clear();
    moved.map_err(|error| pool::needs_partitions("spreading indexes", error))
}

fn drain_server(args: &DrainServerArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let server = MemoryServerId(args.server);
    let (drained, is_elsewhere) = pool::with_cluster(pool::existing(&args.pool)?, |cluster| {
        let state =
            |servers: Vec<ServerUsage>| servers.iter().find(|of| of.server == server).map(|of| of.state);
        if state(cluster.memory_servers()?) == Some(ServerState::Drained) {
            return Err(Failure::bad_input(format_args!("memory server {server} is drained already")));
        }
        let blocks = cluster
            .memory_servers()?
            .iter()
            .find(|of| of.server == server)
            .map_or(0, |of| of.blocks_allocated);
        let is_elsewhere = !cluster.memory_server_addresses().is_empty() && cluster.copies()?.is_none();
        let bar = progress::bar("drain", blocks);
        let drained = cluster.drain_memory_server(server, |done| {
            bar.set_position(done.nodes + done.values);
            interrupt.flow()
        });
        bar.finish_and_clear();
        let drained = drained.map_err(|error| pool::needs_partitions("draining a memory server", error))?;
        Ok((drained, is_elsewhere))
    })?;
    let may = if is_elsewhere { " and may be switched off" } else { "" };
    let (nodes, values) = (units::count(drained.nodes), units::count(drained.values));
    match drained.nodes + drained.values {
        // There was nothing, or the owners of it are other processes.
        0 => say(format_args!("memory server {server} is drained{may}")),
        _ => say(format_args!(
            "memory server {server} is drained{may}; {nodes} nodes and {values} long values moved"
        )),
    }
}

fn say(sentence: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    Ok(writeln!(stdout().lock(), "{sentence}")?)
}
