//! Plan of a load: its options are checked against each other, the pool and the index before anything is
//! created.
//!
//! An option of a new object is refused if the object exists and differs; it is accepted if it matches.

use pando::remote::RemoteIndex;
use pando::{BULK_THREADS_MAX, Config, IndexError, IndexLayout, IndexOptions, Ownership};
use pando_lab::units;
use pando_workload::dataset::Format;

use crate::args::LoadArgs;
use crate::failure::Failure;
use crate::indexes::{boundaries, node_size, options_of};
use crate::keys::KeySchema;
use crate::pool;
use crate::target::{Found, Shape};

/// Maximum length of a value in an index of byte strings.
const VALUE_MAX: usize = 16 << 20;
/// Default node size in bytes.
const NODE_SIZE: u64 = 1 << 10;

/// The index to load, existing or new.
pub struct Plan {
    pub name: String,
    pub options: IndexOptions,
    pub own: Ownership,
    /// Its compute servers, if they execute the puts.
    pub served: Option<RemoteIndex>,
    /// First keys of the partitions except the first one.
    boundaries: Vec<Vec<u8>>,
    key_len_max: usize,
}

impl Plan {
    /// Creates the plan for rows with keys of `schema`; `found` is the index if it exists.
    pub fn new(args: &LoadArgs, found: Option<Found>, schema: &KeySchema) -> Result<Plan, Failure> {
        let name = match (&args.target.index, &found) {
            (Some(name), _) => name.clone(),
            (None, Some(found)) => found.shape.name.clone(),
            (None, None) => {
                return Err(Failure::bad_input("there is no index; say by --index how to call it"));
            }
        };
        check_pool(args)?;
        let wanted = boundaries(&args.boundaries, schema)?;
        let (options, boundaries, served) = match found {
            Some(Found { shape, schema: there, served }) => {
                check_schema(&name, &there, schema)?;
                check_made(args, &shape, &wanted)?;
                let options = options_of(shape.layout);
                let options = options.node_size(shape.node_size).subtree_level(shape.subtree_level);
                (options.description(shape.description), shape.boundaries, served)
            }
            None => {
                let nodes = node_size(args.node_size.unwrap_or(NODE_SIZE))?;
                let options = IndexOptions::bytes().node_size(nodes).description(schema.description());
                (options, wanted, None)
            }
        };
        // With `--own` this process takes the partitions itself.
        let served = served.filter(|_| args.own.is_empty());
        let own = match args.own.is_empty() {
            true => Ownership::All,
            false => Ownership::Partitions(args.own.clone()),
        };
        let options = options.boundaries(boundaries.clone()).own(own.clone());
        match &served {
            Some(_) => check_served(args, &name)?,
            None => options.check(&name, &Config::embedded().cache(args.target.pool.cache))?,
        }
        Ok(Plan { key_len_max: options.key_len_max()?, name, options, own, served, boundaries })
    }

    /// Whether this process loads a row.
    pub fn owns(&self, key: &[u8]) -> bool {
        match &self.own {
            Ownership::All => true,
            Ownership::Partitions(own) => {
                own.contains(&self.boundaries.partition_point(|boundary| boundary.as_slice() <= key))
            }
        }
    }

    /// Checks whether the index can hold a row. Rejecting rows one by one keeps a bad row from failing its
    /// batch.
    pub fn check_row(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let (len, key_len, key_len_max) = (value.len(), key.len(), self.key_len_max);
        match self.options.layout() {
            IndexLayout::Fixed { key_size, .. } if key_len != key_size => {
                Err(format!("a key of {key_len} bytes in an index whose keys have {key_size}"))
            }
            IndexLayout::Fixed { value_size, .. } if len != value_size => {
                Err(format!("a value of {len} bytes in an index whose values have {value_size}"))
            }
            IndexLayout::Bytes if len > VALUE_MAX => {
                Err(format!("a value of {len} bytes is longer than {VALUE_MAX}"))
            }
            IndexLayout::Bytes if key_len > key_len_max => {
                Err(IndexError::KeyTooLong { len: key_len, max: key_len_max }.to_string())
            }
            _ => Ok(()),
        }
    }
}

