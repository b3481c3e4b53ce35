//! Options and arguments of the command line.
//!
//! An option means the same in every command: `--pool` and `--index` name the place, `--cache` bounds this
//! process's memory, `--json` names the file of a report.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pando::{Durability, OffloadPolicy, VerbsOptions};
use pando_lab::units::{parse_count, parse_nanos, parse_size};
use pando_workload::dataset::{Column, Format};

/// How memory servers elsewhere are reached.
#[derive(Args, Clone, Debug)]
pub struct AccessArgs {
    /// A file with the secret that memory servers elsewhere share with their clients
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// A file with the secret that compute servers share with the clients of their operation ports
    #[arg(long, value_name = "FILE")]
    pub operation_secret_file: Option<PathBuf>,
    /// How long an operation may take; a memory server elsewhere has half of it to answer, and to be connected to [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_nanos)]
    pub deadline: Option<u64>,
    /// Which RDMA device to use for verbs://: device=NAME,port=N,gid=N,mtu=BYTES,timeout=N [default: the first that is active]
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    pub verbs: VerbsOptions,
}

/// Where the pool is.
#[derive(Args, Debug)]
pub struct PoolArgs {
    /// The pool: a file, a directory with one file per memory server, tcp://HOST:PORT,.. or verbs://HOST:PORT,.. of its memory servers (any one finds the others; all make a new one), or ops://HOST:PORT,.. of an index's compute servers
    #[arg(long, value_name = "POOL")]
    pub pool: PathBuf,
    #[command(flatten)]
    pub access: AccessArgs,
    /// Bytes of this process's cache per index
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub cache: u64,
    /// What survives the end of this process: off (what was written back; the pool is refused), process (all that was
    /// answered, unless power is lost), group:TIME (after a loss of power, what was answered that long before) or immediate
    /// (all that was answered); the last two need a pool in a file or a directory
    #[arg(long, value_name = "WHAT", default_value = "off", value_parser = parse_durability)]
    pub durability: Durability,
}

pub fn parse_durability(text: &str) -> Result<Durability, String> {
    match text.split_once(':') {
        None if text == "off" => Ok(Durability::Off),
        None if text == "process" => Ok(Durability::Process),
        None if text == "immediate" => Ok(Durability::Immediate),
        Some(("group", interval)) => {
            let nanos = parse_nanos(interval).map_err(|error| error.to_string())?;
            Ok(Durability::Group(Duration::from_nanos(nanos)))
        }
        _ => Err("it is none of off, process, immediate and group:TIME".to_owned()),
    }
}

/// Shape of a pool that is made.
#[derive(Args, Debug)]
pub struct NewPoolArgs {
    /// Size of the pool, if it is made (its files are sparse) [default: at least 1GiB, room for what is loaded]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub pool_size: Option<u64>,
    /// Memory servers of the pool, if it is made; more than one make it a directory [default: 1]
    #[arg(long, value_name = "N")]
    pub memory_servers: Option<usize>,
    /// Copies of all memory of the pool, if it is made on memory servers at tcp://; each is on another one [default: 1]
    #[arg(long, value_name = "N")]
    pub replicas: Option<usize>,
}

/// An index in a pool.
#[derive(Args, Debug)]
pub struct IndexArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The index
    #[arg(long, value_name = "NAME")]
    pub index: String,
}

/// An index, wherever its keys are reached.
#[derive(Args, Debug)]
pub struct TargetArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The index [default: the only one of the pool, or the only one that compute servers serve]
    #[arg(long, value_name = "NAME")]
    pub index: Option<String>,
}

#[derive(Args, Debug)]
pub struct LoadArgs {
    /// The file; - is standard input
    pub file: PathBuf,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub new_pool: NewPoolArgs,
    /// csv, tsv, parquet, text (as scan prints it) or words (one key a line) [default: by the file's extension]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Columns of the key: names or numbers from 1, each with :int or :str for its type [default: the first]
    #[arg(long, value_name = "COL,..", value_delimiter = ',')]
    pub key: Vec<Column>,
    /// Columns of the value [default: all others]
    #[arg(long, value_name = "COL,..", value_delimiter = ',')]
    pub value: Option<Vec<Column>>,
    /// The first row is data, not names of columns
    #[arg(long)]
    pub no_header: bool,
    /// The byte between fields, if not the format's own
    #[arg(long, value_name = "CHAR")]
    pub delimiter: Option<char>,
    /// Empty the index first, instead of replacing the values of keys that are there
    #[arg(long)]
    pub replace: bool,
    /// Bytes of a node, if the index is made [default: 1KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub node_size: Option<u64>,
    /// How full to make leaves, if the index is empty [default: 0.9]
    #[arg(long, value_name = "F")]
    pub fill: Option<f64>,
    /// Rows that may be rejected; with more the command fails, before it has touched anything unless it sorts more rows than
    /// --sort-memory holds
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pub max_rejects: u64,
    /// Keys at which new partitions begin, if the index is made; repeat the option for composite keys
    #[arg(long, value_name = "KEY,..")]
    pub boundaries: Vec<String>,
    /// Own these partitions only, counted from 0, and leave rows of others to other processes
    #[arg(long, value_name = "I,..", value_delimiter = ',')]
    pub own: Vec<usize>,
    /// Threads that insert [default: the cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Memory in which rows are sorted before they are inserted
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_size)]
    pub sort_memory: u64,
    /// Write the summary as JSON to a file, or to standard output
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct CreateArgs {
    #[command(flatten)]
    pub target: IndexArgs,
    #[command(flatten)]
    pub new_pool: NewPoolArgs,
    /// Drop the index first if there is one of that name, also one that was lost
    #[arg(long)]
    pub replace: bool,
    /// Types of the key's columns, int or str each
    #[arg(long, value_name = "TYPE,..", default_value = "str")]
    pub columns: String,
    /// All keys have this many bytes (with --value-size)
    #[arg(long, value_name = "B", requires = "value_size")]
    pub key_size: Option<usize>,
    /// All values have this many bytes (with --key-size)
    #[arg(long, value_name = "B", requires = "key_size")]
    pub value_size: Option<usize>,
    /// Bytes of a node
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = parse_size)]
    pub node_size: u64,
    /// Subtrees rooted at this level stand on one memory server each
    #[arg(long, value_name = "M", default_value = "3")]
    pub subtree_level: u8,
    /// Keys at which new partitions begin; repeat the option for composite keys
    #[arg(long, value_name = "KEY,..")]
    pub boundaries: Vec<String>,
}

