//! Verbs of a scaled cell of the paper with and without a log: half-full leaves, a cache of 5.45 bytes for each
//! record, Zipf 0.99, half lookups and half updates, 16 operations in flight.
//!
//! `cargo test -p pando-dex --test it log_costs:: -- --nocapture` prints them. Nothing else is measured, so the
//! speed of the host does not matter.

use std::cell::RefCell;
use std::sync::Arc;

use pando_cache::{Cache, CacheConfig};
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{Ctx, Tree, TreeConfig};
use pando_fabric::{DynEndpoint, Endpoint, Fabric, VerbCounts};
use pando_log::{Blocks, Contents, Log, Options, Shape};
use pando_pool::Placement;
use pando_rt::{Worker, block_on};
use pando_sim::{Model, SimConfig, SimFabric};
use pando_workload::{Rng, Zipf};

use crate::common::{Cluster, INDEX};

const KEYS: u64 = 400_000;
const CACHE: u64 = KEYS * 26 * 4 * (1 << 20) / 20_000_000;
const OPS: u64 = 150_000;
const SLOTS: u64 = 16;
const SEGMENT: u64 = 64 << 10;

fn key_of(number: u64) -> [u8; 8] {
    // In no order: popular keys are far from each other.
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1).to_be_bytes()
}

async fn open_log(ep: &DynEndpoint, cluster: &Cluster<FixedLayout, SimFabric>, lanes: usize) -> Arc<Log> {
    let segments = (4 * CACHE / SEGMENT) as usize / lanes;
    let alloc = async |bytes| cluster.pool.alloc(ep, Placement::LeastLoaded, bytes).await;
    let blocks = Blocks::gather(Shape { lanes, segments, segment_bytes: SEGMENT }, alloc).await;
    let blocks = blocks.expect("blocks");
    let space = Log::create(ep, INDEX, blocks).await.expect("a log");
    let contents = Contents::read(ep, space).await.expect("a new log");
    Arc::new(Log::resume(ep, contents, Options::default()).await.expect("it opens"))
}

async fn operate(
    ctx: Ctx<'_, DynEndpoint>,
    tree: &Tree<FixedLayout>,
    zipf: &Zipf,
    rng: &RefCell<Rng>,
    ops: u64,
) {
    for i in 0..ops {
        let (number, updates) = {
            let mut rng = rng.borrow_mut();
            (zipf.draw(&mut rng), rng.unit() < 0.5)
        };
        let key = key_of(number);
        match updates {
            true => assert!(tree.update(ctx, &key, &i.to_le_bytes()).await.expect("an update")),
            false => assert!(tree.get(ctx, &key, &mut Vec::new()).await.expect("a lookup")),
        }
    }
}

/// Verbs of [`OPS`] operations.
fn measure(is_logged: bool) -> VerbCounts {
    // A network: where memory is mapped, each record is written by itself.
    let config = SimConfig { regions: vec![96 << 20], compute_servers: 1, seed: 5, model: Model::default() };
    let fabric = SimFabric::new(&config).expect("a sound model");
    let layout = FixedLayout::new(1024, 8, 8).expect("a layout");
    let mut entries: Vec<_> = (0..KEYS).map(|number| (key_of(number).to_vec(), vec![0; 8])).collect();
    entries.sort();
    let cluster = Cluster::loaded_on(fabric, layout, &[], &entries, 0.5, |config| config.bytes = 1 << 20);
    let ep = &DynEndpoint::new(cluster.fabric.endpoint(3).expect("an endpoint"));
    let cache = Arc::new(Cache::new(&CacheConfig::new(CACHE, 1024)).expect("a cache"));
    let worker = cache.worker();
    let ctx = Ctx { ep, worker: &worker };
    let tree = block_on(ep, async {
        let mut config = TreeConfig::new(INDEX, cluster.trees[0].config().root);
        if is_logged {
            config.log = Some(open_log(ep, &cluster, 4).await);
        }
        Tree::open(ctx, Arc::clone(&cache), cluster.pool.clone(), layout, config).await.expect("it opens")
    });
    let (zipf, rng) = (Zipf::new(KEYS, 0.99).expect("a distribution"), RefCell::new(Rng::new(7)));
    let round =
        || drop(Worker::new(ep, SLOTS as usize).run(|_| operate(ctx, &tree, &zipf, &rng, OPS / SLOTS)));
    round();
    let before = ep.counters().snapshot();
    round();
    ep.counters().snapshot() - before
}

#[test]
fn a_log_costs_few_writes_and_bytes() {
    let per_op = |count: u64| count as f64 / OPS as f64;
    let [off, on] = [false, true].map(|is_logged| {
        let counts = measure(is_logged);
        let bytes = counts.bytes_read + counts.bytes_written;
        let (reads, writes, bytes) = (per_op(counts.reads), per_op(counts.writes), per_op(bytes));
        println!(
            "log {is_logged}: {reads:.3} READs, {writes:.3} WRITEs, {bytes:.0} bytes, {} atomics",
            counts.atomics
        );
        assert_eq!(counts.atomics, 0);
        (reads, writes, bytes)
    });
    assert!((on.0 - off.0).abs() < 0.01, "a log costs no READs");
    assert!(on.1 <= off.1 + 0.152, "at most 0.35 WRITEs where there are 0.198 without a log");
    assert!(on.2 <= off.2 + 57.0, "at most 620 bytes where there are 563 without a log");
}