/// Refuses options that are wrong regardless of the file and the pool.
pub fn check_options(args: &LoadArgs) -> Result<(), Failure> {
    let refused = |sentence: String| Err(Failure::BadInput(sentence));
    if let Some(fill) = args.fill.filter(|fill| !(*fill > 0.0 && *fill <= 1.0)) {
        return refused(format!("--fill must be above 0 and at most 1, not {fill}"));
    }
    if let Some(threads) = args.threads.filter(|threads| !(1..=BULK_THREADS_MAX).contains(threads)) {
        return refused(format!(
            "--threads must be at least 1 and at most {BULK_THREADS_MAX}, not {threads}"
        ));
    }
    if args.replace && !args.own.is_empty() {
        return refused("--replace empties the whole index, so it cannot be used with --own".to_owned());
    }
    if args.fill.is_some() && !args.own.is_empty() {
        return refused(
            "--fill is for an index that is loaded as a whole, so it cannot be used with --own".to_owned(),
        );
    }
    if args.delimiter.is_some_and(|delimiter| !delimiter.is_ascii()) {
        return refused("--delimiter must be one byte".to_owned());
    }
    Ok(())
}

/// Refuses options that do not apply to this file format.
pub fn check_format(args: &LoadArgs, format: Format) -> Result<(), Failure> {
    let (is_words, has_header) = (format == Format::Words, matches!(format, Format::Csv | Format::Tsv));
    let unused = [
        ("--key", is_words && !args.key.is_empty()),
        ("--value", (is_words || format == Format::Text) && args.value.is_some()),
        ("--no-header", !has_header && args.no_header),
        ("--delimiter", !has_header && args.delimiter.is_some()),
    ];
    match unused.into_iter().find(|(_, is_unused)| *is_unused) {
        Some((option, _)) => Err(Failure::bad_input(format_args!(
            "{option} cannot be used with a file of the format {format}"
        ))),
        None => Ok(()),
    }
}

/// Refuses options of a new pool that contradict the existing one.
fn check_pool(args: &LoadArgs) -> Result<(), Failure> {
    let (pool, new) = (&args.target.pool, &args.new_pool);
    if pool::compute_servers(&pool.pool)?.is_none() {
        return pool::look(pool, new, |_| Ok(())).map(drop);
    }
    match new.pool_size.is_some() || new.memory_servers.is_some() {
        true => Err(Failure::bad_input(
            "--pool-size and --memory-servers are for a pool that is made, which compute servers do not",
        )),
        false => Ok(()),
    }
}

/// Refuses options of a new index that contradict the existing one.
fn check_made(args: &LoadArgs, shape: &Shape, wanted: &[Vec<u8>]) -> Result<(), Failure> {
    let refused = |option: &str, there: String| {
        let name = &shape.name;
        Err(Failure::bad_input(format_args!("{option} is for an index that is made, but {name:?} {there}")))
    };
    if args.node_size.is_some_and(|wanted| wanted != shape.node_size as u64) {
        let there = units::size(shape.node_size as u64);
        return refused("--node-size", format!("is there already and has nodes of {there}"));
    }
    if !args.boundaries.is_empty() && wanted != shape.boundaries {
        return refused("--boundaries", "is there already and has others".to_owned());
    }
    Ok(())
}

/// Refuses options that the compute servers of an index cannot execute.
fn check_served(args: &LoadArgs, name: &str) -> Result<(), Failure> {
    if args.replace {
        return Err(no_replacement(name));
    }
    if args.fill.is_some() {
        return Err(Failure::bad_input(format_args!(
            "--fill is for an index that is loaded by this process, but compute servers own index {name:?}"
        )));
    }
    Ok(())
}

/// Refuses to replace an index that compute servers own.
pub fn no_replacement(name: &str) -> Failure {
    Failure::bad_input(format_args!(
        "--replace makes index {name:?} anew, but compute servers own it; empty it by `pando del --all` first"
    ))
}

pub fn check_schema(name: &str, there: &KeySchema, schema: &KeySchema) -> Result<(), Failure> {
    if there == schema {
        return Ok(());
    }
    Err(Failure::bad_input(format_args!(
        "keys of index {name:?} are made of the columns {}, those of the file of {}; say the types as in --key a:int,b:str",
        there.columns(),
        schema.columns()
    )))
}
