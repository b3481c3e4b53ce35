//! The death of the process of an index with a log, and its heir (`docs/durability.md`).
//!
//! At its time, all operations of the process are cut off where they are: their futures are dropped, and no verb is begun
//! for them. What they had begun may still take effect for a while, as before the process is fenced off. Then the slot that noticed
//! first redoes the log, with the faults of the seed going on, opens the index with an empty cache, and all slots go on. An heir may die as
//! well, and the next one begins anew.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use pando_cache::Cache;
use pando_dex::layout::Layout;
use pando_dex::{Ctx, DexError, LOG_PER_CACHE_BYTE, Tree, redo};
use pando_fabric::{Endpoint, Nanos};
use pando_log::{Contents, Log, Options, Shape, Space};

use super::case_dex::DexCase;
use super::client::{Client, within};
use super::dex::{Dex, Life};
use super::setup::{PATIENCE_NS, Setup};

/// Segments of a lane at least; so small a log goes round often.
const SEGMENTS_MIN: u64 = 4;
const SEGMENT_BYTES: u64 = 8 << 10;
const LANES: usize = 2;
/// Longest life of an heir that dies while it recovers, in ns at the usual latency.
const HEIR_NS_MAX: Nanos = 200_000;

/// Shape of a log that is as small as the cache allows.
pub fn shape_of_log(setup: &Setup, case: &DexCase) -> Shape {
    let lanes = LANES.min(setup.threads);
    // The log of a large cache is bounded by the pool.
    let bytes = (case.cache_config().bytes * LOG_PER_CACHE_BYTE).min(1 << 20);
    let segments = (bytes / SEGMENT_BYTES / lanes as u64).max(SEGMENTS_MIN) as usize;
    Shape { lanes, segments, segment_bytes: SEGMENT_BYTES }
}

/// Ends the process if it is time, and waits while it is dead.
pub async fn live<L: Layout>(client: &Client<Dex<L>>) {
    let is_alive = || client.index.life.borrow().number.get().is_multiple_of(2);
    let is_time = |at: &mut Nanos| client.ep.now() >= *at && is_alive();
    let dies = client.book.deaths.borrow_mut().pop_if(is_time);
    if dies.is_some() {
        inherit(client).await;
    }
    while !is_alive() && !client.book.is_over.get() {
        client.ep.yield_now().await;
        client.ep.sleep_until(client.ep.now() + PATIENCE_NS / 100).await;
    }
}

/// The process is dead from now on. Becomes its heir.
async fn inherit<L: Layout>(client: &Client<Dex<L>>) {
    let (index, ep) = (&client.index, &client.ep);
    let dead = Rc::clone(&index.life.borrow());
    dead.number.set(dead.number.get() + 1);
    loop {
        ep.sleep_until(ep.now() + client.setup.verbs_take_ns()).await;
        // One in three heirs dies in its turn.
        let lives = ep.random() % (HEIR_NS_MAX as f64 * client.setup.latency_scale) as Nanos;
        let until = if client.below(3) == 0 { ep.now() + lives } else { Nanos::MAX };
        match within(ep, until, || false, pin!(heir(client, &dead))).await {
            Some(Ok(life)) => {
                *index.life.borrow_mut() = Rc::new(life);
                return;
            }
            // A fault, as in every operation: it is begun anew.
            None | Some(Err(DexError::Fabric(_) | DexError::Pool(_) | DexError::Cache(_))) => {}
            Some(Err(error)) => panic!("the index cannot be inherited: {error}"),
        }
    }
}

async fn heir<L: Layout>(client: &Client<Dex<L>>, dead: &Life<L>) -> Result<Life<L>, DexError> {
    let (index, ep) = (&client.index, &client.ep);
    let config = dead.trees[0].config();
    let root = config.log.as_ref().expect("it has a log").space().root();
    let contents = Contents::read(ep, Space::read(ep, root).await?).await?;
    redo(ep, index.layout, &contents, |_, _| ()).await?;
    let options = Options {
        patience_ns: PATIENCE_NS,
        verbs_take_ns: client.setup.verbs_take_ns(),
        ..Options::default()
    };
    let log = Arc::new(Log::resume(ep, contents, options).await?);
    let cache = Arc::new(Cache::new(&index.case.cache_config())?);
    let config = pando_dex::TreeConfig { log: Some(log), ..config.clone() };
    let worker = cache.worker();
    let ctx = Ctx { ep, worker: &worker };
    let tree = Tree::open(ctx, Arc::clone(&cache), index.pool.clone(), index.layout, config).await;
    cache.retire(&worker);
    Ok(Life { number: Cell::new(dead.number.get() + 1), trees: vec![tree?] })
}
