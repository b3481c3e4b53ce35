//! `pando memory-server`: offers memory of this host to compute servers.
//!
//! On termination it writes all changes to its file, if it has one, and ends with status 0. `daemon.rs` has
//! the parts common to daemons.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use pando::{Backing, MemoryServer, MemoryServerConfig, RegisterAddress, VerbsOptions};
use pando_lab::units::{self, parse_nanos, parse_size};
use pando_server::memory_server_metrics;

use crate::daemon::{DaemonArgs, check_listening};
use crate::failure::Failure;
use crate::pool;

/// Longest wait for compute servers that stop at the same time and still write back.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum ServedFabric {
    Tcp,
    Verbs,
}

#[derive(Args, Debug)]
pub struct MemoryServerArgs {
    /// Where to listen: HOST:PORT; port 0 is any that is free
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7100")]
    listen: String,
    /// Bytes of memory; a file that is there already keeps its size, and so does a device
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    size: u64,
    /// Where the memory is: anon, which ends with the process; hugetlb, the same in huge pages that the system has set aside; a
    /// file, which is made if there is none; or a device, such as /dev/dax0.0
    #[arg(long, value_name = "anon|hugetlb|FILE", default_value = "anon")]
    backing: PathBuf,
    /// Threads that execute verbs and what is offloaded
    #[arg(long, value_name = "N", default_value = "1")]
    cores: usize,
    /// How long a process that sends nothing counts as alive; then others may take over what it owns. A fifth of that, once
    /// it has no connections
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_nanos)]
    grace: u64,
    /// How long this server may serve a pool with copies after it was in contact with most of the others, and after which
    /// they go on without it; the same for all memory servers of a pool
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_nanos)]
    lease: u64,
    /// Most bytes in a second that it reads from others to fill its copies
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    copy_rate: u64,
    /// A register outside the memory servers for a pool with copies, so that two of them suffice: a key of etcd, etcd://HOST:PORT[,HOST:PORT...]/PREFIX;
    /// the same for all memory servers of a pool [default: they hold it together]
    #[arg(long, value_name = "URL")]
    register: Option<RegisterAddress>,
    /// A file with what clients must know to be let in [default: everybody on this host is]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// How clients reach the memory: tcp, or verbs: RDMA, and then in no other way
    #[arg(long, value_name = "FABRIC", default_value = "tcp")]
    fabric: ServedFabric,
    /// Which RDMA device to use: device=NAME,port=N,gid=N,mtu=BYTES,timeout=N [default: the first that is active]
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    verbs: VerbsOptions,
    /// Do not ask for huge pages
    #[arg(long)]
    no_huge_pages: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub fn run(args: &MemoryServerArgs) -> Result<(), Failure> {
    let daemon = args.daemon.begin()?;
    let backing = match args.backing.to_str() {
        Some("anon") => Backing::Anonymous,
        Some("hugetlb") => Backing::HugePages,
        _ => Backing::File(args.backing.clone()),
    };
    let secret = pool::secret(args.secret_file.as_deref())?;
    check_listening(&args.listen, &secret, "--secret-file", args.daemon.insecure)?;
    let config = MemoryServerConfig::new(&args.listen)
        .size(args.size)
        .backing(backing)
        .huge_pages(!args.no_huge_pages)
        .cores(args.cores)
        .clients_max(args.daemon.clients_max)
        .strangers_max(args.daemon.strangers_max)
        .grace(Duration::from_nanos(args.grace))
        .lease(Duration::from_nanos(args.lease))
        .copy_rate(args.copy_rate)
        .secret(secret);
    let config = match &args.register {
        Some(register) => config.register(register.clone()),
        None => config,
    };
    let config = match args.fabric {
        ServedFabric::Tcp => config,
        ServedFabric::Verbs => config.verbs(args.verbs.clone()),
    };
    let server = MemoryServer::start(&config)?;
    let (size, counts, member) = (server.size(), server.counter(), server.member_condition());
    let page = move || Ok(memory_server_metrics(size, &counts(), member().as_ref()));
    let (http, metrics) = args.daemon.serve(page)?;
    // The reader may be gone.
    let _ = writeln!(stdout(), "memory server: {} at {}{metrics}", units::size(size), server.addr());
    if daemon.wait() {
        wait_for_clients(&server);
    }
    tracing::info!("stopping: {:?}", server.counts());
    drop(http);
    Ok(server.stop()?)
}

/// Waits until all clients that may have something to write back are gone.
fn wait_for_clients(server: &MemoryServer) {
    let until = Instant::now() + PATIENCE;
    while server.counts().clients > 0 && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}
