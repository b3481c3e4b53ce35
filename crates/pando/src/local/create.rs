//! Creating and dropping an index, and writing its root and its boundaries.
//!
//! The record in the catalog comes first, since every node carries the number that the catalog assigns.
//! Without a root it is not yet an index that can be opened.

use pando_cache::Cache;
use pando_dex::Tree;
use pando_dex::layout::Layout;
use pando_fabric::GlobalAddr;
use pando_pool::{IndexRecord, IndexSpec, PoolError};
use pando_rt::block_on;

use super::servers::{Servers, blocks_of, flush_tree, free_blocks, open_passing, with_ctx};
use super::{logs, lost, partitions};
use crate::error::{Error, Result};
use crate::layout::{NodeLayout, with_layout};
use crate::options::{Config, Descriptor, IndexOptions, Ownership};
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Number of DEX in the catalog.
pub(super) const SYSTEM: u16 = 1;

/// Origin of the boundaries of a new index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    Given,
    /// Equal parts of the key space, chosen without knowing any keys.
    Equally,
}

impl IndexOptions {
    /// Checks whether [`crate::Cluster::create_index`] would accept these options on a cluster opened with
    /// `config`, as far as can be told without a pool. A caller can so validate a request before it creates
    /// anything.
    ///
    /// # Errors
    /// As [`crate::Cluster::create_index`], and [`crate::Cluster::open`] for `config`.
    pub fn check(&self, name: &str, config: &Config) -> Result<()> {
        config.check()?;
        plan(config, name, self).map(drop)
    }
}

/// Layout, catalog entry and origin of the boundaries of an index with these options.
///
/// # Errors
/// All errors that can be detected before anything is created.
fn plan(config: &Config, name: &str, options: &IndexOptions) -> Result<(NodeLayout, IndexSpec, Chosen)> {
    let descriptor = Descriptor::of(options)?;
    let layout = descriptor.node_layout(options.node_size)?;
    // An index that this process could not open is not created.
    Cache::new(&config.cache_config(options.node_size))?;
    let (boundaries, chosen) = match (&options.boundaries, config.compute_servers) {
        (Some(boundaries), _) => (boundaries.clone(), Chosen::Given),
        (None, Some(servers)) => (partitions::equal(options.layout, servers)?, Chosen::Equally),
        (None, None) => (Vec::new(), Chosen::Given),
    };
    partitions::check(&boundaries)?;
    with_layout!(layout, |layout| boundaries.iter().try_for_each(|key| layout.key(key).map(drop)))?;
    if let Ownership::Partitions(own) = &options.own
        && let Some(partition) = own.iter().find(|&&partition| partition > boundaries.len())
    {
        let partitions = boundaries.len() + 1;
        return Err(Error::InvalidOption(format!(
            "there is no partition {partition}: the index has {partitions}, counted from 0"
        )));
    }
    let spec = IndexSpec {
        name: name.to_owned(),
        system: SYSTEM,
        node_size: options.node_size as u32,
        subtree_level: options.subtree_level,
        root: GlobalAddr::NULL,
        layout: [descriptor.encode(), options.description.clone()].concat(),
        boundaries,
    };
    spec.check()?;
    Ok((layout, spec, chosen))
}

/// Creates an index and enters it into the catalog. A failure leaves nothing behind, or is
/// [`Error::Perhaps`].
pub(crate) fn create(
    shared: &Shared,
    ep: &AnyEndpoint,
    name: &str,
    options: &IndexOptions,
) -> Result<Chosen> {
    let (layout, spec, chosen) = plan(&shared.config, name, options)?;
    let boundaries = spec.boundaries.clone();
    let spec = IndexSpec { boundaries: Vec::new(), ..spec };
    // The record comes first, since every node carries the number that the catalog assigns. This process owns
    // it until it has a root.
    let record = match block_on(ep, shared.pool.create_own_index(ep, spec.clone())) {
        Err(PoolError::IndexExists { .. }) if clear_unmade(shared, ep, name)? => {
            block_on(ep, shared.pool.create_own_index(ep, spec))
        }
        done => done,
    }?;
    let made = with_layout!(layout, |layout| plant(shared, ep, layout, record, boundaries));
    match made {
        Ok(()) => Ok(chosen),
        // The index may be complete, so it stays.
        Err(error @ Error::Perhaps { .. }) => Err(error),
        Err(error) => match block_on(ep, shared.pool.drop_index(ep, name)) {
            Ok(_) => Err(error),
            // The name is taken by an index without a root.
            Err(_) => Err(error.perhaps(CREATING)),
        },
    }
}

