//! The cluster of one run: memory servers with a pool, and compute servers.
//!
//! Direct endpoints make the cluster, load the index and audit it after the run, all outside of virtual time.
//! All compute servers share one attachment to the pool, as in a process that runs all of them, unless they may die
//! (`processes.rs`).

use std::sync::Arc;

use pando_dex::{DexError, MemorySide};
use pando_fabric::{Fabric, FabricError};
use pando_pool::{AttachOptions, Pool, PoolError, PoolOptions};
use pando_rt::block_on;
use pando_sherman::ShermanError;
use pando_sim::{ModelError, SimConfig, SimFabric};
use pando_smart::SmartError;

use super::history::Book;
use super::keys::draw_value;
use super::processes::Processes;
use super::setup::{PATIENCE_NS, Setup, Start, random_of};
use crate::copies::{Copies, Loss, SimEndpoint};

/// Number of the index in its pool.
pub const INDEX: u32 = 7;
/// Bytes of the region of each memory server.
const REGION: u64 = 8 << 20;
/// The same if processes die, whose chunks nobody uses any more, and the size of a chunk.
const REGION_OF_DEAD: u64 = 32 << 20;
const CHUNK_OF_DEAD: u64 = 16 << 10;

/// Reason why a cluster could not be set up: an error of the simulator, or in making or loading the index.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Cache(#[from] pando_cache::CacheError),
    #[error(transparent)]
    Dex(#[from] DexError),
    #[error(transparent)]
    Sherman(#[from] ShermanError),
    #[error(transparent)]
    Smart(#[from] SmartError),
}

/// A simulated cluster.
pub struct Cluster {
    pub fabric: SimFabric,
    pub copies: Copies,
    pub loss: Option<Loss>,
    pub pool: Pool,
    pub processes: Processes,
}

impl Cluster {
    /// Sets up the cluster of `setup`. Returns also an endpoint for making the index.
    pub fn new(setup: &Setup) -> Result<(Self, SimEndpoint), ClusterError> {
        let region = if setup.deaths() > 0 { REGION_OF_DEAD } else { REGION };
        let fabric = SimFabric::new(&SimConfig {
            regions: vec![region * setup.copies as u64; setup.memory_servers],
            compute_servers: setup.all_compute_servers(),
            seed: setup.seed,
            model: setup.model(),
        })?;
        fabric.set_handler(Arc::new(MemorySide::default()));
        let loss = setup.loss(fabric.now(), setup.span());
        let copies = Copies::new(&fabric, setup.copies, loss);
        let ep = copies.endpoint(fabric.endpoint(setup.seed)?);
        let processes = Processes::default();
        let attached = match setup.faults.cuts_off() {
            _ if setup.deaths() > 0 => processes.attach_options(setup, processes.begin()),
            true => AttachOptions::embedded().wait_ns_max(PATIENCE_NS).verbs_take_ns(setup.verbs_take_ns()),
            false => AttachOptions::embedded(),
        };
        let mut options = PoolOptions::new(attached);
        if setup.deaths() > 0 {
            options = options.chunk_size(CHUNK_OF_DEAD);
        }
        let pool = block_on(&ep, Pool::create(&ep, options))?;
        Ok((Self { fabric, copies, loss, pool, processes }, ep))
    }
}

/// Boundaries that divide the keys of the run into equal partitions.
pub fn boundaries(setup: &Setup, keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let servers = setup.compute_servers;
    (1..servers).map(|server| keys[keys.len() * server / servers].clone()).collect()
}

/// Draws the initial entries of the index and records them in `book`.
pub fn draw_entries(setup: &Setup, book: &mut Book) -> Vec<(Vec<u8>, Vec<u8>)> {
    let random = random_of(setup.seed, "entries");
    let step = match setup.start {
        Start::Empty => return Vec::new(),
        Start::Half => 2,
        Start::Full => 1,
    };
    let mut entries = Vec::new();
    for key in (0..book.keys.len()).step_by(step) {
        let bytes = draw_value(&random, setup.sizes, setup.long_share, book.next_operation());
        book.before[key] = Some(book.value(key as u32, &bytes));
        entries.push((book.keys[key].clone(), bytes));
    }
    entries
}