/// How rows are printed.
#[derive(Args, Debug)]
pub struct OutputArgs {
    /// How to print
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Text)]
    pub output: Form,
    /// Print keys without their values
    #[arg(long)]
    pub keys_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Key, TAB, value; control characters and bytes that are not UTF-8 as \xNN
    Text,
    /// One object a line
    Json,
    /// As text, but every byte as it is
    Raw,
}

/// Looking at a pool that some process left without closing it.
#[derive(Args, Debug)]
pub struct LookArgs {
    /// Look at a pool that was not closed cleanly, and change nothing
    #[arg(long)]
    pub unclean: bool,
}

#[derive(Args, Debug)]
pub struct GetArgs {
    /// The keys; composite ones as columns with commas between
    #[arg(required_unless_present = "stdin", allow_negative_numbers = true)]
    pub keys: Vec<String>,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub look: LookArgs,
    /// Read keys from standard input, one a line
    #[arg(long, conflicts_with = "keys")]
    pub stdin: bool,
}

#[derive(Args, Debug)]
pub struct PutArgs {
    /// The key
    #[arg(required_unless_present = "stdin", requires = "value", allow_negative_numbers = true)]
    pub key: Option<String>,
    /// Its value
    #[arg(allow_negative_numbers = true)]
    pub value: Option<String>,
    #[command(flatten)]
    pub target: TargetArgs,
    /// Fail if the key is there
    #[arg(long, conflicts_with = "only_present")]
    pub only_absent: bool,
    /// Fail if the key is not there
    #[arg(long)]
    pub only_present: bool,
    /// Read lines of key, TAB, value from standard input
    #[arg(long, conflicts_with = "key")]
    pub stdin: bool,
}

/// A range of keys.
#[derive(Args, Debug)]
pub struct RangeArgs {
    /// First key; of a composite key, the first columns will do
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub from: Option<String>,
    /// Key to end before
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub to: Option<String>,
    /// Only keys that begin so; of a composite key, those with these first columns
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"], allow_negative_numbers = true)]
    pub prefix: Option<String>,
}

#[derive(Args, Debug)]
pub struct DelArgs {
    /// The keys
    #[arg(allow_negative_numbers = true)]
    pub keys: Vec<String>,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Delete everything
    #[arg(long, conflicts_with_all = ["keys", "stdin", "from", "to", "prefix"])]
    pub all: bool,
    /// Read keys from standard input, one a line
    #[arg(long, conflicts_with_all = ["keys", "from", "to", "prefix"])]
    pub stdin: bool,
}

#[derive(Args, Debug)]
pub struct ScanArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Entries at most
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub limit: Option<u64>,
    /// From the last key down
    #[arg(long)]
    pub reverse: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub look: LookArgs,
}

#[derive(Args, Debug)]
pub struct StatsArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    #[command(flatten)]
    pub look: LookArgs,
    /// Print JSON to a file, or to standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    #[command(flatten)]
    pub look: LookArgs,
    /// Free the blocks left by processes that died while others went on; nobody else may use the pool
    #[arg(long, conflicts_with = "unclean")]
    pub free: bool,
}

/// When memory servers execute operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OffloadArg {
    /// Compute servers READ everything themselves
    Never,
    /// Whenever the memory server can do it
    Always,
    /// While that is expected to take less time
    CostAware,
}

impl OffloadArg {
    pub fn policy(self) -> OffloadPolicy {
        match self {
            Self::Never => OffloadPolicy::Never,
            Self::Always => OffloadPolicy::Always,
            Self::CostAware => OffloadPolicy::CostAware,
        }
    }
}
