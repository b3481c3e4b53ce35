//! A few operations on the real tree, under many schedules. Threads of one compute server share a cache,
//! another compute server changes nodes that both share, and each thread may be preempted at any scheduling
//! point.
//!
//! Every seed is a schedule of one small program, as a checker of interleavings would run it, in the virtual
//! time of a simulated cluster. A shared node was split, and the second compute server has an old copy. Some
//! of its threads go to keys below the old copy, and one learns of the split and empties leaves there.
//!
//! `PANDO_SIM_SEEDS=A..B` runs the schedules A to B - 1. With the feature `defects` they must find two
//! defects.

use std::ops::Deref;
use std::rc::Rc;

use crate::common::draw::{Draw, seeds};
use crate::common::{Cluster, Entries};
use pando_cache::CacheWorker;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{Answers, Ctx, DexError, Tree};
use pando_fabric::{DynEndpoint, Endpoint, Random};
use pando_rt::block_on;
use pando_sim::{Model, Preemption, SimConfig, SimEndpoint, SimFabric};

const KEYS: u64 = 120;
/// The first key of the second compute server.
const BOUNDARY: u64 = 35;
/// Keys of a full leaf, and separators of a full inner node.
const FANOUT: usize = 5;
/// Threads of the second compute server that go to keys; one more thread empties leaves.
const GOING: usize = 3;

type Tiny = Cluster<FixedLayout, SimFabric>;

fn key(k: u64) -> Vec<u8> {
    (k << 16).to_be_bytes().to_vec()
}

/// The `n`-th key behind key `k`.
fn behind(k: u64, n: u64) -> Vec<u8> {
    (k << 16 | n).to_be_bytes().to_vec()
}

fn value(n: u64) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

/// A thread of one of the compute servers.
struct Thread {
    cluster: Rc<Tiny>,
    server: usize,
    ep: DynEndpoint,
    worker: CacheWorker,
}

impl Thread {
    fn new(cluster: &Rc<Tiny>, server: usize, seed: u64) -> Rc<Self> {
        let worker = cluster.trees[server].cache().worker();
        let ep = DynEndpoint::new(cluster.fabric.thread(server, seed));
        Rc::new(Self { cluster: Rc::clone(cluster), server, ep, worker })
    }

    fn at(&self) -> (&Tree<FixedLayout>, Ctx<'_, DynEndpoint>) {
        (&self.cluster.trees[self.server], Ctx { ep: &self.ep, worker: &self.worker })
    }

    async fn put(&self, key: &[u8], n: u64) -> Result<bool, DexError> {
        let (tree, ctx) = self.at();
        tree.put(ctx, key, &value(n)).await
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DexError> {
        let (tree, ctx) = self.at();
        let mut out = Vec::new();
        Ok(tree.get(ctx, key, &mut out).await?.then_some(out))
    }

    /// Reaches the split nodes and empties the leaves around `k`.
    async fn merge_around(&self, k: u64) -> Result<(), DexError> {
        let (tree, ctx) = self.at();
        for far in (k + 2 * FANOUT as u64..KEYS).step_by(FANOUT).take(6) {
            tree.put(ctx, &behind(far, 1), &value(2)).await?;
        }
        for near in k.saturating_sub(2 * FANOUT as u64).max(BOUNDARY)..(k + 2 * FANOUT as u64).min(KEYS) {
            if near != k {
                tree.remove(ctx, &key(near)).await?;
            }
        }
        // Freed blocks are used again.
        for n in 1..8 {
            tree.put(ctx, &behind(k, n), &value(3)).await?;
        }
        Ok(())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.cluster.trees[self.server].cache().retire(&self.worker);
    }
}

/// Gives a run access to the endpoint of a thread.
struct Running(Rc<Thread>);

impl Deref for Running {
    type Target = SimEndpoint;

