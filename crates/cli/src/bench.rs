//! `pando bench`: measures the index with generated workloads (DEX §8.1).
//!
//! The options are those of [`BenchSpec`], with its defaults. All named workloads are checked before the
//! first one runs; each has its own cluster.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use pando::{CacheOptions, Cluster, Durability, Eviction};
use pando_lab::bench::{self, BenchSpec, FabricKind, LayoutChoice, Length, Model, Phase, System, Watch};
use pando_lab::units::{parse_count, parse_nanos, parse_size};
use pando_workload::{Distribution, InsertKeys, KeySpace, ScanLength, Scatter};

use crate::args::{AccessArgs, OffloadArg, parse_durability};
use crate::failure::Failure;
use crate::output::{print, write_document};
use crate::signals::Interrupt;
use crate::{pool, progress};

/// Workloads that run if none is named and the report is text.
const TOUR: [&str; 2] = ["read-only", "write-intensive"];

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Which index: dex, or one to compare with: sherman, fg+, fg, smart, art; on the sim fabric also plain (a tree without a
    /// cache) and local-b-tree
    #[arg(long, value_name = "SYSTEM", default_value = "dex")]
    system: String,
    /// Divide the keys among the compute servers, each of which then needs no remote lock for what is its own, as in
    /// p-sherman and p-smart (dex always does)
    #[arg(long)]
    partitioned: bool,
    /// Techniques to add to the system: of fg, fg+ and sherman index-cache, write-release, combine, on-chip, lock-table,
    /// hierarchical, two-level, version-reads and unsound-ends; of art and smart lock-free-nodes, in-place-leaves,
    /// rear-locks, read-delegation, write-combining, scalable-cache, exact-nodes, unsound-late-followers and
    /// unsound-cached-absence
    #[arg(long, value_name = "TECHNIQUE,..", value_delimiter = ',')]
    with: Vec<String>,
    /// Techniques to take away from it
    #[arg(long, value_name = "TECHNIQUE,..", value_delimiter = ',')]
    without: Vec<String>,
    /// What carries the verbs: local, shm, tcp, verbs, or sim, a simulated cluster in virtual time
    #[arg(long, value_name = "FABRIC", default_value = "local")]
    fabric: String,
    /// Numbers of the simulated cluster, as TOML; what it leaves out is as it is without it
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Cores of each memory server for what is offloaded [default: the cluster's, or 1 where cores are real]
    #[arg(long, value_name = "N")]
    memory_cores: Option<usize>,
    /// Where to make the pool of the shm fabric, which then stays, or tcp://HOST:PORT,.. or verbs://HOST:PORT,.. of memory
    /// servers, where nothing stays
    /// [default: a temporary place; memory servers in this process]
    #[arg(long, value_name = "POOL")]
    pool: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
    #[arg(long, value_name = "N", default_value = "4")]
    memory_servers: usize,
    /// Bytes of each memory server [default: room for what the workload may insert]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Do not ask for huge pages
    #[arg(long)]
    no_huge_pages: bool,
    #[arg(long, value_name = "N", default_value = "4")]
    compute_servers: usize,
    /// Threads of each compute server
    #[arg(long, value_name = "N", default_value = "1")]
    threads: usize,
    /// Operations in flight on each thread, up to 64
    #[arg(long, value_name = "N", default_value = "1")]
    slots: usize,
    /// Bytes of each compute server's cache
    #[arg(long, value_name = "SIZE", default_value = "13MiB", value_parser = parse_size)]
    cache: u64,
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = parse_size)]
    node_size: u64,
    /// Subtrees rooted at this level stand on one memory server each
    #[arg(long, value_name = "M", default_value = "3")]
    subtree_level: u8,
    /// How nodes hold entries: fixed if the sizes allow it, or slotted
    #[arg(long, value_name = "LAYOUT", value_enum, default_value_t = LayoutArg::Auto)]
    layout: LayoutArg,
    /// Records that are loaded
    #[arg(long, value_name = "N", default_value = "10m", value_parser = parse_count)]
    keys: u64,
    /// dense (every second integer), packed (every integer; for workloads that insert no keys) or random64
    #[arg(long, value_name = "SPACE", default_value = "dense")]
    key_space: KeySpace,
    #[arg(long, value_name = "B", default_value = "8")]
    key_size: usize,
    #[arg(long, value_name = "B", default_value = "8")]
    value_size: usize,
    /// How full the load leaves the leaves, up to 1
    #[arg(long, value_name = "F", default_value = "0.5")]
    fill: f64,
    /// How full the load leaves inner nodes, up to 1
    #[arg(long, value_name = "F", default_value = "0.9")]
    inner_fill: f64,
    /// Operations before the measured ones
    #[arg(long, value_name = "N", default_value = "4m", value_parser = parse_count)]
    warmup: u64,
    /// Operations to measure
    #[arg(long, value_name = "N", default_value = "8m", value_parser = parse_count, conflicts_with = "seconds")]
    ops: u64,
    /// Measure for a time instead, of virtual time on the simulated cluster
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Workloads, one after the other: read-only, read-intensive, read-intensive-2, write-intensive,
    /// insert-intensive, insert-only, scan-intensive, ycsb-a to ycsb-f [default: read-only, and without --json
    /// write-intensive too]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    workload: Vec<String>,
    /// zipf:THETA, uniform, latest:THETA, or hotspot:SHARE:WIDTH[:FROM], by which SHARE of the operations go to a
    /// stretch of WIDTH of the key space that begins at FROM of it, all parts of 1; threads then draw from all keys
    /// [default: the workload's own, mostly zipf:0.99]
    #[arg(long, value_name = "DIST")]
    dist: Option<Distribution>,
    /// Which keys inserts go to: drawn, half-new or new [default: the workload's own: half-new, and new for
    /// insert-only and ycsb]
    #[arg(long, value_name = "KEYS")]
    insert_keys: Option<InsertKeys>,
    /// Records that a scan asks for [default: the workload's own: 100, and 1 to 100 for ycsb-e]
    #[arg(long, value_name = "N")]
    scan_length: Option<u32>,
    /// How hot keys are spread: hash, permutation or none
    #[arg(long, value_name = "SCATTER", default_value = "hash")]
    scatter: Scatter,
    /// Draw keys by Zipf's law as popular as those of N records are, if that is more than there are
    #[arg(long, value_name = "N", value_parser = parse_count)]
    ranks: Option<u64>,
    /// Draw keys of each compute server by a law of its own, in place of one over all keys
    #[arg(long)]
    own_ranks: bool,
    /// Begin with an empty index, in workloads that only insert, on the sim fabric
    #[arg(long)]
    from_empty: bool,
    /// Lookups handed over together, in workloads that only look up
    #[arg(long, value_name = "N", default_value = "1")]
    multi_get: usize,
    /// Check every answer, and the whole index at the end (the default)
    #[arg(long, overrides_with = "no_verify")]
    verify: bool,
    /// Do not check answers
    #[arg(long)]
    no_verify: bool,
    /// Let the auditor look at the index at the end (the default)
    #[arg(long, overrides_with = "no_audit")]
    audit: bool,
    /// Do not audit
    #[arg(long)]
    no_audit: bool,
    /// Count operations over time too, by intervals of this length, such as 50ms [for --json]
    #[arg(long, value_name = "TIME", value_parser = parse_nanos)]
    interval: Option<u64>,
    /// Move boundaries between compute servers while operations run, so that all have equally much to do, looking at the
    /// load so often [default without a time: 50ms]. Threads then draw from all keys [local, shm]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "50ms",
          value_parser = parse_nanos)]
    balance: Option<u64>,
    #[arg(long, value_name = "N", default_value = "42")]
    seed: u64,
    /// Probability with which a leaf is admitted to a full cache; 1 is eager admission
    #[arg(long, value_name = "P", default_value = "0.1")]
    leaf_admission: f64,
    /// Leaves that a scan reads together at most; 1 is one after the other
    #[arg(long, value_name = "N", default_value = "8")]
    read_ahead: usize,
    /// What of a changed leaf that is not cached is written: whole, as in the paper, or only the words that changed, as the
    /// library does [dex]
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = LeafWritesArg::Whole)]
    leaf_writes: LeafWritesArg,
    /// When operations whose nodes are not cached are left to memory servers
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = OffloadArg::Never)]
    offload: OffloadArg,
    /// What survives the end of a compute server: off, process, group:TIME or immediate [sim: off or process; shm: with one
    /// compute server]
    #[arg(long, value_name = "WHAT", default_value = "off", value_parser = parse_durability)]
    durability: Durability,
    /// Copies of each memory server [sim only]
    #[arg(long, value_name = "N", default_value = "1")]
    replicas: usize,
    /// Where cooling nodes wait
    #[arg(long, value_name = "HOW", value_enum, default_value_t = CoolingArg::Map)]
    cooling: CoolingArg,
    /// How victims are chosen
    #[arg(long, value_name = "HOW", value_enum, default_value_t = EvictionArg::PathAware)]
    eviction: EvictionArg,
    /// Find every cached child through the mapping table
    #[arg(long)]
    no_swizzle: bool,
    /// Share of the frames that may be cooling
    #[arg(long, value_name = "SHARE", default_value = "0.1")]
    cooling_share: f64,
    /// Write JSON, one object a line for each workload, to a file or to standard output
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LeafWritesArg {
    Whole,
    Changed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayoutArg {
    Auto,
    Fixed,
    Slotted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CoolingArg {
    /// Hash table of small FIFO buckets
    Map,
    /// One FIFO queue under a lock
    Fifo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EvictionArg {
    /// Cooling starts at nodes without cached children
    PathAware,
    /// Any sampled node
    Random,
}

pub fn run(args: BenchArgs) -> Result<(), Failure> {
    let specs = specs(&args)?;
    let interrupt = Interrupt::listen()?;
    let mut documents = String::new();
    let mut clean = true;
    for (number, spec) in specs.iter().enumerate() {
        let watch = Bars { interrupt: interrupt.clone(), bar: RefCell::new(ProgressBar::hidden()) };
        let report = bench::run(spec, &watch);
        watch.bar.borrow().finish_and_clear();
        let report = report?;
        clean &= report.is_clean();
        match &args.json {
            Some(path) => {
                // Written after each workload, so that an error in a later one loses nothing. A file is
                // rewritten each time.
                if path.as_os_str() == "-" {
                    documents.clear();
                }
                documents.extend([report.to_json().as_str(), "\n"]);
                write_document(path, &documents)?;
            }
            None => {
                let blank = if number > 0 { "\n" } else { "" };
                print(&format!("{blank}{}", bench::render(&report)))?;
            }
        }
    }
    if clean {
        Ok(())
    } else {
        Err(Failure::failed("the index did not do all that was asked of it; see the report"))
    }
}

/// One specification per workload, all validated.
fn specs(args: &BenchArgs) -> Result<Vec<BenchSpec>, Failure> {
    let spec = spec(args)?;
    let names: Vec<String> = match (args.workload.is_empty(), &args.json) {
        (false, _) => args.workload.clone(),
        (true, Some(_)) => vec![TOUR[0].to_owned()],
        (true, None) if args.multi_get > 1 => vec![TOUR[0].to_owned()],
        (true, None) => TOUR.map(str::to_owned).to_vec(),
    };
    if names.len() > 1 && spec.pool.is_some() {
        return Err(Failure::bad_input("--pool holds the index of one workload; name one with --workload"));
    }
    let specs: Vec<BenchSpec> =
        names.into_iter().map(|workload| BenchSpec { workload, ..spec.clone() }).collect();
    specs.iter().try_for_each(BenchSpec::validate)?;
    Ok(specs)
}

/// Addresses of all memory servers of the pool to which the `named` ones belong; a new pool consists of
/// these.
fn all_servers(args: &BenchArgs, pool: &Path, named: Vec<String>) -> Result<Vec<String>, Failure> {
    let looking = pool::at(pool, pool::access(&args.access)?)?.read_only_unclean(true);
    Ok(Cluster::open_if_there(looking)?.map_or(named, |cluster| cluster.memory_server_addresses()))
}

fn spec(args: &BenchArgs) -> Result<BenchSpec, Failure> {
    let elsewhere = args.pool.as_deref().map(pool::elsewhere).transpose()?.flatten();
    let fabric = match (&elsewhere, args.fabric.as_str()) {
        (Some(servers), "local" | "tcp" | "verbs") if servers.by_verbs => FabricKind::Verbs,
        (Some(_), "local" | "tcp") => FabricKind::Tcp,
        (_, name) => fabric(name)?,
    };
    let addresses = match (&args.pool, elsewhere) {
        (Some(pool), Some(servers)) => Some(all_servers(args, pool, servers.addresses)?),
        _ => None,
    };
    Ok(BenchSpec {
        system: system(args)?,
        fabric,
        model: model(fabric, args.cluster.as_deref())?,
        memory_cores: args.memory_cores,
        pool: args.pool.clone().filter(|_| addresses.is_none()),
        memory_servers: addresses.as_ref().map_or(args.memory_servers, Vec::len),
        addresses: addresses.unwrap_or_default(),
        access: pool::access(&args.access)?,
        memory_bytes: args.memory,
        huge_pages: !args.no_huge_pages,
        compute_servers: args.compute_servers,
        threads: args.threads,
        slots: args.slots,
        cache_bytes: args.cache,
        cache: cache_options(args),
        read_ahead: args.read_ahead,
        whole_leaves: args.leaf_writes == LeafWritesArg::Whole,
        offload: args.offload.policy(),
        durability: args.durability,
        replicas: args.replicas,
        node_size: crate::indexes::node_size(args.node_size)?,
        subtree_level: args.subtree_level,
        layout: match args.layout {
            LayoutArg::Auto => LayoutChoice::Auto,
            LayoutArg::Fixed => LayoutChoice::Fixed,
            LayoutArg::Slotted => LayoutChoice::Slotted,
        },
        keys: args.keys,
        key_space: args.key_space,
        key_size: args.key_size,
        value_size: args.value_size,
        fill: args.fill,
        inner_fill: args.inner_fill,
        warmup: args.warmup,
        length: args.seconds.map_or(Length::Ops(args.ops), Length::Seconds),
        workload: TOUR[0].to_owned(),
        dist: args.dist,
        insert_keys: args.insert_keys,
        scan_length: args.scan_length.map(ScanLength::Fixed),
        scatter: args.scatter,
        ranks: args.ranks,
        own_ranks: args.own_ranks,
        from_empty: args.from_empty,
        multi_get: args.multi_get,
        verify: !args.no_verify,
        audit: !args.no_audit,
        interval_ns: args.interval,
        balance_every_ns: args.balance,
        seed: args.seed,
    })
}

fn cache_options(args: &BenchArgs) -> CacheOptions {
    CacheOptions {
        leaf_admission: args.leaf_admission,
        eviction: match args.eviction {
            EvictionArg::PathAware => Eviction::PathAware,
            EvictionArg::Random => Eviction::Random,
        },
        fifo: args.cooling == CoolingArg::Fifo,
        swizzle: !args.no_swizzle,
        cooling_share: args.cooling_share,
    }
}

/// The system with its techniques.
fn system(args: &BenchArgs) -> Result<System, Failure> {
    let mut system: System = args.system.parse()?;
    if args.partitioned {
        system = system.partitioned(true).ok_or_else(|| {
            Failure::bad_input(format_args!("there is nothing to divide in the system `{}`", args.system))
        })?;
    }
    Ok(system.switched(&args.with, &args.without)?)
}

fn fabric(name: &str) -> Result<FabricKind, Failure> {
    match name {
        "local" => Ok(FabricKind::Local),
        "shm" => Ok(FabricKind::Shm),
        "sim" => Ok(FabricKind::Sim),
        "tcp" => Ok(FabricKind::Tcp),
        "verbs" => Ok(FabricKind::Verbs),
        _ => Err(Failure::bad_input(format_args!(
            "the fabric `{name}` is not known; there are `local`, `shm`, `tcp`, `verbs` and `sim`"
        ))),
    }
}

/// Model of the simulated cluster.
fn model(fabric: FabricKind, file: Option<&Path>) -> Result<Model, Failure> {
    let Some(path) = file else { return Ok(Model::default()) };
    if fabric != FabricKind::Sim {
        return Err(Failure::bad_input("--cluster describes a simulated cluster; it goes with --fabric sim"));
    }
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::bad_input(format_args!("{}: {error}", path.display())))?;
    Model::from_toml(&text).map_err(|error| Failure::bad_input(format_args!("{}: {error}", path.display())))
}

/// Shows the phases of a run one after the other.
struct Bars {
    interrupt: Interrupt,
    bar: RefCell<ProgressBar>,
}

impl Watch for Bars {
    fn begin(&self, phase: Phase, total: u64) {
        let name = match phase {
            Phase::Load => "load",
            Phase::WarmUp => "warm-up",
            Phase::Measure => "measure",
            Phase::Verify => "verify",
            Phase::Audit => "audit",
        };
        self.bar.replace(progress::bar(name, total)).finish_and_clear();
    }

    fn advance(&self, done: u64) {
        self.bar.borrow().set_position(done);
    }

    fn interrupted(&self) -> bool {
        self.interrupt.wanted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use pando_workload::Mix;

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn parse(arguments: &str) -> BenchArgs {
        Wrapped::parse_from(["bench"].into_iter().chain(arguments.split_whitespace())).args
    }

    #[test]
    fn the_defaults_of_the_command_are_those_of_the_library() {
        let spec = spec(&parse("")).expect("valid");
        assert_eq!(spec.config_hash(), BenchSpec::default().config_hash());
    }

    #[test]
    fn without_a_workload_people_see_two_and_json_is_one_object() {
        let names = |arguments: &str| -> Vec<String> {
            specs(&parse(arguments)).expect("valid").into_iter().map(|spec| spec.workload).collect()
        };
        assert_eq!(names(""), TOUR);
        assert_eq!(names("--json -"), ["read-only"]);
        assert_eq!(names("--workload ycsb-a,ycsb-f --json -"), ["ycsb-a", "ycsb-f"]);
    }

    #[test]
    fn switches_reach_the_specification() {
        let args = parse(
            "--leaf-admission 0.5 --cooling fifo --eviction random --no-swizzle --cooling-share 0.2 --seconds 2 \
             --no-verify --no-audit --layout slotted --keys 2m --cache 1MiB --insert-keys drawn --read-ahead 3",
        );
        let spec = spec(&args).expect("valid");
        let cache = &spec.cache;
        assert!(cache.fifo && !cache.swizzle && cache.eviction == Eviction::Random);
        assert_eq!((cache.leaf_admission, cache.cooling_share), (0.5, 0.2));
        assert_eq!((spec.keys, spec.cache_bytes, spec.length), (2_000_000, 1 << 20, Length::Seconds(2.0)));
        assert!(!spec.verify && !spec.audit && !spec.is_fixed());
        assert_eq!((spec.insert_keys, spec.read_ahead), (Some(InsertKeys::Drawn), 3));
    }

    #[test]
    fn a_peer_is_named_and_its_techniques_switched() {
        let of = |arguments: &str| spec(&parse(arguments)).expect("valid").system;
        assert_eq!(of("--system p-smart"), of("--system smart --partitioned"));
        assert_eq!(
            of("--system fg+ --with combine,on-chip --with hierarchical,two-level").techniques(),
            of("--system sherman").techniques()
        );
        assert_eq!(of("--system smart --without write-combining").techniques().expect("switches").len(), 4);
        assert_eq!(of("--system dex --partitioned"), System::Dex);
    }

    #[test]
    fn a_simulated_cluster_is_described() {
        let args = parse("--fabric sim --memory-cores 2 --interval 1.5ms --threads 36");
        let spec = spec(&args).expect("valid");
        assert_eq!((spec.fabric, spec.interval_ns), (FabricKind::Sim, Some(1_500_000)));
        assert_eq!(spec.cluster_model().memory_server.cores, 2);
        assert_eq!(spec.model, Model::default());
    }

    #[test]
    fn a_hot_spot_and_a_balancer_have_threads_draw_from_all_keys() {
        let of = |arguments: &str| spec(&parse(arguments)).expect("valid");
        assert!(!of("").is_routed().expect("known") && of("").balance_every_ns.is_none());
        assert!(of("--dist hotspot:0.9:0.1").is_routed().expect("known"));
        assert_eq!(of("--balance --keys 2m").balance_every_ns, Some(50_000_000));
        let often = of("--balance=2ms");
        assert!(often.is_routed().expect("known") && often.balance_every_ns == Some(2_000_000));
        assert_ne!(of("").config_hash(), often.config_hash());
    }

    #[test]
    fn what_is_not_built_is_refused_with_what_there_is() {
        for (arguments, part) in [
            ("--fabric telepathy", "not known; there are `local`, `shm`, `tcp`, `verbs` and `sim`"),
            ("--system elf", "the system `elf` is not known; there are dex, plain,"),
            ("--system sherman --with rear-locks", "`rear-locks` is not known; there are index-cache,"),
            ("--with combine", "`dex` has no techniques to be switched"),
            ("--system sherman --partitioned --with version-reads", "does not go with version-reads"),
            ("--system local-b-tree --partitioned --fabric sim", "nothing to divide"),
            ("--system smart --offload always", "--offload goes with it"),
            ("--system plain", "on the sim fabric only"),
            ("--workload ycsb-q", "ycsb-q"),
            ("--workload read-only,ycsb-a --fabric shm --pool p", "name one"),
            ("--balance --fabric sim", "experiment `balance`"),
            ("--balance --compute-servers 1", "nothing to balance"),
            ("--balance=1us", "every 1.00 ms at most"),
            ("--durability process", "fabrics shm and sim only"),
            ("--durability process --fabric shm", "has one compute server"),
            ("--durability immediate --fabric sim", "no disks"),
            ("--durability process --system sherman", "only the system dex has a log"),
            ("--replicas 2", "on the sim fabric only"),
            ("--replicas 0 --fabric sim", "its own"),
            ("--replicas 3 --memory-servers 2 --fabric sim", "a memory server of its own"),
            ("--replicas 2 --fabric sim --offload always", "execute no operations"),
        ] {
            match specs(&parse(arguments)) {
                Err(Failure::BadInput(sentence)) => assert!(sentence.contains(part), "{sentence}"),
                other => panic!("{arguments}: {other:?}"),
            }
        }
        assert!(Mix::names().all(|name| specs(&parse(&format!("--workload {name}"))).is_ok()));
    }
}
