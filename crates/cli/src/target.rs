//! The index that a command works on, and the place where its operations are executed.
//!
//! Processes that own an index announce their operation ports in the pool. The command then sends its
//! operations there and opens nothing, so it excludes no other process and leaves nothing behind if killed.
//! If no process owns the index, the command opens the pool and has the index to itself. The catalog decides
//! between the two. `ops://HOST:PORT,..` names compute servers directly.

use pando::remote::{Answer, Client, ClientConfig, RemoteIndex, RemoteSession, Service};
use pando::{Cluster, Config, Create, Index, IndexInfo, IndexLayout, ScanRange};

use crate::args::{LookArgs, PoolArgs, TargetArgs};
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::pool;

/// Maximum number of rows in flight, and of their bytes.
const BATCH_ROWS: usize = 512;
const BATCH_BYTES: usize = 1 << 20;

/// An index, and the place where its operations are executed.
pub struct Target<'i> {
    pub shape: Shape,
    pub schema: KeySchema,
    pub reach: Reach<'i>,
}

/// Properties of an index from which a similar one can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    pub name: String,
    pub layout: IndexLayout,
    pub node_size: usize,
    pub subtree_level: u8,
    pub boundaries: Vec<Vec<u8>>,
    pub description: Vec<u8>,
}

/// Place where operations are executed.
pub enum Reach<'i> {
    /// In this process.
    Here(&'i Index),
    /// On the index's compute servers.
    There(RemoteIndex),
}

/// One thread's access to the index.
pub enum Session {
    Here(Box<pando::Session>),
    There(Box<RemoteSession>),
}

/// Numbers of rows that were put.
#[derive(Clone, Copy, Debug, Default)]
pub struct Put {
    pub inserted: u64,
    pub replaced: u64,
}

impl Put {
    fn add(&mut self, was_there: bool) {
        *(if was_there { &mut self.replaced } else { &mut self.inserted }) += 1;
    }
}

impl Target<'_> {
    fn new(shape: Shape, reach: Reach<'_>) -> Result<Target<'_>, Failure> {
        let schema = KeySchema::of_description(&shape.name, &shape.description)?;
        Ok(Target { shape, schema, reach })
    }

    pub fn session(&self) -> Result<Session, Failure> {
        self.reach.session()
    }
}

impl Reach<'_> {
    pub fn session(&self) -> Result<Session, Failure> {
        Ok(match self {
            Reach::Here(index) => Session::Here(Box::new(index.session()?)),
            Reach::There(index) => Session::There(Box::new(index.session())),
        })
    }
}

impl Shape {
    pub fn of(info: &IndexInfo) -> Shape {
        Shape {
            name: info.name.clone(),
            layout: info.layout,
            node_size: info.node_size,
            subtree_level: info.subtree_level,
            boundaries: info.boundaries.clone(),
            description: info.description.clone(),
        }
    }
}

impl Session {
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> pando::Result<bool> {
        match self {
            Session::Here(session) => session.get_into(key, value),
            Session::There(session) => session.get_into(key, value),
        }
    }

    pub fn put(&self, key: &[u8], value: &[u8]) -> pando::Result<bool> {
        match self {
            Session::Here(session) => session.put(key, value),
            Session::There(session) => session.put(key, value),
        }
    }

    pub fn insert(&self, key: &[u8], value: &[u8]) -> pando::Result<bool> {
        match self {
            Session::Here(session) => session.insert(key, value),
            Session::There(session) => session.insert(key, value),
        }
    }

    pub fn update(&self, key: &[u8], value: &[u8]) -> pando::Result<bool> {
        match self {
            Session::Here(session) => session.update(key, value),
            Session::There(session) => session.update(key, value),
        }
    }

    pub fn remove(&self, key: &[u8]) -> pando::Result<bool> {
        match self {
            Session::Here(session) => session.remove(key),
            Session::There(session) => session.remove(key),
        }
    }