    fn deref(&self) -> &SimEndpoint {
        self.0.ep.as_type()
    }
}

fn cluster(seed: u64) -> Rc<Tiny> {
    let layout = FixedLayout::new(256, 8, 8).expect("a layout").with_fanout_limit(FANOUT);
    let entries: Entries = (0..KEYS).map(|k| (key(k), value(k))).collect();
    let config = SimConfig { regions: vec![8 << 20], compute_servers: 2, seed, model: Model::default() };
    let fabric = SimFabric::new(&config).expect("a sound model");
    Rc::new(Cluster::tuned_on(
        fabric,
        layout,
        &[key(BOUNDARY)],
        &entries,
        1.0,
        |config| config.bytes = 1000 * 256,
        |_| (),
    ))
}

/// Runs one schedule of the program; returns the violations.
fn run(seed: u64) -> Vec<String> {
    let draw = Draw(Random::new(seed));
    let k = BOUNDARY + 1 + draw.0.next() % (KEYS - BOUNDARY - 1);
    let far = if k < 3 * KEYS / 4 { KEYS - 1 } else { BOUNDARY + 1 };
    let preemption = Preemption {
        seed,
        one_in: draw.one_of(&[2, 4, 8]),
        longest_ns: draw.one_of(&[100_000, 400_000, 1_600_000]),
    };
    let pause = draw.one_of(&[0, 2_000, 20_000]);
    let cluster = cluster(seed);
    {
        // The second compute server gets copies of the shared nodes; then the first one splits the lowest of
        // them.
        let [first, second] = [0, 1].map(|server| Thread::new(&cluster, server, 1));
        assert!(block_on(&second.ep, second.get(&key(BOUNDARY + 1))).expect("no error").is_some());
        for k in (0..BOUNDARY).rev().step_by(FANOUT).take(2) {
            assert!(!block_on(&first.ep, first.put(&behind(k, 1), 1)).expect("no error"));
        }
    }
    let threads: Vec<_> =
        (0..=GOING).map(|thread| Thread::new(&cluster, 1, seed << 8 | thread as u64)).collect();
    let work = |thread: usize, _: u32| {
        let this = Rc::clone(&threads[thread]);
        async move {
            let now = this.ep.now();
            this.ep.sleep_until(now + thread as u64 * pause).await;
            match thread {
                GOING => this.merge_around(k).await,
                0 => this.put(&key(k), 7).await.map(drop),
                // The second key is below a node that is READ first, so that the batch waits when it knows
                // the first leaf.
                _ => {
                    let (tree, ctx) = this.at();
                    let (keys, mut answers) = ([key(k), key(far)], Answers::default());
                    tree.multi_get(ctx, &keys, &mut answers).await.map(drop)
                }
            }
        }
    };
    let running = threads.iter().map(|thread| Running(Rc::clone(thread))).collect();
    let done = cluster.fabric.run_preempted(running, 1, preemption, work);
    let mut wrong: Vec<String> =
        done.into_iter().flatten().filter_map(|done| Some(done.err()?.to_string())).collect();
    let client = &threads[0];
    let found = block_on(&client.ep, client.get(&key(k)));
    if !matches!(&found, Ok(Some(found)) if *found == value(7)) {
        wrong.push(format!("key {k} holds {found:?}"));
    }
    drop(threads);
    wrong.extend(cluster.trees.iter().flat_map(pando_dex::audit::audit_cache));
    wrong.extend(cluster.audit());
    wrong
}

#[test]
fn every_schedule_ends_well() {
    for seed in seeds(300) {
        assert_eq!(run(seed), [""; 0], "seed {seed}");
    }
}

#[cfg(feature = "defects")]
mod defects {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Instant;

    use pando_cache::defect::Defect;
    use pando_fabric::defect::with_defect;

    use super::run;

    #[track_caller]
    fn is_found(defect: Defect) {
        let began = Instant::now();
        let shows = |&seed: &u64| {
            let ran = catch_unwind(AssertUnwindSafe(|| with_defect(Some(defect), || run(seed))));
            let wrong = ran.unwrap_or_else(|_| vec!["a panic".to_owned()]);
            wrong.iter().take(3).for_each(|wrong| eprintln!("{defect:?}, schedule {seed}: {wrong}"));
            !wrong.is_empty()
        };
        let found = (0..3_000).find(shows);
        eprintln!("{defect:?}: schedule {found:?}, {:.1?}", began.elapsed());
        assert!(found.is_some(), "{defect:?} is not found");
    }

    #[test]
    fn a_stale_copy_that_is_believed_is_found() {
        is_found(Defect::StaleParentBelieved);
    }

    #[test]
    fn a_stale_copy_that_a_batch_believes_is_found() {
        is_found(Defect::StaleBatchBelieved);
    }
}