/// Removes an index of this name if its creation was abandoned; returns whether the name is free.
fn clear_unmade(shared: &Shared, ep: &AnyEndpoint, name: &str) -> Result<bool> {
    match block_on(ep, shared.pool.open_index(ep, name)) {
        Ok(record) if lost::is_unmade(shared, ep, &record, true)? => {
            match lost::unlink(shared, ep, &record) {
                // Another process removed it first; an index that it creates is another one.
                Ok(()) | Err(Error::Pool(PoolError::UnknownIndex { .. })) => Ok(true),
                // It was completed.
                Err(Error::Pool(PoolError::StaleRecord { .. })) => Ok(false),
                Err(error) => Err(error),
            }
        }
        Ok(_) => Ok(false),
        Err(PoolError::UnknownIndex { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

const CREATING: &str = "making the index";

/// Outcome of writing a record with a new root.
pub(crate) enum Written {
    Yes(IndexRecord),
    /// The catalog does not have the new root.
    No(Error),
    /// Unknown outcome; both roots stay allocated.
    Perhaps(Error),
}

/// Writes a record with a new root. After an error, the record in the catalog tells whether it was written.
pub(crate) fn write_root(shared: &Shared, ep: &AnyEndpoint, record: &IndexRecord) -> Written {
    let error = match block_on(ep, shared.pool.update_index(ep, record)) {
        Ok(written) => return Written::Yes(written),
        Err(error) => Error::from(error),
    };
    match block_on(ep, shared.pool.open_index(ep, &record.name)) {
        Ok(now) if now.id == record.id && now.root == record.root => Written::Yes(now),
        Ok(_) | Err(PoolError::UnknownIndex { .. }) => Written::No(error),
        Err(_) => Written::Perhaps(error),
    }
}

/// Gives a new record a root, and cuts the empty index at the boundaries.
fn plant<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    mut record: IndexRecord,
    boundaries: Vec<Vec<u8>>,
) -> Result<()> {
    record.root = block_on(ep, Tree::create(ep, &shared.pool, layout, record.id, &[]))?;
    let made = cut(shared, ep, layout, &record, &boundaries).and_then(|()| shared.persist(ep));
    let planted = match made {
        Ok(()) => {
            record.recut(boundaries, None);
            write_root(shared, ep, &record)
        }
        Err(error) => Written::No(error),
    };
    match planted {
        Written::Yes(_) => Ok(()),
        Written::No(error) => {
            // No record refers to these blocks. Those that cannot be freed now are found by an audit.
            let _ =
                blocks_of(shared, ep, layout, &record).and_then(|blocks| free_blocks(shared, ep, &blocks));
            Err(error)
        }
        Written::Perhaps(error) => Err(Error::Perhaps { what: CREATING, error: Box::new(error) }),
    }
}

/// Splits leaves at `boundaries`. After a failure some leaves are split already, which does no harm.
pub(crate) fn cut<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
    boundaries: &[Vec<u8>],
) -> Result<()> {
    if boundaries.is_empty() {
        return Ok(());
    }
    let tree = open_passing(shared, ep, layout, record)?;
    let cut = with_ctx(ep, &tree, |ctx| {
        boundaries.iter().try_for_each(|boundary| Ok(block_on(ep, pando_dex::cut_at(&tree, ctx, boundary))?))
    });
    flush_tree(ep, &tree)?;
    cut
}

/// Removes the index from the catalog and frees its blocks. This process owns all of it, and it is at rest.
pub(crate) fn drop_index(shared: &Shared, ep: &AnyEndpoint, servers: &Servers) -> Result<()> {
    servers.flush(ep)?;
    let blocks =
        with_layout!(servers.node_layout()?, |layout| blocks_of(shared, ep, layout, &servers.record))?;
    block_on(ep, shared.pool.drop_index(ep, &servers.record.name))?;
    logs::drop_others(shared, ep, servers.record.id, &[])?;
    free_blocks(shared, ep, &blocks)
}