    /// Puts rows, as many in flight as possible. Returns the number of rows put, and the result.
    pub fn put_all<'r>(&self, rows: impl Iterator<Item = (&'r [u8], &'r [u8])>) -> (Put, pando::Result<()>) {
        let mut put = Put::default();
        let ended = match self {
            Session::Here(session) => rows
                .into_iter()
                .try_for_each(|(key, value)| session.put(key, value).map(|was_there| put.add(was_there))),
            Session::There(session) => put_there(session, rows, &mut put),
        };
        (put, ended)
    }

    pub fn is_empty(&self) -> pando::Result<bool> {
        let first = ScanRange { limit: 1, ..ScanRange::all() };
        Ok(self.scan(&first, |_, _| false)? == 0)
    }

    pub fn scan(
        &self,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> pando::Result<usize> {
        match self {
            Session::Here(session) => session.scan(range, visit),
            Session::There(session) => session.scan(range, visit),
        }
    }
}

/// Puts rows batch by batch. All successful rows of a batch count, even if others of it failed.
fn put_there<'r>(
    session: &RemoteSession,
    rows: impl Iterator<Item = (&'r [u8], &'r [u8])>,
    put: &mut Put,
) -> pando::Result<()> {
    let mut batch = session.batch();
    let mut rows = rows.peekable();
    while rows.peek().is_some() {
        let mut bytes = 0;
        while batch.len() < BATCH_ROWS
            && bytes < BATCH_BYTES
            && let Some((key, value)) = rows.next()
        {
            batch.put(key, value);
            bytes += key.len() + value.len();
        }
        let mut failed = None;
        for answer in batch.run() {
            match answer {
                Ok(answer) => put.add(answer == Answer::Was(true)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(())
}

/// Runs `work` on an existing index.
pub fn work_on<T>(
    args: &TargetArgs,
    work: impl FnOnce(&Target<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if let Some(addresses) = pool::compute_servers(&args.pool.pool)? {
        return work(&named(&args.pool, args.index.as_deref(), addresses)?);
    }
    with(args, pool::existing(&args.pool)?, false, work)
}

/// Runs `work` on an existing index, for reading only.
pub fn look_at<T>(
    args: &TargetArgs,
    look: &LookArgs,
    work: impl FnOnce(&Target<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if let Some(addresses) = pool::compute_servers(&args.pool.pool)? {
        return work(&named(&args.pool, args.index.as_deref(), addresses)?);
    }
    let config = pool::looking(&args.pool, look)?;
    if !look.unclean {
        return with(args, config, true, work);
    }
    let name = with_catalog(&config, |cluster| name_in(args.index.as_deref(), cluster))?;
    here(config, &name, work)
}

/// An existing index.
pub struct Found {
    pub shape: Shape,
    pub schema: KeySchema,
    /// The index on its compute servers, if it has any.
    pub served: Option<RemoteIndex>,
}

/// Looks for an index; `None` if there is no index with this name, or no pool.
pub fn find(args: &PoolArgs, index: Option<&str>) -> Result<Option<Found>, Failure> {
    if let Some(addresses) = pool::compute_servers(&args.pool)? {
        let Target { shape, schema, reach } = named(args, index, addresses)?;
        let served = match reach {
            Reach::There(index) => Some(index),
            Reach::Here(_) => None,
        };
        return Ok(Some(Found { shape, schema, served }));
    }
    let config = pool::existing(args)?;
    let looking = config.clone().create(Create::Never).read_only_unclean(true);
    let Some(cluster) = Cluster::open_if_there(looking)? else { return Ok(None) };
    let names = cluster.index_names()?;
    if names.is_empty() {
        return Ok(None);
    }
    let name = name_in(index, &cluster)?;
    if !names.contains(&name) {
        return Ok(None);
    }
    let shape = Shape::of(&cluster.index_info(&name)?);
    cluster.close()?;
    let schema = KeySchema::of_description(&shape.name, &shape.description)?;
    Ok(Some(Found { shape, schema, served: served(&config, &name)? }))
}

fn with<T>(
    args: &TargetArgs,
    config: Config,
    reads: bool,
    work: impl FnOnce(&Target<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let info = with_catalog(&config, |cluster| {
        let name = name_in(args.index.as_deref(), cluster)?;
        Ok(cluster.index_info(&name)?)
    })?;
    let found = Client::find(&config, &info.name);
    let is_lost = matches!(found, Err(pando::Error::NotServed { is_lost: true, .. }));
    if let Some(index) = served_as(found)? {
        return work(&Target::new(Shape::of(&info), Reach::There(index))?);
    }
    if is_lost && reads && info.log_bytes.is_some() {
        // A reader changes nothing, so the heir is another handle.
        pool::with_index(pool::writing(&config), &info.name, |_, _| Ok(()))?;
    }
    here(config, &info.name, work)
}

fn here<T>(
    config: Config,
    name: &str,
    work: impl FnOnce(&Target<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    pool::with_index(config, name, |index, info| work(&Target::new(Shape::of(info), Reach::Here(index))?))
}

/// Opens the index of the named compute servers.
fn named(args: &PoolArgs, index: Option<&str>, addresses: Vec<String>) -> Result<Target<'static>, Failure> {
    let access = pool::access(&args.access)?;
    let client = Client::connect(ClientConfig::new(addresses).access(access))?;
    let described = client.describe()?;
    let index = client.open_index(index.unwrap_or(&described.name))?;
    // Compute servers know only the boundaries of their own ranges.
    let boundaries = index.owners().into_iter().filter_map(|(range, _)| range.low);
    let boundaries: std::collections::BTreeSet<Vec<u8>> = boundaries.collect();
    let shape = Shape {
        name: index.name().to_owned(),
        layout: index.layout(),
        node_size: described.node_size as usize,
        subtree_level: described.subtree_level,
        boundaries: boundaries.into_iter().collect(),
        description: described.description,
    };
    Target::new(shape, Reach::There(index))
}

/// Opens the index on its compute servers, if any of them is reachable.
pub fn served(config: &Config, name: &str) -> Result<Option<RemoteIndex>, Failure> {
    served_as(Client::find(config, name))
}

fn served_as(found: pando::Result<Service>) -> Result<Option<RemoteIndex>, Failure> {
    match found {
        Ok(Service::Remote(index)) => Ok(Some(index)),
        // Opening the index here will report the obstacle.
        Ok(Service::Nobody) | Err(pando::Error::NotServed { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads the catalog of an existing pool, even if it is in use or unclean.
pub fn with_catalog<T>(
    config: &Config,
    look: impl FnOnce(&Cluster) -> Result<T, Failure>,
) -> Result<T, Failure> {
    pool::with_cluster(config.clone().create(Create::Never).read_only_unclean(true), look)
}

/// The named index; otherwise the only one, or the only one served by compute servers.
pub fn name_in(index: Option<&str>, cluster: &Cluster) -> Result<String, Failure> {
    if let Some(name) = index {
        return Ok(name.to_owned());
    }
    let mut names = cluster.index_names()?;
    let elfs = cluster.elf_names()?;
    // An Elf is meant only if there is nothing else.
    if names.len() > elfs.len() {
        names.retain(|name| !elfs.contains(name));
    }
    let mut served = Vec::new();
    for name in names.iter().filter(|_| names.len() > 1) {
        match cluster.partitions(name) {
            Ok(partitions) if partitions.iter().any(|found| found.owner.address(name).is_some()) => {
                served.push(name.clone());
            }
            // The index may have been dropped meanwhile.
            Ok(_) | Err(pando::Error::UnknownIndex { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match (&names[..], &served[..]) {
        ([], _) => Err(Failure::bad_input("the pool has no index")),
        ([only], _) | (_, [only]) => Ok(only.clone()),
        _ => Err(Failure::bad_input(format_args!(
            "the pool has the indexes {}; say by --index which one",
            names.join(", ")
        ))),
    }
}
